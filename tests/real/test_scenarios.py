"""Scenario files on real processes: the same file as in a simulation, with its faults performed."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from dualray.cli.app import app
from dualray.testing.expectations import judge
from dualray.testing.real_run import NODES_MAX
from dualray.testing.run import load_scenario, run_scenario

pytestmark = pytest.mark.leak_check

KILLS = """
name: kills
cluster: {nodes: [{cpus: 2}, {count: 2, cpus: 2, object_store: 64MiB}]}
workload: {generate: tree_reduce, kwargs: {leaves: 16, seconds: 0.1, size: 200000}}
faults:
  - kill worker when leaf starts 3
  - kill node-2 when node starts 2
  - slow node-1 by 2 when leaf starts 1
expect: {same_as_without_faults: true}
"""
SCRIPT = """
import dualray as ray

ray.init()

@ray.remote(max_retries=-1)
def nap(number):
    import time
    time.sleep(0.2)
    return number

print(sum(ray.get([nap.remote(number) for number in range(24)])))
"""


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_a_file_gives_the_same_in_both_modes_with_every_fault_performed(tmp_path):
    scenario = load_scenario(write(tmp_path / "kills.yaml", KILLS))
    reference = run_scenario(scenario.with_faults(()))
    for mode in ("sim", "real"):
        outcome = run_scenario(scenario, mode=mode)
        verdicts = judge(scenario, outcome, reference, mode=mode)
        assert [verdict for verdict in verdicts if not verdict.holds] == []
        assert len(outcome.performed) == 3
        assert outcome.counters["retries"] >= 1


def test_without_its_head_a_cluster_ends_in_both_modes_with_the_reason(tmp_path):
    text = KILLS.partition("faults:")[0] + (
        "faults: [kill head when leaf starts 5]\n"
        "expect: {error: {type: DualrayError, match: the (head process|node manager node-0) is gone}}\n"
    )
    scenario = load_scenario(write(tmp_path / "headless.yaml", text))
    for mode in ("sim", "real"):
        outcome = run_scenario(scenario, mode=mode)
        assert [verdict for verdict in judge(scenario, outcome, None, mode=mode) if not verdict.holds] == []
        assert outcome.performed == ("kill head when leaf starts 5",)


def test_a_node_that_drains_costs_nothing_in_either_mode(tmp_path):
    text = KILLS.partition("faults:")[0] + (
        "faults:\n  - drain node-2 when leaf starts 3 for 20s\n  - drain node-1 when leaf starts 8\n"
        "expect: {same_as_without_faults: true}\n"
    )
    scenario = load_scenario(write(tmp_path / "drains.yaml", text))
    reference = run_scenario(scenario.with_faults(()))
    for mode in ("sim", "real"):
        outcome = run_scenario(scenario, mode=mode)
        assert [verdict for verdict in judge(scenario, outcome, reference, mode=mode) if not verdict.holds] == []
        assert len(outcome.performed) == 2
        assert (outcome.counters["retries"], outcome.counters["reconstructions"]) == (0, 0)


def test_a_script_joins_the_cluster_and_survives_a_node_that_reboots(tmp_path):
    write(tmp_path / "naps.py", SCRIPT)
    scenario = load_scenario(
        write(
            tmp_path / "naps.yaml",
            "name: naps\ncluster: {nodes: 2, cpus: 2}\nworkload: {script: naps.py}\n"
            "faults: [reboot node-1 when nap starts 4 for 200ms]\nexpect: {result: 276}\n",
        )
    )
    record = tmp_path / "record"
    outcome = run_scenario(scenario, directory=tmp_path, mode="real", decision_log=record)
    assert outcome.error == (), outcome.message
    assert outcome.result == 276
    assert outcome.performed == ("reboot node-1 when nap starts 4 for 0.2s",)
    assert outcome.violations == ()
    assert list(record.glob("*.trace"))


def test_the_command_says_what_came_of_it_and_what_cannot_be(tmp_path):
    invoke = CliRunner().invoke
    late = write(
        tmp_path / "late.yaml",
        "name: late\ncluster: {nodes: 2}\nworkload: {generate: chain, kwargs: {length: 3, seconds: 0.01}}\n"
        "faults: [kill node-1 at 90s]\n",
    )
    ended = invoke(app, ["scenario", "run", str(late), "--mode", "real"])
    assert ended.exit_code == 1, ended.output
    assert "comes after" in ended.stdout
    refused = invoke(app, ["scenario", "run", "scenarios/wrong_clocks.yaml", "--mode", "real"])
    assert refused.exit_code == 2
    assert "real mode does not perform the fault skew clock" in refused.stderr
    assert refused.stderr.rstrip().endswith(
        "; to perform the fault in sim mode, run: dualray scenario run, without --mode real"
    )
    large = write(
        tmp_path / "large.yaml", f"name: l\ncluster: {{nodes: {NODES_MAX + 1}}}\nworkload: {{generate: chain}}\n"
    )
    refused = invoke(app, ["scenario", "run", str(large), "--mode", "real"])
    assert refused.exit_code == 2
    assert ". Run the scenario with --mode sim" in refused.stderr
