"""Calls about one's own process are answered for the virtual process: its pid, its signals and its end.

A virtual process ends by an exception, VirtualExit, which escapes from its user code. A process receives a signal to
itself at once. SIGKILL and SIGTERM end the virtual worker that they are sent to; other processes are out of reach.
"""

from __future__ import annotations

import atexit
import errno
import gc
import os
import platform
import re
import signal
import socket
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NoReturn, Protocol, Self, TypeAlias, cast

from dualray.shared.core.interruption import is_importing
from dualray.sim.kernel.fibers import Fiber, FiberOwner
from dualray.sim.usercode.substitutions import Substitution, in_user_code
from dualray.sim.usercode.switching import frame_at

PARENT_PID: Final = 4_194_304
"""Of all virtual processes: no machine gives it to a process, nor the simulation."""


_OF_THE_HOST: Final = frozenset({"multiprocessing", "psutil"})
"""Packages that are told the pid of the process that simulates."""

_NODE: Final = re.compile(r"node-(\d+)")


def ip_of(node: str) -> str:
    """The IP address of a virtual node, in the order of the nodes, of a network that nothing routes to: 10.0.0.0/8."""
    number = int(node.rpartition("-")[2]) + 1
    return f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}"


class VirtualExit(SystemExit):
    """User code ended its virtual process. `code` is what it gave, `status` the exit status that it stands
    for; `signal_number` is set when it was a signal."""

    signal_number: int | None = None

    is_sudden = False
    """Whether it was `os._exit`."""

    @classmethod
    def by_signal(cls, signal_number: int) -> Self:
        """The end that a signal brings, with the status that a shell would show."""
        ended = cls(128 + signal_number)
        ended.is_sudden = True
        ended.signal_number = signal_number
        return ended

    @property
    def status(self) -> int:
        """0 for None, the number for an int, 1 for anything else, as the interpreter does."""
        if self.code is None:
            return 0
        return self.code if isinstance(self.code, int) else 1


ExitFunction: TypeAlias = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]
"""What `atexit.register` was given."""


class Exiting(FiberOwner, Protocol):
    """A process that calls functions when it ends and is not killed, the last one first."""

    exit_functions: Sequence[ExitFunction]


class ProcessCalls:
    """What stands for these calls in one simulation after another.

    user_fiber: the fiber whose user code the caller is, if any.
    driver_owner: the driver's process, which handles signals as any program does.
    park: parks the current fiber.
    """

    def __init__(
        self,
        user_fiber: Callable[[], Fiber | None],
        driver_owner: Callable[[], FiberOwner | None],
        park: Callable[[], object],
    ) -> None:
        self._user_fiber = user_fiber
        self._driver_owner = driver_owner
        self._park = park
        self._handlers: dict[FiberOwner, dict[int, Any]] = {}
        """Of signals, that virtual processes have set."""
        self.end_worker: Callable[[int, int], bool | None] = _no_worker
        """Ends the virtual worker of a pid by a signal, or looks for it by 0. False: it has ended; None: the pid is
        that of no virtual worker."""

    def forget(self) -> None:
        """The simulation has ended, with its processes."""
        self._handlers = {}
        self.end_worker = _no_worker

    def substitutions(self) -> list[Substitution]:
        """What is to be replaced, made against what stands there now."""
        real_uname = os.uname

        def uname(fiber: Fiber) -> os.uname_result:
            system, _, *rest = real_uname()
            return os.uname_result((system, fiber.owner.hostname, *rest))

        real_gethostbyname = socket.gethostbyname

        def gethostbyname(fiber: Fiber, hostname: str) -> str:
            return ip_of(hostname) if _NODE.fullmatch(hostname) else real_gethostbyname(hostname)

        real_getpid = os.getpid

        def getpid(fiber: Fiber) -> int:
            """`psutil.Process()` asks what /proc says of it, and `multiprocessing` whose children are its own: both of
            the process that simulates."""
            caller = frame_at(2)
            name = "" if caller is None else str(caller.f_globals.get("__name__"))
            return real_getpid() if name.partition(".")[0] in _OF_THE_HOST else fiber.owner.pid

        def stay_off(fiber: Fiber) -> None:
            """Automatic collection would make the run depend on how many objects the interpreter holds."""

        return [
            self._of(os, "getpid", getpid),
            self._of(os, "getppid", lambda fiber: PARENT_PID),
            self._of(os, "uname", uname),
            self._of(socket, "gethostname", lambda fiber: fiber.owner.hostname),
            self._of(socket, "gethostbyname", gethostbyname),
            self._of(platform, "node", lambda fiber: fiber.owner.hostname),
            *self._of_handlers(),
            self._of(sys, "exit", self._exit),
            self._of(os, "_exit", self._exit_now),
            self._of(os, "abort", self._abort),
            self._of(os, "kill", self._kill),
            self._of(os, "killpg", _killpg),
            *self._of_descriptors(),
            *self._of_exit_functions(),
            self._of(signal, "raise_signal", self._receive),
            self._of(gc, "enable", stay_off),
        ]

    def _of(self, holder: Any, name: str, virtual: Callable[..., Any]) -> Substitution:
        """Replace `holder.name` by `virtual(fiber, *args)` in user code."""
        return Substitution.of(holder, name, in_user_code(self._user_fiber, getattr(holder, name), virtual))

    def _of_exit_functions(self) -> list[Substitution]:
        """Functions that are called when a process ends. What a module registers while it is imported is for the
        process that simulates."""
        # With its first finalizer, `weakref` registers the end of all: a virtual worker must not be the first.
        weakref.finalize(self, int).detach()
        real_register, real_unregister = atexit.register, atexit.unregister

        def is_hosts(fiber: Fiber) -> bool:
            return fiber.owner is self._driver_owner() or is_importing(frame_at(3))

        def register(fiber: Fiber, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Callable[..., Any]:
            if is_hosts(fiber):
                return real_register(function, *args, **kwargs)
            owner = cast(Exiting, fiber.owner)
            owner.exit_functions = (*owner.exit_functions, (function, args, kwargs))
            return function

        def unregister(fiber: Fiber, function: Callable[..., Any]) -> None:
            if is_hosts(fiber):
                real_unregister(function)
            else:
                owner = cast(Exiting, fiber.owner)
                owner.exit_functions = tuple(each for each in owner.exit_functions if each[0] != function)

        return [self._of(atexit, "register", register), self._of(atexit, "unregister", unregister)]

    def _of_descriptors(self) -> list[Substitution]:
        """Those of all virtual processes are the interpreter's, which the driver has, too."""
        real_close, real_closerange = os.close, os.closerange

        def close(fiber: Fiber, descriptor: int) -> None:
            if descriptor in _STANDARD and fiber.owner is not self._driver_owner():
                raise PermissionError(errno.EPERM, f"os.close({descriptor}): {_SHARED_DESCRIPTORS}")
            real_close(descriptor)

        def close_range(fiber: Fiber, low: int, high: int) -> None:
            if fiber.owner is not self._driver_owner():
                raise PermissionError(errno.EPERM, f"os.closerange({low}, {high}): {_SHARED_DESCRIPTORS}")
            real_closerange(low, high)

        return [self._of(os, "close", close), self._of(os, "closerange", close_range)]

    def _of_handlers(self) -> list[Substitution]:
        """The handlers of a process's signals."""
        real_signal, real_getsignal = signal.signal, signal.getsignal
        real_alarm, real_setitimer = signal.alarm, signal.setitimer

        def set_handler(fiber: Fiber, signal_number: int, handler: Any) -> Any:
            if fiber.owner is self._driver_owner():
                return real_signal(signal_number, handler)
            before = get_handler(fiber, signal_number)
            self._handlers_of(fiber)[signal_number] = handler
            return before

        def get_handler(fiber: Fiber, signal_number: int) -> Any:
            shared = real_getsignal(signal_number)  # which refuses what is none
            if fiber.owner is self._driver_owner():
                return shared
            return self._handlers_of(fiber).get(signal_number, _AT_START.get(signal_number, shared))

        def no_alarm(fiber: Fiber, *args: Any) -> Any:
            if fiber.owner is not self._driver_owner():
                raise PermissionError(
                    errno.EPERM, "an alarm would interrupt the simulator in real time; wait in a thread instead"
                )
            return real_alarm(*args) if len(args) == 1 else real_setitimer(*args)

        return [
            self._of(signal, "signal", set_handler),
            self._of(signal, "getsignal", get_handler),
            self._of(signal, "alarm", no_alarm),
            self._of(signal, "setitimer", no_alarm),
        ]

    def _handler_of(self, fiber: Fiber, signal_number: int) -> Any:
        """Return the handler of a signal. The driver has the handlers of the interpreter."""
        if fiber.owner is self._driver_owner():
            handler = _real_getsignal(signal_number) if signal_number else signal.SIG_DFL
            return signal.SIG_DFL if handler is signal.default_int_handler else handler
        return self._handlers_of(fiber).get(signal_number, _AT_START.get(signal_number, signal.SIG_DFL))

    def _handlers_of(self, fiber: Fiber) -> dict[int, Any]:
        return self._handlers.setdefault(fiber.owner, {})

    # -- the end of a process --------------------------------------------------------------------------------

    def _end(self, fiber: Fiber, ended: BaseException) -> NoReturn:
        if _is_started(fiber):
            fiber.thread.end_process(fiber, ended)
            self._park()
        raise ended

    def _exit(self, fiber: Fiber, code: Any = None) -> NoReturn:
        if _is_started(fiber) or fiber.owner is self._driver_owner():
            raise SystemExit(code)
        raise VirtualExit(code)

    def _exit_now(self, fiber: Fiber, code: Any = None) -> NoReturn:
        ended = VirtualExit(code)
        ended.is_sudden = True
        self._end(fiber, ended)

    def _abort(self, fiber: Fiber) -> NoReturn:
        self._end(fiber, VirtualExit.by_signal(signal.SIGABRT))

    # -- signals ---------------------------------------------------------------------------------------------

    def _receive(self, fiber: Fiber, signal_number: int) -> None:
        """What a signal to oneself does to a virtual process."""
        handler = self._handler_of(fiber, signal_number)
        if handler == signal.SIG_IGN:
            return
        if callable(handler):
            handler(signal_number, frame_at(2))
        elif signal_number == signal.SIGINT:
            raise KeyboardInterrupt
        elif signal_number in _STOPS:
            raise PermissionError(
                errno.EPERM,
                f"{signal.Signals(signal_number).name} cannot stop a process in a simulation; use the fault `pause`",
            )
        elif signal_number not in _WITHOUT_EFFECT:
            self._end(fiber, VirtualExit.by_signal(signal_number))

    def _kill(self, fiber: Fiber, pid: int, signal_number: int) -> None:
        if pid == fiber.owner.pid:
            self._receive(fiber, signal_number)
            return
        has_it = self.end_worker(pid, signal_number) if signal_number in _TO_OTHERS else None
        if has_it is None and _is_child(pid):
            _real_kill(pid, signal_number)
            return
        if has_it is None:
            raise PermissionError(
                errno.EPERM,
                f"pid {pid}: code in a simulation can send any signal to its own process, {fiber.owner.pid}, and "
                f"to processes that it started. To other virtual workers it can send SIGKILL or SIGTERM",
            )
        if not has_it:
            raise ProcessLookupError(errno.ESRCH, f"the virtual worker of pid {pid} has ended")


_STANDARD: Final = (0, 1, 2)
_SHARED_DESCRIPTORS: Final = (
    "all virtual processes share the descriptors of the process that simulates: close those that you have opened, by "
    "os.close"
)
_AT_START: Final[Mapping[int, Any]] = dict.fromkeys((signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ), signal.SIG_IGN)
"""What a worker of real mode ignores: SIGINT is for the driver, and Python ignores the others."""
_WITHOUT_EFFECT: Final = (0, signal.SIGCHLD, signal.SIGCONT, signal.SIGURG, signal.SIGWINCH)
"""Signals that do nothing to a process without a handler for them."""
_STOPS: Final = (signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)
_TO_OTHERS: Final = (0, signal.SIGKILL, signal.SIGTERM)


_real_kill: Final = os.kill
_real_getsignal: Final = signal.getsignal


def _is_child(pid: int) -> bool:
    """Whether it is a process that user code has started, which leads out of the simulation and was let be."""
    import psutil  # noqa: PLC0415 - few start processes

    try:
        return bool(psutil.Process(pid).ppid() == psutil.Process().pid)
    except (psutil.Error, ValueError):
        return False


def _no_worker(pid: int, signal_number: int) -> bool | None:
    return None


def _is_started(fiber: Fiber) -> bool:
    return fiber.thread is not None and fiber.thread.was_started


def _killpg(fiber: Fiber, group: int, signal_number: int) -> NoReturn:
    raise PermissionError(errno.EPERM, "a simulation has no process groups")
