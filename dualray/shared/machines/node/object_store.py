"""The accounting of one node's object store: what is in it, who uses it, what leaves when room is needed.

Theory of operation. An object is CREATED when room is counted for it: its runner then finds memory for it
(`ReserveSpace`), and its writer hears that he may write. It is SEALED when its bytes are complete; only sealed objects
are read, sent and reported to the head. Memory can fail though there is room, when others use the same machine: then
what can be evicted is, and the runner is asked again, until there is memory or nothing is left to evict. Then the
request is refused; but what is fetched for tasks that have not begun asks again, up to `_MEMORY_TRIES` times within
`store_wait_ns`, for those would at once, and nobody tells when others give memory back. Each user (a process, a lease,
a transfer) pins what it uses, once. When room is needed, the eviction policy chooses among sealed
objects that nobody pins and that can be made again; what has to wait for room waits in line, for at most
`store_wait_ns`. Then pulls give way, if that helps (`give_way`: they may stand still behind a partition); else it is
refused with the names of the largest holders. What is fetched for tasks that have not begun (`is_early`) stands behind
everything else: who runs needs room in order to end. An object that its owner frees goes at once, or with its last pin.
What the oldest task needs that waits for arguments (`needed_next`) leaves after everything else: else each argument
that is made again may cost it another one, for ever.

A process may keep room that it was granted, and write one object after another there (owner/reserved_space.py). For the
store that is an object being written, which counts as used. Whenever the store has to make room, it calls back what is
kept, from whoever keeps some, once. An object that is handed over takes its room's place, and gives back what it does
not need.

With the policy "spill", what has to leave is copied to disk first: SPILLING while that lasts, when it may still be read
and pinned, and SPILLED when its memory has been given back. The request that needs the room waits in line meanwhile. A
spilled object is on this node, as far as others know. When it is wanted, it asks for room like any other, is RESTORING
while it is read back, and then SEALED; its copy on disk goes. A disk that is full, or the limit `spill_bytes_max`,
never costs an object: it stays in memory, what can be made again is evicted instead, and only a request for which that
is not enough waits, and is refused in the end.

Relies on: users release what they pinned, or die, and are then released by name.
Guarantees: bytes in use equal the sum of the objects in memory and never exceed the capacity, and those on disk never
exceed theirs; no pinned object leaves; no object leaves that cannot be made again and is not on disk.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass, replace

from dualray.shared.machines.base import Outbox, ensure
from dualray.shared.model.commands import (
    ArmTimer,
    CancelTimer,
    DeleteObject,
    DeleteSpilled,
    EvictObject,
    RenameObject,
    ReserveSpace,
    RestoreObject,
    SpillObject,
    UnloadObject,
)
from dualray.shared.model.config import Config
from dualray.shared.model.errors import ErrorInfo, ErrorKind
from dualray.shared.model.events import ObjectAdded, ObjectRemoved, RoomWanted
from dualray.shared.model.ids import HEAD, Address, NodeID, ObjectID, short
from dualray.shared.model.states import STORED, StoredState
from dualray.shared.policies.lru import EvictionPolicy

RESTORING = "restoring"
"""The user on whose behalf a spilled object is read back."""

_MEMORY_TRIES = 10
_MEMORY_TIMER = "memory:"
_READABLE = frozenset({StoredState.SEALED, StoredState.SPILLING})
_COPIED = frozenset({StoredState.SPILLING, StoredState.RESTORING})
"""In memory, and with a place on disk."""


class StoredObject:
    """One object in this store."""

    __slots__ = (
        "copies_gone",
        "freed",
        "is_room",
        "object_id",
        "owner",
        "pins",
        "place",
        "remakeable",
        "request",
        "size_bytes",
        "state",
    )

    def __init__(self, object_id: ObjectID, size_bytes: int, owner: Address, remakeable: bool) -> None:
        self.object_id = object_id
        self.size_bytes = size_bytes
        self.owner = owner
        self.remakeable = remakeable
        self.state = StoredState.CREATED
        self.pins: dict[str, None] = {}
        self.freed = False
        self.copies_gone = 0
        """How many had gone from the disk when this one was last written there."""
        self.request: SpaceRequest | None = None
        """Who is to write it, while memory is being found."""
        self.is_room = False
        """Its writer may keep it and write others there."""
        self.place = 0
        """Where it lies, as the runner counts."""


@dataclass(slots=True, kw_only=True)
class SpaceRequest:
    """Someone who needs room: a process of this node that writes, or a transfer that arrives (`user`)."""

    object_id: ObjectID
    size_bytes: int
    owner: Address
    remakeable: bool
    user: str
    is_early: bool = False
    """For a task that has not begun: nothing that runs waits for it."""
    is_room: bool = False
    """Its user may keep it and write others there."""
    tries: int = 0
    """How often there was room for it and no memory."""


class ObjectStore:
    """See the module."""

    def __init__(
        self, *, out: Outbox, node: NodeID, capacity_bytes: int, config: Config, eviction: EvictionPolicy
    ) -> None:
        self.out = out
        self.node = node
        self.incarnation = 0
        self.capacity_bytes = capacity_bytes
        self.config = config
        self.eviction = eviction
        self.spills: bool = getattr(eviction, "spills", False)
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
        self.waiting: deque[SpaceRequest] = deque()
        self.without_memory: dict[str, SpaceRequest] = {}
        """Requests for which there was room and no memory, and that are tried again when their timer is due."""
        self.joined: dict[ObjectID, deque[SpaceRequest]] = {}
        """Who wants to write an object that somebody else is writing."""
        self.needed_next: Callable[[], Container[ObjectID]] = tuple
        """What is to leave last. The local scheduler says."""
        self.give_way: Callable[[SpaceRequest, int], bool] = lambda request, lacking_bytes: False
        """Give up the room of what is being fetched; whether that makes so many bytes free. The transfers do."""
        self.stands_still: Callable[[ObjectID], object] = lambda object_id: None
        """Told of what is to be fetched and will have to wait for memory. The transfers turn away who waits for it."""
        self.is_held_up: Callable[[], bool] = lambda: False
        """Whether there is less room than there seems, for what is to be fetched does not come. The transfers say."""
        self.room_of: dict[str, int] = {}
        """How many rooms each process keeps, or is about to."""
        self.called_back: dict[str, None] = {}
        """Processes that were asked for what they keep, and have asked for none since."""
        # Worklists that the node machine drains.
        self.granted: deque[tuple[SpaceRequest, bool]] = deque()
        self.denied: deque[tuple[SpaceRequest, ErrorInfo]] = deque()
        self.sealed: deque[tuple[ObjectID, str]] = deque()
        self.abandoned: deque[ObjectID] = deque()
        self.contested: deque[ObjectID] = deque()
        """Somebody is ready to write what is being written, or fetched, already."""

    # ---- Room ------------------------------------------------------------------------------------------------

    def request_space(self, request: SpaceRequest) -> None:
        """Reserve room now, or wait in line for it, or be refused when it can never be had."""
        if self.without_memory:
            self._leave_without_memory(request.object_id)
        if self._is_known(request):
            self._share(request)
            return
        if request.size_bytes > self.capacity_bytes:
            self.denied.append((request, self._full(request, "is larger than the whole store")))
            return
        self.disk_error = ""
        first_early = next((at for at, each in enumerate(self.waiting) if each.is_early), len(self.waiting))
        place = len(self.waiting) if request.is_early else first_early
        if place or not self._reserve(request):
            self.waiting.insert(place, request)
            self.out.add(ArmTimer(timer=_timer(request), delay_ns=self.config.store_wait_ns))

    def hurry(self, object_id: ObjectID) -> None:
        """Somebody who runs waits for an object that stands in line for tasks that have not begun."""
        for request in self.waiting:
            if request.object_id == object_id and request.is_early:
                self.waiting.remove(request)
                self.out.add(CancelTimer(timer=_timer(request)))
                self.request_space(replace(request, is_early=False))
                return
        for request in self.without_memory.values():
            if request.object_id == object_id:
                request.is_early = False  # it is refused the next time

    def _leave_without_memory(self, object_id: ObjectID) -> bool:
        """Do not try again to find memory for an object that is fetched; whether that was to be."""
        timers = [timer for timer, request in self.without_memory.items() if request.object_id == object_id]
        for timer in timers:
            del self.without_memory[timer]
            self.out.add(CancelTimer(timer=timer))
        return bool(timers)

    def leave_line(self, object_id: ObjectID) -> bool:
        """Nobody waits any more for an object that stands in line to be fetched; whether it did."""
        for request in self.waiting:
            if request.object_id == object_id and request.is_early:
                self.waiting.remove(request)
                self.out.add(CancelTimer(timer=_timer(request)))
                self.serve_waiting()
                return True
        return self._leave_without_memory(object_id)

    def keep_what_could_leave(self, users: Container[str]) -> set[str]:
        """Those of the users who pin something that could leave if none of them did."""
        return {
            pin
            for stored in self.objects.values()
            if stored.state is StoredState.SEALED and (stored.remakeable or stored.freed or self.spills)
            if all(pin in users for pin in stored.pins)
            for pin in stored.pins
        }

    def _is_known(self, request: SpaceRequest) -> bool:
        if request.user == RESTORING:  # it may have been freed while it waited, or restored for an earlier request
            return request.object_id not in self.spilled
        return request.object_id in self.objects or request.object_id in self.spilled

    def _share(self, request: SpaceRequest) -> None:
        """The object is here already, or is being written by somebody else: then wait for that."""
        if request.user == RESTORING:
            return
        stored = self.objects.get(request.object_id)
        if stored is None:
            self.granted.append((request, True))
            return
        if stored.state is StoredState.CREATED:
            self.joined.setdefault(request.object_id, deque()).append(request)
            self.contested.append(request.object_id)
            return
        if stored.freed:  # made again before the last reader of the old copy has gone
            stored.freed = False
            self._announce(stored)
        self.granted.append((request, True))

    def _written(self, object_id: ObjectID) -> None:
        """The object has been written, or will not be: those who waited for that have it, or write it themselves."""
        for request in self.joined.pop(object_id, ()):
            self.request_space(request)

    def _announce(self, stored: StoredObject, turn: int = 0) -> None:
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

    def _reserve(self, request: SpaceRequest) -> bool:
        excess = self.used_bytes + request.size_bytes - self.capacity_bytes
        if len(self.objects) >= self.config.store_objects_max:
            excess = max(excess, 1)
        if excess > 0:
            self.call_back()
            if not self._make_room(excess):
                return False
        stored = self.spilled.pop(request.object_id, None) if request.user == RESTORING else None
        if stored is None:
            stored = StoredObject(request.object_id, request.size_bytes, request.owner, request.remakeable)
        else:
            stored.state = STORED.check(stored.state, StoredState.RESTORING, request.object_id)
        stored.pins[request.user] = None
        stored.request = request
        if request.is_room:
            stored.is_room = True
            self.room_of[request.user] = self.room_of.get(request.user, 0) + 1
            self.called_back.pop(request.user, None)
        self.objects[request.object_id] = stored
        self.used_bytes += request.size_bytes
        ensure(self.used_bytes <= self.capacity_bytes, "store of {} holds more than it can", self.node)
        self.out.add(ReserveSpace(object_id=request.object_id, size_bytes=request.size_bytes))
        return True

    def call_back(self) -> None:
        """Have everybody give back what he keeps, unless he knows already."""
        for user in self.room_of:
            if user not in self.called_back:
                self.called_back[user] = None
                self.out.send(Address(user), RoomWanted())

    def on_reserved(self, object_id: ObjectID, place: int = 0) -> None:
        """There is memory: the writer may write."""
        stored = self.objects.get(object_id)
        if stored is None or stored.request is None:
            return
        stored.place = place
        if stored.state is StoredState.RESTORING:
            self.out.add(RestoreObject(object_id=object_id, size_bytes=stored.size_bytes))
        else:
            self.granted.append((stored.request, False))
        stored.request = None

    def place_of(self, object_id: ObjectID) -> int:
        """Where an object lies, as the runner counts."""
        stored = self.objects.get(object_id)
        return 0 if stored is None else stored.place

    def on_reserve_failed(self, object_id: ObjectID, reason: str) -> None:
        """There is room and no memory: evict more and ask again, or refuse."""
        stored = self.objects.get(object_id)
        if stored is None or stored.request is None:
            return
        evictable = dict(self._evictable())
        victims = self.eviction.choose(evictable.items(), stored.size_bytes) or list(evictable)
        if victims:
            for victim in victims:
                self._evict(self.objects[victim])
            self.out.add(ReserveSpace(object_id=object_id, size_bytes=stored.size_bytes))
            return
        request, stored.request = stored.request, None
        self._remove(stored)
        request.tries += 1
        if request.is_early and request.tries < _MEMORY_TRIES:
            timer = _MEMORY_TIMER + _timer(request)
            self.without_memory[timer] = request
            self.out.add(ArmTimer(timer=timer, delay_ns=self.config.store_wait_ns // _MEMORY_TRIES))
            self.stands_still(object_id)
        else:
            self.denied.append((request, self._full(request, f"found no memory: {reason}")))
        if stored.state is StoredState.RESTORING:
            del stored.pins[RESTORING]
            self._is_spilled(stored)
        self._written(object_id)
        self.serve_waiting()

    def _make_room(self, excess: int) -> bool:
        """Evict so many bytes now; False when that cannot be, or when they are on their way to the disk."""
        if self.spills and not self.disk_error:
            leaving = sum(
                stored.size_bytes
                for stored in self.objects.values()
                if stored.state is StoredState.SPILLING and not stored.pins
            )
            if excess <= leaving:
                return False
            chosen = self.eviction.choose(self._spillable(), excess - leaving)
            if chosen is not None and self._spill([self.objects[object_id] for object_id in chosen]):
                return False
        victims = self.eviction.choose(self._evictable(), excess)
        if victims is None:
            return False
        for victim in victims:
            self._evict(self.objects[victim])
        return True

    def _evictable(self) -> Iterator[tuple[ObjectID, int]]:
        return self._needed_last(
            stored
            for stored in self.objects.values()
            if stored.state is StoredState.SEALED and not stored.pins and stored.remakeable
        )

    def _needed_last(self, candidates: Iterable[StoredObject]) -> Iterator[tuple[ObjectID, int]]:
        """What can leave, in the order in which it should."""
        needed = self.needed_next()
        kept: list[StoredObject] = []
        for stored in candidates:
            if stored.object_id in needed:
                kept.append(stored)
            else:
                yield stored.object_id, stored.size_bytes
        for stored in kept:
            yield stored.object_id, stored.size_bytes

    def _evict(self, stored: StoredObject) -> None:
        ensure(not stored.pins, "object {} is evicted and pinned by {}", stored.object_id, list(stored.pins))
        self._remove(stored)
        self.out.add(EvictObject(object_id=stored.object_id))
        self._announce_loss(stored)

    def _announce_loss(self, stored: StoredObject) -> None:
        removed = ObjectRemoved(
            object_id=stored.object_id,
            node=self.node,
            incarnation=self.incarnation,
            is_held_up=self.is_held_up(),
        )
        self.out.send(HEAD, removed)

    def _remove(self, stored: StoredObject) -> None:
        del self.objects[stored.object_id]
        self.used_bytes -= stored.size_bytes
        if stored.is_room:
            self._is_no_room(stored)

    def _is_no_room(self, stored: StoredObject) -> None:
        """Its keeper keeps it no more."""
        stored.is_room = False
        [user] = stored.pins
        self.room_of[user] -= 1
        if not self.room_of[user]:
            del self.room_of[user]
            self.called_back.pop(user, None)

    def _delete(self, stored: StoredObject) -> None:
        self._remove(stored)
        self.out.add(DeleteObject(object_id=stored.object_id))
        self._written(stored.object_id)
        self.serve_waiting()

    def serve_waiting(self) -> None:
        """Room may have become free: serve those in line, in order."""
        while self.waiting:
            request = self.waiting[0]
            if self._is_known(request):
                self._share(request)
            elif not self._reserve(request):
                return
            self.waiting.popleft()
            self.out.add(CancelTimer(timer=_timer(request)))

    def on_space_timer(self, timer: str) -> None:
        """Someone in line has waited for long enough: what is on its way here gives way, or he is refused."""
        if timer.startswith(_MEMORY_TIMER):
            self.request_space(self.without_memory.pop(timer))
            return
        for request in self.waiting:
            if _timer(request) == timer:
                excess = self.used_bytes + request.size_bytes - self.capacity_bytes
                if self.give_way(request, excess - sum(size_bytes for _, size_bytes in self._evictable())):
                    if request in self.waiting:
                        self.out.add(ArmTimer(timer=timer, delay_ns=self.config.store_wait_ns))
                    return
                self.waiting.remove(request)
                why = f"found no room within {self.config.store_wait_ns / 1e9:g} s"
                if self.disk_error:
                    why += f", and none on disk ({self.disk_error}),"
                self.denied.append((request, self._full(request, why)))
                break
        self.serve_waiting()

    def _full(self, request: SpaceRequest, why: str) -> ErrorInfo:
        largest = sorted(self.objects.values(), key=lambda stored: (-stored.size_bytes, stored.object_id))
        held = ", ".join(
            f"{short(stored.object_id)} ({stored.size_bytes:,} bytes, owner {stored.owner}, "
            f"{'used by ' + ' and '.join(stored.pins) if stored.pins else 'cannot be made again'})"
            for stored in largest[: self.config.store_holders_named]
            if stored.pins or not stored.remakeable
        )
        return ErrorInfo(
            kind=ErrorKind.STORE_FULL,
            message=(
                f"Object {short(request.object_id)} of {request.size_bytes:,} bytes {why} on {self.node}: "
                f"{self.used_bytes:,} of {self.capacity_bytes:,} bytes are in use{self._on_disk()}. "
                f"Largest holders: {held or 'none'}. "
                f"Drop references or arrays that are not needed, or set object_store_memory= higher."
            ),
        )

    def _on_disk(self) -> str:
        if not self.spills:
            return ""
        return f", and {self.spilled_bytes:,} of {self.config.spill_bytes_max:,} on disk"

    # ---- Disk ------------------------------------------------------------------------------------------------

    def _spillable(self) -> Iterator[tuple[ObjectID, int]]:
        return self._needed_last(
            stored for stored in self.objects.values() if stored.state is StoredState.SEALED and not stored.pins
        )

    def _spill(self, victims: list[StoredObject]) -> bool:
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

    def on_spilled(self, object_id: ObjectID) -> None:
        """The copy on disk is complete: the memory goes, unless the object is in use again."""
        stored = self.objects[object_id]
        if stored.pins or stored.freed:
            self._delete_copy(stored)
            self._back_in_memory(stored)
        else:
            self._remove(stored)
            self.out.add(UnloadObject(object_id=object_id))
            self._is_spilled(stored)
        for request in self.waiting:  # the disk is at work: whoever waits for room does not wait in vain
            self.out.add(ArmTimer(timer=_timer(request), delay_ns=self.config.store_wait_ns))
        self.serve_waiting()

    def _is_spilled(self, stored: StoredObject) -> None:
        stored.state = STORED.check(stored.state, StoredState.SPILLED, stored.object_id)
        self.spilled[stored.object_id] = stored
        if stored.freed:
            stored.freed = False
            self._delete_spilled(stored)

    def on_spill_failed(self, object_id: ObjectID, reason: str) -> None:
        """The object stays in memory; whoever waits for room has what can be evicted, or waits until something goes."""
        stored = self.objects[object_id]
        if stored.copies_gone == self.copies_gone:  # else the disk may have room now
            self.disk_error = reason
        self.spilled_bytes -= stored.size_bytes
        self._back_in_memory(stored)
        self.serve_waiting()

    def _back_in_memory(self, stored: StoredObject) -> None:
        stored.state = STORED.check(stored.state, StoredState.SEALED, stored.object_id)
        if stored.freed and not stored.pins:
            self._delete(stored)

    def _delete_copy(self, stored: StoredObject) -> None:
        self.spilled_bytes -= stored.size_bytes
        self.copies_gone += 1
        self.disk_error = ""
        self.out.add(DeleteSpilled(object_id=stored.object_id))

    def restore(self, object_id: ObjectID, *, is_early: bool = False) -> None:
        """Somebody wants a spilled object: bring it back into memory."""
        if any(request.object_id == object_id and request.user == RESTORING for request in self.waiting):
            return
        if any(request.object_id == object_id for request in self.without_memory.values()):
            return
        stored = self.spilled[object_id]
        self.request_space(
            SpaceRequest(
                object_id=object_id,
                size_bytes=stored.size_bytes,
                owner=stored.owner,
                remakeable=stored.remakeable,
                user=RESTORING,
                is_early=is_early,
            )
        )

    def on_restored(self, object_id: ObjectID) -> None:
        """The bytes are in memory again; those who want them pin them before our own pin ends."""
        stored = self.objects[object_id]
        stored.state = STORED.check(stored.state, StoredState.SEALED, object_id)
        self._delete_copy(stored)
        self.sealed.append((object_id, RESTORING))
        self._written(object_id)
        self.serve_waiting()

    def on_restore_failed(self, object_id: ObjectID) -> None:
        """The disk has lost it: this copy is gone, and those who want it need another."""
        stored = self.objects[object_id]
        self._delete_copy(stored)
        if not stored.freed:
            self._announce_loss(stored)
        self._delete(stored)
        self.abandoned.append(object_id)

    def _delete_spilled(self, stored: StoredObject) -> None:
        del self.spilled[stored.object_id]
        self._delete_copy(stored)

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
            self._is_no_room(stored)
        stored.state = STORED.check(stored.state, StoredState.SEALED, object_id)
        self._announce(stored, turn)
        self.sealed.append((object_id, user))
        self._written(object_id)

    def take_over(self, room_id: ObjectID, object_id: ObjectID, size_bytes: int, *, user: str) -> bool:
        """An object lies complete in the room that a user has kept: it is an object of its own from now on, pinned for
        the user until those who wait for it have it. False when he keeps no such room."""
        stored = self.objects.get(room_id)
        if stored is None or not stored.is_room or stored.request is not None or user not in stored.pins:
            return False
        self._is_no_room(stored)
        if object_id != room_id:
            del self.objects[room_id]
            stored.object_id = object_id
            self.objects[object_id] = stored
            self.used_bytes -= stored.size_bytes - size_bytes
            stored.size_bytes = size_bytes
        self.out.add(RenameObject(room_id=room_id, object_id=object_id, size_bytes=size_bytes))
        stored.state = STORED.check(stored.state, StoredState.SEALED, object_id)
        return True

    def announce(self, object_id: ObjectID, user: str) -> None:
        """Tell of an object that was taken over."""
        self._announce(self.objects[object_id])
        self.sealed.append((object_id, user))
        self._written(object_id)
        self.serve_waiting()

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
            self._delete(self.objects[object_id])

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

    def pin(self, object_id: ObjectID, user: str) -> StoredObject:
        """Keep a sealed object until the user releases it; it counts as used now."""
        stored = self.objects.pop(object_id)
        self.objects[object_id] = stored
        stored.pins[user] = None
        return stored

    def keep(self, object_id: ObjectID) -> None:
        """From now on this copy is needed: nothing can make the object again."""
        stored = self.objects.get(object_id)
        if stored is not None:
            stored.remakeable = False

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
            self._delete(stored)
        elif self.waiting:
            self.serve_waiting()

    def free(self, object_id: ObjectID) -> None:
        """Nobody wants the object: it goes now, or with its last pin. One that is being written is another one, made
        again, of which the head will hear."""
        stored = self.spilled.get(object_id)
        if stored is not None:
            self._announce_loss(stored)
            self._delete_spilled(stored)
            self.abandoned.append(object_id)  # somebody may wait for it to be restored
            self.serve_waiting()
            return
        stored = self.objects.get(object_id)
        if stored is None or stored.state is StoredState.CREATED or stored.freed:
            return
        stored.freed = True
        self._announce_loss(stored)
        if not stored.pins and stored.state is not StoredState.SPILLING:
            self._delete(stored)

    def release_all(self, user: str, *, but_rooms: bool = False) -> None:
        """A user died: its pins and unfinished writes go, and its place in the line; `but_rooms`, not the room that it
        kept, where others may read."""
        for request in [request for request in self.waiting if request.user == user]:
            self.waiting.remove(request)
            self.out.add(CancelTimer(timer=_timer(request)))
        for object_id, requests in list(self.joined.items()):
            self.joined[object_id] = deque(request for request in requests if request.user != user)
        for stored in [stored for stored in self.objects.values() if user in stored.pins]:
            if stored.is_room and but_rooms:
                continue
            if stored.state is StoredState.CREATED:
                self._delete(stored)
                self.abandoned.append(stored.object_id)
            else:
                self.unpin(stored.object_id, user)

    # ---- Invariants ------------------------------------------------------------------------------------------

    def check_invariants(self) -> None:
        total = sum(stored.size_bytes for stored in self.objects.values())
        ensure(total == self.used_bytes, "store of {}: {} bytes counted, {} held", self.node, self.used_bytes, total)
        ensure(total <= self.capacity_bytes, "store of {} holds {} of {}", self.node, total, self.capacity_bytes)
        rooms = [user for stored in self.objects.values() if stored.is_room for user in stored.pins]
        ensure(
            self.room_of == {user: rooms.count(user) for user in rooms},
            "store of {}: the rooms of users are not {}",
            self.node,
            self.room_of,
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
        on_disk += [stored for stored in self.objects.values() if stored.state in _COPIED]
        total = sum(stored.size_bytes for stored in on_disk)
        ensure(
            total == self.spilled_bytes, "store of {}: {} bytes on disk, not {}", self.node, self.spilled_bytes, total
        )
        ensure(
            total <= self.config.spill_bytes_max,
            "store of {} has spilled {} of {}",
            self.node,
            total,
            self.config.spill_bytes_max,
        )


def _timer(request: SpaceRequest) -> str:
    return f"space:{request.object_id.hex()}:{request.user}"
