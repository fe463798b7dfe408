"""asyncio on virtual time: the event loops of simulated programs.

Theory of operation ------------------- A `VirtualLoop` is asyncio's own loop, with the kernel's clock and without a
selector: where it would wait for sockets, its fiber parks, until the next timer is due or until
`call_soon_threadsafe` wakes it. So `asyncio.sleep` takes virtual time, and while all coroutines wait, other fibers
run. Everything of a loop happens in the fiber that runs it; a callback that blocks (`get`, `time.sleep`) holds up its
loop and nobody else, as in a thread of its own.

Which loop is the running one is a fact of the OS thread, which all fibers share: it is taken away when a fiber stops
running and put back when it goes on (`watch_loops`).

asyncio keeps tasks and futures in sets. Here they hash by the order of their making, so that what iterates over a set
of them comes out the same in every process; `asyncio.as_completed` begins coroutines in the order in which they were
given.

A loop that only turns (`while not done: await asyncio.sleep(0)`) must not hang the simulation: after TURNS_MAX turns
at one instant each further one takes TURN_NS.

`run_in_executor` and `asyncio.to_thread` use pools of threads, which are fibers (threads.py). Sockets, pipes and
subprocesses are not to be had: the loop refuses them, and says so.

`AsyncioSubstitution` makes loops in user code virtual ones. asyncio is not imported for it: where it is imported
later, by a task, it is caught then.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from contextvars import Context
from typing import Any, Final

from dualray.sim.kernel.fibers import Fiber, FiberScheduler
from dualray.sim.kernel.kernel import Kernel, Scheduled
from dualray.sim.usercode.polling import poll

__all__ = ["VirtualLoop", "watch_loops"]

TURNS_MAX: Final = 1_000
TURN_NS: Final = 1_000
_RESOLUTION_S: Final = 1e-9
_REFUSED: Final = (
    "add_reader",
    "add_signal_handler",
    "add_writer",
    "connect_accepted_socket",
    "connect_read_pipe",
    "connect_write_pipe",
    "create_connection",
    "create_datagram_endpoint",
    "create_server",
    "create_unix_connection",
    "create_unix_server",
    "sendfile",
    "sock_accept",
    "sock_connect",
    "sock_recv",
    "sock_recv_into",
    "sock_recvfrom",
    "sock_recvfrom_into",
    "sock_sendall",
    "sock_sendfile",
    "sock_sendto",
    "start_tls",
    "subprocess_exec",
    "subprocess_shell",
)
"""Methods of loops that need descriptors or signals."""


class _Future(asyncio.Future[Any]):
    """Hashes by its number."""

    number = 0

    def __hash__(self) -> int:
        return self.number


class _Task(asyncio.Task[Any]):
    """Hashes by its number."""

    number = 0

    def __hash__(self) -> int:
        return self.number


class VirtualLoop(asyncio.BaseEventLoop):
    """See the module."""

    def __init__(self, kernel: Kernel, fibers: FiberScheduler) -> None:
        super().__init__()
        self._kernel = kernel
        self._fibers = fibers
        self._clock_resolution = _RESOLUTION_S
        self._selector = self  # BaseEventLoop asks it for news
        self._sleeper: Fiber | None = None
        self._alarm: Scheduled | None = None
        self._is_woken = False
        self._turns = 0
        self._turned_ns = -1
        self._made = 0
        self.set_task_factory(self._make_task)  # type: ignore[arg-type]  # its stub differs among versions

    # ---- Time ------------------------------------------------------------------------------------------------

    def time(self) -> float:
        name: object = sys._getframe(1).f_globals.get("__name__")
        if not (isinstance(name, str) and name.startswith(("asyncio", "dualray"))):
            poll(self._kernel, self._fibers)  # as every clock in user code
        return self._kernel.now_ns / 1e9

    def select(self, timeout: float | None) -> list[Any]:
        """Park until something is to be done; there never are descriptors."""
        if self._is_woken:
            self._is_woken = False
        elif timeout is not None and timeout <= 0:
            self._turn()
        else:
            self._sleep(timeout)
        return []

    def _turn(self) -> None:
        now_ns = self._kernel.now_ns
        if now_ns != self._turned_ns:
            self._turned_ns, self._turns = now_ns, 0
        self._turns += 1
        if self._turns > TURNS_MAX:
            with self._fibers.system:
                self._fibers.sleep_ns(TURN_NS)

    def _sleep(self, timeout: float | None) -> None:
        fiber = self._fibers.current()
        if fiber is None:
            raise RuntimeError("only code of the simulation can run an event loop of the simulation")
        self._sleeper = fiber
        if timeout is not None:
            self._alarm = self._kernel.call_after(max(1, -int(-timeout * 1e9 // 1)), self._wake)
        try:
            self._fibers.park()
        finally:
            self._sleeper = None
            if self._alarm is not None:
                self._alarm.cancel()
                self._alarm = None
        self._is_woken = False

    def _wake(self) -> None:
        fiber, self._sleeper = self._sleeper, None
        if fiber is not None:
            self._fibers.wake(fiber)

    def _write_to_self(self) -> None:
        """Something is to be done: `call_soon_threadsafe` was called."""
        self._is_woken = True
        self._wake()

    def _process_events(self, event_list: list[Any]) -> None:
        """There are none."""

    # ---- Order -----------------------------------------------------------------------------------------------

    def create_future(self) -> asyncio.Future[Any]:
        future = _Future(loop=self)
        self._made += 1
        future.number = self._made
        return future

    def _make_task(
        self, loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, Any], context: Context | None = None
    ) -> asyncio.Task[Any]:
        self._made += 1
        task = _Task(coroutine, loop=loop, name=f"Task-{self._made}", context=context)
        task.number = self._made
        return task

    # ---- The end ---------------------------------------------------------------------------------------------

    def close_all(self) -> None:
        """The process of the loop is dead: end its coroutines, in the order of their making, and the loop."""
        tasks = sorted(asyncio.all_tasks(self), key=hash)
        for task in tasks:
            task._log_destroy_pending = False  # type: ignore[attr-defined]  # nobody is there to be told
            with suppress(BaseException):  # what is left of a dead process says nothing
                task.get_coro().close()
        if not self.is_running():
            self.close()


def _refusing(name: str) -> Callable[..., Any]:
    def refuse(self: VirtualLoop, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(
            f"{name}: an event loop of a simulation has no sockets, pipes, subprocesses or signals, because a "
            "simulation cannot repeat their order. Run this program in real mode"
        )

    refuse.__name__ = name
    return refuse


for _name in _REFUSED:
    setattr(VirtualLoop, _name, _refusing(_name))


def watch_loops(fibers: FiberScheduler) -> None:
    """From now on each fiber has a running loop of its own."""
    resume, suspend = fibers.on_resume, fibers.on_suspend

    def on_resume(fiber: Fiber) -> None:
        if resume is not None:
            resume(fiber)
        if fiber.loop is not None:
            running, hooks = fiber.loop
            asyncio._set_running_loop(running)
            sys.set_asyncgen_hooks(*hooks)

    def on_suspend(fiber: Fiber) -> None:
        running = asyncio._get_running_loop()
        if running is None:
            fiber.loop = None
        else:
            fiber.loop = running, sys.get_asyncgen_hooks()
            asyncio._set_running_loop(None)
            sys.set_asyncgen_hooks(None, None)
        if suspend is not None:
            suspend(fiber)

    fibers.on_resume, fibers.on_suspend = on_resume, on_suspend


def ordered(awaitables: Iterable[Any]) -> list[asyncio.Future[Any]]:
    """Coroutines begun in the order in which they are given."""
    return [asyncio.ensure_future(each) for each in awaitables]
