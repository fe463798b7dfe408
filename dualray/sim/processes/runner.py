"""The common part of all virtual processes: it delivers events to the machine and carries out its commands.

`VirtualCluster` says what a process needs of the cluster that it is part of. It is a class to extend, and no protocol:
attributes of a compiled class are read where they lie.

A virtual process has an address and lives on a node. Its runner hands events to the machine, writes the decision log,
and performs commands. It decides nothing. A process that died takes in nothing any more: what is on its way to it is
dropped, and its timers are forgotten. A process on a machine that stands still takes things in later, in order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from dualray.shared.core.core_worker import CoreWorker
from dualray.shared.core.execution import Execution
from dualray.shared.machines.base import Machine
from dualray.shared.machines.owner.plain_worker import PlainWorker
from dualray.shared.model.accelerators import NO_NAMES, Names
from dualray.shared.model.commands import (
    ArmTimer,
    CancelTimer,
    Command,
    DropPayload,
    Send,
    WriteRecord,
)
from dualray.shared.model.config import Config
from dualray.shared.model.events import Event, NodeRefused, NodeReleased, TaskPushed, TimerFired
from dualray.shared.model.ids import Address, NodeID, node_of
from dualray.shared.proof.decision_log import DecisionLog
from dualray.shared.proof.trace import TraceEvent, TraceKind
from dualray.sim.cost.cost_model import CostModel
from dualray.sim.cost.measured import Stopwatch
from dualray.sim.cost.task_costs import TaskCosts
from dualray.sim.kernel.calendar import Calendar, Timer
from dualray.sim.kernel.fibers import Fiber, FiberScheduler
from dualray.sim.kernel.kernel import Kernel
from dualray.sim.network.network import Channel, Delivery, Network
from dualray.sim.processes.pauses import Pauses, Placed
from dualray.sim.processes.tables import Fields, Tables
from dualray.sim.usercode.function_table import FunctionTable
from dualray.sim.usercode.modules import Modules

if TYPE_CHECKING:
    from dualray.sim.usercode.virtual_loop import VirtualLoop  # it imports asyncio


class VirtualCluster:
    """What a process needs of its cluster."""

    kinds_noted: frozenset[TraceKind] | None = None
    """What is to be noted of what processes do; None: everything."""
    shows_bars = True
    """Whether progress bars reach the driver's terminal."""
    counts_threads = False
    """Whether OMP_NUM_THREADS of workers is how many CPUs their tasks hold."""
    threads_said: Mapping[NodeID, bytes] = MappingProxyType({})
    """By node, the OMP_NUM_THREADS with which it was added to the running cluster, if its adder has set one."""
    on_refused: Callable[[MemoryError], object] | None = None
    """Told that user code of a worker asked for more memory than there is; ends it if it has used that up."""
    runs_ahead = True
    """Whether the fiber of a task may end before its time is over (worker.py). A test switches it off: nothing
    changes."""
    modules: Modules | None = None
    """Of the user's, once user code may run."""
    shown_gpus: str | None = None
    """CUDA_VISIBLE_DEVICES of the program; None: it is not set."""
    device_names: Names = NO_NAMES
    """Under the name `ray`: the names of the first devices of each node, by the kind, in CUDA_VISIBLE_DEVICES of the
    program and variables of other accelerators."""
    session_directory = ""
    """The directory of the session for programs that import `ray`. Nothing exists at this path."""

    config: Config
    cost_model: CostModel
    submit_ns: int
    dispatch_ns: int
    seed: int
    seed_before: bytes
    """With which the seeds of all tasks begin."""
    is_closed: bool
    kernel: Kernel
    trace_events: list[TraceEvent]
    calendar: Calendar
    fibers: FiberScheduler
    network: Network
    task_costs: TaskCosts
    pauses: Pauses
    collects_again_ns: int = 0
    """From when on a virtual process that is asked has Python collect garbage."""
    seeds_handed_out: blake2b
    """A digest of every fiber's random streams, in order."""
    tables: Tables
    functions: FunctionTable
    pids: dict[str, int]
    """Of each process that runs user code or has run it, by its address."""
    make_core: Callable[..., CoreWorker]
    """Makes the core of each process that runs user code."""

    @property
    def is_head_alive(self) -> bool:
        """Whether the head's process runs."""
        raise NotImplementedError

    def send(self, sender: Process, to: Address, message: Event, payloads: Sequence[tuple[bytes, bytes]]) -> None:
        """Deliver a message after the network's delay, unless the receiver is gone by then."""
        raise NotImplementedError

    def line(self, sender: Process, to: Address) -> Line:
        """What goes from a process to an address: whatever the sender sends there, in order."""
        raise NotImplementedError

    def note(self, event: TraceEvent) -> None:
        """A runner did something."""
        raise NotImplementedError

    def write_record(self, table: str, key: str, fields: Fields) -> None:
        """A row of the control plane's tables."""
        raise NotImplementedError

    # ---- Of those that run user code ---------------------------------------------------------------------------

    @property
    def lends_cores(self) -> bool:
        """Whether a worker may do without a core of its own while it runs plain tasks: nobody looks at it."""
        raise NotImplementedError

    def lend_core(self, process: Process, plain: PlainWorker, task: TaskPushed) -> CoreWorker:
        """A core for a plain task of a worker that has none."""
        raise NotImplementedError

    def take_back(self, core: CoreWorker) -> None:
        """A core that was lent is free again; all that it knew is with its process."""
        raise NotImplementedError

    def next_pid(self, address: Address) -> int:
        """The pid of a new virtual process."""
        raise NotImplementedError

    def rewrite_function(self, function: object) -> None:
        """Isolate a function that came by value: it is about to be called."""
        raise NotImplementedError

    def stopwatch(self, task: Execution) -> Stopwatch:
        """Measures what takes as long as it really does."""
        raise NotImplementedError

    def new_event_loop(self) -> VirtualLoop:
        """An event loop for user code."""
        raise NotImplementedError

    def end_by(self, fiber: Fiber, escaped: BaseException) -> None:
        """Something escaped from user code that is no Exception: its process is over, the simulation is not."""
        raise NotImplementedError


class Line(Channel):
    """A channel to whichever process has an address."""

    __slots__ = ("_process", "_processes", "to")

    def __init__(self, sender: Process, to: Address, processes: dict[Address, Process]) -> None:
        process = processes.get(to)
        node = process.node if process is not None else node_of(to)
        super().__init__(sender.node, node, src_process=sender.address, dst_process=to)
        self.to = to
        self._processes = processes
        self._process = process

    def receiver(self) -> Process | None:
        """The process, if it is alive."""
        process = self._process
        if process is None or not process.is_alive:
            process = self._process = self._processes.get(self.to)
            if process is None or not process.is_alive:
                return None
        return process


class Letter(Delivery):
    """A message from machine to machine, with the bytes that travel beside it."""

    __slots__ = ("_line", "_message", "_payloads")

    def __init__(self, network: Network, line: Line, message: Event, payloads: Sequence[tuple[bytes, bytes]]) -> None:
        super().__init__(network, line)
        self._line = line
        self._message = message
        self._payloads = payloads

    def arrive(self) -> None:
        receiver = self._line.receiver()
        if receiver is not None:
            receiver.receive(self._message, self._payloads)


class Process(Placed):
    """A virtual process: an address on a node."""

    __slots__ = (
        "_timers",
        "cluster",
        "decisions",
        "is_alive",
        "last_line",
        "lines",
        "links",
        "number",
    )

    is_traced = True

    def __init__(self, *, cluster: VirtualCluster, address: Address, node: str) -> None:
        super().__init__(address, node)
        self.cluster = cluster
        self.is_alive = True
        self.decisions: DecisionLog | None = None
        self.number = -1
        """In order of appearance."""
        self.last_line: Line | None = None
        """To whom it has sent last: workers seldom have to do with anybody else."""
        self.lines: dict[Address, Line] | None = None
        """To whom it has sent: see `Cluster.line`."""
        self.links: dict[Address, Any] | None = None
        """The same in a modelled run, where nothing goes wrong on the network."""
        self._timers: dict[str, Timer] | None = None

    def receive(self, message: Event, payloads: Sequence[tuple[bytes, bytes]]) -> None:
        """A message has arrived."""
        raise NotImplementedError

    def hears(self, message: Event) -> bool:
        """Whether it takes in a message of its node manager's at once, because it would make no difference to it."""
        return False

    def shut_down(self, end: Callable[[], None]) -> None:
        """Its actor's `__ray_shutdown__` runs, for `SHUTDOWN_PATIENCE_NS` at most; `end` is called after it."""
        end()

    def check_invariants(self) -> None:
        """A full sweep over its machine."""
        raise NotImplementedError

    def things(self) -> int:
        """About how many things such a sweep looks at."""
        raise NotImplementedError

    def fire(self, timer: str) -> None:
        """A timer of this process is due."""
        raise NotImplementedError

    def arm_timer(self, timer: str, delay_ns: int) -> None:
        """Call `fire(timer)` after the delay; a timer of the same name is replaced."""
        self.cancel_timer(timer)
        if self._timers is None:
            self._timers = {}
        calendar: Calendar = self.cluster.calendar
        self._timers[timer] = calendar.arm(calendar.now_ns + delay_ns, self._due, timer)

    def cancel_timer(self, timer: str) -> None:
        """Forget the timer."""
        armed = self._timers.pop(timer, None) if self._timers else None
        if armed is not None:
            self.cluster.calendar.disarm(armed)

    def is_armed(self, timer: str) -> bool:
        """Whether a timer of this process is still to come."""
        return self._timers is not None and timer in self._timers

    def _due(self, timer: str) -> None:
        if self._timers:
            self._timers.pop(timer, None)
        if self.is_alive:
            self.cluster.pauses.when_it_runs(self, self._fire, timer)

    def _fire(self, timer: str) -> None:
        if self.is_alive:
            self.fire(timer)

    def die(self) -> None:
        """The process is gone, from one moment to the next."""
        self.is_alive = False
        if self._timers:
            for armed in self._timers.values():
                self.cluster.calendar.disarm(armed)
            self._timers.clear()

    @property
    def is_logged(self) -> bool:
        """Whether decisions are written down."""
        return self.decisions is not None

    def log(self, event: Event, now_ns: int, commands: Sequence[Command]) -> None:
        """Write a decision of this process's machine."""
        if self.decisions is not None:
            self.decisions.record(event, now_ns, commands)

    def trace(
        self,
        kind: TraceKind,
        about: str | bytes,
        *,
        other: str = "",
        name: str = "",
        amount: int = 0,
        deps: tuple[str, ...] = (),
    ) -> None:
        """Note what this process does."""
        wanted = self.cluster.kinds_noted
        if wanted is not None and kind not in wanted:
            return
        cluster = self.cluster
        cluster.note(TraceEvent(cluster.calendar.now_ns, kind, self.address, about, other, name, amount, deps))


class MachineProcess(Process):
    """A process without user code: the head, or a node manager."""

    def __init__(self, *, cluster: VirtualCluster, address: Address, node: str, machine: Machine) -> None:
        super().__init__(cluster=cluster, address=address, node=node)
        self.machine = machine
        self.payloads: dict[bytes, bytes] = {}
        self._calendar: Calendar = cluster.calendar

    def receive(self, message: Event, payloads: Sequence[tuple[bytes, bytes]]) -> None:
        if payloads:
            self.payloads.update(payloads)
        self.handle(message)

    def fire(self, timer: str) -> None:
        self.handle(TimerFired(timer=timer))

    def check_invariants(self) -> None:
        self.machine.check_invariants()

    def things(self) -> int:
        return 1

    def handle(self, event: Event) -> None:
        """Hand an event to the machine and carry out its commands."""
        if not self.is_alive:
            return
        if self.cluster.pauses.places and self.cluster.pauses.holds(self):
            self.cluster.pauses.when_it_runs(self, self.handle, event)
            return
        now_ns = self._calendar.now_ns
        commands = self.machine.handle(event, now_ns)
        if self.decisions is not None:
            self.log(event, now_ns, commands)
        for command in commands:
            if isinstance(command, Send):  # the most frequent one
                self._send(command)
            else:
                self.perform(command)
        if isinstance(event, (NodeRefused, NodeReleased, TimerFired)):
            self.may_be_over()

    def may_be_over(self) -> None:
        """The head may have said that this process is to end, or it may have waited for that long enough."""

    def _send(self, command: Send) -> None:
        payloads: Sequence[tuple[bytes, bytes]] = ()
        if command.payloads:
            payloads = [(key, self.payloads[key]) for key in command.payloads if key in self.payloads]
        message = command.message
        if isinstance(message, TaskPushed):
            spec = message.spec
            self.trace(
                TraceKind.TASK_PUSHED,
                spec.task_id,
                other=command.to,
                name=spec.template.name,
                amount=message.attempt,
            )
        self.cluster.send(self, command.to, message, payloads)

    def perform(self, command: Command) -> None:
        """Carry out a command that any machine may give, but to send; the others belong to the subclass."""
        match command:
            case ArmTimer():
                self.arm_timer(command.timer, command.delay_ns)
            case CancelTimer():
                self.cancel_timer(command.timer)
            case DropPayload():
                self.payloads.pop(command.key, None)
            case WriteRecord():
                self.cluster.write_record(command.table, command.key, command.fields)
            case _:
                raise TypeError(f"process {self.address} cannot carry out the command {command!r}")
