"""Every scenario file of the repository is run, and what it expects is what happens."""

import random
from pathlib import Path

import pytest

import dualray
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


def test_the_seed_of_a_file_counts_unless_init_says_another(tmp_path):
    def drawn(in_file, **said):
        path = tmp_path / f"{in_file}.yaml"
        path.write_text(f"name: seeded\nseed: {in_file}\ncluster: {{nodes: 1}}\nworkload: {{script: unused.py}}\n")
        dualray.init(mode="sim", scenario=path, **said)
        try:
            return dualray.get(dualray.remote(random.random).remote())
        finally:
            dualray.shutdown()

    assert drawn(1) == drawn(1) == drawn(2, seed=1)
    assert drawn(2) != drawn(1)
    assert drawn(2, seed=0) == drawn(0)
