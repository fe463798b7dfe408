"""What of Ray's `_system_config` means something here."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any, Final

_WITHOUT_LINEAGE: Final = {
    "reconstruction_policy": "dualray.shared.policies.reconstruction:NoReconstruction",
    "eviction_policy": "spill",
}


def limits_of_ray(key: str, value: Any) -> dict[str, Any] | None:
    """Our limits for a key of Ray's `_system_config`; None: it means nothing here."""
    match key:
        case "max_direct_call_object_size":
            # Ray places a task near all of its arguments that lie in a store, however small they are.
            return {"inline_bytes_max": value, "locality_bytes_max": value}
        case "worker_lease_timeout_milliseconds":
            return {"lease_idle_ns": int(value * 1_000_000)}
        case "scheduler_spread_threshold":
            return {"spread_threshold_percent": round(value * 100)}
        case "lineage_pinning_enabled":
            return {} if value else dict(_WITHOUT_LINEAGE)
        case "max_num_generator_returns":
            return {"generator_items_max": value}
        case "memory_monitor_refresh_ms":
            return {"memory_check_ns": int(value * 1_000_000)}
        case "memory_usage_threshold":
            return {"memory_limit_percent": round(value * 100)}
        case _:
            return None


_OF_VARIABLES: Final = (
    "lineage_pinning_enabled",
    "max_direct_call_object_size",
    "max_num_generator_returns",
    "memory_monitor_refresh_ms",
    "memory_usage_threshold",
    "scheduler_spread_threshold",
    "worker_lease_timeout_milliseconds",
)
"""Keys that variables such as RAY_memory_usage_threshold can say, too."""


def limits_of_variables() -> dict[str, Any]:
    """Our limits for Ray's variables that stand for keys of `_system_config`.

    Raises:
        ValueError: a variable is neither a number nor a bool; the message names it.
    """
    found: dict[str, Any] = {}
    for key in _OF_VARIABLES:
        variable = f"RAY_{key}"
        text = os.environ.get(variable)
        if text:
            try:
                value = json.loads(text.lower())
                found |= limits_of_ray(key, value) or {}
            except (TypeError, ValueError):
                raise ValueError(f"{variable}={text!r} must be a number, true or false") from None
    return found


def all_limits_of_ray(config: Mapping[str, Any] | None) -> dict[str, Any]:
    """Our limits for those keys that mean something here."""
    found: dict[str, Any] = {}
    for key, value in (config or {}).items():
        found |= limits_of_ray(key, value) or {}
    return found
