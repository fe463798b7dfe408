"""An execution is one run of a recorded script, with its state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dualray.recording.graph import Script
from dualray.shared.model.commands import RunTask
from dualray.shared.model.errors import ErrorInfo, ErrorKind
from dualray.shared.model.events import Result, TaskFinished, TaskPushed
from dualray.shared.model.ids import Address, NodeID, ObjectID, WaitID, return_object_id


class Execution:
    """One run of a script."""

    __slots__ = (
        "at",
        "attempt",
        "counter",
        "has_paid",
        "held",
        "owed_ns",
        "puts",
        "roles",
        "scale",
        "script",
        "started_ns",
        "task",
        "waits_for",
    )

    def __init__(self, task: RunTask | TaskPushed | None, script: Script, scale: float) -> None:
        self.task = task
        self.attempt = 0 if task is None else task.attempt
        self.script = script
        self.scale = scale
        self.at = 0
        self.owed_ns = 0.0
        self.has_paid = False
        self.waits_for: tuple[WaitID, tuple[Any, ...]] | None = None
        self.roles: dict[bytes, bytes] | None = None
        """Objects of the script that have swapped their roles."""
        self.held: dict[ObjectID, int] = {}
        self.counter = 0
        self.puts = 0
        self.started_ns = 0


def recorded_error(kind: str, name: str) -> ErrorInfo | None:
    """What a call failed with when it was recorded; None: it did not."""
    if not kind:
        return None
    return ErrorInfo(kind=ErrorKind(kind), message=f"{name} failed when it was recorded")


def finished_alone(
    pushed: TaskPushed, sizes: Sequence[int], worker: Address, node: NodeID, duration_ns: int
) -> TaskFinished:
    """What a worker's machine would report of a task with small results. One is made for most tasks: this takes a
    third of the time of the constructors."""
    task_id = pushed.spec.task_id
    results = []
    for index, size in enumerate(sizes):
        result = _new(Result)
        result.object_id = return_object_id(task_id, index)
        result.size_bytes = size
        result.inline = True
        result.nested = ()
        results.append(result)
    finished = _new(TaskFinished)
    finished.task_id = task_id
    finished.attempt = pushed.attempt
    finished.worker = worker
    finished.node = node
    finished.results = tuple(results)
    finished.duration_ns = duration_ns
    finished.error = None
    return finished


_new = object.__new__
