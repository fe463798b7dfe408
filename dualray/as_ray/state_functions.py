"""`ray.util.state`: dualray's functions, and those whose results have another form in Ray."""

from __future__ import annotations

from collections import Counter
from typing import Any

from dualray.util import state
from dualray.util.state import (
    DEFAULT_LIMIT,
    KEYS,
    TABLES,
    Row,
    Rows,
    State,
    get_actor,
    get_job,
    get_log,
    get_node,
    get_placement_group,
    get_task,
    get_worker,
    list_actors,
    list_jobs,
    list_logs,
    list_nodes,
    list_objects,
    list_placement_groups,
    list_runtime_envs,
    list_tasks,
    list_workers,
    live,
    of_run,
    summarize_objects,
)

__all__ = [
    "DEFAULT_LIMIT",
    "KEYS",
    "TABLES",
    "Row",
    "Rows",
    "State",
    "get_actor",
    "get_job",
    "get_log",
    "get_node",
    "get_objects",
    "get_placement_group",
    "get_task",
    "get_worker",
    "list_actors",
    "list_jobs",
    "list_logs",
    "list_nodes",
    "list_objects",
    "list_placement_groups",
    "list_runtime_envs",
    "list_tasks",
    "list_workers",
    "live",
    "of_run",
    "summarize_actors",
    "summarize_objects",
    "summarize_tasks",
]


def get_objects(id: str, address: str | None = None, timeout: float = 5.0) -> list[Row]:  # noqa: A002 - Ray's name
    """Return the rows of the object with an id: one, or none."""
    row = state.get_objects(id, address, timeout)
    return [] if row is None else [row]


def summarize_tasks(address: str | None = None, timeout: float = 5.0) -> dict[str, Any]:
    """Count the tasks of each name in each state, and the tasks of each type."""
    summary: dict[str, dict[str, Any]] = state.summarize_tasks(address, timeout)["cluster"]["summary"]
    counts: Counter[str] = Counter()
    for entry in summary.values():
        counts[entry["type"]] += sum(entry["state_counts"].values())
    return {
        "cluster": {
            "summary": {name: {"func_or_class_name": name, **entry} for name, entry in summary.items()},
            "total_tasks": counts["NORMAL_TASK"],
            "total_actor_tasks": counts["ACTOR_TASK"],
            "total_actor_scheduled": counts["ACTOR_CREATION_TASK"],
            "summary_by": "func_name",
        }
    }


def summarize_actors(address: str | None = None, timeout: float = 5.0) -> dict[str, Any]:
    """Count the actors of each class in each state."""
    cluster = state.summarize_actors(address, timeout)["cluster"]
    summary = {name: {"class_name": name, **entry} for name, entry in cluster["summary"].items()}
    return {"cluster": {**cluster, "summary": summary, "summary_by": "class"}}
