"""A virtual node manager: runs the node machine, starts and ends virtual workers, moves bytes between stores."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import prod

from dualray.shared.machines.node.node import Node
from dualray.shared.model.accelerators import Names, numbered
from dualray.shared.model.commands import (
    Command,
    DeleteObject,
    DeleteSpilled,
    EvictObject,
    ReceiveObject,
    RenameObject,
    ReserveSpace,
    RestoreObject,
    Send,
    SendObject,
    SpillObject,
    StartWorker,
    StopWorker,
    UnloadObject,
)
from dualray.shared.model.events import (
    ObjectReceived,
    ObjectRestored,
    ObjectSent,
    ObjectSpilled,
    ReceiveFailed,
    SpaceReserved,
    SpillFailed,
    WorkerExited,
    WorkerNotStarted,
    WorkerReady,
)
from dualray.shared.model.ids import Address, NodeID, ObjectID
from dualray.shared.model.resources import Resources
from dualray.shared.proof.trace import TraceKind
from dualray.sim.cost.memory import GpuMemory, NodeMemory
from dualray.sim.cost.rates import time_ns
from dualray.sim.kernel.cores import Cores
from dualray.sim.kernel.kernel import Scheduled
from dualray.sim.network.topologies import Nic
from dualray.sim.processes.object_store import StoredBytes, VirtualStore
from dualray.sim.processes.runner import MachineProcess, Process, VirtualCluster


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """What a virtual machine is made of. `nic` is its network card, None the cost model's, and so are its disk and how
    long a worker takes to start; `speed` 2 means that work takes half as long; `memory_bytes` 0 means that memory has
    no end, and `gpu_memory_bytes` 0 that of each GPU. Its first workers are there `cold_start_ns` after its start,
    not earlier."""

    total: Resources
    store_bytes: int
    speed: float = 1.0
    nic: Nic | None = None
    memory_bytes: int = 0
    labels: tuple[tuple[str, str], ...] = ()
    worker_start_ns: int | None = None
    cold_start_ns: int = 0
    disk_bytes_per_s: int | None = None
    gpu_memory_bytes: int = 0


class ClusterOfNodes(VirtualCluster):
    """What a node manager needs of its cluster, beside what every process needs."""

    nodes: dict[NodeID, NodeProcess]
    """The node managers of all nodes, dead or alive."""
    make_worker: Callable[..., Process]
    """Makes the process of each virtual worker."""

    def add(self, process: Process) -> None:
        """A process can be sent to from now on."""
        raise NotImplementedError

    def node_refused(self, process: NodeProcess) -> None:
        """The head takes this life of a node for dead, and has told it so."""
        raise NotImplementedError

    def node_left(self, process: NodeProcess) -> None:
        """Nothing depends on this node any more."""
        raise NotImplementedError


class _Passing:
    """An object that a node passes on while it is still on its way to it: a flow of all but the last piece, as fast as
    the network lets it; and, when that is through and the whole object is here, the last piece. So its receiver has it
    a piece later than the node itself, at the earliest. The flow may run ahead of a slower one that feeds it: then it
    has used the network too early, but is complete no sooner than that."""

    def __init__(self, node: NodeProcess, command: SendObject) -> None:
        self.node = node
        self.command = command
        left = command.size_bytes - command.offset
        self.last_bytes = min(left, node.cluster.config.transfer_chunk_bytes)
        self.data: StoredBytes | None = None
        self.has_flown = False
        self.flow = node.cluster.network.transfer(
            node.node, command.to, left - self.last_bytes, self._flown, on_lost=self._lost
        )

    def has_all(self, data: StoredBytes) -> None:
        """The node has the whole object."""
        self.data = data
        self._go_on()

    def _flown(self) -> None:
        self.has_flown = True
        self._go_on()

    def _go_on(self) -> None:
        if self.data is not None and self.has_flown:
            self.node.send_bytes(self.command, self.data, self.last_bytes)

    def _lost(self) -> None:
        waiting = self.node._passing.get(self.command.object_id, [])
        if self in waiting:
            waiting.remove(self)
        self.node.sending_failed(self.command.object_id, self.command.to)

    def break_off(self) -> None:
        """The rest will not come: the receiver hears it."""
        self.flow.cancel()
        receiver = self.node.node_process(self.command.to)
        if receiver is not None:
            failed = ReceiveFailed(object_id=self.command.object_id, source=NodeID(self.node.node))
            cluster = self.node.cluster
            cluster.network.message(cluster.line(self.node, receiver.address), 0, receiver.handle, failed)


class NodeProcess(MachineProcess):
    """See the module."""

    def __init__(self, *, cluster: ClusterOfNodes, node: NodeID, incarnation: int, hardware: Hardware) -> None:
        manager = Node(
            node=node,
            incarnation=incarnation,
            total=hardware.total,
            store_bytes=hardware.store_bytes,
            config=cluster.config,
            labels=hardware.labels,
        )
        super().__init__(cluster=cluster, address=Address(node), node=node, machine=manager)
        self.manager = manager
        """The machine that it runs."""
        self._home = cluster
        self.incarnation = incarnation
        self.hardware = hardware
        self.slowed: list[float] = []
        """How many times as long work takes, for each fault that slows this machine now."""
        self.cores: Cores | None = None
        """What computes here, where a fault may slow or stop it while it does."""
        self.store = VirtualStore(cluster.fibers, cluster.cost_model)
        self.workers: dict[Address, Process] = {}
        """Its virtual workers: `UserProcess`, or what stands for them where nothing is executed."""
        self.memory = NodeMemory(
            kernel=cluster.kernel,
            config=cluster.config,
            size_bytes=hardware.memory_bytes,
            store_used_bytes=manager.store_used_bytes,
            workers=self._workers,
            exceeded=self.handle,
        )
        self.gpu_memory: GpuMemory | None = None
        """Of its GPUs, if that has an end."""
        if hardware.gpu_memory_bytes:
            self.gpu_memory = GpuMemory(node, hardware.gpu_memory_bytes)
        self._device_names: Names | None = None
        self._reserving: dict[ObjectID, Scheduled] = {}
        self._passing: dict[ObjectID, list[_Passing]] = {}
        """What is passed on while it is still on its way here."""
        self._warm_ns = cluster.kernel.now_ns + hardware.cold_start_ns
        """From then on a worker starts as fast as any."""
        self._disk_free_at_ns = 0
        self.disk_full = 0
        self.files_limited = 0
        """How many faults let it open no more files."""
        """How many faults leave no room on its disk now."""

    @property
    def device_names(self) -> Names:
        """Of its GPUs and other accelerators, as they were at first: their numbers, or what the program calls them."""
        if self._device_names is None:
            found = numbered(dict(self.hardware.total.units))
            for kind, names in self.cluster.device_names.items():
                if kind in found and len(names) >= len(found[kind]):
                    found[kind] = tuple(names[: len(found[kind])])
            self._device_names = found
        return self._device_names

    @property
    def slowness(self) -> float:
        """How many times as long as it should work takes here, but for what its cores know."""
        if not self.slowed or self.cores is not None:
            return 1.0 / self.hardware.speed
        return prod(self.slowed) / self.hardware.speed

    def pace_changed(self) -> None:
        """The machine got slow, stands still, or does so no more."""
        if self.cores is not None:
            self.cores.set_speed(0.0 if self.cluster.pauses.is_paused(self.node) else 1.0 / prod(self.slowed))

    def things(self) -> int:
        return self.manager.things()

    def perform(self, command: Command) -> None:
        match command:
            case StartWorker(worker=worker):
                self._start(worker)
            case StopWorker(worker=worker, reason=reason, is_graceful=is_graceful):
                end = partial(self.end_worker, worker, f"stopped: {reason}")
                if is_graceful and worker in self.workers:
                    self.workers[worker].shut_down(end)
                else:
                    end()
            case ReserveSpace(object_id=object_id):  # virtual memory is there as soon as it is wanted
                self._reserving[object_id] = self.cluster.kernel.call_after(0, self._reserved, object_id)
            case EvictObject(object_id=object_id):
                self.trace(TraceKind.OBJECT_EVICTED, object_id)
                self.store.delete(object_id)
            case DeleteObject(object_id=object_id):
                self.trace(TraceKind.OBJECT_DELETED, object_id)
                if object_id in self._reserving:
                    self._reserving.pop(object_id).cancel()
                self.store.delete(object_id)
                for passing in self._passing.pop(object_id, ()):
                    passing.break_off()
            case RenameObject(room_id=room_id, object_id=object_id, size_bytes=size_bytes):
                self.trace(TraceKind.OBJECT_STORED, object_id, amount=size_bytes)
                self.store.rename(room_id, object_id, size_bytes)
            case SpillObject(object_id=object_id, size_bytes=size_bytes):
                if self.disk_full:
                    self._use_disk(0, self._not_spilled, object_id)
                    return
                self.trace(TraceKind.OBJECT_SPILLED, object_id, amount=size_bytes)
                self._use_disk(size_bytes, self._spilled, object_id)
            case UnloadObject(object_id=object_id):
                self.store.delete(object_id)
            case RestoreObject(object_id=object_id, size_bytes=size_bytes):
                self.trace(TraceKind.OBJECT_RESTORED, object_id, amount=size_bytes)
                self._use_disk(size_bytes, self._restored, object_id)
            case DeleteSpilled(object_id=object_id):
                self.store.spilled.pop(object_id, None)
            case SendObject():
                self.trace(TraceKind.TRANSFER_STARTED, command.object_id, other=command.to, amount=command.size_bytes)
                if command.object_id in self.store.objects:
                    data = self.store.objects[command.object_id]
                    self.send_bytes(command, data, command.size_bytes - command.offset)
                else:
                    self._passing.setdefault(command.object_id, []).append(_Passing(self, command))
            case ReceiveObject():
                pass  # virtual bytes come all at once: nothing is to be made ready
            case _:
                super().perform(command)

    def _send(self, command: Send) -> None:
        worker = self.workers.get(command.to)
        if worker is None or not worker.hears(command.message):
            super()._send(command)

    def may_be_over(self) -> None:
        if not self.is_alive:
            return
        if self.manager.refused:  # the head takes this life of the node for dead
            self._home.node_refused(self)
        elif self.manager.drained:
            self._home.node_left(self)

    def node_process(self, node: NodeID) -> NodeProcess | None:
        """The node manager of a node, dead or alive."""
        return self._home.nodes.get(node)

    def _workers(self) -> dict[Address, Process]:
        return self.workers

    # ---- Workers ---------------------------------------------------------------------------------------------

    def _start(self, worker: Address) -> None:
        self.trace(TraceKind.WORKER_STARTED, worker)
        kernel, takes_ns = self.cluster.kernel, self.hardware.worker_start_ns
        if self.files_limited:
            kernel.post(kernel.now_ns, self._not_started, worker)
            return
        if takes_ns is None:
            takes_ns = self.cluster.cost_model.worker_start_ns
        kernel.post(max(kernel.now_ns + takes_ns, self._warm_ns), self._started, worker)

    def _started(self, address: Address) -> None:
        if not self.is_alive:
            return
        if self.cluster.pauses.is_paused(self.node):
            self.cluster.pauses.when_running(self.node, self._started, address)
            return
        worker = self._home.make_worker(cluster=self.cluster, address=address, node=NodeID(self.node), store=self.store)
        self.workers[address] = worker
        self._home.add(worker)
        self.handle(WorkerReady(worker=address))

    def _not_started(self, address: Address) -> None:
        if not self.is_alive:
            return
        if self.cluster.pauses.is_paused(self.node):
            self.cluster.pauses.when_running(self.node, self._not_started, address)
            return
        reason = "this process has reached its limit of open files"
        self.trace(TraceKind.WORKER_ENDED, address, other=reason)
        self.handle(WorkerNotStarted(worker=address, reason=reason))

    def end_worker(self, address: Address, reason: str) -> None:
        """A worker process ends from one moment to the next; the node manager learns of it like of a child's exit."""
        worker = self.workers.pop(address, None)
        if worker is None:
            return
        self.trace(TraceKind.WORKER_ENDED, address, other=reason)
        worker.die()
        self.cluster.pauses.go_on(address)
        self.memory.free(address)
        if self.gpu_memory is not None:
            self.gpu_memory.free(address)
        exited = WorkerExited(worker=address, reason=reason)
        # Behind what the worker has sent.
        self.cluster.network.message(self.cluster.line(worker, self.address), 0, self.handle, exited)

    # ---- Bytes -----------------------------------------------------------------------------------------------

    def _reserved(self, object_id: ObjectID) -> None:
        if self.cluster.pauses.is_paused(self.node):
            self.cluster.pauses.when_running(self.node, self._reserved, object_id)
            return
        del self._reserving[object_id]
        self.memory.note_peaks()
        self.handle(SpaceReserved(object_id=object_id, place=self.store.reserve(object_id)))

    def _use_disk(self, size_bytes: int, then: Callable[[ObjectID], None], object_id: ObjectID) -> None:
        """Write or read so many bytes, after whatever the disk has to do already."""
        kernel = self.cluster.kernel
        start_ns = max(kernel.now_ns, self._disk_free_at_ns)
        self._disk_free_at_ns = start_ns + self._disk_ns(size_bytes)
        kernel.call_after(self._disk_free_at_ns - kernel.now_ns, self._disk_done, then, object_id)

    def _disk_ns(self, size_bytes: int) -> int:
        """How long the disk takes for so many bytes."""
        return time_ns(size_bytes, self.hardware.disk_bytes_per_s or self.cluster.cost_model.disk_bytes_per_s)

    def _disk_done(self, then: Callable[[ObjectID], None], object_id: ObjectID) -> None:
        if self.cluster.pauses.is_paused(self.node):
            self.cluster.pauses.when_running(self.node, self._disk_done, then, object_id)
        elif self.is_alive:
            then(object_id)

    def _spilled(self, object_id: ObjectID) -> None:
        self.store.spilled[object_id] = self.store.objects[object_id]
        elapsed_ns = self._disk_ns(self.manager.size_of(object_id))
        self.handle(ObjectSpilled(object_id=object_id, elapsed_ns=elapsed_ns))

    def _not_spilled(self, object_id: ObjectID) -> None:
        self.handle(SpillFailed(object_id=object_id, reason=os.strerror(errno.ENOSPC)))

    def _restored(self, object_id: ObjectID) -> None:
        self.store.objects[object_id] = self.store.spilled[object_id]
        elapsed_ns = self._disk_ns(self.manager.size_of(object_id))
        self.handle(ObjectRestored(object_id=object_id, elapsed_ns=elapsed_ns))

    def send_bytes(self, command: SendObject, data: StoredBytes, size_bytes: int) -> None:
        """Send the last `size_bytes` of an object."""
        to = command.to
        receiver = self.node_process(to)
        self.cluster.network.transfer(
            self.node,
            to,
            size_bytes,
            partial(self._sent, command, data, receiver),
            on_lost=partial(self.sending_failed, command.object_id, to),
        )

    def _sent(self, command: SendObject, data: StoredBytes, receiver: NodeProcess | None) -> None:
        object_id = command.object_id
        is_there = receiver is not None and receiver.is_alive
        self.handle(ObjectSent(object_id=object_id, to=command.to, complete=is_there))
        if receiver is not None:
            receiver.accept(object_id, data, NodeID(self.node), command.size_bytes)

    def sending_failed(self, object_id: ObjectID, to: NodeID) -> None:
        """Bytes on their way to another node are lost: both ends hear of it."""
        self.handle(ObjectSent(object_id=object_id, to=to, complete=False))
        receiver = self.node_process(to)
        if receiver is not None:
            receiver.handle(ReceiveFailed(object_id=object_id, source=NodeID(self.node)))

    def accept(self, object_id: ObjectID, data: StoredBytes, source: NodeID, size_bytes: int) -> None:
        """All bytes of an object have arrived."""
        if not self.is_alive:
            return
        if self.cluster.pauses.is_paused(self.node):
            self.cluster.pauses.when_running(self.node, self.accept, object_id, data, source, size_bytes)
            return
        self.store.receive(object_id, data)
        self.trace(TraceKind.TRANSFER_ENDED, object_id, other=source, amount=size_bytes)
        self.handle(ObjectReceived(object_id=object_id, source=source))
        if self.manager.is_readable(object_id):
            for passing in self._passing.pop(object_id, ()):
                passing.has_all(data)

    def die(self) -> None:
        """The machine is gone, with its workers and its store."""
        super().die()
        for worker in self.workers.values():
            worker.die()
        self.workers.clear()
