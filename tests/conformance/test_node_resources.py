"""Every node offers memory, and resources that name it, as in Ray."""

from __future__ import annotations

import pytest

import dualray as ray
from dualray.exceptions import TaskUnschedulableError
from dualray.shared.model.resources import HEAD_NODE
from tests.conformance.support import eventually, get, node_ids, resources_are_free


@ray.remote
def where():
    return ray.get_runtime_context().get_node_id()


def test_memory_is_offered_without_being_told(start):
    start(num_cpus=1)
    assert ray.cluster_resources()["memory"] > 2**30
    assert get(where.options(memory=4).remote()) in node_ids()
    assert get(where.options(memory="500MiB").remote()).startswith("node-")
    with pytest.raises(TaskUnschedulableError, match=r"lacks .* of memory"):
        get(where.options(memory="60TiB").remote())


def test_a_task_holds_the_memory_that_it_says(start):
    start(num_cpus=2)

    @ray.remote(memory=2**20)
    def held():
        return ray.get_runtime_context().get_assigned_resources()

    assert get(held.remote()) == {"CPU": 1.0, "memory": 2.0**20}
    eventually(resources_are_free, "the memory is free again")


def test_a_task_names_its_node_by_address(start, mode):
    nodes = 3 if mode == "sim" else 1
    start(num_cpus=1, **({"nodes": nodes} if mode == "sim" else {}))
    rows = ray.nodes()
    assert len(rows) == nodes
    for row in rows:
        name = f"node:{row['NodeManagerAddress']}"
        assert row["Resources"][name] == 1.0
        assert get(where.options(resources={name: 0.01}).remote()) == row["NodeID"]
    heads = [row["NodeID"] for row in rows if HEAD_NODE in row["Resources"]]
    assert heads == [ray.get_runtime_context().get_node_id()]
    assert get(where.options(resources={HEAD_NODE: 0.001}).remote()) == heads[0]


def test_errors_do_not_name_what_every_node_offers(start):
    start(num_cpus=1)
    with pytest.raises(TaskUnschedulableError) as caught:
        get(where.options(num_cpus=7).remote())
    assert "node:" not in str(caught.value)
    with pytest.raises(TaskUnschedulableError, match=r"lacks 0\.5 node:192\.0\.2\.1"):
        get(where.options(resources={"node:192.0.2.1": 0.5}).remote())
