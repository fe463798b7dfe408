"""What of Ray's `_system_config` means something here."""

from __future__ import annotations

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
        case "memory_monitor_refresh_ms":
            return {"memory_check_ns": int(value * 1_000_000)}
        case "memory_usage_threshold":
            return {"memory_limit_percent": round(value * 100)}
        case _:
            return None


def all_limits_of_ray(config: Mapping[str, Any] | None) -> dict[str, Any]:
    """Our limits for those keys that mean something here."""
    found: dict[str, Any] = {}
    for key, value in (config or {}).items():
        found |= limits_of_ray(key, value) or {}
    return found
