"""Substitutions put replacements into other people's modules, and take them out again.

Theory of operation
-------------------
A replacement in `time` misses `from time import sleep`. So `install` also rewrites every module already
loaded whose global is the original, and the defaults of its functions and the attributes of its classes;
except the standard library and the packages of EXCLUDED, whose own waits and clocks must stay real.
`rewrite_function` does the same for a function that came by value. Every place written is in a journal, and
`uninstall` restores it exactly, unless someone else has written there meanwhile; then it sweeps out
replacements that modules bound while they stood. One that is kept where no sweep goes (an instance
attribute, a closure) does no harm: without a simulation, it calls the original.

A replacement is a `staticmethod` object: it is callable, does not turn into a method as a class attribute
(nor do the built-in functions that it stands for), and is pickled as `time.sleep`, by reference. So is what it
replaces, if somebody has kept that: `dualray.remote(time.sleep)`.
"""

from __future__ import annotations

import functools
import re
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import BuiltinFunctionType, CellType, FunctionType, MethodType, ModuleType
from typing import Any, Final, Self, TypeGuard

from dualray.shared.core.serialization import replaced_builtins
from dualray.sim.kernel.fibers import Fiber

__all__ = [
    "EXCLUDED",
    "LIBRARIES",
    "Replacement",
    "Substitution",
    "Substitutions",
    "TypeReplacement",
    "in_user_code",
    "is_library_path",
    "is_users",
]

EXCLUDED: Final = frozenset(
    {"_pytest", "dualray", "execnet", "greenlet", "hypothesis", "numpy", "pluggy", "pytest", "simpy", "xdist"}
)
"""Packages, beside the standard library, whose bindings are left alone."""


PARTS_DEPTH_MAX: Final = 3
PARTS_MAX: Final = 1_000
"""How deep, and in how large dicts and lists, locks of a user's module are looked for."""
_OF_CONDITION: Final = frozenset({"_acquire_restore", "_is_owned", "_release_save", "acquire", "release"})


class Replacement(staticmethod):  # type: ignore[type-arg]  # generic in the stub only
    """A function that stands for `original` under its name; see the module's theory of operation."""

    def __reduce__(self) -> str:
        return self.__qualname__


class TypeReplacement:
    """As a Replacement, for a class: it can be asked for instances, be a base, and is pickled by reference.

    kinds: what it makes beside instances of the class.
    base: gives what is inherited from where it is a base.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        original: type,
        kinds: tuple[type, ...],
        base: Callable[[], type] | None = None,
    ) -> None:
        self._function, self._original, self._kinds = function, original, kinds
        self._base = base or (lambda: original)
        self.__doc__ = original.__doc__
        self.__qualname__ = self.__name__ = function.__name__
        self.__module__ = function.__module__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        return (self._base(),)

    def __instancecheck__(self, instance: object) -> bool:
        return isinstance(instance, (self._original, *self._kinds))

    def __subclasscheck__(self, cls: type) -> bool:
        return issubclass(cls, (self._original, *self._kinds))

    def __getitem__(self, item: Any) -> Any:
        original: Any = self._original
        return original[item]

    def __or__(self, other: Any) -> Any:
        return self._original | other

    def __ror__(self, other: Any) -> Any:
        return other | self._original

    def __reduce__(self) -> str:
        return self.__qualname__


@dataclass(frozen=True, slots=True, kw_only=True)
class Substitution:
    """Put `replacement` where `holder` (a module, or a class) has the attribute `name`."""

    holder: Any
    name: str
    replacement: Any

    @staticmethod
    def of(holder: ModuleType, name: str, function: Callable[..., Any], *kinds: type) -> Substitution:
        """A Replacement that looks like `holder.name`, calls `function`, and is pickled by that name.

        kinds: of a class, what it makes beside instances of that.
        """
        original = getattr(holder, name)
        function.__module__ = holder.__name__
        function.__name__ = function.__qualname__ = name
        function.__doc__ = original.__doc__
        replacement: Any = Replacement(function)
        if isinstance(original, type):
            replacement = TypeReplacement(function, original, kinds)
        return Substitution(holder=holder, name=name, replacement=replacement)


_MISSING: Final = object()


@dataclass(frozen=True, slots=True)
class _Writing:
    """One place of the journal: an item of a module's globals, or an attribute of anything else."""

    target: Any
    name: Any
    old: Any
    new: Any

    def undo(self) -> None:
        if isinstance(self.target, dict):
            if self.target.get(self.name) is self.new:
                self.target[self.name] = self.old
        elif isinstance(self.target, list):
            if self.name < len(self.target) and self.target[self.name] is self.new:
                self.target[self.name] = self.old
        elif _stored(self.target, self.name) is self.new:
            if self.old is _MISSING:
                delattr(self.target, self.name)
            else:
                setattr(self.target, self.name, self.old)


def _stored(target: Any, name: str) -> Any:
    """The attribute as it is stored, not as it is bound; what a class has inherited is missing."""
    return vars(target).get(name, _MISSING) if isinstance(target, type) else getattr(target, name, _MISSING)


class Substitutions:
    """Replacements that stand in other people's modules from `install()` to `uninstall()`.

    Also a context manager. One set of them can stand in a process at a time.

    of_modules: by type, what makes the replacement of an object that a module of the user's has under a name.
    """

    def __init__(
        self, substitutions: Iterable[Substitution], of_modules: Mapping[type, Callable[[Any], Any]] | None = None
    ) -> None:
        self._substitutions = tuple(substitutions)
        self._of_modules = of_modules or {}
        self._journal: list[_Writing] = []
        self._table: dict[int, Any] = {}  # id of what a sweep takes out -> what it puts in
        self._originals: dict[int, Any] = {}  # id of a replacement -> the original; the table of the last sweep
        self._modules_before: frozenset[str] = frozenset()
        self._modules_swept: set[str] = set()
        self._elsewhere: dict[int, ModuleType] = {}  # those that `sweep_module` was given
        self._modules_seen: tuple[str, ...] = ()  # when they were last looked for
        self._standing = 0  # so much of the journal is about modules; the rest is about functions that came by value
        self.installed = False

    def install(self) -> None:
        """Put every replacement into its place and into the modules that bound the original earlier."""
        if self.installed:
            raise RuntimeError(
                "the simulation has already replaced the functions of this set: call install() only once"
            )
        stored = [_stored(entry.holder, entry.name) for entry in self._substitutions]
        if any(isinstance(original, Replacement) for original in stored):
            raise RuntimeError("another simulation runs in this process: call dualray.shutdown() first")
        self._modules_before = frozenset(sys.modules)
        self.installed = True
        try:
            for entry, original in zip(self._substitutions, stored, strict=True):
                if isinstance(entry.holder, ModuleType):
                    if isinstance(original, BuiltinFunctionType):
                        replaced_builtins.setdefault(id(original), (entry.holder.__name__, entry.name))
                    self._table.setdefault(id(original), entry.replacement)
                    self._originals[id(entry.replacement)] = original
                    self._write(vars(entry.holder), entry.name, entry.replacement)
                else:
                    self._write(entry.holder, entry.name, entry.replacement)
            self.sweep_new_modules()
        except BaseException:
            self.uninstall()
            raise

    def sweep_new_modules(self) -> None:
        """Put the replacements into modules that have come since they were last looked for."""
        names = tuple(sys.modules)
        if names != self._modules_seen:
            self._modules_seen = names
            new = [name for name in names if name not in self._modules_swept]
            self._modules_swept.update(new)
            table = hash(tuple(self._table))
            for name in new:
                if name not in _SPARED and name.partition(".")[0] not in _SPARED:
                    self._sweep_if_new(name, sys.modules[name], table)
        self._standing = len(self._journal)

    def uninstall(self) -> None:
        """Restore every place; does nothing when nothing is installed."""
        if not self.installed:
            return
        self.installed = False
        replaced_builtins.clear()
        while self._journal:
            self._journal.pop().undo()
        # What was bound while the replacements stood: by a task's imports, or in a notebook.
        self._table = self._originals
        for name, module in list(sys.modules.items()):
            if name not in self._modules_before or name == "__main__":
                self._sweep_module(module)
        for module in self._elsewhere.values():
            self._sweep_module(module)
        self._elsewhere.clear()
        self._journal.clear()
        self._modules_swept.clear()
        self._modules_seen = ()
        self._table = {}
        self._originals = {}

    def sweep_module(self, module: ModuleType, *, is_kept: bool) -> None:
        """Put the replacements into a module of the user's that is not among those of `sys.modules`.

        is_kept: it is for later simulations, too: `uninstall` takes out what it has bound.
        """
        if is_kept:
            self._elsewhere[id(module)] = module
        self._sweep_module(module)

    def restore_functions(self) -> None:
        """Undo what `rewrite_function` has done since modules were swept."""
        while len(self._journal) > self._standing:
            self._journal.pop().undo()
        self._elsewhere.clear()

    def __enter__(self) -> Self:
        self.install()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.uninstall()

    def rewrite_function(self, function: object) -> None:
        """Put the replacements into a function (method, class) that came by value, in place.

        Its defaults and closure, and its globals unless they are those of a loaded module; and so on
        through the functions and classes that it refers to. Of another callable, what it says that it wraps.
        """
        seen: set[int] = set()
        rest = [function]
        while rest:
            item = rest.pop()
            if id(item) in seen or isinstance(item, Replacement | TypeReplacement):  # which knows the original
                continue
            seen.add(id(item))
            if isinstance(item, MethodType):
                rest += [item.__func__, type(item.__self__)]
            elif isinstance(item, FunctionType):
                self._sweep_function(item)
                rest += [cell.cell_contents for cell in item.__closure__ or () if _is_filled(cell)]
                if not _is_of_loaded_module(item):
                    for name, value in list(item.__globals__.items()):
                        if id(value) in self._table:
                            self._write(item.__globals__, name, self._table[id(value)])
                        elif issubclass(type(value), FunctionType | type):
                            rest.append(value)
            elif isinstance(item, type) and not _is_of_loaded_module(item):
                self._sweep_class(item)
                rest += [value for value in vars(item).values() if isinstance(value, FunctionType)]
            elif (wrapped := getattr(item, "__wrapped__", None)) is not None:
                rest.append(wrapped)

    # -- sweeping: each writes through _write, by the table in force ---------------------------------------

    def _write(self, target: Any, name: Any, new: Any) -> None:
        if isinstance(target, dict | list):
            self._journal.append(_Writing(target, name, target[name], new))
            target[name] = new
        else:
            self._journal.append(_Writing(target, name, _stored(target, name), new))
            setattr(target, name, new)

    def _sweep_if_new(self, name: str, module: object, table: int) -> None:
        """Sweep a module, unless it is an installed library's in which there was nothing to replace the last time, and
        it binds the same objects as then: a program that simulates again and again looks at them once."""
        if not _is_module(module):
            return
        namespace: dict[str, Any] = object.__getattribute__(module, "__dict__")
        bound = hash((table, *map(id, namespace.values())))
        if _CLEAN.get(name) == bound:
            return
        writings = len(self._journal)
        self._sweep_module(module)
        if len(self._journal) == writings and not is_users(namespace):
            _CLEAN[name] = bound

    def _sweep_module(self, module: object) -> None:
        if not _is_module(module):
            return
        # Not module.__dict__: a lazily loaded module would be loaded by the question.
        namespace: dict[str, Any] = object.__getattribute__(module, "__dict__")
        module_name = namespace.get("__name__")
        values = list(namespace.values())
        if not self._table.keys().isdisjoint(map(id, values)):
            for name, value in list(namespace.items()):
                if id(value) in self._table:
                    self._write(namespace, name, self._table[id(value)])
        if self.installed and self._of_modules and is_users(namespace):
            self._sweep_inside(namespace, set())
        for value in values:
            if type(value) is FunctionType:
                if value.__module__ == module_name:
                    self._sweep_function(value)
            elif issubclass(type(value), type) and vars(value).get("__module__") == module_name:
                self._sweep_class(value)  # it is not asked for its class: a proxy answers for what is not there

    def _sweep_inside(self, holder: Any, seen: set[int], depth: int = PARTS_DEPTH_MAX) -> None:
        """Replace the locks in a module of the user's (its dict), a class, an instance, a dict or a list, and in their
        parts."""
        if id(holder) in seen:
            return
        seen.add(id(holder))
        of_instance = None
        if not issubclass(type(holder), dict | list | type):
            of_instance, holder = holder, _namespace_of(holder) or {}
        if isinstance(holder, dict | list) and len(holder) > PARTS_MAX and depth < PARTS_DEPTH_MAX:
            return
        parts: Iterable[tuple[Any, Any]]
        if isinstance(holder, list):
            parts = enumerate(holder)
        else:
            parts = (holder if isinstance(holder, dict) else vars(holder)).items()
        for name, value in list(parts):
            made = self._of_modules.get(type(value))
            if made is not None:
                self._write(holder, name, made(value))
            elif type(value) is FunctionType:
                self._sweep_locks_of(value)
            elif depth and _has_parts(value):
                self._sweep_inside(value, seen, depth - 1)
        if issubclass(type(of_instance), threading.Condition):  # it has methods of the lock under its own names
            for name in _OF_CONDITION & holder.keys():
                self._write(holder, name, getattr(holder["_lock"], name))

    def _sweep_locks_of(self, function: FunctionType) -> None:
        """Those among its defaults, and in its closure."""
        kinds = self._of_modules
        if function.__defaults__ and not kinds.keys().isdisjoint(map(type, function.__defaults__)):
            swept = tuple(kinds[type(it)](it) if type(it) in kinds else it for it in function.__defaults__)
            self._write(function, "__defaults__", swept)
        for name, value in (function.__kwdefaults__ or {}).items():
            if type(value) in kinds:
                self._write(function.__kwdefaults__, name, kinds[type(value)](value))
        for cell in function.__closure__ or ():
            if _is_filled(cell) and type(cell.cell_contents) in kinds:
                self._write(cell, "cell_contents", kinds[type(cell.cell_contents)](cell.cell_contents))

    def _sweep_class(self, cls: type) -> None:
        values = list(vars(cls).values())
        if not self._table.keys().isdisjoint(map(id, values)):
            for name, value in list(vars(cls).items()):
                if id(value) in self._table:
                    self._write(cls, name, self._table[id(value)])
        for value in values:
            if type(value) is FunctionType:
                self._sweep_function(value)

    def _sweep_function(self, function: FunctionType) -> None:
        table = self._table
        if function.__defaults__ and not table.keys().isdisjoint(map(id, function.__defaults__)):
            swept = tuple(table.get(id(value), value) for value in function.__defaults__)
            self._write(function, "__defaults__", swept)
        if function.__kwdefaults__:
            for name, value in function.__kwdefaults__.items():
                if id(value) in table:
                    self._write(function.__kwdefaults__, name, table[id(value)])
        if function.__closure__:
            for cell in function.__closure__:
                if _is_filled(cell) and id(cell.cell_contents) in table:
                    self._write(cell, "cell_contents", table[id(cell.cell_contents)])


def in_user_code(
    user_fiber: Callable[[], Fiber | None], original: Callable[..., Any], virtual: Callable[..., Any]
) -> Callable[..., Any]:
    """A function that calls `virtual(fiber, *args)` in user code, and the original elsewhere."""

    def call(*args: Any, **kwargs: Any) -> Any:
        fiber = user_fiber()
        if fiber is None:
            return original(*args, **kwargs)
        return virtual(fiber, *args, **kwargs)

    return call


LIBRARIES: Final = (
    *dict.fromkeys(sysconfig.get_path(name) for name in ("purelib", "platlib", "stdlib", "platstdlib")),
    str(Path(__file__).parents[2]),
)
"""Where Python's and installed libraries are, and dualray itself."""
_INSTALLED: Final = re.compile(r"[/\\](?:site|dist)-packages[/\\]")
"""In the path of a library that is installed elsewhere: for the user alone, by the system, or beside another Python."""
_CLEAN: Final[dict[str, int]] = {}
"""Of libraries' modules that bind nothing that is replaced, what they bind, as a hash of identities."""
_SPARED: Final = EXCLUDED | sys.stdlib_module_names


def _has_parts(value: Any) -> bool:
    """Whether it may have locks of the user's: a container, something made of locks, or of a class of the user's."""
    kind = type(value)
    if kind in (dict, list):
        return True
    is_class = issubclass(kind, type)
    name: object = (value if is_class else kind).__module__
    if not isinstance(name, str) or (not is_class and _namespace_of(value) is None):
        return False
    if name in ("functools", "queue", "threading"):
        return not is_class and not issubclass(kind, threading.Thread)
    module = sys.modules.get(name)
    return name not in _SPARED and isinstance(module, ModuleType) and is_users(vars(module))


def _namespace_of(value: Any) -> dict[str, Any] | None:
    """An instance's, whatever it answers itself."""
    try:
        namespace = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return None
    return namespace if type(namespace) is dict else None


def _is_module(value: object) -> TypeGuard[ModuleType]:
    """Whether it is one, and does not say so of itself alone, as libraries that cffi has compiled do."""
    return issubclass(type(value), ModuleType)


def is_users(namespace: Mapping[str, Any]) -> bool:
    """Whether a module is the user's own: no library's."""
    return not is_library_path(str(namespace.get("__file__")))


@functools.lru_cache(maxsize=4096)  # each read of a clock asks
def is_library_path(path: str) -> bool:
    """Whether a file or a directory is a library's."""
    return path.startswith(LIBRARIES) or _INSTALLED.search(path) is not None


def _is_filled(cell: CellType) -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:
        return False
    return True


def _is_of_loaded_module(item: FunctionType | type) -> bool:
    """Is it part of a module that `install` swept, or spared? Else it came by value, with globals of its
    own."""
    module = sys.modules.get(item.__module__)
    if isinstance(item, FunctionType):
        return module is not None and item.__globals__ is vars(module)
    return module is not None and getattr(module, item.__name__, None) is item
