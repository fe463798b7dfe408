"""The object table: which nodes hold a copy of which object, who owns it, and which nodes wait for it.

Theory of operation. Nodes report each sealed copy and each eviction. A node that wants an object subscribes until it
is told of a copy. When an object is wanted and no copy is known, its owner is asked (ObjectDemanded), with the number
of times that the last known copy has gone: so an owner that is making the object again already can tell old news from
new. When no copy was ever known, and the owner believes that there was one, it asks as a node does, once it knows that
who sealed the copy is dead: then no news of it is on its way any more, and the demand that answers (`asked`) means that
it is lost. An owner that frees an object has it deleted everywhere; one that dies loses its objects.

The news of a copy may come after the news that its object is free, or has failed, for they come from different
processes: the copy was sealed or fetched meanwhile, or it is that of an attempt that was given up. The last objects
that were freed are therefore noted. When a copy of one is reported its owner is asked (ObjectDemanded, with NO_DEMAND
for the losses): it answers only when it does not want the copy, which may also be a new one, of a task that runs again.
So it is about the items of a generator that has ended and had lost attempts (ItemsDoubted): nobody knows which items
such an attempt has stored.

Who asks for a copy is told whom to ask, in an order that the broadcast policy chooses, and counts from then on as one
that is receiving it (Pull): the next to ask may be sent to him. Each answer has a number, its turn. A node serves what
it has only in part to those of a later turn than its own; and who asks the head again, because his pull has failed,
gets a new turn, and serves nobody any more who has an earlier one. So bytes go from earlier turns to later ones only,
and no nodes wait for one another in a circle, in whatever order news arrives.

A node may be out of another's reach though the head hears both. Who asks names the nodes that are out of his; they
count as that until he has the object. When nobody else has a copy, a third node is had to fetch one (Relay), which is a
source like any other then. After `RELAYS_MAX` that could not, or when there is no third node, the owner is asked
whether it can make the object again (CopiesDoubted); so it is at once when several holders are out of reach, for then
who asks is likelier cut off himself. If it can, the copies are given up: their nodes delete them, and say so, and with
the last of them the object is lost like any other. So there are never copies of two attempts that count: a pull of the
old bytes that ends later is told by its turn. The demand names who waits, for the object is to be made there, and the
nodes that do not reach one another are parted. Else (it was put, an actor has made it, no retry is left) more relays
are tried, and then who asks is told that the object cannot be had from there, and why; others may still have it.

Nobody waits for a partition to heal instead. By now it has lasted for four times `link_patience_ns` at least, and says
nothing of its end; making the object again costs one retry, and what comes too late costs the program. What cannot be
made again may be asked for once more: the error is the reader's, not the object's.

Relies on: owners answer a demand by making the object again, or with ObjectFailed, and a doubt in any case; what a
process has sealed is reported before its death; who is to delete a copy says so when he has.
Guarantees: each subscriber is told of a copy, or of the failure; a freed object is forgotten.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dualray.shared.machines.base import Outbox
from dualray.shared.model.commands import WriteRecord
from dualray.shared.model.errors import ErrorInfo, ErrorKind
from dualray.shared.model.events import (
    CopiesDoubted,
    CopiesJudged,
    CopyKept,
    CopyWanted,
    ItemsDoubted,
    LocationsKnown,
    LocationsWanted,
    NodeEmptied,
    ObjectAdded,
    ObjectDemanded,
    ObjectFailed,
    ObjectRemoved,
    ObjectsFreed,
)
from dualray.shared.model.ids import Address, NodeID, ObjectID, TaskID, short, task_of
from dualray.shared.model.specs import LeaseShape
from dualray.shared.policies.broadcast import BroadcastPolicy, Source

FREED_MAX = 100_000
"""Freed objects that are noted, and generators; of more, those noted first are forgotten."""

RELAYS_MAX = 3
"""Nodes that are had to fetch an object for one that cannot reach its holders, one after the other."""

NO_DEMAND = -1
"""Losses of an object that is known, but perhaps not wanted."""


@dataclass(slots=True)
class Pull:
    """A node that was told where to get an object, and has not reported it yet; `depth` as in Source."""

    source: NodeID
    depth: int


@dataclass(slots=True)
class Move:
    """An object that `keeper` is to take from a node that leaves."""

    keeper: NodeID
    remakeable: bool


@dataclass(slots=True)
class Leaving:
    """A node that is about to leave: the objects that others must have first, and how often it has told of more."""

    moves: dict[ObjectID, Move] = field(default_factory=dict)
    repeats: int = 0


@dataclass(slots=True)
class Relay:
    """An object whose holders some nodes cannot reach: `via` is to fetch it for them, or its owner to make it again."""

    via: NodeID | None = None
    tried: dict[NodeID, None] = field(default_factory=dict)
    cut_off: dict[NodeID, None] = field(default_factory=dict)
    """Who waits."""
    is_doubted: bool = False
    """The owner was asked."""
    why_kept: str | None = None
    """It cannot make it again."""
    is_given_up: bool = False
    """It is about to make it again, when the copies have gone."""

    @property
    def is_with_owner(self) -> bool:
        return self.is_doubted and self.why_kept is None


class Entry:
    """One object in stores."""

    __slots__ = (
        "given_up",
        "losses",
        "nodes",
        "owner",
        "pulls",
        "size_bytes",
        "stale_turn",
        "subscribers",
        "was_evicted",
        "was_held_up",
    )

    def __init__(self, owner: Address) -> None:
        self.owner = owner
        self.size_bytes = 0
        self.nodes: dict[NodeID, None] = {}
        self.losses = 0
        self.stale_turn = 0
        """What is pulled in this turn, or in an earlier one, are bytes that were given up."""
        self.given_up: dict[NodeID, None] = {}
        """Where copies were that its owner gave up, for who waited could not reach them."""
        self.was_evicted = False
        """Whether the last copy left a full store."""
        self.was_held_up = False
        """Whether who had the last copy was (ObjectRemoved), when it went."""
        self.subscribers: dict[NodeID, bool] = {}
        """Who waits, and whether he was held up (LocationsWanted) when he asked."""
        self.pulls: dict[NodeID, Pull] = {}
        """In the order of their turns."""


class Directory:
    """See the module."""

    def __init__(
        self,
        *,
        out: Outbox,
        is_alive: Callable[[NodeID, int | None], bool],
        is_gone: Callable[[Address], bool],
        staying: Callable[[], Sequence[NodeID]],
        broadcast: BroadcastPolicy,
        piece_bytes: int,
    ) -> None:
        self.out = out
        self.broadcast = broadcast
        self.piece_bytes = piece_bytes
        self.turns = 0
        self.is_alive = is_alive
        self.is_gone = is_gone
        self.staying = staying
        self.entries: dict[ObjectID, Entry] = {}
        self.freed: dict[ObjectID, None] = {}
        self.doubted: dict[TaskID, None] = {}
        """Generators of whose items there may be copies that their owners know nothing of."""
        self.relays: dict[ObjectID, Relay] = {}
        self.away: dict[ObjectID, dict[NodeID, dict[NodeID, None]]] = {}
        """Of objects that some nodes cannot be brought, which nodes are out of the reach of these."""
        self.leaving: dict[NodeID, Leaving] = {}
        # Worklists that the head machine drains.
        self.copies_lost: list[ObjectID] = []
        self.parted: list[tuple[NodeID, NodeID]] = []
        """Who waits for an object, and who has a copy that is out of his reach."""
        self.released: list[tuple[NodeID, int]] = []
        """Nodes that may end, and how often each had repeated that it is empty."""

    def on_added(self, event: ObjectAdded) -> None:
        """A node holds a sealed copy."""
        if not self.is_alive(event.node, event.incarnation):
            return
        if self.is_gone(event.owner):
            self.out.send(Address(event.node), ObjectsFreed(object_ids=(event.object_id,)))
            return
        entry = self.entries.get(event.object_id)
        if entry is None:
            entry = self.entries[event.object_id] = Entry(event.owner)
            if event.object_id in self.freed or (self.doubted and task_of(event.object_id) in self.doubted):
                self._doubt(event.object_id, entry)
        elif 0 < event.turn <= entry.stale_turn:
            self.out.send(Address(event.node), ObjectsFreed(object_ids=(event.object_id,)))
            return
        entry.size_bytes = event.size_bytes
        entry.nodes[event.node] = None
        entry.pulls.pop(event.node, None)
        fields = (("owner", event.owner), ("bytes", str(event.size_bytes)), ("nodes", " ".join(entry.nodes)))
        self.out.add(WriteRecord(table="objects", key=event.object_id.hex(), fields=fields))
        for node in entry.subscribers:
            self._tell(event.object_id, entry, node)
        entry.subscribers.clear()
        if self.relays:
            self.relays.pop(event.object_id, None)  # who cannot reach this node, either, asks again
        if self.away:
            self._is_served(event.object_id, event.node)

    def _doubt(self, object_id: ObjectID, entry: Entry) -> None:
        """Ask the owner of an object whether it wants it."""
        self.out.send(entry.owner, ObjectDemanded(object_id=object_id, losses=NO_DEMAND))

    def on_items_doubted(self, event: ItemsDoubted) -> None:
        """A generator has ended, and some attempt of it was lost."""
        _note(self.doubted, event.task_id)
        for object_id, entry in self.entries.items():
            if task_of(object_id) == event.task_id:
                self._doubt(object_id, entry)

    def on_removed(self, event: ObjectRemoved) -> None:
        """A node has a copy no more."""
        entry = self.entries.get(event.object_id)
        if entry is not None and self.is_alive(event.node, event.incarnation):
            self._lose_copy(
                event.object_id, entry, event.node, is_held_up=event.is_held_up, is_eviction=event.is_eviction
            )

    def _lose_copy(
        self,
        object_id: ObjectID,
        entry: Entry,
        node: NodeID,
        *,
        is_held_up: bool = False,
        is_eviction: bool = False,
    ) -> None:
        if node not in entry.nodes:
            return
        del entry.nodes[node]
        if not entry.nodes:
            entry.losses += 1
            entry.was_held_up = is_held_up
            entry.was_evicted = is_eviction
            entry.pulls.clear()  # what is made anew may be other bytes than those that are still on their way
            if (relay := self.relays.get(object_id)) is not None and relay.is_given_up:
                entry.stale_turn = self.turns
            self.copies_lost.append(object_id)
            if entry.subscribers:
                self._demand(object_id, entry)

    def on_wanted(self, event: LocationsWanted) -> None:
        """A node wants to know where an object is."""
        if not self.is_alive(event.node, None):
            return
        if self.is_gone(event.owner):
            self._fail(event.object_id, (event.node,), _owner_died(event.object_id, event.owner))
            return
        entry = self.entries.get(event.object_id)
        if entry is None:
            entry = self.entries[event.object_id] = Entry(event.owner)
        away = self._note_away(event) if event.unreachable or self.away else {}
        if any(node != event.node and node not in away for node in entry.nodes):
            self._tell(event.object_id, entry, event.node, pulls=not event.by_owner)
            return
        entry.subscribers[event.node] = event.is_held_up
        if not entry.nodes:
            self._demand(event.object_id, entry, asked=event.by_owner)
        elif away:
            relay = self.relays.setdefault(event.object_id, Relay())
            relay.cut_off[event.node] = None
            if relay.via is None or relay.via == event.node:
                self._pass_on(event.object_id, entry, relay)

    def _note_away(self, event: LocationsWanted) -> dict[NodeID, None]:
        """The nodes that are out of the reach of who asks, and those that have been since he waits for the object."""
        if not event.unreachable:
            self._is_served(event.object_id, event.node)
            return {}
        away = self.away.setdefault(event.object_id, {}).setdefault(event.node, {})
        away.update(dict.fromkeys(event.unreachable))
        return away

    def _is_served(self, object_id: ObjectID, node: NodeID) -> None:
        """A node has the object that could not be brought there, or waits for it no more."""
        away = self.away.get(object_id, {})
        if away.pop(node, None) is not None and not away:
            del self.away[object_id]

    def _pass_on(self, object_id: ObjectID, entry: Entry, relay: Relay) -> None:
        """Have the next node fetch the object, or its owner make it again, or tell those who wait that it cannot be
        had."""
        relay.via = None
        if relay.is_with_owner:
            return
        away = self.away.get(object_id, {})
        fit = [
            node
            for node in self.staying()
            if not (node in relay.tried or node in relay.cut_off or node in entry.nodes)
            and any(node not in away.get(other, ()) for other in relay.cut_off)
        ]
        is_hopeful = bool(fit) and len(relay.tried) < RELAYS_MAX
        is_made_again = bool(entry.nodes) and all(node in entry.given_up for node in entry.nodes)
        if is_made_again and not is_hopeful and not relay.is_doubted:
            relay.is_doubted, relay.why_kept = True, "its task ran again, and its result lies there again"
        if relay.cut_off and entry.nodes and not relay.is_doubted and (len(entry.nodes) > 1 or not is_hopeful):
            relay.is_doubted = True
            self.out.send(entry.owner, CopiesDoubted(object_id=object_id, node=next(iter(relay.cut_off))))
            return
        if entry.nodes and is_hopeful:
            relay.via = fit[0]
            relay.tried[relay.via] = None
            self.out.send(Address(relay.via), CopyWanted(object_id=object_id, owner=entry.owner, remakeable=True))
            return
        del self.relays[object_id]
        if not entry.nodes:
            return  # they wait for a copy that is being made
        for node in relay.cut_off:
            self._is_served(object_id, node)
            if entry.subscribers.pop(node, None) is not None:
                self._fail(object_id, (node,), self._unreachable(object_id, entry, node, relay))

    def on_judged(self, event: CopiesJudged) -> None:
        """An owner has said whether the copies that are out of reach may be given up."""
        relay = self.relays.get(event.object_id)
        if relay is None or not relay.is_with_owner:
            return
        entry, away = self.entries[event.object_id], self.away.get(event.object_id, {})
        if event.why_kept is not None or not relay.cut_off:
            relay.why_kept = event.why_kept or ""
            self._pass_on(event.object_id, entry, relay)
            return
        relay.is_given_up = True
        entry.given_up.update(entry.nodes)
        for holder in entry.nodes:
            self.parted += [(node, holder) for node in relay.cut_off if holder in away.get(node, ())]
            self.out.send(Address(holder), ObjectsFreed(object_ids=(event.object_id,)))

    def _unreachable(self, object_id: ObjectID, entry: Entry, node: NodeID, relay: Relay) -> ErrorInfo:
        tried = [other for other in relay.tried if other != node]
        others = f", and {' and '.join(tried)} could not pass it on" if tried else ", and no other node can pass it on"
        message = (
            f"Object {short(object_id)} of {entry.size_bytes:,} bytes cannot be sent to {node}: its copies are on "
            f"{' and '.join(entry.nodes)}, and {node} receives nothing from there, although the head reaches "
            f"both{others}. The object cannot be recomputed: {relay.why_kept}. The network between {node} and "
            f"{' and '.join(entry.nodes)} is broken: repair it, or stop one of the nodes."
        )
        return ErrorInfo(kind=ErrorKind.UNREACHABLE, message=message)

    def _tell(self, object_id: ObjectID, entry: Entry, node: NodeID, *, pulls: bool = True) -> None:
        """Tell a node whom to ask; with `pulls`, it is going to."""
        if pulls:
            entry.pulls.pop(node, None)  # it has given up what it had, if it asks again
        nodes = self._sources(entry, node)
        if pulls:
            first = entry.pulls.get(nodes[0])
            entry.pulls[node] = Pull(nodes[0], first.depth + 1 if first is not None else 1)
        self.turns += 1
        known = LocationsKnown(
            object_id=object_id, size_bytes=entry.size_bytes, owner=entry.owner, nodes=nodes, turn=self.turns
        )
        self.out.send(Address(node), known)

    def _sources(self, entry: Entry, asker: NodeID) -> tuple[NodeID, ...]:
        receivers = Counter(pull.source for pull in entry.pulls.values())
        sources = [Source(node, receivers[node], 0) for node in entry.nodes if node != asker]
        if not sources:  # the asker is said to have it, and does not: the news that it has gone is on its way
            return tuple(entry.nodes)
        sources += [Source(node, receivers[node], pull.depth) for node, pull in entry.pulls.items() if node != asker]
        return tuple(self.broadcast.choose(sources, size_bytes=entry.size_bytes, piece_bytes=self.piece_bytes))

    def _demand(self, object_id: ObjectID, entry: Entry, *, asked: bool = False) -> None:
        relay = self.relays.get(object_id)
        near = next((node for node in relay.cut_off if node in entry.subscribers), None) if relay is not None else None
        demanded = ObjectDemanded(
            object_id=object_id,
            losses=entry.losses,
            asked=asked,
            near=near,
            is_held_up=entry.was_held_up or any(entry.subscribers.values()),
            was_evicted=entry.was_evicted,
        )
        self.out.send(entry.owner, demanded)

    def on_failed(self, event: ObjectFailed) -> None:
        """The owner cannot make the object again, or does not want it: what copies there are go."""
        self._forget(event.object_id, event.error)

    def _fail(self, object_id: ObjectID, nodes: Iterable[NodeID], error: ErrorInfo) -> None:
        for node in nodes:
            self.out.send(Address(node), ObjectFailed(object_id=object_id, error=error))

    def on_freed(self, event: ObjectsFreed) -> None:
        """Nobody wants these objects: delete every copy."""
        for object_id in event.object_ids:
            message = f"Object {short(object_id)} was freed, because its last reference had been dropped."
            self._forget(object_id, ErrorInfo(kind=ErrorKind.OBJECT_LOST, message=message))

    def _forget(self, object_id: ObjectID, error: ErrorInfo) -> None:
        _note(self.freed, object_id)
        entry = self.entries.pop(object_id, None)
        if entry is not None:
            for node in entry.nodes:
                self.out.send(Address(node), ObjectsFreed(object_ids=(object_id,)))
            self._fail(object_id, entry.subscribers, error)
            self._let_go(object_id)

    def _let_go(self, object_id: ObjectID) -> None:
        """Nobody waits for the object any more, wherever it is."""
        self.relays.pop(object_id, None)
        self.away.pop(object_id, None)

    def on_emptied(self, event: NodeEmptied) -> None:
        """A node is about to leave: others take what only it has, in turn, and what nothing can make again."""
        others = self.staying()
        needed = frozenset(event.needed)  # membership only
        leaving = self.leaving.setdefault(event.node, Leaving())
        leaving.repeats = event.repeats
        moved = leaving.moves
        for object_id, entry in self.entries.items() if others else ():
            if event.node not in entry.nodes or object_id in moved:
                continue
            holders = [node for node in entry.nodes if node in others]
            if holders and object_id not in needed:
                continue
            keeper = holders[0] if holders else others[len(moved) % len(others)]
            self._move(moved, object_id, keeper, remakeable=object_id not in needed)
        if not moved:
            self.released.append((event.node, event.repeats))
        self._replace_keeper(event.node, others)

    def on_drain_given_up(self, node: NodeID) -> None:
        """A node stays: what others were to take is safe there."""
        self.leaving.pop(node, None)

    def needs(self, node: NodeID) -> bool:
        """Whether somebody has to hear at once that a node is gone: it did not leave in order, is the only one that has
        some object, or others get one from it."""
        leaving = self.leaving.get(node)
        if leaving is None or leaving.moves or self.away or self.relays:
            return True
        for entry in self.entries.values():
            if node in entry.nodes and len(entry.nodes) == 1:
                return True
            if any(pull.source == node for pull in entry.pulls.values()):
                return True
        return False

    def _move(self, moved: dict[ObjectID, Move], object_id: ObjectID, keeper: NodeID, *, remakeable: bool) -> None:
        moved[object_id] = Move(keeper, remakeable)
        wanted = CopyWanted(object_id=object_id, owner=self.entries[object_id].owner, remakeable=remakeable)
        self.out.send(Address(keeper), wanted)

    def _replace_keeper(self, keeper: NodeID, others: Sequence[NodeID]) -> None:
        """A node that was to take objects from others leaves itself, or is dead: those who stay take them."""
        for node, leaving in self.leaving.items():
            moved = leaving.moves
            theirs = [object_id for object_id, move in moved.items() if move.keeper == keeper]
            for turn, object_id in enumerate(theirs):
                move = moved.pop(object_id)
                if others and object_id in self.entries:
                    self._move(moved, object_id, others[turn % len(others)], remakeable=move.remakeable)
            if theirs and not moved:
                self.released.append((node, leaving.repeats))

    def on_kept(self, event: CopyKept) -> None:
        """A node has the copy that was wanted of it, or cannot have it."""
        relay = self.relays.get(event.object_id)
        if relay is not None and relay.via == event.node:
            self._pass_on(event.object_id, self.entries[event.object_id], relay)
        for node, leaving in self.leaving.items():
            move = leaving.moves.get(event.object_id)
            if move is not None and move.keeper == event.node:
                del leaving.moves[event.object_id]
                if not leaving.moves:
                    self.released.append((node, leaving.repeats))

    def node_died(self, node: NodeID) -> None:
        """Its copies are gone; what others still wait for, and have no source for, is demanded of its owner."""
        self.leaving.pop(node, None)
        self._replace_keeper(node, self.staying())
        for object_id in list(self.away):
            self._is_served(object_id, node)
        for object_id, relay in list(self.relays.items()):
            relay.cut_off.pop(node, None)
            if relay.via == node:
                self._pass_on(object_id, self.entries[object_id], relay)
        for object_id, entry in list(self.entries.items()):
            entry.subscribers.pop(node, None)
            entry.pulls.pop(node, None)
            if node in entry.nodes:
                self._lose_copy(object_id, entry, node)
            elif not entry.nodes and entry.subscribers:
                self._demand(object_id, entry)

    def owners_died(self, is_dead: Callable[[Address], bool]) -> None:
        """What they owned can be made by nobody; nodes delete their copies themselves."""
        for object_id, entry in list(self.entries.items()):
            if is_dead(entry.owner):
                self._fail(object_id, entry.subscribers, _owner_died(object_id, entry.owner))
                del self.entries[object_id]
                self._let_go(object_id)

    def copies_on(self, object_id: ObjectID) -> Collection[NodeID]:
        """The nodes that hold the object."""
        entry = self.entries.get(object_id)
        return entry.nodes if entry is not None else ()

    def local_bytes(self, shape: LeaseShape) -> Mapping[NodeID, int]:
        """For each node, how many bytes of the shape's arguments it holds."""
        held: dict[NodeID, int] = {}
        for hint in shape.deps:
            entry = self.entries.get(hint.object_id)
            for node in entry.nodes if entry is not None else ():
                held[node] = held.get(node, 0) + max(entry.size_bytes if entry is not None else 0, 1)
        return held


def _note(noted: dict[Any, None], each: ObjectID | TaskID) -> None:
    noted.pop(each, None)
    noted[each] = None
    if len(noted) > FREED_MAX:
        del noted[next(iter(noted))]


def _owner_died(object_id: ObjectID, owner: Address) -> ErrorInfo:
    message = f"Object {short(object_id)} is lost: {owner}, which owned it, died."
    return ErrorInfo(kind=ErrorKind.OWNER_DIED, message=message)
