"""Space grants the room of one node's object store, in order, and makes room by evicting or spilling what is there.

Theory of operation. Room is counted for a request first; its runner then finds memory for it (`ReserveSpace`), and its
writer hears that he may write. Memory can fail though there is room, when others use the same machine: then what can be
evicted is, and the runner is asked again, until there is memory or nothing is left to evict. Then the request is
refused; but what is fetched for tasks that have not begun asks again, up to `_MEMORY_TRIES` times within
`store_wait_ns`, for those would at once, and nobody tells when others give memory back.

When room is needed, the eviction policy chooses among sealed objects that nobody pins and that can be made again. What
has to wait for room waits in line, for at most `store_wait_ns`. Then pulls give way, if that helps (`give_way`: they
may stand still behind a partition); else it is refused with the names of the largest holders. What is fetched for tasks
that have not begun (`is_early`) stands behind everything else: who runs needs room in order to end. What the oldest
task needs that waits for arguments (`needed_next`) leaves after everything else: else each argument that is made again
may cost it another one, for ever.

With a policy that spills, what has to leave is copied to disk first, unless the policy has it dropped, and the request
that needs the room waits in line meanwhile. Where the disk has no room, what can be made again is evicted instead; only
a request for which that is not enough waits, and is refused in the end.

A store that is used beyond `garbage_percent` asks the owners of its objects to have Python collect garbage: references
that wait for that may be all that keeps the objects (owner/garbage.py). It asks once in `garbage_ns` at most.

Whenever the store has to make room, it calls back what processes keep (object_store.py), from whoever keeps some, once.

Relies on: object_store.py says when room may have become free.
Guarantees: bytes in use never exceed the capacity; no pinned object leaves; no object leaves that cannot be made again
and is not on disk; each request is granted, refused, or in line.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import replace

from dualray.shared.machines.base import Outbox, ensure
from dualray.shared.machines.node.contents import Contents
from dualray.shared.machines.node.stored import RESTORING, SpaceRequest, StoredObject, timer_of
from dualray.shared.model.commands import (
    ArmTimer,
    CancelTimer,
    DeleteObject,
    EvictObject,
    ReserveSpace,
    RestoreObject,
    UnloadObject,
)
from dualray.shared.model.config import Config
from dualray.shared.model.errors import ErrorInfo, ErrorKind
from dualray.shared.model.events import CollectionWanted, RoomWanted
from dualray.shared.model.ids import Address, NodeID, ObjectID, short
from dualray.shared.model.states import STORED, StoredState
from dualray.shared.policies.eviction.policy import EvictionPolicy, Leaving

_MEMORY_TRIES = 10


def _never(leaving: Leaving) -> bool:
    return False


_MEMORY_TIMER = "memory:"
_GARBAGE_TIMER = "garbage"


class Space:
    """See the module."""

    def __init__(
        self,
        *,
        out: Outbox,
        node: NodeID,
        capacity_bytes: int,
        config: Config,
        eviction: EvictionPolicy,
        contents: Contents,
    ) -> None:
        self.out = out
        self.node = node
        self.capacity_bytes = capacity_bytes
        self.config = config
        self.eviction = eviction
        self._nearly_full_bytes = capacity_bytes * config.garbage_percent // 100
        self._ask_again_ns = 0
        self._asks_at_timer = False
        self.spills: bool = getattr(eviction, "spills", False)
        self._drops: Callable[[Leaving], bool] = getattr(eviction, "drops", _never)
        self.contents = contents
        self.objects = contents.objects
        self.spilled = contents.spilled
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
        self.room_of: dict[str, int] = {}
        """How many rooms each process keeps, or is about to."""
        self.called_back: dict[str, None] = {}
        """Processes that were asked for what they keep, and have asked for none since."""
        # Worklists that the node machine drains.
        self.granted: deque[tuple[SpaceRequest, bool]] = deque()
        self.denied: deque[tuple[SpaceRequest, ErrorInfo]] = deque()
        self.contested: deque[ObjectID] = deque()
        """Somebody is ready to write what is being written, or fetched, already."""

    # ---- Requests --------------------------------------------------------------------------------------------

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
        self.contents.disk_error = ""
        first_early = next((at for at, each in enumerate(self.waiting) if each.is_early), len(self.waiting))
        place = len(self.waiting) if request.is_early else first_early
        if place or not self._reserve(request):
            self.waiting.insert(place, request)
            self.out.add(ArmTimer(timer=timer_of(request), delay_ns=self.config.store_wait_ns))
            if not self._asks_at_timer:
                self._ask_later()

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
            self.contents.announce(stored)
        self.granted.append((request, True))

    def _reserve(self, request: SpaceRequest) -> bool:
        wanted_bytes = self.contents.used_bytes + request.size_bytes
        if wanted_bytes > self._nearly_full_bytes and self.out.now_ns >= self._ask_again_ns:
            self._have_garbage_collected()
        excess = wanted_bytes - self.capacity_bytes
        if len(self.objects) >= self.config.store_objects_max:
            excess = max(excess, 1)
        if excess > 0:
            self.call_back()
            if not self._make_room(excess):
                return False
        stored = self.spilled.pop(request.object_id, None) if request.user == RESTORING else None
        if stored is None:
            stored = StoredObject(request)
        else:
            stored.state = STORED.check(stored.state, StoredState.RESTORING, request.object_id)
            stored.request = request
        stored.pins[request.user] = None
        if request.is_room:
            stored.is_room = True
            self.room_of[request.user] = self.room_of.get(request.user, 0) + 1
            self.called_back.pop(request.user, None)
        self.objects[request.object_id] = stored
        self.contents.used_bytes += request.size_bytes
        ensure(self.contents.used_bytes <= self.capacity_bytes, "store of {} holds more than it can", self.node)
        self.out.add(ReserveSpace(object_id=request.object_id, size_bytes=request.size_bytes))
        return True

    def hurry(self, object_id: ObjectID) -> None:
        """Somebody who runs waits for an object that stands in line for tasks that have not begun."""
        for request in self.waiting:
            if request.object_id == object_id and request.is_early:
                self.waiting.remove(request)
                self.out.add(CancelTimer(timer=timer_of(request)))
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
                self.out.add(CancelTimer(timer=timer_of(request)))
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

    def _have_garbage_collected(self) -> None:
        """Ask those who own what is here: they and their borrowers may hold references that nothing uses."""
        owners = [stored.owner for stored in self.objects.values()]
        if owners:
            self._ask_again_ns = self.out.now_ns + self.config.garbage_ns
        for owner in dict.fromkeys(owners):
            self.out.send(owner, CollectionWanted())

    def _ask_later(self) -> None:
        """Somebody waits for room, and the owners were asked not long ago."""
        self._asks_at_timer = True
        self.out.add(ArmTimer(timer=_GARBAGE_TIMER, delay_ns=max(self._ask_again_ns - self.out.now_ns, 0)))

    def call_back(self) -> None:
        """Have everybody give back what he keeps, unless he knows already."""
        for user in self.room_of:
            if user not in self.called_back:
                self.called_back[user] = None
                self.out.send(Address(user), RoomWanted())

    # ---- Making room -----------------------------------------------------------------------------------------

    def _make_room(self, excess: int) -> bool:
        """Evict so many bytes now; False when that cannot be, or when they are on their way to the disk."""
        used_bytes = self.contents.used_bytes
        if self.spills and not self.contents.disk_error:
            leaving = sum(
                stored.size_bytes
                for stored in self.objects.values()
                if stored.state is StoredState.SPILLING and not stored.pins
            )
            if excess <= leaving:
                return False
            chosen = self.eviction.choose(self._spillable(), excess - leaving)
            if chosen is not None and self._drop_or_spill([self.objects[object_id] for object_id in chosen]):
                return self.contents.used_bytes + excess <= used_bytes
        victims = self.eviction.choose(self._evictable(), excess)
        if victims is None:
            return False
        for victim in victims:
            self._evict(self.objects[victim])
        return True

    def _drop_or_spill(self, victims: list[StoredObject]) -> bool:
        """Drop those that the policy wants dropped, and begin to copy the others to disk; False when there is no room
        for them there, and then nothing has been done."""
        dropped, spilled = list[StoredObject](), list[StoredObject]()
        for stored in victims:
            if stored.has_copy:
                dropped.append(stored)
                continue
            leaving = Leaving(
                object_id=stored.object_id,
                size_bytes=stored.size_bytes,
                is_copy=stored.is_copy,
                is_remakeable=stored.remakeable,
                remake_ns=stored.remake_ns,
                disk_ns=self.contents.disk_ns(stored.size_bytes),
            )
            (dropped if self._drops(leaving) else spilled).append(stored)
        if not self.contents.begin_to_spill(spilled, dropped):
            return False
        for stored in dropped:
            self._evict(stored)
        return True

    def _evictable(self) -> Iterator[tuple[ObjectID, int]]:
        return self._needed_last(
            stored
            for stored in self.objects.values()
            if stored.state is StoredState.SEALED and not stored.pins and (stored.remakeable or stored.has_copy)
        )

    def _spillable(self) -> Iterator[tuple[ObjectID, int]]:
        return self._needed_last(
            stored for stored in self.objects.values() if stored.state is StoredState.SEALED and not stored.pins
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
        self.remove(stored)
        if stored.has_copy:
            stored.has_copy = False
            self.out.add(UnloadObject(object_id=stored.object_id))
            self.contents.keep_on_disk(stored)
            return
        self.out.add(EvictObject(object_id=stored.object_id))
        self.contents.announce_loss(stored, is_eviction=True)

    # ---- Memory ----------------------------------------------------------------------------------------------

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
        self.remove(stored)
        request.tries += 1
        if request.is_early and request.tries < _MEMORY_TRIES:
            timer = _MEMORY_TIMER + timer_of(request)
            self.without_memory[timer] = request
            self.out.add(ArmTimer(timer=timer, delay_ns=self.config.store_wait_ns // _MEMORY_TRIES))
            self.stands_still(object_id)
        else:
            self.denied.append((request, self._full(request, f"found no memory: {reason}")))
        if stored.state is StoredState.RESTORING:
            del stored.pins[RESTORING]
            self.contents.keep_on_disk(stored)
        self.written(object_id)
        self.serve_waiting()

    # ---- Room that is free again -----------------------------------------------------------------------------

    def remove(self, stored: StoredObject) -> None:
        """An object leaves memory."""
        del self.objects[stored.object_id]
        self.contents.used_bytes -= stored.size_bytes
        if stored.is_room:
            self.end_room(stored)

    def end_room(self, stored: StoredObject) -> None:
        """Its keeper keeps it no more."""
        stored.is_room = False
        [user] = stored.pins
        self.room_of[user] -= 1
        if not self.room_of[user]:
            del self.room_of[user]
            self.called_back.pop(user, None)

    def delete(self, stored: StoredObject) -> None:
        """Nobody wants an object, or it will not be written: its room is free."""
        self.remove(stored)
        if stored.has_copy:
            stored.has_copy = False
            self.contents.delete_copy(stored)
        self.out.add(DeleteObject(object_id=stored.object_id))
        self.written(stored.object_id)
        self.serve_waiting()

    def written(self, object_id: ObjectID) -> None:
        """The object has been written, or will not be: those who waited for that have it, or write it themselves."""
        for request in self.joined.pop(object_id, ()):
            self.request_space(request)

    def serve_waiting(self) -> None:
        """Room may have become free: serve those in line, in order."""
        while self.waiting:
            request = self.waiting[0]
            if self._is_known(request):
                self._share(request)
            elif not self._reserve(request):
                return
            self.waiting.popleft()
            self.out.add(CancelTimer(timer=timer_of(request)))

    def on_space_timer(self, timer: str) -> None:
        """Someone in line has waited for long enough: what is on its way here gives way, or he is refused."""
        if timer == _GARBAGE_TIMER:
            self._asks_at_timer = False
            if self.waiting:
                self._have_garbage_collected()
                self._ask_later()
            return
        if timer.startswith(_MEMORY_TIMER):
            self.request_space(self.without_memory.pop(timer))
            return
        for request in self.waiting:
            if timer_of(request) == timer:
                excess = self.contents.used_bytes + request.size_bytes - self.capacity_bytes
                if self.give_way(request, excess - sum(size_bytes for _, size_bytes in self._evictable())):
                    if request in self.waiting:
                        self.out.add(ArmTimer(timer=timer, delay_ns=self.config.store_wait_ns))
                    return
                self.waiting.remove(request)
                why = f"found no room within {self.config.store_wait_ns / 1e9:g} s"
                if self.contents.disk_error:
                    why += f", and none on disk ({self.contents.disk_error}),"
                self.denied.append((request, self._full(request, why)))
                break
        self.serve_waiting()

    def _full(self, request: SpaceRequest, why: str) -> ErrorInfo:
        largest = sorted(self.objects.values(), key=lambda stored: (-stored.size_bytes, stored.object_id))
        held = ", ".join(
            f"{short(stored.object_id)} ({stored.size_bytes:,} bytes, owner {stored.owner}, "
            f"{'used by ' + ' and '.join(stored.pins) if stored.pins else 'cannot be recomputed'})"
            for stored in largest[: self.config.store_holders_named]
            if stored.pins or not stored.remakeable
        )
        return ErrorInfo(
            kind=ErrorKind.STORE_FULL,
            message=(
                f"Object {short(request.object_id)} of {request.size_bytes:,} bytes {why} on {self.node}: "
                f"{self.contents.used_bytes:,} of {self.capacity_bytes:,} bytes are in use{self._on_disk()}. "
                f"Largest holders: {held or 'none'}. "
                f"Delete references or arrays that are not needed, or set object_store_memory= higher."
            ),
        )

    def _on_disk(self) -> str:
        if not self.spills:
            return ""
        return f", and {self.contents.spilled_bytes:,} of {self.config.spill_bytes_max:,} on disk"
