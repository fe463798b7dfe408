"""Specifications of functions, tasks, arguments and placement. They are immutable, and hold no values.

One `FunctionTemplate` is shared by all calls of one remote function with the same options; a `TaskSpec` adds what one
call has of its own. Arguments travel beside the spec as a payload named by the task's id: the core sees their size,
and the references among them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final, NamedTuple

from dualray.shared.model.ids import ActorID, Address, FunctionID, NodeID, ObjectID, PlacementGroupID, TaskID
from dualray.shared.model.resources import NOTHING, Resources

NODE_ID_LABEL = "ray.io/node-id"
"""A label that each node has, with its NodeID; the name is today's Ray's."""

NODE_GROUP_LABEL = "ray.io/node-group"
"""A label of a node that the autoscaler launched: its group; the name is today's Ray's."""

LAUNCH_LABEL = "dualray.io/launch"
"""Another: the id of its launch."""


class StrategyKind(StrEnum):
    """How a task or actor wants to be placed."""

    DEFAULT = "DEFAULT"
    SPREAD = "SPREAD"
    NODE_AFFINITY = "NODE_AFFINITY"
    NODE_LABELS = "NODE_LABELS"
    """DEFAULT among the nodes whose labels match."""
    PLACEMENT_GROUP = "PLACEMENT_GROUP"


class LabelOperator(StrEnum):
    """How a term looks at one label."""

    IN = "in"
    NOT_IN = "!in"
    EXISTS = "exists"
    DOES_NOT_EXIST = "!exists"


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelTerm:
    """One condition on a node's labels."""

    key: str
    operator: LabelOperator
    values: tuple[str, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether a node with these labels meets it. A label that is absent is in no list."""
        value = labels.get(self.key)
        match self.operator:
            case LabelOperator.IN:
                return value in self.values
            case LabelOperator.NOT_IN:
                return value not in self.values
            case LabelOperator.EXISTS:
                return value is not None
            case LabelOperator.DOES_NOT_EXIST:
                return value is None

    def __str__(self) -> str:
        negation = "!" if self.operator.startswith("!") else ""
        if self.operator in (LabelOperator.EXISTS, LabelOperator.DOES_NOT_EXIST):
            return f"{negation}exists({self.key})"
        if len(self.values) == 1:
            return f"{self.key}={negation}{self.values[0]}"
        return f"{self.key}={negation}in({', '.join(self.values)})"


def labels_match(terms: tuple[LabelTerm, ...], labels: Mapping[str, str]) -> bool:
    """Whether a node with these labels meets all of the terms."""
    return all(term.matches(labels) for term in terms)


ANY_BUNDLE: Final = -1
WHOLE_GROUP: Final = -2
"""As ANY_BUNDLE, once all bundles of the group are reserved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """A scheduling strategy; `node` and `soft` belong to NODE_AFFINITY, `group`, `bundle` and `captures` to
    PLACEMENT_GROUP. `labels` must be met by a node, `preferred` should be."""

    kind: StrategyKind = StrategyKind.DEFAULT
    node: NodeID | None = None
    soft: bool = False
    labels: tuple[LabelTerm, ...] = ()
    preferred: tuple[LabelTerm, ...] = ()
    group: PlacementGroupID | None = None
    bundle: int = ANY_BUNDLE
    captures: bool = False
    """Whether tasks that this one submits go to the group too, when they do not say."""
    fails_if_busy: bool = False
    """NODE_AFFINITY without `soft`: it does not wait until the node has room."""

    @property
    def only_node(self) -> NodeID | None:
        """The node that no other can stand in for, if there is one: named itself, or by the label with its id."""
        if self.kind is StrategyKind.NODE_AFFINITY and not self.soft:
            return self.node
        for term in self.labels:
            if term.key == NODE_ID_LABEL and term.operator is LabelOperator.IN and len(term.values) == 1:
                return NodeID(term.values[0])
        return None


DEFAULT_STRATEGY = Strategy()


class Streaming(StrEnum):
    """Whether a call is of a generator, whose items are results of their own, as many as it makes."""

    NO = ""
    STREAMING = "streaming"
    """The caller takes them as they come."""
    DYNAMIC = "dynamic"
    """The call has one result, which refers to them all."""


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
    streaming: Streaming = Streaming.NO
    max_calls: int = 0
    """Calls of the function after which a worker ends; 0: any number."""
    runtime_env: str = ""
    """What its worker's environment is, as text (dualray/runtime_env.py); "": as it was started."""
    items_ahead_max: int = 0
    """Items that a generator may make ahead of its consumer; 0: any number."""
    concurrency_group: str = ""
    """Of a method: the group of its actor in which it runs; "" is the default one."""
    is_unordered: bool = False
    """Of a method: whether calls start as their arguments become ready, not in the order in which they were made."""
    method: str = ""
    """Of a method whose call has a name of its own, `name`: the method. Else `name` is Class.method."""
    has_one_result: bool = field(init=False, repr=False, compare=False)
    """Whether a call returns one value: neither several, nor none, nor the items of a generator."""
    _hash: int = field(init=False, repr=False, compare=False)
    """It is a key of tables that every call looks into."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "has_one_result", self.num_returns == 1 and self.streaming is Streaming.NO)
        key = (self.function_id, self.name, self.resources, self.placement, self.num_returns, self.max_retries)
        object.__setattr__(self, "_hash", hash(key))

    def __hash__(self) -> int:
        return self._hash


class Ref(NamedTuple):
    """A reference to an object, with the process that owns it: whoever made the reference first."""

    object_id: ObjectID
    owner: Address


_REF: Final = Ref


def new_ref(fields: tuple[ObjectID, Address]) -> Ref:
    """A Ref of these fields, in half the time."""
    return tuple.__new__(_REF, fields)


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
    name: str = ""
    """The name under which `get_actor` finds it; "" for none."""
    namespace: str = ""
    is_detached: bool = False
    """Whether it outlives the process that made it: the head owns it, and no handle keeps it alive."""
    max_pending_calls: int = -1
    """Calls that one caller may have unanswered; -1: any number."""
    max_concurrency: int = 1
    is_async: bool = False
    """Whether its methods run on an event loop, as coroutines; else each runs on a thread of its own."""
    concurrency_groups: tuple[tuple[str, int], ...] = ()
    is_unordered: bool = False
    """Whether a call whose arguments are not ready lets those behind it pass."""
    has_shutdown: bool = False
    """Whether its class has `__ray_shutdown__` or `__del__`, which run when its last handle is gone."""

    @property
    def is_concurrent(self) -> bool:
        """Whether several of its methods may run at a time."""
        return self.is_async or self.max_concurrency != 1 or bool(self.concurrency_groups)


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedActor:
    """What the head's directory of names holds of an actor: what a handle to it is made of. `owner` is that of its
    handle."""

    spec: ActorSpec
    template: FunctionTemplate
    owner: Address


def placed_near(template: FunctionTemplate, node: NodeID) -> FunctionTemplate:
    """The template with a strategy that prefers a node, unless it leaves no choice."""
    strategy = template.strategy
    if strategy.group is not None or strategy.only_node is not None:
        return template
    return replace(template, strategy=replace(strategy, kind=StrategyKind.NODE_AFFINITY, node=node, soft=True))


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
    runtime_env: str = ""
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeInfo:
    """What a node offers in all, and in which life."""

    node: NodeID
    incarnation: int
    total: Resources
    store_bytes: int
    labels: tuple[tuple[str, str], ...] = ()

    def all_labels(self) -> dict[str, str]:
        """The node's labels, with those that each node has."""
        return {NODE_ID_LABEL: self.node, **dict(self.labels)}


class GroupStrategy(StrEnum):
    """How the bundles of a placement group lie on the nodes."""

    PACK = "PACK"
    SPREAD = "SPREAD"
    STRICT_PACK = "STRICT_PACK"
    STRICT_SPREAD = "STRICT_SPREAD"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementGroupSpec:
    """What a placement group is to reserve: all of its bundles, or none. It ends with `owner`, unless it is detached.
    `selectors` has for each bundle what its node's labels must meet; empty: nothing."""

    group_id: PlacementGroupID
    bundles: tuple[Resources, ...]
    strategy: GroupStrategy
    owner: Address
    name: str = ""
    is_detached: bool = False
    selectors: tuple[tuple[LabelTerm, ...], ...] = ()

    def selector(self, index: int) -> tuple[LabelTerm, ...]:
        """What the labels of a bundle's node must meet."""
        return self.selectors[index] if self.selectors else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleReport:
    """What a node says of a bundle: it is reserved, or not, for there was no room, or it was lost since."""

    group_id: PlacementGroupID
    index: int
    attempt: int
    is_reserved: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeState:
    """A row of `dualray.nodes()`."""

    node: NodeID
    incarnation: int
    alive: bool
    total: Resources
    available: Resources
    labels: tuple[tuple[str, str], ...] = ()
