"""A partition made by the kernel and one made by our gateways: programs and nodes notice the same.

One story is told twice: in network namespaces, where the kernel drops every packet, and on a cluster for faults, where
the gateways hold what passes between two nodes. Needs the right to make namespaces, as test_namespaces.py does.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dualray.cluster_utils import Cluster
from dualray.shared.scenario.fault_model import parse_fault
from dualray.testing.real_doors import Links
from tests.real.cluster.namespaces import Driver, Network, why_not
from tests.real.cluster.test_namespaces import DRIVER, LIMITS, ON_2, ON_3, STATES, driver_on, eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

COUNT = 1 << 18
"""Numbers of an object: 2 MiB."""
Means = dict[str, tuple[Callable[[], object], Callable[[], object]]]
"""How each partition begins and ends."""


def story(driver: Driver, means: Means) -> list[Any]:
    """What a program notices of a short partition, of two nodes that cannot meet, and of a long partition."""
    seen: list[Any] = [driver(f"dualray.get([where.{ON_2}.remote(0), where.{ON_3}.remote(0)])")]

    begin, end = means["node-1 from all"]
    driver.ask(f"dualray.get([where.{ON_2}.remote(0.3) for _ in range(8)])")
    begin()
    time.sleep(1.5)  # longer than the heartbeat's timeout, shorter than the suspicion
    end()
    seen += [driver.answer(), driver(STATES)]

    begin, end = means["node-1 from node-2"]
    driver(f"globals().update(kept=ones.{ON_2}.remote({COUNT})) or len(dualray.wait([kept], fetch_local=False)[0])")
    begin()
    seen += [driver(f"dualray.get(total.{ON_3}.remote(kept))"), driver(STATES)]
    end()
    driver("globals().pop('kept') and None")

    begin, end = means["node-1 from all"]
    driver.ask("len(dualray.get([where.remote(0.5) for _ in range(12)]))")
    begin()
    seen.append(driver.answer())
    eventually(lambda: driver(STATES)["node-1"] == [False, 0], "the head counts the node as dead")
    end()
    eventually(lambda: driver(STATES)["node-1"] == [True, 1], "the node has joined again")
    return [*seen, driver(f"dualray.get(where.{ON_2}.remote(0))"), driver(STATES)]


def by_the_kernel() -> list[Any]:
    network = Network(Path(f"/tmp/drpc{os.getpid()}"), LIMITS)
    try:
        with driver_on(network, 0, DRIVER) as driver:
            second, third = network.machines[1:3]
            means: Means = {
                "node-1 from all": (second.cut, second.heal),
                "node-1 from node-2": (lambda: second.part(third), lambda: second.join(third)),
            }
            return story(driver, means)
    finally:
        network.close()


def by_our_gateways(directory: Path) -> list[Any]:
    head = {"num_cpus": 1, "limits": LIMITS}
    with Cluster(initialize_head=True, head_node_args=head, takes_faults=True) as cluster:
        assert cluster.head_node is not None
        nodes = {"node-0": cluster.head_node}
        for name, resource in (("node-1", "r"), ("node-2", "s")):
            nodes[name] = cluster.add_node(num_cpus=1, resources={resource: 1})
        links = Links(lambda: nodes)
        long, between = parse_fault("partition node-1 at 0s"), parse_fault("partition node-1 from node-2 at 0s")
        here: Any = SimpleNamespace(
            directory=directory, command=lambda *words: [sys.executable, *words], environment=dict(os.environ)
        )
        driver = Driver(here, DRIVER, cluster.address)
        try:
            means: Means = {
                "node-1 from all": (lambda: links.begin(long), lambda: links.end(long)),
                "node-1 from node-2": (lambda: links.begin(between), lambda: links.end(between)),
            }
            return story(driver, means)
        finally:
            driver.close()


def test_a_partition_of_the_kernel_and_one_of_ours_have_the_same_effects(tmp_path: Path) -> None:
    why = why_not()
    if why:
        pytest.skip(f"network namespaces cannot be made: {why}")
    ours = by_our_gateways(tmp_path)
    assert ours == by_the_kernel()
    alive = {"node-0": [True, 0], "node-1": [True, 0], "node-2": [True, 0]}
    again = alive | {"node-1": [True, 1]}
    assert ours == [["node-1", "node-2"], ["node-1"] * 8, alive, COUNT, alive, 12, "node-1", again]
