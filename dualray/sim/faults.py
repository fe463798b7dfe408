"""Performs faults (dualray/shared/faults.py) on the virtual cluster, at a time or at a logical event, and ends them.

A fault in time does not keep a simulation alive; its end does, because something may wait for it. Several faults may
hold one node: factors multiply, and each ends by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from dualray.shared.faults import ALL, ENDS_PROCESSES, Fault, FaultKind
from dualray.shared.model.events import DrainAsked, OwnerDied, SpaceRequested
from dualray.shared.model.ids import HEAD, Address, NodeID, put_object_id, root_task_id
from dualray.shared.trace import TraceEvent, TraceKind
from dualray.sim.kernel import Scheduled
from dualray.sim.network import Impairment
from dualray.sim.worker import UserProcess

if TYPE_CHECKING:
    from dualray.sim.cluster import Cluster

_CHANGE_PACE = (FaultKind.SLOW_NODE, FaultKind.PAUSE_NODE)


class FaultInjector:
    """See the module.

    Attributes:
        performed: faults that have happened, in order.
        missed: faults whose time came and that found nobody to befall: a node that was down, an actor that was gone.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.by_event: dict[tuple[str, str], list[Fault]] = {}
        """Those that wait for something to happen."""
        self.anchors: set[TraceKind] = set()
        """Kinds of events that some of them wait for: `happened` is to be told of these."""
        self._counts: dict[tuple[str, str], int] = {}
        self._ends: dict[int, tuple[Callable[[], object], Scheduled | None]] = {}
        self._planned: list[Fault] = []
        self.performed: list[Fault] = []
        self.missed: list[Fault] = []

    def plan(self, faults: Iterable[Fault], *, driver_node: NodeID) -> None:
        """Arm faults.

        Raises:
            ValueError: a node that the cluster does not have, or the driver's own.
        """
        for fault in faults:
            self._check(fault, driver_node)
            self._planned.append(fault)
            if fault.kind in _CHANGE_PACE:
                self._cluster.let_pace_change()
            if fault.at_ns is not None:
                delay_ns = fault.at_ns - self._cluster.kernel.now_ns
                self._cluster.kernel.call_after(max(delay_ns, 0), self._perform, fault, "", daemon=True)
            else:
                self.by_event.setdefault((fault.event, fault.task_name or ""), []).append(fault)
                self.anchors.add(TraceKind(fault.event))

    def _check(self, fault: Fault, driver_node: NodeID) -> None:
        known = list(self._cluster.nodes)
        for name in fault.named_nodes:
            if NodeID(name) not in self._cluster.nodes:
                raise ValueError(f"fault '{fault}': there is no {name!r}; nodes are {known[0]} to {known[-1]}")
        if fault.kind in ENDS_PROCESSES and fault.node == driver_node:
            raise ValueError(f"fault '{fault}': {fault.node} runs the driver, and would end the program with it")
        if fault.kind is FaultKind.PARTITION:
            ends = {driver_node, HEAD}
            one, other = set(fault.nodes), set(fault.others)
            if (one & ends and not ends <= one and not other) or (one & ends and other & ends):
                raise ValueError(
                    f"fault '{fault}': it parts the driver, on {driver_node}, from the head, and would end the program"
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
            key = (str(event.kind), name)
            planned = self.by_event.get(key)
            if planned is None:
                continue
            count = self._counts[key] = self._counts.get(key, 0) + 1
            for fault in planned:
                if fault.start == count:
                    self._cluster.kernel.call_after(0, self._perform, fault, event.process)

    def stop(self) -> None:
        """Faults stop: nothing more is performed, and what can end ends now."""
        self.by_event.clear()
        self.anchors.clear()
        for number in list(self._ends):
            self._end(number)
        self._planned = [fault for fault in self._planned if fault in self.performed or fault in self.missed]

    # ---- Performing --------------------------------------------------------------------------------------------

    def _perform(self, fault: Fault, process: str) -> None:
        if fault not in self._planned:
            return  # faults have stopped
        if self._begin(fault, process):
            self.performed.append(fault)
        else:
            self.missed.append(fault)

    def _begin(self, fault: Fault, process: str) -> bool:
        cluster = self._cluster
        node = cluster.nodes.get(NodeID(fault.node))
        if node is not None and not node.is_alive:
            return False
        match fault.kind:
            case FaultKind.KILL_NODE:
                cluster.kill_node(NodeID(fault.node))
            case FaultKind.KILL_WORKER:
                return cluster.kill_worker(Address(process))
            case FaultKind.KILL_ACTOR:
                return self._kill_actor(fault.actor)
            case FaultKind.LOSE_GPU:
                return cluster.lose_gpu(NodeID(fault.node), fault.gpu)
            case FaultKind.REBOOT_NODE:
                cluster.kill_node(NodeID(fault.node))
                self._lasts(fault, lambda: cluster.boot_node(NodeID(fault.node)))
            case FaultKind.DRAIN_NODE:
                self._drain(fault)
            case FaultKind.PAUSE_NODE | FaultKind.RESTART_HEAD:
                machine = fault.node or HEAD
                if cluster.is_paused(machine):
                    return False
                self._note(fault, machine)
                cluster.pause(machine)
                self._lasts(fault, lambda: cluster.resume(machine))
            case FaultKind.PARTITION:
                self._part(fault)
            case FaultKind.SLOW_NODE:
                self._slow(fault)
            case FaultKind.LINK:
                self._impair(fault)
            case FaultKind.FILL_STORE:
                self._fill(fault)
            case FaultKind.FILL_MEMORY:
                return self._fill_memory(fault)
            case FaultKind.SKEW_CLOCK:
                self._skew(fault)
        return True

    def _note(self, fault: Fault, subject: str) -> None:
        """Into the trace."""
        now_ns = self._cluster.kernel.now_ns
        self._cluster.note(TraceEvent(now_ns, TraceKind.FAULT, HEAD, subject, "", str(fault.kind)))

    def _lasts(self, fault: Fault, end: Callable[[], object]) -> None:
        """The fault has begun; `end` ends it."""
        number = len(self.performed) + len(self.missed)
        timer = None
        if fault.for_ns is not None:
            timer = self._cluster.kernel.call_after(fault.for_ns, self._end, number)
        self._ends[number] = (end, timer)

    def _end(self, number: int) -> None:
        end, timer = self._ends.pop(number)
        if timer is not None:
            timer.cancel()  # where faults stop before its time
        end()

    def _kill_actor(self, name: str) -> bool:
        for process in self._cluster.processes.values():
            if isinstance(process, UserProcess) and process.is_alive and process.has_core:
                execution = process.core.execution
                if execution.actor_id is not None and execution.name.partition(".")[0] == name:
                    return self._cluster.kill_worker(process.address, name="kill actor")
        return False

    def _drain(self, fault: Fault) -> None:
        node = NodeID(fault.node)
        told = self._cluster.nodes[node]
        self._note(fault, node)
        told.handle(DrainAsked())

        def replace() -> None:
            if self._cluster.nodes[node] is told:  # and no other fault has put a machine in its place meanwhile
                self._cluster.kill_node(node)  # where it has not left
                self._cluster.boot_node(node)

        if fault.for_ns is not None:
            self._lasts(fault, replace)

    def _part(self, fault: Fault) -> None:
        cluster = self._cluster
        others = fault.others or tuple(name for name in (*cluster.nodes, HEAD) if name not in fault.nodes)
        pairs = [(one, other) for one in fault.nodes for other in others]
        if not fault.one_way:
            pairs += [(other, one) for one, other in pairs]
        self._note(fault, ",".join(fault.nodes))
        for pair in pairs:
            cluster.network.part(*pair)

        def heal() -> None:
            for pair in pairs:
                cluster.network.join(*pair)
            cluster.hearing_changed()

        cluster.hearing_changed()
        self._lasts(fault, heal)

    def _slow(self, fault: Fault) -> None:
        node = self._cluster.nodes[NodeID(fault.node)]
        self._note(fault, fault.node)
        node.slowed.append(fault.factor)
        node.pace_changed()

        def recover() -> None:
            node.slowed.remove(fault.factor)
            node.pace_changed()

        self._lasts(fault, recover)

    def _impair(self, fault: Fault) -> None:
        network = self._cluster.network
        worse = Impairment(
            bandwidth=fault.bandwidth,
            latency=fault.latency,
            loss=fault.loss,
            drop=fault.drop,
            duplicate=fault.duplicate,
            delay_ns=fault.delay_ns,
            jitter_ns=fault.jitter_ns,
        )
        nodes = (*self._cluster.nodes, HEAD) if fault.node == ALL else (fault.node,)
        self._note(fault, fault.node)
        for node in nodes:
            network.impair(node, worse)

        def repair() -> None:
            for node in nodes:
                network.repair(node, worse)

        self._lasts(fault, repair)

    def _skew(self, fault: Fault) -> None:
        """What programs there read as the time of day is set; intervals are measured by other clocks."""
        ahead_ns = self._cluster.clock_ahead_ns
        self._note(fault, fault.node)
        ahead_ns[fault.node] = ahead_ns.get(fault.node, 0) + fault.skew_ns

        def set_right() -> None:
            ahead_ns[fault.node] -= fault.skew_ns

        self._lasts(fault, set_right)

    def _fill_memory(self, fault: Fault) -> bool:
        """Somebody who is no process of ours takes memory."""
        memory = self._cluster.nodes[NodeID(fault.node)].memory
        if not memory.size_bytes:
            return False  # a node whose memory has no end
        taken_bytes = round(memory.size_bytes * fault.factor)
        self._note(fault, fault.node)
        memory.strangers_bytes += taken_bytes
        memory.look()

        def give_back() -> None:
            memory.strangers_bytes -= taken_bytes

        self._lasts(fault, give_back)
        return True

    def _fill(self, fault: Fault) -> None:
        """Somebody who is no process of ours holds room in the store, as far as it can be made."""
        node = self._cluster.nodes[NodeID(fault.node)]
        number = len(self.performed) + len(self.missed)
        stranger = Address(f"stranger-{number}")
        self._note(fault, fault.node)
        node.handle(
            SpaceRequested(
                object_id=put_object_id(root_task_id(stranger, 0), 0, 1),
                size_bytes=round(node.hardware.store_bytes * fault.factor),
                owner=stranger,
                requester=stranger,
                remakeable=False,
            )
        )
        self._lasts(fault, lambda: node.handle(OwnerDied(address=stranger)))
