"""The function table of a virtual cluster: a function for each of thousands of workers, copied where that is as good.

Theory of operation. Each worker loads a function for itself, for the globals of a function that came by value are its
own: what one worker binds there, another does not see. Most functions consist of what nobody can change, though: code,
numbers, strings, modules, functions and classes of modules. Of those one is unpickled for the cluster. If it does not
bind globals, nor looks as if it might, it is the same for all workers: none could tell. Else nobody calls it, and each
worker gets a new function around the same parts, with dicts of its own. A function with a closure or an attribute, one
that refers to a mutable value, a class that came by value: all else is unpickled for each worker.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from dis import opmap
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

from dualray.shared.core.layout import PLAIN_TYPES, deserialize_own
from dualray.shared.core.serialization import size_without_directories
from dualray.shared.core.task_runner import Export
from dualray.shared.model.ids import FunctionID


class FunctionTable:
    """See the module.

    Attributes:
        pickled: what there is, as it was put there.
        sent_bytes: how many bytes of each a worker is sent.
    """

    def __init__(self) -> None:
        self.pickled: dict[FunctionID, bytes] = {}
        self.sent_bytes: dict[FunctionID, int] = {}
        self._originals: dict[FunctionID, Export | None] = {}
        """What was unpickled to be copied; None: it cannot be."""
        self._shared: dict[FunctionID, Export] = {}

    def put(self, function: FunctionID, pickled: bytes) -> None:
        """Add a function or class."""
        self.pickled[function] = pickled
        self.sent_bytes[function] = size_without_directories(pickled)

    def load(self, function: FunctionID) -> Export:
        """What unpickling gives."""
        shared = self._shared.get(function)
        if shared is not None:
            return shared
        if function not in self._originals:
            loaded: Export = deserialize_own(self.pickled[function])
            is_copyable = _is_copyable(loaded)
            if is_copyable and _binds_nothing(loaded.target) and _binds_nothing(loaded.duration):
                self._shared[function] = loaded
                return loaded
            self._originals[function] = loaded if is_copyable else None
        original = self._originals[function]
        if original is None:
            unpickled: Export = deserialize_own(self.pickled[function])
            return unpickled
        namespaces: dict[int, dict[str, Any]] = {}  # functions that were pickled together share their globals
        target = _copy(original.target, namespaces)
        duration = original.duration
        if type(duration) is FunctionType:
            duration = _copy(duration, namespaces)
        return replace(original, target=target, duration=duration)


def _is_copyable(export: Export) -> bool:
    return (
        type(export.target) is FunctionType
        and (_is_fixed(export.target) or _came_simply(export.target))
        and (_is_fixed(export.duration) or (type(export.duration) is FunctionType and _came_simply(export.duration)))
        and _is_fixed(export.collect)
        and _is_fixed(export.retried)
    )


def _came_simply(function: FunctionType) -> bool:
    """Whether no part of a function that came by value can be changed, but for the dicts that `_copy` copies."""
    return (
        function.__closure__ is None
        and not vars(function)
        and not getattr(function, "__type_params__", ())
        and _is_fixed(function.__defaults__)
        and all(_is_fixed(value) for value in (function.__kwdefaults__ or {}).values())
        and all(_is_fixed(value) for value in function.__annotations__.values())
        and all(_is_fixed(value) for name, value in function.__globals__.items() if name != "__builtins__")
    )


def _is_fixed(value: Any) -> bool:
    """Whether pickle gives this very object again, or one that nobody can tell from it."""
    if value is None or type(value) in PLAIN_TYPES:
        return True
    if type(value) is tuple:
        return all(_is_fixed(item) for item in value)
    if isinstance(value, ModuleType):
        return sys.modules.get(value.__name__) is value
    if isinstance(value, FunctionType | BuiltinFunctionType | type):
        module = sys.modules.get(value.__module__ or "")
        return getattr(module, value.__qualname__, None) is value
    return False


_BINDING = frozenset({opmap["STORE_GLOBAL"], opmap["DELETE_GLOBAL"]})
_WAYS_TO_BIND = frozenset(
    {
        "globals",
        "locals",
        "vars",
        "exec",
        "eval",
        "compile",
        "setattr",
        "delattr",
        "__setattr__",
        "_getframe",
        "inspect",
    }
    | {"currentframe", "stack", "f_globals", "f_back", "gc", "ctypes", "__globals__", "__dict__", "__code__"}
    | {"__defaults__", "__kwdefaults__", "__annotations__", "__import__", "__builtins__", "__doc__", "__name__"}
)
"""Names by which code can come by its own globals, or by the function that it belongs to."""


def _binds_nothing(part: Any) -> bool:
    """Whether a part of an export, as `_is_copyable` has found it, leaves no trace in itself when it runs."""
    return _is_fixed(part) or _leaves_globals_alone(part.__code__)


def _leaves_globals_alone(code: CodeType) -> bool:
    return (
        _BINDING.isdisjoint(code.co_code[::2])
        and _WAYS_TO_BIND.isdisjoint(code.co_names)
        and all(_leaves_globals_alone(constant) for constant in code.co_consts if isinstance(constant, CodeType))
    )


def _copy(function: Any, namespaces: dict[int, dict[str, Any]]) -> Any:
    """A function that shares with this one what cannot be changed; itself, if it is a module's."""
    if _is_fixed(function):
        return function
    known = function.__globals__
    namespace = namespaces.get(id(known))
    if namespace is None:
        namespace = namespaces[id(known)] = known.copy()
    copy = FunctionType(function.__code__, namespace, function.__name__, function.__defaults__)
    copy.__qualname__, copy.__module__, copy.__doc__ = function.__qualname__, function.__module__, function.__doc__
    if function.__kwdefaults__:
        copy.__kwdefaults__ = function.__kwdefaults__.copy()
    if function.__annotations__:
        copy.__annotations__ = function.__annotations__.copy()
    return copy
