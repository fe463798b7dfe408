"""The cluster grows and shrinks: what waits behind the leases that were asked for, and launches that have failed."""

from __future__ import annotations

from dualray.shared.model.ids import Address
from dualray.shared.model.records import dataclass
from dualray.shared.model.resources import Resources
from dualray.shared.model.specs import LabelTerm, LeaseShape


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
    """`request_resources` was called, in the process itself and then to the head: the cluster is to be large enough for
    these bundles, in place of those that the job wanted before.

    Attributes:
        job: whose request it is, while its driver is there; afterwards it is that of `requester`.
        counts: how many of each bundle.
        selectors: of each, what the labels of its node must meet.
    """

    requester: Address
    job: int
    bundles: tuple[Resources, ...]
    counts: tuple[int, ...]
    selectors: tuple[tuple[LabelTerm, ...], ...]


@dataclass(slots=True, kw_only=True)
class LaunchesFailed:
    """The provider of nodes has refused some launches of a group, or they have failed; `reason` says why."""

    group: str
    launch_ids: tuple[str, ...]
    reason: str
