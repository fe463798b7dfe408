"""Remote functions and actors in the forms of 2017.

Around each task and method stands a wrapper that brings the environment variables along (environment.py), and that can
tell a function which a worker cannot load from one that fails.
"""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Mapping
from functools import partial
from types import GeneratorType
from typing import Any, TypeVar

from dualray import api
from dualray.actor import ActorClass, ActorHandle, ActorMethod
from dualray.classic.checkpoints import Keeper, check_interval
from dualray.classic.environment import begin_task, end_task, has_used_variables, note_error, packed_definitions
from dualray.classic.modes import runs_in_place
from dualray.classic.object_id import ObjectID
from dualray.options import ActorOptions, TaskOptions, with_changes
from dualray.remote_function import RemoteFunction
from dualray.shared.core.layout import PLAIN_TYPES, deserialize, deserialize_own
from dualray.shared.core.serialization import serialize
from dualray.shared.handles import METHOD_OPTIONS

C = TypeVar("C")
R = TypeVar("R")

CUSTOM_RESOURCE = "CustomResource"
"""What `num_custom_resource` counts."""
REGISTER_FUNCTION = "register_remote_function"


# ---- What workers call -------------------------------------------------------------------------------------------


class Task:
    """A function as workers call it. `__wrapped__` is the user's own."""

    def __init__(self, function: Callable[..., Any], name: str, variables: bytes) -> None:
        self.__wrapped__ = function
        self.name = name
        self.variables = variables

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        begin_task(self.variables)
        try:
            return self._fixed(self.__wrapped__(*args, **kwargs))
        finally:
            end_task()

    def _fixed(self, result: Any) -> Any:
        """The result as it is now: what a reinitializer does to a variable's value that is part of it comes later."""
        if not has_used_variables() or result is None or type(result) in PLAIN_TYPES:
            return result
        if isinstance(result, GeneratorType):  # of several results, as any sequence
            result = list(result)
        return deserialize_own(serialize(result, f"return value of {self.name}").to_bytes())

    def __reduce__(self) -> tuple[Any, ...]:
        pickled = serialize(self.__wrapped__, f"remote function {self.name}").to_bytes()
        return _load, (type(self), pickled, self.name, self.variables)


class Maker(Task):
    """An actor class as workers call it: makes the instance. `interval`: calls between checkpoints; -1: none."""

    def __init__(self, function: Callable[..., Any], name: str, variables: bytes, interval: int = -1) -> None:
        super().__init__(function, name, variables)
        self.interval = interval

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        construct = partial(super().__call__, *args, **kwargs)
        if self.interval < 0 or runs_in_place():  # there nothing comes back
            return Instance(construct(), self.variables)
        keeper = Keeper(self.interval)
        instance = keeper.restored(self.__wrapped__, construct, lambda made, name: self._method(made, name))
        return Instance(instance, self.variables, keeper)

    def _method(self, instance: Any, name: str) -> Task:
        return Task(getattr(instance, name), name, self.variables)

    def __reduce__(self) -> tuple[Any, ...]:
        load, arguments = super().__reduce__()
        return load, (*arguments, self.interval)

    def _fixed(self, result: Any) -> Any:
        return result  # it stays here


def _load(cls: type[Task], pickled: bytes, name: str, variables: bytes, *more: Any) -> Task:
    """Unpickle. A function that cannot be loaded here is one that fails when it is called, and says why."""
    try:
        function = deserialize(pickled)
    except Exception as error:  # noqa: BLE001 - unpickling runs the user's code
        function = _Unloadable(name, error, traceback.format_exc())
    return cls(function, name, variables, *more)


class _Unloadable:
    """Stands for a function that this process could not load."""

    def __init__(self, name: str, error: Exception, text: str) -> None:
        self._name = name
        self._error = error
        self._text = text

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        note_error(REGISTER_FUNCTION, f"loading {self._name}", self._text)
        raise self._error


class Instance:
    """An actor's instance in its worker: its methods are tasks."""

    def __init__(self, instance: Any, variables: bytes, keeper: Keeper | None = None) -> None:
        self._instance = instance
        self._variables = variables
        self._keeper = keeper

    def __getattr__(self, name: str) -> Any:
        if name in ("_instance", "_variables", "_keeper"):
            raise AttributeError(name)  # not made yet
        method = getattr(self._instance, name)
        task: Any = Task(method, name, self._variables)
        if self._keeper is not None:
            task = _Kept(self._keeper, self._instance, name, task)
        options = getattr(method, METHOD_OPTIONS, None)
        if options is not None:
            setattr(task, METHOD_OPTIONS, options)
        return task


def as_called(returned: Any) -> Any:
    """What a call gives the program, of the references that it has returned: in PYTHON_MODE their values."""
    if returned is None or not runs_in_place():
        return returned
    return api.get(returned)


class _Kept:
    """A method of an actor with checkpoints."""

    def __init__(self, keeper: Keeper, instance: Any, name: str, task: Task) -> None:
        self._keeper = keeper
        self._instance = instance
        self._name = name
        self._task = task

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._keeper.call(self._instance, self._name, self._task, args, kwargs)


# ---- What programs call ------------------------------------------------------------------------------------------


class ClassicFunction(RemoteFunction[R]):
    """A remote function: `f.remote(...)` returns an ObjectID, or several with `num_return_vals`."""

    _reference = ObjectID
    _variables = b""
    """What the function that workers have knows of the environment."""

    def __reduce__(self) -> tuple[Any, ...]:
        return ClassicFunction, (self._function, self._options)

    def options(self, **options: Any) -> ClassicFunction[R]:
        changed = with_changes(self._options, as_today(options, self._name), f"{self._name}.options()")
        return ClassicFunction(self._function, changed)

    def remote(self, /, *args: Any, **kwargs: Any) -> Any:
        """Submit a call, and return the ObjectID of its result, a list of them, or None if it has no result.

        In PYTHON_MODE run the call, and return its values or raise its exception.
        """
        variables = packed_definitions()
        if variables != self._variables:
            self._variables = variables
            self._prepared = None
        return as_called(super().remote(*args, **kwargs))

    def _exported(self) -> Callable[..., Any]:
        return Task(self._function, self._name, self._variables)


class ClassicActorClass(ActorClass[C]):
    """An actor class: `Cls(...)` and `Cls.remote(...)` create an actor."""

    _variables = b""

    def __init__(self, cls: type[C], options: ActorOptions, checkpoint_interval: int = -1) -> None:
        super().__init__(cls, options)
        self._checkpoint_interval = checkpoint_interval

    def __call__(self, *args: Any, **kwargs: Any) -> ClassicActorHandle:  # type: ignore[override]  # today's refuses
        return self.remote(*args, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        return ClassicActorClass, (self._cls, self._options, self._checkpoint_interval)

    def options(self, **options: Any) -> ClassicActorClass[C]:
        return _actor_class(self._cls, self._options, options, f"{self._name}.options()", self._checkpoint_interval)

    def remote(self, /, *args: Any, **kwargs: Any) -> ClassicActorHandle:
        """Create an actor and return a handle to it at once."""
        variables = packed_definitions()
        if variables != self._variables:
            self._variables = variables
            self._prepared = None
        handle = super().remote(*args, **kwargs)
        assert isinstance(handle, ClassicActorHandle)
        return handle

    @property
    def _handle(self) -> type[ActorHandle[Any]]:
        return ClassicActorHandle

    def _exported(self) -> Callable[..., Any]:
        return Maker(self._cls, self._name, self._variables, self._checkpoint_interval)


class ClassicActorHandle(ActorHandle[Any]):
    """A handle to an actor: `actor.method(...)` and `actor.method.remote(...)` call a method."""

    __slots__ = ()

    @property
    def _method_type(self) -> type[ActorMethod]:
        return ClassicActorMethod


class ClassicActorMethod(ActorMethod):
    """A method of an actor; calls return ObjectIDs."""

    __slots__ = ()

    _reference = ObjectID

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.remote(*args, **kwargs)

    def remote(self, /, *args: Any, **kwargs: Any) -> Any:
        """Call the method, and return the ObjectID of its result, a list of them, or None if it has no result.

        In PYTHON_MODE run the method, and return its values or raise its exception.
        """
        return as_called(super().remote(*args, **kwargs))


# ---- The decorators ----------------------------------------------------------------------------------------------


def remote(*targets: Any, **options: Any) -> Any:
    """Turn a function into a remote function, or a class into an actor class.

    Write `@remote`, `@remote(num_return_vals=2)` or `remote(function)`.

    Args:
        targets: a function or a class.
        options: `num_return_vals` (number of ObjectIDs that a call returns; default 1), `num_cpus` (default 1),
            `num_gpus` (default 0), `num_custom_resource` (default 0), and Ray's options of today by their names. Actors
            also have `checkpoint_interval`: a restarted actor continues from a state that is at most that many calls
            old, and repeats the calls since then. Default -1: no checkpoints.

    Raises:
        ValueError, TypeError: an option is unknown (the message has the nearest known one) or has a wrong value, or the
            target is neither a function nor a class.
    """
    if options or not targets:
        if targets:
            raise TypeError("@remote takes either a function or class, or keyword options, not both")
        return lambda target: _make_remote(target, options)
    if len(targets) > 1:
        raise TypeError(f"remote takes one function or class, not {len(targets)}")
    return _make_remote(targets[0], {})


def actor(*targets: Any, **options: Any) -> Any:
    """Turn a class into an actor class, as `remote` does. This is the older name.

    Raises:
        TypeError: the argument is not a class.
    """

    def decorate(target: Any) -> Any:
        if not inspect.isclass(target):
            raise TypeError(f"actor was given {target!r} (type {type(target).__name__}), which is not a class")
        return remote(**options)(target)

    if len(targets) > 1 or (targets and options):
        raise TypeError("actor() takes either one class or keyword options, not both")
    return decorate(targets[0]) if targets else decorate


def _make_remote(target: Any, options: Mapping[str, Any]) -> ClassicFunction[Any] | ClassicActorClass[Any]:
    if isinstance(target, RemoteFunction | ActorClass):
        raise TypeError(f"{target!r} is remote already")
    if inspect.isclass(target):
        return _actor_class(target, ActorOptions(), options, f"actor class {target.__name__}")
    if not callable(target):
        raise TypeError(f"@remote takes a function or a class, not {target!r}")
    name = getattr(target, "__name__", type(target).__name__)
    what = f"remote function {name}"
    return ClassicFunction(target, with_changes(TaskOptions(num_returns=1), as_today(options, what), what))


def _actor_class(
    cls: type[C], before: ActorOptions, options: Mapping[str, Any], what: str, interval: int = -1
) -> ClassicActorClass[C]:
    changes = as_today(options, what)
    if "checkpoint_interval" in changes:
        interval = check_interval(changes.pop("checkpoint_interval"), what)
        if interval > 0:  # it comes back, and what was lost is called again, unless the program says otherwise
            changes = {"max_restarts": -1, "max_task_retries": -1} | changes
    changed = with_changes(before, changes, what)
    if interval > 0 and changed.max_concurrency not in (None, 1):
        raise ValueError(
            f"{what}: checkpoint_interval={interval} works only if the actor runs one call at a time; leave out "
            "max_concurrency"
        )
    return ClassicActorClass(cls, changed, interval)


def as_today(options: Mapping[str, Any], what: str) -> dict[str, Any]:
    """Options with the names that they have today.

    Raises:
        TypeError: one option under both names.
    """
    today = dict(options)
    if "num_custom_resource" in today:
        amount = today.pop("num_custom_resource")
        if isinstance(amount, bool) or not isinstance(amount, int | float):
            raise TypeError(f"{what}: num_custom_resource={amount!r} must be a number")
        today["resources"] = {**(today.get("resources") or {}), CUSTOM_RESOURCE: amount}
    if "num_return_vals" in today:
        if "num_returns" in today:
            raise TypeError(f"{what}: num_return_vals and num_returns are two names of one option; leave one out")
        today["num_returns"] = today.pop("num_return_vals")
    return today
