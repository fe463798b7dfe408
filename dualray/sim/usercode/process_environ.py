"""The environment's variables, the working directory and the mask of new files' modes: each virtual process's own.

All fibers share those of the interpreter. A process that changes them, `os.environ[...] = ...`, `os.chdir(...)` or
`os.umask(...)` in user code, has them swapped from then on: as it has left them while it runs, and as they were for
everybody else. They are the interpreter's while it runs, so that libraries in C see them, too. Who changes nothing pays
nothing. What a module changes while it is imported is for those whom the module is for: everybody, or the process that
imports it for itself (modules.py).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any, Protocol, cast

from dualray.runtime_env import Swapped
from dualray.shared.core.interruption import is_importing
from dualray.sim.kernel.fibers import Fiber, FiberOwner
from dualray.sim.usercode.substitutions import Substitution

__all__ = ["substitutions"]


class Surrounded(FiberOwner, Protocol):
    """A process that may have an environment of its own."""

    environment: Swapped | None
    view: Any

    def own_environment(self) -> Swapped:
        """Its own from now on."""


def substitutions(user_fiber: Callable[[], Fiber | None]) -> list[Substitution]:
    """What is replaced."""
    environ: type = type(os.environ)

    def changing(original: Callable[..., Any]) -> Callable[..., Any]:
        def change(self: Any, name: str, *value: Any) -> Any:
            fiber = user_fiber()
            if fiber is None:
                return original(self, name, *value)
            owner = cast(Surrounded, fiber.owner)
            is_imported = owner.view is None and is_importing(sys._getframe())
            if not is_imported:
                owner.own_environment()
            original(self, name, *value)
            if is_imported and owner.environment is not None:
                owner.environment.is_for_everybody(name)
            return None

        return change

    def moving(original: Callable[..., Any]) -> Callable[..., Any]:
        def move(*args: Any, **kwargs: Any) -> Any:
            fiber = user_fiber()
            if fiber is not None:
                cast(Surrounded, fiber.owner).own_environment().will_change_directory()
            return original(*args, **kwargs)

        return move

    real_umask = os.umask

    def mask(*args: Any) -> int:
        fiber = user_fiber()
        if fiber is not None:
            cast(Surrounded, fiber.owner).own_environment().will_change_mask()
        return real_umask(*args)

    return [
        Substitution.of(os, "umask", mask),
        Substitution(holder=environ, name="__setitem__", replacement=changing(vars(environ)["__setitem__"])),
        Substitution(holder=environ, name="__delitem__", replacement=changing(vars(environ)["__delitem__"])),
        Substitution.of(os, "chdir", moving(os.chdir)),
        Substitution.of(os, "fchdir", moving(os.fchdir)),
    ]
