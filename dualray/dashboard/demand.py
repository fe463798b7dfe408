"""Demand and supply over time: how many tasks ran, were queued and waited for arguments, and how many CPUs there were.

The run's time is cut into steps of equal length, of which there are at most STEPS_MAX: when there would be more, two
become one. A step keeps the demand of the moment at which it was largest, and the last supply.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from dualray.dashboard.tables import Tables

STEPS_MAX: Final = 1_000
FIRST_STEP_S: Final = 0.001
RUNNING, QUEUED, BLOCKED, CPUS, NODES = range(1, 6)


class Demand:
    """See the module; writes the table `demand` and `head["step_s"]`."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._rows: dict[int, list[Any]] = {}
        self.step_s = FIRST_STEP_S
        self.now = [0, 0, 0, 0.0, 0]
        """Running, queued, blocked, CPUs, nodes."""
        tables.head["step_s"] = self.step_s

    def note(self, time_s: float) -> None:
        """The numbers in `now` are those from this time on."""
        while time_s / self.step_s >= STEPS_MAX:
            self._double()
        step = max(0, int(time_s / self.step_s))
        row = self._rows.get(step)
        if row is None:
            row = self._rows[step] = [step, *self.now]
        else:  # most changes of a task come here: no call, and nothing to tell where a step has seen more
            running, queued, blocked, cpus, nodes = self.now
            is_less = running + queued + blocked <= row[RUNNING] + row[QUEUED] + row[BLOCKED]
            if is_less and cpus == row[CPUS] and nodes == row[NODES]:
                return
            row[CPUS], row[NODES] = cpus, nodes
            if not is_less:
                row[RUNNING], row[QUEUED], row[BLOCKED] = running, queued, blocked
        self._tables.put("demand", str(step), partial(self._rows.get, step))

    def _double(self) -> None:
        """Two steps become one."""
        self.step_s *= 2
        self._tables.head["step_s"] = self.step_s
        rows, self._rows = self._rows, {}
        for step in sorted(rows):
            _merge(self._rows, step // 2, rows[step])
        for step in sorted({*map(int, self._tables.keys("demand")), *self._rows}):
            self._tables.put("demand", str(step), partial(self._rows.get, step))


def _merge(rows: dict[int, list[Any]], step: int, row: list[Any]) -> None:
    known = rows.get(step)
    if known is None:
        rows[step] = [step, *row[1:]]
        return
    if sum(row[RUNNING:CPUS]) > sum(known[RUNNING:CPUS]):
        known[RUNNING:CPUS] = row[RUNNING:CPUS]
    known[CPUS], known[NODES] = row[CPUS], row[NODES]
