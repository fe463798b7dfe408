"""Completes the waits of one process: each `get`, `wait`, and fetching of a task's arguments.

Theory of operation. A wait counts objects that are ready; with `fetch` a stored object is ready when it is pinned in
this node's store. With `read` the process will open the bytes, and the pin ends with its last view. A value knows the
waits that miss it, and a wait what it misses, so that either end finds the other.

The task of a worker that waits lends its CPU. If all that it misses has an owner elsewhere, or lies in a store, the
answer mostly comes at once. Such a task lends its CPU when an owner says that a task still makes the value, or when it
has waited for `BRIEF_NS`, so that no other worker starts for a value that is there.

Relies on: values.py tells of each change that a wait may have been started for; pins.py for the bytes.
Guarantees: each wait completes once, when enough is ready, when one of a `read` has failed, or at its timeout.
"""

from __future__ import annotations

from typing import Final

from dualray.shared.machines.base import Outbox, ensure
from dualray.shared.machines.owner.pins import Pins
from dualray.shared.machines.owner.references import References
from dualray.shared.machines.owner.reserved_space import Rooms
from dualray.shared.machines.owner.value import READY, OneWait, Value
from dualray.shared.machines.owner.worklists import Worklists
from dualray.shared.model.commands import ArmTimer, CancelTimer, CompleteWait
from dualray.shared.model.events import WaitStarted, WorkerBlocked, WorkerUnblocked
from dualray.shared.model.ids import Address, ObjectID, WaitID
from dualray.shared.model.states import ValueState

BRIEF_NS: Final = 100_000_000
"""Many times what a busy owner on the same machine takes to answer."""
_BRIEF: Final = "brief:"
_QUICK: Final = (ValueState.UNKNOWN, ValueState.STORED)
"""Its owner has not been asked yet, or it is to be fetched."""


class Wait:
    """One `get`, `wait`, or fetching of a task's arguments."""

    __slots__ = (
        "blocked",
        "brief",
        "failed",
        "fetch",
        "is_small",
        "missing",
        "num_ready",
        "object_ids",
        "read",
        "task_id",
        "timed",
    )

    def __init__(self, event: WaitStarted) -> None:
        self.object_ids = tuple([ref.object_id for ref in event.refs])
        self.num_ready = event.num_ready
        self.fetch = event.fetch
        self.read = event.read
        self.task_id = event.task_id
        self.timed = False
        self.blocked = False
        self.brief = False
        """Whether a timer runs at whose end the task lends its CPU."""
        self.failed = False
        self.is_small = True
        """Whether all that it has looked at up to now was small, or not ready: nothing was fetched or pinned for it."""
        self.missing: dict[ObjectID, None] = {}
        """Those that are not ready; the objects are distinct, so that all others are."""


class Waits:
    """See the module."""

    def __init__(
        self,
        *,
        out: Outbox,
        address: Address,
        node: Address,
        rooms: Rooms,
        references: References,
        pins: Pins,
        worklists: Worklists,
    ) -> None:
        self.out = out
        self.rooms = rooms
        self.address = address
        self.node = node
        self.table = references.table
        self.references = references
        self.pins = pins
        self.worklists = worklists
        self.waits: dict[WaitID, Wait] = {}
        self.keeps_cpu = False
        """Whether this process is an actor, which keeps its CPU while a method waits."""

    @property
    def is_blocked(self) -> bool:
        """Whether a task of this process waits."""
        return any(wait.blocked for wait in self.waits.values())

    def start(self, event: WaitStarted) -> None:
        """User code, or a task's fetching, waits from now on."""
        wait_id = event.wait_id
        wait = self.waits[wait_id] = Wait(event)
        table, missing = self.table, wait.missing
        alone: dict[WaitID, None] = OneWait({wait_id: None})
        waits_for_tasks = False
        for ref in event.refs:
            value = table.get(ref.object_id) or self.references.entry(ref)
            if value.state is ValueState.INLINE:
                continue
            if value.is_bare and value.state is ValueState.PENDING:  # there is nothing to ask, or to fetch
                missing[value.object_id] = None
                waits_for_tasks = True
                if value.waits:
                    value.add_wait(wait_id, alone)
                else:
                    value.waits = alone
                continue
            wait.is_small = False
            if wait.fetch:
                value.fetch_error = None
            if self._counts(wait, value):
                self._count(wait_id, wait, value)
            else:
                missing[value.object_id] = None
                value.add_wait(wait_id, alone)
                waits_for_tasks |= value.state not in _QUICK
                self.references.look_up(value)
                self._fetch_if_needed(wait, value)
        if self._is_complete(wait) or event.timeout_ns == 0:
            self.complete(wait_id, wait)
            return
        if event.timeout_ns is not None:
            wait.timed = True
            self.out.add(ArmTimer(timer=f"wait:{wait_id}", delay_ns=event.timeout_ns))
        if wait.task_id is None:
            return
        if waits_for_tasks:
            self.block(wait_id, lends=not self.keeps_cpu)
        else:
            wait.brief = True
            self.out.add(ArmTimer(timer=f"{_BRIEF}{wait_id}", delay_ns=BRIEF_NS))

    def block(self, wait_id: WaitID, *, lends: bool = True) -> None:
        """The task of this process waits, and lends its CPU until the wait is over if `lends` is True."""
        self.waits[wait_id].blocked = True
        self.out.send(self.node, WorkerBlocked(worker=self.address, lends=lends))

    def is_pending(self, value: Value) -> None:
        """The owner of a value says that it is not there yet: waits for it are not brief."""
        for wait_id in value.waits:
            if self.waits[wait_id].brief:
                self.out.add(ArmTimer(timer=f"{_BRIEF}{wait_id}", delay_ns=0))  # in place of the one that runs

    def on_timer(self, timer: str) -> bool:
        """A wait's time is over, or it is not brief; whether its task is blocked from now on."""
        wait_id = WaitID(int(timer.partition(":")[2]))
        wait = self.waits.get(wait_id)
        if wait is None:
            return False
        if timer.startswith(_BRIEF):
            wait.brief = False
            self.block(wait_id, lends=not self.keeps_cpu)
            return True
        wait.timed = False
        self.complete(wait_id, wait)
        return False

    def _counts(self, wait: Wait, value: Value) -> bool:
        if value.state is ValueState.STORED and wait.fetch:
            return value.local or value.fetch_error is not None
        return value.state in READY

    def _fetch_if_needed(self, wait: Wait, value: Value) -> None:
        if wait.fetch and value.state is ValueState.STORED and not value.wanted:
            self.rooms.hand_over(value.object_id)
            self.pins.want(value)

    def progress(self, wait_id: WaitID, value: Value) -> None:
        """A value that the wait misses has changed."""
        wait = self.waits[wait_id]
        if value.state is not ValueState.INLINE:
            wait.is_small = False
            if not self._counts(wait, value):
                self._fetch_if_needed(wait, value)
                return
            self._count(wait_id, wait, value)
        wait.missing.pop(value.object_id, None)
        value.drop_wait(wait_id)
        if self._is_complete(wait):
            self.complete(wait_id, wait)

    def _count(self, wait_id: WaitID, wait: Wait, value: Value) -> None:
        if wait.fetch and value.local:
            value.note("readers", wait_id)
        wait.failed = wait.failed or value.failure is not None
        if wait.read and value.failed_with is not None:
            value.failed_with.is_read = True

    def _is_complete(self, wait: Wait) -> bool:
        return len(wait.object_ids) - len(wait.missing) >= wait.num_ready or (wait.read and wait.failed)

    def complete(self, wait_id: WaitID, wait: Wait) -> None:
        """The wait is over."""
        del self.waits[wait_id]
        table = self.table
        if wait.missing:
            ready = tuple([object_id for object_id in wait.object_ids if object_id not in wait.missing])
            for object_id in wait.missing:
                table[object_id].drop_wait(wait_id)
                if wait.read and wait.failed:
                    table[object_id].is_asked_for = True
        else:
            ready = wait.object_ids
        opened = []
        for object_id in ready if wait.read and not wait.is_small else ():
            value = table[object_id]
            if value.state is ValueState.STORED and value.local:
                opened.append(object_id)
                self.pins.views[object_id] = self.pins.views.get(object_id, 0) + 1
        if wait_id >= 0:
            self.out.commands.append(CompleteWait(wait_id=wait_id, ready=ready))
        else:
            self.worklists.waits_completed.append((wait_id, tuple(opened)))
            self.out.needs_drain = True
        self._end_wait(wait_id, wait)

    def cancel(self, wait_id: WaitID) -> None:
        """Nobody waits any more."""
        wait = self.waits.pop(wait_id)
        for object_id in wait.missing:
            self.table[object_id].drop_wait(wait_id)
        self._end_wait(wait_id, wait)

    def _end_wait(self, wait_id: WaitID, wait: Wait) -> None:
        table = self.table
        if wait.timed:
            self.out.add(CancelTimer(timer=f"wait:{wait_id}"))
        if wait.brief:
            self.out.add(CancelTimer(timer=f"{_BRIEF}{wait_id}"))
        if wait.blocked and not self.is_blocked:  # a thread or coroutine beside it may wait on
            self.out.send(self.node, WorkerUnblocked(worker=self.address))
        for object_id in wait.object_ids if not wait.is_small else ():
            kept = table.get(object_id)
            if kept is not None:
                if kept.wanted or kept.readers:
                    kept.readers.pop(wait_id, None)
                    if kept.wanted and not kept.waits:
                        self.pins.unpin(kept)
                if not kept.local_refs:
                    self.references.release(kept)

    def check_invariants(self) -> None:
        """What a wait misses knows of the wait."""
        for wait_id, wait in self.waits.items():
            for object_id in wait.missing:
                ensure(
                    wait_id in self.table[object_id].waits,
                    "wait {} misses object {}, which does not know of it",
                    wait_id,
                    object_id,
                )
