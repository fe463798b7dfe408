"""The conditions of a network are its cuts, partings and stalls, and the impairments of its links.

A link can be made worse: by factors of its bandwidth and latency, by a share of segments that are lost, and by a delay
of each message with a jitter. Messages can arrive twice, overtake one another, or never arrive.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from dualray.sim.network.topologies import LinkKey, NodeKey, Topology

LATENCY_MAX_NS: Final = 10_000_000_000
"""Of an impaired route, or a slow head, however many impairments multiply: what is worse than that is a partition."""


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


class Conditions:
    """See the module.

    Attributes:
        parted: how many partings hold a pair of nodes, by direction.
        stalled: how many stalls hold a node.
        impairments: of each node that has any.
        cut: nodes that are cut off.
    """

    def __init__(self, topology: Topology) -> None:
        self.topology: Final[Topology] = topology
        self.parted: dict[tuple[NodeKey, NodeKey], int] = {}
        self.stalled: dict[NodeKey, int] = {}
        self.impairments: dict[NodeKey, list[Impairment]] = {}
        self.cut: dict[NodeKey, None] = {}
        self._worse: dict[tuple[NodeKey, NodeKey], Impairment] = {}
        """What the impairments of two nodes come to together, of those that were asked for since they changed."""

    def impairments_changed(self) -> None:
        """What two nodes' come to together is to be worked out again."""
        self._worse.clear()

    def impairment(self, node: NodeKey) -> Impairment:
        """What all impairments of a node come to."""
        return sum(self.impairments.get(node, ()), HEALTHY)

    def between(self, src_node: NodeKey, dst_node: NodeKey) -> Impairment:
        """What impairs whatever goes from one node to another."""
        worse = self._worse.get((src_node, dst_node))
        if worse is None:
            worse = self._worse[src_node, dst_node] = self.impairment(src_node) + self.impairment(dst_node)
        return worse

    def bytes_per_s(self, key: LinkKey) -> float:
        """The capacity of a link now."""
        bytes_per_s = self.topology.bytes_per_s(key)
        ends = self.topology.ends_at(key) if self.impairments else ()
        return bytes_per_s * min([self.impairment(node).bandwidth for node in ends]) if ends else bytes_per_s

    def latency_ns(self, src_node: NodeKey, dst_node: NodeKey) -> int:
        """The latency of a route now."""
        latency_ns = self.topology.latency_ns(src_node, dst_node)
        if not self.impairments or src_node == dst_node:
            return latency_ns
        worse = max(self.impairment(src_node).latency, self.impairment(dst_node).latency)
        return min(round(latency_ns * worse), LATENCY_MAX_NS)

    def stands_still(self, ends: tuple[NodeKey, NodeKey]) -> bool:
        """Whether a transfer between two nodes cannot flow now."""
        return (bool(self.parted) and ends in self.parted) or (
            bool(self.stalled) and (ends[0] in self.stalled or ends[1] in self.stalled)
        )
