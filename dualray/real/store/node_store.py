"""The node manager's side of the object store: where objects lie in the arena, and which of its pages have memory.

Theory of operation. The node machine decides what is stored, for how long, and what leaves; it counts bytes. Here each
object that it admits gets a place: `reserve` finds a range of the arena (ranges.py), sees to it that its pages have
memory, notes it in the arena's index, and reports; `delete` frees the range. Placement never fails for want of
contiguous bytes, because there is far more address space than memory (arena.py). What can fail is memory: a page is
taken only by `Arena.reserve` or `Arena.populate`, which report a full file system, before anybody touches it; so a full
/dev/shm is an error in words, and no process dies of SIGBUS.

Memory. Pages that have been taken are kept when their object goes, and used again: they are warm. A thread,
`dualray-arena`, does all that takes time:
- it takes pages for an object that was placed where there are none, while its writer waits;
- from the first object on it keeps up to `warm_bytes` of free pages ready, taken and zeroed ahead of the mark, so that
  a new object is written at the speed of memory. A store that nobody uses takes no memory but its index;
- free pages beyond that which nobody has used for `idle_s` to twice `idle_s` it gives back, the highest first.
All pages together never take more than the capacity, but for those that two neighbours share: when they would, free
ones are given back first. Whoever gives pages back holds the lock, so that none of them is placed meanwhile.

Threads. `reserve`, `delete` and the rest belong to one thread, the loop's; reports come through `call_soon`.
"""

from __future__ import annotations

import errno
import shutil
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from dualray.exceptions import DualrayError
from dualray.real import files
from dualray.real.limits import limit_in_words, start_thread
from dualray.real.store.arena import PAGE, Arena, Layout
from dualray.real.store.object_store import ARENA_FILE, SharedMemoryStore
from dualray.real.store.ranges import RangeAllocator, RangeSet, rounded

MIB = 1024 * 1024
_STEP_BYTES = 8 * MIB
"""Pages are taken and given back this many bytes at a time: a few milliseconds."""

Done = Callable[[str | None], None]


class _Place:
    """Where an object lies."""

    __slots__ = ("done", "is_dropped", "object_id", "offset", "size")

    def __init__(self, object_id: bytes, offset: int, size: int) -> None:
        self.object_id = object_id
        self.offset = offset
        self.size = size
        self.done: Done | None = None
        """Set while memory is being taken for it."""
        self.is_dropped = False
        """It was deleted meanwhile."""

    @property
    def pages(self) -> tuple[int, int]:
        return self.offset // PAGE, -(-(self.offset + rounded(self.size)) // PAGE)


class NodeStore:
    """See the module.

    Args:
        directory: on a tmpfs, such as /dev/shm/dualray-SESSION; this user's alone; made with mode 0700 when missing.
        capacity: bytes of objects that are ever stored at a time.
        size_min: bytes that objects have at least, as a rule.
        objects_max: how many objects are ever stored at a time.
        warm_bytes: free memory that is kept ready.
        idle_s: free memory beyond that is given back after this, at the latest after twice this.
        call_soon: runs a callback on the loop's thread.
    Raises:
        DualrayError: the file system is smaller than the arena has to be; the message names both sizes.
    """

    def __init__(
        self,
        directory: Path,
        *,
        capacity: int,
        size_min: int,
        objects_max: int,
        warm_bytes: int,
        idle_s: float,
        call_soon: Callable[[Callable[[], object]], object],
    ) -> None:
        files.ensure_directory(directory)
        self.directory = directory
        self.capacity = capacity
        self._warm_bytes = min(warm_bytes, capacity // 4)
        self._idle_s = idle_s
        self._call_soon = call_soon
        layout = Layout.of(capacity=capacity, size_min=size_min, objects_max=objects_max)
        try:
            self.arena = Arena.create(directory / ARENA_FILE, layout)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            free = shutil.disk_usage(directory).free
            raise DualrayError(
                f"{directory.parent} has {free:,} bytes free, but the index of the object store needs "
                f"{layout.data_offset:,} bytes: free some space, or lower the limit store_objects_max"
            ) from error
        self._store = SharedMemoryStore(directory)
        self._store.attach()  # later there may be no address space for it
        self._places: dict[bytes, _Place] = {}
        # Under the lock, from here on.
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._ranges = RangeAllocator(layout.span, size_min)
        self._taken = RangeSet()
        """Pages of the data that have memory."""
        self._waiting: deque[_Place] = deque()
        """Places that wait for memory."""
        self._recent = RangeSet()
        """Pages that have become free since idle ones were last looked for."""
        self._look_at_s: float | None = None
        """When the thread looks for idle memory; None while there is not more than is kept ready."""
        self._is_full = False
        """The file system had no more for us when it was last asked; asked again when an object has gone."""
        self._is_stopping = False
        self._thread: threading.Thread | None = None

    # ---- Objects, for the loop's thread ------------------------------------------------------------------------

    def reserve(self, object_id: bytes, size: int, done: Done) -> None:
        """Find a place for an object, with memory. `done` is called soon, with None or with words that say why there is
        none; not at all when the object is deleted first. An object that has been reserved is deleted in the end."""
        if self._thread is None and (error := self._begin()) is not None:
            self._call_soon(lambda: done(error))
            return
        with self._lock:
            offset = self._ranges.allocate(size)
            if offset is None:
                self._call_soon(lambda: done(self._no_place(size)))
                return
            place = _Place(object_id, offset, size)
            if not self.arena.insert(object_id, offset, size):
                self._ranges.release(offset)
                self._call_soon(lambda: done(f"its index has no free slot among {self.arena.layout.slots:,}"))
                return
            self._places[object_id] = place
            place.done = done
            if self._taken.missing(*place.pages):
                self._waiting.append(place)
                self._changed.notify()
            else:
                self._call_soon(lambda: self._finish(place, None))
                if self._next_ahead() is not None:
                    self._changed.notify()

    def _begin(self) -> str | None:
        """Start the thread; words when none can be started, and the next object tries again."""
        thread = threading.Thread(target=self._run, name="dualray-arena", daemon=True)
        try:
            start_thread(thread)
        except RuntimeError as error:
            return limit_in_words(error)
        self._thread = thread
        return None

    def _finish(self, place: _Place, error: str | None) -> None:
        done, place.done = place.done, None
        if place.is_dropped:
            self._free(place)
        elif done is not None:
            if error is not None:
                self._forget(place)
                self._free(place)
            done(error)

    def delete(self, object_id: bytes) -> None:
        """The object's place is free from now on; without effect when it has none. No view of it may live."""
        place = self._places.get(object_id)
        if place is None:
            return
        self._forget(place)
        if place.done is not None:
            place.is_dropped = True  # the thread may be taking pages for it
        else:
            self._free(place)

    def detach(self, object_id: bytes) -> Callable[[], None]:
        """As `delete`, for an object that has its memory; its place is free only when the result is called, once."""
        place = self._places[object_id]
        self._forget(place)
        return lambda: self._free(place)

    def _forget(self, place: _Place) -> None:
        del self._places[place.object_id]
        self.arena.remove(place.object_id)

    def _free(self, place: _Place) -> None:
        with self._lock:
            self._ranges.release(place.offset)
            self._recent.add(*place.pages)
            self._is_full = False
            if self._look_at_s is None and self._has_surplus():
                self._changed.notify()

    def rename(self, room_id: bytes, object_id: bytes, size: int) -> None:
        """What lies under `room_id`, which has its memory, lies under `object_id` from now on, and keeps `size` bytes
        from its beginning; the rest is free."""
        if object_id == room_id:
            return
        place = self._places.pop(room_id)
        self.arena.remove(room_id)
        had = place.pages
        place.object_id, place.size = object_id, size
        self.arena.insert(object_id, place.offset, size)  # there is a slot: one has just been freed
        self._places[object_id] = place
        with self._lock:
            self._ranges.shrink(place.offset, size)
            self._recent.add(place.pages[1], had[1])
            if self._look_at_s is None and self._has_surplus():
                self._changed.notify()

    def write(self, object_id: bytes, data: memoryview | bytes) -> bool:
        """Fill the place that was reserved for an object from elsewhere; False when it has none of this size."""
        place = self._places.get(object_id)
        if place is None or place.done is not None or place.size != len(data):
            return False
        self._store.create(object_id, place.size)[:] = data
        self._store.seal(object_id)
        return True

    def corrupt(self, object_id: bytes) -> bool:
        """Another byte in the middle of an object, as a fault has it; False when it has no place."""
        place = self._places.get(object_id)
        if place is None or not place.size:
            return False
        self.arena.write_view(place.offset, place.size)[place.size // 2] ^= 0xFF
        return True

    def create(self, object_id: bytes, size: int) -> memoryview:
        """As SharedMemoryStore.create, for what this process writes itself."""
        return self._store.create(object_id, size)

    def seal(self, object_id: bytes) -> None:
        """As SharedMemoryStore.seal."""
        self._store.seal(object_id)

    def open(self, object_id: bytes, on_release: Callable[[bytes], object] | None = None) -> memoryview:
        """A read-only view, as SharedMemoryStore.open."""
        return self._store.open(object_id, on_release)

    def file_range(self, object_id: bytes) -> tuple[int, int]:
        """The arena's file descriptor, and where an object begins in it."""
        return self.arena.fd, self.arena.layout.data_offset + self._places[object_id].offset

    def place_of(self, object_id: bytes) -> int:
        """Return the offset of an object in the arena's data."""
        return self._places[object_id].offset

    def contains(self, object_id: bytes) -> bool:
        """Whether the object has a place."""
        return object_id in self._places

    def size_of(self, object_id: bytes) -> int:
        """Bytes of an object; 0 of one that has no place."""
        place = self._places.get(object_id)
        return place.size if place is not None else 0

    def taken_bytes(self) -> int:
        """Memory that the data take now, in use or ready."""
        with self._lock:
            return self._taken.total * PAGE

    def destroy(self) -> None:
        """End the thread and remove the file; live views stay valid. Idempotent."""
        with self._lock:
            self._is_stopping = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()
        (self.directory / ARENA_FILE).unlink(missing_ok=True)
        if self.directory.is_dir() and not any(self.directory.iterdir()):
            self.directory.rmdir()
        self._store.close()
        self.arena.close()

    # ---- Memory, on the thread -----------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._work():
                pass
        except Exception as error:  # noqa: BLE001 - a bug, which is the loop's to report: writers would wait for ever
            self._call_soon(lambda error=error: _raise(error))  # type: ignore[misc]  # bound default

    def _work(self) -> bool:
        """Wait for something to do and do one step of it; False at the end."""
        with self._lock:
            while not self._is_stopping and not self._waiting and (ahead := self._next_ahead()) is None:
                self._wait()
            if self._is_stopping:
                return False
            place = self._waiting.popleft() if self._waiting else None
        if place is not None:
            error = self._take(place)
            self._call_soon(lambda: self._finish(place, error))
        elif ahead is not None:
            self._take_ahead(*ahead)
        return True

    def _wait(self) -> None:
        """Wait for a change; look for idle memory once in a period, however much changes meanwhile."""
        if not self._has_surplus():
            self._look_at_s = None
            self._changed.wait()
            return
        now_s = time.monotonic()
        if self._look_at_s is None:
            self._look_at_s = now_s + self._idle_s
        if now_s < self._look_at_s:
            self._changed.wait(self._look_at_s - now_s)
        else:
            self._return_idle()
            self._look_at_s = None

    def _take(self, place: _Place) -> str | None:
        """Take memory for a place; words when there is none."""
        while not self._is_stopping:
            with self._lock:
                missing = self._taken.missing(*place.pages)
                if not missing or place.is_dropped:
                    return None
                first, end = missing[0]
                end = min(end, first + _STEP_BYTES // PAGE)
                excess = self._taken.total + (end - first) - -(-self.capacity // PAGE)
                if excess > 0:
                    self._return_free(excess)
            try:
                self.arena.reserve(first * PAGE, end * PAGE)
            except OSError as error:
                with self._lock:
                    self._is_full = True
                    if self._return_free(end - first):
                        continue
                    return self._no_memory(error)
            with self._lock:
                self._taken.add(first, end)
        return "the object store is being closed"

    def _take_ahead(self, first: int, end: int) -> None:
        try:
            if not self.arena.populate(first * PAGE, end * PAGE):
                self.arena.reserve(first * PAGE, end * PAGE)
        except OSError:
            with self._lock:
                self._is_full = True
                if self._ranges.mark <= first * PAGE:  # nobody has been placed there meanwhile
                    self.arena.give_back(first * PAGE, end * PAGE)
            return
        with self._lock:
            self._taken.add(first, end)

    def _free_bytes(self) -> int:
        """Of free memory that is ready."""
        return self._taken.total * PAGE - self._ranges.used_bytes

    def _next_ahead(self) -> tuple[int, int] | None:
        """The pages to take next so that there is free memory, ahead of the mark; None when there is enough."""
        if (
            self._is_full
            or self._free_bytes() + _STEP_BYTES > self._warm_bytes
            or self._taken.total * PAGE + _STEP_BYTES > self.capacity
        ):
            return None
        first = -(-self._ranges.mark // PAGE)
        last = min(first + self._warm_bytes // PAGE, self.arena.layout.span // PAGE)
        missing = self._taken.missing(first, last)
        if not missing:
            return None
        start, end = missing[0]
        return start, min(end, start + _STEP_BYTES // PAGE)

    def _has_surplus(self) -> bool:
        return self._free_bytes() > self._warm_bytes + _STEP_BYTES

    def _return_idle(self) -> None:
        """A period has passed: give back what is free beyond `warm_bytes` and has been for a period at least."""
        while self._has_surplus() and not self._is_stopping:
            pages = (self._free_bytes() - self._warm_bytes) // PAGE
            if not self._return_free(min(pages, _STEP_BYTES // PAGE), spare_recent=True):
                break
            self._changed.wait(0.001)  # lets others have the lock
        self._recent.clear()

    def _return_free(self, pages: int, *, spare_recent: bool = False) -> int:
        """Give back up to so many free pages, the highest first; how many it were."""
        returned = 0
        for start, end in reversed(list(self._ranges.free_ranges(PAGE))):
            for piece in reversed(self._taken.within(-(-start // PAGE), end // PAGE)):
                for first, last in reversed(self._recent.missing(*piece) if spare_recent else [piece]):
                    first = max(first, last - (pages - returned))
                    self.arena.give_back(first * PAGE, last * PAGE)
                    self._taken.remove(first, last)
                    returned += last - first
                    if returned >= pages:
                        return returned
        return returned

    # ---- Words -------------------------------------------------------------------------------------------------

    def _no_place(self, size: int) -> str:
        return f"its address space of {self.arena.layout.span:,} bytes has no {size:,} contiguous bytes"

    def _no_memory(self, error: OSError) -> str:
        total, free = self.arena.file_system()
        return (
            f"{self.directory.parent} is full ({error.strerror}): {free:,} of its {total:,} bytes are free, and the "
            f"object store uses {self._taken.total * PAGE:,} of the {self.capacity:,} bytes that it may use"
        )


def _raise(error: Exception) -> None:
    raise error
