"""The contents count what one node's object store has in memory and on disk, and tell the head of it.

Theory of operation. An object is in memory, on disk, or in memory with a copy on disk: SPILLING while that is being
written, RESTORING while it is being read. A disk that is full, or the limit `spill_bytes_max`, never costs an object:
it stays in memory. The head hears of an object when it can first be read here, and when this copy is gone.

Relies on: object_store.py and space.py say what comes and goes, and what becomes of it.
Guarantees: the bytes on disk are those of the copies there, also of those that are being written or read.
"""

from __future__ import annotations

from collections.abc import Callable

from dualray.shared.machines.base import Outbox
from dualray.shared.machines.node.stored import StoredObject
from dualray.shared.model.commands import DeleteSpilled, SpillObject
from dualray.shared.model.config import Config
from dualray.shared.model.events import ObjectAdded, ObjectRemoved
from dualray.shared.model.ids import HEAD, NodeID, ObjectID
from dualray.shared.model.states import STORED, StoredState


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

    def announce_loss(self, stored: StoredObject) -> None:
        """This copy is gone, or about to be."""
        removed = ObjectRemoved(
            object_id=stored.object_id,
            node=self.node,
            incarnation=self.incarnation,
            is_held_up=self.is_held_up(),
        )
        self.out.send(HEAD, removed)

    # ---- Disk ------------------------------------------------------------------------------------------------

    def begin_to_spill(self, victims: list[StoredObject]) -> bool:
        """Begin to copy these to disk; False when there is no room for them there."""
        size_bytes = sum(stored.size_bytes for stored in victims)
        if self.spilled_bytes + size_bytes > self.config.spill_bytes_max:
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
