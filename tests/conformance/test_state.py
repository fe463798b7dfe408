from __future__ import annotations

import dataclasses
import os
import time

import numpy as np
import pytest

import dualray as ray
from dualray.exceptions import ActorDiedError, TaskError, WorkerCrashedError
from dualray.shared.model.accelerators import KINDS
from dualray.util import state
from dualray.util.placement_group import placement_group, remove_placement_group
from dualray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from dualray.util.state import (
    get_actor,
    get_node,
    get_objects,
    get_placement_group,
    get_task,
    get_worker,
    list_actors,
    list_nodes,
    list_objects,
    list_placement_groups,
    list_tasks,
    list_workers,
    summarize_actors,
    summarize_objects,
    summarize_tasks,
)
from tests.conformance.support import eventually, get, node_ids

CLUSTER = {"num_cpus": 2, "num_gpus": 1, "labels": {"zone": "a"}}
pytestmark = pytest.mark.usefixtures("cluster")


@ray.remote
class Keeper:
    def __init__(self):
        self.kept = None

    def keep(self, value):
        self.kept = value

    def wait(self, gate):
        gate.wait()

    def context(self):
        context = ray.get_runtime_context()
        return {
            "task": context.get_task_name(),
            "function": context.get_task_function_name(),
            "actor": context.get_actor_id(),
            "job": context.get_job_id(),
            "restarted": context.was_current_actor_reconstructed,
            "gpus": context.get_accelerator_ids(),
            "labels": context.get_node_labels(),
            "node": context.get_node_id(),
            "all": context.get(),
        }

    def call_me(self):
        return ray.get_runtime_context().current_actor

    def die(self):
        import os

        os._exit(1)


# ---- Tasks ---------------------------------------------------------------------------------------------------------


def test_tasks_are_listed_in_every_state(cluster, gate):
    @ray.remote(num_cpus=2)
    def running():
        gate.wait()
        return 1

    @ray.remote(num_cpus=2)
    def after(value):
        return value

    refs = [running.remote() for _ in range(cluster.nodes)]
    queued = running.options(name="queued").remote()
    waiting = after.remote(refs[0])
    task_id = waiting.hex()[:32]
    eventually(
        lambda: list_tasks(filters=[("name", "=", "running"), ("state", "=", "RUNNING")]).total == cluster.nodes,
        "as many run as there are nodes",
    )
    row = list_tasks(filters=[("state", "=", "RUNNING"), ("name", "=", "running")])[0]
    assert row.node_id == row["worker_id"].partition("/")[0]
    assert (row.owner, row.type, row.job_id) == ("driver-1", "NORMAL_TASK", "00000001")
    assert row.required_resources == {"CPU": 2.0}
    [row] = list_tasks(filters=[("name", "=", "queued")])
    assert (row.state, row.worker_id) == ("PENDING_NODE_ASSIGNMENT", None)
    row = get_task(task_id)
    assert (row.name, row.state, row.waits_for) == ("after", "PENDING_ARGS_AVAIL", [refs[0].hex()])
    gate.open()
    assert get([*refs, queued, waiting]) == [1] * (cluster.nodes + 2)
    eventually(lambda: (get_task(task_id) or {}).get("state") == "FINISHED", "its end is in the table")


def test_each_attempt_of_a_task_has_a_row():
    @ray.remote(max_retries=2)
    def crashing():
        os._exit(1)

    @ray.remote(max_retries=1, retry_exceptions=True)
    def wrong():
        raise ValueError("no")

    crashed, raised = crashing.remote(), wrong.remote()
    for ref in (crashed, raised):
        with pytest.raises((WorkerCrashedError, TaskError)):
            get(ref)

    def attempts(name: str) -> list[tuple[int, str, str]]:
        rows = list_tasks(filters=[("name", "=", name)])
        return sorted((row.attempt_number, row.state, row.error_type) for row in rows)

    wanted = [(number, "FAILED", "WORKER_CRASHED") for number in range(3)]
    eventually(lambda: attempts("crashing") == wanted, "each attempt has a row")
    wanted = [(number, "FAILED", "APPLICATION") for number in range(2)]
    eventually(lambda: attempts("wrong") == wanted, "each attempt has a row")
    first, last = sorted(list_tasks(filters=[("name", "=", "wrong")]), key=lambda row: row.attempt_number)
    assert "ValueError: no" in first.error_message
    assert (first.task_id, first.type, first.job_id) == (last.task_id, last.type, last.job_id)
    assert first.node_id == first.worker_id.partition("/")[0]
    assert get_task(raised.hex()[:32]).attempt_number == 1, "the last one"
    assert summarize_tasks()["cluster"]["summary"]["crashing"]["state_counts"] == {"FAILED": 1}


def test_workers_that_have_ended_are_listed_with_the_reason():
    @ray.remote
    class Ending:
        def worker(self):
            return ray.get_runtime_context().get_worker_id()

        def exit(self):
            ray.exit_actor()

        def die(self):
            os._exit(3)

    actors = [Ending.remote() for _ in range(3)]
    killed, left, died = get([actor.worker.remote() for actor in actors])
    ray.kill(actors[0])
    for ending in (actors[1].exit.remote(), actors[2].die.remote()):
        with pytest.raises(ActorDiedError):
            get(ending)

    def ended() -> dict[str, tuple[str, str]]:
        rows = list_workers(detail=True, filters=[("state", "=", "DEAD")])
        return {row.worker_id: (row.exit_type, row.exit_detail) for row in rows}

    eventually(lambda: {killed, left, died} <= set(ended()), "the head knows that the workers have ended")
    found = ended()
    assert found[killed][0] == "INTENDED_SYSTEM_EXIT"
    assert "ray.kill" in found[killed][1]
    assert found[left][0] == "INTENDED_USER_EXIT"
    assert "exit_actor" in found[left][1]
    assert found[died] == ("SYSTEM_ERROR", "exited with code 3")
    assert (get_worker(died).state, get_worker(died).exit_type) == ("DEAD", "SYSTEM_ERROR")
    assert not {killed, left, died} & {row.worker_id for row in list_workers()}
    assert {row.exit_type for row in list_workers()} == {None}


@pytest.mark.parametrize("concurrency", [1, 2])
def test_calls_that_an_actor_has_not_begun(gate, concurrency):
    @ray.remote
    class Door:
        def wait(self):
            gate.wait()

    door = Door.options(max_concurrency=concurrency).remote()
    name = f"wait-{concurrency}"
    refs = [door.wait.options(name=name).remote() for _ in range(concurrency + 2)]

    def has_begun() -> bool:
        rows = list_tasks(filters=[("name", "=", name)])
        states = [row.state for row in sorted(rows, key=lambda row: row.state)]
        return states == [*["PENDING_ACTOR_TASK_ORDERING_OR_CONCURRENCY"] * 2, *["RUNNING"] * concurrency]

    eventually(has_begun, "some calls run, and two wait in their actor")
    gate.open()
    get(refs)


def test_a_task_that_has_ended_is_still_known():
    @ray.remote
    def short():
        return 1

    @ray.remote
    def wrong():
        raise ValueError("no")

    ref, bad = short.remote(), wrong.remote()
    short_id, wrong_id = ref.hex()[:32], bad.hex()[:32]
    assert get(ref) == 1
    with pytest.raises(ValueError, match="no"):
        get(bad)
    del ref, bad
    eventually(lambda: (get_task(short_id) or {}).get("state") == "FINISHED", "the one has finished")
    eventually(lambda: (get_task(wrong_id) or {}).get("state") == "FAILED", "the other has failed")
    row = get_task(wrong_id)
    assert (row.name, row.error_type) == ("wrong", "APPLICATION")
    assert "ValueError: no" in row.error_message
    assert get_task("0" * 32) is None


def test_the_times_of_tasks(gate):
    @ray.remote(max_retries=0)
    def nap(seconds, gate):
        before_ms = time.time() * 1000
        time.sleep(seconds)
        if gate is not None:
            gate.wait()
        return before_ms

    began_ms = time.time() * 1000
    short, long = nap.remote(0.05, None), nap.remote(0.1, gate)
    inside_ms, task_id = get(short), short.task_id().hex()
    eventually(lambda: (get_task(task_id) or {}).get("end_time_ms") is not None, "its end is in the table")
    row = get_task(task_id)
    assert began_ms - 1 <= row.start_time_ms <= inside_ms
    assert row.end_time_ms >= row.start_time_ms + 50
    eventually(lambda: (get_task(long.task_id().hex()) or {}).get("start_time_ms") is not None, "the task runs")
    assert get_task(long.task_id().hex()).end_time_ms is None
    gate.open()
    get(long)
    eventually(
        lambda: {row.end_time_ms is None for row in list_tasks(detail=True) if row.name == "nap"} == {False},
        "all ends are in the table",
    )
    assert list_tasks()[0].start_time_ms is None  # as on Ray without detail


def test_calls_of_actors_are_tasks(gate):
    keeper = Keeper.remote()
    actor_id = get(keeper.context.remote())["actor"]
    call = keeper.wait.remote(gate)
    eventually(
        lambda: list_tasks(filters=[("name", "=", "Keeper.wait"), ("state", "=", "RUNNING")]).total == 1, "it runs"
    )
    [row] = list_tasks(filters=[("name", "=", "Keeper.wait"), ("state", "=", "RUNNING")])
    assert (row.type, row.actor_id) == ("ACTOR_TASK", actor_id)
    assert list_actors(filters=[("actor_id", "=", actor_id)]).total == 1
    gate.open()
    get(call)


def test_tasks_are_summarized_by_name():
    @ray.remote
    def counted():
        return 1

    get([counted.remote() for _ in range(7)])
    eventually(
        lambda: summarize_tasks()["cluster"]["summary"].get("counted", {}).get("state_counts") == {"FINISHED": 7},
        "all 7 are known",
    )
    summary = summarize_tasks()["cluster"]
    assert summary["summary_by"] == "name"
    assert summary["summary"]["counted"]["type"] == "NORMAL_TASK"
    assert summary["total_tasks"] >= 7


# ---- Actors, nodes, workers, objects, groups -----------------------------------------------------------------------


def test_actors_are_listed_while_they_live_and_after():
    keeper = Keeper.options(max_restarts=1).remote()
    actor_id = get(keeper.context.remote())["actor"]
    row = get_actor(actor_id)
    assert (row.class_name, row.state, row.num_restarts, row.owner) == ("Keeper", "ALIVE", 0, "driver-1")
    assert row.worker_id.startswith(row.node_id)
    keeper.die.remote()
    eventually(lambda: get_actor(actor_id).num_restarts == 1, "it has come back")
    eventually(lambda: get_actor(actor_id).state == "ALIVE", "it lives again")
    assert get(keeper.context.remote())["restarted"]
    ray.kill(keeper)
    eventually(lambda: get_actor(actor_id).state == "DEAD", "it was killed")
    assert "killed" in get_actor(actor_id).death_cause
    assert summarize_actors()["cluster"]["summary"]["Keeper"]["state_counts"]["DEAD"] >= 1


def test_nodes_are_listed(cluster):
    rows = list_nodes()
    assert len(rows) == cluster.nodes
    assert {row.node_id for row in rows} == node_ids()
    assert {row.state for row in rows} == {"ALIVE"}
    assert rows[0].resources_total == ray.nodes()[0]["Resources"]
    assert (rows[0].resources_total["CPU"], rows[0].resources_total["GPU"]) == (2.0, 1.0)
    assert rows[0].labels == {"zone": "a"}
    assert get_node(min(node_ids())).incarnation == 0
    assert get_node("node-99") is None


def test_rows_say_when_nodes_and_workers_started_and_ended():
    class Ending:
        def worker(self):
            return ray.get_runtime_context().get_worker_id()

        def die(self):
            os._exit(3)

    nodes = {row.node_id: row.start_time_ms for row in list_nodes()}
    assert all(0 < since_ms <= time.time() * 1000 + 1 for since_ms in nodes.values())
    assert {row.end_time_ms for row in list_nodes()} == {0}
    [driver] = [row for row in list_workers() if row.worker_type == "DRIVER"]
    assert 0 < driver.start_time_ms <= time.time() * 1000 + 1
    actor = ray.remote(Ending).remote()
    worker = get(actor.worker.remote())
    row = get_worker(worker)
    assert nodes[row.node_id] <= row.start_time_ms + 1000  # clocks are read at different times
    assert 0 < row.start_time_ms <= time.time() * 1000 + 1
    assert row.end_time_ms == 0
    before_ms = time.time() * 1000
    with pytest.raises(ActorDiedError):
        get(actor.die.remote())
    eventually(lambda: get_worker(worker).state == "DEAD", "the head knows that the worker has ended")
    assert before_ms - 1 <= get_worker(worker).end_time_ms <= time.time() * 1000 + 1


def test_fields_that_only_rays_rows_have_are_none():
    get(ray.remote(lambda: 1).remote())
    assert (list_tasks()[0].call_site, list_tasks()[0].start_time_ms) == (None, None)
    assert (list_nodes()[0].state_message, list_workers()[0].debugger_port) == (None, None)
    with pytest.raises(AttributeError, match="this row of the state API has no field 'nonsense'"):
        _ = list_tasks()[0].nonsense


def test_workers_are_listed():
    rows = list_workers()
    assert rows[0]["worker_id"] == "driver-1"
    assert rows[0].worker_type == "DRIVER"
    worker = get(ray.remote(lambda: ray.get_runtime_context().get_worker_id()).remote())
    row = get_worker(worker)
    assert (row.worker_type, row.node_id) == ("WORKER", worker.partition("/")[0])


@pytest.mark.parametrize("listing", [list_actors, list_tasks, list_objects, list_workers])
def test_an_actor_that_ends_meanwhile_holds_up_no_listing(listing):
    @ray.remote
    class Short:
        def ping(self):
            return "pong"

    for _ in range(3):  # whether the head has heard of the end when it is asked depends on the moment
        actor = Short.remote()
        assert get(actor.ping.remote()) == "pong"
        del actor
        listing()  # a process without an answer is an error


def test_objects_are_listed_with_what_keeps_them():
    small, large = ray.put(1), ray.put(np.zeros(100_000))
    keeper = Keeper.remote()
    get(keeper.keep.remote([large]))
    row = get_objects(large.hex())
    assert (row.owner, row.state, row.is_put, row.local_refs) == ("driver-1", "STORED", True, 1)
    assert row.size_bytes > 800_000
    assert row.node_ids == ["node-0"]
    assert len(row.borrowers) == 1
    assert get_objects(small.hex()).state == "INLINE"
    summary = summarize_objects()["cluster"]["summary"]["driver-1"]
    assert summary["total_bytes"] > 800_000
    assert summary["state_counts"]["STORED"] >= 1
    gone = large.hex()
    get(keeper.keep.remote(None))
    del large
    eventually(lambda: get_objects(gone) is None, "nobody holds it")
    assert list_objects(filters=[("object_id", "=", small.hex())]).total == 1


def test_placement_groups_are_listed():
    group = placement_group([{"CPU": 1}], name="listed")
    assert group.wait(20)
    row = get_placement_group(group.id.hex())
    assert (row.name, row.state, row.strategy) == ("listed", "CREATED", "PACK")
    assert row.bundles[0]["resources"] == {"CPU": 1.0}
    remove_placement_group(group)
    eventually(lambda: get_placement_group(group.id.hex()).state == "REMOVED", "it was removed")
    assert group.id.hex() in [row["placement_group_id"] for row in list_placement_groups(limit=1000)]


# ---- Asking --------------------------------------------------------------------------------------------------------


def test_a_limit_limits_and_the_total_tells(cluster):
    rows = list_nodes(limit=1)
    assert (len(rows), rows.total, rows.missing) == (1, cluster.nodes, [])


def test_filters_compare(cluster):
    first = min(node_ids())
    assert list_nodes(filters=[("node_id", "!=", first)]).total == cluster.nodes - 1
    assert list_nodes(filters=[("node_id", "contains", first[:5])]).total == cluster.nodes
    assert list_nodes(filters=[("incarnation", "=", 0), ("node_id", "=", first)]).total == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"filters": [("nod_id", "=", "x")]}, r"no field 'nod_id'\. Did you mean 'node_id'\?"),
        ({"filters": [("node_id", "<", "x")]}, "no predicate '<'"),
        ({"limit": 0}, "limit=0 must be a positive int"),
        ({"limit": "2"}, "limit='2' must be a positive int"),
    ],
)
def test_a_wrong_question_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        list_nodes(**arguments)


def test_a_wrong_table_is_refused():
    with pytest.raises(ValueError, match=r"no table 'task'\. Did you mean 'tasks'\?"):
        state.live.list("task")
    with pytest.raises(ValueError, match="no summary of 'nodes'"):
        state.live.summarize("nodes")
    with pytest.raises(AttributeError, match="this row of the state API has no field 'nod'"):
        _ = list_nodes()[0].nod


def test_a_task_can_ask_too(cluster):
    counted = ray.remote(lambda: (list_nodes().total, list_workers().total > 0, list_tasks().total > 0))
    assert get(counted.remote()) == (cluster.nodes, True, True)


# ---- The context of a task -------------------------------------------------------------------------------------------


def test_the_drivers_context_in_full():
    context = ray.get_runtime_context()
    assert context.get_job_id() == "00000001"
    assert context.get_placement_group_id() is None
    assert context.get_accelerator_ids() == {kind.name: [] for kind in KINDS}
    assert context.get_resource_ids() == context.get_accelerator_ids()
    assert context.get_node_labels() == {"zone": "a", "ray.io/node-id": "node-0"}
    assert not context.was_current_actor_reconstructed
    assert not context.should_capture_child_tasks_in_placement_group
    found = context.get()
    assert found == {
        "job_id": "00000001",
        "node_id": "node-0",
        "namespace": context.namespace,
        "worker_id": "driver-1",
    }
    assert (found["job_id"].hex(), found["node_id"].hex()) == ("00000001", "node-0")
    with pytest.warns(DeprecationWarning, match="is deprecated"):
        assert context.job_id.binary() == b"\0\0\0\1"
    with pytest.warns(DeprecationWarning, match="is deprecated"):
        assert (context.node_id, context.task_id, context.actor_id) == ("node-0", None, None)
    with pytest.warns(DeprecationWarning, match="get_placement_group_id"):
        assert context.current_placement_group_id is None
    assert context.gcs_address
    assert context.get_session_name()
    with pytest.raises(RuntimeError, match="outside an actor"):
        _ = context.current_actor


def test_an_actors_context_in_full():
    keeper = Keeper.options(num_gpus=1).remote()
    found = get(keeper.context.remote())
    assert (found["task"], found["function"]) == ("Keeper.context", f"{__name__}.Keeper.context")
    assert found["job"] == "00000001"
    assert found["gpus"] == {kind.name: ["0"] if kind.name == "GPU" else [] for kind in KINDS}
    assert not found["restarted"]
    assert found["labels"] == {"zone": "a", "ray.io/node-id": found["node"]}
    assert found["all"]["actor_id"] == found["actor"] == found["all"]["actor_id"].hex()


def test_an_actor_can_hand_itself_on():
    keeper = Keeper.remote()
    again = get(keeper.call_me.remote())
    assert again == keeper
    get(again.keep.remote(3))
    del again
    assert get(keeper.context.remote())["function"] == f"{__name__}.Keeper.context"


def test_a_task_knows_its_placement_group():
    group = placement_group([{"CPU": 1}])

    @ray.remote
    def ask():
        context = ray.get_runtime_context()
        return context.get_placement_group_id(), context.should_capture_child_tasks_in_placement_group

    for captures in (True, False):
        strategy = PlacementGroupSchedulingStrategy(group, placement_group_capture_child_tasks=captures)
        assert get(ask.options(scheduling_strategy=strategy).remote()) == (group.id.hex(), captures)
    remove_placement_group(group)


def test_rows_answer_to_rays_names(gate):
    @ray.remote
    class Named:
        def begin(self):
            return 1

        def wait(self, gate):
            gate.wait()

    named = Named.remote()
    refs = [named.begin.remote(), ray.put(np.zeros(1000)), named.wait.remote(gate)]
    get(refs[0])
    [task] = list_tasks(filters=[("func_or_class_name", "=", "Named.wait"), ("STATE", "!=", "failed")])
    assert (task.func_or_class_name, task.get("func_or_class_name"), task["name"]) == ("Named.wait",) * 3
    [actor] = list_actors(None, [("state", "=", "alive"), ("class_name", "=", "Named")], detail=True)
    assert actor.job_id == actor["job_id"] == task.job_id
    assert get_objects(refs[1].hex(), address="auto").object_size > 8000
    node = list_nodes()[0]
    assert (node.node_name, node.is_head_node) == ("node-0", True)
    assert node.node_ip == ray.nodes()[0]["NodeManagerAddress"]
    assert [list_nodes(filters=[("is_head_node", "=", True)]) for _ in range(20)] == 20 * [[node]]
    assert list_tasks()[0].language == "PYTHON"
    assert (task.placement_group_id, task["call_site"], actor.repr_name, node.state_message) == (None,) * 4
    [held] = list_objects(filters=[("object_id", "=", refs[1].hex())])
    assert (held.reference_type, held.type) == ("LOCAL_REFERENCE", "DRIVER")
    assert all(row.is_alive for row in list_workers())
    with pytest.raises(AttributeError, match="this row of the state API has no field 'object_size'"):
        actor.object_size  # noqa: B018
    assert actor.get("object_size", 3) == 3
    with pytest.raises(ValueError, match="there is no field 'object_size'"):
        list_actors(filters=[("object_size", "=", 3)])
    with pytest.raises(ValueError, match=r"address=.other:1.: list_actors reads only the cluster of this program"):
        list_actors("other:1")
    gate.open()
    get(refs[2])


def test_the_job_and_its_environment():
    [job] = state.list_jobs(filters=[("status", "=", "running")]) or state.list_jobs()
    here = ray.get_runtime_context()
    assert (job.job_id, job.type, job["status"]) == (here.get_job_id(), "DRIVER", "RUNNING")
    assert job.entrypoint
    assert state.get_job(job.job_id) == job
    assert state.get_job(job.job_id, address=ray.runtime.current("test").addresses()["control_plane_address"]) == job
    assert state.get_job("ffffffff") is None
    assert ray.put(1).job_id() == job.job_id
    assert ray.ObjectRef.size() == len(ray.put(1).binary())
    assert state.list_runtime_envs() == []
    assert here.get_temp_dir()
    with pytest.raises(ValueError, match="there is no table 'jobs'"):
        state.live.list("jobs")


def test_a_row_becomes_a_plain_dict_as_a_dataclass_does():
    row = list_nodes()[0]
    fields = dataclasses.asdict(row)
    assert type(fields) is dict
    assert fields == row.asdict()
    assert {**fields, **row} == fields
    assert fields["node_name"] == row["node_id"]
    assert fields["state_message"] is None
    assert [field.name for field in dataclasses.fields(row)] == list(fields)


def test_each_task_that_has_ended_is_listed_at_once():
    """The row of a task that a worker had just finished was in no process and in no table for some milliseconds."""
    nothing = ray.remote(lambda: None).options(name="listed at once")
    for count in range(1, 31):
        get(nothing.remote())
        assert len(list_tasks(filters=[("name", "=", "listed at once")])) == count
