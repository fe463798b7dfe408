"""Which tasks or actors run a step: `compute=` and `concurrency=` of the methods that take a user's function."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_OF_RAYS_TASKS = frozenset(
    {"compute", "concurrency", "memory", "num_cpus", "num_gpus", "ray_remote_args", "resources", "runtime_env"}
    | {"accelerator_type", "label_selector", "max_retries", "override_num_blocks", "parallelism", "retry_exceptions"}
    | {"scheduling_strategy"}
)


def check_ignored(method: str, options: Iterable[str]) -> None:
    """Accept Ray's options of tasks for a method that needs none of them.

    Raises:
        TypeError: Ray has no such option.
    """
    for name in options:
        if name not in _OF_RAYS_TASKS:
            raise TypeError(f"{method}() got an unexpected keyword argument {name!r}")


def check_options_function(method: str, needs: Mapping[str, Any]) -> None:
    """Check the argument `ray_remote_args_fn` among the options of tasks or actors.

    Raises:
        TypeError: it cannot be called.
    """
    fn = needs.get("ray_remote_args_fn")
    if fn is not None and not callable(fn):
        raise TypeError(f"{method}: ray_remote_args_fn={fn!r} must be a function that returns a dict of options")


def options_now(needs: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a task or an actor that starts now: those of `ray_remote_args_fn` override the others."""
    options = dict(needs)
    fn = options.pop("ray_remote_args_fn", None)
    if fn is None:
        return options
    made: dict[str, Any] = fn()
    if "max_calls" in made:
        raise ValueError("ray_remote_args_fn: max_calls is no option of single tasks; give max_calls= to the method")
    return options | made


def is_count(value: Any, least: int) -> bool:
    """Whether a value is an int, of at least `least`."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def makes_callables(fn: Any) -> bool:
    """Whether it is a class whose instances can be called; `dict` is a function here."""
    return isinstance(fn, type) and any("__call__" in vars(base) for base in fn.__mro__)


def is_async(call: Callable[..., Any]) -> bool:
    """Whether it is an `async def`, or an instance of a class with such a `__call__`."""
    tests = (inspect.iscoroutinefunction, inspect.isasyncgenfunction)
    return any(test(each) for test in tests for each in (call, inspect.getattr_static(type(call), "__call__", None)))


def waited(call: Callable[..., Any]) -> Callable[..., Any]:
    """A plain function of an async one: it waits for the value, or for all values of an async generator."""

    async def collected(values: AsyncIterator[Any]) -> list[Any]:
        return [value async for value in values]

    def wait(value: Any) -> Any:
        made = call(value)
        if inspect.isasyncgen(made):
            return (each for each in asyncio.run(collected(made)))
        return asyncio.run(made)

    return wait


class ComputeStrategy:
    """Base of the two strategies."""


@dataclass(frozen=True, slots=True)
class TaskPoolStrategy(ComputeStrategy):
    """Run a step in tasks.

    Attributes:
        size: most tasks of the step at a time. Default: `tasks_max` of the context.
    """

    size: int | None = None

    def __post_init__(self) -> None:
        if self.size is not None and not is_count(self.size, 1):
            raise ValueError(f"ActorPoolStrategy: size={self.size!r} must be None or a number of actors, at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorPoolStrategy(ComputeStrategy):
    """Run a step in a pool of actors, each with an instance of the user's class.

    The pool does not grow while it works. It has `size` actors, or `max_size`, but no more than the cluster has CPUs,
    and at least `min_size`.

    Attributes:
        size: number of actors.
        min_size, max_size: bounds of this number. Default: 1, and `min_size`.
        initial_size, max_tasks_in_flight_per_actor, max_concurrent_calls_per_actor, enable_true_multi_threading:
            accepted as in Ray, and without effect. An actor works at one block while the next block is fetched.
    """

    size: int | None = None
    min_size: int | None = None
    max_size: int | None = None
    initial_size: int | None = None
    max_tasks_in_flight_per_actor: int | None = None
    max_concurrent_calls_per_actor: int | None = None
    enable_true_multi_threading: bool | None = None

    def __post_init__(self) -> None:
        for name in ("size", "min_size", "max_size", "max_tasks_in_flight_per_actor"):
            value = getattr(self, name)
            if value is not None and not is_count(value, 1):
                of_what = "tasks" if "tasks" in name else "actors"
                raise ValueError(f"{name}={value!r} must be an int of at least 1: the number of {of_what}")
        if self.size is not None and (self.min_size is not None or self.max_size is not None):
            raise ValueError("ActorPoolStrategy: give either size=, or min_size= and max_size=")
        if self.max_size is not None and self.max_size < (self.min_size or 1):
            raise ValueError(f"max_size={self.max_size} must be at least min_size={self.min_size}")

    @property
    def bounds(self) -> tuple[int, int]:
        """The least and the greatest number of actors."""
        least = self.size or self.min_size or 1
        return least, self.size or self.max_size or least


def strategy_of(fn: Any, compute: Any, concurrency: int | Sequence[int] | None) -> ComputeStrategy:
    """What `compute=` and `concurrency=` say for a function or a class.

    Raises:
        ValueError: a class is to run in tasks, a function in actors, or the values are wrong.
    """
    wants_actors = makes_callables(fn)
    name = getattr(fn, "__name__", repr(fn))
    if compute is not None:
        if not isinstance(compute, ComputeStrategy):
            raise ValueError(f"compute={compute!r} must be an ActorPoolStrategy or a TaskPoolStrategy")
        if wants_actors != isinstance(compute, ActorPoolStrategy):
            raise ValueError(
                f"{name} is a class, which needs an ActorPoolStrategy"
                if wants_actors
                else f"{name} is a function, which needs a TaskPoolStrategy; an ActorPoolStrategy runs a class"
            )
        return compute
    if isinstance(concurrency, tuple | list):
        if not wants_actors or len(concurrency) not in (2, 3):
            raise ValueError(
                f"concurrency={concurrency!r} must be an int. For a class, "
                "concurrency= can also be (min_actors, max_actors)"
            )
        return ActorPoolStrategy(min_size=concurrency[0], max_size=concurrency[1])
    if concurrency is None:
        return ActorPoolStrategy() if wants_actors else TaskPoolStrategy()
    if not isinstance(concurrency, int) or not is_count(concurrency, 1):
        raise ValueError(f"concurrency={concurrency!r} must be an int of at least 1: the number of actors or tasks")
    return ActorPoolStrategy(size=concurrency) if wants_actors else TaskPoolStrategy(concurrency)
