"""Performs faults (dualray/shared/faults.py) on the virtual cluster, at a time or at a logical event."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from dualray.shared.faults import Fault, FaultKind
from dualray.shared.model.ids import Address, NodeID
from dualray.shared.trace import TraceEvent

if TYPE_CHECKING:
    from dualray.sim.cluster import Cluster


class FaultInjector:
    """See the module."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._by_task: dict[str, list[Fault]] = {}
        self._starts: dict[str, int] = {}
        self.performed: list[Fault] = []

    def plan(self, faults: Iterable[Fault], *, driver_node: NodeID) -> None:
        """Arm faults.

        Raises:
            ValueError: a node that the cluster does not have, or the driver's own.
        """
        for fault in faults:
            if fault.kind is FaultKind.KILL_NODE:
                known = list(self._cluster.nodes)
                if NodeID(fault.node) not in self._cluster.nodes:
                    raise ValueError(
                        f"fault '{fault}': there is no {fault.node!r}; nodes are {known[0]} to {known[-1]}"
                    )
                if fault.node == driver_node:
                    raise ValueError(
                        f"fault '{fault}': {fault.node} runs the driver, and would end the program with it"
                    )
            if fault.task_name is not None:
                self._by_task.setdefault(fault.task_name, []).append(fault)
            else:
                assert fault.at_ns is not None
                delay_ns = fault.at_ns - self._cluster.kernel.now_ns
                self._cluster.kernel.call_after(max(delay_ns, 0), self._perform, fault, "", daemon=True)

    def task_started(self, event: TraceEvent) -> None:
        """A task starts somewhere: the anchor of logical faults."""
        planned = self._by_task.get(event.name)
        if planned is None:
            return
        count = self._starts[event.name] = self._starts.get(event.name, 0) + 1
        for fault in planned:
            if fault.start == count:
                self._cluster.kernel.call_after(0, self._perform, fault, event.process)

    def _perform(self, fault: Fault, process: str) -> None:
        self.performed.append(fault)
        if fault.kind is FaultKind.KILL_NODE:
            self._cluster.kill_node(NodeID(fault.node))
        else:
            self._cluster.kill_worker(Address(process))
