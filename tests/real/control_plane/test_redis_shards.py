from __future__ import annotations

import time
from pathlib import Path

import psutil
import pytest
import redis

import dualray as ray
from dualray import runtime
from dualray.cluster_utils import Cluster
from dualray.real.control_plane.shards import SHARDS, ShardedControlPlane, shard_of, socket_names, tables_at
from dualray.real.session.session import Session

TASKS = 40
TIMEOUT_S = 30


@ray.remote
def square(number):
    return number * number


def get(refs):
    return ray.get(refs, timeout=TIMEOUT_S)


def session() -> Session:
    current = runtime.current("a test")
    return current.session  # type: ignore[attr-defined]  # real mode's own


def client_of(path: Path) -> redis.Redis:
    return redis.Redis(unix_socket_path=str(path), password=session().password, protocol=2)


def tasks_in_the_table(count: int) -> dict[bytes, bytes]:
    """The rows of the task table, when there are so many."""
    of = session()
    tables = tables_at(of.redis_socket, of.password, of.redis_shards)
    try:
        deadline = time.monotonic() + TIMEOUT_S
        while len(rows := tables.scan("tasks")) < count and time.monotonic() < deadline:
            time.sleep(0.02)
        return rows
    finally:
        tables.close()


def test_every_shard_has_its_part_of_the_keys():
    parts = [shard_of(b"%d" % number, 3) for number in range(3000)]
    assert all(900 < parts.count(shard) < 1100 for shard in range(3))
    assert socket_names(2) == ["shard-1/redis.sock", "shard-2/redis.sock"]


@pytest.mark.parametrize("server", ["redis", "embedded"])
def test_tables_are_spread_and_the_primary_lists_the_shards(server, monkeypatch):
    monkeypatch.setenv("DUALRAY_CONTROL_PLANE", server)
    ray.init(num_cpus=2, num_redis_shards=2)
    try:
        assert get([square.remote(number) for number in range(TASKS)]) == [number**2 for number in range(TASKS)]
        rows = tasks_in_the_table(TASKS)
        assert len(rows) == TASKS
        with client_of(session().redis_socket) as primary:
            assert primary.lrange(SHARDS, 0, -1) == [b"shard-1/redis.sock", b"shard-2/redis.sock"]
            assert primary.llen("dualray:tasks:packed") == 0
            assert primary.hgetall("dualray:functions") == {}
        functions = 0
        for number, name in enumerate(socket_names(2)):
            with client_of(session().redis_directory / name) as shard:
                assert shard.llen("dualray:tasks:packed") > 0
                functions += shard.hlen("dualray:functions")
            tables = tables_at(session().redis_directory / name, session().password, 0)
            assert {shard_of(key, 2) for key in tables.scan("tasks")} == {number}
            tables.close()
        assert functions == 1
    finally:
        ray.shutdown()


def test_the_methods_of_the_tables_find_what_they_have_written():
    ray.init(num_cpus=1, num_redis_shards=3)
    try:
        of = session()
        tables = ShardedControlPlane(of.redis_socket, of.password, 3)
        for number in range(20):
            tables.put("mine", b"put %d" % number, b"%d" % number)
            assert tables.write_behind("mine", b"behind %d" % number, b"%d" % number)
        assert tables.write_many_behind("mine", [(b"many %d" % number, b"%d" % number) for number in range(20)])
        assert tables.write_many_behind("mine", []) == 0
        assert tables.flush(TIMEOUT_S)
        assert len(tables.scan("mine")) == 60
        assert tables.get("mine", b"put 7") == tables.get("mine", b"many 7") == b"7"
        tables.delete("mine", b"put 7")
        assert tables.get("mine", b"put 7") is None
        heard: list[bytes] = []
        tables.subscribe("news", heard.append)
        tables.publish("news", b"new")
        deadline = time.monotonic() + TIMEOUT_S
        while not heard and time.monotonic() < deadline:
            time.sleep(0.01)
        assert heard[0] == b"new"
        tables.drop("mine")
        assert tables.scan("mine") == {}
        assert tables.close()
    finally:
        ray.shutdown()


def servers_of(node: psutil.Process) -> dict[str, psutil.Process]:
    """The control plane's servers among a node's processes, by the names of their directories."""
    found = {}
    for process in node.children(recursive=True):
        if "redis-server" in process.name() or "valkey-server" in process.name():
            found[Path(process.cwd()).name] = process
    return found


def test_a_shard_that_is_killed_comes_back_with_its_tables_and_nodes_go_on(monkeypatch):
    monkeypatch.setenv("DUALRAY_CONTROL_PLANE", "redis")
    with Cluster(initialize_head=True, connect=True, head_node_args={"num_cpus": 1, "num_redis_shards": 2}) as cluster:
        cluster.add_node(num_cpus=1)
        assert get([square.remote(number) for number in range(TASKS)]) == [number**2 for number in range(TASKS)]
        assert len(tasks_in_the_table(TASKS)) == TASKS
        assert cluster.head_node is not None
        daemon = psutil.Process(cluster.head_node._started.process.pid)
        before = servers_of(daemon)
        assert sorted(before) == ["redis", "shard-1", "shard-2"]
        before["shard-2"].kill()

        @ray.remote(num_cpus=1)
        def cube(number):
            return number**3

        assert get([cube.remote(number) for number in range(TASKS)]) == [number**3 for number in range(TASKS)]
        assert len(tasks_in_the_table(2 * TASKS)) == 2 * TASKS
        after = servers_of(daemon)
        assert sorted(after) == ["redis", "shard-1", "shard-2"]
        assert after["redis"] == before["redis"]
        assert after["shard-2"] != before["shard-2"]


def test_the_number_of_shards_belongs_to_the_cluster():
    with pytest.raises(ValueError, match="num_redis_shards=65 must be between 0 and 64"):
        ray.init(num_redis_shards=65)
    with pytest.raises(TypeError, match=r"num_redis_shards=1\.5 must be an int"):
        ray.init(num_redis_shards=1.5)
    with pytest.raises(ValueError, match="joins a running cluster, and cannot set num_redis_shards"):
        ray.init(address="127.0.0.1:1", num_redis_shards=1)
