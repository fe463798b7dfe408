"""Objects between nodes with real processes: in pieces, along several sources, and when a source dies in the middle."""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import dualray
from dualray.cluster_utils import Cluster, ClusterNode
from dualray.report.traces import read_traces
from dualray.shared.model.commands import Send
from dualray.shared.model.events import ObjectReceived, ObjectRequested
from dualray.shared.proof.decision_log import Log, all_commands, read_log
from dualray.shared.proof.trace import TraceKind

pytestmark = pytest.mark.leak_check

MIB = 1 << 20
SMALL_PIECES = {
    "heartbeat_timeout_ns": 400_000_000,
    "suspicion_ns": 1_000_000_000,
    "transfer_chunk_bytes": 64 * 1024,
    "transfer_chunks_ahead": 2,
    "broadcast_receivers_max": 1,
    "pull_bytes_max": 8 * MIB,
}
DEADLINE_S = 60.0


def eventually(condition: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"waited {DEADLINE_S:g} s in vain until {what}"
        time.sleep(0.01)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


@contextmanager
def nodes(count: int, log: Path, limits: dict[str, int]) -> Iterator[Cluster]:
    """A head's node, and `count` more with a resource of their own each, `r0` and so on."""
    arguments = {"num_cpus": 1, "limits": limits, "decision_log": log}
    with Cluster(initialize_head=True, connect=True, head_node_args=arguments) as started:
        for index in range(count):
            started.add_node(num_cpus=1, resources={f"r{index}": 1}, object_store_memory="256MiB")
        yield started


@pytest.fixture
def cluster(log: Path) -> Iterator[Cluster]:
    """A head's node, and three more, `r0` to `r2`; every decision and action is recorded."""
    with nodes(3, log, SMALL_PIECES) as started:
        yield started


@dualray.remote
def digest(array: np.ndarray) -> tuple[int, int]:
    return int(array.sum()), array.nbytes


@dualray.remote
def digests(*arrays: np.ndarray) -> list[int]:
    return [int(array.sum()) for array in arrays]


@dualray.remote
def numbers(count: int) -> np.ndarray:
    return np.arange(count)


def on(function: Any, index: int) -> Any:
    return function.options(num_cpus=0, resources={f"r{index}": 0.1})


def transfers(log: Path, kind: TraceKind = TraceKind.TRANSFER_ENDED) -> list[tuple[str, str]]:
    """(receiver, source) of each."""
    return [(event.process, event.other) for event in read_traces(log) if event.kind is kind]


def test_a_node_manager_needs_no_memory_for_what_it_sends_and_receives(cluster) -> None:
    [manager] = [p for p in cluster.worker_nodes[0].processes() if "dualray.real.processes.node" in p.cmdline()]
    before = psutil.Process(manager.pid).memory_info()
    ref = dualray.put(np.arange(8 * MIB))  # 64 MiB
    dualray.get(on(digest, 0).remote(ref), timeout=60)
    after = psutil.Process(manager.pid).memory_info()
    private = (after.rss - after.shared) - (before.rss - before.shared)
    assert private < 16 * MIB, f"{private:,} bytes beside the store"


def test_a_receiver_goes_on_at_another_source_when_the_first_dies(cluster, log: Path) -> None:
    count = 16 * MIB  # 128 MiB, in pieces of 64 KiB: long enough to be interrupted
    ref = on(numbers, 0).remote(count)
    expected = (count * (count - 1) // 2, 8 * count)
    assert dualray.get(on(digest, 1).remote(ref), timeout=60) == expected, "two nodes have it now"
    running = on(digest, 2).remote(ref)
    eventually(lambda: len(transfers(log, TraceKind.TRANSFER_STARTED)) == 2, "the third has begun to receive it")
    source = next(e.process for e in read_traces(log) if e.kind is TraceKind.TRANSFER_STARTED and e.other == "node-3")
    [dying] = [node for node in cluster.worker_nodes if node.node_id == source]
    dying.kill()
    assert dualray.get(running, timeout=60) == expected


def test_a_chain_goes_on_when_a_node_in_its_middle_dies(cluster, log: Path) -> None:
    dualray.get([on(digest, index).remote(np.ones(1)) for index in range(3)])  # their workers are up
    count = 16 * MIB
    ref = dualray.put(np.arange(count))
    running = [on(digest, index).remote(ref) for index in range(3)]
    eventually(lambda: len(transfers(log, TraceKind.TRANSFER_STARTED)) == 3, "all receive it")
    edges = transfers(log, TraceKind.TRANSFER_STARTED)
    middle = next(source for source, _ in edges if source != "node-0")
    [dying] = [node for node in cluster.worker_nodes if node.node_id == middle]
    dying.kill()
    expected = (count * (count - 1) // 2, 8 * count)
    others = [ref for node, ref in zip(cluster.worker_nodes, running, strict=True) if node is not dying]
    assert dualray.get(others, timeout=60) == [expected] * 2


# ---- Messages and objects have connections of their own --------------------------------------------------------------

PATIENT = SMALL_PIECES | {"suspicion_ns": 60_000_000_000, "transfer_chunks_ahead": 80, "pull_bytes_max": 256 * MIB}


@pytest.fixture
def two(log: Path) -> Iterator[Cluster]:
    """A head's node that waits for whoever stands still, and two more, `r0` and `r1`."""
    with nodes(2, log, PATIENT) as started:
        for here, there in ((0, 1), (1, 0)):  # they have met, in both directions
            dualray.get(on(digest, there).remote(on(numbers, here).remote(MIB)), timeout=60)
        yield started


def manager_of(node: ClusterNode) -> psutil.Process:
    [manager] = [process for process in node.processes() if "dualray.real.processes.node" in process.cmdline()]
    return manager


def decisions(log: Path, node: ClusterNode) -> Log:
    """What a node manager has decided up to now."""
    return read_log((log / f"{node.node_id}.decisions").read_bytes())


def asked_for(log: Path, node: ClusterNode) -> set[bytes]:
    """Of which objects a node has asked others for the bytes."""
    sends = [command for command in all_commands(decisions(log, node)) if isinstance(command, Send)]
    return {send.message.object_id for send in sends if isinstance(send.message, ObjectRequested)}


def rests(manager: psutil.Process) -> bool:
    """Whether it has done, too, what it has decided and logged."""
    return manager.status() == psutil.STATUS_SLEEPING


def test_a_message_overtakes_objects_that_go_the_same_way(two, log: Path) -> None:
    """What a sender has left to the system for a receiver that stands still are 64 MiB of objects, and then a message:
    that comes before they are through."""
    sender, receiver = two.worker_nodes
    count = MIB // 2  # 4 MiB: less than is sent before it is acknowledged
    refs = [on(numbers, 0).remote(count) for _ in range(16)]
    crossing = on(numbers, 1).remote(count)
    dualray.wait([*refs, crossing], num_returns=17, fetch_local=False, timeout=60)
    ids = {ref.binary() for ref in refs}
    with contextlib.ExitStack() as frozen:
        standing = {node.node_id: manager_of(node) for node in (sender, receiver)}
        for manager in standing.values():
            frozen.callback(manager.resume)
        eventually(lambda: all(rests(manager) for manager in standing.values()), "both have done what there was to do")
        standing[sender.node_id].suspend()
        running = on(digests, 1).remote(*refs)
        eventually(lambda: ids <= asked_for(log, receiver), "the receiver has asked for all")
        eventually(lambda: rests(standing[receiver.node_id]), "it has done so")
        standing[receiver.node_id].suspend()
        before = len(transfers(log, TraceKind.TRANSFER_STARTED))
        standing[sender.node_id].resume()
        eventually(lambda: len(transfers(log, TraceKind.TRANSFER_STARTED)) == before + 16, "all are sent")
        other = on(digest, 0).remote(crossing)
        eventually(lambda: crossing.binary() in asked_for(log, sender), "the sender has sent a message, too")
        eventually(lambda: rests(standing[sender.node_id]), "it has done so")
    total = count * (count - 1) // 2
    assert dualray.get(running, timeout=60) == [total] * 16
    assert dualray.get(other, timeout=60) == (total, 8 * count)
    events = [decision.event for decision in decisions(log, receiver).decisions]
    heard = [at for at, event in enumerate(events) if isinstance(event, ObjectRequested) and event.object_id not in ids]
    received = [at for at, event in enumerate(events) if isinstance(event, ObjectReceived) and event.object_id in ids]
    assert len(received) == 16
    assert heard[-1] < received[-1], "it waited until all that was sent before was through"


_PIDFD_GETFD = 438
_RECEIVED_AT = 128  # tcpi_bytes_received of Linux's struct tcp_info


def descriptor_of(process: psutil.Process, fd: int) -> socket.socket:
    """Another process's socket, as one of ours."""
    pidfd = os.pidfd_open(process.pid)
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        ours = libc.syscall(_PIDFD_GETFD, pidfd, fd, 0)
    finally:
        os.close(pidfd)
    if ours < 0:
        pytest.skip(f"this system lets nobody have another process's sockets: {os.strerror(ctypes.get_errno())}")
    return socket.socket(fileno=ours)


def links(one: psutil.Process, other: psutil.Process) -> dict[tuple[Any, Any], int]:
    """The connections between two processes, by their ends, and the first one's descriptors."""
    theirs = {(each.raddr, each.laddr) for each in other.net_connections("tcp") if each.status == "ESTABLISHED"}
    return {
        (each.laddr, each.raddr): each.fd
        for each in one.net_connections("tcp")
        if (each.laddr, each.raddr) in theirs and each.status == "ESTABLISHED"
    }


@pytest.mark.parametrize("cut", ["objects", pytest.param("messages", marks=pytest.mark.slow)])
def test_the_loss_of_one_connection_to_a_node_ends_the_other_and_a_pull_starts_again(
    cluster, log: Path, cut: str
) -> None:
    count = 16 * MIB  # 128 MiB, in pieces of 64 KiB: long enough to be interrupted
    ref = on(numbers, 0).remote(count)
    dualray.get(on(digest, 1).remote(on(numbers, 0).remote(MIB)), timeout=60)  # they have met
    dualray.wait([ref], fetch_local=False, timeout=60)
    sender, receiver = (manager_of(node) for node in cluster.worker_nodes[:2])
    running = on(digest, 1).remote(ref)
    eventually(lambda: len(transfers(log, TraceKind.TRANSFER_STARTED)) == 2, "it is being sent")
    sender.suspend()
    try:
        assert len(transfers(log)) == 1, "it has come already"
        before = links(receiver, sender)
        assert len(before) == 2
        received: dict[int, tuple[Any, Any]] = {}
        for ends, fd in before.items():
            with descriptor_of(receiver, fd) as theirs:
                info = theirs.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
                received[struct.unpack_from("<Q", info, _RECEIVED_AT)[0]] = ends
        chosen = received[(max if cut == "objects" else min)(received)]
        with descriptor_of(receiver, before[chosen]) as theirs:
            theirs.shutdown(socket.SHUT_RDWR)
    finally:
        sender.resume()
    assert dualray.get(running, timeout=60) == (count * (count - 1) // 2, 8 * count)
    assert before.keys().isdisjoint(links(receiver, sender)), "one of them outlived the other"
    assert len(transfers(log, TraceKind.TRANSFER_STARTED)) > 2
