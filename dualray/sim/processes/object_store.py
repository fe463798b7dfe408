"""The bytes of one virtual node's object store. What is in it, and what leaves, the node machine decides.

Views are read-only and share the stored bytes, as views of shared memory do; the release of the last one is reported.
Objects begin at multiples of 64 bytes, so that numpy sees the same alignment as in shared memory.
"""

from __future__ import annotations

import mmap
import weakref
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from dualray.shared.core.layout import ALIGNMENT, copy_bytes
from dualray.sim.cost.cost_model import CostModel
from dualray.sim.kernel.fibers import FiberScheduler

StoredBytes: TypeAlias = np.ndarray[Any, np.dtype[np.uint8]]


class VirtualStore:
    """See the module. Writing takes the virtual time of a copy in memory."""

    def __init__(self, fibers: FiberScheduler, cost_model: CostModel) -> None:
        self._fibers = fibers
        self._cost = cost_model
        self._unsealed: dict[bytes, StoredBytes] = {}
        self.objects: dict[bytes, StoredBytes] = {}
        self._places: dict[bytes, int] = {}
        """Of what was reserved, until it is deleted."""
        self._at: dict[int, StoredBytes] = {}
        """What lies in room that processes keep."""
        self._counter = 0
        self.on_sealed: Callable[[bytes, StoredBytes], object] | None = None
        """Told of each object that is made here."""
        self.spilled: dict[bytes, StoredBytes] = {}
        """What lies on the node's disk."""

    def reserve(self, object_id: bytes) -> int:
        """Find a place for an object."""
        self._counter += 1
        self._places[object_id] = self._counter
        return self._counter

    def create(self, object_id: bytes, size: int, *, is_sparse: bool = False) -> memoryview:
        """Memory to write an object into; its copying is paid for now."""
        memory = self._unsealed[object_id] = self._memory(size, is_sparse)
        return memoryview(memory)  # type: ignore[arg-type]  # see `open`

    def create_at(self, place: int, size: int) -> memoryview:
        """As `create`, in room that a process keeps. What was read there before stays as it was for those who do."""
        memory = self._at[place] = self._memory(size)
        return memoryview(memory)  # type: ignore[arg-type]  # see `open`

    copy = staticmethod(copy_bytes)

    def _memory(self, size: int, is_sparse: bool = False) -> StoredBytes:
        self._fibers.sleep_ns(self._cost.seal_ns + self._cost.copy_ns(size))
        return _sparse_room(size) if is_sparse else _room(size)

    def seal(self, object_id: bytes) -> None:
        """The bytes are complete."""
        self.objects[object_id] = self._unsealed.pop(object_id)
        if self.on_sealed is not None:
            self.on_sealed(object_id, self.objects[object_id])

    def open(self, object_id: bytes, on_release: Callable[[bytes], None]) -> memoryview:
        """A read-only view; `on_release` is called when it, and all that was made over it, is gone."""
        return self._view(self.objects[object_id], object_id, on_release)

    def open_at(self, place: int, size: int, object_id: bytes, on_release: Callable[[bytes], None]) -> memoryview:
        """As `open`, of what lies in room that another process keeps."""
        return self._view(self._at[place][:size], object_id, on_release)

    @staticmethod
    def _view(data: StoredBytes, object_id: bytes, on_release: Callable[[bytes], None]) -> memoryview:
        exporter = data.view()
        exporter.flags.writeable = False
        weakref.finalize(exporter, on_release, object_id).atexit = False
        return memoryview(exporter)  # type: ignore[arg-type]  # numpy's stub lacks the buffer protocol on 3.11

    def rename(self, room_id: bytes, object_id: bytes, size: int) -> None:
        """What lies in a room is an object of its own; where it lies, it can be read until it is deleted."""
        place = self._places[object_id] = self._places.pop(room_id)
        self.objects[object_id] = self._at[place][:size]
        if self.on_sealed is not None:
            self.on_sealed(object_id, self.objects[object_id])

    def receive(self, object_id: bytes, data: StoredBytes) -> None:
        """All bytes of a copy have arrived: sealed bytes never change, so the copy may share them."""
        self.objects[object_id] = data

    def corrupt(self, object_id: bytes) -> None:
        """One byte of this copy is another one from now on; views that live, and other copies, keep the old."""
        here = self.objects if object_id in self.objects else self.spilled
        damaged = _room(here[object_id].size)
        damaged[:] = here[object_id]
        if damaged.size:  # where nothing is executed there are no bytes
            damaged[damaged.size // 2] ^= 0xFF
        here[object_id] = damaged
        place = self._places.get(object_id)
        if place in self._at:
            self._at[place] = damaged

    def delete(self, object_id: bytes) -> None:
        """Forget the bytes; views that live keep them."""
        self.objects.pop(object_id, None)
        self._unsealed.pop(object_id, None)
        self._at.pop(self._places.pop(object_id, 0), None)


def _room(size: int) -> StoredBytes:
    """Memory that begins where numpy would have it begin."""
    memory = np.empty(size + ALIGNMENT, dtype=np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    return memory[start : start + size]


def _sparse_room(size: int) -> StoredBytes:
    """Memory as `_room` gives it, for an object that is written in a small part only.

    It is a shared mapping, which the memory guard's limit does not count. Pages that nobody writes take no memory.
    """
    return np.frombuffer(mmap.mmap(-1, size), dtype=np.uint8)
