"""Outages end, pause and restart machines and processes, and change what the head hears.

A node that is killed is cut off the network with everything on it; the head learns of it only by its silence. A machine
that is paused stands still: what reaches it, its timers and its fibers wait until it goes on, in order; its transfers
stand still with it. One that was taken for dead meanwhile is a zombie: the head refuses it, and it ends. A partition
holds what is sent across it. What the head can hear is worked out again after each of these (`hearing_changed`).

`FallibleCluster` says what faults need of their cluster.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, Final

from dualray.shared.model.events import Event, GpuLost, PeerLost
from dualray.shared.model.ids import HEAD, ActorID, Address, NodeID, node_of
from dualray.shared.model.resources import add, ip_offered, node_resources, told
from dualray.shared.proof.trace import TraceKind
from dualray.sim.kernel.kernel import Scheduled
from dualray.sim.network.flows import CONNECTION_LASTS_NS
from dualray.sim.processes.head import HeadProcess
from dualray.sim.processes.host_process import HostProcess
from dualray.sim.processes.node import ClusterOfNodes, Hardware, NodeProcess
from dualray.sim.processes.pauses import perform
from dualray.sim.processes.runner import Process
from dualray.sim.usercode.process_calls import ip_of

HEAD_IS_GONE: Final = "the head process is gone"


class FallibleCluster(ClusterOfNodes):
    """What faults need of their cluster, beside what its processes need."""

    head: HeadProcess
    processes: dict[Address, Process]
    clock_ahead_ns: dict[str, int]
    """Of nodes whose clock is set wrong."""
    outages: Outages
    groups: dict[str, Hardware]
    """What a node is made of, of each group that grows and shrinks."""

    def start_node(self, node: NodeID, hardware: Hardware, *, incarnation: int = 0) -> None:
        """A machine boots."""
        raise NotImplementedError

    def let_pace_change(self) -> None:
        """Faults may slow or stop what computes while it does."""
        raise NotImplementedError

    def tell(self, to: Address, message: Event) -> None:
        """A process notices something by itself: as if a message had arrived."""
        raise NotImplementedError

    def actors(self) -> Iterator[tuple[Address, ActorID, str]]:
        """Each living actor: its address, its id and its class."""
        raise NotImplementedError

    def driver_fails(self, why: str) -> None:
        """There is no cluster any more: the driver hears it when it waits or asks."""
        raise NotImplementedError

    def is_pid_of_worker(self, pid: int) -> bool:
        """Whether a virtual process beside the driver has this pid, or had it."""
        raise NotImplementedError


class Outages:
    """The outages of machines and processes of one cluster."""

    def __init__(self, cluster: FallibleCluster, *, driver_node: NodeID) -> None:
        self._cluster = cluster
        self._driver_node = driver_node
        self._config = cluster.config
        self._kernel = cluster.kernel
        self._network = cluster.network
        self._pauses = cluster.pauses
        self._head = cluster.head
        self._nodes = cluster.nodes
        self.given_back: dict[NodeID, None] = {}
        """Nodes whose machine is somebody else's by now: they do not come back."""

    def kill_node(self, node: NodeID) -> None:
        """The machine loses power: its processes, its store and what is on its links are gone."""
        process = self._nodes[node]
        if not process.is_alive:
            return
        process.trace(TraceKind.FAULT, node, name="kill node")
        process.die()
        self._network.cut(node)
        self._let_go(node)
        self.hearing_changed()

    def end_node(self, node: NodeID) -> None:
        """Its processes end while its machine goes on: the head sees its connection close."""
        process = self._nodes[node]
        if not process.is_alive:
            return
        process.die()
        closed = PeerLost(address=process.address)
        self._network.message(self._cluster.line(process, HEAD), 0, self._head.handle, closed)
        self._let_go(node)
        self.hearing_changed()

    def kill_head(self) -> None:
        """The head is gone for good. Whoever is connected to it sees that: nodes end, and the driver says so."""
        if not self._head.is_alive:
            return
        self._head.trace(TraceKind.FAULT, HEAD, name="kill head")
        self._head.die()
        self._network.cut(HEAD)
        for node in self._nodes.values():
            delay_ns = self._network.message_ns(HEAD, node.node)
            ends: Callable[[], None] = partial(self._end_without_head, node, HEAD_IS_GONE)
            self._kernel.call_after(delay_ns, self._pauses.when_running, node.node, ends)

    @property
    def is_down(self) -> bool:
        """Whether the driver's node has ended: nobody gives back anything any more."""
        return not self._nodes[self._driver_node].is_alive

    def expect_head(self) -> Scheduled:
        """Nodes hear nothing of the head from now on: as long as the head waits for one of them, each waits for the
        head; then it ends, for others may run by now what it runs. Whoever has the head heard again cancels that."""
        config = self._config
        suspicion_s = config.suspicion_ns / 1e9
        why = f"the node manager {self._driver_node} is gone: no message came from the head for {suspicion_s:g} s more"
        return self._kernel.call_after(config.heartbeat_timeout_ns + config.suspicion_ns, self._end_all_nodes, why)

    def _end_all_nodes(self, why: str) -> None:
        for node in self._nodes.values():
            self._pauses.when_running(node.node, self._end_without_head, node, why)

    def _end_without_head(self, node: NodeProcess, why: str) -> None:
        node.die()
        if node.node == self._driver_node:
            self._cluster.driver_fails(why)

    def boot_node(self, node: NodeID) -> None:
        """A machine that was killed is switched on again: a new incarnation, with an empty store."""
        process = self._nodes[node]
        if process.is_alive or node in self.given_back:
            return
        self._network.heal(node)
        self._cluster.start_node(node, process.hardware, incarnation=process.incarnation + 1)
        self.hearing_changed()

    def next_node(self) -> NodeID:
        """The name of the next node that joins: names are not used again."""
        return NodeID(f"node-{len(self._nodes)}")

    def add_nodes(self, count: int, group: str) -> None:
        """So many machines boot, and join: of a group, or like the driver's."""
        hardware = self._cluster.groups.get(group)
        like = self._nodes[self._driver_node].hardware
        for _ in range(count):
            if hardware is not None:
                self.add_node(hardware)
                continue
            total = told(like.total)
            if ip_offered(like.total):
                total = add((total, node_resources(ip_of(self.next_node()), is_head=False)))
            self.add_node(replace(like, total=total))

    def add_node(self, hardware: Hardware) -> NodeProcess:
        """A machine that was not there before boots, and joins."""
        node = self.next_node()
        said = os.environ.get("OMP_NUM_THREADS")
        if self._cluster.counts_threads and said is not None:
            self._cluster.threads_said = {**self._cluster.threads_said, node: said.encode()}
        self._cluster.start_node(node, hardware)
        return self._nodes[node]

    def kill_worker(self, address: Address, *, reason: str = "killed by SIGKILL", name: str = "kill worker") -> bool:
        """A worker process gets SIGKILL; False when there is none of that address any more."""
        process = self._nodes[node_of(address)]
        if not process.is_alive or address not in process.workers:
            return False
        process.trace(TraceKind.FAULT, address, name=name)
        process.end_worker(address, reason)
        return True

    def end_worker_of_pid(self, pid: int, signal_number: int) -> bool | None:
        """User code sends a signal to a virtual worker, which ends as soon as time may pass; see ProcessCalls."""
        if not self._cluster.is_pid_of_worker(pid):
            return None
        for node in self._nodes.values():
            for address, worker in node.workers.items():
                if isinstance(worker, HostProcess) and worker.pid == pid:
                    if signal_number:
                        reason = f"killed by {signal.Signals(signal_number).name}"
                        self._kernel.call_after(0, partial(self.kill_worker, address, reason=reason))
                    return True
        return False

    def lose_gpu(self, node: NodeID, gpu: int) -> bool:
        """A GPU falls off the bus; False when the node has none of that id."""
        process = self._nodes[node]
        if not process.is_alive or not process.manager.has_gpu(gpu):
            return False
        process.trace(TraceKind.FAULT, node, name="lose gpu")
        process.handle(GpuLost(gpu=gpu))
        return True

    def pause(self, node: str) -> None:
        """A machine, or the head's, stands still from now on."""
        self._pauses.pause(node)
        self._pace_changed(node)
        self._network.stall(node)
        self.hearing_changed()

    def resume(self, node: str) -> None:
        """A machine goes on: first with what has waited, in order."""
        if self._pauses.is_paused(node):
            self._let_go(node)
            self.hearing_changed()

    def set_pace(self, process: Process, pace: float) -> None:
        """One process computes at so many times its usual pace from now on; at 0 it stands still altogether."""
        cores = self._nodes[NodeID(process.node)].cores
        if cores is not None:  # else no node has cores of its own (replay.py)
            cores.set_pace(process, pace)
        if not pace:
            self._pauses.pause(process.address)
        else:
            self._pauses.go_on(process.address)

    def _pace_changed(self, machine: str) -> None:
        process = self._nodes.get(NodeID(machine))
        if process is not None:  # it is not the head's
            process.pace_changed()

    def _let_go(self, node: str) -> None:
        """A machine goes on, or has nothing left to go on with."""
        if self._pauses.is_paused(node):
            waiting = self._pauses.lift(node)
            self._pace_changed(node)
            self._network.unstall(node)
            perform(waiting)

    def hearing_changed(self) -> None:
        """Which nodes the head can hear may have changed."""
        for node, process in self._nodes.items():
            is_heard = process.is_alive and not self._pauses.is_paused(node) and not self._network.is_parted(node, HEAD)
            if is_heard:
                self._head.node_was_heard(node, process.incarnation)
            elif not self._head.is_silent(node):
                self._head.node_fell_silent(node, process.incarnation)

    # ---- Connections -----------------------------------------------------------------------------------------

    def on_held(self, src_node: Any, dst_node: Any, src: Any, dst: Any) -> None:
        """What a partition holds is not acknowledged: in time, its connection breaks. Heartbeats tell of the head; and
        node managers ask one another."""
        if HEAD in (src, dst) or (src in self._nodes and dst in self._nodes) or (src, dst) in self._network.breaking:
            return
        self._network.breaking[src, dst] = None
        self._kernel.call_after(CONNECTION_LASTS_NS, self._break, src_node, dst_node, src, dst)

    def _break(self, src_node: Any, dst_node: Any, src: Any, dst: Any) -> None:
        """Both ends see that a connection has broken; what it carries comes late all the same, when they are joined."""
        del self._network.breaking[src, dst]
        if self._network.is_parted(src_node, dst_node):
            for end, other in ((src, dst), (dst, src)):
                self._cluster.tell(end, PeerLost(address=other))
