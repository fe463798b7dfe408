"""What a run says on standard error: a line for each report, and a table at its end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

from dualray.train.result import Failure, Result

_ROWS_MAX = 20
"""Of the table: more reports than that are not all shown."""


class RunConsole:
    """Silent with `verbose=0`."""

    def __init__(self, name: str, verbose: int) -> None:
        self._name = name
        self._console = Console(stderr=True, highlight=False, quiet=verbose <= 0)

    def begins(self, workers: int, bundle: Mapping[str, float], path: Any) -> None:
        held = ", ".join(f"{amount:g} {name}" for name, amount in bundle.items())
        self._print(f"{self._name}: {workers} worker{'s' * (workers > 1)} with {held} each; {path}")

    def report(self, row: Mapping[str, Any], metrics: Mapping[str, Any]) -> None:
        numbers = ", ".join(f"{name}={_short(value)}" for name, value in metrics.items())
        stored = f", {row['checkpoint_dir_name']}" if row["checkpoint_dir_name"] else ""
        self._print(
            f"{self._name}: report {row['training_iteration']} after {row['time_total_s']:.1f} s: {numbers}{stored}"
        )

    def fails(self, failure: Failure, goes_on: bool) -> None:
        after = f"report {failure.resumed_from}" if failure.resumed_from else "the beginning"
        done = f"going on from {after}, {failure.lost_s:.1f} s of work lost" if goes_on else "giving up"
        self._print(f"{self._name}: {failure.error}; {done}")

    def ends(self, result: Result) -> None:
        if not result.history:
            return
        names = list(dict.fromkeys(name for row in result.history for name in row))
        table = Table(title=self._name)
        for name in names:
            table.add_column(name, justify="right", overflow="fold")
        rows = list(result.history)
        skipped = len(rows) - _ROWS_MAX
        if skipped > 0:
            rows = [*rows[: _ROWS_MAX // 2], {names[0]: f"... {skipped} more"}, *rows[-(_ROWS_MAX // 2) :]]
        for row in rows:
            table.add_row(*(_short(row.get(name, "")) for name in names))
        self._console.print(table)

    def _print(self, line: str) -> None:
        self._console.print(line, markup=False, soft_wrap=True)


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.5g}"
    return "" if value is None else str(value)
