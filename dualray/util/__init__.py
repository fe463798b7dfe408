"""Helpers that users import by name, at the places where today's Ray has them.

The names are looked up when they are used: `dualray.options` imports a module of this package, long before
`dualray.api`, which most of the others need, can be imported.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dualray.util.actor_pool import ActorPool
    from dualray.util.explain import explain
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
    "deregister_serializer",
    "explain",
    "get_current_placement_group",
    "get_node_ip_address",
    "get_placement_group",
    "inspect_serializability",
    "list_named_actors",
    "placement_group",
    "placement_group_table",
    "register_serializer",
    "remove_placement_group",
]

_HOMES = {
    "ActorPool": "actor_pool",
    "deregister_serializer": "serialization",
    "explain": "explain",
    "get_node_ip_address": "node",
    "get_current_placement_group": "placement_group",
    "get_placement_group": "placement_group",
    "inspect_serializability": "serialization",
    "list_named_actors": "named_actors",
    "placement_group": "placement_group",
    "placement_group_table": "placement_group",
    "register_serializer": "serialization",
    "remove_placement_group": "placement_group",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{home}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
