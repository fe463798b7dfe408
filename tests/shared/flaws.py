"""What a machine's invariants say of states that are wrong: each is made from a right one, looked at, and mended."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

DEPTH = 4
"""So far from the machine what it has is looked at."""
MEMBERS = 2
"""Of each table, the first so many."""
PASSED_OVER = frozenset({"out", "config", "table", "known_values", "address", "node", "_had_devices"})
"""What machines share, and what never changes."""
PARTS: dict[str, tuple[str, ...]] = {
    "Executor": ("transit",),
    "LocalScheduler": ("admission", "resources", "reserved", "worker_pool"),
    "ObjectStore": ("contents", "space"),
    "Owner": ("pushes", "losses", "puts", "explanation", "state_rows", "questions"),
    "Tasks": ("lineage",),
    "Transfer": ("links", "sending"),
    "Values": ("borrows", "pins", "references", "waiting"),
}
"""The parts of a machine whose state is looked at as its own: which part keeps what is no matter of the invariants."""
ORDER: dict[str, tuple[str, ...]] = {
    "Executor": ("exit", "started_ns", "is_actor", "caller_is_dead", "calls", "is_spent", "in_transit"),
    "LocalScheduler": (
        *("incarnation", "total", "free", "devices", "devices_free", "bundles", "bundle_reports", "_store", "_in_line"),
        *("_first", "_brought", "_brought_bytes", "workers", "idle", "leases", "waiting", "unstaffed", "settled"),
        *("allocated", "held", "is_draining", "waits_until_ns", "out_of_memory", "_memory_policy", "_granted"),
        *("_worker_counter", "_lease_counter", "_slot_counter", "_start_failures"),
    ),
    "ObjectStore": (
        *("incarnation", "capacity_bytes", "spills", "objects", "used_bytes", "spilled", "spilled_bytes"),
        *("copies_gone", "without_memory", "joined", "room_of", "called_back"),
    ),
    "Owner": (
        *("is_driver", "rooms", "values", "tasks", "leases", "actor_calls", "executor", "reach", "production"),
        *("actor_executor", "cancellation", "cluster_state", "rows", "named_actors", "_rows_due", "_space"),
    ),
    "Tasks": ("records", "streams"),
    "Transfer": (
        *("incarnation", "store", "wants", "admitted", "admitted_bytes", "lined_up", "receivers", "requests"),
        *("restoring", "lives", "silences", "unreachable", "_timer_is_armed", "_to_ask"),
    ),
    "Values": (
        *("rooms", "waits", "unacknowledged", "removals_held_back", "met", "asked", "views", "loans", "loans_kept"),
        "lenders_lost",
    ),
}
"""The order in which a machine's state is looked at, where it is not that of the constructors."""


KEPT_NAMES = {"devices": "gpus", "devices_free": "gpus_free"}
"""What kept runs call members that have another name now."""


def found_wrong(machine: Any) -> list[str]:
    """For each flaw, where it is and what the invariants say of it; "" when they see nothing."""
    said = []
    for path, holders, name, right, wrong in _flaws(machine, "", 0, {}):
        for holder in holders:
            setattr(holder, name, wrong)
        try:
            machine.check_invariants()
            words = ""
        except Exception as error:  # noqa: BLE001  # whatever it is
            words = f"{type(error).__name__}: {error}"
        finally:
            for holder in holders:
                setattr(holder, name, right)
        said.append(f"{path}: {words}")
    return said


def _flaws(thing: Any, path: str, depth: int, seen: dict[int, None]) -> Iterator[tuple[str, list[Any], str, Any, Any]]:
    if id(thing) in seen or depth > DEPTH:
        return
    seen[id(thing)] = None
    for name, holders in _members(thing).items():
        right = getattr(holders[0], name, None)
        where = f"{path}.{KEPT_NAMES.get(name, name)}"
        if type(right) is dict and right:  # a part may share it with another
            if id(right) in seen:
                continue
            seen[id(right)] = None
        for number, wrong in enumerate(_wrong(right)):
            yield f"{where} {number}", holders, name, right, wrong
        for inner in _inside(right):
            yield from _flaws(inner, where, depth + 1, seen)


def _members(thing: Any) -> dict[str, list[Any]]:
    """What a machine keeps by name, with who keeps it: the machine, or its parts, which may share it."""
    kind = type(thing).__name__
    parts = PARTS.get(kind, ()) if _names(thing) else ()
    found: dict[str, list[Any]] = {}
    for holder in (thing, *[getattr(thing, part) for part in parts]):
        for name in _names(holder):
            if name not in parts:
                found.setdefault(name, []).append(holder)
    first = {name: found[name] for name in ORDER.get(kind, ()) if name in found}
    return first | found


def _names(thing: Any) -> list[str]:
    if not type(thing).__module__.startswith("dualray.shared.machines") or callable(thing):
        return []
    slots = [name for kind in type(thing).__mro__ for name in getattr(kind, "__slots__", ())]
    return [name for name in dict.fromkeys([*slots, *getattr(thing, "__dict__", ())]) if name not in PASSED_OVER]


def _wrong(right: Any) -> list[Any]:
    if isinstance(right, bool):
        return [not right]
    if isinstance(right, int):
        return [right + 1, right - 1]
    if type(right) is dict and right:
        first, last = next(iter(right)), next(reversed(right))
        flaws: list[Any] = [_without(right, first)]
        if isinstance(right[last], int):
            flaws += [{**right, last: right[last] + 1}, {**right, last: right[last] - 1}]
        return flaws
    return []


def _without(right: Mapping[Any, Any], key: Any) -> dict[Any, Any]:
    return {other: value for other, value in right.items() if other != key}


def _inside(right: Any) -> list[Any]:
    if isinstance(right, Mapping) and not isinstance(right, MappingProxyType):
        return list(right.values())[:MEMBERS]
    if isinstance(right, (int, str, bytes, tuple)) or right is None:
        return []
    return [right]
