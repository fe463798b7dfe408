"""One step of a core worker: an event goes to the owner machine, and the machine's commands are carried out.

`Host.lock` makes a step of it. Finalizers of references and views only append to a queue, which the next step takes in
first.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeVar

from dualray.shared.core.failures import failure_in_words
from dualray.shared.core.state import CoreState
from dualray.shared.core.task_times import each_time, time_row
from dualray.shared.handles import TERMINATE
from dualray.shared.model.commands import (
    ArmTimer,
    CancelTimer,
    CollectGarbage,
    Command,
    CompleteWait,
    CopyPayload,
    DropPayload,
    DropPayloads,
    ForgetTasks,
    InterruptTask,
    NoteRetry,
    RunTask,
    RunTasks,
    Send,
    SettleRecords,
    TellFailure,
    TellTaskTimes,
    TellWait,
    WriteRecord,
    WriteRecords,
)
from dualray.shared.model.events import (
    Event,
    RefsAdded,
    RefsDropped,
    RowsReported,
    TaskPushed,
    TasksPushed,
    TasksRan,
    ViewReleased,
)
from dualray.shared.model.ids import ObjectID
from dualray.shared.model.specs import Ref
from dualray.shared.proof.trace import TraceKind

T = TypeVar("T")

_UNREAD_TOLD_MAX: Final = 20
"""Errors that nobody has read, each of another kind, that are told in full when the program ends."""


def take_all(queue: list[T]) -> tuple[T, ...]:
    """What is in a queue to which others may append meanwhile, and from which nobody else takes."""
    taken = tuple([queue[index] for index in range(len(queue))])  # not tuple(queue): a finalizer may append within it
    del queue[: len(taken)]
    return taken


class CoreStep(CoreState):
    """Hands events to the machine, carries out its commands, and takes in what finalizers have queued."""

    def dispatch(self, event: Event) -> None:
        """Hand an event to the machine and carry out its commands."""
        with self.host.lock:
            if self._ran:
                self._take_in_ran()
            if self._dropped:
                self._take_in_dropped()
            self._handle(event)
            if self._released:
                self._take_in_released()
            self.host.end_step()

    def on_messages(self, messages: Iterable[tuple[Event, Sequence[tuple[bytes, bytes]]]]) -> None:
        """Messages have arrived, each with the bytes that travel beside it."""
        self.begin_step()
        try:
            if self._ran:
                self._take_in_ran()
            if self._dropped or self._is_woken:
                self._take_in_dropped()
            for message, payloads in messages:
                for key, data in payloads:
                    self.payloads[key] = data
                self._handle(message)
            if self._released:
                self._take_in_released()
            self.end_step()
        finally:
            self.leave_step()

    def _has_nothing_queued(self) -> bool:
        """Whether an event could be handled now without anything before it, and nobody notes events."""
        return not (self._ran or self._dropped or self._released or self._is_woken or self.has_notes or self.is_logged)

    def take_in_finalizers(self) -> None:
        """References and views that Python has dropped, and results of tasks, are reported to the machine."""
        if self._dropped or self._released or self._ran:
            with self.host.lock:
                self._take_in_finalizers()
                self.host.end_step()

    def _take_in_finalizers(self) -> None:
        if self._ran:
            self._take_in_ran()
        if self._dropped or self._is_woken:
            self._take_in_dropped()
        if self._released:
            self._take_in_released()

    def _take_in_ran(self) -> None:
        if self._ran:
            self._handle(TasksRan(outcomes=take_all(self._ran)))

    def _take_in_dropped(self) -> None:
        self._is_woken = False  # before the queue is looked at: what comes later wakes again
        while self._dropped:
            self._handle(RefsDropped(object_ids=take_all(self._dropped)))

    def _take_in_released(self) -> None:
        """After an event, and not before: an object that is read over and over again stays pinned meanwhile."""
        self._is_woken = False
        while self._released:
            for object_id in take_all(self._released):
                self._handle(ViewReleased(object_id=object_id))

    def _handle(self, event: Event) -> None:
        now_ns = self.now_ns()
        folded = self._folded
        if folded is None:
            commands = self.machine.handle(event, now_ns)
        else:
            commands = folded.handle(event, now_ns)
            if folded.owner is not None:
                self._owner, self._folded = folded.owner, None
        if self.is_logged:
            self.host.log(event, now_ns, commands)
        self._perform(commands)

    # ---- Commands ------------------------------------------------------------------------------------------

    def _perform(self, commands: Sequence[Command]) -> None:
        """Carry out what the machine has ordered."""
        for command in commands:
            if isinstance(command, Send):  # these five are most, and all that most workers get
                self._send(command)
            elif isinstance(command, WriteRecords):
                self.host.write_records(command)
            elif isinstance(command, DropPayloads):
                self._drop_payloads(command)
            elif (performers := self._performers) is None and isinstance(command, RunTask):
                self._run_task(command)
            elif performers is None and isinstance(command, RunTasks):
                self._run_tasks(command)
            else:
                if performers is None:
                    performers = self._performers = self._make_performers()
                performers[type(command)](command)

    def _make_performers(self) -> dict[type[Any], Callable[[Any], object]]:
        host = self.host
        return {
            CompleteWait: self._complete_wait,
            DropPayload: self._drop_payload,
            CopyPayload: self._copy_payload,
            ArmTimer: lambda command: host.arm_timer(command.timer, command.delay_ns),
            CancelTimer: lambda command: host.cancel_timer(command.timer),
            RunTask: self._run_task,
            RunTasks: self._run_tasks,
            ForgetTasks: self._forget_tasks,
            InterruptTask: self._interrupt_task,
            WriteRecord: host.write_record,
            NoteRetry: self._note_retry,
            TellFailure: self._tell_failure,
            TellWait: self._tell_wait,
            TellTaskTimes: self._tell_task_times,
            SettleRecords: lambda command: host.settle_records(),
            CollectGarbage: lambda command: host.collect_garbage(),
        }

    def _complete_wait(self, command: CompleteWait) -> None:
        wait = self._waits.pop(command.wait_id, None)
        if wait is not None:
            wait.ready, wait.error, wait.is_done = command.ready, command.error, True
            wait.signal.set()

    def _drop_payload(self, command: DropPayload) -> None:
        self.payloads.pop(command.key, None)

    def _drop_payloads(self, command: DropPayloads) -> None:
        for key in command.keys:
            self.payloads.pop(key, None)

    def _copy_payload(self, command: CopyPayload) -> None:
        if command.source in self.payloads:
            self.payloads[command.target] = self.payloads[command.source]

    def _note_retry(self, command: NoteRetry) -> None:
        self.trace(TraceKind.TASK_RETRIED, command.task_id, command.reason, "", command.attempt)

    def _tell_failure(self, command: TellFailure) -> None:
        if command.name.endswith(f".{TERMINATE}"):  # it has done what it was called for
            return
        words = failure_in_words(command.task_id, command.name, command.error)
        if words:
            self.host.tell(words)

    def _tell_wait(self, command: TellWait) -> None:
        self.host.tell(f"dualray: {command.words}.\n")

    def _tell_task_times(self, command: TellTaskTimes) -> None:
        epoch_ns, rows = self.host.epoch_ns(), list[str]()
        for task_id, attempt, name, start_ns, end_ns in each_time(self.kept_times) if self.kept_times else ():
            row = time_row(task_id, attempt, name, self.address, epoch_ns + start_ns, epoch_ns + end_ns)
            rows.append(json.dumps(row))
        task = self.current_task
        if task is not None and task.spec.actor_id is None and task.spec.creates is None:
            start_ns, name = epoch_ns + self.task_began_ns, task.spec.template.name
            rows.append(json.dumps(time_row(task.spec.task_id, task.attempt, name, self.address, start_ns, None)))
        self.send_out(command.requester, RowsReported(wait_id=command.wait_id, rows=tuple(rows)), ())

    def tell_unread_failures(self) -> None:
        """The program ends: errors that it holds references to, and has never read, are told now."""
        with self.host.lock:
            seen: dict[tuple[str, str], None] = {}
            left_out = 0
            for failure in self.machine.unread_failures():
                failure.is_read = True
                told = failure.told()
                kind = (told.name, told.error.message)
                if kind in seen or len(seen) == _UNREAD_TOLD_MAX:
                    left_out += 1
                    continue
                seen[kind] = None
                self._tell_failure(told)
            if left_out:
                self.host.tell(f"dualray: {left_out:,} more tasks failed, and the program never read their errors\n")

    def _send(self, command: Send) -> None:
        message = command.message
        if self.is_traced and isinstance(message, (TaskPushed, TasksPushed)):
            for push in (message,) if isinstance(message, TaskPushed) else message.each():
                self.trace(
                    TraceKind.TASK_PUSHED,
                    push.spec.task_id,
                    other=command.to,
                    name=push.spec.template.name,
                    amount=push.attempt,
                )
        payloads: Sequence[tuple[bytes, bytes]] = ()
        if command.payloads:
            keys, kept = command.payloads, self.payloads
            if len(keys) == 1:  # the way of most calls
                [key] = keys
                only = kept.get(key)
                payloads = () if only is None else ((key, only),)
            else:
                payloads = [(key, kept[key]) for key in keys if key in kept]
        self.send_out(command.to, message, payloads, command.urgent)

    def _run_task(self, command: RunTask) -> None:
        self._to_run.append(command)
        self.host.tasks_came()

    def _run_tasks(self, command: RunTasks) -> None:
        self._to_run.extend(command.tasks)
        self.host.tasks_came()

    def _forget_tasks(self, command: ForgetTasks) -> None:
        forgotten = {task.spec.task_id for task in command.tasks}
        self._to_run = [task for task in self._to_run if task.spec.task_id not in forgotten]

    def _interrupt_task(self, command: InterruptTask) -> None:
        waiting = (self.current_task, *self._to_run) if self.current_task is not None else self._to_run
        wanted = (command.task_id, command.attempt)
        for task in waiting:  # else it has just ended
            if (task.spec.task_id, task.attempt) == wanted:
                self.interrupted = wanted
                if task.spec.actor_id is None:  # a method goes on, and may ask whether it was cancelled
                    self.is_interrupt_due = True
                    self.host.interrupt()

    # ---- References ----------------------------------------------------------------------------------------

    def adopt(self, ref: Ref) -> None:
        """A reference was unpickled in this process."""
        self.dispatch(RefsAdded(refs=(ref,)))

    def drop(self, object_id: ObjectID) -> None:
        """A reference's Python object is gone. Called by finalizers: it only queues."""
        if not self.is_closed:
            self._dropped.append(object_id)
            self._wake_once()

    def _on_view_released(self, object_id: bytes) -> None:
        """A view of a stored object is gone. Called by finalizers: it only queues."""
        if not self.is_closed:
            self._released.append(ObjectID(object_id))
            self._wake_once()

    def _wake_once(self) -> None:
        """Have queued finalizers taken in soon; called after one was queued, by any thread and within any other one."""
        if not self._is_woken:
            self._is_woken = True
            self.host.wake()
