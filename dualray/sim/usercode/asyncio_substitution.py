"""In user code of a simulation, asyncio makes virtual loops; see virtual_loop.py.

asyncio takes longer to import than a small simulation to run, so it is not imported here: its two modules that matter
are changed when they are there, now or later, and changed back at the end.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

from dualray.sim.kernel.fibers import Fiber

_EVENTS, _TASKS = "asyncio.events", "asyncio.tasks"


class AsyncioSubstitution(MetaPathFinder):
    """See the module.

    user_fiber: the fiber that the caller runs in, if it is user code.
    make_loop: makes a virtual loop for a fiber.
    """

    def __init__(self, user_fiber: Callable[[], Fiber | None], make_loop: Callable[[Fiber], Any]) -> None:
        self._user_fiber = user_fiber
        self._make_loop = make_loop
        self._undo: list[Callable[[], None]] = []

    def move_to(self, user_fiber: Callable[[], Fiber | None], make_loop: Callable[[Fiber], Any]) -> None:
        """From now on the loops are those of another simulation."""
        self._user_fiber, self._make_loop = user_fiber, make_loop

    def install(self) -> None:
        """Change asyncio, where it is imported already, and else as soon as it is."""
        sys.meta_path.insert(0, self)
        for name in (_EVENTS, _TASKS):
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
        if package is not None and tasks is not None and hasattr(package, "as_completed"):
            package.as_completed = tasks.as_completed  # type: ignore[attr-defined]  # it was imported meanwhile

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in (_EVENTS, _TASKS):
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _ChangingLoader(spec.loader, self.change)
        return spec

    def change(self, module: ModuleType) -> None:
        """Change one of the two modules."""
        if module.__name__ == _EVENTS:
            substitution = self
            policy: Any = module.BaseDefaultEventLoopPolicy
            original_loop = policy.new_event_loop

            def new_event_loop(self: Any) -> Any:
                fiber = substitution._user_fiber()
                return original_loop(self) if fiber is None else substitution._make_loop(fiber)

            self._replace(policy, "new_event_loop", new_event_loop)
        else:
            original_completed = module.as_completed

            def as_completed(fs: Any, *, timeout: float | None = None) -> Any:
                if self._user_fiber() is not None:
                    from dualray.sim.usercode.virtual_loop import ordered  # noqa: PLC0415 - asyncio is there by now

                    fs = ordered(fs)
                return original_completed(fs, timeout=timeout)

            as_completed.__doc__ = original_completed.__doc__
            self._replace(module, "as_completed", as_completed)

    def _replace(self, holder: Any, name: str, new: Any) -> None:
        old = getattr(holder, name)
        setattr(holder, name, new)
        self._undo.append(lambda: setattr(holder, name, old))


class _ChangingLoader(Loader):
    """Loads a module and has it changed."""

    def __init__(self, loader: Loader, change: Callable[[ModuleType], None]) -> None:
        self._loader = loader
        self._change = change

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        self._change(module)
