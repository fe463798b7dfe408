"""A node's spilled objects: one file for each, in a directory on a disk, written and read by one thread.

What is spilled and read back, and how many bytes may lie here, the node machine decides. A file gets its name, the
object's id in hex, when it is whole; what could not be written is removed, and its outcome says why in words. Orders
are carried out one after another, so a file that is to be deleted is not being written.

Others may write where the directory lies, and what is read back is unpickled. So the directory is this user's alone,
and is opened once; its files are reached by its descriptor (files.py).
"""

from __future__ import annotations

import contextlib
import errno
import os
import queue
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

from dualray.real import files
from dualray.real.limits import limit_in_words, start_thread
from dualray.real.net.spare import SpareDescriptor

Done = Callable[[str | None, int], None]
"""Called with None, or with words that say why it failed; and how long the disk took, in ns."""
_STEP_BYTES = 16 * 1024 * 1024
_PATIENCE_S = 10.0
_LOOK_S = 0.05


class SpillDirectory:
    """See the module.

    Args:
        directory: made with mode 0700 at the first object, unless it is there; this user's alone.
        call_soon: runs a callback on the loop's thread: outcomes come through it.
    """

    def __init__(self, directory: Path, call_soon: Callable[[Callable[[], object]], object]) -> None:
        self.directory = directory
        self._fd: int | None = None
        """Of the directory, once it is used."""
        self._call_soon = call_soon
        self._orders: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._is_stopping = False
        self.is_full = 0
        """How many faults leave no room here."""
        self._thread: threading.Thread | None = None
        self._spare = SpareDescriptor()
        """A process at its limit of open files still writes and reads its spilled objects."""

    def write(self, object_id: bytes, data: memoryview, done: Done) -> None:
        """Copy an object's bytes to disk; `done` hears how that went."""
        self._order(lambda: self._outcome(self._write, object_id, data, done), done)

    def read(self, object_id: bytes, target: memoryview, done: Done) -> None:
        """Copy them back; `done` hears how that went."""
        self._order(lambda: self._outcome(self._read, object_id, target, done), done)

    def delete(self, object_id: bytes) -> None:
        """Remove an object's file; without effect when there is none."""
        if self._thread is not None:
            self._order(lambda: self._delete(object_id))

    def close(self) -> None:
        """End the thread and remove the directory. Idempotent."""
        self._is_stopping = True
        if self._thread is not None:
            self._orders.put(None)
            self._thread.join()
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
        self._spare.close()
        files.remove_directory(self.directory)

    def _order(self, order: Callable[[], None], done: Done | None = None) -> None:
        """Have the thread do it; where none can be started `done` hears so, and the next order tries again."""
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="dualray-spill", daemon=True)
            try:
                start_thread(thread)
            except RuntimeError as error:
                words = limit_in_words(error)
                if done is not None:
                    self._call_soon(lambda: done(words, 0))
                return
            self._thread = thread
        self._orders.put(order)

    def _run(self) -> None:
        while (order := self._orders.get()) is not None:
            if not self._is_stopping:
                order()

    def _outcome(
        self, act: Callable[[bytes, memoryview], None], object_id: bytes, data: memoryview, done: Done
    ) -> None:
        error: str | None = None
        began_ns = time.monotonic_ns()
        try:
            act(object_id, data)
        except OSError as caught:
            error = f"{self.directory}: {caught.strerror or caught}"
            with contextlib.suppress(OSError):
                usage = shutil.disk_usage(self.directory)
                error += f", {usage.free:,} of its disk's {usage.total:,} bytes are free"
        elapsed_ns = time.monotonic_ns() - began_ns
        self._call_soon(lambda: done(error, elapsed_ns))

    def _opened(self) -> int:
        if self._fd is None:
            files.ensure_directory(self.directory)
            self._fd = files.open_directory(self.directory)
        return self._fd

    def _write(self, object_id: bytes, data: memoryview) -> None:
        if self.is_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        within, partial = self._opened(), f".{object_id.hex()}"
        try:
            with self._spare.lent(), os.fdopen(files.create(partial, within=within), "wb", buffering=0) as file:
                self._pass(file.write, data)
            os.rename(partial, object_id.hex(), src_dir_fd=within, dst_dir_fd=within)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(partial, dir_fd=within)
            raise

    def _read(self, object_id: bytes, target: memoryview) -> None:
        within = self._opened()
        with self._spare.lent(), os.fdopen(self._reader(object_id, within), "rb", buffering=0) as file:
            if os.fstat(file.fileno()).st_size != len(target):
                raise OSError(f"the spilled file of object {object_id.hex()} does not have {len(target):,} bytes")
            self._pass(file.readinto, target)

    def _reader(self, object_id: bytes, within: int) -> int:
        """A descriptor of a spilled file. Another thread may have taken the spare one: then this thread waits."""
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            try:
                return files.open_file(object_id.hex(), within=within)
            except OSError as error:
                is_limit = error.errno in (errno.EMFILE, errno.ENFILE)
                if not is_limit or self._is_stopping or time.monotonic() > deadline:
                    raise
            time.sleep(_LOOK_S)

    def _delete(self, object_id: bytes) -> None:
        with contextlib.suppress(OSError):
            os.unlink(object_id.hex(), dir_fd=self._opened())

    def _pass(self, step: Callable[[memoryview], int | None], data: memoryview) -> None:
        """Write or read all bytes, in steps between which the end of the node is noticed."""
        position = 0
        while position < len(data):
            if self._is_stopping:
                raise OSError("the object store of this node is closing, and spills no more objects")
            count = step(data[position : position + _STEP_BYTES])
            if not count:
                raise OSError("the file of a spilled object ends before the last byte of the object")
            position += count
