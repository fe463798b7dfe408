"""The processes of a modelled run: a driver that follows a program, workers of which only the time is simulated.

Theory of operation. Everything that happens to each task of a million is here, and what all processes of a run share
for it (`Model`): what calls take, the links between processes, the notes for the event hash. It is one of the modules
that the wheel compiles; what happens once in a run is in cluster.py, and programs are in programs.py.

Nothing here looks at the size of the cluster. Nothing is decided here either: machines are handed what has happened,
and their commands are carried out, as far as they are about more than bytes and tables, of which there are none.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from dualray.shared.machines.owner.owner import Owner
from dualray.shared.machines.owner.plain_worker import PlainWorker
from dualray.shared.model.codec import encode, pack
from dualray.shared.model.commands import (
    ArmTimer,
    CancelTimer,
    Command,
    CompleteWait,
    ForgetTasks,
    NoteRetry,
    RunTask,
    RunTasks,
    Send,
)
from dualray.shared.model.config import Config
from dualray.shared.model.errors import ErrorInfo
from dualray.shared.model.events import (
    Event,
    LeaseGranted,
    LeaseRequested,
    LeaseReturned,
    NodeWelcomed,
    Outcome,
    PeerMet,
    RefsDropped,
    ResourcesReported,
    Result,
    SpaceWanted,
    SpaceWritten,
    TaskFinished,
    TaskPushed,
    TaskRan,
    TasksFinished,
    TasksRan,
    TaskSubmitted,
    TimerFired,
    ViewReleased,
    WaitStarted,
)
from dualray.shared.model.ids import (
    HEAD,
    ActorID,
    Address,
    ChildIds,
    FunctionID,
    NodeID,
    ObjectID,
    TaskID,
    WaitID,
    actor_handle_id,
    return_object_id,
    root_task_id,
)
from dualray.shared.model.resources import CPU, UNITS, Resources
from dualray.shared.model.specs import (
    DEFAULT_STRATEGY,
    ActorSpec,
    FunctionTemplate,
    Ref,
    Strategy,
    TaskSpec,
    new_ref,
    new_spec,
)
from dualray.shared.proof.trace import TraceKind
from dualray.sim.cost.cost_model import CostModel
from dualray.sim.kernel.calendar import Calendar
from dualray.sim.processes.runner import Process

if TYPE_CHECKING:
    from dualray.sim.processes.object_store import VirtualStore

OWED_NS_MAX: Final = 50_000
"""Of submissions that are not paid for yet, as in worker.py."""
_ONE_CPU = Resources(((CPU, UNITS),))
_NO_BYTES = np.zeros(0, dtype=np.uint8)
ENDED: Final = 0
"""Kinds, in the event hash: a task has ended."""
ALL_ENDED: Final = 1
PUSHED: Final = 2
FINISHED: Final = 3
OTHER: Final = 4
_LONG_BYTES: Final = 1024


@dataclass(frozen=True, slots=True)
class Get:
    """What a modelled program yields to wait until all of these are in reach of it, as `dualray.get` does."""

    refs: tuple[Ref, ...]


@dataclass(frozen=True, slots=True)
class Wait:
    """What a modelled program yields to wait until so many are ready: it is sent those that are, as `dualray.wait`."""

    refs: tuple[Ref, ...]
    num_ready: int = 1


Step: TypeAlias = int | Get | Wait
"""What a modelled program yields: nanoseconds to compute for, or what it waits for."""
Program: TypeAlias = "Callable[[ModelledDriver], Generator[Step, Any, None]]"


@dataclass(frozen=True, slots=True)
class Call:
    """A function, or an actor's method, of which calls are modelled.

    Attributes:
        template: name, resources, retries and strategy, as of any remote function.
        takes_ns: how long a call takes that is not told otherwise.
        sizes: bytes of each of its results, likewise.
    """

    template: FunctionTemplate
    takes_ns: int
    sizes: tuple[int, ...]


def call(
    name: str,
    *,
    takes_ns: int,
    sizes: tuple[int, ...] = (0,),
    resources: Resources = _ONE_CPU,
    placement: Resources | None = None,
    max_retries: int = 3,
    strategy: Strategy = DEFAULT_STRATEGY,
) -> Call:
    """A function, or method, to make calls of; `sizes` are those of its results."""
    template = FunctionTemplate(
        function_id=FunctionID(blake2b(name.encode(), digest_size=16, person=b"dualray-model").digest()),
        name=name,
        resources=resources,
        placement=resources if placement is None else placement,
        num_returns=len(sizes),
        max_retries=max_retries,
        strategy=strategy,
    )
    return Call(template, takes_ns, sizes)


# ---- What all processes share ----------------------------------------------------------------------------------------


class Plan:
    """What the calls of a function do, and have done."""

    __slots__ = ("attempts", "cpu_units", "one_small_size", "sizes", "takes_ns", "took_ns")

    def __init__(self, takes_ns: int, sizes: tuple[int, ...], cpu_units: int, is_small: bool) -> None:
        self.takes_ns = takes_ns
        """From the order to begin."""
        self.sizes = sizes
        self.cpu_units = cpu_units
        self.one_small_size = sizes[0] if is_small and len(sizes) == 1 else -1
        self.attempts = 0
        self.took_ns = 0


class Link:
    """From one process to another, on a network on which nothing goes wrong."""

    __slots__ = ("arrive", "arrives_ns", "bytes_per_s", "messages", "takes_ns")

    def __init__(self, arrive: Callable[[Any], object], takes_ns: int, bytes_per_s: int) -> None:
        self.arrive = arrive
        self.takes_ns = takes_ns
        """Of a message without payloads."""
        self.bytes_per_s = bytes_per_s
        self.arrives_ns = 0
        """When the last message does."""
        self.messages = 0


class Door:
    """Where messages to the head, or to a node manager, arrive."""

    __slots__ = ("model", "process")

    def __init__(self, model: Model, process: Process) -> None:
        self.model = model
        self.process = process

    def arrive(self, message: Event) -> None:
        """A message has arrived."""
        model, process = self.model, self.process
        model.note(process.number, OTHER, model.content_of(message))
        if process.is_alive:
            process.receive(message, ())


class Model:
    """What all processes of a modelled run share.

    Args:
        cluster: theirs: what is rare is asked of it.
        price: says what a message costs from a node to another, in ns, and how many of its bytes go in a second.
        processes: all that there are; None: something may go wrong on the network, and no message takes a short way.
        is_uniform: all nodes have the same network card.
    """

    __slots__ = (
        "_is_uniform",
        "_last_plan",
        "_last_template",
        "_packed",
        "_packed_of",
        "_price",
        "_prices",
        "_processes",
        "calendar",
        "cluster",
        "config",
        "cost_model",
        "inline_bytes_max",
        "is_anchored",
        "is_calm",
        "is_plain",
        "is_steady",
        "keys",
        "numbers",
        "plans",
        "push_window_ns",
        "retries",
        "submit_ns",
        "tasks",
        "told",
    )

    def __init__(
        self,
        *,
        cluster: Any,
        calendar: Calendar,
        config: Config,
        cost_model: CostModel,
        is_steady: bool,
        is_anchored: bool,
        price: Callable[[str, str], tuple[int, int]],
        processes: dict[Address, Any] | None,
        is_uniform: bool,
    ) -> None:
        self.cluster = cluster
        self.calendar = calendar
        self.config = config
        self.cost_model = cost_model
        self.submit_ns: int = cost_model.submit_ns
        self.inline_bytes_max: int = config.inline_bytes_max
        self.push_window_ns: int = config.push_window_ns
        self.is_steady = is_steady
        """Nothing stands still or gets slow."""
        self.is_anchored = is_anchored
        """A fault may wait for the begin of a task."""
        self.is_calm = is_steady and not is_anchored
        self.is_plain = is_steady
        """Every call takes what its function takes."""
        self.plans: dict[FunctionID, Plan] = {}
        self._last_template: FunctionTemplate | None = None
        self._last_plan: Plan | None = None
        """Of the function that was looked for last: most programs have one."""
        self.told: dict[TaskID, tuple[int, tuple[int, ...]]] = {}
        """What a call takes and returns, of those that were told so one by one."""
        self.tasks = 0
        self.retries = 0
        self.numbers: list[int] = []
        """For the event hash: time, and process and kind, of what has happened since it was last taken further."""
        self.keys: list[bytes] = []
        """And the content."""
        self._packed_of: Event | None = None
        self._packed = b""
        """The last long event, and what stands for it in the event hash."""
        self._price = price
        self._prices: dict[int, tuple[int, int]] = {}
        """Where they are the same for all: within a node, between nodes, and from and to the head."""
        self._processes = processes
        self._is_uniform = is_uniform

    # ---- What calls take -------------------------------------------------------------------------------------

    def plan_of(self, template: FunctionTemplate) -> Plan:
        """What its calls do."""
        plan = self._last_plan
        if plan is not None and template is self._last_template:
            return plan
        plan = self.plans[template.function_id]
        self._last_template, self._last_plan = template, plan
        return plan

    def takes_ns(self, spec: TaskSpec, node: str) -> int:
        """How long an attempt takes on a node now, from the order to begin."""
        takes_ns = self.plan_of(spec.template).takes_ns
        if self.told and spec.task_id in self.told:
            takes_ns = self.told[spec.task_id][0] + self.cost_model.dispatch_ns
        return takes_ns if self.is_steady else round(takes_ns * self.cluster.slowness_of(NodeID(node)))

    def begins_ns(self, spec: TaskSpec, node: str) -> int:
        """As `takes_ns`, of an attempt that begins."""
        plan = self.plan_of(spec.template)
        takes_ns = plan.takes_ns if self.is_plain else self.takes_ns(spec, node)
        plan.attempts += 1
        plan.took_ns += takes_ns
        return takes_ns

    def sizes_of(self, spec: TaskSpec) -> tuple[int, ...]:
        """Bytes of the results of a call."""
        told = self.told.get(spec.task_id) if self.told else None
        if told is not None:
            return told[1]
        return () if spec.creates is not None else self.plan_of(spec.template).sizes

    def one_small_size(self, spec: TaskSpec) -> int:
        """Bytes of the result of a call that has one, and that is small; else -1."""
        size = self.plan_of(spec.template).one_small_size
        if size < 0 or (self.told and spec.task_id in self.told) or spec.creates is not None:
            sizes = self.sizes_of(spec)
            return sizes[0] if len(sizes) == 1 and sizes[0] <= self.inline_bytes_max else -1
        return size

    # ---- Messages --------------------------------------------------------------------------------------------

    def send(self, sender: Process, to: Address, message: Any) -> bool:
        """Deliver a message after the network's delay: what `Network.message` does, in fewer steps, where nothing cuts,
        parts or impairs the network. False: it has to go that way."""
        links = sender.links
        link: Link | None = links.get(to) if links is not None else None
        if link is None:
            link = self._open_link(sender, to)
            if link is None:
                return False
        calendar = self.calendar
        at_ns = calendar.now_ns + link.takes_ns
        if isinstance(message, TasksFinished):
            size_bytes = 0
            for outcome in message.outcomes:
                size_bytes += outcome[2]
            at_ns -= -size_bytes * 1_000_000_000 // link.bytes_per_s  # rounded up, as `time_ns`
        elif isinstance(message, TaskFinished):
            size_bytes = 0
            for result in message.results:
                if result.inline:
                    size_bytes += result.size_bytes
            at_ns -= -size_bytes * 1_000_000_000 // link.bytes_per_s
        if at_ns < link.arrives_ns:
            at_ns = link.arrives_ns
        else:
            link.arrives_ns = at_ns
        link.messages += 1
        calendar.post(at_ns, link.arrive, message)
        return True

    def _open_link(self, sender: Process, to: Address) -> Link | None:
        """From a process to an address, if there is anybody."""
        processes = self._processes
        destination: Process | None = None if processes is None else processes.get(to)
        if destination is None:
            return None
        source, target = sender.node, destination.node
        kind = 0 if source == target else 2 if HEAD in (source, target) else 1
        price = self._prices.get(kind) if self._is_uniform else None
        if price is None:
            price = self._prices[kind] = self._price(source, target)
        if isinstance(destination, ModelledProcess):
            link = Link(destination.arrive, price[0], price[1])
        else:
            link = Link(Door(self, destination).arrive, price[0], price[1])
        if sender.links is None:
            sender.links = {}
        sender.links[to] = link
        return link

    def note(self, number: int, kind: int, key: bytes) -> None:
        """Something has happened to the process of this number: for the event hash."""
        self.numbers.append(self.calendar.now_ns)
        self.numbers.append(number << 3 | kind)
        self.keys.append(key)

    def content_of(self, message: Event) -> bytes:
        """What tells a message from others of its kind, for the event hash: of most kinds, all of it."""
        words = _words_of(message)
        if words:
            return words.encode()
        if message is self._packed_of:  # an announcement: one event for many
            return self._packed
        content = pack(encode(message))
        if len(content) > _LONG_BYTES:
            content = blake2b(content, digest_size=16).digest()
            self._packed_of, self._packed = message, content
        return content


def _words_of(it: Any) -> str:
    """Of what each lease needs, what differs; "": it is of another kind."""
    kind = type(it)
    if kind is LeaseRequested:
        return f"{it.request_id} {it.owner} {it.count} {it.placed} {it.via} {it.shape.name}"
    if kind is LeaseGranted:
        return f"{it.request_id} {it.lease_id} {it.worker} {it.gpu_ids}"
    if kind is ResourcesReported:
        return f"{it.node} {it.available} {it.settled} {it.allocated} {it.held}"
    if kind is LeaseReturned:
        return f"{it.lease_id} {it.worker_usable}"
    if kind is PeerMet:
        return f"{it.process} {it.peer}"
    if kind is NodeWelcomed:
        return str(it.node)
    return ""


# ---- Processes -------------------------------------------------------------------------------------------------------


class ModelledProcess(Process):
    """A driver or worker whose code is modelled."""

    __slots__ = ("_calendar", "_resumes", "_wait_counter", "_waits", "model", "store")

    is_traced = False

    def __init__(self, *, cluster: Any, address: Address, node: NodeID, store: VirtualStore) -> None:
        super().__init__(cluster=cluster, address=address, node=node)
        self.model: Model = cluster.model
        self.store = store
        self._calendar: Calendar = self.model.calendar
        self._resumes: dict[WaitID, Callable[[CompleteWait], None]] | None = None
        self._waits: dict[WaitID, CompleteWait] | None = None
        self._wait_counter = 0

    @property
    def machine(self) -> Owner | PlainWorker:
        """What decides."""
        raise NotImplementedError

    def _decide(self, event: Any) -> list[Command]:
        """Hand an event to the machine."""
        raise NotImplementedError

    @property
    def owner(self) -> Owner:
        """The whole machine."""
        raise NotImplementedError

    def receive(self, message: Event, payloads: Sequence[tuple[bytes, bytes]]) -> None:
        self.arrive(message)

    def arrive(self, message: Any) -> None:
        """A message has arrived."""
        model = self.model
        if isinstance(message, TaskPushed):
            model.note(self.number, PUSHED, message.spec.task_id)
        elif isinstance(message, TasksFinished):
            numbers, keys = model.numbers, model.keys
            numbers.append(self._calendar.now_ns)
            numbers.append(self.number << 3 | FINISHED)
            for outcome in message.outcomes:
                keys.append(outcome[0])
        else:
            model.note(self.number, OTHER, model.content_of(message))
        if not self.is_alive:
            return
        if not model.is_steady and model.cluster.halts.is_halted(self):
            model.cluster.halts.when_it_runs(self, self._arrive_late, message)
            return
        self.handle(message)

    def _arrive_late(self, message: Event) -> None:
        if self.is_alive:
            self.handle(message)

    def fire(self, timer: str) -> None:
        self.handle(TimerFired(timer=timer))

    def handle(self, event: Any) -> None:
        """Hand an event to the machine, and carry out its commands."""
        commands = self._decide(event)
        if commands:
            self.perform(commands)

    def perform(self, commands: list[Command]) -> None:
        """Carry out what the machine has ordered."""
        for command in commands:
            if isinstance(command, Send):
                if not self.model.send(self, command.to, command.message):
                    self.cluster.send(self, command.to, command.message, ())
            elif isinstance(command, RunTask):
                self._run_task(command)
            elif isinstance(command, RunTasks):
                self._run_tasks(command)
            elif isinstance(command, CompleteWait):
                self._complete_wait(command)
            elif isinstance(command, ArmTimer):
                self.arm_timer(command.timer, command.delay_ns)
            elif isinstance(command, CancelTimer):
                self.cancel_timer(command.timer)
            elif isinstance(command, ForgetTasks):
                self._forget_tasks(command)
            elif isinstance(command, NoteRetry):
                self.model.retries += 1
                if self.model.is_anchored:
                    self.trace(TraceKind.TASK_RETRIED, command.task_id, other=command.reason, amount=command.attempt)
            # All others are about bytes and tables, of which there are none; and who is interrupted is not told: what
            # is modelled goes on, and is reported when its time is over.

    def _run_task(self, task: RunTask | TaskPushed) -> None:
        raise TypeError(f"{self.address} is a driver, and runs no tasks")

    def _run_tasks(self, command: RunTasks) -> None:
        raise TypeError(f"{self.address} is a driver, and runs no tasks")

    def _forget_tasks(self, command: ForgetTasks) -> None:
        raise TypeError(f"{self.address} is a driver, and runs no tasks")

    # ---- Waiting ---------------------------------------------------------------------------------------------

    def _complete_wait(self, command: CompleteWait) -> None:
        resume = None if self._resumes is None else self._resumes.pop(command.wait_id, None)
        if resume is not None:
            self._calendar.post(self._calendar.now_ns, self._resume, (resume, command))
        else:  # it was there at once
            if self._waits is None:
                self._waits = {}
            self._waits[command.wait_id] = command

    def _resume(self, what: tuple[Callable[[CompleteWait], None], CompleteWait]) -> None:
        if self.is_alive:
            self.model.cluster.halts.when_it_runs(self, what[0], what[1])

    def _next_wait(self) -> WaitID:
        self._wait_counter += 1
        return WaitID(self._wait_counter)

    def _wait_for(self, event: WaitStarted | SpaceWanted, then: Callable[[CompleteWait], None]) -> None:
        """Begin a wait, and go on with `then`."""
        self.handle(event)
        done = None if self._waits is None else self._waits.pop(event.wait_id, None)
        if done is not None:
            then(done)
            return
        if self._resumes is None:
            self._resumes = {}
        self._resumes[event.wait_id] = then

    def waits_explained(self) -> list[str]:
        """In words, what its waits still miss."""
        machine = self.owner
        return [words for wait_id in self._resumes or () for words in machine.explain_wait(wait_id)]

    def check_invariants(self) -> None:
        self.machine.check_invariants()

    def let_go_of(self, object_ids: Iterable[ObjectID]) -> None:
        """Views of stored objects that were read."""
        for object_id in object_ids:
            if object_id in self.owner.values.views:
                self.handle(ViewReleased(object_id=object_id))


def _things_of(machine: Owner) -> int:
    return 10 + 2 * len(machine.values.table) + 2 * len(machine.tasks.records) + len(machine.leases.leases)


class ModelledWorker(ModelledProcess):
    """A worker: it runs what it is told to, one after another."""

    __slots__ = ("_began_ns", "_plain", "_running", "_to_run")

    def __init__(self, *, cluster: Any, address: Address, node: NodeID, store: VirtualStore) -> None:
        super().__init__(cluster=cluster, address=address, node=node, store=store)
        self._plain = PlainWorker(address=address, node=node, config=cluster.config, keeps_rows=False)
        self._to_run: deque[RunTask | TaskPushed] | None = None
        self._running: Any = None
        """The task in hand, or several; None: none."""
        self._began_ns = 0

    @classmethod
    def as_worker(cls, *, cluster: Any, address: Address, node: NodeID, store: VirtualStore) -> ModelledWorker:
        """A worker."""
        return ModelledWorker(cluster=cluster, address=address, node=node, store=store)

    @property
    def machine(self) -> Owner | PlainWorker:
        """What decides."""
        return self._plain

    @property
    def owner(self) -> Owner:
        """The whole machine."""
        return self._plain.unfold()

    def _decide(self, event: Any) -> list[Command]:
        return self._plain.handle(event, self._calendar.now_ns)

    def things(self) -> int:
        owner = self._plain.owner
        return 1 if owner is None else _things_of(owner)

    def arrive(self, message: Any) -> None:
        model = self.model
        if isinstance(message, TaskPushed) and model.is_calm and self.is_alive and self._running is None:
            calendar = self._calendar
            now_ns = calendar.now_ns
            if self._plain.starts(message, now_ns):  # the way of most tasks
                spec = message.spec
                model.note(self.number, PUSHED, spec.task_id)
                self._running = message
                calendar.post(now_ns + model.begins_ns(spec, self.node), self._ended, message)
                return
        super().arrive(message)

    def _run_task(self, task: RunTask | TaskPushed) -> None:
        if self._running is not None:
            if self._to_run is None:
                self._to_run = deque()
            self._to_run.append(task)
            return
        calendar, model = self._calendar, self.model
        now_ns = calendar.now_ns
        self._running = task
        self._began_ns = now_ns
        takes_ns = model.begins_ns(task.spec, self.node)
        if model.is_anchored:
            dispatch_ns = model.cost_model.dispatch_ns
            calendar.post(now_ns + dispatch_ns, self._begin, (task, max(takes_ns - dispatch_ns, 0)))
        else:
            self._compute(takes_ns, self._ended, task)

    def _compute(self, takes_ns: int, then: Callable[[Any], None], what: Any) -> None:
        """Call `then(what)` when so much work is done."""
        cores = None if self.model.is_steady else self.model.cluster.nodes[NodeID(self.node)].cores
        if cores is None:
            self._calendar.post(self._calendar.now_ns + takes_ns, then, what)
        else:
            cores.run(takes_ns, 1.0, then, what, whose=self)

    def _begin(self, what: tuple[RunTask | TaskPushed, int]) -> None:
        """Where a fault may be anchored at the begin of a task: it begins with an event of its own."""
        task, left_ns = what
        if not self.is_alive:
            return
        if self.model.cluster.halts.is_halted(self):
            self.model.cluster.halts.when_it_runs(self, self._begin, what)
            return
        spec = task.spec
        self.trace(TraceKind.TASK_STARTED, spec.task_id, name=spec.template.name, amount=task.attempt)
        if self.is_alive:
            self._compute(left_ns, self._ended, task)

    def _run_tasks(self, command: RunTasks) -> None:
        tasks, model = command.tasks, self.model
        if self._running is None and not model.is_anchored:
            specs = [task.spec for task in tasks]
            takes = [model.takes_ns(spec, self.node) for spec in specs]
            together_ns = sum(takes)
            if together_ns <= model.push_window_ns and min([model.one_small_size(spec) for spec in specs]) >= 0:
                # Nobody looks in between: an owner pushes so much ahead, and is told of it together.
                self._running = tasks
                for spec in specs:
                    model.begins_ns(spec, self.node)
                self._compute(together_ns, self._all_ended, (tasks, takes))
                return
        for task in tasks:
            self._run_task(task)

    def _forget_tasks(self, command: ForgetTasks) -> None:
        forgotten = {task.spec.task_id for task in command.tasks}
        if self._to_run:
            self._to_run = deque([task for task in self._to_run if task.spec.task_id not in forgotten])
        if type(self._running) is tuple:
            self._running = tuple([task for task in self._running if task.spec.task_id not in forgotten])

    def _all_ended(self, what: tuple[tuple[TaskPushed, ...], list[int]]) -> None:
        tasks, takes = what
        if not self.is_alive:
            return
        model = self.model
        if not model.is_steady and model.cluster.halts.is_halted(self):
            model.cluster.halts.when_it_runs(self, self._all_ended, what)
            return
        outcomes: tuple[Outcome, ...] = tuple(
            [
                (task.spec.task_id, task.attempt, model.one_small_size(task.spec), took)
                for task, took in zip(tasks, takes, strict=True)
            ]
        )
        if len(self._running) < len(tasks):  # some were taken back meanwhile
            left = {task.spec.task_id for task in self._running}
            outcomes = tuple([outcome for outcome in outcomes if outcome[0] in left])
        self._running = None
        if outcomes:
            model.note(self.number, ALL_ENDED, outcomes[0][0])
            self.handle(TasksRan(outcomes=outcomes))
        self._go_on()

    def _ended(self, task: RunTask | TaskPushed) -> None:
        """A task has computed for as long as it takes."""
        if not self.is_alive:
            return
        model = self.model
        if not model.is_steady and model.cluster.halts.is_halted(self):
            model.cluster.halts.when_it_runs(self, self._ended, task)
            return
        spec = task.spec
        task_id = spec.task_id
        model.note(self.number, ENDED, task_id)
        size = model.one_small_size(spec)
        if size < 0:
            self._store_results(task, 0)
            return
        self._running = None
        if model.is_anchored:
            self._trace_end(task)
        plain = self._plain
        now_ns = self._calendar.now_ns
        finished = plain.report(size, now_ns) if plain.owner is None else None
        if finished is not None:
            if not model.send(self, spec.owner, finished):
                self.cluster.send(self, spec.owner, finished, ())
            return
        if spec.deps:
            result = Result(object_id=return_object_id(task_id, 0), size_bytes=size, inline=True)
            self._report(task, TaskRan(task_id=task_id, attempt=task.attempt, results=(result,)))
            return
        duration_ns = now_ns - self._began_ns
        self.handle(TasksRan(outcomes=((task_id, task.attempt, size, duration_ns),)))
        if self._to_run:
            self._go_on()

    def _go_on(self) -> None:
        if self._to_run and self._running is None:
            self._run_task(self._to_run.popleft())

    def _store_results(self, task: RunTask | TaskPushed, index: int) -> None:
        """Write those results into the store that are large, one after another; then report."""
        spec, model = task.spec, self.model
        sizes = model.sizes_of(spec)
        inline_max = model.inline_bytes_max
        while index < len(sizes) and sizes[index] <= inline_max:
            index += 1
        if index == len(sizes):
            if model.is_anchored:
                self._trace_end(task)
            results = tuple(
                [
                    Result(object_id=return_object_id(spec.task_id, at), size_bytes=size, inline=size <= inline_max)
                    for at, size in enumerate(sizes)
                ]
            )
            self._report(task, TaskRan(task_id=spec.task_id, attempt=task.attempt, results=results))
            return
        object_id, size_bytes = return_object_id(spec.task_id, index), sizes[index]
        next_index = index + 1

        def granted(command: CompleteWait) -> None:
            if command.error is not None:
                self._report(task, TaskRan(task_id=spec.task_id, attempt=task.attempt, results=(), error=command.error))
            elif not command.ready:
                self._store_results(task, next_index)  # an earlier attempt has left the same object here
            else:
                takes_ns = model.cost_model.seal_ns + model.cost_model.copy_ns(size_bytes)
                self._calendar.post(self._calendar.now_ns + takes_ns, written, None)

        def written(_: None) -> None:
            if self.is_alive:
                self.store.objects[object_id] = _NO_BYTES
                if model.is_anchored:
                    self.trace(TraceKind.OBJECT_STORED, object_id, amount=size_bytes)
                model.cluster.halts.when_it_runs(self, sealed)

        def sealed() -> None:
            self.handle(SpaceWritten(object_id=object_id))
            self._store_results(task, next_index)

        retries = spec.template.max_retries
        remakeable = spec.actor_id is None and (retries < 0 or task.attempt < retries)
        event = SpaceWanted(
            wait_id=self._next_wait(),
            object_id=object_id,
            size_bytes=size_bytes,
            owner=spec.owner,
            remakeable=remakeable,
        )
        self._wait_for(event, granted)

    def _trace_end(self, task: RunTask | TaskPushed) -> None:
        spec = task.spec
        self.trace(TraceKind.TASK_ENDED, spec.task_id, name=spec.template.name, amount=task.attempt)

    def _report(self, task: RunTask | TaskPushed, ran: TaskRan) -> None:
        self._running = None
        self.handle(ran)
        self.let_go_of([ref.object_id for ref in task.spec.deps])
        self._go_on()


class ModelledDriver(ModelledProcess):
    """The driver: it follows a program."""

    __slots__ = ("_ids", "_machine", "_program", "_submitted", "owed_ns", "root")

    def __init__(self, *, cluster: Any, address: Address, node: NodeID, store: VirtualStore) -> None:
        super().__init__(cluster=cluster, address=address, node=node, store=store)
        self._machine = Owner(address=address, node=node, config=cluster.config, is_driver=True)
        self.root = root_task_id("", 1)
        self._ids = ChildIds(self.root, 0)
        self.owed_ns = 0
        self._submitted = 0
        self._program: Generator[Step, Any, None] | None = None

    @property
    def machine(self) -> Owner | PlainWorker:
        """What decides."""
        return self._machine

    @property
    def owner(self) -> Owner:
        """The whole machine."""
        return self._machine

    def _decide(self, event: Any) -> list[Command]:
        return self._machine.handle(event, self._calendar.now_ns)

    def things(self) -> int:
        return _things_of(self._machine)

    # ---- What programs call ----------------------------------------------------------------------------------

    def submit(
        self,
        what: Call,
        deps: tuple[Ref, ...] = (),
        *,
        takes_ns: int | None = None,
        sizes: tuple[int, ...] | None = None,
    ) -> tuple[Ref, ...]:
        """Make a call, with these objects as its arguments; references to its results. The program pays for it with
        its next `yield driver.pay()`."""
        self._submitted += 1
        task_id = self._ids.of(self._submitted)
        model, address, template = self.model, self.address, what.template
        if takes_ns is not None or sizes is not None:
            model.is_plain = False
            model.told[task_id] = (
                what.takes_ns if takes_ns is None else takes_ns,
                what.sizes if sizes is None else sizes,
            )
        model.tasks += 1
        self.owed_ns += model.submit_ns
        self._trace_submission(task_id, template)
        spec = new_spec(task_id, template, address, self.root, 0, deps, (), None, None)
        commands = self._machine.submit(spec, self._calendar.now_ns)
        if commands:
            self.perform(commands)
        if template.num_returns == 1:
            return (new_ref((return_object_id(task_id, 0), address)),)
        return tuple([new_ref((return_object_id(task_id, index), address)) for index in range(template.num_returns)])

    def submit_several(self, what: Call, count: int) -> list[Ref]:
        """Make up to `count` calls that have no arguments and one result, and are told nothing of their own: fewer when
        it is time to pay before. References to their results, of one call at least."""
        refs: list[Ref] = []
        model, machine, ids = self.model, self._machine, self._ids
        tasks = machine.tasks
        address, root, template, submit_ns = self.address, self.root, what.template, model.submit_ns
        now_ns = self._calendar.now_ns
        while True:
            self._submitted += 1
            task_id = ids.of(self._submitted)
            self.owed_ns += submit_ns
            if model.is_anchored:
                self._trace_submission(task_id, template)
            commands = machine.submit(new_spec(task_id, template, address, root, 0, (), (), None, None), now_ns)
            if commands:
                self.perform(commands)
            object_id = tasks.newest_result
            assert object_id is not None
            refs.append(new_ref((object_id, address)))
            if self.owed_ns >= OWED_NS_MAX or len(refs) >= count:
                model.tasks += len(refs)
                return refs

    def create(self, what: Call, *, max_restarts: int = 0) -> Ref:
        """Make an actor, by a call of its class: a handle to it."""
        self._submitted += 1
        task_id = self._ids.of(self._submitted)
        spec = new_spec(task_id, what.template, self.address, self.root, 0, (), (), None, None)
        spec.creates = ActorSpec(actor_id=ActorID(task_id), max_restarts=max_restarts, max_task_retries=-1)
        self._trace_submission(task_id, what.template)
        self.owed_ns += self.model.submit_ns
        self.handle(TaskSubmitted(spec=spec))
        return Ref(actor_handle_id(ActorID(task_id)), self.address)

    def invoke(
        self,
        actor: Ref,
        what: Call,
        deps: tuple[Ref, ...] = (),
        *,
        takes_ns: int | None = None,
    ) -> Ref:
        """Call a method of an actor: a reference to its first result."""
        self._submitted += 1
        task_id = self._ids.of(self._submitted)
        if takes_ns is not None:
            self.model.is_plain = False
            self.model.told[task_id] = takes_ns, what.sizes
        actor_id = ActorID(actor.object_id[:16])
        spec = new_spec(task_id, what.template, self.address, self.root, 0, deps, (), actor_id, actor)
        self.model.tasks += 1
        self.owed_ns += self.model.submit_ns
        self._trace_submission(task_id, what.template)
        self.handle(TaskSubmitted(spec=spec))
        return Ref(return_object_id(task_id, 0), self.address)

    def _trace_submission(self, task_id: TaskID, template: FunctionTemplate) -> None:
        """Where a fault may be anchored at it."""
        if self.model.is_anchored:
            self.trace(TraceKind.TASK_SUBMITTED, task_id, name=template.name)

    @property
    def owes(self) -> bool:
        """Whether it is time to pay for calls."""
        return self.owed_ns >= OWED_NS_MAX

    def pay(self) -> int:
        """The time that calls have taken so far: to be yielded."""
        owed_ns, self.owed_ns = self.owed_ns, 0
        return owed_ns

    def drop(self, refs: Iterable[Ref]) -> None:
        """Let go of references."""
        self.handle(RefsDropped(object_ids=tuple([ref[0] for ref in refs])))

    # ---- Following it ----------------------------------------------------------------------------------------

    def follow(self, program: Program) -> None:
        """Begin with a program."""
        self._program = program(self)
        self._advance(None)

    def _advance(self, answer: Any) -> None:
        if not self.is_alive:
            return
        if not self.model.is_steady and self.model.cluster.halts.is_halted(self):
            self.model.cluster.halts.when_it_runs(self, self._advance, answer)
            return
        assert self._program is not None
        step: Any
        try:
            step = self._program.send(answer)
        except StopIteration:
            self.model.cluster.program_ended("")
            return
        if type(step) is int:
            self._calendar.post(self._calendar.now_ns + step, self._advance, None)
            return
        assert isinstance(step, (Get, Wait))
        is_get = isinstance(step, Get)
        event = WaitStarted(
            wait_id=self._next_wait(),
            refs=step.refs,
            num_ready=step.num_ready if isinstance(step, Wait) else len(step.refs),
            fetch=True,
            read=is_get,
        )
        self._wait_for(event, self._got if is_get else self._waited)

    def _got(self, done: CompleteWait) -> None:
        table = self._machine.values.table
        for object_id in done.ready:
            failure: ErrorInfo | None = table[object_id].failure
            if failure is not None:
                self.model.cluster.program_ended(failure.message)
                return
        if self._machine.values.views:
            self.let_go_of(done.ready)
        self._calendar.post(self._calendar.now_ns, self._advance, None)

    def _waited(self, done: CompleteWait) -> None:
        self._calendar.post(self._calendar.now_ns, self._advance, frozenset(done.ready))
