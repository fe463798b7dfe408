"""Wires: bytes pass whole and in order, encrypted or not, and under faults as these say."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from dualray.real.cluster.encryption import Encryption
from dualray.real.net.conditions import LinkConditions
from dualray.real.net.frames import FRAME, FRAME_MARKER
from dualray.real.net.handshake import HANDSHAKE_BYTES
from dualray.real.net.loop import Loop
from dualray.real.net.wire import FrameCutter, Lane, Wire

SECRET = b"a secret of thirty-two bytes or so"
DEADLINE_S = 20.0


@pytest.fixture
def loop() -> Iterator[Loop]:
    errors: list[Exception] = []
    made = Loop(errors.append)
    thread = threading.Thread(target=made.run)
    thread.start()
    yield made
    made.stop()
    thread.join(DEADLINE_S)
    made.close()
    assert errors == []


class Wired:
    """Two ends of a wire: what one sends the other receives."""

    def __init__(
        self,
        loop: Loop,
        *,
        conditions: LinkConditions | None = None,
        has_frames: bool = False,
        broken_after_s: float = 30,
    ) -> None:
        self.here, inside = socket.socketpair()
        self.there, outside = socket.socketpair()
        self.ended: list[Exception | None] = []
        self.is_over = threading.Event()
        lanes = None
        if conditions is not None:
            out, into = (
                Lane(conditions, src, dst, has_frames=has_frames, broken_after_s=broken_after_s)
                for src, dst in (("a", "b"), ("b", "a"))
            )
            lanes = out, into
        loop.call_and_wait(lambda: Wire(loop, inside, outside, self._on_end, lanes))
        for sock in (self.here, self.there):
            sock.settimeout(DEADLINE_S)

    def _on_end(self, wire: Wire, error: Exception | None) -> None:
        self.ended.append(error)
        self.is_over.set()

    def close(self) -> None:
        self.here.close()
        self.there.close()
        assert self.is_over.wait(DEADLINE_S)


def receive(sock: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        piece = sock.recv(count - len(data))
        if not piece:
            break
        data += piece
    return bytes(data)


def pass_through(source: socket.socket, target: socket.socket, data: bytes) -> bytes:
    sender = threading.Thread(target=source.sendall, args=(data,))
    sender.start()
    got = receive(target, len(data))
    sender.join(DEADLINE_S)
    return got


def test_much_passes_in_both_directions(loop: Loop) -> None:
    data = os.urandom(5_000_000)
    with closing(Wired(loop)) as wired:
        assert pass_through(wired.here, wired.there, data) == data
        assert pass_through(wired.there, wired.here, data) == data


def test_what_was_sent_before_the_end_arrives(loop: Loop) -> None:
    data = os.urandom(3_000_000)
    with closing(Wired(loop)) as wired:

        def send_all() -> None:
            wired.here.sendall(data)
            wired.here.close()

        sender = threading.Thread(target=send_all)
        sender.start()
        assert receive(wired.there, len(data) + 1) == data
        sender.join(DEADLINE_S)


class Encrypted:
    """A wire whose outside is encrypted, behind a proxy that sees what passes, and may flip a bit of it."""

    def __init__(self, loop: Loop) -> None:
        self.seen = bytearray()
        self.flips = False
        self.ended: list[Exception | None] = []
        self.is_over = threading.Event()
        near, near_proxy = socket.socketpair()
        far_proxy, far = socket.socketpair()
        self._proxied = (near_proxy, far_proxy)
        self._pumps = [
            threading.Thread(target=self._pump, args=pair)
            for pair in ((near_proxy, far_proxy), (far_proxy, near_proxy))
        ]
        found: list[ssl.SSLSocket] = []
        deadline = time.monotonic() + DEADLINE_S
        accepting = threading.Thread(target=lambda: found.append(Encryption(SECRET, is_on=True).accept(far, deadline)))
        for thread in (*self._pumps, accepting):
            thread.start()
        outside = Encryption(SECRET, is_on=True).connect(near, deadline)
        accepting.join(DEADLINE_S)
        self.there = found[0]
        self.here, inside = socket.socketpair()
        loop.call_and_wait(lambda: Wire(loop, inside, outside, self._on_end))
        for sock in (self.here, self.there):
            sock.settimeout(DEADLINE_S)

    def _on_end(self, wire: Wire, error: Exception | None) -> None:
        self.ended.append(error)
        self.is_over.set()

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while piece := source.recv(1 << 16):
                self.seen += piece
                target.sendall(piece[:-1] + bytes([piece[-1] ^ self.flips]))
        for sock in self._proxied:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.here.close()
        self.there.close()
        assert self.is_over.wait(DEADLINE_S)
        for thread in self._pumps:
            thread.join(DEADLINE_S)
        for sock in self._proxied:
            sock.close()


def test_nothing_readable_leaves_an_encrypted_wire(loop: Loop) -> None:
    data = b"readable " * 200_000
    with closing(Encrypted(loop)) as wired:
        assert pass_through(wired.here, wired.there, data) == data
        assert pass_through(wired.there, wired.here, data) == data
        assert len(wired.seen) > 2 * len(data)
        assert b"readable" not in wired.seen
        wired.there.close()
        assert wired.here.recv(1) == b""
    assert wired.ended == [None]


def test_a_flipped_bit_ends_an_encrypted_wire_with_its_reason(loop: Loop) -> None:
    with closing(Encrypted(loop)) as wired:
        assert pass_through(wired.there, wired.here, b"whole") == b"whole"
        wired.flips = True
        wired.there.sendall(b"broken")
        assert wired.here.recv(10) == b"", "and no byte of it"
        assert wired.is_over.wait(DEADLINE_S)
    assert isinstance(wired.ended[0], ssl.SSLError)
    assert "BAD_RECORD_MAC" in str(wired.ended[0]).upper().replace(" ", "_")


def frame(header: bytes, *buffers: bytes) -> bytes:
    sizes = struct.pack(f"<{len(buffers)}Q", *map(len, buffers))
    return FRAME.pack(FRAME_MARKER, len(header), len(buffers)) + sizes + header + b"".join(buffers)


@pytest.mark.parametrize("step", [1, 7, 4096])
def test_dropped_messages_are_left_out_whole(step: int) -> None:
    frames = [frame(b"header %d" % number, b"x" * number, b"y" * 100) for number in range(20)]
    data = bytes(HANDSHAKE_BYTES) + b"".join(frames)
    drops = iter([False, True] * 10)
    cutter = FrameCutter()
    kept = b"".join(cutter.keep(data[at : at + step], lambda: next(drops)) for at in range(0, len(data), step))
    assert kept == bytes(HANDSHAKE_BYTES) + b"".join(frames[::2])


def test_a_cut_holds_what_is_sent_and_its_end_lets_it_pass(loop: Loop) -> None:
    conditions = LinkConditions()
    with closing(Wired(loop, conditions=conditions)) as wired:
        loop.call_and_wait(lambda: conditions.replace([("a", "b")], {}))
        wired.here.sendall(b"held")
        wired.there.sendall(b"passes")
        assert receive(wired.here, 6) == b"passes"
        wired.there.setblocking(False)
        with pytest.raises(BlockingIOError):
            wired.there.recv(1)
        wired.there.settimeout(DEADLINE_S)
        loop.call_and_wait(lambda: conditions.replace([], {}))
        assert receive(wired.there, 4) == b"held"


def test_a_cut_that_lasts_breaks_the_connection(loop: Loop) -> None:
    conditions = LinkConditions()
    with closing(Wired(loop, conditions=conditions, broken_after_s=0.2)) as wired:
        loop.call_and_wait(lambda: conditions.replace([("a", "b")], {}))
        wired.here.sendall(b"held")
        assert wired.there.recv(1) == b""
    assert isinstance(wired.ended[0], TimeoutError)
    assert str(wired.ended[0]) == "nothing has passed from a to b for too long"


def test_delays_keep_the_order_and_losses_lose_nothing(loop: Loop) -> None:
    conditions = LinkConditions()
    worse = {"jitter_ns": 3_000_000, "loss": 0.01, "reorder": 0.5, "duplicate": 0.5, "bandwidth": 0.5}
    data = os.urandom(300_000)
    with closing(Wired(loop, conditions=conditions)) as wired:
        loop.call_and_wait(lambda: conditions.replace([], {"a": worse}))
        assert pass_through(wired.here, wired.there, data) == data


def test_bytes_leave_a_slow_link_one_after_another() -> None:
    conditions = LinkConditions()
    conditions.replace([], {"b": {"bandwidth": 0.001}})
    assert [conditions.arrives_ns("a", "b", 125_000, 0) for _ in range(3)] == [10**8, 2 * 10**8, 3 * 10**8]
    assert conditions.arrives_ns("a", "c", 125_000, 5) == 5
