"""The main job: batch L-BFGS gives the same parameters in every mode, on any number of nodes, and when one dies."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dualray.report.lineage import predicted_reconstructions
from dualray.report.proof import check_directory
from dualray.report.summary import summary
from dualray.report.traces import read_traces
from examples import demo

ROOT = Path(__file__).parent.parent
LBFGS = ROOT / "examples" / "lbfgs.py"
SMALL = ("--shards", "3", "--iterations", "5", "--json")
KILL = "kill node-1 when Network.loss_and_gradient starts 10"


def train(log: Path, *, hash_seed: str = "random", **settings: str) -> dict[str, Any]:
    """Run lbfgs.py with settings from outside; its result."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("DUALRAY_")}
    chosen = {f"DUALRAY_{name.upper()}": value for name, value in settings.items()}
    environment = clean | chosen | {"DUALRAY_DECISION_LOG": str(log), "PYTHONHASHSEED": hash_seed}
    done = subprocess.run(
        [sys.executable, str(LBFGS), *SMALL], capture_output=True, text=True, env=environment, timeout=100
    )
    assert (done.returncode, done.stderr) == (0, "")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, tuple[dict[str, Any], Path]]:
    """By name, the result of each run and the directory of its logs."""
    sim = {"mode": "sim", "nodes": "3", "num_cpus": "2"}
    settings = {
        "plain": {"hash_seed": "1", **sim},
        "again": {"hash_seed": "2", **sim},
        "killed": {"hash_seed": "3", "faults": KILL, **sim},
        "killed again": {"hash_seed": "4", "faults": KILL, **sim},
        "one node": {"mode": "sim", "num_cpus": "1"},
        "real": {"mode": "real"},
    }
    directories = {name: tmp_path_factory.mktemp(name.replace(" ", "_")) for name in settings}
    with ThreadPoolExecutor(2) as pool:
        results = pool.map(lambda name: train(directories[name], **settings[name]), settings)
        return {name: (result, directories[name]) for name, result in zip(settings, results, strict=True)}


def test_parameters_are_equal_in_all_runs(runs: Mapping[str, tuple[dict[str, Any], Path]]):
    hashes = {name: result["sha256"] for name, (result, _) in runs.items()}
    assert len(set(hashes.values())) == 1, hashes
    assert runs["one node"][0]["actors"] == 1


def test_killed_node_costs_what_lineage_predicts(runs: Mapping[str, tuple[dict[str, Any], Path]]):
    events = read_traces(runs["killed"][1])
    figures = summary(events)
    assert figures.faults == ("kill node-1",)
    assert figures.reconstructions == predicted_reconstructions(events) > 0
    assert summary(read_traces(runs["plain"][1])).reconstructions == 0


def test_shards_live_in_the_stores(runs: Mapping[str, tuple[dict[str, Any], Path]]):
    sizes = [event.amount for event in read_traces(runs["plain"][1]) if event.kind == "object_stored"]
    assert len(sizes) == 6  # three that were loaded, three that were augmented
    assert min(sizes) >= 1024 * 1024


@pytest.mark.parametrize(("one", "other"), [("plain", "again"), ("killed", "killed again")])
def test_simulation_is_the_same_to_the_byte_under_another_hash_seed(
    runs: Mapping[str, tuple[dict[str, Any], Path]], one: str, other: str
):
    (result, log), (result_again, log_again) = runs[one], runs[other]
    assert result == result_again
    files = sorted(path.name for path in log.iterdir())
    assert files == sorted(path.name for path in log_again.iterdir())
    assert "cluster.trace" in files
    assert [name for name in files if (log / name).read_bytes() != (log_again / name).read_bytes()] == []


@pytest.mark.parametrize("name", ["plain", "killed", "real"])
def test_every_decision_is_derived_again_and_every_action_matched(
    runs: Mapping[str, tuple[dict[str, Any], Path]], name: str
):
    proof = check_directory(runs[name][1])
    assert proof.is_exact
    assert proof.matched > 0


# ---- demo.py -----------------------------------------------------------------------------------------------------


@pytest.fixture
def compared(runs: Mapping[str, tuple[dict[str, Any], Path]]) -> list[demo.Run]:
    """What demo.py compares, made of the small runs."""
    rows = []
    for name, fault in (("plain", ""), ("killed", KILL)):
        result, log = runs[name]
        events = read_traces(log)
        plan = demo.Plan(name, "sim", 3, fault)
        figures, predicted = summary(events), predicted_reconstructions(events)
        rows.append(demo.Run(plan, result | {"accuracy": 0.96}, events, figures, predicted))
    return rows


def test_demo_accepts_runs_that_are_as_they_should(compared: list[demo.Run]):
    demo.check(compared)
    assert demo.table_of(compared).row_count == 2


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"result": {"sha256": "0", "accuracy": 0.96}}, "the parameters are not equal in all runs"),
        ({"result": {"accuracy": 0.9}}, r"accuracy 0\.9000 is below 0\.95"),
        ({"predicted": 1}, "2 reconstructions; lineage predicts 1"),
        ({"figures": {"reconstructions": 0}, "predicted": 0}, "nothing had to be reconstructed"),
        ({"figures": {"faults": ()}}, "the fault 'kill node-1 .*' never happened"),
    ],
)
def test_demo_refuses_runs_that_are_not(compared: list[demo.Run], changes: dict[str, Any], why: str):
    plain, killed = compared
    result = killed.result | changes.get("result", {})
    figures = replace(killed.figures, **changes.get("figures", {}))
    broken = replace(killed, result=result, figures=figures, predicted=changes.get("predicted", killed.predicted))
    with pytest.raises(demo.DemoFailed, match=why):
        demo.check([plain, broken])


def test_demo_kills_a_node_that_holds_what_nobody_else_has(compared: list[demo.Run]):
    fault = demo.half_way_fault(compared[0].events)
    starts = sum(e.kind == "task_started" and e.name == demo.GRADIENT for e in compared[0].events)
    assert fault in [f"kill node-{node} when {demo.GRADIENT} starts {starts // 2}" for node in (1, 2)]


def test_demo_names_a_run_that_ended_badly(tmp_path: Path):
    with pytest.raises(demo.DemoFailed, match=r"(?s)ended with code 2:.*unknown-option"):
        demo.run(demo.Plan("bad", "sim", 1), tmp_path, ["--unknown-option"])


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_demo_holds_its_claims(tmp_path: Path):
    command = [sys.executable, str(ROOT / "examples" / "demo.py"), "--output", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "All claims hold." in done.stdout
    timelines = sorted(path.name for path in tmp_path.glob("timeline_*.json"))
    assert timelines == [f"timeline_{name}.json" for name in ("real", "sim_1", "sim_11", "sim_11_killed", "sim_4")]
