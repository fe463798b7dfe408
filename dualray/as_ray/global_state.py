"""`ray._private.state.state`: libraries ask it where groups, actors and resources are."""

from __future__ import annotations

from typing import Any

from dualray.as_ray import private_helpers, resources
from dualray.util.placement_group import placement_group_table

__all__ = ["GlobalState", "state"]


class GlobalState:
    """The methods of Ray's class that libraries call: tables of groups, actors, nodes, jobs and resources."""

    available_resources = staticmethod(resources.available_resources)
    available_resources_per_node = staticmethod(private_helpers.available_resources_per_node)
    cluster_resources = staticmethod(resources.cluster_resources)
    total_resources_per_node = staticmethod(private_helpers.total_resources_per_node)
    actor_table = staticmethod(private_helpers.actors)
    job_table = staticmethod(private_helpers.jobs)
    node_table = staticmethod(resources.nodes)

    def placement_group_table(self, placement_group_id: Any = None) -> dict[str, Any]:
        """The state of the group with this id, {} if there is none; without an id, the states of all groups by id."""
        table = placement_group_table()
        return table if placement_group_id is None else dict(table.get(placement_group_id.hex(), {}))


state = GlobalState()
