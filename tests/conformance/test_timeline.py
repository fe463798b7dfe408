"""What a program has done so far, as a picture."""

from __future__ import annotations

import json

import pytest

import dualray as ray
from dualray.exceptions import DualrayError, NotInitializedError
from tests.conformance.support import get


@ray.remote
def halve(number):
    return number / 2


@ray.remote
def draw_in_a_task():
    return ray.timeline()


@pytest.fixture
def recorded(start, tmp_path):
    start(decision_log=str(tmp_path / "log"))
    get([halve.remote(number) for number in range(3)])


@pytest.mark.usefixtures("recorded")
def test_the_timeline_of_the_program(tmp_path):
    tasks = [row for row in ray.timeline() if row["ph"] == "X"]
    assert [row["name"] for row in tasks] == ["halve"] * 3
    assert all(row["dur"] >= 0 and row["ts"] >= 0 for row in tasks)
    assert ray.timeline(tmp_path / "picture.json") is None
    assert len(json.loads((tmp_path / "picture.json").read_text())["traceEvents"]) >= len(tasks)


@pytest.mark.usefixtures("recorded")
def test_a_task_has_no_timeline():
    with pytest.raises(DualrayError, match="timeline is only for the program that called"):
        get(draw_in_a_task.remote())


def test_a_run_without_a_decision_log_has_its_tasks(start):
    @ray.remote
    class Counter:
        def add(self):
            return 1

    start()
    get([halve.remote(number) for number in range(3)])
    tasks = [row for row in ray.timeline() if row["ph"] == "X"]
    assert [row["name"] for row in tasks] == ["halve"] * 3
    assert all(row["dur"] >= 0 and row["ts"] >= 0 for row in tasks)
    counter = Counter.remote()  # its process may end one of an idle worker, and with it what that worker has kept
    get(counter.add.remote())
    assert {"Counter", "Counter.add"} <= {row["name"] for row in ray.timeline() if row["ph"] == "X"}


def test_before_init():
    with pytest.raises(NotInitializedError, match="timeline was called before"):
        ray.timeline()
