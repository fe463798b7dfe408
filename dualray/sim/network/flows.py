"""Flows share the links of a network by max-min fairness: bulk transfers between nodes.

Theory of operation
-------------------
Transfers are fluid flows. One waits for its latency, then shares the links of its route with the other
flows by max-min fairness: no flow can get more without taking from one that has less. Rates are constant
between two changes (a flow starts, ends, is cancelled or lost) and are computed again only at a change,
once for all changes of one instant, and only for the flows that are connected with the changed one through
shared links. A flow's end is rounded up to a nanosecond. The model and its results are those of SimGrid's
CM02 without TCP corrections; tests compare flow by flow.

Two ends that are parted, or one of which is stalled, let a transfer stand still; one that is parted for
CONNECTION_LASTS_NS is lost, as its connection breaks. Where a link loses segments, a transfer gets at most what Mathis
et al., "The Macroscopic Behavior of the TCP Congestion Avoidance Algorithm" (1997), give for that loss.

Progressive filling: all rates rise together until a link is full; its flows are frozen at that share, the
link's remains are shared by the others, and so on. A heap of links by share, with stale entries pushed
again, makes it O(F log L): the share of a link only grows while flows of other links are frozen.

Nothing here iterates over a set: the order of flows is the order in which they started.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import Final

from dualray.sim.cost.cost_model import CostModel
from dualray.sim.kernel.calendar import Calendar
from dualray.sim.kernel.kernel import LATE, Kernel, Scheduled
from dualray.sim.network.conditions import Conditions
from dualray.sim.network.topologies import LinkKey, NodeKey

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
    """Bytes on their way from a node to another; made by `Flows.transfer`."""

    shared_by: Flows
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
        self.shared_by.remove(self)
        return True

    def moved_bytes(self) -> float:
        """Bytes that are through by now."""
        flown_ns = self.shared_by.calendar.now_ns - self._settled_ns
        return self.size_bytes - self._left_bytes + self.rate_bytes_per_s * flown_ns / 1e9


class Flows:
    """All transfers of one network, and how they share its links; see the module."""

    def __init__(self, kernel: Kernel, cost_model: CostModel, conditions: Conditions) -> None:
        self.calendar: Calendar = kernel.calendar
        self.transfers_lost = 0
        self._kernel = kernel
        self._cost = cost_model
        self._conditions = conditions
        self._topology = conditions.topology
        self._links: dict[LinkKey, _Link] = {}  # those with flows on them
        self._transfers: dict[NodeKey, dict[Transfer, None]] = {}  # those that are not over, by either end
        self._changed: dict[_Link, None] = {}  # links whose flows changed since the last solution
        self.on_rate: Callable[[str, NodeKey, int], object] | None = None
        """Told what flows `in` or `out` of a node from now on, in bytes a second, whenever that changes."""
        self._rates: dict[LinkKey, int] = {}  # what it was told last, where that is not 0

    def lose_all(self, node: NodeKey) -> None:
        """The node is cut off: what is on its way to or from it is lost."""
        for transfer in list(self._transfers.get(node, ())):
            self.remove(transfer)
            self._tell_lost(transfer)

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
            shared_by=self,
            src_node=src_node,
            dst_node=dst_node,
            size_bytes=size_bytes,
            on_done=on_done,
            on_lost=on_lost,
            _left_bytes=float(size_bytes),
        )
        if src_node in self._conditions.cut or dst_node in self._conditions.cut:
            transfer.over = True
            self._tell_lost(transfer)
            return transfer
        for node in (src_node, dst_node):
            self._transfers.setdefault(node, {})[transfer] = None
        latency_ns = self._conditions.latency_ns(src_node, dst_node)
        if src_node != dst_node:
            latency_ns += self._cost.transfer_ns
        transfer._event = self._kernel.call_after(latency_ns, self._start, transfer)
        return transfer

    def _start(self, transfer: Transfer) -> None:
        transfer._event = None
        transfer._is_on_its_way = True
        transfer._settled_ns = self.calendar.now_ns
        if self._conditions.stands_still((transfer.src_node, transfer.dst_node)):
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
        for key in self._topology.links(transfer.src_node, transfer.dst_node):
            link = self._links.get(key)
            if link is None:
                link = self._links[key] = _Link(key, self._conditions.bytes_per_s(key))
            link.flows[transfer] = None
            links.append(link)
        own = self._own_link(transfer, links)
        if own is not None:
            links.append(own)
        transfer._links = tuple(links)
        transfer._settled_ns = self.calendar.now_ns
        self._change(links)

    def _own_link(self, transfer: Transfer, links: list[_Link]) -> _Link | None:
        """Software and losses bound what one flow can get: a link that it has for itself."""
        src, dst = transfer.src_node, transfer.dst_node
        if src == dst:
            return None
        bytes_per_s = float(self._cost.transfer_bytes_per_s)
        if self._conditions.impairments:
            loss = self._conditions.between(src, dst).loss
            if loss:
                round_trip_s = 2 * self._conditions.latency_ns(src, dst) / 1e9
                bytes_per_s = min(bytes_per_s, MATHIS * SEGMENT_BYTES / (max(round_trip_s, 1e-9) * math.sqrt(loss)))
        if not self._conditions.impairments and any(link.bytes_per_s <= bytes_per_s for link in links):
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
        self.remove(transfer)
        transfer._left_bytes = 0.0  # the last nanosecond was rounded up
        transfer.on_done()

    def remove(self, transfer: Transfer) -> None:
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
        transfer._settled_ns = self.calendar.now_ns
        transfer.rate_bytes_per_s = rate_bytes_per_s

    # -- what stands still, and capacities that change ---------------------------------------------------

    def reconsider(self, node: NodeKey) -> None:
        """Transfers of the node stop, or go on."""
        for transfer in list(self._transfers.get(node, ())):
            if not transfer._is_on_its_way:
                continue
            if self._conditions.stands_still((transfer.src_node, transfer.dst_node)):
                if transfer._links:
                    self._take_off(transfer)
                self._mind_connection(transfer)
            elif not transfer._links:
                self._put_on(transfer)

    def _mind_connection(self, transfer: Transfer) -> None:
        """A transfer stands still: its connection breaks in the end, if that is because its ends are parted."""
        is_parted = (transfer.src_node, transfer.dst_node) in self._conditions.parted and transfer.on_lost is not None
        if is_parted and transfer._event is None:
            transfer._event = self._kernel.call_after(CONNECTION_LASTS_NS, self._break, transfer)
        elif not is_parted and transfer._event is not None:
            transfer._event.cancel()
            transfer._event = None

    def _break(self, transfer: Transfer) -> None:
        self.remove(transfer)
        self._tell_lost(transfer)

    def _tell_lost(self, transfer: Transfer) -> None:
        self.transfers_lost += 1
        if transfer.on_lost is not None:
            latency_ns = self._topology.latency_ns(transfer.src_node, transfer.dst_node)
            self._kernel.call_after(latency_ns, transfer.on_lost)

    def resize(self, node: NodeKey) -> None:
        """The capacity of the links of a node may have changed, and whatever else is impaired."""
        self._conditions.impairments_changed()
        changed = [link for link in self._links.values() if node in self._topology.ends_at(link.key)]
        for link in changed:
            link.bytes_per_s = self._conditions.bytes_per_s(link.key)
        if changed:
            self._change(changed)
        for transfer in list(self._transfers.get(node, ())):
            if transfer._links:  # what bounds it alone is another rate now
                self._take_off(transfer)
                self._put_on(transfer)


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
