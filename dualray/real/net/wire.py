"""A wire joins two connections, on a loop and with bounded memory: what comes from one goes to the other.

Theory of operation. A wire is what stands between a process and another machine where bytes must not pass as they are:
where they are encrypted (cluster/tls.py), where they go to Redis, which takes no descriptors, and where faults are
performed. It reads as much as its buffer has room for, and writes as much as the other side takes. An end of file, or
an error, of one side is passed on behind all that came before it, and ends the wire; `on_end` hears why.

An end may be encrypted: an SSLSocket that does not block and has shaken hands. Bytes that it has decrypted already are
not seen by the selector, so whoever gets room for more reads at once.

Under faults each direction is a lane of its own (`Lane`): pieces get the time at which they arrive, and wait for it, in
order. What is held by a cut waits for its end; when that takes as long as the kernel would try, the wire breaks.
"""

from __future__ import annotations

import collections
import socket
import ssl
import struct
from collections.abc import Callable
from functools import partial
from typing import Final

from dualray.real.net.conditions import LinkConditions
from dualray.real.net.frames import FRAME, FRAME_MARKER
from dualray.real.net.handshake import HANDSHAKE_BYTES
from dualray.real.net.loop import Loop, Timer

BUFFER_BYTES: Final = 1 << 18
"""Of each direction: beyond it, the sender has to wait."""
_HELD_BYTES_MAX: Final = 4 << 20
"""Of each direction while faults delay it: what is on a slow way is not at its end."""
_SHAPED_BYTES: Final = 1 << 14
"""Read at a time where a link is impaired: each piece has its own delay."""
_READS_PER_TURN: Final = 8

Socket = socket.socket


class Lane:
    """One direction of a wire under faults: from node `src` to node `dst`.

    Args:
        has_frames: what passes are messages of dualray, so that one can be dropped whole.
        broken_after_s: what a cut has held for so long breaks the connection.
    """

    def __init__(
        self, conditions: LinkConditions, src: str, dst: str, *, has_frames: bool, broken_after_s: float
    ) -> None:
        self.conditions = conditions
        self.src = src
        self.dst = dst
        self.broken_after_ns = round(broken_after_s * 1e9)
        self._cutter = FrameCutter() if has_frames else None

    @property
    def is_parted(self) -> bool:
        return self.conditions.is_parted(self.src, self.dst)

    def pieces(self, data: bytes) -> bytes:
        """What of these bytes is sent: all but dropped messages."""
        if self._cutter is None:
            return data
        return self._cutter.keep(data, lambda: self.conditions.drops(self.src, self.dst))

    def arrives_ns(self, size_bytes: int, now_ns: int) -> int:
        """When so many bytes arrive that are sent now."""
        return self.conditions.arrives_ns(self.src, self.dst, size_bytes, now_ns)


class FrameCutter:
    """Follows the frames of one direction of a connection from its beginning, so that some can be left out."""

    def __init__(self) -> None:
        self._skip = HANDSHAKE_BYTES
        """Bytes of the handshake, or of the frame in hand, that are still to come."""
        self._is_dropped = False
        self._head = b""

    def keep(self, data: bytes, is_to_drop: Callable[[], bool]) -> bytes:
        """These bytes without the frames for which `is_to_drop` says so when they begin."""
        kept, position = [], 0
        while position < len(data):
            if self._skip:
                piece = data[position : position + self._skip]
                self._skip -= len(piece)
                position += len(piece)
                if not self._is_dropped:
                    kept.append(piece)
                continue
            self._head += data[position : (position := position + self._missing())]
            if not self._missing():
                self._begin(is_to_drop())
                if not self._is_dropped:
                    kept.append(self._head)
                self._head = b""
        return b"".join(kept)

    def _missing(self) -> int:
        """Bytes of the frame's prefix that have not come."""
        have = len(self._head)
        if have < FRAME.size:
            return FRAME.size - have
        count: int = FRAME.unpack_from(self._head)[2]
        return FRAME.size + 8 * count - have

    def _begin(self, is_dropped: bool) -> None:
        marker, header_bytes, count = FRAME.unpack_from(self._head)
        if marker != FRAME_MARKER:  # the receiving end says so
            self._skip, self._is_dropped = 1 << 62, False
            return
        self._skip = header_bytes + sum(struct.unpack_from(f"<{count}Q", self._head, FRAME.size))
        self._is_dropped = is_dropped


class _Way:
    """One direction of a wire."""

    __slots__ = ("buffer", "buffered", "held", "held_since_ns", "is_over", "lane", "source", "target", "timer")

    def __init__(self, source: Socket, target: Socket, lane: Lane | None) -> None:
        self.source = source
        self.target = target
        self.lane = lane
        self.buffer: collections.deque[bytes | memoryview] = collections.deque()
        """What is to be written now."""
        self.held: collections.deque[tuple[int, bytes]] = collections.deque()
        """What arrives later, and when."""
        self.buffered = 0
        """Bytes of both."""
        self.held_since_ns = 0
        self.is_over = False
        """The source has ended."""
        self.timer: Timer | None = None

    @property
    def room(self) -> int:
        """How many bytes may be read now."""
        if not self.held:
            room = BUFFER_BYTES - self.buffered
        else:
            room = _HELD_BYTES_MAX - self.buffered
        return min(room, _SHAPED_BYTES) if self.lane is not None and self.lane.conditions.is_shaped else room


class Wire:
    """See the module's theory of operation. Everything on the loop's thread.

    Args:
        inside: the connection of a process of this machine.
        outside: that to another machine, which may be encrypted.
        on_end: called once, with the wire and what ended it; None: one side has closed in good order.
        lanes: of what goes out and of what comes in, under faults.
    """

    def __init__(
        self,
        loop: Loop,
        inside: Socket,
        outside: Socket,
        on_end: Callable[[Wire, Exception | None], object],
        lanes: tuple[Lane, Lane] | None = None,
    ) -> None:
        self._loop = loop
        self._on_end = on_end
        self._lanes = lanes
        self._sockets = (inside, outside)
        out, into = lanes or (None, None)
        self._ways = (_Way(inside, outside, out), _Way(outside, inside, into))
        self._ended = False
        self._error: Exception | None = None
        for sock in self._sockets:
            sock.setblocking(False)
        if lanes is not None:
            lanes[0].conditions.listen(self._on_change)
        for way in self._ways:
            self._want(way)
        self._loop.call_soon(partial(self._read, self._ways[1]))  # what came with the end of the TLS handshake

    # ---- Reading ---------------------------------------------------------------------------------------------

    def _want(self, way: _Way) -> None:
        self._loop.add_reader(way.source.fileno(), partial(self._read, way))

    def _read(self, way: _Way) -> None:
        """Take in what there is room for, and pass it on."""
        if self._ended or way.is_over:
            return
        for _ in range(_READS_PER_TURN):
            room = way.room
            if room <= 0:
                self._loop.remove_reader(way.source.fileno())
                return
            try:
                data = _receive(way.source, room)
            except (BlockingIOError, ssl.SSLWantReadError):
                return
            except ssl.SSLWantWriteError:
                self._loop.add_writer(way.source.fileno(), partial(self._write, self._other(way)))
                return
            except OSError as error:
                self._finish(way, error)
                return
            if not data:
                self._finish(way, None)
                return
            if not self._take(way, data):
                return
        if isinstance(way.source, ssl.SSLSocket) and way.source.pending():
            self._loop.call_soon(partial(self._read, way))

    def _other(self, way: _Way) -> _Way:
        return self._ways[1] if way is self._ways[0] else self._ways[0]

    def _take(self, way: _Way, data: bytes) -> bool:
        """Pass on what has come, now or later; whether the wire goes on."""
        if way.lane is not None:
            size, data = len(data), way.lane.pieces(data)
            now_ns = self._loop.now_ns()
            arrives_ns = way.lane.arrives_ns(size, now_ns)
            if way.held:
                arrives_ns = max(arrives_ns, way.held[-1][0])
            if data and (way.held or arrives_ns > now_ns or way.lane.is_parted):
                way.held.append((arrives_ns, data))
                way.buffered += len(data)
                self._release(way)
                return not self._ended
        if data:
            way.buffer.append(data)
            way.buffered += len(data)
            self._write(way)
        return not self._ended

    def _finish(self, way: _Way, error: Exception | None) -> None:
        """The source has ended: so does the wire, when all that it had sent is passed on."""
        self._loop.remove_reader(way.source.fileno())
        way.is_over = True
        self._error = self._error or error
        if way.buffered or (way.lane is not None and way.lane.is_parted):
            self._release(way)
            return
        self.end()

    # ---- Holding ---------------------------------------------------------------------------------------------

    def _release(self, way: _Way) -> None:
        """Pass on what has arrived."""
        if self._ended or way.lane is None:
            return
        if way.timer is not None:
            way.timer.cancel()
            way.timer = None
        now_ns = self._loop.now_ns()
        if way.lane.is_parted:
            way.held_since_ns = way.held_since_ns or now_ns
            left_ns = way.held_since_ns + way.lane.broken_after_ns - now_ns
            if left_ns <= 0:
                self._error = TimeoutError(f"nothing has passed from {way.lane.src} to {way.lane.dst} for too long")
                self.end()
                return
            way.timer = self._loop.call_later(left_ns / 1e9, partial(self._release, way))
            return
        way.held_since_ns = 0
        while way.held and way.held[0][0] <= now_ns:
            way.buffer.append(way.held.popleft()[1])
        if way.held:
            way.timer = self._loop.call_later((way.held[0][0] - now_ns) / 1e9, partial(self._release, way))
        self._write(way)

    def _on_change(self) -> None:
        """The conditions have changed."""
        for way in self._ways:
            if way.held or way.is_over:
                self._release(way)

    # ---- Writing ---------------------------------------------------------------------------------------------

    def _write(self, way: _Way) -> None:
        """Write what waits, as far as the target takes it."""
        if self._ended:
            return
        had_room = way.room > 0
        try:
            while way.buffer:
                first = way.buffer[0]
                written = way.target.send(first)
                way.buffered -= written
                if written == len(first):
                    way.buffer.popleft()
                else:
                    way.buffer[0] = memoryview(first)[written:]
        except (BlockingIOError, ssl.SSLWantWriteError):
            self._loop.add_writer(way.target.fileno(), partial(self._write, way))
        except ssl.SSLWantReadError:  # it reads a message of TLS itself first
            self._loop.call_soon(partial(self._read, self._other(way)))
        except OSError as error:
            self._error = self._error or error
            self.end()
            return
        if not way.buffer:
            self._loop.remove_writer(way.target.fileno())
            if way.is_over and not way.held and not (way.lane is not None and way.lane.is_parted):
                self.end()
                return
        if not had_room and way.room > 0 and not way.is_over:
            self._want(way)
            self._loop.call_soon(partial(self._read, way))

    def end(self) -> None:
        """Close both."""
        if self._ended:
            return
        self._ended = True
        if self._lanes is not None:
            self._lanes[0].conditions.leave(self._on_change)
        for way in self._ways:
            if way.timer is not None:
                way.timer.cancel()
        for sock in self._sockets:
            self._loop.remove_reader(sock.fileno())
            self._loop.remove_writer(sock.fileno())
            sock.close()
        self._on_end(self, self._error)


def _receive(source: Socket, room: int) -> bytes:
    """What has come, up to `room` bytes. One read of an encrypted connection gives 16 KiB at most: several are joined.

    Raises:
        BlockingIOError, ssl.SSLWantReadError: nothing has come.
        OSError: the connection is broken.
    """
    data = source.recv(room)
    if not isinstance(source, ssl.SSLSocket) or not data or len(data) == room:
        return data
    pieces, size = [data], len(data)
    while size < room:
        try:
            data = source.recv(room - size)
        except OSError:  # nothing more has come; what is wrong shows again with the next read
            break
        if not data:
            break
        pieces.append(data)
        size += len(data)
    return b"".join(pieces)
