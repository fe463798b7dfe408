"""Rewrites a process's command line after a fork, so that lists of processes such as ps show its role."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from dualray.shared.model.commands import RunTask
from dualray.shared.model.events import TaskPushed

ROOM: Final = "-" * 40
"""A last argument for who is to be called something longer later: a title takes no more bytes than there were."""

_ARG_START, _ARG_END = 45, 46
"""Where the kernel says which memory the command line is, after the name in /proc/self/stat (proc(5): 48 and 49)."""


def set_title(module: str, arguments: Sequence[str]) -> None:
    """Call this process `python -m module arguments`; where the system does not say how, it keeps its name."""
    _write(*_memory(), " ".join((sys.orig_argv[0], "-m", module, *arguments)))


class RaysTitles:
    """The titles that Ray gives its workers: the task that runs, else the actor's class or IDLE."""

    def __init__(self, execute: Callable[[RunTask | TaskPushed], None]) -> None:
        self._execute = execute
        self._start, self._size = _memory()
        self._actor = "IDLE"

    def __call__(self, task: RunTask | TaskPushed) -> None:
        """Run a task under its title."""
        name = task.spec.template.name
        if task.spec.creates is not None:
            self._actor, name = name, f"{name}.__init__"
        _write(self._start, self._size, f"ray::{name}")
        self._execute(task)
        _write(self._start, self._size, f"ray::{self._actor}")


def _memory() -> tuple[int, int]:
    """Where the command line lies, and how long it is; zeros where the system does not say."""
    try:
        fields = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:  # no /proc, as on macOS
        return 0, 0
    return int(fields[_ARG_START]), int(fields[_ARG_END]) - int(fields[_ARG_START])


def _write(start: int, size: int, text: str) -> None:
    if start == 0 or size <= len(ROOM):
        return
    title = os.fsencode(text)[: size - 2]
    # A last byte that is not zero tells the kernel that this is a title: it ends with its first zero, and not with the
    # memory that the arguments had (fs/proc/base.c, get_mm_proctitle).
    ctypes.memmove(start, title.ljust(size - 1, b"\0") + b".", size)
