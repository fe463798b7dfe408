"""Nodes that join and leave a cluster while a program runs: one body for both modes."""

from __future__ import annotations

import copy
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dualray
from dualray.cluster_utils import Cluster
from dualray.exceptions import ObjectReconstructionFailedError, TaskError, WorkerCrashedError
from dualray.util.placement_group import PlacementGroup, placement_group, placement_group_table, remove_placement_group
from dualray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from tests.conformance.support import eventually, in_words

FAST = {"heartbeat_timeout_ns": 400_000_000, "suspicion_ns": 1_000_000_000}
"""So that the death of a node is noticed before a test's patience ends."""
WITHIN_S = 40


@pytest.fixture
def cluster(mode: str) -> Iterator[Cluster]:
    """A head's node with one CPU, and this process as a driver."""
    head: dict[str, Any] = {"num_cpus": 1, "labels": {"zone": "a"}, "limits": FAST}
    with Cluster(initialize_head=True, connect=True, head_node_args=head, mode=mode) as started:
        yield started


@dualray.remote
def node_id() -> str:
    return dualray.get_runtime_context().get_node_id()


@dualray.remote
def same(value: Any) -> Any:
    return value


@dualray.remote(duration=0)
def slow_square(x: int, marks: str) -> int:
    Path(marks, f"{x}-{os.getpid()}").touch()
    time.sleep(1.0)
    return x * x


@dualray.remote
def ones(count: int, seed: int = 1) -> np.ndarray:
    return np.full(count, seed, dtype=np.float64)


@dualray.remote
def total(array: np.ndarray) -> float:
    return float(array.sum())


def states() -> dict[str, tuple[bool, int]]:
    return {row["NodeID"]: (row["Alive"], row["Incarnation"]) for row in dualray.nodes()}


def nodes_of(group: PlacementGroup) -> list[str]:
    assert group.wait(WITHIN_S)
    return list(placement_group_table(group)["bundles_to_node_id"].values())


@dualray.remote(num_cpus=1)
def slow_node_id() -> str:
    time.sleep(0.5)
    return dualray.get_runtime_context().get_node_id()


@dualray.remote(num_cpus=0, num_gpus=1)
def nodes_of_plain_tasks(count: int) -> tuple[str, list[str]]:
    """Where this task runs, and where tasks run that it submits and that need no GPU."""
    own = dualray.get_runtime_context().get_node_id()
    return own, dualray.get([slow_node_id.remote() for _ in range(count)])


def test_a_node_with_gpus_leaves_other_work_to_nodes_without(mode: str) -> None:
    with Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "num_gpus": 1}, mode=mode) as started:
        started.add_node(num_cpus=2, num_gpus=1)
        started.add_node(num_cpus=2)
        started.connect()
        own, others = dualray.get(nodes_of_plain_tasks.remote(2))
        assert own in ("node-0", "node-1")
        assert others == ["node-2", "node-2"]
        own, others = dualray.get(nodes_of_plain_tasks.remote(4))
        assert "node-2" in others  # the rest runs where there is room
        assert len(set(others)) > 1


def test_tasks_run_on_every_node_and_values_cross(cluster) -> None:
    nodes = [cluster.add_node(num_cpus=1, resources={f"r{index}": 1}) for index in range(2)]
    cluster.wait_for_nodes()
    places = dualray.get([node_id.options(resources={f"r{index}": 1}).remote() for index in range(2)])
    assert places == [node.node_id for node in nodes] == ["node-1", "node-2"]
    made = ones.options(resources={"r0": 1}).remote(1 << 18)
    assert dualray.get(total.options(resources={"r1": 1}).remote(made)) == 1 << 18
    assert dualray.get(total.options(num_cpus=1).remote(dualray.put(np.ones(1 << 18)))) == 1 << 18
    assert dualray.get(made).sum() == 1 << 18


def test_an_actor_on_another_node_is_called_from_a_third(cluster) -> None:
    cluster.add_node(num_cpus=1, resources={"a": 1})
    cluster.add_node(num_cpus=1, resources={"b": 1})

    @dualray.remote(resources={"a": 1})
    class Counter:
        def __init__(self) -> None:
            self.count = 0

        def add(self) -> tuple[int, str]:
            self.count += 1
            return self.count, dualray.get_runtime_context().get_node_id()

    @dualray.remote
    def calls(counter: Any) -> tuple[int, str]:
        return dualray.get([counter.add.remote() for _ in range(10)])[-1]

    counter = Counter.remote()
    assert dualray.get(calls.options(resources={"b": 1}).remote(counter)) == (10, "node-1")
    assert dualray.get(counter.add.remote()) == (11, "node-1")


def test_a_node_that_joins_runs_what_waits(cluster, tmp_path: Path) -> None:
    refs = [slow_square.remote(x, str(tmp_path)) for x in range(6)]
    eventually(lambda: list(tmp_path.iterdir()), "the first runs")
    node = cluster.add_node(num_cpus=2)
    assert dualray.get(refs) == [x * x for x in range(6)]
    assert dualray.cluster_resources()["CPU"] == 3
    assert node.node_id == "node-1"
    assert len(list(tmp_path.iterdir())) == 6


def test_memory_waits_for_a_node_that_offers_it(cluster) -> None:
    before = dualray.cluster_resources()["memory"]
    ref = node_id.options(memory="1000GiB").remote()
    assert dualray.wait([ref], timeout=0.2)[0] == []
    assert "1000.0 GiB of memory" in dualray.util.explain(ref)
    cluster.add_node(memory="2000GiB")
    assert dualray.get(ref, timeout=30) == "node-1"
    assert dualray.cluster_resources()["memory"] == before + 2000 * 2**30
    with pytest.raises(ValueError, match="memory=0 must be more than 0 bytes"):
        cluster.add_node(memory=0)
    cluster.add_node(memory=5)
    assert dualray.cluster_resources()["memory"] == before + 2000 * 2**30 + 5


def test_limits_belong_to_the_first_node(cluster) -> None:
    with pytest.raises(ValueError, match="apply to the whole cluster: pass them with its first node"):
        cluster.add_node(limits=FAST)


def test_objects_of_a_killed_node_are_made_again(cluster) -> None:
    doomed = cluster.add_node(num_cpus=1, resources={"r": 1})
    cluster.add_node(num_cpus=1, resources={"r": 1})
    refs = [ones.options(num_cpus=0.1, resources={"r": 0.1}).remote(1 << 16, seed) for seed in range(8)]
    dualray.wait(refs, num_returns=8, fetch_local=False)
    doomed.kill()
    assert [array[0] for array in dualray.get(refs, timeout=60)] == list(range(8))


@dualray.remote(num_returns="dynamic", max_retries=1, resources={"a": 0.5})
def slices(count: int) -> Any:
    for index in range(count):
        yield np.full(1 << 17, index)


def test_one_retry_makes_all_items_of_a_generator_again_that_a_killed_node_had(cluster) -> None:
    doomed = cluster.add_node(num_cpus=1, resources={"a": 1})
    items = list(dualray.get(slices.remote(5)))
    dualray.wait(items, num_returns=5, fetch_local=False)
    cluster.remove_node(doomed, allow_graceful=False)
    cluster.add_node(num_cpus=1, resources={"a": 1})
    assert [dualray.get(total.remote(item)) for item in items] == [index << 17 for index in range(5)]


def test_a_task_that_waits_for_an_argument_that_cannot_be_made_again_says_so(cluster, tmp_path: Path) -> None:
    doomed = cluster.add_node(num_cpus=1, resources={"a": 1})

    @dualray.remote(max_retries=1, resources={"a": 0.5})
    def made_once(marks: str) -> np.ndarray:
        if Path(marks, "made").exists():
            os._exit(1)
        Path(marks, "made").touch()
        return np.ones(1 << 17)

    lost = made_once.remote(str(tmp_path))
    dualray.wait([lost], fetch_local=False)
    cluster.remove_node(doomed, allow_graceful=False)
    waiting = total.remote(lost)
    assert dualray.wait([waiting], timeout=0.5)[0] == []
    cluster.add_node(num_cpus=1, resources={"a": 1})
    with pytest.raises(WorkerCrashedError) as itself:
        dualray.get(lost, timeout=60)
    assert not isinstance(itself.value, TaskError), "the task that crashed has raised nothing"
    with pytest.raises(TaskError, match="input arguments for this task could not be computed") as of_argument:
        dualray.get(waiting, timeout=60)
    assert isinstance(of_argument.value, WorkerCrashedError)
    assert isinstance(of_argument.value.cause, WorkerCrashedError)


def test_a_task_that_was_cancelled_too_late_does_not_run_again_for_its_lost_result(cluster) -> None:
    doomed = cluster.add_node(num_cpus=1, resources={"a": 1})

    @dualray.remote(resources={"a": 0.5})
    def large() -> np.ndarray:
        return np.ones(1 << 17)

    cancelled, other = large.remote(), large.remote()
    dualray.wait([cancelled, other], num_returns=2, fetch_local=False)
    dualray.cancel(cancelled)
    assert dualray.wait([cancelled], timeout=0.5, fetch_local=False)[0] == [cancelled], "its result stands"
    cluster.remove_node(doomed, allow_graceful=False)
    cluster.add_node(num_cpus=1, resources={"a": 1})
    assert dualray.get(other, timeout=60).sum() == 1 << 17
    with pytest.raises(ObjectReconstructionFailedError, match=in_words("was cancelled", "cancelled")):
        dualray.get(cancelled, timeout=60)


def test_tasks_of_a_killed_node_run_elsewhere(cluster, tmp_path: Path) -> None:
    doomed = cluster.add_node(num_cpus=2)
    refs = [slow_square.remote(x, str(tmp_path)) for x in range(6)]
    eventually(lambda: len(list(tmp_path.iterdir())) >= 3, "tasks run on both nodes")
    doomed.kill()
    assert dualray.get(refs, timeout=60) == [x * x for x in range(6)]
    assert len(list(tmp_path.iterdir())) > 6, "what ran on the killed node ran again"
    eventually(lambda: states()["node-1"] == (False, 0), "the node is counted as dead")


def test_a_node_that_is_removed_gracefully_finishes_its_tasks_and_hands_on_its_objects(cluster, tmp_path: Path) -> None:
    leaving = cluster.add_node(num_cpus=2, resources={"r": 1})
    cluster.add_node(num_cpus=1, resources={"s": 1})

    @dualray.remote(max_retries=0)
    def once(x: int, marks: str) -> tuple[int, str]:
        Path(marks, f"{x}-{os.getpid()}").touch()
        time.sleep(0.5)
        return x, dualray.get_runtime_context().get_node_id()

    @dualray.remote(num_cpus=0, resources={"r": 0.1}, max_retries=0)
    def made_there(size: int) -> np.ndarray:
        return np.arange(size)

    kept = made_there.remote(1 << 17)
    dualray.wait([kept], fetch_local=False)
    refs = [once.remote(x, str(tmp_path)) for x in range(12)]
    eventually(lambda: len(list(tmp_path.iterdir())) >= 4, "tasks run on all nodes")
    cluster.remove_node(leaving, allow_graceful=True)
    results = dualray.get(refs, timeout=60)
    assert [x for x, _ in results] == list(range(12))
    assert "node-1" in {node for _, node in results}, "what it had begun, it has finished"
    assert len(list(tmp_path.iterdir())) == 12, "nothing ran twice"
    assert dualray.get(kept).sum() == sum(range(1 << 17)), "it could not have been made again"
    assert states()["node-1"] == (False, 0)


def test_nodes_that_join_make_what_waits_run_and_a_dead_nodes_bundle_moves(cluster):
    labelled = node_id.options(label_selector={"zone": "b"}).remote()
    group = placement_group([{"CPU": 1}, {"CPU": 1}], strategy="STRICT_SPREAD")
    in_group = node_id.options(scheduling_strategy=PlacementGroupSchedulingStrategy(group, 1)).remote()
    assert dualray.wait([labelled, in_group], timeout=0.5)[0] == []
    assert not group.wait(0.1)

    second = cluster.add_node(num_cpus=2, labels={"zone": "b"})
    assert dualray.get(labelled, timeout=WITHIN_S) == second.node_id
    assert sorted(nodes_of(group)) == ["node-0", second.node_id]
    assert dualray.get(in_group, timeout=WITHIN_S) in ("node-0", second.node_id)
    labels = {row["NodeID"]: row["Labels"].get("zone") for row in dualray.nodes()}
    assert labels == {"node-0": "a", second.node_id: "b"}

    third = cluster.add_node(num_cpus=1)
    cluster.remove_node(second, allow_graceful=False)
    assert sorted(nodes_of(group)) == ["node-0", third.node_id]
    for index in (0, 1):
        strategy = PlacementGroupSchedulingStrategy(group, index)
        assert dualray.get(node_id.options(scheduling_strategy=strategy).remote(), timeout=WITHIN_S)
    remove_placement_group(group)


def test_a_cluster_without_a_driver_gives_its_address(mode: str) -> None:
    """As most of Ray's tests of several nodes begin."""
    with Cluster(mode=mode) as alone:
        head = alone.add_node(num_cpus=1)
        second = alone.add_node(num_cpus=2, resources={"second": 1})
        assert alone.list_all_nodes() == [alone.head_node, second] == [head, second]
        alone.wait_for_nodes()
        assert not dualray.is_initialized()
        with pytest.raises(ValueError, match="cannot set num_cpus"):
            dualray.init(address=alone.address, num_cpus=1)
        dualray.init(address=copy.deepcopy(alone.address))
        alone.wait_for_nodes()
        assert dualray.cluster_resources()["CPU"] == 3
        assert dualray.get(same.remote({"address": alone.address})) == {"address": str(alone.address)}
        late = node_id.options(resources={"third": 1}).remote()
        assert dualray.wait([late], timeout=0.2)[0] == []
        third = alone.add_node(num_cpus=1, resources={"third": 1})
        assert dualray.get(late, timeout=WITHIN_S) == third.node_id
        assert alone.remaining_processes_alive()
        alone.remove_node(third)
        alone.wait_for_nodes()
        assert not third.remaining_processes_alive()
        assert dualray.cluster_resources()["CPU"] == 3
        dualray.shutdown()


@dualray.remote
class Resident:
    def node(self) -> str:
        return dualray.get_runtime_context().get_node_id()


def test_what_needs_no_gpu_leaves_the_bundle_with_a_gpu_to_others(cluster: Cluster) -> None:
    cluster.add_node(num_cpus=1, num_gpus=1)
    group = placement_group([{"CPU": 1, "GPU": 1}, {"CPU": 1}], strategy="STRICT_SPREAD")
    with_gpu, without = nodes_of(group)
    within = PlacementGroupSchedulingStrategy(group)
    resident: Any = Resident
    plain = resident.options(num_cpus=1, scheduling_strategy=within).remote()
    assert dualray.get(plain.node.remote(), timeout=WITHIN_S) == without
    needy = resident.options(num_cpus=1, num_gpus=1, scheduling_strategy=within).remote()
    assert dualray.get(needy.node.remote(), timeout=WITHIN_S) == with_gpu


@pytest.mark.parametrize("can_be_made_again", [True, False])
def test_an_actor_that_restarts_waits_for_its_argument_without_resources(mode: str, can_be_made_again: bool) -> None:
    """The task that makes the lost argument again needs what the actor would hold meanwhile."""

    @dualray.remote(num_cpus=1, resources={"small": 1}, max_retries=1)
    def large() -> np.ndarray:
        return np.zeros(10**7, dtype=np.uint8)

    @dualray.remote(num_cpus=1, resources={"small": 1})
    def put() -> list[dualray.ObjectRef]:
        return [dualray.put(np.zeros(10**7, dtype=np.uint8))]

    @dualray.remote(num_cpus=1, resources={"small": 1}, max_restarts=-1, max_task_retries=-1)
    class Holder:
        def __init__(self, array: np.ndarray) -> None:
            self.size = len(array)

        def length(self) -> int:
            return self.size

    with Cluster(initialize_head=True, connect=True, head_node_args={"num_cpus": 0}, mode=mode) as small:
        first = small.add_node(num_cpus=1, resources={"small": 1})
        ref = large.remote() if can_be_made_again else dualray.get(put.remote())[0]
        holder = Holder.remote(ref)
        assert dualray.get(holder.length.remote(), timeout=WITHIN_S) == 10**7
        small.remove_node(first, allow_graceful=False)
        small.add_node(num_cpus=1, resources={"small": 1})
        if can_be_made_again:
            assert dualray.get(holder.length.remote(), timeout=WITHIN_S) == 10**7
        else:
            with pytest.raises(dualray.exceptions.ActorDiedError, match="owned it"):
                dualray.get(holder.length.remote(), timeout=WITHIN_S)
