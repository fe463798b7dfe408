"""Placement groups, which reserve resources together, on nodes that a strategy chooses.

    group = placement_group([{"CPU": 2}, {"CPU": 2, "GPU": 1}], strategy="STRICT_SPREAD")
    dualray.get(group.ready(), timeout=60)
    task.options(scheduling_strategy=PlacementGroupSchedulingStrategy(group, 1)).remote()
    remove_placement_group(group)

See docs/api/placement.md.
"""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from dualray import api, runtime
from dualray.first_verb import started
from dualray.object_ref import ObjectRef
from dualray.scheduling_strategies import WholeGroupSchedulingStrategy
from dualray.shared.labels import parse_selector
from dualray.shared.model.demands import parse_named
from dualray.shared.model.ids import job_of
from dualray.user_verbs import GroupRequest

__all__ = [
    "PlacementGroup",
    "get_current_placement_group",
    "get_placement_group",
    "placement_group",
    "placement_group_table",
    "remove_placement_group",
]

VALID_PLACEMENT_GROUP_STRATEGIES = ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD")
_TABLE = "placement_groups"
NO_GROUP = bytes(16)
"""The id of a handle that stands for no group."""


class GroupID(bytes):
    """The id of a placement group. `hex()` returns the id as 32 hex digits."""

    __slots__ = ()

    def binary(self) -> bytes:
        """Return the id as 16 bytes."""
        return bytes(self)

    def is_nil(self) -> bool:
        """Return whether the id is the id of no group."""
        return self == NO_GROUP


class PlacementGroup:
    """A handle to a placement group, which you can pass to tasks and actors.

    Attributes:
        id: the group's id (16 bytes). `id.hex()` is the id in the state API.
        bundle_specs: what each bundle reserves, by name.
    """

    __slots__ = ("bundle_specs", "id")

    def __init__(self, id: bytes, bundle_specs: Sequence[Mapping[str, float]] = ()) -> None:  # noqa: A002 - Ray's
        self.id = GroupID(bytes(id))
        self.bundle_specs = [dict(bundle) for bundle in bundle_specs]

    @staticmethod
    def empty() -> PlacementGroup:
        """Return a handle of no placement group. Tasks and actors with this handle run in no group."""
        return PlacementGroup(NO_GROUP, [])

    @property
    def bundle_count(self) -> int:
        """Number of bundles."""
        return len(self.bundle_specs)

    @property
    def is_empty(self) -> bool:
        """Whether the handle is a handle of no group, as `PlacementGroup.empty()` returns it."""
        return self.id == NO_GROUP

    def ready(self) -> ObjectRef[PlacementGroup]:
        """Return a reference that is ready, with this group as its value, when all bundles are reserved.

        After a node with a bundle has died, a new reference is ready when the bundle is reserved on another node.

        `get` of this reference raises TaskPlacementGroupRemoved if the group is removed first, and
        TaskUnschedulableError if the remaining nodes can never hold the group.
        """
        strategy = WholeGroupSchedulingStrategy(self)
        remote: Any = api.remote(_itself)
        options = {"name": "placement_group.ready", "num_cpus": 0, "max_retries": -1}
        ref: ObjectRef[PlacementGroup] = remote.options(scheduling_strategy=strategy, **options).remote(self)
        return ref

    def wait(self, timeout_seconds: float | None = 30) -> bool:
        """Wait until all bundles are reserved, and return whether they are.

        Args:
            timeout_seconds: the longest wait; None means no limit.

        Raises:
            TaskPlacementGroupRemoved, TaskUnschedulableError: the bundles can never be reserved; see `ready`.
        """
        ready, _ = api.wait([self.ready()], timeout=timeout_seconds)
        if ready:
            api.get(ready[0])
        return bool(ready)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PlacementGroup) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __reduce__(self) -> tuple[Any, ...]:
        return PlacementGroup, (bytes(self.id), self.bundle_specs)

    def __repr__(self) -> str:
        return f"PlacementGroup({self.id.hex()}, {self.bundle_specs})"


def _itself(group: PlacementGroup) -> PlacementGroup:
    return group


def placement_group(
    bundles: Sequence[Mapping[str, float]],
    strategy: str = "PACK",
    name: str = "",
    lifetime: str | None = None,
    bundle_label_selector: Sequence[Mapping[str, str]] | None = None,
) -> PlacementGroup:
    """Reserve bundles of resources, all together, as soon as the nodes have enough free resources.

    The call returns at once. Use `ready` to wait until the group is reserved.

    Args:
        bundles: the resources that each bundle reserves on one node: `[{"CPU": 2, "GPU": 1}, {"disk": 1}]`.
        strategy: "PACK" (few nodes), "SPREAD" (many nodes), "STRICT_PACK" (one node), "STRICT_SPREAD" (a node each).
        name: the name by which `get_placement_group` finds the group, unique within a namespace.
        lifetime: with None, the group ends with its job, or with the process of the actor that created it. With
            "detached", the group ends with `remove_placement_group`.
        bundle_label_selector: conditions on the labels of each bundle's node: `[{"zone": "a"}, {}]`.

    Raises:
        PlacementGroupUnschedulableError: the nodes of a closed cluster can never hold the group, or another group has
            the name.
        ValueError, TypeError: the bundles, the strategy, the lifetime or the selectors have a wrong value.
    """
    specs = _parse_bundles(bundles)
    if strategy not in VALID_PLACEMENT_GROUP_STRATEGIES:
        nearest = difflib.get_close_matches(str(strategy), VALID_PLACEMENT_GROUP_STRATEGIES, n=1)
        hint = f" Did you mean {nearest[0]!r}?" if nearest else ""
        known = ", ".join(VALID_PLACEMENT_GROUP_STRATEGIES)
        raise ValueError(f"placement_group: strategy={strategy!r} must be one of {known}.{hint}")
    if lifetime not in (None, "detached"):
        raise ValueError(f"placement_group: lifetime={lifetime!r} must be None or 'detached'")
    if not isinstance(name, str):
        raise TypeError(f"placement_group: name={name!r} must be a str")
    selectors = list(bundle_label_selector or [])
    if selectors and len(selectors) != len(specs):
        raise ValueError(
            f"placement_group: bundle_label_selector has {len(selectors)} selectors for {len(specs)} bundles; give one "
            "selector for each bundle"
        )
    for index, selector in enumerate(selectors):
        try:
            parse_selector(f"bundle_label_selector[{index}]", selector)
        except TypeError as error:
            raise api.WrongTypeError(str(error)) from None
    request = GroupRequest(specs, strategy, name, lifetime == "detached", selectors)
    group_id = started("placement_group").verbs.create_placement_group(request)
    return PlacementGroup(group_id, specs)


def _parse_bundles(bundles: Any) -> list[dict[str, float]]:
    """What each bundle reserves, by name."""
    if not isinstance(bundles, list | tuple):
        raise api.WrongTypeError(
            f"placement_group: bundles={bundles!r} must be a list of dicts, such as [{{'CPU': 1}}]"
        )
    if not bundles:
        raise ValueError("placement_group: bundles must not be empty")
    parsed = []
    for index, bundle in enumerate(bundles):
        if not isinstance(bundle, Mapping):
            raise api.WrongTypeError(
                f"placement_group: bundle {index} is {bundle!r}, but must be a dict, such as {{'CPU': 1}}"
            )
        if "object_store_memory" in bundle:
            warnings.warn(
                "Setting 'object_store_memory' for bundles is deprecated, as in Ray: dualray does not divide an "
                f"object store among bundles (placement_group: bundle {index})",
                DeprecationWarning,
                stacklevel=3,
            )
        if "bundle" in bundle:
            raise ValueError(
                f"placement_group: bundle {index}: the resource name 'bundle' is reserved; use another name"
            )
        try:
            demand = parse_named(bundle)
        except (TypeError, ValueError) as error:
            kind = api.WrongTypeError if isinstance(error, TypeError) else ValueError
            raise kind(f"placement_group: bundle {index}: {error}") from None
        if not demand.units:
            raise ValueError(f"placement_group: bundle {index}, {bundle!r}, reserves nothing; leave this bundle out")
        parsed.append(demand.as_floats())
    return parsed


def remove_placement_group(placement_group: PlacementGroup) -> None:
    """Release the resources of a group, and end the tasks and actors in the group. A second call does nothing.

    Raises:
        TypeError: the argument is not a placement group.
    """
    if not isinstance(placement_group, PlacementGroup):
        raise TypeError(f"remove_placement_group takes a PlacementGroup, not {placement_group!r}")
    runtime.current("remove_placement_group").verbs.remove_placement_group(placement_group.id)


def get_placement_group(placement_group_name: str) -> PlacementGroup:
    """Return the group with this name in the namespace of the caller.

    Raises:
        ValueError: no group in the caller's namespace has the name, or the group was removed.
    """
    if not placement_group_name:
        raise ValueError("get_placement_group needs a name that is not empty")
    verbs = runtime.current("get_placement_group").verbs
    rows = [row for row in _rows() if row["state"] != "REMOVED"]
    own_job = verbs.context().job_id
    visible = [row for row in rows if f"{job_of(bytes.fromhex(row['placement_group_id'])):08x}" == own_job]
    names = [row["name"] for row in visible]
    if len(visible) < len(rows) and placement_group_name not in names:  # else nobody needs to ask for the namespace
        namespace = verbs.namespace
        visible = [row for row in rows if row.get("ray_namespace", namespace) == namespace]
        names = [row["name"] for row in visible]
    if placement_group_name in names:
        return _handle(visible[names.index(placement_group_name)])
    nearest = difflib.get_close_matches(placement_group_name, names, n=1)
    hint = f" Did you mean {nearest[0]!r}?" if nearest else ""
    raise ValueError(f"no placement group has the name {placement_group_name!r}.{hint}")


def get_current_placement_group() -> PlacementGroup | None:
    """Return the placement group of the calling task or actor, or None outside a group."""
    wanted = runtime.current("get_current_placement_group").verbs.context().placement_group_id
    if wanted is None:
        return None
    return next((_handle(row) for row in _rows() if row["placement_group_id"] == wanted), None)


def placement_group_table(placement_group: PlacementGroup | None = None) -> dict[str, Any]:
    """Return the state of one group, or a dict from ids to states of all groups that the cluster has or had.

    A state has placement_group_id, name, strategy, state (PENDING, CREATED, RESCHEDULING, INFEASIBLE, REMOVED) and
    reason (why the group is not created). A state also has bundles (the resources of each bundle, by index),
    bundles_to_node_id (by index, with "" for no node) and stats (how many times the head asked nodes, how long creation
    took, and Ray's name of the state).
    """
    table = {row["placement_group_id"]: _as_table(row) for row in _rows()}
    if placement_group is None:
        return table
    return dict(table.get(placement_group.id.hex(), {}))


def _as_table(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **{key: row[key] for key in ("placement_group_id", "name", "strategy", "state", "reason", "is_detached")},
        "bundles": {bundle["index"]: bundle["resources"] for bundle in row["bundles"]},
        "bundles_to_node_id": {bundle["index"]: bundle["node_id"] for bundle in row["bundles"]},
        "stats": _stats(row),
    }


_RAYS_STATES = {
    "PENDING": "NO_RESOURCES",
    "CREATED": "FINISHED",
    "RESCHEDULING": "NO_RESOURCES",
    "INFEASIBLE": "INFEASIBLE",
    "REMOVED": "REMOVED",
}


def _stats(row: Mapping[str, Any]) -> dict[str, Any]:
    """What Ray's table says of how a group came about."""
    took_ms = row.get("creation_ns", 0) / 1_000_000
    state = "INFEASIBLE" if row.get("is_infeasible") else _RAYS_STATES[row["state"]]
    return {
        "end_to_end_creation_latency_ms": took_ms,
        "scheduling_latency_ms": took_ms,
        "scheduling_attempt": max(row.get("attempts", 1), 1),
        "highest_retry_delay_ms": 0.0,
        "scheduling_state": state,
    }


def _rows() -> Sequence[Mapping[str, Any]]:
    return runtime.current("placement_group_table").verbs.head_rows(_TABLE)


def _handle(row: Mapping[str, Any]) -> PlacementGroup:
    group_id = bytes.fromhex(row["placement_group_id"])
    return PlacementGroup(group_id, [bundle["resources"] for bundle in row["bundles"]])
