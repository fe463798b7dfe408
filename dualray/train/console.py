"""A training run's output on standard error: a line for each report, and a table at its end."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from dualray.text_tables import Table, terminal_width
from dualray.train.result import Failure, Result

_HEADS = {"training_iteration": "report", "time_total_s": "seconds", "checkpoint_dir_name": "checkpoint"}
_MODELLED = ("steps", "compute_s", "all_reduce_s", "all_reduce_bytes")
_OWN = (*_HEADS, "attempt", *_MODELLED)
_ROWS_MAX = 20
"""Of the table: more reports than that are not all shown."""


class RunConsole:
    """Silent with `verbose=0`."""

    def __init__(self, name: str, verbose: int) -> None:
        self._name = name
        self._is_quiet = verbose <= 0

    def begins(self, workers: int, bundle: Mapping[str, float], path: Any) -> None:
        held = ", ".join(f"{amount:g} {name}" for name, amount in bundle.items())
        who = f"{workers} worker{'s' * (workers > 1)} with {held} each" if workers else "in this process"
        self._print(f"{self._name}: {who}; {path}")

    def report(self, row: Mapping[str, Any], metrics: Mapping[str, Any]) -> None:
        numbers = ", ".join(f"{name}={_short(value)}" for name, value in metrics.items())
        stored = f", {row['checkpoint_dir_name']}" if row["checkpoint_dir_name"] else ""
        self._print(
            f"{self._name}: report {row['training_iteration']} after {row['time_total_s']:.1f} s: {numbers}{stored}"
        )

    def fails(self, failure: Failure, goes_on: bool) -> None:
        after = f"report {failure.resumed_from}" if failure.resumed_from else "the beginning"
        done = f"training continues from {after}, and repeats {failure.lost_s:.1f} s" if goes_on else "training ends"
        self._print(f"{self._name}: {failure.error}; {done}")

    def ends(self, result: Result) -> None:
        """The table."""
        rows = list(result.history)
        if not rows:
            return
        metrics = list(dict.fromkeys(name for row in rows for name in row if name not in _OWN))
        names = ["training_iteration", "time_total_s", *metrics, "checkpoint_dir_name"]
        table = Table(title=self._name)
        for name in names:
            table.add_column(_HEADS.get(name, name), justify="right")
        skipped = len(rows) - _ROWS_MAX
        for index in range(len(rows)):
            if skipped > 0 and index == _ROWS_MAX // 2:
                table.add_row(f"... {skipped} more")
            if skipped <= 0 or not _ROWS_MAX // 2 <= index < len(rows) - _ROWS_MAX // 2:
                table.add_row(*(_short(rows[index].get(name)).removeprefix("checkpoint_") for name in names))
        self._print(table.text(sys.stderr, terminal_width()))
        last = rows[-1]
        if "steps" in last:
            self._print(
                f"simulated: {last['steps']} steps of rank 0, {_short(last['compute_s'])} s of computation and "
                f"{_short(last['all_reduce_s'])} s of all-reduce, {last['all_reduce_bytes']} bytes of gradients"
            )

    def _print(self, line: str) -> None:
        if not self._is_quiet:
            sys.stderr.write(f"{line}\n")


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.5g}"
    return "" if value is None else str(value)
