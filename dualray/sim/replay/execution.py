"""An execution is one run of a recorded script, with its state."""

from __future__ import annotations

from typing import Any

from dualray.recording.graph import Script
from dualray.shared.model.commands import RunTask
from dualray.shared.model.errors import ErrorInfo, ErrorKind
from dualray.shared.model.events import TaskPushed
from dualray.shared.model.ids import ObjectID, WaitID


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
