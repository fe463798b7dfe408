"""The wire format: a message becomes a frame, and frames are cut out of a stream of bytes, without copies.

Theory of operation. A frame is, little-endian: u32 marker, u32 header length, u32 number of buffers, u64 length
of each buffer, header, buffers.

Writing. `encode_frame` gives the pieces of a frame: the prefix, then the caller's own header and buffers, not
copies. Frames of up to 16 KiB are joined, as one copy is cheaper there than a gathered write. A buffer may also be a
`FilePiece`, a range of a file: `write_pieces` has the kernel send its pages, which nobody copies (sendfile).

Reading. A `FrameReader` reads 64 KiB at a time and cuts frames out of what came. The rest of a larger frame is
read straight into a bytearray for each buffer. What is handed on is read-only. A header may be a slice of the
64 KiB that arrived together: keep a copy, not the view. Buffers own their memory. Who knows, from the header of such a
frame, where its buffers belong may say so, before they are read (`Landing`): then they are read to their place.

Both sides hold to the same `FrameLimits`: what the peer would refuse is refused at home. A peer that sends
anything else has broken a rule, and `Refusal` says which.
"""

import dataclasses
import os
import socket
import struct
from collections.abc import Callable, Sequence
from typing import Final

IOV_MAX: Final = min(1024, os.sysconf("SC_IOV_MAX"))
"""Pieces that one system call takes."""

FRAME: Final = struct.Struct("<III")
FRAME_MARKER: Final = 0x46_52_44_01
_CHUNK_BYTES: Final = 65536
_BATCH_BYTES: Final = 1 << 20
"""Memory for a large frame is taken as the frame arrives: whole buffers, until this much is ahead."""
_JOIN_BYTES: Final = 16384
_AFTER_LANDING_BYTES: Final = 128
"""Read next after a frame that had a landing: another one is likely, and what is read with its header is copied."""


class FilePiece:
    """Bytes `offset` to `offset + size` of an open file, to be sent. They stay as they are until they have been."""

    __slots__ = ("fd", "offset", "size")

    def __init__(self, fd: int, offset: int, size: int) -> None:
        self.fd = fd
        self.offset = offset
        self.size = size

    def __len__(self) -> int:
        return self.size

    def after(self, count: int) -> "FilePiece":
        """What is left behind the first `count` bytes."""
        return FilePiece(self.fd, self.offset + count, self.size - count)


class Landing:
    """Where the buffers of a frame belong: one writable view for each, of its size."""

    __slots__ = ("is_dropped", "views")

    def __init__(self, views: list[memoryview]) -> None:
        self.views = views
        self.is_dropped = False

    def drop(self) -> None:
        """Nothing is written there from now on: the frame is handed on without buffers."""
        self.is_dropped = True


Bytes = bytes | bytearray | memoryview
Piece = Bytes | FilePiece
Deliver = Callable[[memoryview, list[memoryview]], None]
Land = Callable[[memoryview, Sequence[int]], Landing | None]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FrameLimits:
    """The bounds of one message.

    Attributes:
        header_bytes_max: of its header.
        frame_bytes_max: of its header and buffers together.
        buffers_max: how many buffers it may have.
    """

    header_bytes_max: int = 256 << 20
    frame_bytes_max: int = 64 << 30
    buffers_max: int = 65536


class Refusal(Exception):
    """The peer broke a rule: the connection is dropped, and the named one of the TransportCounters goes up."""

    def __init__(self, counter: str, message: str) -> None:
        super().__init__(message)
        self.counter = counter


def encode_frame(header: bytes, buffers: Sequence[Piece], limits: FrameLimits) -> tuple[list[Piece], int]:
    """The pieces of one frame, none of them empty, and how many bytes they have; ValueError when it is over a limit, or
    has a FilePiece and is so small that its pieces are joined."""
    header_bytes = len(header)
    if header_bytes > limits.header_bytes_max:
        raise ValueError(
            f"the header of a message has {header_bytes} bytes, but the limit is {limits.header_bytes_max}"
        )
    if not buffers:
        prefix = FRAME.pack(FRAME_MARKER, header_bytes, 0)
        size = FRAME.size + header_bytes
        return ([prefix + header] if size <= _JOIN_BYTES else [prefix, header]), size
    if len(buffers) > limits.buffers_max:
        raise ValueError(f"a message has {len(buffers)} buffers, but the limit is {limits.buffers_max}")
    views = [flat(buffer) for buffer in buffers]
    sizes = [len(view) for view in views]
    body = header_bytes + sum(sizes)
    if body > limits.frame_bytes_max:
        raise ValueError(f"a message has {body} bytes, but the limit is {limits.frame_bytes_max}")
    prefix = FRAME.pack(FRAME_MARKER, header_bytes, len(views)) + struct.pack(f"<{len(views)}Q", *sizes)
    size = len(prefix) + body
    if size <= _JOIN_BYTES:
        if any(isinstance(view, FilePiece) for view in views):
            raise ValueError(
                f"a message that contains part of a file has {size} bytes, but must have more than {_JOIN_BYTES} bytes"
            )
        return [b"".join((prefix, header, *views))], size  # type: ignore[arg-type]  # no FilePiece is left
    return [prefix, *(piece for piece in (header, *views) if len(piece))], size


def flat(buffer: Piece) -> Piece:
    """The buffer as one dimension of bytes, without a copy."""
    if isinstance(buffer, bytes | FilePiece):
        return buffer
    view = memoryview(buffer)
    return view.cast("B") if view.nbytes else b""


def write_pieces(sock: socket.socket, pieces: Sequence[Piece]) -> int:
    """Write the first of these pieces, as far as the socket takes them; how many bytes it took.

    Raises:
        BlockingIOError: it takes none now.
        OSError: the connection, or the file, is broken.
    """
    buffers: list[Bytes] = []
    for piece in pieces:
        if isinstance(piece, FilePiece):
            return _write_file(sock, buffers, piece)
        buffers.append(piece)
    return sock.sendmsg(buffers, (), socket.MSG_NOSIGNAL)


def _write_file(sock: socket.socket, before: list[Bytes], piece: FilePiece) -> int:
    written = 0
    if before:
        written = sock.sendmsg(before, (), socket.MSG_NOSIGNAL | socket.MSG_MORE)
        if written < sum(map(len, before)):
            return written
    try:
        return written + os.sendfile(sock.fileno(), piece.fd, piece.offset, piece.size)
    except BlockingIOError:
        if not written:
            raise
        return written


class FrameReader:
    """Cuts frames out of one connection's byte stream; holds a frame that has come in part.

    Args:
        land: asked, of each large frame with buffers, for the place of these; None for memory of their own.
    """

    __slots__ = ("_carry", "_deliver", "_land", "_landing", "_lengths", "_limits", "_next_bytes", "_parts", "_targets")

    def __init__(self, limits: FrameLimits, deliver: Deliver, land: Land | None = None) -> None:
        self._limits = limits
        self._deliver = deliver
        self._land = land
        self._carry = b""  # the beginning of a small frame, or of a large one's table of lengths
        self._next_bytes = _CHUNK_BYTES
        self._landing: Landing | None = None  # of the large frame that is being read
        self._lengths: list[int] = []  # of a large frame: header and buffers
        self._parts: list[bytearray | memoryview] = []  # those of them that have memory
        self._targets: list[memoryview] = []  # what is still to be filled, in order

    def read(self, sock: socket.socket) -> tuple[int, bool]:
        """One read: how many bytes came (0 at end of file), and whether more may be waiting."""
        if self._targets:
            if self._landing is not None and self._landing.is_dropped and len(self._parts) > 1:
                self._divert()
            targets = self._targets
            if len(targets) == 1:
                wanted = len(targets[0])
                count = sock.recv_into(targets[0])
            else:
                wanted = sum(map(len, targets[:IOV_MAX]))
                count = sock.recvmsg_into(targets[:IOV_MAX])[0]
            if count:
                self._fill(count)
            return count, count == wanted
        asked = self._next_bytes
        chunk = sock.recv(asked)
        self._next_bytes = _CHUNK_BYTES
        if chunk:
            self._parse(self._carry + chunk if self._carry else chunk)
        return len(chunk), len(chunk) == asked or bool(self._targets)

    def _parse(self, data: bytes) -> None:
        view = memoryview(data)
        length, start = len(data), 0
        limits = self._limits
        while length - start >= FRAME.size:
            marker, header_bytes, buffer_count = FRAME.unpack_from(data, start)
            if marker != FRAME_MARKER:
                raise Refusal("bad_frames", f"a frame began with the unknown marker {marker:#x}")
            if header_bytes > limits.header_bytes_max or buffer_count > limits.buffers_max:
                raise Refusal(
                    "oversized_frames",
                    f"a frame has {header_bytes} bytes of header and {buffer_count} buffers, which is too many",
                )
            body = start + FRAME.size
            if buffer_count == 0:
                end = body + header_bytes
                if end <= length:
                    self._deliver(view[body:end], [])
                    start = end
                    continue
                sizes: tuple[int, ...] = ()
            else:
                if length - body < 8 * buffer_count:
                    break
                sizes = struct.unpack_from(f"<{buffer_count}Q", data, body)
                body += 8 * buffer_count
                end = body + header_bytes + sum(sizes)
            if end - body > limits.frame_bytes_max:
                raise Refusal("oversized_frames", f"a frame has {end - body} bytes, which is too many")
            if end <= length:
                position = body + header_bytes
                buffers = []
                for size in sizes:
                    buffers.append(memoryview(bytes(view[position : position + size])))
                    position += size
                self._deliver(view[body : body + header_bytes], buffers)
                start = end
            elif end - start <= _CHUNK_BYTES:
                break
            else:
                self._lengths = [header_bytes, *sizes]
                self._begin_large(view[body:])
                start = length
        self._carry = data[start:]

    def _begin_large(self, arrived: memoryview) -> None:
        header_bytes, *sizes = self._lengths
        if self._land is not None and sizes and header_bytes <= len(arrived):
            self._landing = self._land(arrived[:header_bytes], sizes)
        if self._landing is not None:
            self._parts = [bytearray(header_bytes), *self._landing.views]
            self._targets = [memoryview(part) for part in self._parts if len(part)]
        else:
            self._allocate(len(arrived))
        position = 0
        for target in self._targets:
            piece = arrived[position : position + len(target)]
            target[: len(piece)] = piece
            position += len(piece)
        self._fill(len(arrived))

    def _allocate(self, ahead_bytes: int) -> None:
        """Give memory to the next parts: whole ones, until more than `ahead_bytes` is at hand."""
        room = 0
        while len(self._parts) < len(self._lengths) and room <= ahead_bytes:
            part = bytearray(self._lengths[len(self._parts)])
            self._parts.append(part)
            if part:
                self._targets.append(memoryview(part))
                room += len(part)

    def _divert(self) -> None:
        """The landing was dropped: what is still to come of the frame is read elsewhere, and not handed on."""
        rest = bytearray(sum(map(len, self._targets)))
        self._parts = self._parts[:1]
        self._lengths = self._lengths[:1]
        self._targets = [memoryview(rest)]

    def _fill(self, count: int) -> None:
        """`count` more bytes have been written into the targets."""
        done = 0
        while done < len(self._targets) and count >= len(self._targets[done]):
            count -= len(self._targets[done])
            done += 1
        del self._targets[:done]
        if count:
            self._targets[0] = self._targets[0][count:]
        if not self._targets:
            self._allocate(_BATCH_BYTES)
        if not self._targets:
            self._end_large()

    def _end_large(self) -> None:
        header, *buffers = [memoryview(part).toreadonly() for part in self._parts]
        if self._landing is not None:
            self._next_bytes = _AFTER_LANDING_BYTES
            if self._landing.is_dropped:
                buffers = []
            self._landing = None
        self._lengths, self._parts = [], []
        self._deliver(header, buffers)
