"""One local Ray for all tests of this folder: a cluster takes Ray many seconds. Skipped where Ray is not installed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

import dualray


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/on_ray/" in item.path.as_posix():
            item.add_marker(pytest.mark.filterwarnings("ignore"))  # Ray warns of itself
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="module")
def ray_head() -> Iterator[str]:
    """The address of a cluster of Ray's with one node of two CPUs."""
    pytest.importorskip("ray")
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    from ray.cluster_utils import Cluster

    cluster = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 2, "include_dashboard": False, "object_store_memory": 256 * 1024 * 1024},
    )
    yield cluster.address
    dualray.shutdown()
    cluster.shutdown()


@pytest.fixture
def on_ray(ray_head: str) -> Iterator[Any]:
    """dualray, connected to it."""
    dualray.init(mode="ray", address=ray_head, infeasible="raise", log_to_driver=False)
    yield dualray
    dualray.shutdown()


@pytest.fixture(scope="module", autouse=True)
def no_leak_from_the_module() -> None:
    """Ray's processes end on their own, later."""
