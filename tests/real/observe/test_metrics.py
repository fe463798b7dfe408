"""Metrics, as Prometheus gets them: over HTTP, from real processes."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

import dualray
from dualray.cluster_utils import Cluster
from dualray.real.observe.counters import SharedCounters, read_shared
from dualray.real.session.session import METRICS_FILE
from dualray.util.metrics import Counter, Gauge, Histogram

pytestmark = pytest.mark.leak_check

DEADLINE_S = 30.0
Samples = dict[tuple[str, ...], float]


def scrape(address: str) -> Samples:
    """Each sample under its name and the values of its labels, in alphabetical order of the labels."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def eventually(address: str, condition: Callable[[Samples], Any], what: str) -> Samples:
    deadline = time.monotonic() + DEADLINE_S
    while not condition(samples := scrape(address)):
        assert time.monotonic() < deadline, f"waited {DEADLINE_S:g} s in vain until {what}: {samples}"
        time.sleep(0.02)
    return samples


@dualray.remote
def double(x: int) -> int:
    return 2 * x


@dualray.remote(max_retries=0)
def fail() -> None:
    raise ValueError("on purpose")


@dualray.remote
def hold(gate: str) -> None:
    while not Path(gate).exists():
        time.sleep(0.005)


@dualray.remote
def large(megabytes: int) -> np.ndarray:
    return np.ones(megabytes << 17)


@dualray.remote
class Kept:
    def pid(self) -> int:
        return os.getpid()


def address_of(runtime: Any) -> str:
    assert runtime.metrics_address is not None
    return str(runtime.metrics_address)


@pytest.fixture
def address() -> Any:
    limits = {"eviction_policy": "lru"}
    yield address_of(dualray.init(num_cpus=2, object_store_memory=64 << 20, metrics_port=0, limits=limits))
    dualray.shutdown()


def test_tasks_workers_and_leases(address: str, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    dualray.get([double.remote(x) for x in range(20)])
    with pytest.raises(ValueError, match="on purpose"):
        dualray.get(fail.remote())
    held = [hold.remote(str(gate)) for _ in range(3)]
    samples = eventually(address, lambda now: now["dualray_leases", "node-0", "granted"] == 2, "both CPUs are leased")
    assert samples["dualray_tasks_finished_total", "node-0"] == 20
    assert samples["dualray_tasks_failed_total", "node-0"] == 1
    states = ("WAITING_ARGS", "QUEUED", "PUSHED")
    assert sum(samples["dualray_tasks", "node-0", state] for state in states) == 3
    assert samples["dualray_workers", "node-0", "LEASED"] == 2
    assert samples["dualray_resources_total", "node-0", "CPU"] == 2
    assert samples["dualray_resources_free", "node-0", "CPU"] == 0
    gate.touch()
    dualray.get(held)
    samples = scrape(address)
    assert sum(samples["dualray_tasks", "node-0", state] for state in states) == 0
    assert samples["dualray_tasks_finished_total", "node-0"] == 23


def test_the_store(address: str) -> None:
    kept = dualray.put(np.ones(8 << 17))
    samples = scrape(address)
    assert samples["dualray_store_capacity_bytes", "node-0"] == 64 << 20
    assert 8 << 20 <= samples["dualray_store_used_bytes", "node-0"] < 9 << 20
    assert samples["dualray_store_objects", "node-0"] == 1
    refs = [large.remote(16) for _ in range(6)]
    dualray.wait(refs, num_returns=6, fetch_local=False)
    samples = scrape(address)
    assert samples["dualray_store_evicted_objects_total", "node-0"] >= 2
    assert samples["dualray_store_evicted_bytes_total", "node-0"] >= 32 << 20
    assert samples["dualray_store_spilled_bytes", "node-0"] == 0
    assert kept is not None


def test_spilled_bytes() -> None:
    runtime = dualray.init(
        num_cpus=1, object_store_memory=32 << 20, metrics_port=0, limits={"eviction_policy": "spill"}
    )
    try:
        kept = [dualray.put(np.full(8 << 17, number)) for number in range(6)]
        samples = eventually(
            address_of(runtime), lambda now: now["dualray_store_spilled_bytes", "node-0"] >= 16 << 20, "it has spilled"
        )
        assert samples["dualray_store_spilled_bytes_total", "node-0"] >= 16 << 20
        assert dualray.get(kept[0])[0] == 0
        assert scrape(address_of(runtime))["dualray_store_restored_objects_total", "node-0"] >= 1
    finally:
        dualray.shutdown()


def test_the_head_and_what_is_refused(address: str) -> None:
    actor = Kept.remote()
    dualray.get(actor.pid.remote())
    runtime: Any = dualray.init(ignore_reinit_error=True)
    for name in ("head", "node-0", "driver-1"):
        with socket.socket(socket.AF_UNIX) as sock:
            sock.connect(str(runtime.session.sockets / name))
            sock.sendall(b"GET / HTTP/1.1\r\n")
            with contextlib.suppress(ConnectionResetError):
                while sock.recv(4096):
                    pass
    samples = scrape(address)
    assert samples["dualray_cluster_nodes", "ALIVE", "node-0"] == 1
    assert samples["dualray_cluster_actors", "node-0", "ALIVE"] == 1
    assert samples["dualray_cluster_drivers", "node-0"] == 1
    for kind in ("head", "node", "driver"):
        assert samples["dualray_connections_dropped_total", "node-0", kind, "bad_preambles"] == 1
        assert samples["dualray_messages_received_total", "node-0", kind] > 0


def test_a_stopped_process_delays_a_scrape_and_one_that_has_ended_still_counts(address: str) -> None:
    actor = Kept.remote()
    pid = dualray.get(actor.pid.remote())
    before = scrape(address)["dualray_tasks_finished_total", "node-0"]
    assert before == 2, "the constructor and the call"
    os.kill(pid, signal.SIGSTOP)
    assert scrape(address)["dualray_tasks_finished_total", "node-0"] == before
    os.kill(pid, signal.SIGKILL)
    samples = eventually(address, lambda now: ("dualray_cluster_actors", "node-0", "DEAD") in now, "the actor is dead")
    assert samples["dualray_tasks_finished_total", "node-0"] == before


def test_it_is_off_by_default_and_at_the_loopback_address_only(address: str) -> None:
    host, _, port = address.rpartition(":")
    assert host == "127.0.0.1"
    dualray.shutdown()
    with pytest.raises(OSError, match="refused"):
        socket.create_connection((host, int(port)), timeout=5)
    runtime: Any = dualray.init(num_cpus=1)
    assert runtime.metrics_address is None


def test_a_port_that_is_taken_is_refused_with_a_reason() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(ValueError, match=f"metrics_port={port} cannot be used at .*: Address already in use"):
            dualray.init(num_cpus=1, metrics_port=port)
    assert not dualray.is_initialized()


def test_each_node_of_a_cluster_says_what_has_crossed() -> None:
    @dualray.remote(resources={"far": 1})
    def total(array: np.ndarray) -> float:
        return float(array.sum())

    with Cluster(initialize_head=True, connect=True, head_node_args={"num_cpus": 1, "metrics_port": 0}) as cluster:
        node = cluster.add_node(num_cpus=1, resources={"far": 1}, metrics_port=0)
        assert dualray.get(total.remote(dualray.put(np.ones(1 << 20)))) == 1 << 20
        assert cluster.head_node is not None
        here = scrape((cluster.head_node.directory / METRICS_FILE).read_text())
        there = scrape((node.directory / METRICS_FILE).read_text())
        name = "dualray_transfer_bytes_total"
        # Labels in alphabetical order: direction, node.
        assert here[name, "sent", "node-0"] == there[name, "received", "node-1"] > 8 << 20
        assert there[name, "sent", "node-1"] == here[name, "received", "node-0"] == 0
        assert here["dualray_cluster_nodes", "ALIVE", "node-0"] == 2
        assert not [key for key in there if key[0].startswith("dualray_cluster_")]
        assert there["dualray_connections_dropped_total", "node-1", "gateway", "wrong_secrets"] == 0


def test_counters_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "counters"
    assert read_shared(path, ("a", "b")) == {}
    counters = SharedCounters(path, ("a", "b"))
    for _ in range(3):
        counters.add("b")
    assert read_shared(path, ("a", "b")) == {"a": 0, "b": 3}
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_programs_own_metrics_are_served(address: str) -> None:
    @dualray.remote
    class Server:
        def __init__(self) -> None:
            self.asked = Counter("asked", description="What was asked.", tag_keys=("route",))
            self.took = Histogram("took", boundaries=[0.5, 2.0])
            self.depth = Gauge("depth", tag_keys=("a-b",)).set_default_tags({"a-b": "c"})

        def serve(self, depth: float) -> None:
            self.asked.inc(tags={"route": "/"})
            self.took.observe(1)
            self.depth.set(depth)

    first, second = Server.remote(), Server.remote()  # type: ignore[attr-defined]  # mypy does not see the decorator
    dualray.get([first.serve.remote(3), first.serve.remote(4), second.serve.remote(5)])
    Counter("asked", tag_keys=("route",)).inc(10, tags={"route": "/"})
    samples = scrape(address)
    assert samples["ray_asked_total", "node-0", "/"] == 13
    assert [samples["ray_took_bucket", end, "node-0"] for end in ("0.5", "2.0", "+Inf")] == [0, 3, 3]
    assert (samples["ray_took_count", "node-0"], samples["ray_took_sum", "node-0"]) == (3, 3)
    depths = {key[1:]: value for key, value in samples.items() if key[0] == "ray_depth"}
    assert sorted(depths.values()) == [4, 5]
    assert {key for key, _, _ in depths} == {"c"}
    dualray.kill(first)
    after = eventually(
        address, lambda now: sum(key[0] == "ray_depth" for key in now) == 1, "the dead actor's gauge is gone"
    )
    assert after["ray_asked_total", "node-0", "/"] == 13
    assert after["ray_took_count", "node-0"] == 3
