"""What an owner keeps of a task that it has submitted, and of a generator's items; and a task's row in the task table.

The parts of the owner that follow a task (tasks.py, lineage.py, streams.py) share these records.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from dualray.shared.machines.owner.value import Value
from dualray.shared.model.commands import WriteRecord
from dualray.shared.model.errors import ErrorInfo, ErrorKind
from dualray.shared.model.ids import Address, LeaseID, NodeID, ObjectID, TaskID, short
from dualray.shared.model.specs import FunctionTemplate, Ref, TaskSpec
from dualray.shared.model.states import TaskState

TASK_TABLE = "tasks"
ATTEMPT_TABLE = "attempts"
ATTEMPTS_MAX: Final = 100
"""The first so many attempts of a task have rows: a task may be tried for ever."""
ATTEMPT_WORDS_MAX: Final = 10_000
"""The most characters of the error of an attempt that has another after it; its end says most."""

_NOTHING: Final[Mapping[ObjectID, None]] = MappingProxyType({})


class Stream:
    """The items of one task."""

    __slots__ = (
        "attempt",
        "closed",
        "has_ended",
        "has_stored",
        "is_held",
        "lost",
        "next",
        "passed",
        "reported",
        "until",
    )

    def __init__(self, *, has_consumer: bool) -> None:
        self.reported = 0
        """Items that there are, the one that is an error with them."""
        self.next = 1 if has_consumer else 0
        """The item that the consumer waits for, or takes next; 0: there is no consumer."""
        self.is_held = True
        """Whether items that come are held for somebody: a consumer, or a result that will refer to them."""
        self.has_ended = False
        self.has_stored = False
        """Whether an item came that may be lost."""
        self.lost: dict[int, bool] = {}
        """Items that are being made again, and whether for who is held up: that is not in vain."""
        self.attempt = 0
        self.passed = 0
        """Items that this attempt has made."""
        self.closed = -1
        """The last attempt that was told to make no more."""
        self.until = 0
        """The last stored item that was kept when the task ran again after the loss of a node: it goes on to there."""


class TaskRecord:
    """One task as its owner sees it. What few tasks need has its first value on the class."""

    attempt = 0
    missing: Mapping[ObjectID, None] = _NOTHING
    """Arguments that are not ready."""
    lease_id: LeaseID | None = None
    worker: Address | None = None
    was_pushed = False
    again = False
    """It has finished before, and runs again because a result was lost; or it was with a worker that died."""
    stream: Stream | None = None
    """Of a call of a generator."""
    value: Value | None = None
    """In the first attempt of a call that stands alone and has one result: that."""
    is_cancelled = False
    """Somebody has asked for its end: it is not tried again."""
    has_finished = False
    """It runs, or has run, again because a result was lost."""
    remakes = 0
    """How often a result that waiting tasks need was made again since other tasks stood as they stand."""
    is_evicted = False
    """Of a generator: all that it runs again for left a full store."""
    near: NodeID | None = None
    """Where it is to run again: that node could have no copy of its result."""
    stood: object = None
    """How they stood: see `_is_in_vain`."""

    def __init__(self, spec: TaskSpec, state: TaskState = TaskState.WAITING_ARGS, returns_kept: int = 0) -> None:
        self.spec = spec
        self.state = state
        self.retries_left = spec.template.max_retries
        self.returns_kept = returns_kept
        """Result entries that exist; when none is left and the task is done, the record goes."""

    @property
    def argument_refs(self) -> tuple[Ref, ...]:
        spec = self.spec
        return spec.deps + spec.nested if spec.nested else spec.deps

    @property
    def is_done(self) -> bool:
        return self.state in (TaskState.FINISHED, TaskState.FAILED)

    def story(self) -> str:
        """What is known of the task, for errors and for people who ask what it waits for."""
        return f"{self.spec.template.name} attempt {self.attempt}, {self.state}, worker {self.worker}"


def current(records: Mapping[TaskID, TaskRecord], task: TaskID, attempt: int, worker: Address) -> TaskRecord | None:
    """The record that news of an attempt is about, or None when it is late news."""
    record = records.get(task)
    if record is None or record.state is not TaskState.PUSHED or record.attempt != attempt or record.worker != worker:
        return None
    return record


def task_fields(spec: TaskSpec, state: TaskState, attempt: int, worker: Address | None) -> tuple[tuple[str, str], ...]:
    """What a row of the task table says beside the task's id."""
    fields = (
        ("name", spec.template.name),
        ("state", state.value),
        ("attempt", str(attempt)),
        ("worker", worker or ""),
    )
    return (*fields, ("method", spec.template.method)) if spec.template.method else fields


class FinishedFields:
    """`task_fields` of tasks that finish in one process, which mostly say the same as those before."""

    __slots__ = ("_attempt", "_fields", "_template", "_worker")

    def __init__(self, worker: Address) -> None:
        self._worker = worker
        self._template: FunctionTemplate | None = None
        self._attempt = 0
        self._fields: tuple[tuple[str, str], ...] = ()

    def of(self, spec: TaskSpec, attempt: int) -> tuple[tuple[str, str], ...]:
        """What the row of a task says."""
        if spec.template is not self._template or attempt != self._attempt:
            self._template, self._attempt = spec.template, attempt
            self._fields = task_fields(spec, TaskState.FINISHED, attempt, self._worker)
        return self._fields


def task_row(spec: TaskSpec, state: TaskState, attempt: int, worker: Address | None) -> WriteRecord:
    """A row of the task table. Whoever knows how a task ended writes it: its worker when it has finished, its owner
    when it has failed."""
    return WriteRecord(table=TASK_TABLE, key=spec.task_id.hex(), fields=task_fields(spec, state, attempt, worker))


def attempt_row(record: TaskRecord, state: TaskState, error: ErrorInfo | None = None) -> WriteRecord:
    """A row of the table of attempts, of one that has ended and has another after it."""
    spec, attempt = record.spec, record.attempt
    fields = (*task_fields(spec, state, attempt, record.worker), ("task", spec.task_id.hex()))
    if error is not None:
        fields = (*fields, ("kind", str(error.kind)), ("message", error.message[-ATTEMPT_WORDS_MAX:]))
    return WriteRecord(table=ATTEMPT_TABLE, key=f"{spec.task_id.hex()}:{attempt}", fields=fields)


def cancelled(spec: TaskSpec) -> ErrorInfo:
    """What a cancelled task ends with."""
    return ErrorInfo(
        kind=ErrorKind.TASK_CANCELLED, message=f"{spec.template.name} (task {short(spec.task_id)}) was cancelled."
    )
