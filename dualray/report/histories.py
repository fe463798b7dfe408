"""The lives of tasks, objects and nodes, put together from the rows of a trace.

A trace is a list of moments; here they become stretches of time: an attempt runs from its start to its end (or to the
death of its worker), a transfer from its first byte to its last, a node from its start to its death. A decision log
adds what no row tells: the resources that a task demanded, and when a process waited in `get` or `wait`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

from dualray.report.lineage import is_of_node
from dualray.report.record import Record, began_ns
from dualray.report.replayed import Replayed
from dualray.report.summary import RECONSTRUCTION
from dualray.report.traces import natural
from dualray.shared.model.commands import CompleteWait, RunTask, RunTasks
from dualray.shared.model.events import (
    GpuLost,
    NodeDied,
    NodesDied,
    TaskSubmitted,
    WaitStarted,
    WorkerBlocked,
    WorkerUnblocked,
    lives_over,
)
from dualray.shared.model.ids import Address, ObjectID, is_put, node_of
from dualray.shared.model.resources import CPU, UNITS
from dualray.shared.model.specs import TaskSpec
from dualray.shared.proof.trace import TraceEvent, TraceKind

TASK_HEX = 32
"""Hex digits of a task's id; an object's begins with its task's."""
RESTART = "restart"
LOST = "lost"
NOT_ENDED = "not ended"


@dataclass(slots=True, kw_only=True)
class Attempt:
    """One attempt of a task. Times are the trace's; None: it did not come to that.

    Attributes:
        cause: empty for the first attempt, else the reason of the retry: `retry`, `reconstruction`, or, of an actor's
            constructor, `restart`.
        queued_ns: when it was submitted, or queued again.
        outcome: empty when it finished, else the error's kind, `lost` (with its worker) or `not ended`.
    """

    task: str
    number: int
    name: str
    cause: str
    queued_ns: int
    pushed_ns: int | None = None
    pushed_by: str = ""
    worker: str = ""
    started_ns: int | None = None
    ended_ns: int | None = None
    outcome: str = NOT_ENDED

    @property
    def node(self) -> str:
        """Where it was pushed to."""
        return node_of(Address(self.worker))

    @property
    def is_done_again(self) -> bool:
        """Whether its work had been done, or begun, before."""
        return self.cause == RECONSTRUCTION or self.number > 0


@dataclass(slots=True, kw_only=True)
class TaskLife:
    """A task: `deps` are the objects among its arguments, `spec` what the log of its owner says of it."""

    task: str
    name: str
    owner: str
    submitted_ns: int
    deps: tuple[str, ...]
    attempts: dict[int, Attempt] = field(default_factory=dict)
    spec: TaskSpec | None = None
    actor_cpus: float | None = None
    """Of a method: what its actor holds."""

    @property
    def cpus(self) -> float:
        """What it keeps busy while it runs. An actor that holds no CPU, and a task of which no log tells, count one."""
        if self.actor_cpus is not None:
            return self.actor_cpus or 1.0
        if self.spec is None or self.spec.creates is not None:
            return 1.0
        return self.spec.template.resources.get(CPU) / UNITS

    def finished_by(self, time_ns: int) -> Attempt | None:
        """The last attempt that had finished by then."""
        done = [
            attempt
            for attempt in self.attempts.values()
            if attempt.outcome not in (LOST, NOT_ENDED) and attempt.ended_ns is not None and attempt.ended_ns <= time_ns
        ]
        return max(done, key=lambda attempt: attempt.ended_ns or 0, default=None)


@dataclass(slots=True, kw_only=True)
class Move:
    """A transfer between two stores; `ended_ns` None: it never arrived."""

    object_id: str
    source: str
    target: str
    size_bytes: int
    started_ns: int
    ended_ns: int | None = None


@dataclass(slots=True, kw_only=True)
class ObjectLife:
    """An object: `rows` are those of the trace that are about it, in order."""

    object_id: str
    size_bytes: int = 0
    rows: list[TraceEvent] = field(default_factory=list)
    moves: list[Move] = field(default_factory=list)
    consumers: list[str] = field(default_factory=list)

    @property
    def task(self) -> str:
        """The id of the task that returns it, or has put it."""
        return self.object_id[:TASK_HEX]

    @property
    def is_put(self) -> bool:
        return is_put(ObjectID(bytes.fromhex(self.object_id)))


@dataclass(slots=True, kw_only=True)
class NodeLife:
    """One life of a node: `ended_ns` None when it lived to the end."""

    node: str
    started_ns: int
    ended_ns: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """A process waited in `get` or `wait` for some of these objects; `task` is empty for the driver's program."""

    process: str
    task: str
    started_ns: int
    ended_ns: int
    objects: tuple[str, ...]


class Lives:
    """Everything that lived in a run. Times in ns; `start_ns` to `end_ns` is the run as its program saw it."""

    def __init__(self, record: Record) -> None:
        self.record = record
        self.tasks: dict[str, TaskLife] = {}
        self.objects: dict[str, ObjectLife] = {}
        self.nodes: dict[str, list[NodeLife]] = {}
        self.capacity: dict[str, dict[str, int]] = {}
        """Of each node: `CPU` and other resources in units, `object_store` in bytes, `nic` in bytes a second."""
        self.gpus_lost: dict[str, list[int]] = {}
        """Of each node, when one of its GPUs fell off the bus."""
        self.faults: list[TraceEvent] = []
        self.moves: list[Move] = []
        self.waits: dict[tuple[str, str], list[Wait]] = {}
        """By process and task, in order of their ends."""
        self.has_waits = False
        """Whether the waits were read, not guessed."""
        self.blocked: dict[str, list[tuple[int, int]]] = {}
        """Of each worker, when it had lent its CPU to others."""
        self._running: dict[str, dict[tuple[str, int], Attempt]] = {}
        self._under_way: dict[tuple[str, str, str], deque[Move]] = {}
        for event in record.events:
            self._take_in(event)
        self._read_logs()
        if not self.has_waits:
            self._guess_waits()
        self.zero_ns = began_ns(record.events)
        """The start of the first node: told moments count from here."""
        times = list(self._activity())
        self.start_ns = min(times, default=0)
        self.end_ns = max(times, default=self.start_ns)
        self._close()

    # ---- Rows ------------------------------------------------------------------------------------------------

    def _take_in(self, event: TraceEvent) -> None:
        match event.kind:
            case TraceKind.TASK_SUBMITTED:
                self._submitted(event)
            case TraceKind.TASK_PUSHED:
                attempt = self._attempt(event)
                attempt.pushed_ns, attempt.pushed_by, attempt.worker = event.time_ns, event.process, event.other
            case TraceKind.TASK_STARTED:
                attempt = self._attempt(event)
                attempt.started_ns, attempt.worker = event.time_ns, event.process
                self._running.setdefault(event.process, {})[event.subject, event.amount] = attempt
            case TraceKind.TASK_ENDED:
                attempt = self._attempt(event)
                attempt.ended_ns, attempt.outcome, attempt.worker = event.time_ns, event.other, event.process
                self._running.get(event.process, {}).pop((event.subject, event.amount), None)
            case TraceKind.TASK_RETRIED:
                self._retried(event)
            case TraceKind.NODE_STARTED:
                self._end_node(event.subject, event.time_ns)
                self.nodes.setdefault(event.subject, []).append(NodeLife(node=event.subject, started_ns=event.time_ns))
                self.capacity.setdefault(event.subject, {}).update(_capacity(event))
            case TraceKind.FAULT:
                self.faults.append(event)
                if is_of_node(event) and event.name == "kill node":
                    self._end_node(event.subject, event.time_ns)
                elif not is_of_node(event):
                    self._lose(event.subject, event.time_ns)
            case TraceKind.WORKER_ENDED:
                self._lose(event.subject, event.time_ns)
            case _ if len(event.subject) > TASK_HEX:
                self._of_object(event)
            case _:
                pass

    def _submitted(self, event: TraceEvent) -> None:
        life = self.tasks.get(event.subject)
        if life is None:
            life = self.tasks[event.subject] = TaskLife(
                task=event.subject,
                name=event.name,
                owner=event.process,
                submitted_ns=event.time_ns,
                deps=event.deps,
            )
            for dep in event.deps:
                self._object(dep).consumers.append(event.subject)
        self._attempt(event, number=0)

    def _attempt(self, event: TraceEvent, *, number: int | None = None) -> Attempt:
        life = self.tasks.get(event.subject)
        if life is None:  # its owner's rows were lost
            life = self.tasks[event.subject] = TaskLife(
                task=event.subject, name=event.name, owner="", submitted_ns=event.time_ns, deps=()
            )
        number = event.amount if number is None else number
        attempt = life.attempts.get(number)
        if attempt is None:
            attempt = life.attempts[number] = Attempt(
                task=event.subject, number=number, name=life.name, cause="", queued_ns=event.time_ns
            )
        return attempt

    def _retried(self, event: TraceEvent) -> None:
        attempt = self._attempt(event)
        attempt.cause, attempt.queued_ns = event.other, event.time_ns
        for earlier in self.tasks[event.subject].attempts.values():
            if earlier.number < attempt.number and earlier.started_ns is not None and earlier.ended_ns is None:
                earlier.ended_ns, earlier.outcome = event.time_ns, LOST
                self._running.get(earlier.worker, {}).pop((earlier.task, earlier.number), None)

    def _lose(self, worker: str, time_ns: int) -> None:
        for attempt in self._running.pop(worker, {}).values():
            attempt.ended_ns, attempt.outcome = time_ns, LOST

    def _end_node(self, node: str, time_ns: int) -> None:
        lives = self.nodes.get(node)
        if lives and lives[-1].ended_ns is None:
            lives[-1].ended_ns = time_ns
        for worker in [worker for worker in self._running if node_of(Address(worker)) == node]:
            self._lose(worker, time_ns)

    def _object(self, object_id: str) -> ObjectLife:
        life = self.objects.get(object_id)
        if life is None:
            life = self.objects[object_id] = ObjectLife(object_id=object_id)
        return life

    def _of_object(self, event: TraceEvent) -> None:
        life = self._object(event.subject)
        life.rows.append(event)
        if event.kind is TraceKind.OBJECT_STORED:
            life.size_bytes = event.amount
        elif event.kind is TraceKind.TRANSFER_STARTED:
            move = Move(
                object_id=event.subject,
                source=event.process,
                target=event.other,
                size_bytes=event.amount,
                started_ns=event.time_ns,
            )
            life.size_bytes = life.size_bytes or event.amount
            life.moves.append(move)
            self.moves.append(move)
            self._under_way.setdefault((event.subject, event.process, event.other), deque()).append(move)
        elif event.kind is TraceKind.TRANSFER_ENDED:
            begun = self._under_way.get((event.subject, event.other, event.process))
            if begun:
                begun.popleft().ended_ns = event.time_ns

    # ---- Logs ------------------------------------------------------------------------------------------------

    def _read_logs(self) -> None:
        actors: dict[bytes, float] = {}
        for owner in self.record.owners():
            self._read_owner(owner)
        for node in self.record.nodes():
            lives = self.record.logs[node]
            capacity = self.capacity.setdefault(node, {})
            capacity.update(lives[0].spec.total)
            capacity["object_store"] = lives[0].spec.store_bytes
            self._read_node(node)
        for task in self.tasks.values():
            if task.spec is not None and task.spec.creates is not None:
                actors[task.spec.creates.actor_id] = task.spec.template.resources.get(CPU) / UNITS
        for task in self.tasks.values():
            if task.spec is not None and task.spec.actor_id is not None:
                task.actor_cpus = actors.get(task.spec.actor_id, 0.0)

    def _read_owner(self, owner: str) -> None:
        begun: dict[int, tuple[int, WaitStarted]] = {}
        for decision in self.record.decisions(owner):
            if isinstance(decision.event, TaskSubmitted):
                self._note_spec(decision.event.spec)
            elif isinstance(decision.event, NodeDied | NodesDied):
                for node, incarnation in lives_over(decision.event).items():
                    self._note_end(node, incarnation, decision.now_ns)
            elif isinstance(decision.event, WaitStarted):
                self.has_waits = True
                begun[decision.event.wait_id] = (decision.now_ns, decision.event)
            for command in decision.commands:
                if isinstance(command, RunTask):
                    self._note_spec(command.spec)
                elif isinstance(command, RunTasks):
                    for push in command.tasks:
                        self._note_spec(push.spec)
                elif isinstance(command, CompleteWait) and command.wait_id in begun:
                    started_ns, wait = begun.pop(command.wait_id)
                    self._note_wait(owner, wait, started_ns, decision.now_ns)

    def _note_end(self, node: str, incarnation: int, time_ns: int) -> None:
        """The head has told an owner that a life of a node is over: it left, or was lost without a row that says so."""
        begun = [life for life in self.nodes.get(node, ()) if life.started_ns <= time_ns]
        if begun and begun[-1].ended_ns is None and len(begun) <= incarnation + 1:  # else its next life has begun
            begun[-1].ended_ns = time_ns

    def _note_spec(self, spec: TaskSpec) -> None:
        life = self.tasks.get(spec.task_id.hex())
        if life is not None:
            life.spec = spec

    def _note_wait(self, owner: str, wait: WaitStarted, started_ns: int, ended_ns: int) -> None:
        task = wait.task_id.hex() if wait.task_id is not None and "/" in owner else ""
        self.waits.setdefault((owner, task), []).append(
            Wait(
                process=owner,
                task=task,
                started_ns=started_ns,
                ended_ns=ended_ns,
                objects=tuple(ref.object_id.hex() for ref in wait.refs),
            )
        )

    def _read_node(self, node: str) -> None:
        since: dict[str, int] = {}
        for decision in self.record.decisions(node):
            match decision.event:
                case WorkerBlocked(worker=worker):
                    since.setdefault(worker, decision.now_ns)
                case WorkerUnblocked(worker=worker) if worker in since:
                    self.blocked.setdefault(worker, []).append((since.pop(worker), decision.now_ns))
                case GpuLost():
                    self.gpus_lost.setdefault(node, []).append(decision.now_ns)
                case _:
                    pass

    def _guess_waits(self) -> None:
        """Without a log: whoever submits after a task of his has ended is taken to have waited for it."""
        submitted: dict[str, list[int]] = {}
        ended: dict[str, list[tuple[int, str]]] = {}
        for task in self.tasks.values():
            submitted.setdefault(task.owner, []).append(task.submitted_ns)
            ended.setdefault(task.owner, []).extend(
                (attempt.ended_ns, task.task) for attempt in task.attempts.values() if attempt.ended_ns is not None
            )
        for owner, ends in ended.items():
            ends.sort()
            times = sorted({*submitted[owner], ends[-1][0]})
            position = 0
            for before_ns, after_ns in pairwise(times):
                last = None
                while position < len(ends) and ends[position][0] <= after_ns:
                    last = ends[position]
                    position += 1
                if last is not None and last[0] > before_ns:
                    self.waits.setdefault((owner, ""), []).append(
                        Wait(
                            process=owner, task="", started_ns=before_ns, ended_ns=last[0], objects=(last[1] + "0" * 8,)
                        )
                    )

    # ---- The end ---------------------------------------------------------------------------------------------

    def _activity(self) -> Iterator[int]:
        """The moments between which the run lies: what comes to rest after its program has ended is left out."""
        for task in self.tasks.values():
            yield task.submitted_ns
            for attempt in task.attempts.values():
                if attempt.started_ns is not None and attempt.outcome != NOT_ENDED:
                    yield attempt.ended_ns or attempt.started_ns
        for waits in self.waits.values():
            for wait in waits:
                yield wait.ended_ns

    def _close(self) -> None:
        for waits in self.waits.values():
            waits.sort(key=lambda wait: wait.ended_ns)
        for task in self.tasks.values():
            for attempt in task.attempts.values():
                if attempt.number and not attempt.cause:  # no task is retried: the head makes its actor again
                    attempt.cause = RESTART
                if attempt.started_ns is not None and attempt.ended_ns is None:
                    attempt.ended_ns = max(self.end_ns, attempt.started_ns)
        self.nodes = {node: self.nodes[node] for node in sorted(self.nodes, key=natural)}

    @cached_property
    def replayed(self) -> Replayed:
        """What the machines considered, by replaying their logs."""
        return Replayed(self.record)

    def attempts(self) -> Iterator[Attempt]:
        """Every attempt that started, task by task."""
        for task in self.tasks.values():
            for attempt in task.attempts.values():
                if attempt.started_ns is not None:
                    yield attempt


def _capacity(event: TraceEvent) -> dict[str, int]:
    """What a node's first row says that it has: `CPU 40000`."""
    pairs = (each.rpartition(" ") for each in event.deps)
    return {name: int(amount) for name, _, amount in pairs}
