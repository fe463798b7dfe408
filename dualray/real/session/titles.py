"""Rewrites a process's command line after a fork, so that lists of processes such as ps show its role."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

ROOM: Final = "-" * 40
"""A last argument for who is to be called something longer later: a title takes no more bytes than there were."""

_ARG_START, _ARG_END = 45, 46
"""Where the kernel says which memory the command line is, after the name in /proc/self/stat (proc(5): 48 and 49)."""


def set_title(module: str, arguments: Sequence[str]) -> None:
    """Call this process `python -m module arguments`; where the system does not say how, it keeps its name."""
    try:
        fields = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:  # no /proc, as on macOS
        return
    start, size = int(fields[_ARG_START]), int(fields[_ARG_END]) - int(fields[_ARG_START])
    if start == 0 or size <= len(ROOM):
        return
    words = (sys.orig_argv[0], "-m", module, *arguments)
    title = os.fsencode(" ".join(words))[: size - 2]
    # A last byte that is not zero tells the kernel that this is a title: it ends with its first zero, and not with the
    # memory that the arguments had (fs/proc/base.c, get_mm_proctitle).
    ctypes.memmove(start, title.ljust(size - 1, b"\0") + b".", size)
