"""Threads of user code, which are fibers in a simulation.

`threading.Thread.start` in user code begins a fiber of the caller's virtual process: it runs when the caller waits the
next time, in virtual time and in an order that depends on the seed alone. It goes on when the task that has started it
has returned, as in a real worker, and ends with its process. With locks.py and pools.py, everything of `threading`,
`queue`, `concurrent.futures` and `multiprocessing.pool.ThreadPool` works among threads, and so does `dualray.get` in
one. A thread that waits for nothing is not interrupted: what happens between two of its waits happens at once.

Who one is (`current_thread`, `get_ident`, `main_thread`, `enumerate`) is each fiber's own, and so is a
`threading.local` (locals.py); the names of threads are counted in each process.

Threads of libraries that need an OS thread (locks.py says which), and those with which a library serves the driver, are
let be, in real time, and noted: such a run cannot be promised to be the same again.
"""

from __future__ import annotations

import _thread
import _threading_local
import itertools
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from socketserver import BaseServer
from types import FrameType, ModuleType
from typing import Any, Final, Protocol, cast
from weakref import WeakKeyDictionary

from dualray.sim.kernel.fibers import Fiber, FiberKilled, FiberOwner, FiberScheduler
from dualray.sim.kernel.kernel import Kernel
from dualray.sim.usercode.generators import streams_of
from dualray.sim.usercode.locals import Locals
from dualray.sim.usercode.locks import LOOK_AGAIN_S, FiberLock, makes_threads, stays_real, words_of_wait
from dualray.sim.usercode.memory_guard import MEMORY_THREAD
from dualray.sim.usercode.substitutions import Substitution, is_users
from dualray.sim.usercode.watchdog import THREAD

__all__ = ["ProcessThreads", "Threads"]

_SERVERS: Final = frozenset({"http.server", "socketserver", "wsgiref.simple_server", "xmlrpc.server"})
"""Modules of which a method serves until it is told to stop, by sockets."""
IDENTS_OF_PROCESS: Final = 1 << 16
"""Identities of threads that each process has, from the first one on: its pid times this."""
OS_PATIENCE_S: Final = 3.0
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

    def group_of(self, fiber: Fiber) -> str:
        """The concurrency group of the method that a fiber runs."""

    def start_thread(self, function: Callable[[], object], seed: bytes) -> Fiber:
        """Run a function in a fiber of its own, soon."""

    def end_by_thread(self, fiber: Fiber, escaped: BaseException) -> None:
        """A thread that user code has started ends it soon, by `os._exit` or a signal."""


def _owner(fiber: Fiber) -> ThreadOwner:
    return cast(ThreadOwner, fiber.owner)


class ProcessThreads:
    """The threads of one virtual process."""

    def __init__(self, pid: int) -> None:
        self.main = threading.Thread(name="MainThread", daemon=False)
        self.started = 0
        """Threads that user code has started, and that have not ended."""
        self.alive: dict[int, threading.Thread] = {}
        """By their identity, in the order of their beginning."""
        self.idle: dict[str, list[threading.Thread]] = {}
        """Of those that run one method of an actor after the other, by its concurrency group."""
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

    def of_method(self, kernel: Kernel, fibers: FiberScheduler, group: str) -> threading.Thread:
        """One of those that run methods and event loops: each group has its own."""
        idle = self.idle.get(group)
        if idle:
            return idle.pop()
        made = threading.Thread(name=f"dualray-call_{next(self._methods)}", daemon=False)
        self.begins(made, kernel, fibers)
        return made

    def fiber_ended(self, fiber: Fiber, group: str) -> None:
        """What a fiber of a method or a loop was is free."""
        known: _OfFiber | None = fiber.thread
        if known is not None and not known.was_started and known.thread is not self.main:
            self.idle.setdefault(group, []).append(known.thread)

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


class Threads:
    """See the module.

    witness: told of an OS thread that user code has started: by call, in words.
    """

    def __init__(self, kernel: Kernel, fibers: FiberScheduler, witness: Callable[[str, str], None]) -> None:
        self._kernel = kernel
        self._fibers = fibers
        self._witness = witness
        self._locals = Locals(fibers, self._thread_of)
        self._processes: list[ProcessThreads] = []

    def move_to(self, kernel: Kernel, fibers: FiberScheduler) -> None:
        """From now on they are those of another simulation; all of the last one have ended."""
        self._kernel, self._fibers = kernel, fibers
        fibers.awaits = self._await_os_threads
        self._locals.move_to(fibers)
        for process in self._processes:
            process.all_ended()
        self._processes.clear()

    # ---- Who one is ------------------------------------------------------------------------------------------

    def of_process(self, fiber: Fiber) -> ProcessThreads:
        """The threads of the process that a fiber belongs to."""
        owner = _owner(fiber)
        found: ProcessThreads | None = owner.threads
        if found is None:
            found = owner.threads = ProcessThreads(owner.pid)
            found.begins(found.main, self._kernel, self._fibers)
            self._processes.append(found)
        return found

    def _of_fiber(self, fiber: Fiber) -> _OfFiber:
        found: _OfFiber | None = fiber.thread
        if found is None:
            process = self.of_process(fiber)
            here = process.main
            if not _owner(fiber).is_main(fiber):  # it runs a method, or a loop
                here = process.of_method(self._kernel, self._fibers, _owner(fiber).group_of(fiber))
            found = fiber.thread = _OfFiber(here, was_started=False)
        return found

    def _thread_of(self, fiber: Fiber) -> tuple[threading.Thread, bool]:
        found = self._of_fiber(fiber).thread
        return found, found is self.of_process(fiber).main

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
        process = self.of_process(fiber)
        begun = _owner(fiber).start_thread(
            lambda: self._run(new, process), b"%b:thread %d" % (fiber.seed, here.started)
        )
        begun.streams = streams_of(fiber)  # as on real processes, threads draw from the same random numbers
        process.begins(new, self._kernel, self._fibers)
        process.started += 1
        begun.thread = _OfFiber(new, was_started=True)

    def _run(self, it: Any, process: ProcessThreads) -> None:
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
        own = (threading.main_thread().name, THREAD, MEMORY_THREAD)
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
        process = self.of_process(driver)
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
        everybody = self._instead_of(threading.enumerate, lambda fiber: [*self.of_process(fiber).alive.values()])
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
                self._instead_of(threading.main_thread, lambda fiber: self.of_process(fiber).main),
            ),
            Substitution.of(threading, "enumerate", everybody),
            Substitution.of(
                threading, "active_count", self._instead_of(threading.active_count, lambda fiber: len(everybody()))
            ),
            Substitution(holder=threading, name="_newname", replacement=self._make_new_name()),
            Substitution(holder=BaseServer, name="serve_forever", replacement=self._make_serve_forever()),
            self._locals.substitution(),
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
        """Whether it is a thread with which a library serves the driver: one that it starts itself, or a server's.

        A library whose module imports dualray, or Ray, calls it in its threads perhaps: these are virtual.
        """
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
            and not _imports_dualray(caller.f_globals)
        )

    def _make_serve_forever(self) -> Callable[..., None]:
        """A thread of the driver's that serves: an OS thread does it, and the fiber waits for that."""
        original, start = BaseServer.serve_forever, threading.Thread.start

        def serve_forever(self_: BaseServer, *args: Any, **kwargs: Any) -> None:
            fiber, driver = self._fibers.user_fiber(), self._fibers.driver
            if fiber is None or driver is None or fiber is driver or fiber.owner is not driver.owner:
                original(self_, *args, **kwargs)
                return
            is_over = FiberLock(self._kernel, self._fibers)
            is_over.acquire()
            escaped: list[BaseException] = []

            def serve() -> None:
                try:
                    original(self_, *args, **kwargs)
                except BaseException as error:  # noqa: BLE001 - raised in the thread that the program knows
                    escaped.append(error)
                finally:
                    is_over.release()

            name = f"{self._of_fiber(fiber).thread.name} (serve_forever)"
            self._witness("threading.Thread.start", f"the OS thread {name!r} was started on {fiber.owner.hostname}")
            with self._fibers.system:
                start(threading.Thread(target=serve, name=name, daemon=True))
            is_over.acquire()
            if escaped:
                raise escaped[0]

        return serve_forever

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
            return template % next(self.of_process(fiber).names)

        return staticmethod(new_name)


def _imports_dualray(namespace: Mapping[str, Any]) -> bool:
    """Whether a module imports dualray as a whole, under its own name or under the name `ray`."""
    modules = (value.__name__ for value in list(namespace.values()) if isinstance(value, ModuleType))
    return any(name.partition(".")[0] in ("dualray", "ray") for name in modules)
