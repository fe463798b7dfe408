"""Membership: which nodes and drivers take part, and who is taken for dead.

Theory of operation. A node joins with an incarnation number, one higher after each reboot. Runners exchange heartbeats
and report silence and its end (NodeSilent, NodeHeard) and closed connections (PeerLost); what follows from that is
decided here. A silent node is SUSPECT; when it stays silent for `suspicion_ns` it is DEAD. A node whose connection
closed is DEAD at once: its process is gone. Death is final for an incarnation: a zombie that is heard again is refused,
and news that carries a dead incarnation is dropped wherever it arrives.

Heartbeats are thus no events: where nothing goes wrong, membership costs nothing.

Relies on: the runner reports silence of nodes that it was told of.
Guarantees: each death is announced once, to every node and driver that is alive.
"""

from __future__ import annotations

from collections import deque

from dualray.shared.machines.base import Outbox, ensure
from dualray.shared.model.commands import ArmTimer, CancelTimer, WriteRecord
from dualray.shared.model.config import Config
from dualray.shared.model.events import (
    NodeDied,
    NodeDraining,
    NodeHeard,
    NodeJoined,
    NodeRefused,
    NodesDied,
    NodeSilent,
    NodeWelcomed,
    OwnerDied,
)
from dualray.shared.model.ids import Address, NodeID, lives_on, node_of
from dualray.shared.model.specs import LAUNCH_LABEL, NodeInfo
from dualray.shared.model.states import NODE, NodeHealth

_SUSPICION = "suspicion:"

WHY_CHARS_MAX = 300
"""Kept of the reason for which a worker has died."""


class Member:
    """One life of one node."""

    __slots__ = ("ended_ns", "health", "info", "started_ns")

    def __init__(self, info: NodeInfo, started_ns: int) -> None:
        self.info = info
        self.health = NodeHealth.ALIVE
        self.started_ns = started_ns
        self.ended_ns = -1
        """When it was declared dead; -1: it was not."""


class Membership:
    """See the module."""

    def __init__(self, *, out: Outbox, config: Config) -> None:
        self.out = out
        self.config = config
        self.members: dict[NodeID, Member] = {}
        self.drivers: dict[Address, NodeID] = {}
        self.dead: dict[Address, str] = {}
        """Drivers that have died, and workers that died before their node, with the first line of the reason."""
        self.since_ns: dict[Address, int] = {}
        """When each driver joined, and when those of `dead` died."""
        self.leaving: dict[NodeID, int] = {}
        """Nodes that drain, with the life that does: alive, and nothing is to be placed there."""
        self._have_died: dict[NodeID, None] = {}
        """Nodes of which a life is over: who joins looks at these, not at all."""
        # Worklists that the head machine drains.
        self.joined: deque[NodeInfo] = deque()
        self.changed: deque[NodeInfo] = deque()
        self.died: deque[NodeInfo] = deque()

    def is_alive(self, node: NodeID, incarnation: int | None) -> bool:
        """Whether this life of the node, or with None its present one, has not been declared dead."""
        member = self.members.get(node)
        return (
            member is not None
            and incarnation in (None, member.info.incarnation)
            and member.health is not NodeHealth.DEAD
        )

    def is_gone(self, address: Address) -> bool:
        """Whether a driver or worker has died."""
        if address in self.dead:
            return True
        member = self.members.get(node_of(address)) if "/" in address else None
        return member is not None and lives_on(address, member.info.node, self._last_dead(member))

    def _last_dead(self, member: Member) -> int:
        """The last life of a node that is over; -1 when there is none."""
        return member.info.incarnation - (member.health is not NodeHealth.DEAD)

    def tell_of_the_dead(self, node: NodeID) -> None:
        """A node that has just joined has missed the news."""
        launched: dict[NodeID, int] = {}
        for other in self._have_died:
            member = self.members[other]
            if LAUNCH_LABEL in dict(member.info.labels):  # of these there may be thousands
                launched[other] = self._last_dead(member)
            else:
                self.out.send(Address(node), NodeDied(node=other, incarnation=self._last_dead(member)))
        if launched:
            self.out.send(Address(node), NodesDied(nodes=tuple(launched), incarnations=tuple(launched.values())))
        for address in self.dead:
            self.out.send(Address(node), OwnerDied(address=address))

    def note_dead(self, address: Address, why: str = "") -> None:
        """A driver or worker has died."""
        self.dead[address] = why.partition("\n")[0][:WHY_CHARS_MAX]
        self.since_ns[address] = self.out.now_ns

    def forget_dead_on(self, info: NodeInfo) -> None:
        """A life of a node is over: so much is known of all its workers."""
        for address in [address for address in self.dead if lives_on(address, info.node, info.incarnation)]:
            del self.dead[address]
            self.since_ns.pop(address, None)

    def alive(self) -> tuple[NodeInfo, ...]:
        """The nodes that are not dead."""
        return tuple(member.info for member in self.members.values() if member.health is not NodeHealth.DEAD)

    def on_joined(self, event: NodeJoined) -> None:
        """A node manager reports for duty."""
        info = event.info
        known = self.members.get(info.node)
        if known is not None:
            stale = info.incarnation < known.info.incarnation
            dead = info.incarnation == known.info.incarnation and known.health is NodeHealth.DEAD
            if stale or dead:
                refusal = NodeRefused(node=info.node, incarnation=info.incarnation)
                self.out.send(Address(info.node), refusal)
                return
            if info.incarnation == known.info.incarnation:
                if info != known.info:  # it has lost a GPU
                    known.info = info
                    self._record(known)
                    self.changed.append(info)
                return
            if known.health is not NodeHealth.DEAD:
                self._declare_dead(known)
        member = self.members[info.node] = Member(info, self.out.now_ns)
        if self._last_dead(member) >= 0:
            self._have_died[info.node] = None
        self.out.send(Address(info.node), NodeWelcomed(node=info.node))
        self._record(member)
        self.joined.append(info)

    def on_draining(self, event: NodeDraining) -> bool:
        """A node is about to leave; whether that is news."""
        if not self.is_alive(event.node, event.incarnation) or event.node in self.leaving:
            return False
        self.leaving[event.node] = event.incarnation
        return True

    def on_drain_given_up(self, event: NodeDraining) -> bool:
        """A node stays after all; whether that is news."""
        if not self.is_alive(event.node, event.incarnation):
            return False
        return self.leaving.pop(event.node, None) is not None

    def staying(self) -> list[NodeID]:
        """The nodes that are alive and not about to leave."""
        return [info.node for info in self.alive() if info.node not in self.leaving]

    def on_silent(self, event: NodeSilent) -> bool:
        """Nothing has been heard of the node for the heartbeat timeout; whether that is news."""
        if not self.is_alive(event.node, event.incarnation):
            return False
        member = self.members[event.node]
        if member.health is not NodeHealth.ALIVE:
            return False
        member.health = NODE.check(member.health, NodeHealth.SUSPECT, event.node)
        self.out.add(ArmTimer(timer=_SUSPICION + event.node, delay_ns=self.config.suspicion_ns))
        return True

    def on_heard(self, event: NodeHeard) -> bool:
        """A silent node was heard again; whether it was suspected."""
        if not self.is_alive(event.node, event.incarnation):
            self.out.send(Address(event.node), NodeRefused(node=event.node, incarnation=event.incarnation))
            return False
        member = self.members[event.node]
        if member.health is not NodeHealth.SUSPECT:
            return False
        member.health = NODE.check(member.health, NodeHealth.ALIVE, event.node)
        self.out.add(CancelTimer(timer=_SUSPICION + event.node))
        return True

    def on_timer(self, timer: str) -> None:
        """A suspect has been silent for long enough."""
        member = self.members.get(NodeID(timer.removeprefix(_SUSPICION)))
        if member is not None and member.health is NodeHealth.SUSPECT:
            self._declare_dead(member)

    def on_node_lost(self, node: NodeID) -> None:
        """The node manager's connection closed."""
        member = self.members.get(node)
        if member is not None and member.health is not NodeHealth.DEAD:
            self._declare_dead(member)

    def _declare_dead(self, member: Member) -> None:
        if member.health is NodeHealth.SUSPECT:
            self.out.add(CancelTimer(timer=_SUSPICION + member.info.node))
        member.health = NODE.check(member.health, NodeHealth.DEAD, member.info.node)
        member.ended_ns = self.out.now_ns
        self._have_died[member.info.node] = None
        self._record(member)
        self.leaving.pop(member.info.node, None)
        self.died.append(member.info)

    def _record(self, member: Member) -> None:
        fields = (
            ("health", str(member.health)),
            ("incarnation", str(member.info.incarnation)),
            ("total", str(member.info.total)),
            ("store_bytes", str(member.info.store_bytes)),
        )
        self.out.add(WriteRecord(table="nodes", key=member.info.node, fields=fields))

    def check_invariants(self) -> None:
        for node, member in self.members.items():
            ensure(member.info.node == node, "node {} is filed under {}", member.info.node, node)
