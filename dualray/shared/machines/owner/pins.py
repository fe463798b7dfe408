"""Keeps stored bytes readable while this process needs them: pinned in its node's store, or lent by their owner.

Theory of operation. The node manager pins an object for the process that wants it, and the process gives the pin back
once: when no wait and no view needs the bytes. Views outlive references and waits. An answer that is still to come is
kept in mind (`asked`), so that it is not taken for one to a later question.

Arguments may lie in space of their owner that tasks here may read (reserved_space.py): nobody is asked for them, and
there is no pin until a view outlives the task, or the lender dies.

Relies on: one answer of the node manager to each ObjectWanted; loans come ahead of the task that they are for.
Guarantees: each pin is given back once, and none while a view of it lives.
"""

from __future__ import annotations

from collections.abc import Iterable

from dualray.shared.machines.base import Outbox
from dualray.shared.machines.owner.value import Value
from dualray.shared.model.events import (
    ArgumentsLent,
    Loan,
    LoanPinned,
    LoansAsked,
    LoansKept,
    LoansKnown,
    ObjectReleased,
    ObjectWanted,
)
from dualray.shared.model.ids import Address, ObjectID
from dualray.shared.model.specs import Ref
from dualray.shared.model.states import ValueState


class Borrowed:
    """An argument that its owner has lent to this process: its bytes can be read, nobody is to be asked for them."""

    __slots__ = ("is_pinned", "lender", "place", "room_id", "size_bytes")

    def __init__(self, lender: Address, room_id: ObjectID, place: int, size_bytes: int) -> None:
        self.lender = lender
        self.room_id = room_id
        self.place = place
        self.size_bytes = size_bytes
        self.is_pinned = False
        """It is the node manager's meanwhile, and pinned for us."""


class Pins:
    """See the module."""

    def __init__(self, *, out: Outbox, address: Address, node: Address, table: dict[ObjectID, Value]) -> None:
        self.out = out
        self.address = address
        self.node = node
        self.table = table
        self.asked: dict[ObjectID, None] = {}
        """Objects that we asked the node manager for, and that it has not answered."""
        self.views: dict[ObjectID, int] = {}
        """Reads of stored objects that this process has not given back; they outlive references."""
        self.loans: dict[ObjectID, Borrowed] = {}
        """Arguments that lie in room of their owners, and that tasks here may read there (reserved_space.py)."""
        self.loans_kept: dict[ObjectID, Borrowed] = {}
        """Those of which views have outlived the task, until they are pinned for us."""
        self.lenders_lost: dict[Address, None] = {}
        """Dead ones, of which the node manager has asked us: what comes late from them lies nowhere any more."""

    def want(self, value: Value) -> None:
        """Ask for its bytes to be brought here and pinned, unless that is on its way."""
        value.wanted = True
        if value.object_id not in self.asked:
            self.asked[value.object_id] = None
            self.out.send(
                self.node,
                ObjectWanted(object_id=value.object_id, owner=value.owner, requester=self.address),
            )

    def unpin(self, value: Value) -> None:
        """Its bytes are needed no more by references and waits."""
        if value.object_id in self.views or value.readers or value.object_id in self.loans:
            return  # a view lives on, or is about to be opened: its release unpins
        value.wanted = value.local = False
        self.release(value.object_id)

    def release(self, object_id: ObjectID) -> None:
        """Give the pin back, unless a view lives on, whose release does so, or the node has still to answer that it is
        pinned: an answer to an old question must not be taken for one to a new question."""
        if object_id not in self.views and object_id not in self.asked and object_id not in self.loans_kept:
            self.out.send(self.node, ObjectReleased(object_id=object_id, requester=self.address))

    def on_view_released(self, object_id: ObjectID) -> None:
        """A view of the bytes that a `read` wait opened is gone."""
        self.views[object_id] -= 1
        if self.views[object_id]:
            return
        del self.views[object_id]
        value = self.table.get(object_id)
        if value is None:  # the references went before the view
            self.release(object_id)
        elif not (value.waits and value.wanted):
            self.unpin(value)

    # ---- Arguments that were lent --------------------------------------------------------------------------

    def on_lent(self, event: ArgumentsLent) -> None:
        """A task follows whose arguments lie in room of its owner."""
        if event.lender in self.lenders_lost:
            return
        for object_id, room_id, place, size_bytes in event.loans:
            self.loans[object_id] = Borrowed(event.lender, room_id, place, size_bytes)

    def take_loan(self, value: Value) -> None:
        """An argument that has come is here already, if it was lent to us."""
        if value.object_id in self.loans and value.state is ValueState.STORED:
            value.wanted = value.local = True

    def end_loans(self, refs: Iterable[Ref]) -> None:
        """The task with these arguments is about to be reported, or given back. Those of which views live on are kept:
        their lender hears it first."""
        kept: list[ObjectID] = []
        lender: Address | None = None
        for ref in refs:
            loan = self.loans.pop(ref.object_id, None)
            if loan is None:
                continue
            is_read = ref.object_id in self.views
            if is_read and not loan.is_pinned:
                lender = loan.lender
                kept.append(ref.object_id)
                self.loans_kept[ref.object_id] = loan
            elif not is_read:
                value = self.table.get(ref.object_id)
                if value is not None:
                    value.wanted = value.local = False
                if loan.is_pinned:
                    self.release(ref.object_id)
        if lender is not None:
            self.out.send(lender, LoansKept(worker=self.address, object_ids=tuple(kept)))

    def on_loan_pinned(self, event: LoanPinned) -> None:
        """What has outlived the task that it was lent to is kept for us now, whether or not we read it still."""
        self.loans_kept.pop(event.object_id, None)
        value = self.table.get(event.object_id)
        if value is None or not value.wanted:
            self.release(event.object_id)

    def on_loans_asked(self, event: LoansAsked) -> None:
        """The lender has died: what we read of it is kept for us from now on."""
        self.lenders_lost[event.lender] = None
        known: list[Loan] = []
        for loans in (self.loans, self.loans_kept):
            for object_id, loan in list(loans.items()):
                if loan.lender == event.lender and not loan.is_pinned:
                    loan.is_pinned = True
                    known.append((object_id, loan.room_id, loan.place, loan.size_bytes))
        for object_id, *_ in known:
            self.loans_kept.pop(object_id, None)
        self.out.send(self.node, LoansKnown(worker=self.address, lender=event.lender, loans=tuple(known)))
