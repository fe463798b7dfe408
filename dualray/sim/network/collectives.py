"""The time of a collective operation: a formula on the topology, for libraries that send no real messages.

A ring all-reduce of S bytes among N processes (Patarasuk and Yuan, 2009) sends 2 (N - 1) rounds of S / N bytes from
each process to its neighbour. All hops of a round go on at once, and share the links that they have in common; a round
takes as long as its slowest hop. So

    time = 2 (N - 1) * (S / N / rate + latency)

where `rate` is that of the hop that gets the least of its links, and `latency` that of the slowest one. A broadcast
goes along the same ring in pieces: S / rate + (N - 1) * latency. Other traffic, and links that a fault has slowed, are
not looked at.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from dualray.shared.model.ids import NodeID
from dualray.sim.cost.cost_model import CostModel
from dualray.sim.network.topologies import Topology


def all_reduce_ns(topology: Topology, costs: CostModel, nodes: Sequence[NodeID], size_bytes: int) -> int:
    """Nanoseconds of a ring all-reduce of `size_bytes` among processes on these nodes, neighbours in this order."""
    count = len(nodes)
    if count < 2:
        return 0
    rate, latency_ns = _ring(topology, costs, nodes)
    return round(2 * (count - 1) * (size_bytes / count / rate * 1e9 + latency_ns))


def broadcast_ns(topology: Topology, costs: CostModel, nodes: Sequence[NodeID], size_bytes: int) -> int:
    """Nanoseconds of a broadcast of `size_bytes` from the first process to the others."""
    if len(nodes) < 2:
        return 0
    rate, latency_ns = _ring(topology, costs, nodes)
    return round(size_bytes / rate * 1e9 + (len(nodes) - 1) * latency_ns)


def _ring(topology: Topology, costs: CostModel, nodes: Sequence[NodeID]) -> tuple[float, int]:
    """Bytes per second of the slowest hop, and nanoseconds of the one with the longest latency."""
    hops = list(zip(nodes, [*nodes[1:], nodes[0]], strict=True))
    shared = Counter(link for hop in hops for link in topology.links(*hop))
    rate = min(topology.bytes_per_s(link) / flows for link, flows in shared.items())
    message = {True: costs.local_message_ns, False: costs.node_message_ns}
    return rate, max(topology.latency_ns(src, dst) + message[src == dst] for src, dst in hops)
