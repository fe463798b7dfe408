"""What is asked for: functions, tasks, arguments, placement. Immutable, and free of values.

One `FunctionTemplate` is shared by all calls of one remote function with the same options; a `TaskSpec` adds what one
call has of its own. Arguments travel beside the spec as a payload named by the task's id: the core sees their size,
and the references among them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from dualray.shared.model.ids import ActorID, Address, FunctionID, NodeID, ObjectID, TaskID
from dualray.shared.model.resources import NOTHING, Resources


class StrategyKind(StrEnum):
    """How a task or actor wants to be placed."""

    DEFAULT = "DEFAULT"
    SPREAD = "SPREAD"
    NODE_AFFINITY = "NODE_AFFINITY"


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """A scheduling strategy; `node` and `soft` belong to NODE_AFFINITY."""

    kind: StrategyKind = StrategyKind.DEFAULT
    node: NodeID | None = None
    soft: bool = False


DEFAULT_STRATEGY = Strategy()


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionTemplate:
    """A remote function, or an actor's method, with the options of its calls.

    `placement` is what a node must be able to offer, `resources` what is held while it runs: they differ for an actor
    that says nothing of its resources (1 CPU to place it, none to keep it, as in today's Ray).
    """

    function_id: FunctionID
    name: str
    resources: Resources
    placement: Resources
    num_returns: int = 1
    max_retries: int = 3
    retry_exceptions: bool = False
    strategy: Strategy = DEFAULT_STRATEGY
    _hash: int = field(init=False, repr=False, compare=False)
    """It is a key of tables that every call looks into."""

    def __post_init__(self) -> None:
        key = (self.function_id, self.name, self.resources, self.placement, self.num_returns, self.max_retries)
        object.__setattr__(self, "_hash", hash(key))

    def __hash__(self) -> int:
        return self._hash


class Ref(NamedTuple):
    """A reference to an object, with the process that owns it: whoever made the reference first."""

    object_id: ObjectID
    owner: Address


@dataclass(slots=True, kw_only=True)
class TaskSpec:
    """One call. `owner` is the process that submitted it; it owns the results too."""

    task_id: TaskID
    template: FunctionTemplate
    owner: Address
    parent: TaskID
    args_bytes: int = 0
    """Of the pickled arguments; 0 when there are no arguments, and no payload."""
    deps: tuple[Ref, ...] = ()
    """References that are arguments themselves: replaced by their values before the function runs."""
    nested: tuple[Ref, ...] = ()
    """References inside the arguments: handed over as they are, and kept alive while the task is not finished."""
    actor_id: ActorID | None = None
    """The actor whose method this is; None for a plain task."""
    actor_handle: Ref | None = None
    """The reference that keeps that actor alive while the call is not finished."""
    creates: ActorSpec | None = None
    """Set on the task that constructs an actor."""

    @property
    def stands_alone(self) -> bool:
        """Whether it needs nothing but its payload: such calls travel, run and end several at a time."""
        return not (self.deps or self.nested or self.creates)

    @property
    def payload_keys(self) -> tuple[TaskID, ...]:
        """The payload with the pickled arguments; a call without arguments has none."""
        return (self.task_id,) if self.args_bytes else ()


def new_spec(
    task_id: TaskID,
    template: FunctionTemplate,
    owner: Address,
    parent: TaskID,
    args_bytes: int,
    deps: tuple[Ref, ...],
    nested: tuple[Ref, ...],
    actor_id: ActorID | None,
    actor_handle: Ref | None,
) -> TaskSpec:
    """The spec of a call. One is made for every task, twice: this takes a third of the time of the constructor."""
    spec = _new(TaskSpec)
    spec.task_id = task_id
    spec.template = template
    spec.owner = owner
    spec.parent = parent
    spec.args_bytes = args_bytes
    spec.deps = deps
    spec.nested = nested
    spec.actor_id = actor_id
    spec.actor_handle = actor_handle
    spec.creates = None
    return spec


_new = object.__new__


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorSpec:
    """What an actor promises beyond the task that constructs it."""

    actor_id: ActorID
    max_restarts: int = 0
    max_task_retries: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectHint:
    """An argument that lies in the stores, and how many bytes it has: what placement by locality looks at."""

    object_id: ObjectID
    owner: Address
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseShape:
    """What a lease must offer. Tasks of the same shape may share leases."""

    resources: Resources
    placement: Resources = NOTHING
    strategy: Strategy = DEFAULT_STRATEGY
    deps: tuple[ObjectHint, ...] = ()
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeInfo:
    """What a node offers in all, and in which life."""

    node: NodeID
    incarnation: int
    total: Resources
    store_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeState:
    """A row of `dualray.nodes()`."""

    node: NodeID
    incarnation: int
    alive: bool
    total: Resources
    available: Resources
