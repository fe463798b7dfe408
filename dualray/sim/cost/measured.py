"""Measures the real time of user code, for tasks that say `duration="measured"`.

Real time passes for a fiber from its being resumed to its being suspended; what others do meanwhile is not its own.
Only who asks pays for the looking at the clock: the hooks are put there for the first such task.
"""

from __future__ import annotations

from time import perf_counter_ns

from dualray.sim.kernel.fibers import Fiber, FiberScheduler

__all__ = ["MEASURED", "Stopwatch"]

MEASURED = "measured"
"""What `duration=` says."""


class Stopwatch:
    """Real time of the fibers of one simulation, from the moment on at which it is made, in one of them."""

    def __init__(self, fibers: FiberScheduler) -> None:
        self._fibers = fibers
        self._resume, self._suspend = fibers.on_resume, fibers.on_suspend
        self._since_ns = perf_counter_ns()
        self._spent_ns: dict[Fiber, int] = {}
        """Of fibers that have asked, before they were last suspended."""
        fibers.on_resume, fibers.on_suspend = self._on_resume, self._on_suspend

    def start(self) -> None:
        """The calling fiber's time counts from now on."""
        fiber = self._fibers.current()
        assert fiber is not None
        self._since_ns = perf_counter_ns()
        self._spent_ns[fiber] = 0

    def stop_ns(self) -> int:
        """What it has taken."""
        fiber = self._fibers.current()
        assert fiber is not None
        return self._spent_ns.pop(fiber) + perf_counter_ns() - self._since_ns

    def _on_resume(self, fiber: Fiber) -> None:
        if self._resume is not None:
            self._resume(fiber)
        self._since_ns = perf_counter_ns()

    def _on_suspend(self, fiber: Fiber) -> None:
        if fiber in self._spent_ns:
            self._spent_ns[fiber] += perf_counter_ns() - self._since_ns
        if self._suspend is not None:
            self._suspend(fiber)
