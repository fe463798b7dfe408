"""How much CPU time a page may use: little while a run needs every CPU, and more while a CPU is idle.

Theory of operation. The server has a low priority, but a process with a low priority still takes time from a run that
keeps every CPU busy: its turns, and the memory that it moves. So each piece of work is followed by a rest, in
proportion to the CPU time that the work took. `Machine` measures whether a CPU is free; if none is, the rests are long.

Pages ask again after `wait_s`, which each answer tells them. One page asks twice a second. Many pages ask less often,
so that all of them together ask at most ASKS_PER_S times a second, and BUSY_ASKS_PER_S times while no CPU is free.
"""

from __future__ import annotations

import time
from typing import Final

import psutil

__all__ = ["ASK_S", "Machine", "rest_s", "wait_s"]

ASK_S: Final = 0.5
"""Between two questions of a page that is alone."""
WAIT_S_MAX: Final = 8.0
"""A page that has not asked for WATCHED_S (feeds.py) is not watched."""
ASKS_PER_S: Final = 50.0
BUSY_ASKS_PER_S: Final = 12.5
PATIENCE_BY_PAGE: Final = 8
"""Rest for so many times the time that work took, for each page: 11 % of one CPU for a page that is alone."""
PATIENCE_MAX: Final = 49
"""2 % of one CPU, for many pages, which cost something themselves."""
FREE_PATIENCE: Final = 1
FREE_CPUS_MIN: Final = 0.5
"""If less than that was idle, no CPU is free."""
MEASURED_S: Final = 0.2
"""The kernel counts idle time in steps of 10 ms."""


class Machine:
    """Measures whether this machine has an idle CPU."""

    def __init__(self) -> None:
        self._at_s, self._idle_s = time.monotonic(), _idle_s()
        self._is_busy = True
        """Until it was measured."""

    def is_busy(self) -> bool:
        """Whether all CPUs were in use since the last measurement."""
        now_s = time.monotonic()
        passed_s = now_s - self._at_s
        if passed_s >= MEASURED_S:
            idle_s = _idle_s()
            self._is_busy = idle_s - self._idle_s < FREE_CPUS_MIN * passed_s
            self._at_s, self._idle_s = now_s, idle_s
        return self._is_busy


def rest_s(work_s: float, pages: int, *, is_busy: bool) -> float:
    """How long to rest after so much work for so many pages."""
    return work_s * (min(PATIENCE_MAX, PATIENCE_BY_PAGE * max(1, pages)) if is_busy else FREE_PATIENCE)


def wait_s(pages: int, *, is_busy: bool) -> float:
    """How long each of so many pages waits until it asks again."""
    return min(WAIT_S_MAX, max(ASK_S, pages / (BUSY_ASKS_PER_S if is_busy else ASKS_PER_S)))


def _idle_s() -> float:
    """CPU seconds that were idle since the machine started, of all CPUs together."""
    times = psutil.cpu_times()
    return float(times.idle + getattr(times, "iowait", 0.0))
