"""The nodes of a `dualray.cluster_utils.Cluster` in sim mode: planned at first, then machines of a simulation.

`init(address=...)` with the address of such a cluster starts a simulation of the nodes that were added by then. What is
added or removed after that joins or leaves this simulation, in virtual time. A simulation ends with its driver: another
`init` with the same address starts the nodes that are left anew, empty.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from dualray.cluster_address import ClusterAddress
from dualray.shared.labels import as_pairs
from dualray.shared.model.accelerators import with_types
from dualray.shared.model.events import DrainAsked
from dualray.shared.model.ids import NodeID
from dualray.shared.model.resources import Resources, add, node_resources
from dualray.shared.scenario.growth import Growth
from dualray.sim.cluster.cluster import DRIVER, Cluster
from dualray.sim.processes.node import Hardware, NodeProcess
from dualray.sim.usercode.process_calls import ip_of

VIRTUAL_ADDRESS: Final = "10.0.0.0:6399"
"""The address of a simulation's head. No packet reaches it."""
_LOOK_NS: Final = 10_000_000
_SEEN_WITHIN_NS: Final = 30_000_000_000


class PlannedAddress(ClusterAddress):
    """The address of a planned cluster, which leads to its plan as long as it stays this object."""

    __slots__ = ("plan",)

    plan: NodePlan


class PlannedNode:
    """One node of a plan.

    Attributes:
        name: in the simulation that runs; before that, the one that it would get if it began now.
        process: its node manager there; None: its simulation has not begun, or is over.
    """

    def __init__(self, plan: NodePlan, *, total: Resources, store_bytes: int, labels: Mapping[str, str]) -> None:
        self._plan = plan
        self._total = total
        self._store_bytes = store_bytes
        self._labels = as_pairs(labels)
        self.name = NodeID("")
        self.process: NodeProcess | None = None

    def hardware(self) -> Hardware:
        """The node's hardware, under its current name."""
        extra = node_resources(ip_of(self.name), is_head=self._plan.nodes[:1] == [self])
        return Hardware(total=add((with_types(self._total), extra)), store_bytes=self._store_bytes, labels=self._labels)

    @property
    def is_alive(self) -> bool:
        """Whether the node is planned, or its processes run."""
        process = self._plan.process_of(self)
        return process is None or process.is_alive

    def kill(self) -> None:
        """End all processes of the node at once."""
        self._plan.act(self, lambda cluster: cluster.outages.end_node(self.name))

    def pause(self) -> None:
        """Pause the node's machine."""
        self._plan.act(self, lambda cluster: cluster.outages.pause(self.name))

    def resume(self) -> None:
        """Resume the node's machine."""
        self._plan.act(self, lambda cluster: cluster.outages.resume(self.name))

    def drain(self, timeout_ns: int) -> bool:
        """Drain the node. Return whether it left in time. A node that has not started is just removed."""
        process = self._plan.process_of(self)
        if process is None:
            return True
        self._plan.act(self, lambda cluster: process.handle(DrainAsked()))
        return self._plan.wait_until(lambda cluster: not process.is_alive, timeout_ns)


class NodePlan:
    """See the module. `nodes` are those that were added and not removed, the head's first; `settings` what `init` is
    given beside them."""

    def __init__(self) -> None:
        self.nodes: list[PlannedNode] = []
        self.growth: Growth | None = None
        """The groups from which the cluster launches nodes."""
        self.settings: dict[str, Any] = {"mode": "sim", "infeasible": "wait"}
        self._cluster: Cluster | None = None

    @property
    def address(self) -> PlannedAddress:
        """The address that `init` takes."""
        address = PlannedAddress(VIRTUAL_ADDRESS)
        address.settings = self.settings
        address.plan = self
        return address

    def say(self, **settings: Any) -> None:
        """Pass the settings that are not None to `init`."""
        self.settings |= {name: value for name, value in settings.items() if value is not None}

    @property
    def running(self) -> Cluster | None:
        """The running simulation, or None."""
        return self._cluster if self._cluster is not None and not self._cluster.is_closed else None

    def hardware(self) -> list[Hardware]:
        """Of every node, for a simulation that begins.

        Raises:
            ValueError: there is no node.
        """
        if not self.nodes:
            raise ValueError("the Cluster at this address has no nodes: call add_node() of the Cluster first")
        self._name_all()
        return [node.hardware() for node in self.nodes]

    def begin(self, cluster: Cluster) -> None:
        """Note that the simulation of these nodes runs."""
        self._cluster = cluster
        for node in self.nodes:
            node.process = cluster.nodes[node.name]

    def add(self, node: PlannedNode) -> None:
        """Add a node to the running simulation and wait for its driver to see it, or to the plan."""
        self.nodes.append(node)
        cluster = self.running
        if cluster is None:
            self._name_all()
            return
        node.name = cluster.outages.next_node()
        node.process = cluster.outages.add_node(node.hardware())
        self.wait_until(lambda cluster: _is_seen(cluster, node.name), _SEEN_WITHIN_NS)

    def remove(self, node: PlannedNode) -> None:
        """End all processes of the node at once."""
        process = self.process_of(node)
        self.nodes.remove(node)
        if process is None:
            self._name_all()
            return
        self.act(node, lambda cluster: cluster.outages.end_node(node.name))
        self.wait_until(lambda cluster: not _is_seen(cluster, node.name), _SEEN_WITHIN_NS)

    def process_of(self, node: PlannedNode) -> NodeProcess | None:
        """Return the node's manager in the running simulation."""
        return node.process if self.running is not None else None

    def act(self, node: PlannedNode, action: Callable[[Cluster], object]) -> None:
        """Do something to a node as soon as virtual time passes; where its simulation does not run, nothing."""
        cluster = self.running
        if cluster is not None and node.process is not None:
            cluster.kernel.call_after(0, partial(action, cluster))

    def wait_until(self, condition: Callable[[Cluster], bool], timeout_ns: int) -> bool:
        """Let virtual time pass until a condition holds. Return whether it held in time."""
        cluster = self.running
        assert cluster is not None
        deadline_ns = cluster.kernel.now_ns + timeout_ns
        while True:
            cluster.fibers.sleep_ns(_LOOK_NS)
            if condition(cluster):
                return True
            if cluster.kernel.now_ns >= deadline_ns:
                return False

    def _name_all(self) -> None:
        if self.running is None:
            for index, node in enumerate(self.nodes):
                node.name = NodeID(f"node-{index}")


def _is_seen(cluster: Cluster, name: NodeID) -> bool:
    driver = cluster.driver
    assert driver is not None and driver.address == DRIVER
    return any(info.node == name for info in driver.core.machine.cluster)
