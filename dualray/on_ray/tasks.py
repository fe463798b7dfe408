"""Functions and their calls, by Ray."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, NoReturn

import ray

from dualray.core_terms import actor_demands, placed, selectors_of, task_demand
from dualray.exceptions import (
    ActorPlacementGroupRemoved,
    DualrayError,
    TaskPlacementGroupRemoved,
    TaskUnschedulableError,
    serialization_error,
)
from dualray.on_ray import terms
from dualray.on_ray.anchors import SUBMITTED, Watched, tell
from dualray.on_ray.calls import function_for
from dualray.on_ray.errors import Carrier, pickled, raise_translated
from dualray.on_ray.references import Item, Stream, Value
from dualray.options import STREAMING, ActorOptions, Returns, TaskOptions, is_generator
from dualray.scheduling_strategies import PlacementGroupSchedulingStrategy
from dualray.shared.core.serialization import serialize
from dualray.shared.handles import Reference as Handle
from dualray.shared.model.specs import LeaseShape
from dualray.user_verbs import Collect, Shipped


class PreparedFunction(NamedTuple):
    """A function as Ray submits it. `problem`: why it can never run."""

    remote: Any
    name: str
    returns: Returns
    problem: DualrayError | None
    words: tuple[str, str] = ("", "")
    """In a run that is recorded: its name, and what it demands."""
    target: Any = None
    """The user's function."""


def unwrapped(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Arguments with Ray's own references at their top level, where Ray puts the values in their place."""
    plain = [_in_place(arg) if isinstance(arg, Handle) else arg for arg in args]
    if not kwargs:
        return plain, {}
    return plain, {name: _in_place(arg) if isinstance(arg, Handle) else arg for name, arg in kwargs.items()}


def _in_place(handle: Handle) -> Any:
    """What Ray gets for a reference: its own, of a value; a handle to an actor is a value itself."""
    if not handle.is_value:
        return handle
    handle._check_usable()
    reference: Any = handle.ref
    return reference.ray


def submitted(remote: Any, name: str, args: Sequence[Any], kwargs: Mapping[str, Any], target: Any = None) -> Any:
    """What Ray's `.remote()` returns. `target`: the user's function, which Ray pickles with the first call.

    Raises:
        SerializationError: the function or an argument cannot be pickled.
        DualrayError: what Ray raises, under its name here.
    """
    plain, named = unwrapped(args, kwargs)
    try:
        return remote(*plain, **named)
    except ray.exceptions.RayError as error:
        raise_translated(error)
    except TypeError as error:
        if "serializ" not in str(error) and "pickle" not in str(error):
            raise
        for place, value in [*enumerate(args), *kwargs.items()]:
            serialize(value, f"argument {place!r} of {name}")  # it says which part cannot be pickled
        serialize(target, f"remote function {name}")
        raise serialization_error(f"{name}: {error}", error) from error


def as_references(made: Any, returns: Returns) -> list[Any]:
    """The references that the seam gives for a call."""
    if returns.kind == STREAMING:
        stream = Stream(made)
        current = stream.current
        assert current is not None
        return [Value(made.completed()), current, stream]
    if made is None:
        return []
    return [Value(ref) for ref in made] if isinstance(made, list) else [Value(made)]


class RayTasks:
    """`TaskVerbs`."""

    __slots__ = ()

    waits_for_nodes: bool
    """Whether what no node can meet waits for one that can."""
    warned: set[str]
    """What the user was told already."""
    record_to: Any
    """Where calls are noted, of a run that is recorded; None of others."""

    def prepare_function(
        self,
        target: Any,
        options: TaskOptions,
        returns: Returns,
        name: str,
        *,
        captured: bool,
        collect: Collect,
        shipped: Shipped | None = None,
    ) -> PreparedFunction:
        try:
            problem = self.problem_of(options, name)
        except TaskPlacementGroupRemoved as error:
            return PreparedFunction(None, name, returns, error)
        if problem:
            return PreparedFunction(None, name, returns, TaskUnschedulableError(problem))
        retried = terms.retried_of(options.retry_exceptions)
        said: dict[str, Any] = {
            **terms.where(options),
            "max_retries": options.max_retries,
            "retry_exceptions": terms.retries_for_ray(retried),
            "num_returns": returns.kind or returns.number,
        }
        if options.name:
            said["name"] = options.name
        if options.max_calls:
            said["max_calls"] = options.max_calls
        if returns.ahead_max:
            said["_generator_backpressure_num_objects"] = returns.ahead_max
        function = function_for(
            target,
            name,
            retried,
            count=1 if returns.kind else returns.number,
            is_generator=bool(returns.kind) or (returns.number > 1 and is_generator(target)),
            record_to=self.record_to,
        )
        return PreparedFunction(ray.remote(**said)(function).remote, name, returns, None, target=target)

    def problem_of(self, options: TaskOptions | ActorOptions, name: str) -> str:
        """Why no node can ever run a call; "" when one can, or may join.

        Raises:
            ValueError: no bundle of its placement group has room for it.
            TaskPlacementGroupRemoved, ActorPlacementGroupRemoved: the group is gone; on Ray the call would wait for it.
        """
        problems = [
            self._problem_of(replace(options, label_selector=selector), name) for selector in selectors_of(options)
        ]
        if not all(problems):
            return ""
        self._warn(f"dualray: {name} can never run in this cluster: {problems[0]}.")
        return f"{name} cannot be scheduled: {problems[0]}."

    def _warn(self, text: str) -> None:
        """Tell it the user, once."""
        if text not in self.warned:
            self.warned.add(text)
            sys.stderr.write(text + "\n")

    def _problem_of(self, options: TaskOptions | ActorOptions, name: str) -> str:
        is_task = isinstance(options, TaskOptions)
        strategy = options.scheduling_strategy
        said = (options.num_cpus, options.num_gpus, options.memory, options.resources)
        demand, held = (task_demand(*said),) * 2 if is_task else actor_demands(*said)
        demand, held, wanted = placed(strategy, options.label_selector, demand, held, name, None)
        group = strategy.placement_group if isinstance(strategy, PlacementGroupSchedulingStrategy) else None
        if group is not None and not getattr(group, "is_empty", False):
            if terms.state_of_group(group.id) == "REMOVED":
                removed = TaskPlacementGroupRemoved if is_task else ActorPlacementGroupRemoved
                raise removed(f"{name} cannot run in the placement group {group.id.hex()}, which was removed")
            return ""
        shape = LeaseShape(resources=held, placement=demand, strategy=wanted, name=name)
        return terms.why_never(shape, waits_for_nodes=self.waits_for_nodes)

    def captures_children(self) -> bool:
        return False  # Ray sends what a task makes to its group

    def submit(self, prepared: PreparedFunction, args: Sequence[Any], kwargs: Mapping[str, Any], /) -> list[Any]:
        return as_references(self._submitted(prepared, args, kwargs), prepared.returns)

    def call(self, prepared: PreparedFunction, args: Sequence[Any], kwargs: Mapping[str, Any], /) -> Value:
        return Value(self._submitted(prepared, args, kwargs))

    def _submitted(self, prepared: PreparedFunction, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if prepared.problem is not None:
            return _failing(prepared, prepared.problem)
        made = submitted(prepared.remote, prepared.name, args, kwargs, prepared.target)
        if self.record_to is not None and self.record_to.plan is not None:
            _tell_submission(self.record_to.plan, prepared.name, made)
        return made

    def cancel(self, reference: Any, *, force: bool, recursive: bool) -> None:
        assert isinstance(reference, Value | Item)
        try:
            ray.cancel(reference.ray, force=force, recursive=recursive)
        except (ValueError, TypeError) as error:
            raise ValueError(
                f"cancel: {error} (force=True is not supported for methods of actors: use kill())"
            ) from error


def _tell_submission(plan: Watched, name: str, made: Any) -> None:
    """Tell who counts which call this is. What Ray gives for it is a reference, several, a generator, or nothing."""
    first = made[0] if isinstance(made, list) else made
    if first is not None and plan.wants(name):
        reference = first.completed() if hasattr(first, "completed") else first
        tell(plan, SUBMITTED, name, reference.binary()[:24])


def _failing(prepared: PreparedFunction, error: DualrayError) -> Any:
    """A call that fails at once: what needs its result fails with it."""
    carrier = Carrier(pickled(error), str(error))
    returns = prepared.returns
    failing = ray.remote(num_cpus=0, max_retries=0)(_raise_as_item if returns.kind else _raise)
    return failing.options(num_returns=returns.kind or returns.number, name=prepared.name).remote(carrier)


def _raise(error: Exception) -> NoReturn:
    raise error


def _raise_as_item(error: Exception) -> Iterator[Any]:
    yield from ()
    raise error
