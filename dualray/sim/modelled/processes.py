"""The processes of a modelled run share a model, and carry out what their machines order.

Theory of operation. What all processes of a run share is their `Model`: what calls take, the links between processes,
the notes for the event hash. What happens to each task of a million is here, in worker.py and in driver.py: the wheel
compiles them. What happens once in a run is in cluster.py, and programs are in programs.py.

Nothing here looks at the size of the cluster. Nothing is decided here either: machines are handed what has happened,
and their commands are carried out, as far as they are about more than bytes and tables, of which there are none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b
from typing import Any, Final

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
from dualray.shared.model.events import (
    Event,
    LeaseGranted,
    LeaseRequested,
    LeaseReturned,
    NodeWelcomed,
    PeerMet,
    ResourcesReported,
    SpaceWanted,
    TaskFinished,
    TaskPushed,
    TasksFinished,
    TimerFired,
    ViewReleased,
    WaitStarted,
)
from dualray.shared.model.ids import (
    HEAD,
    Address,
    FunctionID,
    NodeID,
    ObjectID,
    TaskID,
    WaitID,
)
from dualray.shared.model.specs import (
    FunctionTemplate,
    TaskSpec,
)
from dualray.shared.proof.trace import TraceKind
from dualray.sim.cost.cost_model import CostModel
from dualray.sim.kernel.calendar import Calendar
from dualray.sim.processes.object_store import VirtualStore
from dualray.sim.processes.runner import Process

ENDED: Final = 0
"""Kinds, in the event hash: a task has ended."""
ALL_ENDED: Final = 1
PUSHED: Final = 2
FINISHED: Final = 3
OTHER: Final = 4
_LONG_BYTES: Final = 1024


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
        return f"{it.request_id} {it.lease_id} {it.worker} {it.device_ids}"
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
        if not model.is_steady and model.cluster.pauses.holds(self):
            model.cluster.pauses.when_it_runs(self, self._arrive_late, message)
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
        raise TypeError(f"{self.address} received a task, but {self.address} is a driver, and a driver runs no tasks")

    def _run_tasks(self, command: RunTasks) -> None:
        raise TypeError(f"{self.address} received a task, but {self.address} is a driver, and a driver runs no tasks")

    def _forget_tasks(self, command: ForgetTasks) -> None:
        raise TypeError(f"{self.address} received a task, but {self.address} is a driver, and a driver runs no tasks")

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
            self.model.cluster.pauses.when_it_runs(self, what[0], what[1])

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
        return [words for wait_id in self._resumes or () for words in machine.misses(wait_id)]

    def check_invariants(self) -> None:
        self.machine.check_invariants()

    def let_go_of(self, object_ids: Iterable[ObjectID]) -> None:
        """Views of stored objects that were read."""
        for object_id in object_ids:
            if object_id in self.owner.views:
                self.handle(ViewReleased(object_id=object_id))
