"""Pools of threads of user code: `concurrent.futures`, and what ends a `multiprocessing.pool.ThreadPool`.

Their threads are fibers (threads.py), and their queues and locks are made for fibers (locks.py). What is left:

A `ThreadPoolExecutor` that was made before the simulation, by an import, or by another virtual process, is not this
process's: it has one of its own in its place. One that was made in a simulation begins anew after it.

An interpreter that ends waits for threads of pools: for those of OS threads, and for the driver's
(`Threads.wait_at_exit`). Sets of futures come in the order of their making, in every process. A `ThreadPool` is ended
by a finalizer, which compares the process's id: the virtual one.
"""

from __future__ import annotations

import concurrent.futures
import itertools
import logging
import queue
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, _base, thread
from types import FrameType
from typing import Any, Final
from weakref import WeakKeyDictionary, WeakSet

from dualray.sim.kernel.fibers import Fiber, FiberKilled, FiberScheduler
from dualray.sim.usercode.locks import stays_real
from dualray.sim.usercode.substitutions import Substitution
from dualray.sim.usercode.threads import ProcessThreads, Threads

__all__ = ["Pools", "silence", "unsilence"]

_REAL_QUEUE: Final = queue.SimpleQueue


class _Killed(logging.Filter):
    """Threads that end with their process say nothing."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not (record.exc_info and isinstance(record.exc_info[1], FiberKilled))


_KILLED: Final = _Killed()


class Pools:
    """See the module."""

    def __init__(self, fibers: FiberScheduler, threads: Threads) -> None:
        self._fibers = fibers
        self._threads = threads
        self._futures = itertools.count(1)
        self._pools: WeakSet[ThreadPoolExecutor] = WeakSet()
        """That were made in this simulation."""

    def move_to(self, fibers: FiberScheduler) -> None:
        """From now on they are those of another simulation."""
        self._fibers = fibers
        self._futures = itertools.count(1)
        for pool in list(self._pools):
            _renew(pool)
        self._pools.clear()

    def substitutions(self) -> list[Substitution]:
        """What is to be replaced, made against what stands there now."""
        counter = ThreadPoolExecutor._counter  # type: ignore[attr-defined]

        def pool_number() -> int:
            fiber = self._fibers.user_fiber()
            number: int = counter() if fiber is None else next(self._threads.of_process(fiber).pool_names)
            return number

        def new_future() -> Future[Any]:
            return Future() if self._fibers.user_fiber() is None else _NumberedFuture(next(self._futures))

        future = Substitution.of(_base, "Future", new_future, _NumberedFuture)
        return [
            Substitution(
                holder=thread,
                name="_threads_queues",
                replacement=_Queues(thread._threads_queues, self._process_of),
            ),
            Substitution(holder=ThreadPoolExecutor, name="_counter", replacement=staticmethod(pool_number)),
            Substitution(holder=ThreadPoolExecutor, name="__init__", replacement=self._make_new_pool()),
            Substitution(holder=ThreadPoolExecutor, name="submit", replacement=self._make_submit()),
            Substitution(holder=ThreadPoolExecutor, name="shutdown", replacement=self._make_shutdown()),
            future,
            Substitution(holder=concurrent.futures, name="Future", replacement=future.replacement),
        ]

    def _own_pool(self, fiber: Fiber, pool: Any, caller: FrameType) -> Any:
        """What a process has in place of a pool that another one has made, or nobody in this simulation."""
        process = self._threads.of_process(fiber)
        if getattr(pool, "dualray_owner", None) is process or pool._shutdown or stays_real(caller):
            return pool
        own: Any = process.pools.get(pool)
        if own is None:
            own = process.pools[pool] = ThreadPoolExecutor(
                pool._max_workers, pool._thread_name_prefix, pool._initializer, pool._initargs
            )
        return own

    def _process_of(self, begun: threading.Thread) -> ProcessThreads | None:
        """Whose virtual thread it is."""
        fiber = self._fibers.user_fiber()
        if fiber is None:
            return None
        process = self._threads.of_process(fiber)
        return process if process.alive.get(begun.ident or 0) is begun else None

    def _make_new_pool(self) -> Callable[..., None]:
        original = ThreadPoolExecutor.__init__

        def init(self_: Any, *args: Any, **kwargs: Any) -> None:
            original(self_, *args, **kwargs)
            fiber = self._fibers.user_fiber()
            if fiber is not None and type(self_._work_queue) is not _REAL_QUEUE:
                self_.dualray_owner = self._threads.of_process(fiber)
                self._pools.add(self_)

        init.__doc__ = original.__doc__
        return init

    def _make_submit(self) -> Callable[..., Any]:
        original = ThreadPoolExecutor.submit

        def submit(self_: Any, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
            fiber = self._fibers.user_fiber()
            if fiber is None:
                return original(self_, fn, *args, **kwargs)
            own = self._own_pool(fiber, self_, sys._getframe(1))
            fiber.clock_read_ns = -1  # it looks for an idle thread, once, while it holds a real lock: it may not wait
            return original(own, fn, *args, **kwargs)

        submit.__doc__ = original.__doc__
        return submit

    def _make_shutdown(self) -> Callable[..., None]:
        original = ThreadPoolExecutor.shutdown

        def shutdown(self_: Any, wait: bool = True, *, cancel_futures: bool = False) -> None:
            fiber = self._fibers.user_fiber()
            if fiber is not None:
                own = self._own_pool(fiber, self_, sys._getframe(1))
                if own is not self_:
                    original(own, wait, cancel_futures=cancel_futures)
                if fiber is not self._fibers.driver and own is not self_:
                    return  # it is another process's
            original(self_, wait, cancel_futures=cancel_futures)

        shutdown.__doc__ = original.__doc__
        return shutdown


def _renew(pool: Any) -> None:
    """The simulation that a pool was made in is over: what has not begun is cancelled, and the next call begins threads
    of the interpreter's."""
    waiting, pool._work_queue = pool._work_queue, _REAL_QUEUE()
    while not waiting.empty():
        item = waiting.get_nowait()
        if item is not None:
            item.future.cancel()
    pool._threads = set()
    pool._idle_semaphore, pool._shutdown_lock = threading.Semaphore(0), threading.Lock()
    del pool.dualray_owner


class _Queues(WeakKeyDictionary[threading.Thread, Any]):
    """What an interpreter that ends knows of threads of pools, which it waits for: those of virtual processes are not
    among them."""

    def __init__(self, real: Any, of_process: Callable[[threading.Thread], ProcessThreads | None]) -> None:
        super().__init__()
        self._real, self._of_process = real, of_process

    def __setitem__(self, key: threading.Thread, value: Any) -> None:
        process = self._of_process(key)
        (self._real if process is None else process.queues)[key] = value

    def items(self) -> Any:
        """Of OS threads."""
        return self._real.items()


class _NumberedFuture(Future[Any]):
    """A future of user code: sets of them come in the order of their making, in every process."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self._number = number

    def __hash__(self) -> int:
        return self._number


def silence() -> None:
    """Have pools say nothing of threads that were killed."""
    _base.LOGGER.addFilter(_KILLED)


def unsilence() -> None:
    """Undo `silence`."""
    _base.LOGGER.removeFilter(_KILLED)
