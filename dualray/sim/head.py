"""The virtual head: runs the head machine, and reports nodes that have fallen silent.

Heartbeats between healthy processes are not simulated one by one: the cluster knows when a node can no longer be heard,
and the head's runner reports its silence when the heartbeat timeout has passed since then, as a real one would.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dualray.shared.machines.head import Head
from dualray.shared.model.events import NodeSilent
from dualray.shared.model.ids import HEAD, NodeID
from dualray.sim.runner import MachineProcess

if TYPE_CHECKING:
    from dualray.sim.cluster import Cluster


class HeadProcess(MachineProcess):
    """See the module."""

    machine: Head

    def __init__(self, *, cluster: Cluster) -> None:
        super().__init__(cluster=cluster, address=HEAD, node=HEAD, machine=Head(config=cluster.config))

    def node_fell_silent(self, node: NodeID, incarnation: int) -> None:
        """Nothing will be heard of this life of the node from now on."""
        silent = NodeSilent(node=node, incarnation=incarnation)
        self.cluster.kernel.call_after(self.cluster.config.heartbeat_timeout_ns, self.handle, silent)
