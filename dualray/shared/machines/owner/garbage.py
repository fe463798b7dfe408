"""Has Python collect garbage in the processes that may hold references to the objects of a full store.

Theory of operation. Python frees at once what nothing refers to any more. Objects that refer to one another in a cycle
wait for Python's collector, which counts objects and not bytes: a few references in cycles may keep a store full for
ever. So a node whose store is nearly full asks the owners of its objects (space.py). An owner collects, and asks the
processes that borrow its stored objects. However many nodes ask, a process collects at most twice in `garbage_ns`: a
question that comes a little early must not be missed.

Relies on: the runner carries out `CollectGarbage` beside user code; finalizers of references report what went.
Guarantees: changes no value.
"""

from __future__ import annotations

from dualray.shared.machines.base import Outbox
from dualray.shared.machines.owner.value import Value
from dualray.shared.model.commands import CollectGarbage
from dualray.shared.model.events import CollectionWanted
from dualray.shared.model.ids import Address, ObjectID
from dualray.shared.model.states import ValueState


class Garbage:
    """See the module."""

    def __init__(self, *, out: Outbox, address: Address, table: dict[ObjectID, Value], interval_ns: int) -> None:
        self.out = out
        self.address = address
        self.table = table
        self._interval_ns = interval_ns
        self._next_ns = 0

    def on_wanted(self) -> None:
        """A store is nearly full that may hold objects of ours, or ones that we borrow."""
        if self.out.now_ns < self._next_ns:
            return
        self._next_ns = self.out.now_ns + self._interval_ns // 2
        self.out.add(CollectGarbage())
        borrowers = [
            borrower
            for value in self.table.values()
            if value.owner == self.address and value.state is ValueState.STORED
            for borrower in value.borrowers
        ]
        for borrower in dict.fromkeys(borrowers):
            self.out.send(borrower, CollectionWanted())
