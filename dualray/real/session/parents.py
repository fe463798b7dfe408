"""Ties a process to its parent and its children to it, and decides when it may fork without a new interpreter."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from pathlib import Path
from typing import Final

_PR_SET_PDEATHSIG: Final = 1
_libc = ctypes.CDLL(None, use_errno=True)


def die_with(parent: int, number: signal.Signals) -> None:
    """In a fresh child: get this signal when the thread that has forked it ends, however it ends.

    Raises:
        ProcessLookupError: it has ended already.
    """
    if _libc.prctl(_PR_SET_PDEATHSIG, number) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:
        raise ProcessLookupError(f"process {parent}, the parent of this process, has ended")


def count_threads() -> int:
    """Of this process: with one, it can fork and go on in Python, for nobody else can hold a lock."""
    return len(os.listdir("/proc/self/task"))  # noqa: PTH208 - only their number


def kill_with_children(pid: int) -> None:
    """Kill a child of this process, and what it has started itself.

    A process that has outlived the one that started it is not found: it was made to run on.

    Raises:
        ProcessLookupError: there is no such process.
    """
    os.kill(pid, signal.SIGSTOP)  # it starts no more
    try:
        kill_children(pid)
    finally:  # never leave it stopped
        os.kill(pid, signal.SIGKILL)


def kill_children(pid: int) -> None:
    """Kill what a process has started and what still runs."""
    for each in _children_of(pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(each, signal.SIGKILL)


def _children_of(pid: int) -> list[int]:
    """None where the system does not say, as on macOS, or where this process has no descriptor left to read it with."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):  # that thread has ended
                found += map(int, (thread / "children").read_text().split())
    return found
