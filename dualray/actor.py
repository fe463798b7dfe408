"""Actors: what `@remote` makes of a class, and the handles to its instances."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, NoReturn, TypeVar

from dualray import runtime
from dualray.object_ref import CountedReference, ObjectRef
from dualray.options import ActorOptions, MethodOptions, strategy_of, unknown_name, with_changes
from dualray.remote_function import as_returned
from dualray.shared.model.ids import FunctionID, ObjectID, short
from dualray.shared.model.resources import NOTHING
from dualray.shared.model.specs import FunctionTemplate, Ref
from dualray.shared.task_runner import METHOD_OPTIONS

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
        self._cls = cls
        self._options = options
        self._name = options.name or cls.__name__
        self._methods = _methods_of(cls)
        self._template: FunctionTemplate | None = None
        self._exported_by: runtime.Verbs | None = None
        self.__doc__ = cls.__doc__

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
            SerializationError: an argument, or the class, cannot be pickled.
        """
        verbs = runtime.current(f"{self._name}.remote()").verbs
        if self._exported_by is not verbs or self._template is None:
            self._template = self._make_template(verbs)
            self._exported_by = verbs
        options = self._options
        ref = verbs.create_actor(
            self._template,
            args,
            kwargs,
            max_restarts=options.max_restarts,
            max_task_retries=options.max_task_retries,
        )
        return self._handle(ref, verbs, self._name, self._methods, self._template.function_id, options.max_task_retries)

    @property
    def _handle(self) -> type[ActorHandle]:
        """What `remote` returns; a dialect has its own."""
        return ActorHandle

    def _exported(self) -> Callable[..., Any]:
        """What a worker calls to make the instance."""
        return self._cls

    def _make_template(self, verbs: runtime.Verbs) -> FunctionTemplate:
        options = self._options
        placement, held = options.demands()
        return FunctionTemplate(
            function_id=verbs.export(self._exported(), duration=options.duration, what=f"actor class {self._name}"),
            name=self._name,
            resources=held,
            placement=placement,
            num_returns=0,
            max_retries=0,
            strategy=strategy_of(options.scheduling_strategy, self._name),
        )


def _methods_of(cls: type[Any]) -> dict[str, MethodOptions]:
    """The public methods of a class, inherited ones too, with their options."""
    return {
        name: getattr(getattr(cls, name), METHOD_OPTIONS, MethodOptions())
        for name in dir(cls)
        if callable(getattr(cls, name)) and (not name.startswith("__") or name == "__call__")
    }


class ActorHandle(CountedReference):
    """A handle to an actor: call its methods with `handle.method.remote(...)`.

    Calls through one process's handles start in the order in which they were made. A handle can be passed to tasks and
    other actors; when the last one anywhere is gone, and its calls have ended, the actor ends.
    """

    __slots__ = ("_class_name", "_function_id", "_max_task_retries", "_methods", "_templates")

    is_value = False

    def __init__(
        self,
        ref: Ref,
        verbs: runtime.Verbs,
        class_name: str,
        methods: dict[str, MethodOptions],
        function_id: FunctionID,
        max_task_retries: int,
    ) -> None:
        super().__init__(ref, verbs)
        self._class_name = class_name
        self._methods = methods
        self._function_id = function_id
        self._max_task_retries = max_task_retries
        self._templates: dict[tuple[str, int], FunctionTemplate] = {}

    def __getattr__(self, name: str) -> ActorMethod:
        if name in ActorHandle.__slots__:
            raise AttributeError(name)  # not made yet
        options = self._methods.get(name)
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
        fields = (self._class_name, self._methods, self._function_id, self._max_task_retries)
        return _revive_handle, (type(self), self.ref.object_id, self.ref.owner, fields)

    def _template_for(self, method_name: str, num_returns: int) -> FunctionTemplate:
        template = self._templates.get((method_name, num_returns))
        if template is None:
            template = self._templates[method_name, num_returns] = FunctionTemplate(
                function_id=self._function_id,
                name=f"{self._class_name}.{method_name}",
                resources=NOTHING,
                placement=NOTHING,
                num_returns=num_returns,
                max_retries=self._max_task_retries,
            )
        return template


def _revive_handle(handle: type[ActorHandle], object_id: ObjectID, owner: Any, fields: tuple[Any, ...]) -> ActorHandle:
    """Unpickle: the handle now exists in this process too."""
    verbs = runtime.current("unpickling an actor handle").verbs
    ref = Ref(object_id, owner)
    verbs.adopt(ref)
    return handle(ref, verbs, *fields)


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
        """The same method with some options changed; see `MethodOptions`."""
        changed = with_changes(self._options, options, f"{self._handle!r}.{self._name}.options()")
        return type(self)(self._handle, self._name, changed)

    def remote(self, *args: Any, **kwargs: Any) -> Any:
        """Call the method; references to its results, as for remote functions."""
        verbs = runtime.current(f"{self._name}.remote()").verbs
        self._handle.check()
        template = self._handle._template_for(self._name, self._options.num_returns)
        refs = verbs.submit_actor_task(self._handle.ref, template, args, kwargs)
        return as_returned([self._reference(ref, verbs) for ref in refs])

    def __repr__(self) -> str:
        return f"ActorMethod({self._name} of {short(self._handle.ref.object_id)})"
