"""Locks of the threads of an actor, which are fibers in a simulation.

A method that waits for a real lock would stop the one OS thread that all fibers share, for ever: whoever is to release
it could not run. So in user code of actors of which several methods may run at a time, `threading.Lock` and
`threading.RLock` make locks for fibers, which park; and with them conditions, events, semaphores, barriers and
`queue.Queue`, which are made of these. Who waits is served in the order of arrival, in virtual time.

Locks that were made elsewhere stay real: those of modules, of libraries, and of code that runs one task at a time. They
are no obstacle as long as nobody waits in virtual time while he holds one.
"""

from __future__ import annotations

import math
import queue
import sys
import threading
from collections import deque
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

from dualray.sim.fibers import Fiber, FiberScheduler
from dualray.sim.kernel import Kernel
from dualray.sim.virtual_time import READ_STEP_MIN_NS, Substitution

__all__ = ["FiberLock", "FiberRLock", "Locks"]


class FiberLock:
    """`threading.Lock` among fibers."""

    def __init__(self, kernel: Kernel, fibers: FiberScheduler) -> None:
        self._kernel = kernel
        self._fibers = fibers
        self._is_locked = False
        self._waiting: deque[Fiber] = deque()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """As `threading.Lock.acquire`; the timeout counts virtual seconds."""
        if not blocking and timeout != -1:
            raise ValueError("can't specify a timeout for a non-blocking call")
        if timeout < 0 and timeout != -1:
            raise ValueError("timeout value must be a non-negative number")
        if not self._is_locked:
            self._is_locked = True
            return True
        if not blocking or timeout == 0:
            return False
        fiber = self._fibers.current()
        if fiber is None:
            raise RuntimeError(
                "a lock that belongs to the fibers of a simulated actor is waited for by an OS thread: start no "
                "threads in an actor with max_concurrency, its methods are the threads"
            )
        self._waiting.append(fiber)
        alarm = None
        if timeout != -1:  # not shorter than the shortest sleep: who waits for the rest of a time must see it pass
            delay_ns = max(math.ceil(timeout * 1e9), READ_STEP_MIN_NS)
            alarm = self._kernel.call_after(delay_ns, self._give_up, fiber)
        try:
            has_it = bool(self._fibers.park())
        except BaseException:
            if fiber in self._waiting:
                self._waiting.remove(fiber)
            elif self._is_locked:
                self.release()  # it was handed over just then
            raise
        finally:
            if alarm is not None:
                alarm.cancel()
        return has_it

    def _give_up(self, fiber: Fiber) -> None:
        if fiber in self._waiting:
            self._waiting.remove(fiber)
            self._fibers.wake(fiber, False)

    def release(self) -> None:
        """As `threading.Lock.release`: the one that waits longest has it from now on."""
        if not self._is_locked:
            raise RuntimeError("release unlocked lock")
        while self._waiting:
            if self._fibers.wake(self._waiting.popleft(), True):
                return
        self._is_locked = False

    def locked(self) -> bool:
        """Whether somebody has it."""
        return self._is_locked

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def __repr__(self) -> str:
        return f"<{'locked' if self._is_locked else 'unlocked'} {type(self).__name__}>"


class FiberRLock:
    """`threading.RLock` among fibers."""

    def __init__(self, kernel: Kernel, fibers: FiberScheduler) -> None:
        self._lock = FiberLock(kernel, fibers)
        self._fibers = fibers
        self._owner: Fiber | None = None
        self._count = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """As `threading.RLock.acquire`; the timeout counts virtual seconds."""
        me = self._fibers.current()
        if self._count and self._owner is me:
            self._count += 1
            return True
        if not self._lock.acquire(blocking, timeout):
            return False
        self._owner, self._count = me, 1
        return True

    def release(self) -> None:
        """As `threading.RLock.release`."""
        if not self._is_owned():
            raise RuntimeError("cannot release un-acquired lock")
        self._count -= 1
        if not self._count:
            self._owner = None
            self._lock.release()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    # What `threading.Condition` asks of the lock that it is given.

    def _is_owned(self) -> bool:
        return bool(self._count) and self._owner is self._fibers.current()

    def _release_save(self) -> int:
        count, self._count, self._owner = self._count, 0, None
        self._lock.release()
        return count

    def _acquire_restore(self, count: int) -> None:
        self._lock.acquire()
        self._owner, self._count = self._fibers.current(), count


def _imports() -> bool:
    """Whether a module is being imported: its locks are for others, too."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False


class Locks:
    """What makes locks in user code of those fibers that `has_threads` says."""

    def __init__(self, kernel: Kernel, fibers: FiberScheduler, has_threads: Callable[[Fiber], bool]) -> None:
        self._kernel = kernel
        self._fibers = fibers
        self._has_threads = has_threads

    def move_to(self, kernel: Kernel, fibers: FiberScheduler) -> None:
        """From now on they are those of another simulation."""
        self._kernel, self._fibers = kernel, fibers

    def substitutions(self) -> list[Substitution]:
        """What is to be replaced, made against what stands there now."""
        lock = Substitution.of(threading, "Lock", self._instead_of(threading.Lock, FiberLock))
        return [
            lock,
            Substitution(holder=threading, name="_allocate_lock", replacement=lock.replacement),
            Substitution.of(threading, "RLock", self._instead_of(threading.RLock, FiberRLock)),
            Substitution(holder=threading, name="_time", replacement=self._instead_of_clock(threading._time)),  # type: ignore[attr-defined]
            Substitution(holder=queue, name="time", replacement=self._instead_of_clock(queue.time)),  # type: ignore[attr-defined]
        ]

    def _instead_of(
        self, original: Callable[..., Any], make: Callable[[Kernel, FiberScheduler], Any]
    ) -> Callable[..., Any]:
        def new_lock(*args: Any, **kwargs: Any) -> Any:
            fiber = self._fibers.user_fiber()
            if fiber is None or not self._has_threads(fiber) or _imports():
                return original(*args, **kwargs)
            return make(self._kernel, self._fibers)

        return new_lock

    def _instead_of_clock(self, original: Callable[[], float]) -> Any:
        def clock() -> float:
            fiber = self._fibers.user_fiber()
            if fiber is None or not self._has_threads(fiber):
                return original()
            return self._kernel.now_ns / 1e9

        return staticmethod(clock)
