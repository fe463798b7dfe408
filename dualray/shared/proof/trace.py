"""The trace: what runners did, in one schema for both modes, and the check that they did what they were told.

A runner writes a trace event at the place where it acts: a task starts or ends, a push goes out, a worker is started,
an object is evicted or sent. It does not look at the decision log to do so. `match_actions` then pairs every action
with exactly one logged command of the same process: an action without a command is a runner that decided by itself, a
command without an action one that disobeyed.

Timeline, tables and reports are made from the trace alone, so they work alike for both modes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import msgpack

from dualray.shared.model.codec import SURROGATES, pack
from dualray.shared.model.commands import (
    Command,
    EvictObject,
    ForgetTasks,
    NoteRetry,
    RestoreObject,
    RunTask,
    RunTasks,
    Send,
    SendObject,
    SpillObject,
    StartWorker,
)
from dualray.shared.model.events import TaskPushed, TasksPushed

FORMAT = "dualray-trace/1"


class TraceKind(StrEnum):
    """What happened. The first group are actions, each ordered by one command."""

    __hash__ = str.__hash__  # an enumeration's own is a function of Python's, and there are very many events

    TASK_PUSHED = "task_pushed"
    TASK_STARTED = "task_started"
    TASK_RETRIED = "task_retried"
    WORKER_STARTED = "worker_started"
    OBJECT_EVICTED = "object_evicted"
    OBJECT_SPILLED = "object_spilled"
    OBJECT_RESTORED = "object_restored"
    TRANSFER_STARTED = "transfer_started"

    TASK_ENDED = "task_ended"
    TASK_SUBMITTED = "task_submitted"
    WORKER_ENDED = "worker_ended"
    OBJECT_STORED = "object_stored"
    OBJECT_DELETED = "object_deleted"
    OBJECT_MAPPED = "object_mapped"
    TRANSFER_ENDED = "transfer_ended"
    FAULT = "fault"
    NODE_STARTED = "node_started"
    NIC_RATE = "nic_rate"


ACTIONS = frozenset(
    {
        TraceKind.TASK_PUSHED,
        TraceKind.TASK_STARTED,
        TraceKind.TASK_RETRIED,
        TraceKind.WORKER_STARTED,
        TraceKind.OBJECT_EVICTED,
        TraceKind.OBJECT_SPILLED,
        TraceKind.OBJECT_RESTORED,
        TraceKind.TRANSFER_STARTED,
    }
)


@dataclass(frozen=True, slots=True)
class TraceEvent:
    """One row. `subject` is a task's or object's id in hex, or a worker's or node's name, and `about` is the same, but
    an id may be its bytes: there are very many events, and few are looked at. `other` is the peer (whom a push or
    transfer goes to), the reason, or, of a TASK_SUBMITTED, the actor whose method is called; `amount` counts bytes, or
    the attempt of a task. A simulated node's NODE_STARTED says in `deps` what it has (`CPU 40000` in units,
    `object_store` in bytes, `nic` in bytes a second); NIC_RATE, what flows `in` or `out` (`other`) of a node from now
    on, in bytes a second."""

    time_ns: int
    kind: TraceKind
    process: str
    about: str | bytes
    other: str = ""
    name: str = ""
    amount: int = 0
    deps: tuple[str, ...] = ()

    @property
    def subject(self) -> str:
        """What the event is about, as text."""
        about = self.about
        return about if isinstance(about, str) else about.hex()

    def row(self) -> tuple[Any, ...]:
        """The event as plain values."""
        return (
            self.time_ns,
            str(self.kind),
            self.process,
            self.subject,
            self.other,
            self.name,
            self.amount,
            self.deps,
        )


def to_bytes(events: Iterable[TraceEvent]) -> bytes:
    """Trace events as a stream of msgpack rows."""
    return b"".join(pack(event.row()) for event in events)


def from_bytes(data: bytes) -> list[TraceEvent]:
    """The trace events of a stream; one that was cut off ends at its last whole row.

    Raises:
        ValueError: the bytes are no trace; the message says which row is the first that is none.
    """
    stream = msgpack.Unpacker(raw=False, use_list=False, max_buffer_size=0, unicode_errors=SURROGATES)
    stream.feed(data)
    events: list[TraceEvent] = []
    try:
        for time_ns, kind, *rest in stream:
            events.append(TraceEvent(time_ns, TraceKind(kind), *rest))
    except (TypeError, ValueError) as error:
        why = str(error) or type(error).__name__
        raise ValueError(f"row {len(events)} of the trace cannot be read: {why}") from error
    return events


Key = tuple[str, str, str, int]


def action_key(event: TraceEvent) -> Key:
    """What identifies an action: its kind, what it is about, whom it goes to, and the attempt."""
    with_amount = event.kind in (TraceKind.TASK_PUSHED, TraceKind.TASK_STARTED, TraceKind.TASK_RETRIED)
    return (str(event.kind), event.subject, event.other, event.amount if with_amount else 0)


def command_keys(command: Command) -> list[Key]:
    """The actions that a command orders and that are traced."""
    match command:
        case Send(to=to, message=TasksPushed(calls=calls)):
            return [(TraceKind.TASK_PUSHED, task_id.hex(), to, attempt) for task_id, attempt, _ in calls]
        case RunTasks(tasks=tasks) | ForgetTasks(tasks=tasks):
            return [(TraceKind.TASK_STARTED, task.spec.task_id.hex(), "", task.attempt) for task in tasks]
        case _:
            key = _command_key(command)
            return [] if key is None else [key]


def _command_key(command: Command) -> Key | None:
    match command:
        case Send(to=to, message=TaskPushed(spec=spec, attempt=attempt)):
            return (TraceKind.TASK_PUSHED, spec.task_id.hex(), to, attempt)
        case RunTask(spec=spec, attempt=attempt):
            return (TraceKind.TASK_STARTED, spec.task_id.hex(), "", attempt)
        case NoteRetry(task_id=task_id, attempt=attempt, reason=reason):
            return (TraceKind.TASK_RETRIED, task_id.hex(), reason, attempt)
        case StartWorker(worker=worker):
            return (TraceKind.WORKER_STARTED, worker, "", 0)
        case EvictObject(object_id=object_id):
            return (TraceKind.OBJECT_EVICTED, object_id.hex(), "", 0)
        case SpillObject(object_id=object_id):
            return (TraceKind.OBJECT_SPILLED, object_id.hex(), "", 0)
        case RestoreObject(object_id=object_id):
            return (TraceKind.OBJECT_RESTORED, object_id.hex(), "", 0)
        case SendObject(object_id=object_id, to=to):
            return (TraceKind.TRANSFER_STARTED, object_id.hex(), to, 0)
        case _:
            return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """How the actions of one process compare with its commands."""

    matched: int
    actions_without_command: Sequence[Key]
    commands_without_action: Sequence[Key]

    @property
    def is_exact(self) -> bool:
        return not self.actions_without_command and not self.commands_without_action


def match_actions(events: Iterable[TraceEvent], commands: Iterable[Command]) -> Match:
    """Pair each action with exactly one command."""
    acted = Counter(action_key(event) for event in events if event.kind in ACTIONS)
    ordered: Counter[Key] = Counter()
    last_run: list[Key] = []
    for command in commands:
        if isinstance(command, ForgetTasks):
            ordered.subtract(command_keys(command))
        else:
            keys = command_keys(command)
            ordered.update(keys)
            if isinstance(command, RunTask | RunTasks):
                last_run = keys
    # A process that ends, however it ends, may leave tasks that it was told to run after the one in hand.
    ordered -= Counter(last_run[1:]) - acted
    return Match(
        matched=(acted & ordered).total(),
        actions_without_command=sorted((acted - ordered).elements()),
        commands_without_action=sorted((ordered - acted).elements()),
    )
