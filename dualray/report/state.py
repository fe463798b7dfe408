"""The state at the end of a finished run: the tables of `dualray.util.state`, as far as its record tells.

Tasks, workers, nodes and stored objects are read from the traces. Actors and placement groups are the head's: a fresh
head that handles the events of its log again has them. No record tells references.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from dualray.report.record import Record, began_ns
from dualray.report.requests import Requests
from dualray.shared.machines.head.head import Head
from dualray.shared.model.ids import HEAD, Address, job_of, node_of
from dualray.shared.model.states import NodeHealth
from dualray.shared.proof.trace import TraceEvent, TraceKind

Row = dict[str, Any]


def rows_of_run(events: Iterable[TraceEvent], table: str) -> list[Row]:
    """The rows of a table at the end of the run.

    Raises:
        ValueError: a table of which traces know nothing.
    """
    makers: dict[str, Callable[[Iterable[TraceEvent]], list[Row]]] = {
        "tasks": _tasks,
        "workers": _workers,
        "nodes": _nodes,
        "objects": _objects,
    }
    if table not in makers:
        raise ValueError(
            f"the trace of a run does not show {table.replace('_', ' ')}. A trace shows only {', '.join(makers)}"
        )
    return makers[table](sorted(events, key=lambda event: event.time_ns))


def rows_of_record(record: Record, table: str) -> list[Row]:
    """As `rows_of_run`, with the head's tables; an attempt that was lost or failed, and was retried, has a row of its
    own, behind the tasks' rows. Moments count from the start of the first node, as those of faults do.

    Raises:
        ValueError: nothing in the record tells this table; the message says how to record it.
    """
    if table in HEADS_TABLES:
        head = _head_at_the_end(record)
        if head is None:
            raise ValueError(
                "this directory has no decision log of the head process, so dualray cannot list the "
                f"{table.replace('_', ' ')} of the run. Run the program again with --decision-log DIR, or with "
                "init(decision_log=DIR)"
            )
        return head.rows(table)
    if table in ("nodes", "workers"):
        return _as_the_head_knew(rows_of_run(record.events, table), table, record)
    if table != "tasks":
        return rows_of_run(record.events, table)
    lost: list[Row] = []
    rows = _tasks(sorted(record.events, key=lambda event: event.time_ns), lost)
    _fail_refused(rows, record)
    _complete_tasks([*rows, *lost], record)
    return [*rows, *lost]


def _fail_refused(rows: Iterable[Row], record: Record) -> None:
    """A task that can never run has no row of its end in the trace. The log of its owner tells why it failed."""
    waiting = [row for row in rows if row["state"] == _TASK_STATES[TraceKind.TASK_SUBMITTED]]
    requests = Requests(record) if waiting else None
    for row in waiting:
        spec = requests.specs.get(row["task_id"]) if requests is not None else None
        refusal = requests.refusal_of(spec) if requests is not None and spec is not None else None
        if refusal is not None:
            row["state"], row["error_type"] = "FAILED", str(refusal.error.kind)
            row["end_time_s"] = refusal.time_ns / 1e9


def _complete_tasks(rows: Iterable[Row], record: Record) -> None:
    """Moments since the start of the first node; and which tasks construct an actor."""
    began_s = began_ns(record.events) / 1e9
    head = _head_at_the_end(record)
    constructors = {task_id.hex() for task_id in head.constructors()} if head is not None else set()
    for row in rows:
        for field in ("start_time_s", "end_time_s"):
            if row[field] is not None:
                row[field] = round(row[field] - began_s, 9)
        if row["task_id"] in constructors:
            row["type"] = "ACTOR_CREATION_TASK"


def _as_the_head_knew(rows: list[Row], table: str, record: Record) -> list[Row]:
    """The trace has no row for a node that left, or died without a fault. The head's log tells that it is gone."""
    head = _head_at_the_end(record)
    if head is None:
        return rows
    nodes = {row["node_id"]: row for row in head.rows("nodes")}
    for row in rows:
        node = nodes.get(row["node_id"])
        if node is None or row["state"] != "ALIVE":
            continue
        if table == "nodes" and node["incarnation"] >= row["incarnation"]:
            row["state"], row["incarnation"] = node["state"], node["incarnation"]
        elif table == "workers" and node["state"] == str(NodeHealth.DEAD):
            row["state"], row["exit_detail"] = "DEAD", "its node left or died"
    return rows


HEADS_TABLES = ("actors", "placement_groups")


def _head_at_the_end(record: Record) -> Head | None:
    logs = record.logs.get(HEAD, ())
    if not logs:
        return None
    head = logs[-1].spec.make()
    assert isinstance(head, Head)
    for decision in logs[-1].decisions:
        head.handle(decision.event, decision.now_ns)
    return head


def _tasks(events: Iterable[TraceEvent], retried: list[Row] | None = None) -> list[Row]:
    """A row for each task, with its last attempt. `retried` takes a row for each attempt that began before that."""
    rows: dict[str, Row] = {}
    for event in events:
        if event.kind in (TraceKind.WORKER_ENDED, TraceKind.FAULT):
            _lose(rows, event)
        if event.kind not in _TASK_STATES:
            continue
        row = rows.setdefault(
            event.subject,
            {
                "task_id": event.subject,
                "name": event.name,
                "type": "ACTOR_TASK" if "." in event.name else "NORMAL_TASK",
                "job_id": f"{job_of(bytes.fromhex(event.subject)):08x}",
                "state": "",
                "attempt_number": 0,
                "owner": None,
                "worker_id": None,
                "node_id": None,
                "start_time_s": None,
                "end_time_s": None,
                "error_type": "",
            },
        )
        row["name"] = row["name"] or event.name
        if event.kind is TraceKind.TASK_RETRIED and retried is not None and row["start_time_s"] is not None:
            kept = (
                {"error_type": row["error_type"] or event.other or "WORKER_CRASHED"}
                if row["state"] != "FINISHED"
                else {}
            )
            retried.append({**row, **kept, "state": "FAILED" if kept else "FINISHED"})
        row["state"] = _TASK_STATES[event.kind]
        if event.kind is TraceKind.TASK_SUBMITTED:
            row["owner"] = event.process
        elif event.kind is TraceKind.TASK_RETRIED:
            row["attempt_number"], row["error_type"], row["end_time_s"] = event.amount, "", None
            row["start_time_s"], row["worker_id"], row["node_id"] = None, None, None
        elif event.kind is TraceKind.TASK_PUSHED:
            row["worker_id"] = event.other
        elif event.kind is TraceKind.TASK_STARTED:
            row["attempt_number"], row["worker_id"] = event.amount, event.process
            row["node_id"] = node_of(Address(event.process))
            row["start_time_s"], row["end_time_s"] = event.time_ns / 1e9, None
        elif event.kind is TraceKind.TASK_ENDED:
            row["end_time_s"], row["error_type"] = event.time_ns / 1e9, event.other
            row["state"] = "FAILED" if event.other else "FINISHED"
    return list(rows.values())


def _lose(rows: dict[str, Row], end: TraceEvent) -> None:
    """What ran on a worker or a node that ended has failed, unless it is retried later."""
    is_node = end.kind is TraceKind.FAULT and end.name == "kill node"
    for row in rows.values():
        if row["state"] == "RUNNING" and end.subject == row["node_id" if is_node else "worker_id"]:
            row["state"], row["end_time_s"] = "FAILED", end.time_ns / 1e9
            row["error_type"] = "NODE_DIED" if is_node else "WORKER_CRASHED"


_TASK_STATES = {
    TraceKind.TASK_SUBMITTED: "PENDING_NODE_ASSIGNMENT",
    TraceKind.TASK_RETRIED: "PENDING_NODE_ASSIGNMENT",
    TraceKind.TASK_PUSHED: "SUBMITTED_TO_WORKER",
    TraceKind.TASK_STARTED: "RUNNING",
    TraceKind.TASK_ENDED: "FINISHED",
}


def _workers(events: Iterable[TraceEvent]) -> list[Row]:
    rows: dict[str, Row] = {}
    for event in events:
        if event.kind is TraceKind.WORKER_STARTED:
            node = node_of(Address(event.subject))
            rows[event.subject] = {
                "worker_id": event.subject,
                "node_id": node,
                "worker_type": "WORKER",
                "state": "ALIVE",
            }
        elif event.kind is TraceKind.WORKER_ENDED and event.subject in rows:
            rows[event.subject]["state"] = "DEAD"
            rows[event.subject]["exit_detail"] = event.other or event.name
        elif event.kind is TraceKind.FAULT and event.name == "kill node":
            for row in rows.values():
                if row["node_id"] == event.subject and row["state"] == "ALIVE":
                    row["state"], row["exit_detail"] = "DEAD", "kill node"
    return list(rows.values())


def _nodes(events: Iterable[TraceEvent]) -> list[Row]:
    rows: dict[str, Row] = {}
    for event in events:
        if event.kind is TraceKind.NODE_STARTED:
            lives = rows[event.subject]["incarnation"] + 1 if event.subject in rows else 0
            rows[event.subject] = {"node_id": event.subject, "state": "ALIVE", "incarnation": lives}
        elif event.kind is TraceKind.FAULT and event.name == "kill node" and event.subject in rows:
            rows[event.subject]["state"] = "DEAD"
    return list(rows.values())


def _objects(events: Iterable[TraceEvent]) -> list[Row]:
    rows: dict[str, Row] = {}
    for event in events:
        if event.kind is TraceKind.OBJECT_STORED:
            rows[event.subject] = {
                "object_id": event.subject,
                "owner": event.process,
                "state": "STORED",
                "size_bytes": event.amount,
            }
        elif event.subject in rows and event.kind in _OBJECT_STATES:
            rows[event.subject]["state"] = _OBJECT_STATES[event.kind]
    return list(rows.values())


_OBJECT_STATES = {
    TraceKind.OBJECT_EVICTED: "EVICTED",
    TraceKind.OBJECT_SPILLED: "SPILLED",
    TraceKind.OBJECT_RESTORED: "STORED",
    TraceKind.OBJECT_DELETED: "DELETED",
}
