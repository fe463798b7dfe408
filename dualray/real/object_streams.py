"""Objects on their way between node managers: in pieces, with bounded memory, straight out of and into the stores.

Theory of operation. The node machine says what goes where (SendObject) and what is to be taken in from whom
(ReceiveObject); here is only how. A sender sends pieces of `transfer_chunk_bytes` in order, `transfer_chunks_ahead` of
them before the first is acknowledged. A receiver writes each piece to its place in the unsealed object, and
acknowledges it; what it does not expect, it refuses, and the sender stops. So a pull needs no more memory beside the
stores than the pieces that are ahead, on either side, however large the object.

    CHUNK     stream, offset, size of the whole object; one buffer     sender to receiver
    TAKEN     stream, bytes that are here from the start on            receiver to sender
    REFUSED   stream, 0                                                receiver to sender

A stream is one SendObject: a number that its sender draws, so that what belongs to an earlier one is told apart.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from dualray.real.node_store import NodeStore
from dualray.real.transport import Transport
from dualray.shared.model.commands import ReceiveObject, SendObject
from dualray.shared.model.config import Config
from dualray.shared.model.events import Event, ObjectReceived, ObjectSent, ReceiveFailed
from dualray.shared.model.ids import Address, NodeID, ObjectID

CHUNK, TAKEN, REFUSED = 1, 2, 3
_HEADER: Final = struct.Struct("<B20sQQQ")


@dataclass(slots=True)
class _Outgoing:
    stream: int
    to: NodeID
    view: memoryview
    sent: int
    taken: int


@dataclass(slots=True)
class _Incoming:
    source: NodeID
    view: memoryview
    received: int


class ObjectStreams:
    """See the module. Everything on the loop's thread.

    Args:
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
        self._store = store
        self._chunk_bytes = config.transfer_chunk_bytes
        self._ahead_bytes = config.transfer_chunk_bytes * config.transfer_chunks_ahead
        self._handle = handle
        self._on_received = on_received
        self._outgoing: dict[tuple[ObjectID, NodeID], _Outgoing] = {}
        self._incoming: dict[ObjectID, _Incoming] = {}
        self._numbers = itertools.count(1)
        self.bytes_sent = 0
        self.bytes_received = 0

    # ---- Commands --------------------------------------------------------------------------------------------

    def send(self, command: SendObject) -> None:
        """Begin to send; one that is being sent to the same node is given up."""
        offset = command.offset
        outgoing = _Outgoing(next(self._numbers), command.to, self._store.open(command.object_id), offset, offset)
        self._outgoing[command.object_id, command.to] = outgoing
        self._send_more(command.object_id, outgoing, at_least_one=True)

    def receive(self, command: ReceiveObject) -> None:
        """Be ready to take in an object, anew or from another source."""
        object_id = command.object_id
        incoming = self._incoming.get(object_id)
        if incoming is not None:
            incoming.source = command.source
            incoming.received = command.offset
            return
        view = self._store.create(object_id, command.size_bytes)
        self._incoming[object_id] = _Incoming(command.source, view, command.offset)

    def give_up(self, object_id: ObjectID) -> bool:
        """Whether the object was on its way here, and is not any more."""
        incoming = self._incoming.pop(object_id, None)
        if incoming is None:
            return False
        incoming.view.release()
        self._store.seal(object_id)
        return True

    # ---- Peers -----------------------------------------------------------------------------------------------

    def peer_lost(self, peer: str) -> None:
        """Nothing comes from, and nothing goes to, this node any more."""
        for object_id, to in [key for key in self._outgoing if key[1] == peer]:
            self._end_outgoing(object_id, to, complete=False)
        for object_id, incoming in list(self._incoming.items()):
            if incoming.source == peer:
                self._handle(
                    ReceiveFailed(object_id=object_id, source=incoming.source, received_bytes=incoming.received)
                )

    def on_message(self, peer: str, header: memoryview, buffers: list[memoryview]) -> None:
        """A CHUNK, TAKEN or REFUSED has come from a node manager.

        Raises:
            ValueError: it is none of these.
        """
        kind, raw_id, stream, position, size = _HEADER.unpack(header)
        object_id = ObjectID(raw_id)
        if kind == CHUNK and len(buffers) == 1:
            self._take(object_id, NodeID(peer), stream, position, size, buffers[0])
            return
        outgoing = self._outgoing.get((object_id, NodeID(peer)))
        if outgoing is None or outgoing.stream != stream:
            return
        if kind == TAKEN:
            outgoing.taken = position
            if position >= len(outgoing.view):
                self._end_outgoing(object_id, outgoing.to, complete=True)
            else:
                self._send_more(object_id, outgoing)
        elif kind == REFUSED:
            self._end_outgoing(object_id, outgoing.to, complete=False)
        else:
            raise ValueError(f"{peer} sent a message of the unknown kind {kind}")

    # ---- Sending ---------------------------------------------------------------------------------------------

    def _send_more(self, object_id: ObjectID, outgoing: _Outgoing, *, at_least_one: bool = False) -> None:
        size = len(outgoing.view)
        while at_least_one or (outgoing.sent < size and outgoing.sent - outgoing.taken < self._ahead_bytes):
            at_least_one = False
            piece = outgoing.view[outgoing.sent : outgoing.sent + self._chunk_bytes]
            header = _HEADER.pack(CHUNK, object_id, outgoing.stream, outgoing.sent, size)
            outgoing.sent += len(piece)
            self.bytes_sent += len(piece)
            self._transport.send(outgoing.to, header, [piece])

    def _end_outgoing(self, object_id: ObjectID, to: NodeID, *, complete: bool) -> None:
        del self._outgoing[object_id, to]
        self._handle(ObjectSent(object_id=object_id, to=to, complete=complete))

    # ---- Receiving -------------------------------------------------------------------------------------------

    def _take(
        self, object_id: ObjectID, source: NodeID, stream: int, offset: int, size: int, piece: memoryview
    ) -> None:
        incoming = self._incoming.get(object_id)
        if incoming is None or incoming.source != source or offset != incoming.received:
            self._answer(REFUSED, object_id, source, stream, 0)
            return
        end = offset + len(piece)
        if size != len(incoming.view) or end > size:  # not the object that the head spoke of
            self._answer(REFUSED, object_id, source, stream, 0)
            self._handle(ReceiveFailed(object_id=object_id, source=source))
            return
        incoming.view[offset:end] = piece
        incoming.received = end
        self.bytes_received += len(piece)
        if end < size:
            self._answer(TAKEN, object_id, source, stream, end)
            return
        del self._incoming[object_id]
        incoming.view.release()
        self._store.seal(object_id)
        self._on_received(object_id, source, size)
        self._handle(ObjectReceived(object_id=object_id, source=source))
        self._answer(TAKEN, object_id, source, stream, end)  # only now: others may be sent here for it

    def _answer(self, kind: int, object_id: ObjectID, to: NodeID, stream: int, position: int) -> None:
        self._transport.send(Address(to), _HEADER.pack(kind, object_id, stream, position, 0))
