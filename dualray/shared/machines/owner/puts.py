"""Objects that user code puts: room for them in the node's store, then the objects.

Theory of operation. A small object is a payload of this process. A large one needs room: in room that the process keeps
(reserved_space.py), or asked of the node manager, where several threads may wait for room for one object in turn. It is
sealed when it is written. Whoever was interrupted while he put an object gives back what he had.

Relies on: one answer of the node manager to each request for room.
Guarantees: room that was granted is written and sealed, or given back.
"""

from __future__ import annotations

from collections import deque

from dualray.shared.machines.base import Outbox
from dualray.shared.machines.owner.reserved_space import Rooms
from dualray.shared.machines.owner.value import Value
from dualray.shared.machines.owner.values import Values
from dualray.shared.model.commands import CompleteWait
from dualray.shared.model.events import (
    ObjectSealed,
    ObjectsFreed,
    PromiseKept,
    PutAbandoned,
    SpaceDenied,
    SpaceGranted,
    SpaceRequested,
    SpaceWanted,
    SpaceWritten,
    ValuePromised,
    ValuePut,
)
from dualray.shared.model.ids import HEAD, Address, NodeID, ObjectID, WaitID
from dualray.shared.model.states import ValueState


class Puts:
    """See the module."""

    def __init__(self, *, out: Outbox, address: Address, node: NodeID, values: Values, rooms: Rooms) -> None:
        self.out = out
        self.address = address
        self.node = node
        self.values = values
        self.rooms = rooms
        self._space: dict[ObjectID, deque[WaitID | None]] = {}
        """Who waits for room for an object, first come first; None: nobody does any more."""

    def on_put(self, event: ValuePut) -> None:
        """User code has put an object; small ones that refer to nothing are the owner's (`Owner.put_small`)."""
        value = self.values.references.owned(event.object_id)
        value.local_refs += 1
        self._fill(value, event)

    def on_promised(self, event: ValuePromised) -> None:
        """User code will put an object later."""
        self.values.references.owned(event.object_id).local_refs += 1

    def on_kept(self, event: PromiseKept) -> None:
        """An object that was promised is there."""
        value = self.values.references.owned(event.object_id)
        if value.state is ValueState.PENDING:
            self._fill(value, event)

    def _fill(self, value: Value, event: ValuePut | PromiseKept) -> None:
        if event.inline:
            self.values.set_inline(value, event.size_bytes, event.nested)
        else:
            if not self.rooms.written(event.object_id):
                self.out.send(Address(self.node), ObjectSealed(object_id=event.object_id, requester=self.address))
            self.values.set_stored(value, event.size_bytes, self.address, event.nested)

    def on_space_wanted(self, event: SpaceWanted) -> None:
        """User code is about to write an object into the node's store."""
        if event.is_argument and self.rooms.take(event.object_id, event.size_bytes):
            self.out.add(CompleteWait(wait_id=event.wait_id, ready=(event.object_id,)))
            return
        self._space.setdefault(event.object_id, deque()).append(event.wait_id)
        self.out.send(
            Address(self.node),
            SpaceRequested(
                object_id=event.object_id,
                size_bytes=event.size_bytes,
                owner=event.owner,
                requester=self.address,
                remakeable=event.remakeable,
                is_room=event.is_argument and self.rooms.may_ask(event.object_id, event.size_bytes),
                remake_ns=event.remake_ns,
            ),
        )

    def on_space_granted(self, event: SpaceGranted) -> None:
        """The node has room for an object."""
        wait_id = self._next_space_wait(event.object_id)
        if wait_id is not None:
            self.rooms.on_granted(event)
            self.out.add(CompleteWait(wait_id=wait_id, ready=() if event.present else (event.object_id,)))
        elif not event.present:
            self._give_back_space(event.object_id)

    def on_space_denied(self, event: SpaceDenied) -> None:
        """The node has no room for an object."""
        self.rooms.asked.pop(event.object_id, None)
        wait_id = self._next_space_wait(event.object_id)
        if wait_id is not None:
            self.out.add(CompleteWait(wait_id=wait_id, error=event.error))

    def on_put_abandoned(self, event: PutAbandoned) -> None:
        """Of an object that was put: its id was given once, so that at most one thread waits for its room."""
        if event.object_id in self._space:
            self._space[event.object_id] = deque([None])
            self.rooms.asked.pop(event.object_id, None)
        elif event.object_id in self.values.table:
            self.values.references.drop((event.object_id,))
        else:
            self._give_back_space(event.object_id)

    def _give_back_space(self, object_id: ObjectID) -> None:
        """Room that was reserved, and may be half written: what is sealed can be freed."""
        if self.rooms.free(object_id):
            return
        self.out.send(Address(self.node), ObjectSealed(object_id=object_id, requester=self.address))
        self.out.send(HEAD, ObjectsFreed(object_ids=(object_id,)))

    def _next_space_wait(self, object_id: ObjectID) -> WaitID | None:
        waiting = self._space[object_id]
        wait_id = waiting.popleft()
        if not waiting:
            del self._space[object_id]
        return wait_id

    def on_space_written(self, event: SpaceWritten) -> None:
        """The bytes of an object are in the store."""
        self.out.send(Address(self.node), ObjectSealed(object_id=event.object_id, requester=self.address))
