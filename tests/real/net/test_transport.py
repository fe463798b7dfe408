import contextlib
import dataclasses
import gc
import hashlib
import hmac
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dualray.exceptions import AuthenticationError
from dualray.real.net.addresses import socket_path
from dualray.real.net.handshake import PROTOCOL_VERSION
from dualray.real.net.loop import Loop
from dualray.real.net.transport import Transport, TransportLimits
from tests.real.net.support import DEADLINE_S, wait_for

pytestmark = pytest.mark.usefixtures("quick_collections")

SECRET = b"a secret of the cluster"


@dataclasses.dataclass
class Message:
    peer: str
    header: bytes
    buffers: list[memoryview]


class Process:
    """What a dualray process does with its transport, in this test's own process."""

    def __init__(self, address: str, socket_dir: Path, secret: bytes = SECRET, **limits: Any) -> None:
        self.address = address
        self.inbox: list[Message] = []
        self.lost: list[str] = []
        self.errors: list[Exception] = []
        self.react: Callable[[str, bytes, list[memoryview]], None] | None = None
        self.loop = Loop(self.errors.append)
        try:
            self.transport = Transport(
                self.loop,
                address=address,
                socket_dir=socket_dir,
                secret=secret,
                on_message=self._on_message,
                on_peer_lost=self.lost.append,
                limits=TransportLimits(**limits),
            )
        except BaseException:
            self.loop.close()
            raise
        self.thread = threading.Thread(target=self.loop.run, name=address, daemon=True)
        self.thread.start()

    def _on_message(self, peer: str, header: memoryview, buffers: list[memoryview]) -> None:
        self.inbox.append(Message(peer, bytes(header), buffers))
        if self.react is not None:
            self.react(peer, bytes(header), buffers)

    def headers(self, peer: str) -> list[bytes]:
        return [message.header for message in list(self.inbox) if message.peer == peer]

    def connection_count(self) -> int:
        return len(self.transport._connections)

    def close(self) -> None:
        self.transport.close()
        self.loop.stop()
        self.thread.join(DEADLINE_S)
        assert not self.thread.is_alive()
        self.loop.close()


def open_descriptors() -> list[str]:
    return sorted(path.name for path in Path("/proc/self/fd").iterdir())


@pytest.fixture
def sockets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = Path(f"/tmp/dualray-test-{os.getpid()}-{random.Random().randrange(1 << 30):x}")
    yield path
    assert [entry.name for entry in path.iterdir()] == [], "a closed transport leaves no file"
    path.rmdir()


Start = Callable[..., Process]


@pytest.fixture
def start(sockets: Path) -> Iterator[Start]:
    gc.collect()  # what earlier tests have left in circles is not to close descriptors in the middle of this one
    before = open_descriptors()
    processes: list[Process] = []

    def start(address: str, **options: Any) -> Process:
        process = Process(address, sockets, **options)
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.close()
    assert [process.errors for process in processes if process.errors] == []
    assert open_descriptors() == before, "descriptors leaked"


# -- messages ----------------------------------------------------------------------------------------------------


def test_a_message_and_its_answer_share_one_connection(start: Start) -> None:
    head, node = start("head"), start("node-0")
    head.react = lambda peer, header, buffers: head.transport.send(peer, b"re: " + header, buffers)
    node.transport.send("head", b"hello", [b"small", b"", memoryview(b"view")])
    wait_for(lambda: node.inbox, "the answer is here")
    (answer,) = node.inbox
    assert (answer.peer, answer.header) == ("head", b"re: hello")
    assert [bytes(buffer) for buffer in answer.buffers] == [b"small", b"", b"view"]
    assert all(buffer.readonly for buffer in answer.buffers)
    assert head.connection_count() == node.connection_count() == 1


def test_addresses_with_slashes_and_messages_before_the_peer_exists(start: Start, sockets: Path) -> None:
    worker = start("node-0/w3")
    for index in range(100):
        worker.transport.send("node-0/w4", b"%d" % index)
    late = start("node-0/w4")
    wait_for(lambda: len(late.inbox) == 100, "all came")
    assert late.headers("node-0/w3") == [b"%d" % index for index in range(100)]
    assert sorted(path.name for path in sockets.iterdir()) == ["node-0%2Fw3", "node-0%2Fw4"]
    assert sockets.stat().st_mode & 0o777 == 0o700
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in sockets.iterdir())


def test_a_process_can_write_to_itself(start: Start) -> None:
    head = start("head")
    head.transport.send("head", b"note", [b"to self"])
    wait_for(lambda: head.inbox, "it came")
    assert (head.inbox[0].peer, bytes(head.inbox[0].buffers[0])) == ("head", b"to self")


def test_large_buffers_arrive_whole_among_small_messages(start: Start) -> None:
    a, b = start("a"), start("b")
    array = np.random.default_rng(7).integers(0, 256, 100 << 20, dtype=np.uint8)
    a.transport.send("b", b"before")
    a.transport.send("b", b"large", [array.data, b"tail", array[: 1 << 20].data])
    a.transport.send("b", b"after")
    wait_for(lambda: len(b.inbox) == 3, "all three came")
    assert b.headers("a") == [b"before", b"large", b"after"]
    large, tail, part = b.inbox[1].buffers
    assert hashlib.sha256(large).digest() == hashlib.sha256(array.data).digest()
    assert (bytes(tail), bytes(part)) == (b"tail", array[: 1 << 20].tobytes())
    assert large.readonly


def test_a_large_buffer_is_not_copied_while_it_waits(start: Start) -> None:
    a = start("a")
    array = np.ones((1000, 1000))
    a.transport.send("b", b"", [array.data])
    queue = a.transport._peers["b"].queue
    assert any(np.shares_memory(np.frombuffer(piece, np.uint8), array) for piece in queue if len(piece) == 8_000_000)  # type: ignore[arg-type]


def test_frames_of_every_shape_in_both_directions(start: Start) -> None:
    """Sizes around each edge of the reader: nothing, one chunk, one byte more, many buffers, more than IOV_MAX."""
    a, b = start("a"), start("b")
    rng = random.Random(5)
    shapes: list[tuple[int, list[int]]] = [(0, []), (0, [0]), (1, []), (65523, []), (65524, []), (65525, [])]
    shapes += [(200_000, []), (200_000, [0, 0]), (0, [200_000]), (3, [0, 70_000, 0, 1, 0]), (10, [1] * 3000)]
    shapes += [(10, [30] * 9000), (5, [2 << 20, 0, 1, 3 << 20]), (1 << 20, [1] * 5), (3, [16_000] * 2)]
    shapes += [
        (rng.randrange(100), [rng.randrange(10 ** rng.randrange(1, 6)) for _ in range(rng.randrange(5))])
        for _ in range(300)
    ]
    rng.shuffle(shapes)
    sent = [(rng.randbytes(header), [rng.randbytes(size) for size in sizes]) for header, sizes in shapes]
    for header, buffers in sent:
        a.transport.send("b", header, buffers)
        b.transport.send("a", header, buffers)
    wait_for(lambda: len(a.inbox) == len(b.inbox) == len(sent), "all came")
    for process in (a, b):
        assert [(m.header, [bytes(view) for view in m.buffers]) for m in process.inbox] == sent
    assert a.transport.flush(DEADLINE_S)


def test_threads_send_at_once_and_each_ones_order_holds(start: Start) -> None:
    a, b = start("a"), start("b")

    def send_many(name: int) -> None:
        for index in range(2000):
            a.transport.send("b", struct.pack("<II", name, index), [bytes(index % 7 * 5000)] if index % 50 == 0 else ())

    threads = [threading.Thread(target=send_many, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wait_for(lambda: len(b.inbox) == 8000, "all came")
    seen: dict[int, list[int]] = {}
    for header in b.headers("a"):
        name, index = struct.unpack("<II", header)
        seen.setdefault(name, []).append(index)
    assert seen == {name: list(range(2000)) for name in range(4)}


def test_both_connect_at_once_and_nothing_is_lost_or_reordered(start: Start) -> None:
    """Many pairs, each side sending from its first moment: one connection remains for each pair."""
    names = [f"n{index}" for index in range(12)]
    processes = [start(name) for name in names]
    gate = threading.Barrier(len(names))

    def talk(process: Process) -> None:
        gate.wait()
        for index in range(200):
            for name in names:
                if name != process.address:
                    process.transport.send(name, b"%d" % index, [bytes(40_000)] if index % 40 == 3 else ())

    threads = [threading.Thread(target=talk, args=(process,)) for process in processes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    want = [b"%d" % index for index in range(200)]
    others = len(names) - 1
    wait_for(lambda: all(len(process.inbox) == 200 * others for process in processes), "all came")
    for process in processes:
        for name in names:
            assert process.headers(name) == ([] if name == process.address else want)
        assert process.lost == []
    wait_for(lambda: all(process.connection_count() == others for process in processes), "one connection a pair")


@pytest.mark.parametrize("repetition", range(20))
def test_two_processes_connect_at_once(start: Start, repetition: int) -> None:
    a, b = start("a"), start("b")
    gate = threading.Barrier(2)

    def talk(process: Process, to: str) -> None:
        gate.wait()
        for index in range(20):
            process.transport.send(to, b"%d" % index)

    threads = [threading.Thread(target=talk, args=args) for args in ((a, "b"), (b, "a"))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wait_for(lambda: len(a.inbox) == len(b.inbox) == 20, "all came")
    for process, peer in ((a, "b"), (b, "a")):
        assert process.headers(peer) == [b"%d" % index for index in range(20)]
    wait_for(lambda: a.connection_count() == b.connection_count() == 1, "one connection remains")
    assert a.lost == b.lost == []


# -- losses ------------------------------------------------------------------------------------------------------


def test_a_peer_that_never_appears_is_lost(start: Start) -> None:
    a = start("a", connect_timeout_s=0.05)
    for _ in range(3):
        a.transport.send("nobody", b"x")
    wait_for(lambda: a.lost == ["nobody"], "the loss is told")
    assert isinstance(a.transport.why_lost("nobody"), FileNotFoundError)
    a.transport.send("nobody", b"y")
    assert a.transport.counters.messages_dropped == 4
    assert a.transport.flush(DEADLINE_S)
    a.transport.forget("nobody")
    a.transport.send("nobody", b"z")
    wait_for(lambda: a.lost == ["nobody", "nobody"], "a second attempt was made and failed")


def test_a_socket_that_a_dead_process_left_is_a_loss_at_once_and_its_place_can_be_taken(
    start: Start, sockets: Path
) -> None:
    a = start("a", connect_timeout_s=1e6)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(sockets / "b"))
    a.transport.send("b", b"x")
    wait_for(lambda: a.lost == ["b"], "the loss is told")
    assert isinstance(a.transport.why_lost("b"), ConnectionRefusedError)
    b = start("b")
    b.transport.send("a", b"I live")
    wait_for(lambda: a.inbox, "the new process was heard")
    a.transport.send("b", b"good")
    wait_for(lambda: b.inbox, "and is no longer lost")
    with pytest.raises(OSError, match="already listens"):
        Process("b", sockets)


def test_a_closing_peer_is_heard_to_the_end_and_lost_once(start: Start) -> None:
    a, b = start("a"), start("b")
    a.transport.send("b", b"hello")
    wait_for(lambda: b.inbox, "they are connected")
    for index in range(500):
        b.transport.send("a", b"%d" % index, [bytes(10_000)])
    assert b.transport.flush(DEADLINE_S)
    b.transport.close()
    wait_for(lambda: a.lost, "the loss is told")
    assert a.headers("b") == [b"%d" % index for index in range(500)]
    a.transport.send("b", b"too late")
    assert a.lost == ["b"]
    assert a.transport.counters.messages_dropped == 1
    assert b.lost == [], "who closes loses nobody"


def test_a_peer_that_has_ended_is_heard_out_at_once(start: Start) -> None:
    """Its messages lie in the socket, for the loop is busy; then it is asked to take them in."""
    a, b = start("a"), start("b")
    a.transport.send("b", b"hello")
    wait_for(lambda: b.inbox, "they are connected")

    def hear_out() -> None:
        for index in range(500):
            b.transport.send("a", b"%d" % index)
        assert b.transport.flush(DEADLINE_S)
        a.transport.hear_out("b")
        assert a.headers("b") == [b"%d" % index for index in range(500)]
        a.transport.hear_out("nobody")

    a.loop.call_and_wait(hear_out)


def test_a_new_process_under_an_old_address_first_ends_the_old_one(start: Start, sockets: Path) -> None:
    a, old = start("a"), start("b")
    old.transport.send("a", b"old")
    wait_for(lambda: a.inbox, "the old one is connected")
    (sockets / "b").unlink()  # and its process is stuck: it closes nothing
    new = start("b")
    new.transport.send("a", b"new")
    wait_for(lambda: len(a.inbox) == 2, "the new one was heard")
    assert a.headers("b") == [b"old", b"new"]
    assert a.lost == ["b"]
    a.transport.send("b", b"to the new one")
    wait_for(lambda: new.inbox, "and is the one that is written to")
    wait_for(lambda: old.lost == ["a"], "the old one sees the end")


def test_a_peer_that_does_not_read_is_lost_when_too_much_waits(start: Start) -> None:
    a, b = start("a", queue_bytes_max=10 << 20), start("b")
    stuck, done = threading.Event(), threading.Event()

    def get_stuck(peer: str, header: bytes, buffers: list[memoryview]) -> None:
        stuck.set()
        assert done.wait(DEADLINE_S)

    b.react = get_stuck
    a.transport.send("b", b"first")
    assert stuck.wait(DEADLINE_S)
    for _ in range(100):
        a.transport.send("b", b"", [bytes(1 << 20)])
    wait_for(lambda: a.lost == ["b"], "it was given up")
    assert isinstance(a.transport.why_lost("b"), BufferError)
    assert a.transport.counters.queue_overflows == 1
    assert not a.transport.flush(0.0) or a.transport._peers == {}
    done.set()


def test_errors_of_the_owner_are_told_to_the_owner(start: Start) -> None:
    a, b = start("a"), start("b")

    def fail(peer: str, header: bytes, buffers: list[memoryview]) -> None:
        raise LookupError(header.decode())

    b.react = fail
    a.transport.send("b", b"one")
    a.transport.send("b", b"two")
    wait_for(lambda: len(b.errors) == 2, "both were told")
    assert [str(error) for error in b.errors] == ["one", "two"]
    b.errors.clear()
    assert a.lost == b.lost == []


# -- strangers ---------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def stranger(sockets: Path, address: str) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(DEADLINE_S)
        sock.connect(str(socket_path(sockets, address)))
        yield sock


def receive(sock: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        chunk = sock.recv(count - len(data))
        if not chunk:
            raise EOFError
        data += chunk
    return data


def is_closed(sock: socket.socket) -> bool:
    try:
        while sock.recv(65536):
            pass
    except ConnectionResetError:
        pass
    return True


def shake_hands(sock: socket.socket, name: bytes, secret: bytes = SECRET) -> bytes:
    """The initiator's side of the handshake, written a second time from the documentation."""
    assert receive(sock, 12) == b"dualray\n" + struct.pack("<I", PROTOCOL_VERSION)
    theirs = receive(sock, 32)
    mine = os.urandom(32)
    hello = bytes(1) + os.urandom(16) + name.ljust(112, b"\0")
    sock.sendall(b"dualray\n" + struct.pack("<I", PROTOCOL_VERSION) + mine)
    sock.sendall(hmac.digest(secret, b"initiator" + mine + theirs + hello, "sha256") + hello)
    answer = receive(sock, 32 + 129)
    if answer[32] != 2:
        assert answer[:32] == hmac.digest(SECRET, b"acceptor" + mine + theirs + answer[32:], "sha256")
    return answer[32:]


def frame(header: bytes, *sizes: int, marker: int = 0x46524401) -> bytes:
    return struct.pack(f"<III{len(sizes)}Q", marker, len(header), len(sizes), *sizes) + header


def serves(head: Process, start: Start, name: str = "witness") -> None:
    """The process goes on: another peer still gets its answers."""
    before = len(head.inbox)
    start(name).transport.send("head", b"still there?")
    wait_for(lambda: len(head.inbox) == before + 1, "a good peer is served")


def test_the_documented_handshake_is_the_one_that_is_spoken(start: Start, sockets: Path) -> None:
    head = start("head")
    with stranger(sockets, "head") as sock:
        verdict, address = (answer := shake_hands(sock, b"driver-1"))[0], answer[17:].rstrip(b"\0")
        assert (verdict, address) == (0, b"head")
        for byte in frame(b"drop by drop", 3, 0) + b"abc":
            sock.sendall(bytes([byte]))
        wait_for(lambda: head.inbox, "the frame was put together")
        assert head.headers("driver-1") == [b"drop by drop"]
        assert [bytes(buffer) for buffer in head.inbox[0].buffers] == [b"abc", b""]
    wait_for(lambda: head.lost == ["driver-1"], "its end was seen")


def test_a_peer_with_another_secret(start: Start) -> None:
    head, thief = start("head"), start("thief", secret=b"a guess")
    thief.transport.send("head", b"let me in")
    wait_for(lambda: thief.lost == ["head"], "it was turned away")
    reason = thief.transport.why_lost("head")
    assert isinstance(reason, AuthenticationError)
    assert "head" in str(reason)
    assert "secret" in str(reason)
    wait_for(lambda: head.transport.counters.wrong_secrets == 1, "who has turned it away counts it, a moment later")
    assert (head.inbox, head.lost) == ([], [])
    serves(head, start)


def test_a_server_with_another_secret_is_not_believed(start: Start) -> None:
    node, impostor = start("node-0"), start("head", secret=b"a guess")
    node.transport.send("head", b"my data")
    wait_for(lambda: node.lost == ["head"], "it was not believed")
    assert isinstance(node.transport.why_lost("head"), AuthenticationError)
    assert (impostor.inbox, node.transport.counters.wrong_secrets) == ([], 1)


def test_another_protocol_version_is_an_error_that_names_both(start: Start, sockets: Path) -> None:
    head = start("head", connect_timeout_s=1e6)
    with stranger(sockets, "head") as sock:
        sock.sendall(b"dualray\n" + struct.pack("<I", 99) + bytes(200))
        assert is_closed(sock)
    assert head.transport.counters.version_mismatches == 1
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(sockets / "future"))
        listener.listen()
        listener.settimeout(DEADLINE_S)
        head.transport.send("future", b"hello")
        sock, _ = listener.accept()
        with sock:
            sock.sendall(b"dualray\n" + struct.pack("<I", 99))
            wait_for(lambda: head.lost == ["future"], "we gave up")
    (sockets / "future").unlink()
    reason = head.transport.why_lost("future")
    assert isinstance(reason, AuthenticationError)
    assert f"version {PROTOCOL_VERSION} " in str(reason)
    assert "version 99" in str(reason)
    serves(head, start)


@pytest.mark.parametrize("noise", [b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", b"\0" * 1000, b"dualray?\1\0\0\0"])
def test_noise_in_place_of_the_handshake(start: Start, sockets: Path, noise: bytes) -> None:
    head = start("head")
    with stranger(sockets, "head") as sock:
        sock.sendall(noise)
        assert is_closed(sock)
    assert head.transport.counters.bad_preambles == 1
    serves(head, start)


@pytest.mark.parametrize("name", [b"", b"head", b"../up", b"caf\xc3\xa9", b"a b", b"\0\0x"])
def test_a_peer_that_cannot_be_called_so(start: Start, sockets: Path, name: bytes) -> None:
    head = start("head")
    with stranger(sockets, "head") as sock:
        assert shake_hands(sock, name)[0] == 2
        assert is_closed(sock)
    assert head.transport.counters.bad_hellos == 1
    serves(head, start)


def test_a_replayed_proof_is_worth_nothing(start: Start, sockets: Path) -> None:
    head = start("head")
    heard: list[bytes] = []
    with stranger(sockets, "head") as sock:
        theirs = receive(sock, 44)[12:]
        mine, hello = os.urandom(32), bytes(1) + os.urandom(16) + b"driver-1".ljust(112, b"\0")
        heard.append(b"dualray\n" + struct.pack("<I", PROTOCOL_VERSION) + mine)
        heard.append(hmac.digest(SECRET, b"initiator" + mine + theirs + hello, "sha256") + hello)
        sock.sendall(b"".join(heard))
        assert receive(sock, 161)[32] == 0
    wait_for(lambda: head.lost == ["driver-1"], "it left")
    with stranger(sockets, "head") as sock:
        sock.sendall(b"".join(heard))
        assert receive(sock, 44 + 161)[44 + 32] == 2
        assert is_closed(sock)
    assert head.transport.counters.wrong_secrets == 1


@pytest.mark.parametrize(
    ("data", "counter"),
    [
        (frame(b"x", marker=0x12345678), "bad_frames"),
        (struct.pack("<III", 0x46524401, 1001, 0), "oversized_frames"),
        (struct.pack("<III", 0x46524401, 0, 0xFFFFFFFF), "oversized_frames"),
        (frame(b"", 1 << 63), "oversized_frames"),
        (frame(b"", 600_000, 600_000), "oversized_frames"),
    ],
)
def test_bad_and_oversized_frames(start: Start, sockets: Path, data: bytes, counter: str) -> None:
    head = start("head", header_bytes_max=1000, frame_bytes_max=1_000_000)
    with stranger(sockets, "head") as sock:
        assert shake_hands(sock, b"driver-1")[0] == 0
        sock.sendall(frame(b"good") + data)
        assert is_closed(sock)
    wait_for(lambda: head.lost == ["driver-1"], "it was dropped")
    assert head.headers("driver-1") == [b"good"]
    assert getattr(head.transport.counters, counter) == 1
    serves(head, start)


def test_what_the_peer_would_refuse_is_refused_at_home(start: Start) -> None:
    a = start("a", header_bytes_max=10, frame_bytes_max=100, buffers_max=2)
    for header, buffers in ((b"x" * 11, []), (b"", [b"", b"", b""]), (b"x", [bytes(100)])):
        with pytest.raises(ValueError, match="the limit is"):
            a.transport.send("b", header, buffers)
    with pytest.raises(TypeError, match="contiguous"):
        a.transport.send("b", b"", [np.zeros((4, 4))[:, 1].data])


def test_slow_loris(start: Start, sockets: Path) -> None:
    """Silent and dripping connections are dropped at the deadline, and while they last hold nobody up."""
    head = start("head", handshake_timeout_s=0.3, handshakes_max=4)
    with contextlib.ExitStack() as stack:
        idle = [stack.enter_context(stranger(sockets, "head")) for _ in range(9)]
        idle[0].sendall(b"dual")
        serves(head, start)
        for sock in idle:
            assert is_closed(sock)
    assert head.transport.counters.handshake_timeouts == 9
    assert head.connection_count() == 1


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")
def test_another_user_is_refused(start: Start, sockets: Path) -> None:
    head = start("head")
    sockets.chmod(0o711)  # as if the directory's mode had been opened
    (sockets / "head").chmod(0o666)
    program = f"""
import os, socket, sys
os.setuid(12345)
sock = socket.socket(socket.AF_UNIX); sock.connect({str(sockets / "head")!r}); sock.settimeout(30)
sys.exit(sock.recv(1) != b"")
"""
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0
    assert head.transport.counters.foreign_uids == 1
    serves_not = pytest.raises(PermissionError, match="0700")
    with serves_not:
        Process("late", sockets)


def test_paths_that_do_not_fit_are_refused_with_a_reason(sockets: Path, start: Start) -> None:
    a = start("a")
    with pytest.raises(ValueError, match="directory with a shorter path"):
        socket_path(Path("/tmp") / ("d" * 95), "head")
    for address in ("", "/x", "..", "a\0b", "x" * 97):
        with pytest.raises(ValueError, match="not an address"):
            a.transport.send(address, b"")


# -- two real processes ------------------------------------------------------------------------------------------

PEER = """
import sys, threading
from pathlib import Path
from dualray.real.net.loop import Loop
from dualray.real.net.transport import Transport
loop = Loop(lambda error: sys.exit(repr(error)))
def answer(peer, header, buffers):
    transport.send(peer, bytes(header), buffers)
transport = Transport(loop, address="echo", socket_dir=Path(sys.argv[1]), secret=sys.argv[2].encode(),
                      on_message=answer, on_peer_lost=lambda peer: loop.stop())
loop.run()
transport.close()
loop.close()
"""


@contextlib.contextmanager
def echo_process(sockets: Path) -> Iterator["subprocess.Popen[bytes]"]:
    with subprocess.Popen([sys.executable, "-c", PEER, str(sockets), SECRET.decode()]) as process:
        try:
            yield process
        finally:
            process.kill()


def test_two_processes_and_a_clean_end(start: Start, sockets: Path) -> None:
    driver = start("driver-1")
    with echo_process(sockets) as process:
        for index in range(1000):
            driver.transport.send("echo", b"%d" % index, [bytes(index * 10)])
        wait_for(lambda: len(driver.inbox) == 1000, "all came back")
        assert driver.headers("echo") == [b"%d" % index for index in range(1000)]
        assert [len(message.buffers[0]) for message in driver.inbox] == [index * 10 for index in range(1000)]
        driver.transport.close()
        assert process.wait(DEADLINE_S) == 0


def test_a_killed_peer_is_lost_once_in_the_middle_of_a_large_message(start: Start, sockets: Path) -> None:
    driver = start("driver-1")
    with echo_process(sockets) as process:
        driver.transport.send("echo", b"hello")
        wait_for(lambda: driver.inbox, "it answers")
        process.send_signal(signal.SIGSTOP)
        driver.transport.send("echo", b"large", [bytes(50 << 20)])
        driver.transport.send("echo", b"never read")
        process.kill()
        process.wait()
        wait_for(lambda: driver.lost, "the loss is told")
        driver.transport.send("echo", b"too late")
    assert driver.lost == ["echo"]
    assert driver.transport.counters.messages_dropped >= 2
    assert driver.transport.flush(DEADLINE_S)
    (sockets / "echo").unlink()
