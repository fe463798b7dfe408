"""Questions about the cluster and placement groups, answered by Ray."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ray
from ray.autoscaler.sdk import request_resources
from ray.util.placement_group import placement_group as make_group
from ray.util.placement_group import placement_group_table, remove_placement_group

from dualray.core_terms import group_spec
from dualray.exceptions import PlacementGroupAlreadyExistsError, PlacementGroupUnschedulableError
from dualray.on_ray import terms
from dualray.on_ray.states import rows_of
from dualray.shared.model.ids import FIRST_DRIVER
from dualray.shared.policies.bundles import why_never
from dualray.user_verbs import GroupRequest, NodeRow


class RayCluster:
    """`ClusterVerbs`."""

    __slots__ = ()

    waits_for_nodes: bool

    def nodes(self) -> list[NodeRow]:
        available = ray._private.state.available_resources_per_node()
        return [
            NodeRow(
                node["NodeID"],
                node["Alive"],
                0,
                dict(node["Resources"]),
                dict(available.get(node["NodeID"], {})),
                dict(node["Labels"]),
                node["NodeManagerAddress"],
                node["NodeManagerHostname"],
            )
            for node in ray.nodes()
        ]

    def cluster_resources(self) -> dict[str, float]:
        return dict(ray.cluster_resources())

    def available_resources(self) -> dict[str, float]:
        return dict(ray.available_resources())

    def head_rows(self, table: str) -> list[dict[str, Any]]:
        if table == "named_actors":
            return [dict(row) for row in ray.util.list_named_actors(all_namespaces=True)]
        if table == "placement_groups":
            return [_group_row(row) for row in placement_group_table().values()]
        return []

    def state_rows(self, table: str, timeout_ns: int) -> tuple[list[dict[str, Any]], list[str]]:
        return rows_of(table.removesuffix("_ever").removesuffix("_timed"), timeout_ns / 1e9), []

    def create_placement_group(self, request: GroupRequest) -> bytes:
        bundles, strategy, name, is_detached, selectors = request
        if name and any(row["name"] == name and row["state"] != "REMOVED" for row in placement_group_table().values()):
            raise PlacementGroupAlreadyExistsError(
                f"placement_group: another placement group has the name {name!r}; choose another name"
            )
        problem = "" if self.waits_for_nodes else _problem(request)
        if problem:
            raise PlacementGroupUnschedulableError(f"the placement group can never be created: {problem}")
        made = make_group(
            [dict(bundle) for bundle in bundles],
            strategy,
            name,
            "detached" if is_detached else None,
            bundle_label_selector=[dict(each) for each in selectors] or None,
        )
        return bytes(made.id.binary())

    def remove_placement_group(self, group_id: bytes) -> None:
        remove_placement_group(terms.group_of(group_id))

    def request_resources(
        self, *, bundles: Sequence[Mapping[str, float]], selectors: Sequence[Mapping[str, str]]
    ) -> None:
        request_resources(
            bundles=[dict(bundle) for bundle in bundles],
            bundle_label_selectors=[dict(each) for each in selectors] if any(selectors) else None,
        )

    def spawn(self, function: Callable[[], object]) -> None:
        threading.Thread(target=function, daemon=True, name="dualray-spawned").start()


def _problem(request: GroupRequest) -> str:
    """Why the nodes that are alive can never take a group; "" when they may."""
    return why_never(group_spec(*request, owner=FIRST_DRIVER), {}, terms.nodes_alive()) or ""


def _group_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of Ray's table of placement groups, as the state API of dualray has it."""
    nodes = row["bundles_to_node_id"]
    return {
        "placement_group_id": row["placement_group_id"],
        "name": row["name"],
        "strategy": row["strategy"],
        "state": row["state"],
        "reason": "" if row["state"] == "CREATED" else _reason(row.get("stats", {}).get("scheduling_state", "")),
        "is_detached": row.get("is_detached", False),
        "bundles": [
            {"index": index, "resources": dict(resources), "node_id": nodes.get(index, "")}
            for index, resources in row["bundles"].items()
        ],
    }


def _reason(scheduling_state: str) -> str:
    """Why a group is not created, of what Ray calls the state of its scheduling."""
    return f"no room now ({scheduling_state})" if scheduling_state == "NO_RESOURCES" else scheduling_state
