"""The transfer brings objects to this node: it finds out where they are, and pulls each once at a time.

Theory of operation. A want is an object that is not sealed here, with the users who wait for it (processes of this
node, leases that need it). The head is asked once where it is; it answers as soon as a copy exists anywhere, and asks
the object's owner to make one when none does. The object is then pulled: room is reserved, one source is asked, its
runner sends, ours receives. The other side of a pull is sending.py's.

Admission. At most `pull_bytes_max` are pulled at a time (one object always may be); other pulls wait in order.

When a source dies, breaks off or does not have the object any more, the next one is asked for the rest: the bytes that
came are kept, for all sources that the head named together hold the same bytes. When all have failed, everything is
given up and the head is asked again: a copy that it then names may have been made anew. Asked for the same object
`_VAIN_MAX` times in a row with nothing to show for it, it is asked once in `heartbeat_timeout_ns`.

Who only asks where an object is (a *watcher*: a task that has not begun) is told when a copy exists, and asks for the
bytes when it wants them here: so nothing is held for whoever waits for something that is yet to be made.

Nothing is waited for without end. What a node was asked for and has not sent for `link_patience_ns` it is asked for
again (ObjectsAwaited), whatever became of the first request. One that does not answer is out of reach in the end
(links.py): then the head hears of it with each question, and names others, or has a third node fetch the object first,
or says that it cannot be had (directory.py). When a node says that it has the object on disk alone, and no room to read
it back, whoever waits hears of it after `refusals_max` times.

A process here that has made the object itself takes precedence over a pull: the pull is given up. For its source may be
waiting to hear of a copy, and that process's may be the only one to come.

Relies on: the head answers each LocationsWanted in the end, with LocationsKnown or ObjectFailed.
Guarantees: each user who waits is told once: the object is here and pinned for it, or it will not come.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from dualray.shared.machines.base import Outbox, ensure
from dualray.shared.machines.node.links import Links
from dualray.shared.machines.node.object_store import ObjectStore
from dualray.shared.machines.node.sending import Sending
from dualray.shared.machines.node.stored import SpaceRequest
from dualray.shared.machines.node.wants import INCOMING, Want, is_incoming, sending_to
from dualray.shared.model.commands import ArmTimer, DeleteObject, ReceiveObject
from dualray.shared.model.config import Config
from dualray.shared.model.errors import ErrorInfo, ErrorKind
from dualray.shared.model.events import (
    LocationsKnown,
    LocationsWanted,
    ObjectElsewhere,
    ObjectNotHere,
    ObjectRequested,
    ObjectsAwaited,
)
from dualray.shared.model.ids import HEAD, Address, NodeID, ObjectID

PULLS_TIMER = "pulls"
ASKS_TIMER = "asks"
_VAIN_MAX = 8
"""So often in a row the head is asked again at once; then once in `heartbeat_timeout_ns`."""


class Transfer:
    """See the module."""

    def __init__(self, *, out: Outbox, node: NodeID, incarnation: int, store: ObjectStore, config: Config) -> None:
        self.out = out
        self.config = config
        self.node = node
        self.incarnation = incarnation
        self.store = store
        store.space.give_way = self._give_way
        store.space.stands_still = self._stands_still
        store.contents.is_held_up = self._is_held_up
        self.wants: dict[ObjectID, Want] = {}
        self.admitted: dict[ObjectID, int] = {}
        """Pulls under way, with their bytes."""
        self.admitted_bytes = 0
        self.lined_up: dict[ObjectID, None] = {}
        """Pulls that wait until others have ended."""
        self.links = Links(out=out, config=config)
        self.sending = Sending(
            out=out,
            node=node,
            store=store,
            config=config,
            links=self.links,
            wants=self.wants,
            want=self.want,
            give_up_all=self.give_up_all,
        )
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
            self.store.space.hurry(object_id)
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
            unreachable=self.links.out_of_reach(),
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
            if not want.users and self.store.space.leave_line(want.object_id):
                want.awaits_space = False
            is_idle = want.is_located or want.object_id in self.store.spilled
            if is_idle and not (want.users or want.watchers or self._is_under_way(want)):
                self.sending.turn_away(want)
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
            self.sending.turn_away(want)
            del self.wants[event.object_id]
            return
        want.turn = event.turn
        want.size_bytes = event.size_bytes
        want.owner = event.owner
        away = self.links.out_of_reach()
        want.sources = deque(node for node in event.nodes if node != self.node and node not in away)
        if not want.sources:  # we are said to have it, and do not: that news is on its way; or we know who is away now
            self._ask_head_again(want)
            return
        want.is_located = True
        self.located.extend((watcher, event.object_id) for watcher in want.watchers)
        if want.users:
            self._ask_for_room(want)
            return
        self.sending.turn_away(want)  # nothing is brought for now

    def _ask_for_room(self, want: Want) -> None:
        if self._is_under_way(want):
            return  # it is being written here, or room has been asked for
        want.awaits_space = True
        self.store.space.request_space(
            SpaceRequest(
                object_id=want.object_id,
                size_bytes=want.size_bytes,
                owner=want.owner,
                remakeable=True,
                is_copy=True,
                user=INCOMING,
                is_early=want.is_early,
            )
        )
        if want.object_id not in self.store.objects:  # it has to wait for room
            self.sending.turn_away(want)

    def _stands_still(self, object_id: ObjectID) -> None:
        """There is no memory for an object now: it is tried again, and who was sent here for it asks elsewhere."""
        want = self.wants.get(object_id)
        if want is not None:
            self.sending.turn_away(want)

    def on_space_granted(self, request: SpaceRequest, *, present: bool) -> None:
        """There is room for an object that comes from elsewhere."""
        want = self.wants.get(request.object_id)
        if want is not None:
            want.awaits_space = False
        if present:
            return
        if want is None:
            self.store.abort(request.object_id, INCOMING)
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
        if want is not None and not want.awaits_space and self.store.is_being_written(object_id, INCOMING):
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
            if want.awaits_space or not self.store.is_being_written(want.object_id, INCOMING):
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
        if not want.sources or self.store.space.joined.get(want.object_id):
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
            self.sending.turn_away(want)
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
            self.sending.on_requested(want.askers.popleft())

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
        """The object will not come, or not from there: what has come is given up, and whom we serve asks elsewhere."""
        self.sending.turn_away(want)
        if self.store.is_readable(want.object_id):
            return
        self.sending.break_off(want.object_id)
        self.store.abort(want.object_id, INCOMING)

    def on_not_here(self, event: ObjectNotHere) -> None:
        """A source does not have the object, or has it on disk alone and no room for it."""
        self.links.heard(event.node)
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
        self.links.heard(event.node)
        want = self.wants.get(event.object_id)
        if want is not None and want.source == event.node:
            want.sources.appendleft(event.holder)
            want.sources.append(event.node)
            self._try_next_source(want)

    def source_lost(self, node: NodeID) -> None:
        """The connection to a node broke, though it may live: what it was asked for will not come."""
        if any(want.source == node for want in self.wants.values()) and self.links.is_silent_for_long(node):
            self._lose_link(node)
        for want in list(self.wants.values()):
            self.source_failed(want.object_id, node)
        self.sending.receiver_lost(node)

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
            if self.links.is_silent_for_long(source):
                self._lose_link(source)
                continue
            awaited = ObjectsAwaited(object_ids=tuple(object_ids), to=self.node, incarnation=self.incarnation)
            self.out.send(Address(source), awaited)
        if not self._timer_is_armed and any(want.source is not None for want in self.wants.values()):
            self._arm_timer()

    def _is_late(self, want: Want) -> bool:
        """Whether a source was asked for it long ago."""
        return self.out.now_ns - want.asked_ns >= self.config.link_patience_ns

    def _lose_link(self, node: NodeID) -> None:
        """A node is out of reach: what it was asked for is sought elsewhere."""
        self.links.lose(node)
        for want in list(self.wants.values()):
            want.sources = deque(source for source in want.sources if source != node)
            self.source_failed(want.object_id, node)

    # ---- Deaths ----------------------------------------------------------------------------------------------

    def node_died(self, node: NodeID, incarnation: int) -> None:
        """Sources and receivers on that node are gone."""
        self.links.heard(node)
        for want in list(self.wants.values()):
            want.sources = deque(source for source in want.sources if source != node)
            self.source_failed(want.object_id, node)
            if want.is_located and not want.sources and not self._is_under_way(want):
                self._ask_again(want)
        self.sending.node_died(node, incarnation)

    def on_received(self, object_id: ObjectID, source: NodeID) -> None:
        """All bytes are here."""
        self.links.heard(source)
        want = self.wants.get(object_id)
        if want is not None and want.source == source:
            want.source = None
            self.store.seal(object_id, INCOMING, turn=want.turn)
        elif object_id not in self.store.objects:  # nobody waits for them any more
            self.out.add(DeleteObject(object_id=object_id))

    def on_sealed(self, object_id: ObjectID) -> None:
        """The object can be read here: those who wait for it have it pinned."""
        want = self.wants.pop(object_id, None)
        if want is None:
            return
        self._end_pull(object_id)
        self.located.extend((watcher, object_id) for watcher in want.watchers)
        sending = self.sending
        for node in (*sending.receivers.get(object_id, ()), *(each.to for each in sending.requests.get(object_id, ()))):
            self.store.pin(object_id, sending_to(node))
        while want.askers:
            self.sending.on_requested(want.askers.popleft())
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
        self.sending.check_invariants()
