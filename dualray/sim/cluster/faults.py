"""Applies faults (dualray/shared/scenario/fault_model.py) to the virtual cluster, at a time or at a logical event.

A fault in time does not keep a simulation alive; its end does, because something may wait for it. What a fault does
stands in `fault_actions.py`.
"""

from __future__ import annotations

from collections.abc import Iterable

from dualray.shared.model.ids import HEAD, Address, NodeID, node_of
from dualray.shared.proof.trace import TraceEvent, TraceKind
from dualray.shared.scenario.fault_model import (
    ENDS_PROCESSES,
    OF_HEAD,
    OF_WORKERS,
    TASK_ANCHORS,
    Fault,
    FaultKind,
    nodes_added,
)
from dualray.sim.cluster.fault_actions import FaultActions
from dualray.sim.cluster.outages import FallibleCluster
from dualray.sim.kernel.kernel import Scheduled

_CHANGE_PACE = OF_WORKERS - {FaultKind.KILL_WORKER} | {FaultKind.SLOW_NODE, FaultKind.PAUSE_NODE}

_Key = tuple[str, str, str]
"""What is counted: a kind of event, the name of the task or "" for any, and the node or "" for any."""


class FaultInjector:
    """See the module.

    Attributes:
        performed: faults that have happened, in order.
        missed: faults whose time came and that found no target: a node that was down, an actor that was gone.
    """

    def __init__(self, cluster: FallibleCluster) -> None:
        self._cluster = cluster
        self._actions = FaultActions(cluster)
        self.by_event: dict[_Key, list[Fault]] = {}
        """Those that wait for something to happen."""
        self.anchors: set[TraceKind] = set()
        """Kinds of events that some of them wait for: `happened` is to be told of these."""
        self._counts: dict[_Key, int] = {}
        self._by_submission: dict[str, list[Fault]] = {}
        """Those that wait for a task that is not submitted yet, by its name."""
        self._submitted: dict[str, int] = {}
        """How often tasks of those names were."""
        self._by_task: dict[tuple[str, str], list[Fault]] = {}
        """Those that wait for an event of one task."""
        self._planned: list[Fault] = []
        self._awaited: list[Scheduled] = []
        """Those in time for which somebody may wait."""
        self.performed: list[Fault] = []
        self.missed: list[Fault] = []

    def plan(self, faults: Iterable[Fault], *, driver_node: NodeID) -> None:
        """Arm faults.

        Raises:
            ValueError: a node that the cluster does not have, or the driver's own.
        """
        faults = tuple(faults)
        later = nodes_added(faults)
        for fault in faults:
            self._check(fault, driver_node, later)
            self._planned.append(fault)
            if fault.kind in _CHANGE_PACE:
                self._cluster.let_pace_change()
            if fault.at_ns is not None:
                delay_ns = fault.at_ns - self._cluster.kernel.now_ns
                # Somebody may wait for nodes that are to come.
                is_idle = fault.kind is not FaultKind.ADD_NODES
                due = self._cluster.kernel.call_after(max(delay_ns, 0), self._perform, fault, None, daemon=is_idle)
                if not is_idle:
                    self._awaited.append(due)
                continue
            self.anchors.add(TraceKind(fault.event))
            if fault.submission:
                self.anchors.add(TraceKind.TASK_SUBMITTED)
                assert fault.task_name is not None
                self._by_submission.setdefault(fault.task_name, []).append(fault)
            else:
                self.by_event.setdefault((fault.event, fault.task_name or "", fault.on_node), []).append(fault)

    def _check(self, fault: Fault, driver_node: NodeID, later: int) -> None:
        """`later`: how many nodes other faults add."""
        known = list(self._cluster.nodes)
        grows = bool(self._cluster.groups)
        joining = {f"node-{index}" for index in range(len(known), len(known) + later)}
        if fault.group and fault.group not in self._cluster.groups:
            raise ValueError(f"fault '{fault}': the cluster has no group {fault.group!r}; name a group of the scenario")
        for name in fault.named_nodes:
            if NodeID(name) not in self._cluster.nodes and name not in joining and not grows:
                raise ValueError(
                    f"fault '{fault}': the cluster has no node {name!r}; the nodes are {known[0]} to {known[-1]}"
                )
        if fault.kind in ENDS_PROCESSES and fault.node == driver_node:
            raise ValueError(f"fault '{fault}': {fault.node} runs the driver, so this fault would end the program")
        if fault.kind is FaultKind.PARTITION:
            ends = {driver_node, HEAD}
            one, other = set(fault.nodes), set(fault.others)
            if (one & ends and not ends <= one and not other) or (one & ends and other & ends):
                raise ValueError(
                    f"fault '{fault}': this fault would end the program, because the driver on {driver_node} would "
                    "lose its connection to the head process"
                )
        if fault.kind is FaultKind.CLOG_NODE and fault.node == driver_node:
            raise ValueError(
                f"fault '{fault}': the driver runs on {fault.node}, so this fault would end the program: the "
                "driver would receive no messages from the head process"
            )

    @property
    def outstanding(self) -> list[Fault]:
        """Faults that were planned, and whose time or event has not come."""
        left = list(self._planned)
        for fault in (*self.performed, *self.missed):
            if fault in left:
                left.remove(fault)
        return left

    def happened(self, event: TraceEvent) -> None:
        """Something happened somewhere: the anchor of logical faults."""
        for name in (event.name, "") if event.name else ("",):
            self._count((str(event.kind), name, ""), event)
        process = self._cluster.processes.get(Address(event.process))
        node = process.node if process is not None else node_of(Address(event.process))
        for name in (event.name, "") if event.name else ("",):
            self._count((str(event.kind), name, node), event)
        if self._by_submission or self._by_task:
            self._look_at_task(event, node)

    def _count(self, key: _Key, event: TraceEvent) -> None:
        planned = self.by_event.get(key)
        if planned is None:
            return
        count = self._counts[key] = self._counts.get(key, 0) + 1
        for fault in planned:
            if fault.start == count:
                self._has_come(fault, event)

    def _has_come(self, fault: Fault, event: TraceEvent) -> None:
        """The event that a fault waits for."""
        if fault.kind is FaultKind.HOLD_CALL:  # before its message is sent
            self._perform(fault, event)
            return
        self._cluster.kernel.call_after(fault.after_ns, self._perform, fault, event, daemon=fault.after_ns > 0)

    def _look_at_task(self, event: TraceEvent, node: str) -> None:
        """An event of a task whose submission some fault counts, or has counted."""
        if event.kind is TraceKind.TASK_SUBMITTED:
            faults = self._by_submission.get(event.name)
            if faults is not None:
                count = self._submitted[event.name] = self._submitted.get(event.name, 0) + 1
                for fault in faults:
                    if fault.submission == count:
                        self._by_task.setdefault((fault.event, event.subject), []).append(fault)
        elif event.kind in TASK_ANCHORS.values() and (str(event.kind), event.subject) in self._by_task:
            waiting = self._by_task.pop((str(event.kind), event.subject))
            later = [fault for fault in waiting if fault.on_node not in ("", node)]
            if later:  # another attempt may do so there
                self._by_task[str(event.kind), event.subject] = later
            for fault in waiting:
                if fault not in later:
                    self._has_come(fault, event)

    def stop(self) -> None:
        """Faults stop: nothing more is performed, and what can end ends now."""
        self.by_event.clear()
        self.anchors.clear()
        self._by_submission.clear()
        self._by_task.clear()
        for due in self._awaited:
            due.cancel()
        self._actions.end_all()
        self._planned = [fault for fault in self._planned if fault in self.performed or fault in self.missed]

    def _perform(self, fault: Fault, event: TraceEvent | None) -> None:
        if fault not in self._planned:
            return  # faults have stopped
        if self._cluster.head.is_alive or fault.kind not in OF_HEAD:
            self._actions.begin(fault, event, lambda has_begun: self._has_begun(fault, has_begun=has_begun))
        else:
            self.missed.append(fault)

    def _has_begun(self, fault: Fault, *, has_begun: bool) -> None:
        (self.performed if has_begun else self.missed).append(fault)
