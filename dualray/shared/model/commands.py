"""Commands: what a machine orders its runner to do. Imperative, and the only way out of the core.

`Send` carries a message, which is an event of the machine that receives it. Its `payloads` name the bytes that travel
beside it: the pickled arguments of a task (by TaskID) and small values (by ObjectID). The core never sees them.
"""

from __future__ import annotations

from typing import TypeAlias

from dualray.shared.model.errors import ErrorInfo
from dualray.shared.model.events import Event, TaskPushed
from dualray.shared.model.ids import Address, NodeID, ObjectID, TaskID, WaitID
from dualray.shared.model.records import dataclass
from dualray.shared.model.specs import TaskSpec


@dataclass(slots=True, kw_only=True)
class Send:
    """Deliver `message` to `to`, after everything sent there before; with it the payloads named. One that is not urgent
    may wait a millisecond or two for others to the same receiver, who is busy anyway."""

    to: Address
    message: Event
    payloads: tuple[bytes, ...] = ()
    urgent: bool = True


@dataclass(slots=True, kw_only=True)
class ArmTimer:
    """Report `TimerFired(timer)` after `delay_ns`; a timer of the same name is replaced."""

    timer: str
    delay_ns: int


@dataclass(slots=True, kw_only=True)
class CancelTimer:
    """Forget the timer."""

    timer: str


@dataclass(slots=True, kw_only=True)
class CompleteWait:
    """Let whoever waits under `wait_id` go on; `ready` are the objects that are, in the order asked for."""

    wait_id: WaitID
    ready: tuple[ObjectID, ...] = ()
    error: ErrorInfo | None = None


@dataclass(slots=True, kw_only=True)
class DropPayload:
    """Nobody in this process needs these bytes any more."""

    key: bytes


@dataclass(slots=True, kw_only=True)
class DropPayloads:
    """`DropPayload` for several keys."""

    keys: tuple[bytes, ...]


@dataclass(slots=True, kw_only=True)
class CopyPayload:
    """Let `target` have the same bytes as `source`."""

    source: bytes
    target: bytes


@dataclass(slots=True, kw_only=True)
class RunTask:
    """Run the function on its arguments, which are all here; report `TaskRan`."""

    spec: TaskSpec
    attempt: int
    device_ids: tuple[int, ...] = ()


@dataclass(slots=True, kw_only=True)
class RunTasks:
    """Run these one after another, each as with `RunTask`; report those that return one small value with `TasksRan`,
    several at a time, and every other with `TaskRan`, in order."""

    tasks: tuple[TaskPushed, ...]


@dataclass(slots=True, kw_only=True)
class ForgetTasks:
    """These were handed over to run, and have not begun: they are not to run."""

    tasks: tuple[TaskPushed, ...]


@dataclass(slots=True, kw_only=True)
class InterruptTask:
    """Raise KeyboardInterrupt in the user code of this task, if it has not ended: it is in hand, or was handed over to
    run next. It is reported with `TaskRan` as ever."""

    task_id: TaskID
    attempt: int


@dataclass(slots=True, kw_only=True)
class StartWorker:
    """Start a worker process; report `WorkerReady`, `WorkerExited` or `WorkerNotStarted`."""

    worker: Address


@dataclass(slots=True, kw_only=True)
class StopWorker:
    """End a worker process now; report `WorkerExited`. With `is_graceful` its actor's `__ray_shutdown__` runs before,
    for `SHUTDOWN_PATIENCE_NS` at most."""

    worker: Address
    reason: str
    is_graceful: bool = False


@dataclass(slots=True, kw_only=True)
class ReserveSpace:
    """Find memory for an object that will be written; report `SpaceReserved` or `ReserveFailed`. When `DeleteObject`
    comes first, report nothing. After `ReserveFailed` the object has no memory."""

    object_id: ObjectID
    size_bytes: int


@dataclass(slots=True, kw_only=True)
class EvictObject:
    """Delete the object's bytes to make room: it can be made again."""

    object_id: ObjectID


@dataclass(slots=True, kw_only=True)
class DeleteObject:
    """Delete the object's bytes: nobody wants them, or they were never sealed."""

    object_id: ObjectID


@dataclass(slots=True, kw_only=True)
class RenameObject:
    """What lies under `room_id` is an object of its own now, and keeps `size_bytes` from its beginning; the rest is
    free."""

    room_id: ObjectID
    object_id: ObjectID
    size_bytes: int


@dataclass(slots=True, kw_only=True)
class SpillObject:
    """Copy the object's bytes to disk; report `ObjectSpilled` or `SpillFailed`. Until then it stays in memory."""

    object_id: ObjectID
    size_bytes: int


@dataclass(slots=True, kw_only=True)
class UnloadObject:
    """Delete the object's bytes in memory: they are on disk."""

    object_id: ObjectID


@dataclass(slots=True, kw_only=True)
class RestoreObject:
    """Copy the object's bytes from disk into the memory reserved for it; report `ObjectRestored` or `RestoreFailed`."""

    object_id: ObjectID
    size_bytes: int


@dataclass(slots=True, kw_only=True)
class DeleteSpilled:
    """Delete the object's bytes on disk."""

    object_id: ObjectID


@dataclass(slots=True, kw_only=True)
class SendObject:
    """Copy an object of `size_bytes`, from the byte `offset` on, to another node's store; report `ObjectSent`. The
    receiver's runner reports `ObjectReceived` or `ReceiveFailed`. The object is sealed, or still on its way here: then
    it is passed on as it comes, and when it is deleted before it is all here, the receiver's runner reports that the
    rest will not come."""

    object_id: ObjectID
    size_bytes: int
    to: NodeID
    offset: int = 0


@dataclass(slots=True, kw_only=True)
class ReceiveObject:
    """Take in an object of `size_bytes`, from the byte `offset` on, as `source` sends it, and from nobody else. What
    came before stays, up to `offset`; `DeleteObject` gives it all up."""

    object_id: ObjectID
    size_bytes: int
    source: NodeID
    offset: int


@dataclass(slots=True, kw_only=True)
class WriteRecord:
    """Write a row of the control plane's tables, behind the work: no task waits for it."""

    table: str
    key: str
    fields: tuple[tuple[str, str], ...]


@dataclass(slots=True, kw_only=True)
class WriteRecords:
    """Write several rows of a table that differ in nothing but their keys."""

    table: str
    keys: tuple[str, ...]
    fields: tuple[tuple[str, str], ...]


@dataclass(slots=True, kw_only=True)
class NoteRetry:
    """A task is queued again: `attempt` is the one to come, `reason` one of retry and reconstruction."""

    task_id: TaskID
    attempt: int
    reason: str


@dataclass(slots=True, kw_only=True)
class TellFailure:
    """The last reference to the results of a failed task of this process has gone, and the error was never read."""

    task_id: TaskID
    name: str
    error: ErrorInfo


@dataclass(slots=True, kw_only=True)
class TellWait:
    """What this process has asked for waits for long: say why."""

    words: str


@dataclass(slots=True, kw_only=True)
class TellTaskTimes:
    """Report to `requester`, under its `wait_id`, when the tasks of this process began and ended. Machines do not keep
    these times: who runs the tasks does."""

    requester: Address
    wait_id: WaitID


@dataclass(slots=True, kw_only=True)
class SettleRecords:
    """Wait a moment until the control plane has the records that this process has written: somebody reads them next."""


@dataclass(slots=True, kw_only=True)
class LaunchNodes:
    """Have the provider start a node of this group for each id, once for each id: it carries the id as a label. Report
    `LaunchesFailed` of those that it refuses."""

    group: str
    launch_ids: tuple[str, ...]


@dataclass(slots=True, kw_only=True)
class TerminateNode:
    """Give back the machine of a launch. Its node is `node`, if it had one."""

    launch_id: str
    node: NodeID | None = None


@dataclass(slots=True, kw_only=True)
class CollectGarbage:
    """Have Python collect objects that only refer to one another, beside user code: some may hold references."""


Command: TypeAlias = (
    Send
    | ArmTimer
    | CancelTimer
    | CompleteWait
    | DropPayload
    | DropPayloads
    | CopyPayload
    | RunTask
    | RunTasks
    | ForgetTasks
    | InterruptTask
    | StartWorker
    | StopWorker
    | ReserveSpace
    | EvictObject
    | DeleteObject
    | RenameObject
    | SpillObject
    | UnloadObject
    | RestoreObject
    | DeleteSpilled
    | SendObject
    | ReceiveObject
    | WriteRecord
    | WriteRecords
    | NoteRetry
    | TellFailure
    | TellWait
    | TellTaskTimes
    | SettleRecords
    | LaunchNodes
    | TerminateNode
    | CollectGarbage
)
