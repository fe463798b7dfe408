"""Topologies of the virtual network: the links of each route, and the properties of each link.

Each node has a network card (`Nic`), with so much in each direction, and the latency of a route is that of both cards.
Three ways to connect them:

- `Star`, the default: one switch without limits.
- `Racks`: a switch in each rack, which hangs on the core by an uplink that what leaves the rack shares, and a downlink
  that what comes in shares; within a rack a route is that of a star. The core has no limits. What is in no rack hangs
  on the core itself: so does the head, and is as far from each rack as from any other.
- `Mesh`: a link of its own from each node to each other one, with what the smaller of the two cards has; flows between
  different pairs of nodes do not compete.

Within a node, a transfer copies memory and waits for nothing, whatever the topology.

A topology answers in a time that does not grow with the cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from dualray.sim.cost.cost_model import CostModel

if TYPE_CHECKING:
    # It imports pydantic, which a run without a scenario does not need.
    from dualray.shared.scenario.cluster import ClusterModel

__all__ = ["LinkKey", "Mesh", "Nic", "NodeKey", "Racks", "Star", "Topology", "Wiring", "wiring_of_scenario"]

NodeKey: TypeAlias = Hashable
LinkKey: TypeAlias = tuple[str, Hashable]
"""The kind of a link, and whose it is: a node's, a rack's, or a pair of nodes'."""


class Topology(Protocol):
    """Which links a route takes. Answers are functions of the arguments alone."""

    def links(self, src: NodeKey, dst: NodeKey) -> tuple[LinkKey, ...]: ...

    def latency_ns(self, src: NodeKey, dst: NodeKey) -> int: ...

    def bytes_per_s(self, link: LinkKey) -> int: ...

    def message_bytes_per_s(self, src: NodeKey, dst: NodeKey) -> int: ...

    def ends_at(self, link: LinkKey) -> tuple[NodeKey, ...]:
        """The nodes whose link it is: what impairs theirs impairs it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Nic:
    """A node's network interface, or a rack's uplink; the bandwidth is that of each direction."""

    bytes_per_s: int
    latency_ns: int


Wiring: TypeAlias = Callable[[CostModel, Mapping[Any, Nic]], Topology]
"""Connects the nodes of a cluster: those of the mapping have these cards, the others the cost model's."""


class Star:
    """Every node hangs on one switch by its NIC; `nics` names the nodes whose NIC is not the cost model's."""

    def __init__(self, cost_model: CostModel, nics: Mapping[Any, Nic] | None = None) -> None:
        self._default = Nic(bytes_per_s=cost_model.nic_bytes_per_s, latency_ns=cost_model.nic_latency_ns)
        self._memory_bytes_per_s = cost_model.memory_bytes_per_s
        self._nics: Mapping[Any, Nic] = nics if nics is not None else {}  # not copied: nodes may join

    def links(self, src: NodeKey, dst: NodeKey) -> tuple[LinkKey, ...]:
        if src == dst:
            return (("memory", src),)
        return (("out", src), ("in", dst))

    def latency_ns(self, src: NodeKey, dst: NodeKey) -> int:
        if src == dst:
            return 0
        nic = self._nics.get
        return nic(src, self._default).latency_ns + nic(dst, self._default).latency_ns

    def message_bytes_per_s(self, src: NodeKey, dst: NodeKey) -> int:
        nic = self._nics.get
        return min(nic(src, self._default).bytes_per_s, nic(dst, self._default).bytes_per_s)

    def bytes_per_s(self, link: LinkKey) -> int:
        kind, node = link
        if kind == "memory":
            return self._memory_bytes_per_s
        return self._nics.get(node, self._default).bytes_per_s

    def ends_at(self, link: LinkKey) -> tuple[NodeKey, ...]:
        kind, node = link
        return () if kind == "memory" else (node,)


class Racks(Star):
    """Nodes in racks, whose switches hang on a core without limits.

    Args:
        rack_of: the rack of each node; a node that is in none hangs on the core.
        uplinks: what each rack has, up and down.
    """

    def __init__(
        self,
        cost_model: CostModel,
        nics: Mapping[Any, Nic] | None = None,
        *,
        rack_of: Mapping[Any, Hashable],
        uplinks: Mapping[Any, Nic],
    ) -> None:
        super().__init__(cost_model, nics)
        self._rack_of = dict(rack_of)
        self._uplinks = dict(uplinks)
        assert all(rack in self._uplinks for rack in self._rack_of.values())

    def links(self, src: NodeKey, dst: NodeKey) -> tuple[LinkKey, ...]:
        above, below = self._rack_of.get(src), self._rack_of.get(dst)
        if above == below:
            return super().links(src, dst)
        up: tuple[LinkKey, ...] = () if above is None else (("up", above),)
        down: tuple[LinkKey, ...] = () if below is None else (("down", below),)
        return (("out", src), *up, *down, ("in", dst))

    def latency_ns(self, src: NodeKey, dst: NodeKey) -> int:
        latency_ns = super().latency_ns(src, dst)
        for uplink in self._crossed(src, dst):
            latency_ns += uplink.latency_ns
        return latency_ns

    def message_bytes_per_s(self, src: NodeKey, dst: NodeKey) -> int:
        bytes_per_s = super().message_bytes_per_s(src, dst)
        for uplink in self._crossed(src, dst):
            bytes_per_s = min(bytes_per_s, uplink.bytes_per_s)
        return bytes_per_s

    def bytes_per_s(self, link: LinkKey) -> int:
        kind, rack = link
        return self._uplinks[rack].bytes_per_s if kind in ("up", "down") else super().bytes_per_s(link)

    def ends_at(self, link: LinkKey) -> tuple[NodeKey, ...]:
        return () if link[0] in ("up", "down") else super().ends_at(link)

    def _crossed(self, src: NodeKey, dst: NodeKey) -> list[Nic]:
        above, below = self._rack_of.get(src), self._rack_of.get(dst)
        if above == below:
            return []
        return [self._uplinks[rack] for rack in (above, below) if rack is not None]


class Mesh(Star):
    """Each ordered pair of nodes has a link of its own."""

    def links(self, src: NodeKey, dst: NodeKey) -> tuple[LinkKey, ...]:
        return super().links(src, dst) if src == dst else (("mesh", (src, dst)),)

    def bytes_per_s(self, link: LinkKey) -> int:
        if link[0] != "mesh":
            return super().bytes_per_s(link)
        src, dst = self.ends_at(link)
        return self.message_bytes_per_s(src, dst)

    def ends_at(self, link: LinkKey) -> tuple[NodeKey, ...]:
        kind, pair = link
        if kind != "mesh":
            return super().ends_at(link)
        assert isinstance(pair, tuple)
        return pair


def wiring_of_scenario(cluster: ClusterModel) -> Wiring:
    """How a scenario's nodes are connected."""
    topology = cluster.topology
    if topology.form == "star":
        return Star
    if topology.form == "mesh":
        return Mesh
    rack_of: dict[str, str] = {}
    nics_bytes_per_s: dict[str, int] = {}
    for node, group in cluster.each_node():
        rack = rack_of[node] = group.labels["rack"]
        nics_bytes_per_s[rack] = nics_bytes_per_s.get(rack, 0) + group.network.bandwidth
    uplinks = {
        rack: Nic(
            bytes_per_s=topology.uplink or max(1, round(bytes_per_s / (topology.oversubscription or 1.0))),
            latency_ns=topology.latency,
        )
        for rack, bytes_per_s in nics_bytes_per_s.items()
    }
    return partial(Racks, rack_of=rack_of, uplinks=uplinks)
