"""Bringing objects to this node: who wants what, where it is, and one pull at a time for each object.

Theory of operation. A want is an object that is not sealed here, with the users who wait for it (processes of this
node, leases that need it). The head is asked once where it is; it answers as soon as a copy exists anywhere, and asks
the object's owner to make one when none does. The object is then pulled: room is reserved, one source is asked, its
runner sends, ours receives. A source that dies, breaks off or does not have the object any more is replaced by the
next; when all have failed the head is asked again. Two nodes never wait for each other: sending needs no room.

Relies on: the head answers each LocationsWanted in the end, with LocationsKnown or ObjectFailed.
Guarantees: each user who waits is told once: the object is here and pinned for it, or it will not come.
"""

from __future__ import annotations

from collections import deque

from dualray.shared.machines.base import Outbox, ensure
from dualray.shared.machines.object_store import ObjectStore, SpaceRequest
from dualray.shared.model.commands import DeleteObject, SendObject
from dualray.shared.model.errors import ErrorInfo
from dualray.shared.model.events import LocationsKnown, LocationsWanted, ObjectNotHere, ObjectRequested
from dualray.shared.model.ids import HEAD, Address, NodeID, ObjectID, short

_INCOMING = "incoming"


class Want:
    """An object that users of this node wait for."""

    __slots__ = ("awaits_space", "object_id", "owner", "size_bytes", "source", "sources", "users")

    def __init__(self, object_id: ObjectID, owner: Address) -> None:
        self.object_id = object_id
        self.owner = owner
        self.size_bytes = 0
        self.awaits_space = False
        self.users: dict[str, None] = {}
        self.sources: deque[NodeID] = deque()
        """Where copies are said to be, and we have not tried yet."""
        self.source: NodeID | None = None
        """The node that was asked to send."""


class Transfer:
    """See the module."""

    def __init__(self, *, out: Outbox, node: NodeID, store: ObjectStore) -> None:
        self.out = out
        self.node = node
        self.store = store
        self.wants: dict[ObjectID, Want] = {}
        # Worklists that the node machine drains.
        self.arrived: deque[tuple[str, ObjectID, int]] = deque()
        self.unavailable: deque[tuple[str, ObjectID, ErrorInfo]] = deque()

    def want(self, object_id: ObjectID, owner: Address, user: str) -> None:
        """Bring the object here and pin it for the user."""
        if self.store.is_readable(object_id):
            stored = self.store.pin(object_id, user)
            self.arrived.append((user, object_id, stored.size_bytes))
            return
        want = self.wants.get(object_id)
        if want is None:
            want = self.wants[object_id] = Want(object_id, owner)
            if object_id not in self.store.objects:  # else it is being written here: its seal will tell
                self._ask_head(want)
        want.users[user] = None

    def _ask_head(self, want: Want) -> None:
        self.out.send(HEAD, LocationsWanted(object_id=want.object_id, owner=want.owner, node=self.node))

    def give_up(self, object_id: ObjectID, user: str) -> None:
        """The user does not wait any more. A pull that has begun goes on: others may want the object soon."""
        want = self.wants.get(object_id)
        if want is not None:
            want.users.pop(user, None)

    def give_up_all(self, user: str) -> None:
        """The user died."""
        for want in self.wants.values():
            want.users.pop(user, None)

    def on_locations(self, event: LocationsKnown) -> None:
        """The head knows copies."""
        want = self.wants.get(event.object_id)
        if want is None or want.source is not None or self.store.is_sealed(event.object_id):
            return
        want.size_bytes = event.size_bytes
        want.owner = event.owner
        want.sources = deque(node for node in event.nodes if node != self.node)
        if not want.sources:  # only we are said to have it, and we do not: the news of our eviction is on its way
            self._ask_head(want)
            return
        if event.object_id in self.store.objects or want.awaits_space:
            return  # it is being written here, or room has been asked for
        want.awaits_space = True
        self.store.request_space(
            SpaceRequest(
                object_id=event.object_id,
                size_bytes=event.size_bytes,
                owner=event.owner,
                remakeable=True,
                user=_INCOMING,
            )
        )

    def on_space_granted(self, request: SpaceRequest, *, present: bool) -> None:
        """There is room for an object that comes from elsewhere."""
        want = self.wants.get(request.object_id)
        if want is not None:
            want.awaits_space = False
        if present:
            return
        if want is None:
            self.store.abort(request.object_id, _INCOMING)
            return
        self._try_next_source(want)

    def on_abandoned(self, object_id: ObjectID) -> None:
        """A process of this node died while it wrote the object: those who wait for it need another copy."""
        want = self.wants.get(object_id)
        if want is not None:
            self._ask_head(want)

    def _try_next_source(self, want: Want) -> None:
        want.source = None
        if not want.sources:
            self.store.abort(want.object_id, _INCOMING)
            self._ask_head(want)
            return
        want.source = want.sources.popleft()
        self.out.send(Address(want.source), ObjectRequested(object_id=want.object_id, to=self.node))

    def source_failed(self, object_id: ObjectID, source: NodeID) -> None:
        """A source broke off, died, or does not have the object."""
        want = self.wants.get(object_id)
        if want is not None and want.source == source:
            self._try_next_source(want)

    def source_lost(self, node: NodeID) -> None:
        """The connection to a node broke, though it may live: what it was asked for will not come."""
        for want in list(self.wants.values()):
            self.source_failed(want.object_id, node)
        self.store.release_all(_sending_to(node))

    def node_died(self, node: NodeID) -> None:
        """Sources and receivers on that node are gone."""
        for want in list(self.wants.values()):
            want.sources = deque(source for source in want.sources if source != node)
            self.source_failed(want.object_id, node)
        self.store.release_all(_sending_to(node))

    def on_received(self, object_id: ObjectID, source: NodeID) -> None:
        """All bytes are here."""
        want = self.wants.get(object_id)
        if want is not None and want.source == source:
            self.store.seal(object_id, _INCOMING)
        elif object_id not in self.store.objects:  # nobody waits for them any more
            self.out.add(DeleteObject(object_id=object_id))

    def on_sealed(self, object_id: ObjectID) -> None:
        """The object can be read here: those who wait for it have it pinned."""
        want = self.wants.pop(object_id, None)
        if want is None:
            return
        for user in want.users:
            stored = self.store.pin(object_id, user)
            self.arrived.append((user, object_id, stored.size_bytes))

    def on_failed(self, object_id: ObjectID, error: ErrorInfo) -> None:
        """The object will not come."""
        want = self.wants.pop(object_id, None)
        if want is None:
            return
        self.store.abort(object_id, _INCOMING)
        for user in want.users:
            self.unavailable.append((user, object_id, error))

    # ---- The other side ----------------------------------------------------------------------------------------

    def on_requested(self, event: ObjectRequested) -> None:
        """Another node asks for the object."""
        if not self.store.is_sealed(event.object_id):
            self.out.send(Address(event.to), ObjectNotHere(object_id=event.object_id, node=self.node))
            return
        stored = self.store.pin(event.object_id, _sending_to(event.to))
        self.out.add(SendObject(object_id=event.object_id, size_bytes=stored.size_bytes, to=event.to))

    def on_sent(self, object_id: ObjectID, to: NodeID) -> None:
        """It has been sent, or sending failed."""
        self.store.unpin(object_id, _sending_to(to))

    def check_invariants(self) -> None:
        for object_id, want in self.wants.items():
            ensure(
                not self.store.is_sealed(object_id),
                "object {} is here and users still wait for it",
                short(object_id),
            )
            ensure(
                want.source is None or object_id in self.store.objects,
                "object {} is being received without room",
                short(object_id),
            )


def _sending_to(node: NodeID) -> str:
    return f"sending to {node}"


def is_incoming(user: str) -> bool:
    """Whether a space request came from a transfer, as opposed to a process of this node."""
    return user == _INCOMING
