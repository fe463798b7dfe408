"""`make bench`: every row of the baselines, for dualray and for Ray in the same run, and one table of the ratios.

There are no targets here: the table says where we stand. Ray runs when it is installed (the `bench` extra), and the
table says so when it is not.
"""

from __future__ import annotations

import importlib
import importlib.util
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from pytest_benchmark.fixture import BenchmarkFixture
from rich import box
from rich.console import Console
from rich.table import Table

import dualray

PEERS = ("dualray", "ray")
NUM_CPUS = 2  # as in the baselines
MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row of the table.

    Attributes:
        operation: what one operation is.
        count: operations in one round.
        unit: "/s", "GB/s" (an operation moves `gigabytes`), or "s" (seconds; less is better).
        warm: rounds before those that count.
    """

    name: str
    operation: str
    count: int = 1
    unit: str = "/s"
    rounds: int = 5
    warm: int = 1
    gigabytes: float = 0.0

    def figure(self, median_s: float) -> float:
        """What the table shows for a median round."""
        if self.unit == "s":
            return median_s / self.count
        return self.count * (self.gigabytes if self.unit == "GB/s" else 1.0) / median_s

    def ratio(self, ours: float, theirs: float) -> float:
        """How many times better ours is."""
        return theirs / ours if self.unit == "s" else ours / theirs


@dataclass(slots=True)
class Results:
    """Figures by row and peer, as the rows end."""

    figures: dict[str, dict[str, float]] = field(default_factory=dict)
    rows: dict[str, Row] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)


RESULTS = pytest.StashKey[Results]()


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    config.stash[RESULTS] = Results()
    config.option.benchmark_quiet = True  # our table says it in 25 lines
    # A peer's warnings are no failures of ours. Filters that come later win.
    config.addinivalue_line("filterwarnings", "default")


@pytest.fixture(scope="module")
def results(request: pytest.FixtureRequest) -> Results:
    return request.config.stash[RESULTS]


@pytest.fixture(scope="module", params=PEERS)
def api(request: pytest.FixtureRequest, results: Results) -> Any:
    """dualray, or Ray: programs are written in the vocabulary that both have."""
    name: str = request.param
    if importlib.util.find_spec(name) is None:
        results.absent[name] = f"{name} is not installed: pip install 'dualray[bench]', or make bench"
        pytest.skip(results.absent[name])
    return importlib.import_module(name)


def start(api: Any, **options: Any) -> None:
    """`init` with the CPUs of the baselines."""
    quiet = {"include_dashboard": False, "logging_level": "ERROR"} if api.__name__ == "ray" else {"mode": "real"}
    api.init(num_cpus=NUM_CPUS, log_to_driver=False, **quiet, **options)


Measure = Callable[..., None]


@pytest.fixture
def measure(benchmark: BenchmarkFixture, results: Results) -> Measure:
    """Time the rounds of a row: `measure(row, peer, one_round, setup=...)`. The first round is not counted, for it
    starts workers and pickles functions."""

    def run(
        row: Row, peer: str, one_round: Callable[[], object], *, setup: Callable[[], None] | None = None, warm: int = 1
    ) -> None:
        benchmark.group = row.name
        benchmark.extra_info.update(peer=peer, count=row.count, unit=row.unit)
        benchmark.pedantic(one_round, setup=setup, rounds=row.rounds, warmup_rounds=warm)  # type: ignore[no-untyped-call]
        if benchmark.stats is not None:  # None under --benchmark-disable
            median_s: float = benchmark.stats.stats.median
            results.rows[row.name] = row
            results.figures.setdefault(row.name, {})[peer] = row.figure(median_s)

    return run


@pytest.fixture
def measure_in_turn(benchmark: BenchmarkFixture, results: Results) -> Measure:
    """Time a row's rounds of dualray, each after one of a peer: `measure_in_turn(row, one_round, setup, peer, other)`.

    What slows the machine for a while slows both. The peer's seconds stand beside ours, in the row's `extra_info`.
    """

    def run(
        row: Row,
        one_round: Callable[[], object],
        setup: Callable[[], None],
        peer: str,
        other: Callable[[], object],
        *,
        warm: int,
    ) -> None:
        others_s: list[float] = []

        def take_turns() -> None:
            start_s = time.perf_counter()
            other()
            others_s.append(time.perf_counter() - start_s)
            setup()

        benchmark.group = row.name
        benchmark.extra_info.update(peer="dualray", count=row.count, unit=row.unit)
        benchmark.pedantic(one_round, setup=take_turns, rounds=row.rounds, warmup_rounds=warm)  # type: ignore[no-untyped-call]
        if benchmark.stats is not None:  # None under --benchmark-disable
            median_s = statistics.median(others_s[warm:])
            benchmark.extra_info.update(other=peer, other_s=others_s[warm:], other_median_s=median_s)
            results.rows[row.name] = row
            results.figures[row.name] = {
                "dualray": row.figure(benchmark.stats.stats.median),
                peer: row.figure(median_s),
            }

    return run


def pytest_terminal_summary(config: pytest.Config) -> None:
    results = config.stash[RESULTS]
    if results.figures:
        console = Console()
        console.print()
        console.print(table_of(results))
        if {"put_GBps", "memcpy_GBps"} <= results.figures.keys():
            for peer, figure in results.figures["put_GBps"].items():
                share = figure / results.figures["memcpy_GBps"][peer]
                console.print(f"put of 100 MiB by {peer}: {share:.0%} of a warm copy in the same run")
        for reason in results.absent.values():
            console.print(reason, markup=False)


def table_of(results: Results) -> Table:
    """The figures side by side."""
    core = "a compiled core" if dualray.__compiled__ else "a core of pure Python"
    table = Table(
        title=f"Medians of dualray with {core}; a ratio above 1 means that it is faster",
        title_justify="left",
        box=box.SIMPLE_HEAD,
    )
    for heading in ("row", "one operation", "dualray", "the other", "ratio"):
        is_number = heading in ("dualray", "the other", "ratio")
        table.add_column(heading, justify="right" if is_number else "left", no_wrap=is_number or heading == "row")
    for name, row in results.rows.items():
        figures = dict(results.figures[name])
        ours = figures.pop("dualray", None)
        other, theirs = next(iter(figures.items()), ("", None))
        table.add_row(
            name,
            row.operation,
            shown(ours, row.unit),
            f"{shown(theirs, row.unit)} {other}",
            shown(row.ratio(ours, theirs), "") if ours and theirs else "",
        )
    return table


def shown(figure: float | None, unit: str) -> str:
    """Three digits that count."""
    if figure is None:
        return ""
    return f"{figure:,.0f} {unit}" if figure >= 100 else f"{figure:.3g} {unit}"
