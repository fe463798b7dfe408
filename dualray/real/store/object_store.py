"""The bytes of this node's objects, as a process that runs user code sees them: written once, then read without a copy.

Theory of operation. The arena (arena.py) is mapped on first use and stays mapped: writing and reading an object makes
no mapping and no file, and a process may hold as many objects as it likes. What is there, and who may write or read it,
the node manager decides; its messages come before each call here, so that `create` finds a place that was reserved for
this process, and `open` finds an object that is pinned for it.

`open` hands out a read-only view of the read-only mapping. What is made over it, slices, numpy arrays, Arrow tables,
pickle buffers, keeps its exporter alive, one small array for each call; when that goes, `on_release` is called, once,
wherever the interpreter happens to be, possibly within garbage collection in any thread: it may only put the id into a
queue. The node manager learns of the end of a process's last view from that process, or of its death, and not before
does the memory of the object become anybody else's. At the end of the interpreter `on_release` is not called any more.

The first write of a process into a page costs more than copying it, because the page must be mapped: `create` maps the
pages of an object at once, and remembers which it has mapped, until the node manager gives pages back.
"""

from __future__ import annotations

import itertools
import sys
import weakref
from collections.abc import Callable
from pathlib import Path

from dualray.exceptions import DualrayError
from dualray.real.quiet_lock import QuietLock
from dualray.real.store.arena import PAGE, Arena, Bytes
from dualray.real.store.ranges import RangeSet

ARENA_FILE = "arena"


class _View(weakref.ref[Bytes]):
    """What `open` has handed out; its callback comes when all that was made over it is gone. Each `open` makes one, so
    it is lighter than weakref.finalize."""

    __slots__ = ("key", "object_id", "on_release", "place")

    key: int
    object_id: bytes
    on_release: Callable[[bytes], object] | None
    place: tuple[int, int]


class SharedMemoryStore:
    """See the module. Thread-safe.

    Args:
        directory: the session's, in which the node manager has made the arena, or will have before the first use.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._lock = QuietLock()
        self._arena: Arena | None = None
        self._writing: dict[bytes, None] = {}
        self._mapped = RangeSet()
        """Pages that this process has mapped for writing since `_epoch`."""
        self._epoch = 0
        self._views: dict[int, _View] = {}
        """The live ones."""
        self._view_keys = itertools.count()
        self._is_closed = False

    def create(self, object_id: bytes, size: int, *, is_sparse: bool = False) -> memoryview:
        """The memory reserved for a new object, to be written and then sealed. Drop the view, and what was made over
        it, first. The store's memory is there already: it makes no difference how much of it `is_sparse` leaves as is.

        Raises:
            KeyError: no room was reserved for it.
            ValueError: room was reserved for another size.
        """
        arena = self.attach()
        offset = self._place(arena, object_id, size)
        self._map_pages(arena, offset, size)
        self._writing[object_id] = None
        return arena.write_view(offset, size)

    def create_at(self, place: int, size: int) -> memoryview:
        """The memory at a place that this process keeps, to be written; as `create`."""
        arena = self.attach()
        self._map_pages(arena, place, size)
        return arena.write_view(place, size)

    def copy(self, target: memoryview, source: memoryview) -> None:
        """Copy the bytes of something large into memory from `create`; see copying.py."""
        from dualray.real.store.copying import copy  # noqa: PLC0415 - numpy, which node managers do without

        copy(target, source)

    def seal(self, object_id: bytes) -> None:
        """The object has been written, and nobody writes it any more; KeyError when this process was not writing it.
        That it may be read, the node manager says."""
        del self._writing[object_id]

    def open(self, object_id: bytes, on_release: Callable[[bytes], object] | None = None) -> memoryview:
        """A read-only view of an object that is pinned for this process, without a copy.

        Args:
            object_id: the object.
            on_release: called once with the id when the last view made from this one is gone; it may only enqueue.
        Raises:
            KeyError: the object is not here.
        """
        arena = self.attach()
        found = arena.find(object_id)
        if found is None:
            raise KeyError(f"object {object_id.hex()} is not in the object store {arena.path}")
        return self._view(arena, found, object_id, on_release)

    def open_at(
        self, place: int, size: int, object_id: bytes, on_release: Callable[[bytes], object] | None = None
    ) -> memoryview:
        """As `open`, of an object that lies at a place that another process keeps, and has lent to this one."""
        return self._view(self.attach(), (place, size), object_id, on_release)

    def _view(
        self, arena: Arena, found: tuple[int, int], object_id: bytes, on_release: Callable[[bytes], object] | None
    ) -> memoryview:
        exporter = arena.read_view(*found)
        view = _View(exporter, self._released)
        view.key = next(self._view_keys)
        view.object_id = object_id
        view.on_release = on_release
        view.place = found
        self._views[view.key] = view
        return memoryview(exporter).toreadonly()  # type: ignore[arg-type]  # numpy's stub lacks it on 3.11

    def _released(self, view: _View) -> None:
        del self._views[view.key]
        if view.on_release is not None and not sys.is_finalizing():
            view.on_release(view.object_id)

    def close(self, *, is_last: bool = False) -> None:
        """Unmap the arena, as soon as no view of it lives. Idempotent.

        Args:
            is_last: every other process of the node has ended: give all memory back that no view of this process needs.
                Otherwise one small array that lives on would keep the whole arena.
        """
        with self._lock:
            arena, self._arena, self._is_closed = self._arena, None, True
        if arena is None:
            return
        if is_last:
            kept = RangeSet()
            for offset, size in [view.place for view in list(self._views.values())]:
                kept.add(offset // PAGE, -(-(offset + size) // PAGE))
            arena.give_back(PAGE - arena.layout.data_offset, 0)
            for first, end in kept.missing(0, arena.layout.span // PAGE):
                arena.give_back(first * PAGE, end * PAGE)
        arena.close()

    def attach(self) -> Arena:
        """Map the arena now, and not at the first object.

        Raises:
            OSError: there is no address space for it.
            DualrayError: there is no arena any more.
        """
        arena = self._arena
        if arena is None:
            with self._lock:
                if self._is_closed:
                    raise ValueError("the object store of this process is closed")
                arena = self._arena = self._arena or self._mapped_arena()
        return arena

    def _mapped_arena(self) -> Arena:
        try:
            return Arena.attach(self.directory / ARENA_FILE)
        except FileNotFoundError as error:
            raise DualrayError(
                f"the object store {self.directory} no longer exists, because the node has ended or somebody has "
                "deleted the directory. Call dualray.shutdown(), and then dualray.init() again"
            ) from error

    def _place(self, arena: Arena, object_id: bytes, size: int) -> int:
        found = arena.find(object_id)
        if found is None:
            raise KeyError(f"the object store {arena.path} has no space reserved for object {object_id.hex()}")
        if found[1] != size:
            raise ValueError(
                f"object {object_id.hex()} has {size} bytes, but the object store reserved {found[1]} bytes for "
                "the object"
            )
        return found[0]

    def _map_pages(self, arena: Arena, offset: int, size: int) -> None:
        first, end = offset // PAGE, -(-(offset + size) // PAGE)
        with self._lock:
            epoch = arena.epoch
            if epoch != self._epoch:  # pages were given back, perhaps some that we had mapped
                self._epoch = epoch
                self._mapped.clear()
            elif self._mapped.covers(first, end):
                return
            missing = self._mapped.missing(first, end)
            self._mapped.add(first, end)
        for first, end in missing:
            arena.populate(first * PAGE, end * PAGE)
