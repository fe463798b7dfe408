"""Programs that are modelled, not executed (`execute=False`): for runs too large to call any function.

Theory of operation. Head, node managers and owners are the machines that run everywhere else, with whatever policies
the config names. What is modelled is the user's code: a program is a generator that stands for the driver
(programs.py); it submits calls, of which each takes a time and returns so many bytes, and yields when it
waits. There are no fibers, no pickling and no bytes, only sizes. A worker is its owner machine, folded up as long as it
does nothing but run plain tasks (plain_worker.py), and one kernel event for each task that it runs, or for all those
that it was handed together, if they take no longer than an owner pushes ahead.

A million tasks on ten thousand nodes are a few million deliveries. On the way of a delivery nothing looks at the size
of the cluster: routes between nodes are priced once, invariants are swept machine by machine in turn, the event hash
takes a few bytes of each delivery.

The event hash covers every message that arrives and every task that ends: when, where, of what kind, and its content
(of the frequent kinds the ids that tell one from another, of all others everything).

Guarantees: the same program, cluster and seed give the same event hash and the same figures, in any process.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

from dualray.exceptions import SimulationDeadlockError
from dualray.shared.model.config import Config
from dualray.shared.model.events import Event, Started
from dualray.shared.model.ids import Address, NodeID
from dualray.shared.model.resources import CPU, UNITS
from dualray.shared.model.specs import LeaseShape, NodeInfo
from dualray.shared.policies.feasibility import why_infeasible
from dualray.shared.proof.trace import TraceEvent, TraceKind
from dualray.shared.scenario.fault_model import Fault
from dualray.sim.cluster.cluster import DRIVER, DRIVER_NODE, MESSAGE_BYTES, Cluster
from dualray.sim.cost.cost_model import CostModel
from dualray.sim.modelled.calls import Call, Get, Step, Wait, call
from dualray.sim.modelled.driver import ModelledDriver, Program
from dualray.sim.modelled.processes import Door, Model, ModelledProcess, Plan
from dualray.sim.modelled.worker import ModelledWorker
from dualray.sim.network.topologies import Star, Wiring
from dualray.sim.processes.node import Hardware
from dualray.sim.processes.runner import Process

__all__ = [
    "Call",
    "Get",
    "Modelled",
    "ModelledCluster",
    "ModelledDriver",
    "ModelledProcess",
    "ModelledWorker",
    "Program",
    "Step",
    "Wait",
    "call",
]

HASH_EVERY_EVENTS = 1_000
"""So often what has happened is taken into the event hash: while the processor has it at hand."""


@dataclass(slots=True, kw_only=True)
class Modelled:
    """What became of a modelled run; times in ns of virtual time.

    Attributes:
        makespan_ns: from the program's first step to its last.
        tasks: calls that it has made.
        attempts: how often one of them began.
        events: that the kernel performed, from the start of the cluster on.
        busy_ns: CPU-time that tasks have held, their CPUs by their time; `cpu_ns` is all that there was.
        hash: of all deliveries; see the module.
        faults, never_happened: those that happened, and those that found no target, or did not come in time, in words.
        failed: why the program could not go on, in words; empty when it ended well.
    """

    makespan_ns: int = 0
    tasks: int = 0
    attempts: int = 0
    retries: int = 0
    events: int = 0
    messages: int = 0
    busy_ns: int = 0
    cpu_ns: int = 0
    moved_bytes: int = 0
    evictions: int = 0
    spilled_bytes: int = 0
    faults: list[str] = field(default_factory=list)
    never_happened: list[str] = field(default_factory=list)
    hash: str = ""
    failed: str = ""


class ModelledCluster(Cluster):
    """A virtual cluster on which a program is modelled.

    Args:
        hardware: of each node, in order; the driver is on the first.
        faults: as everywhere; those that are anchored at the start of tasks make each task cost an event more.
        wiring: how the nodes are connected.
    """

    def __init__(
        self,
        *,
        config: Config,
        cost_model: CostModel,
        seed: int,
        hardware: Sequence[Hardware],
        faults: Sequence[Fault] = (),
        durations: Mapping[str, Any] | None = None,
        wiring: Wiring = Star,
    ) -> None:
        super().__init__(
            config=config, cost_model=cost_model, seed=seed, log_directory=None, durations=durations, wiring=wiring
        )
        self.result = Modelled()
        self.make_worker = ModelledWorker.as_worker
        self.network.flows.on_rate = None
        self._hardware = list(hardware)
        self._planned = tuple(faults)
        if not faults:  # else they may be anchored at anything
            self.kinds_noted = frozenset({TraceKind.TRANSFER_ENDED, TraceKind.OBJECT_SPILLED, TraceKind.OBJECT_EVICTED})
        self._ended: list[str] = []
        """How the program has ended, once it has."""
        self.model = Model(
            cluster=self,
            calendar=self.kernel.calendar,
            config=config,
            cost_model=cost_model,
            is_steady=not faults and all(each.speed == 1.0 for each in hardware),
            is_anchored=any(fault.at_ns is None for fault in faults),
            price=self._price,
            processes=None if faults else self.processes,
            is_uniform=wiring is Star and all(each.nic is None for each in hardware),
        )
        self._digest = blake2b(digest_size=16)
        self.kernel.on_event(self._take_hash_further, every=HASH_EVERY_EVENTS)

    # ---- A run -----------------------------------------------------------------------------------------------

    def run(self, program: Program, calls: Iterable[Call]) -> Modelled:
        """Run the program to its end, its failure, or a deadlock; `calls` are all that it may make.

        Raises:
            ValueError: one of them can never run on these nodes.
        """
        for each in calls:
            self._accept(each)
        self.add(self.head)
        self.head.handle(Started())
        for index, hardware in enumerate(self._hardware):
            self.start_node(NodeID(f"node-{index}"), hardware)
        self.faults.plan(self._planned, driver_node=DRIVER_NODE)
        driver = ModelledDriver(cluster=self, address=DRIVER, node=DRIVER_NODE, store=self.nodes[DRIVER_NODE].store)
        self.add(driver)
        driver.handle(Started())
        self.kernel.run_until(lambda: len(driver.owner.cluster) >= len(self._hardware))
        began_ns = self.kernel.now_ns
        driver.follow(program)
        result, model = self.result, self.model
        try:
            if not self.kernel.run_until_any(self._ended):
                raise self._deadlock()
        except SimulationDeadlockError as error:
            result.failed = " ".join(str(error).split())
        result.makespan_ns = self.kernel.now_ns - began_ns
        self.check_invariants()
        sent = [link.messages for process in self.processes.values() for link in (process.links or {}).values()]
        result.messages = sum(sent) + self.network.messages_sent
        result.events = self.kernel.events_performed
        result.tasks, result.retries = model.tasks, model.retries
        for plan in model.plans.values():
            result.attempts += plan.attempts
            result.busy_ns += plan.took_ns * plan.cpu_units // UNITS
        cpus = sum(each.total.get(CPU) for each in self._hardware) / UNITS
        result.cpu_ns = round(cpus * result.makespan_ns)
        result.faults = [str(fault) for fault in self.faults.performed]
        result.never_happened = [str(fault) for fault in (*self.faults.missed, *self.faults.outstanding)]
        self._take_hash_further(0)
        result.hash = self._digest.hexdigest()
        self.is_closed = True
        return result

    def _accept(self, what: Call) -> None:
        nodes = [
            NodeInfo(node=NodeID(f"node-{index}"), incarnation=0, total=each.total, store_bytes=each.store_bytes)
            for index, each in enumerate(self._hardware)
        ]
        template = what.template
        shape = LeaseShape(
            resources=template.resources, placement=template.placement, strategy=template.strategy, name=template.name
        )
        why = why_infeasible(shape, nodes)
        if why is not None:
            raise ValueError(f"{template.name} can never run on this cluster: {why}")
        demand = template.resources.units
        cpu_units = demand[0][1] if demand and demand[0][0] == CPU else 0
        is_small = max(what.sizes, default=0) <= self.config.inline_bytes_max
        takes_ns = what.takes_ns + self.cost_model.dispatch_ns
        self.model.plans[template.function_id] = Plan(takes_ns, what.sizes, cpu_units, is_small)

    def program_ended(self, why: str) -> None:
        """The program is over, or has failed."""
        self._ended.append(why)
        self.result.failed = why

    # ---- Messages --------------------------------------------------------------------------------------------

    def send(self, sender: Process, to: Address, message: Event, payloads: Sequence[tuple[bytes, bytes]]) -> None:
        if not self.model.send(sender, to, message):
            self.network.message(self.line(sender, to), MESSAGE_BYTES, self._take_in, (to, message))

    def _price(self, source: str, destination: str) -> tuple[int, int]:
        """What a message costs from one node to another, and each of its bytes."""
        network = self.network
        bytes_per_s = (
            self.cost_model.memory_bytes_per_s
            if source == destination
            else network.topology.message_bytes_per_s(source, destination)
        )
        return network.message_ns(source, destination, MESSAGE_BYTES), bytes_per_s

    def _take_in(self, sent: tuple[Address, Event]) -> None:
        self.tell(*sent)

    def tell(self, to: Address, message: Event) -> None:
        process = self.processes.get(to)
        if isinstance(process, ModelledProcess):
            process.arrive(message)
        elif process is not None:
            Door(self.model, process).arrive(message)

    def _take_hash_further(self, events: int) -> None:
        model = self.model
        self._digest.update(array("q", model.numbers).tobytes())
        self._digest.update(b"".join(model.keys))
        model.numbers.clear()
        model.keys.clear()

    def note(self, event: TraceEvent) -> None:
        result = self.result
        match event.kind:
            case TraceKind.TRANSFER_ENDED:
                result.moved_bytes += event.amount
            case TraceKind.OBJECT_SPILLED:
                result.spilled_bytes += event.amount
            case TraceKind.OBJECT_EVICTED:
                result.evictions += 1
            case _:
                pass
        if self._planned:
            self.faults.happened(event)

    def write_record(self, table: str, key: str, fields: tuple[tuple[str, str], ...]) -> None:
        """Nobody reads the tables."""

    def driver_fails(self, why: str) -> None:
        raise SimulationDeadlockError(f"{why}, but the program has not ended")

    def _stuck(self, why: str) -> SimulationDeadlockError:
        lines = list(self.head.control.explain())
        driver = self.processes.get(DRIVER)
        if isinstance(driver, ModelledDriver):
            lines += driver.waits_explained()
        return SimulationDeadlockError(f"{why}, and the program has not ended: {'; '.join(lines[:3])}")
