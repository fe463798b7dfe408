"""Programs that are modelled, not executed (`execute=False`): for runs too large to call any function.

Theory of operation. Head, node managers and owners are the machines that run everywhere else, with whatever policies
the config names. What is modelled is the user's code: a program is a generator that stands for the driver
(modelled_programs.py); it submits calls, of which each takes a time and returns so many bytes, and yields when it
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
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from typing import Any, TypeAlias, cast

import numpy as np

from dualray.exceptions import SimulationDeadlockError
from dualray.shared.faults import Fault
from dualray.shared.machines.owner import Owner
from dualray.shared.machines.plain_worker import PlainWorker
from dualray.shared.model.codec import encode, pack
from dualray.shared.model.commands import (
    ArmTimer,
    CancelTimer,
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
    PeerMet,
    RefsDropped,
    ResourcesReported,
    Result,
    SpaceWanted,
    SpaceWritten,
    Started,
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
    ActorID,
    Address,
    FunctionID,
    NodeID,
    ObjectID,
    TaskID,
    WaitID,
    actor_handle_id,
    child_task_id,
    return_object_id,
    root_task_id,
)
from dualray.shared.model.resources import CPU, UNITS, Resources
from dualray.shared.model.specs import (
    DEFAULT_STRATEGY,
    ActorSpec,
    FunctionTemplate,
    LeaseShape,
    NodeInfo,
    Ref,
    Strategy,
    TaskSpec,
    new_spec,
)
from dualray.shared.policies.feasibility import why_infeasible
from dualray.shared.trace import TraceEvent, TraceKind
from dualray.sim.cluster import DRIVER, DRIVER_NODE, MESSAGE_BYTES, Cluster
from dualray.sim.cost_model import CostModel, time_ns
from dualray.sim.node import Hardware
from dualray.sim.object_store import VirtualStore
from dualray.sim.runner import Process

OWED_NS_MAX = 50_000
"""Of submissions that are not paid for yet, as in worker.py."""
_ONE_CPU = Resources(((CPU, UNITS),))
_NO_BYTES = np.zeros(0, dtype=np.uint8)
HASH_EVERY_EVENTS = 10_000
"""So often what has happened is taken into the event hash."""
_ENDED, _ALL_ENDED, _PUSHED, _FINISHED, _OTHER = range(5)
"""Kinds, in the event hash: tasks that ended, messages of which ids say enough, and all others."""
_LONG_BYTES = 1024


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
    hash: str = ""
    failed: str = ""


class _Plan:
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


class _Link:
    """From one process to another, on a network on which nothing goes wrong."""

    __slots__ = ("arrive", "arrives_ns", "bytes_per_s", "messages", "takes_ns")

    def __init__(self, arrive: Callable[[Event], object], takes_ns: int, bytes_per_s: int) -> None:
        self.arrive = arrive
        self.takes_ns = takes_ns
        """Of a message without payloads."""
        self.bytes_per_s = bytes_per_s
        self.arrives_ns = 0
        """When the last message does."""
        self.messages = 0


class ModelledProcess(Process):
    """A driver or worker whose code is modelled."""

    __slots__ = ("_handlers", "_kernel", "_resumes", "_wait_counter", "_waits", "model", "store")

    is_traced = False
    machine: Any

    def __init__(self, *, cluster: ModelledCluster, address: Address, node: NodeID, store: VirtualStore) -> None:
        super().__init__(cluster=cluster, address=address, node=node)
        self.model = cluster
        self.store = store
        self._kernel = cluster.kernel
        self._resumes: dict[WaitID, Callable[[CompleteWait], None]] | None = None
        self._waits: dict[WaitID, CompleteWait] | None = None
        self._wait_counter = 0

    def receive(self, message: Event, payloads: Sequence[tuple[bytes, bytes]]) -> None:
        self.arrive(message)

    def arrive(self, message: Any) -> None:
        """A message has arrived."""
        model = self.model
        kind = type(message)
        numbers = model.numbers
        numbers.append(self._kernel._now)
        if kind is TaskPushed:
            numbers.append(self.number << 3 | _PUSHED)
            model.keys.append(message.spec.task_id)
        elif kind is TasksFinished:
            numbers.append(self.number << 3 | _FINISHED)
            for outcome in message.outcomes:
                model.keys.append(outcome[0])
        else:
            numbers.append(self.number << 3 | _OTHER)
            model.keys.append(model.content_of(message))
        if not self.is_alive:
            return
        if not model.is_steady and model.is_paused(self.node):
            model.when_running(self.node, self._arrive_late, message)
            return
        self.handle(message)

    def _arrive_late(self, message: Event) -> None:
        if self.is_alive:
            self.handle(message)

    def fire(self, timer: str) -> None:
        self.handle(TimerFired(timer=timer))

    def handle(self, event: Event) -> None:
        """Hand an event to the machine, and carry out its commands."""
        command: Any
        for command in self.machine.handle(event, self._kernel._now):
            kind = type(command)
            if kind is Send:
                self.model.send(self, command.to, command.message, ())
            elif kind is RunTask:
                self._run_task(command)
            else:
                perform = _PERFORM.get(kind)
                if perform is not None:  # all others are about bytes and tables, of which there are none
                    perform(self, command)

    def _arm(self, command: ArmTimer) -> None:
        self.arm_timer(command.timer, command.delay_ns)

    def _disarm(self, command: CancelTimer) -> None:
        self.cancel_timer(command.timer)

    def _note_retry(self, command: NoteRetry) -> None:
        self.model.result.retries += 1

    def _run_task(self, task: RunTask) -> None:
        raise TypeError(f"{self.address} is a driver, and runs no tasks")

    def _run_tasks(self, command: RunTasks) -> None:
        raise TypeError(f"{self.address} is a driver, and runs no tasks")

    def _forget_tasks(self, command: ForgetTasks) -> None:
        raise TypeError(f"{self.address} is a driver, and runs no tasks")

    # ---- Waiting ---------------------------------------------------------------------------------------------

    def _complete_wait(self, command: CompleteWait) -> None:
        resume = None if self._resumes is None else self._resumes.pop(command.wait_id, None)
        if resume is not None:
            self._kernel.post(self._kernel._now, self._resume, (resume, command))
        else:  # it was there at once
            if self._waits is None:
                self._waits = {}
            self._waits[command.wait_id] = command

    def _resume(self, what: tuple[Callable[[CompleteWait], None], CompleteWait]) -> None:
        if self.is_alive:
            self.model.when_running(self.node, *what)

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

    def check_invariants(self) -> None:
        self.machine.check_invariants()

    def things(self) -> int:
        machine = self.machine if isinstance(self.machine, Owner) else self.machine.owner
        if machine is None:
            return 1
        return 10 + 2 * len(machine.values.table) + 2 * len(machine.tasks.records) + len(machine.leases.leases)

    @property
    def owner(self) -> Owner:
        """The whole machine."""
        machine = self.machine
        return machine if isinstance(machine, Owner) else machine.unfold()

    def let_go_of(self, object_ids: Iterable[ObjectID]) -> None:
        """Views of stored objects that were read."""
        for object_id in object_ids:
            if object_id in self.owner.values.views:
                self.handle(ViewReleased(object_id=object_id))


class ModelledWorker(ModelledProcess):
    """A worker: it runs what it is told to, one after another."""

    __slots__ = ("_began_ns", "_running", "_to_run", "machine")

    def __init__(self, *, cluster: ModelledCluster, address: Address, node: NodeID, store: VirtualStore) -> None:
        super().__init__(cluster=cluster, address=address, node=node, store=store)
        self.machine = PlainWorker(address=address, node=node, config=cluster.config, keeps_rows=False)
        self._to_run: deque[RunTask | TaskPushed] | None = None
        self._running: Any = None
        """The task in hand, or several; None: none."""
        self._began_ns = 0

    @classmethod
    def as_worker(cls, *, cluster: Any, address: Address, node: NodeID, store: VirtualStore) -> ModelledWorker:
        """A worker."""
        return cls(cluster=cluster, address=address, node=node, store=store)

    def arrive(self, message: Any) -> None:
        model = self.model
        if type(message) is TaskPushed and model.is_calm and self.is_alive and self._running is None:
            now_ns = self._kernel._now
            if self.machine.starts(message, now_ns):  # the way of most tasks
                numbers = model.numbers
                numbers.append(now_ns)
                numbers.append(self.number << 3 | _PUSHED)
                model.keys.append(message.spec.task_id)
                self._running = message
                self._kernel.post(now_ns + model.begins_ns(message.spec, self.node), self._ended, message)
                return
        super().arrive(message)

    def _run_task(self, task: RunTask | TaskPushed) -> None:
        if self._running is not None:
            if self._to_run is None:
                self._to_run = deque()
            self._to_run.append(task)
            return
        self._running = task
        self._began_ns = self._kernel._now
        model = self.model
        at_ns = self._kernel._now + model.begins_ns(task.spec, self.node)
        if model.is_anchored:
            self._kernel.post(self._kernel._now + model.cost_model.dispatch_ns, self._begin, (task, at_ns))
        else:
            self._kernel.post(at_ns, self._ended, task)

    def _begin(self, what: tuple[RunTask | TaskPushed, int]) -> None:
        """Where a fault may be anchored at the begin of a task: it begins with an event of its own."""
        task, at_ns = what
        if not self.is_alive:
            return
        if self.model.is_paused(self.node):
            self.model.when_running(self.node, self._begin, what)
            return
        spec = task.spec
        self.trace(TraceKind.TASK_STARTED, spec.task_id.hex(), name=spec.template.name, amount=task.attempt)
        if self.is_alive:
            self._kernel.post(max(at_ns, self._kernel._now), self._ended, task)

    def _run_tasks(self, command: RunTasks) -> None:
        tasks, model = command.tasks, self.model
        if self._running is None and not model.is_anchored:
            specs = [task.spec for task in tasks]
            takes = [model.takes_ns(spec, self.node) for spec in specs]
            together_ns = sum(takes)
            if together_ns <= model.config.push_window_ns and min(map(model.one_small_size, specs)) >= 0:
                # Nobody looks in between: an owner pushes so much ahead, and is told of it together.
                self._running = tasks
                for spec in specs:
                    model.begins_ns(spec, self.node)
                self._kernel.post(self._kernel._now + together_ns, self._all_ended, (tasks, takes))
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
        if not model.is_steady and model.is_paused(self.node):
            model.when_running(self.node, self._all_ended, what)
            return
        left = self._running
        outcomes = tuple(
            [
                (task.spec.task_id, task.attempt, model.one_small_size(task.spec), took)
                for task, took in zip(tasks, takes, strict=True)
                if task in left
            ]
        )
        self._running = None
        if outcomes:
            model.numbers.append(self._kernel._now)
            model.numbers.append(self.number << 3 | _ALL_ENDED)
            model.keys.append(outcomes[0][0])
            self.handle(TasksRan(outcomes=outcomes))
        self._go_on()

    def _ended(self, task: RunTask | TaskPushed) -> None:
        """A task has computed for as long as it takes."""
        if not self.is_alive:
            return
        model, spec = self.model, task.spec
        if not model.is_steady and model.is_paused(self.node):
            model.when_running(self.node, self._ended, task)
            return
        task_id = spec.task_id
        model.numbers.append(self._kernel._now)
        model.numbers.append(self.number << 3 | _ENDED)
        model.keys.append(task_id)
        size = model.one_small_size(spec)
        if size < 0:
            self._store_results(task, 0)
            return
        self._running = None
        machine = self.machine
        now_ns = self._kernel._now
        finished = machine.report(size, now_ns) if machine.owner is None else None
        if finished is not None:
            model.send(self, spec.owner, finished, ())
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
        inline_max = model.config.inline_bytes_max
        while index < len(sizes) and sizes[index] <= inline_max:
            index += 1
        if index == len(sizes):
            results = tuple(
                [
                    Result(object_id=return_object_id(spec.task_id, at), size_bytes=size, inline=size <= inline_max)
                    for at, size in enumerate(sizes)
                ]
            )
            self._report(task, TaskRan(task_id=spec.task_id, attempt=task.attempt, results=results))
            return
        object_id, size = return_object_id(spec.task_id, index), sizes[index]

        def granted(command: CompleteWait) -> None:
            if command.error is not None:
                self._report(task, TaskRan(task_id=spec.task_id, attempt=task.attempt, results=(), error=command.error))
            elif not command.ready:
                self._store_results(task, index + 1)  # an earlier attempt has left the same object here
            else:
                takes_ns = model.cost_model.seal_ns + model.cost_model.copy_ns(size)
                self._kernel.post(self._kernel._now + takes_ns, written, None)

        def written(_: None) -> None:
            if self.is_alive:
                self.store.objects[object_id] = _NO_BYTES
                model.when_running(self.node, sealed)

        def sealed() -> None:
            self.handle(SpaceWritten(object_id=object_id))
            self._store_results(task, index + 1)

        retries = spec.template.max_retries
        remakeable = spec.actor_id is None and (retries < 0 or task.attempt < retries)
        event = SpaceWanted(
            wait_id=self._next_wait(), object_id=object_id, size_bytes=size, owner=spec.owner, remakeable=remakeable
        )
        self._wait_for(event, granted)

    def _report(self, task: RunTask | TaskPushed, ran: TaskRan) -> None:
        self._running = None
        self.handle(ran)
        self.let_go_of([ref.object_id for ref in task.spec.deps])
        self._go_on()


class ModelledDriver(ModelledProcess):
    """The driver: it follows a program."""

    def __init__(self, *, cluster: ModelledCluster, address: Address, node: NodeID, store: VirtualStore) -> None:
        super().__init__(cluster=cluster, address=address, node=node, store=store)
        self.machine = Owner(address=address, node=node, config=cluster.config, is_driver=True)
        self.root = root_task_id("", 1)
        self.owed_ns = 0
        self._submitted = 0
        self._program: Generator[Step, Any, None] | None = None

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
        task_id = child_task_id(self.root, 0, self._submitted)
        model = self.model
        if takes_ns is not None or sizes is not None:
            model.is_plain = False
            model.told[task_id] = (
                what.takes_ns if takes_ns is None else takes_ns,
                what.sizes if sizes is None else sizes,
            )
        spec = new_spec(task_id, what.template, self.address, self.root, 0, deps, (), None, None)
        model.result.tasks += 1
        self.owed_ns += model.submit_ns
        self.handle(TaskSubmitted(spec=spec))
        address = self.address
        if what.template.num_returns == 1:
            return (Ref(return_object_id(task_id, 0), address),)
        return tuple([Ref(return_object_id(task_id, index), address) for index in range(what.template.num_returns)])

    def create(self, what: Call, *, max_restarts: int = 0) -> Ref:
        """Make an actor, by a call of its class: a handle to it."""
        self._submitted += 1
        task_id = child_task_id(self.root, 0, self._submitted)
        spec = new_spec(task_id, what.template, self.address, self.root, 0, (), (), None, None)
        spec.creates = ActorSpec(actor_id=ActorID(task_id), max_restarts=max_restarts, max_task_retries=-1)
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
        task_id = child_task_id(self.root, 0, self._submitted)
        if takes_ns is not None:
            self.model.is_plain = False
            self.model.told[task_id] = takes_ns, what.sizes
        actor_id = ActorID(actor.object_id[:16])
        spec = new_spec(task_id, what.template, self.address, self.root, 0, deps, (), actor_id, actor)
        self.model.result.tasks += 1
        self.owed_ns += self.model.submit_ns
        self.handle(TaskSubmitted(spec=spec))
        return Ref(return_object_id(task_id, 0), self.address)

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
        self.handle(RefsDropped(object_ids=tuple([ref.object_id for ref in refs])))

    # ---- Following it ----------------------------------------------------------------------------------------

    def follow(self, program: Program) -> None:
        """Begin with a program."""
        self._program = program(self)
        self._advance(None)

    def _advance(self, answer: Any) -> None:
        if not self.is_alive:
            return
        if not self.model.is_steady and self.model.is_paused(self.node):
            self.model.when_running(self.node, self._advance, answer)
            return
        assert self._program is not None
        try:
            step = self._program.send(answer)
        except StopIteration:
            self.model.program_ended("")
            return
        if type(step) is int:
            self._kernel.post(self._kernel._now + step, self._advance, None)
            return
        assert isinstance(step, Get | Wait)
        is_get = isinstance(step, Get)
        event = WaitStarted(
            wait_id=self._next_wait(),
            refs=step.refs,
            num_ready=len(step.refs) if isinstance(step, Get) else step.num_ready,
            fetch=True,
            read=is_get,
        )
        self._wait_for(event, self._got if is_get else self._waited)

    def _got(self, done: CompleteWait) -> None:
        table = self.machine.values.table
        for object_id in done.ready:
            failure: ErrorInfo | None = table[object_id].failure
            if failure is not None:
                self.model.program_ended(failure.message)
                return
        if self.machine.values.views:
            self.let_go_of(done.ready)
        self._kernel.post(self._kernel._now, self._advance, None)

    def _waited(self, done: CompleteWait) -> None:
        self._kernel.post(self._kernel._now, self._advance, frozenset(done.ready))


class ModelledCluster(Cluster):
    """A virtual cluster on which a program is modelled.

    Args:
        hardware: of each node, in order; the driver is on the first.
        faults: as everywhere; those that are anchored at the start of tasks make each task cost an event more.
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
    ) -> None:
        super().__init__(config=config, cost_model=cost_model, seed=seed, log_directory=None, durations=durations)
        self.result = Modelled()
        self.told: dict[TaskID, tuple[int, tuple[int, ...]]] = {}
        """What a call takes and returns, of those that were told so one by one."""
        self.submit_ns = cost_model.submit_ns
        self.make_worker = ModelledWorker.as_worker
        self.network.on_rate = None
        self._hardware = list(hardware)
        self._planned = tuple(faults)
        self.is_anchored = any(fault.at_ns is None for fault in faults)
        self.is_steady = not faults and all(each.speed == 1.0 for each in hardware)
        """Nothing stands still or gets slow."""
        self.is_calm = self.is_steady and not self.is_anchored
        self.is_plain = self.is_steady
        """Every call takes what its function takes."""
        self._ended: list[str] = []
        """How the program has ended, once it has."""
        self._plans: dict[FunctionID, _Plan] = {}
        self.numbers: list[int] = []
        """For the event hash: time, and process and kind, of what has happened since it was last taken further."""
        self.keys: list[bytes] = []
        """And the content."""
        self._packed: tuple[Event | None, bytes] = None, b""
        """The last long event, and what stands for it in the event hash."""
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
        self.kernel.run_until(lambda: len(driver.machine.cluster) >= len(self._hardware))
        began_ns = self.kernel.now_ns
        driver.follow(program)
        result = self.result
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
        for plan in self._plans.values():
            result.attempts += plan.attempts
            result.busy_ns += plan.took_ns * plan.cpu_units // UNITS
        cpus = sum(each.total.get(CPU) for each in self._hardware) / UNITS
        result.cpu_ns = round(cpus * result.makespan_ns)
        result.faults = [str(fault) for fault in self.faults.performed]
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
            raise ValueError(f"{template.name} can never run here: {why}")
        demand = template.resources.units
        cpu_units = demand[0][1] if demand and demand[0][0] == CPU else 0
        is_small = max(what.sizes, default=0) <= self.config.inline_bytes_max
        takes_ns = what.takes_ns + self.cost_model.dispatch_ns
        self._plans[template.function_id] = _Plan(takes_ns, what.sizes, cpu_units, is_small)

    def program_ended(self, why: str) -> None:
        """The program is over, or has failed."""
        self._ended.append(why)
        self.result.failed = why

    # ---- What calls take -------------------------------------------------------------------------------------

    def takes_ns(self, spec: TaskSpec, node: str) -> int:
        """How long an attempt takes on a node now, from the order to begin."""
        takes_ns = self._plans[spec.template.function_id].takes_ns
        if self.told and spec.task_id in self.told:
            takes_ns = self.told[spec.task_id][0] + self.cost_model.dispatch_ns
        return takes_ns if self.is_steady else round(takes_ns * self.slowness_of(NodeID(node)))

    def begins_ns(self, spec: TaskSpec, node: str) -> int:
        """As `takes_ns`, of an attempt that begins."""
        plan = self._plans[spec.template.function_id]
        takes_ns = plan.takes_ns if self.is_plain else self.takes_ns(spec, node)
        plan.attempts += 1
        plan.took_ns += takes_ns
        return takes_ns

    def sizes_of(self, spec: TaskSpec) -> tuple[int, ...]:
        """Bytes of the results of a call."""
        told = self.told.get(spec.task_id) if self.told else None
        if told is not None:
            return told[1]
        return () if spec.creates is not None else self._plans[spec.template.function_id].sizes

    def one_small_size(self, spec: TaskSpec) -> int:
        """Bytes of the result of a call that has one, and that is small; else -1."""
        plan = self._plans[spec.template.function_id]
        if plan.one_small_size < 0 or (self.told and spec.task_id in self.told) or spec.creates is not None:
            sizes = self.sizes_of(spec)
            return sizes[0] if len(sizes) == 1 and sizes[0] <= self.config.inline_bytes_max else -1
        return plan.one_small_size

    # ---- Messages --------------------------------------------------------------------------------------------

    def send(self, sender: Process, to: Address, message: Event, payloads: Sequence[tuple[bytes, bytes]]) -> None:
        links = sender.links
        link = links.get(to) if links is not None else None
        if link is None:
            if self._planned or to not in self.processes:
                super().send(sender, to, message, ())
                return
            link = self._open_link(sender, to)
        # Nothing cuts, parts or impairs this network: what `Network.message` would do, in fewer steps.
        kind: type[Any] = type(message)
        at_ns = self.kernel._now + link.takes_ns
        if kind is TaskFinished or kind is TasksFinished:
            at_ns += time_ns(_bytes_of(cast(TaskFinished | TasksFinished, message)), link.bytes_per_s)
        if at_ns < link.arrives_ns:
            at_ns = link.arrives_ns
        else:
            link.arrives_ns = at_ns
        link.messages += 1
        self.kernel.post(at_ns, link.arrive, message)

    def _open_link(self, sender: Process, to: Address) -> _Link:
        destination = self.processes[to]
        if sender.links is None:
            sender.links = {}
        arrive = destination.arrive if isinstance(destination, ModelledProcess) else partial(self._arrive, destination)
        cost = self.cost_model
        if sender.node == destination.node:
            bytes_per_s = cost.memory_bytes_per_s
        else:
            bytes_per_s = self.network.topology.message_bytes_per_s(sender.node, destination.node)
        takes_ns = self.network.message_ns(sender.node, destination.node, MESSAGE_BYTES)
        link = sender.links[to] = _Link(arrive, takes_ns, bytes_per_s)
        return link

    def _deliver(self, to: Address, message: Event, payloads: Sequence[tuple[bytes, bytes]]) -> None:
        process = self.processes.get(to)
        if isinstance(process, ModelledProcess):
            process.arrive(message)
        elif process is not None:
            self._arrive(process, message)

    def _arrive(self, process: Process, message: Event) -> None:
        """At the head, or a node manager."""
        self.numbers.append(self.kernel._now)
        self.numbers.append(process.number << 3 | _OTHER)
        self.keys.append(self.content_of(message))
        if process.is_alive:
            process.receive(message, ())

    def content_of(self, message: Event) -> bytes:
        """What tells a message from others of its kind, for the event hash: of most kinds, all of it."""
        content_of = _CONTENT.get(type(message))
        if content_of is not None:
            return content_of(message).encode()
        if message is self._packed[0]:  # an announcement: one event for many
            return self._packed[1]
        content = pack(encode(message))
        if len(content) > _LONG_BYTES:
            content = blake2b(content, digest_size=16).digest()
            self._packed = message, content
        return content

    def _take_hash_further(self, events: int) -> None:
        self._digest.update(array("q", self.numbers).tobytes())
        self._digest.update(b"".join(self.keys))
        self.numbers.clear()
        self.keys.clear()

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

    def _stuck(self, why: str) -> SimulationDeadlockError:
        lines = list(self.head.machine.explain())
        driver = self.processes.get(DRIVER)
        if isinstance(driver, ModelledDriver):
            lines += [words for wait_id in driver._resumes or () for words in driver.machine.explain_wait(wait_id)]
        return SimulationDeadlockError(f"{why}, and the program has not ended: {'; '.join(lines[:3])}")


_CONTENT: dict[type[Any], Callable[[Any], str]] = {
    LeaseRequested: lambda it: f"{it.request_id} {it.owner} {it.count} {it.placed} {it.via} {it.shape.name}",
    LeaseGranted: lambda it: f"{it.request_id} {it.lease_id} {it.worker} {it.gpu_ids}",
    LeaseReturned: lambda it: f"{it.lease_id} {it.worker_usable}",
    ResourcesReported: lambda it: f"{it.node} {it.available} {it.settled} {it.allocated} {it.held}",
    PeerMet: lambda it: f"{it.process} {it.peer}",
    NodeWelcomed: lambda it: str(it.node),
}
"""Of what each lease needs, what differs."""


def _bytes_of(message: TaskFinished | TasksFinished) -> int:
    """Of the results that come along."""
    if isinstance(message, TasksFinished):
        return sum([outcome[2] for outcome in message.outcomes])
    return sum([result.size_bytes for result in message.results if result.inline])


_PERFORM: dict[type[Any], Callable[[Any, Any], None]] = {
    RunTasks: lambda process, command: process._run_tasks(command),
    CompleteWait: ModelledProcess._complete_wait,
    ArmTimer: ModelledProcess._arm,
    CancelTimer: ModelledProcess._disarm,
    ForgetTasks: lambda process, command: process._forget_tasks(command),
    NoteRetry: ModelledProcess._note_retry,
}
"""Who is interrupted is not here: what is modelled goes on, and is reported when its time is over."""
