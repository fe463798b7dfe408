"""Handles processes on other machines that an owner may not reach, although the head hears from both.

Theory of operation. A runner reports when a connection closes (PeerLost). Of a process that has died others tell in a
moment: its node manager, or the head. When after `link_patience_ns` nobody has, it lives: what was on its way to and
from it is lost all the same. A lease that was held there then, and still is, may thus never have an answer; so its node
counts as out of reach. The head is told, and tells the node (LinkLost), which ends what runs there for this owner and
grants it nothing; the head places nothing of the owner's machine there for a while. A node that has noticed first has
the head tell us. Either way all leases there are given up, with what was pushed to them: each of these tasks uses a
retry, for it may have run, and its late result is told by its attempt. Calls of an actor that were on their way fail
with ActorUnavailableError, or are sent again (max_task_retries): the actor lives, and cannot be had elsewhere.

A process that cannot connect because of a limit of its own (PeerLost.limit), such as that of open files, loses its work
at that peer in the same way, but at once.

The news of a lease may be what was lost; the node notices that, for it has sent it. So whatever is asked for is asked
for again, as after a node's death.

Relies on: the runner reports a connection whose peer has not acknowledged anything for long enough as closed, and
connects anew for the next message; the news of a death comes within `link_patience_ns`.
Guarantees: nobody waits for ever for a task or a call because two machines do not reach one another.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from dualray.shared.machines.base import Outbox
from dualray.shared.machines.owner.actor_calls import ActorCalls
from dualray.shared.machines.owner.leases import Leases
from dualray.shared.model.commands import ArmTimer
from dualray.shared.model.config import Config
from dualray.shared.model.events import LinkLost, PeerLost, WorkerUnwanted
from dualray.shared.model.ids import HEAD, Address, LeaseID, NodeID, TaskID, is_driver, node_of

REACH_TIMER = "reach"


class Doubt:
    """A process whose connection has closed, and what may never be answered because of that."""

    __slots__ = ("calls", "due_ns", "leases", "peer")

    def __init__(self, peer: Address, due_ns: int, leases: tuple[LeaseID, ...], calls: tuple[TaskID, ...]) -> None:
        self.peer = peer
        self.due_ns = due_ns
        self.leases = leases
        self.calls = calls


class Reach:
    """See the module."""

    def __init__(
        self,
        *,
        out: Outbox,
        address: Address,
        node: NodeID,
        config: Config,
        leases: Leases,
        actor_calls: ActorCalls,
        give_up: Callable[[LinkLost], None],
    ) -> None:
        self.out = out
        self.address = address
        self.node = node
        self.config = config
        self.leases = leases
        self.actor_calls = actor_calls
        self._give_up = give_up
        self.doubts: deque[Doubt] = deque()

    def on_peer_lost(self, event: PeerLost) -> None:
        """A connection has closed: whether its process is gone others tell in a moment, if it is."""
        peer, node = event.address, node_of(event.address)
        if event.limit:
            self._cannot_connect(peer, event.limit)
            return
        if peer == HEAD or is_driver(peer) or node == self.node:
            return  # no work of ours is there, or the runner ends with it
        held = tuple(
            lease.lease_id for lease in self.leases.leases.values() if peer in (lease.worker, Address(lease.node))
        )
        calls = self.actor_calls.sent_to(peer)
        if not (held or calls or (peer == Address(node) and self.leases.requests)):
            return
        if not self.doubts:
            self.out.add(ArmTimer(timer=REACH_TIMER, delay_ns=self.config.link_patience_ns))
        self.doubts.append(Doubt(peer, self.out.now_ns + self.config.link_patience_ns, held, calls))

    def _cannot_connect(self, peer: Address, limit: str) -> None:
        """We have reached a limit, and the peer lives. Our tasks there can never be pushed, so their workers end. An
        actor may have other callers, so it stays, and our calls fail or are sent again."""
        why = f"{self.address} cannot connect to {peer}: {limit}"
        for lease in list(self.leases.leases.values()):
            if lease.worker == peer:
                self.out.send(Address(lease.node), WorkerUnwanted(worker=peer, reason=why))
        calls = self.actor_calls.sent_to(peer)
        if calls:
            self.actor_calls.unanswered(peer, calls, why)

    def on_timer(self) -> None:
        """Nobody has told of the deaths of processes whose connections had closed: they are out of reach."""
        while self.doubts and self.doubts[0].due_ns <= self.out.now_ns:
            doubt = self.doubts.popleft()
            nodes: dict[NodeID, int] = {}
            for lease_id in doubt.leases:
                lease = self.leases.leases.get(lease_id)
                if lease is not None:
                    nodes[lease.node] = lease.incarnation
            for node, incarnation in nodes.items():
                event = LinkLost(process=self.address, node=node, incarnation=incarnation, by_node=False)
                self.out.send(HEAD, event)
                self._give_up(event)
            if doubt.calls:
                self.actor_calls.unanswered(doubt.peer, doubt.calls, self.why(node_of(doubt.peer)))
        if self.doubts:
            self.out.add(ArmTimer(timer=REACH_TIMER, delay_ns=max(self.doubts[0].due_ns - self.out.now_ns, 1)))

    def why(self, node: NodeID) -> str:
        """In words, what has happened between a node and us."""
        return (
            f"{node} and {self.address} on {self.node} cannot reach one another, although the head reaches both; "
            "check the network between these two machines"
        )
