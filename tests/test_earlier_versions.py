"""What 0.1.0 has written, in tests/data/0_1_0, still opens, and import paths of 0.1.0 still work."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import entry_points

import pytest

import dualray.scheduling_strategies
from dualray import whatif
from dualray.dashboard.from_trace import TraceTables
from dualray.dashboard.tables import Tables
from dualray.recording.calibration import load_calibration
from dualray.report.proof import check_directory, load_log
from dualray.report.traces import read_traces
from dualray.shared.model.codec import PROTOCOL_VERSION
from dualray.shared.policies import load_policy
from dualray.sim.cost.cost_model import CostModel
from dualray.testing.run import load_scenario
from tests.structure import ROOT

WRITTEN = ROOT / "tests" / "data" / "0_1_0"


@pytest.mark.parametrize("name", dualray.scheduling_strategies.__all__)
def test_scheduling_strategies_are_where_ray_has_them(name):
    from dualray.util import scheduling_strategies

    assert getattr(scheduling_strategies, name) is getattr(dualray.scheduling_strategies, name)


def test_the_command_line_is_where_it_was():
    [script] = entry_points(group="console_scripts", name="dualray")
    assert script.value == "dualray.cli:app_main"
    assert callable(script.load())
    for module in ("dualray.cli", "dualray"):
        finished = subprocess.run([sys.executable, "-m", module, "version"], capture_output=True, text=True)
        assert finished.stdout.startswith("dualray "), finished.stderr


def test_modelled_programs_are_where_the_docs_have_them():
    from dualray.sim.modelled import Get, ModelledCluster, call, run_workload

    assert all(map(callable, (Get, ModelledCluster, call, run_workload)))


def test_a_private_module_has_moved():
    """Its path is gone: what was private is free to move."""
    with pytest.raises(ModuleNotFoundError):
        __import__("dualray.shared.core_worker")


@pytest.mark.parametrize(
    ("path", "module"),
    [
        ("cost_aware:CostAwareEviction", "eviction.cost_aware"),
        ("lru:LruEviction", "eviction.lru"),
        ("spill:SpillEviction", "eviction.spill"),
        ("memory:NewestTaskFirst", "worker_killing"),
    ],
)
def test_the_dotted_path_of_a_policy_still_names_it(path, module):
    policy = load_policy(f"dualray.shared.policies.{path}")
    assert type(policy).__module__ == f"dualray.shared.policies.{module}"


def test_a_decision_log_opens_and_every_command_is_derived_again():
    proof = check_directory(WRITTEN / "log")
    assert proof.is_exact
    assert proof.decisions == 35


def test_a_decision_log_of_another_protocol_is_refused_with_both_versions(tmp_path):
    whole = (WRITTEN / "log" / "head.decisions").read_bytes()
    marked = b"protocol" + bytes([PROTOCOL_VERSION])
    assert whole.count(marked) == 1
    (tmp_path / "head.decisions").write_bytes(whole.replace(marked, b"protocol" + bytes([PROTOCOL_VERSION + 1])))
    with pytest.raises(
        ValueError, match=f"version {PROTOCOL_VERSION + 1}, but this dualray has version {PROTOCOL_VERSION}"
    ) as said:
        load_log(tmp_path / "head.decisions")
    assert "head.decisions" in str(said.value)


def test_a_live_page_shows_a_run():
    tables = Tables()
    TraceTables(tables).take(read_traces(WRITTEN / "log"))
    assert tables.head["finished"] == tables.head["tasks"] > 0


def test_a_calibration_opens_and_one_of_another_format_says_which_was_wanted(tmp_path):
    costs = load_calibration(WRITTEN / "calibration.yaml").costs
    CostModel().with_changes(costs, "calibration")  # raises if a cost is unknown
    assert costs["submit_ns"] > 0
    other = tmp_path / "calibration.yaml"
    other.write_text((WRITTEN / "calibration.yaml").read_text().replace("/1", "/2"))
    with pytest.raises(ValueError, match="dualray-calibration/1"):
        load_calibration(other)


def test_a_scenario_file_opens():
    scenario = load_scenario(WRITTEN / "scenario.yaml")
    assert scenario.name == "rolling-node-loss"
    assert len(scenario.planned()) == 4


def test_a_record_opens_and_is_predicted_from():
    [row] = whatif.predict(WRITTEN / "run.parquet", nodes=[1], cpus=[2], seeds=1, jobs=1).rows
    assert not row.lacks
    assert row.makespan_s > 0
