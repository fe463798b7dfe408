"""Drawn durations: what a call takes in the seeds after the first, from what calls like it took in the recorded run.

Which calls are alike is a question to the record. All calls of a function begin as one group. A group is split by the
actor, by the values of the arguments, by the size of the arguments, or by the place among the calls of the same parent,
when the split explains more of the spread than its number of parts would by chance: a Bayesian information criterion
of the logarithms, in which a spread of SPREAD_MIN says nothing. The split that explains most comes first, and its parts
are asked again. What is left is pooled: a draw takes the duration of any call of its group.

A group in which every call was given other values tells nothing of whether the values matter. Each of its calls keeps
its own duration, and the spread about it is that of the groups of the same function that were pooled, else one that is
assumed (SPREAD_ASSUMED).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from math import exp, log
from statistics import NormalDist

from dualray.recording.graph import Graph, TaskNode

SPREAD_MIN = 0.01
"""Of the logarithm of durations: calls that differ by less are alike."""
SPREAD_ASSUMED = 0.05
"""Of calls about which the record tells nothing: of the logarithm of their durations."""
_SPARE_MIN = 3
"""Calls beyond one for each part, without which a split cannot be judged."""
_SEARCHED = 2
"""By how much a part is dearer than in the criterion: of several splits the best one looks good by chance."""
_LEAST_NS = 1000
"""Durations below it are all the same."""


@dataclass(slots=True)
class Call:
    """A recorded call: what it took, and what its duration may depend on."""

    task_id: bytes
    took_ns: int
    features: tuple[Hashable, ...]
    """Actor, values, size class, place in the parent."""


_VALUES = 1


class Durations:
    """What tasks took, by groups of calls that are alike; a draw is a function of seed, task and attempt."""

    def __init__(self, graph: Graph) -> None:
        self._groups: dict[bytes, Sequence[int]] = {}
        """Of each call that is pooled, what those that are like it took, in ns."""
        self._spread: dict[bytes, Sequence[float]] = {}
        """Of each call that keeps its own, factors to draw from."""
        by_name: dict[str, list[Call]] = {}
        for task_id, node in graph.tasks.items():
            size = node.args_bytes + sum(graph.sizes.get(dep, 0) for dep in node.deps)
            features = (node.actor, node.values, size.bit_length(), node.place)
            call = Call(task_id, node.script.compute_ns, features)
            by_name.setdefault(graph.templates[node.template].name, []).append(call)
        alone: dict[str, list[Call]] = {}
        factors: dict[str, list[float]] = {}
        for name, calls in by_name.items():
            for group in groups_of(calls):
                if keeps_own(group):
                    alone.setdefault(name, []).extend(group)
                    continue
                took = [call.took_ns for call in group]
                for call in group:
                    self._groups[call.task_id] = took
                if len(group) >= _SPARE_MIN:
                    factors.setdefault(name, []).extend(_factors(group))
        for name, calls in alone.items():
            for call in calls:
                self._spread[call.task_id] = factors.get(name, _ASSUMED)

    def alike(self, task_id: bytes) -> Sequence[int]:
        """What the calls that are like this one took, in ns; nothing when it keeps its own duration."""
        return self._groups.get(task_id, ())

    def scale_of(self, seed: int) -> Callable[[TaskNode, int], float]:
        """By what a task's computing is multiplied."""
        if seed == 0:
            return own_durations

        def scale(node: TaskNode, attempt: int) -> float:
            own = node.script.compute_ns
            if own <= 0:
                return 1.0
            group = self._groups.get(node.task_id)
            if group is None:
                spread = self._spread[node.task_id]
                return spread[_drawn(seed, attempt, node.task_id) % len(spread)]
            if len(group) < 2:
                return 1.0
            return group[_drawn(seed, attempt, node.task_id) % len(group)] / own

        return scale


_ASSUMED = tuple(exp(SPREAD_ASSUMED * NormalDist().inv_cdf((number + 0.5) / 20)) for number in range(20))


def own_durations(node: TaskNode, attempt: int) -> float:
    """Every call takes what it took."""
    return 1.0


def groups_of(calls: Sequence[Call]) -> list[list[Call]]:
    """The calls of one function, in groups of calls that are alike."""
    found: list[list[Call]] = []
    left: list[list[Call]] = [list(calls)]
    while left:
        group = left.pop()
        parts = _best_split(group)
        if parts is None:
            found.append(group)
        else:
            left.extend(parts)
    return found


def keeps_own(group: Sequence[Call]) -> bool:
    """Whether nothing tells how its calls depend on the values that they were given: hardly two got the same ones, and
    they took different times."""
    values = {call.features[_VALUES] for call in group}
    if len(values) < 2 or len(group) - len(values) >= _SPARE_MIN:
        return False
    logs = _logs(group)
    return _variance(logs) > SPREAD_MIN**2


def _best_split(group: Sequence[Call]) -> list[list[Call]] | None:
    """Its parts by the feature that explains most; None: none explains enough."""
    count = len(group)
    if count <= _SPARE_MIN:
        return None
    logs = _logs(group)
    whole = _variance(logs)
    if whole <= SPREAD_MIN**2:
        return None
    best, best_parts = count * log(whole + SPREAD_MIN**2) + _SEARCHED * log(count), None
    for number in range(len(group[0].features)):
        parts: dict[Hashable, list[int]] = {}
        for index, call in enumerate(group):
            parts.setdefault(call.features[number], []).append(index)
        if len(parts) < 2 or count - len(parts) < _SPARE_MIN:
            continue
        within = sum(_squares([logs[index] for index in part]) for part in parts.values()) / (count - len(parts))
        criterion = count * log(within + SPREAD_MIN**2) + _SEARCHED * len(parts) * log(count)
        if criterion < best:
            best, best_parts = criterion, parts
    return None if best_parts is None else [[group[index] for index in part] for part in best_parts.values()]


def _logs(group: Sequence[Call]) -> list[float]:
    return [log(max(call.took_ns, _LEAST_NS)) for call in group]


def _squares(values: Sequence[float]) -> float:
    mean = sum(values) / len(values)
    return sum((value - mean) ** 2 for value in values)


def _variance(values: Sequence[float]) -> float:
    return _squares(values) / (len(values) - 1) if len(values) > 1 else 0.0


def _factors(group: Sequence[Call]) -> list[float]:
    """By how much each differs from the middle of its group."""
    logs = _logs(group)
    mean = sum(logs) / len(logs)
    return [exp(value - mean) for value in logs]


def _drawn(seed: int, attempt: int, task_id: bytes) -> int:
    return int.from_bytes(blake2b(b"%d:%d:" % (seed, attempt) + task_id, digest_size=8).digest(), "big")
