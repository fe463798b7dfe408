"""The object store keeps one node's objects: it says who uses each, and when it may be read, moved to disk, or deleted.

Theory of operation. An object is CREATED when room is counted for it. It is SEALED when its bytes are complete; only
sealed objects are read, sent and reported to the head. Each user (a process, a lease, a transfer) pins what it uses,
once. An object that its owner frees goes at once, or with its last pin. Who gets room, and what leaves for that, is
space.py's; contents.py counts what is in memory and on disk.

A process may keep room that it was granted, and write one object after another there (owner/reserved_space.py). For the
store that is an object being written, which counts as used. An object that is handed over takes its room's place, and
gives back what it does not need.

With the policy "spill", what has to leave is copied to disk first: SPILLING while that lasts, when it may still be read
and pinned, and SPILLED when its memory has been given back. A spilled object is on this node, as far as others know.
When it is wanted, it asks for room like any other, is RESTORING while it is read back, and then SEALED; its copy on
disk stays as long as the disk has room (contents.py).

Relies on: users release what they pinned, or die, and are then released by name.
Guarantees: bytes in use equal the sum of the objects in memory and never exceed the capacity, and those on disk never
exceed theirs; an object is in memory or on disk alone, and stays there while somebody pins it.
"""

from __future__ import annotations

from collections import deque

from dualray.shared.machines.base import Outbox, ensure
from dualray.shared.machines.node.contents import Contents
from dualray.shared.machines.node.space import Space
from dualray.shared.machines.node.stored import RESTORING, SpaceRequest, StoredObject, timer_of
from dualray.shared.model.commands import ArmTimer, CancelTimer, RenameObject, UnloadObject
from dualray.shared.model.config import Config
from dualray.shared.model.events import ObjectRestored, ObjectSpilled
from dualray.shared.model.ids import NodeID, ObjectID
from dualray.shared.model.states import STORED, StoredState
from dualray.shared.policies.eviction.policy import EvictionPolicy

_READABLE = frozenset({StoredState.SEALED, StoredState.SPILLING})
_COPIED = frozenset({StoredState.SPILLING, StoredState.RESTORING})
"""In memory, and with a place on disk."""


class ObjectStore:
    """See the module."""

    def __init__(
        self,
        *,
        out: Outbox,
        node: NodeID,
        incarnation: int,
        capacity_bytes: int,
        config: Config,
        eviction: EvictionPolicy,
    ) -> None:
        self.out = out
        self.node = node
        self.config = config
        self.contents = Contents(out=out, node=node, incarnation=incarnation, config=config)
        self.objects = self.contents.objects
        self.spilled = self.contents.spilled
        self.space = Space(
            out=out,
            node=node,
            capacity_bytes=capacity_bytes,
            config=config,
            eviction=eviction,
            contents=self.contents,
        )
        self.waiting = self.space.waiting
        # Worklists that the node machine drains.
        self.sealed: deque[tuple[ObjectID, str]] = deque()
        self.abandoned: deque[ObjectID] = deque()

    # ---- Disk ------------------------------------------------------------------------------------------------

    def on_spilled(self, event: ObjectSpilled) -> None:
        """The copy on disk is complete: the memory goes, unless the object is in use again."""
        object_id = event.object_id
        stored = self.objects[object_id]
        self.contents.written.note(stored.size_bytes, event.elapsed_ns)
        if stored.pins or stored.freed:
            stored.has_copy = True
            self._back_in_memory(stored)
        else:
            self.space.remove(stored)
            self.out.add(UnloadObject(object_id=object_id))
            self.contents.keep_on_disk(stored)
        for request in self.waiting:  # the disk is at work: whoever waits for room does not wait in vain
            self.out.add(ArmTimer(timer=timer_of(request), delay_ns=self.config.store_wait_ns))
        self.space.serve_waiting()

    def on_spill_failed(self, object_id: ObjectID, reason: str) -> None:
        """The object stays in memory; whoever waits for room has what can be evicted, or waits until something goes."""
        stored = self.objects[object_id]
        if stored.copies_gone == self.contents.copies_gone:  # else the disk may have room now
            self.contents.disk_error = reason
        self.contents.spilled_bytes -= stored.size_bytes
        self.contents.delete_spare_copies(stored.size_bytes)
        self._back_in_memory(stored)
        self.space.serve_waiting()

    def _back_in_memory(self, stored: StoredObject) -> None:
        stored.state = STORED.check(stored.state, StoredState.SEALED, stored.object_id)
        if stored.freed and not stored.pins:
            self.space.delete(stored)

    def restore(self, object_id: ObjectID, *, is_early: bool = False) -> None:
        """Somebody wants a spilled object: bring it back into memory."""
        if any(request.object_id == object_id and request.user == RESTORING for request in self.waiting):
            return
        if any(request.object_id == object_id for request in self.space.without_memory.values()):
            return
        stored = self.spilled[object_id]
        self.space.request_space(
            SpaceRequest(
                object_id=object_id,
                size_bytes=stored.size_bytes,
                owner=stored.owner,
                remakeable=stored.remakeable,
                user=RESTORING,
                is_early=is_early,
            )
        )

    def on_restored(self, event: ObjectRestored) -> None:
        """The bytes are in memory again; those who want them pin them before our own pin ends."""
        object_id = event.object_id
        stored = self.objects[object_id]
        self.contents.read.note(stored.size_bytes, event.elapsed_ns)
        stored.state = STORED.check(stored.state, StoredState.SEALED, object_id)
        stored.has_copy = True
        self.sealed.append((object_id, RESTORING))
        self.space.written(object_id)
        self.space.serve_waiting()

    def on_restore_failed(self, object_id: ObjectID) -> None:
        """The disk has lost it: this copy is gone, and those who want it need another."""
        stored = self.objects[object_id]
        self.contents.delete_copy(stored)
        if not stored.freed:
            self.contents.announce_loss(stored)
        self.space.delete(stored)
        self.abandoned.append(object_id)

    def is_spilled(self, object_id: ObjectID) -> bool:
        """Whether the object is here, and not in memory."""
        stored = self.objects.get(object_id)
        return object_id in self.spilled or (stored is not None and stored.state is StoredState.RESTORING)

    def is_here(self, object_id: ObjectID) -> bool:
        """Whether the object's bytes are on this node, in memory or on disk."""
        return self.is_sealed(object_id) or self.is_spilled(object_id)

    # ---- Life of an object -----------------------------------------------------------------------------------

    def seal(self, object_id: ObjectID, user: str, *, turn: int = 0) -> None:
        """The bytes are complete; the writer's pin ends when those who wait for the object have theirs."""
        stored = self.objects.get(object_id)
        if stored is None or stored.state is not StoredState.CREATED or user not in stored.pins:
            return
        if stored.is_room:
            self.space.end_room(stored)
        stored.state = STORED.check(stored.state, StoredState.SEALED, object_id)
        self.contents.announce(stored, turn)
        self.sealed.append((object_id, user))
        self.space.written(object_id)

    def take_over(self, room_id: ObjectID, object_id: ObjectID, size_bytes: int, *, user: str) -> bool:
        """An object lies complete in the room that a user has kept: it is an object of its own from now on, pinned for
        the user until those who wait for it have it. False when he keeps no such room."""
        stored = self.objects.get(room_id)
        if stored is None or not stored.is_room or stored.request is not None or user not in stored.pins:
            return False
        self.space.end_room(stored)
        if object_id != room_id:
            del self.objects[room_id]
            stored.object_id = object_id
            self.objects[object_id] = stored
            self.contents.used_bytes -= stored.size_bytes - size_bytes
            stored.size_bytes = size_bytes
        self.out.add(RenameObject(room_id=room_id, object_id=object_id, size_bytes=size_bytes))
        stored.state = STORED.check(stored.state, StoredState.SEALED, object_id)
        return True

    def announce(self, object_id: ObjectID, user: str) -> None:
        """Tell of an object that was taken over."""
        self.contents.announce(self.objects[object_id])
        self.sealed.append((object_id, user))
        self.space.written(object_id)
        self.space.serve_waiting()

    def free_unannounced(self, object_id: ObjectID, user: str) -> None:
        """An object was taken over of which nobody has heard but its readers: it goes with the last of them."""
        self.objects[object_id].freed = True
        self.unpin(object_id, user)

    def is_user(self, user: str) -> bool:
        """Whether a user pins anything."""
        return any(user in stored.pins for stored in self.objects.values())

    def abort(self, object_id: ObjectID, user: str) -> None:
        """The writer will not write: give the room back."""
        if self.is_being_written(object_id, user):
            self.space.delete(self.objects[object_id])

    def is_being_written(self, object_id: ObjectID, user: str) -> bool:
        """Whether this user is the one who writes it, or will when there is memory."""
        stored = self.objects.get(object_id)
        return stored is not None and stored.state is StoredState.CREATED and user in stored.pins

    def is_readable(self, object_id: ObjectID) -> bool:
        """Whether the bytes are here, though perhaps only until their last reader has gone."""
        stored = self.objects.get(object_id)
        return stored is not None and stored.state in _READABLE

    def is_sealed(self, object_id: ObjectID) -> bool:
        stored = self.objects.get(object_id)
        return stored is not None and stored.state in _READABLE and not stored.freed

    def place_of(self, object_id: ObjectID) -> int:
        """Where an object lies, as the runner counts."""
        stored = self.objects.get(object_id)
        return 0 if stored is None else stored.place

    def pin(self, object_id: ObjectID, user: str) -> StoredObject:
        """Keep a sealed object until the user releases it; it counts as used now."""
        stored = self.objects.pop(object_id)
        self.objects[object_id] = stored
        stored.pins[user] = None
        return stored

    def keep(self, object_id: ObjectID, *, is_needed: bool) -> None:
        """From now on this node is the one that keeps the object; `is_needed`: nothing can make it again."""
        stored = self.objects.get(object_id)
        if stored is not None:
            stored.is_copy = False
            stored.remakeable = stored.remakeable and not is_needed

    def unpin(self, object_id: ObjectID, user: str) -> None:
        """The user needs the object no more; it counts as used until now: who keeps a pin may have read it often."""
        stored = self.objects.get(object_id)
        if stored is None or user not in stored.pins:
            return
        del stored.pins[user]
        self.objects[object_id] = self.objects.pop(object_id)
        if stored.pins:
            return
        if stored.freed and stored.state is not StoredState.SPILLING:
            self.space.delete(stored)
        elif self.waiting:
            self.space.serve_waiting()

    def free(self, object_id: ObjectID) -> None:
        """Nobody wants the object: it goes now, or with its last pin. One that is being written is another one, made
        again, of which the head will hear."""
        stored = self.spilled.get(object_id)
        if stored is not None:
            self.contents.announce_loss(stored)
            self.contents.delete_spilled(stored)
            self.abandoned.append(object_id)  # somebody may wait for it to be restored
            self.space.serve_waiting()
            return
        stored = self.objects.get(object_id)
        if stored is None or stored.state is StoredState.CREATED or stored.freed:
            return
        stored.freed = True
        self.contents.announce_loss(stored)
        if not stored.pins and stored.state is not StoredState.SPILLING:
            self.space.delete(stored)

    def release_all(self, user: str, *, but_rooms: bool = False) -> None:
        """A user died: its pins and unfinished writes go, and its place in the line; `but_rooms`, not the room that it
        kept, where others may read."""
        for request in [request for request in self.waiting if request.user == user]:
            self.waiting.remove(request)
            self.out.add(CancelTimer(timer=timer_of(request)))
        for object_id, requests in list(self.space.joined.items()):
            self.space.joined[object_id] = deque(request for request in requests if request.user != user)
        for stored in [stored for stored in self.objects.values() if user in stored.pins]:
            if stored.is_room and but_rooms:
                continue
            if stored.state is StoredState.CREATED:
                self.space.delete(stored)
                self.abandoned.append(stored.object_id)
            else:
                self.unpin(stored.object_id, user)

    # ---- Invariants ------------------------------------------------------------------------------------------

    def check_invariants(self) -> None:
        contents, space = self.contents, self.space
        total = sum(stored.size_bytes for stored in self.objects.values())
        ensure(
            total == contents.used_bytes,
            "store of {}: {} bytes counted, {} held",
            self.node,
            contents.used_bytes,
            total,
        )
        ensure(total <= space.capacity_bytes, "store of {} holds {} of {}", self.node, total, space.capacity_bytes)
        rooms = [user for stored in self.objects.values() if stored.is_room for user in stored.pins]
        ensure(
            space.room_of == {user: rooms.count(user) for user in rooms},
            "store of {}: the rooms of users are not {}",
            self.node,
            space.room_of,
        )
        for object_id, stored in self.objects.items():
            ensure(
                stored.state in _READABLE or bool(stored.pins),
                "object {} is being written by nobody",
                object_id,
            )
            ensure(
                not stored.freed or bool(stored.pins) or stored.state is StoredState.SPILLING,
                "object {} is freed and still there",
                object_id,
            )
            ensure(object_id not in self.spilled, "object {} is in memory and on disk", object_id)
        on_disk = [*self.spilled.values()]
        on_disk += [stored for stored in self.objects.values() if stored.state in _COPIED or stored.has_copy]
        total = sum(stored.size_bytes for stored in on_disk)
        ensure(
            total == contents.spilled_bytes,
            "store of {}: {} bytes on disk, not {}",
            self.node,
            contents.spilled_bytes,
            total,
        )
        ensure(
            total <= self.config.spill_bytes_max,
            "store of {} has spilled {} of {}",
            self.node,
            total,
            self.config.spill_bytes_max,
        )
