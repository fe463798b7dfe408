"""The rows of the state API, as the processes of a cluster on the core have them.

The head answers for actors, nodes, groups and stored objects; node managers for workers; drivers and workers for their
tasks and objects; the control plane's table for tasks that have ended.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any, TypeAlias

from dualray.runtime import CoreVerbs
from dualray.shared.machines.owner.task_records import ATTEMPT_TABLE, ATTEMPTS_MAX
from dualray.shared.machines.state_rows import AT_WORKER, TASK_STATES
from dualray.shared.model.ids import HEAD, Address, job_of, node_of
from dualray.shared.model.states import StoredState, TaskState

_ON_DISK = (StoredState.SPILLING, StoredState.SPILLED, StoredState.RESTORING)


ToldTimes: TypeAlias = MutableMapping[tuple[str, int, str], int]
"""The times that a listing has given, in ms since 1970, by id, incarnation and field."""


def live_rows(core: CoreVerbs, table: str, timeout_ns: int, told: ToldTimes) -> tuple[list[dict[str, Any]], list[str]]:
    """The rows of a table of dualray.util.state, each a dict, and the processes that have not answered in time.

    `object_locations` are the objects, with `did_spill`: for that the stores of all nodes are asked, too.
    `workers_ever` are the workers, with those that have ended. `tasks_ever` are the tasks, with a row behind them for
    each attempt that has another after it. `tasks_timed` are the same with `start_time_ms` and `end_time_ms`, in ms
    since 1970, where the worker lives that ran the task; `task_times` are the times alone. Rows of tasks have the
    `worker_pid`, and rows of actors, objects and workers the `pid`: None if the process runs on another machine or has
    not started.
    """

    def ask(addresses: Sequence[str], what: str) -> dict[str, list[dict[str, Any]]]:
        answers = core.rows_of([Address(address) for address in addresses], what, timeout_ns)
        missing.extend(address for address, rows in answers.items() if rows is None)
        return {address: rows for address, rows in answers.items() if rows is not None}

    missing: list[str] = []
    if table in ("actors", "jobs", "nodes", "placement_groups"):
        rows = [row for rows in ask([HEAD], table).values() for row in rows]
        if table == "nodes":
            _add_times(rows, told)
        return _with_pids(core, rows, "pid", "worker_id") if table == "actors" else rows, missing
    found = [row for rows in ask([HEAD], "processes").values() for row in rows]
    processes = [row["address"] for row in found]
    drivers = [address for address in processes if address.startswith("driver-")]
    managers = [address for address in processes if address not in drivers]
    workers = [row for rows in ask(managers, "workers").values() for row in rows]
    if table in ("workers", "workers_ever"):
        own = _driver_rows(found, core.node)
        rows = [row | {"exit_type": None, "exit_detail": None} for row in (*own, *workers)]
        if table == "workers_ever":
            rows += [row for rows in ask([HEAD], "ended_workers").values() for row in rows]
        _add_times(rows, told)
        return _with_pids(core, rows, "pid", "worker_id"), missing
    owners = [*drivers, *(row["worker_id"] for row in workers if row["state"] != "STARTING")]
    if table == "task_times":
        rows, silent = core.task_times([Address(owner) for owner in owners], timeout_ns)
        return rows, missing + silent
    where = table == "object_locations"
    asked = "objects" if where else table.partition("_")[0]
    owned = [row for rows in ask(owners, asked).values() for row in rows]
    if table in ("tasks", "tasks_ever", "tasks_timed"):
        rows = _tasks(owned, core.read_table("tasks"), core.read_table("errors"))
        if table != "tasks":
            rows += _attempts(core.read_table(ATTEMPT_TABLE), {row["task_id"]: row["attempt_number"] for row in rows})
        if table == "tasks_timed":
            times, silent = core.task_times([Address(owner) for owner in owners], timeout_ns)
            missing += silent
            _add_times_of_tasks(rows, times)
        return _with_pids(core, rows, "worker_pid", "worker_id"), missing
    stored = {row["object_id"]: row for rows in ask([HEAD], "objects").values() for row in rows}
    for row in owned:
        row["node_ids"] = stored.get(row["object_id"], {}).get("node_ids", [])
    if not where:
        return _with_pids(core, owned, "pid", "owner"), missing
    copies = ask(managers, "store")
    _add_places_of_objects(owned, [row for rows in copies.values() for row in rows], core.node)
    return owned, missing


def _add_places_of_objects(owned: Sequence[dict[str, Any]], copies: Sequence[Mapping[str, Any]], here: str) -> None:
    """Say of objects whether a node has them on disk, and of small ones where their owner is, who keeps them."""
    on_disk = {copy["object_id"] for copy in copies if copy["state"] in _ON_DISK}
    for row in owned:
        row["did_spill"] = row["object_id"] in on_disk
        if row["is_put"] and not row["node_ids"]:
            row["node_ids"] = [_node_of_owner(row["owner"], here)]


def _driver_rows(processes: Sequence[dict[str, Any]], here: str) -> list[dict[str, Any]]:
    """The rows of drivers among the workers."""
    return [
        {
            "worker_id": row["address"],
            "node_id": _node_of_driver(row["address"], here),
            "worker_type": "DRIVER",
            "state": "LEASED",
            "started_ago_ns": row["started_ago_ns"],
        }
        for row in processes
        if row["address"].startswith("driver-")
    ]


def _add_times(rows: list[dict[str, Any]], told: ToldTimes) -> None:
    """Give the rows Ray's start_time_ms and end_time_ms, by the clock of this process; 0: not known, or not yet.

    The clocks of machines differ, so rows come with how long ago it was. A time that was told once stays: an answer
    that comes later does not change it.
    """
    now_ms = time.time() * 1000
    for row in rows:
        for field in ("start", "end"):
            ago_ns = row.pop(f"{field}ed_ago_ns", None)
            key = row.get("worker_id", row["node_id"]), row.get("incarnation", 0), field
            row[f"{field}_time_ms"] = 0 if ago_ns is None else told.setdefault(key, round(now_ms - ago_ns / 1e6))


def _with_pids(core: CoreVerbs, rows: list[dict[str, Any]], field: str, process: str) -> list[dict[str, Any]]:
    """The rows with a field for the pid of the process that another field names."""
    pids = core.pids()
    for row in rows:
        row[field] = pids.get(row.get(process) or "")
    return rows


def _node_of_driver(driver: str, here: str) -> str:
    return driver.partition("@")[2] or here


def _node_of_owner(owner: str, here: str) -> str:
    return node_of(Address(owner)) if "/" in owner else _node_of_driver(owner, here)


def _tasks(
    live: Sequence[dict[str, Any]], ended: Mapping[str, Mapping[str, str]], errors: Mapping[str, Mapping[str, str]]
) -> list[dict[str, Any]]:
    """What owners know, what runs now, and what the table has of tasks that owners have forgotten."""
    rows: dict[str, dict[str, Any]] = {}
    for row in live:
        known = rows.get(row["task_id"])
        if known is None or (row["state"] in AT_WORKER and known["state"] not in ("FINISHED", "FAILED")):
            rows[row["task_id"]] = {**(known or {}), **row}
        elif known["state"] in AT_WORKER:
            rows[row["task_id"]] = {**row, "state": known["state"], "worker_id": known["worker_id"]}
    for task_id, fields in ended.items():
        if task_id not in rows:
            rows[task_id] = _ended(task_id, fields)
    for task_id, row in rows.items():
        _add_places(row)
        if task_id in errors:
            row["error_type"] = errors[task_id]["kind"]
            row["error_message"] = errors[task_id]["message"]
    return list(rows.values())


def _attempts(kept: Mapping[str, Mapping[str, str]], last: Mapping[str, int]) -> list[dict[str, Any]]:
    """A row for each attempt that has another after it. `last`: the last attempts, by task, that have rows already."""
    rows = []
    for fields in kept.values():
        row = _ended(fields["task"], fields)
        if row["attempt_number"] >= last.get(row["task_id"], ATTEMPTS_MAX):
            continue  # the task's owner was asked before the attempt ended
        if "kind" in fields:
            row |= {"error_type": fields["kind"], "error_message": fields["message"]}
        _add_places(row)
        rows.append(row)
    return rows


def _add_times_of_tasks(rows: Sequence[dict[str, Any]], times: Sequence[Mapping[str, Any]]) -> None:
    """Give the rows of tasks Ray's start_time_ms and end_time_ms. A time that nobody knows is None."""
    found = {(known["task_id"], known["attempt_number"]): known for known in times}
    for row in rows:
        known = found.get((row["task_id"], row["attempt_number"]), {})
        for field in ("start", "end"):
            at_ns = known.get(f"{field}_ns")
            row[f"{field}_time_ms"] = None if at_ns is None else at_ns // 1_000_000


def _ended(task_id: str, fields: Mapping[str, str]) -> dict[str, Any]:
    """Return the row of an attempt that has ended, for the control plane's tables."""
    return {
        "task_id": task_id,
        "name": fields["name"],
        "type": "ACTOR_TASK" if "." in fields["name"] or "method" in fields else "NORMAL_TASK",
        "attempt_number": int(fields["attempt"]),
        "state": TASK_STATES[TaskState(fields["state"])],
        "worker_id": fields["worker"],
    }


def _add_places(row: dict[str, Any]) -> None:
    worker = row.get("worker_id") or ""
    row["node_id"] = node_of(Address(worker)) if "/" in worker else None
    row["job_id"] = f"{job_of(bytes.fromhex(row['task_id'])):08x}"
