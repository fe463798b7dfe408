"""In user code of a simulation, `psutil` knows the pids of virtual processes.

A virtual process has the memory, the times and the files of the process that simulates, under a pid of its own. psutil
is changed where it is imported already, or as soon as it is, and changed back at the end.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

from dualray import runtime
from dualray.exceptions import rays_words
from dualray.sim.kernel.fibers import Fiber
from dualray.sim.usercode.asyncio_substitution import ChangingLoader
from dualray.sim.usercode.process_calls import ProcessCalls

_PSUTIL = "psutil"


class PsutilSubstitution(MetaPathFinder):
    """See the module.

    user_fiber: the fiber that the caller runs in, if it is user code.
    calls: knows which virtual workers there are.
    """

    def __init__(self, user_fiber: Callable[[], Fiber | None], calls: ProcessCalls) -> None:
        self._user_fiber = user_fiber
        self._calls = calls
        self._undo: list[Callable[[], None]] = []

    def install(self) -> None:
        """Change psutil, now or when it is imported."""
        sys.meta_path.insert(0, self)
        if _PSUTIL in sys.modules:
            self.change(sys.modules[_PSUTIL])

    def uninstall(self) -> None:
        """Change it back. Idempotent."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        while self._undo:
            self._undo.pop()()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != _PSUTIL:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = ChangingLoader(spec.loader, self.change)
        return spec

    def change(self, module: ModuleType) -> None:
        """Change what asks for a process by its pid."""
        process: Any = module.Process
        make, command_line, exists = process._init, process.cmdline, module.pid_exists

        def init(made: Any, pid: int | None, *args: Any, **kwargs: Any) -> None:
            fiber = self._user_fiber()
            is_virtual = fiber is not None and pid is not None and self._is_virtual(fiber, pid)
            make(made, None if is_virtual else pid, *args, **kwargs)
            made._is_callers = fiber is not None and pid in (None, fiber.owner.pid)
            if is_virtual:  # the process that simulates, under the other pid
                made._pid, made._ident = pid, (pid, *made._ident[1:])

        def cmdline(made: Any) -> list[str]:
            is_callers = getattr(made, "_is_callers", False) and self._user_fiber() is not None
            if is_callers and rays_words() is not None:
                name = runtime.current("psutil").verbs.context().task_name
                if name is not None:
                    return [f"ray::{name}"]
            found: list[str] = command_line(made)
            return found

        def pid_exists(pid: int) -> bool:
            fiber = self._user_fiber()
            return (fiber is not None and self._is_virtual(fiber, pid)) or bool(exists(pid))

        for holder, name, new in (
            (process, "_init", init),
            (process, "cmdline", cmdline),
            (module, "pid_exists", pid_exists),
        ):
            new.__doc__ = getattr(holder, name).__doc__
            self._replace(holder, name, new)

    def _is_virtual(self, fiber: Fiber, pid: int) -> bool:
        return pid == fiber.owner.pid or self._calls.end_worker(pid, 0) is True

    def _replace(self, holder: Any, name: str, new: Any) -> None:
        old = getattr(holder, name)
        setattr(holder, name, new)
        self._undo.append(lambda: setattr(holder, name, old))
