"""Faults in three modes: bugs of programs that are found in simulation are confirmed on Ray, by the same file."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dualray.testing.expectations import judge
from dualray.testing.outcome import Outcome
from dualray.testing.run import load_scenario, run_scenario

PROGRAMS = Path(__file__).with_name("planted_programs")
CONFIRMED = {
    "lost_update": ("RuntimeError", "updates were lost: the sum is 11"),
    "get_under_a_lock": ("GetTimeoutError", "within 10 s"),
    "unbounded_retries": ("RuntimeError", "it was paid 2 times"),
    "order_assumed": ("RuntimeError", r"the order is \[1, 2, 0\]"),
}
HIDDEN = {"store_too_small": "Ray puts an object that is larger than the store on disk"}
"""Bugs that do not show on Ray, and why."""


def run(name: str, mode: str) -> Outcome:
    return run_scenario(load_scenario(PROGRAMS / f"{name}.yaml"), directory=PROGRAMS, mode=mode)


@pytest.mark.parametrize("mode", ["sim", "ray"])
@pytest.mark.parametrize("name", CONFIRMED)
@pytest.mark.timeout(180)
def test_a_bug_is_found_in_simulation_and_confirmed_on_ray(name: str, mode: str):
    if mode == "ray":
        pytest.importorskip("ray")
    outcome = run(name, mode)
    error, words = CONFIRMED[name]
    assert error in outcome.error
    assert len(outcome.performed) == 1, outcome.missed
    assert re.search(words, outcome.message)


@pytest.mark.parametrize("name", HIDDEN)
@pytest.mark.timeout(180)
def test_a_bug_that_ray_hides(name: str):
    pytest.importorskip("ray")
    assert "ObjectStoreFullError" in run(name, "sim").error
    assert run(name, "ray").error == ()


@pytest.mark.timeout(300)
def test_nodes_are_killed_drained_paused_and_slowed_down():
    pytest.importorskip("ray")
    scenario = load_scenario(PROGRAMS / "nodes.yaml")
    outcome = run("nodes", "ray")
    assert [verdict for verdict in judge(scenario, outcome, mode="ray") if not verdict.holds] == []
    assert len(outcome.performed) == 4
