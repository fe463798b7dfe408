"""The objects that one process holds references to, its own and borrowed ones: their states, and who is told of them.

Theory of operation. An owned value is PENDING until it is there, small (INLINE) or in some node's store (STORED), or
has FAILED; a borrowed one is UNKNOWN until its owner is asked, and then takes the state that the owner reports. What
became ready wakes the tasks, the requesters and the waits that it keeps in mind. When a process dies, its borrows end
here, and what it owned is lost unless its bytes are pinned here.

The parts each have a theory of their own: value.py (one object), references.py (what holds it), borrows.py (what owners
elsewhere are told), pins.py (stored bytes) and waits.py. What they leave to tasks and leases is in worklists.py.

Relies on: messages between two processes stay in order; OwnerDied is reported for each process that dies.
Guarantees: what waits for a value is told once, whether it came, failed or was lost.
"""

from __future__ import annotations

from collections.abc import Iterable

from dualray.shared.machines.base import Outbox, ensure
from dualray.shared.machines.owner.borrows import Borrows
from dualray.shared.machines.owner.pins import Pins
from dualray.shared.machines.owner.references import References
from dualray.shared.machines.owner.reserved_space import Rooms
from dualray.shared.machines.owner.value import NOBODY, Value, came_out_small
from dualray.shared.machines.owner.waits import Waits
from dualray.shared.machines.owner.worklists import Worklists
from dualray.shared.model.commands import DropPayload
from dualray.shared.model.errors import ErrorInfo, ErrorKind
from dualray.shared.model.events import (
    LocationsWanted,
    ObjectArrived,
    ObjectFailed,
    ObjectUnavailable,
    ValueReported,
    ValueRequested,
)
from dualray.shared.model.ids import HEAD, Address, NodeID, ObjectID, short
from dualray.shared.model.specs import Ref
from dualray.shared.model.states import ValueState


class Values:
    """See the module."""

    def __init__(self, *, out: Outbox, address: Address, node: Address, rooms: Rooms) -> None:
        self.out = out
        self.rooms = rooms
        self.address = address
        self.node = node
        self.table: dict[ObjectID, Value] = {}
        self.worklists = Worklists()
        self.borrows = Borrows(out=out, address=address, node=node, table=self.table)
        self.pins = Pins(out=out, address=address, node=node, table=self.table)
        self.references = References(
            out=out,
            address=address,
            rooms=rooms,
            table=self.table,
            borrows=self.borrows,
            pins=self.pins,
            worklists=self.worklists,
        )
        self.waiting = Waits(
            out=out,
            address=address,
            node=node,
            rooms=rooms,
            references=self.references,
            pins=self.pins,
            worklists=self.worklists,
        )

    # ---- States ----------------------------------------------------------------------------------------------

    def set_inline(self, value: Value, size_bytes: int, nested: tuple[Ref, ...] = ()) -> None:
        """The bytes are a payload of this process."""
        if value.state is ValueState.PENDING:
            value.state = ValueState.INLINE  # PENDING -> INLINE, without a call: each small result comes this way
        else:
            value.set_state(ValueState.INLINE)
        value.is_bare = False
        value.size_bytes = size_bytes
        if nested or value.nested:
            self.references.contain(value, nested)
        if value.demanded and value.owner == self.address:  # nodes that wait for a stored copy would wait for ever
            self.out.send(HEAD, ObjectFailed(object_id=value.object_id, error=came_out_small(value.object_id)))
        self._became_ready(value)

    def set_small(self, value: Value, size_bytes: int) -> None:
        """`set_inline` of one that is bare, PENDING and referred to, and that no task makes any more."""
        value.state = ValueState.INLINE  # PENDING -> INLINE, without a call: what most tasks end with
        value.size_bytes = size_bytes
        if value.waits:
            waits, value.waits = value.waits, NOBODY
            for wait_id in waits:
                wait = self.waiting.waits[wait_id]
                missing = wait.missing
                del missing[value.object_id]
                if len(wait.object_ids) - len(missing) >= wait.num_ready:
                    self.waiting.complete(wait_id, wait)

    def set_stored(self, value: Value, size_bytes: int, by: Address | None, nested: tuple[Ref, ...] = ()) -> None:
        """The bytes are in the store of some node; `by` is the process that sealed the first copy."""
        value.set_state(ValueState.STORED)
        value.size_bytes = size_bytes
        value.sealed_by = by
        value.sealer_died = value.asked_again = False
        if by is not None and by not in self.borrows.met:
            self.borrows.meet(by)
        value.demanded = value.losses_demanded > value.losses_answered
        if value.demanded:  # it has been made again, and the copy has gone meanwhile
            self.worklists.remake_wanted.append(value.object_id)
            self.out.needs_drain = True
        self.references.contain(value, nested)
        self._became_ready(value)

    def set_failed(self, value: Value, error: ErrorInfo) -> None:
        """The value will never be there; with an APPLICATION error, the exception is its payload."""
        if value.state is ValueState.UNKNOWN:
            value.set_state(ValueState.PENDING)
        value.set_state(ValueState.FAILED)
        value.error = error
        self._became_ready(value)

    def set_remaking(self, value: Value) -> None:
        """The task that makes the value runs again."""
        if (
            value.state is ValueState.FREED
        ):  # the head's count of losses begins anew, and may have begun before our news
            value.losses_answered = value.losses_demanded = -1
        value.set_state(ValueState.PENDING)
        value.sealed_by = None
        for task in self.worklists.tasks_to_look_at:  # woken, perhaps by this very value, and not looked at yet
            value.note("waiting_tasks", task)

    def _became_ready(self, value: Value) -> None:
        if value.waiting_tasks:
            self.worklists.tasks_to_look_at.extend(value.waiting_tasks)
            self.out.needs_drain = True
            value.waiting_tasks.clear()
        if value.requesters:
            for requester in value.requesters:
                self._report(value, requester)
            value.requesters.clear()
        if value.waits:
            for wait_id in list(value.waits):
                self.waiting.progress(wait_id, value)
        self.references.release(value)

    # ---- Between owner and borrower --------------------------------------------------------------------------

    def on_value_requested(self, event: ValueRequested) -> None:
        value = self.table.get(event.object_id)
        if value is None or value.owner != self.address:
            error = ErrorInfo(
                kind=ErrorKind.OBJECT_LOST,
                message=f"Object {short(event.object_id)} was freed by its owner {self.address}.",
            )
            self.out.send(
                event.requester,
                ValueReported(object_id=event.object_id, state=ValueState.FAILED, size_bytes=0, error=error),
            )
        elif value.is_ready:
            self._report(value, event.requester)
        else:
            self.borrows.meet(event.requester)
            value.note("requesters", event.requester)
            self.references.look_up(value)
            self.out.send(
                event.requester,
                ValueReported(object_id=value.object_id, state=ValueState.PENDING, size_bytes=0),
            )

    def _report(self, value: Value, requester: Address) -> None:
        if value.failed_with is not None:
            value.failed_with.is_read = True
        self.rooms.hand_over(value.object_id)
        with_bytes = value.state is ValueState.INLINE or (value.error is not None and value.error.has_exception)
        self.out.send(
            requester,
            ValueReported(object_id=value.object_id, state=value.state, size_bytes=value.size_bytes, error=value.error),
            (value.object_id,) if with_bytes else (),
        )

    def on_value_reported(self, event: ValueReported) -> None:
        value = self.table.get(event.object_id)
        if value is None or value.state is not ValueState.PENDING or value.owner == self.address:
            if value is None or value.state not in (ValueState.INLINE, ValueState.FAILED):
                self.out.add(DropPayload(key=event.object_id))  # nobody here wants the bytes that came along
            return
        if event.state is ValueState.PENDING:
            self.waiting.is_pending(value)
        elif event.state is ValueState.INLINE:
            self.set_inline(value, event.size_bytes)
        elif event.state is ValueState.STORED:
            self.set_stored(value, event.size_bytes, None)
        else:
            assert event.error is not None
            self.set_failed(value, event.error)

    def on_process_died(self, dead: Iterable[Address]) -> None:
        """Borrowers that died hold nothing; what dead processes owned is lost unless we have it."""
        gone = frozenset(dead)
        for address in dead:
            self.borrows.met.pop(address, None)
        for value in list(self.table.values()):
            if value.owner in gone:
                self.borrows.unacknowledged.pop(value.object_id, None)
                if not value.is_ready or value.state is ValueState.STORED:
                    self._owner_lost(value)
            else:
                if value.sealed_by in gone and not value.sealer_died:
                    value.sealer_died = True
                    if value.state is ValueState.STORED and value.demanded:
                        self.ask_again(value)
                for address in [requester for requester in value.requesters if requester in gone]:
                    del value.requesters[address]
                for address in [borrower for borrower in value.borrowers if borrower in gone]:
                    del value.borrowers[address]
                    self.references.release(value)
        self.borrows.flush()

    def ask_again(self, value: Value) -> None:
        """The head knew of no copy when it last asked for the object. It now knows all that the sealer's node had told
        it before it told of the sealer's death: if it answers with a demand, there is none."""
        value.asked_again = True
        self.out.send(
            HEAD, LocationsWanted(object_id=value.object_id, owner=self.address, node=NodeID(self.node), by_owner=True)
        )

    def _owner_lost(self, value: Value) -> None:
        error = ErrorInfo(
            kind=ErrorKind.OWNER_DIED,
            message=(
                f"Object {short(value.object_id)} is lost: {value.owner}, which owned it, died. Keep references in a "
                f"process that outlives the work, or return the value itself."
            ),
        )
        if value.state is ValueState.STORED and value.local:
            return  # its bytes are pinned here: they can still be read
        self.set_failed(value, error)

    # ---- This node's store -----------------------------------------------------------------------------------

    def on_object_arrived(self, event: ObjectArrived) -> None:
        self.pins.asked.pop(event.object_id, None)
        value = self.table.get(event.object_id)
        if value is None or not value.wanted:
            self.pins.release(event.object_id)
            return
        value.local = True
        for wait_id in list(value.waits):
            self.waiting.progress(wait_id, value)

    def on_object_unavailable(self, event: ObjectUnavailable) -> None:
        self.pins.asked.pop(event.object_id, None)
        value = self.table.get(event.object_id)
        if value is None or not value.wanted:
            return
        value.wanted = False
        if value.state is not ValueState.STORED:
            return
        if event.error.kind in (ErrorKind.STORE_FULL, ErrorKind.UNREACHABLE):
            value.fetch_error = value.last_fetch_error = event.error
        elif value.owner != self.address:
            self.set_failed(value, event.error)
            return
        for wait_id in list(value.waits):  # we own it, and know better: ask again
            self.waiting.progress(wait_id, value)

    # ---- Invariants ------------------------------------------------------------------------------------------

    def check_invariants(self) -> None:
        for object_id, value in self.table.items():
            if (  # most, in one look: it is held, no count is negative, and it is not pinned
                value.local_refs > 0
                and value.task_uses >= 0
                and value.container_uses >= 0
                and value.transit_uses >= 0
                and value.lineage_uses >= 0
                and not value.local
            ):
                continue
            counts = (value.local_refs, value.task_uses, value.container_uses, value.transit_uses, value.lineage_uses)
            ensure(min(counts) >= 0, "object {}: a negative count; {}", object_id, value)
            ensure(
                value.held or value.lineage_uses > 0 or value.owner == self.address,
                "borrowed object {} is kept by nothing",
                object_id,
            )
            ensure(
                value.held or value.lineage_uses > 0 or value.state is ValueState.PENDING,
                "owned object {} ({}) is kept by nothing",
                object_id,
                value.state,
            )
            ensure(not value.local or value.wanted, "object {} is pinned but was not wanted", object_id)
        self.waiting.check_invariants()
