"""Machines' messages as frames: what one step sends to one peer goes in one frame, and in one system call.

Wire form. A frame's header is msgpack: a list of messages, each as [message, payloads], where `payloads` is a flat list
of key, bytes, key, bytes... Payloads over `_INLINE_BYTES` are not copied into the header: they are None there, and
follow as the frame's buffers, in order.

When it goes out. A message that its machine calls urgent goes with everything that waits for the same peer when the
step that sent it ends. Others wait for company: until there are `_BATCH_MAX` of them, something urgent follows, or
`flush_all`, which a process calls before it waits and at the latest at the next turn of its loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from dualray.shared.model.codec import decode, encode, pack, unpack
from dualray.shared.model.events import Event
from dualray.shared.model.ids import Address

Payload = tuple[bytes, bytes]

_INLINE_BYTES = 4096
_BATCH_MAX = 32


class _Batch:
    """What waits for one peer."""

    __slots__ = ("buffers", "is_due", "messages", "to")

    def __init__(self, to: Address) -> None:
        self.to = to
        self.messages: list[Any] = []
        self.buffers: list[bytes] = []
        self.is_due = False


class Post:
    """The outgoing messages of one process; see the module. Its users hold the process's lock.

    Args:
        send: of a transport.
    """

    def __init__(self, send: Callable[[str, bytes, Sequence[bytes]], None]) -> None:
        self._send = send
        self._batches: dict[Address, _Batch] = {}
        self._due: list[_Batch] = []
        self.waiting: dict[Address, _Batch] = {}
        """With messages that wait for others."""

    def add(self, to: Address, message: Event, payloads: Iterable[Payload], *, urgent: bool) -> None:
        """Queue one message for a peer."""
        batch = self._batches.get(to)
        if batch is None:
            batch = self._batches[to] = _Batch(to)
        messages = batch.messages
        messages.append((encode(message), _keyed(payloads, batch.buffers) if payloads else ()))
        if batch.is_due:
            return
        if urgent or len(messages) >= _BATCH_MAX:
            batch.is_due = True
            self._due.append(batch)
        elif len(messages) == 1:
            self.waiting[to] = batch

    def flush(self) -> None:
        """Send what is due."""
        due = self._due
        if due:
            self._due = []
            for batch in due:
                self._send_batch(batch)

    def flush_all(self) -> None:
        """Send everything."""
        self.flush()
        if self.waiting:
            for batch in list(self.waiting.values()):
                self._send_batch(batch)

    def forget(self, to: Address) -> None:
        """The peer is gone."""
        self.waiting.pop(to, None)
        batch = self._batches.pop(to, None)
        if batch is not None and batch.is_due:
            self._due.remove(batch)

    def _send_batch(self, batch: _Batch) -> None:
        messages, buffers = batch.messages, batch.buffers
        batch.messages, batch.buffers, batch.is_due = [], [], False
        self.waiting.pop(batch.to, None)
        self._send(batch.to, pack(messages), buffers)


def _keyed(payloads: Iterable[Payload], buffers: list[bytes]) -> list[bytes | None]:
    keyed: list[bytes | None] = []
    for key, data in payloads:
        if len(data) <= _INLINE_BYTES:
            keyed += (key, data)
        else:
            keyed += (key, None)
            buffers.append(data)
    return keyed


def encode_with_buffer(message: Event, key: bytes) -> bytes:
    """The header of a frame with one message, whose one payload follows as the frame's buffer."""
    return pack([(encode(message), (key, None))])


def decode_messages(header: memoryview, buffers: Sequence[memoryview]) -> list[tuple[Event, Sequence[Payload]]]:
    """The messages of a frame, each with the payloads that came with it.

    Raises:
        ValueError: the frame is not of our making.
    """
    following = iter(buffers)
    decoded: list[tuple[Event, Sequence[Payload]]] = []
    try:
        for fields, keyed in unpack(header):
            if not keyed:
                decoded.append((decode(fields), ()))
            elif len(keyed) == 2 and keyed[1] is not None:
                decoded.append((decode(fields), (keyed,)))
            else:
                pairs = zip(keyed[::2], keyed[1::2], strict=True)
                payloads = [(key, bytes(next(following)) if data is None else data) for key, data in pairs]
                decoded.append((decode(fields), payloads))
    except (TypeError, StopIteration) as error:
        raise ValueError(f"a frame of {len(header)} bytes cannot be decoded: {error!r}") from error
    return decoded
