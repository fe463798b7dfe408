"""A cluster that grows and shrinks: one body, both modes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dualray as ray
from dualray import runtime
from dualray.autoscaler import request_resources, status
from dualray.cluster_utils import Cluster
from dualray.report.histories import Lives
from dualray.report.record import read_record
from dualray.report.usage import Steps, resources
from dualray.shared.scenario.file import parse_growth
from dualray.util.placement_group import placement_group, remove_placement_group
from dualray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from dualray.util.state import of_run
from tests.conformance.support import MIB, eventually, get

GROWTH = """
cluster:
  cpus: 1
  object_store: 64MiB
  groups:
    plain: {max: 3, start_up: 1s%s}
    wide: {max: 1, cpus: 2, labels: {kind: wide}, start_up: 1s}
config: {idle_timeout_ns: 1000000000, launch_cooldown_ns: 2000000000}
"""


@ray.remote
def where(seconds: float = 0.0) -> str:
    time.sleep(seconds)
    return ray.get_runtime_context().get_node_id()


@ray.remote(num_cpus=1)
class Keeper:
    def where(self) -> str:
        return ray.get_runtime_context().get_node_id()


def alive() -> list[str]:
    return sorted(row["NodeID"] for row in ray.nodes() if row["Alive"])


def groups() -> dict[str, dict[str, Any]]:
    return {row["group"]: row for row in runtime.current("groups").verbs.head_rows("autoscaler")}


@pytest.fixture
def grow(mode: str) -> Iterator[Callable[..., Cluster]]:
    made = []

    def start(more: str = "", record: Path | None = None, **limits: Any) -> Cluster:
        growth = parse_growth(GROWTH % more, "grows.yaml")
        growth = growth.model_copy(update={"config": growth.config | limits})
        head = {"num_cpus": 1, "object_store_memory": 64 * MIB, "autoscale": growth, "decision_log": record}
        made.append(Cluster(initialize_head=True, connect=True, head_node_args=head, mode=mode))
        return made[-1]

    yield start
    for cluster in made:
        cluster.shutdown()


def test_nodes_are_launched_for_tasks_that_wait_and_leave_when_they_are_idle(grow: Callable[..., Cluster]) -> None:
    grow()
    assert alive() == ["node-0"]
    nodes = set(get([where.remote(0.7) for _ in range(12)]))
    assert len(nodes) >= 3
    eventually(lambda: alive() == ["node-0"], "all that were launched have left")
    assert [row["nodes"] for row in groups().values()] == [0, 0]
    assert get(where.remote()) == "node-0"


def test_the_record_of_a_run_tells_when_nodes_have_left(grow: Callable[..., Cluster], tmp_path: Path) -> None:
    """What the page draws as capacity: it grows with the nodes that join, and falls when they leave."""
    cluster = grow(record=tmp_path)
    get([where.remote(0.7) for _ in range(12)])
    there_are = ("nodes", "launching", "leaving")
    eventually(lambda: not any(row[kind] for row in groups().values() for kind in there_are), "all have left")
    time.sleep(0.5)
    get(where.remote())
    cluster.shutdown()
    lives = Lives(read_record(tmp_path))
    (computing,) = [each for each in resources(lives) if each.name == "CPUs computing"]
    there = Steps.of_changes(
        (time_ns, change)
        for steps in computing.capacity.values()
        for time_ns, change in zip(steps.times_ns, np.diff(steps.values, prepend=0.0), strict=True)
    )
    assert max(there.values) >= 2
    last = max(attempt.started_ns or 0 for attempt in lives.attempts())
    assert there.at(last) == 1, "node-0 alone"
    left = {node for node, spans in lives.nodes.items() if spans[-1].ended_ns is not None}
    assert left == set(lives.nodes) - {"node-0"}
    at_the_end = of_run(tmp_path)
    for table in ("nodes", "workers"):
        states = {(row["node_id"], row["state"]) for row in at_the_end.list(table)}
        assert states == {("node-0", "ALIVE")} | {(node, "DEAD") for node in left}, table


def test_a_request_launches_nodes_before_anything_waits(grow: Callable[..., Cluster]) -> None:
    grow()
    request_resources(num_cpus=1, bundles=[{"CPU": 2}])
    eventually(lambda: len(alive()) == 2, "a wide node is there")
    time.sleep(3)
    assert groups()["wide"]["nodes"] == 1, "the request stands"
    request_resources()
    eventually(lambda: alive() == ["node-0"], "it was taken back")


def test_an_actor_keeps_its_node_until_it_ends(grow: Callable[..., Cluster]) -> None:
    grow()
    keepers = [Keeper.remote() for _ in range(2)]
    nodes = get([keeper.where.remote() for keeper in keepers])
    assert len(set(nodes)) == 2
    time.sleep(3)
    assert len(alive()) == 2
    for keeper in keepers:
        ray.kill(keeper)
    eventually(lambda: alive() == ["node-0"], "nobody needs the other node")


def test_a_placement_group_gets_all_of_its_nodes_or_launches_none(grow: Callable[..., Cluster]) -> None:
    grow()
    too_large = placement_group([{"CPU": 1}] * 9, strategy="STRICT_SPREAD")
    assert not too_large.wait(2)
    assert alive() == ["node-0"]
    (demand,) = [row for row in status()["demands"] if row["demand"].startswith("the ")]
    most = (
        "plain: 9 bundles need 9 nodes of this group, but only 3 more may start (max: 3): raise max, or request fewer"
    )
    assert most in demand["not_launched"]
    remove_placement_group(too_large)
    group = placement_group([{"CPU": 1}] * 4, strategy="STRICT_SPREAD")
    assert group.wait(20)
    assert len(alive()) == 4
    inside = where.options(scheduling_strategy=PlacementGroupSchedulingStrategy(group))
    assert len(set(get([inside.remote(0.2) for _ in range(8)]))) > 1
    remove_placement_group(group)
    eventually(lambda: alive() == ["node-0"], "its nodes have left")


def test_labels_choose_the_group(grow: Callable[..., Cluster]) -> None:
    grow()
    node = get(where.options(label_selector={"kind": "wide"}).remote())
    assert groups()["wide"]["nodes"] == 1
    assert node != "node-0"


def test_a_group_begins_with_its_least_and_keeps_it(grow: Callable[..., Cluster]) -> None:
    grow(", min: 1")
    eventually(lambda: groups()["plain"]["nodes"] == 1, "the least is there")
    time.sleep(3)
    assert groups()["plain"]["nodes"] == 1


def test_a_value_that_only_a_leaving_node_has_outlives_it(grow: Callable[..., Cluster]) -> None:
    grow()
    blocks = [make.options(label_selector={"kind": "wide"}).remote(n) for n in range(3)]
    ray.wait(blocks, num_returns=3, fetch_local=False, timeout=20)
    eventually(lambda: alive() == ["node-0"], "the wide node has left")
    assert [len(block) for block in get(blocks)] == [MIB] * 3


@ray.remote(max_retries=0)
def make(number: int) -> bytes:
    return bytes([number]) * MIB


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_three_bursts_launch_as_many_nodes_in_both_modes(grow: Callable[..., Cluster]) -> None:
    """It grows from one node to five for each of them, and back in between."""
    grow()
    for burst in range(1, 4):
        waits = [where.remote(3.0) for _ in range(24)]
        eventually(lambda: len(alive()) == 5, "all that may be launched are there")
        get(waits)
        eventually(lambda: alive() == ["node-0"], "all have left")
        assert len(ray.nodes()) - 1 == 4 * burst
