"""Handles pushed tasks whose worker returns them, dies, or cannot be reached.

Theory of operation. A lease that is lost names the tasks that its worker had, the oldest first. The oldest may have run
and uses a retry; those behind it had mostly not begun, and are placed again. So are tasks that a worker gives back.

Relies on: tasks that may not run twice are never behind another one (leases.py).
Guarantees: each task of a lost lease is queued again or has failed; what is queued again is in `Tasks.given_back`.
"""

from __future__ import annotations

from collections.abc import Mapping

from dualray.shared.machines.base import Outbox
from dualray.shared.machines.owner.leases import Leases
from dualray.shared.machines.owner.reserved_space import Rooms
from dualray.shared.machines.owner.task_records import cancelled
from dualray.shared.machines.owner.tasks import Tasks
from dualray.shared.model.errors import ErrorInfo, ErrorKind
from dualray.shared.model.events import LeasedWorkerDied, LinkLost, TasksRecalled
from dualray.shared.model.ids import NodeID, TaskID, short
from dualray.shared.model.states import TaskState


class Losses:
    """See the module."""

    def __init__(self, *, out: Outbox, rooms: Rooms, tasks: Tasks, leases: Leases) -> None:
        self.out = out
        self.rooms = rooms
        self.tasks = tasks
        self.leases = leases

    def on_recalled(self, event: TasksRecalled) -> None:
        """A worker gives back what it had not started."""
        for task in event.tasks:
            self.rooms.settle(event.worker, task)
            record = self.tasks.records.get(task)
            if record is None or record.state is not TaskState.PUSHED or record.worker != event.worker:
                continue
            assert record.lease_id is not None
            self.leases.recalled(task, record.lease_id)
            if record.is_cancelled:
                self.tasks.fail(record, cancelled(record.spec))
                continue
            self.tasks.set_queued(record)
            self.tasks.given_back.append(task)
            self.out.needs_drain = True

    def on_leased_worker_died(self, event: LeasedWorkerDied) -> None:
        """The worker of a lease is gone, with what it ran."""
        self.rooms.on_process_died((event.worker,))
        lost, error = self.leases.lost(event), event.error
        if lost:
            error = ErrorInfo(kind=error.kind, message=f"{self._name_of(lost[0])} was lost: {error.message}")
        self._attempts_lost(lost, error)

    def on_nodes_died(self, lives: Mapping[NodeID, int]) -> None:
        """What was leased on these nodes is gone with them."""
        for node, incarnation in lives.items():
            for lost in self.leases.lost_with_node(node, incarnation):
                running = f"Node {node} died while it ran {self._name_of(lost[0])}." if lost else ""
                self._attempts_lost(lost, ErrorInfo(kind=ErrorKind.NODE_DIED, message=running))

    def on_link_lost(self, event: LinkLost, why: str) -> int:
        """What was pushed there may have run, and its report be lost: each of these tasks uses a retry. How many there
        are."""
        tasks = [task for lost in self.leases.lost_with_node(event.node, event.incarnation) for task in lost]
        for task in tasks:
            message = f"{self._name_of(task)} got no answer: {why}."
            self._attempts_lost([task], ErrorInfo(kind=ErrorKind.WORKER_UNREACHABLE, message=message))
        return len(tasks)

    def _name_of(self, task: TaskID) -> str:
        return f"{self.tasks.records[task].spec.template.name} (task {short(task)})"

    def _attempts_lost(self, tasks: list[TaskID], error: ErrorInfo) -> None:
        """The oldest task of a lost worker may have been running. The others mostly had not started: they use no retry.
        But the oldest may have ended, and the news of it be lost with the worker: what begins again is another attempt.
        Tasks that may not run twice are never behind another one (leases.py)."""
        for position, task in enumerate(tasks):
            record = self.tasks.records[task]
            record.again = True
            if position == 0 or record.is_cancelled:
                if self.tasks.attempt_lost(record, error):
                    self.tasks.given_back.append(task)
                    self.out.needs_drain = True
            else:
                record.attempt += 1
                self.tasks.set_queued(record)
                self.tasks.given_back.append(task)
                self.out.needs_drain = True
