"""In words, what an object waits for that is not ready, as far as its process knows.

Theory of operation. An object waits for the task that makes it; a task waits for its arguments, for a worker, for its
actor, or runs. The words follow this chain, so far as it lies in this process and no further than `EXPLAINED_MAX`.

Relies on: values, tasks and actor calls of the process; the cluster as it was last announced.
Guarantees: looks, and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from dualray.shared.machines.owner.actor_calls import ActorCalls
from dualray.shared.machines.owner.task_records import TaskRecord
from dualray.shared.machines.owner.tasks import Tasks
from dualray.shared.machines.owner.values import Values
from dualray.shared.model.ids import Address, NodeID, ObjectID, TaskID, WaitID, short, stream_room_id
from dualray.shared.model.specs import FunctionTemplate, LeaseShape
from dualray.shared.model.states import TaskState, ValueState

EXPLAINED_MAX = 5
"""How far an explanation follows a chain of arguments that are not there."""


class Explanation:
    """See the module."""

    def __init__(
        self,
        *,
        address: Address,
        node: NodeID,
        values: Values,
        tasks: Tasks,
        actor_calls: ActorCalls,
        why_waiting: Callable[[LeaseShape], str | None],
    ) -> None:
        self.address = address
        self.node = node
        self.values = values
        self.tasks = tasks
        self.actor_calls = actor_calls
        self.why_waiting = why_waiting
        """Why no node that there is now could take a demand."""

    def first_cause(self, object_id: ObjectID) -> TaskRecord | None:
        """The task that an object waits for: the one that makes it or, if that waits for an argument, the one that
        makes that, and so on; None when it is no task of this process."""
        record = self.tasks.records.get(TaskID(object_id[:16]))
        for _ in range(EXPLAINED_MAX):
            if record is None or record.state is not TaskState.WAITING_ARGS or not record.missing:
                break
            record = self.tasks.records.get(TaskID(next(iter(record.missing))[:16]))
        return record

    def of_object(self, object_id: ObjectID, depth: int = 0) -> str:
        """In words, what an object that is not ready waits for, as far as this process knows."""
        value = self.values.table.get(object_id)
        if value is None:
            return f"object {short(object_id)} is not known to {self.address}"
        if value.owner != self.address:
            return (
                f"object {short(object_id)} is owned by {value.owner}, which has not reported that the object is ready"
            )
        if value.state is ValueState.STORED:
            return f"object {short(object_id)} is in a store and is being copied to {self.node}"
        record = self.tasks.records.get(TaskID(object_id[:16]))
        if object_id == stream_room_id(TaskID(object_id[:16])):
            return (
                f"task {short(object_id[:16])} has yielded as many items as _generator_backpressure_num_objects "
                "allows, and waits until the consumer takes one"
            )
        if record is None and value.state is ValueState.PENDING:
            return f"object {short(object_id)} is the result of a put() in {value.owner} that has not finished"
        if record is None:
            return f"object {short(object_id)} is {value.state}"
        return f"object {short(object_id)} is computed by {self._of_task(record, depth)}"

    def _of_task(self, record: TaskRecord, depth: int) -> str:
        spec = record.spec
        what = f"{spec.template.name} (task {short(spec.task_id)})"
        if record.state is TaskState.WAITING_ARGS:
            missing = ", ".join(short(object_id) for object_id in record.missing)
            words = f"{what}, which waits for its arguments {missing}"
            if depth < EXPLAINED_MAX and record.missing:
                words += f"; {self.of_object(next(iter(record.missing)), depth + 1)}"
            return words
        if record.state is TaskState.PUSHED:
            return f"{what}, which {record.worker} has"
        if spec.actor_id is not None:
            client = self.actor_calls.clients[spec.actor_id]
            words = f"{what}, which waits for actor {short(spec.actor_id)} ({client.state})"
            creation = self.tasks.records.get(TaskID(spec.actor_id))
            if creation is None or creation.is_done or depth >= EXPLAINED_MAX:
                return words
            if creation.state is TaskState.WAITING_ARGS:
                return f"{words}; the actor is created by {self._of_task(creation, depth + 1)}"
            return words + self._of_demand(creation.spec.template)
        return f"{what}, which waits for a worker with {spec.template.placement}" + self._of_demand(spec.template)

    def _of_demand(self, template: FunctionTemplate) -> str:
        """Why no node that there is can meet a demand; nothing when one can."""
        why = self.why_waiting(
            LeaseShape(resources=template.resources, placement=template.placement, strategy=template.strategy)
        )
        return f"; {why}" if why is not None else ""

    def of_wait(self, wait_id: WaitID) -> list[str]:
        """In words, each thing that a wait still misses."""
        wait = self.values.waiting.waits.get(wait_id)
        return [] if wait is None else [self.of_object(object_id) for object_id in wait.missing]
