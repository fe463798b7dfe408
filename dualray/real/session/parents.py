"""Ties a process to its parent, and decides when it may fork without a new interpreter."""

from __future__ import annotations

import ctypes
import os
import signal
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
        raise ProcessLookupError(f"process {parent}, which has forked this one, is gone")


def count_threads() -> int:
    """Of this process: with one, it can fork and go on in Python, for nobody else can hold a lock."""
    return len(os.listdir("/proc/self/task"))  # noqa: PTH208 - only their number
