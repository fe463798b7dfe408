"""What Ray's own public tests and other suites import from here.

It keeps Ray's name when it is pickled, as a module of the user's: clocks and sleeps in it are those of the program.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from typing import Any

import ray
from ray._common import test_utils as common
from ray._common.test_utils import *
from ray._common.test_utils import wait_for_condition
from ray.util.state import list_actors

from dualray.as_ray.refusals import refusing

__all__ = common.__all__ + [
    "client_test_enabled",
    "external_redis_test_enabled",
    "generate_system_config_map",
    "get_current_unused_port",
    "get_other_nodes",
    "is_placement_group_removed",
    "object_memory_usage",
    "placement_group_assert_no_leak",
    "run_string_as_driver_nonblocking",
    "wait_for_num_actors",
]


def client_test_enabled() -> bool:
    """Whether the tests run in a Ray Client, which there is not."""
    return False


def external_redis_test_enabled() -> bool:
    """Whether the tests have started a Redis for the cluster, which they never have."""
    return False


def generate_system_config_map(**settings: Any) -> dict[str, Any]:
    """Arguments of `ray.init` that say settings of Ray's own."""
    return {"_system_config": settings}


def get_current_unused_port() -> int:
    """A port of this machine at which nobody listens now."""
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        port: int = listener.getsockname()[1]
        return port


def get_other_nodes(cluster: Any, exclude_head: bool = False) -> list[Any]:
    """The nodes of a `Cluster` but the one on which this process runs; with `exclude_head`, nor the head's."""
    here = ray.get_runtime_context().get_node_id()
    return [
        node
        for node in cluster.list_all_nodes()
        if node.node_id != here and not (exclude_head and node is cluster.head_node)
    ]


def is_placement_group_removed(group: Any) -> bool:
    """Whether the cluster has given back what a placement group held."""
    return bool(ray.util.placement_group_table(group).get("state") == "REMOVED")


def placement_group_assert_no_leak(groups: Any) -> None:
    """Remove placement groups, and return when all their resources are free again.

    Raises:
        RuntimeError: they are not, within 10 s.
    """
    for group in groups:
        ray.util.remove_placement_group(group)
    wait_for_condition(lambda: all(row["state"] == "REMOVED" for row in ray.util.placement_group_table().values()))
    total = {
        name: amount
        for name, amount in ray.cluster_resources().items()
        if name not in ("memory", "object_store_memory")
    }

    def are_free() -> bool:
        free = ray.available_resources()
        return all(total.get(name, amount) == amount and "_group_" not in name for name, amount in free.items())

    wait_for_condition(are_free)


def object_memory_usage() -> float:
    """The bytes of the cluster's stores that objects take."""
    total: float = ray.cluster_resources().get("object_store_memory", 0)
    free: float = ray.available_resources().get("object_store_memory", 0)
    return total - free


def run_string_as_driver_nonblocking(driver_script: str, env: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
    """Start a program in a process of its own, under the name `ray`, too, with pipes for what it prints.

    Args:
        driver_script: its text.
        env: its environment variables; by default those of this process.
    """
    return subprocess.Popen(
        [sys.executable, "-m", "dualray.as_ray", "-c", driver_script],
        env=dict(os.environ) if env is None else env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def wait_for_num_actors(num_actors: int, state: str | None = None, timeout: float = 10) -> None:
    """Return when there are so many actors, in a state if one is said.

    Raises:
        TimeoutError: there are not in time.
    """
    filters = [("state", "=", state)] if state else None
    start = time.monotonic()
    while time.monotonic() - start < timeout:
        if len(list_actors(filters=filters, limit=num_actors)) >= num_actors:
            return
        time.sleep(0.1)
    raise TimeoutError(f"there were not {num_actors} actors within {timeout} s")


__getattr__ = refusing("ray._private.test_utils")
