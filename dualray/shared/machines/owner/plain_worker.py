"""The owner machine of a worker that has done nothing yet but run plain tasks, folded up.

Theory of operation. A worker is an owner like any other: it may submit, put, wait, become an actor. A hundred thousand
of them on a virtual cluster do none of this: they are handed calls that need nothing but what comes along, run them and
report. For these the owner's machine comes down to a queue, the task in hand and those handed over with it, and that is
all that is kept here. The first event that asks for anything else unfolds it: an `Owner` is made, takes over what there
is, and handles that event and all that follow.

Which tasks are plain is said in plain_tasks.py. It knows nothing that owner.py and executor.py do not: a test lets both
run beside one another and compares every command. The one exception is `keeps_rows=False`, for runs of which nobody
reads the task table: then no rows are written, and no payloads are dropped, for there are none.

Relies on: the owner machine, of which this is a special case.
Guarantees: the same commands for the same events, at any time.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from dualray.exceptions import InvariantViolation
from dualray.shared.machines.owner.owner import Owner
from dualray.shared.machines.owner.plain_tasks import RUN_MAX, is_plain, is_reported_with, runs_alone
from dualray.shared.machines.owner.task_records import TASK_TABLE, FinishedFields, task_row
from dualray.shared.model.commands import Command, DropPayload, DropPayloads, RunTask, RunTasks, Send, WriteRecords
from dualray.shared.model.config import Config
from dualray.shared.model.events import (
    ClusterChanged,
    NodeDied,
    NodesDied,
    Outcome,
    OwnerDied,
    Started,
    TaskFinished,
    TaskPushed,
    TaskRan,
    TasksFinished,
    TasksPushed,
    TasksRan,
    lives_over,
)
from dualray.shared.model.ids import Address, NodeID, TaskID, lived_on, return_object_id, short
from dualray.shared.model.specs import NodeInfo, TaskSpec
from dualray.shared.model.states import TaskState


class PlainWorker:
    """See the module."""

    __slots__ = (
        "_cluster",
        "_config",
        "_fields",
        "_handed",
        "_met",
        "_queue",
        "_started_ns",
        "address",
        "current",
        "keeps_rows",
        "node",
        "owner",
    )

    kind = "owner"

    def __init__(self, *, address: Address, node: NodeID, config: Config, keeps_rows: bool = True) -> None:
        self.address = address
        self.node = node
        self.keeps_rows = keeps_rows
        self.owner: Owner | None = None
        """Once it is unfolded."""
        self.current: TaskPushed | None = None
        """The task in hand."""
        self._config = config
        self._queue: deque[TaskPushed] | None = None
        self._handed: deque[TaskPushed] | None = None
        """What was handed over together with the task in hand."""
        self._met: Address | tuple[Address, ...] = ()
        """Whom it has to do with: mostly one process, and then without a tuple."""
        self._started_ns = 0
        self._cluster: tuple[NodeInfo, ...] = ()
        self._fields: FinishedFields | None = None

    def handle(self, event: Any, now_ns: int) -> list[Command]:
        """As any machine."""
        owner = self.owner
        if owner is not None:
            return owner.handle(event, now_ns)
        kind = type(event)
        if kind is TaskRan:
            if not self._handed and self._is_small(event):
                return self._ran(event, now_ns)
        elif kind is TaskPushed:
            if is_plain(event):
                return self._pushed(event, now_ns)
        elif kind is TasksPushed:
            if event.actor_id is None and not runs_alone(event.template):
                return self._several_pushed(event, now_ns)
        elif kind is TasksRan:
            return self._several_ran(event, now_ns)
        elif kind is ClusterChanged:
            self._cluster = event.nodes
            return []
        elif kind is NodeDied or kind is NodesDied:
            lives = lives_over(event)
            if not any(lived_on(peer, lives) for peer in self._peers()):
                if event.cluster is not None:
                    self._cluster = event.cluster.nodes
                return []
        elif kind is Started or (kind is OwnerDied and not self._knows(event.address)):
            return []
        return self.unfold().handle(event, now_ns)

    def unfold(self) -> Owner:
        """The whole machine, in the state that this one is in."""
        if self.owner is None:
            owner = self.owner = Owner(address=self.address, node=self.node, config=self._config)
            owner.cluster = self._cluster
            owner.values.borrows.met.update(dict.fromkeys(self._peers()))
            owner.executor.resume(
                self.current, tuple(self._handed or ()), tuple(self._queue or ()), started_ns=self._started_ns
            )
            self.current = self._queue = self._handed = None
            self._met = self._cluster = ()
        return self.owner

    # ---- Whom it knows ---------------------------------------------------------------------------------------

    def _peers(self) -> tuple[Address, ...]:
        return self._met if isinstance(self._met, tuple) else (self._met,)

    def _knows(self, peer: Address) -> bool:
        met = self._met
        return met == peer or (type(met) is tuple and peer in met)

    def _meet(self, peer: Address) -> None:
        """It has a lease on this worker: the node manager tells of its death without being asked."""
        self._met = peer if self._met == () else (*self._peers(), peer)

    # ---- Pushed ----------------------------------------------------------------------------------------------

    def starts(self, event: TaskPushed, now_ns: int) -> bool:
        """Whether a task that is pushed runs at once, and nothing else follows from it: then that has happened. As
        `handle`, which would answer with one RunTask; when it is False, nothing has happened yet."""
        if self.current is not None or self.owner is not None or not is_plain(event):
            return False
        if self._met != event.reply_to and not self._knows(event.reply_to):
            self._meet(event.reply_to)
        self.current = event
        self._started_ns = now_ns
        return True

    def _is_last(self, task_id: TaskID, attempt: int) -> bool:
        """Whether it is this attempt that arrived last, of those that are here."""
        last = self._queue[-1] if self._queue else self._handed[-1] if self._handed else self.current
        return last is not None and last.spec.task_id == task_id and last.attempt == attempt

    def _pushed(self, event: TaskPushed, now_ns: int) -> list[Command]:
        commands: list[Command] = []
        if self.current is not None and self._is_last(event.spec.task_id, event.attempt):
            return commands  # heard twice
        if self._met != event.reply_to and not self._knows(event.reply_to):
            self._meet(event.reply_to)
        if self.current is None:
            self.current = event
            self._started_ns = now_ns
            commands.append(RunTask(spec=event.spec, attempt=event.attempt, device_ids=event.device_ids))
        elif self._queue is None:
            self._queue = deque((event,))
        else:
            self._queue.append(event)
        return commands

    def _several_pushed(self, event: TasksPushed, now_ns: int) -> list[Command]:
        commands: list[Command] = []
        if self.current is not None and self._is_last(*event.calls[-1][:2]):
            return commands  # heard twice
        if self._met != event.owner and not self._knows(event.owner):
            self._meet(event.owner)
        if self._queue is None:
            self._queue = deque()
        self._queue.extend(event.each())
        if self.current is None:
            self._next(now_ns, commands)
        return commands

    def _next(self, now_ns: int, commands: list[Command]) -> None:
        """Begin with the next task, and those behind it."""
        queue = self._queue
        if not queue:
            return
        first = self.current = queue.popleft()
        self._started_ns = now_ns
        if not queue:
            commands.append(RunTask(spec=first.spec, attempt=first.attempt, device_ids=first.device_ids))
            return
        handed = self._handed = deque[TaskPushed]()
        while queue and len(handed) < RUN_MAX:
            handed.append(queue.popleft())
        commands.append(RunTasks(tasks=(first, *handed)))

    # ---- Ran -------------------------------------------------------------------------------------------------

    @staticmethod
    def _is_small(event: TaskRan) -> bool:
        """Whether it has returned without an error, and nothing that would have to be looked after."""
        return event.error is None and not any(result.nested for result in event.results)

    def _ran(self, event: TaskRan, now_ns: int) -> list[Command]:
        pushed = self.current
        if pushed is None or pushed.spec.task_id != event.task_id:
            raise InvariantViolation(f"task {short(event.task_id)} ended, but this worker was not running it")
        self.current = None
        duration_ns, self._started_ns = now_ns - self._started_ns, now_ns
        payloads: tuple[bytes, ...] = tuple([result.object_id for result in event.results if result.inline])
        finished = TaskFinished(
            task_id=event.task_id,
            attempt=event.attempt,
            worker=self.address,
            node=self.node,
            results=event.results,
            duration_ns=duration_ns,
        )
        send = Send(to=pushed.reply_to, message=finished, payloads=payloads, urgent=not self._queue)
        commands: list[Command] = [send]
        if self.keeps_rows:
            commands.insert(0, task_row(pushed.spec, TaskState.FINISHED, event.attempt, self.address))
            commands += [DropPayload(key=key) for key in payloads]
            if pushed.spec.args_bytes and pushed.spec.owner != self.address:
                commands.append(DropPayload(key=pushed.spec.task_id))
        if self._queue:
            self._next(now_ns, commands)
        return commands

    def report(self, size_bytes: int, now_ns: int, duration_ns: int | None = None) -> TasksFinished | None:
        """The task in hand has returned one small value, and it is the only one here: what is sent to its owner. As
        `handle(TasksRan)`, which would answer with one Send, and where rows are kept with a row (`row_fields`) before
        and what it drops after it; None: nothing has happened yet. It has run for `duration_ns`, or since it came."""
        pushed = self.current
        if pushed is None or self._handed or self._queue:
            return None
        if duration_ns is None:
            duration_ns = now_ns - self._started_ns
        self.current = None
        self._started_ns = now_ns
        finished = _new(TasksFinished)
        finished.worker = self.address
        finished.node = self.node
        finished.outcomes = ((pushed.spec.task_id, pushed.attempt, size_bytes, duration_ns),)
        return finished

    def row_fields(self, spec: TaskSpec, attempt: int) -> tuple[tuple[str, str], ...]:
        """The row of a task that has ended here."""
        fields = self._fields
        if fields is None:
            fields = self._fields = FinishedFields(self.address)
        return fields.of(spec, attempt)

    def _several_ran(self, event: TasksRan, now_ns: int) -> list[Command]:
        commands: list[Command] = []
        group: list[Outcome] = []
        first: TaskPushed | None = None
        handed = self._handed
        for outcome in event.outcomes:
            pushed = self.current
            if pushed is None or pushed.spec.task_id != outcome[0]:
                raise InvariantViolation(f"task {short(outcome[0])} ended, but this worker was not running the task")
            if first is not None and not is_reported_with(pushed, first):
                self._report(first, group, commands)
                group = []
            if not group:
                first = pushed
            group.append(outcome)
            self.current = handed.popleft() if handed else None
        self._started_ns = now_ns
        if first is not None:
            self._report(first, group, commands)
        if self.current is None and self._queue:
            self._next(now_ns, commands)
        return commands

    def _report(self, first: TaskPushed, outcomes: list[Outcome], commands: list[Command]) -> None:
        keys: tuple[bytes, ...] = tuple([return_object_id(outcome[0], 0) for outcome in outcomes])
        if self.keeps_rows:
            commands.append(
                WriteRecords(
                    table=TASK_TABLE,
                    keys=tuple([outcome[0].hex() for outcome in outcomes]),
                    fields=self.row_fields(first.spec, first.attempt),
                )
            )
        finished = TasksFinished(worker=self.address, node=self.node, outcomes=tuple(outcomes))
        urgent = not (self._queue or self.current)
        commands.append(Send(to=first.reply_to, message=finished, payloads=keys, urgent=urgent))
        if self.keeps_rows:
            dropped: list[bytes] = list(keys)
            if first.spec.owner != self.address:
                dropped += [outcome[0] for outcome in outcomes]
            commands.append(DropPayloads(keys=tuple(dropped)))

    # ---- Invariants ------------------------------------------------------------------------------------------

    def check_invariants(self) -> None:
        """As any machine."""
        if self.owner is not None:
            self.owner.check_invariants()
        elif self.current is None and (self._queue or self._handed):
            raise InvariantViolation(
                f"tasks are waiting on worker {self.address}, but worker {self.address} runs no task"
            )


_new = object.__new__
