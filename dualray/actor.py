"""Actors: what `@remote` makes of a class, and the handles to its instances."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import Any, Generic, NamedTuple, NoReturn, TypeVar

from dualray import runtime
from dualray.object_ref import CountedReference, ObjectRef
from dualray.object_ref_generator import DynamicObjectRefGenerator, ObjectRefGenerator
from dualray.options import (
    ActorOptions,
    MethodOptions,
    environment_of,
    is_generator,
    placed,
    returns_of,
    unknown_name,
    with_changes,
)
from dualray.remote_function import as_returned
from dualray.shared.core.task_runner import METHOD_OPTIONS, TERMINATE, ActorExit
from dualray.shared.model.ids import ActorID, FunctionID, ObjectID, actor_handle_id, short
from dualray.shared.model.resources import NOTHING
from dualray.shared.model.specs import ActorSpec, FunctionTemplate, NamedActor, Ref, Strategy, Streaming, TaskSpec

ASYNC_CONCURRENCY = 1000
"""Methods of an actor with coroutines that may run at a time, unless it says."""

C = TypeVar("C")
F = TypeVar("F", bound=Callable[..., Any])


def method(**options: Any) -> Callable[[F], F]:
    """Options of an actor's method, as a decorator: `@method(num_returns=2)`; see `MethodOptions`."""

    def decorate(function: F) -> F:
        what = f"method {getattr(function, '__name__', function)}"
        setattr(function, METHOD_OPTIONS, with_changes(MethodOptions(), options, what))
        return function

    return decorate


class ActorClass(Generic[C]):
    """A class whose instances live in workers of their own: make one with `.remote(...)`."""

    def __init__(self, cls: type[C], options: ActorOptions) -> None:
        if inspect.iscoroutinefunction(cls.__init__):
            raise TypeError(
                f"{cls.__name__}.__init__ is async: an actor is constructed before its event loop runs. Make it a "
                f"plain function, and await in a method that is called first"
            )
        self._cls = cls
        self._options = options
        self._name = cls.__name__
        self._template: FunctionTemplate | None = None
        self._exported_by: runtime.Verbs | None = None
        self.__doc__ = cls.__doc__

    @cached_property
    def _methods(self) -> dict[str, MethodOptions]:
        """Found when they are first needed: a class whose methods name it is unpickled before it has any of them."""
        return _methods_of(self._cls)

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise TypeError(f"{self._name} is an actor class: make an instance with {self._name}.remote(...)")

    def __reduce__(self) -> tuple[Any, ...]:
        return ActorClass, (self._cls, self._options)

    def options(self, **options: Any) -> ActorClass[C]:
        """The same class with some options changed; see `ActorOptions`."""
        return ActorClass(self._cls, with_changes(self._options, options, f"{self._name}.options()"))

    def remote(self, *args: Any, **kwargs: Any) -> ActorHandle:
        """Make an actor; a handle to it, at once. What goes wrong with it is raised by `get` of its calls.

        Raises:
            ActorUnschedulableError: no node of the cluster can ever hold it.
            ActorAlreadyExistsError (a ValueError): the name is taken, and `get_if_exists` was not given.
            SerializationError: an argument, or the class, cannot be pickled.
        """
        verbs = runtime.current(f"{self._name}.remote()").verbs
        if self._exported_by is not verbs or self._template is None:
            self._template = self._make_template(verbs)
            self._exported_by = verbs
        template = self._template
        running = verbs.execution.resources
        if running is not None and running.strategy.captures:
            template = self._make_template(verbs, running.strategy)
        promises = self._promises()
        ref, existing = verbs.create_actor(
            template, args, kwargs, promises=promises, get_if_exists=self._options.get_if_exists
        )
        if existing is not None:
            return handle_to(existing, verbs, self._handle)
        return self._handle(ref, verbs, self._name, self._methods, self._template.function_id, _limits_of(promises))

    def _promises(self) -> ActorSpec:
        options = self._options
        if options.get_if_exists and not options.name:
            raise ValueError(f"actor class {self._name}: get_if_exists=True needs a name to look for: name='...'")
        groups = dict(options.concurrency_groups or {})
        for name, method_options in self._methods.items():
            _check_group(method_options.concurrency_group, tuple(groups), f"{self._name}.{name}")
        is_async = _is_async(self._cls)
        return ActorSpec(
            actor_id=ActorID(b""),  # the core gives it
            max_restarts=options.max_restarts,
            max_task_retries=options.max_task_retries,
            name=options.name or "",
            namespace=options.namespace or "",
            is_detached=options.lifetime == "detached",
            max_pending_calls=options.max_pending_calls,
            max_concurrency=options.max_concurrency or (ASYNC_CONCURRENCY if is_async else 1),
            is_async=is_async,
            concurrency_groups=tuple(groups.items()),
        )

    @property
    def _handle(self) -> type[ActorHandle]:
        """What `remote` returns; a dialect has its own."""
        return ActorHandle

    def _exported(self) -> Callable[..., Any]:
        """What a worker calls to make the instance."""
        return self._cls

    def _make_template(self, verbs: runtime.Verbs, captured: Strategy | None = None) -> FunctionTemplate:
        options = self._options
        placement, held = options.demands()
        placement, held, strategy = placed(options, placement, held, self._name, captured)
        return FunctionTemplate(
            function_id=verbs.export(
                self._exported(),
                duration=options.duration,
                what=f"actor class {self._name}",
                collect=DynamicObjectRefGenerator.collect,
                sim_unsafe=options.sim_unsafe,
            ),
            name=self._name,
            resources=held,
            placement=placement,
            num_returns=0,
            max_retries=0,
            strategy=strategy,
            runtime_env=environment_of(options, verbs.runtime_env, f"actor class {self._name}"),
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
            else f"{what} is to run in the concurrency group {group!r}, and its class has none: concurrency_groups="
        )


class _Limits(NamedTuple):
    """What a handle knows of its actor's promises."""

    max_task_retries: int
    max_pending_calls: int = -1
    groups: tuple[str, ...] = ()


def _limits_of(promises: ActorSpec) -> _Limits:
    groups = tuple(name for name, _ in promises.concurrency_groups)
    return _Limits(promises.max_task_retries, promises.max_pending_calls, groups)


_TERMINATE = _PLAIN = MethodOptions()


def _methods_of(cls: type[Any]) -> dict[str, MethodOptions]:
    """The public methods of a class, inherited ones too, with their options."""
    return {
        name: _options_of(getattr(cls, name))
        for name in dir(cls)
        if callable(getattr(cls, name)) and (not name.startswith("__") or name == "__call__")
    }


def _options_of(function: Any) -> MethodOptions:
    options: MethodOptions = getattr(function, METHOD_OPTIONS, _PLAIN)
    if options.num_returns is None and is_generator(function):
        return replace(options, num_returns=Streaming.STREAMING.value)
    return options


class ActorHandle(CountedReference):
    """A handle to an actor: call its methods with `handle.method.remote(...)`.

    Calls through one process's handles start in the order in which they were made. A handle can be passed to tasks and
    other actors; when the last one anywhere is gone, and its calls have ended, the actor ends, unless it is detached.

    Every actor has the method `__ray_terminate__`: `handle.__ray_terminate__.remote()` ends the actor when the calls
    made before have ended.
    """

    __slots__ = ("_class_name", "_function_id", "_last", "_limits", "_methods", "_templates")

    is_value = False

    def __init__(
        self,
        ref: Ref,
        verbs: runtime.Verbs,
        class_name: str,
        methods: dict[str, MethodOptions],
        function_id: FunctionID,
        limits: _Limits,
    ) -> None:
        super().__init__(ref, verbs)
        self._class_name = class_name
        self._methods = methods
        self._function_id = function_id
        self._limits = limits
        self._last: tuple[MethodOptions, str, FunctionTemplate] | None = None
        """The method that was called last."""
        self._templates: dict[tuple[str, int | str | None, str | None, int | None], FunctionTemplate] = {}

    def __getattr__(self, name: str) -> ActorMethod:
        if name in ActorHandle.__slots__:
            raise AttributeError(name)  # not made yet
        options = self._methods.get(name)
        if options is None and name == TERMINATE:
            options = _TERMINATE
        if options is None:
            if name.startswith("__"):
                raise AttributeError(name)  # Python looking for a protocol
            raise AttributeError(unknown_name("method", name, sorted(self._methods), f"actor {self._class_name}"))
        return self._method(name, options)

    def _method(self, name: str, options: MethodOptions) -> ActorMethod:
        """What stands for a method; a dialect has its own."""
        return ActorMethod(self, name, options)

    def __repr__(self) -> str:
        return f"Actor({self._class_name}, {self.ref.object_id[:16].hex()})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ActorHandle) and other.ref.object_id == self.ref.object_id

    def __hash__(self) -> int:
        return hash(self.ref.object_id)

    def __reduce__(self) -> tuple[Any, ...]:
        self.check()
        fields = (self._class_name, self._methods, self._function_id, tuple(self._limits))
        return _revive_handle, (type(self), self.ref.object_id, self.ref.owner, fields)

    def _template_for(self, method_name: str, options: MethodOptions) -> FunctionTemplate:
        last = self._last
        if last is not None and last[0] is options and last[1] == method_name:
            return last[2]
        group = options.concurrency_group
        key = (method_name, options.num_returns, group, options._generator_backpressure_num_objects)
        template = self._templates.get(key)
        if template is None:
            what = f"{self._class_name}.{method_name}"
            _check_group(group, self._limits.groups, what)
            num_returns, streaming, ahead_max = returns_of(options, None, what)
            template = self._templates[key] = FunctionTemplate(
                function_id=self._function_id,
                name=f"{self._class_name}.{method_name}",
                resources=NOTHING,
                placement=NOTHING,
                num_returns=num_returns,
                max_retries=self._limits.max_task_retries if method_name != TERMINATE else 0,
                concurrency_group=group or "",
                streaming=streaming,
                items_ahead_max=ahead_max,
            )
        self._last = options, method_name, template
        return template


def handle_to_self(verbs: runtime.Verbs, constructor: TaskSpec) -> ActorHandle:
    """A handle to the actor that runs in this process, which `constructor` has made."""
    assert constructor.creates is not None
    ref = Ref(actor_handle_id(constructor.creates.actor_id), constructor.owner)
    verbs.adopt(ref)
    return ActorHandle(
        ref,
        verbs,
        constructor.template.name,
        _methods_of(type(verbs.actor_instance)),
        constructor.template.function_id,
        _limits_of(constructor.creates),
    )


def handle_to(actor: NamedActor, verbs: runtime.Verbs, handle: type[ActorHandle] = ActorHandle) -> ActorHandle:
    """A handle to an actor that was found by its name."""
    ref = Ref(actor_handle_id(actor.spec.actor_id), actor.owner)
    verbs.adopt(ref)  # first: loading the class takes long, and the actor is not to end meanwhile
    function = actor.template.function_id
    try:
        methods = _methods_of(verbs.load_class(function))
    except BaseException:
        verbs.drop(ref.object_id)
        raise
    return handle(ref, verbs, actor.template.name, methods, function, _limits_of(actor.spec))


def get_actor(name: str, namespace: str | None = None) -> ActorHandle:
    """A handle to the actor of this name.

    Args:
        name: what `Cls.options(name=...)` has given it.
        namespace: where it was named; default: the namespace of this program (`init(namespace=)`).

    Raises:
        ActorHandleNotFoundError (a ValueError): there is no such actor, or it has ended; with the nearest name.
        TypeError, ValueError: a name or namespace that is no text, or empty.
    """
    for what, value in (("name", name), ("namespace", namespace)):
        if value is not None and not isinstance(value, str):
            raise TypeError(f"get_actor: {what}={value!r} must be a str")
        if value == "":
            raise ValueError(f"get_actor: {what}={value!r} must not be empty")
    if name is None:
        raise TypeError("get_actor: name=None must be a str")
    verbs = runtime.current("get_actor").verbs
    return handle_to(verbs.find_actor(name, namespace or ""), verbs)


def exit_actor() -> NoReturn:
    """End the actor that this runs in, now and for good: it is not restarted, whatever `max_restarts` says. This call,
    and those that it has not answered, fail with ActorDiedError.

    It raises an exception that `except Exception` lets pass.

    Raises:
        TypeError: outside an actor's method.
    """
    execution = runtime.current("exit_actor").verbs.execution
    if execution.actor_id is None or execution.constructor is None:
        raise TypeError("exit_actor() was called outside an actor: it ends the actor whose method calls it")
    raise ActorExit


def _revive_handle(handle: type[ActorHandle], object_id: ObjectID, owner: Any, fields: tuple[Any, ...]) -> ActorHandle:
    """Unpickle: the handle now exists in this process too."""
    verbs = runtime.current("unpickling an actor handle").verbs
    ref = Ref(object_id, owner)
    verbs.adopt(ref)
    class_name, methods, function_id, limits = fields
    return handle(ref, verbs, class_name, methods, function_id, _Limits(*limits))


class ActorMethod:
    """A method of an actor: call it with `.remote(...)`."""

    __slots__ = ("_handle", "_name", "_options")

    _reference: type[ObjectRef[Any]] = ObjectRef
    """What calls return; a dialect has its own."""

    def __init__(self, handle: ActorHandle, name: str, options: MethodOptions) -> None:
        self._handle = handle
        self._name = name
        self._options = options

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise TypeError(f"{self._name} is an actor's method: call it with .{self._name}.remote(...)")

    def options(self, **options: Any) -> ActorMethod:
        """The same method with some options changed; see `MethodOptions`.

        Raises:
            ValueError: `duration`, which belongs to the class; and as for other options.
        """
        if "duration" in options:
            raise ValueError(
                f"{self._handle!r}.{self._name}.options(): duration={options['duration']!r} is read where the method "
                f"is defined: put @dualray.method(duration=...) there, which may be a function of the arguments"
            )
        changed = with_changes(self._options, options, f"{self._handle!r}.{self._name}.options()")
        return type(self)(self._handle, self._name, changed)

    def remote(self, *args: Any, **kwargs: Any) -> Any:
        """Call the method; references to its results, as for remote functions.

        Raises:
            PendingCallsLimitExceeded: this process has `max_pending_calls` calls without an answer.
        """
        verbs = runtime.current(self._name).verbs
        handle = self._handle
        handle.check()
        template = handle._template_for(self._name, self._options)
        limit = handle._limits.max_pending_calls
        if limit > 0:
            verbs.check_pending_calls(handle.ref, template, limit)
        if template.has_one_result:
            return self._reference(verbs.submit_actor_call(handle.ref, template, args, kwargs), verbs)
        refs = verbs.submit_actor_task(handle.ref, template, args, kwargs)
        if template.streaming is Streaming.STREAMING:
            return ObjectRefGenerator(refs, verbs, self._reference)
        return as_returned([self._reference(ref, verbs) for ref in refs])

    def __repr__(self) -> str:
        return f"ActorMethod({self._name} of {short(self._handle.ref.object_id)})"
