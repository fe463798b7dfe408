"""Objects on their way between node managers: in pieces, with bounded memory, straight out of and into the stores.

Theory of operation. The node machine says what goes where (SendObject) and what is to be taken in from whom
(ReceiveObject); here is only how. A sender sends pieces of `transfer_chunk_bytes` in order, `transfer_chunks_ahead` of
them before the first is acknowledged. A receiver takes each piece in at its place in the unsealed object, and
acknowledges some at a time; what it does not expect, it refuses, and the sender stops. So a pull needs no more memory
beside the stores than the pieces that are ahead, however large the object.

    CHUNK     stream, offset, size of the whole object; one buffer     sender to receiver
    TAKEN     stream, bytes that are here from the start on            receiver to sender
    REFUSED   stream, 0                                                receiver to sender
    BROKEN    stream, 0: there will be no more of it                   sender to receiver
    ENDED     stream, 0: BROKEN has been heard                         receiver to sender

A stream is one SendObject: a number that its sender draws, so that what belongs to an earlier one is told apart.

Streams have connections of their own (`objects_address`): on those that carry the nodes' messages each would wait until
the pieces before it are through, which takes a third of a second for 16 MiB at 400 Mbit/s. A message of the node
machine may so overtake pieces. That is harmless while a stream says what it belongs to, and while whoever loses one of
the two connections to a node gives up the other (`drop`): then no piece outlives what the machine was told of it.

No copies. The kernel sends the arena's own pages (FilePiece), and reads what comes into the arena at once (`land`).
Hence bytes must stay where they are until they have arrived: the machine keeps an object that is being sent until
all of it was taken, and the other end of a stream that it gives up drops what still comes of it.

Passing on. An object that is still arriving may be sent already: each piece goes on when it is here. When the rest
will not come its receivers hear it (BROKEN), and its place is not used again before they have taken in all that was
sent from there (ENDED).
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from dualray.real.net.addresses import node_of_objects, objects_address
from dualray.real.net.frames import FilePiece, Landing, Piece
from dualray.real.net.transport import Transport
from dualray.real.store.node_store import NodeStore
from dualray.shared.model.commands import ReceiveObject, SendObject
from dualray.shared.model.config import Config
from dualray.shared.model.events import Event, ObjectReceived, ObjectSent, ReceiveFailed
from dualray.shared.model.ids import NodeID, ObjectID

CHUNK, TAKEN, REFUSED, BROKEN, ENDED = 1, 2, 3, 11, 12
_HEADER: Final = struct.Struct("<B20sQQQ")
_FILE_PIECE_BYTES_MIN: Final = 65536
"""A smaller piece is copied, which costs less than having the kernel collect its pages."""


@dataclass(slots=True)
class _Outgoing:
    stream: int
    to: NodeID
    view: memoryview
    file: tuple[int, int]
    """The arena's descriptor, and where the object begins in it."""
    sent: int
    taken: int

    def piece(self, end: int) -> Piece:
        """What is sent next, up to `end`."""
        size = end - self.sent
        if size < _FILE_PIECE_BYTES_MIN:
            return self.view[self.sent : end]
        return FilePiece(self.file[0], self.file[1] + self.sent, size)


@dataclass(slots=True)
class _Incoming:
    source: NodeID
    view: memoryview
    received: int
    acknowledged: int
    stream: int = 0
    """The one that its bytes come from; 0 before the first of them."""
    stale: dict[NodeID, int] = field(default_factory=dict)
    """The last stream of each source that was given up: it, and earlier ones, are refused."""
    landing: Landing | None = None
    """Where the piece belongs that is being read."""

    def is_of(self, source: NodeID, stream: int) -> bool:
        """Whether this is the stream from which the rest comes."""
        return source == self.source and stream > self.stale.get(source, 0) and self.stream in (0, stream)

    def give_up(self, source: NodeID, stream: int) -> None:
        """Expect nothing more of this stream."""
        self.stale[source] = max(stream, self.stale.get(source, 0))

    def drop_landing(self) -> None:
        """Nobody writes into the object from now on."""
        if self.landing is not None:
            self.landing.drop()
            self.landing = None


@dataclass(slots=True)
class _Held:
    """The place of an object that is gone, and how many streams may still be read from there."""

    release: Callable[[], object]
    streams: int


class ObjectStreams:
    """See the module. Everything on the loop's thread.

    Args:
        transport: that of `objects_address`.
        handle: takes an event to the node machine.
        on_received: called with (object id, source, bytes) of what is complete, before the machine hears of it.
    """

    def __init__(
        self,
        *,
        transport: Transport,
        store: NodeStore,
        config: Config,
        handle: Callable[[Event], None],
        on_received: Callable[[ObjectID, NodeID, int], None],
    ) -> None:
        self._transport = transport
        transport.land = lambda peer, header, sizes: self.land(node_of_objects(peer), header, sizes)
        self._store = store
        self._chunk_bytes = config.transfer_chunk_bytes
        self._ahead_bytes = config.transfer_chunk_bytes * config.transfer_chunks_ahead
        self._handle = handle
        self._on_received = on_received
        self._outgoing: dict[ObjectID, dict[NodeID, _Outgoing]] = {}
        self._incoming: dict[ObjectID, _Incoming] = {}
        self._held: dict[tuple[NodeID, int], _Held] = {}
        """By receiver and stream."""
        self._numbers = itertools.count(1)
        self.bytes_sent = 0
        self.bytes_received = 0

    # ---- Commands --------------------------------------------------------------------------------------------

    def send(self, command: SendObject) -> None:
        """Begin to send; one that is being sent to the same node is given up."""
        object_id, offset = command.object_id, command.offset
        view, file = self._store.open(object_id), self._store.file_range(object_id)
        outgoing = _Outgoing(next(self._numbers), command.to, view, file, offset, offset)
        self._outgoing.setdefault(object_id, {})[command.to] = outgoing
        if offset == len(view) and object_id not in self._incoming:
            self._send_piece(object_id, outgoing, offset)  # an empty one, which is acknowledged
        else:
            self._send_more(object_id, outgoing)

    def receive(self, command: ReceiveObject) -> None:
        """Be ready to take in an object, anew or from another source."""
        object_id = command.object_id
        incoming = self._incoming.get(object_id)
        if incoming is None:
            view = self._store.create(object_id, command.size_bytes)
            self._incoming[object_id] = _Incoming(command.source, view, command.offset, command.offset)
            return
        incoming.give_up(incoming.source, incoming.stream)
        incoming.stream = 0
        incoming.source = command.source
        incoming.received = incoming.acknowledged = command.offset
        incoming.drop_landing()

    def delete(self, object_id: ObjectID) -> None:
        """The object goes, with what is under way of it, here and from here."""
        incoming = self._incoming.pop(object_id, None)
        if incoming is not None:
            incoming.drop_landing()
            incoming.view.release()
            self._store.seal(object_id)
        broken = self._outgoing.pop(object_id, {})
        if not broken:
            self._store.delete(object_id)
            return
        held = _Held(self._store.detach(object_id), len(broken))
        for outgoing in broken.values():
            self._held[outgoing.to, outgoing.stream] = held
            self._answer(BROKEN, object_id, outgoing.to, outgoing.stream, 0)

    # ---- Peers -----------------------------------------------------------------------------------------------

    def drop(self, node: str) -> None:
        """Nothing comes from, and nothing goes to, this node any more: end the connection, if there is one."""
        self._transport.drop(objects_address(node), ConnectionAbortedError(f"{node} is lost"))
        to = NodeID(node)
        for key in [key for key in self._held if key[0] == to]:
            self._release(key)
        for object_id in [object_id for object_id, receivers in self._outgoing.items() if to in receivers]:
            self._end_outgoing(object_id, to, complete=False)
        for object_id, incoming in list(self._incoming.items()):
            if incoming.source == to:
                incoming.drop_landing()
                self._handle(
                    ReceiveFailed(object_id=object_id, source=incoming.source, received_bytes=incoming.received)
                )

    def on_message(self, peer: str, header: memoryview, buffers: list[memoryview]) -> None:
        """A message of a stream has come from a node manager.

        Raises:
            ValueError: it is none.
        """
        kind, raw_id, stream, position, size = _HEADER.unpack(header)
        object_id, node = ObjectID(raw_id), NodeID(node_of_objects(peer))
        if kind == CHUNK:
            self._take(object_id, node, stream, position, size, buffers)
        elif kind == BROKEN:
            self._on_broken(object_id, node, stream)
        elif kind == ENDED:
            self._release((node, stream))
        elif kind in (TAKEN, REFUSED):
            self._on_answer(kind, object_id, node, stream, position)
        else:
            raise ValueError(f"{peer} sent a message of the unknown kind {kind}")

    # ---- Sending ---------------------------------------------------------------------------------------------

    def _send_more(self, object_id: ObjectID, outgoing: _Outgoing) -> None:
        """Send the pieces that are here and may go."""
        incoming = self._incoming.get(object_id)
        size = len(outgoing.view)
        here = size if incoming is None else incoming.received
        while outgoing.sent < size:
            end = min(outgoing.sent + self._chunk_bytes, size)
            if end > here or outgoing.sent - outgoing.taken >= self._ahead_bytes:
                return
            self._send_piece(object_id, outgoing, end)

    def _send_piece(self, object_id: ObjectID, outgoing: _Outgoing, end: int) -> None:
        header = _HEADER.pack(CHUNK, object_id, outgoing.stream, outgoing.sent, len(outgoing.view))
        piece = outgoing.piece(end)
        outgoing.sent = end
        self.bytes_sent += len(piece)
        self._transport.send(objects_address(outgoing.to), header, [piece])

    def _on_answer(self, kind: int, object_id: ObjectID, node: NodeID, stream: int, position: int) -> None:
        outgoing = self._outgoing.get(object_id, {}).get(node)
        if outgoing is None or outgoing.stream != stream:
            return
        if kind == REFUSED:
            self._end_outgoing(object_id, node, complete=False)
            return
        outgoing.taken = position
        if position >= len(outgoing.view):
            self._end_outgoing(object_id, node, complete=True)
        else:
            self._send_more(object_id, outgoing)

    def _end_outgoing(self, object_id: ObjectID, to: NodeID, *, complete: bool) -> None:
        receivers = self._outgoing.get(object_id, {})
        if receivers.pop(to, None) is None:  # it went with its object
            return
        if not receivers:
            del self._outgoing[object_id]
        self._handle(ObjectSent(object_id=object_id, to=to, complete=complete))

    def _release(self, key: tuple[NodeID, int]) -> None:
        held = self._held.pop(key, None)
        if held is not None:
            held.streams -= 1
            if held.streams == 0:
                held.release()

    # ---- Receiving -------------------------------------------------------------------------------------------

    def land(self, peer: str, header: memoryview, sizes: Sequence[int]) -> Landing | None:
        """Where the bytes of a message belong that begins to come: in the object, when it is the next piece of one."""
        if len(header) != _HEADER.size or header[0] != CHUNK or len(sizes) != 1:
            return None
        _, raw_id, stream, offset, size = _HEADER.unpack(header)
        incoming = self._incoming.get(ObjectID(raw_id))
        end = offset + sizes[0]
        if (
            incoming is None
            or not incoming.is_of(NodeID(peer), stream)
            or offset != incoming.received
            or size != len(incoming.view)
            or end > size
        ):
            return None  # it is refused when it is here
        incoming.landing = Landing([incoming.view[offset:end]])
        return incoming.landing

    def _take(
        self, object_id: ObjectID, source: NodeID, stream: int, offset: int, size: int, buffers: list[memoryview]
    ) -> None:
        incoming = self._incoming.get(object_id)
        if incoming is None or not incoming.is_of(source, stream):
            self._answer(REFUSED, object_id, source, stream, 0)
            return
        piece = buffers[0] if len(buffers) == 1 else None  # None: its landing was dropped while it came
        if (
            piece is None
            or offset != incoming.received
            or size != len(incoming.view)
            or (end := offset + len(piece)) > size
        ):
            incoming.give_up(source, stream)
            self._answer(REFUSED, object_id, source, stream, 0)
            good = incoming.received if size == len(incoming.view) else 0  # else it is not what the head spoke of
            self._handle(ReceiveFailed(object_id=object_id, source=source, received_bytes=good))
            return
        if incoming.landing is None:
            incoming.view[offset:end] = piece
        incoming.landing = None
        incoming.stream = stream
        incoming.received = end
        self.bytes_received += len(piece)
        if end < size:
            for outgoing in self._outgoing.get(object_id, {}).values():
                self._send_more(object_id, outgoing)
            if end - incoming.acknowledged >= self._ahead_bytes // 4:
                incoming.acknowledged = end
                self._answer(TAKEN, object_id, source, stream, end)
            return
        del self._incoming[object_id]
        incoming.view.release()
        self._store.seal(object_id)
        for outgoing in self._outgoing.get(object_id, {}).values():
            self._send_more(object_id, outgoing)
        self._on_received(object_id, source, size)
        self._handle(ObjectReceived(object_id=object_id, source=source))
        self._answer(TAKEN, object_id, source, stream, end)  # only now: others may be sent here for it

    def _on_broken(self, object_id: ObjectID, source: NodeID, stream: int) -> None:
        self._answer(ENDED, object_id, source, stream, 0)
        incoming = self._incoming.get(object_id)
        if incoming is not None and incoming.is_of(source, stream):
            incoming.give_up(source, stream)
            self._handle(ReceiveFailed(object_id=object_id, source=source, received_bytes=incoming.received))

    def _answer(self, kind: int, object_id: ObjectID, to: NodeID, stream: int, position: int) -> None:
        self._transport.send(objects_address(to), _HEADER.pack(kind, object_id, stream, position, 0))
