"""Small builders for tests of the core: ids from small numbers, specs, machines that are stepped event by event.

A machine under test is wrapped in a `Stepper`: called with events, it hands them over one by one, checks the machine's
invariants after each, and returns the commands of all of them. `sent` and `of` pick what a test is about.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from dualray.shared.machines.base import Composition
from dualray.shared.machines.head.head import Head
from dualray.shared.machines.node.node import Node
from dualray.shared.machines.owner.actor_calls import CALLS_TIMER
from dualray.shared.machines.owner.leases import PUSH_TIMER
from dualray.shared.machines.owner.owner import Owner
from dualray.shared.model.commands import ArmTimer, Command, CompleteWait, ReserveSpace, RunTask, RunTasks, Send
from dualray.shared.model.config import Config
from dualray.shared.model.demands import parse_resources
from dualray.shared.model.errors import ErrorInfo, ErrorKind
from dualray.shared.model.events import (
    ActorChanged,
    BorrowAcknowledged,
    Event,
    LeasedWorkerDied,
    LeaseGranted,
    LeaseRequested,
    LeasesGranted,
    LocationsKnown,
    NodeDied,
    NodeJoined,
    NodeWelcomed,
    ObjectAdded,
    ObjectArrived,
    ObjectSealed,
    ObjectWanted,
    PeerMet,
    ResourcesReported,
    Result,
    SpaceRequested,
    SpaceReserved,
    Started,
    TaskFinished,
    TaskPushed,
    TaskRan,
    TaskSubmitted,
    TimerFired,
    ValuePut,
    WaitStarted,
    WorkerReady,
)
from dualray.shared.model.ids import (
    ActorID,
    Address,
    FunctionID,
    LeaseID,
    NodeID,
    ObjectID,
    RequestID,
    TaskID,
    WaitID,
    put_object_id,
    return_object_id,
)
from dualray.shared.model.resources import NOTHING, Resources
from dualray.shared.model.specs import (
    DEFAULT_STRATEGY,
    ActorSpec,
    FunctionTemplate,
    LeaseShape,
    NodeInfo,
    ObjectHint,
    Ref,
    Strategy,
    TaskSpec,
)
from dualray.shared.model.states import ActorState

M = TypeVar("M", bound=Composition)
T = TypeVar("T")

DRIVER = Address("driver-1")
OTHER = Address("node-1/w0")
"""Another process, which owns or borrows objects."""
NODE = NodeID("node-0")
MS = 1_000_000


# ---- Ids and specs -----------------------------------------------------------------------------------------------


def tid(number: int) -> TaskID:
    return TaskID(bytes([number]) * 16)


def oid(number: int, index: int = 0) -> ObjectID:
    """What task `number` returns."""
    return return_object_id(tid(number), index)


def put_id(number: int) -> ObjectID:
    """An object that the driver's own task has put."""
    return put_object_id(tid(0), 0, number)


def aid(number: int) -> ActorID:
    return ActorID(tid(number))


def ref(object_id: ObjectID, owner: str = DRIVER) -> Ref:
    return Ref(object_id, Address(owner))


def cpus(amount: float = 1, gpus: float | None = None, **others: float) -> Resources:
    return parse_resources(num_cpus=amount, num_gpus=gpus, resources=others)


def template(
    *,
    name: str = "f",
    resources: Resources | None = None,
    placement: Resources | None = None,
    num_returns: int = 1,
    max_retries: int = 3,
    retry_exceptions: bool = False,
    strategy: Strategy = DEFAULT_STRATEGY,
) -> FunctionTemplate:
    held = cpus(1) if resources is None else resources
    return FunctionTemplate(
        function_id=FunctionID(b"f" * 16),
        name=name,
        resources=held,
        placement=held if placement is None else placement,
        num_returns=num_returns,
        max_retries=max_retries,
        retry_exceptions=retry_exceptions,
        strategy=strategy,
    )


def task(
    number: int,
    *,
    deps: tuple[Ref, ...] = (),
    nested: tuple[Ref, ...] = (),
    owner: str = DRIVER,
    actor: int | None = None,
    **options: Any,
) -> TaskSpec:
    """A call with the given options of its function; with `actor`, a call of a method of that actor."""
    return TaskSpec(
        task_id=tid(number),
        template=template(**options),
        owner=Address(owner),
        parent=tid(0),
        args_bytes=10,
        deps=deps,
        nested=nested,
        actor_id=None if actor is None else aid(actor),
    )


def constructor(
    number: int,
    *,
    deps: tuple[Ref, ...] = (),
    owner: str = DRIVER,
    max_restarts: int = 0,
    max_task_retries: int = 0,
    actor_name: str = "",
    is_detached: bool = False,
    **options: Any,
) -> TaskSpec:
    """The task that constructs actor `number`."""
    options = {"name": "Actor", "resources": NOTHING, "placement": cpus(1), "max_retries": 0} | options
    return TaskSpec(
        task_id=tid(number),
        template=template(**options),
        owner=Address(owner),
        parent=tid(0),
        args_bytes=10,
        deps=deps,
        creates=ActorSpec(
            actor_id=aid(number),
            max_restarts=max_restarts,
            max_task_retries=max_task_retries,
            name=actor_name,
            is_detached=is_detached,
        ),
    )


def error(kind: ErrorKind = ErrorKind.WORKER_CRASHED, message: str = "It went wrong.") -> ErrorInfo:
    return ErrorInfo(kind=kind, message=message)


CRASH = error(ErrorKind.WORKER_CRASHED, "Worker node-0/w0 died: SIGKILL.")
RAISED = error(ErrorKind.APPLICATION, "ValueError: no")


def shape(
    resources: Resources | None = None,
    *,
    placement: Resources | None = None,
    strategy: Strategy = DEFAULT_STRATEGY,
    deps: tuple[ObjectHint, ...] = (),
    name: str = "f",
) -> LeaseShape:
    held = cpus(1) if resources is None else resources
    return LeaseShape(
        resources=held,
        placement=held if placement is None else placement,
        strategy=strategy,
        deps=deps,
        name=name,
    )


def hint(object_id: ObjectID, size_bytes: int = 1000, owner: str = DRIVER) -> ObjectHint:
    return ObjectHint(object_id=object_id, owner=Address(owner), size_bytes=size_bytes)


def info(node: str, total: Resources | None = None, *, incarnation: int = 0, store_bytes: int = 1000) -> NodeInfo:
    return NodeInfo(
        node=NodeID(node),
        incarnation=incarnation,
        total=cpus(2) if total is None else total,
        store_bytes=store_bytes,
    )


# ---- Reading commands --------------------------------------------------------------------------------------------


def of(commands: list[Command], kind: type[T]) -> list[T]:
    """The commands of one type."""
    return [command for command in commands if isinstance(command, kind)]


def in_line(commands: list[Command]) -> list[ArmTimer]:
    """The timers of requests that have begun to wait for room in a store."""
    return [armed for armed in of(commands, ArmTimer) if armed.timer.startswith("space:")]


def sent(commands: list[Command], kind: type[T], to: str | None = None) -> list[T]:
    """The messages of one type that were sent, to anyone or to one; leases that were granted together, one by one."""
    messages: list[Any] = []
    for command in of(commands, Send):
        if to in (None, command.to):
            together = isinstance(command.message, LeasesGranted)
            messages += command.message.leases if together else (command.message,)
    return [message for message in messages if isinstance(message, kind)]


def sends(commands: list[Command]) -> list[tuple[str, str]]:
    """Who was sent what, by the name of its type; which processes have met is left out."""
    return [
        (command.to, type(command.message).__name__)
        for command in of(commands, Send)
        if not isinstance(command.message, PeerMet)
    ]


def payloads_of(commands: list[Command], kind: type[Any]) -> tuple[bytes, ...]:
    """The payloads beside the one message of a type."""
    (payloads,) = [command.payloads for command in of(commands, Send) if isinstance(command.message, kind)]
    return payloads


# ---- Machines, stepped -------------------------------------------------------------------------------------------


class Stepper(Generic[M]):
    """See the module."""

    def __init__(self, machine: M) -> None:
        self.machine = machine
        self.now_ns = 0

    def __call__(self, *events: Event) -> list[Command]:
        commands: list[Command] = []
        for event in events:
            commands += self.machine.handle(event, self.now_ns)
            self.machine.check_invariants()
        return commands


class OwnerStepper(Stepper[Owner]):
    """A driver, or a worker, with shorthands for what it hears most."""

    def __init__(self, address: str = DRIVER, *, node: str = NODE, **limits: Any) -> None:
        is_driver = "/" not in address
        super().__init__(
            Owner(address=Address(address), node=NodeID(node), config=Config(**limits), is_driver=is_driver)
        )
        self.address = Address(address)

    def submit(self, *specs: TaskSpec) -> list[Command]:
        """Submit, and let the time pass for which pushes wait for others."""
        return self.submit_only(*specs) + self.push_deferred()

    def submit_only(self, *specs: TaskSpec) -> list[Command]:
        return self(*(TaskSubmitted(spec=spec) for spec in specs))

    def push_deferred(self) -> list[Command]:
        tasks = [TimerFired(timer=PUSH_TIMER)] if self.machine.leases.deferred or self.machine.leases.unasked else []
        calls = [TimerFired(timer=CALLS_TIMER)] if self.machine.actor_calls.deferred else []
        return self(*tasks, *calls)

    def grant(
        self, lease: int = 0, *, request: int = 0, node: str = NODE, device_ids: tuple[int, ...] = ()
    ) -> list[Command]:
        """Lease `lease` of worker `lease`, for this owner's request number `request`."""
        return self(
            LeaseGranted(
                request_id=RequestID(f"{self.address}#{request}"),
                lease_id=LeaseID(f"lease-{lease}"),
                worker=Address(f"{node}/w{lease}"),
                node=NodeID(node),
                incarnation=0,
                device_ids=device_ids,
            )
        )

    def worker_died(self, lease: int = 0, *, node: str = NODE) -> list[Command]:
        worker = Address(f"{node}/w{lease}")
        return self(LeasedWorkerDied(lease_id=LeaseID(f"lease-{lease}"), worker=worker, error=CRASH))

    def finish(
        self,
        number: int,
        *,
        attempt: int = 0,
        worker: str = f"{NODE}/w0",
        inline: bool = True,
        nested: tuple[Ref, ...] = (),
        returns: int = 1,
        failed: ErrorInfo | None = None,
        duration_ns: int = MS,
    ) -> list[Command]:
        results = tuple(
            Result(object_id=oid(number, index), size_bytes=10 if inline else 1000, inline=inline, nested=nested)
            for index in range(0 if failed else returns)
        )
        return self(
            TaskFinished(
                task_id=tid(number),
                attempt=attempt,
                worker=Address(worker),
                node=NodeID(worker.partition("/")[0]),
                results=results,
                duration_ns=duration_ns,
                error=failed,
            )
        )

    def run(self, number: int, *, lease: int = 0, request: int | None = None, **options: Any) -> list[Command]:
        """Submit, grant and finish a task without arguments."""
        spec_options = {k: options.pop(k) for k in ("deps", "max_retries", "name") if k in options}
        first = self.submit(task(number, **spec_options))
        requests = sent(first, LeaseRequested)
        if requests:
            asked = int(requests[0].request_id.partition("#")[2]) if request is None else request
            first += self.grant(lease, request=asked)
        return first + self.finish(number, worker=f"{NODE}/w{lease}", **options)

    def put(self, number: int, *, inline: bool = True, nested: tuple[Ref, ...] = ()) -> list[Command]:
        return self(ValuePut(object_id=put_id(number), size_bytes=10 if inline else 1000, inline=inline, nested=nested))

    def wait(
        self,
        wait_id: int,
        *refs: Ref,
        num_ready: int | None = None,
        fetch: bool = True,
        read: bool = False,
        timeout_ns: int | None = None,
        of_task: int | None = None,
    ) -> list[Command]:
        return self(
            WaitStarted(
                wait_id=WaitID(wait_id),
                refs=refs,
                num_ready=len(refs) if num_ready is None else num_ready,
                fetch=fetch,
                read=read,
                timeout_ns=timeout_ns,
                task_id=None if of_task is None else tid(of_task),
            )
        )

    def arrived(self, object_id: ObjectID) -> list[Command]:
        return self(ObjectArrived(object_id=object_id, size_bytes=1000))

    def node_died(self, node: str = NODE, incarnation: int = 0) -> list[Command]:
        return self(NodeDied(node=NodeID(node), incarnation=incarnation))

    def actor_is(
        self,
        number: int,
        state: ActorState,
        *,
        life: int = 0,
        worker: str | None = None,
        failed: ErrorInfo | None = None,
    ) -> list[Command]:
        return self(
            ActorChanged(
                actor_id=aid(number),
                state=state,
                life=life,
                worker=None if worker is None else Address(worker),
                error=failed,
            )
        )

    # As a worker.

    def pushed(
        self,
        spec: TaskSpec,
        *,
        reply_to: str = OTHER,
        inline: tuple[ObjectID, ...] = (),
        attempt: int = 0,
        again: bool = False,
    ) -> list[Command]:
        return self(TaskPushed(spec=spec, attempt=attempt, reply_to=Address(reply_to), inline_deps=inline, again=again))

    def ran(self, number: int, *results: Result, failed: ErrorInfo | None = None, attempt: int = 0) -> list[Command]:
        return self(TaskRan(task_id=tid(number), attempt=attempt, results=results, error=failed))

    def acknowledged(self, object_id: ObjectID) -> list[Command]:
        return self(BorrowAcknowledged(object_id=object_id))


class NodeStepper(Stepper[Node]):
    """A node manager, with shorthands for what it hears most."""

    def __init__(
        self,
        node: str = NODE,
        total: Resources | None = None,
        *,
        store_bytes: int = 1000,
        incarnation: int = 0,
        **limits: Any,
    ) -> None:
        limits.setdefault("workers_prestarted", 0)
        limits.setdefault("eviction_policy", "lru")  # with it, what leaves a store is gone in one step
        super().__init__(
            Node(
                node=NodeID(node),
                incarnation=incarnation,
                total=cpus(2) if total is None else total,
                store_bytes=store_bytes,
                config=Config(**limits),
            )
        )
        self.node = NodeID(node)
        self.finds_memory = True
        """Whether every `ReserveSpace` is carried out at once, and left out of the commands."""

    def __call__(self, *events: Event) -> list[Command]:
        commands: list[Command] = []
        for event in events:
            for command in super().__call__(event):
                if self.finds_memory and isinstance(command, ReserveSpace):
                    commands += self(SpaceReserved(object_id=command.object_id))
                else:
                    commands.append(command)
        return commands

    def join(self) -> list[Command]:
        return self(Started(), NodeWelcomed(node=self.node))

    def with_workers(self, count: int) -> NodeStepper:
        """Start workers as if the node had wanted them."""
        for _ in range(count):
            self.machine.scheduler.worker_pool.start_worker()
        self.machine.out.commands.clear()
        for address in list(self.machine.scheduler.workers):
            self(WorkerReady(worker=address))
        return self

    def ask(
        self,
        demand: LeaseShape | None = None,
        *,
        count: int = 1,
        placed: bool = False,
        incarnation: int = 0,
        owner: str = DRIVER,
        request: str = "driver-1#0",
    ) -> list[Command]:
        return self(
            LeaseRequested(
                request_id=RequestID(request),
                owner=Address(owner),
                shape=shape() if demand is None else demand,
                count=count,
                placed=placed,
                incarnation=incarnation,
            )
        )

    def ready(self, number: int) -> list[Command]:
        return self(WorkerReady(worker=Address(f"{self.node}/w{number}")))

    def reserve(
        self,
        object_id: ObjectID,
        size_bytes: int = 100,
        *,
        owner: str = DRIVER,
        by: str = DRIVER,
        remakeable: bool = True,
        remake_ns: int = 0,
    ) -> list[Command]:
        return self(
            SpaceRequested(
                object_id=object_id,
                size_bytes=size_bytes,
                owner=Address(owner),
                requester=Address(by),
                remakeable=remakeable,
                remake_ns=remake_ns,
            )
        )

    def seal(self, object_id: ObjectID, *, by: str = DRIVER) -> list[Command]:
        return self(ObjectSealed(object_id=object_id, requester=Address(by)))

    def store(self, object_id: ObjectID, size_bytes: int = 100, **options: Any) -> list[Command]:
        """Reserve room and seal: the object is here and pinned by nobody."""
        return self.reserve(object_id, size_bytes, **options) + self.seal(object_id, by=options.get("by", DRIVER))

    def want(self, object_id: ObjectID, *, by: str = DRIVER, owner: str = DRIVER) -> list[Command]:
        return self(ObjectWanted(object_id=object_id, owner=Address(owner), requester=Address(by)))

    def locations(self, object_id: ObjectID, *nodes: str, size_bytes: int = 100) -> list[Command]:
        return self(
            LocationsKnown(
                object_id=object_id, size_bytes=size_bytes, owner=DRIVER, nodes=tuple(NodeID(node) for node in nodes)
            )
        )


class HeadStepper(Stepper[Head]):
    """The head, with shorthands for what it hears most."""

    def __init__(self, *nodes: NodeInfo, **limits: Any) -> None:
        super().__init__(Head(config=Config(**limits)))
        for joined in nodes:
            self(NodeJoined(info=joined))

    def ask(
        self,
        demand: LeaseShape | None = None,
        *,
        count: int = 1,
        owner: str = DRIVER,
        request: str = "driver-1#0",
        via: str | None = None,
    ) -> list[Command]:
        return self(
            LeaseRequested(
                request_id=RequestID(request),
                owner=Address(owner),
                shape=shape() if demand is None else demand,
                count=count,
                via=None if via is None else NodeID(via),
            )
        )

    def report(
        self,
        node: str,
        available: Resources,
        *settled: str,
        allocated: tuple[str, ...] = (),
        incarnation: int = 0,
    ) -> list[Command]:
        return self(
            ResourcesReported(
                node=NodeID(node),
                incarnation=incarnation,
                available=dict(available.units),
                settled=tuple(RequestID(request) for request in settled),
                allocated=tuple(RequestID(request) for request in allocated),
            )
        )

    def added(self, object_id: ObjectID, node: str, *, owner: str = DRIVER, incarnation: int = 0) -> list[Command]:
        return self(
            ObjectAdded(
                object_id=object_id,
                size_bytes=1000,
                owner=Address(owner),
                node=NodeID(node),
                incarnation=incarnation,
            )
        )


def completed(commands: list[Command]) -> list[tuple[int, tuple[ObjectID, ...]]]:
    """The waits that ended, with what was ready."""
    return [(command.wait_id, command.ready) for command in of(commands, CompleteWait)]


def started(commands: list[Command]) -> list[TaskID]:
    """The tasks that a worker was told to run."""
    tasks: list[TaskID] = []
    for command in commands:
        if isinstance(command, RunTask):
            tasks.append(command.spec.task_id)
        elif isinstance(command, RunTasks):
            tasks += [task.spec.task_id for task in command.tasks]
    return tasks
