"""`ray.nodes`, `ray.cluster_resources` and `ray.available_resources`: dualray's, with the memory of the object stores.

Under the name `ray` it is one more resource, `object_store_memory`, as on Ray.
"""

from __future__ import annotations

from typing import Any, Final

from dualray import api
from dualray.as_ray.global_worker import manager_name, rows_of, store_name

__all__ = ["available_resources", "cluster_resources", "nodes", "store_bytes", "store_bytes_free"]

_STORE: Final = "object_store_memory"


def store_bytes() -> dict[str, float]:
    """The size of the store of each node that lives."""
    return {row["node_id"]: float(row["store_bytes"]) for row in rows_of("nodes") if row["state"] == "ALIVE"}


def nodes() -> list[dict[str, Any]]:
    """The nodes that the cluster has had: see `dualray.nodes`. Names stand for the sockets, and differ by node."""
    found, stores = api.nodes(), store_bytes()
    for row in found:
        row["ObjectStoreSocketName"] = store_name(row["NodeID"])
        row["RayletSocketName"] = manager_name(row["NodeID"])
        if row["NodeID"] in stores:
            row["Resources"] = {**row["Resources"], _STORE: stores[row["NodeID"]]}
    return found


def cluster_resources() -> dict[str, float]:
    """The resources of all nodes that live, by name: see `dualray.cluster_resources`."""
    total = api.cluster_resources()
    return {**total, **_bundles(), _STORE: sum(store_bytes().values())}


def available_resources() -> dict[str, float]:
    """What of them nothing holds now: see `dualray.available_resources`."""
    return {**api.available_resources(), **_bundles(), _STORE: sum(store_bytes_free().values())}


def _bundles() -> dict[str, float]:
    """Ray's marks of reserved bundles: 1000 for each, under the name of its group and under its own.

    A task in a bundle takes a thousandth of one on Ray, and nothing here.
    """
    found: dict[str, float] = {}
    for row in rows_of("placement_groups"):
        if row["state"] == "CREATED":
            group = row["placement_group_id"]
            found[f"bundle_group_{group}"] = _MARKS * len(row["bundles"])
            found |= {f"bundle_group_{index}_{group}": _MARKS for index in range(len(row["bundles"]))}
    return found


_MARKS: Final = 1000.0


def store_bytes_free() -> dict[str, float]:
    """What is free of the store of each node that lives."""
    free = store_bytes()
    for row in rows_of("objects"):
        for node in row["node_ids"]:
            if node in free:
                free[node] = max(0.0, free[node] - row["size_bytes"])
    return free
