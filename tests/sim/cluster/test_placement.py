"""Placement on several virtual nodes: strategies of groups, labels, nodes that die and come back."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import dualray as ray
from dualray import runtime
from dualray.exceptions import (
    NodeDiedError,
    PlacementGroupUnschedulableError,
    SimulationDeadlockError,
    TaskPlacementGroupRemoved,
    TaskUnschedulableError,
    WorkerCrashedError,
)
from dualray.util.placement_group import PlacementGroup, placement_group, placement_group_table, remove_placement_group
from dualray.util.scheduling_strategies import (
    In,
    NodeAffinitySchedulingStrategy,
    NodeLabelSchedulingStrategy,
    NotIn,
    PlacementGroupSchedulingStrategy,
)


@pytest.fixture
def start() -> Iterator[Callable[..., object]]:
    yield lambda nodes=4, **options: ray.init(mode="sim", nodes=nodes, **{"num_cpus": 4, **options})
    current: Any = runtime.current_or_none()
    if current is not None:
        current.cluster.check_invariants()
    ray.shutdown()


@ray.remote
def where() -> str:
    return ray.get_runtime_context().get_node_id()


@ray.remote(max_retries=0)
def long(seconds: float) -> str:
    time.sleep(seconds)
    return ray.get_runtime_context().get_node_id()


def nodes_of(group: PlacementGroup) -> list[str]:
    assert group.wait(60)
    return list(placement_group_table(group)["bundles_to_node_id"].values())


def within(group: PlacementGroup, index: int = -1) -> PlacementGroupSchedulingStrategy:
    return PlacementGroupSchedulingStrategy(group, index)


# ---- Strategies ------------------------------------------------------------------------------------------------------


def test_pack_takes_few_nodes_and_spread_takes_many(start):
    start()
    assert set(nodes_of(placement_group([{"CPU": 1}] * 4, strategy="PACK"))) == {"node-0"}
    assert sorted(nodes_of(placement_group([{"CPU": 1}] * 4, strategy="SPREAD"))) == [
        "node-1",
        "node-1",
        "node-2",
        "node-3",
    ]


def test_pack_takes_a_second_node_when_it_must_and_strict_pack_does_not(start):
    start(nodes=2)
    assert sorted(nodes_of(placement_group([{"CPU": 1}] * 6, strategy="PACK"))) == ["node-0"] * 4 + ["node-1"] * 2
    strict = placement_group([{"CPU": 2}, {"CPU": 1}], strategy="STRICT_PACK")
    assert not strict.wait(1)


def test_strict_pack_takes_one_node_and_strict_spread_one_for_each(start):
    start()
    assert set(nodes_of(placement_group([{"CPU": 2}, {"CPU": 2}], strategy="STRICT_PACK"))) == {"node-0"}
    assert sorted(nodes_of(placement_group([{"CPU": 1}] * 3, strategy="STRICT_SPREAD"))) == [
        "node-1",
        "node-2",
        "node-3",
    ]
    waiting = placement_group([{"CPU": 1}] * 4, strategy="STRICT_SPREAD")
    assert not waiting.wait(1)


def test_a_matching_is_found_where_a_greedy_choice_finds_none(start):
    """Bundle 0 fits on both nodes, bundle 1 on the first alone."""
    ray.init(mode="sim", nodes=2, num_cpus=2, labels=[{"disk": "ssd"}, {}])
    selectors = [{}, {"disk": "ssd"}]
    group = placement_group([{"CPU": 2}, {"CPU": 2}], "STRICT_SPREAD", bundle_label_selector=selectors)
    assert nodes_of(group) == ["node-1", "node-0"]
    remove_placement_group(group)
    group = placement_group([{"CPU": 2}, {"CPU": 2}], "PACK", bundle_label_selector=selectors)
    assert nodes_of(group) == ["node-1", "node-0"]
    ray.shutdown()


# ---- Failures --------------------------------------------------------------------------------------------------------


def test_bundles_of_a_dead_node_are_placed_elsewhere_and_the_others_stay(start):
    start(faults=["kill node-2 at 5s"])
    group = placement_group([{"CPU": 4}] * 3, strategy="STRICT_SPREAD")
    before = nodes_of(group)
    assert before == ["node-0", "node-1", "node-2"]
    with pytest.raises(ray.exceptions.DualrayError, match="node-2"):
        ray.get(long.options(scheduling_strategy=within(group, 2)).remote(30))
    assert ray.get(where.options(scheduling_strategy=within(group, 2)).remote(), timeout=60) == "node-3"
    assert nodes_of(group) == ["node-0", "node-1", "node-3"]


def test_a_retried_task_follows_its_bundle(start):
    start(faults=["kill node-1 at 5s"])
    group = placement_group([{"CPU": 4}, {"CPU": 4}], strategy="STRICT_SPREAD")
    assert nodes_of(group) == ["node-0", "node-1"]
    assert ray.get(long.options(max_retries=1, scheduling_strategy=within(group, 1)).remote(20), timeout=90) == "node-2"


def test_a_lost_bundle_waits_for_room(start):
    start(nodes=3, faults=["kill node-1 at 5s"])
    group = placement_group([{"CPU": 4}, {"CPU": 4}], strategy="STRICT_SPREAD")
    assert nodes_of(group) == ["node-0", "node-1"]
    blocker = long.options(num_cpus=1, scheduling_strategy=NodeAffinitySchedulingStrategy("node-2")).remote(40)
    task = where.options(scheduling_strategy=within(group, 1)).remote()
    assert ray.get(task) == "node-1"
    lost = long.options(scheduling_strategy=within(group, 1)).remote(30)
    with pytest.raises(ray.exceptions.DualrayError):
        ray.get(lost)
    task = where.options(scheduling_strategy=within(group, 1)).remote()
    ready = group.ready()
    assert ray.wait([task, ready], timeout=5)[0] == []
    assert placement_group_table(group)["state"] == "RESCHEDULING"
    assert ray.get(where.options(scheduling_strategy=within(group, 0)).remote()) == "node-0"
    assert ray.get([blocker, task, ready]) == ["node-2", "node-2", group]


def test_when_too_few_nodes_are_left_what_waits_fails(start):
    start(nodes=2, faults=["kill node-1 at 5s"])
    group = placement_group([{"CPU": 4}, {"CPU": 4}], strategy="STRICT_SPREAD")
    assert nodes_of(group) == ["node-0", "node-1"]
    with pytest.raises(ray.exceptions.DualrayError):
        ray.get(long.options(scheduling_strategy=within(group, 1)).remote(30))
    with pytest.raises(TaskUnschedulableError, match="can never be placed: STRICT_SPREAD needs 2 nodes"):
        ray.get(where.options(scheduling_strategy=within(group, 1)).remote(), timeout=60)
    assert placement_group_table(group)["state"] == "INFEASIBLE"
    with pytest.raises(TaskUnschedulableError, match="can never be placed"):
        ray.get(group.ready(), timeout=60)
    assert ray.get(where.options(scheduling_strategy=within(group, 0)).remote(), timeout=60) == "node-0"
    with pytest.raises(PlacementGroupUnschedulableError):
        placement_group([{"CPU": 1}] * 2, strategy="STRICT_SPREAD")


def test_a_group_that_waits_while_its_node_reboots_is_made_when_it_is_back(start):
    start(nodes=2, faults=["reboot node-1 at 5s for 20s"], limits={"infeasible": "wait"})
    first = placement_group([{"CPU": 4}], bundle_label_selector=[{"ray.io/node-id": "node-1"}])
    assert nodes_of(first) == ["node-1"]
    with pytest.raises(ray.exceptions.DualrayError):
        ray.get(long.options(scheduling_strategy=within(first)).remote(30))
    assert ray.get(where.options(scheduling_strategy=within(first)).remote(), timeout=120) == "node-1"


def test_a_group_whose_gpu_is_lost_is_placed_anew(start):
    start(nodes=2, num_gpus=1, faults=["lose gpu 0 of node-0 at 5s"])
    group = placement_group([{"GPU": 1, "CPU": 1}])
    assert nodes_of(group) == ["node-0"]
    task = long.options(num_gpus=1, num_cpus=0, max_retries=1, scheduling_strategy=within(group)).remote(20)
    assert ray.get(task, timeout=90) == "node-1"
    assert (ray.cluster_resources()["CPU"], ray.cluster_resources()["GPU"]) == (8.0, 1.0)


def test_two_runs_place_alike(start):
    def run() -> list[list[str]]:
        start(nodes=5, seed=3, faults=["kill node-3 at 2s"])
        groups = [placement_group([{"CPU": 1}] * 3, strategy) for strategy in ("SPREAD", "PACK", "STRICT_SPREAD")]
        found = [nodes_of(group) for group in groups]
        ray.get(long.options(max_retries=1).remote(10))
        found += [nodes_of(group) for group in groups]
        ray.shutdown()
        return found

    assert run() == run()


def test_thousand_bundles_are_placed(start):
    start(nodes=100)
    group = placement_group([{"CPU": 0.4}] * 1000, strategy="SPREAD")
    nodes = nodes_of(group)
    assert {nodes.count(node) for node in nodes} == {10}


# ---- Labels ----------------------------------------------------------------------------------------------------------


def test_labels_choose_among_nodes(start):
    start(nodes=3, labels=[{"zone": "a"}, {"zone": "b", "fast": "yes"}, {"zone": "b"}])
    assert ray.get(where.options(label_selector={"zone": "b"}).remote()) == "node-1"
    assert ray.get(where.options(label_selector={"zone": "!a", "fast": "!yes"}).remote()) == "node-2"
    spread = where.options(label_selector={"zone": "b"}, scheduling_strategy="SPREAD")
    assert set(ray.get([spread.remote() for _ in range(8)])) == {"node-1", "node-2"}
    soft = NodeLabelSchedulingStrategy({"zone": In("b")}, soft={"fast": NotIn("yes")})
    assert ray.get(where.options(scheduling_strategy=soft).remote()) == "node-2"
    time.sleep(1)  # until the leases of the tasks above have gone back
    held = long.options(num_cpus=4, scheduling_strategy=soft).remote(5)
    assert ray.get(where.options(num_cpus=2, scheduling_strategy=soft).remote()) == "node-1"
    assert ray.get(held) == "node-2"


def test_bundles_go_where_their_labels_say(start):
    start(nodes=3, labels=[{"zone": "a"}, {"zone": "b"}, {"zone": "c"}])
    group = placement_group([{"CPU": 1}, {"CPU": 1}], bundle_label_selector=[{"zone": "c"}, {"zone": "in(a, b)"}])
    assert nodes_of(group) == ["node-2", "node-0"]


def test_more_labels_than_nodes_are_refused():
    with pytest.raises(ValueError, match="labels= has labels for 2 nodes, but the cluster has 1"):
        ray.init(mode="sim", nodes=1, labels=[{}, {}])
    with pytest.raises(ValueError, match="dualray sets the label"):
        ray.init(mode="sim", labels={"ray.io/node-id": "x"})


def test_a_scenarios_labels_are_its_nodes(start, tmp_path):
    path = tmp_path / "two.yaml"
    nodes = "  nodes:\n    - count: 1\n    - count: 1\n      labels: {zone: z}"
    path.write_text(f"name: two\ncluster:\n{nodes}\nworkload: {{function: 'a:b'}}\n")
    ray.init(mode="sim", scenario=path)
    assert ray.get(where.options(label_selector={"zone": "z"}).remote()) == "node-1"


# ---- Nothing hangs, whatever fails -----------------------------------------------------------------------------------


def test_a_group_that_can_never_have_its_room_is_a_deadlock(start):
    start(nodes=1)

    class Hog:
        def ready(self) -> None: ...

    hog = ray.remote(num_cpus=4)(Hog).remote()
    ray.get(hog.ready.remote())
    group = placement_group([{"CPU": 1}], name="starved")
    with pytest.raises(SimulationDeadlockError, match=r"placement group 'starved' .* waits: there is no room"):
        ray.get(group.ready())
    del hog
    assert group.wait(10)


@pytest.mark.filterwarnings("ignore:these faults of init")  # drawn at random: some find their node dead
@pytest.mark.parametrize("seed", range(12))
def test_groups_survive_faults(start, seed):
    """Groups, tasks in them, removals and dying nodes in an order drawn from the seed: each call ends, nothing is
    left."""
    draw = random.Random(seed)
    faults = [f"kill node-{node} at {draw.uniform(0.5, 8):.3f}s" for node in draw.sample(range(1, 6), 2)]
    faults.append(f"reboot node-{draw.randint(1, 5)} at {draw.uniform(0.5, 6):.3f}s for 2s")
    faults.append(f"lose gpu 0 of node-{draw.randint(0, 5)} at {draw.uniform(0.5, 8):.3f}s")
    start(nodes=6, num_gpus=2, faults=faults, limits={"infeasible": "wait"}, seed=seed)
    groups: list[PlacementGroup] = []
    refs: list[Any] = []
    for _ in range(40):
        time.sleep(draw.uniform(0, 0.5))
        action = draw.random()
        if action < 0.25 or not groups:
            bundles = [{"CPU": draw.randint(1, 3), "GPU": draw.choice([0, 0.5, 1])} for _ in range(draw.randint(1, 4))]
            groups.append(placement_group(bundles, draw.choice(["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"])))
        elif action < 0.4:
            remove_placement_group(groups.pop(draw.randrange(len(groups))))
        else:
            group = draw.choice(groups)
            index = draw.choice([-1, draw.randrange(group.bundle_count)])
            task = long.options(scheduling_strategy=within(group, index), max_retries=draw.choice([0, 3]))
            refs.append(task.remote(draw.uniform(0, 2)))
    time.sleep(20)
    for group in groups:
        remove_placement_group(group)
    ready, pending = ray.wait(refs, num_returns=len(refs), timeout=60) if refs else ([], [])
    assert pending == []
    for ref in ready:
        with contextlib.suppress(TaskPlacementGroupRemoved, NodeDiedError, WorkerCrashedError):
            assert ray.get(ref).startswith("node-")
    time.sleep(5)
    assert ray.available_resources() == ray.cluster_resources()
