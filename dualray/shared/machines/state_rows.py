"""What machines tell of themselves to people who ask: rows of tables, as plain values, and nothing that is decided.

    tasks             an owner: those that it has submitted and not forgotten, and the one that runs here
    objects           an owner: those that it owns; the head: where stored ones are; a node: its store
    waits             an owner: what the task that runs here waits for; the head: what waits for a place, and why
    late:OBJECT_ID    an owner: why an object is not there yet (late_row)
    workers           a node
    actors, named_actors, namespaces, nodes, placement_groups, processes      the head

Ids are hex. The names of states are today's Ray's where there is one for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dualray.shared.machines.owner.executor import Phase
from dualray.shared.model.ids import ObjectID, is_put
from dualray.shared.model.resources import UNITS, in_plain_names, without_bundles
from dualray.shared.model.specs import TaskSpec
from dualray.shared.model.states import ActorState, NodeHealth, TaskState, ValueState

if TYPE_CHECKING:
    from dualray.shared.machines.head.head import Head
    from dualray.shared.machines.node.node import Node
    from dualray.shared.machines.owner.owner import Owner
    from dualray.shared.machines.owner.tasks import TaskRecord

Row = dict[str, Any]

TASK_STATES = {
    TaskState.WAITING_ARGS: "PENDING_ARGS_AVAIL",
    TaskState.QUEUED: "PENDING_NODE_ASSIGNMENT",
    TaskState.PUSHED: "SUBMITTED_TO_WORKER",
    TaskState.FINISHED: "FINISHED",
    TaskState.FAILED: "FAILED",
}
RUNNING = "RUNNING"

_ACTOR_STATES = {
    ActorState.PENDING: "PENDING_CREATION",
    ActorState.ALIVE: "ALIVE",
    ActorState.RESTARTING: "RESTARTING",
    ActorState.DEAD: "DEAD",
}


# ---- An owner --------------------------------------------------------------------------------------------------------


def owner_rows(owner: Owner, table: str) -> list[Row]:
    """A driver's or worker's rows; none of a table that it has no part in."""
    if table == "tasks":
        rows = [_task_row(owner, record) for record in owner.tasks.records.values()]
        current = owner.executor.current
        if current is not None and owner.executor.phase is Phase.RUNNING:
            rows.append(_of_task(current.spec, current.attempt) | {"state": RUNNING, "worker_id": owner.address})
        if owner.actor_executor is not None:
            for call in owner.actor_executor.calls.values():
                row = _of_task(call.pushed.spec, call.pushed.attempt)
                rows.append(row | {"state": RUNNING, "worker_id": owner.address})
        return rows
    if table == "objects":
        return [
            {
                "object_id": value.object_id.hex(),
                "owner": owner.address,
                "state": str(value.state),
                "size_bytes": value.size_bytes,
                "is_put": is_put(value.object_id),
                "local_refs": value.local_refs,
                "used_by_tasks": value.task_uses,
                "in_values": value.container_uses,
                "borrowers": list(value.borrowers),
            }
            for value in owner.values.table.values()
            if value.owner == owner.address
            and value.actor is None
            and value.stream is None
            and value.state is not ValueState.FREED
        ]
    if table == "waits":
        running = [owner.executor.current] if owner.executor.current is not None else []
        if owner.actor_executor is not None:
            running += [call.pushed for call in owner.actor_executor.calls.values()]
        words = "; ".join(words for wait_id in owner.values.waits for words in owner.explain_wait(wait_id))
        return [
            {"task_id": task.spec.task_id.hex(), "name": task.spec.template.name, "words": words} for task in running
        ]
    if table.startswith("late:"):
        return [late_row(owner, ObjectID(bytes.fromhex(table.removeprefix("late:"))))]
    return []


def late_row(owner: Owner, object_id: ObjectID) -> Row:
    """Why an object is not there yet: in words; the task that it waits for and the worker that has it, if one has;
    else what that task, or the actor that it is for, demands, and its name."""
    row: Row = {"words": owner.explain_object(object_id), "worker": None, "demand": {}, "name": ""}
    value = owner.values.table.get(object_id)
    if value is not None and value.state is not ValueState.PENDING:
        return row | {"words": "it is ready"}
    record = owner.first_cause(object_id)
    if record is None:
        return row
    if record.spec.actor_id is not None and record.state is TaskState.QUEUED:
        record = owner.first_cause(ObjectID(record.spec.actor_id + bytes(4))) or record  # where is the actor?
    if record.spec.creates is not None or record.state is TaskState.QUEUED:
        row["demand"] = in_plain_names(record.spec.template.placement).as_floats()
        row["name"] = record.spec.template.name
    elif record.state is TaskState.PUSHED:
        row["worker"], row["task_id"] = record.worker, record.spec.task_id.hex()
    return row


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


def _task_row(owner: Owner, record: TaskRecord) -> Row:
    spec = record.spec
    state = TASK_STATES[record.state]
    worker = record.worker
    if spec.creates is not None and record.state is TaskState.PUSHED:  # to the head, which has it made
        client = owner.actor_calls.clients[spec.creates.actor_id]
        state = "FINISHED" if client.state is not ActorState.PENDING else "PENDING_NODE_ASSIGNMENT"
        worker = client.worker
    waits_for = [object_id.hex() for object_id in record.missing] if record.state is TaskState.WAITING_ARGS else []
    return _of_task(spec, record.attempt) | {"state": state, "worker_id": worker, "waits_for": waits_for}


# ---- A node ----------------------------------------------------------------------------------------------------------


def node_rows(node: Node, table: str) -> list[Row]:
    """A node manager's rows; none of a table that it has no part in."""
    if table == "workers":
        return [
            {
                "worker_id": worker.address,
                "node_id": node.node,
                "worker_type": "WORKER",
                "state": str(worker.state),
                "leased_by": worker.lease.owner if worker.lease is not None else None,
                "leased_for": worker.lease.name if worker.lease is not None else None,
                "is_blocked": worker.lease is not None and worker.lease.blocked,
                "resources": in_plain_names(worker.lease.resources).as_floats() if worker.lease is not None else {},
            }
            for worker in node.scheduler.workers.values()
        ]
    if table == "store":
        stored = [*node.store.objects.values(), *node.store.spilled.values()]
        return [
            {
                "object_id": each.object_id.hex(),
                "node_id": node.node,
                "owner": each.owner,
                "state": str(each.state),
                "size_bytes": each.size_bytes,
                "pinned_by": list(each.pins),
            }
            for each in stored
        ]
    return []


# ---- The head --------------------------------------------------------------------------------------------------------


def head_rows(head: Head, table: str) -> list[Row]:
    """The head's rows; none of a table that it has no part in."""
    match table:
        case "placement_groups":
            return head.scheduler.groups.rows()
        case "actors":
            return _actor_rows(head)
        case "named_actors":
            return head.actors.names.rows()
        case "nodes":
            return _node_rows(head)
        case "waits":
            return [{"words": words} for words in head.explain()]
        case "namespaces":
            return [{"job": job, "namespace": namespace} for job, namespace in head.actors.names.jobs.items()]
        case "objects":
            return [
                {
                    "object_id": object_id.hex(),
                    "owner": entry.owner,
                    "size_bytes": entry.size_bytes,
                    "node_ids": list(entry.nodes),
                }
                for object_id, entry in head.directory.entries.items()
                if entry.nodes
            ]
        case "processes":
            drivers: list[Row] = [
                {"address": driver, "node_id": node} for driver, node in head.membership.drivers.items()
            ]
            return drivers + [{"address": info.node, "node_id": info.node} for info in head.membership.alive()]
    return []


def _actor_rows(head: Head) -> list[Row]:
    return [
        {
            "actor_id": actor_id.hex(),
            "class_name": record.spec.template.name if record.spec is not None else "",
            "name": record.spec.creates.name if record.spec is not None and record.spec.creates is not None else "",
            "ray_namespace": head.actors.names.namespace_of_actor(actor_id, record.spec),
            "is_detached": record.is_detached,
            "state": _ACTOR_STATES[record.state],
            "num_restarts": record.life,
            "node_id": record.node,
            "worker_id": record.worker,
            "owner": record.spec.owner if record.spec is not None else None,
            "death_cause": record.error.message if record.error is not None else "",
        }
        for actor_id, record in head.actors.records.items()
    ]


def _node_rows(head: Head) -> list[Row]:
    rows: list[Row] = []
    for node, member in head.membership.members.items():
        view = head.scheduler.views.get(node)
        free = without_bundles(view.reported) if view is not None else {}
        is_draining = member.health is NodeHealth.ALIVE and node in head.membership.leaving
        rows.append(
            {
                "node_id": node,
                "state": "DRAINING" if is_draining else str(member.health),
                "incarnation": member.info.incarnation,
                "resources_total": member.info.total.as_floats(),
                "resources_available": {name: max(units, 0) / UNITS for name, units in free.items()},
                "store_bytes": member.info.store_bytes,
                "labels": dict(member.info.labels),
            }
        )
    return rows
