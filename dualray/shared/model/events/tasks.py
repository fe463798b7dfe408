"""An owner pushes tasks to the workers that it has leased, and these report how the tasks went."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from dualray.shared.model.errors import ErrorInfo
from dualray.shared.model.events.user import Outcome, Result
from dualray.shared.model.ids import ActorID, Address, NodeID, ObjectID, TaskID, return_object_id
from dualray.shared.model.records import dataclass
from dualray.shared.model.specs import FunctionTemplate, Ref, TaskSpec, new_spec


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
    device_ids: tuple[int, ...] = ()
    again: bool = False


def new_push(
    spec: TaskSpec,
    attempt: int,
    reply_to: Address,
    inline_deps: tuple[ObjectID, ...],
    device_ids: tuple[int, ...],
    again: bool,
) -> TaskPushed:
    """A TaskPushed. One is made for every task, twice: a constructor with keywords takes five times as long."""
    push = _new(TaskPushed)
    push.spec = spec
    push.attempt = attempt
    push.reply_to = reply_to
    push.inline_deps = inline_deps
    push.device_ids = device_ids
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
    device_ids: tuple[int, ...] = ()
    actor_id: ActorID | None = None
    actor_handle: Ref | None = None

    def each(self) -> list[TaskPushed]:
        """The same, one by one."""
        template, owner, parent, device_ids = self.template, self.owner, self.parent, self.device_ids
        actor_id, actor_handle = self.actor_id, self.actor_handle
        return [
            new_push(
                new_spec(task_id, template, owner, parent, args_bytes, (), (), actor_id, actor_handle),
                attempt,
                owner,
                (),
                device_ids,
                False,
            )
            for task_id, attempt, args_bytes in self.calls
        ]


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


def new_finished(
    task_id: TaskID, attempt: int, worker: Address, node: NodeID, sizes: Sequence[int], duration_ns: int
) -> TaskFinished:
    """The TaskFinished of a task with small results of these sizes in bytes. A replay makes one for most tasks: this
    takes a third of the time of the constructors."""
    finished = _new(TaskFinished)
    finished.task_id = task_id
    finished.attempt = attempt
    finished.worker = worker
    finished.node = node
    finished.results = tuple([_new_result(task_id, index, size) for index, size in enumerate(sizes)])
    finished.duration_ns = duration_ns
    finished.error = None
    return finished


def _new_result(task_id: TaskID, index: int, size_bytes: int) -> Result:
    result = _new(Result)
    result.object_id = return_object_id(task_id, index)
    result.size_bytes = size_bytes
    result.inline = True
    result.nested = ()
    return result


@dataclass(slots=True, kw_only=True)
class TasksWanted:
    """Owner to a leased worker: the task in hand runs for long. Give back what has not started, as `TasksRecalled`."""

    owner: Address


@dataclass(slots=True, kw_only=True)
class TasksRecalled:
    """The worker blocked in `get`, or was asked, and gives back what it had not started: this uses no retry."""

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
