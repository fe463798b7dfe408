"""What one fiber of a simulation waits for, and another sets."""

from __future__ import annotations

from dualray.sim.kernel.fibers import Fiber, FiberScheduler

__all__ = ["FiberSignal"]


class FiberSignal:
    """What one fiber waits for."""

    __slots__ = ("_fiber", "_fibers", "_is_set")

    def __init__(self, fibers: FiberScheduler) -> None:
        self._fibers = fibers
        self._fiber: Fiber | None = None
        self._is_set = False

    def wait(self) -> None:
        """Park until it is set."""
        if not self._is_set:
            self._fiber = self._fibers.current()
            try:
                self._fibers.park()
            finally:  # what is thrown into the fiber ends its wait: a later `set` must not wake another one
                self._fiber = None

    def set(self) -> None:
        """Let the fiber go on. Once is enough: it may be held, and run later."""
        if self._is_set:
            return
        self._is_set = True
        if self._fiber is not None:
            self._fibers.wake(self._fiber)
