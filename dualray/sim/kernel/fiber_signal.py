"""A flag for two fibers of a simulation: one waits until the other sets it."""

from __future__ import annotations

from dualray.sim.kernel.fibers import Fiber, FiberScheduler

__all__ = ["FiberSignal"]


class FiberSignal:
    """A flag that one fiber waits for. The wait has no time limit; an exception thrown into the fiber ends it."""

    __slots__ = ("_fiber", "_fibers", "_is_set")

    def __init__(self, fibers: FiberScheduler) -> None:
        self._fibers = fibers
        self._fiber: Fiber | None = None
        self._is_set = False

    def wait(self) -> None:
        """Let the current fiber wait until the flag is set."""
        if not self._is_set:
            self._fiber = self._fibers.current()
            try:
                self._fibers.park()
            finally:  # what is thrown into the fiber ends its wait: a later `set` must not wake another one
                self._fiber = None

    def set(self) -> None:
        """Set the flag, and wake the fiber that waits. A second call has no effect."""
        if self._is_set:
            return
        self._is_set = True
        if self._fiber is not None:
            self._fibers.wake(self._fiber)
