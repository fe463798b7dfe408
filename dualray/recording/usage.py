"""What a process uses of its machine, for the record of a run: CPU time, time without a core, memory."""

from __future__ import annotations

import os
import platform
import resource
import time

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_RSS_UNIT = 1024
"""Of `ru_maxrss`, on Linux."""


class Usage:
    """The CPU time of this process, and how long the calling thread was ready to run and no core was free; ns."""

    def __init__(self) -> None:
        self._schedstat: int | None = None

    def __call__(self) -> tuple[int, int]:
        if self._schedstat is None:  # here, and not before: of the thread that calls
            try:
                self._schedstat = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
            except OSError:  # a kernel without CONFIG_SCHED_INFO
                self._schedstat = -1
        if self._schedstat < 0:
            return time.process_time_ns(), 0
        return time.process_time_ns(), int(os.pread(self._schedstat, 64, 0).split()[1])


class PeakMemory:
    """The most memory of its own that this process has held since it was last asked, in bytes; 0: nobody knows.

    The kernel keeps the most that was ever resident, and begins anew when it is told to. What is shared is the object
    store, and is taken off.
    """

    def __init__(self) -> None:
        self._statm = self._clear = -1

    def __call__(self) -> int:
        if self._statm == -1:
            self._open()
        if self._clear < 0:
            return 0
        peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _RSS_UNIT
        _, resident, shared, *_ = os.pread(self._statm, 128, 0).split()
        os.pwrite(self._clear, b"5", 0)
        return max(peak_bytes, int(resident) * _PAGE_BYTES) - int(shared) * _PAGE_BYTES

    def _open(self) -> None:
        """Here, and not before: of the process that calls."""
        self._statm = self._clear = -2
        try:
            self._clear = os.open("/proc/self/clear_refs", os.O_WRONLY | os.O_CLOEXEC)
            self._statm = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:  # no Linux, or a container that hides it
            if self._clear >= 0:
                os.close(self._clear)
            self._clear = -2


def machine_words() -> str:
    """Describe this machine in words."""
    return f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, CPython {platform.python_version()}"
