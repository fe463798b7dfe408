"""A node sends objects to the nodes that ask for them.

Theory of operation. A node that asks is served from what is sealed here; what is on disk alone is read back first. Two
nodes never wait for each other: sending needs no room. A node that has the object on disk alone, and no room to read it
back, says so (ObjectNotHere with an error).

Broadcast. The head may send a node to one that is receiving the object itself, of an earlier turn (directory.py):
that one passes on what comes, as it comes, and so a large object goes along a chain of nodes at the speed of one copy.
Only a pull that is under way serves others: who asks while its locations or its memory are still being found waits
until it is; when it has to wait for longer, for room or for other pulls, they are told to ask elsewhere. So who waits
for a pull waits for bytes, and for bytes of earlier turns only: never in a circle. A pull that ends without the object
breaks off with those whom it serves; they keep what they have got, and ask the next source for the rest.

A node sends one object to at most `broadcast_receivers_max` others at a time. Further ones stand in line; whenever a
receiver has it all, the first in line is served, and the next is told to ask that receiver (ObjectElsewhere), who holds
the same bytes: so the number of sources doubles with each round.

A node that waits for long asks whether we are there (ObjectsAwaited): we say so, and what we do not have.

Lives. A node that comes back may ask for something before the news of its last life's end is here, or what that one had
asked may come late. A request says which life it is of: the first of a new life ends what was under way for the last
one, and neither late news nor late requests of a life that is over change anything for the next.

Relies on: transfer.py brings what is on disk back into memory, and says of each pull how it stands.
Guarantees: each node that asks is served, told to ask elsewhere, or gone; what is being sent is pinned, or on its way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from dualray.shared.machines.base import Outbox, ensure
from dualray.shared.machines.node.links import Links
from dualray.shared.machines.node.object_store import ObjectStore
from dualray.shared.machines.node.wants import Want, receiver, sending_to
from dualray.shared.model.commands import SendObject
from dualray.shared.model.config import Config
from dualray.shared.model.errors import ErrorInfo, ErrorKind
from dualray.shared.model.events import NodeThere, ObjectElsewhere, ObjectNotHere, ObjectRequested, ObjectsAwaited
from dualray.shared.model.ids import Address, NodeID, ObjectID


class Sending:
    """See the module.

    Args:
        wants: what is being brought here.
        want: bring an object here for a user.
        give_up_all: a user waits for nothing any more.
    """

    def __init__(
        self,
        *,
        out: Outbox,
        node: NodeID,
        store: ObjectStore,
        config: Config,
        links: Links,
        wants: dict[ObjectID, Want],
        want: Callable[[ObjectID, Address, str], None],
        give_up_all: Callable[[str], None],
    ) -> None:
        self.out = out
        self.config = config
        self.node = node
        self.store = store
        self.links = links
        self.wants = wants
        self._want = want
        self._give_up_all = give_up_all
        self.receivers: dict[ObjectID, dict[NodeID, None]] = {}
        """Whom we are sending what."""
        self.requests: dict[ObjectID, deque[ObjectRequested]] = {}
        """Who stands in line for what."""
        self.restoring: dict[tuple[ObjectID, str], ObjectRequested] = {}
        """What other nodes want of what is being read back from disk."""
        self.lives: dict[NodeID, int] = {}
        """Of nodes that have asked for something, or died, the life that is not over yet as far as we know."""

    # ---- Requests --------------------------------------------------------------------------------------------

    def on_requested(self, event: ObjectRequested) -> None:
        """Another node asks for the object."""
        if not self._is_of_this_life(event.to, event.incarnation):
            return
        self.links.heard(event.to)
        user = sending_to(event.to)
        if self.store.is_sealed(event.object_id):
            self.store.pin(event.object_id, user)
            self._line_up(event)
            return
        want = self.wants.get(event.object_id)
        if want is not None and not self.store.is_spilled(event.object_id):
            self._on_requested_early(want, event)
            return
        self.restoring[event.object_id, user] = event
        if (spilled := self.store.spilled.get(event.object_id)) is not None:
            self._want(event.object_id, spilled.owner, user)
        elif self.store.is_spilled(event.object_id) and event.object_id in self.wants:
            self.wants[event.object_id].users[user] = None
        else:
            self.cannot_send(event.object_id, user)

    def _on_requested_early(self, want: Want, event: ObjectRequested) -> None:
        """Another node asks for what is still on its way here."""
        if want.source is not None and event.turn > want.turn:
            self._line_up(event)
        elif want.source is None and (want.asked or self._is_finding_memory(want)):
            want.askers.append(event)
        else:
            self._decline(event)

    def _is_finding_memory(self, want: Want) -> bool:
        return want.awaits_space and want.object_id in self.store.objects

    def send(self, object_id: ObjectID, user: str) -> None:
        """The object is in memory again, and pinned for the node that wants it."""
        self._line_up(self.restoring.pop((object_id, user)))

    def cannot_send(self, object_id: ObjectID, user: str, error: ErrorInfo | None = None) -> None:
        """The node that wants the object must ask elsewhere; it is told of an error that leaves the object here."""
        self.restoring.pop((object_id, user), None)
        if error is not None and error.kind is not ErrorKind.STORE_FULL:
            error = None
        self._decline(ObjectRequested(object_id=object_id, to=receiver(user)), error)

    def _line_up(self, event: ObjectRequested) -> None:
        receivers = self.receivers.setdefault(event.object_id, {})
        if event.to in receivers or len(receivers) < self.config.broadcast_receivers_max:
            self._send(event)
        else:
            self.requests.setdefault(event.object_id, deque()).append(event)

    def _send(self, request: ObjectRequested) -> None:
        self.receivers[request.object_id][request.to] = None
        size_bytes = self.store.objects[request.object_id].size_bytes
        send = SendObject(
            object_id=request.object_id, size_bytes=size_bytes, to=request.to, offset=min(request.offset, size_bytes)
        )
        self.out.add(send)

    def on_sent(self, object_id: ObjectID, to: NodeID, *, complete: bool) -> None:
        """It has been sent, and `to` has it all, or sending failed."""
        receivers = self.receivers.get(object_id, {})
        if to not in receivers:
            return
        del receivers[to]
        requests = self.requests.get(object_id)
        if requests:
            self._send(requests.popleft())
        if requests and complete:
            sent_on = requests.popleft()
            self.out.send(Address(sent_on.to), ObjectElsewhere(object_id=object_id, node=self.node, holder=to))
            self.store.unpin(object_id, sending_to(sent_on.to))
        if not requests:
            self.requests.pop(object_id, None)
        if not receivers:
            del self.receivers[object_id]
        self.store.unpin(object_id, sending_to(to))

    # ---- Those who wait for a pull ---------------------------------------------------------------------------

    def turn_away(self, want: Want) -> None:
        """Those who wait for a pull are told to ask elsewhere."""
        while want.askers:
            self._decline(want.askers.popleft())

    def _decline(self, request: ObjectRequested, error: ErrorInfo | None = None) -> None:
        self.out.send(Address(request.to), ObjectNotHere(object_id=request.object_id, node=self.node, error=error))

    def break_off(self, object_id: ObjectID) -> None:
        """What has come of an object is given up. The runner tells those to whom bytes are on their way."""
        for request in self.requests.pop(object_id, ()):
            self._decline(request)
        self.receivers.pop(object_id, None)

    # ---- Silence ---------------------------------------------------------------------------------------------

    def on_awaited(self, event: ObjectsAwaited) -> None:
        """Another node waits for what it has asked for long ago."""
        if not self._is_of_this_life(event.to, event.incarnation):
            return
        self.out.send(Address(event.to), NodeThere(node=self.node))
        for object_id in event.object_ids:
            if self._is_about_to_send(object_id, event.to):
                continue
            want = self.wants.get(object_id)
            if want is not None:  # we wait for it ourselves, perhaps until it is made again: so can they
                want.askers = deque(request for request in want.askers if request.to != event.to)
            self._decline(ObjectRequested(object_id=object_id, to=event.to))

    def _is_about_to_send(self, object_id: ObjectID, to: NodeID) -> bool:
        return (
            to in self.receivers.get(object_id, ())
            or (object_id, sending_to(to)) in self.restoring
            or any(request.to == to for request in self.requests.get(object_id, ()))
        )

    # ---- Deaths ----------------------------------------------------------------------------------------------

    def _is_of_this_life(self, node: NodeID, incarnation: int) -> bool:
        """Whether a message of a node is not of a life that is over. The first of a new life ends what was under way
        for the last one."""
        known = self.lives.get(node, 0)
        if incarnation > known:
            self.lives[node] = incarnation
            self._life_over(node)
        return incarnation >= known

    def has_returned(self, node: NodeID, incarnation: int) -> bool:
        """Whether a later life of a node has been heard of than this one."""
        return self.lives.get(node, 0) > incarnation

    def node_died(self, node: NodeID, incarnation: int) -> None:
        """What it had asked for, nobody there waits for any more; unless a later life has asked."""
        if not self.has_returned(node, incarnation):
            self.lives[node] = incarnation + 1
            self._life_over(node)

    def _life_over(self, node: NodeID) -> None:
        """Nobody there waits any more for what was asked of us."""
        self._give_up_all(sending_to(node))
        for key in [key for key, request in self.restoring.items() if request.to == node]:
            del self.restoring[key]
        self.receiver_lost(node)

    def receiver_lost(self, node: NodeID) -> None:
        """Nothing more can be sent there, of what was asked for until now."""
        for want in self.wants.values():
            want.askers = deque(request for request in want.askers if request.to != node)
        for object_id, requests in list(self.requests.items()):
            kept = deque(request for request in requests if request.to != node)
            if kept:
                self.requests[object_id] = kept
            else:
                del self.requests[object_id]
        for object_id in [object_id for object_id, nodes in self.receivers.items() if node in nodes]:
            self.on_sent(object_id, node, complete=False)
        self.store.release_all(sending_to(node))

    # ---- Invariants ------------------------------------------------------------------------------------------

    def check_invariants(self) -> None:
        for object_id, receivers in self.receivers.items():
            arriving = self.wants.get(object_id)
            ensure(
                arriving.source is not None
                if arriving is not None
                else all(sending_to(node) in self.store.objects[object_id].pins for node in receivers),
                "object {} is being sent, and neither pinned nor on its way here",
                object_id,
            )
        for object_id, requests in self.requests.items():
            ensure(bool(requests and self.receivers.get(object_id)), "a line for {} stands still", object_id)
