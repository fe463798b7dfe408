"""When the tasks of a process began and ended: kept for the last of them, and asked for by who lists tasks."""

from __future__ import annotations

from typing import Final, TypeAlias

from dualray.shared.machines.state_rows import Row
from dualray.shared.model.ids import Address, TaskID

TASKS_KEPT: Final = 10_000
"""Of how many tasks a process keeps the times, as in Ray."""

TaskTime: TypeAlias = tuple[TaskID, int, str, int, int]
"""A task that has ended: its id, attempt and name, when it began, and when it ended, in ns of the process's clock."""


def time_row(
    task: TaskID | str, attempt: int, name: str, worker: Address | str, start_ns: int, end_ns: int | None
) -> Row:
    """Return the times of a task as a row. Times are in ns since 1970; a task that runs has no end."""
    return {
        "task_id": task if isinstance(task, str) else task.hex(),
        "attempt_number": attempt,
        "name": name,
        "worker_id": worker,
        "start_ns": start_ns,
        "end_ns": end_ns,
    }
