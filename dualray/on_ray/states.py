"""Rows of the state API, out of Ray's."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import ray
from ray.util.placement_group import placement_group_table

from dualray.exceptions import DualrayError
from dualray.on_ray.refusals import refused
from dualray.shared.model.resources import HEAD_NODE
from dualray.shared.model.specs import NODE_ID_LABEL

_LIMIT = 10_000
"""Rows that Ray's state API gives at most."""


def rows_of(table: str, timeout_s: float) -> list[dict[str, Any]]:
    """The rows of a table of dualray.util.state.

    Raises:
        DualrayError: Ray's dashboard, which answers for its state, does not run.
    """
    if table == "nodes":
        return [_node(node) for node in ray.nodes()]
    if table == "placement_groups":
        return [_group(dict(row)) for row in placement_group_table().values()]
    from ray.util import state  # noqa: PLC0415 - few ask, and it imports much

    if table not in _TABLES:
        raise refused("object_locations")
    name, as_ours = _TABLES[table]
    timeout = max(1, math.ceil(timeout_s))
    try:
        rows = getattr(state, name)(limit=_LIMIT, timeout=timeout, detail=True, raise_on_missing_output=False)
    except Exception as error:
        raise DualrayError(
            f"Ray's state API did not answer: {error}. The state API needs Ray's dashboard: install ray[default] on "
            f"the head's "
            f"machine."
        ) from error
    return [as_ours(dict(row)) for row in rows]


def _task(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "task_id": row["task_id"],
        "name": row["name"],
        "type": row["type"],
        "attempt_number": row["attempt_number"],
        "state": _STATES.get(row["state"], row["state"]),
        "worker_id": row.get("worker_id"),
        "node_id": row.get("node_id"),
        "job_id": row["job_id"],
        "actor_id": row.get("actor_id"),
        "parent_task_id": row.get("parent_task_id"),
        "required_resources": row.get("required_resources"),
        "error_type": row.get("error_type"),
        "error_message": row.get("error_message"),
    }


_STATES = {"RUNNING_IN_RAY_GET": "RUNNING", "RUNNING_IN_RAY_WAIT": "RUNNING"}


def _actor(row: dict[str, Any]) -> dict[str, Any]:
    kept = ("actor_id", "class_name", "state", "name", "node_id", "pid", "ray_namespace", "is_detached", "job_id")
    return {**{key: row.get(key) for key in kept}, "namespace": row.get("ray_namespace")}


def _object(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "object_id": row["object_id"],
        "size_bytes": row["object_size"],
        "state": row["task_status"],
        "reference_type": row["reference_type"],
        "node_ids": [],
        "pid": row["pid"],
    }


def _node(node: Mapping[str, Any]) -> dict[str, Any]:
    """The control store answers for its nodes itself."""
    resources = dict(node["Resources"])
    return {
        "node_id": node["NodeID"],
        "node_ip": node["NodeManagerAddress"],
        "node_name": node["NodeName"],
        "state": "ALIVE" if node["Alive"] else "DEAD",
        "incarnation": 0,
        "resources_total": resources,
        "labels": {key: value for key, value in node["Labels"].items() if key != NODE_ID_LABEL},
        "is_head_node": HEAD_NODE in resources,
    }


def _worker(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "worker_id": row["worker_id"],
        "node_id": row["node_id"],
        "worker_type": row["worker_type"],
        "state": "LEASED" if row["is_alive"] else "DEAD",
        "pid": row["pid"],
    }


def _job(row: dict[str, Any]) -> dict[str, Any]:
    driver = row.get("driver_info") or {}
    return {
        "job_id": row["job_id"],
        "type": row["type"],
        "status": row["status"],
        "driver": driver.get("id"),
        "node_id": driver.get("node_id"),
    }


def _group(row: dict[str, Any]) -> dict[str, Any]:
    kept = ("placement_group_id", "name", "state", "strategy", "is_detached", "creator_job_id")
    nodes = row["bundles_to_node_id"]
    bundles = [
        {"index": index, "resources": dict(resources), "node_id": nodes.get(index, "")}
        for index, resources in row["bundles"].items()
    ]
    return {**{key: row.get(key) for key in kept}, "bundles": bundles}


_TABLES: dict[str, tuple[str, Callable[[dict[str, Any]], dict[str, Any]]]] = {
    "tasks": ("list_tasks", _task),
    "actors": ("list_actors", _actor),
    "objects": ("list_objects", _object),
    "workers": ("list_workers", _worker),
    "jobs": ("list_jobs", _job),
}
