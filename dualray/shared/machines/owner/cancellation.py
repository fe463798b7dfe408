"""Cancelling tasks: at their owner, and at the worker that has them.

Theory of operation. The owner of an object knows the task that makes it. One that waits, for arguments, for a lease or
in its actor's order, fails at once. One that was pushed is not tried again, and its worker is told: if it has not begun
it is taken from the queue; if it runs, it is interrupted, or, by force, its worker ends. In either case the worker
reports it, or its death does, and only then the task fails; a result that was faster stands. As on Ray, no such result
is made again if it is lost with its node. The worker that has a task cancels also what the task has submitted, when it
is asked to.

A worker that is to end by force has given back what it had not begun before it asks its node manager for its end, and
gives back what comes then. One that cannot hear, because its user code holds the interpreter, is ended by its node
manager after `FORCE_NS`.

A method of an actor is interrupted only where it is a coroutine that waits, and its actor is never killed: others need
the actor as it is.

Relies on: leases.py, actor_calls.py and executor.py for the task's place.
Guarantees: a task that was cancelled before it began does not begin; it ends once, and so do those that
need its result.
"""

from __future__ import annotations

from collections.abc import Callable

from dualray.shared.machines.base import Outbox
from dualray.shared.machines.owner.actor_calls import ActorCalls
from dualray.shared.machines.owner.executor import Executor
from dualray.shared.machines.owner.leases import Leases
from dualray.shared.machines.owner.task_records import TaskRecord, cancelled
from dualray.shared.machines.owner.tasks import Tasks
from dualray.shared.model.commands import ArmTimer
from dualray.shared.model.events import CancelAsked, CancelRequested, TaskUnwanted, WorkerUnwanted
from dualray.shared.model.ids import Address, NodeID, TaskID, is_put, node_of, short, task_of
from dualray.shared.model.states import TaskState

FORCE_TIMER = "force:"
FORCE_NS = 2_000_000_000


class Cancellation:
    """See the module."""

    def __init__(
        self,
        *,
        out: Outbox,
        address: Address,
        node: NodeID,
        tasks: Tasks,
        leases: Leases,
        actor_calls: ActorCalls,
        executor: Executor,
        end_worker: Callable[[], None],
    ) -> None:
        self.out = out
        self.address = address
        self.node = node
        self.tasks = tasks
        self.leases = leases
        self.actor_calls = actor_calls
        self.executor = executor
        self._end_worker = end_worker

    # ---- At the owner ----------------------------------------------------------------------------------------

    def on_asked(self, event: CancelAsked) -> None:
        """`cancel` was called in this process."""
        object_id, owner = event.ref
        if owner == self.address:
            self._cancel(task_of(object_id), force=event.force, recursive=event.recursive)
        else:
            self.out.send(owner, CancelRequested(object_id=object_id, force=event.force, recursive=event.recursive))

    def on_requested(self, event: CancelRequested) -> None:
        """`cancel` was called in a process that has borrowed the object."""
        if not is_put(event.object_id):
            self._cancel(task_of(event.object_id), force=event.force, recursive=event.recursive)

    def _cancel(self, task: TaskID, *, force: bool, recursive: bool) -> None:
        record = self.tasks.records.get(task)
        if record is None or record.spec.creates is not None:
            return
        record.is_cancelled = True
        if record.is_done:
            return
        if record.state is TaskState.PUSHED:
            self._tell_worker(record, force=force and record.spec.actor_id is None, recursive=recursive)
            return
        if record.state is TaskState.QUEUED and record.spec.actor_id is None:
            self.leases.forget(task)
        self.tasks.fail(record, cancelled(record.spec))
        if record.spec.actor_id is not None:
            self.actor_calls.gave_way(record)

    def _tell_worker(self, record: TaskRecord, *, force: bool, recursive: bool) -> None:
        assert record.worker is not None
        task = record.spec.task_id
        unwanted = TaskUnwanted(task_id=task, attempt=record.attempt, force=force, recursive=recursive)
        self.out.send(record.worker, unwanted)
        if force:
            self.out.add(ArmTimer(timer=f"{FORCE_TIMER}{task.hex()}", delay_ns=FORCE_NS))

    def on_force_timer(self, timer: str) -> None:
        """The worker of a task that was cancelled by force has had its time."""
        record = self.tasks.records.get(TaskID(bytes.fromhex(timer.removeprefix(FORCE_TIMER))))
        if record is not None and record.is_cancelled and record.state is TaskState.PUSHED:
            assert record.worker is not None
            self._ask_for_end(record.worker, record.spec.task_id)

    def _ask_for_end(self, worker: Address, task: TaskID) -> None:
        reason = f"cancel(force=True) of task {short(task)}"
        self.out.send(Address(node_of(worker)), WorkerUnwanted(worker=worker, reason=reason))

    # ---- At the worker ---------------------------------------------------------------------------------------

    def on_unwanted(self, event: TaskUnwanted) -> None:
        """The owner of a task that was pushed to this process does not want it any more."""
        if self.executor.unwanted(event):
            self.executor.recall_waiting()
            self._end_worker()
            self._ask_for_end(self.address, event.task_id)
        if event.recursive:
            children = [task for task, record in self.tasks.records.items() if record.spec.parent == event.task_id]
            for task in children:
                self._cancel(task, force=event.force, recursive=True)
