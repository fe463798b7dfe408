"""Pickling: check whether a value can be pickled, find parts that cannot be pickled, and register your own serializers.

Use `register_serializer` for classes of other libraries that pickle cannot handle. In your own classes, write
`__reduce__`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TextIO

from dualray.exceptions import rays_words
from dualray.shared.core import serialization
from dualray.util.debug import log_once

__all__ = ["FailureTuple", "deregister_serializer", "inspect_serializability", "register_serializer"]


@dataclass(frozen=True, slots=True)
class FailureTuple:
    """A part of an inspected value that cannot be pickled: the object, its path in the value, and its parent."""

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
    """Check whether an object can be pickled, and if not, find its innermost parts that cannot.

    Args:
        base_obj: a function, a class, or any value.
        name: name of the object in the report. Default: its `__qualname__`, or its type.
        depth: how many levels of containers, attributes, closures and globals to inspect.
        print_file: where to print the report. Default: sys.stdout.

    Returns:
        (True, empty set), or (False, the parts that cannot be pickled, each with its path).
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
        cls: the class. The serializer does not apply to its subclasses.
        serializer: converts an instance to a value that can be pickled.
        deserializer: converts this value back to an instance. dualray sends the deserializer with each value, so
            receivers need not register it.

    Raises:
        TypeError: `cls` is not a class, or is one of Python's own containers and numbers; or a function is not
            callable. In a program that imports `ray`, a serializer of a container or number has no effect, as on Ray.
    """
    if not isinstance(cls, type):
        raise TypeError(f"register_serializer takes a class, not {cls!r}")
    for role, function in (("serializer", serializer), ("deserializer", deserializer)):
        if not callable(function):
            raise TypeError(f"register_serializer({cls.__name__}): {role}={function!r} must be callable")
    if rays_words() is not None and not serialization.is_asked(cls):
        if log_once(f"register_serializer of {cls.__name__}"):
            words = "register_serializer(%s) has no effect, as on Ray: %s is always pickled by Python itself"
            logging.getLogger("ray").warning(words, cls.__name__, cls.__name__)
        return
    serialization.register(cls, serializer, deserializer)


def deregister_serializer(cls: type[Any]) -> None:
    """Remove the serializer of a class. If the class has no registered serializer, the call does nothing."""
    serialization.deregister(cls)
