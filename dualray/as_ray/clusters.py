"""`ray.cluster_utils.Cluster`: dualray's, whose nodes end as Ray's do."""

from __future__ import annotations

from typing import Any

from dualray import cluster_utils
from dualray.as_ray.global_state import GlobalState, state
from dualray.as_ray.metadata import VERSIONS, version_here

__all__ = ["Cluster"]


class Cluster(cluster_utils.Cluster):
    """See `dualray.cluster_utils.Cluster`."""

    @property
    def global_state(self) -> GlobalState:
        """Tables of nodes, actors, jobs and placement groups, such as `node_table()`; the program must be connected."""
        return state

    def add_node(self, *args: Any, **options: Any) -> cluster_utils.ClusterNode:
        """See `dualray.cluster_utils.Cluster.add_node`."""
        node = super().add_node(*args, **options)
        if node is self.head_node:
            VERSIONS[self.address] = version_here()
        return node

    def remove_node(self, node: cluster_utils.ClusterNode, allow_graceful: bool = True) -> None:
        """End a node at once. Its tasks fail or run again elsewhere, and what only it had is lost, whatever
        `allow_graceful` is: a node of Ray's does not finish its tasks either."""
        super().remove_node(node, allow_graceful=False)
