"""Decides which tasks of one process may run again for a lost result, and which of them would fail again.

Theory of operation. The record of a finished task keeps its arguments' entries alive (`lineage_uses`), though not their
bytes. When a result is demanded and no copy exists, the reconstruction policy plans which tasks run again, and asks
here what is known of the past. Tasks.py carries the plan out.

When the copies of a result cannot be brought to a node, the head asks whether they may be given up (directory.py). They
may if the plan for a lost result is possible, and not if it would come to lie where it lay: an actor's, or that of a
task which may run on one other node alone. Then the head demands the result as a lost one, and names the node.

A task that runs again because its result left a full store uses no retry, and needs none: eviction is no failure. One
that runs again because a node died uses one, as in Ray.

Relies on: the task records and the values of the process.
Guarantees: changes no task and no value, but for what it counts: moves, and remakes in vain.
"""

from __future__ import annotations

from collections.abc import Sequence

from dualray.shared.machines.base import Outbox
from dualray.shared.machines.owner.task_records import TaskRecord
from dualray.shared.machines.owner.value import Value, came_out_small
from dualray.shared.machines.owner.values import Values
from dualray.shared.model.errors import ErrorInfo, ErrorKind
from dualray.shared.model.events import CopiesDoubted, CopiesJudged, ObjectFailed
from dualray.shared.model.ids import HEAD, Address, NodeID, ObjectID, TaskID, is_put, short, task_of
from dualray.shared.model.states import TaskState, ValueState
from dualray.shared.policies.reconstruction import Plan, ReconstructionPolicy

MOVES_MAX = 10
"""So often the copies of one object are given up because a node could have none of them."""


class Lineage:
    """See the module."""

    def __init__(
        self,
        *,
        out: Outbox,
        address: Address,
        values: Values,
        records: dict[TaskID, TaskRecord],
        reconstruction: ReconstructionPolicy,
        remakes_max: int,
    ) -> None:
        self.out = out
        self.address = address
        self.values = values
        self.records = records
        self.reconstruction = reconstruction
        self.remakes_max = remakes_max
        self._is_eviction = False
        self.in_vain = (
            f"it was recomputed {remakes_max} times, and lost each time before a task that waits for it could start, "
            "while no other task ended: the object stores are too small for the arguments and results that such a task "
            "needs at the same time. Set object_store_memory= higher, let stores write to disk "
            '(limits={"eviction_policy": "cost"}), or split the work into more and smaller tasks'
        )

    def plan(self, object_id: ObjectID, *, is_eviction: bool = False) -> Plan:
        """Which tasks run again so that an object exists again, or why that is impossible. `is_eviction`: no retry is
        used, and none is needed."""
        self._is_eviction = is_eviction
        plan = self.reconstruction.plan(object_id, self)
        self._is_eviction = False
        return plan

    def dependencies(self, task: TaskID) -> Sequence[ObjectID] | None:
        """For the reconstruction policy: a task's arguments, or None when its lineage is not kept."""
        record = self.records.get(task)
        return None if record is None else [ref.object_id for ref in record.argument_refs]

    def is_available(self, object_id: ObjectID) -> bool:
        """For the reconstruction policy: whether the object exists, or is being made."""
        value = self.values.table.get(object_id)
        if value is None or value.state is not ValueState.FREED or value.owner != self.address:
            return value is not None
        record = None if is_put(object_id) else self.records.get(task_of(object_id))
        return record is not None and not record.is_done  # it runs again for another of its results

    def may_run_again(self, task: TaskID) -> bool:
        """For the reconstruction policy: whether the task has an attempt left."""
        record = self.records[task]
        handle = record.spec.actor_handle
        if handle is not None and handle.object_id not in self.values.table:
            return False  # its actor has ended with the last handle
        if self._is_eviction and record.spec.actor_id is None and record.spec.template.max_retries:
            return record.state is TaskState.FINISHED
        return record.state is TaskState.FINISHED and record.retries_left != 0

    def is_cancelled(self, task: TaskID) -> bool:
        """For the reconstruction policy: whether a task that has ended was cancelled too late. What a full store has
        dropped is made again all the same."""
        return self.records[task].is_cancelled and not self._is_eviction

    def why_not_again(self, record: TaskRecord, lost: Sequence[Value], *, is_eviction: bool) -> str | None:
        """Why a task that has ended now does not run again for results that were lost meanwhile, if so; `lost` are
        those that may be made in vain."""
        self._is_eviction = is_eviction
        may_run_again = self.may_run_again(record.spec.task_id)
        self._is_eviction = False
        if not may_run_again:
            return "the task that computed it has no attempt left"
        return self.in_vain if self.is_in_vain(record, lost) else None

    def on_doubted(self, event: CopiesDoubted) -> None:
        """None of the copies of an object of ours can be brought to some node: they may go if it can be made again."""
        error = self.why_not_stored(event.object_id)
        if error is not None:
            self.out.send(HEAD, ObjectFailed(object_id=event.object_id, error=error))
            return
        value = self.values.table[event.object_id]
        why_kept = (
            self._why_kept(value, event.node) if value.state is ValueState.STORED else None
        )  # else it is being made
        self.out.send(HEAD, CopiesJudged(object_id=event.object_id, why_kept=why_kept))

    def _why_kept(self, value: Value, node: NodeID) -> str | None:
        """Why copies must not be given up that a node cannot have, if so."""
        record = None if is_put(value.object_id) else self.records.get(task_of(value.object_id))
        if record is not None and record.spec.actor_id is not None:
            return "an actor computed it, and would compute it on the same node again"
        if record is not None and (bound_to := record.spec.template.strategy.only_node) not in (None, node):
            return f"the task that computed it may only run on {bound_to}"
        if value.moves == MOVES_MAX:
            return f"it was recomputed {MOVES_MAX} times because a node could not get a copy of it"
        why_kept = None
        if record is None or record.is_done:  # else it runs again already, for another of its results
            why_kept = self.plan(value.object_id).impossible
        if why_kept is None:
            value.moves += 1
        return why_kept

    @staticmethod
    def is_lost(value: Value) -> bool:
        """Whether the head has lost the last copy more often than we have made one."""
        return value.losses_demanded > value.losses_answered

    def why_not_stored(self, object_id: ObjectID) -> ErrorInfo | None:
        """Why there will be no stored copy of an object, if so."""
        value = self.values.table.get(object_id)
        if value is None or value.owner != self.address or value.state is ValueState.FREED:
            message = f"Object {short(object_id)} was freed, because its last reference had been dropped."
            return ErrorInfo(kind=ErrorKind.OBJECT_LOST, message=message)
        if value.state is ValueState.INLINE:
            return came_out_small(object_id)
        return value.error if value.state is ValueState.FAILED else None

    def is_in_vain(self, record: TaskRecord, lost: Sequence[Value]) -> bool:
        """Whether results that waiting tasks need are made again and again, and nothing comes of it: since the first
        time no other task has come to its end, none was submitted, and nobody's wait is over. What is made for a node
        that is held up, or was evicted by one, is not counted: its store may be full of what stands still behind a
        partition, and that has an end."""
        if not any(value.task_uses for value in lost):
            return False
        standing = frozenset(task for task, each in self.records.items() if not (each.is_done or each.has_finished))
        still = standing, frozenset(wait_id for wait_id, wait in self.values.waiting.waits.items() if not wait.timed)
        if record.stood != still:
            record.stood, record.remakes = still, 0
        record.remakes += 1
        return record.remakes > self.remakes_max
