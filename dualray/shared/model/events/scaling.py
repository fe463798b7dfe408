"""The cluster grows and shrinks: what waits behind the leases that were asked for, and launches that have failed."""

from __future__ import annotations

from dualray.shared.model.ids import Address
from dualray.shared.model.records import dataclass
from dualray.shared.model.resources import Resources
from dualray.shared.model.specs import LeaseShape


@dataclass(slots=True, kw_only=True)
class BacklogWanted:
    """From the head: say how many tasks wait behind the leases that you have asked for."""


@dataclass(slots=True, kw_only=True)
class BacklogReported:
    """To the head: of each shape, how many tasks of this owner wait for whose leases it has not asked yet."""

    owner: Address
    shapes: tuple[LeaseShape, ...]
    counts: tuple[int, ...]


@dataclass(slots=True, kw_only=True)
class ResourcesWanted:
    """To the head: the cluster is to be large enough for these bundles, in place of those that `requester` wanted."""

    requester: Address
    bundles: tuple[Resources, ...]


@dataclass(slots=True, kw_only=True)
class LaunchesFailed:
    """The provider of nodes has refused some launches of a group, or they have failed; `reason` says why."""

    group: str
    launch_ids: tuple[str, ...]
    reason: str
