"""Messages as frames: what goes out when, and what comes back out of it."""

from __future__ import annotations

from typing import Any

import pytest

from dualray.real.net.messages import Post, decode_messages
from dualray.shared.model.events import RefsDropped, TaskPushed
from dualray.shared.model.ids import Address
from tests.shared.builders import oid, task

A, B = Address("node-0/w0"), Address("node-0/w1")
MESSAGE = RefsDropped(object_ids=(oid(1),))


class Wire:
    def __init__(self) -> None:
        self.frames: list[tuple[str, bytes, list[bytes]]] = []
        self.post = Post(lambda to, header, buffers: self.frames.append((to, header, list(buffers))))

    def add(self, to: Address = A, message: Any = MESSAGE, *payloads: tuple[bytes, bytes], urgent: bool = True) -> None:
        self.post.add(to, message, payloads, urgent=urgent)

    def arrived(self) -> list[tuple[str, list[Any]]]:
        """Whom each frame went to, with its messages and their payloads."""
        return [
            (to, [(message, list(payloads)) for message, payloads in decode_messages(memoryview(header), views)])
            for to, header, buffers in self.frames
            for views in [[memoryview(buffer) for buffer in buffers]]
        ]


def test_what_one_step_sends_to_one_peer_goes_in_one_frame() -> None:
    wire = Wire()
    first, second = (TaskPushed(spec=task(number), attempt=0, reply_to=B) for number in (1, 2))
    wire.add(A, first)
    wire.add(B)
    wire.add(A, second)
    assert wire.frames == []
    wire.post.flush()
    assert wire.arrived() == [(A, [(first, []), (second, [])]), (B, [(MESSAGE, [])])]


def test_what_is_not_urgent_waits_for_something_that_is() -> None:
    wire = Wire()
    wire.add(urgent=False)
    wire.post.flush()
    assert wire.frames == []
    assert wire.post.waiting
    wire.add()
    wire.post.flush()
    assert [len(messages) for _, messages in wire.arrived()] == [2]
    assert not wire.post.waiting


def test_enough_of_what_is_not_urgent_goes_at_once() -> None:
    wire = Wire()
    for _ in range(32):
        wire.add(urgent=False)
    wire.post.flush()
    assert [len(messages) for _, messages in wire.arrived()] == [32]


def test_flush_all_leaves_nothing() -> None:
    wire = Wire()
    wire.add(A, urgent=False)
    wire.add(B, urgent=False)
    wire.post.flush_all()
    assert [to for to, _ in wire.arrived()] == [A, B]
    wire.post.flush_all()
    assert len(wire.frames) == 2


def test_payloads_travel_with_their_message_small_ones_in_the_header() -> None:
    wire = Wire()
    small, large = (b"s" * 20, b"small"), (b"l" * 20, b"x" * 50_000)
    wire.add(A, MESSAGE, small, large)
    wire.add(A, MESSAGE, large)
    wire.post.flush()
    ((_, header, buffers),) = wire.frames
    assert [len(buffer) for buffer in buffers] == [50_000, 50_000]
    assert len(header) < 1000
    assert wire.arrived() == [(A, [(MESSAGE, [small, large]), (MESSAGE, [large])])]


def test_a_peer_that_is_gone_is_forgotten() -> None:
    wire = Wire()
    wire.add(A)
    wire.add(B, urgent=False)
    wire.post.forget(A)
    wire.post.forget(B)
    wire.post.flush_all()
    assert wire.frames == []


@pytest.mark.parametrize("header", [b"", b"\xc1", b"\x01", b"\x91\x01", b"\x91\x92\x91\x00\x92\xa1k\xc0"])
def test_a_frame_that_nobody_has_made_is_refused(header: bytes) -> None:
    with pytest.raises(ValueError, match=r"not a msgpack value|cannot be decoded|not an event"):
        decode_messages(memoryview(header), [])
