"""Every scenario file of the repository is run, and what it expects is what happens."""

from pathlib import Path

import pytest

from dualray.testing.expectations import judge
from dualray.testing.run import load_scenario, run_scenario

SCENARIOS = Path(__file__).parents[3] / "scenarios"
OTHERS = ("published_", "application_")
FILES = sorted(path for path in SCENARIOS.glob("*.yaml") if not path.stem.startswith(OTHERS))
"""All but the published results and the applications, which tests/testing/ has: test_published.py and
test_application_scenarios.py."""


@pytest.fixture(autouse=True)
def _from_the_root(monkeypatch):
    monkeypatch.chdir(SCENARIOS.parent)


def test_there_are_scenarios():
    assert len(FILES) >= 15


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_scenario_is_what_it_says(path):
    scenario = load_scenario(path)
    assert path.read_text().startswith("# "), "a scenario file opens with what it shows"
    assert scenario.description
    outcome = run_scenario(scenario, directory=SCENARIOS)
    reference = None
    if scenario.expect.same_as_without_faults:
        reference = run_scenario(scenario.with_faults(()), directory=SCENARIOS)
    wrong = [verdict for verdict in judge(scenario, outcome, reference) if not verdict.holds]
    assert not wrong
