"""Short forms of what an owner is told, and of what it answers."""

from __future__ import annotations

from dualray.shared.model.commands import NoteRetry, Send
from dualray.shared.model.events import ObjectDemanded, RefsDropped, TaskPushed, TasksPushed
from dualray.shared.model.ids import Address, TaskID
from dualray.shared.model.resources import NOTHING
from tests.shared.builders import MS, OwnerStepper, of, task, tid

WORKER = Address("node-0/w0")


def retries(commands) -> list[tuple[int, int, str]]:
    """The tasks that are queued again: number, attempt to come, reason."""
    return [(note.task_id[0], note.attempt, note.reason) for note in of(commands, NoteRetry)]


def pushes(commands) -> list[tuple[int, int, str]]:
    """The tasks that were pushed: number, attempt, to whom."""
    found = []
    for command in of(commands, Send):
        if isinstance(command.message, TaskPushed | TasksPushed):
            several = isinstance(command.message, TasksPushed)
            for push in command.message.each() if several else [command.message]:
                found += [(push.spec.task_id[0], push.attempt, command.to)]
    return found


def error_of(stepper: OwnerStepper, object_id) -> str:
    """What reading the object raises."""
    failure = stepper.machine.values.table[object_id].failure
    assert failure is not None
    return failure.message


def demanded(stepper: OwnerStepper, object_id, losses: int = 1, *, asked: bool = False):
    return stepper(ObjectDemanded(object_id=object_id, losses=losses, asked=asked))


def dropped(*object_ids) -> RefsDropped:
    return RefsDropped(object_ids=object_ids)


def call(number: int, **options):
    return task(number, actor=1, resources=NOTHING, max_retries=options.pop("max_task_retries", 0), **options)


def outcomes(*numbers: int) -> tuple[tuple[TaskID, int, int, int], ...]:
    return tuple((tid(number), 0, 10, MS) for number in numbers)
