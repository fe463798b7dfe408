"""`make bench-compare`: the ratios of the last `make bench` against those that are committed in ratios.json.

Only ratios are compared, never times: both peers run in turn on the same machine, so that a slow machine, or a busy
one, moves both. A row that has fallen below `TOLERANCE` of its committed ratio is named, and the exit status is 1. With
`--update` the ratios of the run become the committed ones.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

COMMITTED = Path(__file__).with_name("ratios.json")
LAST = Path(".benchmarks/last.json")
OTHERS = ("ray", "sockets")
"""Peers that do the same as dualray; simpy's timeouts are something else."""
TOLERANCE = 0.7
"""Of the committed ratio: medians of a few rounds on a machine with other work differ by as much as a quarter."""


def ratios_of(run: dict[str, Any]) -> dict[str, float]:
    """How many times faster than its peer dualray was, by row; of a pytest-benchmark JSON document."""
    medians: dict[str, dict[str, float]] = {}
    for bench in run["benchmarks"]:
        extra = bench["extra_info"]
        if "peer" in extra:
            medians.setdefault(bench["group"], {})[extra["peer"]] = bench["stats"]["median"]
        if "other" in extra:  # they took turns
            medians[bench["group"]][extra["other"]] = extra["other_median_s"]
    return {
        row: round(by_peer[other] / by_peer["dualray"], 3)
        for row, by_peer in medians.items()
        for other in OTHERS
        if other in by_peer and "dualray" in by_peer
    }


def slower(committed: dict[str, float], measured: dict[str, float]) -> list[str]:
    """The rows that have become slower, or are missing."""
    return [row for row, ratio in committed.items() if measured.get(row, 0.0) < ratio * TOLERANCE]


def main(
    run: Annotated[Path, typer.Argument(help="JSON of a run: make bench writes it.")] = LAST,
    update: Annotated[bool, typer.Option("--update", help="Commit to the ratios of this run.")] = False,
) -> None:
    """Hold a run against the committed ratios."""
    console = Console()
    if not run.exists():
        console.print(f"{run} does not exist: run `make bench` first", markup=False)
        raise typer.Exit(2)
    measured = ratios_of(json.loads(run.read_text(encoding="utf-8")))
    if not measured:
        console.print(f"{run} has no row of both peers: Ray must be installed when `make bench` runs", markup=False)
        raise typer.Exit(2)
    if update:
        COMMITTED.write_text(json.dumps(measured, indent=2, sort_keys=True) + "\n", encoding="utf-8")
        console.print(f"{COMMITTED.name} has {len(measured)} ratios now", markup=False)
        return
    committed: dict[str, float] = json.loads(COMMITTED.read_text(encoding="utf-8"))
    fallen = slower(committed, measured)
    table = Table(title="dualray's lead over its peers", title_justify="left", box=box.SIMPLE_HEAD)
    for heading in ("row", "committed", "this run", ""):
        table.add_column(heading, justify="left" if heading in ("row", "") else "right")
    for row in sorted({*committed, *measured}):
        old, new = committed.get(row), measured.get(row)
        table.add_row(
            row, f"{old:.3g}x" if old else "", f"{new:.3g}x" if new else "missing", "slower" if row in fallen else ""
        )
    console.print(table)
    if fallen:
        console.print(f"slower than {TOLERANCE:.0%} of the committed ratio: {', '.join(fallen)}", markup=False)
        sys.exit(1)


if __name__ == "__main__":
    typer.run(main)
