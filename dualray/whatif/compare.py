"""Two clusters, or two policies, compared: the difference of their predictions, with an interval.

The seeds of two rows are pairs: the same seed draws the same durations and the same costs for both, so what both have
in common cancels out. What is left is the spread of the difference over the seeds, and the model's own error about
differences: RESIDUAL, of pairs of clusters of one program, what nine of ten do not exceed. Two rows whose replays are
the same with every seed do not differ, as far as the model knows.

`what_would_help` tries single changes of a cluster and ranks them by what they gain.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import exp, hypot, log
from statistics import median, stdev

from dualray.shared.units import size_words
from dualray.sim.replay.replayed import Replayed
from dualray.whatif.configurations import PLACEMENTS, Configuration
from dualray.whatif.intervals import NORMAL_95, STUDENT_95

RESIDUAL = 0.15
"""Of |log(measured ratio / predicted ratio)|, what nine of ten pairs of clusters of one program do not exceed:
benchmarks/fidelity, twelve programs on four clusters."""


@dataclass(frozen=True, slots=True)
class Difference:
    """By how much one is faster than the other: shares of the first one's makespan; below 0 it is slower.

    Attributes:
        gain, low, high: the median over the seeds, and the 90 % interval.
        is_sure: whether all of the interval lies on one side of 0.
    """

    gain: float
    low: float
    high: float

    @property
    def is_sure(self) -> bool:
        return self.low > 0 or self.high < 0


def difference(before: Sequence[Replayed], after: Sequence[Replayed]) -> Difference:
    """The difference of two rows, from the replays of each in the order of their seeds.

    Raises:
        ValueError: a replay has failed, or they are not of the same seeds.
    """
    if len(before) != len(after) or not before:
        raise ValueError(
            f"{len(before)} and {len(after)} simulated runs cannot be compared in pairs; simulate both clusters "
            "with the same seeds"
        )
    for replayed in (*before, *after):
        if replayed.failed:
            raise ValueError(f"a simulated run failed, so dualray cannot compare the run: {replayed.failed}")
    logs = [log(max(two.makespan_ns, 1) / max(one.makespan_ns, 1)) for one, two in zip(before, after, strict=True)]
    if not any(logs):
        return Difference(0.0, 0.0, 0.0)
    middle = median(logs)
    spread = 0.0
    if len(logs) > 1:
        freedom = len(logs) - 1
        spread = (STUDENT_95[freedom - 1] if freedom <= len(STUDENT_95) else NORMAL_95) * stdev(logs)
    half = hypot(spread, RESIDUAL)
    return Difference(1 - exp(middle), 1 - exp(middle + half), 1 - exp(middle - half))


@dataclass(frozen=True, slots=True)
class Help:
    """A single change of a cluster, and what it brings.

    Attributes:
        words: what is changed.
        difference: None when the program cannot run there; `lacks` says why.
        cost: of a run there, when prices are known.
    """

    words: str
    configuration: Configuration
    difference: Difference | None
    makespan_s: float
    cost: float | None
    lacks: str = ""


def single_changes(base: Configuration) -> list[tuple[str, Configuration]]:
    """What to try: each changes one thing."""
    found = [
        ("one more node", replace(base, nodes=base.nodes + 1)),
        ("twice the nodes", replace(base, nodes=2 * base.nodes)),
        ("twice the CPUs of each node", replace(base, cpus=2 * base.cpus)),
        (f"a store of {size_words(2 * base.store_bytes)}", replace(base, store_bytes=2 * base.store_bytes)),
        ("the eviction policy spill", replace(base, eviction="spill")),
    ]
    if base.nodes > 1:
        found += [
            ("twice the network", replace(base, network_bytes_per_s=2 * base.network_bytes_per_s)),
            ("half the latency", replace(base, latency_ns=base.latency_ns // 2)),
            ("one node less", replace(base, nodes=base.nodes - 1)),
        ]
        found += [(f"the policy {name}", replace(base, policy=name)) for name in PLACEMENTS]
    seen = {base}
    distinct = []
    for words, config in found:
        if config not in seen:
            seen.add(config)
            distinct.append((words, config))
    return distinct


Runs = Sequence[tuple[Configuration, int, Replayed]]


def of_configuration(runs: Runs, config: Configuration) -> list[Replayed]:
    """The replays of one configuration, in the order of their seeds."""
    return [replayed for _, replayed in sorted(((s, r) for c, s, r in runs if c == config), key=_seed_of)]


def _seed_of(pair: tuple[int, Replayed]) -> int:
    return pair[0]


def ranked(
    base: Configuration,
    changes: Sequence[tuple[str, Configuration]],
    runs: Runs,
    cost_of: Callable[[Configuration, float], float | None],
) -> list[Help]:
    """The changes, those first that gain most; those with which the program cannot run last."""
    before = of_configuration(runs, base)
    found = []
    for words, config in changes:
        after = of_configuration(runs, config)
        lacks = next((replayed.failed for replayed in after if replayed.failed), "")
        makespan_s = median(replayed.makespan_ns for replayed in after) / 1e9
        cost = None if lacks else cost_of(config, makespan_s)
        found.append(Help(words, config, None if lacks else difference(before, after), makespan_s, cost, lacks))
    return sorted(found, key=_gain_of, reverse=True)


def _gain_of(it: Help) -> float:
    return float("-inf") if it.difference is None else it.difference.gain
