"""Whether virtual processes could tell that they share a function, or a class, and with it the modules that it names.

Theory of operation. What comes by reference, `mylib.f`, is on a real cluster each worker's own, which has imported
`mylib` for itself. In a simulation that costs an import for each virtual worker, and most functions could not tell. So
what a function names is looked at, in its code and that of the functions and classes of the user's modules that it
names in turn:

    NOBODY  code, and what is no module of the user's: all may share it with the driver
    DRIVER  plain values of the user's modules, too: the workers may share them, but not with the driver, who may have
            set them since the import, or will
    OWN     it binds a global, sets an attribute of a class or a module, names something that can be changed or a thing
            of which this is not known, or looks as if it might come by any of that: each worker has its own

In doubt it is the higher one: it costs time, and nothing else. A function that comes by value has its own globals. Of
those the same is asked of what came with it by reference. Whoever shares the modules with the driver also takes the
driver's class for one that comes by value: what its methods name is looked at as if it were a module's. What a method
does to an argument is not seen here: see `modules.py`.
"""

from __future__ import annotations

import builtins
import datetime as dt
import dis
import enum
import functools
import logging
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from importlib.util import find_spec
from operator import attrgetter, itemgetter, methodcaller
from pathlib import PurePath
from struct import Struct
from types import BuiltinFunctionType, CodeType, FunctionType, GenericAlias, MethodType, ModuleType, UnionType
from typing import Any, Final
from uuid import UUID

import numpy as np

from dualray.shared.core.layout import PLAIN_TYPES
from dualray.shared.handles import METHOD_OPTIONS
from dualray.sim.usercode.substitutions import EXCLUDED, is_library_path, is_users

__all__ = ["DRIVER", "NOBODY", "OWN", "Analysis", "globals_of", "is_by_reference", "is_library", "is_of_user"]

NOBODY: Final = 0
DRIVER: Final = 1
OWN: Final = 2

_FIXED_TYPES: Final[tuple[type, ...]] = (
    bool,
    bytes,
    complex,
    float,
    int,
    str,
    type(None),
    type(...),
    type(NotImplemented),
    range,
    slice,
    re.Pattern,
    PurePath,
    dt.date,
    dt.time,
    dt.timedelta,
    dt.tzinfo,
    Decimal,
    Fraction,
    UUID,
    GenericAlias,
    UnionType,
    Struct,
    attrgetter,
    itemgetter,
    methodcaller,
    np.dtype,
    np.generic,
    np.ufunc,
)
"""Of values that cannot be changed."""
_WAYS: Final = frozenset(
    {"globals", "vars", "exec", "eval", "__import__", "importlib", "import_module", "setattr", "delattr", "__setattr__"}
    | {"_getframe", "currentframe", "f_globals", "f_back", "gc", "ctypes", "__globals__", "__dict__", "__code__"}
    | {"__defaults__", "__kwdefaults__", "__subclasses__", "__builtins__"}
)
"""Names by which code can come by globals, classes or modules that it does not name."""
_OWN_ALREADY: Final = frozenset(
    {
        "dualray.sim.usercode.locks",
        "dualray.sim.usercode.locals",
        "dualray.sim.usercode.substitutions",
        "dualray.sim.usercode.virtual_time",
        "dataclasses",
        "typing",
        "_thread",
    }
)
"""Modules of types whose instances are each process's own, or stand for what is the same for all."""
_PARTS_MAX: Final = 10_000
"""Parts of one function that are looked at; of what has more nothing is known."""
_SUMMARIES_MAX: Final = 10_000


# ---- Whose module it is ----------------------------------------------------------------------------------------------


def globals_of(module: object) -> Mapping[str, Any]:
    """A module's, which is not asked: a lazily loaded one would be loaded, what stands for one may answer anything."""
    try:
        found = object.__getattribute__(module, "__dict__")
    except AttributeError:
        return {}
    return found if isinstance(found, dict) else {}


def is_of_user(namespace: Mapping[str, Any]) -> bool:
    """Whether these are the globals of a module of the user's, or of what came by value."""
    name = namespace.get("__name__")
    return isinstance(name, str) and not _is_spared(name) and not _is_installed(namespace)


def _is_installed(namespace: Mapping[str, Any]) -> bool:
    if namespace.get("__file__") is not None:
        return not is_users(namespace)
    places = list(namespace.get("__path__") or ())  # of a package that is directories alone
    return any(is_library_path(str(place)) for place in places)


def _is_spared(name: str) -> bool:
    top = name.partition(".")[0]
    return top in EXCLUDED or top in sys.stdlib_module_names


_found: dict[str, bool] = {}


def is_library(name: str) -> bool:
    """Whether a module that may not have been imported yet is none of the user's."""
    if _is_spared(name):
        return True
    module = sys.modules.get(name)
    if module is not None:
        return _is_installed(globals_of(module))
    top = name.partition(".")[0]
    if top not in _found:
        try:
            spec = find_spec(top)
        except (ImportError, ValueError):
            return False
        if spec is None:
            return False
        places = [spec.origin or "", *(spec.submodule_search_locations or ())]
        _found[top] = any(is_library_path(place) for place in places)
    return _found[top]


def is_by_reference(value: FunctionType | type) -> bool:
    """Whether a function or class is what its module has under its name, and is pickled so."""
    module = sys.modules.get(value.__module__ or "")
    if module is None or module.__name__ == "__main__":
        return False
    found: Any = module
    for name in value.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is value


# ---- What code does --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Summary:
    """What one code object does, apart from those within it.

    is_open: it binds globals, or may come by anything.
    sets_class: it sets an attribute of the class of an instance, or of a method.
    named: globals that it loads, each with the attributes that it loads from there.
    imported: modules that it imports, each with the names that it takes from there; None: the module itself.
    set_on_globals: attributes that it sets, of globals: by the path there.
    set_names: attributes that it sets of what may be a class.
    set_free: variables of functions around it that it sets.
    """

    is_open: bool
    sets_class: bool
    named: tuple[tuple[str, ...], ...]
    imported: tuple[tuple[str, int, tuple[str, ...] | None], ...]
    set_on_globals: tuple[tuple[str, ...], ...]
    set_names: frozenset[str]
    set_free: frozenset[str]
    within: tuple[CodeType, ...]


_summaries: dict[int, tuple[CodeType, _Summary]] = {}
"""By identity: equal code of two modules is compared in full else."""


def _summary(code: CodeType) -> _Summary:
    known = _summaries.get(id(code))
    if known is not None:
        return known[1]
    if len(_summaries) >= _SUMMARIES_MAX:
        _summaries.clear()
    summary = _summarise(code)
    _summaries[id(code)] = code, summary
    return summary


def _summarise(code: CodeType) -> _Summary:
    reading = _Reading(code)
    steps = [step for step in dis.get_instructions(code) if step.opname not in ("CACHE", "EXTENDED_ARG", "NOP")]
    for index, step in enumerate(steps):
        if step.opname == "IMPORT_NAME":
            reading.imports(steps, index)
        else:
            reading.binds(step.opname, step.argval)
        reading.follows(step.opname, step.argval)
    return _Summary(
        reading.is_open,
        reading.sets_class,
        tuple(dict.fromkeys((*reading.named, *reading.set_on_globals))),
        tuple(reading.imported),
        tuple(reading.set_on_globals),
        frozenset(reading.set_names),
        frozenset(reading.set_free),
        tuple(constant for constant in code.co_consts if isinstance(constant, CodeType)),
    )


_LOADS_GLOBAL: Final = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"})


class _Reading:
    """What has been seen of a code object: the attributes of its _Summary."""

    def __init__(self, code: CodeType) -> None:
        self._code = code
        self.is_open, self.sets_class = not _WAYS.isdisjoint(code.co_names), False
        self.named: dict[tuple[str, ...], None] = {}
        self.imported: list[tuple[str, int, tuple[str, ...] | None]] = []
        self.set_on_globals: list[tuple[str, ...]] = []
        self.set_names, self.set_free = set[str](), set[str]()
        self._path: tuple[str, ...] | None = None
        """The global, and its attributes, that the last steps have loaded."""
        self._source = ""
        """What the last step has loaded, in words, or the name of its operation."""
        self._copied: list[tuple[tuple[str, ...] | None, str]] = []
        """Of `x.n += 1`: path and source of x, for the assignment that comes."""

    def imports(self, steps: Sequence[dis.Instruction], index: int) -> None:
        """A step imports a module."""
        taken = []
        for later in steps[index + 1 :]:
            if later.opname == "IMPORT_FROM":
                taken.append(str(later.argval))
            elif not later.opname.startswith("STORE_"):
                break
        level = steps[index - 2].argval if index > 1 else 0
        self.imported.append((steps[index].argval, level if isinstance(level, int) else 0, tuple(taken) or None))

    def binds(self, operation: str, name: Any) -> None:
        """A step may set or delete something."""
        if operation in ("STORE_GLOBAL", "DELETE_GLOBAL"):
            self.is_open = True
        elif operation in ("STORE_DEREF", "DELETE_DEREF"):
            if name in self._code.co_freevars:
                self.set_free.add(name)
        elif operation in ("STORE_ATTR", "DELETE_ATTR"):
            is_copy = self._source == "SWAP" and self._copied
            path, source = self._copied.pop() if is_copy else (self._path, self._source)
            if path is not None:
                self.set_on_globals.append(path)
            elif source in ("local cls", "attribute __class__") or (source == "CALL" and "type" in self._code.co_names):
                self.sets_class = True
            elif source != "local self":
                self.set_names.add(name)

    def follows(self, operation: str, value: Any) -> None:
        """Keep what has been loaded up to now."""
        path = self._path
        if operation == "COPY":
            self._copied.append((path, self._source))
            self._source = operation
            if path is not None:
                self.named[path] = None
            return
        self._path = None
        if operation in _LOADS_GLOBAL:
            self._path = (value,)
        elif operation in ("LOAD_ATTR", "LOAD_METHOD") and path is not None:
            self._path = (*path, value)
        if path is not None and (self._path is None or operation in _LOADS_GLOBAL):
            self.named[path] = None
        if operation.startswith("LOAD_FAST") or operation.endswith("_LOAD_FAST"):
            self._source = f"local {value[-1] if isinstance(value, tuple) else value}"
        else:
            self._source = f"attribute {value}" if operation == "LOAD_ATTR" else operation


def _with_inner(code: CodeType) -> Iterator[tuple[CodeType, _Summary]]:
    summary = _summary(code)
    yield code, summary
    for within in summary.within:
        yield from _with_inner(within)


# ---- What may be shared ----------------------------------------------------------------------------------------------


class Analysis:
    """Looks at one function or class, and what it names. While it does, `sys.modules` shows the modules of which it is.

    Attributes:
        modules: names of the modules of the user's that were come by.
    """

    def __init__(self) -> None:
        self.modules: dict[str, None] = {}
        self._seen: dict[tuple[int, bool], Any] = {}
        self._is_in_class = False
        """Whether this is looked at because a class that came by value has, or names, it."""
        self._level = NOBODY
        self._set_names: set[str] = set()
        """Attributes that some code sets of what may be a class."""
        self._class_names: set[str] = set()
        """Those that classes have."""

    def of(self, *values: Any) -> int:
        """NOBODY, DRIVER or OWN: what holds for all of them."""
        for value in values:
            self._carried(value)
        if not self._set_names.isdisjoint(self._class_names):
            return OWN
        return self._level

    def _needs(self, level: int) -> None:
        self._level = max(self._level, level)

    def _is_new(self, value: Any) -> bool:
        key = id(value), self._is_in_class
        if self._level == OWN or key in self._seen:
            return False
        self._seen[key] = value
        if len(self._seen) > _PARTS_MAX:
            self._needs(OWN)
        return True

    # -- values --------------------------------------------------------------------------------------------

    def _carried(self, value: Any) -> None:
        """What came by value, or is only held by what did."""
        kind = type(value)
        if kind in PLAIN_TYPES or not (kind is FunctionType or issubclass(kind, type) or self._is_new(value)):
            return
        if kind in (tuple, list, set, frozenset):
            self._all_carried(value)
        elif kind is dict:
            self._all_carried(value)
            self._all_carried(value.values())
        elif kind is FunctionType:
            self._function(value)
        elif kind is MethodType:
            self._carried(value.__func__)
            self._carried(value.__self__)
        elif kind is functools.partial:
            self._all_carried((value.func, value.args, value.keywords))
        elif issubclass(kind, ModuleType):
            if is_of_user(globals_of(value)):
                self._note(value)
                self._needs(OWN)
        elif issubclass(kind, type):
            self._class(value)
        elif (remote := _remote(value)) is not None:
            self._carried(remote)
        elif _has_class_of_user(kind):
            self._class(kind)
            namespace = getattr(value, "__dict__", None)
            if type(namespace) is dict:
                self._all_carried(namespace.values())

    def _all_carried(self, values: Iterable[Any]) -> None:
        for value in values:
            self._carried(value)

    def _kept(self, value: Any, name: str, holder: str) -> None:
        """What a module, or a class of it, has under a name: it is for all who share that."""
        kind = type(value)
        if isinstance(value, enum.Enum):
            self._needs(DRIVER)
            self._class(kind)
        elif isinstance(value, _FIXED_TYPES) or kind is object:
            self._needs(DRIVER)
        elif kind is tuple or kind is frozenset:
            self._needs(DRIVER)
            for part in value:
                self._kept(part, name, holder)
        elif kind is FunctionType or issubclass(kind, type):
            if (value.__module__, value.__name__) != (holder, name) and is_of_user(_namespace_of(value)):
                self._needs(DRIVER)  # it may have been put there
            if kind is FunctionType:
                self._function(value)
            else:
                self._class(value)
        elif kind in (staticmethod, classmethod):
            self._kept(value.__func__, name, holder)
        elif kind is property:
            for part in (value.fget, value.fset, value.fdel):
                if part is not None:
                    self._function(part)
        elif kind is functools.cached_property:
            self._function(value.func)
        elif kind is functools.partial:
            for part in (value.func, *value.args, *value.keywords.values()):
                self._kept(part, name, holder)
        elif kind is MethodType and isinstance(value.__self__, type):
            self._function(value.__func__)
            self._class(value.__self__)
        elif kind is BuiltinFunctionType or (kind.__module__ == "builtins" and kind.__name__ in _DESCRIPTORS):
            of = getattr(value, "__self__", None)
            if not (of is None or isinstance(of, ModuleType | type)):
                self._needs(OWN)
        elif issubclass(kind, ModuleType):
            if is_of_user(globals_of(value)):
                self._note(value)
                self._needs(OWN)
        elif (remote := _remote(value)) is not None:
            self._kept(remote, remote.__name__, holder)
        elif not _is_own_already(kind):
            self._needs(OWN)

    # -- functions -----------------------------------------------------------------------------------------

    def _function(self, function: Any) -> None:
        if type(function) is not FunctionType:
            self._kept(function, "", "")
            return
        namespace = function.__globals__
        if not is_of_user(namespace) or not self._is_new(function):
            return
        is_kept = is_of_module = _is_of_module(namespace)
        if is_of_module:
            self._note_name(namespace["__name__"])
        elif self._is_in_class:
            is_kept = True
        for value in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
            self._part(value, is_kept)
        for cell in function.__closure__ or ():
            try:
                self._part(cell.cell_contents, is_kept)
            except ValueError:
                continue
            if self._is_in_class and type(cell.cell_contents) in _FIXED_TYPES:
                self._needs(DRIVER)  # the function around it may give the variable another value
        for name, value in vars(function).items():
            if name == "__wrapped__":
                self._part(value, is_kept)
            elif name != METHOD_OPTIONS and is_kept:
                self._kept(value, name, "")
        if is_kept and self._sets_free(function.__code__):
            self._needs(OWN)
        self._code(function.__code__, namespace, is_kept)

    def _part(self, value: Any, is_kept: bool) -> None:
        if not is_kept:
            self._carried(value)
        elif type(value) not in _FIXED_TYPES:  # which nobody can put there anew
            self._kept(value, getattr(value, "__name__", ""), getattr(value, "__module__", ""))

    def _sets_free(self, code: CodeType) -> bool:
        """Whether it sets a variable of its closure, which is for all calls."""
        free = set(code.co_freevars)
        return any(not free.isdisjoint(summary.set_free) for _, summary in _with_inner(code))

    def _code(self, code: CodeType, namespace: dict[str, Any], is_kept: bool) -> None:
        for _, summary in _with_inner(code):
            if summary.sets_class or (summary.is_open and is_kept):
                self._needs(OWN)
            if self._level == OWN:
                return
            self._set_names |= summary.set_names
            for path in summary.set_on_globals:
                self._path(path, namespace, is_kept, is_set=True)
            for path in summary.named:
                self._path(path, namespace, is_kept)
            for name, level, taken in summary.imported:
                self._import(name, level, taken, namespace)

    def _path(self, path: tuple[str, ...], namespace: dict[str, Any], is_kept: bool, is_set: bool = False) -> None:
        """A global, and attributes that are loaded from it."""
        name = path[0]
        if name not in namespace:
            if not hasattr(builtins, name) and is_kept:
                self._needs(DRIVER)  # somebody else may set it
            return
        value = namespace[name]
        holder = str(namespace.get("__name__"))
        if not issubclass(type(value), ModuleType):
            if is_set and (is_kept or not _is_plain_instance(value)):
                self._needs(OWN)
            elif is_kept:
                self._kept(value, name, holder)
            else:
                self._carried(value)
            return
        if path[:2] == ("sys", "modules"):
            self._needs(OWN)
        for name in path[1:]:
            inner = globals_of(value)
            if not is_of_user(inner):
                return
            self._note(value)
            holder = str(inner.get("__name__"))
            if name not in inner:
                self._needs(OWN)
                return
            value = inner[name]
            if not issubclass(type(value), ModuleType):
                self._needs(OWN) if is_set else self._kept(value, name, holder)
                return
        if is_of_user(globals_of(value)):
            self._note(value)
            self._needs(OWN)

    def _import(self, name: str, level: int, taken: tuple[str, ...] | None, namespace: dict[str, Any]) -> None:
        """A module that is imported when the function runs."""
        if level:
            package = str(namespace.get("__package__") or "").split(".")
            name = ".".join([*package[: len(package) - level + 1], *([name] if name else [])])
        if is_library(name):
            return
        module = sys.modules.get(name)
        if module is None or taken is None or name == "__main__":
            self._needs(OWN)
            return
        self._note(module)
        for each in taken:
            self._path(("_", each), {"_": module}, is_kept=True)

    # -- classes -------------------------------------------------------------------------------------------

    def _class(self, cls: type) -> None:
        namespace = _namespace_of(cls)
        if not is_of_user(namespace) or not self._is_new(cls):
            return
        if is_by_reference(cls):
            self._note_name(cls.__module__)
        for base in cls.__mro__[1:]:
            self._class(base)
        self._class(type(cls))
        before, self._is_in_class = self._is_in_class, not is_by_reference(cls)
        self._members(cls)
        self._is_in_class = before

    def _members(self, cls: type) -> None:
        is_enum, is_tuple = issubclass(cls, enum.Enum), issubclass(cls, tuple)
        for name, value in vars(cls).items():
            is_hidden = name.startswith("__") and name.endswith("__")
            if type(value) is FunctionType:
                if not is_hidden and (value.__module__, value.__name__) != (cls.__module__, name):
                    self._needs(DRIVER)
                self._function(value)
            elif type(value) in (staticmethod, classmethod, property, functools.cached_property):
                self._kept(value, name, cls.__module__)
            elif not (
                is_hidden
                or name == "_abc_impl"
                or (is_enum and name.startswith("_"))
                or (is_tuple and (name in _OF_NAMED_TUPLES or type(value).__name__ == "_tuplegetter"))
            ):
                self._class_names.add(name)
                self._kept(value.value if isinstance(value, enum.Enum) else value, name, cls.__module__)

    def _note(self, module: ModuleType) -> None:
        self._note_name(module.__name__)

    def _note_name(self, name: str) -> None:
        self.modules[name] = None


_OF_NAMED_TUPLES: Final = frozenset({"_fields", "_field_defaults", "_make", "_replace", "_asdict"})
_DESCRIPTORS: Final = frozenset(
    {"builtin_function_or_method", "method_descriptor", "wrapper_descriptor", "getset_descriptor", "member_descriptor"}
    | {"classmethod_descriptor", "method-wrapper", "ellipsis"}
)


def _namespace_of(value: Any) -> Mapping[str, Any]:
    """The globals among which a function or class was defined, as far as its name says."""
    if type(value) is FunctionType:
        return value.__globals__
    name = getattr(value, "__module__", None)
    module = sys.modules.get(name) if isinstance(name, str) else None
    if module is None:
        return {"__name__": name}
    return globals_of(module)


def _is_of_module(namespace: Mapping[str, Any]) -> bool:
    module = sys.modules.get(str(namespace.get("__name__")))
    return module is not None and globals_of(module) is namespace


def _has_class_of_user(kind: type) -> bool:
    return kind.__module__ != "builtins" and is_of_user(_namespace_of(kind))


def _is_plain_instance(value: Any) -> bool:
    return not isinstance(value, FunctionType | type | ModuleType)


def _is_own_already(kind: type) -> bool:
    """Whether instances are each process's own already, or the same for all, whoever has imported what."""
    return kind.__module__ in _OWN_ALREADY or issubclass(kind, (logging.Logger, ThreadPoolExecutor, ContextVar))


def _remote(value: Any) -> Any:
    """The function or class that dualray has made a remote one of."""
    kind = type(value)
    if not str(kind.__module__).startswith("dualray."):
        return None
    found = getattr(value, "_function", None) or getattr(value, "_cls", None)
    return found if isinstance(found, FunctionType | type) else None
