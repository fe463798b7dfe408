"""Runs in a Python that has Ray: reads cases as JSON, and writes what Ray's autoscaler decides on each."""

from __future__ import annotations

import json
import sys
from collections import Counter
from typing import Any

from ray.autoscaler.v2.instance_manager.config import NodeTypeConfig
from ray.autoscaler.v2.scheduler import ResourceDemandScheduler, SchedulingRequest
from ray.autoscaler.v2.schema import AutoscalerInstance
from ray.autoscaler.v2.utils import ResourceRequestUtil
from ray.core.generated.autoscaler_pb2 import ClusterResourceConstraint, GangResourceRequest, NodeState, NodeStatus
from ray.core.generated.common_pb2 import LabelSelectorOperator
from ray.core.generated.instance_manager_pb2 import Instance, NodeKind

KINDS = ResourceRequestUtil.PlacementConstraintType
OF_STRATEGY = {"STRICT_PACK": KINDS.AFFINITY, "STRICT_SPREAD": KINDS.ANTI_AFFINITY}


def decide(case: dict[str, Any]) -> dict[str, Any]:
    """Launches and terminations by group."""
    types = {
        group["name"]: NodeTypeConfig(
            name=group["name"],
            min_worker_nodes=group["least"],
            max_worker_nodes=group["most"],
            resources=group["resources"],
            labels=group["labels"],
            launch_config_hash="hash",
        )
        for group in case["groups"]
    }
    plain = [
        request
        for demand in case["demands"]
        for request in [ResourceRequestUtil.make(demand["resources"], label_selectors=_selectors(demand["labels"]))]
        * demand["count"]
    ]
    requested = [ResourceRequestUtil.make(bundle) for bundle in case["requested"]]
    reply = ResourceDemandScheduler().schedule(
        SchedulingRequest(
            node_type_configs=types,
            disable_launch_config_check=True,
            idle_timeout_s=case["idle_timeout_s"],
            resource_requests=ResourceRequestUtil.group_by_count(plain),
            gang_resource_requests=[_gang(index, gang) for index, gang in enumerate(case["gangs"])],
            cluster_resource_constraints=(
                [ClusterResourceConstraint(resource_requests=ResourceRequestUtil.group_by_count(requested))]
                if requested
                else []
            ),
            current_instances=[_instance(index, node, types) for index, node in enumerate(case["nodes"])],
        )
    )
    launches = {launch.instance_type: launch.count for launch in reply.to_launch}
    ends = Counter(end.instance_type for end in reply.to_terminate)
    return {"launches": dict(sorted(launches.items())), "ends": dict(sorted(ends.items()))}


def _selectors(labels: dict[str, str]) -> Any:
    return [[(key, LabelSelectorOperator.LABEL_OPERATOR_IN, [value])] for key, value in labels.items()] or None


def _gang(index: int, gang: dict[str, Any]) -> GangResourceRequest:
    kind = OF_STRATEGY.get(gang["strategy"])
    constraints = [(kind, f"_PG_{index}", "")] if kind is not None else None
    return GangResourceRequest(
        requests=[ResourceRequestUtil.make(bundle, constraints=constraints) for bundle in gang["bundles"]]
    )


def _instance(index: int, node: dict[str, Any], types: dict[str, NodeTypeConfig]) -> AutoscalerInstance:
    name, kind = f"i-{index}", types[node["group"]]
    status = Instance.RAY_RUNNING if node["is_joined"] else Instance.REQUESTED
    instance = Instance(
        instance_id=name,
        instance_type=node["group"],
        status=status,
        launch_config_hash="hash",
        node_kind=NodeKind.WORKER,
        node_id=name if node["is_joined"] else "",
    )
    ray_node = None
    if node["is_joined"]:
        ray_node = NodeState(
            node_id=name.encode(),
            ray_node_type_name=node["group"],
            total_resources=kind.resources,
            available_resources=node["free"],
            labels=kind.labels,
            idle_duration_ms=node["idle_s"] * 1000,
            status=NodeStatus.IDLE if node["idle_s"] else NodeStatus.RUNNING,
        )
    return AutoscalerInstance(cloud_instance_id=name, im_instance=instance, ray_node=ray_node)


def main() -> None:
    json.dump([decide(case) for case in json.load(sys.stdin)], sys.stdout)


if __name__ == "__main__":
    main()
