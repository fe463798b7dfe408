"""A recorded program, run again on a virtual cluster without its code.

Theory of operation. Head, node managers and owners are the machines that run everywhere else: where a task goes, what
is evicted, retried and made again is decided by the same code, with whatever policies the config names. What is
modelled is the user's code: see model_process.py.

What is left out: labels of nodes (such tasks go anywhere), what user code does when a call fails that did not fail
when it was recorded (the run is reported as failed), threads of one process (they follow one another). `Graph.remarks`
says of each record what of this it has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType

from dualray.exceptions import (
    DualrayError,
    ObjectStoreFullError,
    PlacementGroupUnschedulableError,
    SimulationDeadlockError,
    TaskUnschedulableError,
)
from dualray.recording.graph import Graph, TaskNode
from dualray.shared.machines.node.worker_pool import OUT_OF_MEMORY
from dualray.shared.machines.owner.task_records import TASK_TABLE
from dualray.shared.model.config import Config
from dualray.shared.model.events import Started
from dualray.shared.model.ids import HEAD, ActorID, Address, NodeID, PlacementGroupID
from dualray.shared.model.resources import CPU, UNITS
from dualray.shared.model.specs import (
    LeaseShape,
    NodeInfo,
)
from dualray.shared.policies.bundles import why_never
from dualray.shared.policies.feasibility import why_infeasible
from dualray.shared.proof.decision_log import MachineSpec
from dualray.shared.proof.trace import TraceEvent, TraceKind
from dualray.shared.scenario.fault_model import Fault
from dualray.sim.cluster.cluster import DRIVER, DRIVER_NODE, Cluster
from dualray.sim.cluster.provider import MachineGroup, Provider
from dualray.sim.cluster.run_watch import INVARIANTS_THINGS
from dualray.sim.cost.cost_model import CostModel
from dualray.sim.kernel.cores import Cores
from dualray.sim.network.topologies import Star, Wiring
from dualray.sim.processes.node import Hardware
from dualray.sim.processes.runner import Process
from dualray.sim.replay.execution import Execution
from dualray.sim.replay.model_process import ModelProcess
from dualray.sim.replay.replayed import Move, Replayed, Step
from dualray.sim.replay.rerun import Rerun

_THINGS = INVARIANTS_THINGS // 10
"""Of machines, that a prediction looks at in each sweep: it has many tasks, and no code of the user's."""
_TRANSFER_NS_MIN = 100_000
"""Less computing than this is not looked at."""

_MOVES = frozenset(
    {
        TraceKind.TRANSFER_STARTED,
        TraceKind.TRANSFER_ENDED,
        TraceKind.OBJECT_SPILLED,
        TraceKind.OBJECT_RESTORED,
    }
)


class ReplayCluster(Cluster):
    """A virtual cluster whose driver and workers follow scripts.

    Args:
        scale_of: by what the computing of an attempt is multiplied: drawn durations.
        cores: of each node, physical ones; None: as many as it has CPUs.
        host_cores: of the one machine that all nodes share, when they are containers of it; None: each has its own.
        slowdown: see cores.py.
        cold_start_ns: how long the nodes' first workers take to start, when the cluster starts with the program; 0:
            they are there.
        since: count also from the first submission of this function.
        with_trace: write the trace that an executed run would have; short cuts are not taken then.
        log_directory: for decision logs and the trace.
        time_limit_ns: virtual time after which the replay is given up.
        wiring: how the nodes are connected.
        growing: groups of which nodes are launched, as the limits say.
    """

    def __init__(
        self,
        graph: Graph,
        *,
        config: Config,
        cost_model: CostModel,
        seed: int,
        hardware: Sequence[Hardware],
        scale_of: Callable[[TaskNode, int], float] = lambda node, attempt: 1.0,
        cores: float | None = None,
        host_cores: float | None = None,
        slowdown: float = 0.0,
        cold_start_ns: int = 0,
        faults: Sequence[Fault] = (),
        since: str | None = None,
        with_spans: bool = False,
        with_steps: bool = False,
        with_trace: bool = False,
        log_directory: Path | None = None,
        time_limit_ns: int | None = None,
        wiring: Wiring = Star,
        growing: Mapping[str, MachineGroup] = MappingProxyType({}),
    ) -> None:
        super().__init__(
            config=config,
            cost_model=cost_model,
            seed=seed,
            log_directory=log_directory,
            time_limit_ns=time_limit_ns,
            wiring=wiring,
        )
        rerun = Rerun(graph, scale_of=scale_of, since=since, with_spans=with_spans, with_steps=with_steps)
        self.rerun = rerun
        self.result = rerun.result
        self.make_worker = partial(ModelProcess, rerun=rerun)
        self.with_trace = with_trace
        if not with_trace:
            self.network.flows.on_rate = None
            self._watch.things = _THINGS
        rerun.is_noted = with_trace or any(fault.at_ns is None for fault in faults)
        self._hardware = list(hardware)
        self._cold_start_ns = cold_start_ns
        """Of the last message of each pair of processes."""
        self._planned = tuple(faults)
        self._growing = growing
        if growing:
            self.provider = self.head.launcher = Provider(self, growing, seed=seed)
            self.groups = {name: group.hardware for name, group in growing.items()}
        rerun.is_steady = not faults and not growing and all(each.speed == 1.0 for each in hardware)
        takes_notes = with_steps or with_trace
        self._under_way: dict[tuple[str, str], int] = {}
        """Transfers, when steps are noted: by object and receiver, since when."""
        rerun.is_simple = rerun.is_steady and not takes_notes and config.inline_bytes_max == graph.inline_bytes_max
        self._host = Cores(self.calendar, host_cores, slowdown) if host_cores is not None else None
        self._own_cores, self._slowdown = cores, slowdown
        for index, each in enumerate(hardware):
            self._give_cores(NodeID(f"node-{index}"), each)
        self._has_host = self._host is not None

    def _give_cores(self, node: NodeID, hardware: Hardware) -> None:
        own = self._own_cores if self._own_cores is not None else max(1.0, hardware.total.get(CPU) / UNITS)
        self.rerun.cores[node] = self._host or Cores(self.calendar, own, self._slowdown)

    def start_node(self, node: NodeID, hardware: Hardware, *, incarnation: int = 0) -> None:
        if node not in self.rerun.cores:  # it joins later
            self._give_cores(node, hardware)
        super().start_node(node, hardware, incarnation=incarnation)

    @property
    def raised(self) -> DualrayError | None:
        """With what the program has failed."""
        return self.rerun.raised

    def run(self) -> Replayed:
        """Run the program to its end, its failure, or a deadlock."""
        rerun = self.rerun
        rerun.raised = self._what_lacks()
        if rerun.raised is not None:
            self.result.failed = str(rerun.raised)
            return self.result
        self._logs.open(self.head, MachineSpec(kind="head", address=HEAD, config=self.config))
        self.add(self.head)
        self.head.handle(Started())
        usual = self.cost_model
        self.cost_model = replace(usual, worker_start_ns=max(usual.worker_start_ns, self._cold_start_ns))
        for index, each in enumerate(self._hardware):
            self.start_node(NodeID(f"node-{index}"), each)
        self.faults.plan(self._planned, driver_node=DRIVER_NODE)
        driver = ModelProcess(
            cluster=self,
            address=DRIVER,
            node=DRIVER_NODE,
            store=self.nodes[DRIVER_NODE].store,
            rerun=rerun,
            is_driver=True,
        )
        self.add(driver)
        driver.handle(Started())
        self.kernel.run_until(lambda: len(driver.machine.cluster) >= len(self._hardware))
        self.cost_model = usual
        began_ns = rerun.began_ns = self.kernel.now_ns
        execution = Execution(None, rerun.graph.driver, 1.0)
        if self.result.steps is not None:
            self.result.steps[b""] = Step("the driver", DRIVER_NODE)
        driver.scripts.advance(execution)
        try:
            if not self.kernel.run_until_any(rerun.ended):
                raise self._deadlock()
        except SimulationDeadlockError as error:
            self.result.failed = " ".join(str(error).split())
            rerun.raised = error
        result = self.result
        result.makespan_ns = self.kernel.now_ns - began_ns
        result.since_ns = self.kernel.now_ns - (rerun.since_ns or began_ns)
        if result.steps is not None:
            result.steps[b""].ended_ns = result.makespan_ns
        cpus = sum(each.total.get(CPU) for each in self._hardware) / UNITS
        result.cpu_ns = round(cpus * result.makespan_ns)
        result.faults = len(self.faults.performed)
        result.node_ns, result.nodes_most = len(self._hardware) * result.makespan_ns, len(self._hardware)
        if self.provider is not None:
            result.node_ns += self.provider.node_ns()
            result.cost, result.waited_ns = self.provider.cost(), self.provider.waited_ns()
            result.launched = len(self.provider.machines)
            result.nodes_most += self.provider.nodes_most()
        memories = [node.memory for node in self.nodes.values()]
        result.store_peak_bytes = max(memory.store_peak_bytes for memory in memories)
        result.heap_peak_bytes = max(memory.held_peak_bytes for memory in memories)
        result.peak_bytes = max(memory.peak_bytes for memory in memories)
        self.is_closed = True
        return result

    def _what_lacks(self) -> DualrayError | None:
        """Why the program can never run on these nodes; None when it can."""
        kinds = [*self._hardware, *[group.hardware for group in self._growing.values()]]
        nodes = [
            NodeInfo(node=NodeID(f"node-{index}"), incarnation=0, total=each.total, store_bytes=each.store_bytes)
            for index, each in enumerate(kinds)
        ]
        for template in self.rerun.templates:
            shape = LeaseShape(
                resources=template.resources,
                placement=template.placement,
                strategy=template.strategy,
                name=template.name,
            )
            why = why_infeasible(shape, nodes)
            if why is not None:
                return TaskUnschedulableError(f"{template.name} can never run: {why}")
        for group_id, words in self.rerun.graph.groups.items():
            why = why_never(self.rerun.group_of(PlacementGroupID(group_id), words, DRIVER), {}, nodes)
            if why is not None and not self._growing:  # as many nodes as it needs may be launched
                return PlacementGroupUnschedulableError(
                    f"a placement group of the program can never be reserved: {why}"
                )
        largest = max(self.rerun.graph.sizes.values(), default=0)
        room = max((each.store_bytes for each in kinds), default=0)
        if largest > room:
            return ObjectStoreFullError(
                f"an object has {largest:,} bytes, but the largest object store has {room:,}: use a larger store"
            )
        return None

    def driver_fails(self, why: str) -> None:
        self.rerun.program_ended(why, DualrayError)

    def actors(self) -> Iterator[tuple[Address, ActorID, str]]:
        for process in self.processes.values():
            if isinstance(process, ModelProcess) and process.is_alive and process.actor_id is not None:
                yield process.address, process.actor_id, process.actor_class

    def add(self, process: Process) -> None:
        super().add(process)
        if isinstance(process, ModelProcess):
            is_driver = process.address == DRIVER
            spec = MachineSpec(
                kind="owner",
                address=process.address,
                node=NodeID(process.node),
                config=self.config,
                is_driver=is_driver,
            )
            self._logs.open(process, spec)

    def note(self, event: TraceEvent) -> None:
        result = self.result
        result.counts[event.kind] += 1
        match event.kind:
            case TraceKind.TRANSFER_STARTED:
                self._take_cores(event)
            case TraceKind.TRANSFER_ENDED:
                result.moved_bytes += event.amount
            case TraceKind.OBJECT_SPILLED:
                result.spilled_bytes += event.amount
            case TraceKind.OBJECT_EVICTED:
                result.evictions += 1
            case TraceKind.WORKER_ENDED if event.other.endswith(OUT_OF_MEMORY):
                self._note_killed(event)
            case _:
                pass
        if result.moves is not None and event.kind in _MOVES:
            self._note_move(event, result.moves)
        if self.with_trace:
            self.trace_events.append(event)
        if self._planned:
            self.faults.happened(event)

    def _note_killed(self, event: TraceEvent) -> None:
        worker = self.processes.get(Address(event.subject))
        name = "an idle worker"
        if isinstance(worker, ModelProcess):
            if worker._alone is not None:
                name = worker._alone[0].spec.template.name
            elif worker._execution is not None and worker._execution.task is not None:
                name = worker._execution.task.spec.template.name
            elif worker.actor_class:
                name = f"the actor {worker.actor_class}"
        self.result.killed.append((event.time_ns - self.rerun.began_ns, event.process, name))

    def _note_move(self, event: TraceEvent, moves: list[Move]) -> None:
        about, now_ns = event.subject, event.time_ns - self.rerun.began_ns
        if event.kind is TraceKind.TRANSFER_STARTED:
            self._under_way[about, event.other] = now_ns
            return
        is_disk = event.kind is not TraceKind.TRANSFER_ENDED
        if is_disk:
            began_ns = now_ns - round(event.amount * 1e9 / self.cost_model.disk_bytes_per_s)
        else:
            began_ns = self._under_way.pop((about, event.process), now_ns)
        moves.append(Move(bytes.fromhex(about), event.process, began_ns, now_ns, is_disk))

    def _cores_of(self, node: NodeID) -> Cores | None:
        """Its own; what all machines share, one of them cannot slow: there work takes longer from its begin on."""
        return None if self._has_host else self.rerun.cores[node]

    def _take_cores(self, event: TraceEvent) -> None:
        """A transfer costs both ends computing: as much as it takes where nothing but the software bounds it."""
        work_ns = event.amount * 1e9 / self.cost_model.transfer_bytes_per_s
        if work_ns >= _TRANSFER_NS_MIN:
            for node in (event.process, event.other):
                self.rerun.cores[NodeID(node)].run_aside(work_ns)

    def write_record(self, table: str, key: str, fields: tuple[tuple[str, str], ...]) -> None:
        """Nobody reads the tables, but who wants to know which tasks were lost."""
        if self.with_trace and table in (TASK_TABLE, "errors"):
            super().write_record(table, key, fields)

    def _stuck(self, why: str) -> SimulationDeadlockError:
        lines = list(self.head.control.explain())
        for process in self.processes.values():
            if isinstance(process, ModelProcess) and process.is_alive:
                lines += [words for wait_id in process._resumes for words in process.machine.misses(wait_id)]
        return SimulationDeadlockError(f"{why}, and the program has not ended: {'; '.join(lines[:3])}")
