"""The arena: one file in shared memory that holds the objects of a node, and that each of its processes maps once.

    page 0       what the file is: magic, version, sizes; and how often pages have been given back
    index        where each object lies: an open-addressing table, 64 bytes a slot
    data         the objects, each at a multiple of 64 bytes

Theory of operation. The node manager makes the file and alone writes page 0 and the index; others read them without a
lock. That is sound because a process looks an object up only after a message has told it that the object is there for
it, pinned or to be written: its slot was written before that message was sent, and does not change until the process
has given the object back. Slots around it may change meanwhile: a slot in use is never moved, and a freed one stays
passable until no lookup can need it, so a lookup never misses; and a slot that is half written has the state FREE until
it is whole. The index is reserved when the file is made, so no lookup meets a page that cannot be had.

The file is sparse, and longer than the bytes that may be in use: address space costs nothing, and with enough of it
placement never fails (ranges.py). Memory is taken page by page, `reserve`, and given back, `give_back`; touching a page
that was never reserved could raise SIGBUS when the file system is full, so nobody does (node_store.py).
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from dualray.real import files
from dualray.real.store.ranges import GRANULE, rounded, span_for

Bytes: TypeAlias = "np.ndarray[Any, np.dtype[np.uint8]]"

PAGE: Final = mmap.PAGESIZE
OBJECT_ID_BYTES_MAX: Final = 40

_MAGIC: Final = b"dualray\0"
_VERSION: Final = 1
_HEADER: Final = struct.Struct("<8sQQQQ")  # magic, version, capacity, slots, span of the data
_EPOCH: Final = struct.Struct("<Q")
_EPOCH_OFFSET: Final = 64
_SLOT: Final = struct.Struct("<BB6xQQ40s")  # state, length of the id, offset in the data, size, id
_FREE, _USED, _GONE = 0, 1, 2
_SPAN_MAX: Final = 1 << 44  # of 47 bits that a process has, mapped twice
_MADV_REMOVE: Final = 9
_MADV_POPULATE_WRITE: Final = 23  # Linux 5.14

_libc = ctypes.CDLL(None, use_errno=True)  # its calls let other threads run
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)

if TYPE_CHECKING:  # the node manager, which is waited for, needs no arrays to begin with
    import numpy as np


@dataclass(frozen=True, slots=True)
class Layout:
    """Sizes of an arena: `capacity` bytes of objects may be in use, in `slots` slots, in `span` bytes of address
    space; the data begin at `data_offset`."""

    capacity: int
    slots: int
    span: int

    @classmethod
    def of(cls, *, capacity: int, size_min: int, objects_max: int) -> Layout:
        """The layout for objects of at least `size_min` bytes, and at most `objects_max` of them."""
        objects = min(objects_max, capacity // max(size_min, GRANULE) + 1)
        slots = 1 << max(6, (objects * 4 // 3).bit_length())
        # Sizes are rounded up to granules: that much more is in use, at most.
        span = min(span_for(rounded(capacity) + objects * GRANULE, size_min), max(_SPAN_MAX, 2 * capacity))
        return cls(capacity, slots, -(-span // PAGE) * PAGE)

    @property
    def data_offset(self) -> int:
        return PAGE + -(-self.slots * _SLOT.size // PAGE) * PAGE

    @property
    def file_size(self) -> int:
        return self.data_offset + self.span


class Arena:
    """One process's mapping of the arena: `readable` is mapped read-only, `writable` is another mapping."""

    def __init__(self, path: Path, fd: int, layout: Layout) -> None:
        self.path = path
        self.layout = layout
        self.fd = fd
        size = layout.file_size
        writable = mmap.mmap(fd, size, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ | mmap.PROT_WRITE)
        readable = mmap.mmap(fd, size, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
        for mapping in (writable, readable):
            mapping.madvise(mmap.MADV_DONTDUMP)
        self.writable, self.readable = memoryview(writable), memoryview(readable)
        self._base = ctypes.addressof(ctypes.c_char.from_buffer(writable))
        self._mask = layout.slots - 1
        self._lacks_arrays = False

    @classmethod
    def create(cls, path: Path, layout: Layout) -> Arena:
        """Make the file, with an empty index.

        Raises:
            OSError: ENOSPC, there is no memory for the index; the file is removed.
        """
        with files.opened_directory(path.parent) as directory:
            fd = files.create(path.name, within=directory, readable=True)
        try:
            os.ftruncate(fd, layout.file_size)
            os.posix_fallocate(fd, 0, layout.data_offset)
            header = _HEADER.pack(_MAGIC, _VERSION, layout.capacity, layout.slots, layout.span)
            os.pwrite(fd, header, 0)
            return cls(path, fd, layout)
        except BaseException:
            os.close(fd)
            path.unlink()
            raise

    @classmethod
    def attach(cls, path: Path) -> Arena:
        """Map the arena that another process has made.

        Raises:
            FileNotFoundError: there is none.
            PermissionError: file or directory are another user's, or open to others.
            ValueError: the file is no arena, or of another version.
        """
        with files.opened_directory(path.parent) as directory:
            fd = files.open_file(path.name, within=directory, writable=True)
        try:
            header = os.pread(fd, _HEADER.size, 0)
            if len(header) < _HEADER.size or not header.startswith(_MAGIC):
                raise ValueError(f"{path} is not the file of an object store")
            _, version, capacity, slots, span = _HEADER.unpack(header)
            if version != _VERSION:
                raise ValueError(
                    f"{path} is an object store of format {version}, but this dualray uses format {_VERSION}"
                )
            return cls(path, fd, Layout(capacity, slots, span))
        except BaseException:
            os.close(fd)
            raise

    def close(self) -> None:
        """Give the descriptor back, and the mappings as soon as nothing is made over them. Idempotent."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
            self.writable = self.readable = memoryview(b"")

    # ---- Views -----------------------------------------------------------------------------------------------

    def read_view(self, offset: int, size: int) -> Bytes:
        """Bytes of the data, to be read; whatever is made over them keeps this array alive."""
        start = self.layout.data_offset + offset
        if not self._lacks_arrays:
            try:
                import numpy as np  # noqa: PLC0415 - see above; costs 0.2 us once it is there
            except Exception:  # noqa: BLE001 - no address space for it, and a second attempt fails in other ways
                self._lacks_arrays = True
            else:
                return np.frombuffer(self.readable, np.uint8, size, start)
        return (ctypes.c_ubyte * size).from_buffer(self.writable, start)  # type: ignore[return-value]  # a buffer, too

    def write_view(self, offset: int, size: int) -> memoryview:
        """The same bytes, to be written."""
        start = self.layout.data_offset + offset
        return self.writable[start : start + size]

    # ---- The index -------------------------------------------------------------------------------------------

    def find(self, object_id: bytes) -> tuple[int, int] | None:
        """Offset and size of an object that is there for this process; None when there is none of this id."""
        slot = zlib.crc32(object_id) & self._mask
        for _ in range(self.layout.slots):
            state, length, offset, size, name = _SLOT.unpack_from(self.readable, PAGE + slot * _SLOT.size)
            if state == _USED:
                if name[:length] == object_id:
                    return offset, size
            elif state == _FREE:
                return None
            slot = (slot + 1) & self._mask
        return None

    def insert(self, object_id: bytes, offset: int, size: int) -> bool:
        """Note where an object lies, which must not be noted yet; False when the index is full. The node manager's."""
        if not 0 < len(object_id) <= OBJECT_ID_BYTES_MAX:
            raise ValueError(f"an object id has {len(object_id)} bytes, but must have 1 to {OBJECT_ID_BYTES_MAX} bytes")
        slot = zlib.crc32(object_id) & self._mask
        for _ in range(self.layout.slots):
            place = PAGE + slot * _SLOT.size
            state = self.writable[place]
            if state != _USED:
                _SLOT.pack_into(self.writable, place, state, len(object_id), offset, size, object_id)
                self.writable[place] = _USED  # last, when the slot is whole
                return True
            slot = (slot + 1) & self._mask
        return False

    def remove(self, object_id: bytes) -> None:
        """Forget where an object lay; KeyError when it is not noted. The node manager's."""
        slot = zlib.crc32(object_id) & self._mask
        for _ in range(self.layout.slots):
            place = PAGE + slot * _SLOT.size
            state, length, _, _, name = _SLOT.unpack_from(self.writable, place)
            if state == _FREE:
                break
            if state == _USED and name[:length] == object_id:
                self.writable[place] = _GONE
                self._clear_passed(slot)
                return
            slot = (slot + 1) & self._mask
        raise KeyError(object_id.hex())

    def _clear_passed(self, slot: int) -> None:
        """Freed slots at the end of a run of slots need not be passed: lookups end there all the same."""
        if self.writable[PAGE + ((slot + 1) & self._mask) * _SLOT.size] != _FREE:
            return
        while self.writable[PAGE + slot * _SLOT.size] == _GONE:
            self.writable[PAGE + slot * _SLOT.size] = _FREE
            slot = (slot - 1) & self._mask

    # ---- Pages -----------------------------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        """How often pages have been given back: what a process has mapped may be unmapped by that."""
        epoch: int = _EPOCH.unpack_from(self.readable, _EPOCH_OFFSET)[0]
        return epoch

    def reserve(self, start: int, end: int) -> None:
        """See to it that bytes of the data have memory, whatever happens on the file system from now on.

        Raises:
            OSError: ENOSPC, there is not so much; some pages may have been reserved.
        """
        os.posix_fallocate(self.fd, self.layout.data_offset + start, end - start)

    def populate(self, start: int, end: int) -> bool:
        """Take pages for bytes of the data where there are none yet, fill them with zeros and map them here, so that
        writing them runs at the speed of memory. False where the system cannot do this (before Linux 5.14).

        Raises:
            OSError: ENOSPC, there is no memory for them; some pages may have been taken.
        """
        address = self._base + self.layout.data_offset + start
        if _libc.madvise(address, end - start, _MADV_POPULATE_WRITE) == 0:
            return True
        code = ctypes.get_errno()
        if code == errno.EINVAL:
            return False
        if code == errno.EFAULT:  # where touching a page would raise SIGBUS
            code = errno.ENOSPC
        raise OSError(code, os.strerror(code), str(self.path))

    def give_back(self, start: int, end: int) -> None:
        """Give the memory of whole pages of the data back; they read as zeros."""
        epoch = self.epoch + 1
        _EPOCH.pack_into(self.writable, _EPOCH_OFFSET, epoch)
        if _libc.madvise(self._base + self.layout.data_offset + start, end - start, _MADV_REMOVE) != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code), str(self.path))

    def file_system(self) -> tuple[int, int]:
        """Bytes of the file system that holds the arena, and how many of them are free."""
        status = os.fstatvfs(self.fd)
        return status.f_blocks * status.f_frsize, status.f_bavail * status.f_frsize

    def resident_bytes(self) -> int:
        """Bytes of memory that the file takes now, its index included."""
        return os.fstat(self.fd).st_blocks * 512
