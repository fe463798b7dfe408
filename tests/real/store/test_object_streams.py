"""Objects on their way: frames that land in their place, and streams between stores, through real sockets."""

from __future__ import annotations

import os
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import numpy as np
import pytest

from dualray.real.net.addresses import node_of_objects, objects_address
from dualray.real.net.frames import FilePiece, FrameLimits, FrameReader, Landing, Piece, encode_frame, write_pieces
from dualray.real.net.loop import Loop
from dualray.real.net.transport import Transport
from dualray.real.store.node_store import NodeStore
from dualray.real.store.object_streams import _HEADER, BROKEN, CHUNK, ENDED, REFUSED, TAKEN, ObjectStreams
from dualray.shared.model.commands import ReceiveObject, SendObject
from dualray.shared.model.config import Config
from dualray.shared.model.events import Event, ObjectReceived, ObjectSent, ReceiveFailed
from dualray.shared.model.ids import NodeID, ObjectID

DEADLINE_S = 30.0
PIECE = 128 * 1024
SIZE = 10 * PIECE + 777
X, Y = ObjectID(b"x" * 20), ObjectID(b"y" * 20)
CONTENT = np.random.default_rng(1).integers(0, 256, SIZE, np.uint8).tobytes()


# ---- Frames --------------------------------------------------------------------------------------------------------


class Reading:
    """A frame reader at one end of a socket pair."""

    def __init__(self, land: Callable[[memoryview, object], Landing | None] | None = None) -> None:
        self.ours, self.theirs = socket.socketpair()
        self.theirs.setblocking(False)
        self.delivered: list[tuple[bytes, list[bytes]]] = []
        self.reader = FrameReader(FrameLimits(), self._deliver, land)

    def _deliver(self, header: memoryview, buffers: list[memoryview]) -> None:
        self.delivered.append((bytes(header), [bytes(buffer) for buffer in buffers]))

    def read_all(self) -> None:
        try:
            while self.reader.read(self.theirs)[0]:
                pass
        except BlockingIOError:
            return

    def send(self, data: bytes) -> None:
        """Write, and read meanwhile what does not fit."""
        view = memoryview(data)
        self.ours.setblocking(False)
        while view:
            try:
                view = view[self.ours.send(view) :]
            except BlockingIOError:
                self.read_all()
        self.read_all()

    def close(self) -> None:
        self.ours.close()
        self.theirs.close()


def framed(header: bytes, *buffers: bytes) -> bytes:
    return b"".join(bytes(piece) for piece in encode_frame(header, buffers, FrameLimits())[0])  # type: ignore[arg-type]


@pytest.mark.parametrize("step", [1 << 20, 70_001])
def test_a_buffer_is_read_to_its_place_and_the_next_frames_follow(step: int) -> None:
    place = bytearray(3 * PIECE)
    landed: list[bytes] = []

    def land(header: memoryview, sizes: object) -> Landing | None:
        landed.append(bytes(header))
        return Landing([memoryview(place)[PIECE : 2 * PIECE]]) if bytes(header) == b"here" else None

    reading = Reading(land)
    data = framed(b"here", CONTENT[:PIECE]) + framed(b"small", b"1") + framed(b"other", CONTENT[PIECE : 2 * PIECE])
    data += framed(b"here", CONTENT[:PIECE]) + framed(b"")
    for start in range(0, len(data), step):
        reading.send(data[start : start + step])
    assert landed == [b"here", b"other", b"here"]
    assert [header for header, _ in reading.delivered] == [b"here", b"small", b"other", b"here", b""]
    assert reading.delivered[2][1] == [CONTENT[PIECE : 2 * PIECE]]
    assert bytes(place) == bytes(PIECE) + CONTENT[:PIECE] + bytes(PIECE)
    reading.close()


@pytest.mark.parametrize("arrived", [1, 100, 70_000, PIECE - 1, PIECE])
def test_nothing_is_written_to_a_place_that_was_dropped(arrived: int) -> None:
    place = bytearray(PIECE)
    landing = Landing([memoryview(place)])
    reading = Reading(lambda header, sizes: landing if bytes(header) == b"here" else None)
    frame = framed(b"here", CONTENT[:PIECE])
    start = len(frame) - PIECE + arrived
    reading.send(frame[: start - 1])
    landing.drop()
    place[:] = bytes(PIECE)
    reading.send(frame[start - 1 :] + framed(b"next", b"2"))
    assert bytes(place) == bytes(PIECE)
    assert reading.delivered == [(b"here", []), (b"next", [b"2"])]
    reading.close()


@pytest.fixture
def file() -> Iterator[IO[bytes]]:
    with tempfile.TemporaryFile(dir="/dev/shm") as opened:
        opened.write(CONTENT)
        opened.flush()
        yield opened


def test_a_piece_of_a_file_is_sent_as_it_lies_there(file: IO[bytes]) -> None:
    reading = Reading()
    reading.ours.setblocking(False)
    buffers: list[Piece] = [b"before", FilePiece(file.fileno(), 5, SIZE - 5), b"after"]
    pieces, size = encode_frame(b"header", buffers, FrameLimits())
    written = 0
    while pieces:
        try:
            count = write_pieces(reading.ours, pieces)
        except BlockingIOError:
            reading.read_all()
            continue
        written += count
        while pieces and count >= len(pieces[0]):
            count -= len(pieces.pop(0))
        if count:
            first = pieces[0]
            pieces[0] = first.after(count) if isinstance(first, FilePiece) else memoryview(first)[count:]
    reading.read_all()
    assert written == size
    assert reading.delivered == [(b"header", [b"before", CONTENT[5:], b"after"])]
    reading.close()


def test_a_piece_of_a_file_that_would_be_joined_is_refused(file: IO[bytes]) -> None:
    with pytest.raises(ValueError, match="contains part of a file"):
        encode_frame(b"header", [FilePiece(file.fileno(), 0, 100)], FrameLimits())


# ---- Streams -------------------------------------------------------------------------------------------------------


class Host:
    """A node manager's transport, store and streams, without its machine: events are kept."""

    def __init__(self, name: str, directory: Path) -> None:
        self.name = NodeID(name)
        self.events: list[Event] = []
        self.raw: list[tuple[int, int, int]] = []
        """Kind, stream and position of what came, for a host without streams."""
        self.errors: list[Exception] = []
        self.loop = Loop(self.errors.append)
        self.transport = Transport(
            self.loop,
            address=objects_address(name),
            socket_dir=directory / "sockets",
            secret=b"a secret of the cluster",
            on_message=self._on_message,
            on_peer_lost=self._on_peer_lost,
        )
        self.store = NodeStore(
            directory / name,
            capacity=8 * SIZE,
            size_min=1024,
            objects_max=100,
            warm_bytes=0,
            idle_s=10.0,
            call_soon=self.loop.call_soon,
        )
        self.has_streams = not name.startswith("src")
        self.streams = ObjectStreams(
            transport=self.transport,
            store=self.store,
            config=Config(transfer_chunk_bytes=PIECE, transfer_chunks_ahead=4),
            handle=self.events.append,
            on_received=lambda *_: None,
        )
        self.thread = threading.Thread(target=self.loop.run, name=f"loop of {name}")
        self.thread.start()

    def _on_message(self, peer: str, header: memoryview, buffers: list[memoryview]) -> None:
        if self.has_streams:
            self.streams.on_message(peer, header, buffers)
        else:
            kind, _, stream, position, _ = _HEADER.unpack(header)
            self.raw.append((kind, stream, position))

    def _on_peer_lost(self, peer: str) -> None:
        self.streams.drop(node_of_objects(peer))

    def do(self, act: Callable[[], object]) -> None:
        self.loop.call_and_wait(act)

    def reserve(self, object_id: ObjectID, size: int = SIZE) -> None:
        done: list[str | None] = []
        self.do(lambda: self.store.reserve(object_id, size, done.append))
        wait_for(lambda: done, "there is memory")
        assert done == [None]

    def fill(self, object_id: ObjectID, content: bytes = CONTENT) -> None:
        self.reserve(object_id, len(content))
        self.do(lambda: self.store.write(object_id, content))

    def receive(self, source: Host, offset: int = 0, object_id: ObjectID = X) -> None:
        command = ReceiveObject(object_id=object_id, size_bytes=SIZE, source=source.name, offset=offset)
        self.do(lambda: self.streams.receive(command))

    def send(self, to: Host, offset: int = 0) -> None:
        self.do(lambda: self.streams.send(SendObject(object_id=X, size_bytes=SIZE, to=to.name, offset=offset)))

    def send_pieces(self, to: Host, stream: int, first: int, end: int, content: bytes = CONTENT) -> None:
        """By hand, as a sender would."""
        for index in range(first, end):
            start = index * PIECE
            header = _HEADER.pack(CHUNK, X, stream, start, SIZE)
            self.transport.send(objects_address(to.name), header, [content[start : start + PIECE]])

    def content(self, object_id: ObjectID = X) -> bytes:
        return bytes(self.store.open(object_id))

    def heard(self, kind: type[Event]) -> list[Event]:
        return [event for event in self.events if isinstance(event, kind)]

    def close(self) -> None:
        self.transport.close()
        self.loop.stop()
        self.thread.join(DEADLINE_S)
        self.store.destroy()
        self.loop.close()
        assert self.errors == []


def wait_for(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"gave up waiting until {what}"
        time.sleep(0.001)


@pytest.fixture
def host() -> Iterator[Callable[[str], Host]]:
    hosts: list[Host] = []
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix=f"drstreams{os.getpid()}") as directory:

        def start(name: str) -> Host:
            hosts.append(Host(name, Path(directory)))
            return hosts[-1]

        yield start
        for started in hosts:
            started.close()


Start = Callable[[str], Host]


def test_an_object_goes_from_store_to_store(host: Start) -> None:
    a, b = host("node-0"), host("node-1")
    a.fill(X)
    b.reserve(X)
    b.receive(a)
    a.send(b)
    wait_for(lambda: a.heard(ObjectSent), "it has been sent")
    assert a.events == [ObjectSent(object_id=X, to=b.name, complete=True)]
    assert b.events == [ObjectReceived(object_id=X, source=a.name)]
    assert b.content() == CONTENT


def test_what_has_come_is_passed_on_before_the_rest_is_here(host: Start) -> None:
    source, b, c, d = host("src"), host("node-1"), host("node-2"), host("node-3")
    for each, upstream in ((b, source), (c, b), (d, c)):
        each.reserve(X)
        each.receive(upstream)
    b.send(c)
    c.send(d)
    source.send_pieces(b, 1, 0, 3)
    wait_for(lambda: d.streams.bytes_received == 3 * PIECE, "the last has what the first has")
    assert not b.events
    source.send_pieces(b, 1, 3, 11)
    wait_for(lambda: d.heard(ObjectReceived) and b.heard(ObjectSent) and c.heard(ObjectSent), "all have it")
    assert b.content() == c.content() == d.content() == CONTENT


def test_a_pull_that_is_given_up_tells_those_whom_it_serves_what_is_good(host: Start) -> None:
    source, b, c = host("src"), host("node-1"), host("node-2")
    b.reserve(X)
    b.receive(source)
    c.reserve(X)
    c.receive(b)
    b.send(c)
    source.send_pieces(b, 1, 0, 3)
    wait_for(lambda: b.streams.bytes_received == 3 * PIECE, "a part is here")
    b.do(lambda: b.streams.delete(X))
    b.fill(Y, bytes(SIZE))  # which would lie in the same place
    wait_for(lambda: c.events, "it hears of the end")
    [failed] = c.events
    assert isinstance(failed, ReceiveFailed)
    assert failed.received_bytes == 3 * PIECE
    a = host("node-0")
    a.fill(X)
    c.receive(a, failed.received_bytes)
    a.send(c, failed.received_bytes)
    wait_for(lambda: c.heard(ObjectReceived), "the rest is there")
    assert c.content() == CONTENT
    wait_for(lambda: not b.streams._held, "the place is free again")
    assert not b.heard(ObjectSent), "the machine has forgotten to whom it was sent"


def test_the_place_of_a_pull_that_was_given_up_is_free_when_its_receiver_has_heard_of_it_or_died(host: Start) -> None:
    source, b, other = host("src"), host("node-1"), host("src2")
    b.reserve(X)
    b.receive(source)
    b.send(other)
    source.send_pieces(b, 1, 0, 2)
    wait_for(lambda: [kind for kind, _, _ in other.raw] == [CHUNK, CHUNK], "a part has been passed on")
    b.do(lambda: b.streams.delete(X))
    wait_for(lambda: other.raw[-1][0] == BROKEN, "it hears of the end")
    assert b.store._ranges.used_bytes > 0
    other.transport.send(objects_address(b.name), _HEADER.pack(ENDED, X, other.raw[-1][1], 0, 0))
    wait_for(lambda: b.store._ranges.used_bytes == 0, "the place is free again")
    b.reserve(X)
    b.receive(source)
    b.send(other)
    b.do(lambda: b.streams.delete(X))
    assert b.store._ranges.used_bytes > 0
    other.transport.close()
    wait_for(lambda: b.store._ranges.used_bytes == 0, "the place is free again")


def test_what_comes_of_a_stream_that_was_given_up_is_refused(host: Start) -> None:
    source, b = host("src"), host("node-1")
    b.reserve(X)
    b.receive(source)
    source.send_pieces(b, 7, 0, 2)
    wait_for(lambda: b.streams.bytes_received == 2 * PIECE, "a part is here")
    b.receive(source, 2 * PIECE)  # it is asked again, from there on
    source.send_pieces(b, 7, 2, 3, bytes(SIZE))
    wait_for(lambda: (REFUSED, 7, 0) in source.raw, "the old stream is refused")
    source.send_pieces(b, 8, 2, 11)
    wait_for(lambda: b.heard(ObjectReceived), "the new one is taken")
    assert b.content() == CONTENT
    wait_for(lambda: (TAKEN, 8, SIZE) in source.raw, "its source hears so")


def test_a_piece_out_of_order_ends_the_pull_from_there(host: Start) -> None:
    source, b = host("src"), host("node-1")
    b.reserve(X)
    b.receive(source)
    source.send_pieces(b, 1, 0, 1)
    source.send_pieces(b, 1, 2, 3)
    wait_for(lambda: b.events, "it is given up")
    assert b.events == [ReceiveFailed(object_id=X, source=source.name, received_bytes=PIECE)]


def test_a_landing_is_dropped_with_its_object_and_with_its_source(host: Start) -> None:
    source, b = host("src"), host("node-1")
    header = memoryview(_HEADER.pack(CHUNK, X, 1, 0, SIZE))
    landings: list[Landing | None] = []

    def land() -> None:
        landings.append(b.streams.land("src", header, [PIECE]))

    b.reserve(X)
    b.receive(source)
    b.do(land)
    b.receive(source)
    b.do(land)
    b.do(lambda: b.streams.delete(X))
    b.do(land)
    assert [landing.is_dropped if landing is not None else None for landing in landings] == [True, True, None]


def test_a_receiver_goes_on_at_another_source_when_the_connection_breaks(host: Start) -> None:
    source, a, b = host("src"), host("node-0"), host("node-1")
    a.fill(X)
    b.reserve(X)
    b.receive(source)
    source.send_pieces(b, 1, 0, 4)
    wait_for(lambda: b.streams.bytes_received == 4 * PIECE, "a part is here")
    source.transport.close()
    wait_for(lambda: b.events, "the loss is noticed")
    assert b.events == [ReceiveFailed(object_id=X, source=source.name, received_bytes=4 * PIECE)]
    b.receive(a, 4 * PIECE)
    a.send(b, 4 * PIECE)
    wait_for(lambda: b.heard(ObjectReceived), "the rest has come")
    assert b.content() == CONTENT
    assert a.streams.bytes_sent == SIZE - 4 * PIECE
