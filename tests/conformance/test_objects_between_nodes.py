"""Objects that several nodes share, and the decisions about them: one body for both modes."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dualray
from dualray.cluster_utils import Cluster
from dualray.exceptions import ObjectStoreFullError
from dualray.report.proof import check_directory
from dualray.report.traces import read_traces
from dualray.shared.proof.trace import TraceKind
from tests.conformance.support import MIB, eventually

FAST = {"heartbeat_timeout_ns": 400_000_000, "suspicion_ns": 1_000_000_000}
SMALL_PIECES = FAST | {
    "transfer_chunk_bytes": 64 * 1024,
    "transfer_chunks_ahead": 2,
    "broadcast_receivers_max": 1,
    "pull_bytes_max": 8 * MIB,
}

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
def cluster(mode: str, log: Path) -> Iterator[Cluster]:
    """A head's node, and three more, `r0` to `r2`; every decision and action is recorded."""
    head: dict[str, Any] = {"num_cpus": 1, "limits": SMALL_PIECES, "decision_log": log}
    with Cluster(initialize_head=True, connect=True, head_node_args=head, mode=mode) as started:
        for index in range(3):
            started.add_node(num_cpus=1, resources={f"r{index}": 1}, object_store_memory="256MiB")
        yield started


@dualray.remote
def digest(array: np.ndarray) -> tuple[int, int]:
    return int(array.sum()), array.nbytes


@dualray.remote
def digests(*arrays: np.ndarray) -> list[int]:
    return [int(array.sum()) for array in arrays]


@dualray.remote(duration=0)
def slow_square(x: int, marks: str) -> int:
    Path(marks, f"{x}-{os.getpid()}").touch()
    time.sleep(1.0)
    return x * x


@dualray.remote
def total(array: np.ndarray) -> float:
    return float(array.sum())


def on(function: Any, index: int) -> Any:
    return function.options(num_cpus=0, resources={f"r{index}": 0.1})


def test_a_broadcast_goes_along_its_receivers(cluster: Cluster, log: Path) -> None:
    dualray.get([on(digest, index).remote(np.ones(1)) for index in range(3)])  # their workers are up
    count = 8 * MIB  # 64 MiB, in pieces of 64 KiB: the first has not got it when the last asks
    ref = dualray.put(np.arange(count))
    expected = (count * (count - 1) // 2, 8 * count)
    assert dualray.get([on(digest, index).remote(ref) for index in range(3)], timeout=60) == [expected] * 3
    cluster.shutdown()
    moves = [event for event in read_traces(log) if event.kind is TraceKind.TRANSFER_ENDED]
    assert sorted(move.process for move in moves) == ["node-1", "node-2", "node-3"]
    assert {move.other for move in moves} != {"node-0"}, "who had it has sent it on"


def test_more_than_may_be_pulled_at_a_time_comes_in_turn(cluster: Cluster) -> None:
    refs = [dualray.put(np.full(MIB // 2, number)) for number in range(8)]  # 4 MiB each, and 8 MiB at a time
    assert dualray.get(on(digests, 0).remote(*refs), timeout=60) == [number * (MIB // 2) for number in range(8)]


def test_what_a_full_store_cannot_take_is_refused_and_its_neighbours_have_it(cluster: Cluster) -> None:
    small = cluster.add_node(num_cpus=1, resources={"small": 1}, object_store_memory="16MiB")
    ref = dualray.put(np.arange(8 * MIB))  # 64 MiB
    full = digest.options(num_cpus=0, resources={"small": 0.1}, max_retries=0).remote(ref)
    others = [on(digest, index).remote(ref) for index in range(3)]
    expected = (8 * MIB * (8 * MIB - 1) // 2, 64 * MIB)
    assert dualray.get(others, timeout=60) == [expected] * 3
    with pytest.raises(ObjectStoreFullError, match=small.node_id):
        dualray.get(full, timeout=60)


def test_the_decisions_of_a_cluster_can_be_derived_again(mode: str, log: Path, tmp_path: Path) -> None:
    """While one node is killed and another leaves in good order."""
    head: dict[str, Any] = {"num_cpus": 1, "limits": FAST, "decision_log": log}
    marks = tmp_path / "marks"
    marks.mkdir()
    with Cluster(initialize_head=True, connect=True, head_node_args=head, mode=mode) as cluster:
        doomed, leaving = cluster.add_node(num_cpus=1), cluster.add_node(num_cpus=1)
        driver = dualray.get_runtime_context().get_worker_id()
        given = dualray.put(np.ones(1 << 18))
        refs = [slow_square.remote(x, str(marks)) for x in range(6)] + [total.remote(given) for _ in range(6)]
        eventually(lambda: len(list(marks.iterdir())) >= 3, "tasks run on all nodes")
        doomed.kill()
        cluster.remove_node(leaving)
        assert dualray.get(refs, timeout=60) == [x * x for x in range(6)] + [1 << 18] * 6
    proof = check_directory(log)
    assert proof.is_exact, proof
    assert {process.process for process in proof.processes} >= {"head", driver, "node-0", "node-1", "node-2"}
