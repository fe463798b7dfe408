"""Ends user code that would take all memory of the machine that simulates.

Theory of operation
-------------------
The virtual workers of a simulation share one process, so no monitor can see what each of them uses. An OS thread looks
at the process as a whole, and at the machine or the container that it is in, with the limits that real nodes have
(`memory_limit_percent`, `memory_limit_bytes`, `memory_check_ns`). What the process has grown by since the last look is
charged to the virtual process whose user code runs. When too much is used, the process that was charged most is over
the limit, and one of three things happens:

    it runs, in its own code        `MemoryStop` is raised there; in the driver it is an OutOfMemoryError
    it is not over soon enough      a request for more than is left fails with Python's MemoryError (RLIMIT_DATA), which
                                    `was_refused` tells from one that has nothing to do with this
    it does not run                 it is told at one of the next events (`over_the_limit`)

The driver may go on after its error, and hold for a while what it had: nobody else is ended then, unless more is
taken. The node of a process decides what becomes of it, as in real mode. A program that keeps within the limits sees
nothing of this, and is repeated to the bit; when and where one that does not is ended depends on the machine.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

from dualray.exceptions import OutOfMemoryError
from dualray.machine_memory import OwnMemory, machine_memory, own_memory
from dualray.shared.core.interruption import is_importing
from dualray.shared.model.config import Config
from dualray.shared.units import size_words
from dualray.sim.kernel.fibers import Fiber, FiberOwner, FiberScheduler
from dualray.sim.usercode.process_calls import VirtualExit

if sys.platform != "win32":
    import resource

__all__ = ["MEMORY_THREAD", "MemoryGuard", "MemoryStop"]

MEMORY_THREAD: Final = "dualray-memory-guard"
FIRST_LOOK_S: Final = 0.02
NEAR_PERCENT: Final = 70
"""Of the limit: from there it looks ten times as often."""
CHARGED_BYTES_MIN: Final = 64 << 20
"""Nobody is ended who was charged less: others than the simulation use the memory."""
SLACK_PERCENT: Final = 3
"""Of all memory, beyond the limit: a request for more than that fails at once."""
REQUEST_BYTES_MIN: Final = 256 << 20
"""A request for no more than this never fails for want of memory alone."""


class MemoryStop(VirtualExit):
    """The virtual process whose code this is raised in has used too much memory."""

    is_sudden = True

    def __init__(self) -> None:
        super().__init__(137)


class MemoryGuard:
    """Guards one simulation after another: `begin`, `end`; see the module."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wakes = threading.Event()
        self._thread: threading.Thread | None = None
        self._is_over = False
        self._fibers: FiberScheduler | None = None
        self._config: Config | None = None
        self._words: Callable[[FiberOwner, int, int, int], str] | None = None
        self._watched = 0
        self._began = self._last = OwnMemory(0, 0)
        self._charged: dict[FiberOwner, int] = {}
        self._soft_limit: int | None = None
        """RLIMIT_DATA as it was."""
        self._had_bytes = 0
        """What was left of memory at the first look."""
        self._told_bytes: int | None = None
        """What this process used when the driver was last told; it may still hold that while it handles the error."""
        self.over_the_limit: FiberOwner | None = None
        """Who is to be told that it has used too much, and does not run."""
        self.used_bytes = self.limit_bytes = self.grown_bytes = 0
        """What was used, what may be, and by how much this process had grown since the simulation began, at the last
        look."""

    # ---- One simulation after another ------------------------------------------------------------------------

    def begin(self, fibers: FiberScheduler, config: Config, words: Callable[[FiberOwner, int, int, int], str]) -> None:
        """A simulation begins on the calling thread.

        words: says of a process what was used, what may be, and what was charged to it.
        """
        if not config.memory_check_ns:
            return
        with self._lock:
            self._watched = threading.get_ident()
            self._began = self._last = own_memory(os.getpid())
            self._charged = {}
            self.over_the_limit = None
            self._had_bytes = 0
            self._told_bytes = None
            self._fibers, self._config, self._words = fibers, config, words
        if self._thread is None:
            self._is_over = False
            self._thread = threading.Thread(target=self._watch, name=MEMORY_THREAD, daemon=True)
            self._thread.start()

    def rest(self) -> None:
        """The simulation is over; the thread stays for the next one."""
        with self._lock:
            self._fibers = self._config = self._words = None
            self._charged = {}
            self.over_the_limit = None
            self._set_limit(None)

    def end(self) -> None:
        """No simulation follows. Idempotent."""
        self.rest()
        if self._thread is not None:
            self._is_over = True
            self._wakes.set()
            self._thread.join()
            self._thread = None
            self._wakes.clear()

    # ---- What others ask -------------------------------------------------------------------------------------

    def charged_bytes(self, owner: FiberOwner) -> int:
        """What a virtual process was charged."""
        return self._charged.get(owner, 0)

    def was_refused(self, error: MemoryError) -> bool:
        """Whether a request for memory failed for want of it: what was asked for is there and has been used up, or
        numpy says that it asked for no more than the machine has."""
        if self._soft_limit is None:
            return False
        shape, dtype = getattr(error, "shape", None), getattr(error, "dtype", None)
        if shape is not None and dtype is not None:
            asked_bytes = int(dtype.itemsize)
            for length in shape:
                asked_bytes *= int(length)
            return asked_bytes < machine_memory().total_bytes
        grown_bytes = own_memory(os.getpid()).resident_bytes - self._began.resident_bytes
        return not error.args and grown_bytes >= self._had_bytes // 2

    def driver_is_told(self) -> None:
        """The driver gets its error now. Until more is taken, it gets no other."""
        self._told_bytes = self._last.resident_bytes

    def forget(self, owner: FiberOwner) -> None:
        """It has ended: what it had is given back, to the operating system, too."""
        gc.collect()
        if sys.platform == "linux":
            trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of glibc alone
            if trim is not None:
                trim(0)
        with self._lock:
            self._charged.pop(owner, None)
            self.over_the_limit = None
            self._last = own_memory(os.getpid())

    # ---- The thread ------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        wait_s = FIRST_LOOK_S
        while not self._wakes.wait(wait_s) and not self._is_over:
            with self._lock:
                config, fibers = self._config, self._fibers
                if config is None or fibers is None:
                    wait_s = FIRST_LOOK_S
                    continue
                share = self._look(config, fibers)
                wait_s = config.memory_check_ns / 1e9
                if share * 100 >= NEAR_PERCENT:
                    wait_s /= 10

    def _look(self, config: Config, fibers: FiberScheduler) -> float:
        """Look once; how much of the limit is used."""
        own, machine = own_memory(os.getpid()), machine_memory()
        limit_bytes = machine.total_bytes * config.memory_limit_percent // 100
        left_bytes = limit_bytes - machine.used_bytes
        self._had_bytes = self._had_bytes or max(left_bytes, 1)
        slack_bytes = machine.total_bytes * SLACK_PERCENT // 100
        self._set_limit(own.writable_bytes + max(left_bytes + slack_bytes, REQUEST_BYTES_MIN))
        self.used_bytes, self.limit_bytes = machine.used_bytes, limit_bytes
        grown_bytes = self.grown_bytes = max(0, own.resident_bytes - self._began.resident_bytes)
        if config.memory_limit_bytes and grown_bytes * limit_bytes > machine.used_bytes * config.memory_limit_bytes:
            self.used_bytes, self.limit_bytes = grown_bytes, config.memory_limit_bytes
        self._charge(own, fibers)
        if self.used_bytes <= self.limit_bytes:
            self._told_bytes = None
        elif self._told_bytes is None or own.resident_bytes >= self._told_bytes + CHARGED_BYTES_MIN:
            self._ends_somebody(fibers)
        return self.used_bytes / max(self.limit_bytes, 1)

    def _charge(self, own: OwnMemory, fibers: FiberScheduler) -> None:
        fiber = fibers.running() or fibers.driver
        if fiber is not None:
            charged_bytes = self._charged.get(fiber.owner, 0) + own.resident_bytes - self._last.resident_bytes
            self._charged[fiber.owner] = max(0, charged_bytes)
        self._last = own

    def _ends_somebody(self, fibers: FiberScheduler) -> None:
        alive = {owner: size for owner, size in self._charged.items() if getattr(owner, "is_alive", True)}
        if not alive:
            return
        owner, charged_bytes = max(alive.items(), key=lambda item: item[1])
        if charged_bytes < CHARGED_BYTES_MIN:
            return
        fiber = fibers.running()
        if fiber is not None and fiber.owner is owner:
            self._strike(fibers, fiber, charged_bytes)
        else:
            self.over_the_limit = owner

    def _strike(self, fibers: FiberScheduler, fiber: Fiber, charged_bytes: int) -> None:
        """Raise it in user code that runs, and nowhere else: this thread has the interpreter for the next 5 ms."""
        kind: type[BaseException] = MemoryStop
        driver = fibers.driver
        if driver is not None and fiber.owner is driver.owner:
            assert self._words is not None
            kind = _with_words(self._words(fiber.owner, self.used_bytes, self.limit_bytes, charged_bytes))
        if fibers.running() is fiber and not fiber.system_depth and _is_users(sys._current_frames().get(self._watched)):
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._watched), ctypes.py_object(kind))
            if kind is not MemoryStop:
                self.driver_is_told()

    def _set_limit(self, size_bytes: int | None) -> None:
        """Let requests fail from there on; None: as it was."""
        if sys.platform != "linux":  # elsewhere it counts nothing that user code asks for
            return
        soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
        if size_bytes is None:
            if self._soft_limit is not None:
                resource.setrlimit(resource.RLIMIT_DATA, (self._soft_limit, hard))
                self._soft_limit = None
            return
        if self._soft_limit is None:
            self._soft_limit = soft
        for most in (self._soft_limit, hard):
            size_bytes = size_bytes if most == resource.RLIM_INFINITY else min(size_bytes, most)
        resource.setrlimit(resource.RLIMIT_DATA, (size_bytes, hard))


def _with_words(words: str) -> type[OutOfMemoryError]:
    """An error that is raised without arguments, and says this."""

    def begin(self: Any) -> None:
        OutOfMemoryError.__init__(self, words)

    return type("OutOfMemoryError", (OutOfMemoryError,), {"__init__": begin, "__module__": OutOfMemoryError.__module__})


def _is_users(frame: FrameType | None) -> bool:
    """Whether the innermost code is not dualray's own, and nothing is imported there."""
    if frame is None or is_importing(frame):
        return False
    name: object = frame.f_globals.get("__name__")
    return not (isinstance(name, str) and name.partition(".")[0] in _NOT_THERE)


_NOT_THERE: Final = frozenset({"dualray", "gc", "weakref", "greenlet"})


def out_of_memory_words(who: str, used_bytes: int, limit_bytes: int, own_bytes: int, stored_bytes: int) -> str:
    """What an error says when the memory of the machine that simulates is used up."""
    used, limit, own, stored = map(size_words, (used_bytes, limit_bytes, own_bytes, stored_bytes))
    return (
        f"{who} has used too much memory of the machine that runs the simulation: {used} are in use, and the limit "
        f"is {limit}. {who} uses about {own}, and values in the simulated stores use {stored}. Use less memory at a "
        f"time, delete references sooner, or raise limits={{'memory_limit_percent': ...}}"
    )
