"""The layout of a pickled value in memory, and how it is read.

All integers are little-endian: u32 number of buffers; u64 length of the pickle; u64 length of each buffer; the pickle;
each buffer at the next multiple of 64 bytes. A value that is read from a store has its buffers there: numpy arrays,
bytes and Arrow tables are made over them without a copy, read-only.

Plain values that travel with a message (numbers, texts, the arguments of most calls) are marshalled in place of being
pickled, in less than half of the instructions: four bytes that no number of buffers has, and what marshal writes.
Whoever reads it runs the Python that wrote it; functions ask for that anyway.
"""

from __future__ import annotations

import marshal
import pickle
import struct
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from dualray.shared.model.specs import Ref

SMALL_TYPES = frozenset({int, float, bool, type(None)})
"""Types of values that never need a place of their own."""

PLAIN_TYPES = SMALL_TYPES | {str, bytes}
"""Types of values that cannot be changed, and refer to nothing."""

ALIGNMENT = 64
"""Bytes; buffers start at multiples of this, as numpy and Arrow like it."""

_LARGE_BYTES = 1024 * 1024
"""Buffers from this size on are copied without holding the interpreter: that takes 0.2 ms."""

_NO_BUFFERS = struct.Struct("<IQ")
"""All that goes before the pickle of a value without buffers."""
NO_BUFFERS_BEFORE = bytes(4)
MARSHALLED_BEFORE = b"\xff\xff\xff\xff"
MARSHALLED_START = len(MARSHALLED_BEFORE)
_MARSHAL_VERSION = 2
"""Later ones write whether a value is held elsewhere too: equal values would have different bytes."""
_dumps: Final = marshal.dumps
_loads: Final = marshal.loads
_SMALL_BYTES = 1024
"""Values below this are copied once more, which takes less time than a view of them."""


_ALIGNED_BYTES = 16 * 1024
"""Values from this size on that came with a message are copied to where their arrays are aligned: that takes 2 us."""


def copy_bytes(target: memoryview, source: memoryview) -> None:
    """Copy the bytes of something large; numpy lets other threads run meanwhile."""
    np.copyto(np.frombuffer(target, np.uint8), np.frombuffer(source, np.uint8))


class Serialized:
    """A value that has been pickled and not been laid out yet."""

    __slots__ = ("buffers", "pickled", "refs", "size_bytes")

    def __init__(self, pickled: bytes, buffers: Sequence[memoryview], refs: tuple[Ref, ...]) -> None:
        self.pickled = pickled
        self.buffers = buffers
        self.refs = refs
        self.size_bytes = self.written_bytes() if buffers else 12 + len(pickled)

    def written_bytes(self) -> int:
        """Return the number of bytes that `write_into` writes. A `Sized` value has more `size_bytes` than that."""
        end = 12 + 8 * len(self.buffers) + len(self.pickled)
        for buffer in self.buffers:
            end = _aligned(end) + buffer.nbytes
        return end

    def write_into(self, target: memoryview, copy: Callable[[memoryview, memoryview], None] = copy_bytes) -> None:
        """Lay the value out in `target`, which has `size_bytes` bytes; `copy` copies what is large."""
        count = len(self.buffers)
        lengths = [buffer.nbytes for buffer in self.buffers]
        struct.pack_into(f"<IQ{count}Q", target, 0, count, len(self.pickled), *lengths)
        end = 12 + 8 * count
        target[end : end + len(self.pickled)] = self.pickled
        end += len(self.pickled)
        for buffer in self.buffers:
            start = _aligned(end)
            end = start + buffer.nbytes
            if buffer.nbytes < _LARGE_BYTES:
                target[start:end] = buffer
            else:
                copy(target[start:end], buffer)

    def to_bytes(self) -> bytes:
        """The value laid out in memory of its own."""
        if not self.buffers:
            return _NO_BUFFERS.pack(0, len(self.pickled)) + self.pickled
        target = bytearray(self.size_bytes)
        self.write_into(memoryview(target))
        return bytes(target)


def _aligned(offset: int) -> int:
    return (offset + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT


def plain_bytes(value: Any) -> bytes:
    """What is known to be made of plain values alone, to be read with `deserialize`."""
    return MARSHALLED_BEFORE + _dumps(value, _MARSHAL_VERSION)


class Unpickling:
    """How pickles are read. A simulation, in which many processes are one, looks at what they name."""

    __slots__ = ("loads",)

    def __init__(self) -> None:
        self.loads: Callable[..., Any] = pickle.loads


UNPICKLING: Final = Unpickling()


def deserialize(data: bytes | memoryview) -> Any:
    """The value that was laid out in `data`; its buffers stay there."""
    if type(data) is bytes:
        if data[MARSHALLED_START - 1] == MARSHALLED_BEFORE[-1]:  # so many buffers there are never
            return _loads(data[MARSHALLED_START:])
        if data.startswith(NO_BUFFERS_BEFORE):
            if len(data) < _SMALL_BYTES:
                return UNPICKLING.loads(data[12:])
        elif len(data) >= _ALIGNED_BYTES:
            return _laid_out(_aligned_copy(data))
    return _laid_out(memoryview(data).toreadonly())


def _aligned_copy(data: bytes) -> memoryview:
    """The bytes at a multiple of 64 in memory, read-only."""
    room = np.empty(len(data) + ALIGNMENT, np.uint8)
    start = -room.__array_interface__["data"][0] % ALIGNMENT
    view = room.data[start : start + len(data)]
    view[:] = data
    return view.toreadonly()


def deserialize_own(data: bytes) -> Any:
    """As `deserialize`, over memory of its own: arrays can be written, and nobody else sees that. For functions and
    classes, whose workers have each what they refer to."""
    return _laid_out(memoryview(bytearray(data)))


def _laid_out(view: memoryview) -> Any:
    if view[:MARSHALLED_START] == MARSHALLED_BEFORE:
        return _loads(view[MARSHALLED_START:])
    count, pickled_bytes = _NO_BUFFERS.unpack_from(view)
    if count == 0:
        return UNPICKLING.loads(view[12 : 12 + pickled_bytes])
    lengths = struct.unpack_from(f"<{count}Q", view, 12)
    end = 12 + 8 * count
    pickled = view[end : end + pickled_bytes]
    end += pickled_bytes
    buffers = []
    for length in lengths:
        start = _aligned(end)
        end = start + length
        buffers.append(view[start:end])
    if count == 1 and pickled_bytes < _SMALL_BYTES:
        form = array_forms.get(bytes(pickled))
        if form is not None:
            return np.frombuffer(buffers[0], form[0]).reshape(form[1])
    return UNPICKLING.loads(pickled, buffers=buffers)


array_forms: Final[dict[bytes, tuple[np.dtype[Any], tuple[int, ...]]]] = {}
"""Types and shapes of arrays of numbers, in C's order and with at least one of them, by what is pickled of them beside
their bytes: of those that this process has pickled of late. Unpickling them takes twice as long."""


def deserialize_all(data: Sequence[bytes]) -> list[Any]:
    """`deserialize` of each of many, most of them small."""
    loads, before, start = _loads, MARSHALLED_BEFORE, MARSHALLED_START
    return [loads(each[start:]) if each.startswith(before) else deserialize(each) for each in data]
