"""Where user code may be left for other fibers, though it does not ask to wait.

A read of the clock, or a look whether something has happened, moves virtual time on when it comes again at one instant:
other fibers run meanwhile. In a real cluster each of those is another process; here all have one interpreter, with one
copy of each library. So two places are not left there:

    an import     another virtual worker would find the module half done ("cannot import name ... from partially
                  initialized module"), as the locks of importlib hold up other threads, and all fibers are one
    a library     it may hold a lock of its own, which holds up other threads and not fibers: numba's compiler was
                  entered by a second worker while the first one measured its time

There the fiber's own clock goes on alone (`Fiber.clock_read_ns` is ahead of the kernel's), and at the next read in the
user's own code the fiber waits until the kernel has come up with it. What waits by itself (a lock, a `get`, a sleep
in a library) is left as ever; so is whoever has looked so often that it must wait for somebody else.
"""

from __future__ import annotations

import sys
from types import FrameType
from typing import Final

from dualray.shared.core.interruption import is_importing
from dualray.sim.kernel.fibers import Fiber
from dualray.sim.usercode.substitutions import is_library_path

__all__ = ["ahead_ns", "is_within_import", "may_leave"]

READS_ALONE_MAX: Final = 100_000
"""Consecutive reads in one place after which it is left all the same: 50 s of virtual time have gone by there."""

_BEHALF: Final = frozenset({"concurrent", "dualray", "multiprocessing", "queue", "threading"})
"""Packages that look for whoever called them."""


def may_leave(fiber: Fiber) -> bool:
    """Whether the caller, a read of the clock in user code, may let other fibers run."""
    if fiber.clock_reads >= READS_ALONE_MAX:
        return True
    frame = _caller()
    if frame is None:
        return True
    return not (is_library_path(frame.f_code.co_filename) or is_importing(frame))


def is_within_import(fiber: Fiber) -> bool:
    """Whether the caller, user code, imports a module, and has not looked too often."""
    return fiber.clock_reads < READS_ALONE_MAX and is_importing(frame_at(2))


def ahead_ns(fiber: Fiber, now_ns: int) -> int:
    """By how much a fiber's own clock is ahead."""
    return max(0, fiber.clock_read_ns - now_ns)


def frame_at(depth: int) -> FrameType | None:
    """The frame so many calls above the caller's. None: compiled code alone is there, which has none, as where a task
    is a function in C."""
    try:
        return sys._getframe(depth + 1)
    except ValueError:
        return None


def _caller() -> FrameType | None:
    frame = frame_at(2)
    while frame is not None:
        name: object = frame.f_globals.get("__name__")
        if not isinstance(name, str) or name.partition(".")[0] not in _BEHALF:
            return frame
        frame = frame.f_back
    return None
