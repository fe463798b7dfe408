"""The state of each peer of a transport: its connections, and the bytes that wait for it.

Theory of operation. A `Peer` begins with the first use of its address and ends when the peer is lost; a loss is
final, and a later connection makes a new `Peer`. It has at most one `attempt`, a connection that we began and that
is in handshake, and at most one `connection`, which is established; one that the peer began is not the peer's
before its handshake has proved whose it is. The queue holds pieces of frames, the callers' own buffers, with an
empty piece at the end of each frame, so that frames can be counted.

Threads. `lock` guards the fields below it, which every thread that sends uses; the others are the loop's own.
"""

import collections
import socket
import threading
from typing import Final

from dualray.real.net.frames import FilePiece, FrameReader, Piece
from dualray.real.net.handshake import Handshake
from dualray.real.net.loop import Timer

RETRY_FIRST_S: Final = 0.001
"""The pause before the second attempt to connect; it doubles with each further one, up to RETRY_LAST_S."""
RETRY_LAST_S: Final = 0.05


class Connection:
    """One socket: in handshake while `handshake` is set, then established."""

    __slots__ = ("closed", "deadline", "expected", "fd", "handshake", "reader", "sock")

    def __init__(self, sock: socket.socket, expected: str) -> None:
        self.sock = sock
        self.fd = sock.fileno()
        self.expected = expected  # whom we connect to; "" of a connection that we accepted
        self.handshake: Handshake | None = None
        self.deadline: Timer | None = None
        self.reader: FrameReader | None = None
        self.closed = False


class Peer:
    """What we know of one address, from its first use until it is lost. `lock` guards the fields below it."""

    __slots__ = (
        "address", "attempt", "connection", "deadline_ns", "instance", "lock", "lost", "queue",
        "queued_bytes", "retry", "retry_s", "writer_armed",
    )  # fmt: skip

    def __init__(self, address: str, deadline_ns: int) -> None:
        self.address = address
        self.deadline_ns = deadline_ns
        self.instance = b""
        self.attempt: Connection | None = None  # ours, in handshake
        self.retry: Timer | None = None
        self.retry_s = RETRY_FIRST_S
        self.lock = threading.Lock()
        self.lost = False
        self.connection: Connection | None = None  # established
        self.queue: collections.deque[Piece] = collections.deque()  # pieces; an empty one ends each frame
        self.queued_bytes = 0
        self.writer_armed = False

    def take_off(self, written: int) -> None:
        """The kernel has taken `written` more bytes of the queue."""
        self.queued_bytes -= written
        queue = self.queue
        while queue and written >= len(queue[0]):
            written -= len(queue.popleft())
        if written:
            first = queue[0]
            queue[0] = first.after(written) if isinstance(first, FilePiece) else memoryview(first)[written:]
