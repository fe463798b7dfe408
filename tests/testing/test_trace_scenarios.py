"""Scenarios whose workload is a recorded run: replayed on the scenario's cluster, under its faults."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

import dualray
from dualray.cli.app import app
from dualray.shared.scenario.fault_model import parse_fault
from dualray.shared.scenario.file import dump_scenario, parse_scenario
from dualray.testing.expectations import judge
from dualray.testing.explore import explore
from dualray.testing.run import load_scenario, run_scenario
from dualray.testing.workloads import workload

SCENARIO = """\
name: replayed
cluster: {nodes: 4, cpus: 2}
workload: {trace: run.parquet}
faults:
  - {when: {task_started: piece, index: 5}, kill: worker}
  - {when: {task_ended: piece, index: 7}, kill: worker}
  - {at: 150ms, reboot: node-1, back_after: 1s}
expect:
  makespan: {max: 60s}
  counters: {faults: 3, retries: {min: 2}}
"""


def record(path: Path, name: str = "mixed", mode: str = "sim", **kwargs) -> None:
    """Run a workload, and record it."""
    dualray.init(mode=mode, num_cpus=2, record=path)
    try:
        workload(name, kwargs)()
    finally:
        dualray.shutdown()


def run(path: Path, *more: str):
    return CliRunner().invoke(app, ["scenario", "run", str(path), *more])


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    record(tmp_path / "run.parquet", tasks=16)
    path = tmp_path / "replayed.yaml"
    path.write_text(SCENARIO)
    return path


def test_a_recorded_program_is_replayed_and_faults_befall_it(scenario):
    loaded = load_scenario(scenario)
    outcome = run_scenario(loaded, directory=scenario.parent)
    assert [verdict for verdict in judge(loaded, outcome) if not verdict.holds] == []
    assert len(outcome.performed) == 3
    calm = run_scenario(loaded.with_faults(()), directory=scenario.parent)
    assert (calm.counters["retries"], calm.counters["reconstructions"], calm.counters["tasks"]) == (0, 0, 39)
    assert outcome.counters["tasks"] > 39, "some had ended, and ran again for their lost results"
    assert calm.makespan_ns < outcome.makespan_ns
    assert outcome.starts["piece"] > calm.starts["piece"] == 16
    assert outcome.leaks is None
    assert outcome == run_scenario(loaded, directory=scenario.parent)
    drawn = run_scenario(loaded.with_faults(()).model_copy(update={"seed": 1}), directory=scenario.parent)
    assert drawn.makespan_ns != calm.makespan_ns


def test_the_command_draws_what_happened(scenario, tmp_path):
    page, timeline = tmp_path / "page.html", tmp_path / "timeline.json"
    done = run(scenario, "--report", str(page), "--timeline", str(timeline))
    assert done.exit_code == 0, done.stdout
    assert "fault: kill worker when piece ends 7" in done.stdout
    assert "piece" in page.read_text()
    assert "piece" in timeline.read_text()


def test_a_run_of_real_processes_is_replayed(tmp_path):
    record(tmp_path / "run.parquet", "bag_of_tasks", mode="real", tasks=40, seconds=0.01)  # all 8 CPUs run at 15 ms
    (tmp_path / "replayed.yaml").write_text(SCENARIO.replace("{at: 150ms", "{at: 15ms"))
    done = run(tmp_path / "replayed.yaml")
    assert done.exit_code == 0, done.stdout


def test_an_actor_of_a_trace_is_killed(tmp_path):
    record(tmp_path / "run.parquet", "counters", restarts=-1)
    head = SCENARIO.partition("faults:")[0]
    (tmp_path / "restarts.yaml").write_text(head + "faults: [kill actor Counter at 50ms]\n")
    done = run(tmp_path / "restarts.yaml")
    assert done.exit_code == 0, done.stdout
    assert "fault: kill actor Counter at 0.05s" in done.stdout


def test_a_trace_that_cannot_go_on_ends_with_the_error_of_the_program(tmp_path):
    record(tmp_path / "run.parquet", "counters", restarts=0)
    head = SCENARIO.partition("faults:")[0]
    text = head + "faults: [kill actor Counter when Counter.add starts 5]\nexpect: {error: {type: ActorDiedError}}\n"
    (tmp_path / "dies.yaml").write_text(text)
    done = run(tmp_path / "dies.yaml")
    assert done.exit_code == 0, done.stdout
    (tmp_path / "large.yaml").write_text(head.replace("cpus: 2", "cpus: 0.5"))
    loaded = load_scenario(tmp_path / "large.yaml")
    outcome = run_scenario(loaded, directory=tmp_path)
    assert outcome.error[0] == "TaskUnschedulableError"
    assert "can never run" in outcome.message


def test_it_is_checked_and_explored(scenario):
    done = CliRunner().invoke(app, ["scenario", "check", str(scenario)])
    assert done.exit_code == 0, done.stdout
    assert "scheduler" in done.stdout
    found = explore(load_scenario(scenario), directory=scenario.parent, seeds=range(4))
    assert (found.seeds, found.findings) == (4, [])
    assert found.faults_performed > 4


BAD = {
    "a file that is not there": (
        "run.parquet",
        "gone.parquet",
        "3: workload: there is no trace 'gone.parquet' in the working directory or beside the scenario file",
    ),
    "an expected result": (
        "makespan: {max: 60s}",
        "result: 5",
        "9: expect.result: leave this key out: a trace has no result",
    ),
    "expected figures": (
        "makespan: {max: 60s}",
        "figures: {rate: {min: 1}}",
        "9: expect.figures: leave this key out: a trace has no result",
    ),
    "the result without faults": (
        "makespan: {max: 60s}",
        "same_as_without_faults: true",
        "9: expect.same_as_without_faults: leave this key out: a trace has no result",
    ),
    "durations": (
        "expect:",
        "durations: {piece: 2s}\nexpect:",
        "8: durations: leave this key out: the tasks of a trace take the recorded time",
    ),
    "memory": (
        "expect:",
        "memory: {piece: 2GiB}\nexpect:",
        "8: memory: leave this key out: a trace does not contain the memory that its tasks used",
    ),
    "arguments": (
        "{trace: run.parquet}",
        "{trace: run.parquet, kwargs: {tasks: 5}}",
        "3: workload: a trace takes no args and no kwargs, because dualray repeats the trace as it was recorded",
    ),
    "a function, too": (
        "{trace: run.parquet}",
        "{trace: run.parquet, generate: mixed}",
        "3: workload: a workload needs exactly one of script, function, generate and trace, not generate and trace",
    ),
}


@pytest.mark.parametrize(("old", "new", "message"), BAD.values(), ids=BAD)
def test_what_a_trace_does_not_have_is_refused_in_one_line(scenario, old, new, message):
    scenario.write_text(SCENARIO.replace(old, new, 1))
    done = run(scenario)
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr == f"dualray: {scenario}:{message}\n"


def test_what_is_no_record_is_refused_with_the_line(scenario):
    (scenario.parent / "run.parquet").write_text("no record")
    done = run(scenario)
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith(f"dualray: {scenario}:3: workload: ")
    assert "is not a complete Parquet file" in done.stderr


def test_real_mode_has_nothing_to_run(scenario):
    done = run(scenario, "--mode", "real")
    assert (done.exit_code, done.stdout) == (2, "")
    words = "workload: the trace run.parquet has no code to run on real processes; leave out --mode real"
    assert done.stderr == f"dualray: {words}\n"


def test_a_file_with_a_trace_is_written_back(scenario):
    loaded = parse_scenario(SCENARIO, "replayed.yaml")
    assert loaded.workload.words == "trace: run.parquet"
    assert parse_scenario(dump_scenario(loaded), "again.yaml").workload == loaded.workload


@pytest.mark.parametrize(
    "fault",
    [
        "pause worker when piece starts 3 for 5s",
        "slow worker by 10 when piece#3 starts",
        "clog node-1 at 100ms for 1s",
        "lose object when object_stored 3",
        "corrupt object when object_stored 3",
        "reboot node-1 with its store at 100ms for 1s",
        "restart redis at 100ms for 1s",
    ],
)
def test_a_replay_survives_what_its_program_survives(scenario, fault):
    loaded = load_scenario(scenario)
    outcome = run_scenario(loaded.with_faults([parse_fault(fault)]), directory=scenario.parent)
    assert (outcome.error, outcome.violations, len(outcome.performed)) == ((), (), 1)


def test_a_replay_ends_with_its_head(scenario):
    loaded = load_scenario(scenario)
    outcome = run_scenario(loaded.with_faults([parse_fault("kill head at 100ms")]), directory=scenario.parent)
    assert (outcome.error[0], outcome.message) == ("DualrayError", "the head process is gone")
