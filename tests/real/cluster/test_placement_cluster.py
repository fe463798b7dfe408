"""Labels and placement groups over several real nodes: strategies, nodes that join later, nodes that die."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

import dualray
from dualray.cli.cluster import labels_of
from dualray.cluster_utils import Cluster
from dualray.exceptions import DualrayError
from dualray.util.placement_group import PlacementGroup, placement_group_table

pytestmark = pytest.mark.leak_check

FAST = {"heartbeat_timeout_ns": 400_000_000, "suspicion_ns": 1_000_000_000}
WITHIN_S = 40


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """A head's node with one CPU, and this process as a driver."""
    head: dict[str, Any] = {"num_cpus": 1, "labels": {"zone": "a"}, "limits": FAST}
    with Cluster(initialize_head=True, connect=True, head_node_args=head) as started:
        yield started


@dualray.remote
def node_id() -> str:
    return dualray.get_runtime_context().get_node_id()


def nodes_of(group: PlacementGroup) -> list[str]:
    assert group.wait(WITHIN_S)
    return list(placement_group_table(group)["bundles_to_node_id"].values())


def test_the_command_takes_labels():
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "dualray", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, env=os.environ)

    for wrong, why in (("zone", "key=value"), ("{", "JSON"), ("a b=c", "the key 'a b'")):
        found = run("start", "--head", "--port", "0", "--labels", wrong)
        assert found.returncode == 2
        assert why in " ".join(found.stderr.split())


def test_labels_are_written_in_two_ways():
    assert labels_of("zone=a,example.com/market=spot") == {"zone": "a", "example.com/market": "spot"}
    assert labels_of('{"zone": "a"}') == {"zone": "a"}
    assert labels_of(None) is None


def test_a_lone_node_has_the_labels_of_init():
    dualray.init(num_cpus=1, labels={"zone": "z"})
    try:
        assert dualray.nodes()[0]["Labels"] == {"zone": "z", "ray.io/node-id": "node-0"}
        with pytest.raises(DualrayError, match="zone=z"):
            dualray.get(node_id.options(label_selector={"zone": "y"}).remote())
    finally:
        dualray.shutdown()
