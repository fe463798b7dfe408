"""The state at the end of a finished run, from its traces: the tables of `dualray.util.state`, as far as traces tell.

A trace knows tasks, workers, nodes and stored objects. It knows neither references nor placement groups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from dualray.shared.model.ids import Address, job_of, node_of
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
        raise ValueError(f"the record of a run has no {table.replace('_', ' ')}; it has {', '.join(makers)}")
    return makers[table](sorted(events, key=lambda event: event.time_ns))


def _tasks(events: Iterable[TraceEvent]) -> list[Row]:
    rows: dict[str, Row] = {}
    for event in events:
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
        row["state"] = _TASK_STATES[event.kind]
        if event.kind is TraceKind.TASK_SUBMITTED:
            row["owner"] = event.process
        elif event.kind is TraceKind.TASK_RETRIED:
            row["attempt_number"] = event.amount
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
