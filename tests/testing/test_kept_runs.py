"""The swarm scenarios still cost and say what is kept of them: see tests/kept_runs."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kept_runs.runs import KEPT, differences, names, written_with

ROOT = Path(__file__).parents[2]
SEEDS = 1
"""Of each scenario that are run here; `python -m tests.kept_runs` runs all that are kept."""


def test_the_runs_are_those_that_are_kept():
    kept = json.loads(KEPT.read_text())["written_with"]
    if kept != written_with():
        pytest.skip(f"they were kept with {kept}: how long messages are differs")
    done = subprocess.run(
        [sys.executable, "-m", "tests.kept_runs", "--seeds", str(SEEDS)], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, (
        f"{done.stdout[-4000:]}{done.stderr[-1000:]}\nIf that is meant, keep the new figures with "
        f"`python -m tests.kept_runs --write`, and say in the commit what costs more or less, and why."
    )


def test_every_scenario_is_kept():
    assert set(json.loads(KEPT.read_text())) == {
        "written_with",
        "modelled",
        "choices",
        "shuffled",
        "distorted",
        *names(),
    }


def test_a_difference_says_which_figure_it_is():
    kept = {"makespan_ns": 1_000, "kinds": {"owner: Send LeaseRequested": 41}, "said": {"head": "a", "node": "b"}}
    found = {"makespan_ns": 1_000, "kinds": {"owner: Send LeaseRequested": 44}, "said": {"head": "a", "node": "c"}}
    assert differences(kept, kept, "it") == []
    assert differences(kept, found, "it") == [
        "it, kinds: owner: Send LeaseRequested: expected 41, found 44",
        "it: node decides otherwise, or at another time",
    ]
