"""Threads of user code, which are fibers in a simulation.

`threading.Thread.start` in user code begins a fiber of the caller's virtual process: it runs when the caller waits the
next time, in virtual time and in an order that depends on the seed alone. It goes on when the task that has started it
has returned, as in a real worker, and ends with its process. With locks.py, everything of `threading`, `queue`,
`concurrent.futures` and `multiprocessing.pool.ThreadPool` works among threads, and so does `dualray.get` in one. A
thread that waits for nothing is not interrupted: what happens between two of its waits happens at once.

Who one is (`current_thread`, `get_ident`, `main_thread`, `enumerate`) is each fiber's own, and so is a
`threading.local` (locals.py); the names of threads are counted in each process.

A `ThreadPoolExecutor` that was made before the simulation, or by an import, has real threads, or would have: in user
code each process has one of its own in its place.

Threads of libraries that need an OS thread (locks.py says which) are let be, in real time, and noted: such a run cannot
be promised to be the same again.
"""

from __future__ import annotations

import _thread
import _threading_local
import concurrent.futures
import itertools
import logging
import multiprocessing.connection
import multiprocessing.pool
import os
import queue
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, _base, thread
from math import ceil, inf
from multiprocessing.util import Finalize
from types import FrameType
from typing import Any, Final, Protocol, cast
from weakref import WeakKeyDictionary, WeakSet

from dualray.sim.fibers import Fiber, FiberKilled, FiberOwner, FiberScheduler
from dualray.sim.kernel import Kernel
from dualray.sim.locals import Locals
from dualray.sim.locks import LOOK_AGAIN_S, FiberLock, makes_threads, poll, stays_real, words_of_wait
from dualray.sim.virtual_time import Substitution, is_users
from dualray.sim.watchdog import THREAD

__all__ = ["Threads"]

_SERVERS: Final = frozenset({"http.server", "socketserver", "wsgiref.simple_server", "xmlrpc.server"})
"""Modules of which a method serves until it is told to stop, by sockets."""
_REAL_QUEUE: Final = queue.SimpleQueue
LOOK_FIRST_NS: Final = 1_000_000
LOOK_NS_MAX: Final = 100_000_000
"""Who waits for a pipe looks again after so long, and each time after twice as long, up to so long."""
IDENTS_OF_PROCESS: Final = 1 << 16
"""Identities of threads that each process has, from the first one on: its pid times this."""
OS_PATIENCE_S: Final = 1.0
"""Before there is a deadlock where OS threads may release what is waited for."""
_USES_HANDLES: Final = sys.version_info >= (3, 13)


class _End:
    """Whether a thread has ended: what `join` and `is_alive` take for the lock of an OS thread."""

    def __init__(self, kernel: Kernel, fibers: FiberScheduler) -> None:
        self._lock = FiberLock(kernel, fibers)
        self._lock.acquire()
        self._was_interrupted = False

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Wait until it has; whether it has."""
        try:
            has_ended = self._lock.acquire(blocking, timeout)
        except BaseException:
            self._was_interrupted = True
            raise
        if has_ended:
            self._lock.release()
        return has_ended

    def release(self) -> None:
        """Nobody holds it."""

    def locked(self) -> bool:
        """Whether it goes on. Asked by a `join` that was interrupted, it says no: the other answer is taken for an
        end, before Python 3.13."""
        was_interrupted, self._was_interrupted = self._was_interrupted, False
        return not was_interrupted and self._lock.locked()

    def come(self) -> None:
        """It has ended."""
        if self._lock.locked():
            self._lock.release()


class _Handle:
    """What stands for the OS thread in a Thread, from Python 3.13 on."""

    def __init__(self, end: _End, ident: int) -> None:
        self._end = end
        self.ident = ident

    def is_done(self) -> bool:
        """Whether the thread has ended."""
        return self._end.acquire(blocking=False)

    def join(self, timeout: float | None = None) -> None:
        """Wait until it has."""
        self._end.acquire(timeout=-1 if timeout is None else max(timeout, 0))


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
        self.started = 0
        """Threads that user code has started, and that have not ended."""
        self.alive: dict[int, threading.Thread] = {}
        """By their identity, in the order of their beginning."""
        self.idle: list[threading.Thread] = []
        """Of those that run one method of an actor after the other."""
        self.pools: WeakKeyDictionary[ThreadPoolExecutor, ThreadPoolExecutor] = WeakKeyDictionary()
        """In place of those that others have made."""
        self.queues: WeakKeyDictionary[threading.Thread, Any] = WeakKeyDictionary()
        """Of threads of pools."""
        self.names = itertools.count(1)
        self.pool_names = itertools.count()
        self._methods = itertools.count()
        self._idents = itertools.count(pid * IDENTS_OF_PROCESS)
        self._ends: dict[int, _End] = {}

    def begins(self, begun: threading.Thread, kernel: Kernel, fibers: FiberScheduler) -> None:
        """A thread is there."""
        end = _End(kernel, fibers)
        it: Any = begun
        it._ident = it._native_id = next(self._idents)
        if _USES_HANDLES:
            it._handle = _Handle(end, it._ident)
        else:
            it._tstate_lock = end
        it._started.set()
        self.alive[it._ident] = begun
        self._ends[it._ident] = end

    def of_method(self, kernel: Kernel, fibers: FiberScheduler) -> threading.Thread:
        """One of those that run methods and event loops."""
        if self.idle:
            return self.idle.pop()
        made = threading.Thread(name=f"dualray-call_{next(self._methods)}", daemon=False)
        self.begins(made, kernel, fibers)
        return made

    def fiber_ended(self, fiber: Fiber) -> None:
        """What a fiber of a method or a loop was is free."""
        known: _OfFiber | None = fiber.thread
        if known is not None and not known.was_started and known.thread is not self.main:
            self.idle.append(known.thread)

    def ended(self, ident: int) -> None:
        """It is not there any more. Idempotent."""
        self.alive.pop(ident, None)
        end = self._ends.pop(ident, None)
        if end is not None:
            end.come()

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
        self._locals = Locals(fibers, self._thread_of)
        self._processes: list[_OfProcess] = []
        self._pools: WeakSet[ThreadPoolExecutor] = WeakSet()
        """That were made in this simulation."""

    def move_to(self, kernel: Kernel, fibers: FiberScheduler) -> None:
        """From now on they are those of another simulation; all of the last one have ended."""
        self._kernel, self._fibers = kernel, fibers
        fibers.awaits = self._await_os_threads
        self._locals.move_to(fibers)
        self._futures = itertools.count(1)
        for process in self._processes:
            process.all_ended()
        self._processes.clear()
        for pool in list(self._pools):
            _renew(pool)
        self._pools.clear()

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
                here = process.of_method(self._kernel, self._fibers)
            found = fiber.thread = _OfFiber(here, was_started=False)
        return found

    def _thread_of(self, fiber: Fiber) -> tuple[threading.Thread, bool]:
        found = self._of_fiber(fiber).thread
        return found, found is self._of_process(fiber).main

    def of_modules(self) -> dict[type, Callable[[Any], Any]]:
        """What stands for locals that modules of the user's keep: by their type."""
        return self._locals.of_modules()

    # ---- Starting --------------------------------------------------------------------------------------------

    def _start(self, fiber: Fiber, new: Any) -> None:
        if not new._initialized:
            raise RuntimeError("thread.__init__() not called")
        if new._started._flag:
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

    def _await_os_threads(self) -> bool:
        """Nothing is left to happen, and somebody waits for what an OS thread may do: give it time, real one. Whether
        it has done so."""
        own = (threading.main_thread().name, THREAD)
        others = [each for each in threading._active.values() if each.name not in own]  # type: ignore[attr-defined]
        fibers = self._fibers
        if not others or not any(words_of_wait(fiber) for fiber in fibers.fibers()):
            return False
        until_s = time.monotonic() + OS_PATIENCE_S
        while not fibers.is_ready() and time.monotonic() < until_s:
            time.sleep(LOOK_AGAIN_S)
        if fibers.is_ready():
            self._witness(
                "threading.Lock.release", f"the OS thread {others[-1].name!r}, or another one, released a lock"
            )
        return fibers.is_ready()

    # ---- The end ---------------------------------------------------------------------------------------------

    def wait_at_exit(self) -> None:
        """The interpreter ends, and the simulation still goes on: as for OS threads, wait for those of the driver that
        are no daemons."""
        driver = self._fibers.user_fiber()
        if driver is None or driver is not self._fibers.driver or _owner(driver).threads is None:
            return
        process = self._of_process(driver)
        for waiting in list(process.queues.values()):
            waiting.put(None)
        for each in list(process.alive.values()):
            if each is not process.main and not each.daemon:
                each.join()

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
            self._locals.substitution(),
            *self._of_futures(),
            *self._of_pipes(),
            *self._of_polls(),
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
            elif stays_real(sys._getframe(1)) or self._serves(fiber, self_, sys._getframe(1)):
                self._witness(
                    "threading.Thread.start", f"the OS thread {self_.name!r} was started on {fiber.owner.hostname}"
                )
                with self._fibers.system:  # until it has begun, nothing else happens
                    original(self_)
            else:
                self._start(fiber, self_)

        return start

    def _serves(self, fiber: Fiber, new: Any, caller: FrameType) -> bool:
        """Whether it is a thread with which a library serves the driver: one that it starts itself, or a server's."""
        driver = self._fibers.driver
        if driver is None or fiber.owner is not driver.owner:
            return False
        target = getattr(new, "_target", None)
        if getattr(target, "__module__", None) in _SERVERS:
            return True
        return (
            caller.f_globals.get("__name__") != "__main__"
            and not is_users(caller.f_globals)
            and not makes_threads(caller)
        )

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

    def _of_polls(self) -> list[Substitution]:
        """Who looks again and again whether something has happened waits a moment each time."""
        is_set, get, empty = threading.Event.is_set, queue.Queue.get, queue.Queue.empty

        def event_is_set(self_: Any) -> bool:
            return is_set(self_) or (poll(self._kernel, self._fibers) and is_set(self_))

        def queue_get(self_: Any, block: bool = True, timeout: float | None = None) -> Any:
            if block or self_._qsize() or not poll(self._kernel, self._fibers):
                return get(self_, block, timeout)
            return get(self_, block=False)

        simple: Any = queue._PySimpleQueue  # type: ignore[attr-defined]
        simple_get, simple_empty = simple.get, simple.empty

        def simple_queue_get(self_: Any, block: bool = True, timeout: float | None = None) -> Any:
            if not block and simple_empty(self_):
                poll(self._kernel, self._fibers)
            return simple_get(self_, block, timeout)

        def simple_queue_empty(self_: Any) -> bool:
            return simple_empty(self_) and not (poll(self._kernel, self._fibers) and not simple_empty(self_))

        def queue_empty(self_: Any) -> bool:
            return empty(self_) and not (poll(self._kernel, self._fibers) and not empty(self_))

        return [
            Substitution(holder=threading.Event, name="is_set", replacement=event_is_set),
            Substitution(holder=queue.Queue, name="get", replacement=queue_get),
            Substitution(holder=queue.Queue, name="empty", replacement=queue_empty),
            Substitution(holder=simple, name="get", replacement=simple_queue_get),
            Substitution(holder=simple, name="empty", replacement=simple_queue_empty),
        ]

    # ---- concurrent.futures ----------------------------------------------------------------------------------

    def _of_futures(self) -> list[Substitution]:
        counter = ThreadPoolExecutor._counter  # type: ignore[attr-defined]

        def pool_number() -> int:
            fiber = self._fibers.user_fiber()
            number: int = counter() if fiber is None else next(self._of_process(fiber).pool_names)
            return number

        def new_future() -> Future[Any]:
            return Future() if self._fibers.user_fiber() is None else _NumberedFuture(next(self._futures))

        done = _base.Future.done

        def is_done(self_: Any) -> bool:
            return done(self_) or (poll(self._kernel, self._fibers) and done(self_))

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
            Substitution(holder=_base.Future, name="done", replacement=is_done),
            future,
            Substitution(holder=concurrent.futures, name="Future", replacement=future.replacement),
        ]

    def _own_pool(self, fiber: Fiber, pool: Any, caller: FrameType) -> Any:
        """What a process has in place of a pool that another one has made, or nobody in this simulation."""
        process = self._of_process(fiber)
        if getattr(pool, "dualray_owner", None) is process or pool._shutdown or stays_real(caller):
            return pool
        own: Any = process.pools.get(pool)
        if own is None:
            own = process.pools[pool] = ThreadPoolExecutor(
                pool._max_workers, pool._thread_name_prefix, pool._initializer, pool._initargs
            )
        return own

    def _process_of(self, begun: threading.Thread) -> _OfProcess | None:
        """Whose virtual thread it is."""
        fiber = self._fibers.user_fiber()
        if fiber is None:
            return None
        process = self._of_process(fiber)
        return process if process.alive.get(begun.ident or 0) is begun else None

    def _make_new_pool(self) -> Callable[..., None]:
        original = ThreadPoolExecutor.__init__

        def init(self_: Any, *args: Any, **kwargs: Any) -> None:
            original(self_, *args, **kwargs)
            fiber = self._fibers.user_fiber()
            if fiber is not None and type(self_._work_queue) is not _REAL_QUEUE:
                self_.dualray_owner = self._of_process(fiber)
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

    def __init__(self, real: Any, of_process: Callable[[threading.Thread], _OfProcess | None]) -> None:
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
