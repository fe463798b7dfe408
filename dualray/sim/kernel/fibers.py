"""User code in fibers: the driver script, every task and every actor of a simulation, on one OS thread.

Theory of operation
-------------------
A fiber is a greenlet that runs user code. At any moment either one fiber runs or the kernel does. The
kernel loop has a greenlet of its own, the hub: a fiber that has to wait parks, which switches to the hub;
the hub performs events until one of them wakes a fiber, and switches to that. Switches happen between the
hub and a fiber, never between two fibers, so that there is one place where a fiber starts to run and where
it stops: `_run`. The hooks `on_resume` and `on_suspend` are called there, on the hub's side.

The driver is the greenlet that called `init` (usually the root greenlet of the main thread):
`adopt_current` makes it a fiber, and it runs until it parks for the first time. Other fibers are spawned by
the runner, on greenlets from a pool (a new greenlet costs ten times as much as one used before).

Waking is not running. `wake` and `throw` put the fiber into a queue; it is resumed, in the order of the
calls, when the event that woke it is over and before the next one. User code therefore never runs in the
middle of a machine's `handle`. The exception is `spawn` on the hub: it runs the new fiber at once, until it
parks or ends; a runner calls it last in an event.

    starts READY -> RUNNING <-> PARKED -> READY -> RUNNING -> ENDED
    a wake or throw for a fiber that is RUNNING is kept, and its next park answers at once

A fiber that has been killed (thrown a `FiberKilled`) does not wait again: each park raises once more, so
that `finally` blocks and `except BaseException` of user code cannot hold on to a dead worker. What else
escapes from it is dropped, as nobody hears the last words of a killed process. Code that swallows it
RETHROWS_MAX times is abandoned: its greenlet stays suspended (the only one that outlives `close`, for
greenlet can end it no more than we can) and `on_crash` is told.

What the kernel raises (a broken invariant, KeyboardInterrupt from Ctrl-C) surfaces in the driver, whose
call was waiting; so does a KeyboardInterrupt that escapes from a spawned fiber, unless `throw` threw it there or
the fiber's own code raised it: that ends its process. When the driver is parked and the kernel has nothing left
to perform, what `on_deadlock()` returns is raised in the driver.

Contexts: each greenlet has its own `contextvars` context, which greenlet swaps with it. The driver keeps
its own, the hub and each spawned fiber start with an empty one, as a fresh thread does, or with the one that
the spawner gives: what runs on a worker's main thread, one after another, has one context.

Some code on a fiber's greenlet is not user code: a runtime's `submit` called by the driver runs machines.
It says so with `with fibers.system:`, inside which `user_fiber()` is None and therefore clocks, randomness
and identity are the real ones, and reading a clock does not park.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextvars import Context
from cProfile import Profile
from dataclasses import dataclass
from enum import Enum
from sys import getprofile
from threading import get_ident
from types import FrameType
from typing import Any, Final, Literal, Protocol

from greenlet import GreenletExit, getcurrent, greenlet

from dualray.sim.kernel.calendar import Calendar
from dualray.sim.kernel.cores import Cores
from dualray.sim.kernel.kernel import Kernel
from dualray.sim.kernel.raised import was_raised

__all__ = ["Fiber", "FiberKilled", "FiberOwner", "FiberScheduler", "FiberState", "SystemSection"]

_getcurrent: Final = getcurrent
_getprofile: Final = getprofile
"""By these names they are not looked up in a dict where this is compiled."""

RETHROWS_MAX: Final = 16
"""Parks of a killed fiber that raise `FiberKilled` again before the fiber is abandoned."""

POOL_GREENLETS_MAX: Final = 4096
"""Idle greenlets kept for reuse (4 to 6 kB each); more are let go."""


class FiberKilled(BaseException):
    """Raised inside a fiber whose worker is dead. A BaseException: `except Exception` does not hold it up."""


FIBER_STOPS: Final = (FiberKilled, GreenletExit)
"""What ends a fiber: its worker is dead, or nothing refers to its simulation any more."""


class FiberOwner(Protocol):
    """Whose code runs in a fiber: the virtual process. Read by dualray.sim.usercode.isolation."""

    @property
    def pid(self) -> int: ...

    @property
    def hostname(self) -> str: ...


class FiberState(Enum):
    """Where a fiber is; see the module's theory of operation."""

    READY = "ready"
    RUNNING = "running"
    PARKED = "parked"
    ENDED = "ended"
    ABANDONED = "abandoned"


_READY, _RUNNING, _PARKED = FiberState.READY, FiberState.RUNNING, FiberState.PARKED
_ENDED, _ABANDONED = FiberState.ENDED, FiberState.ABANDONED


@dataclass(slots=True, eq=False, repr=False)
class Fiber:
    """One strand of user code. Made by `FiberScheduler`; read its attributes, change none of them.

    owner: the virtual process whose code it runs.
    seed: what dualray.sim.usercode.isolation derives its randomness from.
    killed: it was thrown a `FiberKilled`.
    `clock_reads`, `clock_read_ns` and `seconds_read` belong to virtual_time, `streams` to isolation, `thread` to
    threads, `loop` to virtual_loop, `torch_mode` to torch_modes; they are slots here because to look them up by fiber
    would cost more than that.
    """

    owner: FiberOwner
    _fn: Callable[[], object] | None
    seed: bytes
    state: FiberState = FiberState.READY
    killed: bool = False
    system_depth: int = 0
    clock_reads: int = 0
    clock_read_ns: int = -1
    seconds_read: Any = None
    streams: Any = None
    thread: Any = None
    loop: Any = None  # while it does not run: its running event loop, and what asyncio hooks into generators with
    torch_mode: Any = None
    _greenlet: Any = None
    _value: Any = None
    _exc: BaseException | None = None
    _thrown: BaseException | None = None  # the last exception that throw() was given for it
    _answered: bool = False  # a wake or a throw came while it was running: the next park returns at once
    _rethrows: int = 0
    _context: Context | None = None

    @property
    def is_undisturbed(self) -> bool:
        """Whether nothing was thrown at it while it runs: it could wait now."""
        return not (self.killed or self._answered)

    def frame(self) -> FrameType | None:
        """Where it waits; None: nowhere."""
        found: FrameType | None = None if self._greenlet is None else self._greenlet.gr_frame
        return found

    def __repr__(self) -> str:
        return f"<Fiber of {self.owner!r} {self.state.value}{' killed' if self.killed else ''}>"


def _raise_deadlock() -> BaseException:
    return RuntimeError("the driver waits and nothing is left to happen")


def _raise_crash(fiber: Fiber, exc: BaseException) -> None:
    raise RuntimeError(f"{exc!r} escaped from {fiber!r}") from exc


class SystemSection:
    """`with` this, code on a fiber's greenlet is not user code. Reentrant; a park inside keeps it."""

    __slots__ = ("_fibers",)

    def __init__(self, fibers: FiberScheduler) -> None:
        self._fibers = fibers

    def begin(self) -> None:
        """As `with` does."""
        fiber = self._fibers._current
        if fiber is not None and _getcurrent() is fiber._greenlet:
            fiber.system_depth += 1

    def leave(self) -> None:
        """As the end of the block does."""
        fiber = self._fibers._current
        if fiber is not None and _getcurrent() is fiber._greenlet:
            fiber.system_depth -= 1

    def __enter__(self) -> None:
        self.begin()

    def __exit__(self, *exc_info: object) -> Literal[False]:
        self.leave()
        return False


def _cut_profile() -> None:
    """Another greenlet runs now. cProfile keeps one stack of calls for a thread: it ends those that are under way, so
    that none is taken for the caller of what runs here, and begins anew. A call is counted once, with the time up to
    where it first waited."""
    profiler: Any = _getprofile()  # typeshed knows Python's own profile functions only
    if isinstance(profiler, Profile):
        profiler.disable()
        profiler.enable()


class FiberScheduler:
    """Runs fibers on a kernel; see the module's theory of operation.

    on_deadlock: makes the exception that the driver gets when nothing is left to happen.
    on_crash: told, on the hub, of what escaped from a spawned fiber that was not killed, and of a fiber
        that was abandoned. What it raises surfaces in the driver; the default raises.
    on_resume, on_suspend: called on the hub before a fiber runs and after it stopped running. They may be
        assigned until the driver is adopted.
    awaits: asked when nothing is left to happen, if it is set: whether a fiber is ready all the same, woken by an OS
        thread.
    hold: asked on the hub before a fiber that is ready runs, if it is set: True when it may not run now; who
        answers so gives it to `release` later. Set while a virtual machine stands still.
    """

    def __init__(
        self,
        kernel: Kernel,
        *,
        on_deadlock: Callable[[], BaseException] = _raise_deadlock,
        on_crash: Callable[[Fiber, BaseException], object] = _raise_crash,
        on_resume: Callable[[Fiber], object] | None = None,
        on_suspend: Callable[[Fiber], object] | None = None,
    ) -> None:
        self.kernel = kernel
        self._calendar: Calendar = kernel.calendar
        self.on_deadlock = on_deadlock
        self.on_crash = on_crash
        self.on_resume = on_resume
        self.on_suspend = on_suspend
        self.hold: Callable[[Fiber], bool] | None = None
        self.awaits: Callable[[], bool] | None = None
        self.has_drawn = False
        """Whether the fiber that runs has drawn random numbers: `put_back` is called when it is suspended."""
        self.put_back: Callable[[], object] | None = None
        self.put_in: Callable[[Fiber], object] | None = None
        """Called before a fiber runs that has streams of its own."""
        self.system: Final = SystemSection(self)
        self.driver: Fiber | None = None
        self.abandoned: list[Fiber] = []
        self.closed = False
        self._closing = False
        self._is_between_events = False
        self._thread_id = 0
        self._hub: Any = None
        self._current: Fiber | None = None
        self._ready: deque[Fiber] = deque()
        self._pool: list[Any] = []
        self._keeps_pool = False
        """Whether the greenlets in it are for the simulations to come, too."""
        self._live: dict[Fiber, None] = {}  # spawned and not ended, in the order of their spawning
        self._end: tuple[Fiber, BaseException | None] | None = None  # the fiber that just ended, for the hub

    # -- from the kernel's side ----------------------------------------------------------------------------

    def share_greenlets(self, pool: list[Any]) -> None:
        """Take idle greenlets from here, and leave them here at the end: another simulation has made them, and the next
        one goes on with them. Before the driver is adopted, and on one thread."""
        self._pool, self._keeps_pool = pool, True

    def adopt_current(self, owner: FiberOwner, *, seed: bytes = b"") -> Fiber:
        """Make the calling greenlet the driver's fiber. Returns in it, as user code; `close()` undoes it."""
        if self.driver is not None:
            raise RuntimeError("this scheduler of a simulation already has a driver")
        driver = Fiber(owner, None, seed)
        driver._greenlet = _getcurrent()
        self.driver = driver
        self._thread_id = get_ident()
        self._hub = greenlet(self._hub_loop)  # a child of the driver: its end returns to close()
        self._ready.append(driver)
        self._hub.switch()
        return driver

    def spawn(
        self, owner: FiberOwner, fn: Callable[[], object], *, seed: bytes = b"", context: Context | None = None
    ) -> Fiber:
        """Run `fn()` in a new fiber, in a context of its own if none is given.

        Called on the hub, it runs it at once, until it parks or ends; called on a fiber, when that parks.
        """
        if self._hub is None or self._closing:
            raise RuntimeError("the simulation is closed" if self._closing else "adopt the driver before spawning")
        fiber = Fiber(owner, fn, seed)
        fiber._context = context
        self._live[fiber] = None
        if self._current is None and _getcurrent() is self._hub:
            self._run(fiber)
        else:
            self._ready.append(fiber)
        return fiber

    def spawn_soon(self, owner: FiberOwner, fn: Callable[[], object]) -> None:
        """The same as `spawn`, within an event: the fiber starts after the event."""
        fiber = Fiber(owner, fn, b"")
        self._live[fiber] = None
        self._ready.append(fiber)

    def wake(self, fiber: Fiber, value: Any = None) -> bool:
        """Let the fiber's park return `value`. False when it has ended, or a throw came before.

        A running fiber keeps it for its next park. Two wakes for one park are a bug of the caller and
        raise: who arms two (an answer and a timeout) disarms the other one when the first has come.
        """
        state = fiber.state
        if fiber.killed or fiber._exc is not None or state is _ENDED or state is _ABANDONED:
            return False
        if state is _PARKED:
            fiber.state = _READY
            self._ready.append(fiber)
        elif state is _RUNNING and not fiber._answered:
            fiber._answered = True
        else:
            raise RuntimeError(f"the scheduler resumed {fiber!r} twice, but {fiber!r} waited only once")
        fiber._value = value
        return True

    def throw(self, fiber: Fiber, exc: BaseException) -> bool:
        """Let the fiber's park raise `exc`, in place of a value it may have been woken with.

        `FiberKilled` ends it: see the module's theory of operation. A fiber that has not started does not
        start. A running fiber gets it at its next park. False when it has ended or is being killed.
        """
        state = fiber.state
        if fiber.killed or state is _ENDED or state is _ABANDONED:
            return False
        if isinstance(exc, FiberKilled):
            fiber.killed = True
        if state is _PARKED:
            fiber.state = _READY
            self._ready.append(fiber)
        elif state is _RUNNING:
            fiber._answered = True
        fiber._value = None
        fiber._exc = fiber._thrown = exc
        return True

    def throw_into_driver(self, exc: BaseException) -> None:
        """Raise `exc` in the driver, which waits; when the driver itself runs, nothing happens."""
        if self.driver is not None and self._current is not self.driver:
            self.throw(self.driver, exc)

    def is_in_child(self) -> None:
        """The process has forked, and this is the child: what runs here is no part of the simulation."""
        self._current = None

    def running(self) -> Fiber | None:
        """The one that runs, for whoever watches; None: the kernel."""
        return self._current

    def fibers(self) -> list[Fiber]:
        """All that have not ended, the driver first."""
        return [*self._live] if self.driver is None else [self.driver, *self._live]

    def is_ready(self) -> bool:
        """Whether there is one that can go on."""
        return bool(self._ready)

    def release(self, fiber: Fiber) -> None:
        """Let a fiber run that `hold` has held back, unless it has ended meanwhile."""
        if fiber.state is _READY:
            self._ready.append(fiber)

    # -- from inside a fiber -------------------------------------------------------------------------------

    def current(self) -> Fiber | None:
        """The fiber on whose greenlet the caller runs; None on the hub and in other greenlets and threads."""
        fiber = self._current
        if fiber is None or _getcurrent() is not fiber._greenlet:
            return None
        return fiber

    def user_fiber(self) -> Fiber | None:
        """The current fiber if the caller is user code; None inside `with fibers.system:`."""
        fiber = self._current
        if fiber is None or fiber.system_depth or _getcurrent() is not fiber._greenlet:
            return None
        return fiber

    def park(self) -> Any:
        """Wait, in virtual time, until `wake` or `throw`; returns or raises what they were given."""
        fiber = self._current
        if fiber is None or _getcurrent() is not fiber._greenlet:
            raise self._misuse()
        if fiber.killed and fiber._exc is None:
            self._rethrow(fiber)
        if fiber._answered:
            fiber._answered = False
            value, exc = fiber._value, fiber._exc
            fiber._value = fiber._exc = None
            if exc is not None:
                raise exc
            return value
        fiber.state = _PARKED
        try:
            return self._hub.switch()
        finally:
            if _getprofile() is not None:
                _cut_profile()

    def sleep_ns(self, delay_ns: int) -> None:
        """Park the current fiber for `delay_ns` of virtual time."""
        fiber = self._current
        if fiber is None or _getcurrent() is not fiber._greenlet:
            raise self._misuse()
        assert not fiber._answered or fiber._exc is not None, f"{fiber!r} sleeps on an answer to another wait"
        calendar = self._calendar
        until_ns = calendar.now_ns + delay_ns
        if self._may_pass(fiber) and calendar.pass_to(until_ns):
            return
        timer = calendar.arm(until_ns, self.wake, fiber)
        try:
            self.park()
        except BaseException:
            calendar.disarm(timer)
            raise

    def _may_pass(self, fiber: Fiber) -> bool:
        """Whether a sleeping fiber may go on without parking, if the calendar has nothing before.

        It may not in the middle of an event, while another fiber is ready, or when parking would raise an error.
        """
        is_next = self._is_between_events and not self._ready and self.hold is None
        return is_next and not (fiber._answered or fiber.killed or self._closing)

    def compute(self, cores: Cores, work_ns: int) -> None:
        """Park the current fiber until a machine has done so much work."""
        fiber = self.current()
        if fiber is None:
            raise self._misuse()
        work = cores.run(work_ns, 1.0, self.wake, fiber, whose=fiber.owner)
        try:
            self.park()
        except BaseException:
            cores.cancel(work)
            raise

    def is_elsewhere(self) -> bool:
        """Whether the caller has nothing to do with the fibers: an OS thread of its own, or the simulation is over."""
        return self.closed or self._hub is None or get_ident() != self._thread_id

    def _misuse(self) -> RuntimeError:
        if self.closed or self._hub is None:
            return RuntimeError("the simulation is not running: there is no kernel to wait in")
        if get_ident() != self._thread_id:
            return RuntimeError(
                "in a simulation, only the thread that called init() can wait (get, wait, sleep in virtual time), "
                "but this call comes from another OS thread"
            )
        if _getcurrent() is self._hub:
            return RuntimeError("the kernel cannot wait for itself: park() was called from an event")
        return RuntimeError("park() was called from a greenlet that is not a fiber of this simulation")

    def _rethrow(self, fiber: Fiber) -> None:
        """Raise FiberKilled once more in a killed fiber, or leave it suspended for ever."""
        fiber._rethrows += 1
        if fiber._rethrows <= RETHROWS_MAX:
            raise FiberKilled("this simulated worker has ended, so its code can no longer wait")
        fiber.state = _ABANDONED
        while True:
            try:
                _getcurrent().parent.switch()  # the hub, or whoever drops the last reference to this greenlet
            except BaseException:  # noqa: BLE001  # whatever goes up from here is swallowed by the user's code
                continue

    # -- the hub -------------------------------------------------------------------------------------------

    def _hub_loop(self) -> None:
        ready = self._ready
        while not self._closing:
            try:
                self._is_between_events = bool(ready)
                if ready:
                    fiber = ready.popleft()
                    if self.hold is None or not self.hold(fiber):
                        self._run(fiber)
                elif not self._calendar.run_until_any(ready) and not (self.awaits is not None and self.awaits()):
                    self._surface(self.on_deadlock())
            except GreenletExit:
                return  # the last reference to an unclosed simulation is gone
            except BaseException as exc:  # noqa: BLE001  # the driver is told of all of it, Ctrl-C included
                self._surface(exc)
        self._drain()

    def _surface(self, exc: BaseException) -> None:
        """Raise `exc` in the driver, before any other fiber runs."""
        driver = self.driver
        assert driver is not None
        if driver.state is _READY:
            self._ready.remove(driver)
        driver.state = _READY
        driver._value = None
        driver._exc = exc
        self._ready.appendleft(driver)

    def _run(self, fiber: Fiber) -> None:
        """Let `fiber` run until it parks or ends. On the hub; the one place where user code is entered."""
        value, exc = fiber._value, fiber._exc
        fiber._value = fiber._exc = None
        target = fiber._greenlet
        if target is None:  # it has not started
            if exc is not None:
                self._retire(fiber)
                self._report(fiber, exc)
                return
            if self._pool:
                target = self._pool.pop()
                if self._keeps_pool:
                    target.parent = self._hub
            else:
                target = greenlet(_run_fibers, self._hub)
            fiber._greenlet = target
            value = [self, fiber]
        fiber.state = _RUNNING
        if self.on_resume is not None:
            self.on_resume(fiber)
        if fiber.streams is not None and self.put_in is not None:
            self.put_in(fiber)
        self._current = fiber
        try:
            if exc is None:
                target.switch(value)
            else:
                target.throw(exc)
        finally:
            if _getprofile() is not None:
                _cut_profile()
            self._current = None
            if self.has_drawn:
                self.has_drawn = False
                if self.put_back is not None:
                    self.put_back()
            if self.on_suspend is not None:
                self.on_suspend(fiber)
        if self._end is not None:
            (ended, escaped), self._end = self._end, None
            assert ended is fiber
            if escaped is not None:
                self._report(fiber, escaped)
        elif fiber.state is _ABANDONED:
            self._live.pop(fiber, None)
            self.abandoned.append(fiber)
            self.on_crash(fiber, RuntimeError(f"{fiber!r} went on after {RETHROWS_MAX} FiberKilled"))

    def _retire(self, fiber: Fiber) -> None:
        fiber.state = _ENDED
        fiber._fn = fiber._greenlet = fiber.streams = None
        self._live.pop(fiber, None)

    def _report(self, fiber: Fiber, escaped: BaseException) -> None:
        thrown, fiber._thrown = fiber._thrown, None
        if isinstance(escaped, KeyboardInterrupt) and escaped is not thrown and not was_raised(escaped):
            raise escaped  # Ctrl-C, pressed while a task ran: the driver's to handle
        if not fiber.killed:
            self.on_crash(fiber, escaped)

    # -- the end -------------------------------------------------------------------------------------------

    def close(self) -> None:
        """End every fiber (FiberKilled, so that `finally` blocks run) and give their greenlets back.

        Called by the driver, which is an ordinary greenlet afterwards. No event is performed. Raises the
        first thing that `on_crash` raised meanwhile, when all is done. Closing twice is fine.
        """
        if self._closing:
            return
        driver = self.driver
        if driver is not None and self.current() is not driver:
            raise RuntimeError("only the driver can end a simulation")
        self._closing = True
        try:
            if driver is not None:
                self._hub.switch()  # comes back when the hub's greenlet has ended
                self._retire(driver)
        finally:
            self._hub = None
            self.closed = True

    def _drain(self) -> None:
        """End what is left, in the order of spawning; the hub's last act."""
        first: BaseException | None = None
        for fiber in list(self._live):
            if not fiber.killed:
                fiber.killed = True
                fiber._exc = FiberKilled("the simulation is over")
            try:
                self._run(fiber)
            except BaseException as exc:  # noqa: BLE001  # raised below, when every fiber had its turn
                first = first or exc
        if not self._keeps_pool:
            for idle in self._pool:
                idle.switch([])
            self._pool.clear()
        self._ready.clear()
        if first is not None:
            raise first


# -- in a greenlet -----------------------------------------------------------------------------------------


def _run_fibers(ordered: list[Any]) -> None:
    """What a pooled greenlet runs: one fiber after another, until nothing is ordered. It is ordered a scheduler and a
    fiber, in a list, which it empties: what a greenlet was first called with lives as long as itself."""
    greenlet_here: Any = _getcurrent()
    while ordered:
        scheduler: FiberScheduler | None = ordered[0]
        fiber: Fiber | None = ordered[1]
        ordered.clear()
        assert scheduler is not None
        assert fiber is not None
        escaped: BaseException | None = None
        fn = fiber._fn
        assert fn is not None
        # By itself: to others a greenlet without a Python frame, as where this is compiled, seems to be running.
        greenlet_here.gr_context = Context() if fiber._context is None else fiber._context  # an empty one is false
        if _getprofile() is not None:
            _cut_profile()
        try:
            fn()
        except GreenletExit:
            return  # the last reference to an unclosed simulation is gone
        except BaseException as exc:  # noqa: BLE001  # reported by the hub
            escaped = exc
        scheduler._retire(fiber)
        if escaped is None:
            fiber._thrown = None  # it knows the frames that it was thrown into, and they know the fiber
        scheduler._end = (fiber, escaped)
        if len(scheduler._pool) >= POOL_GREENLETS_MAX:
            return
        scheduler._pool.append(greenlet_here)
        hub = scheduler._hub
        scheduler = fiber = fn = escaped = None  # an idle greenlet keeps nothing of the user's alive
        greenlet_here.gr_context = None
        ordered = hub.switch()
