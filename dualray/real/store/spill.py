"""A node's spilled objects: one file for each, in a directory on a disk, written and read by one thread.

What is spilled and read back, and how many bytes may lie here, the node machine decides. A file gets its name, the
object's id in hex, when it is whole; what could not be written is removed, and its outcome says why in words. Orders
are carried out one after another, so a file that is to be deleted is not being written.
"""

from __future__ import annotations

import contextlib
import os
import queue
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

Done = Callable[[str | None, int], None]
"""Called with None, or with words that say why it failed; and how long the disk took, in ns."""
_STEP_BYTES = 16 * 1024 * 1024


class SpillDirectory:
    """See the module.

    Args:
        directory: made with mode 0700 at the first object.
        call_soon: runs a callback on the loop's thread: outcomes come through it.
    """

    def __init__(self, directory: Path, call_soon: Callable[[Callable[[], object]], object]) -> None:
        self.directory = directory
        self._call_soon = call_soon
        self._orders: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._is_stopping = False
        self._thread: threading.Thread | None = None

    def write(self, object_id: bytes, data: memoryview, done: Done) -> None:
        """Copy an object's bytes to disk; `done` hears how that went."""
        self._order(lambda: self._outcome(self._write, object_id, data, done))

    def read(self, object_id: bytes, target: memoryview, done: Done) -> None:
        """Copy them back; `done` hears how that went."""
        self._order(lambda: self._outcome(self._read, object_id, target, done))

    def delete(self, object_id: bytes) -> None:
        """Remove an object's file; without effect when there is none."""
        if self._thread is not None:
            self._order(lambda: self._path(object_id).unlink(missing_ok=True))

    def close(self) -> None:
        """End the thread and remove the directory. Idempotent."""
        self._is_stopping = True
        if self._thread is not None:
            self._orders.put(None)
            self._thread.join()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _order(self, order: Callable[[], None]) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="dualray-spill", daemon=True)
            self._thread.start()
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

    def _write(self, object_id: bytes, data: memoryview) -> None:
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        partial = self.directory / f".{object_id.hex()}"
        try:
            with partial.open("wb", buffering=0) as file:
                self._pass(file.write, data)
            partial.rename(self._path(object_id))
        except BaseException:
            partial.unlink(missing_ok=True)
            raise

    def _read(self, object_id: bytes, target: memoryview) -> None:
        with self._path(object_id).open("rb", buffering=0) as file:
            if os.fstat(file.fileno()).st_size != len(target):
                raise OSError(f"the file of object {object_id.hex()} has not {len(target):,} bytes")
            self._pass(file.readinto, target)

    def _pass(self, step: Callable[[memoryview], int | None], data: memoryview) -> None:
        """Write or read all bytes, in steps between which the end of the node is noticed."""
        position = 0
        while position < len(data):
            if self._is_stopping:
                raise OSError("the store is being closed")
            count = step(data[position : position + _STEP_BYTES])
            if not count:
                raise OSError("the file ends too early")
            position += count

    def _path(self, object_id: bytes) -> Path:
        return self.directory / object_id.hex()
