"""Tasks that this process executes: which is next, which was cancelled, and the report of one that has ended.

The user code itself runs in task_runner.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from dualray.shared.core.execution import ExecutionContext
from dualray.shared.core.values import CoreValues
from dualray.shared.machines.owner.plain_worker import PlainWorker
from dualray.shared.machines.owner.task_records import TASK_TABLE
from dualray.shared.model.commands import InterruptTask, RunTask, WriteRecord
from dualray.shared.model.events import Result, TaskPushed, TaskRan
from dualray.shared.model.ids import return_object_id
from dualray.shared.model.specs import ActorSpec

_CANCELLED_MAX = 1024
"""Cancelled calls of an actor that are remembered."""


class CoreTasks(CoreValues):
    """Keeps the tasks that were handed over, and reports their ends to the machine."""

    def begins(self, pushed: TaskPushed, payloads: Sequence[tuple[bytes, bytes]]) -> bool:
        """A call was pushed: whether it is the next to run, and nothing else follows from that; then that has happened.
        As `on_messages`, in fewer steps: most workers get nothing but such calls. Only where nobody else could take a
        step meanwhile."""
        folded = self._folded
        if folded is None or self._to_run or not self._has_nothing_queued():
            return False
        if not folded.starts(pushed, self.now_ns()):
            return False
        for key, data in payloads:
            self.payloads[key] = data
        self._to_run.append(pushed)
        return True

    @property
    def has_tasks(self) -> bool:
        """Whether there are tasks to run."""
        return bool(self._to_run)

    def next_task(self) -> RunTask | TaskPushed | None:
        """The next task that is to run, if there is one: it counts as begun."""
        self.begin_step()
        try:
            task = self.current_task = self._to_run.pop(0) if self._to_run else None
            return task
        finally:
            self.leave_step()

    def take_environment(self, text: str) -> None:
        """The task in hand, and all that follow here, run with a runtime environment.

        Raises:
            RuntimeEnvSetupError: it cannot be had here.
        """
        if self.runtime_env != text:
            self.host.take_environment(text)
            self.runtime_env = text

    def become_concurrent(self, promises: ActorSpec) -> None:
        """An actor is about to be constructed of which several methods may run at a time."""
        self._contexts = ExecutionContext(self._execution)
        self._threads_max = dict(promises.concurrency_groups)
        self._threads_max[""] = promises.max_concurrency
        performers = self._performers = self._make_performers()
        performers[InterruptTask] = self._cancel_call
        if promises.is_async:
            self._may_block_a_loop = True
            performers[RunTask] = self._start_on_loop
        else:
            performers[RunTask] = self._start_beside

    def _start_on_loop(self, command: RunTask) -> None:
        if command.spec.actor_id:
            self.host.start_on_loop(command)
        else:
            self._run_task(command)

    def _start_beside(self, command: RunTask) -> None:
        if command.spec.actor_id:
            assert self._threads_max is not None
            self.host.start_beside(command, self._threads_max[command.spec.template.concurrency_group])
        else:
            self._run_task(command)

    # ---- Cancellation --------------------------------------------------------------------------------------

    def _cancel_call(self, command: InterruptTask) -> None:
        if self._cancelled_calls is None:
            self._cancelled_calls = {}
        elif len(self._cancelled_calls) >= _CANCELLED_MAX:
            del self._cancelled_calls[next(iter(self._cancelled_calls))]
        self._cancelled_calls[command.task_id] = command.attempt
        if self._may_block_a_loop:
            self.host.cancel_on_loop(command.task_id)

    def was_call_cancelled(self, task: RunTask) -> bool:
        """Whether a method that runs as a coroutine was cancelled by who made the call."""
        cancelled = self._cancelled_calls
        return cancelled is not None and cancelled.get(task.spec.task_id) == task.attempt

    def is_cancelled(self) -> bool:
        """Whether who made the call that runs here has cancelled it."""
        execution = self.execution
        calls = self._cancelled_calls
        if calls is not None and calls.get(execution.task_id) == execution.attempt:
            return True
        return self.interrupted is not None and self.interrupted == (execution.task_id, execution.attempt)

    def is_to_be_interrupted(self) -> bool:
        """Whether the task in hand has still to be interrupted."""
        task = self.current_task
        return self.is_interrupt_due and task is not None and self.was_interrupted(task)

    def takes_interrupt(self) -> bool:
        """`is_to_be_interrupted`; then the caller does it."""
        if not self.is_to_be_interrupted():
            return False
        self.is_interrupt_due = False
        return True

    def was_interrupted(self, task: RunTask | TaskPushed) -> bool:
        """Whether the task was cancelled while it was in hand."""
        return self.interrupted is not None and self.interrupted == (task.spec.task_id, task.attempt)

    # ---- Reports -------------------------------------------------------------------------------------------

    def report_ran(self, ran: TaskRan, duration_ns: int, *, is_alone: bool = False) -> None:
        """A task has ended. Small results wait for those of the tasks behind it, if others were handed over with it."""
        if self._released and self.machine.loans:
            with self.host.lock:  # before the task is reported: what was lent to it goes back with the report
                self._take_in_released()
        if (self._to_run or self._ran) and ran.error is None and len(ran.results) == 1 and not is_alone:
            [result] = ran.results
            # A result that must wait for an acknowledgement waits alone; so does what comes after it.
            if result.inline and not result.nested and not self.machine.unacknowledged:
                self._ran.append((ran.task_id, ran.attempt, result.size_bytes, duration_ns))
                if not self._to_run:
                    self.take_in_finalizers()
                elif len(self._ran) == 1:
                    self.host.wake()
                return
        self.dispatch(ran)

    def report_small(self, task: RunTask | TaskPushed, size_bytes: int, duration_ns: int) -> None:
        """A task has returned one small value that refers to nothing; as `report_ran`."""
        task_id = task.spec.task_id
        if task.spec.deps or self._contexts is not None or (self._folded is None and self.machine.unacknowledged):
            result = Result(object_id=return_object_id(task_id, 0), size_bytes=size_bytes, inline=True)
            self.report_ran(TaskRan(task_id=task_id, attempt=task.attempt, results=(result,), error=None), duration_ns)
            return
        if (
            self._folded is not None
            and not self._to_run
            and self._report_alone(self._folded, task, size_bytes, duration_ns)
        ):
            return
        self._ran.append((task_id, task.attempt, size_bytes, duration_ns))
        if not self._to_run:
            self.take_in_finalizers()
        elif len(self._ran) == 1:
            self.host.wake()

    def _report_alone(self, folded: PlainWorker, task: RunTask | TaskPushed, size_bytes: int, duration_ns: int) -> bool:
        """Report a task that is the only one here, if nothing else is to be done: as `TasksRan`, in fewer steps."""
        pushed = folded.current
        if pushed is None or not self._has_nothing_queued():
            return False
        spec = task.spec
        self.begin_step()
        try:
            finished = folded.report(size_bytes, self.now_ns(), duration_ns)
            if finished is None:
                return False
            fields = folded.row_fields(spec, pushed.attempt)
            self.write_record(WriteRecord(table=TASK_TABLE, key=spec.task_id.hex(), fields=fields))
            object_id = return_object_id(spec.task_id, 0)
            self.send_out(pushed.reply_to, finished, ((object_id, self.payloads.pop(object_id)),))
            if spec.owner != self.address:
                self.payloads.pop(spec.task_id, None)
            self.end_step()
        finally:
            self.leave_step()
        return True
