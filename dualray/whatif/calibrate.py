"""Measure this machine, and fit the cost model to it: `dualray calibrate`.

Theory of operation. What is calibrated is not a number here and a number there but the replay itself: a program of
micro-runs (micro.py) is recorded with one worker, as a user records a program, and then run, unrecorded, with a worker
for each core, and on two nodes that speak TCP. The fit looks for the parameters with which the replay of the record
takes, phase by phase, as long as the run did: least squares of the logarithms of replayed / measured, with a soft
loss, so that one disturbed phase does not pull everything. Each parameter is drawn, weakly, to its default
(PRIOR_SPREAD): one of which the phases say nothing stays there, with an interval that shows it.

What company on the cores costs is not fitted but measured: a fixed piece of computing, alone and on all cores at once
(`company`). Fitted, it would take up whatever else the replay does not know of phases that run side by side.

All is repeated in rounds until the time is up; what counts of a phase is the round that was least disturbed, for what
others do on a machine only ever adds; the record is that of the shortest run. The intervals (95 %)
come from the curvature at the optimum, scaled by what the fit leaves over and by the scatter between the rounds.
Phases that are held out, of other shapes, are predicted with the result: their median error is what the file calls
the held-out error.
"""

from __future__ import annotations

import datetime as dt
import gc
import math
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from dualray.recording.calibration import Calibration
from dualray.recording.file import read_record_file
from dualray.recording.graph import SUBMIT, Graph, graph_of
from dualray.shared.model.config import Config
from dualray.shared.model.demands import parse_resources
from dualray.sim.cost.cost_model import CostModel
from dualray.sim.network.topologies import Nic
from dualray.sim.processes.node import Hardware
from dualray.sim.replay.replay import ReplayCluster
from dualray.whatif.engines import STORE_BYTES, Engine, OwnEngine
from dualray.whatif.micro import ONE_NODE, THERE, TWO_NODES, MicroRun, company

SECONDS_MAX = 60.0
SECONDS_MIN = 1.0
MEASURING = 0.8
"""The share of the time in which it measures; in the rest it fits."""
NOISE_MAX = 1.0
"""A machine of which others take more than half is as good as unknown."""
PRIOR_SPREAD = 2.5
"""Standard deviation of the logarithm of a parameter about its default, before anything is measured."""
FARTHEST = 1000.0
"""The search tries no value above this many times a parameter's start, and none below that part of it."""
PHASE_SPREAD = 0.05
"""That of replayed / measured, as far as the prior is concerned: a phase weighs so much more."""
_LOOPBACK = Nic(bytes_per_s=100_000_000_000, latency_ns=0)
_SLOWDOWN = "slowdown"
_RESAMPLED = 1000
"""How often the pieces of computing are drawn anew, for the interval of the slowdown."""
_PATIENCE_NS = 10**15
"""The search tries messages that take minutes, and no node is out of reach for that."""
_Z95 = 1.96

FITTED: Mapping[str, tuple[str, ...]] = {
    ONE_NODE.name: (
        "local_message_ns",
        "dispatch_ns",
        "seal_ns",
        "memory_bytes_per_s",
        "keep_ns",
        "worker_start_ns",
    ),
    TWO_NODES.name: ("node_message_ns", "transfer_ns", "transfer_bytes_per_s"),
}
"""What each program tells most about. Two nodes are replayed with what one node has told."""

STARTS: Mapping[str, float] = {
    "keep_ns": 300e3,
    "worker_start_ns": 15e6,
    "transfer_ns": 200e3,
    "transfer_bytes_per_s": 1e9,
}
"""Where the search, and the prior, begin, when this is not the default: these are no bound, or none at all, there."""


@dataclass(slots=True)
class Phase:
    """A phase of a micro-run: in seconds, what each round measured, and what is replayed with the fitted costs."""

    program: str
    name: str
    is_held_out: bool
    measured_s: list[float]
    replayed_s: float = 0.0

    @property
    def least_s(self) -> float:
        """Of what was measured: the round that was least disturbed."""
        return min(self.measured_s)

    @property
    def error(self) -> float:
        """(replayed - measured) / measured."""
        return self.replayed_s / self.least_s - 1.0


@dataclass(slots=True)
class Fit:
    """What `calibrate` found: the calibration, and all phases."""

    calibration: Calibration
    phases: Sequence[Phase]
    rounds: int
    measured_for_s: float


@dataclass(slots=True)
class _Measured:
    """A program's rounds: of each, what was recorded, and what each phase then took."""

    program: MicroRun
    nodes: int
    cpus: float
    graphs: list[Graph] = field(default_factory=list)
    phases_s: list[list[float]] = field(default_factory=list)

    def graph(self) -> Graph:
        """The record of the least disturbed round."""
        return min(self.graphs, key=lambda graph: graph.makespan_ns)


def calibrate(
    *,
    seconds: float = SECONDS_MAX,
    on_round: Callable[[int, float], object] = lambda done, left_s: None,
    engine: Engine | None = None,
) -> Fit:
    """Measure an engine, and fit the cost model to it.

    Args:
        seconds: how long it may take, 1 to 60, of which it measures for four fifths; one round, of about ten seconds,
            it always measures; below 20 it takes less in each phase.
        on_round: called after each round with how many are done, and how many seconds are left.
        engine: what to measure (engines.py); None: real mode, on this machine.

    Raises:
        ValueError: `seconds` is out of range.
        AlreadyInitializedError: a runtime is active.
    """
    check_seconds(seconds)
    engine = engine or OwnEngine()
    alone, pair = engine.alone(), engine.pair()
    cores = round(alone.cpus)
    one = _Measured(ONE_NODE, alone.nodes, alone.cpus)
    programs = [(one, alone)]
    if pair is not None:
        programs.append((_Measured(TWO_NODES, pair.nodes, pair.cpus), pair))
    scale = 1.0 if seconds >= 20 else 0.4
    begun_s = time.perf_counter()
    rounds = 0
    alone_s: list[float] = []
    beside_s: list[float] = []
    with tempfile.TemporaryDirectory(prefix="dualray-calibrate-") as directory, engine:
        path = Path(directory) / "run.parquet"
        while True:
            round_begun_s = time.perf_counter()
            for measured, place in programs:
                with place.recorded(path) as there:
                    measured.program.run(scale, there)
                measured.graphs.append(graph_of(read_record_file(path)))
            for measured, place in programs:
                with place.measured() as there:
                    measured.phases_s.append(_differences(measured.program.run(scale, there)))
                    if measured is one:
                        for all_s, of_round_s in zip((alone_s, beside_s), company(cores), strict=True):
                            all_s.extend(of_round_s)
            rounds += 1
            now_s = time.perf_counter()
            left_s = MEASURING * seconds - (now_s - begun_s)
            on_round(rounds, max(left_s, 0.0))
            if left_s < now_s - round_begun_s:
                break
    measured_for_s = time.perf_counter() - begun_s
    slowdown, interval = slowdown_of(alone_s, beside_s, cores)
    noise = noise_of(alone_s)
    all_measured = [measured for measured, _ in programs]
    calibration, phases = _fit(all_measured, cores, slowdown, interval, noise)
    calibration = replace(calibration, engine=engine.name, machine=engine.words)
    return Fit(calibration, phases, rounds=rounds, measured_for_s=measured_for_s)


def noise_of(alone_s: Sequence[float]) -> float:
    """By how much others that used the machine slowed a fixed piece of computing, 1 at most: its mean above its least.
    The middle piece says little. Whoever shares the cores takes them for a time slice now and then, and most pieces
    are shorter than that."""
    return min(NOISE_MAX, float(np.mean(alone_s) / np.min(alone_s)) - 1.0)


def check_seconds(seconds: float) -> None:
    """Raises:
    ValueError: nobody measures for so long, or so shortly.
    """
    if not SECONDS_MIN <= seconds <= SECONDS_MAX:
        raise ValueError(f"seconds={seconds:g} must be from {SECONDS_MIN:g} to {SECONDS_MAX:g}")


def _differences(times_s: Sequence[float]) -> list[float]:
    return [after - before for before, after in pairwise(times_s)]


def slowdown_of(alone_s: Sequence[float], beside_s: Sequence[float], cores: int) -> tuple[float, tuple[float, float]]:
    """By how much each further busy core slows the others down, and its interval (95 %), from what the same piece of
    computing takes alone and beside `cores - 1` others."""
    if cores == 1:
        return 0.0, (0.0, 0.0)

    def found(alone: Any, beside: Any) -> Any:
        return np.maximum(0.0, np.median(beside, axis=-1) / np.median(alone, axis=-1) - 1.0) / (cores - 1)

    draw = np.random.default_rng(0)
    drawn = found(*(draw.choice(np.asarray(of), (_RESAMPLED, len(of))) for of in (alone_s, beside_s)))
    low, high = np.quantile(drawn, (0.025, 0.975))
    return float(found(alone_s, beside_s)), (_rounded(float(low)), _rounded(float(high)))


# ---- The fit -------------------------------------------------------------------------------------------------------


class _Replays:
    """What the phases of a program take on its cluster, by the parameters."""

    def __init__(self, measured: _Measured, cores: int, slowdown: float) -> None:
        self._measured = measured
        self._graph = measured.graph()
        self._cores = cores
        self._slowdown = slowdown

    def phases_s(self, costs: CostModel) -> list[float]:
        """Of each phase, seconds."""
        measured = self._measured
        hardware = []
        for index in range(measured.nodes):
            resources = {THERE: 1.0} if index == 1 else {}
            total = parse_resources(num_cpus=measured.cpus, num_gpus=0, resources=resources)
            hardware.append(Hardware(total=total, store_bytes=STORE_BYTES, nic=_LOOPBACK))
        cluster = ReplayCluster(
            self._graph,
            config=Config(inline_bytes_max=self._graph.inline_bytes_max, link_patience_ns=_PATIENCE_NS),
            cost_model=costs,
            seed=0,
            hardware=hardware,
            cores=self._cores,
            slowdown=self._slowdown,
        )
        replayed = cluster.run()
        if replayed.failed:
            raise RuntimeError(f"the calibration run {measured.program.name} failed in a simulation: {replayed.failed}")
        return [max(each, 1.0) / 1e9 for each in _differences(replayed.marks)]


@dataclass(slots=True)
class _Parameters:
    """The parameters of one fit, as the search sees them: logarithms."""

    names: Sequence[str]
    base: CostModel

    @property
    def starts(self) -> Any:
        values = [STARTS.get(name, getattr(self.base, name)) for name in self.names]
        return np.log(np.asarray(values, dtype=float))

    def at(self, x: np.ndarray[Any, Any]) -> CostModel:
        """The costs at a place of the search."""
        values = dict(zip(self.names, np.exp(x), strict=True))
        costs = {name: max(1, round(value)) for name, value in values.items()}
        if "node_message_ns" in costs:  # a head is on one of the nodes
            costs["head_message_ns"] = costs["node_message_ns"]
        return self.base.with_changes(costs)


def _fit(
    programs: Sequence[_Measured], cores: int, slowdown: float, interval: tuple[float, float], noise: float
) -> tuple[Calibration, list[Phase]]:
    from scipy.optimize import least_squares  # noqa: PLC0415 - 0.3 s that only who calibrates pays

    base = CostModel()
    costs: dict[str, int] = {}
    intervals: dict[str, tuple[float, float]] = {_SLOWDOWN: interval}
    phases: list[Phase] = []
    for measured in programs:
        parameters = _Parameters(FITTED[measured.program.name], base)
        replays = _Replays(measured, cores, slowdown)
        rounds_s = np.asarray(measured.phases_s)
        least_s = np.min(rounds_s, axis=0)
        used = [index for index, name in enumerate(measured.program.phases) if name[0] not in "+-"]
        starts = parameters.starts

        def left(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
            replayed_s = np.asarray(replays.phases_s(parameters.at(x)))  # noqa: B023 - called in this turn only
            of_phases = np.log(replayed_s[used] / least_s[used]) / PHASE_SPREAD  # noqa: B023
            return np.concatenate([of_phases, (x - starts) / PRIOR_SPREAD])  # noqa: B023

        was_enabled = gc.isenabled()
        gc.disable()  # a replay makes millions of objects that refer to each other little
        try:
            found = least_squares(
                left,
                starts,
                bounds=(starts - math.log(FARTHEST), starts + math.log(FARTHEST)),
                loss="soft_l1",
                diff_step=0.02,
                xtol=1e-3,
                ftol=1e-3,
                max_nfev=12,
            )
        finally:
            if was_enabled:
                gc.enable()
        spread = _spread(found, rounds_s[:, used], len(used))
        values = np.exp(found.x)
        base = parameters.at(found.x)
        for name, value, sigma in zip(parameters.names, values, spread, strict=True):
            low, high = (float(value * np.exp(sign * _Z95 * sigma)) for sign in (-1, 1))
            intervals[name] = (_rounded(low), _rounded(high))
            costs[name] = getattr(base, name)
        if "node_message_ns" in costs:
            costs["head_message_ns"] = costs["node_message_ns"]
            intervals["head_message_ns"] = intervals["node_message_ns"]
        replayed_s = replays.phases_s(base)
        for index, name in enumerate(measured.program.phases):
            if name[0] != "-":
                each_s = [float(each) for each in rounds_s[:, index]]
                is_held_out = name[0] == "+"
                phases.append(Phase(measured.program.name, name.lstrip("+"), is_held_out, each_s, replayed_s[index]))
    costs["submit_ns"] = _submit_ns(programs[0].graph())
    held_out = [phase for phase in phases if phase.is_held_out]
    return _calibration(costs, intervals, slowdown, noise, held_out), phases


def _calibration(
    costs: dict[str, int],
    intervals: dict[str, tuple[float, float]],
    slowdown: float,
    noise: float,
    held_out: Sequence[Phase],
) -> Calibration:
    return Calibration(
        date=dt.datetime.now(dt.UTC).date().isoformat(),
        costs=costs,
        intervals=intervals,
        slowdown=round(slowdown, 4),
        noise=round(noise, 4),
        error=round(median(abs(phase.error) for phase in held_out), 4),
        checks=tuple(
            {
                "program": f"{phase.program}: {phase.name}",
                "measured_s": round(phase.least_s, 5),
                "predicted_s": round(phase.replayed_s, 5),
            }
            for phase in held_out
        ),
    )


def _spread(found: Any, rounds_s: np.ndarray[Any, Any], count: int) -> Any:
    """Standard deviations of the parameters' logarithms."""
    own = found.jac[:count]  # of the phases: what lies below is the prior
    misfit = found.fun[:count]
    scatter = np.zeros(count)
    if len(rounds_s) > 1:
        logs = np.log(rounds_s) / PHASE_SPREAD
        scatter = np.std(logs, axis=0, ddof=1) / np.sqrt(len(rounds_s))
    variance = max(1e-6, float(np.mean(misfit**2 + scatter**2)) * count / max(1, count - found.x.size / 2))
    prior = np.eye(found.x.size) / PRIOR_SPREAD**2
    covariance = np.linalg.inv(own.T @ own / variance + prior)
    return np.sqrt(np.diag(covariance))


def _submit_ns(graph: Graph) -> int:
    """What submitting a task takes the driver: the median of the time between two submissions one after the other."""
    ops = graph.driver.ops
    between = [after[0] for before, after in pairwise(ops) if before[1] == after[1] == SUBMIT]
    return round(median(between)) if between else CostModel().submit_ns


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")
