"""A program that joins a node whose manager can open no more files hears of this limit."""

from __future__ import annotations

import subprocess
import sys

import dualray as ray
from dualray.cluster_utils import Cluster
from dualray.testing.real_doors import tell_node

JOINING = """
import sys
import dualray as ray
from dualray.exceptions import DualrayError

try:
    ray.init(address=sys.argv[1], log_to_driver=False)
    print(ray.get(ray.remote(lambda: 7).remote(), timeout=30))
except DualrayError as error:
    print(error)
"""


def joined(address: str) -> str:
    command = [sys.executable, "-c", JOINING, address]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


def test_a_driver_that_joins_hears_that_its_node_can_open_no_more_files() -> None:
    with Cluster(initialize_head=True, head_node_args={"num_cpus": 1}, takes_faults=True) as cluster:
        assert cluster.head_node is not None
        assert joined(cluster.address) == "7\n"
        tell_node(cluster.head_node, {"op": "limit_files", "limited": True})
        words = joined(cluster.address)
        assert "has reached its limit of open files" in words
        assert "is gone" not in words
        tell_node(cluster.head_node, {"op": "limit_files", "limited": False})
        assert joined(cluster.address) == "7\n"
    ray.shutdown()
