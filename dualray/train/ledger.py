"""The ledger: an actor that gathers the reports of the workers, and hands the complete ones to the trainer.

Theory of operation
-------------------
A report is a barrier. A worker sends its part and gets a promise; when the parts of all workers are there, the report
is complete, and the trainer, which holds a promise too, gets it. When the trainer has kept what it wants of the report
(a checkpoint's files are in the workers' hands until then), it calls `release`, and the workers go on. So there is one
report under way at any time, and a worker that dies in the middle of one leaves nothing half done.

A worker whose function has ended while others wait in a report would keep them waiting for ever: that is an `Uneven`.

Each attempt of a run has a ledger of its own, so that nothing late of one reaches the next.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dualray import api
from dualray.object_ref import ObjectRef
from dualray.train.checkpoint import Files
from dualray.util.promise import Promise


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The part of one worker in a report.

    Attributes:
        checkpoint: the files; None if the worker reports none.
        checkpoint_name: name of the checkpoint's folder; None: a number.
        modelled: columns of the simulation.
    """

    metrics: Mapping[str, Any]
    checkpoint: Files | None = None
    checkpoint_name: str | None = None
    modelled: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A complete report, by rank."""

    number: int
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Uneven:
    """Some wait in a report, or a modelled collective, that others will never join.

    Attributes:
        waiting: in a report or a collective, or, where others are in one of the other kind, in a report.
        ended: the workers whose functions have ended.
        exchanging: in a collective, while all that are in `waiting` are in a report.
    """

    number: int
    waiting: tuple[int, ...]
    ended: tuple[int, ...]
    exchanging: tuple[int, ...] = ()


class Ledger:
    """See the module. Promises are answered in lists, which `get` does not look into. It takes no time of its own."""

    def __init__(self, world_size: int) -> None:
        self._world_size = world_size
        self._number = 0
        self._parts: dict[int, Part] = {}
        self._waiting: dict[int, Promise[None]] = {}
        self._ended: set[int] = set()
        self._reader: Promise[Report | Uneven] | None = None
        self._unread: Report | Uneven | None = None
        self._meeting: dict[int, tuple[float, Any, Promise[tuple[float, Any]]]] = {}

    @api.method(duration=0)
    def meet(self, rank: int, now_s: float, brought: Any = None) -> list[ObjectRef[tuple[float, Any]]]:
        """A barrier: the time at which the last of all workers came, and what the first, by rank, has brought."""
        promise: Promise[tuple[float, Any]] = Promise()
        self._meeting[rank] = now_s, brought, promise
        if len(self._meeting) == self._world_size:
            met, self._meeting = self._meeting, {}
            last_s = max(came_s for came_s, _, _ in met.values())
            for _, (_, _, waiting) in sorted(met.items()):
                waiting.keep((last_s, met[0][1]))
        self._look()
        return [promise.ref]

    @api.method(duration=0)
    def report(self, rank: int, part: Part) -> list[ObjectRef[None]]:
        """A worker's part; kept when all have reported, and the trainer has what it wants."""
        promise: Promise[None] = Promise()
        self._parts[rank] = part
        self._waiting[rank] = promise
        self._look()
        return [promise.ref]

    @api.method(duration=0)
    def ended(self, rank: int) -> None:
        """A worker's function has returned."""
        self._ended.add(rank)
        self._look()

    @api.method(duration=0)
    def next(self) -> list[ObjectRef[Report | Uneven]]:
        """What the trainer has to see next."""
        promise: Promise[Report | Uneven] = Promise()
        self._reader = promise
        self._pass_on()
        return [promise.ref]

    @api.method(duration=0)
    def release(self, number: int) -> None:
        """The trainer has done with a report."""
        assert number == self._number, (number, self._number)
        self._number += 1
        waiting, self._waiting = self._waiting, {}
        self._parts = {}
        for _, promise in sorted(waiting.items()):
            promise.keep(None)

    def _look(self) -> None:
        if len(self._parts) == self._world_size:
            parts = tuple(self._parts[rank] for rank in range(self._world_size))
            self._unread = Report(number=self._number, parts=parts)
        waiting = self._parts.keys() | self._meeting.keys()
        if len(waiting) < self._world_size and waiting and len(waiting) + len(self._ended) >= self._world_size:
            self._unread = Uneven(number=self._number, waiting=tuple(sorted(waiting)), ended=tuple(sorted(self._ended)))
        if len(self._parts) < self._world_size == len(waiting) and len(self._meeting) < self._world_size:
            reporting, exchanging = tuple(sorted(self._parts)), tuple(sorted(self._meeting))
            self._unread = Uneven(number=self._number, waiting=reporting, ended=(), exchanging=exchanging)
        self._pass_on()

    def _pass_on(self) -> None:
        if self._reader is not None and self._unread is not None:
            reader, unread = self._reader, self._unread
            self._reader = self._unread = None
            reader.keep(unread)
