"""Pickling: a check of what can be pickled, the reason when something cannot, and serializers of your own.

`register_serializer` is for classes that pickle cannot take and that are not yours to change; for your own, write
`__reduce__`. `inspect_serializability` says which part of a function, class or object cannot be pickled.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TextIO

from dualray.shared.core import serialization

__all__ = ["FailureTuple", "deregister_serializer", "inspect_serializability", "register_serializer"]


@dataclass(frozen=True, slots=True)
class FailureTuple:
    """Something that cannot be pickled: the thing, its path in what was inspected, and what it is part of."""

    obj: Any
    name: str
    parent: Any

    def __hash__(self) -> int:
        return hash((self.name, id(self.obj)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FailureTuple) and (self.name, id(self.obj)) == (other.name, id(other.obj))

    def __repr__(self) -> str:
        return f"FailureTuple({self.name}: {type(self.obj).__name__})"


def inspect_serializability(
    base_obj: Any, name: str | None = None, depth: int = 3, print_file: TextIO | None = None
) -> tuple[bool, set[FailureTuple]]:
    """Whether an object can be pickled, and if not, its innermost parts that cannot.

    Args:
        base_obj: a function, a class, or any value.
        name: what it is called in the report; default: its `__qualname__`, or its type.
        depth: how many containers, attributes, closures and globals deep to look.
        print_file: where the report is printed; default: sys.stdout.

    Returns:
        (True, empty set), or (False, what cannot be pickled, each with its path).
    """
    what = name or getattr(base_obj, "__qualname__", None) or f"the {type(base_obj).__name__}"
    culprits = serialization.find_culprits(base_obj, what, depth_max=depth)
    failures = {FailureTuple(culprit.value, culprit.path, culprit.parent) for culprit in culprits}
    lines = [f"{what} can be pickled." if not failures else f"{what} cannot be pickled:"]
    lines += [f"  {culprit.path} (a {type(culprit.value).__name__}): {culprit.reason}" for culprit in culprits]
    print(*lines, sep="\n", file=print_file)
    return not failures, failures


def register_serializer(
    cls: type[Any], *, serializer: Callable[[Any], Any], deserializer: Callable[[Any], Any]
) -> None:
    """Pickle the instances of a class in this process with functions of your own.

    Args:
        cls: exactly this class; subclasses are pickled as before.
        serializer: makes of an instance something that can be pickled.
        deserializer: makes an instance of that; it travels with the value, so that receivers need not register.

    Raises:
        TypeError: `cls` is no class, or one of Python's own containers and numbers; a function is not callable.
    """
    if not isinstance(cls, type):
        raise TypeError(f"register_serializer takes a class, not {cls!r}")
    for role, function in (("serializer", serializer), ("deserializer", deserializer)):
        if not callable(function):
            raise TypeError(f"register_serializer({cls.__name__}): {role}={function!r} must be callable")
    serialization.register(cls, serializer, deserializer)


def deregister_serializer(cls: type[Any]) -> None:
    """Pickle the instances of a class as before; when nothing was registered for it, nothing happens."""
    serialization.deregister(cls)
