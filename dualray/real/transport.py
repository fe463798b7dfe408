"""Messages between the processes of one machine: Unix stream sockets, authenticated, ordered, without copies.

Theory of operation. Each process listens on `socket_dir / quote(address)`. Between two processes there is one
connection, made on first use by whoever sends first and then used in both directions. A message is a header
and any number of buffers; messages from one process to another arrive once each, in the order of the `send`
calls, until the peer is lost. A loss is final: what waited is dropped and counted, `on_peer_lost` is called
once, and later messages to this address are dropped, until it connects to us anew or the owner says `forget`.

Sending. `send` may be called from any thread and never waits. Under the peer's lock it writes what the socket
takes at once, and queues the rest (the caller's own buffers, not copies) for the loop to flush. Frames of up
to 16 KiB are joined, as one copy is cheaper there than a gathered write.

Receiving. The loop reads 64 KiB at a time and cuts frames out of what came. The rest of a larger frame is
read straight into a bytearray for each buffer. What is handed on is read-only. A header may be a slice of the
64 KiB that arrived together: keep a copy, not the view. Buffers own their memory.

Handshake, before any frame is parsed; all reads have fixed sizes and the whole has a deadline:

    both      -> magic, protocol version, nonce
    initiator -> HMAC-SHA256(secret, "initiator" + nonces + hello), hello = verdict 0, instance, address
    acceptor  -> HMAC-SHA256(secret, "acceptor" + nonces + hello), hello = verdict, instance, address

The kernel's word on the peer's uid is checked first. The acceptor's verdict decides between two connections
made at once: the one begun by the lower address stays, and as no frame is sent before the verdict, nothing is
lost or reordered. An instance is 16 random bytes a process draws: a new process under an old address first
ends the old one.

    verdict    from the acceptor when                              the initiator then
    ACCEPT     nothing else connects the two                       uses it
    DUPLICATE  they are connected, or the acceptor's own attempt   waits for the other connection, and
               has the right of way                                tries again until connect_timeout_s
    REFUSED    the proof is wrong (this verdict proves nothing)    gives the peer up

Frame, little-endian: u32 marker, u32 header length, u32 number of buffers, u64 length of each buffer, header,
buffers.

A peer without the secret, of another version, with a bad or oversized frame, too slow in the handshake or of
another uid is dropped, counted in `counters` and logged; the process goes on.
"""

import collections
import contextlib
import dataclasses
import errno
import hmac
import itertools
import logging
import os
import re
import socket
import stat
import struct
import threading
import urllib.parse
from collections.abc import Callable, Generator, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from dualray.exceptions import AuthenticationError
from dualray.real.loop import Loop, Timer

PROTOCOL_VERSION: Final = 1

_log = logging.getLogger(__name__)

_MAGIC: Final = b"dualray\n"
_PREAMBLE: Final = struct.Struct("<8sI")
_NONCE_BYTES: Final = 32
_PROOF_BYTES: Final = 32
_HELLO: Final = struct.Struct("<B16s112s")
_ACCEPT, _DUPLICATE, _REFUSED = 0, 1, 2

_FRAME: Final = struct.Struct("<III")
_FRAME_MARKER: Final = 0x46_52_44_01
_CHUNK_BYTES: Final = 65536
_BATCH_BYTES: Final = 1 << 20
"""Memory for a large frame is taken as the frame arrives: whole buffers, until this much is ahead."""
_JOIN_BYTES: Final = 16384
_IOV_MAX: Final = min(1024, os.sysconf("SC_IOV_MAX"))
_READS_PER_TURN: Final = 64
_ACCEPTS_PER_TURN: Final = 64
_DRAIN_TURNS_MAX: Final = 256
_SOCKET_BUFFER_BYTES: Final = 1 << 20
_PATH_BYTES_MAX: Final = 100
_RETRY_FIRST_S, _RETRY_LAST_S = 0.001, 0.05

_ADDRESS = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]{0,95}")

Bytes = bytes | bytearray | memoryview
Deliver = Callable[[memoryview, list[memoryview]], None]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TransportLimits:
    """The bounds of one process's transport.

    Attributes:
        connect_timeout_s: how long the socket of a peer may be missing before the peer counts as lost.
        handshake_timeout_s: how long one handshake may take.
        handshakes_max: connections in handshake at a time; further ones wait in the listen queue.
        header_bytes_max: of one message.
        frame_bytes_max: header and buffers of one message together.
        buffers_max: buffers of one message.
        queue_bytes_max: bytes that may already wait for a peer when another message is sent to it; a peer
            that lets more pile up is lost.
        lost_peers_max: addresses remembered as lost; the oldest is forgotten first.
    """

    connect_timeout_s: float = 10.0
    handshake_timeout_s: float = 5.0
    handshakes_max: int = 256
    header_bytes_max: int = 256 << 20
    frame_bytes_max: int = 64 << 30
    buffers_max: int = 65536
    queue_bytes_max: int = 8 << 30
    lost_peers_max: int = 65536


@dataclasses.dataclass(slots=True)
class TransportCounters:
    """What happened so far. Refusals count connections; `messages_*` count messages."""

    messages_received: int = 0
    messages_dropped: int = 0
    peers_lost: int = 0
    foreign_uids: int = 0
    bad_preambles: int = 0
    version_mismatches: int = 0
    wrong_secrets: int = 0
    bad_hellos: int = 0
    handshake_timeouts: int = 0
    bad_frames: int = 0
    oversized_frames: int = 0
    queue_overflows: int = 0


class _Refusal(Exception):
    """The peer broke a rule: the connection is dropped, and the named counter goes up."""

    def __init__(self, counter: str, message: str) -> None:
        super().__init__(message)
        self.counter = counter


def socket_path(socket_dir: Path, address: str) -> Path:
    """Where the process called `address` listens; ValueError when address or path are not legal."""
    if not _ADDRESS.fullmatch(address):
        raise ValueError(f"{address!r} is not an address: 1 to 96 of A-Z a-z 0-9 . _ - / : @")
    path = socket_dir / urllib.parse.quote(address, safe="")
    if (length := len(os.fsencode(path))) > _PATH_BYTES_MAX:
        raise ValueError(
            f"the socket path {path} has {length} bytes and the system allows {_PATH_BYTES_MAX}: "
            f"choose a shorter directory than {socket_dir}"
        )
    return path


class _FrameReader:
    """Cuts frames out of one connection's byte stream; holds a frame that has come in part."""

    __slots__ = ("_carry", "_deliver", "_lengths", "_limits", "_parts", "_targets")

    def __init__(self, limits: TransportLimits, deliver: Deliver) -> None:
        self._limits = limits
        self._deliver = deliver
        self._carry = b""  # the beginning of a small frame, or of a large one's table of lengths
        self._lengths: list[int] = []  # of a large frame: header and buffers
        self._parts: list[bytearray] = []  # those of them that have memory
        self._targets: list[memoryview] = []  # what is still to be filled, in order

    def read(self, sock: socket.socket) -> tuple[int, bool]:
        """One read: how many bytes came (0 at end of file), and whether more may be waiting."""
        if self._targets:
            count = sock.recvmsg_into(self._targets[:_IOV_MAX])[0]
            if count:
                self._fill(count)
            return count, True
        chunk = sock.recv(_CHUNK_BYTES)
        if chunk:
            self._parse(self._carry + chunk if self._carry else chunk)
        return len(chunk), len(chunk) == _CHUNK_BYTES or bool(self._targets)

    def _parse(self, data: bytes) -> None:
        view = memoryview(data)
        length, start = len(data), 0
        limits = self._limits
        while length - start >= _FRAME.size:
            marker, header_bytes, buffer_count = _FRAME.unpack_from(data, start)
            if marker != _FRAME_MARKER:
                raise _Refusal("bad_frames", f"a frame began with {marker:#x}")
            if header_bytes > limits.header_bytes_max or buffer_count > limits.buffers_max:
                raise _Refusal("oversized_frames", f"a header of {header_bytes}, {buffer_count} buffers")
            body = start + _FRAME.size
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
                raise _Refusal("oversized_frames", f"a frame announced {end - body} bytes")
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
            header, *buffers = [memoryview(part).toreadonly() for part in self._parts]
            self._lengths, self._parts = [], []
            self._deliver(header, buffers)


class _Connection:
    """One socket: in handshake while `handshake` is set, then established."""

    __slots__ = ("closed", "deadline", "expected", "fd", "got", "handshake", "reader", "sock", "want")

    def __init__(self, sock: socket.socket, expected: str) -> None:
        self.sock = sock
        self.fd = sock.fileno()
        self.expected = expected  # whom we connect to; "" of a connection that we accepted
        self.handshake: Generator[int, bytes, None] | None = None
        self.want = 0
        self.got = bytearray()
        self.deadline: Timer | None = None
        self.reader: _FrameReader | None = None
        self.closed = False


class _Peer:
    """What we know of one address, from its first use until it is lost. `lock` guards the fields below it."""

    __slots__ = (
        "address", "attempt", "connection", "deadline_ns", "instance", "lock", "lost", "queue",
        "queued_bytes", "retry", "retry_s", "writer_armed",
    )  # fmt: skip

    def __init__(self, address: str, deadline_ns: int) -> None:
        self.address = address
        self.deadline_ns = deadline_ns
        self.instance = b""
        self.attempt: _Connection | None = None  # ours, in handshake
        self.retry: Timer | None = None
        self.retry_s = _RETRY_FIRST_S
        self.lock = threading.Lock()
        self.lost = False
        self.connection: _Connection | None = None  # established
        self.queue: collections.deque[Bytes] = collections.deque()  # pieces; an empty one ends each frame
        self.queued_bytes = 0
        self.writer_armed = False

    def take_off(self, written: int) -> None:
        """The kernel has taken `written` more bytes of the queue."""
        self.queued_bytes -= written
        queue = self.queue
        while queue and written >= len(queue[0]):
            written -= len(queue.popleft())
        if written:
            queue[0] = memoryview(queue[0])[written:]


class Transport:
    """See the module's theory of operation. Callbacks come on the loop's thread.

    Args:
        loop: carries the I/O; the owner runs it and stops it after `close`.
        address: this process's own name, such as `head`, `node-0`, `node-0/w3`, `driver-1`.
        socket_dir: made with mode 0700 when missing; refused with PermissionError when others can enter it.
        secret: the cluster's secret.
        on_message: called with (peer, header, buffers); the views are read-only.
        on_peer_lost: called once for each loss of a peer.
    Raises:
        OSError: EADDRINUSE when a live process has this address.
    """

    def __init__(
        self,
        loop: Loop,
        *,
        address: str,
        socket_dir: Path,
        secret: bytes,
        on_message: Callable[[str, memoryview, list[memoryview]], None],
        on_peer_lost: Callable[[str], None],
        limits: TransportLimits | None = None,
    ) -> None:
        if not secret:
            raise ValueError("the cluster's secret is empty")
        self.address = address
        self.counters = TransportCounters()
        self._loop = loop
        self._socket_dir = socket_dir
        self._secret = secret
        self._on_message = on_message
        self._on_peer_lost = on_peer_lost
        self._limits = limits or TransportLimits()
        self._instance = os.urandom(16)
        self._lock = threading.Lock()  # guards _peers and _lost; held alone, never with a peer's own lock
        self._drained = threading.Condition(self._lock)
        self._peers: dict[str, _Peer] = {}
        self._lost: dict[str, Exception] = {}
        self._connections: set[_Connection] = set()
        self._handshake_count = 0
        self._accepting = False
        self._closed = False
        self._path = socket_path(socket_dir, address)
        self._listener = _listen(self._path)
        self._inode = self._path.stat().st_ino
        if not loop.call_soon(self._resume_accepting):
            self.close()
            raise RuntimeError("the loop has ended")

    # -- from any thread -------------------------------------------------------------------------------------

    def send(self, to: str, header: bytes, buffers: Sequence[bytes | memoryview] = ()) -> None:
        """Send one message; never waits. The buffers must be C-contiguous and stay as they are until written.

        Not for finalizers: it takes a lock that the interrupted code may hold.
        """
        frame, size = self._encode(header, buffers)
        peer = self._peers.get(to)
        if peer is None and (peer := self._first_use(to, header, buffers)) is None:
            return
        with peer.lock:
            if peer.lost:
                self.counters.messages_dropped += 1
            elif peer.connection is not None and not peer.queue:
                self._write(peer, peer.connection, frame, size)
            else:
                self._enqueue(peer, frame, size, 0)

    def flush(self, timeout_s: float) -> bool:
        """Wait until the kernel has every byte for every peer that is not lost; False after `timeout_s`."""
        assert not self._loop.in_loop_thread(), "flush waits for the loop"
        with self._drained:
            return self._drained.wait_for(lambda: not any(p.queue for p in self._peers.values()), timeout_s)

    def why_lost(self, peer: str) -> Exception | None:
        """What ended a lost peer (AuthenticationError, OSError, ...); None when it is not lost."""
        return self._lost.get(peer)

    def forget(self, peer: str) -> None:
        """Let a lost peer be connected to again."""
        with self._lock:
            self._lost.pop(peer, None)

    def close(self) -> None:
        """Close every socket and remove ours from the directory; queued bytes are dropped. Idempotent."""
        self._loop.call_and_wait(self._close)

    # -- sending ---------------------------------------------------------------------------------------------

    def _encode(self, header: bytes, buffers: Sequence[Bytes]) -> tuple[list[Bytes], int]:
        """The pieces of one frame, none of them empty, and how many bytes they have."""
        limits = self._limits
        header_bytes = len(header)
        if header_bytes > limits.header_bytes_max:
            raise ValueError(f"a header of {header_bytes} bytes: the limit is {limits.header_bytes_max}")
        if not buffers:
            prefix = _FRAME.pack(_FRAME_MARKER, header_bytes, 0)
            size = _FRAME.size + header_bytes
            return ([prefix + header] if size <= _JOIN_BYTES else [prefix, header]), size
        if len(buffers) > limits.buffers_max:
            raise ValueError(f"{len(buffers)} buffers: the limit is {limits.buffers_max}")
        views = [_flat(buffer) for buffer in buffers]
        sizes = [len(view) for view in views]
        body = header_bytes + sum(sizes)
        if body > limits.frame_bytes_max:
            raise ValueError(f"a message of {body} bytes: the limit is {limits.frame_bytes_max}")
        prefix = _FRAME.pack(_FRAME_MARKER, header_bytes, len(views)) + struct.pack(f"<{len(views)}Q", *sizes)
        size = len(prefix) + body
        if size <= _JOIN_BYTES:
            return [b"".join((prefix, header, *views))], size
        return [prefix, *(piece for piece in (header, *views) if len(piece))], size

    def _first_use(self, to: str, header: bytes, buffers: Sequence[Bytes]) -> _Peer | None:
        """The peer's new record, its connection under way; None when the message needs none."""
        if to == self.address:
            views = [memoryview(_flat(buffer)).toreadonly() for buffer in buffers]
            self._loop.call_soon(partial(self._deliver, to, memoryview(header), views))
            return None
        socket_path(self._socket_dir, to)
        with self._lock:
            if self._closed or to in self._lost:
                self.counters.messages_dropped += 1
                return None
            peer = self._peers.get(to)
            if peer is None:
                deadline_ns = self._loop.now_ns() + int(self._limits.connect_timeout_s * 1e9)
                peer = self._peers[to] = _Peer(to, deadline_ns)
                self._loop.call_soon(partial(self._connect, peer))
            return peer

    def _write(self, peer: _Peer, connection: _Connection, frame: list[Bytes], size: int) -> None:
        """Write a frame at once, as far as the socket takes it (under the lock, with an empty queue)."""
        try:
            if len(frame) == 1:
                written = connection.sock.send(frame[0], socket.MSG_NOSIGNAL)
            else:
                written = connection.sock.sendmsg(frame[:_IOV_MAX], (), socket.MSG_NOSIGNAL)
        except BlockingIOError:
            written = 0
        except OSError as error:
            self.counters.messages_dropped += 1
            self._loop.call_soon(partial(self._end, peer, connection, error))
            return
        if written < size:
            self._enqueue(peer, frame, size, written)

    def _enqueue(self, peer: _Peer, frame: list[Bytes], size: int, written: int) -> None:
        """Leave a frame of which `written` bytes are gone to the loop (under the peer's lock)."""
        if peer.queued_bytes > self._limits.queue_bytes_max:
            self.counters.messages_dropped += 1
            self._loop.call_soon(partial(self._overflow, peer))
            return
        peer.queue.extend(frame)
        peer.queue.append(b"")
        peer.queued_bytes += size
        if written:
            peer.take_off(written)
        if peer.connection is not None and not peer.writer_armed:
            peer.writer_armed = True
            self._loop.call_soon(partial(self._arm_writer, peer, peer.connection))

    def _arm_writer(self, peer: _Peer, connection: _Connection) -> None:
        if not connection.closed:
            self._loop.add_writer(connection.fd, partial(self._flush_queue, peer, connection))

    def _flush_queue(self, peer: _Peer, connection: _Connection) -> None:
        """The loop: write queued frames until the socket is full or the queue empty."""
        with peer.lock:
            try:
                while peer.queue:
                    pieces = list(itertools.islice(peer.queue, _IOV_MAX))
                    peer.take_off(connection.sock.sendmsg(pieces, (), socket.MSG_NOSIGNAL))
            except BlockingIOError:
                return
            except OSError as error:
                self._loop.call_soon(partial(self._end, peer, connection, error))
            self._loop.remove_writer(connection.fd)
            peer.writer_armed = False
        with self._drained:
            self._drained.notify_all()

    def _overflow(self, peer: _Peer) -> None:
        if not peer.lost:
            error = BufferError(f"{peer.queued_bytes} bytes wait for {peer.address}")
            self._count("queue_overflows", peer.address, error)
            self._lose(peer, error)

    # -- connecting and accepting (all below: the loop's thread) ---------------------------------------------

    def _connect(self, peer: _Peer) -> None:
        """Begin our own connection to a peer, unless there is one or it cannot be."""
        peer.retry = None
        if peer.lost or peer.connection is not None or peer.attempt is not None:
            return
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            sock.connect(os.fspath(socket_path(self._socket_dir, peer.address)))
        except (FileNotFoundError, BlockingIOError) as error:  # not there yet; its listen queue is full
            sock.close()
            self._try_again(peer, error)
        except OSError as error:  # ECONNREFUSED: a socket without a process, as sockets appear listening
            sock.close()
            self._lose(peer, error)
        else:
            self._begin_handshake(sock, peer)

    def _try_again(self, peer: _Peer, error: Exception) -> None:
        if peer.lost or peer.connection is not None:
            return
        if self._loop.now_ns() >= peer.deadline_ns:
            self._lose(peer, error)
            return
        peer.retry = self._loop.call_later(peer.retry_s, partial(self._connect, peer))
        peer.retry_s = min(2 * peer.retry_s, _RETRY_LAST_S)

    def _resume_accepting(self) -> None:
        if not (self._accepting or self._closed):
            self._accepting = True
            self._loop.add_reader(self._listener.fileno(), self._accept)

    def _pause_accepting(self) -> None:
        self._accepting = False
        self._loop.remove_reader(self._listener.fileno())

    def _accept(self) -> None:
        for _ in range(_ACCEPTS_PER_TURN):
            if self._handshake_count >= self._limits.handshakes_max:
                self._pause_accepting()  # until one of them ends
                return
            try:
                sock, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:  # no descriptor or memory left: the queue keeps them a moment
                _log.error("%s cannot accept connections: %s", self.address, error)
                self._pause_accepting()
                self._loop.call_later(0.1, self._resume_accepting)
                return
            self._begin_handshake(sock, None)

    # -- the handshake ---------------------------------------------------------------------------------------

    def _begin_handshake(self, sock: socket.socket, peer: _Peer | None) -> None:
        """Start the handshake on a connection to `peer`, or, with None, on one that we accepted."""
        sock.setblocking(False)
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BUFFER_BYTES)
        connection = _Connection(sock, peer.address if peer is not None else "")
        if peer is not None:
            peer.attempt = connection
        self._connections.add(connection)
        self._handshake_count += 1
        late = partial(self._handshake_late, connection)
        connection.deadline = self._loop.call_later(self._limits.handshake_timeout_s, late)
        connection.handshake = self._handshake(connection)
        self._loop.add_reader(connection.fd, partial(self._advance, connection))
        self._advance(connection)

    def _advance(self, connection: _Connection) -> None:
        """Give the handshake the bytes it waits for, once all of them are here."""
        assert connection.handshake is not None
        try:
            if connection.want == 0:
                connection.want = next(connection.handshake)
                return
            data = connection.sock.recv(connection.want - len(connection.got))
            if not data:
                raise ConnectionResetError("the peer closed the connection during the handshake")
            connection.got += data
            if len(connection.got) == connection.want:
                data = bytes(connection.got)
                connection.got.clear()
                connection.want = connection.handshake.send(data)
        except (StopIteration, BlockingIOError):
            return
        except _Refusal as refusal:
            who = connection.expected or "a connection"
            self._count(refusal.counter, who, refusal)
            self._give_up(connection, AuthenticationError(f"{who}: {refusal}"), final=True)
        except OSError as error:
            self._give_up(connection, error, final=False)

    def _handshake(self, connection: _Connection) -> Generator[int, bytes, None]:
        """The protocol itself: yields how many bytes it needs next. What it sends fits any fresh socket."""
        sock = connection.sock
        uid = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1]
        if uid != os.getuid():
            raise _Refusal("foreign_uids", f"its uid is {uid}, ours {os.getuid()}")
        nonce = os.urandom(_NONCE_BYTES)
        sock.send(_PREAMBLE.pack(_MAGIC, PROTOCOL_VERSION) + nonce)
        magic, version = _PREAMBLE.unpack((yield _PREAMBLE.size))
        if magic != _MAGIC:
            raise _Refusal("bad_preambles", f"it began with {magic!r} and not with {_MAGIC!r}")
        if version != PROTOCOL_VERSION:
            ours = f"this process speaks version {PROTOCOL_VERSION} of dualray's protocol"
            raise _Refusal("version_mismatches", f"{ours}, the peer version {version}")
        their_nonce = yield _NONCE_BYTES
        if connection.expected:
            nonces = nonce + their_nonce
            sock.send(self._hello(b"initiator", nonces, _ACCEPT))
            data = yield _PROOF_BYTES + _HELLO.size
            verdict, instance, address = self._check_hello(b"acceptor", nonces, data)
            if address != connection.expected:
                raise _Refusal("bad_hellos", f"{address} answers at its socket")
        else:
            nonces = their_nonce + nonce
            data = yield _PROOF_BYTES + _HELLO.size
            try:
                _, instance, address = self._check_hello(b"initiator", nonces, data)
            except _Refusal:
                sock.send(bytes(_PROOF_BYTES) + _HELLO.pack(_REFUSED, b"", b""))
                raise
            verdict = self._judge(address, instance)
            sock.send(self._hello(b"acceptor", nonces, verdict))
        if verdict == _ACCEPT:
            self._establish(connection, address, instance)
        else:
            self._give_up(connection, ConnectionError("another connection goes first"), final=False)

    def _hello(self, role: bytes, nonces: bytes, verdict: int) -> bytes:
        hello = _HELLO.pack(verdict, self._instance, self.address.encode())
        return hmac.digest(self._secret, role + nonces + hello, "sha256") + hello

    def _check_hello(self, role: bytes, nonces: bytes, data: bytes) -> tuple[int, bytes, str]:
        """The peer's verdict, instance and address, once it has proved the secret."""
        proof, hello = data[:_PROOF_BYTES], data[_PROOF_BYTES:]
        verdict, instance, padded = _HELLO.unpack(hello)
        if not hmac.compare_digest(proof, hmac.digest(self._secret, role + nonces + hello, "sha256")):
            story = "it refused our proof" if verdict == _REFUSED else "its proof is wrong"
            raise _Refusal("wrong_secrets", f"{story}: the two do not share the cluster's secret")
        address = padded.rstrip(b"\0").decode("ascii", "replace")
        if not _ADDRESS.fullmatch(address) or address == self.address:
            raise _Refusal("bad_hellos", f"it calls itself {address!r}")
        return verdict, instance, address

    def _judge(self, address: str, instance: bytes) -> int:
        """Whether to use a connection that `address` made, or the one there is or will be."""
        peer = self._peers.get(address)
        if peer is not None and peer.connection is not None:
            self._drain(peer, peer.connection)  # its end may be waiting there
            if not peer.lost:
                if peer.instance == instance:
                    return _DUPLICATE
                self._lose(peer, ConnectionResetError("a new process has taken the address"))
            peer = self._peers.get(address)
        if peer is not None and peer.attempt is not None and self.address < address:
            return _DUPLICATE
        return _ACCEPT

    def _establish(self, connection: _Connection, address: str, instance: bytes) -> None:
        self._end_handshake(connection)
        connection.reader = _FrameReader(self._limits, partial(self._deliver, address))
        with self._lock:
            self._lost.pop(address, None)
            peer = self._peers.get(address)
            if peer is None:
                peer = self._peers[address] = _Peer(address, 0)
        if peer.attempt is not None and peer.attempt is not connection:
            self._close_connection(peer.attempt)
        peer.attempt = None
        if peer.retry is not None:
            peer.retry.cancel()
        self._loop.add_reader(connection.fd, partial(self._read, peer, connection))
        with peer.lock:
            peer.instance = instance
            peer.connection = connection
            peer.writer_armed = bool(peer.queue)
        if peer.writer_armed:
            self._arm_writer(peer, connection)

    def _handshake_late(self, connection: _Connection) -> None:
        error = TimeoutError(f"the handshake took more than {self._limits.handshake_timeout_s} s")
        self._count("handshake_timeouts", connection.expected or "a connection", error)
        self._give_up(connection, error, final=False)

    def _give_up(self, connection: _Connection, error: Exception, *, final: bool) -> None:
        """Drop a connection in handshake; if we made it, lose the peer or try again."""
        self._close_connection(connection)
        peer = self._peers.get(connection.expected)
        if peer is None or peer.attempt is not connection:
            return
        peer.attempt = None
        if final:
            self._lose(peer, error)
        else:
            self._try_again(peer, error)

    def _end_handshake(self, connection: _Connection) -> None:
        if connection.handshake is not None and connection.deadline is not None:
            connection.handshake = None
            connection.deadline.cancel()
            self._handshake_count -= 1
            self._resume_accepting()

    # -- established connections -----------------------------------------------------------------------------

    def _read(self, peer: _Peer, connection: _Connection) -> bool:
        """Take in what has come, to a bound; whether there may be more."""
        assert connection.reader is not None
        try:
            for _ in range(_READS_PER_TURN):
                if connection.closed:
                    return False
                count, more = connection.reader.read(connection.sock)
                if count == 0:
                    raise ConnectionResetError(f"{peer.address} closed its connection")
                if not more:
                    return False
        except BlockingIOError:
            return False
        except _Refusal as refusal:
            self._count(refusal.counter, peer.address, refusal)
            self._lose(peer, ConnectionError(str(refusal)))
        except (OSError, MemoryError) as error:
            self._lose(peer, error)
        return not connection.closed

    def _drain(self, peer: _Peer, connection: _Connection) -> None:
        """Take in what a connection that is about to end still holds, to a bound."""
        for _ in range(_DRAIN_TURNS_MAX):
            if not self._read(peer, connection):
                return

    def _end(self, peer: _Peer, connection: _Connection, error: Exception) -> None:
        """A write failed: what the peer sent before is still heard."""
        self._drain(peer, connection)
        if not connection.closed:
            self._lose(peer, error)

    def _deliver(self, peer: str, header: memoryview, buffers: list[memoryview]) -> None:
        if self._closed:
            return
        self.counters.messages_received += 1
        try:
            self._on_message(peer, header, buffers)
        except Exception as error:  # noqa: BLE001 - every one of them goes to the owner
            self._loop.report(error)

    def _lose(self, peer: _Peer, error: Exception) -> None:
        """The one place where a peer is lost."""
        with self._lock:
            if self._peers.get(peer.address) is not peer:
                return
            del self._peers[peer.address]
            self._lost[peer.address] = error
            if len(self._lost) > self._limits.lost_peers_max:
                del self._lost[next(iter(self._lost))]
        self._let_go(peer)
        self.counters.peers_lost += 1
        _log.info("%s lost %s: %s", self.address, peer.address, error)
        try:
            self._on_peer_lost(peer.address)
        except Exception as failure:  # noqa: BLE001 - every one of them goes to the owner
            self._loop.report(failure)

    def _let_go(self, peer: _Peer) -> None:
        with peer.lock:
            peer.lost = True
            self.counters.messages_dropped += sum(1 for piece in peer.queue if not len(piece))
            peer.queue.clear()
            for connection in (peer.connection, peer.attempt):
                if connection is not None:
                    self._close_connection(connection)
            if peer.retry is not None:
                peer.retry.cancel()
        with self._drained:
            self._drained.notify_all()

    def _close_connection(self, connection: _Connection) -> None:
        if connection.closed:
            return
        connection.closed = True
        self._loop.remove_reader(connection.fd)
        self._loop.remove_writer(connection.fd)
        connection.sock.close()
        self._connections.discard(connection)
        self._end_handshake(connection)

    def _close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
            peers = list(self._peers.values())
            self._peers.clear()
        for peer in peers:
            self._let_go(peer)
        for connection in list(self._connections):
            self._close_connection(connection)
        if self._accepting:
            self._pause_accepting()
        self._listener.close()
        with contextlib.suppress(FileNotFoundError):
            if self._path.stat().st_ino == self._inode:  # a successor may have taken the address
                self._path.unlink()

    def _count(self, counter: str, who: str, reason: Exception) -> None:
        setattr(self.counters, counter, getattr(self.counters, counter) + 1)
        _log.warning("%s dropped %s: %s", self.address, who, reason)


def _flat(buffer: Bytes) -> Bytes:
    """The buffer as one dimension of bytes, without a copy."""
    if isinstance(buffer, bytes):
        return buffer
    view = memoryview(buffer)
    return view.cast("B") if view.nbytes else b""


def _listen(path: Path) -> socket.socket:
    """A listening socket that appears at `path` ready for use, in place of one that a dead process left."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = path.parent.stat()
    if status.st_uid != os.getuid() or stat.S_IMODE(status.st_mode) & 0o077:
        raise PermissionError(f"{path.parent} must belong to uid {os.getuid()} alone (mode 0700)")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        with contextlib.suppress(FileNotFoundError, ConnectionRefusedError):
            probe.connect(os.fspath(path))
            raise OSError(errno.EADDRINUSE, f"a live process already listens at {path}")
    hidden = path.parent / f".{os.urandom(2).hex()}"
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        listener.bind(os.fspath(hidden))
        hidden.chmod(0o600)
        listener.listen(socket.SOMAXCONN)
        hidden.rename(path)
    except BaseException:
        listener.close()
        hidden.unlink(missing_ok=True)
        raise
    return listener
