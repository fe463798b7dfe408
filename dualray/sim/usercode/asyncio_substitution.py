"""In user code of a simulation, asyncio makes virtual loops; see virtual_loop.py.

A loop that was made before the simulation began is no virtual one. It is lent to the simulation while it runs: it gets
the clock of a virtual loop, and waits as one does (`BorrowedLoop`).

asyncio takes longer to import than a small simulation to run, so it is not imported here: its modules that matter
are changed when they are there, now or later, and changed back at the end.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from threading import get_ident
from types import ModuleType
from typing import Any, Final

from dualray.sim.kernel.fibers import Fiber

_EVENTS, _TASKS, _LOOPS = "asyncio.events", "asyncio.tasks", "asyncio.base_events"
_POLLED_EVERY_S: Final = 1e-3
"""Of virtual time: how often a borrowed loop looks at sockets and pipes that the program has given to it."""


class AsyncioSubstitution(MetaPathFinder):
    """See the module.

    user_fiber: the fiber that the caller runs in, if it is user code.
    make_loop: makes a virtual loop for a fiber.
    """

    def __init__(self, user_fiber: Callable[[], Fiber | None], make_loop: Callable[[Fiber | None], Any]) -> None:
        self._user_fiber = user_fiber
        self._make_loop = make_loop
        self._undo: list[Callable[[], None]] = []
        self._borrowed: BorrowedLoop | None = None
        self._chosen_before: tuple[Any, bool] = (None, False)
        """The loop of this thread when the simulation began, if there was one, and whether the program had set it."""

    def move_to(self, user_fiber: Callable[[], Fiber | None], make_loop: Callable[[Fiber | None], Any]) -> None:
        """From now on the loops are those of another simulation."""
        self._user_fiber, self._make_loop = user_fiber, make_loop
        self._forget_virtual()

    def install(self) -> None:
        """Change asyncio, where it is imported already, and else as soon as it is."""
        chosen = _chosen()
        self._chosen_before = (None, False) if chosen is None else (chosen._loop, chosen._set_called)
        sys.meta_path.insert(0, self)
        for name in (_EVENTS, _TASKS, _LOOPS):
            if name in sys.modules:
                self.change(sys.modules[name])
        package = sys.modules.get("asyncio")
        if package is not None and hasattr(package, "as_completed"):
            self._replace(package, "as_completed", sys.modules[_TASKS].as_completed)

    def uninstall(self) -> None:
        """Change it back. Idempotent."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        package, tasks = sys.modules.get("asyncio"), sys.modules.get(_TASKS)
        while self._undo:
            self._undo.pop()()
        self._forget_virtual()
        if package is not None and tasks is not None and hasattr(package, "as_completed"):
            package.as_completed = tasks.as_completed  # type: ignore[attr-defined]  # it was imported meanwhile

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in (_EVENTS, _TASKS, _LOOPS):
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = ChangingLoader(spec.loader, self.change)
        return spec

    def change(self, module: ModuleType) -> None:
        """Change one of the modules."""
        if module.__name__ == _EVENTS:
            substitution = self
            policy: Any = module.BaseDefaultEventLoopPolicy
            original_loop = policy.new_event_loop

            def new_event_loop(self: Any) -> Any:
                fiber = substitution._user_fiber()
                return original_loop(self) if fiber is None else substitution._make_loop(fiber)

            self._replace(policy, "new_event_loop", new_event_loop)
        elif module.__name__ == _LOOPS:
            self._replace(module.BaseEventLoop, "run_forever", self._run_forever(module.BaseEventLoop.run_forever))
        else:
            original_completed = module.as_completed

            def as_completed(fs: Any, *, timeout: float | None = None) -> Any:
                if self._user_fiber() is not None:
                    from dualray.sim.usercode.virtual_loop import ordered  # noqa: PLC0415 - asyncio is there by now

                    fs = ordered(fs)
                return original_completed(fs, timeout=timeout)

            as_completed.__doc__ = original_completed.__doc__
            self._replace(module, "as_completed", as_completed)

    def _run_forever(self, original: Callable[[Any], None]) -> Callable[[Any], None]:
        def run_forever(loop: Any) -> None:
            fiber = self._user_fiber()
            if fiber is None or not _is_foreign(loop):
                original(loop)
                return
            borrowed = BorrowedLoop(loop, self._make_loop(fiber))
            try:
                original(loop)
            finally:
                borrowed.give_back()

        run_forever.__doc__ = original.__doc__
        return run_forever

    def borrow_running(self, make_loop: Callable[[], Any]) -> None:
        """A simulation begins: the loop that runs already, if one does, waits for it from now on."""
        events = sys.modules.get(_EVENTS)
        running = None if events is None else events._get_running_loop()
        if running is not None and _is_foreign(running):
            self._borrowed = BorrowedLoop(running, make_loop())

    def give_back_running(self) -> None:
        """It ends. Idempotent."""
        borrowed, self._borrowed = self._borrowed, None
        if borrowed is not None:
            borrowed.give_back()

    def _forget_virtual(self) -> None:
        """The loop that `get_event_loop` gives is that of before, if it is one of a simulation that has ended."""
        chosen = _chosen()
        if chosen is not None and getattr(chosen._loop, "_selector", None) is chosen._loop is not None:
            chosen._loop, chosen._set_called = self._chosen_before

    def _replace(self, holder: Any, name: str, new: Any) -> None:
        old = getattr(holder, name)
        setattr(holder, name, new)
        self._undo.append(lambda: setattr(holder, name, old))


def _chosen() -> Any:
    """Where asyncio's policy keeps the loop of this thread; None: it has none yet, or is not asyncio's own."""
    events = sys.modules.get(_EVENTS)
    return getattr(getattr(events, "_event_loop_policy", None), "_local", None)


def _is_foreign(loop: Any) -> bool:
    """Whether it is no virtual loop, and waits with a selector."""
    return hasattr(loop, "_selector") and loop._selector is not loop and not isinstance(loop._selector, BorrowedLoop)


class BorrowedLoop:
    """Stands in a loop in its selector's place.

    Args:
        loop: one that is no virtual loop.
        virtual: waits for it; it runs nothing.
    """

    def __init__(self, loop: Any, virtual: Any) -> None:
        self._loop = loop
        self._virtual = virtual
        self._selector = loop._selector
        self._thread = get_ident()
        wake_really = loop._write_to_self

        def wake() -> None:
            if get_ident() == self._thread:
                virtual._write_to_self()
            else:
                wake_really()

        loop._selector, loop._write_to_self, loop.time = self, wake, virtual.time

    def select(self, timeout: float | None) -> list[Any]:
        """As the selector; between two looks at descriptors virtual time passes."""
        found: list[Any] = self._selector.select(0)
        if found:
            return found
        if len(self._selector.get_map()) > 1:  # more than the pipe that wakes the loop
            timeout = _POLLED_EVERY_S if timeout is None else min(timeout, _POLLED_EVERY_S)
        self._virtual.select(timeout)
        found = self._selector.select(0)
        return found  # noqa: RET504 - its type is the loop's own

    def give_back(self) -> None:
        """The loop is a real one again."""
        loop = self._loop
        loop._selector = self._selector
        del loop._write_to_self, loop.time
        self._virtual.close()
        events = sys.modules[_EVENTS]
        if loop.is_running() and events._get_running_loop() is None:  # the simulation ends in the loop's own coroutine
            events._set_running_loop(loop)
            sys.set_asyncgen_hooks(loop._asyncgen_firstiter_hook, loop._asyncgen_finalizer_hook)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._selector, name)


class ChangingLoader(Loader):
    """Loads a module and has it changed."""

    def __init__(self, loader: Loader, change: Callable[[ModuleType], None]) -> None:
        self._loader = loader
        self._change = change

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        self._change(module)
