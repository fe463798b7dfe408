"""The state commands on the record of a finished run, and on a running cluster."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

import dualray as ray
from dualray.cli.app import app
from dualray.cluster_utils import Cluster
from dualray.exceptions import NodeDiedError
from dualray.util.placement_group import placement_group
from dualray.util.state import of_run
from tests.conformance.support import eventually

RUNNER = CliRunner()


@ray.remote
def square(x: int) -> int:
    return x * x


@ray.remote
def wrong() -> None:
    raise ValueError("no")


@ray.remote
class Counter:
    def add(self) -> bytes:
        return bytes(200_000)


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """The record of a simulation in which a node dies."""
    directory: Path = tmp_path_factory.mktemp("run") / "log"
    ray.init(mode="sim", nodes=3, num_cpus=2, decision_log=directory, faults=["kill node-2 at 2s"])
    ray.get([square.remote(x) for x in range(5)])
    counter = Counter.remote()
    kept = ray.get(counter.add.remote())
    with pytest.raises(ValueError):
        ray.get(wrong.remote())
    ray.get(square.options(duration=10).remote(2))
    assert len(kept) == 200_000
    group = placement_group([{"CPU": 1}, {"CPU": 1}], strategy="SPREAD")
    assert group.wait(10)
    ray.get(square.options(name="late").remote(3))
    ray.shutdown()
    return directory


def invoke(*arguments: str, code: int = 0) -> str:
    result = RUNNER.invoke(app, list(arguments), env={"COLUMNS": "200"})
    assert result.exit_code == code, result.output
    return result.stderr if code else result.stdout


def test_a_finished_run_has_its_tasks(run):
    state = of_run(run)
    tasks = state.list("tasks", filters=[("name", "=", "square")])
    assert {task.state for task in tasks} == {"FINISHED"}
    assert tasks.total == 6
    assert all(task.end_time_s >= task.start_time_s for task in tasks)
    [failed] = state.list("tasks", filters=[("state", "=", "FAILED")])
    assert (failed.name, failed.error_type) == ("wrong", "APPLICATION")
    assert state.get("tasks", failed.task_id) == failed
    assert state.summarize("tasks")["cluster"]["summary"]["square"]["state_counts"] == {"FINISHED": 6}


def test_a_finished_run_has_its_nodes_workers_and_objects(run):
    state = of_run(run)
    assert [(row.node_id, row.state) for row in state.list("nodes")] == [
        ("node-0", "ALIVE"),
        ("node-1", "ALIVE"),
        ("node-2", "DEAD"),
    ]
    assert {row.node_id for row in state.list("workers")} == {"node-0", "node-1", "node-2"}
    [stored] = state.list("objects", filters=[("size_bytes", "!=", 0)])
    assert stored.size_bytes > 200_000
    assert {row.state for row in state.list("workers", [("node_id", "=", "node-2")])} == {"DEAD"}


def test_a_finished_run_has_what_its_head_knew(run):
    state = of_run(run)
    [counter] = state.list("actors")
    assert (counter.class_name, counter.num_restarts) == ("Counter", 0)
    [constructor] = state.list("tasks", [("type", "=", "ACTOR_CREATION_TASK")])
    assert constructor.name == "Counter"
    [group] = state.list("placement_groups")
    assert (group.strategy, group.state) == ("SPREAD", "CREATED")
    [waited] = state.list("tasks", [("name", "=", "late")])
    assert 10 < waited.start_time_s < 11, "moments count from the start of the first node, as those of faults"


def test_a_task_that_was_lost_with_its_node_has_failed(tmp_path):
    @ray.remote(duration=5, max_retries=0, scheduling_strategy="SPREAD")
    def lost() -> None:
        pass

    ray.init(mode="sim", nodes=2, num_cpus=1, decision_log=tmp_path, faults=["kill node-1 at 1s"])
    try:
        refs = [lost.remote() for _ in range(2)]
        with pytest.raises(NodeDiedError):
            ray.get(refs)
    finally:
        ray.shutdown()
    [failed] = of_run(tmp_path).list("tasks", [("name", "=", "lost"), ("node_id", "=", "node-1")])
    assert (failed.state, failed.error_type, failed.end_time_s) == ("FAILED", "NODE_DIED", 1.0)


def test_an_attempt_that_was_lost_and_tried_again_is_listed_behind_its_task(tmp_path):
    @ray.remote(duration=2, scheduling_strategy="SPREAD")
    def work() -> str:
        return "done"

    ray.init(mode="sim", nodes=2, num_cpus=2, decision_log=tmp_path, faults=["kill node-1 at 1s"])
    try:
        assert ray.get([work.remote() for _ in range(2)]) == ["done"] * 2
    finally:
        ray.shutdown()
    state = of_run(tmp_path)
    [lost] = state.list("tasks", [("node_id", "=", "node-1")])
    assert (lost.state, lost.error_type, lost.attempt_number, lost.end_time_s) == ("FAILED", "NODE_DIED", 0, 1.0)
    again = state.get("tasks", lost.task_id)
    assert (again.state, again.attempt_number, again.node_id) == ("FINISHED", 1, "node-0")
    assert state.summarize("tasks")["cluster"]["total_tasks"] == 2
    assert "FINISHED" in invoke("get", "task", lost.task_id[:8], "--log", str(tmp_path))


def test_without_the_heads_log_a_run_has_no_actors(run, tmp_path):
    for path in run.glob("*.trace"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    with pytest.raises(
        ValueError, match="this directory has no decision log of the head process, so dualray cannot list the actors"
    ):
        of_run(tmp_path).list("actors")
    assert of_run(tmp_path).list("tasks").total == of_run(run).list("tasks").total


def test_the_commands_read_the_record_of_a_run(run):
    log = ("--log", str(run))
    assert "square" in invoke("list", "tasks", *log)
    rows = json.loads(invoke("list", "tasks", "--filter", "name=square", "--limit", "2", "--format", "json", *log))
    assert [row["name"] for row in rows] == ["square", "square"]
    shown = json.loads(invoke("get", "task", rows[0]["task_id"], "--format", "json", *log))
    assert shown == rows[0]
    assert rows[0]["task_id"] in invoke("get", "task", rows[0]["task_id"], *log)
    assert "FINISHED 6" in invoke("summary", "tasks", *log)
    assert json.loads(invoke("summary", "tasks", "--json", *log))["cluster"]["total_tasks"] >= 7
    assert "objects, 2" in invoke("memory", *log)
    assert (
        invoke("list", "tasks", "--filter", "name=square", "--quiet", "--limit", "1", *log) == rows[0]["task_id"] + "\n"
    )
    assert (
        json.loads(invoke("list", "nodes", "--filter", "state!=ALIVE", "--format", "json", *log))[0]["state"] == "DEAD"
    )


def test_a_table_fits_a_narrow_terminal(run):
    shown = RUNNER.invoke(app, ["list", "tasks", "--log", str(run)], env={"COLUMNS": "80"}).stdout.splitlines()
    assert max(len(line) for line in shown if not line.startswith("In all rows")) <= 80
    rows = [line for line in shown if "square" in line]
    assert len(rows) == 6, "a row is a line"
    assert "In all rows: job 00000001" in shown[-1] or "In all rows: job 00000001" in shown[-2]
    short = rows[0].split()[1]
    assert len(short) == 8
    assert "square" in invoke("get", "task", short, "--log", str(run))
    assert "NORMAL_TASK" in invoke("list", "tasks", "-v", "--log", str(run))


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("list", "taks"), "Did you mean 'tasks'?"),
        (("list", "tasks", "--filter", "name"), "field=value"),
        (("list", "tasks", "--filter", "nme=x"), "Did you mean 'name'?"),
        (("list", "tasks", "--format", "xml"), "table or json"),
        (("get", "thing", "x"), "'thing' is not a table"),
        (("get", "task", "x"), "no task has the id or the name 'x'"),
        (("summary", "nodes"), "no summary of 'nodes'"),
    ],
)
def test_a_wrong_command_says_what_is_wrong(run, arguments, why):
    assert why in invoke(*arguments, "--log", str(run), code=2)


def test_a_directory_without_traces_is_refused(tmp_path):
    assert "trace" in invoke("list", "tasks", "--log", str(tmp_path), code=2)


@ray.remote
def hold(path: str) -> int:
    while not Path(path).exists():
        time.sleep(0.02)
    return 1


@ray.remote
def follow(value: int) -> int:
    return value


def test_a_running_cluster_says_why_its_tasks_wait(tmp_path):
    path = tmp_path / "end"
    with Cluster(initialize_head=True, connect=True, head_node_args={"num_cpus": 1}) as cluster:

        def ask(*arguments: str) -> str:
            command = [sys.executable, "-m", "dualray.cli", *arguments, "--address", cluster.address]
            environment = {**os.environ, "COLUMNS": "80"}
            done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
            assert done.returncode == 0, done.stderr
            return done.stdout

        refs = [hold.remote(str(path)) for _ in range(3)]
        last = follow.remote(refs[0])
        held = refs[0].hex()[:8]
        eventually(lambda: "every node that could take it is busy" in ask("list", "tasks"), "the head knows of it")
        shown = ask("list", "tasks")
        assert "2 x hold waits for 1 CPU: every node that could take it is busy" in shown
        assert f"1 x follow waits for the result of hold ({held})" in shown
        assert max(len(line) for line in shown.splitlines() if not line.startswith("In all rows")) <= 80
        assert {row["waiting_reason"] for row in json.loads(ask("list", "tasks", "--json"))} == {
            None,
            "1 CPU: every node that could take it is busy",
            f"the result of hold ({held})",
        }
        assert "1 CPU: every node that could take it is busy" in ask("get", "task", refs[2].hex()[:8])
        assert ask("explain", held).splitlines()[2:] == ["  The task runs on node-0/w0."]
        told = json.loads(ask("explain", "follow", "--json"))
        assert (told["id"], told["title"]) == (last.hex()[:32], f"follow, task {last.hex()[:8]}")
        assert next(line["text"] for line in told["lines"]) == "The task waits for its arguments."
        assert any("CPU 1" in line for line in ask("get", "task", "follow").splitlines() if "required" in line)
        assert "node:" not in ask("list", "nodes")
        assert ask("summary", "actors") == "there are no actors\n"
        path.touch()
        assert ray.get(last, timeout=30) == 1


def test_the_commands_ask_a_running_cluster():
    with Cluster(initialize_head=True, connect=True, head_node_args={"num_cpus": 1}) as cluster:
        assert ray.get(square.remote(3), timeout=30) == 9

        def ask(*arguments: str) -> str:
            command = [sys.executable, "-m", "dualray", *arguments, "--address", cluster.address]
            result = subprocess.run(
                command, capture_output=True, text=True, timeout=60, env={**os.environ, "COLUMNS": "200"}
            )
            assert result.returncode == 0, result.stderr
            return result.stdout

        assert json.loads(ask("list", "nodes", "--format", "json"))[0]["resources_total"]["CPU"] == 1.0
        assert "square" in ask("list", "tasks")
        workers = json.loads(ask("list", "workers", "--format", "json"))
        drivers = {row["worker_id"] for row in workers if row["worker_type"] == "DRIVER"}
        assert ray.get_runtime_context().get_worker_id() in drivers
        assert len(drivers) == 2  # this process, and the command
        assert "objects, " in ask("memory")
