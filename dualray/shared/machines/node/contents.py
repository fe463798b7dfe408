"""The contents count what one node's object store has in memory and on disk, and tell the head of it.

Theory of operation. An object is in memory, on disk, or in memory with a copy on disk: SPILLING while that is being
written, RESTORING while it is being read. Afterwards the copy stays, so that the object can leave memory again at once;
it goes when the disk has no room for what is written to it. A disk that is full, or the limit `spill_bytes_max`, never
costs an object: it stays in memory. The head hears of an object when it can first be read here, and when this node has
it no more.

Relies on: object_store.py and space.py say what comes and goes, and what becomes of it.
Guarantees: the bytes on disk are those of the copies there, also of those that are being written or read.
"""

from __future__ import annotations

from collections.abc import Callable, Container

from dualray.shared.machines.base import Outbox
from dualray.shared.machines.node.stored import StoredObject
from dualray.shared.model.commands import DeleteSpilled, SpillObject
from dualray.shared.model.config import Config
from dualray.shared.model.events import ObjectAdded, ObjectRemoved
from dualray.shared.model.ids import HEAD, NodeID, ObjectID
from dualray.shared.model.states import STORED, StoredState

_BYTES_PER_S = 1_000_000_000
"""Of a disk that has not been measured: mostly what is written stays in the page cache for now."""
_RATE_BYTES = 1 << 30
"""A disk's rate is that of about so many bytes, the last ones."""


class DiskRate:
    """How long a disk took lately for what it wrote, or read."""

    __slots__ = ("elapsed_ns", "size_bytes")

    def __init__(self) -> None:
        self.size_bytes = 0
        self.elapsed_ns = 0

    def note(self, size_bytes: int, elapsed_ns: int) -> None:
        """It took so long for so many bytes; 0 ns: nobody knows."""
        if elapsed_ns <= 0:
            return
        self.size_bytes += size_bytes
        self.elapsed_ns += elapsed_ns
        if self.size_bytes > _RATE_BYTES:
            self.size_bytes //= 2
            self.elapsed_ns //= 2

    def expected_ns(self, size_bytes: int) -> int:
        """How long it takes for so many bytes."""
        if not self.size_bytes:
            return size_bytes * 1_000_000_000 // _BYTES_PER_S
        return size_bytes * self.elapsed_ns // self.size_bytes


class Contents:
    """See the module."""

    def __init__(self, *, out: Outbox, node: NodeID, incarnation: int, config: Config) -> None:
        self.out = out
        self.node = node
        self.incarnation = incarnation
        self.config = config
        self.objects: dict[ObjectID, StoredObject] = {}
        """In order of last use, oldest first."""
        self.used_bytes = 0
        self.spilled: dict[ObjectID, StoredObject] = {}
        """Those that are on disk alone."""
        self.spilled_bytes = 0
        """Of the copies on disk, also of those that are being written or read."""
        self.copies_gone = 0
        """How many have been deleted from the disk."""
        self.disk_error = ""
        """Why it could not be written; it is tried again for a new request, and when a copy has gone from it."""
        self.written = DiskRate()
        self.read = DiskRate()
        self.is_held_up: Callable[[], bool] = lambda: False
        """Whether there is less room than there seems, for what is to be fetched does not come. The transfers say."""

    # ---- What the head hears ---------------------------------------------------------------------------------

    def announce(self, stored: StoredObject, turn: int = 0) -> None:
        """This copy can be read."""
        self.out.send(
            HEAD,
            ObjectAdded(
                object_id=stored.object_id,
                size_bytes=stored.size_bytes,
                owner=stored.owner,
                node=self.node,
                incarnation=self.incarnation,
                turn=turn,
            ),
        )

    def announce_loss(self, stored: StoredObject, *, is_eviction: bool = False) -> None:
        """This copy is gone, or about to be."""
        removed = ObjectRemoved(
            object_id=stored.object_id,
            node=self.node,
            incarnation=self.incarnation,
            is_held_up=self.is_held_up(),
            is_eviction=is_eviction,
        )
        self.out.send(HEAD, removed)

    # ---- Disk ------------------------------------------------------------------------------------------------

    def disk_ns(self, size_bytes: int) -> int:
        """How long it takes about to write so many bytes and to read them back."""
        return self.written.expected_ns(size_bytes) + self.read.expected_ns(size_bytes)

    def begin_to_spill(self, victims: list[StoredObject], leaving: Container[StoredObject] = ()) -> bool:
        """Begin to copy these to disk; False when there is no room for them there. `leaving` are about to leave memory:
        a copy of one of them is its last."""
        size_bytes = sum(stored.size_bytes for stored in victims)
        excess = self.spilled_bytes + size_bytes - self.config.spill_bytes_max
        if excess > 0 and not self.delete_spare_copies(excess, leaving):
            return False
        self.spilled_bytes += size_bytes
        for stored in victims:
            stored.state = STORED.check(stored.state, StoredState.SPILLING, stored.object_id)
            stored.copies_gone = self.copies_gone
            self.out.add(SpillObject(object_id=stored.object_id, size_bytes=stored.size_bytes))
        return True

    def keep_on_disk(self, stored: StoredObject) -> None:
        """It is there alone from now on; unless it was freed."""
        stored.state = STORED.check(stored.state, StoredState.SPILLED, stored.object_id)
        self.spilled[stored.object_id] = stored
        if stored.freed:
            stored.freed = False
            self.delete_spilled(stored)

    def delete_spare_copies(self, excess: int, leaving: Container[StoredObject] = ()) -> bool:
        """Delete copies of objects that are in memory, and stay there, until so many bytes are free; False, and nothing
        is deleted, when they are not that many."""
        spare = [stored for stored in self.objects.values() if stored.has_copy and stored not in leaving]
        if excess > sum(stored.size_bytes for stored in spare):
            return False
        for stored in reversed(spare):  # those that are to leave last
            if excess <= 0:
                break
            stored.has_copy = False
            self.delete_copy(stored)
            excess -= stored.size_bytes
        return True

    def delete_copy(self, stored: StoredObject) -> None:
        """An object that is in memory has none on disk any more."""
        self.spilled_bytes -= stored.size_bytes
        self.copies_gone += 1
        self.disk_error = ""
        self.out.add(DeleteSpilled(object_id=stored.object_id))

    def delete_spilled(self, stored: StoredObject) -> None:
        """Nobody wants an object that is on disk alone."""
        del self.spilled[stored.object_id]
        self.delete_copy(stored)
