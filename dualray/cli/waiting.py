"""Why tasks of a running cluster wait: `dualray explain` without a run, and the reasons below `dualray list tasks`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from dualray import runtime
from dualray.shared.model.ids import Address, ObjectID
from dualray.shared.model.specs import Ref

REASONS_MAX: Final = 20
"""Most lines of reasons below a list of tasks."""
_TASK_HEX: Final = 32
"""Characters of a task's id. The id of an object begins with the id of its task."""
_STATES: Final = {
    "PENDING_ARGS_AVAIL": "The task waits for its arguments.",
    "PENDING_NODE_ASSIGNMENT": "The task waits for a worker.",
    "SUBMITTED_TO_WORKER": "The task is in the queue of its worker.",
    "RUNNING": "The task runs.",
    "FINISHED": "The task has finished.",
    "FAILED": "The task has failed.",
}


def add_reasons(rows: Sequence[dict[str, Any]]) -> None:
    """Put into each row of a task why it waits: `waiting_reason`, None for a task that does not wait."""
    names = {row["task_id"]: row["name"] for row in rows}
    head: list[str] | None = None
    for row in rows:
        row["waiting_reason"] = None
        if row["state"] == "PENDING_ARGS_AVAIL":
            makers = dict.fromkeys(object_id[:_TASK_HEX] for object_id in row.get("waits_for") or [])
            results = " and ".join(f"{names.get(task, 'task')} ({task[:8]})" for task in makers)
            row["waiting_reason"] = f"the result of {results}" if results else "its arguments"
        elif row["state"] == "PENDING_NODE_ASSIGNMENT":
            head = _heads_words() if head is None else head
            asked = f" x {row['name']} of {row.get('owner')} waits for "
            row["waiting_reason"] = next((words.partition(asked)[2] for words in head if asked in words), None)


def reason_lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return each reason once, with the number of tasks of the same name that have this reason."""
    counts: dict[tuple[str, str], int] = {}
    for row in rows:
        if row.get("waiting_reason"):
            key = (row["name"], row["waiting_reason"])
            counts[key] = counts.get(key, 0) + 1
    lines = [f"{count} x {name} waits for {reason}" for (name, reason), count in counts.items()]
    more = [f"and {len(lines) - REASONS_MAX} more reasons; --json shows all"] if len(lines) > REASONS_MAX else []
    return lines[:REASONS_MAX] + more


def history_now(row: Mapping[str, Any]) -> list[str]:
    """Say in lines of text what a task of the running cluster does, and what the task waits for."""
    state, worker = row["state"], row.get("worker_id")
    lines = [f"{_STATES.get(state, state)[:-1]} on {worker}." if state == "RUNNING" else _STATES.get(state, state)]
    if attempt := row.get("attempt_number"):
        lines.append(f"The task is in attempt {attempt}, because the earlier attempts were lost or failed.")
    if row.get("error_message"):
        lines.append(f"{row['error_type']}: {str(row['error_message']).splitlines()[0]}")
    if state in ("FINISHED", "FAILED") or not row.get("owner"):
        return lines
    result = Ref(ObjectID(bytes.fromhex(row["task_id"]) + bytes(4)), Address(row["owner"]))
    told = runtime.current("explain").verbs.explain(result).split("; ")
    return lines + ([line for line in told[1:] if line != f"{worker} runs it"] if state == "RUNNING" else told)


def _heads_words() -> list[str]:
    return [str(row["words"]) for row in runtime.current("list").verbs.head_rows("waits")]
