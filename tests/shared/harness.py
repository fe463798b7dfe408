"""A cluster in memory: one head, nodes, a driver and their workers, with no clock, no process and no input or output.

It is the adversary of the machines. Messages stay in order between two processes, and come in any order otherwise: a
seeded generator chooses. User code is data: a `Body` is a list of steps (`Put`, `Submit`, `Get`, ...) that a worker
takes in turn, as its core worker would let a function take them; the driver takes its steps without waiting for them,
as threads would. Bytes are `Content`: the references that a value holds, so that reading one hands them on.

Faults: `KillWorker`, `KillNode`, `Silence` and `Reboot`. What a process had sent when it died arrives up to a point
that the generator chooses, and for each receiver another; what is sent to it is dropped.

After each event the machine that took it checks its invariants. The runner has its own: a payload is there when it is
read, and so are the bytes of a stored object, as long as somebody has them open. `finish` ends the faults, lets
everything come to rest, drops every reference, and demands that nothing is left anywhere.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import blake2b
from typing import Any, TypeAlias

from dualray.shared.machines.head.head import Head
from dualray.shared.machines.node.node import Node
from dualray.shared.machines.owner.owner import Owner
from dualray.shared.model import commands as c
from dualray.shared.model import events as e
from dualray.shared.model.codec import encode, pack
from dualray.shared.model.config import Config
from dualray.shared.model.errors import ErrorInfo, ErrorKind
from dualray.shared.model.ids import (
    HEAD,
    ActorID,
    Address,
    FunctionID,
    NodeID,
    ObjectID,
    TaskID,
    WaitID,
    actor_handle_id,
    child_task_id,
    is_put,
    put_object_id,
    return_index,
    return_object_id,
    root_task_id,
    short,
    stream_handle_id,
    task_of,
)
from dualray.shared.model.resources import CPU, GPU, UNITS, demand_in_group, from_units
from dualray.shared.model.specs import ActorSpec, FunctionTemplate, Ref, Strategy, StrategyKind, Streaming, TaskSpec
from dualray.shared.model.states import ActorState, TaskState, ValueState
from dualray.shared.proof.decision_log import Decision, Log, MachineSpec, Replay, replay

MS = 1_000_000
DISK_BYTES = 1500
"""Of each node, where objects are spilled."""
INLINE_MAX = 100
"""Larger values lie in the stores."""
STEPS_MAX = 100_000
"""Deliveries after which a cluster is taken to be in a loop."""

# ---- What user code does -----------------------------------------------------------------------------------------
# Integers choose among what the process has, modulo its number: a step means something wherever shrinking leaves it.


@dataclass(frozen=True, slots=True)
class Out:
    """A return value: its size, and the references in it."""

    size: int = 10
    nested: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Body:
    """A function, or method: its steps, how it ends, and in how many attempts it ends badly."""

    steps: tuple[Step, ...] = ()
    outs: tuple[Out, ...] = (Out(),)
    ending: str = "return"
    """How its first `bad_attempts` attempts end: "raise", or "exit", which is the end of its process; "leave": a method
    ends its actor in good order."""
    bad_attempts: int = 1


@dataclass(frozen=True, slots=True)
class Put:
    size: int = 10
    nested: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Submit:
    body: Body = Body()
    deps: tuple[int, ...] = ()
    nested: tuple[int, ...] = ()
    handles: tuple[int, ...] = ()
    retries: int = 0
    retry_exceptions: bool = False
    cpus: int = 1
    gpus: int = 0
    strategy: int = 0
    """0 DEFAULT, 1 SPREAD, then NODE_AFFINITY to each node, hard and soft in turn."""
    streaming: Streaming = Streaming.NO
    """Whether its body is a generator, whose items are `outs`: it ends badly in their middle."""
    ahead_max: int = 0
    max_calls: int = 0
    runtime_env: str = ""
    large: int = 0
    """Bytes of an argument by value that is too large to travel with the call; 0: there is none."""


@dataclass(frozen=True, slots=True)
class MakeActor:
    body: Body = Body()
    deps: tuple[int, ...] = ()
    nested: tuple[int, ...] = ()
    restarts: int = 0
    strategy: int = 0
    large: int = 0
    concurrency: int = 1
    cpus: int = 0
    """What it holds while it lives."""


@dataclass(frozen=True, slots=True)
class Call:
    handle: int = 0
    body: Body = Body()
    deps: tuple[int, ...] = ()
    nested: tuple[int, ...] = ()
    handles: tuple[int, ...] = ()
    retries: int = 0
    large: int = 0
    streaming: Streaming = Streaming.NO
    ahead_max: int = 0


@dataclass(frozen=True, slots=True)
class Get:
    refs: tuple[int, ...] = (0,)
    timeout_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Wait:
    refs: tuple[int, ...] = (0,)
    num: int = 1
    fetch: bool = True
    timeout_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Drop:
    """Drop one reference; with `keep`, the process keeps it beyond the task."""

    ref: int = 0
    keep: bool = False


@dataclass(frozen=True, slots=True)
class DropHandle:
    handle: int = 0
    keep: bool = False


@dataclass(frozen=True, slots=True)
class DropValue:
    """Drop a value that `Get` has brought: its view ends."""

    value: int = 0


@dataclass(frozen=True, slots=True)
class KillActor:
    handle: int = 0
    no_restart: bool = True


@dataclass(frozen=True, slots=True)
class Cancel:
    """Cancel the task that makes an object, by force or not."""

    ref: int = 0
    force: bool = False
    recursive: bool = True


@dataclass(frozen=True, slots=True)
class Next:
    """Wait for the next item of a generator, and take it."""

    stream: int = 0
    timeout_ns: int | None = None


@dataclass(frozen=True, slots=True)
class DropStream:
    """Take no more items."""

    stream: int = 0


@dataclass(frozen=True, slots=True)
class Sleep:
    ns: int = MS


@dataclass(frozen=True, slots=True)
class AskState:
    pass


Step: TypeAlias = (
    Put
    | Submit
    | MakeActor
    | Call
    | Get
    | Wait
    | Drop
    | DropHandle
    | DropValue
    | KillActor
    | Cancel
    | Next
    | DropStream
    | Sleep
    | AskState
)

# ---- What happens to the cluster ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Deliver:
    """Deliver so many messages."""

    count: int = 1


@dataclass(frozen=True, slots=True)
class Settle:
    """Deliver until nothing is on its way; timers do not fire."""


@dataclass(frozen=True, slots=True)
class Tick:
    """The earliest timer fires, though messages may be on their way: processes are slow at times."""


@dataclass(frozen=True, slots=True)
class KillWorker:
    worker: int = 0
    ending: int = 0


@dataclass(frozen=True, slots=True)
class KillNode:
    """Never node-0, on which the driver lives."""

    node: int = 1
    silently: bool = False


@dataclass(frozen=True, slots=True)
class Silence:
    """A node is not heard for a while, or for so long that it is taken for dead; then it is heard again."""

    node: int = 1
    heard_after: int = 10


@dataclass(frozen=True, slots=True)
class Reboot:
    """A node that was killed comes back as a new incarnation."""

    node: int = 1


Fault: TypeAlias = KillWorker | KillNode | Silence | Reboot
Op: TypeAlias = Step | Fault | Deliver | Settle | Tick


@dataclass(frozen=True, slots=True)
class Shape:
    """What the cluster is made of: for each node, CPUs, GPUs and bytes of its store."""

    nodes: tuple[tuple[int, int, int], ...] = ((2, 0, 1000), (2, 0, 1000))
    orderly: bool = False
    """Some channels are always served before others, in an order that the seed gives, instead of all being alike."""
    spills: bool = False
    """Full stores spill to disks, each third time in vain."""


# ---- Processes -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Content:
    """What bytes are: the references in a value, or in a task's arguments, and then the function's body too."""

    nested: tuple[Ref, ...] = ()
    body: Body | None = None


class Failed(Exception):
    """User code of a task raised."""


class Interrupted(Exception):
    """A task is cancelled."""


class PyRef:
    """A Python object that is a reference; shared by everyone in its process who uses it."""

    __slots__ = ("ref", "users")

    def __init__(self, ref: Ref) -> None:
        self.ref = ref
        self.users = 1


@dataclass(slots=True)
class Consumer:
    """A generator that this process has called, and the next of its items."""

    handle: PyRef
    item: PyRef | None


Fiber: TypeAlias = Generator[Any, Any, Any]
Runnable: TypeAlias = c.RunTask | e.TaskPushed
"""What a worker is given to run."""


@dataclass(slots=True)
class Frame:
    """The variables of a function that runs: references, handles, and views of stored objects."""

    task_id: TaskID
    attempt: int = 0
    is_task: bool = True
    actor_id: ActorID | None = None
    submitted: int = 0
    puts: int = 0
    refs: list[PyRef] = field(default_factory=list)
    handles: list[PyRef] = field(default_factory=list)
    streams: list[Consumer] = field(default_factory=list)
    views: list[ObjectID] = field(default_factory=list)


class Process:
    """A process with a machine."""

    def __init__(self, cluster: Cluster, spec: MachineSpec) -> None:
        self.cluster = cluster
        self.spec = spec
        self.address = Address(spec.address)
        self.key = f"{spec.address}~{spec.incarnation}" if spec.incarnation else spec.address
        """Whose messages they are: those of a node's next life overtake those of the last."""
        self.machine = spec.make()
        self.is_alive = True
        self.payloads: dict[bytes, Content] = {}
        self.decisions: list[Decision] = []
        self.timers: dict[str, tuple[int, int]] = {}

    def handle(self, event: e.Event) -> None:
        if not self.is_alive:
            return
        now_ns = self.cluster.now_ns
        commands = self.machine.handle(event, now_ns)
        self.decisions.append(Decision(now_ns=now_ns, event=event, commands=commands))
        if self.cluster.trace is not None:
            self.cluster.trace(self.address, now_ns, event, commands)
        self.machine.check_invariants()
        for command in commands:
            self.perform(command)

    def perform(self, command: c.Command) -> None:
        match command:
            case c.Send():
                found = {key: self.payloads[key] for key in command.payloads if key in self.payloads}
                self.cluster.send(self, command.to, command.message, found)
            case c.ArmTimer():
                self.cluster.timer_counter += 1
                self.timers[command.timer] = (self.cluster.now_ns + command.delay_ns, self.cluster.timer_counter)
            case c.CancelTimer():
                self.timers.pop(command.timer, None)
            case c.DropPayload():
                self.payloads.pop(command.key, None)
            case c.DropPayloads():
                for key in command.keys:
                    self.payloads.pop(key, None)
            case c.WriteRecord() | c.WriteRecords() | c.NoteRetry() | c.TellFailure() | c.TellWait():
                pass
            case _:
                raise AssertionError(f"{self.address} cannot carry out {command}")

    def later(self, what: str, act: Callable[[], None]) -> None:
        """Something that this process's runner does after a while."""
        self.cluster.enqueue((self.key, what), act)

    def fire(self, timer: str) -> None:
        del self.timers[timer]
        self.handle(e.TimerFired(timer=timer))


class NodeProcess(Process):
    """A node manager, with its store's bytes and its workers."""

    machine: Node

    def __init__(self, cluster: Cluster, spec: MachineSpec) -> None:
        super().__init__(cluster, spec)
        self.node = NodeID(spec.node)
        self.incarnation = spec.incarnation
        self.bytes: dict[ObjectID, Content] = {}
        self.reserving: dict[ObjectID, object] = {}
        self.places: dict[ObjectID, int] = {}
        self.rooms: dict[int, tuple[ObjectID, Content]] = {}
        """What lies in room that processes keep, by place."""
        self.disk: dict[ObjectID, Content] = {}
        self.passing: dict[ObjectID, list[NodeID]] = {}
        """To whom what is still on its way here is passed on."""
        self.spills = 0
        self.workers: dict[Address, UserProcess | None] = {}
        """None while one is starting."""
        self.heard_at: int | None = None

    def perform(self, command: c.Command) -> None:
        match command:
            case c.StartWorker(worker=worker):
                self.workers[worker] = None
                self.later(f"start {worker}", lambda: self._started(worker))
            case c.StopWorker(worker=worker, reason=reason):
                self.later(f"stop {worker}", lambda: self.end_worker(worker, f"stopped: {reason}"))
            case c.ReserveSpace(object_id=object_id):
                self._reserve(object_id)
            case c.EvictObject(object_id=object_id) | c.DeleteObject(object_id=object_id):
                self.cluster.had_losses = self.cluster.had_losses or isinstance(command, c.EvictObject)
                self._delete(object_id)
            case c.RenameObject(room_id=room_id, object_id=object_id):
                place = self.places[object_id] = self.places.pop(room_id)
                lodger, self.bytes[object_id] = self.rooms[place]
                assert lodger == object_id, f"{short(lodger)} lies in the room of {short(object_id)}"
            case c.SpillObject(object_id=object_id):
                self.later(f"disk {short(object_id)}", lambda: self._spill(object_id))
            case c.UnloadObject(object_id=object_id):
                self._delete(object_id)
            case c.RestoreObject(object_id=object_id):
                self.later(f"disk {short(object_id)}", lambda: self._restore(object_id))
            case c.DeleteSpilled(object_id=object_id):
                self.disk.pop(object_id, None)
            case c.SendObject():
                self._send_object(command)
            case c.ReceiveObject():
                pass  # `bytes_arrive` needs no preparation
            case _:
                super().perform(command)

    def handle(self, event: e.Event) -> None:
        super().handle(event)
        if self.machine.refused and self.is_alive:
            self.cluster.node_gone(self)

    def _started(self, address: Address) -> None:
        if address in self.workers:
            worker = self.cluster.user_class.make(self.cluster, address, self.node, is_driver=False)
            self.workers[address] = worker
            self.handle(e.WorkerReady(worker=address))

    def end_worker(self, address: Address, reason: str) -> None:
        if address not in self.workers or not self.is_alive:
            return
        worker = self.workers.pop(address)
        if worker is not None:
            self.cluster.process_gone(worker)
        exited = e.WorkerExited(worker=address, reason=reason)
        self.cluster.enqueue((address, self.address), lambda: self.handle(exited))

    def _reserve(self, object_id: ObjectID) -> None:
        order = self.reserving[object_id] = object()

        def reserved() -> None:
            if self.reserving.get(object_id) is order:  # else it was deleted meanwhile
                del self.reserving[object_id]
                self.places[object_id] = self.cluster.next_place()
                self.handle(e.SpaceReserved(object_id=object_id, place=self.places[object_id]))

        self.later(f"reserve {short(object_id)}", reserved)

    def _spill(self, object_id: ObjectID) -> None:
        self.spills += 1
        if self.spills % 3 == 0:
            self.handle(e.SpillFailed(object_id=object_id, reason="the disk is full"))
            return
        self.disk[object_id] = self.bytes[object_id]
        self.handle(e.ObjectSpilled(object_id=object_id))

    def _restore(self, object_id: ObjectID) -> None:
        self.bytes[object_id] = self.disk[object_id]
        self.handle(e.ObjectRestored(object_id=object_id))

    def _delete(self, object_id: ObjectID) -> None:
        self.bytes.pop(object_id, None)
        for to in self.passing.pop(object_id, ()):
            target = self.cluster.nodes[to]
            failed = e.ReceiveFailed(object_id=object_id, source=self.node)
            self.cluster.enqueue((self.key, f"broken {short(object_id)} {to}"), partial(target.handle, failed))
        self.reserving.pop(object_id, None)
        self.check_unread(object_id)
        place = self.places.pop(object_id, None)
        if place in self.rooms:
            self.check_unread(self.rooms.pop(place)[0])

    def check_unread(self, object_id: ObjectID) -> None:
        """Nobody reads an object, or is about to, whose memory is others' from now on."""
        for address, worker in self.cluster.users.items():
            if worker.is_alive and worker.node == self.node:
                assert not worker.opened.get(object_id), f"{address} reads object {short(object_id)}, which goes"

    def write_at(self, place: int, object_id: ObjectID, content: Content) -> None:
        """A process writes into room that it keeps."""
        assert place in self.places.values(), f"{short(object_id)} is written where no room is"
        if place in self.rooms:
            self.check_unread(self.rooms[place][0])
        self.rooms[place] = (object_id, content)

    def _send_object(self, command: c.SendObject) -> None:
        object_id, to = command.object_id, command.to
        arriving = self.machine.transfer.wants.get(object_id)
        if arriving is not None and arriving.source is not None:
            self.passing.setdefault(object_id, []).append(to)
            return
        assert object_id in self.bytes, f"{self.address} is to send object {short(object_id)} and has no bytes of it"
        content = self.bytes[object_id]
        target = self.cluster.nodes.get(to)
        self.later(f"sent {short(object_id)} {to}", lambda: self.handle(e.ObjectSent(object_id=object_id, to=to)))
        if target is not None:
            key = (self.key, f"bytes {short(object_id)} {to}")
            self.cluster.enqueue(key, lambda: self.cluster.bytes_arrive(target, object_id, self.node, content))


class UserProcess(Process):
    """A driver or worker: what its core worker does, with bodies instead of functions."""

    machine: Owner

    def __init__(self, cluster: Cluster, spec: MachineSpec) -> None:
        super().__init__(cluster, spec)
        self.node = NodeID(spec.node)
        self.is_driver = spec.is_driver
        self.frame = Frame(task_id=root_task_id(self.address, 0), is_task=not spec.is_driver)
        self.kept: list[PyRef] = []
        self.environment: str | None = None
        self.opened: dict[ObjectID, int] = {}
        self.waits: dict[WaitID, Callable[[tuple[ObjectID, ...], ErrorInfo | None], None]] = {}
        self.wait_counter = 0
        self.fibers: dict[Fiber, None] = {}
        self.to_run: deque[Runnable] = deque()
        self.is_running = False
        self.ran: list[e.Outcome] = []
        self.in_hand: Runnable | None = None
        self.interrupted: tuple[TaskID, int] | None = None
        self.is_interrupt_due = False
        self.task_fiber: Fiber | None = None
        self.task_waits: WaitID | None = None
        """The `get` or `wait` of the task in hand."""

    @classmethod
    def make(cls, cluster: Cluster, address: Address, node: NodeID, *, is_driver: bool) -> UserProcess:
        spec = MachineSpec(kind="owner", address=address, node=node, config=cluster.config, is_driver=is_driver)
        process = cls(cluster, spec)
        cluster.add(process)
        cluster.users[address] = process
        return process

    @property
    def store(self) -> dict[ObjectID, Content]:
        return self.cluster.nodes[self.node].bytes

    def perform(self, command: c.Command) -> None:
        match command:
            case c.InterruptTask():
                self._interrupt(command)
            case c.CompleteWait():
                resume = self.waits.pop(command.wait_id)
                self.later(f"wake {command.wait_id}", lambda: resume(command.ready, command.error))
            case c.CopyPayload():
                # An exception that came by way of the head, to a node that wanted the object, is a text only.
                if command.source in self.payloads or not self.cluster.had_losses:
                    self.payloads[command.target] = self.payloads[command.source]
            case c.RunTask():
                self._hand_over([command])
            case c.RunTasks():
                self._hand_over(command.tasks)
            case c.ForgetTasks():
                forgotten = [task.spec.task_id for task in command.tasks]
                self.to_run = deque(task for task in self.to_run if task.spec.task_id not in forgotten)
            case _:
                super().perform(command)

    def handle(self, event: e.Event) -> None:
        self.take_in_ran()
        super().handle(event)

    def take_in_ran(self) -> None:
        """What tasks have returned that were handed over with others goes before everything else."""
        if self.ran and self.is_alive:
            ran, self.ran = tuple(self.ran), []
            super().handle(e.TasksRan(outcomes=ran))

    def _hand_over(self, tasks: Sequence[Runnable]) -> None:
        self.to_run.extend(tasks)
        if not self.is_running:
            self.is_running = True
            self.later("run", self._run_next)

    def _interrupt(self, command: c.InterruptTask) -> None:
        """As the core worker and its host do: in user code, and nowhere else."""
        wanted = (command.task_id, command.attempt)
        in_hand = [self.in_hand] if self.in_hand is not None else []
        if any((task.spec.task_id, task.attempt) == wanted for task in [*in_hand, *self.to_run]):
            self.interrupted, self.is_interrupt_due = wanted, True
            self.later("interrupt", self._interrupt_wait)

    def _interrupt_wait(self) -> None:
        if self.task_waits in self.waits and self._takes_interrupt():
            assert self.task_waits is not None
            assert self.task_fiber is not None
            del self.waits[self.task_waits]
            self.handle(e.WaitAbandoned(wait_id=self.task_waits))
            self._go_on(self.task_fiber, lambda fiber: fiber.throw(Interrupted()))

    def _takes_interrupt(self) -> bool:
        task = self.in_hand
        if not self.is_interrupt_due or task is None or (task.spec.task_id, task.attempt) != self.interrupted:
            return False
        self.is_interrupt_due = False
        return True

    def _run_next(self) -> None:
        if self.to_run:
            self.in_hand = self.to_run.popleft()
            self.task_fiber = self._run(self.in_hand)
            self.spawn(self.task_fiber)
        else:
            self.is_running = False

    def _run(self, task: Runnable) -> Fiber:
        yield from self._execute(task)
        self.is_running = False
        if self.to_run:
            self._hand_over(())

    # ---- Fibers ----------------------------------------------------------------------------------------------

    def spawn(self, fiber: Fiber) -> None:
        self.fibers[fiber] = None
        self._resume(fiber, None)

    def _resume(self, fiber: Fiber, value: Any) -> None:
        self._go_on(fiber, lambda fiber: fiber.send(value))

    def _go_on(self, fiber: Fiber, go: Callable[[Fiber], Any]) -> None:
        if not self.is_alive:
            return
        try:
            awaited = go(fiber)
        except StopIteration:
            del self.fibers[fiber]
            return
        awaited(lambda result: self._resume(fiber, result))

    def _await(self, event: e.Event, wait_id: WaitID) -> Any:
        """What a fiber yields to start a wait, and be resumed with (ready, error)."""

        def start(resume: Callable[[Any], None]) -> None:
            self.waits[wait_id] = lambda ready, error: resume((ready, error))
            self.handle(event)

        return start

    def _sleep(self, ns: int) -> Any:
        def start(resume: Callable[[Any], None]) -> None:
            self.cluster.sleep(self, ns, lambda: resume(None))

        return start

    def _new_wait(self) -> WaitID:
        self.wait_counter += 1
        return WaitID(self.wait_counter)

    # ---- References and views ----------------------------------------------------------------------------------

    def adopt(self, ref: Ref, frame: Frame) -> PyRef:
        """A reference was unpickled."""
        self.handle(e.RefsAdded(refs=(ref,)))
        made = PyRef(ref)
        self._keep_in_frame(made, frame)
        return made

    def _keep_in_frame(self, ref: PyRef, frame: Frame) -> None:
        (frame.handles if ref.ref.object_id in self.cluster.handles else frame.refs).append(ref)

    def let_go(self, ref: PyRef) -> None:
        ref.users -= 1
        if not ref.users:
            object_id = ref.ref.object_id
            self.later("drop", lambda: self.handle(e.RefsDropped(object_ids=(object_id,))))

    def read(self, object_id: ObjectID, frame: Frame) -> None:
        """Open a value that a wait has found ready: its references appear, a view of its bytes opens.

        Raises:
            Failed: it has failed.
        """
        value = self.machine.values.table[object_id]
        if value.failure is not None:
            self.cluster.note_error(value.failure)
            if value.failure.kind is ErrorKind.APPLICATION and not self.cluster.had_losses:
                assert object_id in self.payloads, f"{self.address} has no exception of {short(object_id)}"
            raise Failed
        if value.state is ValueState.INLINE:
            assert object_id in self.payloads, f"{self.address} has no bytes of inline {short(object_id)}"
            content = self.payloads[object_id]
        else:
            content = self._open(object_id)
            self.opened[object_id] = self.opened.get(object_id, 0) + 1
            frame.views.append(object_id)
        for ref in content.nested:
            self.adopt(ref, frame)

    def _open(self, object_id: ObjectID) -> Content:
        loan = self.machine.values.loans.get(object_id)
        if loan is not None:
            lodger, content = self.cluster.nodes[self.node].rooms[loan.place]
            assert lodger == object_id, f"{self.address} opens {short(object_id)}, and {short(lodger)} lies there"
            return content
        assert object_id in self.store, f"{self.address} opens {short(object_id)}, which is not in its store"
        return self.store[object_id]

    def close_view(self, object_id: ObjectID) -> None:
        def close() -> None:
            self.opened[object_id] -= 1
            self.handle(e.ViewReleased(object_id=object_id))

        self.later("close", close)

    def release_unread(self, object_ids: Sequence[ObjectID]) -> None:
        for object_id in object_ids:
            if object_id in self.machine.values.views:
                self.handle(e.ViewReleased(object_id=object_id))

    def drop_frame(self, frame: Frame) -> None:
        for ref in frame.refs + frame.handles:
            self.let_go(ref)
        for object_id in frame.views:
            self.close_view(object_id)
        self.drop_streams(frame)
        frame.refs, frame.handles, frame.views = [], [], []

    def drop_streams(self, frame: Frame) -> None:
        for consumer in frame.streams:
            self._drop_stream(consumer)
        frame.streams = []

    def _drop_stream(self, consumer: Consumer) -> None:
        self.let_go(consumer.handle)
        if consumer.item is not None:
            self.let_go(consumer.item)
            consumer.item = None

    # ---- Running a task ----------------------------------------------------------------------------------------

    def _execute(self, task: Runnable) -> Fiber:
        spec = task.spec
        actor_id = spec.actor_id or (spec.creates.actor_id if spec.creates is not None else None)
        frame = self.frame = Frame(task_id=spec.task_id, attempt=task.attempt, actor_id=actor_id)
        self.cluster.started(self, task)
        self._take_environment(spec)
        body = self.payloads[spec.task_id].body
        assert body is not None
        results: list[e.Result] = []
        error: ErrorInfo | None = None
        returned: list[PyRef] = []
        try:
            unread = deque(ref.object_id for ref in spec.deps)
            try:
                while unread:
                    self.read(unread.popleft(), frame)
            finally:
                self.release_unread(unread)
            for ref in self.payloads[spec.task_id].nested:
                self.adopt(ref, frame)
            for step in body.steps:
                if self._takes_interrupt() and spec.actor_id is None:
                    raise Interrupted
                yield from self.take(step, frame)
            if spec.template.streaming:
                yield from self._make_items(task, body, frame)
                if not self.is_alive:
                    return
                yield from self._end_items(task, len(body.outs), frame, results)
            elif self._goes(task, body, frame):
                return
            if body.ending == "raise" and task.attempt < body.bad_attempts:
                raise Failed
            if spec.creates is None and not spec.template.streaming:
                for index, out in enumerate(body.outs):
                    content = self._content(out.nested, frame)
                    returned += content[1]
                    yield from self._store_result(task, index, out, content[0], results)
        except Failed:
            self.payloads[return_object_id(spec.task_id, 0)] = Content()
            for result in results[1:]:
                if result.inline:
                    del self.payloads[result.object_id]
            results = []
            error = ErrorInfo(kind=ErrorKind.APPLICATION, message="it raised")
        except Interrupted:
            error = ErrorInfo(kind=ErrorKind.TASK_CANCELLED, message="it was cancelled")
        self.in_hand = None
        self._drop_loans(frame)
        if spec.template.streaming:
            self.handle(e.ItemsEnded(task_id=spec.task_id, attempt=task.attempt))
        self._report(e.TaskRan(task_id=spec.task_id, attempt=task.attempt, results=tuple(results), error=error))
        for ref in returned:
            self.let_go(ref)
        self.drop_frame(frame)

    def _goes(self, task: Runnable, body: Body, frame: Frame) -> bool:
        """Whether the attempt ends its process, or its actor, in place of a result."""
        if body.ending == "exit" and task.attempt < body.bad_attempts and self.cluster.faults_allowed:
            self.cluster.nodes[self.node].end_worker(self.address, "exited with code 1")
            return True
        if body.ending == "leave" and task.spec.actor_id is not None:
            self.in_hand = None
            self.drop_frame(frame)
            self.handle(e.ActorExitAsked(task_id=task.spec.task_id))
            return True
        return False

    def _drop_loans(self, frame: Frame) -> None:
        """A function has returned that was lent its arguments: seldom has it kept them."""
        if self.machine.values.loans and self.cluster.rng.random() < 0.7:
            views, frame.views = frame.views, []
            for object_id in views:
                self.opened[object_id] -= 1
                self.handle(e.ViewReleased(object_id=object_id))

    def _take_environment(self, spec: TaskSpec) -> None:
        """A worker that has run in one environment never runs in another."""
        if spec.actor_id is None:
            wanted = spec.template.runtime_env
            assert self.environment in (None, wanted), f"{self.address} is of {self.environment!r}, not of {wanted!r}"
            self.environment = wanted

    def _make_items(self, task: Runnable, body: Body, frame: Frame) -> Fiber:
        """What a generator does: its bad endings come in the middle."""
        spec = task.spec
        for index, out in enumerate(body.outs):
            if index == len(body.outs) // 2:
                self._end_badly(task, body)
                if not self.is_alive:
                    return
            content, refs = self._content(out.nested, frame)
            made: list[e.Result] = []
            try:
                yield from self._store_result(task, index + 1, out, content, made)
                self.handle(
                    e.ItemMade(
                        task_id=spec.task_id,
                        attempt=task.attempt,
                        owner=spec.owner,
                        result=made[0],
                        ahead_max=spec.template.items_ahead_max,
                    )
                )
            finally:
                for ref in refs if self.is_alive else ():
                    self.let_go(ref)
            production = self.machine.production
            room = production.room_for(spec.task_id, task.attempt)
            if room is not None:
                wait_id = self._new_wait()
                started = e.WaitStarted(
                    wait_id=wait_id,
                    refs=(Ref(room, self.address),),
                    num_ready=1,
                    fetch=False,
                    task_id=spec.task_id,
                )
                yield from self._await_in_task(started, wait_id, frame)
            if self._takes_interrupt():
                raise Interrupted
            if not production.is_wanted(spec.task_id, task.attempt):
                return
        if not body.outs:
            self._end_badly(task, body)

    def _end_badly(self, task: Runnable, body: Body) -> None:
        if task.attempt < body.bad_attempts:
            if body.ending == "exit" and self.cluster.faults_allowed:
                self.cluster.nodes[self.node].end_worker(self.address, "exited with code 1")
            elif body.ending == "raise":
                raise Failed

    def _end_items(self, task: Runnable, count: int, frame: Frame, results: list[e.Result]) -> Fiber:
        """The result of the call: nothing, or a value that refers to all items."""
        spec = task.spec
        nested: tuple[Ref, ...] = ()
        if spec.template.streaming is Streaming.DYNAMIC:
            nested = tuple(Ref(return_object_id(spec.task_id, index), spec.owner) for index in range(1, count + 1))
            for ref in nested:
                self.adopt(ref, frame)
        yield from self._store_result(task, 0, Out(), Content(nested=nested), results)

    def _report(self, ran: e.TaskRan) -> None:
        """As the core worker does: small results wait for those of the tasks behind them, unless a generator's."""
        if self._is_of_generator(ran.task_id) or not self._waits_for_others(ran):
            self.handle(ran)

    def _is_of_generator(self, task_id: TaskID) -> bool:
        current = self.machine.executor.current
        pushed = [current, *self.machine.executor.handed]
        return any(
            each is not None and each.spec.task_id == task_id and each.spec.template.streaming for each in pushed
        )

    def _waits_for_others(self, ran: e.TaskRan) -> bool:
        if (self.to_run or self.ran) and ran.error is None and len(ran.results) == 1:
            [result] = ran.results
            if result.inline and not result.nested and not self.machine.values.unacknowledged:
                self.ran.append((ran.task_id, ran.attempt, result.size_bytes, 1000))
                if not self.to_run:
                    self.take_in_ran()
                elif len(self.ran) == 1:
                    self.later("take in", self.take_in_ran)
                return True
        return False

    def _store_result(self, task: Runnable, index: int, out: Out, content: Content, results: list[e.Result]) -> Fiber:
        object_id = return_object_id(task.spec.task_id, index)
        inline = out.size <= INLINE_MAX
        if inline:
            self.payloads[object_id] = content
        else:
            retries = task.spec.template.max_retries
            remakeable = task.spec.actor_id is None and (retries < 0 or task.attempt < retries)
            yield from self._write(object_id, out.size, content, task.spec.owner, remakeable)
            self.handle(e.SpaceWritten(object_id=object_id))
        results.append(e.Result(object_id=object_id, size_bytes=out.size, inline=inline, nested=content.nested))

    def _write(
        self,
        object_id: ObjectID,
        size: int,
        content: Content,
        owner: Address,
        remakeable: bool,
        is_argument: bool = False,
    ) -> Fiber:
        wait_id = self._new_wait()
        wanted = e.SpaceWanted(
            wait_id=wait_id,
            object_id=object_id,
            size_bytes=size,
            owner=owner,
            remakeable=remakeable,
            is_argument=is_argument,
        )
        ready, error = yield self._await(wanted, wait_id)
        if error is not None:
            self.cluster.note_error(error)
            raise Failed
        place = self.machine.rooms.place_of(object_id)
        if ready and place is not None:
            self.cluster.nodes[self.node].write_at(place, object_id, content)
        elif ready:
            self.store[object_id] = content

    def _content(self, chosen: Sequence[int], frame: Frame) -> tuple[Content, list[PyRef]]:
        """A value with references in it, which stay alive while it is pickled and handed over."""
        refs = self.choose(frame.refs + frame.handles, chosen)
        for ref in refs:
            ref.users += 1
        return Content(nested=tuple(ref.ref for ref in refs)), refs

    @staticmethod
    def choose(among: Sequence[PyRef], chosen: Sequence[int]) -> list[PyRef]:
        """The references that a step's integers mean: each object once."""
        found: dict[ObjectID, PyRef] = {}
        for index in chosen if among else ():
            ref = among[index % len(among)]
            found.setdefault(ref.ref.object_id, ref)
        return list(found.values())

    # ---- Steps -------------------------------------------------------------------------------------------------

    def take(self, step: Step, frame: Frame) -> Fiber:
        match step:
            case Put():
                yield from self._put(step, frame)
            case Submit() | MakeActor() | Call():
                large: list[PyRef] = []
                if step.large > INLINE_MAX:
                    large = yield from self._put_argument(step.large, frame)
                if len(large) == (step.large > INLINE_MAX):  # else the store is full
                    self._submit(step, frame, large)
            case Get():
                yield from self._get(step, frame)
            case Wait():
                yield from self._wait(step, frame)
            case Drop(ref=index, keep=keep):
                self._drop(frame.refs, index, keep)
            case DropHandle(handle=index, keep=keep):
                self._drop(frame.handles, index, keep)
            case DropValue(value=index):
                if frame.views:
                    self.close_view(frame.views.pop(index % len(frame.views)))
            case KillActor():
                for handle in self.choose(frame.handles, (step.handle,)):
                    actor_id = ActorID(handle.ref.object_id[:16])
                    self.handle(e.ActorKillAsked(actor_id=actor_id, no_restart=step.no_restart))
            case Cancel():
                for ref in self.choose([ref for ref in frame.refs if not is_put(ref.ref.object_id)], (step.ref,)):
                    self.cluster.had_cancels = True
                    self.handle(e.CancelAsked(ref=ref.ref, force=step.force, recursive=step.recursive))
            case Next():
                yield from self._next(step, frame)
            case DropStream(stream=index):
                if frame.streams:
                    self._drop_stream(frame.streams.pop(index % len(frame.streams)))
            case Sleep(ns=ns):
                yield self._sleep(ns)
            case AskState():
                wait_id = self._new_wait()
                yield self._await(e.ClusterStateAsked(wait_id=wait_id), wait_id)
                self.machine.cluster_state.pop(wait_id)

    def _drop(self, among: list[PyRef], index: int, keep: bool) -> None:
        if among:
            ref = among.pop(index % len(among))
            if keep:
                self.kept.append(ref)
            else:
                self.let_go(ref)

    def _put_argument(self, size: int, frame: Frame) -> Generator[Any, Any, list[PyRef]]:
        frame.puts += 1
        object_id = put_object_id(frame.task_id, frame.attempt, frame.puts)
        try:
            yield from self._write(object_id, size, Content(), self.address, False, is_argument=True)
        except Failed:
            return []
        self.cluster.safe.add(object_id)
        self.handle(e.ValuePut(object_id=object_id, size_bytes=size, inline=False))
        return [PyRef(Ref(object_id, self.address))]

    def _put(self, step: Put, frame: Frame) -> Fiber:
        frame.puts += 1
        object_id = put_object_id(frame.task_id, frame.attempt, frame.puts)
        content, refs = self._content(step.nested, frame)
        inline = step.size <= INLINE_MAX
        try:
            if inline:
                self.payloads[object_id] = content
            else:
                try:
                    yield from self._write(object_id, step.size, content, self.address, False)
                except Failed:
                    return  # the store is full: `put` raises, and user code goes on
            self.cluster.safe.add(object_id)
            put = e.ValuePut(object_id=object_id, size_bytes=step.size, inline=inline, nested=content.nested)
            self.handle(put)
            frame.refs.append(PyRef(Ref(object_id, self.address)))
        finally:
            for ref in refs if self.is_alive else ():
                self.let_go(ref)

    def _submit(self, step: Submit | MakeActor | Call, frame: Frame, large: Sequence[PyRef] = ()) -> None:
        try:
            self._submit_with(step, frame, large)
        finally:
            for ref in large:
                self.let_go(ref)

    def _submit_with(self, step: Submit | MakeActor | Call, frame: Frame, large: Sequence[PyRef]) -> None:
        frame.submitted += 1
        task_id = child_task_id(frame.task_id, frame.attempt, frame.submitted)
        deps = [*large, *self.choose(frame.refs, step.deps)]
        inside = [ref for ref in self.choose(frame.refs, step.nested) if ref not in deps]
        count = len(step.body.outs)
        streaming, ahead_max = Streaming.NO, 0
        resources = placement = from_units({})
        strategy = 0
        actor: dict[str, Any] = {}
        retries = 0
        match step:
            case Submit():
                resources = placement = from_units({CPU: step.cpus * UNITS, GPU: step.gpus * UNITS})
                strategy, retries = step.strategy, step.retries
                streaming, ahead_max = step.streaming, step.ahead_max
                inside += self.choose(frame.handles, step.handles)
            case MakeActor():
                placement, strategy, count = from_units({CPU: UNITS}), step.strategy, 0
                resources = from_units({CPU: step.cpus * UNITS})
                actor["creates"] = ActorSpec(
                    actor_id=ActorID(task_id), max_restarts=step.restarts, max_concurrency=step.concurrency
                )
                self.cluster.handles.add(actor_handle_id(ActorID(task_id)))
            case Call():
                handles = self.choose(frame.handles, (step.handle,))
                if not handles:
                    return
                retries, streaming, ahead_max = step.retries, step.streaming, step.ahead_max
                actor["actor_handle"] = handles[0].ref
                actor["actor_id"] = ActorID(handles[0].ref.object_id[:16])
                inside += self.choose(frame.handles, step.handles)
        count = 1 if streaming else count
        chosen = self.cluster.strategy(strategy)
        if chosen.group is not None:
            resources = demand_in_group(resources, chosen.group, chosen.bundle)
            placement = demand_in_group(placement, chosen.group, chosen.bundle)
        template = FunctionTemplate(
            function_id=FunctionID(b"function"),
            name=type(step).__name__,
            resources=resources,
            placement=placement,
            num_returns=count,
            max_retries=retries,
            retry_exceptions=isinstance(step, Submit) and step.retry_exceptions,
            strategy=chosen,
            max_calls=step.max_calls if isinstance(step, Submit) else 0,
            runtime_env=step.runtime_env if isinstance(step, Submit) else "",
            streaming=streaming,
            items_ahead_max=ahead_max if streaming is Streaming.STREAMING else 0,
        )
        nested = tuple(ref.ref for ref in inside)
        spec = TaskSpec(
            task_id=task_id,
            template=template,
            owner=self.address,
            parent=frame.task_id,
            args_bytes=10,
            deps=tuple(ref.ref for ref in deps),
            nested=nested,
            **actor,
        )
        self.payloads[task_id] = Content(nested=nested, body=step.body)
        is_safe = isinstance(step, Submit) and all(ref.ref.object_id in self.cluster.safe for ref in deps)
        self.cluster.submitted(self, spec)
        self.handle(e.TaskSubmitted(spec=spec))
        if isinstance(step, MakeActor):
            frame.handles.append(PyRef(Ref(actor_handle_id(ActorID(task_id)), self.address)))
        for index in range(count):
            object_id = return_object_id(task_id, index)
            if is_safe and not ahead_max:
                self.cluster.safe.add(object_id)
            frame.refs.append(PyRef(Ref(object_id, self.address)))
        if streaming is Streaming.STREAMING:
            self._consume(task_id, frame)

    def _consume(self, task_id: TaskID, frame: Frame) -> None:
        handle, item = stream_handle_id(task_id), return_object_id(task_id, 1)
        frame.streams.append(Consumer(PyRef(Ref(handle, self.address)), PyRef(Ref(item, self.address))))
        if self.is_driver and self.cluster.is_ending:
            self.drop_streams(frame)

    def _timeout(self, refs: Sequence[PyRef], timeout_ns: int | None) -> int | None:
        """A task that waits for an actor without end may wait for itself: it waits for a while instead."""
        is_safe = not self.frame.is_task or all(ref.ref.object_id in self.cluster.safe for ref in refs)
        return timeout_ns if is_safe or timeout_ns is not None else 50 * MS

    def _get(self, step: Get, frame: Frame) -> Fiber:
        refs = self.choose(frame.refs, step.refs)
        if not refs:
            return
        for ref in refs:
            ref.users += 1
        wait_id = self._new_wait()
        started = e.WaitStarted(
            wait_id=wait_id,
            refs=tuple(ref.ref for ref in refs),
            num_ready=len(refs),
            fetch=True,
            read=True,
            timeout_ns=self._timeout(refs, step.timeout_ns),
            task_id=frame.task_id if frame.is_task else None,
        )
        unread: deque[ObjectID] = deque()
        try:
            ready, _ = yield from self._await_in_task(started, wait_id, frame)
            unread.extend(ready)
            while unread:
                self.read(unread.popleft(), frame)
        except Failed:
            pass
        finally:
            if self.is_alive:
                self.release_unread(unread)
                for ref in refs:
                    self.let_go(ref)

    def _wait(self, step: Wait, frame: Frame) -> Fiber:
        refs = self.choose(frame.refs, step.refs)
        if not refs:
            return
        for ref in refs:
            ref.users += 1
        wait_id = self._new_wait()
        started = e.WaitStarted(
            wait_id=wait_id,
            refs=tuple(ref.ref for ref in refs),
            num_ready=1 + (step.num - 1) % len(refs),
            fetch=step.fetch,
            timeout_ns=self._timeout(refs, step.timeout_ns),
            task_id=frame.task_id if frame.is_task else None,
        )
        try:
            yield from self._await_in_task(started, wait_id, frame)
        finally:
            for ref in refs if self.is_alive else ():
                self.let_go(ref)

    def _next(self, step: Next, frame: Frame) -> Fiber:
        """As an ObjectRefGenerator does it."""
        if not frame.streams:
            return
        consumer = frame.streams[step.stream % len(frame.streams)]
        item = consumer.item
        if item is None:
            return
        consumer.handle.users += 1
        item.users += 1
        wait_id = self._new_wait()
        started = e.WaitStarted(
            wait_id=wait_id,
            refs=(item.ref,),
            num_ready=1,
            fetch=False,
            timeout_ns=self._timeout([item], step.timeout_ns),
            task_id=frame.task_id if frame.is_task else None,
        )
        try:
            ready, _ = yield from self._await_in_task(started, wait_id, frame)
            if ready and consumer.item is item:  # else it was dropped, or another fiber has taken it
                self._take_item(consumer, item, frame)
        finally:
            for ref in (consumer.handle, item) if self.is_alive else ():
                self.let_go(ref)

    def _take_item(self, consumer: Consumer, item: PyRef, frame: Frame) -> None:
        object_id = item.ref.object_id
        task_id, index = task_of(object_id), return_index(object_id)
        if self.machine.tasks.streams.has_ended_before(task_id, index):
            consumer.item = None
            self.let_go(item)
            return
        self.handle(e.ItemTaken(task_id=task_id))
        taken = self.cluster.items_taken.setdefault(task_id, [])
        assert index == len(taken) + 1, f"item {index} of {short(task_id)} was taken after {taken}"
        taken.append(index)
        consumer.item = PyRef(Ref(return_object_id(task_id, index + 1), self.address))
        frame.refs.append(item)

    def _await_in_task(self, started: e.WaitStarted, wait_id: WaitID, frame: Frame) -> Fiber:
        """A wait that ends early when the task is cancelled."""
        if frame.is_task and frame.task_id == self.frame.task_id:
            self.task_waits = wait_id
        result = yield self._await(started, wait_id)
        return result


# ---- The cluster -----------------------------------------------------------------------------------------------------

Key: TypeAlias = tuple[str, str]


class Cluster:
    """See the module."""

    node_class: type[NodeProcess] = NodeProcess
    user_class: type[UserProcess] = UserProcess

    def __init__(self, shape: Shape = Shape(), *, seed: int = 0, **settings: Any) -> None:
        self.shape = shape
        self.rng = random.Random(seed)
        if shape.spills:
            settings = {"eviction_policy": "spill", "spill_bytes_max": DISK_BYTES} | settings
        self.config = replace(
            Config(inline_bytes_max=INLINE_MAX, locality_bytes_max=500, transfer_chunk_bytes=10), **settings
        )
        self.now_ns = 0
        self.timer_counter = 0
        self.place_counter = 0
        self.steps = 0
        self.faults_allowed = True
        self.is_ending = False
        self.trace: Callable[[Address, int, e.Event, list[c.Command]], None] | None = None
        self.channels: dict[Key, deque[Callable[[], None]]] = {}
        self._ranks: dict[Key, float] = {}
        self._sleepers: list[tuple[int, int, UserProcess, Callable[[], None]]] = []
        self.processes: dict[Address, Process] = {}
        self.everyone: list[Process] = []
        self.nodes: dict[NodeID, NodeProcess] = {}
        self.users: dict[Address, UserProcess] = {}
        self.handles: set[ObjectID] = set()
        self.safe: set[ObjectID] = set()
        self.errors: list[ErrorInfo] = []
        self.items_taken: dict[TaskID, list[int]] = {}
        self.had_faults = False
        self.had_cancels = False
        self.had_losses = False
        """Whether an object may have had to be made again."""
        self.head = Process(self, MachineSpec(kind="head", address=HEAD, config=self.config))
        self.add(self.head)
        self.head.handle(e.Started())
        for index in range(len(shape.nodes)):
            self.start_node(index, 0)
        self.driver = self.user_class.make(self, Address("driver-1"), NodeID("node-0"), is_driver=True)
        self.driver.handle(e.Started())
        self.settle()

    # ---- Who there is ------------------------------------------------------------------------------------------

    def start_node(self, index: int, incarnation: int) -> None:
        cpus, gpus, store_bytes = self.shape.nodes[index]
        name = f"node-{index}"
        spec = MachineSpec(
            kind="node",
            address=name,
            node=name,
            config=self.config,
            incarnation=incarnation,
            total=from_units({CPU: cpus * UNITS, GPU: gpus * UNITS}).units,
            store_bytes=store_bytes,
            labels=self.labels_of(index),
        )
        process = self.node_class(self, spec)
        self.nodes[NodeID(name)] = process
        self.add(process)
        process.handle(e.Started())

    def labels_of(self, index: int) -> tuple[tuple[str, str], ...]:
        """What a node is labelled with."""
        return ()

    def add(self, process: Process) -> None:
        self.processes[process.address] = process
        self.everyone.append(process)

    def strategy(self, choice: int) -> Strategy:
        if choice == 0:
            return Strategy()
        if choice == 1:
            return Strategy(kind=StrategyKind.SPREAD)
        index, soft = divmod(choice - 2, 2)
        node = NodeID(f"node-{index % len(self.shape.nodes)}")
        return Strategy(kind=StrategyKind.NODE_AFFINITY, node=node, soft=bool(soft))

    def living_users(self) -> list[UserProcess]:
        return [process for process in self.users.values() if process.is_alive]

    def next_place(self) -> int:
        self.place_counter += 1
        return self.place_counter

    # ---- Messages ----------------------------------------------------------------------------------------------

    def enqueue(self, key: Key, act: Callable[[], None]) -> None:
        channel = self.channels.get(key)
        if channel is None:
            channel = self.channels[key] = deque()
        channel.append(act)

    def send(self, sender: Process, to: Address, message: e.Event, payloads: dict[bytes, Content]) -> None:
        assert to in self.processes or "/w" in to, f"{sender.address} sends {message} to {to}"
        # It goes to the life of the receiver that the sender has a connection to.
        receiver = self.processes.get(to)
        if receiver is None or not receiver.is_alive:
            return

        def deliver() -> None:
            if receiver.is_alive:
                receiver.payloads.update(payloads)
                receiver.handle(message)

        self.enqueue((sender.key, to), deliver)

    def bytes_arrive(self, target: NodeProcess, object_id: ObjectID, source: NodeID, content: Content) -> None:
        if target.is_alive:
            target.bytes[object_id] = content
            target.handle(e.ObjectReceived(object_id=object_id, source=source))
            if target.machine.store.is_readable(object_id):
                for to in target.passing.pop(object_id, ()):
                    target._send_object(c.SendObject(object_id=object_id, size_bytes=0, to=to))

    def step(self) -> bool:
        """Deliver one message, or do one thing that is due; False when there is nothing."""
        if not self.channels:
            return False
        self.steps += 1
        assert self.steps < STEPS_MAX, "the cluster does not come to rest"
        keys = list(self.channels)
        if self.shape.orderly:
            key = min(keys, key=self._rank)
            if self.rng.random() < 0.05:
                self._ranks[key] = self.rng.random() + 1
        else:
            key = keys[self.rng.randrange(len(keys))]
        channel = self.channels[key]
        act = channel.popleft()
        if not channel:
            del self.channels[key]
        act()
        return True

    def _rank(self, key: Key) -> float:
        rank = self._ranks.get(key)
        if rank is None:
            rank = self._ranks[key] = self.rng.random()
        return rank

    def settle(self) -> None:
        while self.step():
            pass

    # ---- Time --------------------------------------------------------------------------------------------------

    def sleep(self, process: UserProcess, ns: int, act: Callable[[], None]) -> None:
        self.timer_counter += 1
        self._sleepers.append((self.now_ns + ns, self.timer_counter, process, act))

    def tick(self) -> bool:
        """The earliest timer fires; False when there is none."""
        best: tuple[int, int] | None = None
        fire: Callable[[], None] | None = None
        for process in self.processes.values():
            for name, due in process.timers.items():
                if process.is_alive and (best is None or due < best):
                    best = due
                    fire = _fire(process, name)
        for sleeper in self._sleepers:
            if sleeper[2].is_alive and (best is None or sleeper[:2] < best):
                best = sleeper[:2]
                fire = self._wake(sleeper)
        if best is None or fire is None:
            return False
        self.now_ns = max(self.now_ns, best[0])
        fire()
        return True

    def _wake(self, sleeper: tuple[int, int, UserProcess, Callable[[], None]]) -> Callable[[], None]:
        def wake() -> None:
            self._sleepers.remove(sleeper)
            sleeper[3]()

        return wake

    def rest(self) -> None:
        """Deliver, and let timers fire when nothing is on its way, until nothing is left."""
        while True:
            self.settle()
            if not self.tick():
                return

    # ---- Faults ------------------------------------------------------------------------------------------------

    def process_gone(self, process: Process) -> None:
        """A process ends: for each receiver, what it had sent arrives up to a point."""
        process.is_alive = False
        process.timers.clear()
        self.had_faults = self.had_losses = True
        for key in [key for key in self.channels if key[0] == process.key]:
            channel = self.channels[key]
            is_message = Address(key[1]) in self.processes or key[1].startswith("bytes ")
            kept = self.rng.randint(0, len(channel)) if is_message else 0
            while len(channel) > kept:
                channel.pop()
            if not channel:
                del self.channels[key]

    def node_gone(self, node: NodeProcess) -> None:
        lost = [key for key in self.channels if key[0] == node.key and key[1].startswith("bytes ")]
        before = {key: len(self.channels[key]) for key in lost}
        self.process_gone(node)
        for key, count in before.items():
            if len(self.channels.get(key, ())) < count and self.rng.random() < 0.5:
                self._receive_fails(node, key)
        for address, worker in list(node.workers.items()):
            if worker is not None:
                self.process_gone(worker)
            del node.workers[address]

    def _receive_fails(self, source: NodeProcess, key: Key) -> None:
        """The receiver's runner sees that the source has stopped in the middle."""
        _, name, to = key[1].split()
        target = self.nodes[NodeID(to)]
        for object_id in [object_id for object_id in source.bytes if short(object_id) == name]:
            failed = e.ReceiveFailed(object_id=object_id, source=source.node)
            self.enqueue((target.key, f"broken {name} {source.node}"), partial(target.handle, failed))

    def kill_node(self, index: int, *, silently: bool) -> None:
        if len(self.shape.nodes) == 1:
            return
        node = self.nodes[NodeID(f"node-{1 + (index - 1) % (len(self.shape.nodes) - 1)}")]
        if not node.is_alive:
            return
        self.node_gone(node)
        if silently:
            silent = e.NodeSilent(node=node.node, incarnation=node.incarnation)
            self.enqueue((node.key, HEAD), lambda: self.head.handle(silent))
        else:
            lost = e.PeerLost(address=node.address)
            self.enqueue((node.key, HEAD), lambda: self._peer_lost(node, lost))

    def _peer_lost(self, node: NodeProcess, lost: e.PeerLost) -> None:
        head = self.head.machine
        assert isinstance(head, Head)
        if head.membership.is_alive(node.node, node.incarnation):  # a new life's connection is not lost
            self.head.handle(lost)

    def silence(self, index: int, heard_after: int) -> None:
        if len(self.shape.nodes) == 1:
            return
        node = self.nodes[NodeID(f"node-{1 + (index - 1) % (len(self.shape.nodes) - 1)}")]
        if not node.is_alive or node.heard_at is not None:
            return
        self.had_faults = self.had_losses = True
        node.heard_at = self.steps + heard_after
        silent = e.NodeSilent(node=node.node, incarnation=node.incarnation)
        self.enqueue((node.key, HEAD), lambda: self.head.handle(silent))

    def hear(self, *, all_nodes: bool = False) -> None:
        """Nodes that were silent for long enough are heard again."""
        for node in self.nodes.values():
            if node.heard_at is not None and (all_nodes or node.heard_at <= self.steps):
                node.heard_at = None
                if node.is_alive:
                    heard = e.NodeHeard(node=node.node, incarnation=node.incarnation)
                    self.enqueue((node.key, HEAD), _handle(self.head, heard))

    def reboot(self, index: int) -> None:
        index = index % len(self.shape.nodes)
        node = self.nodes[NodeID(f"node-{index}")]
        if not node.is_alive:
            self.start_node(index, node.incarnation + 1)

    def kill_worker(self, index: int) -> None:
        workers = [(node, address) for node in self.nodes.values() if node.is_alive for address in node.workers]
        if workers:
            self.had_faults = self.had_losses = True
            node, address = workers[index % len(workers)]
            node.end_worker(address, "killed by SIGKILL")

    # ---- Operations ----------------------------------------------------------------------------------------------

    def do(self, op: Op) -> None:
        match op:
            case Deliver(count=count):
                for _ in range(count):
                    self.step()
            case Settle():
                self.settle()
            case Tick():
                self.tick()
            case KillWorker(worker=index):
                self.kill_worker(index)
            case KillNode(node=index, silently=silently):
                self.kill_node(index, silently=silently)
            case Silence(node=index, heard_after=after):
                self.silence(index, after)
            case Reboot(node=index):
                self.reboot(index)
            case _:
                self.driver.spawn(self.driver.take(op, self.driver.frame))
        self.hear()

    # ---- What user code must see ---------------------------------------------------------------------------------

    def submitted(self, process: UserProcess, spec: TaskSpec) -> None:
        pass

    def started(self, process: UserProcess, task: Runnable) -> None:
        pass

    def note_error(self, error: ErrorInfo) -> None:
        """User code met an error. Without a fault, only these are expected: an object that left a full store may have
        no attempt left, and values that were made again refer to other objects than before."""
        self.errors.append(error)
        expected: tuple[ErrorKind, ...] = (
            ErrorKind.APPLICATION,
            ErrorKind.STORE_FULL,
            ErrorKind.TASK_UNSCHEDULABLE,
            ErrorKind.ACTOR_UNSCHEDULABLE,
            ErrorKind.ACTOR_DIED,
        )
        if self.had_losses:
            expected += (ErrorKind.RECONSTRUCTION_FAILED, ErrorKind.OBJECT_LOST)
        if self.had_cancels:
            expected += (ErrorKind.TASK_CANCELLED,)
        assert self.had_faults or error.kind in expected, f"without a fault: {error}"

    # ---- The end -------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """End the faults, come to rest, drop every reference, and demand that nothing is left."""
        self.faults_allowed, self.is_ending = False, True
        self.hear(all_nodes=True)
        for process in self.living_users():
            if process.is_driver:
                process.drop_streams(process.frame)
        self.rest()
        self._check_all_ended()
        for process in self.living_users():
            process.drop_frame(process.frame)
            for ref in process.kept:
                process.let_go(ref)
            process.kept = []
        self.rest()
        self._check_nothing_left()

    def _check_all_ended(self) -> None:
        for process in self.living_users():
            owner = process.machine
            stuck = [line for wait_id in owner.values.waits for line in owner.explanation.of_wait(wait_id)]
            assert not process.waits, f"{process.address} waits for ever: {stuck} {list(process.waits)}"
            assert not process.fibers, f"{process.address} has a fiber that does not end"
            assert owner.executor.current is None, f"{process.address} does not end {owner.executor.current}"
            assert not owner.executor.queue, f"{process.address} does not begin {owner.executor.queue}"
            for record in owner.tasks.records.values():
                is_alive_actor = record.spec.creates is not None and record.state is TaskState.PUSHED
                assert record.is_done or is_alive_actor, f"{process.address}: {record.story()} does not end"

    def _check_nothing_left(self) -> None:
        for process in self.living_users():
            self._check_owner_is_empty(process)
        for node in self.nodes.values():
            if node.is_alive:
                self._check_node_is_empty(node)
        head = self.head.machine
        assert isinstance(head, Head)
        _empty("head", "entries of the directory", head.directory.entries)
        _empty("head", "pending requests", head.scheduler.pending)
        for name, view in head.scheduler.views.items():
            _empty("head", f"placements on {name}", view.placed)
            total = self.total_of(name, dict(view.info.total.units))
            assert view.free == total, f"the head believes {name} to have {view.free} free of {total}"
        for actor_id, record in head.actors.records.items():
            # Of an actor whose maker died too early, the head has nothing but the subscribers.
            is_over = record.state is ActorState.DEAD or record.spec is None
            assert is_over, f"actor {short(actor_id)} lives on: {record.state}"
        _empty("head", "payloads", self.head.payloads)
        _empty("head", "leases of actors", head.actors.by_lease)

    def total_of(self, node: NodeID, total: dict[str, int]) -> dict[str, int]:
        """What a node offers whose total was this when it joined."""
        return total

    def _check_owner_is_empty(self, process: UserProcess) -> None:
        owner, who = process.machine, process.address
        story = {short(value.object_id): (str(value.state), value.story()) for value in owner.values.table.values()}
        assert not story, f"{who} keeps values {story}"
        _empty(who, "waits", owner.values.waits)
        _empty(who, "borrows that are not acknowledged", owner.values.unacknowledged)
        _empty(who, "removals held back", owner.values.removals_held_back)
        _empty(who, "views", owner.values.views)
        _empty(who, "loans", [*owner.values.loans, *owner.values.loans_kept])
        _empty(who, "arguments that are lodged", owner.rooms.lodged)
        _empty(who, "room", owner.rooms.kept)
        _empty(who, "arguments that are lent", owner.rooms.lent)
        _empty(who, "records", [record.story() for record in owner.tasks.records.values()])
        _empty(who, "results to acknowledge", owner.tasks.results_to_acknowledge)
        _empty(who, "leases", owner.leases.leases)
        _empty(who, "requests", owner.leases.requests)
        _empty(who, "results in transit", owner.executor.in_transit)
        _empty(who, "streams", owner.tasks.streams.consumed)
        _empty(who, "generators that run", owner.production.running)
        _empty(who, "items that wait", owner.production.queue)
        _empty(who, "items in transit", owner.production.in_transit)
        _empty(who, "payloads", process.payloads)
        _empty(who, "calls", [c for c in owner.actor_calls.clients.values() if c.queue or c.in_flight])

    def _check_node_is_empty(self, node: NodeProcess) -> None:
        machine, who = node.machine, node.address
        _empty(who, "objects", [(short(o.object_id), list(o.pins), o.owner) for o in machine.store.objects.values()])
        _empty(who, "room", {**machine.store.room_of, **node.rooms})
        _empty(who, "doubts about dead processes", machine.doubts)
        _empty(who, "bytes", {short(object_id): None for object_id in node.bytes})
        _empty(who, "spilled objects", machine.store.spilled)
        _empty(who, "bytes on disk", node.disk)
        _empty(who, "writers in line", machine.store.waiting)
        _empty(who, "wants", {short(object_id): want.users for object_id, want in machine.transfer.wants.items()})
        _empty(who, "leases", machine.scheduler.leases)
        _empty(who, "slots", machine.scheduler.waiting)
        _empty(who, "unstaffed slots", machine.scheduler.unstaffed)
        total = machine.scheduler.total
        assert machine.scheduler.free == total, f"{who} has {machine.scheduler.free} free of {total}"

    # ---- Replays ---------------------------------------------------------------------------------------------------

    def replay_all(self) -> list[Replay]:
        """Have fresh machines derive every command again."""
        return [
            replay(Log(spec=process.spec, seed="", decisions=process.decisions, is_cut_off=False))
            for process in self.everyone
        ]

    def check_replays(self) -> None:
        for process, result in zip(self.everyone, self.replay_all(), strict=True):
            assert result.difference is None, f"{process.address}: {result.difference}"

    def fingerprint(self) -> str:
        """A digest of every event and command."""
        digest = blake2b(digest_size=16)
        for process in self.everyone:
            digest.update(process.address.encode())
            for decision in process.decisions:
                digest.update(pack((decision.now_ns, encode(decision.event))))
                for command in decision.commands:
                    digest.update(pack(encode(command)))
        return digest.hexdigest()


def _fire(process: Process, timer: str) -> Callable[[], None]:
    return lambda: process.fire(timer)


def _handle(process: Process, event: e.Event) -> Callable[[], None]:
    return lambda: process.handle(event)


def _empty(who: str, what: str, left: Any) -> None:
    assert not left, f"{who} keeps {what}: {left}"


def run(
    shape: Shape, ops: Sequence[Op], *, seed: int = 0, replays: bool = False, faults: bool = True, **settings: Any
) -> Cluster:
    """Take a cluster through the operations, then to its end."""
    cluster = Cluster(shape, seed=seed, **settings)
    cluster.faults_allowed = faults
    for op in ops:
        cluster.do(op)
    cluster.finish()
    if replays:
        cluster.check_replays()
    return cluster


__all__ = [name for name in globals() if not name.startswith("_")]
