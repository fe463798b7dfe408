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

from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from struct import Struct
from typing import Any, TypeAlias

import numpy as np

from dualray.exceptions import SimulationDeadlockError
from dualray.shared.faults import Fault
from dualray.shared.machines.owner import Owner
from dualray.shared.machines.plain_worker import PlainWorker
from dualray.shared.model.codec import encode, pack
from dualray.shared.model.commands import (
    ArmTimer,
    CancelTimer,
    Command,
    CompleteWait,
    ForgetTasks,
    InterruptTask,
    NoteRetry,
    RunTask,
    RunTasks,
    Send,
)
from dualray.shared.model.config import Config
from dualray.shared.model.errors import ErrorInfo
from dualray.shared.model.events import (
    Event,
    RefsDropped,
    Result,
    SpaceWanted,
    SpaceWritten,
    Started,
    TaskFinished,
    TaskPushed,
    TaskRan,
    TasksFinished,
    TasksPushed,
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
from dualray.shared.model.resources import CPU, NOTHING, UNITS, Resources
from dualray.shared.model.specs import (
    DEFAULT_STRATEGY,
    ActorSpec,
    FunctionTemplate,
    LeaseShape,
    NodeInfo,
    Ref,
    Strategy,
    new_spec,
)
from dualray.shared.policies.feasibility import why_infeasible
from dualray.shared.trace import TraceEvent, TraceKind
from dualray.sim.cluster import DRIVER, DRIVER_NODE, MESSAGE_BYTES, Cluster
from dualray.sim.cost_model import CostModel
from dualray.sim.node import Hardware
from dualray.sim.object_store import VirtualStore
from dualray.sim.runner import Process

OWED_NS_MAX = 50_000
"""Of submissions that are not paid for yet, as in worker.py."""
_ONE_CPU = Resources(((CPU, UNITS),))
_NO_BYTES = np.zeros(0, dtype=np.uint8)
_NOTE = Struct("<QIB")
"""When, at which process, what kind: of the event hash."""
_DIGESTED_BYTES = 1 << 16
_LONG_BYTES = 1024
_CHANNELS_SWEPT_MIN = 1 << 17
_ROUTES_MAX = 1 << 16


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


class ModelledProcess(Process):
    """A driver or worker whose code is modelled."""

    __slots__ = ("_handlers", "_kernel", "_resumes", "_wait_counter", "_waits", "model", "number", "store")

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
        if not self.is_alive:
            return
        model = self.model
        if not model.is_steady and model.is_paused(self.node):
            model.when_running(self.node, self.receive, message, payloads)
            return
        self.handle(message)

    def fire(self, timer: str) -> None:
        self.handle(TimerFired(timer=timer))

    def handle(self, event: Event) -> None:
        """Hand an event to the machine, and carry out its commands."""
        model = self.model
        for command in self.machine.handle(event, self._kernel._now):
            kind = type(command)
            if kind is Send:
                model.send(self, command.to, command.message, ())
            elif kind is RunTask:
                self._run_task(command)
            else:
                self._perform(command)

    def _perform(self, command: Command) -> None:
        match command:
            case RunTasks():
                self._run_tasks(command)
            case CompleteWait():
                self._complete_wait(command)
            case ArmTimer():
                self.arm_timer(command.timer, command.delay_ns)
            case CancelTimer():
                self.cancel_timer(command.timer)
            case ForgetTasks():
                self._forget_tasks(command)
            case InterruptTask():
                pass  # modelled code is not interrupted: it is reported when its time is over
            case NoteRetry():
                self.model.result.retries += 1
            case _:
                pass  # about bytes and tables, of which there are none

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
            self._kernel.post(0, self._resume, resume, command)
        else:  # it was there at once
            if self._waits is None:
                self._waits = {}
            self._waits[command.wait_id] = command

    def _resume(self, resume: Callable[[CompleteWait], None], command: CompleteWait) -> None:
        if self.is_alive:
            self.model.when_running(self.node, resume, command)

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

    def machine_size(self) -> int:
        """About how much there is to look at when invariants are checked."""
        machine = self.machine if isinstance(self.machine, Owner) else self.machine.owner
        if machine is None:
            return 1
        return 20 + len(machine.values.table) + 2 * len(machine.tasks.records) + len(machine.leases.leases)

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

    __slots__ = ("_ends", "_running", "_to_run", "machine")

    def __init__(self, *, cluster: ModelledCluster, address: Address, node: NodeID, store: VirtualStore) -> None:
        super().__init__(cluster=cluster, address=address, node=node, store=store)
        self.machine = PlainWorker(address=address, node=node, config=cluster.config, keeps_rows=False)
        self._to_run: deque[RunTask | TaskPushed] | None = None
        self._running: Any = None
        """The task in hand, or several; None: none."""

    @classmethod
    def as_worker(cls, *, cluster: Any, address: Address, node: NodeID, store: VirtualStore) -> ModelledWorker:
        """A worker."""
        return cls(cluster=cluster, address=address, node=node, store=store)

    def _run_task(self, task: RunTask | TaskPushed) -> None:
        if self._running is not None:
            if self._to_run is None:
                self._to_run = deque()
            self._to_run.append(task)
            return
        self._running = task
        model = self.model
        takes_ns = model.takes_ns(task, self)
        if model.is_anchored:
            self._begin_slowly(task, takes_ns)
        else:
            self._kernel.post(takes_ns, self._ended, task)

    def _begin_slowly(self, task: RunTask | TaskPushed, takes_ns: int) -> None:
        """As in `_run_task`, where a fault may be anchored at the begin of a task."""
        dispatch_ns = self.model.cost_model.dispatch_ns
        self._kernel.post(dispatch_ns, self._begin, task, takes_ns - dispatch_ns)

    def _begin(self, task: RunTask | TaskPushed, takes_ns: int) -> None:
        if not self.is_alive:
            return
        if self.model.is_paused(self.node):
            self.model.when_running(self.node, self._begin, task, takes_ns)
            return
        spec = task.spec
        self.trace(TraceKind.TASK_STARTED, spec.task_id.hex(), name=spec.template.name, amount=task.attempt)
        if self.is_alive:
            self._kernel.post(takes_ns, self._ended, task)

    def _run_tasks(self, command: RunTasks) -> None:
        tasks, model = command.tasks, self.model
        if self._running is None and not model.is_anchored:
            takes = [model.takes_ns(task, self) for task in tasks]
            together_ns = sum(takes)
            if together_ns <= model.config.push_window_ns and all(model.returns_little(task.spec) for task in tasks):
                # Nobody looks in between: an owner pushes so much ahead, and is told of it together.
                self._running = tasks
                self._kernel.post(together_ns, self._all_ended, tasks, takes)
                return
        for task in tasks:
            self._run_task(task)

    def _forget_tasks(self, command: ForgetTasks) -> None:
        forgotten = {task.spec.task_id for task in command.tasks}
        if self._to_run:
            self._to_run = deque([task for task in self._to_run if task.spec.task_id not in forgotten])
        if type(self._running) is tuple:
            self._running = tuple([task for task in self._running if task.spec.task_id not in forgotten])

    def _all_ended(self, tasks: tuple[TaskPushed, ...], takes: list[int]) -> None:
        if not self.is_alive:
            return
        model = self.model
        if not model.is_steady and model.is_paused(self.node):
            model.when_running(self.node, self._all_ended, tasks, takes)
            return
        left = self._running
        outcomes = tuple(
            [
                (task.spec.task_id, task.attempt, model.sizes_of(task.spec)[0], took)
                for task, took in zip(tasks, takes, strict=True)
                if task in left
            ]
        )
        self._running = None
        if outcomes:
            model.note_event(self.number, 1, outcomes[0][0])
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
        model.note_event(self.number, 0, task_id)
        results = model.small_results(spec)
        if results is None:
            self._store_results(task, 0)
            return
        self._running = None
        self.handle(TaskRan(task_id=task_id, attempt=task.attempt, results=results))
        if spec.deps:
            self.let_go_of([ref.object_id for ref in spec.deps])
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
                self._report(
                    task, TaskRan(task_id=spec.task_id, attempt=task.attempt, results=(), error=command.error)
                )
            elif not command.ready:
                self._store_results(task, index + 1)  # an earlier attempt has left the same object here
            else:
                self._kernel.post(model.cost_model.seal_ns + model.cost_model.copy_ns(size), written)

        def written() -> None:
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
        self, what: Call, deps: tuple[Ref, ...] = (), *, takes_ns: int | None = None, sizes: tuple[int, ...] | None = None
    ) -> tuple[Ref, ...]:
        """Make a call, with these objects as its arguments; references to its results. The program pays for it with
        its next `yield driver.pay()`."""
        self._submitted += 1
        task_id = child_task_id(self.root, 0, self._submitted)
        model = self.model
        if takes_ns is not None or sizes is not None:
            model.told[task_id] = (
                what.takes_ns if takes_ns is None else takes_ns,
                what.sizes if sizes is None else sizes,
            )
        spec = new_spec(task_id, what.template, self.address, self.root, 0, deps, (), None, None)
        model.result.tasks += 1
        self.owed_ns += model.submit_ns
        self.handle(TaskSubmitted(spec=spec))
        address = self.address
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
            self._kernel.post(step, self._advance, None)
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
        self._kernel.post(0, self._advance, None)

    def _waited(self, done: CompleteWait) -> None:
        self._kernel.post(0, self._advance, frozenset(done.ready))




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
        self.calls: dict[FunctionID, Call] = {}
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
        self.is_over = False
        self._small: dict[FunctionID, bool] = {}
        self._takes: dict[tuple[str, str, int], int] = {}
        self._arrival_ns: dict[tuple[int, int], int] = {}
        """Of the last message of each pair of processes, by their numbers."""
        self._sweep_channels_at = _CHANNELS_SWEPT_MIN
        self._packed: tuple[Event | None, bytes] = None, b""
        """The last long event, and what stands for it in the event hash."""
        self._digest = blake2b(digest_size=16)
        self._ring = bytearray()

    # ---- A run -----------------------------------------------------------------------------------------------

    def run(self, program: Program, calls: Iterable[Call]) -> Modelled:
        """Run the program to its end, its failure, or a deadlock; `calls` are all that it may make.

        Raises:
            ValueError: one of them can never run on these nodes.
        """
        for each in calls:
            self._accept(each)
        self.number(self.head)
        self.add(self.head)
        self.head.handle(Started())
        for index, hardware in enumerate(self._hardware):
            self.start_node(NodeID(f"node-{index}"), hardware)
        self.faults.plan(self._planned, driver_node=DRIVER_NODE)
        driver = ModelledDriver(
            cluster=self, address=DRIVER, node=DRIVER_NODE, store=self.nodes[DRIVER_NODE].store
        )
        self.add(driver)
        driver.handle(Started())
        self.kernel.run_until(lambda: len(driver.machine.cluster) >= len(self._hardware))
        began_ns = self.kernel.now_ns
        driver.follow(program)
        result = self.result
        try:
            if not self.kernel.run_until(lambda: self.is_over):
                raise self._deadlock()
        except SimulationDeadlockError as error:
            result.failed = " ".join(str(error).split())
        result.makespan_ns = self.kernel.now_ns - began_ns
        self.check_invariants()
        result.events = self.kernel.events_performed
        cpus = sum(each.total.get(CPU) for each in self._hardware) / UNITS
        result.cpu_ns = round(cpus * result.makespan_ns)
        result.faults = [str(fault) for fault in self.faults.performed]
        self._digest.update(self._ring)
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
        self.calls[template.function_id] = what
        self._small[template.function_id] = max(what.sizes, default=0) <= self.config.inline_bytes_max

    def program_ended(self, why: str) -> None:
        """The program is over, or has failed."""
        self.is_over = True
        self.result.failed = why

    def number(self, process: Any) -> None:
        """Give a process its number, for the event hash."""
        process.number = len(self.processes)

    def add(self, process: Process) -> None:
        self.number(process)
        super().add(process)

    # ---- What calls take -------------------------------------------------------------------------------------

    def takes_ns(self, task: RunTask | TaskPushed, worker: ModelledWorker) -> int:
        """How long an attempt takes, from the order to begin; it counts as begun."""
        spec = task.spec
        told = self.told.get(spec.task_id) if self.told else None
        takes_ns = self.calls[spec.template.function_id].takes_ns if told is None else told[0]
        if not self.is_steady:
            takes_ns = round(takes_ns * self.slowness_of(NodeID(worker.node)))
        result = self.result
        result.attempts += 1
        demand = spec.template.resources.units
        if demand and demand[0][0] == CPU:
            result.busy_ns += takes_ns * demand[0][1] // UNITS
        return takes_ns + self.cost_model.dispatch_ns

    def sizes_of(self, spec: Any) -> tuple[int, ...]:
        """Bytes of the results of a call."""
        told = self.told.get(spec.task_id) if self.told else None
        return self.calls[spec.template.function_id].sizes if told is None else told[1]

    def returns_little(self, spec: Any) -> bool:
        """Whether a call has one result, and it is small."""
        sizes = self.sizes_of(spec)
        return len(sizes) == 1 and sizes[0] <= self.config.inline_bytes_max

    def small_results(self, spec: Any) -> tuple[Result, ...] | None:
        """The results of a call, if all are small."""
        if spec.creates is not None:
            return ()
        if self.told and spec.task_id in self.told:
            sizes = self.told[spec.task_id][1]
            if max(sizes, default=0) > self.config.inline_bytes_max:
                return None
        elif not self._small[spec.template.function_id]:
            return None
        else:
            sizes = self.calls[spec.template.function_id].sizes
        task_id = spec.task_id
        if len(sizes) == 1:
            return (Result(object_id=return_object_id(task_id, 0), size_bytes=sizes[0], inline=True),)
        return tuple(
            [
                Result(object_id=return_object_id(task_id, index), size_bytes=size, inline=True)
                for index, size in enumerate(sizes)
            ]
        )

    # ---- Messages --------------------------------------------------------------------------------------------

    def send(self, sender: Process, to: Address, message: Event, payloads: Sequence[tuple[bytes, bytes]]) -> None:
        self.result.messages += 1
        destination = self.processes.get(to)
        kind = type(message)
        size_bytes = MESSAGE_BYTES
        if kind is TaskFinished:
            for result in message.results:
                if result.inline:
                    size_bytes += result.size_bytes
        elif kind is TasksFinished:
            for outcome in message.outcomes:
                size_bytes += outcome[2]
        if self._planned or destination is None:
            super().send(sender, to, message, ())
            return
        # Nothing cuts, parts or impairs this network: what `Network.message` would do, in fewer steps.
        route = (sender.node, destination.node, size_bytes)
        takes_ns = self._takes.get(route)
        if takes_ns is None:
            if len(self._takes) >= _ROUTES_MAX:
                self._takes.clear()
            takes_ns = self._takes[route] = self.network.message_ns(*route)
        kernel = self.kernel
        arrivals = self._arrival_ns
        at_ns = kernel._now + takes_ns
        channel = (sender.number, destination.number)
        before_ns = arrivals.get(channel, 0)
        if at_ns < before_ns:
            takes_ns += before_ns - at_ns
            at_ns = before_ns
        arrivals[channel] = at_ns
        if len(arrivals) > self._sweep_channels_at:
            self._sweep_channels()
        kernel.post(takes_ns, self._arrive, destination, message)

    def _sweep_channels(self) -> None:
        now_ns = self.kernel.now_ns
        self._arrival_ns = {channel: at for channel, at in self._arrival_ns.items() if at > now_ns}
        self._sweep_channels_at = max(_CHANNELS_SWEPT_MIN, 2 * len(self._arrival_ns))

    def _deliver(self, to: Address, message: Event, payloads: Sequence[tuple[bytes, bytes]]) -> None:
        process = self.processes.get(to)
        if process is not None:
            self._arrive(process, message)

    def _arrive(self, process: Process, message: Event) -> None:
        kind = type(message)
        if kind is TaskFinished:
            key: bytes = message.task_id
        elif kind is TaskPushed:
            key = message.spec.task_id
        elif kind is TasksPushed:
            key = b"".join([call[0] for call in message.calls])
        elif kind is TasksFinished:
            key = b"".join([outcome[0] for outcome in message.outcomes])
        elif message is self._packed[0]:  # an announcement: one event for many
            key = self._packed[1]
        else:
            key = pack(encode(message))
            if len(key) > _LONG_BYTES:
                key = blake2b(key, digest_size=16).digest()
                self._packed = message, key
        number = _KIND_NUMBERS.get(kind, 2)
        self.note_event(process.number, number, key)
        if process.is_alive:
            process.receive(message, ())

    def note_event(self, process: int, kind: int, key: bytes) -> None:
        """Take something that happened into the event hash."""
        ring = self._ring
        ring += _NOTE.pack(self.kernel._now, process, kind)
        ring += key
        if len(ring) > _DIGESTED_BYTES:
            self._digest.update(ring)
            ring.clear()

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


_KIND_NUMBERS: dict[type[Any], int] = {TaskFinished: 3, TaskPushed: 4, TasksPushed: 5, TasksFinished: 6}
"""In the event hash: 0 and 1 are tasks that have ended, 2 all other messages, which say themselves what they are."""
