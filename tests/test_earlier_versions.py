"""Import paths, decision logs and records of 0.1.0 still work. tests/data/0_1_0 is what that version has written."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import entry_points

import pytest

import dualray.scheduling_strategies
from dualray import whatif
from dualray.report.proof import check_directory
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
    finished = subprocess.run([sys.executable, "-m", "dualray.cli", "version"], capture_output=True, text=True)
    assert finished.stdout.startswith("dualray "), finished.stderr


def test_modelled_programs_are_where_the_docs_have_them():
    from dualray.sim.modelled import Get, ModelledCluster, call, run_workload

    assert all(map(callable, (Get, ModelledCluster, call, run_workload)))


def test_a_private_module_has_moved():
    """Its path is gone: what was private is free to move."""
    with pytest.raises(ModuleNotFoundError):
        __import__("dualray.shared.core_worker")


def test_a_decision_log_opens_and_every_command_is_derived_again():
    proof = check_directory(WRITTEN / "log")
    assert proof.is_exact
    assert proof.decisions == 35


def test_a_record_opens_and_is_predicted_from():
    [row] = whatif.predict(WRITTEN / "run.parquet", nodes=[1], cpus=[2], seeds=1, jobs=1).rows
    assert not row.lacks
    assert row.makespan_s > 0
