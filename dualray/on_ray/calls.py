"""What Ray runs in place of the user's functions and classes: they get the runtime, and their errors are carried.

A function is wrapped, and a class stands behind another one, whose methods have the names and the kinds (plain,
coroutine, generator) of its own: Ray goes by them. All of it is pickled by Ray. A worker imports this module before it
unpickles what the user wrote.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from types import GeneratorType
from typing import Any, NamedTuple, NoReturn

import ray

from dualray import aio
from dualray.on_ray.anchors import anchored
from dualray.on_ray.errors import Carrier, Retried, carried
from dualray.on_ray.here import as_ours, have_runtime
from dualray.on_ray.notes import noted, running_now
from dualray.shared.handles import SHUTDOWN, ActorExit, Reference, method_of

TERMS = "__dualray_terms__"
"""The argument by which a call of a method gives its `Terms`, where they are not those of the class."""
CALLED = "__dualray_call__"
"""The method that calls any function with the user's instance: `__ray_call__`, which Ray has for its own."""
CLASS = "__dualray_class__"
"""Begins the name of a method that is there for its name: behind it stands by which key the class can be found."""
CALL_KIND = "__ray_call__"


class Terms(NamedTuple):
    """Of which exceptions a call is tried again, and how many results it has."""

    retried: Retried
    results: int = 1


class Method(NamedTuple):
    """A method of the user's class as the class in front of it has it. `marks`: what Ray is told of it."""

    kind: str
    terms: Terms
    marks: Mapping[str, Any]


# ---- Functions -------------------------------------------------------------------------------------------------------


def function_for(
    target: Callable[..., Any],
    name: str,
    retried: Retried,
    *,
    count: int,
    is_generator: bool,
    record_to: Any = None,
) -> Callable[..., Any]:
    """The function that Ray is given for one of the user's. `count`: of its results; 1 where items come one by one.
    `record_to`: where its calls are noted, of a run that is recorded."""
    if is_generator:

        def call(*args: Any, **kwargs: Any) -> Any:
            have_runtime(record_to)
            yield from _stream(target, name, retried, args, kwargs, count)

    else:

        def call(*args: Any, **kwargs: Any) -> Any:
            have_runtime(record_to)
            return _run(target, name, retried, args, kwargs, count)

    call.__name__ = call.__qualname__ = name
    call.__module__ = str(getattr(target, "__module__", None) or "__main__")
    return call


def _run(
    target: Any, name: str, retried: Retried, args: Sequence[Any], kwargs: Mapping[str, Any], count: int = 1
) -> Any:
    target = _observed(target, name, count)
    try:
        result = target(*map(as_ours, args), **_ours(kwargs))
        return result if count == 1 else _split(result, count, name)
    except ActorExit:
        _exit()
    except _OF_RAY:
        raise
    except Exception as exception:  # noqa: BLE001 - the user's, and it travels to whoever asked
        raise _carried(name, exception, retried) from None


def _observed(target: Any, name: str, count: int) -> Any:
    """What is called, noted if the run is recorded, and counted if there is a plan of faults."""
    here = have_runtime()
    if here.notes is not None:
        target = noted(here.notes, target, count)
    if here.record_to is not None and here.record_to.plan is not None:
        target = anchored(here.record_to.plan, target, name)
    return target


def _carried(name: str, exception: BaseException, retried: Retried) -> Carrier:
    """What a call raises towards Ray, under the name that its caller gave it."""
    _, dot, method = name.rpartition(".")
    told = (ray.get_runtime_context().get_task_name() or "") if dot else ""
    is_given = told not in ("", name) and not told.endswith(f".{method}")
    return carried(f"{told}.{method}" if is_given else name, exception, retried)


def _called(target: Any, name: str, retried: Retried, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What a generator function returns at once."""
    try:
        return target(*map(as_ours, args), **_ours(kwargs))
    except ActorExit:
        _exit()
    except _OF_RAY:
        raise
    except Exception as exception:  # noqa: BLE001 - the user's, and it travels to whoever asked
        raise _carried(name, exception, retried) from None


def _split(result: Any, count: int, name: str) -> Any:
    """The results of a call that has none or several."""
    if count == 0:
        return None
    try:
        values = list(islice(result, count) if isinstance(result, GeneratorType) else result)
    except TypeError:
        raise TypeError(
            f"{name} has num_returns={count}, but returned one {type(result).__name__}, which cannot be split into "
            f"{count} values"
        ) from None
    if len(values) != count:
        verb = "yielded" if isinstance(result, GeneratorType) else "returned"
        raise ValueError(f"{name} has num_returns={count}, but {verb} {len(values)} values")
    return values


def _stream(
    target: Any, name: str, retried: Retried, args: Sequence[Any], kwargs: Mapping[str, Any], count: int
) -> Iterator[Any]:
    """What a generator yields; `count`: how many, at most and at least, unless it is 1."""
    target = _observed(target, name, count)
    made = _called(target, name, retried, args, kwargs)
    yielded = 0
    if inspect.isasyncgen(made):
        made = _drained(made)
    try:
        if not hasattr(made, "__next__"):
            kind = type(made).__name__
            raise TypeError(f"{name} has num_returns='streaming', but returned a {kind}, not a generator")
        for item in made:  # and not `yield from`: Ray sends values into it, which other iterators do not take
            yield item
            yielded += 1
            if yielded == count > 1:
                break
        if yielded < count and count > 1:
            raise ValueError(f"{name} has num_returns={count}, but yielded {yielded} values")
    except ActorExit:
        _exit()
    except _OF_RAY:
        raise
    except Exception as exception:  # noqa: BLE001 - as above
        raise _carried(name, exception, retried) from None
    finally:
        close = getattr(made, "close", None)
        if close is not None:
            close()


def _drained(generator: Any) -> Iterator[Any]:
    """The items of an asynchronous generator, on a loop of their own."""
    loop = asyncio.new_event_loop()
    try:
        while True:
            try:
                yield loop.run_until_complete(anext(generator))
            except StopAsyncIteration:
                return
    finally:
        loop.run_until_complete(generator.aclose())
        loop.close()


_OF_RAY = (Carrier, ray.exceptions.AsyncioActorExit)
"""What passes as it is."""


def _ours(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    return {name: as_ours(value) for name, value in kwargs.items()}


def _exit() -> NoReturn:
    ray.actor.exit_actor()
    raise AssertionError("exit_actor returns nowhere")


# ---- Classes ---------------------------------------------------------------------------------------------------------


def kind_of(function: Any) -> str:
    """Of a method: "plain", "coroutine", "generator" or "async generator"."""
    function = getattr(function, "__func__", function)
    if inspect.isasyncgenfunction(function):
        return "async generator"
    if inspect.iscoroutinefunction(function):
        return "coroutine"
    return "generator" if inspect.isgeneratorfunction(function) else "plain"


def class_for(
    maker: Callable[..., Any],
    cls: type[Any],
    methods: Mapping[str, Method],
    key: str,
    *,
    is_async: bool,
    record_to: Any = None,
) -> type[Any]:
    """The class that Ray is given for one of the user's: `maker` makes the instance. Of one with coroutines all methods
    are coroutines, as Ray runs them on its loop."""
    name = cls.__name__

    def construct(self: Any, *args: Any, **kwargs: Any) -> None:
        have_runtime(record_to)
        self.__dict__["instance"] = _made(maker, name, args, kwargs)

    async def construct_async(self: Any, *args: Any, **kwargs: Any) -> None:
        here = have_runtime(record_to)
        with _as_carried(name):
            here.instance = await aio.construct(cls, [as_ours(value) for value in args], _ours(kwargs))
        self.__dict__["instance"] = here.instance

    waits = inspect.iscoroutinefunction(cls.__init__)
    members: dict[str, Any] = {"__init__": construct_async if waits else construct, "__doc__": cls.__doc__}
    if "__repr__" in {name for base in cls.__mro__[:-1] for name in vars(base)}:
        members["__repr__"] = _shown
    if hasattr(cls, SHUTDOWN) or record_to is not None:
        members[SHUTDOWN] = _shut_down
    for method, described in {**methods, CALLED: Method("plain", Terms(False), {})}.items():
        called = CALL_KIND if method == CALLED else method
        wrapper = _wrapper(called, f"{name}.{called}", described.kind, described.terms, is_async=is_async)
        wrapper.__name__, wrapper.__qualname__ = method, f"{cls.__qualname__}.{method}"
        members[method] = ray.method(**described.marks)(wrapper) if described.marks else wrapper
    members[CLASS + key] = _is_there
    made = type(name, (), members)
    made.__module__ = cls.__module__ if cls.__module__ != "builtins" else "__main__"
    made.__qualname__ = cls.__qualname__
    return made


def _is_there(self: Any) -> bool:
    return True


def _shown(self: Any) -> str:
    return repr(self.instance)


def _shut_down_instance(instance: Any) -> None:
    """Ray does not do so where a coroutine ends its actor."""
    own = getattr(instance, SHUTDOWN, None)
    if own is not None:
        with suppress(Exception):  # Ray, too, goes on
            own()


def _shut_down(self: Any) -> None:
    own = getattr(self.instance, SHUTDOWN, None)
    try:
        if own is not None:
            own()
    finally:
        notes = have_runtime().notes
        if notes is not None:
            notes.send(_LAST_NOTES_S)


_LAST_NOTES_S = 2.0
"""How long an actor that ends may take to send its notes."""


def _made(maker: Any, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    here = have_runtime()
    maker = _observed(maker, name, 0)
    with _as_carried(name):
        here.instance = maker(*map(as_ours, args), **_ours(kwargs))
    return here.instance


@contextmanager
def _as_carried(name: str) -> Iterator[None]:
    """In the block, turn an error of a constructor into one that dualray can read at the caller."""
    try:
        yield
    except ActorExit:
        raise carried(f"{name}.__init__", RuntimeError(_EXITED_AT_BIRTH), False) from None
    except Exception as exception:  # noqa: BLE001 - the user's
        raise carried(f"{name}.__init__", exception, False) from None


_EXITED_AT_BIRTH = "exit_actor() was called in the constructor, so the actor was not created"


def _wrapper(method: str, name: str, kind: str, terms: Terms, *, is_async: bool) -> Any:
    if is_async and kind in ("generator", "async generator"):

        async def stream_async(self: Any, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
            async for item in _items(self.instance, method, name, terms, args, kwargs):
                yield item

        return stream_async
    if is_async:

        async def call_async(self: Any, *args: Any, **kwargs: Any) -> Any:
            return await _awaited(self.instance, method, name, terms, args, kwargs)

        return call_async
    if kind == "generator":

        def stream(self: Any, *args: Any, **kwargs: Any) -> Iterator[Any]:
            retried, count = kwargs.pop(TERMS, terms)
            if count in (0, 1):  # one result, or items one by one: Ray decides by `num_returns`
                count = 1
            yield from _stream(method_of(self.instance, method), name, retried, args, kwargs, count)

        return stream

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        retried, count = kwargs.pop(TERMS, terms)
        return _run(method_of(self.instance, method), name, retried, args, kwargs, count)

    return call


async def _awaited(
    instance: Any, method: str, name: str, terms: Terms, args: Sequence[Any], kwargs: dict[str, Any]
) -> Any:
    retried, count = kwargs.pop(TERMS, terms)
    notes = have_runtime().notes
    begun = None if notes is None else notes.begin(*running_now())
    error = "APPLICATION"
    results: Sequence[Any] = ()
    try:
        result = method_of(instance, method)(*map(as_ours, args), **_ours(kwargs))
        if inspect.isawaitable(result) and not isinstance(result, Reference):  # a reference is a result like others
            result = await result
        made = result if count == 1 else _split(result, count, name)
        error, results = "", (made,) if count == 1 else made or ()
        return made
    except ActorExit:
        _shut_down_instance(instance)
        _exit()
    except _OF_RAY:
        raise
    except Exception as exception:  # noqa: BLE001 - the user's
        raise _carried(name, exception, retried) from None
    finally:
        if begun is not None:
            notes.end(begun, error, results, is_alone=False)


async def _items(
    instance: Any, method: str, name: str, terms: Terms, args: Sequence[Any], kwargs: dict[str, Any]
) -> AsyncIterator[Any]:
    retried, _ = kwargs.pop(TERMS, terms)
    try:
        made = _observed(method_of(instance, method), name, 1)(*map(as_ours, args), **_ours(kwargs))
        if hasattr(made, "__anext__"):
            async for item in made:
                yield item
        else:
            for item in made:
                yield item
    except ActorExit:
        _exit()
    except _OF_RAY:
        raise
    except Exception as exception:  # noqa: BLE001 - the user's
        raise _carried(name, exception, retried) from None
