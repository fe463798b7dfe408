"""The control plane's tables in the form of 2017: `error_info()` and `global_state`."""

from __future__ import annotations

import json
from typing import Any

from dualray import runtime
from dualray.classic.environment import ERRORS_TABLE
from dualray.classic.functions import Task
from dualray.shared.core.layout import deserialize
from dualray.shared.model.ids import FunctionID, job_of

KINDS = {
    "APPLICATION": "task",
    "WORKER_CRASHED": "worker_died",
    "NODE_DIED": "worker_died",
    "ACTOR_DIED": "actor_died",
    "ACTOR_UNAVAILABLE": "actor_died",
    "OBJECT_LOST": "put_reconstruction",
    "RECONSTRUCTION_FAILED": "put_reconstruction",
    "OWNER_DIED": "put_reconstruction",
}
"""How 2017 called what went wrong; what it did not know keeps today's name, in small letters."""


class ErrorDict(dict[bytes, bytes]):
    """An error, as the control plane had it: names and values are bytes. A name as text gives the value as text; of
    `data`, the dict that it holds."""

    def __missing__(self, key: Any) -> Any:
        if not isinstance(key, str):
            raise KeyError(key)
        value = self[key.encode()]
        return json.loads(value) if key == "data" else value.decode()


def error_info() -> list[ErrorDict]:
    """The errors of this driver's program, in every process.

    An error of the last moments may be missing: it takes some milliseconds to arrive.

    Returns:
        For each a dict of bytes: b"type", b"message" (the traceback, where there is one) and b"data" (JSON: `task_id`,
        `function_name`). Types are task, worker_died, actor_died, put_reconstruction, register_remote_function,
        register_environment_variable and reinitialize_environment_variable.

    Raises:
        NotInitializedError: before `init`.
    """
    running = runtime.current("error_info")
    job = int(running.verbs.context().job_id, 16)
    tasks = running.read_table("tasks")
    found = []
    for task, row in running.read_table("errors").items():
        if job_of(bytes.fromhex(task)) == job:
            name = tasks.get(task, {}).get("name", "")
            found.append(_error(_kind(row["kind"]), row["message"], task, name))
    ours = [row for row in running.read_table(ERRORS_TABLE).values() if job_of(bytes.fromhex(row["task"])) == job]
    return found + [_error(row["kind"], row["message"], row["task"], row["what"]) for row in ours]


def _kind(kind: str) -> str:
    return KINDS.get(kind, kind.lower())


def _error(kind: str, message: str, task: str, name: str) -> ErrorDict:
    data = json.dumps({"task_id": task, "function_name": name})
    return ErrorDict({b"type": kind.encode(), b"message": message.encode(), b"data": data.encode()})


class GlobalState:
    """The control plane's tables, as dicts by id in hex; with an id, that row alone.

    Rows are written when something is settled: a task when it has ended, an object when a store has it. What happened
    in the last moments may be missing.
    """

    def object_table(self, object_id: Any = None) -> dict[str, Any]:
        """Objects in the stores: DataSize in bytes, ManagerIDs (the nodes that have it), OwnerID, TaskID, IsPut.

        Raises:
            KeyError: no such object.
        """
        rows = {
            key: {
                "DataSize": int(row["bytes"]),
                "ManagerIDs": row["nodes"].split(),
                "OwnerID": row["owner"],
                "TaskID": key[:32],
                "IsPut": bool(int(key[32:34], 16) & 0x80),
            }
            for key, row in _table("objects").items()
        }
        return _one_or_all(rows, object_id, "object")

    def task_table(self, task_id: Any = None) -> dict[str, Any]:
        """Tasks that have ended: State, Attempt, LocalSchedulerID (the node), WorkerID, and TaskSpec.

        Raises:
            KeyError: no such task.
        """
        rows = {
            key: {
                "State": row["state"],
                "Attempt": int(row["attempt"]),
                "LocalSchedulerID": row["worker"].partition("/")[0],
                "WorkerID": row["worker"],
                "TaskSpec": {"TaskID": key, "DriverID": job_of(bytes.fromhex(key)), "FunctionName": row["name"]},
            }
            for key, row in _table("tasks").items()
        }
        return _one_or_all(rows, task_id, "task")

    def client_table(self) -> dict[str, list[dict[str, Any]]]:
        """The nodes that the cluster has had: ClientType, Deleted, Health, Incarnation, Resources as text."""
        return {
            key: [
                {
                    "ClientType": "local_scheduler",
                    "DBClientID": key,
                    "Deleted": row["health"] == "DEAD",
                    "Health": row["health"],
                    "Incarnation": int(row["incarnation"]),
                    "Resources": row["total"],
                    "StoreBytes": int(row["store_bytes"]),
                }
            ]
            for key, row in _table("nodes").items()
        }

    def function_table(self, function_id: Any = None) -> dict[str, Any]:
        """Remote functions and actor classes that were submitted: Module, Name, and Bytes when pickled.

        Raises:
            KeyError: no such function.
        """
        functions = runtime.current("global_state").read_functions()
        rows = {key.hex(): _function_row(key, pickled) for key, pickled in functions.items()}
        return _one_or_all(rows, function_id, "function")


def _table(name: str) -> dict[str, dict[str, str]]:
    return runtime.current("global_state").read_table(name)


def _one_or_all(rows: dict[str, Any], wanted: Any, what: str) -> dict[str, Any]:
    if wanted is None:
        return rows
    key = wanted if isinstance(wanted, str) else wanted.hex()
    if key not in rows:
        raise KeyError(f"the {what} table has no row for {key}; the table has {len(rows)} rows")
    row: dict[str, Any] = rows[key]
    return row


def _function_row(identity: FunctionID, pickled: bytes) -> dict[str, Any]:
    try:
        export: Any = deserialize(pickled)
    except Exception as error:  # noqa: BLE001 - another program's function may need what this process cannot import
        return {"FunctionID": identity.hex(), "Module": "", "Name": "", "Bytes": len(pickled), "Error": str(error)}
    target = export.target.__wrapped__ if isinstance(export.target, Task) else export.target
    return {
        "FunctionID": identity.hex(),
        "Module": getattr(target, "__module__", ""),
        "Name": getattr(target, "__qualname__", type(target).__name__),
        "Bytes": len(pickled),
    }


global_state = GlobalState()
