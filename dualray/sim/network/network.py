"""The virtual cluster's network: messages with a latency, and bulk transfers that share bandwidth fairly.

Theory of operation
-------------------
Messages are small and do not compete for bandwidth. One takes the latency of its route, the cost of the
software, and its bytes at full speed (see CostModel); between the same two processes messages arrive in the
order in which they were sent, whatever their sizes, as on one TCP connection.

Transfers are fluid flows (flows.py).

Links are directed, with one capacity each; a topology says which links a route has (topologies.py).

A node that is cut off loses what is on its way to and from it, messages and transfers, and what is sent
meanwhile. Messages are lost silently, as on a real network; a transfer has a fate: on_done or on_lost, or
neither after `cancel()`.

Two nodes that are parted (one direction at a time) lose no messages: their connections hold what is sent, as TCP does
while it retransmits, and let it go in order when the parting ends. A transfer between them, or one whose ends are
stalled, stands still until then; one that is parted for CONNECTION_LASTS_NS is lost, as its connection breaks.

A link can be made worse: by factors of its bandwidth and latency, by a share of segments that are lost (a lost message
is sent again after RETRANSMIT_NS, then after twice that, and so on; a transfer that starts gets at most what Mathis et
al., "The Macroscopic Behavior of the TCP Congestion Avoidance Algorithm" (1997), give for that loss), and by a delay of
each message with a jitter. Messages can arrive twice: the receiving end of their connection knows the second by its
number, and drops it, as TCP does. They can overtake one another: one that is overtaken comes half a trip to one and a
half later, and the receiving end keeps back what has overtaken it. What no TCP connection does can be asked for, too:
messages that never arrive. These draws come from a stream of the network's own.

Nothing here iterates over a set: the order of flows is the order in which they started.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from random import Random
from typing import Any, Final, TypeAlias

from dualray.sim.cost.cost_model import CostModel
from dualray.sim.cost.rates import time_ns
from dualray.sim.kernel.calendar import Calendar, Due
from dualray.sim.kernel.kernel import Kernel
from dualray.sim.network.conditions import LATENCY_MAX_NS, Conditions, Impairment
from dualray.sim.network.flows import Flows, Transfer
from dualray.sim.network.topologies import NodeKey, Star, Topology

__all__ = ["Channel", "Delivery", "Network"]

RETRANSMIT_NS: Final = 200_000_000
"""Until a lost segment is sent again for the first time: Linux's least retransmission timeout (TCP_RTO_MIN)."""

RETRANSMITS_MAX: Final = 15
"""Times that one segment is sent again at most: Linux's tcp_retries2."""

ROUTES_MAX: Final = 65_536
"""Pairs of nodes and sizes, of which the time of a message is remembered."""


class Channel:
    """From one process to another: messages that go through it arrive in order. Who sends keeps it: another one between
    the same two processes knows nothing of what this one carries."""

    __slots__ = ("arrives_ns", "dst_node", "dst_process", "routes", "size_bytes", "src_node", "src_process", "takes_ns")

    def __init__(self, src_node: NodeKey, dst_node: NodeKey, *, src_process: Hashable, dst_process: Hashable) -> None:
        self.src_node = src_node
        self.dst_node = dst_node
        self.src_process = src_process
        self.dst_process = dst_process
        self.arrives_ns = 0
        """When the last message does."""
        self.size_bytes = -1
        """Of the last message on an unimpaired route."""
        self.takes_ns = 0
        """How long that took."""
        self.routes = -1
        """Which routes it took: see `Network.routes_changed`."""


class Delivery(Due):
    """A message that goes through a channel. Subclasses say what comes of it when it arrives."""

    __slots__ = ("_cuts_at_sending", "_has_arrived", "channel", "is_doubled", "network")

    def __init__(self, network: Network, channel: Channel) -> None:
        self.network = network
        self.channel = channel
        self.is_doubled = False
        """Whether it is under way twice."""
        self._has_arrived = False
        self._cuts_at_sending = 0

    def arrive(self) -> None:
        """It has arrived."""
        raise NotImplementedError

    def goes(self, cuts: int) -> None:
        """It is on its way, after so many cuts of the network."""
        self._cuts_at_sending = cuts

    def happen(self) -> None:
        network = self.network
        if network._cuts != self._cuts_at_sending and network.has_cut(self.channel, self._cuts_at_sending):
            network.messages_dropped += 1
            return
        if self.is_doubled:  # what the receiving end of a connection does with a segment: it takes it once
            if self._has_arrived:
                network.messages_doubled += 1
                return
            self._has_arrived = True
        self.arrive()


class _Call(Delivery):
    """A call where a message arrives."""

    __slots__ = ("_argument", "_deliver")

    def __init__(self, network: Network, channel: Channel, deliver: Callable[[Any], object], argument: Any) -> None:
        # As the constructor of the base class: a call less for most messages.
        self.network = network
        self.channel = channel
        self.is_doubled = self._has_arrived = False
        self._cuts_at_sending = 0
        self._deliver = deliver
        self._argument = argument

    def arrive(self) -> None:
        self._deliver(self._argument)


_Held: TypeAlias = tuple[Delivery, int, bool]
"""A message that a parting holds: what `Network.send` was given."""


class Network:
    """Carries messages and transfers between the nodes of one virtual cluster; see the theory of operation.

    head: the node, if any, whose messages cost `head_message_ns`.
    on_held: told of each message that a parting holds: from node to node, from process to process.
    """

    def __init__(
        self,
        kernel: Kernel,
        cost_model: CostModel,
        *,
        topology: Topology | None = None,
        head: NodeKey | None = None,
        seed: int = 0,
        on_held: Callable[[NodeKey, NodeKey, Any, Any], object] | None = None,
    ) -> None:
        self.topology: Final[Topology] = topology if topology is not None else Star(cost_model)
        self._conditions = Conditions(self.topology)
        self.flows: Final = Flows(kernel, cost_model, self._conditions)
        self.messages_sent = 0
        self.messages_dropped = 0
        self.messages_held = 0
        self.messages_doubled = 0
        self._head_ns = cost_model.head_message_ns
        """What the software of a message to or from the head takes now: see `slow_head`."""
        self.random: Final = Random(f"network:{seed}")  # for losses and jitter, and for nothing else
        self._parted = self._conditions.parted
        self._held: dict[tuple[NodeKey, NodeKey], list[_Held]] = {}  # messages, by pair, in order
        self._stalled = self._conditions.stalled
        self._impairments = self._conditions.impairments
        self.breaking: dict[tuple[Hashable, Hashable], None] = {}
        """Connections that break unless what they carry is acknowledged: from process to process."""
        self._on_held = on_held
        self._kernel = kernel
        self._calendar: Calendar = kernel.calendar
        self._cost = cost_model
        self._head = head
        self._routes = 0
        """How often they have changed."""
        self._takes_ns: dict[tuple[NodeKey, NodeKey, int], int] = {}
        """Of messages on routes that nothing impairs."""
        self._cut = self._conditions.cut
        self._cut_at: dict[NodeKey, int] = {}  # at which count of cuts a node was last cut off
        self._cuts = 0

    # -- messages ------------------------------------------------------------------------------------------

    def message_ns(self, src_node: NodeKey, dst_node: NodeKey, size_bytes: int = 0) -> int:
        """How long a message takes from one process to another, if it need not queue behind an earlier one."""
        cost = self._cost
        if src_node == dst_node:
            return cost.local_message_ns + time_ns(size_bytes, cost.memory_bytes_per_s)
        to_head = self._head is not None and (src_node == self._head or dst_node == self._head)
        software_ns = self._head_ns if to_head else cost.node_message_ns
        if not self._impairments:
            return (
                software_ns
                + self.topology.latency_ns(src_node, dst_node)
                + time_ns(size_bytes, self.topology.message_bytes_per_s(src_node, dst_node))
            )
        worse = self._conditions.between(src_node, dst_node)
        bytes_per_s = max(1, round(self.topology.message_bytes_per_s(src_node, dst_node) * worse.bandwidth))
        return (
            software_ns
            + self._conditions.latency_ns(src_node, dst_node)
            + worse.delay_ns
            + time_ns(size_bytes, bytes_per_s)
        )

    def _mishap_ns(self, src_node: NodeKey, dst_node: NodeKey, takes_ns: int) -> int:
        """What losses, jitter and others that overtake it add to one message, which takes so long without."""
        worse = self._conditions.between(src_node, dst_node)
        mishap_ns = round(self.random.random() * worse.jitter_ns) if worse.jitter_ns else 0
        is_overtaken = bool(worse.reorder) and self.random.random() < worse.reorder
        if is_overtaken:
            mishap_ns += round((0.5 + self.random.random()) * takes_ns)
        again_ns, sent = RETRANSMIT_NS, 0
        while worse.loss and sent < RETRANSMITS_MAX and self.random.random() < worse.loss:
            mishap_ns += again_ns
            again_ns *= 2
            sent += 1
        self.messages_held += sent > 0 or is_overtaken
        return mishap_ns

    def message(
        self,
        channel: Channel,
        size_bytes: int,
        deliver: Callable[[Any], object],
        argument: Any,
        is_sure: bool = False,
    ) -> None:
        """`send` what calls `deliver(argument)` when it arrives."""
        self.send(_Call(self, channel, deliver, argument), size_bytes, is_sure)

    def send(self, delivery: Delivery, size_bytes: int, is_sure: bool = False) -> None:
        """Have a message of `size_bytes` arrive after its time, unless it is lost on its way. One that `is_sure` is not
        dropped or doubled by an impairment: who sent it asks again until there is an answer."""
        self.messages_sent += 1
        if self._cut or self._parted or self._impairments:
            self._send_with_mishaps(delivery, size_bytes, is_sure)
            return
        channel = delivery.channel
        if channel.size_bytes != size_bytes or channel.routes != self._routes:
            self._measure(channel, size_bytes)
        at_ns = self._calendar.now_ns + channel.takes_ns
        if at_ns < channel.arrives_ns:
            at_ns = channel.arrives_ns
        else:
            channel.arrives_ns = at_ns
        delivery._cuts_at_sending = self._cuts
        self._calendar.post_due(at_ns, delivery)

    def _measure(self, channel: Channel, size_bytes: int) -> None:
        """How long such a message takes where nothing goes wrong."""
        route = (channel.src_node, channel.dst_node, size_bytes)
        takes_ns = self._takes_ns.get(route, 0)
        if not takes_ns:
            if len(self._takes_ns) >= ROUTES_MAX:
                self._takes_ns.clear()
            takes_ns = self._takes_ns[route] = self.message_ns(channel.src_node, channel.dst_node, size_bytes)
        channel.size_bytes, channel.routes, channel.takes_ns = size_bytes, self._routes, takes_ns

    def _send_with_mishaps(self, delivery: Delivery, size_bytes: int, is_sure: bool) -> None:
        channel = delivery.channel
        src_node, dst_node = channel.src_node, channel.dst_node
        if self._cut and (src_node in self._cut or dst_node in self._cut):
            self.messages_dropped += 1
            return
        if self._parted and (src_node, dst_node) in self._parted:
            self.messages_held += 1
            self._held.setdefault((src_node, dst_node), []).append((delivery, size_bytes, is_sure))
            if self._on_held is not None:
                self._on_held(src_node, dst_node, channel.src_process, channel.dst_process)
            return
        now_ns = self._calendar.now_ns
        takes_ns = self.message_ns(src_node, dst_node, size_bytes)
        again = False
        if self._impairments and src_node != dst_node:
            takes_ns += self._mishap_ns(src_node, dst_node, takes_ns)
            if not is_sure:
                worse = self._conditions.between(src_node, dst_node)
                if worse.drop and self.random.random() < worse.drop:
                    self.messages_dropped += 1
                    return
                again = bool(worse.duplicate) and self.random.random() < worse.duplicate
        delay_ns = max(takes_ns, channel.arrives_ns - now_ns)
        channel.arrives_ns = now_ns + delay_ns
        delivery.goes(self._cuts)
        self._calendar.post_due(now_ns + delay_ns, delivery)
        if again:
            delivery.is_doubled = True
            later_ns = delay_ns + round(self.random.random() * takes_ns)
            self._calendar.post_due(now_ns + later_ns, delivery)

    def slow_head(self, slowness: float) -> None:
        """From now on whatever reaches or leaves the head takes so many times as long there."""
        self._head_ns = min(round(self._cost.head_message_ns * slowness), LATENCY_MAX_NS)
        self.routes_changed()

    def routes_changed(self) -> None:
        """What the topology says of a route may be another now."""
        self._takes_ns.clear()
        self._routes += 1

    def has_cut(self, channel: Channel, cuts: int) -> bool:
        """Whether one of its ends has been cut off since there were so many cuts."""
        return self._cut_at.get(channel.src_node, 0) > cuts or self._cut_at.get(channel.dst_node, 0) > cuts

    # -- cuts ----------------------------------------------------------------------------------------------

    def cut(self, node: NodeKey) -> None:
        """Cut the node off, until `heal`: what is on its way to or from it is lost, its own messages
        included."""
        self._cuts += 1
        self._cut[node] = None
        self._cut_at[node] = self._cuts
        for pair in [pair for pair in self._held if node in pair]:  # the connections that held them are gone
            self.messages_dropped += len(self._held.pop(pair))
        self.flows.lose_all(node)

    def heal(self, node: NodeKey) -> None:
        """Let messages and transfers that start from now on pass again."""
        self._cut.pop(node, None)

    # -- partings, stalls and impairments ------------------------------------------------------------------

    def part(self, src_node: NodeKey, dst_node: NodeKey) -> None:
        """Hold what goes from one node to another, until `join`; each `part` needs its own."""
        pair = (src_node, dst_node)
        self._parted[pair] = self._parted.get(pair, 0) + 1
        self.flows.reconsider(src_node)

    def join(self, src_node: NodeKey, dst_node: NodeKey) -> None:
        """End one parting; with the last, what was held goes its way, in order."""
        pair = (src_node, dst_node)
        self._parted[pair] -= 1
        if self._parted[pair]:
            return
        del self._parted[pair]
        for delivery, size_bytes, is_sure in self._held.pop(pair, ()):
            self.send(delivery, size_bytes, is_sure)
        self.flows.reconsider(src_node)

    def is_parted(self, src_node: NodeKey, dst_node: NodeKey) -> bool:
        """Whether what goes from one node to another is held."""
        return (src_node, dst_node) in self._parted

    @property
    def messages_waiting(self) -> int:
        """Messages that partings hold now."""
        return sum(map(len, self._held.values()))

    def stall(self, node: NodeKey) -> None:
        """Transfers from and to the node stand still, until `unstall`."""
        self._stalled[node] = self._stalled.get(node, 0) + 1
        self.flows.reconsider(node)

    def unstall(self, node: NodeKey) -> None:
        """End one stall."""
        self._stalled[node] -= 1
        if not self._stalled[node]:
            del self._stalled[node]
        self.flows.reconsider(node)

    def impair(self, node: NodeKey, impairment: Impairment) -> None:
        """Make the link of a node worse, until `repair` is given the same."""
        self._impairments.setdefault(node, []).append(impairment)
        self.flows.resize(node)

    def repair(self, node: NodeKey, impairment: Impairment) -> None:
        """End one impairment."""
        left = self._impairments[node]
        left.remove(impairment)
        if not left:
            del self._impairments[node]
        self.flows.resize(node)

    # -- transfers -----------------------------------------------------------------------------------------

    def transfer(
        self,
        src_node: NodeKey,
        dst_node: NodeKey,
        size_bytes: int,
        on_done: Callable[[], object],
        *,
        on_lost: Callable[[], object] | None = None,
    ) -> Transfer:
        """`Flows.transfer`."""
        return self.flows.transfer(src_node, dst_node, size_bytes, on_done, on_lost=on_lost)
