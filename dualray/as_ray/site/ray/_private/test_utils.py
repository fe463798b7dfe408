"""What Ray's own public tests and other suites import from here.

It keeps Ray's name when it is pickled, as a module of the user's: clocks and sleeps in it are those of the program.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

import psutil
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
    "get_actor_node_id",
    "get_current_unused_port",
    "get_non_head_nodes",
    "get_other_nodes",
    "is_placement_group_removed",
    "object_memory_usage",
    "placement_group_assert_no_leak",
    "put_object",
    "run_string_as_driver_nonblocking",
    "run_string_as_driver_stdout_stderr",
    "same_elements",
    "wait_for_assertion",
    "wait_for_children_of_pid",
    "wait_for_children_of_pid_to_exit",
    "wait_for_num_actors",
    "wait_until_succeeded_without_exception",
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


def get_non_head_nodes(cluster: Any) -> list[Any]:
    """The nodes of a `Cluster` but the head's."""
    return [node for node in cluster.list_all_nodes() if node is not cluster.head_node]


def get_actor_node_id(actor_handle: Any) -> str:
    """The id of the node on which an actor runs."""
    node_id: str = ray.get(actor_handle.__ray_call__.remote(lambda _actor: ray.get_runtime_context().get_node_id()))
    return node_id


def _given(value: Any) -> Any:
    return value


def put_object(obj: Any, use_ray_put: bool) -> Any:
    """A reference to a value: from `ray.put`, or from a task that returns the value."""
    return ray.put(obj) if use_ray_put else ray.remote(_given).remote(obj)


def same_elements(elems_a: Iterable[Any], elems_b: Iterable[Any]) -> bool:
    """Whether each value of the one is in the other, and the reverse."""
    first, second = list(elems_a), list(elems_b)
    return all(value in second for value in first) and all(value in first for value in second)


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


def run_string_as_driver_stdout_stderr(
    driver_script: str, env: dict[str, str] | None = None, encode: str = "utf-8", timeout: float | None = 300
) -> tuple[str, str]:
    """Run a program in a process of its own, and return what it writes to stdout and to stderr.

    Args:
        driver_script: its text.
        env: its environment variables; by default those of this process.
        encode: how the text is encoded.
        timeout: in seconds, for the program.

    Raises:
        subprocess.CalledProcessError: it has failed; `output` and `stderr` have what it wrote.
        subprocess.TimeoutExpired: it has not ended in time, and was killed.
    """
    finished = subprocess.run(
        [sys.executable, "-m", "dualray.as_ray", "-c", driver_script],
        env=dict(os.environ) if env is None else env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=timeout,
    )
    output, errors = finished.stdout.decode(encode), finished.stderr.decode(encode)
    if finished.returncode:
        raise subprocess.CalledProcessError(finished.returncode, finished.args, output, errors)
    return output, errors


def wait_for_assertion(
    assertion_predictor: Callable[..., object], timeout: float = 10, retry_interval_ms: float = 100, **kwargs: Any
) -> None:
    """Call a function with `kwargs` until it raises no AssertionError.

    Raises:
        AssertionError: it does so still after `timeout` seconds.
    """
    until = time.monotonic() + timeout
    while True:
        try:
            assertion_predictor(**kwargs)
        except AssertionError:
            if time.monotonic() >= until:
                raise
            time.sleep(retry_interval_ms / 1000)
        else:
            return


def wait_until_succeeded_without_exception(
    func: Callable[..., object],
    exceptions: tuple[type[BaseException], ...],
    *args: Any,
    timeout_ms: float = 1000,
    retry_interval_ms: float = 100,
    raise_last_ex: bool = False,
) -> bool:
    """Call a function until it raises none of these exceptions; False if it does so still after `timeout_ms`.

    Raises:
        RuntimeError: the same, with `raise_last_ex`.
    """
    until = time.monotonic() + timeout_ms / 1000
    while True:
        try:
            func(*args)
        except exceptions as error:
            if time.monotonic() < until:
                time.sleep(retry_interval_ms / 1000)
                continue
            if raise_last_ex:
                raise RuntimeError(f"the function {func!r} did not succeed within {timeout_ms} ms") from error
            return False
        else:
            return True


def wait_for_children_of_pid(pid: int, num_children: int = 1, timeout: float = 20) -> None:
    """Return when a process has so many children.

    Raises:
        RuntimeError: it has not in time.
    """
    wait_for_condition(lambda: len(psutil.Process(pid).children()) >= num_children, timeout=timeout)


def wait_for_children_of_pid_to_exit(pid: int, timeout: float = 20) -> None:
    """Return when the children that a process has now have ended.

    Raises:
        TimeoutError: they have not in time.
    """
    _, alive = psutil.wait_procs(psutil.Process(pid).children(), timeout=timeout)
    if alive:
        raise TimeoutError(f"process {pid} still has the children {', '.join(str(child.pid) for child in alive)}")


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
    raise TimeoutError(f"the cluster did not have {num_actors} actors within {timeout} s")


__getattr__ = refusing("ray._private.test_utils")
