"""Whose arguments a node brings, and when: slots that wait for leases stand in line for it.

Theory of operation. Arguments are brought early, and what is brought early never keeps anybody from going on. A slot
first *locates* its arguments, and holds nothing while one is yet to be made. Then it is in line, and *admitted* to
having all of them brought in its turn, as far as what is brought fits into half the store, and at least one slot is.
When somebody waits for room in the store, nobody is admitted, and slots give up what they have (they *stand back*), the
youngest first: for what runs, all of them if need be, those that lack something before those that lack nothing; for one
another, only those that lack something, and the oldest keeps what it has, and is the only one to be admitted until it
has started. A slot of whose arguments the last copy is lost stands back too. A slot whose arguments are all here needs
nothing brought, and may start at any time.

Relies on: transfer.py brings arguments and says when they are located, here, or lost.
Guarantees: each slot that waits is admitted, in line, or looks for its arguments: one of these.
"""

from __future__ import annotations

from collections.abc import Callable, Container

from dualray.shared.machines.base import ensure
from dualray.shared.machines.node.lease_records import Slot
from dualray.shared.machines.node.object_store import ObjectStore
from dualray.shared.model.ids import Address, NodeID, ObjectID


class Admission:
    """See the module."""

    def __init__(
        self,
        *,
        node: NodeID,
        waiting: dict[str, Slot],
        want: Callable[[ObjectID, Address, str], None],
        locate: Callable[[ObjectID, Address, str], bool],
        release: Callable[[str], None],
        store: ObjectStore,
    ) -> None:
        self.node = node
        self.waiting = waiting
        """Slots that wait for arguments or resources, in order of arrival."""
        self._want = want
        self._locate = locate
        self._release = release
        self._store = store
        store.space.needed_next = self._needed_next
        self._in_line: dict[str, Slot] = {}
        """Who is to be admitted, in order."""
        self._first: str | None = None
        """Nobody but this one is to be admitted until it has started."""
        self._brought: dict[ObjectID, list[int]] = {}
        """Arguments of admitted slots: for how many of them, and bytes."""
        self._brought_bytes = 0

    def line_up(self, slot: Slot) -> None:
        """Have it admitted in its turn, when copies of all arguments are known."""
        slot.unlocated = {
            hint.object_id: None for hint in slot.shape.deps if not self._locate(hint.object_id, hint.owner, slot.key)
        }
        if not slot.unlocated:
            self._in_line[slot.key] = slot

    def on_located(self, key: str, object_id: ObjectID) -> None:
        """A copy of an argument exists."""
        slot = self.waiting.get(key)
        if slot is not None and object_id in slot.unlocated:
            del slot.unlocated[object_id]
            if not slot.unlocated:
                self._in_line[slot.key] = slot

    def on_argument_lost(self, key: str, object_id: ObjectID) -> None:
        """An argument that is being brought has to be made again."""
        slot = self.waiting.get(key)
        if slot is not None and slot.is_admitted and object_id in slot.missing:
            if self._first == key:
                self._first = None
            self._dismiss(slot)
            self._release(key)
            self.line_up(slot)

    def admit(self) -> None:
        """Have the arguments of those brought whose turn it is."""
        while not self._store.waiting:
            slot = next(iter(self._in_line.values()), None) if self._first is None else self._in_line.get(self._first)
            if slot is None:
                return
            new = {hint.object_id: hint.size_bytes for hint in slot.shape.deps if hint.object_id not in self._brought}
            if self._brought and self._brought_bytes + sum(new.values()) > self._store.space.capacity_bytes // 2:
                return
            del self._in_line[slot.key]
            self.line_up(slot)  # a copy may have gone meanwhile
            if self._in_line.pop(slot.key, None) is None:
                continue
            slot.is_admitted = True
            slot.missing = dict.fromkeys(hint.object_id for hint in slot.shape.deps)
            for object_id in slot.missing:
                self._brought.setdefault(object_id, [0, new.get(object_id, 0)])[0] += 1
            self._brought_bytes += sum(new.values())
            here = [hint for hint in slot.shape.deps if self._store.is_readable(hint.object_id)]
            away = [hint for hint in slot.shape.deps if not self._store.is_readable(hint.object_id)]
            for hint in here + away:  # room for the others may cost an object its place that nobody pins yet
                self._want(hint.object_id, hint.owner, slot.key)

    def _dismiss(self, slot: Slot) -> None:
        """Nothing is brought for it any more."""
        self._in_line.pop(slot.key, None)
        if slot.is_admitted:
            slot.is_admitted = False
            slot.missing = {}
            for object_id in dict.fromkeys(hint.object_id for hint in slot.shape.deps):
                uses = self._brought[object_id]
                uses[0] -= 1
                if not uses[0]:
                    self._brought_bytes -= uses[1]
                    del self._brought[object_id]

    def stop_waiting(self, slot: Slot) -> None:
        """It waits no more: it has started, was refused, or goes elsewhere."""
        del self.waiting[slot.key]
        self._dismiss(slot)
        if self._first == slot.key:
            self._first = None

    def stand_back(self, slot: Slot) -> None:
        """Give up what has been brought; the slot is the next to be admitted."""
        self._dismiss(slot)
        self._release(slot.key)
        behind = self._in_line
        self._in_line = {}
        self.line_up(slot)
        self._in_line.update(behind)

    def make_way(self) -> bool:
        """Somebody waits for room in the store: see the module. Whether a slot has stood back."""
        admitted = [slot for slot in self.waiting.values() if slot.is_admitted and slot.shape.deps]
        lacking = [slot for slot in admitted if slot.missing]
        if self._store.waiting[0].is_early:
            candidates = lacking[1:]
        else:
            candidates = [slot for slot in admitted if not slot.missing] + lacking
        useful = self._store.space.keep_what_could_leave(self.waiting)
        for slot in reversed(candidates):
            if slot.key in useful:
                if self._store.waiting[0].is_early:
                    self._first = lacking[0].key
                self.stand_back(slot)
                return True
        return False

    def _needed_next(self) -> Container[ObjectID]:
        """The arguments of the oldest slot that pins nothing yet: see space.py."""
        for slot in self.waiting.values():
            if not slot.is_admitted:
                return {hint.object_id for hint in slot.shape.deps}
        return ()

    def on_argument(self, key: str, object_id: ObjectID) -> None:
        """An argument of a slot is here and pinned for it."""
        slot = self.waiting.get(key)
        if slot is not None and slot.is_admitted:
            slot.missing.pop(object_id, None)

    def has_arguments(self, slot: Slot) -> bool:
        """Whether all arguments are here, and pinned for the slot."""
        if slot.is_admitted:
            return not slot.missing
        arguments = [hint.object_id for hint in slot.shape.deps]
        if not all(self._store.is_readable(object_id) for object_id in arguments):
            return False
        for object_id in arguments:
            self._store.pin(object_id, slot.key)
        return True

    # ---- Invariants ------------------------------------------------------------------------------------------

    def check_invariants(self) -> None:
        brought: dict[ObjectID, int] = {}
        for slot in self.waiting.values():
            places = slot.is_admitted + (slot.key in self._in_line) + bool(slot.unlocated)
            ensure(places == 1, "{} is admitted, in line, or looks for arguments: {} of these", slot.key, places)
            for object_id in dict.fromkeys(hint.object_id for hint in slot.shape.deps) if slot.is_admitted else ():
                brought[object_id] = brought.get(object_id, 0) + 1
        ensure(
            brought == {object_id: uses for object_id, (uses, _) in self._brought.items()},
            "{}: what is brought for slots is not {}",
            self.node,
            self._brought,
        )
