"""Counts what holds each object that this process has anything to do with, and frees what nothing holds any more.

Theory of operation. A process has one `Value` for each object that it has anything to do with. The process that made
the first reference owns the object: it knows its state and who borrows it. When nothing holds a value any more
(value.py) it is freed: its bytes go, and what its bytes referred to is released in turn. An owned entry outlives its
bytes while lineage needs it (tasks.py), unless lineage ends with it: small values, and values that were put, are kept
whole as long as something in use may have to be made from them again.

Handing a reference over. Whoever sends a reference keeps it until the receiver has registered with the owner:
- a task's arguments are held by its submitter until the task has finished;
- a process lets go of nothing borrowed (BorrowRemoved), and reports no task as finished and no result as taken, while
  an acknowledgement of one of its own borrows is outstanding (borrows.py);
- results that carry references are held by the worker until the owner of the task reports ResultsTaken.

Errors nobody reads. What ends a task for good is told once, in words, when the last value that carries it goes unread:
at once when there is none, else with the last reference. Read is what a `get` waited for, and what another process has
asked for. A task that failed by its argument carries the argument's error on: one error, told once, however far it
came.

Relies on: the deaths of borrowers are reported (values.py).
Guarantees: no owned object is freed while a live reference or a pending task anywhere needs it.
"""

from __future__ import annotations

from collections.abc import Iterable

from dualray.exceptions import InvariantViolation
from dualray.shared.machines.base import Outbox
from dualray.shared.machines.owner.borrows import Borrows
from dualray.shared.machines.owner.pins import Pins
from dualray.shared.machines.owner.reserved_space import Rooms
from dualray.shared.machines.owner.value import Failure, Value
from dualray.shared.machines.owner.worklists import Worklists
from dualray.shared.model.commands import DropPayload, DropPayloads
from dualray.shared.model.errors import ErrorInfo, ErrorKind
from dualray.shared.model.events import ActorOutOfScope, BorrowRemoved, ObjectsFreed, ValueRequested
from dualray.shared.model.ids import HEAD, Address, ObjectID, short
from dualray.shared.model.specs import Ref
from dualray.shared.model.states import VALUE, ValueState


class References:
    """See the module."""

    def __init__(
        self,
        *,
        out: Outbox,
        address: Address,
        rooms: Rooms,
        table: dict[ObjectID, Value],
        borrows: Borrows,
        pins: Pins,
        worklists: Worklists,
    ) -> None:
        self.out = out
        self.rooms = rooms
        self.address = address
        self.table = table
        self.borrows = borrows
        self.pins = pins
        self.worklists = worklists

    # ---- Entries -------------------------------------------------------------------------------------------

    def owned(self, object_id: ObjectID) -> Value:
        """The entry of an object that this process makes; new ones are PENDING."""
        value = self.table.get(object_id)
        if value is None:
            value = self.table[object_id] = Value(object_id, self.address, ValueState.PENDING)
        elif value.is_ghost:
            # A reference that was pickled in an earlier session has the same id, and came before the object.
            value.is_ghost, value.error, value.state = False, None, ValueState.PENDING
        return value

    def entry(self, ref: Ref) -> Value:
        """The entry for a reference; a new one is borrowed and UNKNOWN, or was freed by its owner."""
        value = self.table.get(ref.object_id)
        if value is None:
            is_ghost = ref.owner == self.address  # a reference of our own came back after we had freed the object
            state = ValueState.FAILED if is_ghost else ValueState.UNKNOWN
            value = self.table[ref.object_id] = Value(ref.object_id, ref.owner, state)
            self.borrows.meet(ref.owner)
            if is_ghost:
                value.is_ghost = True
                value.error = ErrorInfo(
                    kind=ErrorKind.OBJECT_LOST,
                    message=f"Object {short(ref.object_id)} was freed, because its last reference had been dropped.",
                )
        return value

    def look_up(self, value: Value) -> None:
        """See to it that we learn when the value is ready."""
        if value.state is ValueState.UNKNOWN:
            value.state = VALUE.check(value.state, ValueState.PENDING, value.object_id)
            self.out.send(value.owner, ValueRequested(object_id=value.object_id, requester=self.address))
        elif value.state is ValueState.FREED:
            self.worklists.remake_wanted.append(value.object_id)
            self.out.needs_drain = True

    # ---- Holders -------------------------------------------------------------------------------------------

    def add(self, refs: Iterable[Ref]) -> None:
        """Python references appeared in this process."""
        for ref in refs:
            value = self.entry(ref)
            value.local_refs += 1
            self.borrows.register(value)

    def drop(self, object_ids: Iterable[ObjectID]) -> None:
        """Python references went."""
        table = self.table
        gone: list[bytes] = []
        for object_id in object_ids:
            value = table[object_id]
            value.local_refs -= 1
            if value.local_refs > 0:
                continue
            if value.local_refs < 0:
                raise InvariantViolation(f"object {short(object_id)} lost more references than it had")
            if value.is_bare and value.state is ValueState.INLINE:
                del table[object_id]
                gone.append(object_id)
            else:
                self.release(value)
        if len(gone) == 1:
            self.out.commands.append(DropPayload(key=gone[0]))
        elif gone:
            self.out.commands.append(DropPayloads(keys=tuple(gone)))

    def hold_for_task(self, refs: Iterable[Ref]) -> None:
        """A task needs them until it has finished."""
        for ref in refs:
            value = self.entry(ref)
            value.is_bare = False
            value.task_uses += 1

    def release_from_task(self, refs: Iterable[Ref]) -> None:
        """The task needs them no more."""
        for ref in refs:
            value = self.table[ref.object_id]
            value.task_uses -= 1
            if value.task_uses < 0:
                raise InvariantViolation(f"a task released its reference to object {short(ref.object_id)} twice")
            if not value.local_refs:
                self.release(value)

    def hold_in_transit(self, refs: Iterable[Ref]) -> None:
        """A result that refers to them is on its way."""
        for ref in refs:
            value = self.entry(ref)
            value.is_bare = False
            value.transit_uses += 1

    def release_from_transit(self, refs: Iterable[Ref]) -> None:
        """The result has been taken."""
        for ref in refs:
            value = self.table[ref.object_id]
            value.transit_uses -= 1
            self.release(value)

    def contain(self, value: Value, nested: tuple[Ref, ...]) -> None:
        """The bytes of a value refer to others."""
        before, value.nested = value.nested, nested
        for ref in nested:
            inner = self.entry(ref)
            inner.is_bare = False
            inner.container_uses += 1
            self.borrows.register(inner)
        self._release_contained(before)

    def _release_contained(self, nested: tuple[Ref, ...]) -> None:
        for ref in nested:
            inner = self.table[ref.object_id]
            inner.container_uses -= 1
            self.release(inner)

    def on_borrow_removed(self, event: BorrowRemoved) -> None:
        """Another process has let go of an object of ours."""
        value = self.table.get(event.object_id)
        if value is not None:
            value.borrowers.pop(event.borrower, None)
            value.requesters.pop(event.borrower, None)
            self.release(value)

    # ---- Freeing -------------------------------------------------------------------------------------------

    def release(self, value: Value) -> None:
        """Free the value if nothing in this process, and no borrower, holds it any more."""
        if value.local_refs or value.held or self.table.get(value.object_id) is not value:
            return
        if value.owner != self.address:
            if value.lineage_uses:
                return  # a task of ours may have to run again with it, and only its owner could make it again
            self._forget_bytes(value)
            del self.table[value.object_id]
            if value.borrow_sent:
                self.borrows.end(value.object_id, value.owner)
            return
        if value.actor is not None:
            if value.state is not ValueState.FREED:
                value.set_state(ValueState.FREED)
                self.out.send(HEAD, ActorOutOfScope(actor_id=value.actor))
            if value.lineage_uses == 0:
                del self.table[value.object_id]
                self.worklists.lineage_released.append(value.object_id)
                self.out.needs_drain = True
            return
        if value.state is ValueState.PENDING:
            if value.stream is not None:
                del self.table[value.object_id]
                self.worklists.streams_dropped.append(value.stream)
                self.out.needs_drain = True
            return  # its task still runs: freed when it arrives
        if value.state is ValueState.STORED and not (self.rooms.lodged and self.rooms.free(value.object_id)):
            self.out.send(HEAD, ObjectsFreed(object_ids=(value.object_id,)))
        self._forget_bytes(value)
        if value.state is not ValueState.FREED:
            value.set_state(ValueState.FREED)
        if value.lineage_uses == 0:
            del self.table[value.object_id]
            if not value.is_ghost:
                self.worklists.lineage_released.append(value.object_id)
                self.out.needs_drain = True

    def _forget_bytes(self, value: Value) -> None:
        if value.state in (ValueState.INLINE, ValueState.FAILED):
            self.out.add(DropPayload(key=value.object_id))
            if value.failed_with is not None:
                self._drop_failure(value.failed_with)
                value.failed_with = None
        if value.wanted or value.local:
            self.pins.unpin(value)
        if value.nested:
            nested, value.nested = value.nested, ()
            self._release_contained(nested)

    def _drop_failure(self, failure: Failure) -> None:
        failure.carriers -= 1
        if failure.carriers == 0 and not failure.is_read:
            self.out.add(failure.told())

    def unread_failures(self) -> list[Failure]:
        """What ended tasks of this process, and nobody has read, while references to their results are still there."""
        failures = [value.failed_with for value in self.table.values() if value.failed_with is not None]
        return [failure for failure in dict.fromkeys(failures) if not failure.is_read]
