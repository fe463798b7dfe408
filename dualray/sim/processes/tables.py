"""The control plane's tables, as a server beside the head keeps them: rows by key, in the order in which they came.

Nearly all rows are of tasks that have ended, and few runs read one. So these wait, in the order in which they came,
and are put in their places when somebody reads a table, or writes a row of another kind.
"""

from __future__ import annotations

from collections.abc import Mapping

from dualray.shared.machines.owner.task_records import TASK_TABLE
from dualray.shared.model.ids import TaskID

Fields = tuple[tuple[str, str], ...]


class Tables:
    """See the module."""

    def __init__(self) -> None:
        self._rows: dict[str, dict[str, Fields]] = {}
        self._tasks: list[TaskID] = []
        """Whose rows wait,"""
        self._fields: list[Fields] = []
        """and what they say."""

    def write(self, table: str, key: str, fields: Fields) -> None:
        """A row is there, or says something else now."""
        if self._tasks:
            self._write_down()
        rows = self._rows.get(table)
        if rows is None:
            rows = self._rows[table] = {}
        rows[key] = fields

    def write_task(self, task: TaskID, fields: Fields) -> None:
        """As `write`, of a task that has ended."""
        self._tasks.append(task)
        self._fields.append(fields)

    def read(self, table: str) -> Mapping[str, Fields]:
        """The rows of a table."""
        return self.all().get(table, {})

    def all(self) -> Mapping[str, Mapping[str, Fields]]:
        """Every table that has rows."""
        if self._tasks:
            self._write_down()
        return self._rows

    def _write_down(self) -> None:
        rows = self._rows.setdefault(TASK_TABLE, {})
        for task, fields in zip(self._tasks, self._fields, strict=True):
            rows[task.hex()] = fields
        self._tasks, self._fields = [], []
