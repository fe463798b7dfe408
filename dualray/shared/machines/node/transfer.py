"""Bringing objects to this node: who wants what, where it is, and one pull at a time for each object.

Theory of operation. A want is an object that is not sealed here, with the users who wait for it (processes of this
node, leases that need it). The head is asked once where it is; it answers as soon as a copy exists anywhere, and asks
the object's owner to make one when none does. The object is then pulled: room is reserved, one source is asked, its
runner sends, ours receives. Two nodes never wait for each other: sending needs no room.

Admission. At most `pull_bytes_max` are pulled at a time (one object always may be); other pulls wait in order.

When a source dies, breaks off or does not have the object any more, the next one is asked for the rest: the bytes that
came are kept, for all sources that the head named together hold the same bytes. When all have failed, everything is
given up and the head is asked again: a copy that it then names may have been made anew. Asked for the same object
`_VAIN_MAX` times in a row with nothing to show for it, it is asked once in `heartbeat_timeout_ns`.

Who only asks where an object is (a *watcher*: a task that has not begun) is told when a copy exists, and asks for the
bytes when it wants them here: so nothing is held for whoever waits for something that is yet to be made.

Broadcast. The head may send a node to one that is receiving the object itself, of an earlier turn (directory.py):
that one passes on what comes, as it comes, and so a large object goes along a chain of nodes at the speed of one copy.
Only a pull that is under way serves others: who asks while its locations or its memory are still being found waits
until it is; when it has to wait for longer, for room or for other pulls, they are told to ask elsewhere. So who waits
for a pull waits for bytes, and for bytes of earlier turns only: never in a circle. A pull that ends without the object
breaks off with those whom it serves; they keep what they have got, and ask the next source for the rest.

A node sends one object to at most `broadcast_receivers_max` others at a time. Further ones stand in line; whenever a
receiver has it all, the first in line is served, and the next is told to ask that receiver (ObjectElsewhere), who holds
the same bytes: so the number of sources doubles with each round.

Nothing is waited for without end. What a node was asked for and has not sent for `link_patience_ns` it is asked for
again (ObjectsAwaited), whatever became of the first request: it says that it is there, and what it does not have. One
that says nothing for `_DOUBTS_MAX` times as long, or to which connections break for so long, is out of reach, though
the head has not declared it dead: then the head hears of it with each question, and names others, or has a third node
fetch the object first, or says that it cannot be had (directory.py). A node that has the object on disk alone, and no
room to read it back, says so (ObjectNotHere with an error); whoever waits hears of it after `refusals_max` times.

Lives. A node that comes back may ask for something before the news of its last life's end is here, or what that one had
asked may come late. A request says which life it is of: the first of a new life ends what was under way for the last
one, and neither late news nor late requests of a life that is over change anything for the next.

A process here that has made the object itself takes precedence over a pull: the pull is given up. For its source may be
waiting to hear of a copy, and that process's may be the only one to come.

Relies on: the head answers each LocationsWanted in the end, with LocationsKnown or ObjectFailed.
Guarantees: each user who waits is told once: the object is here and pinned for it, or it will not come.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from dualray.shared.machines.base import Outbox, ensure
from dualray.shared.machines.node.object_store import ObjectStore, SpaceRequest
from dualray.shared.model.commands import ArmTimer, DeleteObject, ReceiveObject, SendObject
from dualray.shared.model.config import Config
from dualray.shared.model.errors import ErrorInfo, ErrorKind
from dualray.shared.model.events import (
    LocationsKnown,
    LocationsWanted,
    NodeThere,
    ObjectElsewhere,
    ObjectNotHere,
    ObjectRequested,
    ObjectsAwaited,
)
from dualray.shared.model.ids import HEAD, Address, NodeID, ObjectID

_INCOMING = "incoming"
_SENDING_TO = "sending to "
PULLS_TIMER = "pulls"
ASKS_TIMER = "asks"
_DOUBTS_MAX = 3
_UNREACHABLE_MAX = 6
"""So often `link_patience_ns` a node counts as out of reach; then it is tried again."""
_VAIN_MAX = 8
"""So often in a row the head is asked again at once; then once in `heartbeat_timeout_ns`."""


class Want:
    """An object that users of this node wait for."""

    __slots__ = (
        "asked",
        "asked_ns",
        "askers",
        "awaits_space",
        "is_early",
        "is_located",
        "object_id",
        "offset",
        "owner",
        "refusal",
        "refusals",
        "size_bytes",
        "source",
        "sources",
        "turn",
        "users",
        "vain",
        "watchers",
    )

    def __init__(self, object_id: ObjectID, owner: Address) -> None:
        self.object_id = object_id
        self.owner = owner
        self.size_bytes = 0
        self.offset = 0
        """So many of its bytes are here, and the sources that we know can go on from there."""
        self.asked = False
        """Whether the head is about to name sources."""
        self.turn = 0
        """Of the head's last answer."""
        self.askers: deque[ObjectRequested] = deque()
        """Nodes that were sent here for what we are about to receive."""
        self.awaits_space = False
        self.is_early = True
        """Only tasks that have not begun wait for it."""
        self.users: dict[str, None] = {}
        self.watchers: dict[str, None] = {}
        """Who wants to know that a copy exists, and does not want it here yet."""
        self.is_located = False
        """The head has named copies, and they have not failed us."""
        self.sources: deque[NodeID] = deque()
        """Where copies are said to be, and we have not tried yet."""
        self.source: NodeID | None = None
        """The node that was asked to send."""
        self.asked_ns = 0
        """When it was."""
        self.refusal: ErrorInfo | None = None
        """Why a node that has it on disk could not send it."""
        self.refusals = 0
        self.vain = 0
        """How often in a row none of the nodes that the head named had sent anything."""


class Transfer:
    """See the module."""

    def __init__(self, *, out: Outbox, node: NodeID, store: ObjectStore, config: Config) -> None:
        self.out = out
        self.config = config
        self.node = node
        self.incarnation = 0
        self.store = store
        store.give_way = self._give_way
        store.stands_still = self._stands_still
        store.is_held_up = self._is_held_up
        self.wants: dict[ObjectID, Want] = {}
        self.admitted: dict[ObjectID, int] = {}
        """Pulls under way, with their bytes."""
        self.admitted_bytes = 0
        self.lined_up: dict[ObjectID, None] = {}
        """Pulls that wait until others have ended."""
        self.receivers: dict[ObjectID, dict[NodeID, None]] = {}
        """Whom we are sending what."""
        self.requests: dict[ObjectID, deque[ObjectRequested]] = {}
        """Who stands in line for what."""
        self.restoring: dict[tuple[ObjectID, str], ObjectRequested] = {}
        """What other nodes want of what is being read back from disk."""
        self.lives: dict[NodeID, int] = {}
        """Of nodes that have asked for something, or died, the life that is not over yet as far as we know."""
        self.silences: dict[NodeID, tuple[int, int]] = {}
        """Nodes that do not answer, or to which connections break: since when, and when that was last seen."""
        self.unreachable: dict[NodeID, int] = {}
        """Nodes that we take to be out of reach, and until when."""
        self._timer_is_armed = False
        self._to_ask: dict[ObjectID, None] = {}
        """What the head was so often asked for in vain that the next time is when the timer fires."""
        # Worklists that the node machine drains.
        self.arrived: deque[tuple[str, ObjectID, int]] = deque()
        self.unavailable: deque[tuple[str, ObjectID, ErrorInfo]] = deque()
        self.located: deque[tuple[str, ObjectID]] = deque()
        """For those who have asked: a copy exists."""
        self.lost: deque[tuple[str, ObjectID]] = deque()
        """For those who wait: no copy is known any more. They wait on, or give up."""

    def want(self, object_id: ObjectID, owner: Address, user: str, *, is_early: bool = False) -> None:
        """Bring the object here and pin it for the user; `is_early` of a task that has not begun."""
        if self.store.is_readable(object_id):
            stored = self.store.pin(object_id, user)
            self.arrived.append((user, object_id, stored.size_bytes))
            return
        want = self.wants.get(object_id)
        if want is None:
            want = self.wants[object_id] = Want(object_id, owner)
            if object_id in self.store.spilled:
                self.store.restore(object_id, is_early=is_early)
            elif object_id not in self.store.objects:  # else it is being written here: its seal will tell
                self._ask_head(want)
        want.users[user] = None
        if want.is_early and not is_early:
            want.is_early = False
            self.store.hurry(object_id)
        if want.is_located:
            self._ask_for_room(want)

    def locate(self, object_id: ObjectID, owner: Address, watcher: str) -> bool:
        """Whether a copy exists, here or elsewhere; if none is known, the watcher is told when there is one."""
        if self.store.is_here(object_id) or object_id in self.store.objects:
            return True
        want = self.wants.get(object_id)
        if want is None:
            want = self.wants[object_id] = Want(object_id, owner)
            self._ask_head(want)
        want.watchers[watcher] = None
        return want.is_located

    def _ask_head(self, want: Want) -> None:
        want.asked = True
        wanted = LocationsWanted(
            object_id=want.object_id,
            owner=want.owner,
            node=self.node,
            unreachable=self._out_of_reach(),
            is_held_up=self._is_held_up(),
        )
        self.out.send(HEAD, wanted)

    def _ask_head_again(self, want: Want) -> None:
        """It has named no node that could send. Its news may be late; or wrong: then it is not asked without pause."""
        want.vain += 1
        if want.vain <= _VAIN_MAX:
            self._ask_head(want)
            return
        if not self._to_ask:
            self.out.add(ArmTimer(timer=ASKS_TIMER, delay_ns=self.config.heartbeat_timeout_ns))
        self._to_ask[want.object_id] = None

    def on_asks_timer(self) -> None:
        """Ask the head for what it was asked for in vain."""
        to_ask, self._to_ask = self._to_ask, {}
        for want in [self.wants[object_id] for object_id in to_ask if object_id in self.wants]:
            if not want.asked:
                self._ask_head(want)

    def _is_held_up(self) -> bool:
        """Whether the pull that was admitted first has waited for its source for longer than a live one is silent."""
        first = self.wants[next(iter(self.admitted))] if self.admitted else None
        return (
            first is not None
            and first.source is not None
            and self.out.now_ns - first.asked_ns >= self.config.heartbeat_timeout_ns
        )

    def give_up(self, object_id: ObjectID, user: str) -> None:
        """The user does not wait any more. A pull that has begun goes on: others may want the object soon."""
        want = self.wants.get(object_id)
        if want is not None:
            want.users.pop(user, None)

    def give_up_all(self, user: str) -> None:
        """The user died, or waits for nothing any more. What only stands in line for room leaves it."""
        for want in [want for want in self.wants.values() if user in want.users or user in want.watchers]:
            want.watchers.pop(user, None)
            want.users.pop(user, None)
            if not want.users and self.store.leave_line(want.object_id):
                want.awaits_space = False
            is_idle = want.is_located or want.object_id in self.store.spilled
            if is_idle and not (want.users or want.watchers or self._is_under_way(want)):
                self._turn_away(want)
                del self.wants[want.object_id]

    def _is_under_way(self, want: Want) -> bool:
        return want.awaits_space or want.source is not None or want.object_id in self.store.objects

    def on_locations(self, event: LocationsKnown) -> None:
        """The head knows copies."""
        want = self.wants.get(event.object_id)
        if want is None or want.source is not None or self.store.is_here(event.object_id):
            return
        want.asked = False
        if not (want.users or want.watchers):
            self._turn_away(want)
            del self.wants[event.object_id]
            return
        want.turn = event.turn
        want.size_bytes = event.size_bytes
        want.owner = event.owner
        away = self._out_of_reach()
        want.sources = deque(node for node in event.nodes if node != self.node and node not in away)
        if not want.sources:  # we are said to have it, and do not: that news is on its way; or we know who is away now
            self._ask_head_again(want)
            return
        want.is_located = True
        self.located.extend((watcher, event.object_id) for watcher in want.watchers)
        if want.users:
            self._ask_for_room(want)
            return
        self._turn_away(want)  # nothing is brought for now

    def _ask_for_room(self, want: Want) -> None:
        if self._is_under_way(want):
            return  # it is being written here, or room has been asked for
        want.awaits_space = True
        self.store.request_space(
            SpaceRequest(
                object_id=want.object_id,
                size_bytes=want.size_bytes,
                owner=want.owner,
                remakeable=True,
                user=_INCOMING,
                is_early=want.is_early,
            )
        )
        if want.object_id not in self.store.objects:  # it has to wait for room
            self._turn_away(want)

    def _stands_still(self, object_id: ObjectID) -> None:
        """There is no memory for an object now: it is tried again, and who was sent here for it asks elsewhere."""
        want = self.wants.get(object_id)
        if want is not None:
            self._turn_away(want)

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
            self._ask_again(want)

    def _ask_again(self, want: Want) -> None:
        """No copy is known any more."""
        want.is_located = False
        self._ask_head_again(want)
        self.lost.extend((user, want.object_id) for user in want.users)

    def on_contested(self, object_id: ObjectID) -> None:
        """A process of this node is about to write what may be on its way here: see the module."""
        want = self.wants.get(object_id)
        if want is not None and not want.awaits_space and self.store.is_being_written(object_id, _INCOMING):
            self._try_next_source(want)

    def _give_way(self, request: SpaceRequest, lacking_bytes: int) -> bool:
        """Somebody is to be refused for want of room: give up pulls, the youngest first, if that helps. They begin
        anew, behind him. To another pull none gives way; but it waits on, if that helps, for the end of those that
        stand still because of a source that may be out of reach."""
        is_pull = is_incoming(request.user)
        given_up: list[Want] = []
        for want in reversed(self.wants.values()):
            if lacking_bytes <= 0:
                break
            if want.awaits_space or not self.store.is_being_written(want.object_id, _INCOMING):
                continue
            if not is_pull or (want.source is not None and self._is_late(want)):
                given_up.append(want)
                lacking_bytes -= want.size_bytes
        if lacking_bytes > 0:
            return False
        for want in given_up if not is_pull else ():
            want.sources.clear()
            self._try_next_source(want)
        return bool(given_up)

    def _try_next_source(self, want: Want) -> None:
        want.source = None
        if not want.sources or self.store.joined.get(want.object_id):
            want.sources.clear()
            want.offset = 0
            if want.refusal is not None and want.refusals >= self.config.refusals_max:
                self.on_refused(want.object_id, replace(want.refusal, is_final=True))
                return
            self._end_pull(want.object_id)
            self._break_off(want)
            self._ask_again(want)
            return
        if not self._admit(want):
            self.lined_up[want.object_id] = None
            self._turn_away(want)
            return
        want.source = want.sources.popleft()
        receive = ReceiveObject(
            object_id=want.object_id, size_bytes=want.size_bytes, source=want.source, offset=want.offset
        )
        self.out.add(receive)
        request = ObjectRequested(
            object_id=want.object_id, to=self.node, offset=want.offset, turn=want.turn, incarnation=self.incarnation
        )
        self.out.send(Address(want.source), request)
        want.asked_ns = self.out.now_ns
        if not self._timer_is_armed:
            self._arm_timer()
        while want.askers:
            self.on_requested(want.askers.popleft())

    def _admit(self, want: Want) -> bool:
        if want.object_id in self.admitted:
            return True
        if self.admitted and self.admitted_bytes + want.size_bytes > self.config.pull_bytes_max:
            return False
        self.admitted[want.object_id] = want.size_bytes
        self.admitted_bytes += want.size_bytes
        return True

    def _end_pull(self, object_id: ObjectID) -> None:
        """It is here, or will not come, or not from there: others may go on."""
        self.lined_up.pop(object_id, None)
        self.admitted_bytes -= self.admitted.pop(object_id, 0)
        while self.lined_up:
            want = self.wants[next(iter(self.lined_up))]
            if not self._admit(want):
                return
            del self.lined_up[want.object_id]
            self._try_next_source(want)

    def _break_off(self, want: Want) -> None:
        """The object will not come, or not from there: what has come is given up, and whom we serve asks elsewhere. The
        runner tells those to whom bytes are on their way."""
        self._turn_away(want)
        if self.store.is_readable(want.object_id):
            return
        for request in self.requests.pop(want.object_id, ()):
            self._decline(request)
        self.receivers.pop(want.object_id, None)
        self.store.abort(want.object_id, _INCOMING)

    def _turn_away(self, want: Want) -> None:
        while want.askers:
            self._decline(want.askers.popleft())

    def _decline(self, request: ObjectRequested, error: ErrorInfo | None = None) -> None:
        self.out.send(Address(request.to), ObjectNotHere(object_id=request.object_id, node=self.node, error=error))

    def on_not_here(self, event: ObjectNotHere) -> None:
        """A source does not have the object, or has it on disk alone and no room for it."""
        self._heard(event.node)
        want = self.wants.get(event.object_id)
        if want is not None and want.source == event.node and event.error is not None:
            want.refusal = event.error
            want.refusals += 1
        self.source_failed(event.object_id, event.node)

    def source_failed(self, object_id: ObjectID, source: NodeID, received_bytes: int | None = None) -> None:
        """A source broke off, died, or does not have the object. What has come is known when it broke off."""
        want = self.wants.get(object_id)
        if want is not None and want.source == source:
            if received_bytes is not None:
                want.vain = want.vain if received_bytes <= want.offset else 0
                want.offset = received_bytes
            self._try_next_source(want)

    def on_elsewhere(self, event: ObjectElsewhere) -> None:
        """There is a line at the source, and somebody else has the same bytes by now."""
        self._heard(event.node)
        want = self.wants.get(event.object_id)
        if want is not None and want.source == event.node:
            want.sources.appendleft(event.holder)
            want.sources.append(event.node)
            self._try_next_source(want)

    def source_lost(self, node: NodeID) -> None:
        """The connection to a node broke, though it may live: what it was asked for will not come."""
        if any(want.source == node for want in self.wants.values()) and self._is_silent_for_long(node):
            self._lose_link(node)
        for want in list(self.wants.values()):
            self.source_failed(want.object_id, node)
        self._receiver_lost(node)

    # ---- Silence ---------------------------------------------------------------------------------------------

    def _arm_timer(self) -> None:
        self._timer_is_armed = True
        self.out.add(ArmTimer(timer=PULLS_TIMER, delay_ns=self.config.link_patience_ns))

    def on_pulls_timer(self) -> None:
        """See to it that whoever was asked long ago is there, and is about to send."""
        self._timer_is_armed = False
        late: dict[NodeID, list[ObjectID]] = {}
        for want in self.wants.values():
            if want.source is not None and self._is_late(want):
                late.setdefault(want.source, []).append(want.object_id)
        for source, object_ids in late.items():
            if self._is_silent_for_long(source):
                self._lose_link(source)
                continue
            awaited = ObjectsAwaited(object_ids=tuple(object_ids), to=self.node, incarnation=self.incarnation)
            self.out.send(Address(source), awaited)
        if not self._timer_is_armed and any(want.source is not None for want in self.wants.values()):
            self._arm_timer()

    def _is_late(self, want: Want) -> bool:
        """Whether a source was asked for it long ago."""
        return self.out.now_ns - want.asked_ns >= self.config.link_patience_ns

    def _is_silent_for_long(self, node: NodeID) -> bool:
        """Note that nothing has come from a node that should have sent something."""
        now_ns, patience_ns = self.out.now_ns, self.config.link_patience_ns
        since_ns, seen_ns = self.silences.get(node, (now_ns, now_ns))
        if now_ns - seen_ns > _DOUBTS_MAX * patience_ns:  # that was another time
            since_ns = now_ns
        self.silences[node] = (since_ns, now_ns)
        return now_ns - since_ns >= _DOUBTS_MAX * patience_ns

    def _heard(self, node: NodeID) -> None:
        if self.silences:
            self.silences.pop(node, None)
        if self.unreachable:
            self.unreachable.pop(node, None)

    def _lose_link(self, node: NodeID) -> None:
        """A node is out of reach: what it was asked for is sought elsewhere."""
        del self.silences[node]
        self.unreachable[node] = self.out.now_ns + _UNREACHABLE_MAX * self.config.link_patience_ns
        for want in list(self.wants.values()):
            want.sources = deque(source for source in want.sources if source != node)
            self.source_failed(want.object_id, node)

    def _out_of_reach(self) -> tuple[NodeID, ...]:
        for node in [node for node, until_ns in self.unreachable.items() if until_ns <= self.out.now_ns]:
            del self.unreachable[node]
        return tuple(self.unreachable)

    def on_there(self, event: NodeThere) -> None:
        """A node that was asked whether it is there is."""
        self._heard(event.node)

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
            or (object_id, _sending_to(to)) in self.restoring
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
        """Sources and receivers on that node are gone."""
        self._heard(node)
        for want in list(self.wants.values()):
            want.sources = deque(source for source in want.sources if source != node)
            self.source_failed(want.object_id, node)
            if want.is_located and not want.sources and not self._is_under_way(want):
                self._ask_again(want)
        if not self.has_returned(node, incarnation):
            self.lives[node] = incarnation + 1
            self._life_over(node)

    def _life_over(self, node: NodeID) -> None:
        """Nobody there waits any more for what was asked of us."""
        self.give_up_all(_sending_to(node))
        for key in [key for key, request in self.restoring.items() if request.to == node]:
            del self.restoring[key]
        self._receiver_lost(node)

    def _receiver_lost(self, node: NodeID) -> None:
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
        self.store.release_all(_sending_to(node))

    def on_received(self, object_id: ObjectID, source: NodeID) -> None:
        """All bytes are here."""
        self._heard(source)
        want = self.wants.get(object_id)
        if want is not None and want.source == source:
            want.source = None
            self.store.seal(object_id, _INCOMING, turn=want.turn)
        elif object_id not in self.store.objects:  # nobody waits for them any more
            self.out.add(DeleteObject(object_id=object_id))

    def on_sealed(self, object_id: ObjectID) -> None:
        """The object can be read here: those who wait for it have it pinned."""
        want = self.wants.pop(object_id, None)
        if want is None:
            return
        self._end_pull(object_id)
        self.located.extend((watcher, object_id) for watcher in want.watchers)
        for node in (*self.receivers.get(object_id, ()), *(each.to for each in self.requests.get(object_id, ()))):
            self.store.pin(object_id, _sending_to(node))
        while want.askers:
            self.on_requested(want.askers.popleft())
        for user in want.users:
            stored = self.store.pin(object_id, user)
            self.arrived.append((user, object_id, stored.size_bytes))

    def on_failed(self, object_id: ObjectID, error: ErrorInfo) -> None:
        """There is no such object: its owner, or the head, says so."""
        if error.kind is ErrorKind.STORE_FULL:  # for the task that was to make it: here nobody has to make room
            error = replace(error, is_final=True)
        want = self._give_up(object_id, error)
        if want is not None:
            self.unavailable.extend([(each, object_id, error) for each in want.watchers if each not in want.users])

    def on_refused(self, object_id: ObjectID, error: ErrorInfo) -> None:
        """The object cannot come here now. Who waits for a copy to be anywhere waits on."""
        want = self._give_up(object_id, error)
        if want is None:
            return
        for watcher in [each for each in want.watchers if each not in want.users]:
            if error.kind is not ErrorKind.STORE_FULL:
                self.unavailable.append((watcher, object_id, error))
            elif self.locate(object_id, want.owner, watcher):
                self.located.append((watcher, object_id))

    def _give_up(self, object_id: ObjectID, error: ErrorInfo) -> Want | None:
        """End a want; who was to use the object is told why."""
        want = self.wants.pop(object_id, None)
        if want is not None:
            self._end_pull(object_id)
            self._break_off(want)
            self.unavailable.extend([(user, object_id, error) for user in want.users])
        return want

    # ---- The other side ----------------------------------------------------------------------------------------

    def on_requested(self, event: ObjectRequested) -> None:
        """Another node asks for the object."""
        if not self._is_of_this_life(event.to, event.incarnation):
            return
        self._heard(event.to)
        user = _sending_to(event.to)
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
            self.want(event.object_id, spilled.owner, user)
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
        self._decline(ObjectRequested(object_id=object_id, to=_receiver(user)), error)

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
            self.store.unpin(object_id, _sending_to(sent_on.to))
        if not requests:
            self.requests.pop(object_id, None)
        if not receivers:
            del self.receivers[object_id]
        self.store.unpin(object_id, _sending_to(to))

    def check_invariants(self) -> None:
        for object_id, want in self.wants.items():
            ensure(
                not self.store.is_sealed(object_id),
                "object {} is here and users still wait for it",
                object_id,
            )
            ensure(
                want.source is None or object_id in self.store.objects,
                "object {} is being received without room",
                object_id,
            )
            ensure(
                want.source is None or not want.askers,
                "object {} is being received, and somebody waits for that",
                object_id,
            )
        total = sum(self.admitted.values())
        ensure(total == self.admitted_bytes, "{} bytes are said to be pulled, and {} are", self.admitted_bytes, total)
        for object_id in (*self.admitted, *self.lined_up):
            ensure(object_id in self.wants, "object {} is pulled and nobody wants it", object_id)
        for object_id, receivers in self.receivers.items():
            arriving = self.wants.get(object_id)
            ensure(
                arriving.source is not None
                if arriving is not None
                else all(_sending_to(node) in self.store.objects[object_id].pins for node in receivers),
                "object {} is being sent, and neither pinned nor on its way here",
                object_id,
            )
        for object_id, requests in self.requests.items():
            ensure(bool(requests and self.receivers.get(object_id)), "a line for {} stands still", object_id)


def _sending_to(node: NodeID) -> str:
    return _SENDING_TO + node


def _receiver(user: str) -> NodeID:
    return NodeID(user.removeprefix(_SENDING_TO))


def is_sending(user: str) -> bool:
    """Whether a user stands for a node to which the object is sent."""
    return user.startswith(_SENDING_TO)


def is_incoming(user: str) -> bool:
    """Whether a space request came from a transfer, as opposed to a process of this node."""
    return user == _INCOMING
