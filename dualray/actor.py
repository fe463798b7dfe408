"""Actor classes, which `@remote` creates from classes, and handles to actors."""

from __future__ import annotations

import copyreg
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial, update_wrapper
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, NoReturn, TypeAlias, TypeVar, overload
from weakref import WeakKeyDictionary

from dualray import runtime
from dualray.exceptions import ActorHandleEndedError
from dualray.first_verb import started
from dualray.hex_id import HexId
from dualray.object_ref import CountedReference, ObjectRef
from dualray.object_ref_generator import DynamicObjectRefGenerator, ObjectRefGenerator
from dualray.options import (
    STREAMING,
    ActorOptions,
    MethodOptions,
    is_generator,
    returns_of,
    said,
    unknown_name,
    with_changes,
)
from dualray.parameters import Parameters, parameters_of
from dualray.remote_function import INVOCATION_DECORATOR, as_returned
from dualray.shared.handles import CALL, CALL_TASK, EXIT_OUTSIDE, METHOD_OPTIONS, READY, TERMINATE
from dualray.shared.model.ids import job_of
from dualray.user_verbs import ActorInfo, ActorLimits, ClassRequest, Prepared, Shipped, UserVerbs

if TYPE_CHECKING:
    from dualray.dag import ClassMethodNode, ClassNode

ASYNC_CONCURRENCY = 1000
"""Methods of an actor with coroutines that may run at a time, unless it says."""

C = TypeVar("C")
F = TypeVar("F", bound=Callable[..., Any])


@overload
def method(function: F, /) -> F: ...


@overload
def method(**options: Any) -> Callable[[F], F]: ...


def method(*functions: Any, **options: Any) -> Any:
    """Set options of an actor's method: `@method(num_returns=2)`; see `MethodOptions`.

    `@method` without options changes nothing, as in Ray.

    Raises:
        ValueError, TypeError: an option is unknown (the message names the most similar option) or has a wrong value.
    """
    if functions:
        if options or len(functions) > 1:
            raise TypeError("@method takes either a function or keyword options, not both")
        return functions[0]

    def decorate(function: F) -> F:
        what = f"method {getattr(function, '__name__', function)}"
        setattr(function, METHOD_OPTIONS, with_changes(MethodOptions(), options, what))
        return function

    return decorate


class WrongNameError(TypeError, ValueError):
    """A program called `get_actor` without a name. The error is a TypeError and, as in Ray, a ValueError."""


class ActorClassInheritanceException(TypeError):
    """A class cannot have an actor class as its base class."""


class ActorClass(Generic[C]):
    """A class whose instances are actors, each in its own worker process. Create an actor with `.remote(...)`."""

    def __init__(self, cls: type[C], options: ActorOptions) -> None:
        if missing := getattr(cls, "__abstractmethods__", None):
            raise TypeError(
                f"Can't instantiate abstract class {cls.__name__} with abstract method {', '.join(sorted(missing))}: "
                "apply @remote to a subclass that defines them"
            )
        self._cls = cls
        self._options = options
        self._shipped: Shipped = WeakKeyDictionary()
        self._name = cls.__name__
        self._prepared: Prepared | None = None
        self._prepared_by: UserVerbs | None = None
        self.__doc__ = cls.__doc__

    @cached_property
    def _parameters(self) -> Parameters | None:
        """Of the constructor."""
        return parameters_of(self._cls)

    @cached_property
    def _methods(self) -> dict[str, _Method]:
        """Found when they are first needed: a class whose methods name it is unpickled before it has any of them."""
        return _methods_of(self._cls)

    def __repr__(self) -> str:
        if "_cls" not in self.__dict__:
            return super().__repr__()  # it is being unpickled
        return f"<{self._cls.__module__}.ActorClass({self._name}) object at {id(self):#x}>"

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise TypeError(
            f"{self._name} is an actor class: to create an actor, call {self._name}.remote(...). (Actors cannot be "
            "instantiated directly.)"
        )

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the class, such as a method or a class variable, as in Ray."""
        if name.startswith("__") or "_cls" not in self.__dict__:
            raise AttributeError(f"actor class {self.__dict__.get('_name')} has no attribute {name}")
        found = getattr(self._cls, name)
        # Pickle would look for a function of the class here, and find it: it is to come with its class.
        return update_wrapper(partial(found), found) if inspect.isfunction(found) else found

    @property
    def __ray_metadata__(self) -> SimpleNamespace:
        """What Ray's own tests ask of a class: `class_name`, as the state API has it, and `modified_class`, itself."""
        return SimpleNamespace(class_name=self._name, modified_class=self._cls)

    @property
    def __ray_actor_class__(self) -> type[C]:
        """The class that was made remote: libraries read its methods, as in Ray."""
        return self._cls

    def __dir__(self) -> list[str]:
        shared = [name for name in dir(self._cls) if not name.startswith("__")]
        return sorted({*super().__dir__(), *shared})

    def __mro_entries__(self, bases: tuple[Any, ...]) -> NoReturn:
        raise ActorClassInheritanceException(
            f"{self._name} is an actor class, and no class can inherit from an actor class. Move the shared code "
            "into a plain base class, and apply @remote to each subclass. (Inheriting from actor classes is not "
            "currently supported.)"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return ActorClass, (self._cls, self._options)

    def options(self, **options: Any) -> ActorClass[C]:
        """Return a copy of the actor class with some options changed; see `ActorOptions`."""
        changed = with_changes(self._options, options, f"{self._name}.options()")
        copy = ActorClass(self._cls, changed)
        copy._shipped, copy._parameters, copy._methods = self._shipped, self._parameters, self._methods
        return copy

    def remote(self, /, *args: Any, **kwargs: Any) -> ActorHandle[Any]:
        """Create an actor, and return a handle to it at once.

        If the constructor fails, or the actor fails later, `get` of its calls raises the error.

        Raises:
            TypeError: the constructor does not take these arguments.
            ActorAlreadyExistsError (a ValueError): another actor has the name, and `get_if_exists` is not set.
            SerializationError: an argument or the class cannot be pickled.
        """
        if self._parameters is not None:
            self._parameters.check(f"{self._name}.remote()", args, kwargs)
        verbs = started(f"{self._name}.remote()").verbs
        self._check_groups()
        if self._prepared_by is not verbs or self._prepared is None:
            self._prepared = self._prepare(verbs)
            self._prepared_by = None if self._options.fallback_strategy else verbs  # it depends on the nodes there are
        prepared = self._prepared
        if verbs.captures_children():
            prepared = self._prepare(verbs, captured=True)
        actor = verbs.create_actor(prepared, args, kwargs)
        return handle_to(actor, verbs, self._handle, self._methods)

    def bind(self, /, *args: Any, **kwargs: Any) -> ClassNode:
        """Return a node of a graph. When the graph runs, the node creates an actor; see the package dualray.dag."""
        from dualray.dag import ClassNode  # noqa: PLC0415 - most programs write no graphs

        return ClassNode(self, self._cls, args, kwargs, said(self._options))

    def _remote(
        self, args: Sequence[Any] | None = None, kwargs: Mapping[str, Any] | None = None, **options: Any
    ) -> ActorHandle[Any]:
        """`options(**options).remote(*args, **kwargs)`, as Ray's own libraries write it."""
        cls = self.options(**options) if options else self
        return cls.remote(*(args or ()), **(kwargs or {}))

    def _check_groups(self) -> None:
        options = self._options
        if options.get_if_exists and not options.name:
            raise ValueError(
                f"actor class {self._name}: get_if_exists=True needs name=, the name of the actor to find or create"
            )
        if options.allow_out_of_order_execution is False and (
            (options.max_concurrency or 1) > 1 or _is_async(self._cls)
        ):
            raise ValueError(
                f"actor class {self._name}: allow_out_of_order_execution=False is only for actors that run one "
                "method at a time. Leave out allow_out_of_order_execution=, or define the actor without "
                "max_concurrency= and async methods"
            )
        groups = tuple(options.concurrency_groups or ())
        for name, method in self._methods.items():
            _check_group(method.options.concurrency_group, groups, f"{self._name}.{name}")

    @property
    def _handle(self) -> type[ActorHandle[Any]]:
        """What `remote` returns; a dialect has its own."""
        return ActorHandle

    def _exported(self) -> Callable[..., Any]:
        """What a worker calls to make the instance."""
        return self._cls

    def _prepare(self, verbs: UserVerbs, *, captured: bool = False) -> Prepared:
        is_async = _is_async(self._cls)
        target = self._exported()
        return verbs.prepare_class(
            ClassRequest(
                target=target,
                options=self._options,
                name=self._name,
                max_concurrency=self._options.max_concurrency or (ASYNC_CONCURRENCY if is_async else 1),
                is_async=is_async,
                captured=captured,
                collect=DynamicObjectRefGenerator.collect,
                shipped=self._shipped if target is self._cls else None,
            )
        )


def _is_async(cls: type[Any]) -> bool:
    """Whether a class has a method that is a coroutine."""
    found = (inspect.getattr_static(cls, name) for name in dir(cls))
    return any(
        inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)
        for function in (getattr(each, "__func__", each) for each in found)
    )


def _check_group(group: str | None, known: tuple[str, ...], what: str) -> None:
    if group is not None and group not in known:
        raise ValueError(
            unknown_name("concurrency group", group, list(known), what)
            if known
            else f"{what} uses the concurrency group {group!r}, but its class defines no concurrency groups; add "
            "concurrency_groups= to its @remote"
        )


_PreparedMethod: TypeAlias = tuple[Prepared, bool, bool]
"""A method, whether it has one result, and whether it is a generator whose items come one by one."""

_PLAIN = MethodOptions()


class _Method(NamedTuple):
    """A method as handles know it; `parameters` without `self`, None when Python cannot tell them."""

    options: MethodOptions
    parameters: Parameters | None
    decorator: Callable[..., Any] | None = None
    """See `INVOCATION_DECORATOR`."""

    def __reduce__(self) -> tuple[Any, ...]:
        """As of every tuple, without a decorator that is None: every byte takes its time."""
        return copyreg.__newobj__, (_Method, *(self[:2] if self.decorator is None else self))  # type: ignore[attr-defined]


_OF_EVERY_ACTOR = {
    TERMINATE: _Method(_PLAIN, Parameters("")),
    READY: _Method(_PLAIN, Parameters("")),
    CALL: _Method(_PLAIN, Parameters("0function,2args,4kwargs")),
}


def _methods_of(cls: type[Any]) -> dict[str, _Method]:
    """The public methods of a class, inherited ones too, and those of its special methods that no object has, such as
    `__len__`."""
    return {
        name: _Method(
            _options_of(getattr(cls, name)),
            _parameters_of_method(cls, name),
            getattr(getattr(cls, name), INVOCATION_DECORATOR, None),
        )
        for name in dir(cls)
        if callable(getattr(cls, name)) and (not name.startswith("__") or _is_own_special_method(cls, name))
    }


def _is_own_special_method(cls: type[Any], name: str) -> bool:
    return name == "__call__" or (not hasattr(object, name) and inspect.isfunction(getattr(cls, name)))


def _parameters_of_method(cls: type[Any], name: str) -> Parameters | None:
    is_bound = isinstance(inspect.getattr_static(cls, name), staticmethod | classmethod)
    return parameters_of(getattr(cls, name), is_method=not is_bound)


def _options_of(function: Any) -> MethodOptions:
    options: MethodOptions = getattr(function, METHOD_OPTIONS, _PLAIN)
    if options.num_returns is None and is_generator(function):
        return replace(options, num_returns=STREAMING)
    return options


_ACTOR_ID_BYTES = 16


class ActorID(bytes):
    """The id of an actor. `hex()` returns it as 32 hex digits, as in the runtime context of the actor's methods."""

    __slots__ = ()

    def binary(self) -> bytes:
        """Return the id as 16 bytes."""
        return bytes(self)

    def is_nil(self) -> bool:
        """Return whether the id is the id of no actor, which is always False."""
        return False

    @property
    def job_id(self) -> HexId:
        """The number of the driver whose program created the actor, as 8 hex digits."""
        return HexId(f"{job_of(self):08x}")

    def __repr__(self) -> str:
        return f"ActorID({self.hex()})"

    __str__ = __repr__


class ActorHandle(CountedReference, Generic[C]):
    """A handle to an actor: call its methods with `handle.method.remote(...)`.

    An actor starts the calls of one process in the order in which the process makes them. You can pass a handle to
    tasks and other actors. When the last handle is gone and its calls have ended, the actor ends, unless it is
    detached. A handle from `get_actor`, `get_if_exists` or `current_actor` is weak and does not keep the actor alive.

    Every actor has three more methods. `handle.__ray_ready__.remote()` returns True when the constructor has run.
    `handle.__ray_call__.remote(function, *args)` calls `function(instance, *args)` in the actor.
    `handle.__ray_terminate__.remote()` ends the actor after all calls that the program made earlier.
    """

    # Programs note what they like on a handle, as on Ray's: such attributes stay in this process.
    __slots__ = ("__dict__", "_actor", "_last", "_methods", "_prepared")

    is_value = False
    _ended = ActorHandleEndedError
    _in_rays_words = (
        "ActorHandle objects are not valid across Ray sessions. Can't find actor: It might be dead or it's from a "
        "different cluster."
    )

    @property
    def is_counted(self) -> bool:
        """Whether the handle keeps the actor alive."""
        return not self._actor.is_weak

    def __del__(self) -> None:
        actor: ActorInfo | None = getattr(self, "_actor", None)  # __init__ may not have run
        if actor is not None and not actor.is_weak:
            super().__del__()

    def __init__(self, actor: ActorInfo, verbs: UserVerbs, methods: dict[str, _Method]) -> None:
        super().__init__(actor.reference, verbs)
        self._actor = actor
        self._methods = methods
        self._last: tuple[MethodOptions, str, _PreparedMethod] | None = None
        """The method that was called last."""
        self._prepared: dict[tuple[Any, ...], _PreparedMethod] = {}

    def __getattr__(self, name: str) -> ActorMethod:
        if name in ActorHandle.__slots__:
            raise AttributeError(name)  # not made yet
        method = self._methods.get(name) or _OF_EVERY_ACTOR.get(name)
        if method is None:
            if name.startswith("__"):
                raise AttributeError(name)  # Python looking for a protocol
            raise AttributeError(unknown_name("method", name, sorted(self._methods), f"actor {self._actor.class_name}"))
        return self._method_type(self, name, *method)

    def __dir__(self) -> list[str]:
        return ["__init__", *self._methods, *_OF_EVERY_ACTOR]

    _ray_is_cross_language = False
    """All actors are Python's; Ray's own tests ask."""

    @property
    def _actor_id(self) -> ActorID:
        """The actor's id."""
        return ActorID(self.ref.object_id[:_ACTOR_ID_BYTES])

    _ray_actor_id = _actor_id
    """The same, under the name that Ray gives it."""

    @property
    def _method_type(self) -> type[ActorMethod]:
        """What stands for a method; a dialect has its own."""
        return ActorMethod

    def __repr__(self) -> str:
        return f"Actor({self._actor.class_name}, {self._actor_id.hex()})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ActorHandle) and bool(other.ref.object_id == self.ref.object_id)

    def __hash__(self) -> int:
        return hash(self.ref.object_id)

    def __reduce__(self) -> tuple[Any, ...]:
        self._check_usable()
        actor = self._actor
        fields: tuple[Any, ...] = (actor.class_name, self._methods, actor.function, tuple(actor.limits))
        if actor.is_weak:  # said where it is so alone: every byte takes its time
            fields = (*fields, True)
        return _revive_handle, (type(self), *self.holder.parts_of(self.ref), fields)

    def _prepare(self, method_name: str, options: MethodOptions) -> _PreparedMethod:
        last = self._last
        if last is not None and last[0] is options and last[1] == method_name:
            return last[2]
        group = options.concurrency_group
        retried = options.retry_exceptions
        key = (
            method_name,
            options.name,
            options.num_returns,
            group,
            options._generator_backpressure_num_objects,
            options.max_task_retries,
            retried if isinstance(retried, bool) else tuple(retried),
        )
        prepared = self._prepared.get(key)
        if prepared is None:
            what = f"{self._actor.class_name}.{method_name}"
            _check_group(group, self._actor.limits.groups, what)
            returns = returns_of(options, None, what)
            method = self.holder.prepare_method(
                self._actor,
                method_name,
                options,
                returns,
                is_last=method_name == TERMINATE,
                collect=DynamicObjectRefGenerator.collect,
            )
            prepared = self._prepared[key] = (method, returns.has_one_result, returns.kind == STREAMING)
        self._last = options, method_name, prepared
        return prepared


def handle_to(
    actor: ActorInfo,
    verbs: UserVerbs,
    handle: type[ActorHandle[Any]] = ActorHandle,
    methods: dict[str, _Method] | None = None,
) -> ActorHandle[Any]:
    """A handle to an actor that the engine has made or found; `methods` are those of the class that made it."""
    if actor.cls is not None:
        methods = _methods_of(actor.cls)
        actor = actor._replace(cls=None)
    assert methods is not None
    return handle(actor, verbs, methods)


def get_actor(name: str, namespace: str | None = None) -> ActorHandle[Any]:
    """Return a handle to the actor with this name.

    As in Ray, a handle from `get_actor` does not keep the actor alive. The actor ends when the handle that `.remote()`
    returned is gone, with all its copies in other processes.

    Args:
        name: the name that `Cls.options(name=...)` gave the actor.
        namespace: the namespace of the name. Default: the namespace of this program (`init(namespace=)`).

    Raises:
        ActorHandleNotFoundError (a ValueError): no actor has the name, or the actor has ended. The message contains the
            most similar name.
        TypeError, ValueError: the name or the namespace is not a str, or is empty.
    """
    for what, value in (("name", name), ("namespace", namespace)):
        if value is not None and not isinstance(value, str):
            raise TypeError(f"get_actor: {what}={value!r} must be a str")
        if value is not None and not value.strip():
            raise ValueError(f"get_actor: {what}={value!r} must not be empty")
    if name is None:
        raise WrongNameError("get_actor: name=None must be a str")
    verbs = started("get_actor").verbs
    return handle_to(verbs.find_actor(name, namespace), verbs)


def exit_actor() -> NoReturn:
    """End the actor that runs this call. The actor does not restart, even if `max_restarts` allows a restart.

    This call and all other unfinished calls of the actor fail with ActorDiedError. `exit_actor` raises an exception
    that `except Exception` does not catch.

    Raises:
        TypeError: the caller is not a method of an actor.
    """
    current = runtime.current_or_none()
    if current is None:  # no worker, then
        raise TypeError(EXIT_OUTSIDE)
    verbs = current.verbs
    actor = verbs.own_actor() if _is_beside_calls() else None
    if actor is not None:  # what this raises ends a task of asyncio, and a call has to end the actor
        getattr(handle_to(actor, verbs), TERMINATE).remote()
    verbs.exit_actor()


def _is_beside_calls() -> bool:
    """Whether the caller runs in a task that user code has created on an event loop."""
    asyncio = sys.modules.get("asyncio")
    if asyncio is None or asyncio._get_running_loop() is None:
        return False
    task = asyncio.current_task()
    return task is not None and task.get_name() != CALL_TASK


def _revive_handle(handle: type[ActorHandle[Any]], *parts: Any) -> ActorHandle[Any]:
    """Unpickle: the handle now exists in this process too."""
    verbs = runtime.current("unpickling an actor handle").verbs
    *parts_of_reference, (class_name, methods, function, limits, *weak) = parts
    reference = verbs.revive(*parts_of_reference)
    if weak:
        verbs.drop(reference.object_id)
    return handle(ActorInfo(reference, class_name, function, ActorLimits(*limits), None, bool(weak)), verbs, methods)


class ActorMethod:
    """A method of an actor: call it with `.remote(...)`."""

    __slots__ = ("_decorator", "_handle", "_name", "_options", "_parameters")

    _reference: type[ObjectRef[Any]] = ObjectRef
    """What calls return; a dialect has its own."""

    def __init__(
        self,
        handle: ActorHandle[Any],
        name: str,
        options: MethodOptions,
        parameters: Parameters | None,
        decorator: Callable[..., Any] | None = None,
    ) -> None:
        self._decorator = decorator
        self._handle = handle
        self._name = name
        self._options = options
        self._parameters = parameters

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise TypeError(f"{self._name} is an actor's method: call it with .{self._name}.remote(...)")

    def options(self, **options: Any) -> ActorMethod:
        """Return a copy of the method with some options changed; see `MethodOptions`.

        Raises:
            ValueError: `duration` is given, which only `@method` can set, or another option has a wrong value.
        """
        if "duration" in options:
            raise ValueError(
                f"{self._handle!r}.{self._name}.options() cannot set duration={options['duration']!r}. To set the "
                "duration, put @dualray.method(duration=...) on the method"
            )
        changed = with_changes(self._options, options, f"{self._handle!r}.{self._name}.options()")
        if changed.num_returns is None:  # as the method is
            changed = replace(changed, num_returns=self._options.num_returns)
        return type(self)(self._handle, self._name, changed, self._parameters, self._decorator)

    def remote(self, /, *args: Any, **kwargs: Any) -> Any:
        """Call the method, and return references to its results at once.

        Raises:
            TypeError: the method does not take these arguments.
            PendingCallsLimitExceeded: this process already has `max_pending_calls` unfinished calls of the actor.
        """
        if self._decorator is not None:
            return self._decorator(lambda args, kwargs: self._submit(args, kwargs))(list(args), kwargs)
        return self._submit(args, kwargs)

    def _submit(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        parameters = self._parameters
        if parameters is not None and (len(args) if not kwargs else (len(args), *kwargs)) not in parameters.accepted:
            parameters.check(f"{self._handle._actor.class_name}.{self._name}.remote()", args, kwargs)
        verbs = runtime.current(self._name).verbs
        handle = self._handle
        handle._check_usable()
        method, has_one_result, is_streaming = handle._prepare(self._name, self._options)
        limit = handle._actor.limits.max_pending_calls
        if limit > 0:
            verbs.check_pending_calls(handle.ref, method, limit)
        if has_one_result:
            return self._reference(verbs.call_method(handle.ref, method, args, kwargs), verbs)
        refs = verbs.submit_method(handle.ref, method, args, kwargs)
        if is_streaming:
            return ObjectRefGenerator(refs, verbs, self._reference)
        return as_returned([self._reference(ref, verbs) for ref in refs])

    def bind(self, /, *args: Any, **kwargs: Any) -> ClassMethodNode | tuple[ClassMethodNode, ...]:
        """Return a node of a graph for this call, or a tuple of nodes if it has several results. See dualray.dag."""
        from dualray.dag.class_node import calls_of  # noqa: PLC0415 - most programs write no graphs

        return calls_of(self._handle, self._name, args, kwargs, said(self._options))

    def _remote(
        self, args: Sequence[Any] | None = None, kwargs: Mapping[str, Any] | None = None, **options: Any
    ) -> Any:
        """`options(**options).remote(*args, **kwargs)`, as Ray's own libraries write it."""
        method = self.options(**options) if options else self
        return method.remote(*(args or ()), **(kwargs or {}))

    def __repr__(self) -> str:
        return f"ActorMethod({self._name} of {self._handle!r})"
