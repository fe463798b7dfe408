"""The virtual cluster's network: messages with a latency, and bulk transfers that share bandwidth fairly.

Theory of operation
-------------------
Messages are small and do not compete for bandwidth. One takes the latency of its route, the cost of the
software, and its bytes at full speed (see CostModel); between the same two processes messages arrive in the
order in which they were sent, whatever their sizes, as on one TCP connection.

Transfers are fluid flows. One waits for its latency, then shares the links of its route with the other
flows by max-min fairness: no flow can get more without taking from one that has less. Rates are constant
between two changes (a flow starts, ends, is cancelled or lost) and are computed again only at a change,
once for all changes of one instant, and only for the flows that are connected with the changed one through
shared links. A flow's end is rounded up to a nanosecond. The model and its results are those of SimGrid's
CM02 without TCP corrections; tests compare flow by flow.

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

Progressive filling: all rates rise together until a link is full; its flows are frozen at that share, the
link's remains are shared by the others, and so on. A heap of links by share, with stale entries pushed
again, makes it O(F log L): the share of a link only grows while flows of other links are frozen.

Nothing here iterates over a set: the order of flows is the order in which they started.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from random import Random
from typing import Any, Final, TypeAlias

from dualray.sim.cost.cost_model import CostModel
from dualray.sim.cost.rates import time_ns
from dualray.sim.kernel.calendar import Calendar, Due
from dualray.sim.kernel.kernel import LATE, Kernel, Scheduled
from dualray.sim.network.topologies import LinkKey, NodeKey, Star, Topology

__all__ = ["Channel", "Delivery", "Impairment", "Network", "Transfer"]

LATENCY_MAX_NS: Final = 10_000_000_000
"""Of an impaired route, or a slow head, however many impairments multiply: what is worse than that is a partition."""

RETRANSMIT_NS: Final = 200_000_000
"""Until a lost segment is sent again for the first time: Linux's least retransmission timeout (TCP_RTO_MIN)."""

RETRANSMITS_MAX: Final = 15
"""Times that one segment is sent again at most: Linux's tcp_retries2."""

CONNECTION_LASTS_NS: Final = 30_000_000_000
"""Without an acknowledgement, until it breaks: TCP_USER_TIMEOUT of real mode's connections between machines."""

SEGMENT_BYTES: Final = 1460
"""TCP's segment on Ethernet."""

MATHIS: Final = 1.22
"""The constant of Mathis et al.: rate = MATHIS * segment / (round trip * sqrt(loss))."""

_NIC: Final = ("in", "out")
"""The kinds of links that are a node's network card."""

_OWN: Final = "own"
"""The kind of a link that one flow has for itself."""

ROUTES_MAX: Final = 65_536
"""Pairs of nodes and sizes, of which the time of a message is remembered."""


# -- flows
# ----------------------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class _Link:
    """A link with flows on it. `left_bytes_per_s` and `rising` (flows not frozen yet) are scratch of a
    solution."""

    key: LinkKey
    bytes_per_s: float
    flows: dict[Transfer, None] = field(default_factory=dict)
    left_bytes_per_s: float = 0.0
    rising: int = 0


@dataclass(slots=True, eq=False, kw_only=True)
class Transfer:
    """Bytes on their way from a node to another; made by `Network.transfer`."""

    network: Network
    src_node: NodeKey
    dst_node: NodeKey
    size_bytes: int
    on_done: Callable[[], object]
    on_lost: Callable[[], object] | None
    rate_bytes_per_s: float = 0.0
    """Its share now; 0 while it waits for its latency, and when it is over."""
    over: bool = False
    """Done, lost or cancelled."""
    _is_on_its_way: bool = False
    """Its latency has passed."""
    _links: tuple[_Link, ...] = ()
    """Those that it uses now; none while it stands still."""
    _left_bytes: float = 0.0  # at _settled_ns
    _settled_ns: int = 0
    _event: Scheduled | None = None  # its start, then its end, or that of its connection

    def cancel(self) -> bool:
        """Stop it; neither on_done nor on_lost is called. False when it was over before."""
        if self.over:
            return False
        self.network._remove(self)
        return True

    def moved_bytes(self) -> float:
        """Bytes that are through by now."""
        flown_ns = self.network._calendar.now_ns - self._settled_ns
        return self.size_bytes - self._left_bytes + self.rate_bytes_per_s * flown_ns / 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Impairment:
    """What makes the link of a node worse; see the theory of operation. Factors of several impairments multiply."""

    bandwidth: float = 1.0
    latency: float = 1.0
    loss: float = 0.0
    drop: float = 0.0
    duplicate: float = 0.0
    delay_ns: int = 0
    jitter_ns: int = 0
    reorder: float = 0.0

    def __add__(self, other: Impairment) -> Impairment:
        return Impairment(
            bandwidth=self.bandwidth * other.bandwidth,
            latency=self.latency * other.latency,
            loss=1 - (1 - self.loss) * (1 - other.loss),
            drop=1 - (1 - self.drop) * (1 - other.drop),
            duplicate=1 - (1 - self.duplicate) * (1 - other.duplicate),
            delay_ns=self.delay_ns + other.delay_ns,
            jitter_ns=self.jitter_ns + other.jitter_ns,
            reorder=1 - (1 - self.reorder) * (1 - other.reorder),
        )


HEALTHY: Final = Impairment()


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
        super().__init__(network, channel)
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
        self.messages_sent = 0
        self.messages_dropped = 0
        self.messages_held = 0
        self.messages_doubled = 0
        self._head_ns = cost_model.head_message_ns
        """What the software of a message to or from the head takes now: see `slow_head`."""
        self.transfers_lost = 0
        self.random: Final = Random(f"network:{seed}")  # for losses and jitter, and for nothing else
        self._parted: dict[tuple[NodeKey, NodeKey], int] = {}  # how many partings hold a pair, by direction
        self._held: dict[tuple[NodeKey, NodeKey], list[_Held]] = {}  # messages, by pair, in order
        self._stalled: dict[NodeKey, int] = {}
        self._impairments: dict[NodeKey, list[Impairment]] = {}
        self._worse: dict[tuple[NodeKey, NodeKey], Impairment] = {}
        """What the impairments of two nodes come to together, of those that were asked for since they changed."""
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
        self._cut: dict[NodeKey, None] = {}
        self._cut_at: dict[NodeKey, int] = {}  # at which count of cuts a node was last cut off
        self._cuts = 0
        self._links: dict[LinkKey, _Link] = {}  # those with flows on them
        self._transfers: dict[NodeKey, dict[Transfer, None]] = {}  # those that are not over, by either end
        self._changed: dict[_Link, None] = {}  # links whose flows changed since the last solution
        self.on_rate: Callable[[str, NodeKey, int], object] | None = None
        """Told what flows `in` or `out` of a node from now on, in bytes a second, whenever that changes."""
        self._rates: dict[LinkKey, int] = {}  # what it was told last, where that is not 0

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
        worse = self._between(src_node, dst_node)
        bytes_per_s = max(1, round(self.topology.message_bytes_per_s(src_node, dst_node) * worse.bandwidth))
        return software_ns + self._latency_ns(src_node, dst_node) + worse.delay_ns + time_ns(size_bytes, bytes_per_s)

    def _latency_ns(self, src_node: NodeKey, dst_node: NodeKey) -> int:
        latency_ns = self.topology.latency_ns(src_node, dst_node)
        if not self._impairments or src_node == dst_node:
            return latency_ns
        worse = max(self._impairment(src_node).latency, self._impairment(dst_node).latency)
        return min(round(latency_ns * worse), LATENCY_MAX_NS)

    def _mishap_ns(self, src_node: NodeKey, dst_node: NodeKey, takes_ns: int) -> int:
        """What losses, jitter and others that overtake it add to one message, which takes so long without."""
        worse = self._between(src_node, dst_node)
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
        delivery.goes(self._cuts)
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
                worse = self._between(src_node, dst_node)
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
        for transfer in list(self._transfers.get(node, ())):
            self._remove(transfer)
            self._tell_lost(transfer)

    def heal(self, node: NodeKey) -> None:
        """Let messages and transfers that start from now on pass again."""
        self._cut.pop(node, None)

    # -- partings, stalls and impairments ------------------------------------------------------------------

    def part(self, src_node: NodeKey, dst_node: NodeKey) -> None:
        """Hold what goes from one node to another, until `join`; each `part` needs its own."""
        pair = (src_node, dst_node)
        self._parted[pair] = self._parted.get(pair, 0) + 1
        self._reconsider(src_node)

    def join(self, src_node: NodeKey, dst_node: NodeKey) -> None:
        """End one parting; with the last, what was held goes its way, in order."""
        pair = (src_node, dst_node)
        self._parted[pair] -= 1
        if self._parted[pair]:
            return
        del self._parted[pair]
        for delivery, size_bytes, is_sure in self._held.pop(pair, ()):
            self.send(delivery, size_bytes, is_sure)
        self._reconsider(src_node)

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
        self._reconsider(node)

    def unstall(self, node: NodeKey) -> None:
        """End one stall."""
        self._stalled[node] -= 1
        if not self._stalled[node]:
            del self._stalled[node]
        self._reconsider(node)

    def impair(self, node: NodeKey, impairment: Impairment) -> None:
        """Make the link of a node worse, until `repair` is given the same."""
        self._impairments.setdefault(node, []).append(impairment)
        self._resize(node)

    def repair(self, node: NodeKey, impairment: Impairment) -> None:
        """End one impairment."""
        left = self._impairments[node]
        left.remove(impairment)
        if not left:
            del self._impairments[node]
        self._resize(node)

    def _impairment(self, node: NodeKey) -> Impairment:
        return sum(self._impairments.get(node, ()), HEALTHY)

    def _between(self, src_node: NodeKey, dst_node: NodeKey) -> Impairment:
        worse = self._worse.get((src_node, dst_node))
        if worse is None:
            worse = self._worse[src_node, dst_node] = self._impairment(src_node) + self._impairment(dst_node)
        return worse

    def _bytes_per_s(self, key: LinkKey) -> float:
        bytes_per_s = self.topology.bytes_per_s(key)
        ends = self.topology.ends_at(key) if self._impairments else ()
        return bytes_per_s * min([self._impairment(node).bandwidth for node in ends]) if ends else bytes_per_s

    def _resize(self, node: NodeKey) -> None:
        """The capacity of the links of a node may have changed, and whatever else is impaired."""
        self._worse.clear()
        changed = [link for link in self._links.values() if node in self.topology.ends_at(link.key)]
        for link in changed:
            link.bytes_per_s = self._bytes_per_s(link.key)
        if changed:
            self._change(changed)
        for transfer in list(self._transfers.get(node, ())):
            if transfer._links:  # what bounds it alone is another rate now
                self._take_off(transfer)
                self._put_on(transfer)

    def _stands_still(self, transfer: Transfer) -> bool:
        ends = (transfer.src_node, transfer.dst_node)
        return (bool(self._parted) and ends in self._parted) or (
            bool(self._stalled) and (ends[0] in self._stalled or ends[1] in self._stalled)
        )

    def _reconsider(self, node: NodeKey) -> None:
        """Transfers of the node stop, or go on."""
        for transfer in list(self._transfers.get(node, ())):
            if not transfer._is_on_its_way:
                continue
            if self._stands_still(transfer):
                if transfer._links:
                    self._take_off(transfer)
                self._mind_connection(transfer)
            elif not transfer._links:
                self._put_on(transfer)

    def _mind_connection(self, transfer: Transfer) -> None:
        """A transfer stands still: its connection breaks in the end, if that is because its ends are parted."""
        is_parted = (transfer.src_node, transfer.dst_node) in self._parted and transfer.on_lost is not None
        if is_parted and transfer._event is None:
            transfer._event = self._kernel.call_after(CONNECTION_LASTS_NS, self._break, transfer)
        elif not is_parted and transfer._event is not None:
            transfer._event.cancel()
            transfer._event = None

    def _break(self, transfer: Transfer) -> None:
        self._remove(transfer)
        self._tell_lost(transfer)

    def _tell_lost(self, transfer: Transfer) -> None:
        self.transfers_lost += 1
        if transfer.on_lost is not None:
            latency_ns = self.topology.latency_ns(transfer.src_node, transfer.dst_node)
            self._kernel.call_after(latency_ns, transfer.on_lost)

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
        """Move bytes between nodes, and call `on_done()` when the last has arrived.

        `on_lost()` is called, a link latency later, when either node is or gets cut off before that.
        """
        assert size_bytes >= 0
        transfer = Transfer(
            network=self,
            src_node=src_node,
            dst_node=dst_node,
            size_bytes=size_bytes,
            on_done=on_done,
            on_lost=on_lost,
            _left_bytes=float(size_bytes),
        )
        if src_node in self._cut or dst_node in self._cut:
            transfer.over = True
            self._tell_lost(transfer)
            return transfer
        for node in (src_node, dst_node):
            self._transfers.setdefault(node, {})[transfer] = None
        latency_ns = self._latency_ns(src_node, dst_node)
        if src_node != dst_node:
            latency_ns += self._cost.transfer_ns
        transfer._event = self._kernel.call_after(latency_ns, self._start, transfer)
        return transfer

    def _start(self, transfer: Transfer) -> None:
        transfer._event = None
        transfer._is_on_its_way = True
        transfer._settled_ns = self._calendar.now_ns
        if self._stands_still(transfer):
            self._mind_connection(transfer)
        else:
            self._put_on(transfer)

    def _put_on(self, transfer: Transfer) -> None:
        """Let a transfer flow, over the links of its route."""
        if transfer._event is not None:  # that its connection breaks
            transfer._event.cancel()
            transfer._event = None
        if transfer._left_bytes <= 0:
            self._finish(transfer)
            return
        links = []
        for key in self.topology.links(transfer.src_node, transfer.dst_node):
            link = self._links.get(key)
            if link is None:
                link = self._links[key] = _Link(key, self._bytes_per_s(key))
            link.flows[transfer] = None
            links.append(link)
        own = self._own_link(transfer, links)
        if own is not None:
            links.append(own)
        transfer._links = tuple(links)
        transfer._settled_ns = self._calendar.now_ns
        self._change(links)

    def _own_link(self, transfer: Transfer, links: list[_Link]) -> _Link | None:
        """Software and losses bound what one flow can get: a link that it has for itself."""
        src, dst = transfer.src_node, transfer.dst_node
        if src == dst:
            return None
        bytes_per_s = float(self._cost.transfer_bytes_per_s)
        if self._impairments:
            loss = self._between(src, dst).loss
            if loss:
                round_trip_s = 2 * self._latency_ns(src, dst) / 1e9
                bytes_per_s = min(bytes_per_s, MATHIS * SEGMENT_BYTES / (max(round_trip_s, 1e-9) * math.sqrt(loss)))
        if not self._impairments and any(link.bytes_per_s <= bytes_per_s for link in links):
            return None  # they let no more through, either
        link = _Link((_OWN, transfer.src_node), bytes_per_s)
        link.flows[transfer] = None
        return link

    def _take_off(self, transfer: Transfer) -> None:
        """Let a transfer stand still: nobody shares with it."""
        if transfer._event is not None:
            transfer._event.cancel()
            transfer._event = None
        self._settle(transfer, 0.0)
        links, transfer._links = transfer._links, ()
        for link in links:
            del link.flows[transfer]
            if not link.flows and self._links.get(link.key) is link:
                del self._links[link.key]
        if links:
            self._change(links)

    def _finish(self, transfer: Transfer) -> None:
        self._remove(transfer)
        transfer._left_bytes = 0.0  # the last nanosecond was rounded up
        transfer.on_done()

    def _remove(self, transfer: Transfer) -> None:
        """Take a transfer that is over out of everything."""
        transfer.over = True
        if transfer._event is not None:
            transfer._event.cancel()
            transfer._event = None
        for node in dict.fromkeys((transfer.src_node, transfer.dst_node)):
            of_node = self._transfers[node]
            del of_node[transfer]
            if not of_node:
                del self._transfers[node]
        if transfer._links:
            self._take_off(transfer)

    # -- sharing -------------------------------------------------------------------------------------------

    def _change(self, links: Iterable[_Link]) -> None:
        """The flows on these links changed: share them anew when this instant's other events are over."""
        if not self._changed:
            self._kernel.call_after(0, self._share, priority=LATE)
        self._changed.update(dict.fromkeys(links))

    def _share(self) -> None:
        changed, self._changed = self._changed, {}
        links = _connected(changed)
        for transfer, rate in _max_min_rates(links).items():
            if rate != transfer.rate_bytes_per_s:
                self._settle(transfer, rate)
                if transfer._event is not None:
                    transfer._event.cancel()
                end_ns = math.ceil(transfer._left_bytes * 1e9 / rate)
                transfer._event = self._kernel.call_after(end_ns, self._finish, transfer)
        if self.on_rate is not None:
            self._tell_rates(links)

    def _tell_rates(self, links: Iterable[_Link]) -> None:
        """Of each network card that carries more or less than before."""
        assert self.on_rate is not None
        for link in links:
            direction, node = link.key
            rate = round(link.bytes_per_s - link.left_bytes_per_s)
            if direction not in _NIC or rate == self._rates.get(link.key, 0):
                continue
            if rate:
                self._rates[link.key] = rate
            else:
                del self._rates[link.key]
            self.on_rate(direction, node, rate)

    def _settle(self, transfer: Transfer, rate_bytes_per_s: float) -> None:
        """Book what has moved at the rate so far, and go on at another."""
        transfer._left_bytes = max(0.0, transfer.size_bytes - transfer.moved_bytes())
        transfer._settled_ns = self._calendar.now_ns
        transfer.rate_bytes_per_s = rate_bytes_per_s


def _connected(changed: Iterable[_Link]) -> list[_Link]:
    """The links whose shares may depend on those of `changed`, in the order in which they are reached."""
    links = list(changed)
    links_seen = dict.fromkeys(links)
    flows_seen: dict[Transfer, None] = {}
    for link in links:  # grows while it is walked
        for flow in link.flows:
            if flow not in flows_seen:
                flows_seen[flow] = None
                for other in flow._links:
                    if other not in links_seen:
                        links_seen[other] = None
                        links.append(other)
    return links


def _max_min_rates(links: list[_Link]) -> dict[Transfer, float]:
    """The max-min fair rate of each flow on `links`, which must hold all links of each (progressive
    filling)."""
    for link in links:
        link.left_bytes_per_s = float(link.bytes_per_s)
        link.rising = len(link.flows)
    rates: dict[Transfer, float] = {}
    shares = [(link.bytes_per_s / link.rising, order) for order, link in enumerate(links) if link.rising]
    heapify(shares)
    while shares:
        share, order = heappop(shares)
        full = links[order]
        if full.rising == 0:
            continue
        share_now = full.left_bytes_per_s / full.rising
        if share_now > share:
            heappush(shares, (share_now, order))
            continue
        for flow in full.flows:
            if flow not in rates:
                rates[flow] = share_now
                for link in flow._links:
                    link.left_bytes_per_s -= share_now
                    link.rising -= 1
    return rates
