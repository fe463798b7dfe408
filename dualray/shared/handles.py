"""The interface between the handles and the core: references, sized values, and names on methods."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from dualray.shared.model.specs import Ref

METHOD_OPTIONS = "__dualray_method_options__"
"""The attribute of a method's function that holds its options."""

TERMINATE = "__ray_terminate__"
"""The method that every actor has: it ends the actor when the calls made before have ended."""

SHUTDOWN = "__ray_shutdown__"
"""A method that an actor's class may have: it is called when the actor exits, and when its last handle is gone."""

SHUTDOWN_PATIENCE_NS = 30_000_000_000
"""How long it may take after the last handle is gone, as in Ray."""

EXIT_OUTSIDE = (
    "exit_actor() was called outside an actor: it ends the actor whose method calls it. (exit_actor API is called on a "
    "non-actor worker.)"
)

READY = "__ray_ready__"
"""Every actor has it, too: it returns True, once the actor is made."""

CALL = "__ray_call__"
"""Every actor has it, too: it calls a function with the actor's instance and further arguments."""


def method_of(instance: Any, name: str) -> Any:
    """The method of an actor's instance that a call names: that of its class, also where the instance has an attribute
    of the same name, as in Ray."""
    if name in getattr(instance, "__dict__", ()):
        cls = type(instance)
        for base in cls.__mro__:
            if name in base.__dict__:
                return base.__dict__[name].__get__(instance, cls)
    if name == READY:
        return _is_ready
    if name == CALL:
        return partial(_call_with, instance)
    return getattr(instance, name)


def _is_ready() -> bool:
    return True


def _call_with(instance: Any, function: Any, *args: Any, **kwargs: Any) -> Any:
    return function(instance, *args, **kwargs)


class Reference:
    """Base of the Python objects that stand for a reference: object refs and actor handles. `holder` is whoever counts
    it in its process."""

    __slots__ = ("__weakref__", "holder", "ref")

    ref: Ref
    holder: Any

    is_value = False
    """Whether it stands for a value, which a task gets in its place."""

    is_counted: Any = True
    """Whether it keeps what it refers to."""

    def _check_usable(self) -> None:
        """Raise when the reference cannot be used any more."""

    def _reduced(self) -> tuple[Any, ...]:
        """What stands for it in a value that the core pickles, and whose references it counts."""
        reduced = self.__reduce__()
        assert isinstance(reduced, tuple)
        return reduced


class Sized:
    """A value that counts as `size_bytes` bytes wherever it goes, if that is more than it has. Reading it gives the
    value alone."""

    __slots__ = ("size_bytes", "value")

    def __init__(self, value: Any, size_bytes: int) -> None:
        self.value = value
        self.size_bytes = size_bytes


CALL_TASK: Final = "dualray-call"
"""The name of an asyncio task that runs a call of an actor; those that user code creates have others."""


class ActorExit(BaseException):
    """What `exit_actor()` raises: the actor ends with this call. `except Exception` does not hold it up."""


class ProcessKey:
    """Stands for a process that runs user code where something is kept for each, weakly: compiled classes, as the core
    worker's is, have no weak references."""

    __slots__ = ("__weakref__",)
