"""Patches other people's modules while a simulation runs, and knows which simulation is current.

Clocks, randomness, locks, threads, processes, environments and event loops are replaced where user code looks them up:
virtual_time.py, isolation.py, polling.py, locks.py, threads.py, pools.py, process_environ.py, asyncio_substitution.py.
A simulation puts its replacements there and takes them away at its end, which takes 2 ms: as long as a small simulation
itself. In a process that does nothing but simulate, again and again, they stay (`stand`), and ask the simulation of the
time."""

from __future__ import annotations

import atexit
import os
import sys
import weakref
from collections.abc import Callable
from typing import Any, NoReturn

from dualray.sim.kernel.fibers import Fiber, FiberScheduler
from dualray.sim.kernel.kernel import Kernel
from dualray.sim.usercode import process_environ
from dualray.sim.usercode.asyncio_substitution import AsyncioSubstitution
from dualray.sim.usercode.isolation import Isolation
from dualray.sim.usercode.library_draws import LibraryDraws
from dualray.sim.usercode.locks import Locks
from dualray.sim.usercode.memory_guard import MemoryGuard
from dualray.sim.usercode.polling import Polling
from dualray.sim.usercode.pools import Pools, silence, unsilence
from dualray.sim.usercode.psutil_substitution import PsutilSubstitution
from dualray.sim.usercode.threads import Threads
from dualray.sim.usercode.virtual_time import VirtualTime
from dualray.sim.usercode.watchdog import Watchdog

__all__ = ["Patches", "stand", "take_patches"]


class Patches:
    """The replacements of one simulation after the other: `enter`, `leave`."""

    def __init__(self) -> None:
        self._kernel = Kernel()
        """Of no simulation, as are these fibers, while there is none."""
        self._nobody = FiberScheduler(self._kernel)
        self._time = VirtualTime(self._kernel, self._nobody)
        self._locks = Locks(self._kernel, self._nobody)
        self._polling = Polling(self._kernel, self._nobody)
        self._threads = Threads(self._kernel, self._nobody, self._witness)
        self._pools = Pools(self._nobody, self._threads)
        self._asyncio = AsyncioSubstitution(self._nobody.user_fiber, _no_loop)
        self.isolation = Isolation(
            self._kernel,
            self._nobody,
            also=[  # a clock stands for itself first
                *self._time.substitutions(),
                *self._locks.substitutions(),
                *self._polling.substitutions(),
                *self._threads.substitutions(),
                *self._pools.substitutions(),
                *process_environ.substitutions(self._user_fiber),
            ],
            of_modules={**self._locks.of_modules(), **self._threads.of_modules()},
            sim_unsafe=_sim_unsafe,
        )
        self._psutil = PsutilSubstitution(self.isolation.user_fiber, self.isolation.calls)
        self._libraries = LibraryDraws(self.isolation.user_fiber)
        _LAST.append(weakref.ref(self))
        del _LAST[:-1]
        self.stands = False
        """Whether the replacements stay where they are between two simulations."""
        self._changes_asyncio = False
        self._waits_at_exit = False
        self._watchdog: Watchdog | None = None
        self.memory_guard = MemoryGuard()
        self._greenlets: list[Any] = []
        """Idle ones, if it stays: each costs a new mapping of memory."""

    def enter(
        self,
        kernel: Kernel,
        fibers: FiberScheduler,
        *,
        ahead_ns: Callable[[Fiber], int],
        make_loop: Callable[[Fiber | None], Any],
    ) -> None:
        """A simulation begins.

        Args:
            ahead_ns: how far the clock of a fiber's node is ahead.
            make_loop: makes an event loop for a fiber; None: for the loop that runs already.

        Raises:
            RuntimeError: another one runs in this process.
        """
        if self.isolation.kernel is not self._kernel:
            raise RuntimeError("another simulation runs in this process: call dualray.shutdown() first")
        self._move_to(kernel, fibers, ahead_ns, make_loop)
        if self.stands:
            fibers.share_greenlets(self._greenlets)
        try:
            self.isolation.install()
            self._libraries.begin()
            if not self._changes_asyncio:
                self._asyncio.install()
                self._psutil.install()
                silence()
                if not self._waits_at_exit:
                    self._waits_at_exit = True
                    atexit.register(self._threads.wait_at_exit)
                self._changes_asyncio = True
            self._asyncio.borrow_running(lambda: make_loop(None))
            if self._watchdog is None:
                self._watchdog = Watchdog(lambda: self.isolation.kernel.events_performed, self._who_runs)
        except BaseException:
            self._move_to(self._kernel, self._nobody, _on_time, _no_loop)
            raise

    def _who_runs(self) -> str | None:
        """Whose user code runs; None: nobody's, or that of a driver who types at a prompt."""
        kernel, fiber = self.isolation.kernel, self.isolation.running()
        if fiber is None or (self.isolation.is_driver(fiber) and hasattr(sys, "ps1")):
            return None
        who = "the driver" if self.isolation.is_driver(fiber) else f"user code on {fiber.owner.hostname}"
        return f"{who}, at {kernel.now_ns / 1e9:.6f} s of virtual time,"

    def continue_in_fork(self) -> None:
        """This process is a fork of one that simulates: threads and exit handlers stayed behind."""
        self._watchdog = None
        if self._waits_at_exit:
            atexit.register(self._threads.wait_at_exit)

    def leave(self) -> None:
        """It ends. Idempotent."""
        self._asyncio.give_back_running()
        self._libraries.end()
        if self.stands:
            self.memory_guard.rest()
            self.isolation.leave()
        else:
            self.memory_guard.end()
            if self._watchdog is not None:
                self._watchdog.stop()
                self._watchdog = None
            self._changes_asyncio = False
            self._asyncio.uninstall()
            self._psutil.uninstall()
            unsilence()
            self._waits_at_exit = False
            atexit.unregister(self._threads.wait_at_exit)
            self.isolation.uninstall()
        self._move_to(self._kernel, self._nobody, _on_time, _no_loop)

    def _user_fiber(self) -> Fiber | None:
        return self.isolation.user_fiber()

    def _witness(self, call: str, words: str) -> None:
        self.isolation.witness(call, words)

    def _move_to(
        self,
        kernel: Kernel,
        fibers: FiberScheduler,
        ahead_ns: Callable[[Fiber], int],
        make_loop: Callable[[Fiber | None], Any],
    ) -> None:
        self._time.move_to(kernel, fibers, ahead_ns)
        self._locks.move_to(kernel, fibers)
        self._polling.move_to(kernel, fibers)
        self._threads.move_to(kernel, fibers)
        self._pools.move_to(fibers)
        self._asyncio.move_to(fibers.user_fiber, make_loop)
        self.isolation.move_to(kernel, fibers)


_LAST: list[weakref.ref[Patches]] = []
"""The one that was made last: of the simulation of this process, if it has one."""


def _is_in_child() -> None:
    for found in _LAST:
        patches = found()
        if patches is not None:
            patches.isolation.is_in_child()


os.register_at_fork(after_in_child=_is_in_child)

_STANDING: list[Patches] = []
"""The one that stays, if this process has one."""


def stand() -> None:
    """This process does nothing but simulate: what its first simulation replaces stays replaced."""
    patches = Patches()
    patches.stands = True
    _STANDING.append(patches)


def continue_in_fork() -> None:
    """Call this in a fork of a process that simulates."""
    for patches in _STANDING:
        patches.continue_in_fork()


def take_patches() -> Patches:
    """The patches for a simulation of this process."""
    return _STANDING[0] if _STANDING else Patches()


def _sim_unsafe(fiber: Fiber) -> str | None:
    owner: Any = fiber.owner
    said: str | None = owner.sim_unsafe
    return said


def _on_time(fiber: Fiber) -> int:
    return 0


def _no_loop(fiber: Fiber | None) -> NoReturn:
    raise RuntimeError("no simulation runs in this process")
