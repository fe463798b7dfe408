"""The processes of a cluster in memory (harness.py): a machine with its runner, and the node managers among them."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from dualray.shared.machines.node.node import Node
from dualray.shared.model import commands as c
from dualray.shared.model import events as e
from dualray.shared.model.ids import ActorID, Address, NodeID, ObjectID, TaskID, short
from dualray.shared.model.specs import Ref
from dualray.shared.proof.decision_log import Decision, MachineSpec
from tests.shared.steps import Body

if TYPE_CHECKING:
    from tests.shared.harness import Cluster
    from tests.shared.user_process import UserProcess


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
            case (
                c.WriteRecord()
                | c.WriteRecords()
                | c.NoteRetry()
                | c.TellFailure()
                | c.TellWait()
                | c.TellTaskTimes()
                | c.SettleRecords()
                | c.CollectGarbage()
            ):
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
