"""The functions of this module that Ray's tests and libraries call: nodes, resources, actors and groups."""

from dualray.as_ray.global_state import GlobalState, state
from dualray.as_ray.private_helpers import (
    actors,
    available_resources_per_node,
    current_node_id,
    jobs,
    node_ids,
    total_resources_per_node,
)
from dualray.as_ray.refusals import refusing
from dualray.as_ray.resources import available_resources, cluster_resources, nodes

__all__ = [
    "GlobalState",
    "actors",
    "available_resources",
    "available_resources_per_node",
    "cluster_resources",
    "current_node_id",
    "jobs",
    "node_ids",
    "nodes",
    "state",
    "total_resources_per_node",
]

__getattr__ = refusing("ray._private.state", {"timeline": "dualray.as_ray.pictures"})
