"""Demand and supply over time: how many tasks ran, were queued and waited for arguments, and how many CPUs there were.

The run's time is cut into steps of equal length, of which there are at most STEPS_MAX: when there would be more, two
become one. A step keeps demand and supply as they were at its end, and the largest demand that there was in it.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from dualray.dashboard.tables import Tables

STEPS_MAX: Final = 1_000
FIRST_STEP_S: Final = 0.001
MOST: Final = 6
"""From here, a row has the largest demand of its step."""


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
            self._rows[step] = [step, *self.now, *self.now[:3]]
        else:
            row[1:MOST] = self.now
            if sum(self.now[:3]) > sum(row[MOST:]):
                row[MOST:] = self.now[:3]
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
    known[1:MOST] = row[1:MOST]
    if sum(row[MOST:]) > sum(known[MOST:]):
        known[MOST:] = row[MOST:]
