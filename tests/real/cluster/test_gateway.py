"""The gateway: what listens on the network, who is let in, and what becomes of everybody else."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dualray.real.cluster import gateway as cluster_gateway
from dualray.real.cluster.encryption import Encryption
from dualray.real.cluster.gateway import CONTROL_PLANE, Gateway, RouteRefused, dial
from dualray.real.control_plane.embedded_store import EmbeddedStore
from dualray.real.net.addresses import home_of
from dualray.real.net.frames import Refusal
from dualray.real.net.handshake import GONE, NOT_YET
from dualray.real.net.heartbeats import Heartbeats
from dualray.real.net.loop import Loop
from dualray.real.net.transport import Transport
from dualray.real.session.session import GATEWAY_FILE

SECRET = b"a secret of the cluster"
LOOPBACK = "127.0.0.1"
DEADLINE_S = 20.0

pytestmark = pytest.mark.leak_check


def eventually(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"gave up waiting until {what}"
        time.sleep(0.002)


class LoopThread:
    def __init__(self) -> None:
        self.errors: list[Exception] = []
        self.loop = Loop(self.errors.append)
        self.thread = threading.Thread(target=self.loop.run, daemon=True)
        self.thread.start()

    def close(self) -> None:
        self.loop.stop()
        self.thread.join(DEADLINE_S)
        self.loop.close()


@dataclass
class Process:
    transport: Transport
    inbox: list[tuple[str, bytes, list[memoryview]]]
    lost: list[str]


class Machine:
    """A session's directory with a gateway, and processes in it."""

    def __init__(
        self, directory: Path, node: str, endpoints: dict[str, tuple[str, int]], *, has_head: bool, tls: bool
    ) -> None:
        directory.mkdir(mode=0o700)
        self.directory = directory
        self.node = node
        self.has_head = has_head
        self.runner = LoopThread()
        self.processes: list[Process] = []
        self.gateway = Gateway(
            self.runner.loop,
            session_directory=directory,
            socket_dir=directory / "sockets",
            secret=SECRET,
            bind=(LOOPBACK, 0),
            control_plane=directory / "redis" / "redis.sock",
            has_head=has_head,
            resolve=endpoints.__getitem__,
            encryption=Encryption(SECRET, is_on=tls),
        )
        self.endpoint = endpoints[node] = (LOOPBACK, self.gateway.port)
        if has_head:
            endpoints["head"] = self.endpoint

    def gateway_for(self, address: str) -> Path | None:
        home = home_of(address)
        is_here = home == self.node or (home == "head" and self.has_head)
        return None if is_here else self.directory / GATEWAY_FILE

    def process(self, address: str) -> Process:
        inbox: list[tuple[str, bytes, list[memoryview]]] = []
        lost: list[str] = []
        transport = Transport(
            self.runner.loop,
            address=address,
            socket_dir=self.directory / "sockets",
            secret=SECRET,
            on_message=lambda peer, header, buffers: inbox.append((peer, bytes(header), buffers)),
            on_peer_lost=lost.append,
            gateway_for=self.gateway_for,
        )
        made = Process(transport, inbox, lost)
        self.processes.append(made)
        return made

    def close(self) -> None:
        for process in self.processes:
            process.transport.close()
        self.runner.loop.call_and_wait(self.gateway.close)
        self.runner.close()
        assert self.runner.errors == []


@pytest.fixture(params=[False, True], ids=["plain", "encrypted"])
def tls(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def machines(tls: bool) -> Iterator[Callable[..., Machine]]:
    root = Path(f"/tmp/drgw-{os.getpid()}-{os.urandom(3).hex()}")
    root.mkdir(mode=0o700)
    endpoints: dict[str, tuple[str, int]] = {}
    made: list[Machine] = []

    def make(node: str, *, has_head: bool = False) -> Machine:
        made.append(Machine(root / node, node, endpoints, has_head=has_head, tls=tls))
        return made[-1]

    yield make
    for machine in reversed(made):
        machine.close()
    for path in sorted(root.rglob("*"), reverse=True):
        assert path.is_dir(), f"{path} is left"
        path.rmdir()
    root.rmdir()


def test_messages_cross_between_processes_of_two_machines(machines) -> None:
    one, two = machines("node-0", has_head=True), machines("node-1")
    head, worker = one.process("head"), two.process("node-1~1/w3")
    worker.transport.send("head", b"hello", [b"x" * (1 << 20)])
    eventually(lambda: head.inbox, "it has come")
    assert head.inbox[0][:2] == ("node-1~1/w3", b"hello")
    assert bytes(head.inbox[0][2][0]) == b"x" * (1 << 20)
    for number in range(1000):
        head.transport.send("node-1~1/w3", b"%d" % number)
    eventually(lambda: len(worker.inbox) == 1000, "the answers have come, over the same connection")
    assert [int(header) for _, header, _ in worker.inbox] == list(range(1000))


def test_two_processes_that_begin_at_once_have_one_connection(machines) -> None:
    one, two = machines("node-0"), machines("node-1")
    pairs = [(one.process(f"node-0/w{i}"), two.process(f"node-1/w{i}"), i) for i in range(8)]
    for a, b, i in pairs:
        a.transport.send(f"node-1/w{i}", b"from a")
        b.transport.send(f"node-0/w{i}", b"from b")
    eventually(lambda: all(a.inbox and b.inbox for a, b, _ in pairs), "all have heard")
    time.sleep(0.1)
    assert [(len(a.inbox), len(b.inbox), a.lost, b.lost) for a, b, _ in pairs] == [(1, 1, [], [])] * 8


def test_a_process_that_has_ended_is_lost_at_once(machines) -> None:
    one, two = machines("node-0"), machines("node-1")
    mine = one.process("node-0/w0")
    with socket.socket(socket.AF_UNIX) as dead:  # what a killed process leaves: a socket that nobody listens at
        (two.directory / "sockets").mkdir(mode=0o700, exist_ok=True)
        dead.bind(str(two.directory / "sockets" / "node-1%2Fw9"))
    mine.transport.send("node-1/w9", b"anybody?")
    eventually(lambda: mine.lost == ["node-1/w9"], "the loss is noticed")
    (two.directory / "sockets" / "node-1%2Fw9").unlink()


def test_a_process_that_starts_late_is_waited_for(machines) -> None:
    one, two = machines("node-0"), machines("node-1")
    mine = one.process("node-0/w0")
    mine.transport.send("node-1/w9", b"early")
    time.sleep(0.2)
    theirs = two.process("node-1/w9")
    eventually(lambda: theirs.inbox, "it has come")
    assert mine.lost == []


def test_the_end_of_a_process_is_noticed_on_the_other_machine(machines) -> None:
    one, two = machines("node-0"), machines("node-1")
    mine, theirs = one.process("node-0/w0"), two.process("node-1/w0")
    mine.transport.send("node-1/w0", b"hello")
    eventually(lambda: theirs.inbox, "they are connected")
    theirs.transport.close()
    eventually(lambda: mine.lost == ["node-1/w0"], "the loss is noticed")


@pytest.mark.parametrize("tls", [False], indirect=True)
def test_a_connection_that_was_handed_over_outlives_the_gateways(machines) -> None:
    """An encrypted one goes through them."""
    one, two = machines("node-0"), machines("node-1")
    mine, theirs = one.process("node-0/w0"), two.process("node-1/w0")
    mine.transport.send("node-1/w0", b"1")
    eventually(lambda: theirs.inbox, "they are connected")
    for machine in (one, two):
        machine.runner.loop.call_and_wait(machine.gateway.close)
    theirs.transport.send("node-0/w0", b"2")
    eventually(lambda: mine.inbox, "the answer has come")


def test_the_control_plane_is_found_on_every_machine(machines) -> None:
    from dualray.real.control_plane.client import ControlPlane

    one, two = machines("node-0", has_head=True), machines("node-1")
    (one.directory / "redis").mkdir(mode=0o700)
    path = one.directory / "redis" / "redis.sock"
    store = EmbeddedStore(path, "password")
    store.start()
    try:
        near, far = (ControlPlane(machine.directory / "redis" / "redis.sock", "password") for machine in (one, two))
        with contextlib.closing(near), contextlib.closing(far):
            far.put("functions", b"key", b"v" * 3_000_000)
            assert near.get("functions", b"key") == b"v" * 3_000_000
            near.put("functions", b"other", b"w" * 3_000_000)
            assert far.get("functions", b"other") == b"w" * 3_000_000
    finally:
        store.stop()


# ---- Who is not let in ---------------------------------------------------------------------------------------------


def test_without_the_secret_nobody_gets_in(machines, tls: bool) -> None:
    one = machines("node-0", has_head=True)
    for of_certificate in (b"another secret", SECRET):  # who has got the certificate alone is no further
        with pytest.raises(Refusal, match="have different cluster secrets"):
            dial(one.endpoint, CONTROL_PLANE, b"another secret", encryption=Encryption(of_certificate, is_on=tls))


@pytest.mark.parametrize("said", [b"", b"GET / HTTP/1.1\r\n\r\n", os.urandom(4096), b"dualray\n" + bytes(300)])
def test_whoever_says_something_else_is_dropped(machines, said: bytes) -> None:
    one = machines("node-0")
    with socket.create_connection(one.endpoint, timeout=DEADLINE_S) as stranger:
        stranger.sendall(said)
        with contextlib.suppress(OSError):  # not connected: it has been dropped already
            stranger.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionResetError):
            while stranger.recv(4096):
                pass
    two = machines("node-1")
    theirs, mine = one.process("node-0/w0"), two.process("node-1/w0")
    mine.transport.send("node-0/w0", b"still here?")
    eventually(lambda: theirs.inbox, "others are served")


def test_whoever_says_nothing_is_dropped_in_time(machines, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_gateway, "DIAL_TIMEOUT_S", 0.3)
    one = machines("node-0")
    with socket.create_connection(one.endpoint, timeout=DEADLINE_S) as stranger:
        with contextlib.suppress(ConnectionResetError):
            while stranger.recv(4096):
                pass


@pytest.mark.parametrize(
    ("route", "status"),
    [("node-0/w7", NOT_YET), ("node-0/w8", GONE), ("../../etc/passwd", None), (CONTROL_PLANE, None)],
)
def test_a_route_that_is_none_is_refused(machines, tls: bool, route: str, status: int | None) -> None:
    one = machines("node-0")
    (one.directory / "sockets").mkdir(mode=0o700, exist_ok=True)
    dead = one.directory / "sockets" / "node-0%2Fw8"
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(dead))
    try:
        with pytest.raises((RouteRefused, ConnectionError)) as refused:
            dial(one.endpoint, route, SECRET, encryption=Encryption(SECRET, is_on=tls))
        if status is not None:
            assert isinstance(refused.value, RouteRefused)
            assert refused.value.status == status
    finally:
        dead.unlink()


@pytest.mark.parametrize(
    ("address", "home"),
    [
        ("head", "head"),
        ("node-2", "node-2"),
        ("node-2/w7", "node-2"),
        ("node-2~1/w0", "node-2"),
        ("driver-3@node-2", "node-2"),
        ("driver-1", "driver-1"),
    ],
)
def test_an_address_says_where_its_process_lives(address: str, home: str) -> None:
    assert home_of(address) == home


# ---- Heartbeats ----------------------------------------------------------------------------------------------------


@dataclass
class News:
    beats: list[str]
    silent: list[str]
    heard: list[str]


@pytest.fixture
def beating() -> Iterator[tuple[Heartbeats, News, LoopThread]]:
    runner = LoopThread()
    news = News([], [], [])
    made: list[Any] = []
    runner.loop.call_and_wait(
        lambda: made.append(
            Heartbeats(
                runner.loop,
                timeout_ns=200_000_000,
                beat=news.beats.append,
                on_silent=news.silent.append,
                on_heard=news.heard.append,
            )
        )
    )
    yield made[0], news, runner
    runner.close()


def test_silence_and_its_end_are_reported_once(beating) -> None:
    heartbeats, news, runner = beating
    runner.loop.call_and_wait(lambda: heartbeats.watch("node-1"))
    eventually(lambda: news.silent, "the silence is reported")
    time.sleep(0.3)
    assert news.silent == ["node-1"]
    runner.loop.call_and_wait(lambda: heartbeats.hear("node-1"))
    assert news.heard == ["node-1"]
    assert len(news.beats) >= 4


def test_who_was_deaf_blames_nobody(beating) -> None:
    heartbeats, news, runner = beating
    runner.loop.call_and_wait(lambda: heartbeats.watch("node-1"))
    runner.loop.call_and_wait(lambda: time.sleep(0.5))  # as if this process had been stopped
    runner.loop.call_and_wait(lambda: heartbeats.hear("node-1"))
    assert news.silent == []


def test_who_is_not_watched_any_more_may_be_silent(beating) -> None:
    heartbeats, news, runner = beating
    runner.loop.call_and_wait(lambda: heartbeats.watch("node-1"))
    runner.loop.call_and_wait(lambda: heartbeats.unwatch("node-1"))
    time.sleep(0.4)
    assert news.silent == []
