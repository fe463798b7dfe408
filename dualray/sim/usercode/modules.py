"""The user's modules, which each virtual worker imports for itself where it could tell.

Theory of operation. On a real cluster each worker process has modules of its own: what one sets there, and what the
driver has set since the import, others do not see. All virtual processes share one interpreter, and one `sys.modules`.
So a process may have a view of its own: while it runs, `sys.modules` has its copies of the user's modules, and has none
of those that it has not imported, so that `import` imports them anew, for it. Libraries are everybody's.

There are three kinds of views (isolation_analysis.py says which one a function asks for):

    the driver's   no view at all: that of the driver, and of workers that could tell nothing. It costs nothing.
    the common one workers that could tell what the driver has set, and nothing else, share modules that were imported
                   anew, once for this Python process
    one's own      modules that this worker has imported for itself

A worker begins with the first. What it loads, or is given, may ask for more: then it has that from then on, and loads
its functions again. Objects of the view that it had are still about, in an actor's attributes perhaps; they are pickled
by name all the same (`NAMING`).

`sys.modules` changes when a process runs that has another view than the one that is up; who shares the one that is up
costs a comparison. The environment of a process (`runtime_env`) has modules of its own, which lie above the view.

What cannot be imported anew, as it fails, was made by hand, or is being imported, is shared by all, and told of once.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import pickle
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from importlib.machinery import ExtensionFileLoader
from operator import attrgetter
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, Final, NamedTuple, Protocol
from weakref import WeakKeyDictionary, WeakValueDictionary

import cloudpickle.cloudpickle as _cloudpickle

from dualray.runtime_env import Swapped
from dualray.shared.core.layout import UNPICKLING, deserialize_own
from dualray.shared.core.pickled_names import keep_name
from dualray.shared.core.serialization import NAMING, as_usual, is_of_one_process
from dualray.shared.core.task_runner import Export
from dualray.shared.model.ids import FunctionID
from dualray.sim.kernel.fibers import FiberOwner, FiberScheduler
from dualray.sim.usercode.function_table import FunctionTable
from dualray.sim.usercode.isolation import Isolation
from dualray.sim.usercode.isolation_analysis import (
    DRIVER,
    NOBODY,
    OWN,
    Analysis,
    globals_of,
    is_by_reference,
    is_library,
    is_of_user,
)

__all__ = ["SHOWN", "Modules", "View"]


class View:
    """The user's modules as a process sees them.

    Attributes:
        modules: while it is not up, what it has.
        is_common: it is that of workers that change nothing.
    """

    def __init__(self, *, is_common: bool = False) -> None:
        self.modules: dict[str, ModuleType] = {}
        self.is_common = is_common
        self.classes: Any = (WeakKeyDictionary(), WeakValueDictionary())
        """What cloudpickle knows of classes that came by value: their ids, and they by their ids."""
        self.swept: dict[int, ModuleType] = {}
        """Modules that have their replacements, by identity."""


class Shown:
    """Which view is up.

    Attributes:
        view: None: the driver's.
        drivers: what is the driver's, while another one is up.
        pinned: names of modules that are the same in all views.
        on_new: told of a view to which modules may have come.
    """

    def __init__(self) -> None:
        self.view: View | None = None
        self.drivers = View()
        self.pinned: set[str] = set()
        self.on_new: Callable[[View], object] = _ignore
        self._count = -1
        """Modules of all kinds that there were when those of the user's were looked for."""
        self._up: dict[str, None] = {}
        """Names of those of the user's, then."""
        self._others: set[str] = set()
        """Names of modules that are everybody's."""

    def show(self, view: View | None) -> None:
        """Have another view up."""
        if view is self.view:
            return
        self.look()
        modules, up = sys.modules, self.up
        up.modules = {name: modules.pop(name) for name in self._up if name in modules}
        up.classes = _cloudpickle._DYNAMIC_CLASS_TRACKER_BY_CLASS, _cloudpickle._DYNAMIC_CLASS_TRACKER_BY_ID
        self.view = view
        modules.update(self.up.modules)
        self._up, self._count = dict.fromkeys(self.up.modules), len(modules)
        _cloudpickle._DYNAMIC_CLASS_TRACKER_BY_CLASS, _cloudpickle._DYNAMIC_CLASS_TRACKER_BY_ID = self.up.classes

    @property
    def up(self) -> View:
        """What is shown."""
        return self.drivers if self.view is None else self.view

    def look(self) -> None:
        """Look for modules that were imported since the view is up."""
        modules = sys.modules
        if len(modules) == self._count:
            return
        found: dict[str, None] = {}
        self._count = len(modules)
        for name in list(modules):  # at once: the thread that watches the memory may import something
            if name in self._others:
                continue
            if not can_be_own(name, modules[name]):
                if not _is_being_imported(modules[name]):
                    self._others.add(name)
            elif self.view is None and _is_being_imported(modules[name]):  # it is the program that runs here
                self.pinned.add(name)
            elif name not in self.pinned:
                found[name] = None
        self._up = found
        if self.view is not None:
            self.view.modules = {name: modules[name] for name in found}
            self.on_new(self.view)

    def of_driver(self, name: str) -> ModuleType | None:
        """What the driver has under a name."""
        return sys.modules.get(name) if self.view is None else self.drivers.modules.get(name)

    def pin(self, name: str) -> None:
        """A module is the same in all views from now on: the driver's."""
        self.pinned.add(name)
        self._up.pop(name, None)
        module = self.drivers.modules.pop(name, None)
        if self.view is None or module is None:
            return
        sys.modules[name] = module
        package, _, last = name.rpartition(".")
        if package in sys.modules:
            setattr(sys.modules[package], last, module)

    def reset(self) -> None:
        """The simulation is over."""
        self.show(None)
        self.drivers = View()
        self.pinned = set()
        self.on_new = _ignore
        self._count, self._up, self._others = -1, {}, set()


_SKELETONS: Final = ("_make_skeleton_class", "_make_skeleton_enum")
"""What cloudpickle makes a class with that it has pickled by value, before it sets its attributes."""
_TRACKER_ID: Final = -2
"""The place, among their arguments, of the name by which cloudpickle knows a class again."""


def _ignore(view: View) -> None:
    """Nobody wants to know."""


SHOWN: Final = Shown()


def can_be_own(name: str, module: object) -> bool:
    """Whether a module is the user's, and one that can be imported anew."""
    if not isinstance(module, ModuleType) or name == "__mp_main__":
        return False
    namespace = globals_of(module)
    if not is_of_user(namespace) or namespace["__name__"] == "__main__":
        return False
    spec = namespace.get("__spec__")
    if spec is None or spec.name != name or isinstance(spec.loader, ExtensionFileLoader):
        return False
    places = [namespace["__file__"]] if namespace.get("__file__") else list(namespace.get("__path__") or ())
    return bool(places) and not is_library(name)


def _is_being_imported(module: object) -> bool:
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))


class _Common:
    """Modules that workers share which could tell what the driver has set: for all simulations of this process."""

    def __init__(self) -> None:
        self.modules: dict[str, ModuleType] = {}
        self.specs: dict[str, Any] = {}
        """Of the driver's, when they were imported: another one has been loaded anew, perhaps from another text."""

    def renew(self, of_driver: Callable[[str], ModuleType | None]) -> None:
        """Forget all, if the driver has imported any of them anew."""
        for name, spec in self.specs.items():
            module = of_driver(name)
            if module is not None and getattr(module, "__spec__", None) is not spec:
                self.modules, self.specs = {}, {}
                return

    def keep(self, modules: dict[str, ModuleType], of_driver: Callable[[str], ModuleType | None]) -> None:
        """Keep what a simulation has imported."""
        self.modules.update(modules)
        for name in modules:
            module = of_driver(name)
            if module is not None:
                self.specs.setdefault(name, getattr(module, "__spec__", None))


_COMMON: Final = _Common()
_TOLD: Final[set[str]] = set()
"""Modules of which it was told that they are shared."""


class OfProcess(FiberOwner, Protocol):
    """A process with a view."""

    view: Any
    environment: Swapped | None

    @property
    def is_driver(self) -> bool:
        """Whether it is the driver."""

    @property
    def name_of_streams(self) -> bytes:
        """What seeds the randomness of its imports."""

    def forget_functions(self) -> None:
        """What it has loaded is to be loaded again."""


class Needed(NamedTuple):
    """What can be told of something, and the modules of the user's that it is made of."""

    level: int
    modules: tuple[str, ...] = ()


class _MoreNeeded(Exception):
    """What is being unpickled asks for another view."""

    def __init__(self, needed: Needed) -> None:
        super().__init__()
        self.needed = needed


class Modules:
    """The views of one simulation; see the module."""

    def __init__(
        self, functions: FunctionTable, fibers: FiberScheduler, isolation: Isolation, tell: Callable[[str], object]
    ) -> None:
        self._functions = functions
        self._fibers = fibers
        self._isolation = isolation
        self._tell = tell
        self._common: View | None = None
        self._functions_in_common = FunctionTable()
        self._functions_in_common.pickled = functions.pickled
        self._right_in_common: set[FunctionID] = set()
        """Of these, those that were looked at there."""
        self._needed_by_export: dict[FunctionID, Needed] = {}
        self._needed_by_name: dict[tuple[str, str], Needed] = {}
        self._is_looking = False
        """Whether what is unpickled now is only looked at, or known to be right for the view."""
        self.names_seen: list[tuple[str, str]] = []
        """What was named, of modules of the user's, by what was looked at last."""
        self.shared: dict[str, str] = {}
        """Modules that are shared all the same, and why."""
        SHOWN.on_new = self._sweep
        UNPICKLING.loads = self.loads
        NAMING.is_everybodys = _is_of_library

    def close(self) -> None:
        """The simulation is over: all is as it was."""
        SHOWN.show(None)
        if self._common is not None:
            _COMMON.keep(self._common.modules, SHOWN.of_driver)
        SHOWN.reset()
        UNPICKLING.loads = pickle.loads
        NAMING.reduce, NAMING.is_everybodys = as_usual, is_of_one_process

    # -- functions -----------------------------------------------------------------------------------------

    def load(self, process: OfProcess, function: FunctionID) -> Export:
        """A function for a process, which gets the view that it asks for. In a fiber of it."""
        view: View | None = process.view
        if view is None or view.is_common:
            needed = self._needed_by_export.get(function)
            if needed is None:
                needed = self._needed_by_export[function] = self._needed_of_export(process, function)
            view = self._raise(process, needed)
            if view is not None and view.is_common:
                export = self._load_in_common(function)
                if export is not None:
                    return export
                needed = self._needed_by_export[function] = needed._replace(level=OWN)
                view = self._raise(process, needed)
        if view is None:
            return self._load_known(self._functions, function)
        unpickled: Export = deserialize_own(self._functions.pickled[function])
        SHOWN.look()
        return unpickled

    def _load_in_common(self, function: FunctionID) -> Export | None:
        """None: it needs more, for the driver's module is not as it was when it was imported."""
        try:
            export = self._load_known(self._functions_in_common, function)
        except _MoreNeeded:
            return None
        if function not in self._right_in_common:
            if self._sharing_of(export).level == OWN:
                return None
            self._right_in_common.add(function)
        return export

    def _load_known(self, functions: FunctionTable, function: FunctionID) -> Export:
        self._is_looking = True
        try:
            return functions.load(function)
        finally:
            self._is_looking = False

    def _needed_of_export(self, process: OfProcess, function: FunctionID) -> Needed:
        with self._drivers_view(process, is_for_looking=True):
            try:
                self.names_seen.clear()
                export = self._load_known(self._functions, function)
                return self._sharing_of(export, *[_named(module, name) for module, name in self.names_seen])
            except _MoreNeeded as more:
                return more.needed

    def _sharing_of(self, export: Export, *others: Any) -> Needed:
        analysis = Analysis()
        level = analysis.of(export.target, export.duration, export.collect, export.retried, *others)
        return Needed(level, tuple(analysis.modules))

    def _raise(self, process: OfProcess, needed: Needed) -> View | None:
        """Give a process the view that it needs, and import there what is needed."""
        view: View | None = process.view
        level = needed.level
        if needed.modules and process.environment is not None and process.environment.has_paths:
            level = OWN  # what it imports from there is no other's
        if level == OWN and (view is None or view.is_common):
            view = View()
        elif level == DRIVER and view is None:
            view = self._take_common()
        if view is not process.view:
            NAMING.reduce = self._reduce
            process.forget_functions()
            with self._without_environment(process):
                process.view = view
                SHOWN.show(view)
        if view is not None:
            self._import(process, view, needed.modules)
        return view

    def _take_common(self) -> View:
        if self._common is None:
            self._common = View(is_common=True)
            _COMMON.renew(SHOWN.of_driver)
            self._common.modules = dict(_COMMON.modules)
            self._sweep(self._common)
        return self._common

    # -- imports -------------------------------------------------------------------------------------------

    def import_for(self, process: OfProcess, view: View, name: str) -> None:
        """What is unpickled there names a module as a whole."""
        if name not in sys.modules and not is_library(name):
            self._import(process, view, (name,))

    def _import(self, process: OfProcess, view: View, names: Iterable[str]) -> None:
        """Import modules of the user's for a view, which is up."""
        missing = [name for name in names if name not in sys.modules]
        for name in names:
            if name in SHOWN.pinned or (name in sys.modules and not can_be_own(name, sys.modules[name])):
                self._share(name, "Python cannot import it a second time")
        if not missing:
            return
        with self._at_first() if view.is_common else self._as_import(process):
            for name in missing:
                if name in sys.modules:
                    continue
                try:
                    importlib.import_module(name)
                except Exception as error:  # noqa: BLE001 - it is the user's
                    SHOWN.pin(name)
                    self._share(name, f"it cannot be imported a second time ({type(error).__name__}: {error})")
        SHOWN.look()

    def _share(self, name: str, why: str) -> None:
        if name in self.shared:
            return
        self.shared[name] = why
        if name not in _TOLD:
            _TOLD.add(name)
            self._tell(
                f"dualray: all virtual workers share the globals of the module {name} with the driver, because "
                f"{why}. On a real cluster, each worker has its own globals.\n"
            )

    @contextlib.contextmanager
    def _at_first(self) -> Iterator[None]:
        """Import as the interpreter does, before there is a simulation; what that changes besides stays as it was."""
        with self._fibers.system, self._isolation.outside_state():
            environment, path, directory = dict(os.environ), list(sys.path), str(Path.cwd())
            try:
                yield
            finally:
                if dict(os.environ) != environment:
                    os.environ.clear()
                    os.environ.update(environment)
                sys.path[:] = path
                os.chdir(directory)

    @contextlib.contextmanager
    def _as_import(self, process: OfProcess) -> Iterator[None]:
        """Import as the process does when it starts: no task's random numbers are drawn."""
        fiber = self._fibers.current()
        assert fiber is not None
        with self._isolation.own_streams(fiber, process.name_of_streams):
            yield

    def _sweep(self, view: View) -> None:
        """Put the replacements of the simulation into modules that were imported in it."""
        for module in list(view.modules.values()):
            if id(module) not in view.swept and not _is_being_imported(module):
                view.swept[id(module)] = module
                self._isolation.sweep_module(module, is_kept=view.is_common)

    # -- views ---------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _without_environment(self, process: OfProcess) -> Iterator[None]:
        """The modules that its environment brings are not of the view."""
        if process.environment is None:
            yield
            return
        with self._fibers.system:
            process.environment.leave()
        try:
            yield
        finally:
            with self._fibers.system:
                process.environment.enter()

    @contextlib.contextmanager
    def _drivers_view(self, process: OfProcess, *, is_for_looking: bool = False) -> Iterator[None]:
        """What the driver sees, for a moment."""
        shown = SHOWN.view
        classes = _cloudpickle._DYNAMIC_CLASS_TRACKER_BY_CLASS, _cloudpickle._DYNAMIC_CLASS_TRACKER_BY_ID
        with self._without_environment(process):
            SHOWN.show(None)
            if is_for_looking:  # a class of the driver's that came by value is not made anew
                classes = _cloudpickle._DYNAMIC_CLASS_TRACKER_BY_CLASS, _cloudpickle._DYNAMIC_CLASS_TRACKER_BY_ID
                _set_classes((WeakKeyDictionary(), WeakValueDictionary()))
            try:
                yield
            finally:
                if is_for_looking:
                    _set_classes(classes)
                SHOWN.show(shown)

    def _reduce(self, value: Any) -> tuple[Any, ...] | None:
        """How a function or class is pickled that is of a module in another view than the one that is up: by name."""
        if SHOWN.view is None:
            return None
        name, path = value.__module__, value.__qualname__
        if not isinstance(name, str) or "<" in path:
            return None
        for view in (SHOWN.drivers, self._common):
            if view is None or view is SHOWN.view or (module := view.modules.get(name)) is None:
                continue
            found: Any = module
            for part in path.split("."):
                found = getattr(found, part, None)
            if found is value:
                return None if is_by_reference(value) else (_named, (name, path))
        return None

    # -- values --------------------------------------------------------------------------------------------

    def loads(self, data: Any, *, buffers: Iterable[Any] | None = ()) -> Any:
        """As `pickle.loads`, in the view that this asks for."""
        fiber = self._fibers.current()
        if fiber is None or (type(data) is bytes and b"\x93" not in data):  # it names nothing
            return pickle.loads(data, buffers=buffers)
        process: Any = fiber.owner
        if self._is_looking or process.is_driver:
            if not self._is_looking:
                return pickle.loads(data, buffers=buffers)
            return _Reader(data, buffers, self, process, is_looking=True).load()
        while True:
            reader = _Reader(data, buffers, self, process)
            try:
                value = reader.load()
            except _MoreNeeded as more:
                self._raise(process, more.needed)
                continue
            if not reader.has_code or (process.view is not None and not process.view.is_common):
                return value
            analysis = Analysis()
            read = _copied(data, buffers) if reader.drivers else value
            needed = Needed(analysis.of(read), tuple(analysis.modules))
            before = process.view
            self._raise(process, needed)
            if process.view is before:
                return value
            del value

    def check_name(self, process: OfProcess, module: str, name: str) -> None:
        """What is being unpickled names something.

        Raises:
            _MoreNeeded: the process could tell whose it is.
        """
        view: View | None = process.view
        if view is not None and not view.is_common:
            if module not in sys.modules:
                self._import(process, view, (module,))
            return
        needed = self._needed_by_name.get((module, name))
        if needed is None:
            needed = self._needed_by_name[module, name] = self._needed_of_name(process, module, name)
        if needed.level > (NOBODY if view is None else DRIVER):
            raise _MoreNeeded(needed)
        if view is not None and needed.modules:
            self._import(process, view, needed.modules)

    def _needed_of_name(self, process: OfProcess, module: str, name: str) -> Needed:
        with self._drivers_view(process):
            found: Any = sys.modules.get(module)
            if found is None:
                return Needed(OWN, (module,))
            for part in name.split("."):
                found = getattr(found, part, None)
            analysis = Analysis()
            level = analysis.of(found) if isinstance(found, FunctionType | type) else OWN
            return Needed(level, tuple(dict.fromkeys((module, *analysis.modules))))


class _Reader(pickle.Unpickler):
    """Reads a pickle, and looks at what it names."""

    def __init__(
        self, data: Any, buffers: Any, modules: Modules, process: OfProcess, *, is_looking: bool = False
    ) -> None:
        super().__init__(io.BytesIO(data), buffers=buffers)
        self._modules, self._process, self._is_looking = modules, process, is_looking
        self.has_code = False
        """Whether there is a function or a class in it."""
        self.drivers: list[type] = []
        """Classes of the driver's that are in it by value, if a worker reads it that has the driver's view."""

    def find_class(self, module: str, name: str) -> Any:
        if module.startswith("cloudpickle"):
            self.has_code = True
            if name == "subimport":
                return self._subimport
            if name in _SKELETONS and self._process.view is None:
                return partial(self._skeleton, name)
            if name == "_class_setstate" and self.drivers:
                return self._set_state
        elif module == _named.__module__ and name == _named.__name__:
            return self.find_class
        elif module == "__main__" and not self._process.is_driver:
            raise AttributeError(f"Can't get attribute {name!r} on <module '__main__' of a worker>")
        elif not is_library(module):
            if not self._is_looking:
                self._modules.check_name(self._process, module, name)
            elif module not in sys.modules:
                raise _MoreNeeded(Needed(OWN, (module,)))
            else:
                self._modules.names_seen.append((module, name))
        return super().find_class(module, name)

    def _skeleton(self, name: str, *args: Any) -> Any:
        """A class that came by value, with what it has still to come; the driver's own if it is one of those."""
        is_known = args[_TRACKER_ID] in _cloudpickle._DYNAMIC_CLASS_TRACKER_BY_ID
        cls = getattr(_cloudpickle, name)(*args)
        if is_known:
            self.drivers.append(cls)
        return cls

    def _set_state(self, cls: type, state: Any) -> type:
        """What a class has. The driver's own keeps what it has now: on a real cluster the worker reads a copy."""
        return cls if cls in self.drivers else _cloudpickle._class_setstate(cls, state)

    def _subimport(self, name: str) -> ModuleType:
        """As cloudpickle's own."""
        view: View | None = self._process.view
        if view is not None and not self._is_looking:
            self._modules.import_for(self._process, view, name)
        return importlib.import_module(name)


def _copied(data: Any, buffers: Iterable[Any] | None) -> Any:
    """What a pickle has, with classes of its own."""
    classes = _cloudpickle._DYNAMIC_CLASS_TRACKER_BY_CLASS, _cloudpickle._DYNAMIC_CLASS_TRACKER_BY_ID
    _set_classes((WeakKeyDictionary(), WeakValueDictionary()))
    try:
        return pickle.loads(data, buffers=buffers)
    finally:
        _set_classes(classes)


def _is_of_library(value: type[Any]) -> bool:
    """Whether all virtual workers have this class of a module that they share."""
    module: object = value.__module__
    return isinstance(module, str) and is_library(module)


def _named(module: str, name: str) -> Any:
    """What stands there, for whoever unpickles it."""
    return attrgetter(name)(importlib.import_module(module))


def _set_classes(classes: Any) -> None:
    _cloudpickle._DYNAMIC_CLASS_TRACKER_BY_CLASS, _cloudpickle._DYNAMIC_CLASS_TRACKER_BY_ID = classes


keep_name("dualray.sim.modules", _named)
