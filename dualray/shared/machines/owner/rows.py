"""The rows that a driver or worker has of the tables of the cluster (state_rows.py): plain values, nothing decided."""

from __future__ import annotations

from dualray.shared.machines.owner.actor_calls import ActorCalls
from dualray.shared.machines.owner.actor_executor import ActorExecutor
from dualray.shared.machines.owner.executor import Executor, Phase
from dualray.shared.machines.owner.explanation import Explanation
from dualray.shared.machines.owner.task_records import TaskRecord
from dualray.shared.machines.owner.tasks import Tasks
from dualray.shared.machines.owner.values import Values
from dualray.shared.machines.state_rows import CALL_FETCHES, CALL_WAITS, RUNNING, TASK_STATES, Row
from dualray.shared.model.events import TaskPushed
from dualray.shared.model.ids import Address, ObjectID, TaskID, is_put
from dualray.shared.model.resources import in_plain_names
from dualray.shared.model.specs import TaskSpec
from dualray.shared.model.states import ActorState, TaskState, ValueState


class OwnerRows:
    """What a driver or worker tells: see state_rows.py."""

    def __init__(
        self,
        *,
        address: Address,
        values: Values,
        tasks: Tasks,
        actor_calls: ActorCalls,
        executor: Executor,
        explanation: Explanation,
    ) -> None:
        self.address = address
        self.values = values
        self.tasks = tasks
        self.actor_calls = actor_calls
        self.executor = executor
        self.actor_executor: ActorExecutor | None = None
        """Of an actor of which several methods may run at a time."""
        self.explanation = explanation

    def of(self, table: str) -> list[Row]:
        """A driver's or worker's rows; none of a table that it has no part in."""
        if table == "tasks":
            rows = [self._task_row(record) for record in self.tasks.records.values()]
            for pushed, state in self._in_hand():
                rows.append(_of_task(pushed.spec, pushed.attempt) | {"state": state, "worker_id": self.address})
            return rows
        if table == "objects":
            return [
                {
                    "object_id": value.object_id.hex(),
                    "owner": self.address,
                    "state": str(value.state),
                    "size_bytes": value.size_bytes,
                    "is_put": is_put(value.object_id),
                    "local_refs": value.local_refs,
                    "used_by_tasks": value.task_uses,
                    "in_values": value.container_uses,
                    "borrowers": list(value.borrowers),
                }
                for value in self.values.table.values()
                if value.owner == self.address
                and value.actor is None
                and value.stream is None
                and value.state is not ValueState.FREED
            ]
        if table == "waits":
            running = [self.executor.current] if self.executor.current is not None else []
            if self.actor_executor is not None:
                running += [call.pushed for call in self.actor_executor.calls.values()]
            words = "; ".join(
                words for wait_id in self.values.waiting.waits for words in self.explanation.of_wait(wait_id)
            )
            return [
                {"task_id": task.spec.task_id.hex(), "name": task.spec.template.name, "words": words}
                for task in running
            ]
        if table.startswith("late:"):
            return [self.late(ObjectID(bytes.fromhex(table.removeprefix("late:"))))]
        return []

    def _in_hand(self) -> list[tuple[TaskPushed, str]]:
        """The task that runs here, or the calls that an actor has, each with its state."""
        executor, actor = self.executor, self.actor_executor
        found: list[tuple[TaskPushed, str]] = []
        if executor.current is not None and executor.phase is Phase.RUNNING:
            found.append((executor.current, RUNNING))
        if executor.is_actor:
            if executor.current is not None and executor.phase is Phase.FETCHING:
                found.append((executor.current, CALL_FETCHES))
            found += [(pushed, CALL_WAITS) for waiting in (executor.handed, executor.queue) for pushed in waiting]
        if actor is not None:
            found += [(call.pushed, RUNNING) for call in actor.calls.values()]
            found += [(pushed, CALL_FETCHES) for _, pushed in actor.fetching.values()]
            for group in actor.groups.values():
                found += [(pushed, CALL_WAITS) for pushed, _ in group.fetched]
                found += [(pushed, CALL_WAITS) for pushed in group.queue]
        return found

    def late(self, object_id: ObjectID) -> Row:
        """Why an object is not there yet: in words; the task that it waits for and the worker that has it, if one has;
        else what that task, or the actor that it is for, demands, and its name."""
        row: Row = {"words": self.explanation.of_object(object_id), "worker": None, "demand": {}, "name": ""}
        value = self.values.table.get(object_id)
        if value is not None and value.state is not ValueState.PENDING:
            return row | {"words": "it is ready"}
        record = self.explanation.first_cause(object_id)
        if record is None:
            return row
        if record.spec.actor_id is not None and record.state is TaskState.QUEUED:
            actor = ObjectID(record.spec.actor_id + bytes(4))
            record = self.explanation.first_cause(actor) or record  # where is the actor?
        if record.spec.creates is not None or record.state is TaskState.QUEUED:
            row["demand"] = in_plain_names(record.spec.template.placement).as_floats()
            row["name"] = record.spec.template.name
        elif record.state is TaskState.PUSHED:
            row["worker"], row["task_id"] = record.worker, record.spec.task_id.hex()
        return row

    def call_name(self, task: TaskID | None) -> str | None:
        """What a call is called that runs in this process, beside others."""
        call = self.actor_executor.calls.get(task) if self.actor_executor is not None and task is not None else None
        return None if call is None else call.pushed.spec.template.name

    def _task_row(self, record: TaskRecord) -> Row:
        spec = record.spec
        state = TASK_STATES[record.state]
        worker = record.worker
        if spec.creates is not None and record.state is TaskState.PUSHED:  # to the head, which has it made
            client = self.actor_calls.clients[spec.creates.actor_id]
            state = "FINISHED" if client.state is not ActorState.PENDING else "PENDING_NODE_ASSIGNMENT"
            worker = client.worker
        waits_for = [object_id.hex() for object_id in record.missing] if record.state is TaskState.WAITING_ARGS else []
        return _of_task(spec, record.attempt) | {"state": state, "worker_id": worker, "waits_for": waits_for}


def _of_task(spec: TaskSpec, attempt: int) -> Row:
    actor_id = spec.actor_id or (spec.creates.actor_id if spec.creates is not None else None)
    kind = "NORMAL_TASK" if actor_id is None else "ACTOR_TASK" if spec.creates is None else "ACTOR_CREATION_TASK"
    return {
        "task_id": spec.task_id.hex(),
        "name": spec.template.name,
        "type": kind,
        "attempt_number": attempt,
        "owner": spec.owner,
        "parent_task_id": spec.parent.hex(),
        "actor_id": actor_id.hex() if actor_id is not None else None,
        "required_resources": in_plain_names(spec.template.placement).as_floats(),
    }
