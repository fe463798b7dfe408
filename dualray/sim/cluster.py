"""The virtual cluster: kernel, network, nodes, and the tables of the control plane, in one OS process and thread.

The head lives on a machine of its own, the driver on node-0. A message between processes is an event of the kernel that
arrives after the network's delay, in order for each pair of processes. A node that is killed is cut off the network
with everything on it; the head learns of it only by its silence.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dualray.exceptions import SimulationDeadlockError
from dualray.shared.decision_log import DecisionLog, MachineSpec
from dualray.shared.model.config import Config
from dualray.shared.model.events import Event, Started
from dualray.shared.model.ids import HEAD, Address, NodeID, TaskID, node_of
from dualray.shared.model.resources import Resources
from dualray.shared.trace import TraceEvent, TraceKind, to_bytes
from dualray.sim.cost_model import CostModel
from dualray.sim.faults import FaultInjector
from dualray.sim.fibers import Fiber, FiberScheduler
from dualray.sim.head import HeadProcess
from dualray.sim.isolation import Isolation, VirtualExit
from dualray.sim.kernel import Kernel
from dualray.sim.network import Network
from dualray.sim.node import NodeProcess
from dualray.sim.runner import MachineProcess, Process
from dualray.sim.virtual_time import VirtualTime
from dualray.sim.worker import UserProcess

DRIVER = Address("driver-1")
DRIVER_NODE = NodeID("node-0")
MESSAGE_BYTES = 256
"""Bytes of a message without its payloads. Source: a packed TaskPushed takes 83 to 300 bytes."""

INVARIANTS_EVERY_EVENTS = 10_000
FIRST_PID = 1 << 22
"""Above what any real process has (pid_max of Linux): a virtual pid is never taken for a real one."""


class Cluster:
    """See the module."""

    def __init__(self, *, config: Config, cost_model: CostModel, seed: int, log_directory: Path | None) -> None:
        self.config = config
        self.cost_model = cost_model
        self.seed = seed
        self.is_closed = False
        self.kernel = Kernel()
        self.fibers = FiberScheduler(self.kernel, on_deadlock=self._deadlock, on_crash=self._on_crash)
        self.virtual_time = VirtualTime(self.kernel, self.fibers)
        self.isolation = Isolation(self.kernel, self.fibers, also=self.virtual_time.substitutions())
        self.network = Network(self.kernel, cost_model, head=HEAD)
        self.processes: dict[Address, Process] = {}
        self.nodes: dict[NodeID, NodeProcess] = {}
        self.trace_events: list[TraceEvent] = []
        self.tables: dict[str, dict[str, tuple[tuple[str, str], ...]]] = {}
        self.functions: dict[bytes, bytes] = {}
        self.faults = FaultInjector(self)
        self._log_directory = log_directory
        self._pids = FIRST_PID
        self.head = HeadProcess(cluster=self)
        self.driver: UserProcess | None = None
        self.kernel.on_event(lambda count: self.check_invariants(), every=INVARIANTS_EVERY_EVENTS)

    # ---- Making it -------------------------------------------------------------------------------------------

    def start(self, *, nodes: int, total: Resources, store_bytes: int, root: TaskID) -> UserProcess:
        """Start the head, the nodes and the driver's process; the driver's fiber is adopted afterwards."""
        self._open_log(self.head, MachineSpec(kind="head", address=HEAD, config=self.config))
        self.add(self.head)
        self.head.handle(Started())
        for index in range(nodes):
            self.start_node(NodeID(f"node-{index}"), total=total, store_bytes=store_bytes)
        node = self.nodes[DRIVER_NODE]
        driver = UserProcess(
            cluster=self, address=DRIVER, node=DRIVER_NODE, store=node.store, root=root, is_driver=True
        )
        self.driver = driver
        self.add(driver)
        driver.core.dispatch(Started())
        return driver

    def start_node(self, node: NodeID, *, total: Resources, store_bytes: int, incarnation: int = 0) -> None:
        """A machine boots."""
        process = NodeProcess(cluster=self, node=node, incarnation=incarnation, total=total, store_bytes=store_bytes)
        self.nodes[node] = process
        spec = MachineSpec(
            kind="node",
            address=node,
            node=node,
            config=self.config,
            incarnation=incarnation,
            total=total.units,
            store_bytes=store_bytes,
        )
        self._open_log(process, spec)
        self.add(process)
        process.trace(TraceKind.NODE_STARTED, node)
        process.handle(Started())

    def add(self, process: Process) -> None:
        """A process can be sent to from now on."""
        self.processes[process.address] = process
        if isinstance(process, UserProcess):
            spec = MachineSpec(
                kind="owner",
                address=process.address,
                node=process.node,
                config=self.config,
                is_driver=process is self.driver,
            )
            self._open_log(process, spec)

    def _open_log(self, process: Process, spec: MachineSpec) -> None:
        if self._log_directory is not None:
            path = self._log_directory / f"{process.address.replace('/', '.')}.decisions"
            sink = path.open("wb")
            process.sink = sink
            process.decisions = DecisionLog(sink, spec, seed=str(self.seed))

    def wait_until_ready(self) -> None:
        """Park the driver until it knows the cluster: what `init` returns can be used at once."""
        assert self.driver is not None
        while len(self.driver.core.machine.cluster) < len(self.nodes):
            self.fibers.sleep_ns(self.network.message_ns(HEAD, DRIVER_NODE))

    def next_pid(self) -> int:
        """The pid of a new virtual process."""
        self._pids += 1
        return self._pids

    def node_process(self, node: NodeID) -> NodeProcess | None:
        """The node manager of a node, dead or alive."""
        return self.nodes.get(node)

    # ---- Messages and notes ----------------------------------------------------------------------------------

    def send(self, sender: Process, to: Address, message: Event, payloads: Sequence[tuple[bytes, bytes]]) -> None:
        """Deliver a message after the network's delay, unless the receiver is gone by then."""
        size_bytes = MESSAGE_BYTES + sum(len(data) for _, data in payloads)
        destination = self.processes.get(to)
        self.network.message(
            sender.node,
            destination.node if destination is not None else node_of(to),
            size_bytes,
            self._deliver,
            to,
            message,
            payloads,
            src_process=sender.address,
            dst_process=to,
        )

    def _deliver(self, to: Address, message: Event, payloads: Sequence[tuple[bytes, bytes]]) -> None:
        process = self.processes.get(to)
        if process is not None and process.is_alive:
            process.receive(message, payloads)

    def note(self, event: TraceEvent) -> None:
        """A runner did something."""
        self.trace_events.append(event)
        if event.kind is TraceKind.TASK_STARTED:
            self.faults.task_started(event)

    def write_record(self, table: str, key: str, fields: tuple[tuple[str, str], ...]) -> None:
        """A row of the control plane's tables."""
        self.tables.setdefault(table, {})[key] = fields

    # ---- Faults ----------------------------------------------------------------------------------------------

    def kill_node(self, node: NodeID) -> None:
        """The machine loses power: its processes, its store and what is on its links are gone."""
        process = self.nodes[node]
        if not process.is_alive:
            return
        process.trace(TraceKind.FAULT, node, name="kill node")
        process.die()
        self.network.cut(node)
        self.head.node_fell_silent(node, process.incarnation)

    def kill_worker(self, address: Address) -> None:
        """A worker process gets SIGKILL."""
        process = self.nodes[node_of(address)]
        process.trace(TraceKind.FAULT, address, name="kill worker")
        process.end_worker(address, "killed by SIGKILL")

    def _on_crash(self, fiber: Fiber, escaped: BaseException) -> None:
        """Something escaped from user code that is no Exception: its process is over, the simulation is not."""
        process = fiber.owner
        if isinstance(escaped, Exception) or not isinstance(process, UserProcess) or process is self.driver:
            raise escaped
        self.nodes[NodeID(process.node)].end_worker(process.address, exit_reason(escaped))

    # ---- Deadlock and invariants -----------------------------------------------------------------------------

    def _deadlock(self) -> SimulationDeadlockError:
        """The wait-for graph, in words."""
        lines = []
        for process in self.processes.values():
            if isinstance(process, UserProcess) and process.is_alive:
                execution = process.core.execution
                who = process.address if not execution.is_task else f"{execution.name} on {process.address}"
                lines += [f"  {who} waits: {reason}" for reason in process.core.waiting()]
        lines += [f"  on the head: {reason}" for reason in self.head.machine.explain()]
        now_s = self.kernel.now_ns / 1e9
        return SimulationDeadlockError(
            f"Nothing is left to happen at {now_s:.6f} s of virtual time, and the driver still waits:\n"
            + "\n".join(lines)
        )

    def check_invariants(self) -> None:
        """A full sweep over all machines."""
        for process in self.processes.values():
            if not process.is_alive:
                continue
            if isinstance(process, MachineProcess):
                process.machine.check_invariants()
            elif isinstance(process, UserProcess):
                process.core.machine.check_invariants()

    # ---- The end ---------------------------------------------------------------------------------------------

    def close(self) -> None:
        """End every process and write what is to be kept."""
        self.is_closed = True
        for process in self.processes.values():
            process.is_alive = False
            if isinstance(process, UserProcess):
                process.core.is_closed = True
        try:
            self.fibers.close()
        finally:
            self.isolation.uninstall()
            self._write_logs()

    def _write_logs(self) -> None:
        for process in self.processes.values():
            if process.sink is not None:
                process.sink.close()
        if self._log_directory is not None:
            (self._log_directory / "cluster.trace").write_bytes(to_bytes(self.trace_events))


def exit_reason(escaped: BaseException) -> str:
    """How a process ended, as its node manager would say it."""
    if not isinstance(escaped, VirtualExit):  # as of any Python program that does not catch it
        return f"exited with code 1; it had raised {escaped!r}"
    if escaped.signal_number is None:
        return f"exited with code {escaped.status}"
    try:
        return f"killed by {signal.Signals(escaped.signal_number).name}"
    except ValueError:
        return f"killed by signal {escaped.signal_number}"


def make_cluster(settings: Mapping[str, Any], config: Config) -> Cluster:
    """A cluster with the settings of `init`."""
    directory: Path | None = settings["decision_log"]
    if directory is not None:
        directory.mkdir(parents=True, exist_ok=True)
    seed = settings["seed"] or 0
    return Cluster(config=config, cost_model=CostModel(), seed=seed, log_directory=directory)
