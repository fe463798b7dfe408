"""A schedule of faults, drawn from a seed: the same seed gives the same faults, in every run and on every machine.

Two clocks run side by side. Faults of workers are anchored at the n-th start or end of a task of some name, so that
they come in the middle of work; each anchor is a little later than the one before of the same name. A copy of an object
is lost after the n-th that a store took. Everything else has a time, with exponential gaps: bursts and quiet spells.
Every fault that takes a node, a link, room or memory away gives it back.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

from dualray.shared.model.config import Config
from dualray.shared.scenario.fault_model import TASK_ANCHORS, Fault, FaultKind, check_fault

MILLISECOND_NS = 1_000_000

WEIGHTS: dict[FaultKind, int] = {
    FaultKind.KILL_WORKER: 40,
    FaultKind.REBOOT_NODE: 15,
    FaultKind.PAUSE_NODE: 20,
    FaultKind.KILL_ACTOR: 12,
    FaultKind.SLOW_NODE: 8,
    FaultKind.RESTART_HEAD: 5,
    FaultKind.DRAIN_NODE: 10,
    FaultKind.PAUSE_WORKER: 10,
    FaultKind.SLOW_WORKER: 6,
    FaultKind.PAUSE_HEAD: 3,
    FaultKind.SLOW_HEAD: 3,
    FaultKind.PARTITION: 10,
    FaultKind.CLOG_NODE: 4,
    FaultKind.LINK: 8,
    FaultKind.LOSE_OBJECT: 10,
    FaultKind.FILL_STORE: 5,
    FaultKind.FILL_MEMORY: 4,
    FaultKind.FILL_DISK: 4,
    FaultKind.LIMIT_FILES: 4,
}
"""How often each kind is drawn, of the sum of those that a schedule may have."""

_STARTS_BETWEEN_MAX = 40
"""Of tasks of one name between two kills at starts of that name."""
_STORED_BETWEEN_MAX = 20
"""Objects that stores take between two losses of a copy."""
_SLOWNESS = (2.0, 4.0, 8.0)
_BANDWIDTHS, _DELAYS_MS = (0.5, 0.1, 0.01), (1, 10, 50)
_STORE_SHARES, _MEMORY_SHARE = (0.5, 0.9, 1.0), 0.99
_OF_WORKERS = (FaultKind.KILL_WORKER, FaultKind.PAUSE_WORKER, FaultKind.SLOW_WORKER)
_OF_HEAD = (FaultKind.RESTART_HEAD, FaultKind.PAUSE_HEAD, FaultKind.SLOW_HEAD)
_NOTICE_NS = (500 * MILLISECOND_NS, 5000 * MILLISECOND_NS)
"""From the notice to the machine in a node's place: long enough for most to leave, too short for some."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """The targets of faults.

    Attributes:
        nodes: names; not the driver's node.
        tasks: names of tasks that start again and again, for faults of workers; without any, those are never drawn.
        actors: classes, for KILL_ACTOR; likewise.
        config: how long a node must be silent to be taken for dead.
        gap_ns: mean time between two faults that have a time.
        kinds: those that may be drawn.
    """

    nodes: Sequence[str]
    tasks: Sequence[str] = ()
    actors: Sequence[str] = ()
    config: Config
    gap_ns: int = 700 * MILLISECOND_NS
    kinds: frozenset[FaultKind] = frozenset(WEIGHTS)


def draw_schedule(ground: Ground, *, seed: int, count: int) -> tuple[Fault, ...]:
    """`count` faults, in the order in which they were drawn.

    Raises:
        ValueError: nothing can be drawn: no kind has a target.
    """
    return _Drawer(ground, seed).draw(count)


class _Drawer:
    def __init__(self, ground: Ground, seed: int) -> None:
        self._ground = ground
        self._seed = seed
        self._drawn = 0
        self._now_ns = 0
        self._starts: dict[tuple[str, str], int] = {}
        self._stored = 0

    def draw(self, count: int) -> tuple[Fault, ...]:
        kinds = [kind for kind in WEIGHTS if kind in self._ground.kinds and self._is_possible(kind)]
        if not kinds:
            raise ValueError(
                "dualray cannot choose faults at random: give nodes, tasks or actors, and kinds of faults that "
                "can happen to the given nodes, tasks or actors"
            )
        faults = []
        for _ in range(count):
            fault = self._fault(self._kind(kinds))
            check_fault(fault)
            faults.append(fault)
        return tuple(faults)

    def _is_possible(self, kind: FaultKind) -> bool:
        if kind in _OF_WORKERS:
            return bool(self._ground.tasks)
        if kind is FaultKind.KILL_ACTOR:
            return bool(self._ground.actors)
        return kind in _OF_HEAD or bool(self._ground.nodes)

    def _uniform(self) -> float:
        """From 0 to below 1: the next number of this seed's stream."""
        self._drawn += 1
        digest = blake2b(f"{self._seed}:{self._drawn}".encode(), digest_size=8, person=b"dualray-chaos").digest()
        return (int.from_bytes(digest, "big") >> 11) / (1 << 53)

    def _one_of(self, choices: Sequence[str]) -> str:
        return choices[int(self._uniform() * len(choices))]

    def _between(self, least_ns: int, most_ns: int) -> int:
        """Whole milliseconds, which read well and are parsed again to the same number."""
        drawn_ns = least_ns + self._uniform() * (most_ns - least_ns)
        return max(MILLISECOND_NS, round(drawn_ns / MILLISECOND_NS) * MILLISECOND_NS)

    def _kind(self, kinds: Sequence[FaultKind]) -> FaultKind:
        rest = self._uniform() * sum(WEIGHTS[kind] for kind in kinds)
        for kind in kinds:
            rest -= WEIGHTS[kind]
            if rest < 0:
                return kind
        return kinds[-1]

    def _time_ns(self) -> int:
        gap_ns = -self._ground.gap_ns * math.log(1 - self._uniform())
        self._now_ns += max(MILLISECOND_NS, round(gap_ns / MILLISECOND_NS) * MILLISECOND_NS)
        return self._now_ns

    def _fault(self, kind: FaultKind) -> Fault:
        ground = self._ground
        if kind in _OF_WORKERS:
            return self._of_worker(kind)
        if kind is FaultKind.LOSE_OBJECT:
            self._stored += 1 + int(self._uniform() * _STORED_BETWEEN_MAX)
            return Fault(kind=kind, event="object_stored", start=self._stored)
        at_ns = self._time_ns()
        if kind is FaultKind.KILL_ACTOR:
            return Fault(kind=kind, actor=self._one_of(ground.actors), at_ns=at_ns)
        if kind in _OF_HEAD:
            return self._of_head(kind, at_ns)
        node = self._one_of(ground.nodes)
        if kind is FaultKind.PAUSE_NODE:
            return Fault(kind=kind, node=node, at_ns=at_ns, for_ns=self._pause_ns())
        if kind is FaultKind.PARTITION:
            return Fault(kind=kind, nodes=(node,), at_ns=at_ns, for_ns=self._pause_ns())
        if kind is FaultKind.DRAIN_NODE:
            return Fault(kind=kind, node=node, at_ns=at_ns, for_ns=self._between(*_NOTICE_NS))
        for_ns = self._short_ns()
        if kind is FaultKind.LINK:
            return self._of_link(node, at_ns, for_ns)
        if kind is FaultKind.SLOW_NODE:
            return Fault(kind=kind, node=node, at_ns=at_ns, for_ns=for_ns, factor=self._slowness())
        if kind is FaultKind.FILL_STORE:
            factor = _STORE_SHARES[int(self._uniform() * len(_STORE_SHARES))]
            return Fault(kind=kind, node=node, at_ns=at_ns, for_ns=for_ns, factor=factor)
        if kind is FaultKind.FILL_MEMORY:  # so short that no task is ended more often than it may be retried
            return Fault(
                kind=kind,
                node=node,
                at_ns=at_ns,
                for_ns=max(MILLISECOND_NS, for_ns // 5 // MILLISECOND_NS * MILLISECOND_NS),
                factor=_MEMORY_SHARE,
            )
        return Fault(kind=kind, node=node, at_ns=at_ns, for_ns=for_ns)

    def _of_worker(self, kind: FaultKind) -> Fault:
        """Of the worker that starts, or has just ended, a task: what does not kill it comes at a start."""
        name, event = self._one_of(self._ground.tasks), "task_started"
        if kind is FaultKind.KILL_WORKER:
            event = self._one_of(tuple(TASK_ANCHORS.values()))
        start = self._starts.get((name, event), 0) + 1 + int(self._uniform() * _STARTS_BETWEEN_MAX)
        self._starts[name, event] = start
        if kind is FaultKind.KILL_WORKER:
            return Fault(kind=kind, task_name=name, event=event, start=start)
        factor = self._slowness() if kind is FaultKind.SLOW_WORKER else 1.0
        return Fault(kind=kind, task_name=name, event=event, start=start, for_ns=self._short_ns(), factor=factor)

    def _of_head(self, kind: FaultKind, at_ns: int) -> Fault:
        if kind is FaultKind.PAUSE_HEAD:  # and it goes on before the nodes give it up
            for_ns = self._between(MILLISECOND_NS, self._ground.config.heartbeat_timeout_ns)
            return Fault(kind=kind, at_ns=at_ns, for_ns=for_ns)
        for_ns = self._between(50 * MILLISECOND_NS, 1000 * MILLISECOND_NS)
        factor = self._slowness() if kind is FaultKind.SLOW_HEAD else 1.0
        return Fault(kind=kind, at_ns=at_ns, for_ns=for_ns, factor=factor)

    def _of_link(self, node: str, at_ns: int, for_ns: int) -> Fault:
        if self._uniform() < 0.5:
            bandwidth = _BANDWIDTHS[int(self._uniform() * len(_BANDWIDTHS))]
            return Fault(kind=FaultKind.LINK, node=node, at_ns=at_ns, for_ns=for_ns, bandwidth=bandwidth)
        delay_ns = _DELAYS_MS[int(self._uniform() * len(_DELAYS_MS))] * MILLISECOND_NS
        return Fault(kind=FaultKind.LINK, node=node, at_ns=at_ns, for_ns=for_ns, delay_ns=delay_ns)

    def _short_ns(self) -> int:
        return self._between(100 * MILLISECOND_NS, 2000 * MILLISECOND_NS)

    def _slowness(self) -> float:
        return _SLOWNESS[int(self._uniform() * len(_SLOWNESS))]

    def _pause_ns(self) -> int:
        """Of three, one ends before anybody notices, one within the suspicion, one after the node was dead."""
        timeout_ns, suspicion_ns = self._ground.config.heartbeat_timeout_ns, self._ground.config.suspicion_ns
        match int(self._uniform() * 3):
            case 0:
                return self._between(MILLISECOND_NS, timeout_ns)
            case 1:
                return self._between(timeout_ns, timeout_ns + suspicion_ns)
            case _:
                return self._between(timeout_ns + suspicion_ns, 2 * (timeout_ns + suspicion_ns))
