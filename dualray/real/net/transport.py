"""Messages between the processes of one machine: Unix stream sockets, authenticated, ordered, without copies.

Theory of operation. Each process listens at the socket of its address (`addresses.py`). Between two processes
there is one connection, made on first use by whoever sends first and then used in both directions. A message is
a header and any number of buffers; messages from one process to another arrive once each, in the order of the
`send` calls, until the peer is lost. A loss is final: what waited is dropped and counted, `on_peer_lost` is
called once, and later messages to this address are dropped, until it connects to us anew or the owner says
`forget`.

Sending. `send` may be called from any thread and never waits. Under the peer's lock (`peers.py`) it writes what
the socket takes at once, and queues the rest (the caller's own buffers, not copies) for the loop to flush.

Receiving. The loop reads what has come, to a bound for each turn, and cuts it into messages (`frames.py`, which
also says what the views that are handed on may be kept for).

Connecting. A connection begins with a handshake (`handshake.py`), which has a deadline; while `handshakes_max`
are under way, none is accepted. Of two connections made at once the one begun by the lower address stays. A peer
that cannot be reached yet is tried again with growing pauses until `connect_timeout_s`.

A peer without the secret, of another version, with a bad or oversized frame, too slow in the handshake or of
another uid is dropped, counted in `counters` and logged; the process goes on.
"""

import contextlib
import dataclasses
import itertools
import logging
import os
import socket
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from dualray.exceptions import AuthenticationError
from dualray.real.limits import limit_in_words
from dualray.real.net.addresses import listen, socket_path
from dualray.real.net.frames import (
    IOV_MAX,
    FrameLimits,
    FrameReader,
    Landing,
    Piece,
    Refusal,
    encode_frame,
    flat,
    write_pieces,
)
from dualray.real.net.handshake import ACCEPT, DUPLICATE, HandedOver, Handshake, Identity, PeerGone, PeerStarved
from dualray.real.net.loop import Loop
from dualray.real.net.peers import RETRY_LAST_S, Connection, Peer
from dualray.shared.model.ids import Address, is_driver

_log = logging.getLogger(__name__)

_READS_PER_TURN: Final = 64
_STARVED_S: Final = 8.0
_ACCEPTS_PER_TURN: Final = 64
_DRAIN_TURNS_MAX: Final = 256
_SOCKET_BUFFER_BYTES: Final = 1 << 20


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TransportLimits(FrameLimits):
    """The bounds of one process's transport; those of one message are FrameLimits.

    Attributes:
        connect_timeout_s: how long the socket of a peer may be missing before the peer counts as lost.
        handshake_timeout_s: how long one handshake may take.
        handshakes_max: connections in handshake at a time; further ones wait in the listen queue.
        queue_bytes_max: bytes that may already wait for a peer when another message is sent to it; a peer
            that lets more pile up is lost.
        lost_peers_max: addresses remembered as lost; the oldest is forgotten first.
    """

    connect_timeout_s: float = 10.0
    handshake_timeout_s: float = 5.0
    handshakes_max: int = 256
    queue_bytes_max: int = 8 << 30
    lost_peers_max: int = 65536


@dataclasses.dataclass(slots=True)
class TransportCounters:
    """Counts of events so far. Refusals count connections; `messages_*` count messages."""

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


class Transport:
    """See the module's theory of operation. Callbacks come on the loop's thread.

    Args:
        loop: carries the I/O; the owner runs it and stops it after `close`.
        address: this process's own name, such as `head`, `node-0`, `node-0/w3`, `driver-1`.
        socket_dir: made with mode 0700 when missing; refused with PermissionError when others can enter it.
        secret: the cluster's secret.
        on_message: called with (peer, header, buffers); the views are read-only.
        on_peer_lost: called once for each loss of a peer.
        gateway_for: the Unix socket of the gateway through which an address on another machine is reached; None for
            one that listens in `socket_dir`.
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
        gateway_for: Callable[[str], Path | None] = lambda _: None,
    ) -> None:
        if not secret:
            raise ValueError("the cluster's secret is empty")
        self.address = address
        self.counters = TransportCounters()
        self._loop = loop
        self._socket_dir = socket_dir
        self._identity = Identity(address=address, instance=os.urandom(16), secret=secret)
        self._on_message = on_message
        self._on_peer_lost = on_peer_lost
        self._gateway_for = gateway_for
        self.land: Callable[[str, memoryview, Sequence[int]], Landing | None] | None = None
        """Asked, with (peer, header, sizes of the buffers), where those of a large message belong."""
        self._limits = limits or TransportLimits()
        self._lock = threading.Lock()  # guards _peers and _lost; held alone, never with a peer's own lock
        self._drained = threading.Condition(self._lock)
        self._peers: dict[str, Peer] = {}
        self._lost: dict[str, Exception] = {}
        self._connections: set[Connection] = set()
        self._handshake_count = 0
        self._accepting = False
        self._starved_since_ns: int | None = None
        """Since when no connection could be accepted, for want of a descriptor."""
        self.on_starved: Callable[[OSError], object] = lambda _: None
        """Called again and again when that has lasted for _STARVED_S, before whoever connects gives up."""
        self._closed = False
        self._path = socket_path(socket_dir, address)
        self.listener = listen(self._path)
        self._inode = self._path.stat().st_ino
        if not loop.call_soon(self._resume_accepting):
            self.close()
            raise RuntimeError("the event loop of this process has ended")

    # -- from any thread -------------------------------------------------------------------------------------

    def send(self, to: str, header: bytes, buffers: Sequence[Piece] = ()) -> None:
        """Send one message; never waits. The buffers must be C-contiguous and stay as they are until written, those
        that are pieces of files until they have arrived.

        Not for finalizers: it takes a lock that the interrupted code may hold.
        """
        frame, size = encode_frame(header, buffers, self._limits)
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

    def connect(self, to: str) -> None:
        """Have a connection to a peer, so that the first message does not wait for it; never waits."""
        if to not in self._peers:
            self._first_use(to, b"", ())

    def connected(self) -> list[str]:
        """The peers that there is a connection to."""
        with self._lock:
            return [address for address, peer in self._peers.items() if peer.connection is not None]

    def queued_bytes(self, peer: str) -> int:
        """How much waits for a peer, about."""
        record = self._peers.get(peer)
        return record.queued_bytes if record is not None else 0

    def flush(self, timeout_s: float) -> bool:
        """Wait until the kernel has every byte for every peer that is not lost; False after `timeout_s`."""
        assert not self._loop.in_loop_thread(), "flush waits for the loop"
        with self._drained:
            return self._drained.wait_for(lambda: not any(p.queue for p in self._peers.values()), timeout_s)

    def hear_out(self, peer: str) -> None:
        """Take in, now, what a peer that has ended had sent: messages that may lie in its socket still."""
        assert self._loop.in_loop_thread(), "messages are taken in by the loop's thread"
        known = self._peers.get(peer)
        if known is not None and known.connection is not None:
            self._drain(known, known.connection)

    def why_lost(self, peer: str) -> Exception | None:
        """What ended a lost peer (AuthenticationError, OSError, ...); None when it is not lost."""
        return self._lost.get(peer)

    def forget(self, peer: str) -> None:
        """Let a lost peer be connected to again."""
        with self._lock:
            self._lost.pop(peer, None)

    def drop(self, peer: str, why: Exception) -> None:
        """End the connection to a peer, if there is one, and drop what waits for it. On the loop's thread. The owner
        knows it: `on_peer_lost` is not called, and a later message connects anew."""
        known = self._peers.get(peer)
        if known is not None:
            self._remove(known, why)
        self.forget(peer)

    def close(self) -> None:
        """Close every socket and remove ours from the directory; queued bytes are dropped. Idempotent."""
        self._loop.call_and_wait(self._close)

    # -- sending ---------------------------------------------------------------------------------------------

    def _first_use(self, to: str, header: bytes, buffers: Sequence[Piece]) -> Peer | None:
        """The peer's new record, its connection under way; None when the message needs none."""
        if to == self.address:
            views = [memoryview(flat(buffer)).toreadonly() for buffer in buffers]  # type: ignore[arg-type]  # no files
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
                peer = self._peers[to] = Peer(to, deadline_ns)
                self._loop.call_soon(partial(self._connect, peer))
            return peer

    def _write(self, peer: Peer, connection: Connection, frame: list[Piece], size: int) -> None:
        """Write a frame at once, as far as the socket takes it (under the lock, with an empty queue)."""
        try:
            if len(frame) == 1:
                written = connection.sock.send(frame[0], socket.MSG_NOSIGNAL)  # type: ignore[arg-type]  # bytes
            else:
                written = write_pieces(connection.sock, frame[:IOV_MAX])
        except BlockingIOError:
            written = 0
        except OSError as error:
            self.counters.messages_dropped += 1
            self._loop.call_soon(partial(self._end, peer, connection, error))
            return
        if written < size:
            self._enqueue(peer, frame, size, written)

    def _enqueue(self, peer: Peer, frame: list[Piece], size: int, written: int) -> None:
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

    def _arm_writer(self, peer: Peer, connection: Connection) -> None:
        if not connection.closed:
            self._loop.add_writer(connection.fd, partial(self._flush_queue, peer, connection))

    def _flush_queue(self, peer: Peer, connection: Connection) -> None:
        """The loop: write queued frames until the socket is full or the queue empty."""
        with peer.lock:
            try:
                while peer.queue:
                    pieces = list(itertools.islice(peer.queue, IOV_MAX))
                    peer.take_off(write_pieces(connection.sock, pieces))
            except BlockingIOError:
                return
            except OSError as error:
                self._loop.call_soon(partial(self._end, peer, connection, error))
            self._loop.remove_writer(connection.fd)
            peer.writer_armed = False
        with self._drained:
            self._drained.notify_all()

    def _overflow(self, peer: Peer) -> None:
        if not peer.lost:
            error = BufferError(f"{peer.queued_bytes} bytes wait for {peer.address}")
            self._count("queue_overflows", peer.address, error)
            self._lose(peer, error)

    # -- connecting and accepting (all below: the loop's thread) ---------------------------------------------

    def _connect(self, peer: Peer) -> None:
        """Begin our own connection to a peer, unless there is one or it cannot be."""
        peer.retry = None
        if peer.lost or peer.connection is not None or peer.attempt is not None:
            return
        try:
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        except OSError as error:  # no descriptor or memory left: there may be again
            self._try_again(peer, OSError(error.errno, limit_in_words(error)))
            return
        gateway = self._gateway_for(peer.address)
        try:
            sock.connect(os.fspath(gateway or socket_path(self._socket_dir, peer.address)))
        except (FileNotFoundError, BlockingIOError) as error:  # not there yet; its listen queue is full
            sock.close()
            self._try_again(peer, error)
        except OSError as error:  # ECONNREFUSED: a socket without a process, as sockets appear listening
            sock.close()
            self._lose(peer, error)
        else:
            self._begin_handshake(sock, peer, asks=gateway is not None)

    def _try_again(self, peer: Peer, error: Exception) -> None:
        if peer.lost or peer.connection is not None:
            return
        if self._loop.now_ns() >= peer.deadline_ns:
            self._lose(peer, error)
            return
        peer.retry = self._loop.call_later(peer.retry_s, partial(self._connect, peer))
        peer.retry_s = min(2 * peer.retry_s, RETRY_LAST_S)

    def _resume_accepting(self) -> None:
        if not (self._accepting or self._closed):
            self._accepting = True
            self._loop.add_reader(self.listener.fileno(), self._accept)

    def _pause_accepting(self) -> None:
        self._accepting = False
        self._loop.remove_reader(self.listener.fileno())

    def _accept(self) -> None:
        for _ in range(_ACCEPTS_PER_TURN):
            if self._handshake_count >= self._limits.handshakes_max:
                self._pause_accepting()  # until one of them ends
                return
            try:
                sock, _ = self.listener.accept()
            except BlockingIOError:
                return
            except OSError as error:  # no descriptor or memory left: the queue keeps them a moment
                self._starve(OSError(error.errno, limit_in_words(error)))
                self._pause_accepting()
                self._loop.call_later(0.1, self._resume_accepting)
                return
            self._starved_since_ns = None
            self._begin_handshake(sock, None)

    def _starve(self, error: OSError) -> None:
        """A connection cannot be accepted, once more."""
        now_ns = self._loop.now_ns()
        if self._starved_since_ns is None:
            self._starved_since_ns = now_ns
            _log.error("%s cannot accept connections: %s", self.address, error.strerror)
        elif now_ns - self._starved_since_ns > _STARVED_S * 1e9:
            self.on_starved(error)

    # -- the handshake ---------------------------------------------------------------------------------------

    def _begin_handshake(self, sock: socket.socket, peer: Peer | None, *, asks: bool = False) -> None:
        """Start the handshake on a connection to `peer`, or, with None, on one that we accepted."""
        sock.setblocking(False)
        if sock.family == socket.AF_UNIX:  # TCP finds out what a route needs, unless it is told
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BUFFER_BYTES)
        connection = Connection(sock, peer.address if peer is not None else "")
        if peer is not None:
            peer.attempt = connection
        self._connections.add(connection)
        self._handshake_count += 1
        late = partial(self._handshake_late, connection)
        connection.deadline = self._loop.call_later(self._limits.handshake_timeout_s, late)
        connection.handshake = Handshake(
            sock, identity=self._identity, expected=connection.expected, judge=self._judge, asks=asks
        )
        self._loop.add_reader(connection.fd, partial(self._advance, connection))
        self._advance(connection)

    def _advance(self, connection: Connection) -> None:
        """Give the handshake the bytes it waits for; when it is over, use the connection or let it go."""
        assert connection.handshake is not None
        try:
            outcome = connection.handshake.advance()
            if outcome is None:
                return
            if outcome.verdict == ACCEPT:
                self._establish(connection, outcome.address, outcome.instance)
            else:
                self._give_up(connection, ConnectionError("another connection goes first"), final=False)
        except BlockingIOError:
            return
        except Refusal as refusal:
            who = connection.expected or "a connection"
            self._count(refusal.counter, who, refusal)
            self._give_up(connection, AuthenticationError(f"{who}: {refusal}"), final=True)
        except HandedOver as handed:  # a gateway has brought a connection to, or from, a process of another machine
            peer = self._peers.get(connection.expected)
            self._close_connection(connection)
            if connection.expected and (peer is None or peer.attempt is not connection):
                handed.sock.close()
            else:
                self._begin_handshake(handed.sock, peer)
        except OSError as error:
            self._give_up(connection, error, final=isinstance(error, PeerGone | PeerStarved))

    def _judge(self, address: str, instance: bytes) -> int:
        """Whether to use a connection that `address` made, or the one there is or will be."""
        peer = self._peers.get(address)
        if peer is not None and peer.connection is not None:
            self._drain(peer, peer.connection)  # its end may be waiting there
            if not peer.lost:
                if peer.instance == instance:
                    return DUPLICATE
                self._lose(peer, ConnectionResetError("a new process has taken the address"))
            peer = self._peers.get(address)
        if peer is not None and peer.attempt is not None and self.address < address:
            return DUPLICATE
        return ACCEPT

    def _establish(self, connection: Connection, address: str, instance: bytes) -> None:
        self._end_handshake(connection)
        land = partial(self.land, address) if self.land is not None else None
        connection.reader = FrameReader(self._limits, partial(self._deliver, address), land)
        with self._lock:
            self._lost.pop(address, None)
            peer = self._peers.get(address)
            if peer is None:
                peer = self._peers[address] = Peer(address, 0)
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

    def _handshake_late(self, connection: Connection) -> None:
        error = TimeoutError(f"the handshake took more than {self._limits.handshake_timeout_s} s")
        self._count("handshake_timeouts", connection.expected or "a connection", error)
        self._give_up(connection, error, final=False)

    def _give_up(self, connection: Connection, error: Exception, *, final: bool) -> None:
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

    def _end_handshake(self, connection: Connection) -> None:
        if connection.handshake is not None and connection.deadline is not None:
            connection.handshake = None
            connection.deadline.cancel()
            self._handshake_count -= 1
            self._resume_accepting()

    # -- established connections -----------------------------------------------------------------------------

    def _read(self, peer: Peer, connection: Connection) -> bool:
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
        except Refusal as refusal:
            self._count(refusal.counter, peer.address, refusal)
            self._lose(peer, ConnectionError(str(refusal)))
        except (OSError, MemoryError) as error:
            self._lose(peer, error)
        return not connection.closed

    def _drain(self, peer: Peer, connection: Connection) -> None:
        """Take in what a connection that is about to end still holds, to a bound."""
        for _ in range(_DRAIN_TURNS_MAX):
            if not self._read(peer, connection):
                return

    def _end(self, peer: Peer, connection: Connection, error: Exception) -> None:
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

    def _lose(self, peer: Peer, error: Exception) -> None:
        """A peer is lost: the owner hears it."""
        if not self._remove(peer, error):
            return
        try:
            self._on_peer_lost(peer.address)
        except Exception as failure:  # noqa: BLE001 - every one of them goes to the owner
            self._loop.report(failure)

    def _remove(self, peer: Peer, error: Exception) -> bool:
        """The one place where a peer goes; whether it was there."""
        with self._lock:
            if self._peers.get(peer.address) is not peer:
                return False
            del self._peers[peer.address]
            # Its traceback would keep the frames of whoever waited meanwhile, and ran the loop: user code's.
            self._lost[peer.address] = error.with_traceback(None)
            if len(self._lost) > self._limits.lost_peers_max:
                del self._lost[next(iter(self._lost))]
        self._let_go(peer)
        self.counters.peers_lost += 1
        level = logging.DEBUG if is_driver(Address(self.address)) else logging.INFO  # a driver's log is its program's
        _log.log(level, "%s lost %s: %s", self.address, peer.address, error)
        return True

    def _let_go(self, peer: Peer) -> None:
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

    def _close_connection(self, connection: Connection) -> None:
        if connection.closed:
            return
        connection.closed = True
        self._loop.remove_reader(connection.fd)
        self._loop.remove_writer(connection.fd)
        self._connections.discard(connection)  # before its peer can see that it has ended
        connection.sock.close()
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
        self.listener.close()
        with contextlib.suppress(FileNotFoundError):
            if self._path.stat().st_ino == self._inode:  # a successor may have taken the address
                self._path.unlink()

    def _count(self, counter: str, who: str, reason: Exception) -> None:
        setattr(self.counters, counter, getattr(self.counters, counter) + 1)
        _log.warning("%s dropped %s: %s", self.address, who, reason)
