"""When the tasks of a process began and ended: kept for the last of them, and asked for by who lists tasks."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, Final, TypeAlias

from dualray.shared.machines.state_rows import Row
from dualray.shared.model.ids import Address, TaskID

TASKS_KEPT: Final = 10_000
"""Of how many tasks a process keeps the times, as in Ray."""

TaskTimes: TypeAlias = deque[Any]
"""Of each task that has ended, one after another: its id, attempt and name, when it began, and when it ended, in ns of
the process's clock. A tuple for each would be one more object that Python's garbage collector looks at."""

_FIELDS: Final = 5


def new_times() -> TaskTimes:
    """Return times that forget the oldest task."""
    return deque(maxlen=TASKS_KEPT * _FIELDS)


def each_time(times: TaskTimes) -> Iterator[tuple[TaskID, int, str, int, int]]:
    """Return the fields of each task, the oldest first."""
    fields = iter(times)
    return zip(*[fields] * _FIELDS, strict=True)


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
