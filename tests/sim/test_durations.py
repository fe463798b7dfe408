"""What tasks take of which nobody says how long they take: it varies, reproducibly, unless it is fixed."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Any

import pytest

import dualray
from dualray.shared.core.execution import Execution
from dualray.shared.model.ids import TaskID
from dualray.shared.scenario.file import parse_scenario
from dualray.sim.cost.task_costs import SHARES, TaskCosts, shares_permille


@pytest.fixture(autouse=True)
def ended() -> Iterator[None]:
    yield
    dualray.shutdown()


@dualray.remote
def unsaid() -> None:
    pass


def took_ns(task: Any = unsaid, *, tasks: int, **settings: Any) -> list[int]:
    """What so many tasks have taken, one after the other."""
    runtime: Any = dualray.init(mode="sim", **settings).runtime
    for _ in range(tasks):
        dualray.get(task.remote())
    began: dict[tuple[str, int], int] = {}
    took = []
    for event in runtime.cluster.trace_events:
        if event.kind == "task_started":
            began[event.subject, event.amount] = event.time_ns
        elif event.kind == "task_ended":
            took.append(event.time_ns - began[event.subject, event.amount])
    dualray.shutdown()
    return took[1:]  # the first one brings its function


def test_they_vary_about_a_millisecond_by_a_third_and_as_the_seed_says() -> None:
    shares = shares_permille()
    assert len(shares) == SHARES
    assert statistics.mean(shares) == pytest.approx(1000, abs=1)
    assert statistics.pstdev(shares) == pytest.approx(300, abs=5)
    took, other = took_ns(tasks=400, seed=1), took_ns(tasks=400, seed=2)
    for each in (took, other):
        assert statistics.mean(each) == pytest.approx(1_000_000, rel=0.06)
        assert statistics.pstdev(each) == pytest.approx(300_000, rel=0.15)
    assert abs(statistics.correlation(took, other)) < 0.2
    assert took_ns(tasks=400, seed=1) == took


def test_each_attempt_has_its_own() -> None:
    costs = TaskCosts(seed=1, default_ns=1_000_000, varies=True)
    tasks = [Execution(task_id=TaskID(bytes(12)), attempt=attempt, name="f") for attempt in range(50)]
    took = [costs.unsaid_ns(task) for task in tasks]
    assert len(set(took)) > 30
    assert took == [costs.unsaid_ns(task) for task in tasks]


def test_fixed_ones_are_all_alike_by_argument_and_by_scenario(monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(took_ns(tasks=9, durations="fixed")) == {1_000_000}
    text = "name: test\ncluster: {nodes: 1}\nworkload: {generate: nested}\ndurations: fixed\n"
    assert set(took_ns(tasks=9, scenario=parse_scenario(text, "test"))) == {1_000_000}
    assert set(took_ns(tasks=9, scenario=parse_scenario(text.replace("fixed", "{other: 2s}"), "test"))) != {1_000_000}
    monkeypatch.setenv("DUALRAY_DURATIONS", "fixed")
    assert set(took_ns(tasks=9)) == {1_000_000}
    with pytest.raises(ValueError, match="durations='often' must be 'vary' or 'fixed'"):
        dualray.init(mode="sim", durations="often")
    with pytest.raises(ValueError, match="durations"):
        parse_scenario(text.replace("fixed", "often"), "test")


def test_one_that_is_said_is_exact() -> None:
    task: Any = unsaid
    assert set(took_ns(task.options(duration=0.5), tasks=9)) == {500_000_000}
