"""The process itself tells its machine what the user's code did: verbs that it called, tasks that ran here."""

from __future__ import annotations

from typing import TypeAlias

from dualray.shared.model.errors import ErrorInfo
from dualray.shared.model.ids import ActorID, Address, ObjectID, PlacementGroupID, TaskID, WaitID
from dualray.shared.model.records import dataclass
from dualray.shared.model.specs import NamedActor, PlacementGroupSpec, Ref, TaskSpec


@dataclass(slots=True, kw_only=True)
class TaskSubmitted:
    """A remote function, an actor's class or its method was called; its arguments are the payload `task_id`."""

    spec: TaskSpec


@dataclass(slots=True, kw_only=True)
class ValuePut:
    """`put` made an object: small ones are payloads of this process, large ones lie sealed in the node's store."""

    object_id: ObjectID
    size_bytes: int
    inline: bool
    nested: tuple[Ref, ...] = ()


@dataclass(slots=True, kw_only=True)
class ValuePromised:
    """This process will put the object's value later; whoever has the reference can wait for it meanwhile."""

    object_id: ObjectID


@dataclass(slots=True, kw_only=True)
class PromiseKept:
    """The value of a `ValuePromised` is there, as in `ValuePut`."""

    object_id: ObjectID
    size_bytes: int
    inline: bool
    nested: tuple[Ref, ...] = ()


@dataclass(slots=True, kw_only=True)
class SpaceWanted:
    """User code is about to write an object of this size into the node's store, and waits under `wait_id`. An
    `is_argument` is put to be the argument of one call. `remake_ns`: the task that made it has run for so long; 0: that
    is not measured, or the object is made by more than this run."""

    wait_id: WaitID
    object_id: ObjectID
    size_bytes: int
    owner: Address
    remakeable: bool
    is_argument: bool = False
    remake_ns: int = 0


@dataclass(slots=True, kw_only=True)
class SpaceWritten:
    """The bytes are in the store: it can be sealed."""

    object_id: ObjectID


@dataclass(slots=True, kw_only=True)
class PutAbandoned:
    """Who put an object was interrupted: before it had room, while it wrote, or before it held the reference."""

    object_id: ObjectID


@dataclass(slots=True, kw_only=True)
class WaitStarted:
    """User code waits until `num_ready` of the objects are ready: with `fetch`, until they are in reach of this
    process. With `read` it will read them (`get`): the wait ends early when one has failed, and stored objects stay
    pinned until as many `ViewReleased`. `timeout_ns` None means without end; 0 means: what is ready now. `task_id` is
    the task that waits."""

    wait_id: WaitID
    refs: tuple[Ref, ...]
    num_ready: int
    fetch: bool
    read: bool = False
    timeout_ns: int | None = None
    task_id: TaskID | None = None


@dataclass(slots=True, kw_only=True)
class WaitAbandoned:
    """Who waited was interrupted: nobody reads what the wait is for."""

    wait_id: WaitID


@dataclass(slots=True, kw_only=True)
class RefsAdded:
    """References appeared in this process: out of an argument, a result or a value."""

    refs: tuple[Ref, ...]


@dataclass(slots=True, kw_only=True)
class RefsDropped:
    """As many references were dropped as an id occurs."""

    object_ids: tuple[ObjectID, ...]


@dataclass(slots=True, kw_only=True)
class ViewReleased:
    """The last view of a stored object's bytes in this process is gone."""

    object_id: ObjectID


@dataclass(slots=True, kw_only=True)
class Result:
    """One return value: `inline` ones are payloads of the process that made them, others lie in its node's store."""

    object_id: ObjectID
    size_bytes: int
    inline: bool
    nested: tuple[Ref, ...] = ()


Outcome: TypeAlias = tuple[TaskID, int, int, int]
"""How a call went that has returned one small value without references: task, attempt, bytes of the value, and
nanoseconds from start to end."""


@dataclass(slots=True, kw_only=True)
class TasksRan:
    """Several tasks that were handed over together have returned, in this order."""

    outcomes: tuple[Outcome, ...]


@dataclass(slots=True, kw_only=True)
class TaskRan:
    """The function returned, or raised (`error`): then the exception is the payload of the first return object."""

    task_id: TaskID
    attempt: int
    results: tuple[Result, ...]
    error: ErrorInfo | None = None


@dataclass(slots=True, kw_only=True)
class ItemMade:
    """A generator that runs here has yielded its next item, or, in place of one, raised (`error`; then the exception is
    the item's payload). `ahead_max`: items that it may make ahead of its consumer; 0: any number."""

    task_id: TaskID
    attempt: int
    owner: Address
    result: Result
    error: ErrorInfo | None = None
    ahead_max: int = 0


@dataclass(slots=True, kw_only=True)
class ItemsEnded:
    """A generator that ran here makes no more items; how it ended is reported next, with `TaskRan`."""

    task_id: TaskID
    attempt: int


@dataclass(slots=True, kw_only=True)
class ItemTaken:
    """The consumer of a generator's items has taken the next one, and will wait for the one behind it."""

    task_id: TaskID


@dataclass(slots=True, kw_only=True)
class ActorKillAsked:
    """`kill(actor)` was called."""

    actor_id: ActorID
    no_restart: bool


@dataclass(slots=True, kw_only=True)
class ActorExitAsked:
    """A method has called `exit_actor()`: it has no result, and nothing of this actor begins any more."""

    task_id: TaskID


@dataclass(slots=True, kw_only=True)
class ActorNameAsked:
    """The user's code looks for a named actor or, with a `claim`, makes one of that name. `namespace` "" is that of the
    `job`."""

    wait_id: WaitID
    name: str
    namespace: str
    job: int
    claim: NamedActor | None = None
    get_if_exists: bool = False


@dataclass(slots=True, kw_only=True)
class CancelAsked:
    """`cancel(ref)` was called: the task that makes the object is to end, and, when `recursive`, those that it has
    submitted. `force`: with its worker, if it runs."""

    ref: Ref
    force: bool
    recursive: bool


@dataclass(slots=True, kw_only=True)
class PlacementGroupAsked:
    """`placement_group(...)` was called, and waits under `wait_id` until the head has noted it."""

    wait_id: WaitID
    spec: PlacementGroupSpec


@dataclass(slots=True, kw_only=True)
class PlacementGroupRemovalAsked:
    """`remove_placement_group(pg)` was called."""

    group_id: PlacementGroupID


@dataclass(slots=True, kw_only=True)
class RowsAsked:
    """The rows that a process has of a table (state_rows.py) are asked for, and waited for under `wait_id`, for
    `timeout_ns` at most."""

    wait_id: WaitID
    table: str
    to: Address
    timeout_ns: int


@dataclass(slots=True, kw_only=True)
class ClusterStateAsked:
    """`nodes()`, `cluster_resources()` or `available_resources()` was called and waits under `wait_id`."""

    wait_id: WaitID
