"""Published results against simulated ones: `python -m scenarios.published` runs the scenarios and prints the table.

Every number comes out of a run of a scenario file (scenarios/published_*.yaml); docs/published.md says what the figures
mean. `python -m scenarios.published --fit` shows how the parameters in those files were found.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from dualray.shared.scenario.scenario import Scenario
from dualray.testing.run import load_scenario, run_scenario

DIRECTORY = Path(__file__).parent
SATURATED_PERCENT = 98
"""A driver that is busy for so much of the time is taken for saturated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One published figure.

    Attributes:
        scenario: the file's name, without published_ and .yaml.
        figure: what the program returns under this name; with `over`, the quotient by the same figure, or
            `over_figure`, of that scenario.
        published: the number; `least` and `most` where a range was published, or a bound follows from the words.
        how: what it is to the parameters: fitted, predicted, or a shape.
    """

    what: str
    scenario: str
    figure: str
    how: str
    unit: str = ""
    published: float | None = None
    least: float | None = None
    most: float | None = None
    over: str | None = None
    over_figure: str | None = None

    def simulated(self, figures: Mapping[str, Mapping[str, float]]) -> float:
        """The number that came out."""
        value = figures[self.scenario][self.figure]
        return value if self.over is None else value / figures[self.over][self.over_figure or self.figure]

    @property
    def words(self) -> str:
        """What was published."""
        if self.published is not None:
            return _number(self.published)
        bounds = (("at least", self.least), ("at most", self.most))
        if self.least is not None and self.most is not None:
            return f"{_number(self.least)} to {_number(self.most)}"
        return " ".join(f"{side} {_number(bound)}" for side, bound in bounds if bound is not None)

    def error(self, value: float) -> str:
        """How far off the simulated number is."""
        if self.published is not None:
            return f"{100 * (value / self.published - 1):+.1f} %"
        within = (self.least is None or value >= self.least) and (self.most is None or value <= self.most)
        if within:
            return "within"
        bound = self.least if self.least is not None and value < self.least else self.most
        assert bound is not None
        return f"{100 * (value / bound - 1):+.1f} % beyond"


def _pong(batch: int, seconds: float, where: str, how: str) -> Row:
    return Row(
        what=f"Pong, a batch of {batch} on {where}",
        scenario=f"pong_{batch}",
        figure="seconds_per_update",
        how=how,
        unit="s an update",
        published=seconds,
    )


def _locality(size: str, least: float, most: float) -> Row:
    return Row(
        what=f"Task with {size}: without locality, over with it",
        scenario="locality_unaware",
        figure=f"latency_ms_{size}",
        how="shape",
        unit="ratio",
        least=least,
        most=most,
        over="locality_aware",
    )


ROWS: tuple[Row, ...] = (
    _pong(1, 1.0, "64 cores", "fitted"),
    _pong(10, 2.5, "64 cores", "fitted"),
    _pong(60, 3.0, "64 cores", "fitted"),
    _pong(300, 10.0, "11 x 18 cores", "predicted"),
    *(
        Row(
            what=f"A3C, {workers} workers",
            scenario=f"a3c_{workers}",
            figure="minutes_to_train",
            how="fitted",
            unit="min to train",
            published=minutes,
        )
        for workers, minutes in ((8, 25.0), (16, 15.0))
    ),
    Row(
        what="With locality: task with 100MB, over one with 100kB",
        scenario="locality_aware",
        figure="latency_ms_100MB",
        how="shape",
        unit="ratio",
        least=0.5,
        most=2.0,
        over="locality_aware",
        over_figure="latency_ms_100kB",
    ),
    _locality("10MB", 10, 100),
    _locality("100MB", 10, 100),
    Row(
        what="Throughput of 60 nodes",
        scenario="throughput_60",
        figure="tasks_per_second",
        how="fitted",
        unit="tasks/s",
        published=1.0e6,
    ),
    Row(
        what="Throughput of 100 nodes",
        scenario="throughput_100",
        figure="tasks_per_second",
        how="predicted",
        unit="tasks/s",
        published=1.8e6,
    ),
    Row(
        what="Throughput of 100 nodes, over that of 10",
        scenario="throughput_100",
        figure="tasks_per_second",
        how="shape",
        unit="ratio",
        published=10.0,
        over="throughput_10",
    ),
    *(
        Row(
            what=f"Throughput after node loss {number}",
            scenario="reconstruction",
            figure=f"back_{number}_percent",
            how="predicted",
            unit="% of before",
            published=100.0,
        )
        for number in (1, 2, 3)
    ),
)

SCENARIOS: tuple[str, ...] = tuple(
    dict.fromkeys(name for row in ROWS for name in (row.scenario, row.over) if name is not None)
)


def figures_of(name: str) -> dict[str, float]:
    """Run one of the scenarios; what its program returned.

    Raises:
        RuntimeError: it failed.
    """
    return _run(load_scenario(DIRECTORY / f"published_{name}.yaml"))


def _run(scenario: Scenario) -> dict[str, float]:
    outcome = run_scenario(scenario, directory=DIRECTORY)
    if not outcome.succeeded:
        raise RuntimeError(f"{scenario.name} ended with {outcome.error[0]}: {outcome.message}")
    found: dict[str, float] = outcome.result
    return found


def with_workers(workers: int) -> dict[str, float]:
    """A3C with another number of workers."""
    scenario = load_scenario(DIRECTORY / "published_a3c_16.yaml")
    kwargs = {**scenario.workload.kwargs, "workers": workers}
    return _run(scenario.model_copy(update={"workload": scenario.workload.model_copy(update={"kwargs": kwargs})}))


def saturation(of: Callable[[int], Mapping[str, float]], workers: Iterable[int]) -> int | None:
    """The least number of workers at which A3C's driver is busy all the time."""
    return next((it for it in workers if of(it)["driver_busy_percent"] >= SATURATED_PERCENT), None)


def table(figures: Mapping[str, Mapping[str, float]], rows: Iterable[Row] = ROWS) -> Iterator[str]:
    """The comparison, as a table in Markdown."""
    yield "| result | unit | published | simulated | error | |"
    yield "|---|---|--:|--:|--:|---|"
    for row in rows:
        value = row.simulated(figures)
        yield f"| {row.what} | {row.unit} | {row.words} | {_number(value)} | {row.error(value)} | {row.how} |"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


# ---- The fit -------------------------------------------------------------------------------------------------------

PONG = {1: 1.0, 10: 2.5, 60: 3.0}
"""Seconds an update by batch, on 64 cores: what the parameters of Pong were fitted on, and nothing else."""
ROUNDING_S = 0.25
"""They were published in steps of half a second."""


def slowest_of(count: int, scale_s: float, most_s: float) -> float:
    """The mean of the longest of so many rollouts of exponential(scale, most)."""
    seconds = np.linspace(0, most_s, 20_001)
    below = (1 - np.exp(-seconds / scale_s)) / (1 - np.exp(-most_s / scale_s))
    return float(np.trapezoid(1 - below**count, seconds))


def fit_pong() -> tuple[float, float, float]:
    """Scale and bound of a rollout's length, and the driver's time for one gradient, in seconds.

    The driver adds up one gradient after another, so 60 of them fit into the 3 s (at most 3.25) of the third row: that
    bounds its time for one, and nothing else in the three rows tells it: it is taken from the middle of its range. The
    two others follow by least squares of the relative errors of: mean of the longest rollout, and one gradient.
    """
    add_s = (PONG[60] + ROUNDING_S) / 60 / 2
    guess = np.array([1.0, 3.0])
    for _ in range(50):  # Gauss-Newton
        errors = _pong_errors(guess, add_s)
        steps = [_pong_errors(guess + step, add_s) - errors for step in np.eye(2) * 1e-5]
        slope = np.array(steps).T / 1e-5
        guess = guess - 0.5 * np.linalg.lstsq(slope, errors, rcond=None)[0]
    return float(guess[0]), float(guess[1]), add_s


def _pong_errors(guess: Any, add_s: float) -> Any:
    return np.array([(slowest_of(batch, *guess) + add_s) / seconds - 1 for batch, seconds in PONG.items()])


# ---- The command ---------------------------------------------------------------------------------------------------


def main() -> None:
    """Print the table, or the fit."""
    parser = argparse.ArgumentParser(description="Published results against simulated ones.")
    parser.add_argument("--fit", action="store_true", help="show how the parameters of Pong were found")
    parser.add_argument("--jobs", type=int, default=1, help="processes at once")
    chosen = parser.parse_args()
    if chosen.fit:
        scale_s, most_s, add_s = fit_pong()
        print(f"rollout: exponential({scale_s:.3f}s, {most_s:.3f}s), add_seconds: {add_s:.3f}")
        for batch, seconds in PONG.items():
            print(f"a batch of {batch}: {slowest_of(batch, scale_s, most_s) + add_s:.2f} s, published {seconds:g} s")
        return
    with ProcessPoolExecutor(max_workers=chosen.jobs, mp_context=get_context("spawn")) as pool:
        figures = dict(zip(SCENARIOS, pool.map(figures_of, SCENARIOS), strict=True))
        print("\n".join(table(figures)))
        sweep = list(range(8, 25))
        busy = dict(zip(sweep, pool.map(with_workers, sweep), strict=True))
    found = saturation(busy.__getitem__, sweep)
    print(f"\nA3C's driver is saturated (busy for {SATURATED_PERCENT} % of the time) from {found} workers on.")


if __name__ == "__main__":
    main()
