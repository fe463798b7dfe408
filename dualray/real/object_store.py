"""Objects of one node in shared memory: one file an object, written once, then mapped read-only by whoever reads it.

Theory of operation. `create` makes a hidden file, reserves its pages, so that a full /dev/shm is an OSError (ENOSPC)
there and then and not a bus error in the middle of a copy, and maps it writable. `seal` gives it its name, the object's
id in hex, in one step, for all processes at once; from then on nobody may write. Whoever seals an id second gets
FileExistsError, and his copy is gone: an object never changes under its readers. `abort` removes what is not sealed.

`open` maps the object read-only and hands out a memoryview without a copy. The mapping lives as long as anything that
was made over it: slices of the view, numpy arrays, pickle buffers. `delete` only takes the name away; the pages go with
the last mapping of the last process. When the last view of one `open` is gone in this process, its `on_release` is
called once, wherever the interpreter happens to be, possibly within garbage collection in any thread: it may only put
the id into a queue. At the end of the interpreter it is not called any more.

A mapping costs no file descriptor, so that a process can hold as many objects as there are mappings (65,530 on Linux).
What is kept, deleted or made room for is decided elsewhere; the directory has no index but its own entries.
"""

import ctypes
import errno
import mmap
import os
import shutil
import sys
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np

_MAP_FIXED: Final = 0x10  # of Linux; CPython's mmap module does not name it
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (
    ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long
)  # fmt: skip


class SharedMemoryStore:
    """See the module's theory of operation. Thread-safe; several processes use one directory at a time.

    Args:
        directory: on a tmpfs, such as /dev/shm/dualray-SESSION; made with mode 0700 when missing.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = threading.Lock()
        self._creating: dict[bytes, Path] = {}

    def create(self, object_id: bytes, size: int) -> memoryview:
        """Memory for a new object, to be written and then sealed. Drop the view, and what was made over it, first.

        Raises:
            FileExistsError: the object is sealed, or this process is creating it.
            OSError: ENOSPC, the file system is full.
        """
        if size < 0:
            raise ValueError(f"an object of {size} bytes")
        if self._path(object_id).exists():
            raise FileExistsError(errno.EEXIST, f"object {object_id.hex()} is sealed")
        hidden = self.directory / f".{object_id.hex()}.{os.getpid()}"
        fd = os.open(hidden, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            if size:
                os.posix_fallocate(fd, 0, size)
            # The pages are taken at once: half the time that faulting them in one by one takes.
            mapping = _map(fd, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_POPULATE)
        except BaseException:
            hidden.unlink()
            raise
        finally:
            os.close(fd)
        with self._lock:
            self._creating[object_id] = hidden
        return memoryview(mapping)[:size]

    def seal(self, object_id: bytes) -> None:
        """Publish an object that this process created.

        Raises:
            KeyError: this process is not creating it.
            FileExistsError: another process sealed it first; this copy is removed.
        """
        with self._lock:
            hidden = self._creating.pop(object_id)
        try:
            self._path(object_id).hardlink_to(hidden)  # a rename that does not replace
        finally:
            hidden.unlink()

    def abort(self, object_id: bytes) -> None:
        """Give up an object that this process is creating; KeyError when it is not."""
        with self._lock:
            hidden = self._creating.pop(object_id)
        hidden.unlink()

    def open(self, object_id: bytes, on_release: Callable[[bytes], object] | None = None) -> memoryview:
        """A read-only view of a sealed object, without a copy.

        Args:
            object_id: the object.
            on_release: called once with the id when the last view of this mapping is gone; it may only enqueue.
        Raises:
            FileNotFoundError: no such object is sealed here.
        """
        fd = os.open(self._path(object_id), os.O_RDONLY | os.O_CLOEXEC)
        try:
            size = os.fstat(fd).st_size
            mapping = _map(fd, size, mmap.PROT_READ, 0)
        finally:
            os.close(fd)
        if on_release is not None:
            weakref.finalize(mapping, on_release, object_id).atexit = False
        return memoryview(mapping)[:size]

    def delete(self, object_id: bytes) -> bool:
        """Take a sealed object's name away; live views stay valid. False when there was none."""
        try:
            self._path(object_id).unlink()
        except FileNotFoundError:
            return False
        return True

    def contains(self, object_id: bytes) -> bool:
        """Whether the object is sealed here."""
        return self._path(object_id).exists()

    def destroy(self) -> None:
        """Remove the directory with everything in it; live views stay valid. Idempotent."""
        shutil.rmtree(self.directory, ignore_errors=True)
        with self._lock:
            self._creating.clear()

    def list(self) -> list[bytes]:
        """The ids of the sealed objects, in order."""
        return sorted(bytes.fromhex(entry.name) for entry in self.directory.iterdir() if entry.name[0] != ".")

    def _path(self, object_id: bytes) -> Path:
        if not object_id:
            raise ValueError("an empty object id")
        return self.directory / object_id.hex()


def _map(fd: int, size: int, protection: int, flags: int) -> mmap.mmap:
    """A shared mapping of the file; of one private byte when it is empty, for nothing cannot be mapped.

    mmap.mmap keeps a duplicate of the descriptor for as long as the mapping lives (until Python 3.13 can be told not
    to), and a process that holds thousands of objects would run out of them. So the mapping is made without a file, and
    the file is then put in its place.
    """
    if size == 0:
        return mmap.mmap(-1, 1, flags=mmap.MAP_PRIVATE, prot=protection)
    if sys.version_info >= (3, 13):
        return mmap.mmap(fd, size, flags=mmap.MAP_SHARED | flags, prot=protection, trackfd=False)
    mapping = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE, prot=protection)
    address = np.frombuffer(mapping, np.uint8).ctypes.data
    if _libc.mmap(address, size, protection, mmap.MAP_SHARED | _MAP_FIXED | flags, fd, 0) != address:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return mapping
