"""What recording costs, and what a sweep costs: `python -m benchmarks.whatif_costs`.

Recording: tasks a second of the same program, recorded and not, in turns; the best of some runs each. A sweep: a trace
of so many tasks, a third of them with two arguments, replayed on so many configurations on all cores.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import typer

import dualray
from dualray import whatif


@dualray.remote
def empty() -> None:
    """The task of `recording`."""


def tasks_per_s(record: Path | None, count: int, milliseconds: float) -> float:
    """Of one run."""

    @dualray.remote
    def busy(seconds: float) -> None:
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            pass

    dualray.init(mode="real", num_cpus=1, record=record, log_to_driver=False)
    try:
        call: Any = busy.remote if milliseconds else empty.remote
        args = (milliseconds / 1000,) if milliseconds else ()
        dualray.get([call(*args) for _ in range(50)])
        begun = time.perf_counter()
        dualray.get([call(*args) for _ in range(count)])
        return count / (time.perf_counter() - begun)
    finally:
        dualray.shutdown()


def recording(directory: Path, runs: int) -> None:
    """Print a line for each length of task."""
    for milliseconds, count in ((0.0, 20_000), (1.0, 1000), (5.0, 300)):
        plain, recorded = 0.0, 0.0
        for _ in range(runs):
            plain = max(plain, tasks_per_s(None, count, milliseconds))
            recorded = max(recorded, tasks_per_s(directory / "run.parquet", count, milliseconds))
        lost = 1 - recorded / plain
        print(
            f"tasks of {milliseconds:g} ms: {plain:,.0f} a second, recorded {recorded:,.0f}: {lost:+.1%} lost",
            flush=True,
        )


def make_trace(path: Path, tasks: int) -> None:
    """Record a simulation: two tasks, and one that needs both, again and again."""

    @dualray.remote(duration=0.01)
    def leaf(number: int) -> int:
        return number

    @dualray.remote(duration=0.01)
    def add(one: int, other: int) -> int:
        return one + other

    dualray.init(mode="sim", nodes=2, num_cpus=4, record=path)
    try:
        call_leaf: Any = leaf.remote
        dualray.get([add.remote(call_leaf(i), call_leaf(i + 1)) for i in range(tasks // 3)])
    finally:
        dualray.shutdown()


def sweep(directory: Path, tasks: int, configurations: int) -> None:
    """Print how long a sweep takes."""
    path = directory / "big.parquet"
    make_trace(path, tasks)
    begun = time.perf_counter()
    found = whatif.predict(path, nodes=list(range(1, configurations + 1)), cpus=[8], seeds=1)
    took_s = time.perf_counter() - begun
    assert len(found.possible) == configurations
    print(f"{tasks:,} tasks on {configurations} configurations, loading included: {took_s:.0f} s", flush=True)


def main(
    tasks: Annotated[int, typer.Option()] = 100_000,
    configurations: Annotated[int, typer.Option()] = 40,
    runs: Annotated[int, typer.Option()] = 4,
) -> None:
    """See the module."""
    with tempfile.TemporaryDirectory(prefix="dualray-costs-") as name:
        recording(Path(name), runs)
        sweep(Path(name), tasks, configurations)


if __name__ == "__main__":
    typer.run(main)
