"""What Ray's own public tests read here: the nodes, what they have, and the actors."""

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
    "actors",
    "available_resources",
    "available_resources_per_node",
    "cluster_resources",
    "current_node_id",
    "jobs",
    "node_ids",
    "nodes",
    "total_resources_per_node",
]

__getattr__ = refusing("ray._private.state", {"timeline": "dualray.report.present"})
