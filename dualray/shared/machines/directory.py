"""The object table: which nodes hold a copy of which object, who owns it, and which nodes wait for it.

Theory of operation. Nodes report each sealed copy and each eviction. A node that wants an object subscribes until it
is told of a copy. When an object is wanted and no copy is known, its owner is asked (ObjectDemanded), with the number
of times that the last known copy has gone: so an owner that is making the object again already can tell old news from
new. An owner that frees an object has it deleted everywhere; one that dies loses its objects. The news that an object
is free may overtake the news that it was sealed, for they come from different processes: it is then noted, and that copy
is deleted when it is reported.

Relies on: owners answer a demand by making the object again, or with ObjectFailed.
Guarantees: each subscriber is told of a copy, or of the failure; a freed object is forgotten.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from dualray.shared.machines.base import Outbox
from dualray.shared.model.commands import WriteRecord
from dualray.shared.model.errors import ErrorInfo, ErrorKind
from dualray.shared.model.events import (
    LocationsKnown,
    LocationsWanted,
    ObjectAdded,
    ObjectDemanded,
    ObjectFailed,
    ObjectRemoved,
    ObjectsFreed,
)
from dualray.shared.model.ids import Address, NodeID, ObjectID, short
from dualray.shared.model.specs import LeaseShape

FREED_EARLY_MAX = 100_000
"""Objects that were freed before their seal was reported; of more, those noted first are forgotten."""


class Entry:
    """One object in stores."""

    __slots__ = ("losses", "nodes", "owner", "size_bytes", "subscribers")

    def __init__(self, owner: Address) -> None:
        self.owner = owner
        self.size_bytes = 0
        self.nodes: dict[NodeID, None] = {}
        self.losses = 0
        self.subscribers: dict[NodeID, None] = {}


class Directory:
    """See the module."""

    def __init__(self, *, out: Outbox, is_alive: Callable[[NodeID, int], bool]) -> None:
        self.out = out
        self.is_alive = is_alive
        self.entries: dict[ObjectID, Entry] = {}
        self.dead_owners: dict[Address, None] = {}
        self.freed_early: dict[ObjectID, None] = {}

    def on_added(self, event: ObjectAdded) -> None:
        """A node holds a sealed copy."""
        if not self.is_alive(event.node, event.incarnation):
            return
        if event.object_id in self.freed_early:
            del self.freed_early[event.object_id]
            self.out.send(Address(event.node), ObjectsFreed(object_ids=(event.object_id,)))
            return
        entry = self.entries.get(event.object_id)
        if entry is None:
            entry = self.entries[event.object_id] = Entry(event.owner)
        entry.size_bytes = event.size_bytes
        entry.nodes[event.node] = None
        fields = (("owner", event.owner), ("bytes", str(event.size_bytes)), ("nodes", " ".join(entry.nodes)))
        self.out.add(WriteRecord(table="objects", key=event.object_id.hex(), fields=fields))
        for node in entry.subscribers:
            self._tell(event.object_id, entry, node)
        entry.subscribers.clear()

    def on_removed(self, event: ObjectRemoved) -> None:
        """A node has evicted its copy."""
        entry = self.entries.get(event.object_id)
        if entry is not None and self.is_alive(event.node, event.incarnation):
            self._lose_copy(event.object_id, entry, event.node)

    def _lose_copy(self, object_id: ObjectID, entry: Entry, node: NodeID) -> None:
        if node not in entry.nodes:
            return
        del entry.nodes[node]
        if not entry.nodes:
            entry.losses += 1
            if entry.subscribers:
                self._demand(object_id, entry)

    def on_wanted(self, event: LocationsWanted) -> None:
        """A node wants to know where an object is."""
        entry = self.entries.get(event.object_id)
        if entry is None:
            entry = self.entries[event.object_id] = Entry(event.owner)
        if any(node != event.node for node in entry.nodes):
            self._tell(event.object_id, entry, event.node)
            return
        if event.owner in self.dead_owners:
            self._fail(event.object_id, (event.node,), _owner_died(event.object_id, event.owner))
            return
        entry.subscribers[event.node] = None
        if not entry.nodes:
            self._demand(event.object_id, entry)

    def _tell(self, object_id: ObjectID, entry: Entry, node: NodeID) -> None:
        known = LocationsKnown(
            object_id=object_id, size_bytes=entry.size_bytes, owner=entry.owner, nodes=tuple(entry.nodes)
        )
        self.out.send(Address(node), known)

    def _demand(self, object_id: ObjectID, entry: Entry) -> None:
        self.out.send(entry.owner, ObjectDemanded(object_id=object_id, losses=entry.losses))

    def on_failed(self, event: ObjectFailed) -> None:
        """The owner cannot make the object again."""
        entry = self.entries.get(event.object_id)
        if entry is not None:
            self._fail(event.object_id, entry.subscribers, event.error)
            entry.subscribers.clear()

    def _fail(self, object_id: ObjectID, nodes: Iterable[NodeID], error: ErrorInfo) -> None:
        for node in nodes:
            self.out.send(Address(node), ObjectFailed(object_id=object_id, error=error))

    def on_freed(self, event: ObjectsFreed) -> None:
        """Nobody wants these objects: delete every copy."""
        by_node: dict[NodeID, list[ObjectID]] = {}
        for object_id in event.object_ids:
            entry = self.entries.pop(object_id, None)
            if entry is None or not (entry.nodes or entry.losses):
                self._note_freed_early(object_id)
            for node in entry.nodes if entry is not None else ():
                by_node.setdefault(node, []).append(object_id)
        for node, object_ids in by_node.items():
            self.out.send(Address(node), ObjectsFreed(object_ids=tuple(object_ids)))

    def _note_freed_early(self, object_id: ObjectID) -> None:
        self.freed_early[object_id] = None
        if len(self.freed_early) > FREED_EARLY_MAX:
            del self.freed_early[next(iter(self.freed_early))]

    def node_died(self, node: NodeID) -> None:
        """Its copies are gone; what others still wait for, and have no source for, is demanded of its owner."""
        for object_id, entry in list(self.entries.items()):
            entry.subscribers.pop(node, None)
            if node in entry.nodes:
                self._lose_copy(object_id, entry, node)
            elif not entry.nodes and entry.subscribers:
                self._demand(object_id, entry)

    def owners_died(self, is_dead: Callable[[Address], bool]) -> None:
        """What they owned can be made by nobody; nodes delete their copies themselves."""
        for object_id, entry in list(self.entries.items()):
            if is_dead(entry.owner):
                self.dead_owners[entry.owner] = None
                self._fail(object_id, entry.subscribers, _owner_died(object_id, entry.owner))
                del self.entries[object_id]

    def local_bytes(self, shape: LeaseShape) -> Mapping[NodeID, int]:
        """For each node, how many bytes of the shape's arguments it holds."""
        held: dict[NodeID, int] = {}
        for hint in shape.deps:
            entry = self.entries.get(hint.object_id)
            for node in entry.nodes if entry is not None else ():
                held[node] = held.get(node, 0) + max(entry.size_bytes if entry is not None else 0, 1)
        return held


def _owner_died(object_id: ObjectID, owner: Address) -> ErrorInfo:
    message = f"Object {short(object_id)} is lost: {owner}, which owned it, died."
    return ErrorInfo(kind=ErrorKind.OWNER_DIED, message=message)
