"""Isolates virtual processes from one another: randomness, identity, exits and garbage collection.

Theory of operation
-------------------
All virtual processes share one interpreter. What would make a run depend on it, or let one process act on another
through it, is replaced for the life of the simulation with the engine of dualray.sim.usercode.substitutions: each
replacement asks whether the caller is user code and answers for the calling fiber, and is the original for everyone
else. At a switch nothing is saved or restored, but the state of the two generators of random numbers that a process
shares, and that for fibers which have drawn from them: what pytest, the kernel or other threads see is untouched.

Randomness. Each fiber has three generators of its own, made on first use from the seed given at its
creation:

    random        the one behind the functions of the module: generators.py
    numpy.random  the one behind the legacy functions, which libraries fetch: there, too
    entropy       `os.urandom` and `os.getrandom`, and with them `uuid.uuid4`, `secrets`, `SystemRandom`,
                  numpy's `default_rng()` and the seed of an unseeded `random.Random()`

Not covered: `uuid.uuid1` (the machine's), and generators that C libraries keep for themselves.

Identity. `os.getpid()`, `socket.gethostname()`, `platform.node()` and the name in `os.uname()` are those of the
fiber's owner; `os.getppid()` is the same for all. Because a virtual pid may belong to a real stranger, the calls that
take one are answered here, too: a signal to oneself goes to the handler that the virtual process has set, and ends it
where it has set none (SIGINT: KeyboardInterrupt); one to anybody else is refused. So are alarms, which would strike the
simulator. Handlers of the driver are the interpreter's (process_calls.py).

Exits. `sys.exit`, `os._exit` and `os.abort` raise `VirtualExit`; the runner that catches it ends the
virtual worker. It is a SystemExit, so that `except SystemExit` around `sys.exit` works and a driver script
that exits still ends its interpreter, with its code. Unlike the real `os._exit`, it runs `finally` blocks
on its way. In a thread that user code has started, `sys.exit` ends the thread, and the others end the process of it.

Directories. The order in which a directory lists its entries is the file system's; in user code `os.listdir` and
`os.scandir`, and with them `os.walk`, `glob` and `pathlib`, list them by name.

Witnesses. What leads out of the simulation (escape_guard.py), where it is allowed, and OS threads of libraries
(threads.py) run in real time: what they do, and when, is not the simulation's to order. It is noted in `witnessed`:
such a run cannot be promised to be the same again, and `dualray scenario check` says so.

Garbage collection must not decide anything: automatic collection is off while a simulation runs, and is
performed at fixed counts of events. What was alive before is frozen, so that these collections do not scan
it.
"""

from __future__ import annotations

import contextlib
import gc
import os
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import FunctionType, ModuleType
from typing import Any, Final, Self

import numpy as np

from dualray.sim.kernel.fibers import Fiber, FiberOwner, FiberScheduler
from dualray.sim.kernel.kernel import Kernel
from dualray.sim.usercode import escape_guard
from dualray.sim.usercode.generators import GlobalGenerators, Streams, find, streams_of
from dualray.sim.usercode.interposed_generators import InterposedGenerators
from dualray.sim.usercode.ports import Ports
from dualray.sim.usercode.process_calls import ProcessCalls
from dualray.sim.usercode.substitutions import Substitution, Substitutions, in_user_code

__all__ = ["Isolation"]

GC_YOUNG_EVERY_EVENTS: Final = 1_000
"""Events between two collections of young objects (`gc.collect(1)`): those of so few are still in the processor's
cache, and to look through them later costs three times as much."""

GC_FIRST_EVENTS: Final = 10_000
"""Events before the first collection: to look through the whole of a small cluster is not worth it sooner."""

GC_FULL_FIRST_EVENTS: Final = 1_000_000
"""Events until the first full collection; each next one comes after twice as many, as the heap may have
grown."""


_FROZEN_BY_PYTHON: Final = 375 if sys.version_info[:2] == (3, 12) else 0
"""Objects that the interpreter has frozen before anybody could."""


class Heap:
    """What is known of this process's heap.

    Attributes:
        is_frozen: somebody has frozen what lasts longer than a simulation, and collects what is left of each: then a
            simulation need not ask, which takes milliseconds.
    """

    is_frozen = False


HEAP: Final = Heap()


class Isolation:
    """Isolates the fibers of one simulation, from `install()` to `uninstall()`; also a context manager.

    What stands in other people's modules can stay there for the next simulation: `leave()` ends one and not the other,
    and `move_to` the next comes before its `install()`.

    also: further substitutions to install in the same sweep over all modules, VirtualTime's above all.
    of_modules: by type, what makes the replacement of an object that a module of the user's has under a name.
    sim_unsafe: what the task or actor that a fiber runs says of calls that lead out of the simulation, if it does.
    """

    def __init__(
        self,
        kernel: Kernel,
        fibers: FiberScheduler,
        *,
        also: Iterable[Substitution] = (),
        of_modules: Mapping[type, Callable[[Any], Any]] | None = None,
        sim_unsafe: Callable[[Fiber], str | None] = lambda fiber: None,
    ) -> None:
        self._sim_unsafe = sim_unsafe
        self.kernel = kernel
        self._fibers = fibers
        self._also = tuple(also)
        self._of_modules = of_modules
        self._installed: Substitutions | None = None
        self._collecting: Callable[[], None] | None = None
        self._gc_was_enabled = False
        self._gc_froze = False
        self._rewritten: dict[int, object] = {}
        """Functions that were rewritten already, by identity: what they bind later is replaced already."""
        self.witnessed: dict[str, str] = {}
        """What user code did that no simulation can repeat: by call, the first time in words."""
        self.allows_outside = False
        """Whether tasks that do not say so may make calls that lead out of the simulation."""
        shared = find()
        self._generators: GlobalGenerators | InterposedGenerators = (
            InterposedGenerators(self.user_fiber)
            if shared is None
            else GlobalGenerators(shared, self.user_fiber, self._note_draw)
        )
        self.calls = ProcessCalls(self.user_fiber, self._driver_owner, lambda: self._fibers.park())
        self._ports = Ports()

    def move_to(self, kernel: Kernel, fibers: FiberScheduler) -> None:
        """It isolates the fibers of another simulation from now on."""
        self.kernel, self._fibers = kernel, fibers
        self._ports.begin_again()

    def _note_draw(self) -> None:
        self._fibers.has_drawn = True

    @contextlib.contextmanager
    def own_streams(self, fiber: Fiber, seed: bytes) -> Iterator[None]:
        """What a fiber draws meanwhile is from this seed, and not from its own."""
        self._generators.put_back()
        streams, fiber.streams = fiber.streams, Streams(seed)
        try:
            yield
        finally:
            self._generators.put_back()
            fiber.streams = streams
            self._generators.put_in(fiber)

    @contextlib.contextmanager
    def outside_state(self) -> Iterator[None]:
        """Whoever is no fiber draws meanwhile, and changes nothing."""
        self._generators.put_back()
        state, state_of_numpy = random.getstate(), np.random.get_state()  # noqa: NPY002 - it is what users have
        try:
            yield
        finally:
            random.setstate(state)
            np.random.set_state(state_of_numpy)  # noqa: NPY002

    def user_fiber(self) -> Fiber | None:
        """The fiber whose user code the caller is, if any."""
        return self._fibers.user_fiber()

    def running(self) -> Fiber | None:
        """The fiber that runs, whoever asks."""
        return self._fibers.running()

    def is_driver(self, fiber: Fiber) -> bool:
        """Whether it is the driver's main thread."""
        return fiber is self._fibers.driver

    def install(self) -> None:
        """Isolate from now on. Raises when another simulation of this process does."""
        if self._collecting is not None:
            raise RuntimeError("this simulation already isolates its user code: call install() only once")
        if self._installed is None:
            installed = Substitutions([*self.substitutions(), *self._also], self._of_modules)
            installed.install()
            self._installed = installed
        else:  # it has stood since the last simulation
            self._installed.sweep_new_modules()
        self._generators.install()
        self._fibers.put_back, self._fibers.put_in = self._generators.put_back, self._generators.put_in
        self._gc_was_enabled = gc.isenabled()
        gc.disable()
        self._gc_froze = not HEAP.is_frozen and gc.get_freeze_count() <= _FROZEN_BY_PYTHON
        if self._gc_froze:
            gc.freeze()
        self._collecting = self.kernel.on_event(_collect, every=GC_YOUNG_EVERY_EVENTS)

    def uninstall(self) -> None:
        """Restore everything exactly; does nothing when nothing is installed."""
        if self._installed is not None:
            self._installed.uninstall()
            self._installed = None
        self.leave()

    def leave(self) -> None:
        """The simulation ends, and its replacements stay where they are: nobody is user code any more. Idempotent."""
        self._generators.leave()
        if self._installed is not None:
            self._installed.restore_functions()
        self._rewritten.clear()
        self.witnessed = {}
        self.calls.forget()
        if self._collecting is None:
            return
        self._collecting()
        self._collecting = None
        if self._gc_froze:
            gc.unfreeze()
        if self._gc_was_enabled:
            gc.enable()

    def __enter__(self) -> Self:
        self.install()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.uninstall()

    def rewrite_function(self, function: object) -> None:
        """Put the replacements into a function that came by value: `Substitutions.rewrite_function`."""
        if self._installed is None:
            raise RuntimeError("the isolation of this simulation is not installed")
        if id(function) in self._rewritten:
            return
        if isinstance(function, FunctionType):
            self._rewritten[id(function)] = function
        self._installed.rewrite_function(function)

    def sweep_module(self, module: ModuleType, *, is_kept: bool) -> None:
        """Put the replacements into a module that `sys.modules` does not show: `Substitutions.sweep_module`."""
        if self._installed is not None:
            self._installed.sweep_module(module, is_kept=is_kept)

    def substitutions(self) -> list[Substitution]:
        """What is to be replaced, made against what stands there now."""
        return [
            *self._of_random(),
            *self._of_entropy(),
            *self.calls.substitutions(),
            *self._of_directories(),
            *escape_guard.substitutions(self.user_fiber, self._refuses, self._ports),
        ]

    def _refuses(self, fiber: Fiber, call: str) -> bool:
        """Whether a call that leads out of the simulation is refused there; else it is noted."""
        said = self._sim_unsafe(fiber)
        is_allowed = self.allows_outside if said is None else said == "allow"
        if not is_allowed and fiber.owner is not self._driver_owner():
            return True
        self.witness(call, f"{call}() was called on {fiber.owner.hostname}")
        return False

    def _driver_owner(self) -> FiberOwner | None:
        driver = self._fibers.driver
        return None if driver is None else driver.owner

    def is_in_child(self) -> None:
        """The process has forked, and this is the child."""
        self._fibers.is_in_child()

    def witness(self, call: str, words: str) -> None:
        """User code does what cannot be promised to be the same again."""
        self.witnessed.setdefault(call, f"{words} at {self.kernel.now_ns / 1e9:.6f} s of virtual time")

    # -- randomness ----------------------------------------------------------------------------------------

    def _of_random(self) -> list[Substitution]:
        user_fiber = self.user_fiber
        seed_generator = random.Random.seed

        def seed(self: random.Random, a: Any = None, version: int = 2) -> None:
            if a is None and (fiber := user_fiber()) is not None:
                a = streams_of(fiber).entropy.getrandbits(256)
            seed_generator(self, a, version)

        return [
            Substitution(holder=random.Random, name="seed", replacement=seed),
            *self._generators.substitutions(),
        ]

    def _of_entropy(self) -> list[Substitution]:
        user_fiber = self.user_fiber
        real_urandom = os.urandom

        def urandom(size: int, /) -> bytes:
            fiber = user_fiber()
            return real_urandom(size) if fiber is None else streams_of(fiber).entropy.randbytes(size)

        made = [Substitution.of(os, "urandom", urandom)]
        # secrets and numpy's default_rng draw through this name of the random module.
        made.append(Substitution(holder=random, name="_urandom", replacement=made[0].replacement))
        if sys.platform == "linux":
            real_getrandom = os.getrandom

            def getrandom(size: int, flags: int = 0) -> bytes:
                fiber = user_fiber()
                return real_getrandom(size, flags) if fiber is None else streams_of(fiber).entropy.randbytes(size)

            made.append(Substitution.of(os, "getrandom", getrandom))
        return made

    # -- directories ---------------------------------------------------------------------------------------

    def _of_directories(self) -> list[Substitution]:
        def listdir(fiber: Fiber, *args: Any, **kwargs: Any) -> list[Any]:
            return sorted(real_listdir(*args, **kwargs))

        def scandir(fiber: Fiber, *args: Any, **kwargs: Any) -> _Sorted:
            with real_scandir(*args, **kwargs) as entries:
                return _Sorted(sorted(entries, key=lambda entry: entry.name))

        real_listdir, real_scandir = os.listdir, os.scandir
        return [
            Substitution.of(os, "listdir", in_user_code(self.user_fiber, real_listdir, listdir)),
            Substitution.of(os, "scandir", in_user_code(self.user_fiber, real_scandir, scandir)),
        ]


class _Sorted:
    """What `os.scandir` returns, in the order of the names."""

    def __init__(self, entries: list[os.DirEntry[Any]]) -> None:
        self._entries = iter(entries)

    def __iter__(self) -> Iterator[os.DirEntry[Any]]:
        return self

    def __next__(self) -> os.DirEntry[Any]:
        return next(self._entries)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Give no more entries."""
        self._entries = iter(())


def _collect(events_performed: int) -> None:
    """The fixed counts at which garbage is collected, as functions of the count alone."""
    if events_performed < GC_FIRST_EVENTS:
        return
    full, left = divmod(events_performed, GC_FULL_FIRST_EVENTS)
    gc.collect(2 if left == 0 and full & (full - 1) == 0 else 1)
