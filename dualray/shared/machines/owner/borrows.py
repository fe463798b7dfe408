"""Tells owners elsewhere what this process borrows, and knows which processes it has to do with.

Theory of operation. A process registers each object that it borrows with the object's owner (BorrowAdded), once, and
keeps the borrow as outstanding until the owner acknowledges it (`unacknowledged`). It lets go of nothing borrowed
(BorrowRemoved) meanwhile: an owner that was told of a reference inside another must hear of the one before it hears
that the other has gone.

Relies on: messages between two processes stay in order.
Guarantees: no removal overtakes a borrow that depends on it; the death of each process that was met is reported here.
"""

from __future__ import annotations

from dualray.shared.machines.base import Outbox
from dualray.shared.machines.owner.value import Value
from dualray.shared.model.events import BorrowAcknowledged, BorrowAdded, BorrowRemoved, PeerMet
from dualray.shared.model.ids import HEAD, Address, ObjectID


class Borrows:
    """See the module."""

    def __init__(self, *, out: Outbox, address: Address, node: Address, table: dict[ObjectID, Value]) -> None:
        self.out = out
        self.address = address
        self.node = node
        self.table = table
        self.unacknowledged: dict[ObjectID, None] = {}
        self.removals_held_back: list[tuple[ObjectID, Address]] = []
        self.met: dict[Address, None] = {}
        """Processes that we have to do with, and that are alive as far as we know."""

    def meet(self, peer: Address) -> None:
        """From now on we want to hear of the peer's death. It may have died already: the node manager knows. Of who has
        a lease on this worker it tells without being asked, and ends the worker."""
        if peer not in self.met and peer not in (self.address, self.node, HEAD):
            self.met[peer] = None
            self.out.send(self.node, PeerMet(process=self.address, peer=peer))

    def register(self, value: Value) -> None:
        """Tell the owner of a borrowed value that this process has it, once."""
        if value.owner != self.address and not value.borrow_sent:
            value.borrow_sent = True
            self.unacknowledged[value.object_id] = None
            self.out.send(value.owner, BorrowAdded(object_id=value.object_id, borrower=self.address))

    def end(self, object_id: ObjectID, owner: Address) -> None:
        """Tell the owner that this process has it no more, as soon as no borrow is outstanding."""
        self.unacknowledged.pop(object_id, None)
        if self.unacknowledged:
            self.removals_held_back.append((object_id, owner))
        else:
            self.out.send(owner, BorrowRemoved(object_id=object_id, borrower=self.address))

    def on_added(self, event: BorrowAdded) -> None:
        """Another process borrows an object of ours."""
        value = self.table.get(event.object_id)
        if value is not None:
            self.meet(event.borrower)
            value.note("borrowers", event.borrower)
        self.out.send(event.borrower, BorrowAcknowledged(object_id=event.object_id))

    def on_acknowledged(self, event: BorrowAcknowledged) -> None:
        """The owner knows of a borrow of ours."""
        self.unacknowledged.pop(event.object_id, None)
        self.flush()

    def flush(self) -> None:
        """Tell what had to wait for an acknowledgement, if none is outstanding any more."""
        if self.unacknowledged or not self.removals_held_back:
            return
        held_back, self.removals_held_back = self.removals_held_back, []
        for object_id, owner in held_back:
            if object_id in self.table and self.table[object_id].borrow_sent:
                continue  # borrowed again meanwhile: the owner must keep us
            self.out.send(owner, BorrowRemoved(object_id=object_id, borrower=self.address))
