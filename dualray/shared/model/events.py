"""Events: what happened. Past tense, and the only way into the core.

Three sources: the process itself (a user's verb, a task that ran), the runner (a timer, an exit), and other machines,
whose messages are events here (`Send` in commands.py). Each outcome of an order carries task, attempt and node
incarnation where late news must be told from fresh. Values never appear: ids, sizes, places, statuses, error kinds.

Events are slotted and not frozen, for speed; nobody changes one after making it.
"""

from __future__ import annotations

from dataclasses import field
from typing import TypeAlias

from dualray.shared.model.errors import ErrorInfo
from dualray.shared.model.ids import (
    ActorID,
    Address,
    LeaseID,
    NodeID,
    ObjectID,
    PlacementGroupID,
    RequestID,
    TaskID,
    WaitID,
)
from dualray.shared.model.records import dataclass
from dualray.shared.model.resources import Resources
from dualray.shared.model.specs import (
    BundleReport,
    FunctionTemplate,
    LeaseShape,
    NamedActor,
    NodeInfo,
    NodeState,
    PlacementGroupSpec,
    Ref,
    TaskSpec,
    new_spec,
)
from dualray.shared.model.states import ActorState, ValueState

# ---- Of the process itself: what the user's code did -------------------------------------------------------------


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
    `is_argument` is put to be the argument of one call."""

    wait_id: WaitID
    object_id: ObjectID
    size_bytes: int
    owner: Address
    remakeable: bool
    is_argument: bool = False


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


# ---- Of the runner -----------------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class Started:
    """The machine begins; its runner is ready to carry out commands. `namespace`: of a driver, where the names of its
    actors stand; "" for one of its own."""

    namespace: str = ""


@dataclass(slots=True, kw_only=True)
class TimerFired:
    """A timer armed by this machine is due."""

    timer: str


@dataclass(slots=True, kw_only=True)
class DrainAsked:
    """To a node manager, from whoever runs it: this node is to end, in good order."""


@dataclass(slots=True, kw_only=True)
class WorkerReady:
    """A worker process is up and reachable."""

    worker: Address


@dataclass(slots=True, kw_only=True)
class WorkerExited:
    """A worker process is gone, and what it had sent to its node manager has arrived; `reason` says how: signal, exit
    code, last lines of its stderr."""

    worker: Address
    reason: str


@dataclass(slots=True, kw_only=True)
class NodeSilent:
    """Nothing has been heard of the node for the heartbeat timeout."""

    node: NodeID
    incarnation: int


@dataclass(slots=True, kw_only=True)
class NodeHeard:
    """A node that was silent was heard again."""

    node: NodeID
    incarnation: int


@dataclass(slots=True, kw_only=True)
class PeerLost:
    """The connection to a process closed: of its own machine, or to the head, it is gone; another machine's may be out
    of reach instead, and what was on its way to and from it is lost."""

    address: Address


@dataclass(slots=True, kw_only=True)
class SpaceReserved:
    """There is memory for the object of a `ReserveSpace`: it can be written. `place` is where, as the runner counts."""

    object_id: ObjectID
    place: int = 0


@dataclass(slots=True, kw_only=True)
class ReserveFailed:
    """There is no memory for the object of a `ReserveSpace`, though it was admitted; `reason` says why."""

    object_id: ObjectID
    reason: str


@dataclass(slots=True, kw_only=True)
class ObjectSpilled:
    """The bytes of a `SpillObject` are on disk."""

    object_id: ObjectID


@dataclass(slots=True, kw_only=True)
class SpillFailed:
    """The bytes of a `SpillObject` are not on disk, and nothing of them is; `reason` says why."""

    object_id: ObjectID
    reason: str


@dataclass(slots=True, kw_only=True)
class ObjectRestored:
    """The bytes of a `RestoreObject` are in memory."""

    object_id: ObjectID


@dataclass(slots=True, kw_only=True)
class RestoreFailed:
    """The bytes of a `RestoreObject` cannot be read from disk: this copy is lost."""

    object_id: ObjectID
    reason: str


@dataclass(slots=True, kw_only=True)
class GpuLost:
    """A GPU of this node has fallen off the bus, and will not come back in this life of the node."""

    gpu: int


@dataclass(slots=True, kw_only=True)
class MemoryExceeded:
    """Runner to node: the memory of this machine that is used is more than the limit. `workers` are those of this node
    with what each uses by itself, the object store left out."""

    used_bytes: int
    limit_bytes: int
    workers: tuple[tuple[Address, int], ...]


@dataclass(slots=True, kw_only=True)
class ObjectSent:
    """All bytes of a `SendObject` have been taken, or, not `complete`, it failed: the object may be evicted again."""

    object_id: ObjectID
    to: NodeID
    complete: bool = True


@dataclass(slots=True, kw_only=True)
class ObjectReceived:
    """All bytes of an object have arrived from `source`."""

    object_id: ObjectID
    source: NodeID


@dataclass(slots=True, kw_only=True)
class ReceiveFailed:
    """The source of an object stopped sending before the end; its first `received_bytes` are here."""

    object_id: ObjectID
    source: NodeID
    received_bytes: int = 0


# ---- Leases: owner <-> node manager <-> head ---------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class LeaseRequested:
    """An owner wants `count` leases of a shape. `placed` is set by the head: queue it here, do not spill it back; it
    holds for that life of the node, its `incarnation`. `via` is the node that spilled it back."""

    request_id: RequestID
    owner: Address
    shape: LeaseShape
    count: int
    placed: bool = False
    incarnation: int = 0
    via: NodeID | None = None


@dataclass(slots=True, kw_only=True)
class LeaseGranted:
    """One of the leases asked for."""

    request_id: RequestID
    lease_id: LeaseID
    worker: Address
    node: NodeID
    incarnation: int
    gpu_ids: tuple[int, ...] = ()


@dataclass(slots=True, kw_only=True)
class LeasesGranted:
    """Several leases that one owner has asked for."""

    leases: tuple[LeaseGranted, ...]


@dataclass(slots=True, kw_only=True)
class LeaseRefused:
    """`count` of the leases asked for will not come, for a reason that does not pass."""

    request_id: RequestID
    count: int
    error: ErrorInfo


@dataclass(slots=True, kw_only=True)
class LeaseReturned:
    """The owner needs the lease no more. `worker_usable` is false when the worker holds an actor's remains."""

    lease_id: LeaseID
    worker_usable: bool = True


@dataclass(slots=True, kw_only=True)
class LeasesReturned:
    """The owner needs these leases of one node no more; the workers are usable."""

    lease_ids: tuple[LeaseID, ...]


@dataclass(slots=True, kw_only=True)
class LeaseWanted:
    """Node to owner: give the lease back when what you have pushed to its worker is done, and push no more."""

    lease_id: LeaseID


@dataclass(slots=True, kw_only=True)
class LeasedWorkerDied:
    """The worker of a lease died with whatever it ran."""

    lease_id: LeaseID
    worker: Address
    error: ErrorInfo


@dataclass(slots=True, kw_only=True)
class WorkerBlocked:
    """A worker's task waits in `get` or `wait`: its CPU may be leased to others."""

    worker: Address


@dataclass(slots=True, kw_only=True)
class WorkerUnblocked:
    """The worker goes on."""

    worker: Address


@dataclass(slots=True, kw_only=True)
class BundleWanted:
    """Head to node: reserve this bundle, or say at once that you cannot. `attempt` counts the group's attempts. It
    holds for that life of the node, its `incarnation`."""

    group_id: PlacementGroupID
    index: int
    resources: Resources
    attempt: int
    incarnation: int


@dataclass(slots=True, kw_only=True)
class BundlesUnwanted:
    """Head to node: end what runs in these bundles, and take back what they hold. `is_removed`: with their group."""

    group_id: PlacementGroupID
    indices: tuple[int, ...]
    is_removed: bool


@dataclass(slots=True, kw_only=True)
class ResourcesReported:
    """What a node has free now. `settled` names the placed requests that it has granted or refused since its last
    report, once for each lease: what is not settled when a node dies is placed again. `allocated` names those that it
    has taken the resources for, though no worker is there yet: `available` is without these. `held` counts the leases
    here of each driver."""

    node: NodeID
    incarnation: int
    available: dict[str, int]
    settled: tuple[RequestID, ...] = ()
    allocated: tuple[RequestID, ...] = ()
    held: dict[str, int] = field(default_factory=dict)
    bundles: tuple[BundleReport, ...] = ()
    """What has become of bundles since the last report."""


@dataclass(slots=True, kw_only=True)
class TurnWanted:
    """Head to node: another driver waits that has less: have one of this one's leases back."""

    owner: Address


@dataclass(slots=True, kw_only=True)
class LeasesRecalled:
    """Head to node: you and the machine of this process do not reach one another. Give back what it waits for."""

    owner: Address


# ---- Tasks: owner <-> worker ---------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class TaskPushed:
    """An owner, or the head for an actor's constructor, hands a task to a leased worker; `reply_to` hears of it. The
    arguments named by `inline_deps` come along as payloads; the others lie in the stores. A call whose result was lost
    and is made `again` is older than all that an actor has not begun: it goes first. A task that is made `again` may be
    what its last worker died of: it runs alone."""

    spec: TaskSpec
    attempt: int
    reply_to: Address
    inline_deps: tuple[ObjectID, ...] = ()
    gpu_ids: tuple[int, ...] = ()
    again: bool = False


def new_push(
    spec: TaskSpec,
    attempt: int,
    reply_to: Address,
    inline_deps: tuple[ObjectID, ...],
    gpu_ids: tuple[int, ...],
    again: bool,
) -> TaskPushed:
    """A TaskPushed. One is made for every task, twice: a constructor with keywords takes five times as long."""
    push = _new(TaskPushed)
    push.spec = spec
    push.attempt = attempt
    push.reply_to = reply_to
    push.inline_deps = inline_deps
    push.gpu_ids = gpu_ids
    push.again = again
    return push


_new = object.__new__


Call: TypeAlias = tuple[TaskID, int, int]
"""One of several calls that differ in nothing else: task, attempt, bytes of its pickled arguments."""


@dataclass(slots=True, kw_only=True)
class TasksPushed:
    """`TaskPushed` for several calls of one function, or of one method of an actor, that stand alone."""

    template: FunctionTemplate
    owner: Address
    parent: TaskID
    calls: tuple[Call, ...]
    gpu_ids: tuple[int, ...] = ()
    actor_id: ActorID | None = None
    actor_handle: Ref | None = None

    def each(self) -> list[TaskPushed]:
        """The same, one by one."""
        template, owner, parent, gpu_ids = self.template, self.owner, self.parent, self.gpu_ids
        actor_id, actor_handle = self.actor_id, self.actor_handle
        return [
            new_push(
                new_spec(task_id, template, owner, parent, args_bytes, (), (), actor_id, actor_handle),
                attempt,
                owner,
                (),
                gpu_ids,
                False,
            )
            for task_id, attempt, args_bytes in self.calls
        ]


Outcome: TypeAlias = tuple[TaskID, int, int, int]
"""How a call went that has returned one small value without references: task, attempt, bytes of the value, and
nanoseconds from start to end."""


@dataclass(slots=True, kw_only=True)
class TasksFinished:
    """`TaskFinished` for several calls, in the order in which they ran; the values come along as payloads."""

    worker: Address
    node: NodeID
    outcomes: tuple[Outcome, ...]


@dataclass(slots=True, kw_only=True)
class TaskFinished:
    """A pushed task is done. `duration_ns` is from start to end on the worker."""

    task_id: TaskID
    attempt: int
    worker: Address
    node: NodeID
    results: tuple[Result, ...]
    duration_ns: int
    error: ErrorInfo | None = None


@dataclass(slots=True, kw_only=True)
class TasksRecalled:
    """The worker blocked in `get` and gives back what it had not started: this uses no retry."""

    worker: Address
    tasks: tuple[TaskID, ...]


@dataclass(slots=True, kw_only=True)
class CancelRequested:
    """A borrower to the owner of an object: `CancelAsked` for the task that makes it."""

    object_id: ObjectID
    force: bool
    recursive: bool


@dataclass(slots=True, kw_only=True)
class TaskUnwanted:
    """Owner to worker: this attempt of a task that was pushed to you is to end, as in `CancelAsked`. It is reported as
    finished all the same, when it has ended."""

    task_id: TaskID
    attempt: int
    force: bool
    recursive: bool


@dataclass(slots=True, kw_only=True)
class ItemReported:
    """Worker to owner: a generator has made an item, `result`, or ended one in `error`. Those of an attempt come in
    order, from index 1 on, and before its `TaskFinished`. Small values and exceptions come along as payloads."""

    task_id: TaskID
    attempt: int
    worker: Address
    result: Result
    error: ErrorInfo | None = None


@dataclass(slots=True, kw_only=True)
class ItemsRead:
    """Owner to worker: of the items of a generator so many are taken; `is_wanted`: somebody wants what is to come."""

    task_id: TaskID
    attempt: int
    taken: int
    is_wanted: bool


# ---- Values and references: process <-> process ----------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class ValueRequested:
    """A borrower wants to know when the object is ready, and has it sent when it is small."""

    object_id: ObjectID
    requester: Address


@dataclass(slots=True, kw_only=True)
class ValueReported:
    """The answer to `ValueRequested`, once the object is ready: INLINE (payload), STORED or FAILED."""

    object_id: ObjectID
    state: ValueState
    size_bytes: int
    error: ErrorInfo | None = None


@dataclass(slots=True, kw_only=True)
class BorrowAdded:
    """A process that does not own the object holds references to it."""

    object_id: ObjectID
    borrower: Address


@dataclass(slots=True, kw_only=True)
class BorrowAcknowledged:
    """The owner has noted the borrower: whoever handed the reference over may let go of it."""

    object_id: ObjectID


@dataclass(slots=True, kw_only=True)
class BorrowRemoved:
    """The borrower has dropped its last reference."""

    object_id: ObjectID
    borrower: Address


@dataclass(slots=True, kw_only=True)
class ResultsTaken:
    """The owner of a task has borrowed what its results refer to, or, with an `index`, that item of a generator: the
    worker may let go of those references."""

    task_id: TaskID
    attempt: int
    index: int = 0


@dataclass(slots=True, kw_only=True)
class OwnerDied:
    """A driver or worker is gone, and with it the objects and leases that it owned."""

    address: Address


@dataclass(slots=True, kw_only=True)
class PeerMet:
    """To a node manager: a process of its node has to do with another one from now on, and must hear of its death; the
    other may have died already."""

    process: Address
    peer: Address


# ---- Objects in stores: process <-> node manager <-> head ------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class ObjectWanted:
    """A process on this node wants the object here, pinned until `ObjectReleased`."""

    object_id: ObjectID
    owner: Address
    requester: Address


@dataclass(slots=True, kw_only=True)
class ObjectArrived:
    """The object is here, sealed and pinned for whoever wanted it."""

    object_id: ObjectID
    size_bytes: int


@dataclass(slots=True, kw_only=True)
class ObjectUnavailable:
    """The object will not come."""

    object_id: ObjectID
    error: ErrorInfo


@dataclass(slots=True, kw_only=True)
class ObjectReleased:
    """The requester needs the object's bytes no more."""

    object_id: ObjectID
    requester: Address


@dataclass(slots=True, kw_only=True)
class SpaceRequested:
    """A process on this node wants to write an object into the store. `is_room`: it may write others there after it,
    and says so when it seals one (`ObjectPlaced`) or needs the room no more (`SpaceReturned`)."""

    object_id: ObjectID
    size_bytes: int
    owner: Address
    requester: Address
    remakeable: bool
    is_room: bool = False


@dataclass(slots=True, kw_only=True)
class SpaceGranted:
    """The space is reserved: write, then seal. `present`: the object is here already, write nothing. `place` is for the
    runner of a process that asked for room."""

    object_id: ObjectID
    present: bool = False
    place: int = 0


@dataclass(slots=True, kw_only=True)
class SpaceDenied:
    """There is no room, now or ever; the message names the largest holders."""

    object_id: ObjectID
    error: ErrorInfo


@dataclass(slots=True, kw_only=True)
class ObjectSealed:
    """The object's bytes are complete and will not change."""

    object_id: ObjectID
    requester: Address


@dataclass(slots=True, kw_only=True)
class ObjectPlaced:
    """As `ObjectSealed`, for an object that was written into room that had been asked for under `room_id`; it takes the
    room over, and leaves what it does not need. One that `is_lent` stays until its owner releases it; `readers` are
    workers that read it beyond that, and hear when it is pinned for them (`LoanPinned`)."""

    object_id: ObjectID
    room_id: ObjectID
    size_bytes: int
    owner: Address
    requester: Address
    is_lent: bool = False
    readers: tuple[Address, ...] = ()


@dataclass(slots=True, kw_only=True)
class SpaceReturned:
    """A process needs room no more that it had asked for."""

    object_id: ObjectID
    requester: Address


@dataclass(slots=True, kw_only=True)
class RoomWanted:
    """A node manager is short of room, to the processes that keep some."""


Loan: TypeAlias = tuple[ObjectID, ObjectID, int, int]
"""An object that lies in room of its owner: the object, the room, its place, its size in bytes."""


@dataclass(slots=True, kw_only=True)
class ArgumentsLent:
    """An owner to a worker of its node, ahead of a task: where the arguments lie that only the owner knows of."""

    lender: Address
    loans: tuple[Loan, ...]


@dataclass(slots=True, kw_only=True)
class LoansKept:
    """A worker to a lender, ahead of the report of a task: views of these objects outlive it."""

    worker: Address
    object_ids: tuple[ObjectID, ...]


@dataclass(slots=True, kw_only=True)
class LoanPinned:
    """A node manager to a worker: an object that it goes on reading is pinned for it."""

    object_id: ObjectID


@dataclass(slots=True, kw_only=True)
class LoansAsked:
    """A node manager to its workers: a process has died that kept room; what of it do you read?"""

    lender: Address


@dataclass(slots=True, kw_only=True)
class LoansKnown:
    """The answer to `LoansAsked`."""

    worker: Address
    lender: Address
    loans: tuple[Loan, ...]


@dataclass(slots=True, kw_only=True)
class ObjectAdded:
    """To the head: a node holds a sealed copy."""

    object_id: ObjectID
    size_bytes: int
    owner: Address
    node: NodeID
    incarnation: int
    turn: int = 0
    """Of the head's answer by which the bytes came from elsewhere; 0: they were written there."""


@dataclass(slots=True, kw_only=True)
class ObjectRemoved:
    """To the head: a node holds no copy any more (evicted). `is_held_up`: as in LocationsWanted."""

    object_id: ObjectID
    node: NodeID
    incarnation: int
    is_held_up: bool = False


@dataclass(slots=True, kw_only=True)
class LocationsWanted:
    """To the head: a node wants to know where the object is, now or as soon as it is anywhere. `by_owner`: the object's
    owner asks in the node's name, to hear whether there is a copy at all. `unreachable`: nodes from which nothing has
    come to this one for long, though it waits for something. `is_held_up`: what it has asked others for, and keeps room
    for, does not come."""

    object_id: ObjectID
    owner: Address
    node: NodeID
    by_owner: bool = False
    unreachable: tuple[NodeID, ...] = ()
    is_held_up: bool = False


@dataclass(slots=True, kw_only=True)
class LocationsKnown:
    """From the head: the nodes to ask for the object, one after the other. The first may be one that is receiving it
    itself, since before this answer: `turn` grows from answer to answer."""

    object_id: ObjectID
    size_bytes: int
    owner: Address
    nodes: tuple[NodeID, ...]
    turn: int = 0


@dataclass(slots=True, kw_only=True)
class ObjectRequested:
    """Node to node: send me the object, from the byte `offset` on. `turn` is that of the head's answer: who does not
    have all of the object itself serves those with a later one than its own. `incarnation` is the asker's."""

    object_id: ObjectID
    to: NodeID
    offset: int = 0
    turn: int = 0
    incarnation: int = 0


@dataclass(slots=True, kw_only=True)
class ObjectNotHere:
    """Node to node: I do not have it, or, with an error, have no room to read it back from disk."""

    object_id: ObjectID
    node: NodeID
    error: ErrorInfo | None = None


@dataclass(slots=True, kw_only=True)
class ObjectsAwaited:
    """Node to node: I asked you for these objects long ago, and wait for them still. What you are not about to send you
    do not have (ObjectNotHere); and say that you are there."""

    object_ids: tuple[ObjectID, ...]
    to: NodeID
    incarnation: int


@dataclass(slots=True, kw_only=True)
class NodeThere:
    """Node to node: the answer to `ObjectsAwaited`."""

    node: NodeID


@dataclass(slots=True, kw_only=True)
class ObjectElsewhere:
    """Node to node: others are before you here, and `holder` has got the object from me just now: ask there."""

    object_id: ObjectID
    node: NodeID
    holder: NodeID


@dataclass(slots=True, kw_only=True)
class ObjectDemanded:
    """Head to owner: a node wants the object and no copy is known. `losses` counts how often the last known copy has
    gone: an owner that has answered to this loss already waits for the copy that is being made. `asked`: the owner
    itself has asked for a copy. `near`: the copies were given up because none could be brought to that node."""

    object_id: ObjectID
    losses: int
    asked: bool = False
    near: NodeID | None = None
    is_held_up: bool = False
    """As in LocationsWanted, of a node that wants it, or of the one that has evicted the last copy."""


@dataclass(slots=True, kw_only=True)
class CopiesDoubted:
    """Head to owner: copies are known, and none can be brought to `node`. Can you make the object again?"""

    object_id: ObjectID
    node: NodeID


@dataclass(slots=True, kw_only=True)
class CopiesJudged:
    """Owner to head: the copies may be given up, and then the object demanded; or why it cannot be made again."""

    object_id: ObjectID
    why_kept: str | None = None


@dataclass(slots=True, kw_only=True)
class ItemsDoubted:
    """Owner to head: an attempt of a generator was lost, perhaps with the news of items that it had stored. Ask about
    each item that you know of, or will hear of."""

    task_id: TaskID


@dataclass(slots=True, kw_only=True)
class ObjectsFreed:
    """Owner to head, head to nodes: nobody wants these objects any more."""

    object_ids: tuple[ObjectID, ...]


@dataclass(slots=True, kw_only=True)
class ObjectFailed:
    """Owner to head, head to nodes that wait: the object cannot be made again."""

    object_id: ObjectID
    error: ErrorInfo


# ---- Actors: process <-> head ----------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class ActorRegistered:
    """To the head: make this actor. The constructor's arguments are the payload `spec.task_id`."""

    spec: TaskSpec
    inline_deps: tuple[ObjectID, ...] = ()


@dataclass(slots=True, kw_only=True)
class ActorFailed:
    """To the head: the actor was never made, because an argument of its constructor failed."""

    actor_id: ActorID
    owner: Address
    error: ErrorInfo


@dataclass(slots=True, kw_only=True)
class ActorSubscribed:
    """To the head: tell `subscriber` of the actor's state, now and whenever it changes."""

    actor_id: ActorID
    subscriber: Address


@dataclass(slots=True, kw_only=True)
class ActorChanged:
    """From the head: the actor's state. `life` counts its restarts."""

    actor_id: ActorID
    state: ActorState
    life: int
    worker: Address | None
    error: ErrorInfo | None = None


@dataclass(slots=True, kw_only=True)
class ActorOutOfScope:
    """To the head: the last handle is gone; end the actor after the calls it has."""

    actor_id: ActorID


@dataclass(slots=True, kw_only=True)
class ActorKillRequested:
    """To the head: end the actor now."""

    actor_id: ActorID
    no_restart: bool


@dataclass(slots=True, kw_only=True)
class ActorExited:
    """To the head: the actor wants to end; `method` has called `exit_actor()`."""

    actor_id: ActorID
    worker: Address
    method: str


@dataclass(slots=True, kw_only=True)
class ActorLeaving:
    """From an actor's worker: it is about to end; you have all that it has sent to you. Say so (ActorLeavingHeard)."""

    worker: Address


@dataclass(slots=True, kw_only=True)
class ActorLeavingHeard:
    """The answer to `ActorLeaving`."""

    process: Address


@dataclass(slots=True, kw_only=True)
class ActorNameRequested:
    """To the head: `ActorNameAsked` of the requester."""

    wait_id: WaitID
    requester: Address
    name: str
    namespace: str
    job: int
    claim: NamedActor | None = None
    get_if_exists: bool = False


@dataclass(slots=True, kw_only=True)
class ActorNameReported:
    """From the head: the actor of that name, with its namespace. `is_new`: it is the requester's, who is to register
    it."""

    wait_id: WaitID
    actor: NamedActor | None = None
    is_new: bool = False
    error: ErrorInfo | None = None


@dataclass(slots=True, kw_only=True)
class WorkerUnwanted:
    """To node: end this worker. From the head: its actor is not wanted any more; from the worker: it has retired and
    owns nothing."""

    worker: Address
    reason: str


@dataclass(slots=True, kw_only=True)
class WorkerSpent:
    """Worker to node: this worker has run as many calls of a function as it may (`max_calls`), and takes no more."""

    worker: Address


@dataclass(slots=True, kw_only=True)
class WorkerRetired:
    """Node to worker: you get no more tasks. Say so (WorkerUnwanted) when nobody needs anything of yours."""

    worker: Address


# ---- Membership --------------------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class NodeJoined:
    """A node manager reports for duty."""

    info: NodeInfo


@dataclass(slots=True, kw_only=True)
class NodeWelcomed:
    """The head has noted the node; its resources count from now on."""

    node: NodeID


@dataclass(slots=True, kw_only=True)
class NodeRefused:
    """The head has declared this life of the node dead: it must end itself, or come back as a new incarnation."""

    node: NodeID
    incarnation: int


@dataclass(slots=True, kw_only=True)
class NodeDied:
    """The head has declared this life of the node dead. `cluster` is what is left, unless that is announced later."""

    node: NodeID
    incarnation: int
    cluster: ClusterChanged | None = None


@dataclass(slots=True, kw_only=True)
class NodeDraining:
    """To the head: place nothing here any more; this node is about to leave."""

    node: NodeID
    incarnation: int


@dataclass(slots=True, kw_only=True)
class NodeEmptied:
    """To the head: no task runs here any more. `needed` are the objects here that nothing can make again."""

    node: NodeID
    incarnation: int
    needed: tuple[ObjectID, ...]


@dataclass(slots=True, kw_only=True)
class CopyWanted:
    """Head to node: have a copy of this object, because the only one is about to leave. `remakeable` as in
    `SpaceRequested`."""

    object_id: ObjectID
    owner: Address
    remakeable: bool


@dataclass(slots=True, kw_only=True)
class CopyKept:
    """To the head: the copy that it wanted is here, or cannot be had."""

    object_id: ObjectID
    node: NodeID


@dataclass(slots=True, kw_only=True)
class NodeReleased:
    """From the head: nothing depends on this node any more; it may end."""

    node: NodeID
    incarnation: int


@dataclass(slots=True, kw_only=True)
class WorkerDied:
    """To the head: a node's worker is gone, and with it what it owned."""

    worker: Address
    node: NodeID
    reason: str


@dataclass(slots=True, kw_only=True)
class LinkLost:
    """A process that uses workers of a node and that node do not reach one another, though the head hears both: what it
    has leased there is given up. Whoever notices tells the head, which tells the other."""

    process: Address
    node: NodeID
    incarnation: int
    by_node: bool
    """Whether the node has noticed, not the process."""


@dataclass(slots=True, kw_only=True)
class DriverJoined:
    """A driver takes part; `node` is the one it runs on, `namespace` where the names of its actors stand."""

    address: Address
    node: NodeID
    namespace: str = ""


@dataclass(slots=True, kw_only=True)
class DriverLeft:
    """A driver ends cleanly."""

    address: Address


@dataclass(slots=True, kw_only=True)
class ClusterChanged:
    """The nodes that are alive: what submission checks demands against."""

    nodes: tuple[NodeInfo, ...]


@dataclass(slots=True, kw_only=True)
class PlacementGroupRequested:
    """To the head: make this placement group, and tell its owner, under its `wait_id`, that it is noted."""

    wait_id: WaitID
    spec: PlacementGroupSpec


@dataclass(slots=True, kw_only=True)
class PlacementGroupNoted:
    """The answer to `PlacementGroupRequested`: it will be made as soon as it can be, or, with an error, never."""

    wait_id: WaitID
    error: ErrorInfo | None = None


@dataclass(slots=True, kw_only=True)
class PlacementGroupUnwanted:
    """To the head: remove the group, with what runs in it."""

    group_id: PlacementGroupID


@dataclass(slots=True, kw_only=True)
class RowsRequested:
    """Send `requester` the rows that you have of a table, under its `wait_id`."""

    wait_id: WaitID
    requester: Address
    table: str


@dataclass(slots=True, kw_only=True)
class WaitExplained:
    """From the head: what this process has asked for waits for what may never come, in words for its user."""

    words: str


@dataclass(slots=True, kw_only=True)
class RowsReported:
    """The answer to `RowsRequested`: each row is a JSON object."""

    wait_id: WaitID
    rows: tuple[str, ...]


@dataclass(slots=True, kw_only=True)
class ClusterStateRequested:
    """To the head: report the nodes' state to `requester`, under its `wait_id`."""

    wait_id: WaitID
    requester: Address


@dataclass(slots=True, kw_only=True)
class ClusterStateReported:
    """The answer to `ClusterStateRequested`."""

    wait_id: WaitID
    nodes: tuple[NodeState, ...]


LocalEvent: TypeAlias = (
    TaskSubmitted
    | ValuePut
    | ValuePromised
    | PromiseKept
    | SpaceWanted
    | SpaceWritten
    | PutAbandoned
    | WaitAbandoned
    | WaitStarted
    | RefsAdded
    | RefsDropped
    | ViewReleased
    | TaskRan
    | TasksRan
    | ItemMade
    | ItemsEnded
    | ItemTaken
    | ActorKillAsked
    | ActorNameAsked
    | ActorExitAsked
    | CancelAsked
    | PlacementGroupAsked
    | PlacementGroupRemovalAsked
    | RowsAsked
    | ClusterStateAsked
    | Started
    | TimerFired
    | DrainAsked
    | WorkerReady
    | WorkerExited
    | NodeSilent
    | NodeHeard
    | PeerLost
    | SpaceReserved
    | ReserveFailed
    | ObjectSpilled
    | SpillFailed
    | ObjectRestored
    | RestoreFailed
    | GpuLost
    | MemoryExceeded
    | ObjectSent
    | ObjectReceived
    | ReceiveFailed
)
"""What the process itself and its runner report."""

ProcessMessage: TypeAlias = (
    LeaseGranted
    | LeasesGranted
    | LeaseRefused
    | LeaseWanted
    | WorkerRetired
    | LeasedWorkerDied
    | TaskPushed
    | TasksPushed
    | TaskFinished
    | TasksFinished
    | TasksRecalled
    | ItemReported
    | ItemsRead
    | CancelRequested
    | TaskUnwanted
    | ValueRequested
    | ValueReported
    | BorrowAdded
    | BorrowAcknowledged
    | BorrowRemoved
    | ResultsTaken
    | OwnerDied
    | ObjectArrived
    | ObjectUnavailable
    | SpaceGranted
    | SpaceDenied
    | RoomWanted
    | ArgumentsLent
    | LoansKept
    | LoanPinned
    | LoansAsked
    | ObjectDemanded
    | CopiesDoubted
    | ActorChanged
    | ActorLeaving
    | ActorLeavingHeard
    | ActorNameReported
    | NodeDied
    | ClusterChanged
    | ClusterStateReported
    | PlacementGroupNoted
    | RowsRequested
    | RowsReported
    | WaitExplained
    | LinkLost
)
"""What a driver or worker hears from others."""

NodeMessage: TypeAlias = (
    LeaseRequested
    | LeaseReturned
    | LeasesReturned
    | TurnWanted
    | LeasesRecalled
    | BundleWanted
    | BundlesUnwanted
    | RowsRequested
    | WorkerBlocked
    | WorkerUnblocked
    | OwnerDied
    | PeerMet
    | ObjectWanted
    | ObjectReleased
    | SpaceRequested
    | SpaceReturned
    | ObjectSealed
    | ObjectPlaced
    | LoansKnown
    | LocationsKnown
    | ObjectRequested
    | ObjectNotHere
    | ObjectElsewhere
    | ObjectsAwaited
    | NodeThere
    | ObjectsFreed
    | ObjectFailed
    | WorkerUnwanted
    | WorkerSpent
    | CopyWanted
    | NodeWelcomed
    | NodeRefused
    | NodeReleased
    | NodeDied
    | ClusterChanged
    | LinkLost
)
"""What a node manager hears from others."""

HeadMessage: TypeAlias = (
    LeaseRequested
    | LeaseGranted
    | LeaseRefused
    | LeasedWorkerDied
    | TaskFinished
    | ResourcesReported
    | ObjectAdded
    | ObjectRemoved
    | LocationsWanted
    | ObjectsFreed
    | ObjectFailed
    | ActorRegistered
    | ActorFailed
    | ActorSubscribed
    | ActorOutOfScope
    | ActorKillRequested
    | ActorNameRequested
    | ActorExited
    | BorrowAdded
    | BorrowRemoved
    | NodeJoined
    | NodeDraining
    | NodeEmptied
    | CopyKept
    | CopiesJudged
    | ItemsDoubted
    | WorkerDied
    | DriverJoined
    | DriverLeft
    | ClusterStateRequested
    | PlacementGroupRequested
    | PlacementGroupUnwanted
    | RowsRequested
    | LinkLost
)
"""What the head hears from others."""

Event: TypeAlias = LocalEvent | ProcessMessage | NodeMessage | HeadMessage
