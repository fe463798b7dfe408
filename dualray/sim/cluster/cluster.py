"""The virtual cluster: kernel, network, nodes, and the tables of the control plane, in one OS process and thread.

The head lives on a machine of its own, the driver on node-0. A message between processes is an event of the kernel that
arrives after the network's delay, in order for each pair of processes.

Outages of machines are in `outages.py`, and what faults do in `fault_actions.py`. When nothing is left to happen, or a
run goes on for too long (`run_watch.py`), the driver gets a SimulationDeadlockError that says who waits for whom.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from hashlib import blake2b
from math import inf
from pathlib import Path
from types import MethodType
from typing import TYPE_CHECKING, Any, Final

from dualray.exceptions import SimulationDeadlockError
from dualray.recording.profile import Profile, load_profile
from dualray.shared.core.core_worker import CoreWorker
from dualray.shared.core.execution import Execution
from dualray.shared.core.serialization import size_without_directories
from dualray.shared.machines.owner.plain_worker import PlainWorker
from dualray.shared.model.config import Config
from dualray.shared.model.events import Event, Started, TaskPushed
from dualray.shared.model.ids import HEAD, ActorID, Address, NodeID, TaskID, root_task_id
from dualray.shared.proof.decision_log import MachineSpec
from dualray.shared.proof.trace import TraceEvent, TraceKind
from dualray.shared.scenario.distributions import Distribution
from dualray.shared.seeding import task_seed
from dualray.sim.cluster.faults import FaultInjector
from dualray.sim.cluster.growth_examination import GrowthWatch
from dualray.sim.cluster.memory_ends import MemoryEnds
from dualray.sim.cluster.outages import FallibleCluster, Outages
from dualray.sim.cluster.provider import Provider
from dualray.sim.cluster.run_logs import RunLogs
from dualray.sim.cluster.run_watch import RunWatch
from dualray.sim.cluster.value_digests import ValueDigests
from dualray.sim.cost.cost_model import CostModel
from dualray.sim.cost.measured import MEASURED, Stopwatch
from dualray.sim.cost.task_costs import TaskCosts
from dualray.sim.kernel.cores import Cores
from dualray.sim.kernel.fibers import Fiber, FiberScheduler
from dualray.sim.kernel.kernel import Kernel
from dualray.sim.network.network import Network
from dualray.sim.network.topologies import Nic, Star, Wiring, wiring_of_scenario
from dualray.sim.processes.core_worker import VirtualCore
from dualray.sim.processes.head import HeadProcess
from dualray.sim.processes.node import Hardware, NodeProcess
from dualray.sim.processes.pauses import Pauses
from dualray.sim.processes.runner import Letter, Line, Process
from dualray.sim.processes.tables import Fields, Tables
from dualray.sim.processes.worker import UserProcess
from dualray.sim.usercode.function_table import FunctionTable
from dualray.sim.usercode.locks import place_of
from dualray.sim.usercode.memory_guard import MemoryStop
from dualray.sim.usercode.modules import Modules
from dualray.sim.usercode.patches import Patches, take_patches
from dualray.sim.usercode.process_calls import VirtualExit

if TYPE_CHECKING:
    from dualray.shared.scenario.scenario import (
        Scenario,  # it imports pydantic, which a run without a scenario does not need
    )
    from dualray.sim.usercode.virtual_loop import VirtualLoop

DRIVER = Address("driver-1")
DRIVER_NODE = NodeID("node-0")
MESSAGE_BYTES = 256
"""Bytes of a message without its payloads. Source: a packed TaskPushed takes 83 to 300 bytes."""
_NAMES_NO_FILE_BYTES: Final = 200
"""Fewer bytes than these hold neither code nor the traceback of an error."""

_DEFAULT_COSTS: Final = CostModel()
FIXED: Final = "fixed"
"""Of durations: what nothing is known of takes the same time in each task."""
FIRST_PID = 1 << 22
"""Above what any real process has (pid_max of Linux): a virtual pid is never taken for a real one."""


class Cluster(FallibleCluster):
    """See the module."""

    _rewritten_last: object = None
    _does_pace_change = False
    _stopwatch: Stopwatch | None = None
    _patches: Patches | None = None
    """What isolates user code, from `isolate` on."""
    _memory_ends: MemoryEnds | None = None
    _watches_loops = False
    _digests: ValueDigests | None = None
    provider: Provider | None = None
    """Of machines for the autoscaler, where there are groups of nodes."""
    growth: GrowthWatch | None = None
    """What is looked at in the end, there."""

    def __init__(
        self,
        *,
        config: Config,
        cost_model: CostModel,
        seed: int,
        log_directory: Path | None,
        durations: Mapping[str, Distribution] | None = None,
        varies: bool = False,
        memory: Mapping[str, int] | None = None,
        gpu_memory: Mapping[str, int] | None = None,
        time_limit_ns: int | None = None,
        wiring: Wiring = Star,
        pace: float | None = None,
    ) -> None:
        self.config = config
        self.cost_model = cost_model
        self.submit_ns, self.dispatch_ns = cost_model.submit_ns, cost_model.dispatch_ns
        self.seed, self.seed_before = seed, task_seed(seed, TaskID(b""))
        self.is_closed = False
        self.kernel = Kernel()
        self.calendar = self.kernel.calendar
        self.fibers = FiberScheduler(self.kernel, on_deadlock=self._deadlock, on_crash=self.end_by)
        self.clock_ahead_ns = {}
        self._nics: dict[Any, Nic] = {}
        self.network = Network(
            self.kernel,
            cost_model,
            topology=wiring(cost_model, self._nics),
            head=HEAD,
            seed=seed,
            on_held=self._on_held,
        )
        self.network.flows.on_rate = self._nic_rate
        self.task_costs = TaskCosts(
            seed=seed,
            default_ns=cost_model.task_duration_ns,
            durations=durations,
            memory=memory,
            gpu_memory=gpu_memory,
            varies=varies,
        )
        self.pauses = Pauses(self.fibers)
        self.nodes_refused = self.nodes_left = 0
        self.seeds_handed_out = blake2b(digest_size=16)
        """Of every fiber's random streams, in order."""
        self.processes, self.nodes, self.groups = {}, {}, {}
        self.trace_events: list[TraceEvent] = []
        self.tables = Tables()
        self.functions = FunctionTable()
        self._spare_cores: list[VirtualCore] = []
        self.make_core = VirtualCore
        self.make_worker = UserProcess.as_worker
        self._logs = RunLogs(log_directory, kernel=self.kernel, seed=seed, rows=self.trace_events, pace=pace)
        self.pids, self._pids, self._processes_counted = {}, FIRST_PID, 0
        self.head = HeadProcess(cluster=self)
        self.driver: UserProcess | None = None
        self.outages = Outages(self, driver_node=DRIVER_NODE)
        self.faults = FaultInjector(self)
        self._watch = RunWatch(self.kernel, self.processes, self._stuck, time_limit_ns)

    # ---- Making it -------------------------------------------------------------------------------------------

    def start(self, *, nodes: Sequence[Hardware], root: TaskID, namespace: str = "") -> UserProcess:
        """Start the head, the nodes and the driver's process; the driver's fiber is adopted afterwards."""
        self._logs.begin_digests()
        self._digests = self._logs.digests
        self._logs.open(self.head, MachineSpec(kind="head", address=HEAD, config=self.config))
        self.add(self.head)
        self.head.handle(Started())
        for index, hardware in enumerate(nodes):
            self.start_node(NodeID(f"node-{index}"), hardware)
        node = self.nodes[DRIVER_NODE]
        driver = UserProcess(
            cluster=self, address=DRIVER, node=DRIVER_NODE, store=node.store, root=root, is_driver=True
        )
        self.driver = driver
        self.add(driver)
        driver.core.dispatch(Started(namespace=namespace))
        return driver

    def isolate(self, *, allows_outside: bool = False) -> None:
        """User code runs from now on, and sees the cluster's time, randomness and processes.

        Args:
            allows_outside: whether tasks may make calls that lead out of the simulation.

        Raises:
            RuntimeError: another simulation runs in this process.
        """
        patches = take_patches()
        patches.enter(self.kernel, self.fibers, ahead_ns=self._clock_ahead_ns, make_loop=self._new_event_loop_of)
        patches.isolation.allows_outside = allows_outside
        patches.isolation.calls.end_worker = self.outages.end_worker_of_pid
        self._patches = patches
        if self.config.memory_check_ns:
            self._memory_ends = MemoryEnds(self, patches, self.config)
            self.on_refused = self._memory_ends.on_refused
        self.modules = Modules(self.functions, self.fibers, patches.isolation, self._tell)

    def _tell(self, words: str) -> None:
        if self.driver is not None:
            self.driver.tell(words)

    def rewrite_function(self, function: object) -> None:
        """Isolate a function that came by value: it is about to be called."""
        if function is not self._rewritten_last:
            assert self._patches is not None
            self._patches.isolation.rewrite_function(function)
            if not isinstance(function, MethodType):  # it would keep its actor alive
                self._rewritten_last = function

    @property
    def witnessed(self) -> dict[str, str]:
        """What user code did that no simulation can repeat: by call, the first time in words."""
        return {} if self._patches is None else self._patches.isolation.witnessed

    def start_node(self, node: NodeID, hardware: Hardware, *, incarnation: int = 0) -> None:
        """A machine boots."""
        if hardware.nic is not None:
            self._nics[node] = hardware.nic
            self.network.routes_changed()
        process = NodeProcess(cluster=self, node=node, incarnation=incarnation, hardware=hardware)
        self.nodes[node] = process
        if self._digests is not None:
            process.store.on_sealed = partial(self._logs.note_sealed, node)
        if self._does_pace_change:
            process.cores = self._cores_of(node)
            process.pace_changed()
        spec = MachineSpec(
            kind="node",
            address=node,
            node=node,
            config=self.config,
            incarnation=incarnation,
            total=hardware.total.units,
            store_bytes=hardware.store_bytes,
            labels=hardware.labels,
        )
        self._logs.open(process, spec)
        self.add(process)
        process.trace(TraceKind.NODE_STARTED, node, deps=self._has(node, hardware))
        process.handle(Started())

    def let_pace_change(self) -> None:
        """Faults may slow or stop what computes while it does."""
        if not self._does_pace_change:
            self._does_pace_change = True
            for node, process in self.nodes.items():
                process.cores = self._cores_of(node)

    def _cores_of(self, node: NodeID) -> Cores | None:
        """Where a machine that boots does its work: at full speed, for who computes here has leased his CPUs."""
        return Cores(self.calendar, inf)

    def _has(self, node: NodeID, hardware: Hardware) -> tuple[str, ...]:
        """What a node is made of, as the trace says it."""
        nic_bytes_per_s = self._nics[node].bytes_per_s if node in self._nics else self.cost_model.nic_bytes_per_s
        amounts = (*hardware.total.units, ("object_store", hardware.store_bytes), ("nic", nic_bytes_per_s))
        return tuple(f"{name} {amount}" for name, amount in amounts)

    def _nic_rate(self, direction: str, node: Any, bytes_per_s: int) -> None:
        now_ns = self.kernel.now_ns
        self.note(TraceEvent(now_ns, TraceKind.NIC_RATE, node, node, direction, amount=bytes_per_s))

    def add(self, process: Process) -> None:
        """A process can be sent to from now on."""
        process.number = self._processes_counted
        self._processes_counted += 1
        self.processes[process.address] = process
        if self._logs.directory is not None and isinstance(process, UserProcess):
            spec = MachineSpec(
                kind="owner",
                address=process.address,
                node=process.node,
                config=self.config,
                is_driver=process is self.driver,
            )
            self._logs.open(process, spec)

    def wait_until_ready(self) -> None:
        """Park the driver until it knows every node that the head can hear: what `init` returns can be used at once."""
        assert self.driver is not None
        while len(self.driver.core.machine.cluster) < sum(not self.head.is_silent(node) for node in self.nodes):
            self.fibers.sleep_ns(self.network.message_ns(HEAD, DRIVER_NODE))

    def _new_event_loop_of(self, fiber: Fiber | None) -> VirtualLoop:
        return self.new_event_loop()

    def new_event_loop(self) -> VirtualLoop:
        """An event loop for user code."""
        from dualray.sim.usercode.virtual_loop import VirtualLoop, watch_loops  # noqa: PLC0415 - it imports asyncio

        if not self._watches_loops:
            self._watches_loops = True
            watch_loops(self.fibers)
        return VirtualLoop(self.kernel, self.fibers)

    @property
    def is_head_alive(self) -> bool:
        """Whether the head's process runs."""
        return self.head.is_alive

    def _on_held(self, src_node: Any, dst_node: Any, src: Any, dst: Any) -> None:
        self.outages.on_held(src_node, dst_node, src, dst)

    @property
    def lends_cores(self) -> bool:
        """Whether a worker may do without a core of its own while it runs plain tasks: nobody looks at it."""
        return self.runs_ahead and self.make_core is VirtualCore

    def lend_core(self, process: Process, plain: PlainWorker, task: TaskPushed) -> CoreWorker:
        """A core for a plain task of a worker that has none."""
        assert isinstance(process, UserProcess)
        if self._spare_cores:
            core = self._spare_cores.pop()
        else:
            root = root_task_id(process.address, 0)
            core = VirtualCore(
                address=process.address,
                node=NodeID(process.node),
                config=self.config,
                host=process,
                root=root,
                is_driver=False,
                is_folded=True,
            )
        core.serve(process, plain, task)
        return core

    def take_back(self, core: CoreWorker) -> None:
        """A core that was lent is free again; all that it knew is with its process."""
        assert isinstance(core, VirtualCore)
        self._spare_cores.append(core)

    def next_pid(self, address: Address) -> int:
        """The pid of a new virtual process."""
        self._pids += 1
        self.pids[address] = self._pids
        return self._pids

    def is_pid_of_worker(self, pid: int) -> bool:
        """Whether a virtual process beside the driver has this pid, or had it."""
        return FIRST_PID < pid <= self._pids and (self.driver is None or pid != self.driver.pid)

    # ---- Messages and notes ----------------------------------------------------------------------------------

    def send(self, sender: Process, to: Address, message: Event, payloads: Sequence[tuple[bytes, bytes]]) -> None:
        """Deliver a message after the network's delay, unless the receiver is gone by then."""
        size_bytes = MESSAGE_BYTES
        for _, data in payloads:
            size_bytes += len(data) if len(data) < _NAMES_NO_FILE_BYTES else size_without_directories(data)
        if self._digests is not None:
            for key, data in payloads:
                self._digests.note(self.kernel.now_ns, sender.address, key, data)
        line = sender.last_line
        if line is None or line.to is not to:
            line = sender.last_line = self.line(sender, to)
        self.network.send(Letter(self.network, line, message, payloads), size_bytes)

    def line(self, sender: Process, to: Address) -> Line:
        """What goes from a process to an address: whatever the sender sends there, in order."""
        lines = sender.lines
        if lines is None:
            lines = sender.lines = {}
        line = lines.get(to)
        if line is None:
            line = lines[to] = Line(sender, to, self.processes)
        return line

    def tell(self, to: Address, message: Event) -> None:
        """A process notices something by itself: as if a message had arrived."""
        process = self.processes.get(to)
        if process is not None and process.is_alive:
            process.receive(message, ())

    def note(self, event: TraceEvent) -> None:
        """A runner did something."""
        self.trace_events.append(event)
        anchors = self.faults.anchors
        if anchors and event.kind in anchors:
            self.faults.happened(event)

    def write_record(self, table: str, key: str, fields: Fields) -> None:
        """A row of the control plane's tables."""
        self.tables.write(table, key, fields)

    # ---- Faults ----------------------------------------------------------------------------------------------

    def driver_fails(self, why: str) -> None:
        """There is no cluster any more: the driver hears it when it waits or asks."""
        assert self.driver is not None
        self.driver.core.fail(f"{why}\nCall dualray.shutdown() and init() again.")

    def actors(self) -> Iterator[tuple[Address, ActorID, str]]:
        """Each living actor: its address, its id and its class."""
        for process in self.processes.values():
            if isinstance(process, UserProcess) and process.is_alive and process.has_core:
                execution = process.core.execution
                if execution.actor_id is not None:
                    yield process.address, execution.actor_id, execution.name.partition(".")[0]

    def node_refused(self, process: NodeProcess) -> None:
        """The head takes this life of a node for dead, and has told it so: its processes end, and whoever has started
        it starts it again, as the next life of the node, with an empty store."""
        self.nodes_refused += 1
        process.die()
        self.outages.hearing_changed()
        self.kernel.call_after(self.cost_model.node_rejoin_ns, self.outages.boot_node, NodeID(process.node))

    def node_left(self, process: NodeProcess) -> None:
        """Nothing depends on this node any more: it ends, and the head sees its connection close."""
        self.nodes_left += 1
        self.outages.end_node(NodeID(process.node))

    # ---- What work takes -------------------------------------------------------------------------------------

    def stopwatch(self, task: Execution) -> Stopwatch:
        """Measures what takes as long as it really does: such a run cannot be promised to be the same again."""
        assert self._patches is not None
        words = f'{task.name}, with duration="{MEASURED}", took its real time'
        self._patches.isolation.witness(f"duration={MEASURED}", words)
        if self._stopwatch is None:
            self._stopwatch = Stopwatch(self.fibers)
        return self._stopwatch

    def slowness_of(self, node: NodeID) -> float:
        """How many times as long as it should work takes on a node, but for what its cores know."""
        return self.nodes[node].slowness

    def _clock_ahead_ns(self, fiber: Fiber) -> int:
        owner = fiber.owner
        assert isinstance(owner, UserProcess)
        return self.clock_ahead_ns.get(owner.node, 0)

    def end_by(self, fiber: Fiber, escaped: BaseException) -> None:
        """Something escaped from user code that is no Exception: its process is over, the simulation is not."""
        process = fiber.owner
        if fiber.killed and fiber.thread is not None and fiber.thread.was_started:
            return  # a thread of a dead process, which does not let itself be ended, runs no more
        if isinstance(escaped, Exception) or not isinstance(process, UserProcess) or process is self.driver:
            raise escaped
        if isinstance(escaped, MemoryStop) and self._memory_ends is not None:
            self._memory_ends.stop(process)
            return
        self.nodes[NodeID(process.node)].end_worker(process.address, exit_reason(escaped))

    # ---- Deadlock and invariants -----------------------------------------------------------------------------

    def _deadlock(self) -> SimulationDeadlockError:
        return self._watch.deadlock()

    def _stuck(self, why: str) -> SimulationDeadlockError:
        """The wait-for graph, in words."""
        lines = []
        for process in self.processes.values():
            if isinstance(process, UserProcess) and process.is_alive and process.has_core:
                for name, reason in process.core.waiters():
                    who = f"{name} on {process.address}" if process.core.execution.is_task else process.address
                    lines.append(f"  {who} waits: {reason}")
            if isinstance(process, UserProcess) and process.is_alive:
                lines += [f"  {process.address} waits: {words}" for words in process.waits_for_locks()]
        driver = self.fibers.driver
        if not any(line.startswith(f"  {DRIVER} waits") for line in lines) and driver and (place := place_of(driver)):
            lines.insert(0, f"  {DRIVER} is in {place}, and sleeps, or waits for something outside the cluster")
        lines += [f"  on the head: {reason}" for reason in self.head.control.explain()]
        if self.network.messages_waiting:
            lines.append(f"  a partition holds {self.network.messages_waiting} messages")
        lines += [f"  {node} is paused, with {len(held)} pending actions" for node, held in self.pauses.places.items()]
        return SimulationDeadlockError(f"{why}, and the driver still waits:\n" + "\n".join(lines))

    def lift_time_limit(self) -> None:
        """The program has ended: its time limit is no concern of what comes after it."""
        self._watch.lift_time_limit()

    def check_invariants(self) -> None:
        """A full sweep over all machines."""
        for process in self.processes.values():
            if process.is_alive:
                process.check_invariants()

    # ---- The end ---------------------------------------------------------------------------------------------

    def close(self) -> None:
        """End every process and write what is to be kept."""
        self.is_closed = True
        for process in self.processes.values():
            process.is_alive = False
            if isinstance(process, UserProcess):
                process.close()
        try:
            self.fibers.close()
        finally:
            if self.modules is not None:
                self.modules.close()  # with the replacements in place: they stand in modules that are put back
            if self._patches is not None:
                self._patches.leave()
            self._logs.write()


def exit_reason(escaped: BaseException) -> str:
    """How a process ended, as its node manager would say it."""
    if type(escaped) is SystemExit:  # it was raised, and not by `sys.exit`
        escaped = VirtualExit(escaped.code)
    if not isinstance(escaped, VirtualExit):  # as of any Python program that does not catch it
        return f"exited with code 1; it had raised {escaped!r}"
    if escaped.signal_number is None:
        return f"exited with code {escaped.status}"
    try:
        return f"killed by {signal.Signals(escaped.signal_number).name}"
    except ValueError:
        return f"killed by signal {escaped.signal_number}"


def make_cluster(settings: Mapping[str, Any], config: Config) -> Cluster:
    """A cluster with the settings of `init`, and of its scenario.

    Raises:
        ValueError: a cost or a profile that the scenario gives, and that there is not.
    """
    scenario: Scenario | None = settings["scenario"]
    directory: Path | None = settings["decision_log"]
    if directory is not None:
        directory.mkdir(parents=True, exist_ok=True)
    seed: int = settings["seed"] or 0
    if settings["seed"] is None and scenario is not None:
        seed = scenario.seed
    defaults = _DEFAULT_COSTS
    if settings["calibration"] is not None:
        defaults = defaults.with_changes(settings["calibration"].costs, "calibration")
    profile: Profile | None = settings["task_profile"]
    varies = settings["durations"] != FIXED
    if scenario is None:
        cluster = Cluster(
            config=config, cost_model=defaults, seed=seed, log_directory=directory, varies=varies, pace=settings["pace"]
        )
        if profile is not None:
            cluster.task_costs.profile = profile.took_ns
        return cluster
    cluster = Cluster(
        config=config,
        cost_model=defaults.with_scenario(scenario),
        seed=seed,
        log_directory=directory,
        durations=scenario.durations,
        varies=varies and not scenario.has_fixed_durations,
        memory=scenario.memory,
        gpu_memory=scenario.gpu_memory,
        time_limit_ns=scenario.time_limit,
        wiring=wiring_of_scenario(scenario.cluster),
        pace=settings["pace"],
    )
    if profile is None and scenario.profile is not None:
        profile = load_profile(Path(scenario.profile))
    if profile is not None:
        cluster.task_costs.profile = profile.took_ns
    return cluster
