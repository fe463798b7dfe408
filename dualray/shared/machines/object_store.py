"""The accounting of one node's object store: what is in it, who uses it, what leaves when room is needed.

Theory of operation. An object is CREATED when room has been reserved for it and SEALED when its bytes are complete;
only sealed objects are read, sent and reported to the head. Each user (a process, a lease, a transfer) pins what it
uses, once. When room is needed, the eviction policy chooses among sealed objects that nobody pins and that can be made
again; what has to wait for room waits in line, for at most `store_wait_ns`, and is then refused with the names of the
largest holders. An object that its owner frees goes at once, or with its last pin.

Relies on: users release what they pinned, or die, and are then released by name.
Guarantees: bytes in use equal the sum of the objects and never exceed the capacity; no pinned object leaves.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from dualray.shared.machines.base import Outbox, ensure
from dualray.shared.model.commands import ArmTimer, CancelTimer, DeleteObject, EvictObject
from dualray.shared.model.config import Config
from dualray.shared.model.errors import ErrorInfo, ErrorKind
from dualray.shared.model.events import ObjectAdded, ObjectRemoved
from dualray.shared.model.ids import HEAD, Address, NodeID, ObjectID, short
from dualray.shared.model.states import STORED, StoredState
from dualray.shared.policies.lru import EvictionPolicy


class StoredObject:
    """One object in this store."""

    __slots__ = ("freed", "object_id", "owner", "pins", "remakeable", "size_bytes", "state")

    def __init__(self, object_id: ObjectID, size_bytes: int, owner: Address, remakeable: bool) -> None:
        self.object_id = object_id
        self.size_bytes = size_bytes
        self.owner = owner
        self.remakeable = remakeable
        self.state = StoredState.CREATED
        self.pins: dict[str, None] = {}
        self.freed = False


@dataclass(slots=True, kw_only=True)
class SpaceRequest:
    """Someone who needs room: a process of this node that writes, or a transfer that arrives (`user`)."""

    object_id: ObjectID
    size_bytes: int
    owner: Address
    remakeable: bool
    user: str


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
        self.objects: dict[ObjectID, StoredObject] = {}
        """In order of last use, oldest first."""
        self.used_bytes = 0
        self.waiting: deque[SpaceRequest] = deque()
        self.joined: dict[ObjectID, deque[SpaceRequest]] = {}
        """Who wants to write an object that somebody else is writing."""
        # Worklists that the node machine drains.
        self.granted: deque[tuple[SpaceRequest, bool]] = deque()
        self.denied: deque[tuple[SpaceRequest, ErrorInfo]] = deque()
        self.sealed: deque[tuple[ObjectID, str]] = deque()
        self.abandoned: deque[ObjectID] = deque()

    # ---- Room ------------------------------------------------------------------------------------------------

    def request_space(self, request: SpaceRequest) -> None:
        """Reserve room now, or wait in line for it, or be refused when it can never be had."""
        if request.object_id in self.objects:
            self._share(request)
            return
        if request.size_bytes > self.capacity_bytes:
            self.denied.append((request, self._full(request, "is larger than the whole store")))
            return
        if self.waiting or not self._reserve(request):
            self.waiting.append(request)
            self.out.add(ArmTimer(timer=_timer(request), delay_ns=self.config.store_wait_ns))

    def _share(self, request: SpaceRequest) -> None:
        """The object is here already, or is being written by somebody else: then wait for that."""
        stored = self.objects[request.object_id]
        if stored.state is StoredState.CREATED:
            self.joined.setdefault(request.object_id, deque()).append(request)
            return
        if stored.freed:  # made again before the last reader of the old copy has gone
            stored.freed = False
            self._announce(stored)
        self.granted.append((request, True))

    def _written(self, object_id: ObjectID) -> None:
        """The object has been written, or will not be: those who waited for that have it, or write it themselves."""
        for request in self.joined.pop(object_id, ()):
            self.request_space(request)

    def _announce(self, stored: StoredObject) -> None:
        self.out.send(
            HEAD,
            ObjectAdded(
                object_id=stored.object_id,
                size_bytes=stored.size_bytes,
                owner=stored.owner,
                node=self.node,
                incarnation=self.incarnation,
            ),
        )

    def _reserve(self, request: SpaceRequest) -> bool:
        excess = self.used_bytes + request.size_bytes - self.capacity_bytes
        if excess > 0:
            victims = self.eviction.choose(self._evictable(), excess)
            if victims is None:
                return False
            for victim in victims:
                self._evict(self.objects[victim])
        stored = StoredObject(request.object_id, request.size_bytes, request.owner, request.remakeable)
        stored.pins[request.user] = None
        self.objects[request.object_id] = stored
        self.used_bytes += request.size_bytes
        ensure(self.used_bytes <= self.capacity_bytes, "store of {} holds more than it can", self.node)
        self.granted.append((request, False))
        return True

    def _evictable(self) -> Iterator[tuple[ObjectID, int]]:
        for stored in self.objects.values():
            if stored.state is StoredState.SEALED and not stored.pins and stored.remakeable:
                yield stored.object_id, stored.size_bytes

    def _evict(self, stored: StoredObject) -> None:
        ensure(not stored.pins, "object {} is evicted and pinned by {}", short(stored.object_id), list(stored.pins))
        self._remove(stored)
        self.out.add(EvictObject(object_id=stored.object_id))
        self._announce_loss(stored)

    def _announce_loss(self, stored: StoredObject) -> None:
        self.out.send(HEAD, ObjectRemoved(object_id=stored.object_id, node=self.node, incarnation=self.incarnation))

    def _remove(self, stored: StoredObject) -> None:
        del self.objects[stored.object_id]
        self.used_bytes -= stored.size_bytes

    def _delete(self, stored: StoredObject) -> None:
        self._remove(stored)
        self.out.add(DeleteObject(object_id=stored.object_id))
        self._written(stored.object_id)
        self.serve_waiting()

    def serve_waiting(self) -> None:
        """Room may have become free: serve those in line, in order."""
        while self.waiting:
            request = self.waiting[0]
            if request.object_id in self.objects:
                self._share(request)
            elif not self._reserve(request):
                return
            self.waiting.popleft()
            self.out.add(CancelTimer(timer=_timer(request)))

    def on_space_timer(self, timer: str) -> None:
        """Someone in line has waited for long enough."""
        for request in self.waiting:
            if _timer(request) == timer:
                self.waiting.remove(request)
                wait_s = self.config.store_wait_ns / 1e9
                self.denied.append((request, self._full(request, f"found no room within {wait_s:g} s")))
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
                f"{self.used_bytes:,} of {self.capacity_bytes:,} bytes are in use. Largest holders: {held or 'none'}. "
                f"Drop references or arrays that are not needed, or set object_store_memory= higher."
            ),
        )

    # ---- Life of an object -----------------------------------------------------------------------------------

    def seal(self, object_id: ObjectID, user: str) -> None:
        """The bytes are complete; the writer's pin ends when those who wait for the object have theirs."""
        stored = self.objects.get(object_id)
        if stored is None or stored.state is StoredState.SEALED or user not in stored.pins:
            return
        stored.state = STORED.check(stored.state, StoredState.SEALED, object_id)
        self._announce(stored)
        self.sealed.append((object_id, user))
        self._written(object_id)

    def abort(self, object_id: ObjectID, user: str) -> None:
        """The writer will not write: give the room back."""
        stored = self.objects.get(object_id)
        if stored is not None and stored.state is StoredState.CREATED and user in stored.pins:
            self._delete(stored)

    def is_readable(self, object_id: ObjectID) -> bool:
        """Whether the bytes are here, though perhaps only until their last reader has gone."""
        stored = self.objects.get(object_id)
        return stored is not None and stored.state is StoredState.SEALED

    def is_sealed(self, object_id: ObjectID) -> bool:
        stored = self.objects.get(object_id)
        return stored is not None and stored.state is StoredState.SEALED and not stored.freed

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
        """The user needs the object no more."""
        stored = self.objects.get(object_id)
        if stored is None or user not in stored.pins:
            return
        del stored.pins[user]
        if stored.pins:
            return
        if stored.freed:
            self._delete(stored)
        elif self.waiting:
            self.serve_waiting()

    def free(self, object_id: ObjectID) -> None:
        """Nobody wants the object: it goes now, or with its last pin. One that is being written is another one, made
        again, of which the head will hear."""
        stored = self.objects.get(object_id)
        if stored is None or stored.state is StoredState.CREATED or stored.freed:
            return
        stored.freed = True
        self._announce_loss(stored)
        if not stored.pins:
            self._delete(stored)

    def release_all(self, user: str) -> None:
        """A user died: its pins and unfinished writes go, and its place in the line."""
        for request in [request for request in self.waiting if request.user == user]:
            self.waiting.remove(request)
            self.out.add(CancelTimer(timer=_timer(request)))
        for object_id, requests in list(self.joined.items()):
            self.joined[object_id] = deque(request for request in requests if request.user != user)
        for stored in [stored for stored in self.objects.values() if user in stored.pins]:
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
        for object_id, stored in self.objects.items():
            ensure(
                stored.state is StoredState.SEALED or bool(stored.pins),
                "object {} is being written by nobody",
                short(object_id),
            )
            ensure(not stored.freed or bool(stored.pins), "object {} is freed and still there", short(object_id))


def _timer(request: SpaceRequest) -> str:
    return f"space:{request.object_id.hex()}:{request.user}"
