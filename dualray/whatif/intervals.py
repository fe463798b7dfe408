"""How sure a prediction is: the 90 % interval of each row, and what lies outside of what was calibrated.

Theory of operation. Three things make a prediction wrong, and each has a part in the interval; the parts are added as
independent ones, in logarithms.

- The work differs from run to run, and the costs are not known exactly. Both are in the seeds: each seed after the
  first draws the durations (durations.py), and the costs from their posterior. Seeds come in pairs that draw a cost as
  far above its fitted value as below, so that their median stays where the fit is. The spread of a few seeds is itself
  unsure, which Student's distribution takes into account.
- The model is wrong by itself. RESIDUALS says how far: of programs that were predicted and then run, the error that
  nine of ten do not exceed (`python -m benchmarks.fidelity residuals` prints it, and the coverage of intervals that
  are made of all other programs).
- The machine was noisy while it was calibrated.

A question outside of what was calibrated has an interval that is wider by OUTSIDE for each reason.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, hypot, log, log1p
from random import Random
from statistics import NormalDist, stdev

from dualray.recording.calibration import Calibration
from dualray.recording.graph import Graph
from dualray.shared.model.resources import GPU
from dualray.shared.units import size_words, time_words
from dualray.sim.cost.cost_model import CostModel
from dualray.whatif.configurations import Configuration

RESIDUALS: Mapping[str, float] = {"one node": 0.137, "several nodes": 0.162}
"""Of |log(measured / predicted)|, what nine of ten pairs do not exceed: benchmarks/fidelity, twelve programs."""
OUTSIDE = 0.15
"""By how much an interval is wider for each reason to be outside, in the logarithm."""
SPREAD_MAX = 1.0
"""Of the logarithm of a cost. With a wider posterior the calibration knows nothing of it; it stays near its default."""
SPREAD_UNCALIBRATED = 0.7
"""Of the logarithm of each cost of the software, when none was measured."""
SEEN_BYTES = 32 << 20
"""The largest object that `dualray calibrate` moves."""
SEEN_LATENCY_NS = 2_000_000
NOISE_WORTH_A_WORD = 0.1

_SOFTWARE = (
    "local_message_ns",
    "node_message_ns",
    "head_message_ns",
    "dispatch_ns",
    "seal_ns",
    "memory_bytes_per_s",
    "worker_start_ns",
    "submit_ns",
)
_Z95 = 1.96
STUDENT_95 = (6.31, 2.92, 2.35, 2.13, 2.02, 1.94, 1.89, 1.86, 1.83, 1.81)
"""The 95 % quantiles of Student's distribution, by degrees of freedom from 1 on."""
NORMAL_95 = 1.645


@dataclass(frozen=True, slots=True)
class Posterior:
    """What is known of the costs.

    Attributes:
        costs, slowdown: as fitted.
        spreads: standard deviations of the logarithms of those costs that are not known exactly.
        slowdown_spread: standard deviation of the slowdown.
    """

    costs: CostModel
    slowdown: float = 0.0
    spreads: tuple[tuple[str, float], ...] = ()
    slowdown_spread: float = 0.0

    def drawn(self, seed: int) -> tuple[CostModel, float]:
        """The costs and the slowdown of a seed; those of seed 0 are as fitted, those of 1 and 2 mirror one another."""
        if seed == 0:
            return self.costs, self.slowdown
        rng = Random(f"costs {(seed + 1) // 2}")
        sign = 1 if seed % 2 else -1
        changes = {}
        for name, spread in self.spreads:
            value = getattr(self.costs, name)
            drawn = round(value * exp(sign * rng.gauss(0.0, spread)))
            changes[name] = max(1 if name.endswith("_bytes_per_s") else 0, drawn)
        slowdown = max(0.0, self.slowdown + sign * rng.gauss(0.0, self.slowdown_spread))
        return replace(self.costs, **changes), slowdown


def posterior_of(costs: CostModel, calibration: Calibration | None, said: Mapping[str, object]) -> Posterior:
    """What is known of the costs; those that were `said` are known exactly."""
    if calibration is None:
        spreads = dict.fromkeys(_SOFTWARE, SPREAD_UNCALIBRATED)
        return Posterior(costs, 0.0, tuple((name, each) for name, each in spreads.items() if name not in said))
    found = []
    slowdown_spread = 0.0
    for name, (low, high) in calibration.intervals.items():
        if name == "slowdown":
            slowdown_spread = max(0.0, high - low) / (2 * _Z95)
        elif name in calibration.costs and name not in said and 0 < low < high:
            found.append((name, min(SPREAD_MAX, log(high / low) / (2 * _Z95))))
    return Posterior(costs, calibration.slowdown, tuple(found), slowdown_spread)


def interval_of(
    makespan_s: float,
    times_s: Sequence[float],
    *,
    nodes: int,
    noise: float,
    outside: int,
    least_s: float,
) -> tuple[float, float]:
    """The 90 % interval of a row, in seconds.

    Args:
        times_s: of the seeds.
        noise: of the machine while it was calibrated: by how much others slowed it.
        outside: how many reasons there are to be outside of what was calibrated.
        least_s: what no run can beat.
    """
    if makespan_s <= 0:
        return makespan_s, makespan_s
    seeds = 0.0
    logs = [log(each / makespan_s) for each in times_s if each > 0]
    if len(logs) > 1:
        freedom = len(logs) - 1
        student = STUDENT_95[freedom - 1] if freedom <= len(STUDENT_95) else NORMAL_95
        seeds = student * stdev(logs)
    residual = RESIDUALS["one node" if nodes == 1 else "several nodes"]
    half = hypot(seeds, residual, log1p(noise)) + OUTSIDE * outside
    return min(makespan_s, max(least_s, makespan_s * exp(-half))), makespan_s * exp(half)


def within(deadline_s: float, times_s: Sequence[float], *, nodes: int, noise: float, outside: int) -> float:
    """The probability that a run ends in time: each seed's time (0: it failed), with the model's error about it."""
    residual = RESIDUALS["one node" if nodes == 1 else "several nodes"]
    spread = (hypot(residual, log1p(noise)) + OUTSIDE * outside) / NORMAL_95
    sure = NormalDist()
    shares = [sure.cdf(log(deadline_s / each) / spread) if each > 0 < deadline_s else 0.0 for each in times_s]
    return sum(shares) / len(shares)


def outside_of(
    config: Configuration, graph: Graph, calibration: Calibration, host_cores: float | None
) -> tuple[str, ...]:
    """Why a question lies outside of what was calibrated, a line for each reason; nothing when it does not."""
    found = []
    cores = seen_cores(calibration)
    wanted = min(config.cpus, host_cores) if host_cores is not None else config.cpus
    if cores and wanted > cores:
        found.append(f"{wanted:g} tasks compute at the same time on a node, but the calibration measured only {cores}")
    largest = max(graph.sizes.values(), default=0)
    if largest > SEEN_BYTES:
        found.append(
            f"the program has an object of {size_words(largest)}, but the calibration moved only "
            f"{size_words(SEEN_BYTES)}"
        )
    if config.nodes > 1:
        fastest = calibration.costs.get("transfer_bytes_per_s", 0)
        if fastest and config.network_bytes_per_s > fastest:
            found.append(
                f"the network has {config.network_bytes_per_s * 8 / 1e9:.3g} Gbps, but the calibration moved only "
                f"{fastest * 8 / 1e9:.3g} Gbps"
            )
        if config.latency_ns > SEEN_LATENCY_NS:
            found.append(
                f"messages take {time_words(config.latency_ns)}, but the calibration measured only a local network"
            )
    if config.gpus or any(template.words["resources"].get(GPU) for template in graph.templates):
        found.append("the calibration measured no GPUs")
    return tuple(found)


def seen_cores(calibration: Calibration) -> int:
    """How many cores the calibration has kept busy at once; 0: it does not say."""
    found = re.search(r"(\d+) cores", calibration.machine)
    return int(found[1]) if found else 0
