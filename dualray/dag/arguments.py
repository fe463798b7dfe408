"""Nodes among the arguments of nodes: found at any depth, and replaced by their results.

An argument is taken apart as pickle does it, and put together again. What holds no nodes stays the very same object.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Mapping, Sequence
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import cloudpickle
import numpy as np

from dualray.object_ref import CountedReference


class Found:
    """The base of all nodes."""

    _uuid: str


def is_node(each: object) -> bool:
    """Whether it is a node."""
    return isinstance(each, Found)


_PLAIN = (int, float, str, bytes, bool, complex, type(None))
_KEPT = (CountedReference, type, FunctionType, BuiltinFunctionType, MethodType, ModuleType)
"""What holds no nodes, and stays the very same object."""


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle ships no types
    """Takes an argument apart, down to the nodes in it."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=5)
        self.found: list[Any] = []

    def persistent_id(self, each: Any) -> int | None:
        if type(each) in _PLAIN or not (is_node(each) or _is_kept(each)):
            return None
        self.found.append(each)
        return len(self.found) - 1


def _is_kept(each: Any) -> bool:
    if isinstance(each, np.ndarray):
        return not each.dtype.hasobject
    return isinstance(each, _KEPT) or (hasattr(type(each), "bind") and hasattr(type(each), "remote"))


class _Unpickler(pickle.Unpickler):
    """Puts an argument together again, with results in place of nodes."""

    def __init__(self, data: bytes, place: Callable[[int], Any]) -> None:
        super().__init__(io.BytesIO(data))
        self._place = place

    def persistent_load(self, pid: Any) -> Any:
        return self._place(pid)


class Parts:
    """The arguments of a node, and the nodes in them."""

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._value = args, kwargs
        self._data = b""
        self._found: list[Any] = []
        if all(type(each) in _PLAIN for each in (*args, *kwargs.values())):
            return
        file = io.BytesIO()
        pickler = _Pickler(file)
        try:
            pickler.dump(self._value)
        except Exception:  # noqa: BLE001 - what cannot be pickled is refused, by its path, when the call is made
            self._found = [each for each in (*args, *kwargs.values()) if is_node(each)]
            return
        self._data, self._found = file.getvalue(), pickler.found

    @property
    def nodes(self) -> list[Any]:
        return [each for each in self._found if is_node(each)]

    def with_results(self, results: Mapping[str, Any]) -> tuple[Sequence[Any], Mapping[str, Any]]:
        """The arguments with the results of nodes in their places."""
        if not self.nodes:
            return self._value

        def result_of(each: Any) -> Any:
            return results[each._uuid] if is_node(each) else each

        if self._data:
            found = self._found
            value: tuple[Sequence[Any], Mapping[str, Any]] = _Unpickler(
                self._data, lambda i: result_of(found[i])
            ).load()
            return value
        args, kwargs = self._value
        return [result_of(each) for each in args], {name: result_of(each) for name, each in kwargs.items()}
