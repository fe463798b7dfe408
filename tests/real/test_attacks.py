"""Attacks on the sockets of a live session and of a live cluster: each is dropped, counted and logged."""

from __future__ import annotations

import contextlib
import hmac
import os
import pickle
import socket
import stat
import struct
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

import dualray
from dualray.cluster_utils import Cluster
from dualray.real.cluster.gateway import DIAL_TIMEOUT_S, INCOMING_MAX
from dualray.real.net.handshake import PROTOCOL_VERSION
from dualray.real.net.transport import TransportLimits
from dualray.real.session.session import METRICS_FILE

DEADLINE_S = 30.0
PREAMBLE = b"dualray\n" + struct.pack("<I", PROTOCOL_VERSION)
FRAME_MARKER = 0x46524401


@dualray.remote
def double(x: int) -> int:
    return 2 * x


@dataclass
class Target:
    """One socket under attack: how to reach it, who counts what it drops, and who logs it."""

    name: str
    connect: Callable[[], socket.socket]
    process: str
    """The label of its counters."""
    metrics: str
    secret: bytes
    log: Path | None
    """None of a driver: its log is the program's own."""
    handshake_timeout_s: float
    handshakes_max: int

    def dropped(self, reason: str) -> float:
        with urllib.request.urlopen(f"http://{self.metrics}/metrics", timeout=10) as answer:
            families = text_string_to_metric_families(answer.read().decode())
        wanted = {"process": self.process, "reason": reason}
        return sum(
            sample.value
            for family in families
            for sample in family.samples
            if sample.name == "dualray_connections_dropped_total" and sample.labels.items() >= wanted.items()
        )


def _unix(path: Path) -> Callable[[], socket.socket]:
    def connect() -> socket.socket:
        sock = socket.socket(socket.AF_UNIX)
        sock.settimeout(DEADLINE_S)
        sock.connect(str(path))
        return sock

    return connect


class World:
    """The one runtime of this process: a session of one node, or a cluster of two; made when it is wanted."""

    def __init__(self) -> None:
        self._session: Any = None
        self._cluster: Cluster | None = None

    def session(self) -> Any:
        """Unix sockets only."""
        if self._session is None:
            self.end()
            self._session = dualray.init(num_cpus=1, metrics_port=0)
            goes_on()
        return self._session

    def cluster(self) -> Cluster:
        """With a gateway on each of two nodes."""
        if self._cluster is None:
            self.end()
            head = {"num_cpus": 1, "metrics_port": 0}
            self._cluster = Cluster(initialize_head=True, connect=True, head_node_args=head)
            self._cluster.add_node(num_cpus=1)
            goes_on()
        return self._cluster

    def end(self) -> None:
        if self._cluster is not None:
            self._cluster.shutdown()
        dualray.shutdown()
        self._session = self._cluster = None


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    made = World()
    yield made
    made.end()


@pytest.fixture
def nothing_runs(world: World) -> None:
    world.end()


def _target_of(world: World, name: str) -> Target:
    limits = TransportLimits()
    if name == "gateway":
        cluster = world.cluster()
        node = cluster.head_node
        assert node is not None
        host, port = cluster.address.split(":")
        return Target(
            name=name,
            connect=lambda: socket.create_connection((host, int(port)), timeout=DEADLINE_S),
            process="gateway",
            metrics=(node.directory / METRICS_FILE).read_text(),
            secret=(node.directory / "secret").read_bytes(),
            log=node.directory / "logs" / "daemon.log",
            handshake_timeout_s=DIAL_TIMEOUT_S,
            handshakes_max=INCOMING_MAX,
        )
    runtime = world.session()
    if name == "worker":
        path = min(runtime.session.sockets.glob("node-0*w*"))
    else:
        path = runtime.session.sockets / {"head": "head", "node": "node-0", "driver": "driver-1"}[name]
    logs = {"head": "head.log", "node": "node-0.log"}
    return Target(
        name=name,
        connect=_unix(path),
        process=name,
        metrics=runtime.metrics_address,
        secret=runtime.session.secret,
        log=runtime.session.logs / logs[name] if name in logs else None,
        handshake_timeout_s=limits.handshake_timeout_s,
        handshakes_max=limits.handshakes_max,
    )


UNIX = ("head", "node", "driver", "worker")
EVERYWHERE = pytest.mark.parametrize("target", [*UNIX, "gateway"], indirect=True, scope="module")


@pytest.fixture(scope="module")
def target(world: World, request: pytest.FixtureRequest) -> Target:
    return _target_of(world, request.param)


def closed_by_peer(sock: socket.socket) -> bool:
    """Read to the end: whether the other side ended it."""
    try:
        while sock.recv(65536):
            pass
    except ConnectionResetError:
        pass
    return True


def receive(sock: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        piece = sock.recv(count - len(data))
        assert piece, f"closed after {data!r}"
        data += piece
    return data


def eventually(condition: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"waited {DEADLINE_S:g} s in vain until {what}"
        time.sleep(0.02)


def proof(secret: bytes, nonces: bytes, address: bytes = b"driver-77") -> bytes:
    hello = bytes(1) + os.urandom(16) + address.ljust(112, b"\0")
    return hmac.digest(secret, b"initiator" + nonces + hello, "sha256") + hello


@contextlib.contextmanager
def attack(target: Target, reason: str, *, count: int = 1) -> Iterator[socket.socket]:
    """One attacker's connection. Afterwards it was dropped, counted and logged, and the cluster goes on."""
    before = target.dropped(reason)
    logged = target.log.read_text().count(" dropped ") if target.log is not None else 0
    with target.connect() as sock:
        yield sock
        assert closed_by_peer(sock)
    eventually(lambda: target.dropped(reason) >= before + count, f"{count} more dropped for {reason}")
    if target.log is not None:
        assert target.log.read_text().count(" dropped ") >= logged + count
    goes_on()


def goes_on() -> None:
    assert dualray.get([double.remote(x) for x in range(10)], timeout=DEADLINE_S) == [2 * x for x in range(10)]


# ---- Without the secret ------------------------------------------------------------------------------------------


@EVERYWHERE
def test_no_secret(target: Target) -> None:
    """Who only speaks the protocol learns nothing but a nonce, and that it was refused."""
    with attack(target, "wrong_secrets") as sock:
        sock.sendall(PREAMBLE + os.urandom(32) + bytes(161))
        receive(sock, 44)
        refusal = receive(sock, 161)
        assert refusal[:32] == bytes(32), "a refusal proves nothing"


@EVERYWHERE
def test_a_wrong_secret(target: Target) -> None:
    with attack(target, "wrong_secrets") as sock:
        mine = os.urandom(32)
        sock.sendall(PREAMBLE + mine)
        theirs = receive(sock, 44)[12:]
        sock.sendall(proof(b"a guess of the secret, of 32 byte", mine + theirs))


@EVERYWHERE
def test_a_replayed_handshake(target: Target) -> None:
    """What a right handshake has sent is worth nothing a second time: the other side's nonce is new."""
    mine = os.urandom(32)
    with target.connect() as sock:
        sock.sendall(PREAMBLE + mine)
        theirs = receive(sock, 44)[12:]
        proved = proof(target.secret, mine + theirs)
        sock.sendall(proved)
        assert receive(sock, 161)[32] == 0, "the first time it is right"
    with attack(target, "wrong_secrets") as sock:
        sock.sendall(PREAMBLE + mine + proved)


@EVERYWHERE
@pytest.mark.parametrize(
    "noise",
    [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01" + bytes(200), b"\xff" * 4096, b"*1\r\n$4\r\nPING\r\n"],
    ids=["http", "tls", "bytes", "redis"],
)
def test_garbage(target: Target, noise: bytes) -> None:
    with attack(target, "bad_preambles") as sock, contextlib.suppress(ConnectionError):
        sock.sendall(noise)


@EVERYWHERE
def test_a_length_of_four_gibibytes(target: Target) -> None:
    """No length that a stranger sends is believed: all reads before the proof have fixed sizes."""
    before = {process.pid: process.memory_info().rss for process in _processes()}
    with attack(target, "bad_preambles") as sock, contextlib.suppress(ConnectionError):
        sock.sendall(struct.pack("<III", FRAME_MARKER, 0xFFFFFFFF, 0xFFFFFFFF) + bytes(1 << 16))
    for process in _processes():
        if process.pid in before:
            assert process.memory_info().rss - before[process.pid] < 256 << 20


class Bomb:
    """Unpickling it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


@EVERYWHERE
@pytest.mark.parametrize("after_preamble", [False, True], ids=["at once", "as the proof"])
def test_a_pickle_bomb(target: Target, tmp_path: Path, after_preamble: bool) -> None:
    mark = tmp_path / "exploded"
    bomb = pickle.dumps(Bomb(mark))
    start = PREAMBLE + os.urandom(32) if after_preamble else b""
    with attack(target, "wrong_secrets" if after_preamble else "bad_preambles") as sock:
        with contextlib.suppress(ConnectionError):
            sock.sendall(start + bomb + bytes(1000))
    assert not mark.exists()


@EVERYWHERE
def test_another_version_is_named(target: Target) -> None:
    with attack(target, "version_mismatches") as sock:
        sock.sendall(b"dualray\n" + struct.pack("<I", PROTOCOL_VERSION + 1) + bytes(32))
    if target.log is not None:
        assert f"version {PROTOCOL_VERSION + 1}" in target.log.read_text()


# ---- Slowly, and many --------------------------------------------------------------------------------------------


@EVERYWHERE
def test_one_byte_a_second(target: Target) -> None:
    """The whole handshake has one deadline; a byte now and then does not move it."""
    begun = time.monotonic()
    with attack(target, "handshake_timeouts") as sock:
        sock.settimeout(1.0)
        for byte in PREAMBLE + bytes(32):
            try:
                sock.sendall(bytes((byte,)))
                receive(sock, 1 << 20)
            except TimeoutError:  # nothing more to read in this second
                goes_on()
                continue
            except (ConnectionError, AssertionError):  # it was closed
                break
        sock.settimeout(DEADLINE_S)
        assert time.monotonic() - begun < target.handshake_timeout_s + 10


@pytest.mark.parametrize("target", ["head", "node", "gateway"], indirect=True, scope="module")
def test_too_many_half_open_connections(target: Target) -> None:
    """As many as may be in handshake at a time, and more that wait: each is dropped at its deadline. Meanwhile what is
    connected works; afterwards so does what connects anew."""
    count = target.handshakes_max + 20
    before = target.dropped("handshake_timeouts")
    with contextlib.ExitStack() as stack:
        idle = [stack.enter_context(target.connect()) for _ in range(count)]
        goes_on()
        assert all(closed_by_peer(sock) for sock in idle[: target.handshakes_max])
    eventually(
        lambda: target.dropped("handshake_timeouts") >= before + target.handshakes_max, "they are counted as timed out"
    )
    test_a_replayed_handshake(target)


# ---- With the secret ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", UNIX, indirect=True, scope="module")
@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (struct.pack("<III", FRAME_MARKER, 0xFFFFFFFF, 0), "oversized_frames"),
        (struct.pack("<III", FRAME_MARKER, 0, 0xFFFFFFFF), "oversized_frames"),
        (b"\xff" * 64, "bad_frames"),
    ],
    ids=["header of 4 GiB", "4 Gi buffers", "garbage"],
)
def test_who_has_the_secret_and_breaks_the_rules_of_frames(target: Target, frame: bytes, reason: str) -> None:
    with attack(target, reason) as sock:
        mine = os.urandom(32)
        sock.sendall(PREAMBLE + mine)
        theirs = receive(sock, 44)[12:]
        sock.sendall(proof(target.secret, mine + theirs, address=b"driver-78"))
        assert receive(sock, 161)[32] == 0
        with contextlib.suppress(ConnectionError):
            sock.sendall(frame)


@pytest.mark.parametrize("target", ["gateway"], indirect=True, scope="module")
@pytest.mark.parametrize("route", [b"../../etc/passwd", b"\xff" * 16, b"no such place"])
def test_routes_that_are_none(target: Target, route: bytes) -> None:
    with attack(target, "bad_routes") as sock:
        mine = os.urandom(32)
        sock.sendall(PREAMBLE + mine)
        theirs = receive(sock, 44)[12:]
        sock.sendall(proof(target.secret, mine + theirs, address=b"dialer"))
        assert receive(sock, 161)[32] == 0
        sock.sendall(route.ljust(128, b"\0"))


# ---- What listens ------------------------------------------------------------------------------------------------


def _processes() -> list[psutil.Process]:
    """This process and all that it has started."""
    me = psutil.Process()
    return [me, *me.children(recursive=True)]


def _listening() -> list[str]:
    found = []
    for process in _processes():
        with contextlib.suppress(psutil.NoSuchProcess):
            found += [
                f"{' '.join(process.cmdline()[:4])}: {connection.laddr}"
                for connection in process.net_connections("inet")
                if connection.status == psutil.CONN_LISTEN or connection.type == socket.SOCK_DGRAM
            ]
    return found


@pytest.mark.usefixtures("nothing_runs")
def test_a_default_session_listens_nowhere_but_in_private_directories() -> None:
    before = _listening()
    runtime: Any = dualray.init(num_cpus=2)
    try:
        dualray.get([double.remote(x) for x in range(4)])
        assert _listening() == before, "no port of any address"
        root = runtime.session.directory
        for directory in (root, runtime.session.sockets, runtime.session.logs, runtime.session.store_directory):
            assert stat.S_IMODE(directory.stat().st_mode) == 0o700, directory
            assert directory.stat().st_uid == os.getuid()
        for process in _processes():
            for connection in process.net_connections("unix"):
                if connection.status == psutil.CONN_LISTEN or (connection.laddr and str(root) in str(connection.laddr)):
                    path = Path(str(connection.laddr))
                    if path.is_absolute() and path.exists():
                        assert path.is_relative_to(root), path
        for path in root.rglob("*"):
            mode = path.lstat().st_mode
            if stat.S_ISSOCK(mode):
                assert stat.S_IMODE(mode) & 0o077 == 0, f"{path} is open to others: {stat.S_IMODE(mode):o}"
        for name in ("secret", "session.json"):
            assert stat.S_IMODE((root / name).stat().st_mode) == 0o600
    finally:
        dualray.shutdown()


@pytest.mark.usefixtures("nothing_runs")
def test_no_command_line_and_no_log_has_the_secret() -> None:
    runtime: Any = dualray.init(num_cpus=1)
    try:
        dualray.get(double.remote(1))
        secret = runtime.session.secret.decode()
        for process in _processes():
            assert secret not in " ".join(process.cmdline())
            if process.pid != os.getpid():
                assert secret not in str(process.environ())
        assert not [path for path in runtime.session.logs.iterdir() if secret in path.read_text()]
    finally:
        dualray.shutdown()


@pytest.mark.usefixtures("nothing_runs")
def test_a_cluster_listens_at_the_loopback_address_and_each_node_at_one_port() -> None:
    with Cluster(initialize_head=True, connect=True, head_node_args={"num_cpus": 1}) as cluster:
        before = {entry for entry in _listening() if "dualray.real" not in entry}
        cluster.add_node(num_cpus=1)
        goes_on()
        ours = [entry for entry in _listening() if entry not in before]
        assert len(ours) == 2, ours
        assert all("ip='127.0.0.1'" in entry and "cluster.daemon" in entry for entry in ours), ours
