"""The options of remote functions, actor classes and methods: their defaults, and the checks of their values."""

from __future__ import annotations

import difflib
import functools
import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final, NamedTuple, TypeVar

from dualray import runtime_env
from dualray.core_terms import strategy_of
from dualray.exceptions import rays_words
from dualray.scheduling_strategies import PlacementGroupSchedulingStrategy
from dualray.shared.labels import parse_selector
from dualray.shared.model.accelerators import TYPE
from dualray.shared.model.demands import check_accelerators, parse_resources
from dualray.shared.scenario.distributions import parse_distribution
from dualray.shared.units import parse_size_bytes

STREAMING, DYNAMIC = "streaming", "dynamic"
"""Values of `num_returns` for generators whose items are objects of their own."""

_NUMBER_MAX: Final = 2**63 - 1
"""The largest number that a message between processes can hold."""
_RETURNS_MAX: Final = 1_000_000
"""Results of one call: each is an object, with a reference that the caller gets at once."""

Duration = float | str | Callable[..., float | str] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOptions:
    """Options of a remote function, with Ray's defaults.

    Attributes:
        num_cpus: number of CPUs that the task holds, in steps of 0.0001. Default 1.
        num_gpus: number of GPUs that the task holds. A number above 1 must be whole. Default 0.
        memory: memory that the task reserves on its node, in bytes or as a text such as "2GiB". `memory` affects
            placement, but does not limit how much memory the task uses; see docs/api/tasks.md. Default 0.
        resources: amounts of custom resources, and of accelerators such as TPU, by name. See docs/real_mode.md.
        num_returns: number of objects that the call returns. A generator also accepts "streaming" (an
            ObjectRefGenerator) and "dynamic"; see docs/api/tasks.md. Default: "streaming" for generators, and 1 for
            other functions.
        max_retries: how many times dualray runs the task again after its worker or node has died. -1 means no limit.
            Default 3.
        retry_exceptions: whether dualray also retries a task that raises an exception: True for any exception, or a
            list of exception classes. Default False.
        max_calls: after how many calls of the function a worker process ends. Default 0: no limit.
        runtime_env: environment variables and import paths: {"env_vars": {...}, "working_dir": ..., "py_modules":
            [...]}; see docs/api/tasks.md. Default: the caller's runtime environment.
        scheduling_strategy: "DEFAULT", "SPREAD", or a strategy of dualray.util.scheduling_strategies. Default:
            "DEFAULT", unless the caller runs in a placement group that captures its child tasks.
        label_selector: conditions that the labels of the task's node must meet: {"zone": "a"}; see
            docs/api/placement.md.
        fallback_strategy: selectors to try in order if no node meets `label_selector`: [{"label_selector": {...}},
            ...].
        name: the task's name in messages and traces. Default: the function's name.
        duration: sim mode only: the virtual time that a call takes, or that each item of a generator takes. Give
            seconds, a time or a distribution as text ("250ms", "lognormal(2s, 0.5)"), or a function of the arguments
            that returns one of these. With "measured", for tasks and plain methods, the virtual time is the real time
            of the code, so you cannot repeat the run exactly.
        execute: sim mode only: with False, the simulation schedules the call, sends its arguments and takes its time,
            but does not run the function. Real mode always runs the function. Default True.
        returns, returns_size: with `execute=False`: the value of each result, and its size in stores and on the network
            (an int, or a text such as "2GiB"). Default: None, and the size of the value.
        sim_unsafe: sim mode only: "allow" or "refuse" real sockets, subprocesses and other calls that a simulation does
            not control. Default: the value of `init(sim_unsafe=)`.
        _generator_backpressure_num_objects: how many items a generator produces ahead of its consumer before it waits.
            While the generator waits, other tasks can use its CPU. Default: no limit.
    """

    num_cpus: float | None = None
    num_gpus: float | None = None
    memory: float | str | None = None
    resources: Mapping[str, float] | None = None
    num_returns: int | str | None = None
    max_retries: int = 3
    retry_exceptions: bool | Sequence[type[BaseException]] = False
    max_calls: int = 0
    runtime_env: Mapping[str, Any] | None = None
    scheduling_strategy: Any = None
    label_selector: Mapping[str, str] | None = None
    name: str | None = None
    duration: Duration = None
    execute: bool = True
    returns: Any = None
    returns_size: int | str | None = None
    sim_unsafe: str | None = None
    _generator_backpressure_num_objects: int | None = None
    fallback_strategy: Sequence[Mapping[str, Any]] | None = None

    def __getstate__(self) -> list[Any]:
        return _state_of(self)

    def __setstate__(self, state: list[Any]) -> None:
        _set_state(self, state)


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorOptions:
    """Options of an actor class, with Ray's defaults.

    Attributes:
        num_cpus, num_gpus, resources: resources that the actor holds until it ends. By default, an actor needs 1 CPU to
            be placed, and holds none afterwards.
        memory: memory that the actor reserves until it ends; see docs/api/tasks.md. With `memory` alone, the actor
            still needs 1 CPU to be placed, as in Ray.
        max_restarts: how many times dualray restarts the actor after its worker or node has died. -1 means no limit.
            Default 0.
        max_task_retries: how many times dualray repeats a call that was lost with the actor. -1 means no limit. Default
            0.
        name: the name by which `get_actor` finds the actor, unique within a namespace. Default: no name.
        namespace: the namespace of the actor's name. Default: the program's namespace (`init(namespace=)`).
        get_if_exists: whether `remote` returns a handle to an existing actor with the same `name`, instead of raising
            an error.
        lifetime: a "detached" actor outlives its program, and ends with `kill` or when the cluster ends. By default,
            and with "non_detached", an actor ends when its last handle is gone or the process that created it ends.
        max_concurrency: how many methods may run at the same time, on threads. Default 1. In a class with an `async
            def` method, methods run as coroutines on one event loop, and the default is 1000.
        concurrency_groups: groups of methods, each with its own limit, such as {"io": 2}.
            `@method(concurrency_group="io")` puts a method into a group. `max_concurrency` limits methods without a
            group.
        allow_out_of_order_execution: whether later calls start before a call whose arguments are not ready. If several
            methods may run at the same time, the default is True, and dualray refuses False. Otherwise the default is
            False.
        max_pending_calls: how many unfinished calls of the actor one process may have. One more call raises
            PendingCallsLimitExceeded. Default -1: no limit.
        scheduling_strategy, label_selector, fallback_strategy, runtime_env, duration, sim_unsafe: as for tasks.
            `duration` is the duration of the constructor.
    """

    num_cpus: float | None = None
    num_gpus: float | None = None
    memory: float | str | None = None
    resources: Mapping[str, float] | None = None
    max_restarts: int = 0
    max_task_retries: int = 0
    max_pending_calls: int = -1
    max_concurrency: int | None = None
    concurrency_groups: Mapping[str, int] | None = None
    allow_out_of_order_execution: bool | None = None
    scheduling_strategy: Any = None
    label_selector: Mapping[str, str] | None = None
    name: str | None = None
    namespace: str | None = None
    get_if_exists: bool = False
    lifetime: str | None = None
    runtime_env: Mapping[str, Any] | None = None
    duration: Duration = None
    sim_unsafe: str | None = None
    fallback_strategy: Sequence[Mapping[str, Any]] | None = None

    def __getstate__(self) -> list[Any]:
        return _state_of(self)

    def __setstate__(self, state: list[Any]) -> None:
        _set_state(self, state)


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodOptions:
    """Options of an actor's method.

    Attributes:
        num_returns, _generator_backpressure_num_objects: as for tasks.
        max_task_retries: how many times dualray repeats a call that was lost with the actor, or that raised an
            exception of `retry_exceptions`. -1 means no limit. Default: the value of the actor's class.
        retry_exceptions: as for tasks. Default False.
        concurrency_group: name of the method's concurrency group. Default: none.
        name: the call's name in messages and traces. Default: the method's name.
        enable_task_events: no effect. dualray accepts this option because Ray has it.
        duration: as for tasks. Only `@method` can set the duration of a method. Sim mode only.
    """

    num_returns: int | str | None = None
    max_task_retries: int | None = None
    retry_exceptions: bool | Sequence[type[BaseException]] = False
    enable_task_events: bool = True
    concurrency_group: str | None = None
    name: str | None = None
    duration: Duration = None
    _generator_backpressure_num_objects: int | None = None


def _state_of(options: TaskOptions | ActorOptions) -> list[Any]:
    """What is pickled: the last field where it is said alone, for every byte takes its time."""
    state = [getattr(options, field.name) for field in fields(options)]
    return state[:-1] if state[-1] is None else state


def _set_state(options: TaskOptions | ActorOptions, state: list[Any]) -> None:
    for number, field in enumerate(fields(options)):
        object.__setattr__(options, field.name, state[number] if number < len(state) else field.default)


O = TypeVar("O", TaskOptions, ActorOptions, MethodOptions)  # noqa: E741  # a type variable, not a number


class UnknownMethodOptionError(ValueError, TypeError):
    """A method of an actor has no such option. In Ray the error is a TypeError, and of other options a ValueError."""


def with_changes(options: O, changes: Mapping[str, Any], what: str) -> O:
    """The options with some changed, checked.

    Raises:
        ValueError: an unknown option (with the nearest known one), or a value that it cannot have.
        TypeError: a value of a wrong type.
    """
    known = [field.name for field in fields(options)]
    unknown: type[ValueError] = UnknownMethodOptionError
    if not isinstance(options, MethodOptions):
        unknown, changes = ValueError, _in_todays_names(changes, what, options.scheduling_strategy)
    for name in changes:
        if name not in known:
            raise unknown(unknown_name("option", name, known, what))
    environment = changes.get("runtime_env")
    if environment in (None, {}) and isinstance(options, TaskOptions):  # as in Ray, where an actor's is replaced
        changes = {name: value for name, value in changes.items() if name != "runtime_env"}
    changed = replace(options, **changes)
    _check(changed, what)
    if changes.get("runtime_env") is not None:  # paths mean what they mean here, wherever the options go
        given: dict[str, Any] = {"runtime_env": runtime_env.parse(f"{what}: runtime_env", environment).as_dict()}
        changed = replace(changed, **given)
    return changed


def said(options: TaskOptions | ActorOptions | MethodOptions) -> dict[str, Any]:
    """The options that differ from their defaults, by name."""
    values = {field.name: (getattr(options, field.name), field.default) for field in fields(options)}
    return {name: value for name, (value, default) in values.items() if value is not default and value != default}


_WITHOUT_EFFECT = ("enable_task_events", "_labels", "object_store_memory")
"""Options of Ray that say how its own processes work."""


class _GroupOfOldOption(PlacementGroupSchedulingStrategy):
    """The strategy that stands for `placement_group=`, which another `placement_group=` may replace."""

    __slots__ = ()


def _in_todays_names(changes: Mapping[str, Any], what: str, before: Any) -> dict[str, Any]:
    """The options with those of earlier Ray releases, and of Ray's own processes, in the words of today.

    `before` is the scheduling strategy that the options had.

    Raises:
        ValueError: `placement_group=` beside `scheduling_strategy=`, or a bundle's number without a group.
    """
    if changes.get("object_store_memory") is not None:
        warnings.warn(
            f"Setting 'object_store_memory' for actors is deprecated, as in Ray: it reserves nothing ({what})",
            DeprecationWarning,
            stacklevel=5,
        )
    found = {name: value for name, value in changes.items() if name not in _WITHOUT_EFFECT}
    accelerator = found.pop("accelerator_type", None)
    if accelerator is not None:  # as in Ray: a node says resources={"accelerator_type:A100": 1}
        if not isinstance(accelerator, str):
            raise TypeError(f"{what}: accelerator_type={accelerator!r} must be a str, such as 'A100'")
        found["resources"] = {**(found.get("resources") or {}), f"{TYPE}{accelerator}": 0.001}
    says_group = "placement_group" in found
    group = found.pop("placement_group", None)
    index = found.pop("placement_group_bundle_index", -1)
    captures = found.pop("placement_group_capture_child_tasks", None)
    chosen = found.get("scheduling_strategy", None if isinstance(before, _GroupOfOldOption) else before)
    if group is None and says_group and chosen is None:
        found["scheduling_strategy"] = _GroupOfOldOption(None)  # out of the group that captures children
    if group is None and index not in (-1, None):
        raise ValueError(
            f"{what}: placement_group_bundle_index={index!r} was given without placement_group=. If no placement group "
            "is given, the bundle index must be -1. Pass the bundle's placement group as placement_group="
        )
    if group is None or group == "default":
        return found
    words = rays_words()
    if words is not None:
        words.warn_of_old_group_option()
    if chosen is not None:
        raise ValueError(
            f"{what}: placement_group= and scheduling_strategy= both choose the node; leave one of the two out"
        )
    found["scheduling_strategy"] = _GroupOfOldOption(group, index, captures)
    return found


def unknown_name(kind: str, name: str, known: list[str], what: str) -> str:
    """The sentence for a name that nobody knows, with the nearest one that is known."""
    nearest = difflib.get_close_matches(name, known, n=1)
    hint = f" Did you mean {nearest[0]!r}?" if nearest else ""
    return f"{what} has no {kind} {name!r}.{hint} Known: {', '.join(known)}."


def _check(options: TaskOptions | ActorOptions | MethodOptions, what: str) -> None:
    if not isinstance(options, ActorOptions):
        _check_returns(options, what)
    for name, least in (("max_calls", 0), ("max_retries", -1), ("max_restarts", -1), ("max_task_retries", -1)):
        value = getattr(options, name, least)
        if value is None and isinstance(options, MethodOptions):
            continue  # the class says
        if isinstance(value, bool) or not isinstance(value, int):
            rays_message = _type_in_rays_words(name, value)
            raise TypeError(f"{what}: {name}={value!r} must be an int. (Ray's message: {rays_message})")
        if value < least:
            allowed = "None, 0, -1 or a positive integer, where -1 represents infinity" if least else _RAYS_COUNTS
            raise ValueError(
                f"{what}: {name}={value!r} must be at least {least}. (Ray's message: The keyword '{name}' only accepts "
                f"{allowed}.)"
            )
        _check_at_most({name: value}, what)
    if options.name is not None and not isinstance(options.name, str):
        raise TypeError(f"{what}: name={options.name!r} must be a str")
    if not isinstance(options, ActorOptions):
        _check_retried(options.retry_exceptions, what)
    if isinstance(options, TaskOptions):
        _check_modelled(options, what)
    duration = options.duration
    if isinstance(duration, str) and duration != "measured":
        parse_distribution(duration, f"{what}: duration")
    elif duration is not None and not callable(duration) and duration != "measured":
        if isinstance(duration, bool) or not isinstance(duration, int | float):
            raise TypeError(
                f"{what}: duration={duration!r} must be a number of seconds, a string such as '2s', or a function that "
                "gets the arguments of the call"
            )
        if not duration >= 0:
            raise ValueError(f"{what}: duration={duration!r} must not be negative")
    if isinstance(options, MethodOptions):
        group = options.concurrency_group
        if group is not None and not isinstance(group, str):
            raise TypeError(f"{what}: concurrency_group={group!r} must be a str")
        return
    if options.sim_unsafe not in (None, "allow", "refuse"):
        raise ValueError(f"{what}: sim_unsafe={options.sim_unsafe!r} must be 'allow' or 'refuse'")
    if isinstance(options, ActorOptions):
        _check_actor(options, what)
    try:
        parse_resources(
            num_cpus=options.num_cpus,
            num_gpus=options.num_gpus,
            memory=options.memory,
            resources=options.resources,
            refuses_parts=False,  # the call does, as in Ray
        )
        check_accelerators(options.resources)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{what}: {error}") from None
    strategy_of(options.scheduling_strategy, options.label_selector, what)
    _check_fallbacks(options.fallback_strategy, what)


def _check_fallbacks(fallbacks: Any, what: str) -> None:
    if fallbacks is None:
        return
    if not isinstance(fallbacks, list | tuple):
        raise TypeError(
            f"{what}: fallback_strategy={fallbacks!r} must be a list, such as [{{'label_selector': {{'zone': 'a'}}}}]"
        )
    for number, fallback in enumerate(fallbacks):
        if not isinstance(fallback, Mapping) or set(fallback) != {"label_selector"}:
            raise ValueError(
                f"{what}: fallback_strategy[{number}]={fallback!r} must be a dict whose only key is label_selector"
            )
        parse_selector(f"{what}: fallback_strategy[{number}]", fallback["label_selector"])


def _check_retried(retried: Any, what: str) -> None:
    if isinstance(retried, bool):
        return
    if not isinstance(retried, list | tuple):
        raise TypeError(f"{what}: retry_exceptions={retried!r} must be True, False or a list of exception types")
    for each in retried:
        if not (isinstance(each, type) and issubclass(each, BaseException)):
            raise TypeError(f"{what}: retry_exceptions contains {each!r}, which is not an exception class")


def _check_modelled(options: TaskOptions, what: str) -> None:
    if not isinstance(options.execute, bool):
        raise TypeError(f"{what}: execute={options.execute!r} must be True or False")
    if options.execute:
        for name in ("returns", "returns_size"):
            if getattr(options, name) is not None:
                raise ValueError(
                    f"{what}: {name}= works only for calls that the simulation does not execute; add execute=False"
                )
        return
    if isinstance(options.num_returns, str):
        raise ValueError(f"{what}: num_returns={options.num_returns!r} must be a number, because execute=False is set")
    returned_bytes(options, what)


def returned_bytes(options: TaskOptions, what: str) -> int:
    """As how many bytes each result of a call that is not executed counts, at least.

    Raises:
        ValueError, TypeError: `returns_size` is no size.
    """
    size = options.returns_size
    if size is None:
        return 0
    if isinstance(size, str):
        return parse_size_bytes(size, f"{what}: returns_size")
    if isinstance(size, bool) or not isinstance(size, int):
        raise TypeError(f"{what}: returns_size={size!r} must be a number of bytes, or a string such as '2GiB'")
    if size < 0:
        raise ValueError(f"{what}: returns_size={size!r} must not be negative")
    return size


_RAYS_COUNTS = "None, 0 or a positive integer"


def _type_in_rays_words(name: str, value: Any, *types: type) -> str:
    """Ray's sentence for a value of the wrong type, for programs that look for it."""
    return f"The type of keyword '{name}' must be {(*(types or (int,)), type(None))}, but received type {type(value)}"


def _check_returns(options: TaskOptions | MethodOptions, what: str) -> None:
    number = options.num_returns
    if isinstance(number, str):
        if number not in (STREAMING, DYNAMIC):
            raise ValueError(f"{what}: num_returns={number!r} must be a number, 'streaming' or 'dynamic'")
    elif number is not None and (isinstance(number, bool) or not isinstance(number, int)):
        rays_message = _type_in_rays_words("num_returns", number, int, str)
        raise TypeError(
            f"{what}: num_returns={number!r} must be an int, 'streaming' or 'dynamic'. (Ray's message: {rays_message})"
        )
    elif number is not None and number < 0:
        raise ValueError(
            f"{what}: num_returns={number!r} must be at least 0. (Ray's message: The keyword 'num_returns' only "
            f"accepts None, a non-negative integer, 'streaming' (for generators), or 'dynamic'.)"
        )
    elif number is not None:
        _check_at_most({"num_returns": number}, what, most=_RETURNS_MAX)
    ahead = options._generator_backpressure_num_objects
    if ahead is None:
        return
    if isinstance(ahead, bool) or not isinstance(ahead, int):
        raise TypeError(f"{what}: _generator_backpressure_num_objects={ahead!r} must be an int")
    if ahead < 1 and ahead != -1:
        raise ValueError(
            f"{what}: _generator_backpressure_num_objects={ahead!r} is not allowed. Give a number of at least 1, or -1 "
            "for no limit"
        )
    _check_at_most({"_generator_backpressure_num_objects": ahead}, what)


def _check_at_most(numbers: Mapping[str, int], what: str, *, most: int = _NUMBER_MAX) -> None:
    for name, number in numbers.items():
        if number > most:
            raise ValueError(f"{what}: {name}={number!r} must be at most {most:,}")


class Returns(NamedTuple):
    """What a call returns.

    number: how many objects, if it is of no generator.
    kind: "streaming" or "dynamic" of a generator whose items are objects of their own; else "".
    ahead_max: how many items it may make ahead of its consumer; 0: any number.
    """

    number: int
    kind: str = ""
    ahead_max: int = 0

    @property
    def has_one_result(self) -> bool:
        """Whether a call returns one reference to its result."""
        return self.number == 1 and not self.kind


def returns_of(options: TaskOptions | MethodOptions, function: Any, what: str) -> Returns:
    """What a call of `function` returns.

    Raises:
        ValueError: an option of generators, and it makes a number of objects.
    """
    number = options.num_returns
    if number is None:
        number = STREAMING if is_generator(function) else 1
    elif isinstance(number, str) and function is not None and _is_refused(number, function):
        raise ValueError(
            f"{what}: num_returns={number!r} can only be used with generator functions (functions that use 'yield')"
        )
    ahead = options._generator_backpressure_num_objects or 0
    if isinstance(number, str):
        if ahead > 0 and number == DYNAMIC:
            raise ValueError(
                f"{what}: _generator_backpressure_num_objects cannot be used with num_returns='dynamic', because a "
                f"'dynamic' generator returns all items at once"
            )
        return Returns(1, number, max(ahead, 0))
    if ahead > 0:
        raise ValueError(
            f"{what}: _generator_backpressure_num_objects works only for generators, but num_returns is {number}"
        )
    return Returns(number)


def _is_refused(kind: str, function: Any) -> bool:
    """Whether the function yields nothing. One with num_returns="streaming" may return an iterator, but not in Ray."""
    return (kind == DYNAMIC or rays_words() is not None) and _is_no_generator(function)


def _is_no_generator(function: Any) -> bool:
    """Whether it is a plain function that yields nothing; a callable of another kind may return a generator."""
    return inspect.isfunction(function) and not is_generator(function) and not hasattr(function, "__wrapped__")


def is_generator(function: Any) -> bool:
    """Whether calling it gives a generator, or an asynchronous one."""
    while isinstance(function, functools.partial):
        function = function.func
    return inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)


def _check_actor(options: ActorOptions, what: str) -> None:
    for name, kind in (("name", "an Actor name"), ("namespace", "a namespace")):
        value = getattr(options, name)
        if value is not None and not isinstance(value, str):
            raise TypeError(f"{what}: {name}={value!r} must be a str")
        if value == "":
            raise ValueError(f"{what}: {name}={value!r} is not allowed, because {kind} cannot be an empty string")
    if options.lifetime not in (None, "detached", "non_detached"):
        raise ValueError(f"{what}: lifetime={options.lifetime!r} must be 'detached', 'non_detached' or None")
    if not isinstance(options.get_if_exists, bool):
        raise TypeError(f"{what}: get_if_exists={options.get_if_exists!r} must be True or False")
    groups: Any = options.concurrency_groups
    if groups is not None and not isinstance(groups, Mapping):
        raise TypeError(
            f"{what}: concurrency_groups={groups!r} must be a dict from names to limits, such as {{'io': 2}}"
        )
    limits = {f"concurrency_groups[{name!r}]": value for name, value in (groups or {}).items()}
    for name in groups or {}:
        if not isinstance(name, str) or not name:
            raise TypeError(
                f"{what}: concurrency_groups has the name {name!r}, but a name must be a str that is not empty"
            )
    concurrency: Any = options.max_concurrency
    if concurrency is not None and (isinstance(concurrency, bool) or concurrency != 0):  # 0: the default
        limits["max_concurrency"] = concurrency
    for name, value in limits.items():
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"{what}: {name}={value!r} must be an int")
        if value < 1:
            raise ValueError(f"{what}: {name}={value!r} must be at least 1")
    _check_at_most(limits, what)
    limit = options.max_pending_calls
    if isinstance(limit, bool) or not isinstance(limit, int):
        raise TypeError(f"{what}: max_pending_calls={limit!r} must be an int")
    if limit < -1:
        raise ValueError(f"{what}: max_pending_calls={limit!r} must be at least 1, or 0 or -1 for no limit")
    _check_at_most({"max_pending_calls": limit}, what)
