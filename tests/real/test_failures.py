"""Failures of docs/failure_tests.md's table that no other test performs."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import dualray as ray
from dualray.cluster_utils import Cluster
from dualray.exceptions import DualrayError
from dualray.real.cluster.launch import StartedNode, node_options, start_node, stop_node
from dualray.real.control_plane.server import find_server
from dualray.shared.model.config import Config

pytestmark = pytest.mark.leak_check

FAST = {"heartbeat_timeout_ns": 400_000_000, "suspicion_ns": 1_000_000_000}
TIMEOUT_S = 60.0


@ray.remote
def slow_square(number: int, marks: str) -> int:
    Path(marks, f"{number}-{time.monotonic_ns()}").touch()
    time.sleep(0.7)
    return number * number


@ray.remote
def wait_for_gate(number: int, marks: str, gate: str) -> str:
    node = ray.get_runtime_context().get_node_id()
    Path(marks, f"{node} {number}").touch()
    while not Path(gate).exists():
        time.sleep(0.02)
    return node


def eventually(condition: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, f"waited {TIMEOUT_S:g} s in vain until {what}"
        time.sleep(0.02)


def alive() -> dict[str, bool]:
    return {row["NodeID"]: row["Alive"] for row in ray.nodes()}


def process_of(daemon: int, module: str) -> psutil.Process:
    """The process that runs this module, below a daemon and its founder."""
    [found] = [child for child in psutil.Process(daemon).children(recursive=True) if module in child.cmdline()]
    return found


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(initialize_head=True, connect=True, head_node_args={"num_cpus": 1, "limits": FAST}) as started:
        yield started


def test_tasks_of_a_node_whose_manager_is_killed_run_elsewhere_and_its_daemon_removes_what_it_left(cluster, tmp_path):
    node = cluster.add_node(num_cpus=2)
    gate, marks = tmp_path / "gate", tmp_path / "marks"
    marks.mkdir()
    refs = [wait_for_gate.remote(number, str(marks), str(gate)) for number in range(3)]
    eventually(lambda: len(list(marks.iterdir())) == 3, "a task runs on each CPU")
    process_of(node.pid, "dualray.real.processes.node").kill()
    eventually(lambda: alive() == {"node-0": True, "node-1": False}, "the node is counted as dead")
    gate.touch()
    assert ray.get(refs, timeout=TIMEOUT_S) == ["node-0"] * 3
    begun = sorted(mark.name for mark in marks.iterdir())
    assert [name.partition(" ")[0] for name in begun] == ["node-0"] * 3 + ["node-1"] * 2
    eventually(lambda: not node.directory.exists(), "its daemon has ended and cleaned up")


def test_a_worker_that_stands_still_for_a_while_goes_on_and_nothing_runs_twice(cluster, tmp_path):
    pid = ray.get(ray.remote(lambda: psutil.Process().pid).remote(), timeout=TIMEOUT_S)
    worker = psutil.Process(pid)
    refs = [slow_square.remote(number, str(tmp_path)) for number in range(3)]
    eventually(lambda: list(tmp_path.iterdir()), "one has begun")
    worker.suspend()
    try:
        assert ray.wait(refs, num_returns=3, timeout=2.0)[1], "it stands still"
    finally:
        worker.resume()
    assert ray.get(refs, timeout=TIMEOUT_S) == [0, 1, 4]
    assert len(list(tmp_path.iterdir())) == 3


def test_a_head_that_is_started_again_is_a_new_cluster_at_the_old_address_and_nobody_hangs(tmp_path):
    """The head's end is its cluster's: every node ends, drivers are told; whoever starts it again needs to change
    nothing: address and secret stay."""
    secret = secrets.token_hex(32).encode()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]

    def start(address: str | None) -> StartedNode:
        options = node_options(
            address=address,
            node_ip=None,
            port=0 if address else port,
            num_cpus=1,
            num_gpus=0,
            resources=None,
            object_store_memory=32 << 20,
            config=Config(**FAST),
        )
        return start_node(options, secret, is_detached=False)

    nodes = [start(None)]
    try:
        nodes.append(start(nodes[0].address))
        ray.init(address=nodes[0].address)
        refs = [slow_square.remote(number, str(tmp_path)) for number in range(4)]
        eventually(lambda: len(list(tmp_path.iterdir())) >= 2, "tasks run on both nodes")
        process_of(nodes[0].process.pid, "dualray.real.processes.head").kill()
        with pytest.raises(DualrayError, match="is gone"):
            ray.get(refs, timeout=TIMEOUT_S)
        ray.shutdown()
        for node in nodes:
            eventually(lambda node=node: not node.directory.exists(), f"{node.node} has ended")
            stop_node(node)
        nodes = [start(None)]
        assert nodes[0].address == f"127.0.0.1:{port}"
        nodes.append(start(nodes[0].address))
        ray.init(address=nodes[0].address)
        assert ray.get([slow_square.remote(number, str(tmp_path)) for number in range(4)], timeout=TIMEOUT_S) == [
            number**2 for number in range(4)
        ]
        assert alive() == {"node-0": True, "node-1": True}
    finally:
        ray.shutdown()
        for node in nodes:
            stop_node(node)


@pytest.mark.skipif(find_server() is None, reason="the embedded store does not die alone")
def test_the_control_plane_of_a_session_is_started_again_with_its_functions():
    """New functions failed after 10 s each, and a line twice a second stood under the name of an innocent task."""
    runtime = ray.init(num_cpus=2, log_to_driver=False)
    try:

        @ray.remote
        def known() -> int:
            time.sleep(0.01)
            return 1

        @ray.remote
        def new() -> int:
            return 2

        @ray.remote(num_cpus=0)
        class Fresh:
            def call_both(self) -> list[int]:
                return ray.get([known.remote(), new.remote()])

        assert ray.get([known.remote() for _ in range(20)], timeout=TIMEOUT_S) == [1] * 20
        head = runtime._children.processes["head"].pid
        (server,) = psutil.Process(head).children()
        server.kill()
        assert ray.get([known.remote() for _ in range(20)], timeout=TIMEOUT_S) == [1] * 20
        assert ray.get(new.remote(), timeout=TIMEOUT_S) == 2
        actors = [Fresh.remote() for _ in range(2)]
        assert ray.get([actor.call_both.remote() for actor in actors], timeout=TIMEOUT_S) == [[1, 2]] * 2
        assert "server 0 of the control plane is back" in runtime.session.log_path("head").read_text()
        for path in runtime.session.logs.glob("*.err"):
            said = [line for line in path.read_text().splitlines() if "control plane" in line]
            assert len(said) <= 2, said
    finally:
        ray.shutdown()


def test_what_a_killed_worker_has_started_ends_with_it():
    """It ran on after the session. Only children of workers that ended in order, or by dualray's hand, were killed."""
    ray.init(num_cpus=2, log_to_driver=False)
    try:

        @ray.remote(num_cpus=0)
        class Starter:
            def start(self) -> list[int]:
                """A child and a grandchild of this worker."""
                shell = subprocess.Popen(["/bin/sh", "-c", "sleep 600 & echo $!; wait"], stdout=subprocess.PIPE)
                assert shell.stdout is not None
                return [shell.pid, int(shell.stdout.readline())]

            def crash(self) -> None:
                os.kill(os.getpid(), signal.SIGKILL)

        starter, other = Starter.remote(), Starter.remote()
        pids, others = ray.get([starter.start.remote(), other.start.remote()], timeout=TIMEOUT_S)
        with pytest.raises(ray.exceptions.ActorDiedError):
            ray.get(starter.crash.remote(), timeout=TIMEOUT_S)
        eventually(lambda: not any(map(is_running, pids)), "the killed worker's processes have ended")
        assert all(map(is_running, others))
    finally:
        ray.shutdown()
    eventually(lambda: not any(map(is_running, others)), "the session's processes have ended")


def is_running(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def test_a_session_whose_directory_is_deleted_ends_with_an_error(tmp_path):
    """As by a program that cleans /tmp. What needed a new connection waited for ever."""
    runtime = ray.init(num_cpus=1, log_to_driver=False)
    try:
        slow = slow_square.options(num_cpus=0)
        while runtime.session.directory.exists():  # its processes write there meanwhile
            shutil.rmtree(runtime.session.directory, ignore_errors=True)
        with pytest.raises(DualrayError, match="has been deleted while the session ran"):
            ray.get([slow.remote(number, str(tmp_path)) for number in range(4)], timeout=TIMEOUT_S)
    finally:
        ray.shutdown()
