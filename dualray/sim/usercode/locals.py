"""`threading.local` of user code, whose threads are fibers.

What user code makes is each fiber's own: Python's own implementation in Python, which asks for the current thread. One
that a module of the user's has is stood for while the simulation runs (`ModuleLocal`): each virtual process's main
thread begins with what the module has put there when it was imported, each other thread with nothing. Instances of a
class of the user's that inherits from `threading.local`, and was made before, are shared by all fibers.
"""

from __future__ import annotations

import _threading_local
import sys
import threading
from collections.abc import Callable
from typing import Any, Final, NoReturn

from dualray.sim.kernel.fibers import Fiber, FiberScheduler
from dualray.sim.usercode.locks import stays_real
from dualray.sim.usercode.substitutions import Substitution, TypeReplacement

__all__ = ["Locals", "ModuleLocal"]

_REAL: Final = threading.local
_VIRTUAL: Final = _threading_local.local
_SPACES: Final = "dualray_locals"
"""The attribute of a thread under which its namespaces are."""


class Locals:
    """What is put in the place of `threading.local`.

    thread_of: the thread that a fiber is, and whether it is its process's main thread.
    """

    def __init__(self, fibers: FiberScheduler, thread_of: Callable[[Fiber], tuple[threading.Thread, bool]]) -> None:
        self.fibers = fibers
        self._thread_of = thread_of

    def move_to(self, fibers: FiberScheduler) -> None:
        """From now on they are those of another simulation."""
        self.fibers = fibers

    def substitution(self) -> Substitution:
        """What is to be replaced."""

        def base() -> type:
            is_real = self.fibers.user_fiber() is None or stays_real(sys._getframe(1))
            return _REAL if is_real else _VIRTUAL

        def local(*args: Any, **kwargs: Any) -> Any:
            return base()(*args, **kwargs)

        local.__module__, local.__name__ = "threading", "local"
        return Substitution(
            holder=threading, name="local", replacement=TypeReplacement(local, _REAL, (_VIRTUAL, ModuleLocal), base)
        )

    def of_modules(self) -> dict[type, Callable[[Any], Any]]:
        """What stands for those that modules of the user's keep: by their type."""
        return {_REAL: lambda real: ModuleLocal(real, self)}

    def space(self, real: Any) -> dict[str, Any]:
        """The namespace of a module's for the caller."""
        fiber = self.fibers.user_fiber()
        if fiber is None or fiber is self.fibers.driver:
            found: dict[str, Any] = real.__dict__
            return found
        thread, is_main = self._thread_of(fiber)
        spaces: dict[int, dict[str, Any]] = thread.__dict__.setdefault(_SPACES, {})
        space = spaces.get(id(real))
        if space is None:
            space = spaces[id(real)] = dict(real.__dict__) if is_main else {}
        return space


class ModuleLocal:
    """A `threading.local` that a module of the user's has."""

    __slots__ = ("__weakref__", "_locals", "_real")

    def __init__(self, real: Any, local: Locals) -> None:
        object.__setattr__(self, "_real", real)
        object.__setattr__(self, "_locals", local)

    def __getattribute__(self, name: str) -> Any:
        if name in ("__reduce__", "__reduce_ex__"):
            return object.__getattribute__(self, name)
        space = _space(self)
        if name == "__dict__":
            return space
        if name == "__class__":
            return _REAL
        try:
            return space[name]
        except KeyError:
            raise AttributeError(f"'_thread._local' object has no attribute {name!r}") from None

    def __setattr__(self, name: str, value: Any) -> None:
        _space(self)[name] = value

    def __delattr__(self, name: str) -> None:
        try:
            del _space(self)[name]
        except KeyError:
            raise AttributeError(name) from None

    def __reduce__(self) -> NoReturn:
        raise TypeError("cannot pickle '_thread._local' object")


def _space(of: ModuleLocal) -> dict[str, Any]:
    local: Locals = object.__getattribute__(of, "_locals")
    return local.space(object.__getattribute__(of, "_real"))
