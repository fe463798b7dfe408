"""`dualray report`, `timeline`, `explain`, and the pages of `dualray scenario run`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import dualray as ray
from dualray.report.traces import read_traces
from dualray.shared.proof.trace import TraceKind
from tests.cli.test_app import in_process
from tests.report.support import simulate, two_steps

SCENARIO = """
name: two-nodes
description: a chain that loses its worker
cluster: {nodes: 2, cpus: 2}
workload:
  generate: chain
  kwargs: {length: 4, seconds: 0.5}
faults:
  - {when: {task_started: link, index: 2}, kill: worker}
expect:
  same_as_without_faults: true
"""


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    log = tmp_path_factory.mktemp("run")
    simulate(lambda: two_steps(3), log)
    return log


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    path = tmp_path / "two.yaml"
    path.write_text(SCENARIO)
    return path


def first_task(log: Path) -> str:
    return next(event.subject for event in read_traces(log) if event.kind is TraceKind.TASK_SUBMITTED)


# ---- Pages ---------------------------------------------------------------------------------------------------------


def test_report_of_a_recorded_run(log: Path, tmp_path: Path):
    output = in_process("report", log, "-o", tmp_path / "run.html", "--title", "my run")
    assert f"{tmp_path / 'run.html'}: open this page in a browser" in output
    assert "<title>my run</title>" in (tmp_path / "run.html").read_text()


def test_scenario_run_writes_a_page_and_a_timeline_and_keeps_nothing_else(scenario: Path, tmp_path: Path):
    page, timeline = tmp_path / "out.html", tmp_path / "out.json"
    output = in_process("scenario", "run", scenario, "--report", page, "--timeline", timeline)
    assert "open this page in a browser" in output
    text = page.read_text()
    assert "two-nodes, seed 0" in text
    assert "a chain that loses its worker" in text
    assert "result without faults" in text  # its expectations
    assert '"kill worker' in text or "kill worker:" in text
    assert {row["ph"] for row in json.loads(timeline.read_text())["traceEvents"]} >= {"M", "X", "i"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.html", "out.json", "two.yaml"]


def test_page_is_written_also_when_an_expectation_fails(scenario: Path, tmp_path: Path):
    scenario.write_text(SCENARIO + "  makespan: {max: 1s}\n")
    in_process("scenario", "run", scenario, "--report", tmp_path / "out.html", code=1)
    assert "1 of" in (tmp_path / "out.html").read_text()


@pytest.mark.parametrize(
    ("option", "name", "why"),
    [
        ("--report", "no/such/out.html", "No such file or directory; create its directory first"),
        ("--timeline", "no/such/out.json", "No such file or directory; create its directory first"),
        ("--report", ".", "is a directory; give the path of a file"),
    ],
)
def test_what_cannot_be_written_is_refused_before_the_run(
    scenario: Path, tmp_path: Path, option: str, name: str, why: str
):
    output = in_process("scenario", "run", scenario, option, tmp_path / name, code=2)
    assert output.startswith(f"dualray: {option} ")
    assert why in output
    assert "virtual time" not in output


def test_report_and_timeline_refuse_what_is_no_record(tmp_path: Path):
    for command in ("report", "timeline"):
        output = in_process(command, tmp_path, "-o", tmp_path / "x", code=2)
        assert f"{tmp_path} has no traces (*.trace); to write these files, run the program with decision_log=" in output
        output = in_process(command, tmp_path / "nowhere", "-o", tmp_path / "x", code=2)
        assert "nowhere is not a directory" in output
    assert list(tmp_path.iterdir()) == []


# ---- explain -------------------------------------------------------------------------------------------------------


def test_explain_tells_a_story(log: Path):
    task = first_task(log)
    output = in_process("explain", task[:10], log)
    assert output.splitlines()[:2] == [f"load, task {task[:8]}", task]
    assert "The head chooses node-" in output
    assert "Attempt 0 returns after" in output


def test_explain_runs_a_scenario(scenario: Path):
    output = in_process("explain", "zz", scenario, code=2)
    task = output.rpartition("its first tasks are ")[2][:32]
    told = in_process("explain", task, scenario)
    assert told.startswith(f"link, task {task[:8]}")
    assert "driver-1 submits the task." in told


@pytest.mark.parametrize(
    ("args", "why"),
    [
        (["feed", "--address", "127.0.0.1:9"], "or a directory that a run wrote with --decision-log DIR"),
        (["feed", "--seed", "3"], "--seed needs a scenario file"),
        (["feed", "LOG"], "no task or object of this run has the name 'feed', or an id that begins with 'feed'; "),
        (["feed", "LOG", "--seed", "3"], "is only for scenario files"),
        (["feed", "nowhere"], "nowhere is not a directory"),
        (["feed", "nowhere.yaml"], "nowhere.yaml: cannot be read: No such file or directory"),
        (["load", "LOG"], "'load' is the name of 3 tasks; give one of these ids:"),
    ],
)
def test_explain_refuses_what_it_cannot_use(log: Path, args: list[str], why: str):
    output = in_process("explain", *[str(log) if each == "LOG" else each for each in args], code=2)
    assert output.startswith("dualray: ")
    assert why in output
    assert "Traceback" not in output


def test_explain_without_logs_says_what_is_missing(log: Path, tmp_path: Path):
    (tmp_path / "cluster.trace").write_bytes((log / "cluster.trace").read_bytes())
    output = in_process("explain", first_task(log), tmp_path)
    assert "The directory has a trace and no decision logs" in output


# ---- Real mode -----------------------------------------------------------------------------------------------------


def test_record_of_a_real_run_gives_the_same(tmp_path: Path):
    log = tmp_path / "log"
    ray.init(num_cpus=2, decision_log=log)
    try:
        two_steps(3)
    finally:
        ray.shutdown()
    in_process("report", log, "-o", tmp_path / "real.html")
    text = (tmp_path / "real.html").read_text()
    assert "each transfer" in text  # the network's figures: nobody tells a real card's rate
    assert "node manager" not in text
    told = in_process("explain", first_task(log), log)
    assert "driver-1 submits the task." in told
    assert "grants a lease" in told
    assert "Attempt 0 returns after" in told
