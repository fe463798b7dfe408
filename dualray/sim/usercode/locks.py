"""Locks of user code, whose threads are fibers in a simulation.

A fiber that waits for a real lock would stop the one OS thread that all fibers share, for ever: whoever is to release
it could not run. So in user code `threading.Lock` and `threading.RLock` make locks for fibers, which park; and with
them conditions, events, semaphores, barriers, `queue.Queue` and, here, `queue.SimpleQueue`, which are made of these.
Who waits is served in the order of arrival, in virtual time.

A lock that a module of the user's made when it was imported, and keeps in its globals, classes, instances, containers
or defaults, is each virtual process's own while the simulation runs (`ModuleLock`), as each real process has its own.
What else was made before, or is made by libraries when they are imported, stays real: no obstacle as long as nobody
waits in virtual time while he holds it.

OS threads may take and release locks of fibers, too: those of libraries, and all after the simulation. They look every
millisecond; what they release wakes a fiber.
"""

from __future__ import annotations

import math
import queue
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from types import FrameType, TracebackType
from typing import Any, Final, NoReturn

from dualray.shared.core.interruption import is_importing
from dualray.sim.kernel.fibers import Fiber, FiberOwner, FiberScheduler
from dualray.sim.kernel.kernel import Kernel
from dualray.sim.usercode import substitutions
from dualray.sim.usercode.polling import poll
from dualray.sim.usercode.substitutions import Substitution, TypeReplacement, is_users
from dualray.sim.usercode.switching import ahead_ns
from dualray.sim.usercode.virtual_time import READ_STEP_MIN_NS

__all__ = [
    "FiberLock",
    "FiberRLock",
    "Locks",
    "ModuleLock",
    "makes_threads",
    "place_of",
    "stays_real",
    "words_of_wait",
]

LOOK_AGAIN_S: Final = 0.001
"""Until an OS thread that waits for a lock of fibers looks again."""
_ADDRESS: Final = 0x7F00_0000_0000
"""Locks show addresses above this one."""


class FiberLock:
    """`threading.Lock` among fibers."""

    __slots__ = ("__weakref__", "_fibers", "_granted", "_is_locked", "_kernel", "_number", "_waiting")
    kind = "_thread.lock"
    _guard = threading.Lock()
    """Of the state of all, which OS threads may change."""

    def __init__(self, kernel: Kernel, fibers: FiberScheduler) -> None:
        self._kernel = kernel
        self._fibers = fibers
        self._is_locked = False
        self._number = 0
        self._granted: Fiber | None = None
        """Whom it was handed to, and who does not run yet."""
        self._waiting: deque[Fiber] = deque()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """As `threading.Lock.acquire`; the timeout counts virtual seconds."""
        if not blocking and timeout != -1:
            raise ValueError("can't specify a timeout for a non-blocking call")
        if timeout < 0 and timeout != -1:
            raise ValueError("timeout value must be a non-negative number")
        if self._take():
            return True
        fiber = self._fibers.current()
        if not blocking or timeout == 0:
            return fiber is not None and poll(self._kernel, self._fibers) and self._take()
        if fiber is None:
            return self._acquire_elsewhere(timeout)
        if self._take(fiber):
            return True
        alarm = None
        if timeout != -1:  # not shorter than the shortest sleep: who waits for the rest of a time must see it pass
            delay_ns = max(math.ceil(timeout * 1e9), READ_STEP_MIN_NS) + ahead_ns(fiber, self._kernel.now_ns)
            alarm = self._kernel.call_after(delay_ns, self._give_up, fiber)
        try:
            has_it = bool(self._fibers.park())
        except BaseException:
            if fiber in self._waiting:
                self._waiting.remove(fiber)
            elif self._granted is fiber:
                self.release()
            raise
        finally:
            if self._granted is fiber:
                self._granted = None
            if alarm is not None:
                alarm.cancel()
        return has_it

    def _take(self, or_wait: Fiber | None = None) -> bool:
        """Whether it was free; else a fiber, if one is given, is in the line."""
        with self._guard:
            if not self._is_locked:
                self._is_locked = True
                return True
            if or_wait is not None:
                self._waiting.append(or_wait)
            return False

    def _acquire_elsewhere(self, timeout: float) -> bool:
        """As `acquire`, in real time: for an OS thread, of a library or after the simulation."""
        if not self._fibers.is_elsewhere():
            raise RuntimeError("the kernel of a simulation cannot wait for a lock of its user code")
        until = math.inf if timeout == -1 else time.monotonic() + timeout
        while not self._take():
            if time.monotonic() >= until:
                return False
            time.sleep(LOOK_AGAIN_S)
        return True

    def _give_up(self, fiber: Fiber) -> None:
        with self._guard:
            if fiber not in self._waiting:
                return
            self._waiting.remove(fiber)
        self._fibers.wake(fiber, False)

    def release(self) -> None:
        """As `threading.Lock.release`: the one that waits longest has it from now on."""
        while True:
            with self._guard:
                if not self._is_locked:
                    raise RuntimeError("release unlocked lock")
                if not self._waiting:
                    self._is_locked, self._granted = False, None
                    return
                self._granted = self._waiting.popleft()
            if self._fibers.wake(self._granted, True):
                return

    def _is_owned(self) -> bool:
        """What a Condition asks before it waits: it would try to take the lock."""
        return self._is_locked

    def locked(self) -> bool:
        """Whether somebody has it."""
        return self._is_locked

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def _at_fork_reinit(self) -> None:
        """A process was forked: nobody has it there."""
        self._is_locked = False
        self._waiting.clear()

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"cannot pickle '{self.kind}' object")

    def __repr__(self) -> str:
        return f"<{'locked' if self._is_locked else 'unlocked'} {self.kind} object at {self.address}>"

    @property
    def address(self) -> str:
        """In place of the address of the object in memory, which differs between equal runs."""
        if not self._number:
            self._kernel.addresses_shown = self._number = self._kernel.addresses_shown + 1
        return f"0x{_ADDRESS + 64 * self._number:x}"


class FiberRLock:
    """`threading.RLock` among fibers."""

    __slots__ = ("__weakref__", "_count", "_fibers", "_lock", "_owner")
    kind = "_thread.RLock"

    def __init__(self, kernel: Kernel, fibers: FiberScheduler) -> None:
        self._lock = FiberLock(kernel, fibers)
        self._fibers = fibers
        self._owner: Fiber | int | None = None
        self._count = 0

    def _me(self) -> Fiber | int:
        return self._fibers.current() or threading.get_ident()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """As `threading.RLock.acquire`; the timeout counts virtual seconds."""
        me = self._me()
        if self._count and self._owner == me:
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

    def _at_fork_reinit(self) -> None:
        self._lock._at_fork_reinit()
        self._owner, self._count = None, 0

    # What `threading.Condition` asks of the lock that it is given.

    def _is_owned(self) -> bool:
        return bool(self._count) and self._owner == self._me()

    def _recursion_count(self) -> int:
        """What multiprocessing asks before it takes the lock: how often the caller has it."""
        return self._count if self._is_owned() else 0

    def _release_save(self) -> int:
        count, self._count, self._owner = self._count, 0, None
        self._lock.release()
        return count

    def _acquire_restore(self, count: int) -> None:
        self._lock.acquire()
        self._owner, self._count = self._me(), count

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"cannot pickle '{self.kind}' object")

    def __repr__(self) -> str:
        state = "locked" if self._count else "unlocked"
        return f"<{state} {self.kind} object count={self._count} at {self._lock.address}>"


class ModuleLock:
    """A lock that a module of the user's has: each virtual process's own in user code, and elsewhere the real one."""

    __slots__ = ("__weakref__", "_kernel", "_locks", "_own", "_real")
    make: type[FiberLock | FiberRLock] = FiberLock

    def __init__(self, real: Any, locks: Locks) -> None:
        self._real = real
        self._locks = locks
        self._kernel: Kernel | None = None
        self._own: dict[FiberOwner, FiberLock | FiberRLock] = {}

    def _here(self) -> Any:
        locks = self._locks
        fiber = locks.fibers.user_fiber()
        if fiber is None:
            return self._real
        if self._kernel is not locks.kernel:  # another simulation
            self._kernel, self._own = locks.kernel, {}
        own = self._own.get(fiber.owner)
        if own is None:
            own = self._own[fiber.owner] = self.make(locks.kernel, locks.fibers)
        return own

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """As `threading.Lock.acquire`."""
        taken: bool = self._here().acquire(blocking, timeout)
        return taken

    def release(self) -> None:
        """As `threading.Lock.release`."""
        self._here().release()

    def locked(self) -> bool:
        """Whether somebody of this process has it."""
        taken: bool = self._here().locked()
        return taken

    def _at_fork_reinit(self) -> None:
        self._here()._at_fork_reinit()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *error: object) -> None:
        self.release()

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"cannot pickle '{self.make.kind}' object")

    def __repr__(self) -> str:
        return repr(self._here())


class ModuleRLock(ModuleLock):
    """As ModuleLock, of `threading.RLock`."""

    __slots__ = ()
    make = FiberRLock

    def _is_owned(self) -> bool:
        owned: bool = self._here()._is_owned()
        return owned

    def _recursion_count(self) -> int:
        count: int = self._here()._recursion_count()
        return count

    def _release_save(self) -> Any:
        return self._here()._release_save()

    def _acquire_restore(self, state: Any) -> None:
        self._here()._acquire_restore(state)


FiberLock.__name__ = ModuleLock.__name__ = "lock"  # as who reads an error knows them
FiberRLock.__name__ = ModuleRLock.__name__ = "RLock"

_OF_THREADS: Final = frozenset({"_threading_local", "concurrent", "dualray", "multiprocessing", "queue", "threading"})
"""Packages that make threads and locks for whoever called them."""
_WITH_OS_THREADS: Final = frozenset({"execnet", "jax", "keras", "tensorflow", "torch", "xdist"})
"""Libraries whose threads keep state in C, where a fiber has none of its own; and pytest-xdist, which waits for tests
that an OS thread of execnet takes in, also while a simulation goes on from one test to the next."""


def stays_real(frame: FrameType | None) -> bool:
    """Whether a lock or a thread that is made there is one of the interpreter's: a module is being imported, whose
    locks are for others, too, or it is the thread, or the lock, of a library that needs an OS thread."""
    while frame is not None and _package(frame) in _OF_THREADS:
        frame = frame.f_back
    if frame is not None and _package(frame) in _WITH_OS_THREADS:
        return True
    return is_importing(frame)


def makes_threads(frame: FrameType) -> bool:
    """Whether what runs there makes threads for whoever called it."""
    return _package(frame) in _OF_THREADS or _package(frame) == "asyncio"


def place_of(fiber: Fiber) -> str:
    """Where its user's code is, in words; "": nowhere."""
    frame = fiber.frame()
    while frame is not None and _package(frame) in _OF_THREADS:
        frame = frame.f_back
    return "" if frame is None else f"{frame.f_code.co_filename}, line {frame.f_lineno}"


def words_of_wait(fiber: Fiber) -> str | None:
    """What a fiber waits for, and where its user's code is; None: it waits for no lock."""
    frame = fiber.frame()
    while frame is not None and frame.f_code.co_filename != __file__ and _package(frame) == "dualray":
        frame = frame.f_back
    if frame is None or frame.f_code.co_filename != __file__:
        return None
    call = "Lock.acquire"
    while frame is not None and (package := _package(frame)) in _OF_THREADS:
        if package != "dualray":
            call = frame.f_code.co_qualname
        frame = frame.f_back
    where = "" if frame is None else f" in {frame.f_code.co_filename}, line {frame.f_lineno}"
    return f"{call}(){where} has not returned"


def _package(frame: FrameType) -> str:
    name: object = frame.f_globals.get("__name__")
    return name.partition(".")[0] if isinstance(name, str) else ""


class Locks:
    """What makes locks in user code."""

    def __init__(self, kernel: Kernel, fibers: FiberScheduler) -> None:
        self.kernel = kernel
        self.fibers = fibers
        self._stand_ins: dict[int, ModuleLock] = {}
        """By the identity of the real lock, which they keep alive."""
        self._of_modules = self.of_modules()

    def move_to(self, kernel: Kernel, fibers: FiberScheduler) -> None:
        """From now on they are those of another simulation."""
        self.kernel, self.fibers = kernel, fibers

    def of_modules(self) -> Mapping[type, Callable[[Any], Any]]:
        """What stands for locks that modules of the user's keep: by their type."""
        kinds: dict[type, type[ModuleLock]] = {type(threading.Lock()): ModuleLock, type(threading.RLock()): ModuleRLock}
        return {lock: partial(self._stand_in, kind) for lock, kind in kinds.items()}

    def _stand_in(self, kind: type[ModuleLock], real: Any) -> ModuleLock:
        """The one that stands for a lock, whatever names it has."""
        found = self._stand_ins.get(id(real))
        if found is None:
            found = self._stand_ins[id(real)] = kind(real, self)
        return found

    def substitutions(self) -> list[Substitution]:
        """What is to be replaced, made against what stands there now."""
        lock = Substitution.of(threading, "Lock", self._instead_of(threading.Lock, self._lock), FiberLock)
        clock = self._instead_of_clock
        return [
            lock,
            Substitution.of(threading, "_allocate_lock", self._instead_of(threading._allocate_lock, self._lock)),  # type: ignore[attr-defined]
            Substitution.of(threading, "RLock", self._instead_of(threading.RLock, self._rlock)),
            Substitution(holder=threading, name="_time", replacement=clock(threading._time)),  # type: ignore[attr-defined]
            Substitution(holder=queue, name="time", replacement=clock(queue.time)),  # type: ignore[attr-defined]
            Substitution(holder=queue, name="SimpleQueue", replacement=self._simple_queue()),
        ]

    def _simple_queue(self) -> TypeReplacement:
        original, virtual = queue.SimpleQueue, queue._PySimpleQueue  # type: ignore[attr-defined]

        def base() -> type:
            is_real = self.fibers.user_fiber() is None or stays_real(sys._getframe(1))
            made: type = original if is_real else virtual
            return made

        new = self._instead_of(original, virtual)
        new.__module__, new.__name__ = "queue", "SimpleQueue"
        return TypeReplacement(new, original, (virtual,), base)

    def _lock(self) -> FiberLock:
        return FiberLock(self.kernel, self.fibers)

    def _rlock(self) -> FiberRLock:
        return FiberRLock(self.kernel, self.fibers)

    def _instead_of(self, original: Callable[..., Any], make: Callable[[], Any]) -> Callable[..., Any]:
        def new(*args: Any, **kwargs: Any) -> Any:
            if self.fibers.user_fiber() is None:
                return original(*args, **kwargs)
            caller: Any = sys._getframe(1)
            if caller.f_globals is vars(substitutions):  # it is called by what stands for a class
                caller = caller.f_back
            if not stays_real(caller):
                return make(*args, **kwargs)
            made = original(*args, **kwargs)
            stand_in = self._of_modules.get(type(made))
            return made if stand_in is None or not is_users(caller.f_globals) else stand_in(made)

        return new

    def _instead_of_clock(self, original: Callable[[], float]) -> Any:
        def clock() -> float:
            return original() if self.fibers.user_fiber() is None else self.kernel.now_ns / 1e9

        return staticmethod(clock)
