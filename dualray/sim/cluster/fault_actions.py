"""Performs each fault on the virtual cluster, and ends it.

Several faults may hold one node: factors multiply, and each ends by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from dualray.shared.model.events import DrainAsked, ObjectsFreed, OwnerDied, SpaceRequested
from dualray.shared.model.ids import HEAD, Address, NodeID, ObjectID, node_of, put_object_id, root_task_id
from dualray.shared.proof.trace import TraceEvent, TraceKind
from dualray.shared.scenario.fault_model import ALL, OF_OBJECTS, OF_WORKERS, Fault, FaultKind
from dualray.sim.cluster.outages import FallibleCluster
from dualray.sim.kernel.kernel import Scheduled
from dualray.sim.network.conditions import Impairment
from dualray.sim.processes.kept_store import KeptStore
from dualray.sim.processes.node import NodeProcess
from dualray.sim.processes.runner import Process

_SEALED_TRIES = 12
"""How often it is looked whether an object that was written is sealed, after 1 us, 2 us, and so on: up to 4 ms."""


class FaultActions:
    """See the module."""

    def __init__(self, cluster: FallibleCluster) -> None:
        self._cluster = cluster
        self._number = -1
        """Of the fault in hand."""
        self._ends: dict[int, tuple[Callable[[], object], Scheduled | None]] = {}
        self._paces: dict[Address, list[float]] = {}
        """What the faults that last have made of processes' paces."""
        self._head_factors: list[float] = []

    def begin(self, fault: Fault, event: TraceEvent | None, tell: Callable[[bool], None]) -> None:
        """Begin it, and `tell` whether there was a target.

        Args:
            event: the fault's anchor; None: it came at its time.
        """
        self._number += 1
        if fault.kind in OF_OBJECTS:
            assert event is not None
            process = self._cluster.processes[Address(event.process)]
            node = self._cluster.nodes[NodeID(process.node)]
            self._befall_object(fault, node, ObjectID(bytes.fromhex(event.subject)), tell, 0)
        elif fault.kind is FaultKind.HOLD_CALL:
            assert event is not None
            tell(self._hold_call(fault, event))
        elif fault.kind in OF_WORKERS:
            assert event is not None
            tell(self._befall_worker(fault, Address(event.process)))
        else:
            tell(self._apply_fault(fault))

    def end_all(self) -> None:
        """What can end ends now."""
        for number in list(self._ends):
            self._end(number)

    def _note(self, fault: Fault, subject: str) -> None:
        """Into the trace."""
        now_ns = self._cluster.kernel.now_ns
        self._cluster.note(TraceEvent(now_ns, TraceKind.FAULT, HEAD, subject, "", str(fault.kind)))

    def _lasts(self, fault: Fault, end: Callable[[], object]) -> None:
        """The fault has begun; `end` ends it."""
        number = self._number
        timer = None
        if fault.for_ns is not None:
            timer = self._cluster.kernel.call_after(fault.for_ns, self._end, number)
        self._ends[number] = (end, timer)

    def _end(self, number: int) -> None:
        end, timer = self._ends.pop(number)
        if timer is not None:
            timer.cancel()  # where faults stop before its time
        end()

    def _apply_fault(self, fault: Fault) -> bool:
        """Whether there was a target."""
        cluster = self._cluster
        name = NodeID(fault.node)
        node = cluster.nodes.get(name)
        if fault.node not in ("", HEAD, ALL) and (node is None or not node.is_alive):
            return False
        match fault.kind:
            case FaultKind.KILL_NODE:
                cluster.outages.kill_node(name)
            case FaultKind.REBOOT_NODE:
                self._reboot(fault)
            case FaultKind.DRAIN_NODE:
                self._drain(fault)
            case FaultKind.ADD_NODES:
                self._note(fault, fault.group or "nodes")
                cluster.outages.add_nodes(fault.count, fault.group)
            case FaultKind.PAUSE_NODE | FaultKind.PAUSE_HEAD | FaultKind.RESTART_HEAD:
                return self._pause(fault)
            case FaultKind.RESTART_REDIS:
                self._stop_tables(fault)
            case FaultKind.KILL_HEAD:
                cluster.outages.kill_head()
            case FaultKind.KILL_ACTOR:
                return self._kill_actor(fault.actor)
            case FaultKind.LOSE_GPU:
                return cluster.outages.lose_gpu(name, fault.gpu)
            case FaultKind.PARTITION:
                others = fault.others or self._all_but(fault.nodes)
                pairs = [(one, other) for one in fault.nodes for other in others]
                if not fault.one_way:
                    pairs += [(other, one) for one, other in pairs]
                self._part(fault, ",".join(fault.nodes), pairs)
            case FaultKind.CLOG_NODE:
                self._part(fault, fault.node, [(other, fault.node) for other in self._all_but((fault.node,))])
            case FaultKind.SLOW_NODE:
                self._slow(fault)
            case FaultKind.SLOW_HEAD:
                self._slow_head(fault)
            case FaultKind.LINK:
                self._impair(fault)
            case FaultKind.FILL_STORE:
                self._fill(fault)
            case FaultKind.FILL_MEMORY:
                return self._fill_memory(fault)
            case FaultKind.FILL_DISK:
                self._fill_disk(fault)
            case FaultKind.LIMIT_FILES:
                self._limit_files(fault)
            case FaultKind.SKEW_CLOCK:
                self._skew(fault)
            case _:
                raise TypeError(f"dualray cannot perform the fault {fault.kind}")
        return True

    def _all_but(self, names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(name for name in (*self._cluster.nodes, HEAD) if name not in names)

    # ---- Machines ----------------------------------------------------------------------------------------------

    def _reboot(self, fault: Fault) -> None:
        node = NodeID(fault.node)
        kept = KeptStore(self._cluster.nodes[node]) if fault.keeps_store else None
        self._cluster.outages.kill_node(node)

        def boot() -> None:
            self._cluster.outages.boot_node(node)
            if kept is not None:
                kept.put_back(self._cluster.nodes[node])

        self._lasts(fault, boot)

    def _drain(self, fault: Fault) -> None:
        node = NodeID(fault.node)
        told = self._cluster.nodes[node]
        self._note(fault, node)
        told.handle(DrainAsked())

        def replace() -> None:
            if self._cluster.nodes[node] is told:  # and no other fault has put a machine in its place meanwhile
                self._cluster.outages.kill_node(node)  # where it has not left
                self._cluster.outages.boot_node(node)

        if fault.for_ns is not None:
            self._lasts(fault, replace)

    def _pause(self, fault: Fault) -> bool:
        cluster, machine = self._cluster, fault.node or HEAD
        if cluster.pauses.is_paused(machine):
            return False
        self._note(fault, machine)
        cluster.outages.pause(machine)
        if fault.kind is FaultKind.RESTART_HEAD:
            cluster.pauses.stop_tables()
        patience = cluster.outages.expect_head() if fault.kind is FaultKind.PAUSE_HEAD else None

        def resume() -> None:
            if patience is not None:
                patience.cancel()
            cluster.outages.resume(machine)
            if fault.kind is FaultKind.RESTART_HEAD:
                cluster.pauses.restart_tables()

        self._lasts(fault, resume)
        return True

    def _stop_tables(self, fault: Fault) -> None:
        self._note(fault, HEAD)
        self._cluster.pauses.stop_tables()
        self._lasts(fault, self._cluster.pauses.restart_tables)

    def _slow(self, fault: Fault) -> None:
        node = self._cluster.nodes[NodeID(fault.node)]
        self._note(fault, fault.node)
        node.slowed.append(fault.factor)
        node.pace_changed()

        def recover() -> None:
            node.slowed.remove(fault.factor)
            node.pace_changed()

        self._lasts(fault, recover)

    def _slow_head(self, fault: Fault) -> None:
        network, factors = self._cluster.network, self._head_factors
        self._note(fault, HEAD)
        factors.append(fault.factor)
        network.slow_head(prod(factors))

        def recover() -> None:
            factors.remove(fault.factor)
            network.slow_head(prod(factors))

        self._lasts(fault, recover)

    def _skew(self, fault: Fault) -> None:
        """What programs there read as the time of day is set; intervals are measured by other clocks."""
        ahead_ns = self._cluster.clock_ahead_ns
        self._note(fault, fault.node)
        ahead_ns[fault.node] = ahead_ns.get(fault.node, 0) + fault.skew_ns

        def set_right() -> None:
            ahead_ns[fault.node] -= fault.skew_ns

        self._lasts(fault, set_right)

    # ---- The network -------------------------------------------------------------------------------------------

    def _part(self, fault: Fault, subject: str, pairs: list[tuple[str, str]]) -> None:
        cluster = self._cluster
        self._note(fault, subject)
        for pair in pairs:
            cluster.network.part(*pair)

        def heal() -> None:
            for pair in pairs:
                cluster.network.join(*pair)
            cluster.outages.hearing_changed()

        cluster.outages.hearing_changed()
        self._lasts(fault, heal)

    def _impair(self, fault: Fault) -> None:
        network = self._cluster.network
        worse = Impairment(
            bandwidth=fault.bandwidth,
            latency=fault.latency,
            loss=fault.loss,
            drop=fault.drop,
            duplicate=fault.duplicate,
            reorder=fault.reorder,
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

    def _hold_call(self, fault: Fault, submitted: TraceEvent) -> bool:
        """Nothing that the caller sends to the actor arrives before the fault's time is over, the call first of all:
        a connection keeps the order of its messages."""
        cluster = self._cluster
        caller = cluster.processes.get(Address(submitted.process))
        actor = next((where for where, actor_id, _ in cluster.actors() if actor_id.hex() == submitted.other), None)
        if caller is None or actor is None:
            return False
        self._note(fault, submitted.subject)
        assert fault.for_ns is not None
        line = cluster.line(caller, actor)
        line.arrives_ns = max(line.arrives_ns, cluster.kernel.now_ns + fault.for_ns)
        return True

    # ---- Processes ---------------------------------------------------------------------------------------------

    def _kill_actor(self, name: str) -> bool:
        address = next((where for where, _, class_name in self._cluster.actors() if class_name == name), None)
        return address is not None and self._cluster.outages.kill_worker(address, name="kill actor")

    def _befall_worker(self, fault: Fault, address: Address) -> bool:
        cluster = self._cluster
        if fault.kind is FaultKind.KILL_WORKER:
            return cluster.outages.kill_worker(address)
        process = cluster.nodes[node_of(address)].workers.get(address)
        if process is None or not process.is_alive:
            return False
        assert isinstance(process, Process)
        self._note(fault, address)
        pace = 0.0 if fault.kind is FaultKind.PAUSE_WORKER else 1.0 / fault.factor
        paces = self._paces.setdefault(address, [])
        paces.append(pace)
        cluster.outages.set_pace(process, prod(paces))

        def recover() -> None:
            paces.remove(pace)
            cluster.outages.set_pace(process, prod(paces))

        self._lasts(fault, recover)
        return True

    # ---- Stores, memory and disks ------------------------------------------------------------------------------

    def _befall_object(
        self, fault: Fault, node: NodeProcess, object_id: ObjectID, tell: Callable[[bool], None], tries: int
    ) -> None:
        """The copy of an object that a node has, as soon as it is complete."""
        manager = node.manager
        if node.is_alive and not manager.is_here(object_id) and tries < _SEALED_TRIES:  # its manager will hear of it
            delay_ns = 1_000 << tries
            self._cluster.kernel.call_after(delay_ns, self._befall_object, fault, node, object_id, tell, tries + 1)
            return
        if not node.is_alive or not manager.is_here(object_id):
            tell(False)
            return
        self._note(fault, object_id.hex())
        if fault.kind is FaultKind.LOSE_OBJECT:
            node.handle(ObjectsFreed(object_ids=(object_id,)))
        else:
            node.store.corrupt(object_id)
        tell(True)

    def _fill(self, fault: Fault) -> None:
        """Somebody who is no process of ours holds room in the store, as far as it can be made."""
        node = self._cluster.nodes[NodeID(fault.node)]
        stranger = Address(f"stranger-{self._number}")
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

    def _fill_disk(self, fault: Fault) -> None:
        """Somebody who is no process of ours leaves no room on the disk: nothing can be written there."""
        node = self._cluster.nodes[NodeID(fault.node)]
        self._note(fault, fault.node)
        node.disk_full += 1

        def give_back() -> None:
            node.disk_full -= 1

        self._lasts(fault, give_back)

    def _limit_files(self, fault: Fault) -> None:
        """The node manager has as many files open as it may: it can start no worker."""
        node = self._cluster.nodes[NodeID(fault.node)]
        self._note(fault, fault.node)
        node.files_limited += 1

        def give_back() -> None:
            node.files_limited -= 1

        self._lasts(fault, give_back)
