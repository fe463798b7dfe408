"""Threads of user code, which are fibers in a simulation.

`threading.Thread.start` in user code begins a fiber of the caller's virtual process: it runs when the caller waits the
next time, in virtual time and in an order that depends on the seed alone. It goes on when the task that has started it
has returned, as in a real worker, and ends with its process. With locks.py, everything of `threading`, `queue`,
`concurrent.futures` and `multiprocessing.pool.ThreadPool` works among threads, and so does `dualray.get` in one. A
thread that waits for nothing is not interrupted: what happens between two of its waits happens at once.

Who one is (`current_thread`, `get_ident`, `main_thread`, `enumerate`), and a `threading.local` that is made in user
code, is each fiber's own; the names of threads are counted in each process. A `threading.local` of a module is the same
for all fibers, as its other globals are.

A `ThreadPoolExecutor` that was made before the simulation, or by an import, has real threads, or would have: in user
code each process has one of its own in its place.

Threads of libraries that need an OS thread (locks.py says which) are let be, in real time, and noted: such a run cannot
be promised to be the same again.
"""

from __future__ import annotations

import _thread
import _threading_local
import itertools
import logging
import multiprocessing.connection
import multiprocessing.pool
import os
import queue
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, _base
from math import ceil, inf
from multiprocessing.util import Finalize
from typing import Any, Final, Protocol, cast
from weakref import WeakKeyDictionary

from dualray.sim.fibers import Fiber, FiberKilled, FiberOwner, FiberScheduler
from dualray.sim.kernel import Kernel
from dualray.sim.locks import FiberLock, stays_real
from dualray.sim.virtual_time import Substitution, TypeReplacement

__all__ = ["Threads"]

_REAL_QUEUE: Final = queue.SimpleQueue
LOOK_FIRST_NS: Final = 1_000_000
LOOK_NS_MAX: Final = 100_000_000
"""Who waits for a pipe looks again after so long, and each time after twice as long, up to so long."""
_USES_HANDLES: Final = sys.version_info >= (3, 13)


class _Handle:
    """What stands for the OS thread in a Thread, from Python 3.13 on."""

    def __init__(self, lock: FiberLock, ident: int) -> None:
        self._lock = lock
        self.ident = ident

    def is_done(self) -> bool:
        """Whether the thread has ended."""
        return not self._lock.locked()

    def join(self, timeout: float | None = None) -> None:
        """Wait until it has."""
        if self._lock.acquire(timeout=-1 if timeout is None else max(timeout, 0)):
            self._lock.release()


class ThreadOwner(FiberOwner, Protocol):
    """A process whose user code may start threads.

    threads: what is known here of its threads; None at first.
    """

    threads: Any

    def is_main(self, fiber: Fiber) -> bool:
        """Whether the fiber is its main thread."""

    def start_thread(self, function: Callable[[], object], seed: bytes) -> Fiber:
        """Run a function in a fiber of its own, soon."""

    def end_by_thread(self, fiber: Fiber, escaped: BaseException) -> None:
        """A thread that user code has started ends it soon, by `os._exit` or a signal."""


def _owner(fiber: Fiber) -> ThreadOwner:
    return cast(ThreadOwner, fiber.owner)


class _OfProcess:
    """The threads of one virtual process."""

    def __init__(self, pid: int) -> None:
        self.main = threading.Thread(name="MainThread", daemon=False)
        self.alive: dict[int, threading.Thread] = {}
        """By their identity, in the order of their beginning."""
        self.pools: WeakKeyDictionary[ThreadPoolExecutor, ThreadPoolExecutor] = WeakKeyDictionary()
        """In place of those that others have made."""
        self.started = 0
        """Threads that user code has started, and that have not ended."""
        self.names = itertools.count(1)
        self.pool_names = itertools.count()
        self._idents = itertools.count(pid)
        self._ends: dict[int, FiberLock] = {}
        """What is released when a thread has ended."""

    def begins(self, begun: threading.Thread, kernel: Kernel, fibers: FiberScheduler) -> None:
        """A thread is there."""
        has_ended = FiberLock(kernel, fibers)
        has_ended.acquire()
        it: Any = begun
        it._ident = it._native_id = next(self._idents)
        if _USES_HANDLES:
            it._handle = _Handle(has_ended, it._ident)
        else:
            it._tstate_lock = has_ended
        it._started.set()
        self.alive[it._ident] = begun
        self._ends[it._ident] = has_ended

    def ended(self, ident: int) -> None:
        """It is not there any more. Idempotent."""
        self.alive.pop(ident, None)
        has_ended = self._ends.pop(ident, None)
        if has_ended is not None:
            has_ended.release()

    def all_ended(self) -> None:
        """The simulation is over."""
        for ident in list(self._ends):
            self.ended(ident)


class _OfFiber:
    """What is known of a fiber as a thread: a fiber's slot."""

    __slots__ = ("started", "thread", "was_started")

    def __init__(self, of: threading.Thread, *, was_started: bool) -> None:
        self.thread = of
        self.was_started = was_started
        """Whether a thread of this process has started it."""
        self.started = 0
        """Threads that it has started."""

    def end_process(self, fiber: Fiber, escaped: BaseException) -> None:
        """It ends its process soon."""
        _owner(fiber).end_by_thread(fiber, escaped)


class _Killed(logging.Filter):
    """Threads that end with their process say nothing."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not (record.exc_info and isinstance(record.exc_info[1], FiberKilled))


_KILLED: Final = _Killed()


class Threads:
    """See the module.

    witness: told of an OS thread that user code has started: by call, in words.
    """

    def __init__(self, kernel: Kernel, fibers: FiberScheduler, witness: Callable[[str, str], None]) -> None:
        self._kernel = kernel
        self._fibers = fibers
        self._witness = witness
        self._futures = itertools.count(1)
        self._processes: list[_OfProcess] = []

    def move_to(self, kernel: Kernel, fibers: FiberScheduler) -> None:
        """From now on they are those of another simulation; all of the last one have ended."""
        self._kernel, self._fibers = kernel, fibers
        self._futures = itertools.count(1)
        for process in self._processes:
            process.all_ended()
        self._processes.clear()

    # ---- Who one is ------------------------------------------------------------------------------------------

    def _of_process(self, fiber: Fiber) -> _OfProcess:
        owner = _owner(fiber)
        found: _OfProcess | None = owner.threads
        if found is None:
            found = owner.threads = _OfProcess(owner.pid)
            found.begins(found.main, self._kernel, self._fibers)
            self._processes.append(found)
        return found

    def _of_fiber(self, fiber: Fiber) -> _OfFiber:
        found: _OfFiber | None = fiber.thread
        if found is None:
            process = self._of_process(fiber)
            here = process.main
            if not _owner(fiber).is_main(fiber):  # it runs a method, or a loop
                here = threading.Thread(name=f"Dummy-{next(process.names)}", daemon=True)
                process.begins(here, self._kernel, self._fibers)
                del process.alive[here.ident or 0]  # nobody says when it ends
            found = fiber.thread = _OfFiber(here, was_started=False)
        return found

    # ---- Starting --------------------------------------------------------------------------------------------

    def _start(self, fiber: Fiber, new: Any) -> None:
        if not new._initialized:
            raise RuntimeError("thread.__init__() not called")
        if new._started.is_set():
            raise RuntimeError("threads can only be started once")
        here = self._of_fiber(fiber)
        here.started += 1
        process = self._of_process(fiber)
        begun = _owner(fiber).start_thread(
            lambda: self._run(new, process), b"%b:thread %d" % (fiber.seed, here.started)
        )
        process.begins(new, self._kernel, self._fibers)
        process.started += 1
        begun.thread = _OfFiber(new, was_started=True)

    def _run(self, it: Any, process: _OfProcess) -> None:
        fiber = self._fibers.current()
        assert fiber is not None
        try:
            it.run()
        except FiberKilled:
            raise
        except BaseException as error:
            if fiber.killed or isinstance(error, KeyboardInterrupt):  # Ctrl-C is the driver's
                raise
            it._invoke_excepthook(it)
        finally:
            process.started -= 1
            process.ended(it.ident)

    # ---- What is replaced ------------------------------------------------------------------------------------

    def substitutions(self) -> list[Substitution]:
        """What is to be replaced, made against what stands there now."""
        ident = self._make_ident()
        current = self._instead_of(threading.current_thread, lambda fiber: self._of_fiber(fiber).thread)
        current_thread = Substitution.of(threading, "current_thread", current)
        everybody = self._instead_of(threading.enumerate, lambda fiber: [*self._of_process(fiber).alive.values()])
        return [
            Substitution(holder=threading.Thread, name="start", replacement=self._make_start()),
            Substitution.of(_thread, "start_new_thread", self._make_start_new_thread()),
            current_thread,
            Substitution(holder=threading, name="currentThread", replacement=current_thread.replacement),
            Substitution(holder=_threading_local, name="current_thread", replacement=current_thread.replacement),
            Substitution.of(threading, "get_ident", ident),
            Substitution.of(
                threading, "get_native_id", self._instead_of(threading.get_native_id, lambda fiber: ident())
            ),
            Substitution.of(
                threading,
                "main_thread",
                self._instead_of(threading.main_thread, lambda fiber: self._of_process(fiber).main),
            ),
            Substitution.of(threading, "enumerate", everybody),
            Substitution.of(
                threading, "active_count", self._instead_of(threading.active_count, lambda fiber: len(everybody()))
            ),
            Substitution(holder=threading, name="_newname", replacement=self._make_new_name()),
            Substitution(holder=threading, name="local", replacement=self._make_local()),
            *self._of_futures(),
            *self._of_pipes(),
        ]

    def _instead_of(self, original: Callable[..., Any], virtual: Callable[[Fiber], Any]) -> Callable[..., Any]:
        def call() -> Any:
            fiber = self._fibers.user_fiber()
            return original() if fiber is None else virtual(fiber)

        return call

    def _make_ident(self) -> Callable[[], int]:
        original = threading.get_ident

        def get_ident() -> int:
            fiber = self._fibers.user_fiber()
            if fiber is None or sys._getframe(1).f_globals is vars(threading):  # which asks for itself, at its end
                return original()
            return self._of_fiber(fiber).thread.ident or 0

        return get_ident

    def _make_start(self) -> Callable[[Any], None]:
        original = threading.Thread.start

        def start(self_: Any) -> None:
            fiber = self._fibers.user_fiber()
            if fiber is None:
                original(self_)
            elif stays_real(sys._getframe(1)):
                self._witness(
                    "threading.Thread.start", f"the OS thread {self_.name!r} was started on {fiber.owner.hostname}"
                )
                original(self_)
            else:
                self._start(fiber, self_)

        return start

    def _make_start_new_thread(self) -> Callable[..., int]:
        original = _thread.start_new_thread

        def start_new_thread(function: Callable[..., Any], args: Any, kwargs: Any = None, /) -> int:
            fiber = self._fibers.user_fiber()
            if fiber is None:
                return original(function, args, kwargs or {})
            new = threading.Thread(target=function, args=args, kwargs=kwargs, daemon=True)
            self._start(fiber, new)
            return new.ident or 0

        return start_new_thread

    def _make_new_name(self) -> Any:
        original = threading._newname  # type: ignore[attr-defined]

        def new_name(template: str) -> str:
            fiber = self._fibers.user_fiber()
            if fiber is None:
                name: str = original(template)
                return name
            return template % next(self._of_process(fiber).names)

        return staticmethod(new_name)

    def _make_local(self) -> TypeReplacement:
        original, virtual = threading.local, _threading_local.local

        def base() -> type:
            return original if self._fibers.user_fiber() is None or stays_real(sys._getframe(1)) else virtual

        def local(*args: Any, **kwargs: Any) -> Any:
            return original(*args, **kwargs) if base() is original else virtual(*args, **kwargs)

        local.__module__ = "threading"
        return TypeReplacement(local, original, (virtual,), base)

    def _of_pipes(self) -> list[Substitution]:
        """A `ThreadPool` has a thread that waits for a pipe, which would stop everybody else: it looks again and again.
        It is ended by a finalizer, which compares the process's id."""
        original, finalize = multiprocessing.connection.wait, Finalize.__call__

        def wait(object_list: Any, timeout: float | None = None) -> list[Any]:
            if self._fibers.user_fiber() is None:
                return original(object_list, timeout)
            objects, pause_ns = list(object_list), LOOK_FIRST_NS
            until_ns = inf if timeout is None else self._kernel.now_ns + timeout * 1e9
            while not (ready := original(objects, 0)) and self._kernel.now_ns < until_ns:
                self._fibers.sleep_ns(min(pause_ns, ceil(until_ns - self._kernel.now_ns)) if timeout else pause_ns)
                pause_ns = min(2 * pause_ns, LOOK_NS_MAX)
            return ready

        def call_finalizer(self_: Any, *args: Any, **kwargs: Any) -> Any:
            if self._fibers.user_fiber() is not None:
                kwargs.setdefault("getpid", os.getpid)
            return finalize(self_, *args, **kwargs)

        replaced = Substitution.of(multiprocessing.connection, "wait", wait)
        return [
            replaced,
            Substitution(holder=multiprocessing.pool, name="wait", replacement=replaced.replacement),
            Substitution(holder=Finalize, name="__call__", replacement=call_finalizer),
        ]

    # ---- concurrent.futures ----------------------------------------------------------------------------------

    def _of_futures(self) -> list[Substitution]:
        counter, init = ThreadPoolExecutor._counter, _base.Future.__init__  # type: ignore[attr-defined]

        def pool_number() -> int:
            fiber = self._fibers.user_fiber()
            number: int = counter() if fiber is None else next(self._of_process(fiber).pool_names)
            return number

        def new_future(self_: Any) -> None:
            init(self_)
            if self._fibers.user_fiber() is not None:
                self_.dualray_number = next(self._futures)

        return [
            Substitution(holder=ThreadPoolExecutor, name="_counter", replacement=staticmethod(pool_number)),
            Substitution(holder=ThreadPoolExecutor, name="submit", replacement=self._make_submit()),
            Substitution(holder=ThreadPoolExecutor, name="shutdown", replacement=self._make_shutdown()),
            Substitution(holder=_base.Future, name="__init__", replacement=new_future),
            Substitution(holder=_base.Future, name="__hash__", replacement=_hash_of_future),
        ]

    def _own_pool(self, fiber: Fiber, pool: Any) -> Any:
        """What a process has in place of a pool that has, or would have, real threads."""
        if type(pool._work_queue) is not _REAL_QUEUE:
            return pool
        pools = self._of_process(fiber).pools
        own = pools.get(pool)
        if own is None:
            own = pools[pool] = ThreadPoolExecutor(
                pool._max_workers, pool._thread_name_prefix, pool._initializer, pool._initargs
            )
        return own

    def _make_submit(self) -> Callable[..., Any]:
        original = ThreadPoolExecutor.submit

        def submit(self_: Any, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
            fiber = self._fibers.user_fiber()
            return original(self_ if fiber is None else self._own_pool(fiber, self_), fn, *args, **kwargs)

        submit.__doc__ = original.__doc__
        return submit

    def _make_shutdown(self) -> Callable[..., None]:
        original = ThreadPoolExecutor.shutdown

        def shutdown(self_: Any, wait: bool = True, *, cancel_futures: bool = False) -> None:
            fiber = self._fibers.user_fiber()
            if fiber is not None:
                own = self._own_pool(fiber, self_)
                if own is not self_:
                    original(own, wait, cancel_futures=cancel_futures)
                if fiber is not self._fibers.driver and own is not self_:
                    return  # it is another process's
            original(self_, wait, cancel_futures=cancel_futures)

        shutdown.__doc__ = original.__doc__
        return shutdown


def _hash_of_future(future: Any) -> int:
    """Sets of futures come in the order of their making, in every process."""
    number: int = getattr(future, "dualray_number", 0)
    return number or object.__hash__(future)


def silence() -> None:
    """Have pools say nothing of threads that were killed."""
    _base.LOGGER.addFilter(_KILLED)


def unsilence() -> None:
    """Undo `silence`."""
    _base.LOGGER.removeFilter(_KILLED)
