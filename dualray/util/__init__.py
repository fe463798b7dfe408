"""Helpers that programs import explicitly, in modules with the same names as in Ray.

`placement_group` and `explain` are functions here, as in Ray, though modules have the same names: import what is in
those modules with `from dualray.util.placement_group import ...`.
"""

from dualray.util import scheduling_strategies as scheduling_strategies
from dualray.util.actor_pool import ActorPool
from dualray.util.debug import disable_log_once_globally, enable_periodic_logging, log_once
from dualray.util.explain import explain
from dualray.util.helpers import as_completed, map_unordered
from dualray.util.named_actors import list_named_actors
from dualray.util.node import get_node_ip_address
from dualray.util.placement_group import (
    get_current_placement_group,
    get_placement_group,
    placement_group,
    placement_group_table,
    remove_placement_group,
)
from dualray.util.serialization import deregister_serializer, inspect_serializability, register_serializer

__all__ = [
    "ActorPool",
    "as_completed",
    "deregister_serializer",
    "disable_log_once_globally",
    "enable_periodic_logging",
    "explain",
    "get_current_placement_group",
    "get_node_ip_address",
    "get_placement_group",
    "inspect_serializability",
    "list_named_actors",
    "log_once",
    "map_unordered",
    "placement_group",
    "placement_group_table",
    "register_serializer",
    "remove_placement_group",
]
