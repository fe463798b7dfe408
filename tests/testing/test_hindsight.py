"""What another placement would have led to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import dualray as ray
from dualray.cli.app import app
from dualray.report.explain import Teller
from dualray.report.find import find_id
from dualray.report.histories import Lives
from dualray.report.record import read_record
from dualray.testing.hindsight import Hindsight, hindsight_of
from dualray.testing.run import load_scenario, run_scenario

SCENARIO = """
name: hindsight
cluster:
  nodes: [{cpus: 1}, {count: 2, cpus: 2}]
workload: {function: "tests.testing.test_hindsight:two_after_one_another"}
faults: [slow node-1 by 8 at 0s]
expect: {all_faults: false}
"""


def two_after_one_another() -> int:
    """One task that no node but the last two can take, and a small one that any can."""

    @ray.remote(num_cpus=2, duration=1.0)
    def heavy() -> int:
        return 1

    @ray.remote(num_cpus=1, duration=0.1)
    def light(number: int) -> int:
        return number

    return int(ray.get(light.remote(ray.get(heavy.remote()))))


def hindsight(directory: Path, wanted: str, text: str = SCENARIO) -> Hindsight:
    """Of the task of a name."""
    path = directory / "hindsight.yaml"
    path.write_text(text)
    scenario = load_scenario(path)
    run_scenario(scenario, directory=directory, decision_log=directory / "log")
    lives = Lives(read_record(directory / "log"))
    return hindsight_of(Teller(lives), find_id(lives, wanted), scenario, directory)


def test_a_slow_node_is_regretted_by_what_the_other_would_have_saved(tmp_path):
    found = hindsight(tmp_path, "heavy")
    assert found.node == "node-1"
    assert [it.node for it in found.alternatives] == ["node-2"]
    assert found.regret_ns == pytest.approx(7e9, rel=0.01)
    assert found.makespan_ns - found.regret_ns == pytest.approx(1.1e9, rel=0.05)


def test_a_good_choice_is_not_regretted(tmp_path):
    found = hindsight(tmp_path, "heavy", SCENARIO.replace("slow node-1", "slow node-2"))
    assert found.node == "node-1"
    assert found.regret_ns == 0
    [other] = found.alternatives
    assert other.saved_ns == pytest.approx(-7e9, rel=0.01)


def test_what_the_head_has_not_placed_has_no_hindsight(tmp_path):
    with pytest.raises(ValueError, match="the head process chose no node for"):
        hindsight(tmp_path, "light")


def explain(*arguments: object, code: int = 0) -> str:
    """What the command says."""
    found = CliRunner().invoke(app, ["explain", *map(str, arguments)])
    assert found.exit_code == code, found.output
    return found.output


def test_the_command_tells_the_regret_in_words_and_as_json(tmp_path):
    path = tmp_path / "hindsight.yaml"
    path.write_text(SCENARIO)
    words = explain("heavy", path, "--regret")
    assert "Other nodes: the head chose node-1 at " in words
    assert "on node-2 the run would have taken 7" in words
    assert "With the best other node, the run would have been 7" in words
    told: dict[str, Any] = json.loads(explain("heavy", path, "--regret", "--json"))
    assert told["regret"]["regret_s"] == pytest.approx(7.0, rel=0.01)
    assert "--regret needs a scenario file, not a finished run" in explain("heavy", tmp_path, "--regret", code=2)
