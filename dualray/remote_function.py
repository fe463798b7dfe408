"""Remote functions, which `@remote` creates from functions."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar, cast
from weakref import WeakKeyDictionary

from dualray import runtime
from dualray.first_verb import started
from dualray.object_ref import ObjectRef
from dualray.object_ref_generator import DynamicObjectRefGenerator, ObjectRefGenerator
from dualray.options import STREAMING, TaskOptions, returned_bytes, returns_of, said, with_changes
from dualray.parameters import Parameters, Shape, parameters_of
from dualray.shared.handles import Sized
from dualray.user_verbs import Prepared, Shipped, UserVerbs

if TYPE_CHECKING:
    from dualray.dag import FunctionNode

R = TypeVar("R")


INVOCATION_DECORATOR = "__ray_invocation_decorator__"
"""An attribute of a function or method: what it is given is `f(args, kwargs)`, which makes the call; what it returns is
called in its place. It may change the arguments and add to what the caller gets, as in Ray."""


_PLAIN = frozenset({bool, float, int, str, type(None)})
"""Options of these types alone are compared; others may change."""
_COPIES_MAX = 32


def _apply(submit: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    return submit(*args, **kwargs)


class Modelled:
    """What a virtual worker calls in place of a function with `execute=False`."""

    def __init__(self, num_returns: int, value: Any, size_bytes: int) -> None:
        self._num_returns = num_returns
        self._result = value, size_bytes

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        result = Sized(*self._result)
        return result if self._num_returns == 1 else [result] * self._num_returns


class RemoteFunction(Generic[R]):
    """A function that runs as a task: call it with `.remote(...)`.

    In each cluster, the first call pickles the function and checks its options against the cluster.
    """

    _reference: type[ObjectRef[Any]] = ObjectRef
    """What calls return; a dialect has its own."""

    def __init__(self, function: Callable[..., R], options: TaskOptions) -> None:
        self._function = function
        self._options = options
        self._shipped: Shipped = WeakKeyDictionary()
        self._copies: dict[Any, RemoteFunction[R]] = {}
        """Those that `options` has made lately, by the options: loops call it with the same ones each time."""
        self._name = options.name or str(getattr(function, "__name__", type(function).__name__))
        self._call = f"{self._name}.remote()"
        self._prepared: Prepared | None = None
        self._prepared_by: UserVerbs | None = None
        self._has_one_result = False
        self._is_streaming = False
        self._accepted: set[Shape] = set()
        functools.update_wrapper(self, function)
        decorator = getattr(function, INVOCATION_DECORATOR, None)
        if decorator is not None:
            submit = functools.partial(_apply, super().__getattribute__("remote"))
            self.__dict__["remote"] = lambda *args, **kwargs: decorator(submit)(list(args), kwargs)

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise TypeError(f"{self._name} is a remote function: call it with {self._name}.remote(...)")

    def __reduce__(self) -> tuple[Any, ...]:
        return RemoteFunction, (self._function, self._options)

    def options(self, **options: Any) -> RemoteFunction[R]:
        """Return a copy of the remote function with some options changed; see `TaskOptions`.

        Raises:
            ValueError, TypeError: an option is unknown or has a wrong value.
        """
        given = tuple([(name, type(value), value) for name, value in options.items()])
        is_plain = _PLAIN.issuperset([kind for _, kind, _ in given])
        if is_plain and (known := self._copies.get(given)) is not None:
            return known
        changed = with_changes(self._options, options, f"{self._name}.options()")
        copy = RemoteFunction(self._function, changed)
        copy._shipped, copy._parameters = self._shipped, self._parameters
        if copy._parameters is not None:
            copy._accepted = copy._parameters.accepted
        if is_plain:
            if len(self._copies) == _COPIES_MAX:
                self._copies.clear()
            self._copies[given] = copy
        return copy

    def remote(self, /, *args: Any, **kwargs: Any) -> ObjectRef[R]:
        """Submit a call, and return a reference to its result at once.

        If num_returns is above 1, the call returns a list of references. If num_returns is 0, the call returns None. A
        call of a generator returns an ObjectRefGenerator. dualray replaces arguments that are references by their
        values before the function runs.

        Raises:
            TypeError: the function does not take these arguments.
            SerializationError: an argument or the function cannot be pickled.
        """
        if (len(args) if not kwargs else (len(args), *kwargs)) not in self._accepted:
            self._check_arguments(args, kwargs)
        verbs = started(self._call).verbs
        if self._prepared_by is not verbs or self._prepared is None:
            self._prepared = self._prepare(verbs)
            self._prepared_by = None if self._options.fallback_strategy else verbs  # it depends on the nodes there are
        prepared = self._prepared
        if verbs.captures_children():
            prepared = self._prepare(verbs, captured=True)
        if self._has_one_result:
            return self._reference(verbs.call(prepared, args, kwargs), verbs)
        refs = verbs.submit(prepared, args, kwargs)
        if self._is_streaming:
            return cast(ObjectRef[R], ObjectRefGenerator(refs, verbs, self._reference))
        # The type is that of the usual case, one result; with num_returns=2 it is a list, and callers unpack it.
        returned: ObjectRef[R] = as_returned([self._reference(ref, verbs) for ref in refs])
        return returned

    @functools.cached_property
    def _parameters(self) -> Parameters | None:
        return parameters_of(self._function)

    def _check_arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Called for each shape of call that was not seen yet."""
        if self._parameters is not None:
            self._parameters.check(self._call, args, kwargs)
            self._accepted = self._parameters.accepted

    def bind(self, /, *args: Any, **kwargs: Any) -> FunctionNode:
        """Return a node of a graph for this call, which runs with `node.execute()`; see the package dualray.dag."""
        from dualray.dag import FunctionNode  # noqa: PLC0415 - most programs write no graphs

        return FunctionNode(self, args, kwargs, said(self._options))

    def _remote(
        self, args: Sequence[Any] | None = None, kwargs: Mapping[str, Any] | None = None, **options: Any
    ) -> ObjectRef[R]:
        """`options(**options).remote(*args, **kwargs)`, as Ray's own libraries write it."""
        function = self.options(**options) if options else self
        return function.remote(*(args or ()), **(kwargs or {}))

    def _exported(self) -> Callable[..., Any]:
        """What workers call."""
        return self._function

    def _prepare(self, verbs: UserVerbs, *, captured: bool = False) -> Prepared:
        options = self._options
        what = f"remote function {self._name}"
        returns = returns_of(options, self._function, what)
        target = self._exported()
        if not options.execute and runtime.current(self._call).models_calls:
            if returns.kind:
                raise ValueError(
                    f"{what}: execute=False needs a number as num_returns=, because the function is a generator "
                    "function"
                )
            target = Modelled(returns.number, options.returns, returned_bytes(options, what))
        self._has_one_result, self._is_streaming = returns.has_one_result, returns.kind == STREAMING
        return verbs.prepare_function(
            target,
            options,
            returns,
            self._name,
            captured=captured,
            collect=DynamicObjectRefGenerator.collect,
            shipped=self._shipped if target is self._function else None,
        )


def as_returned(refs: list[ObjectRef[Any]]) -> Any:
    """Return references in the form of `.remote()`: a single reference, a list of several, or None."""
    if len(refs) == 1:
        return refs[0]
    return refs or None
