"""Owners ask node managers and the head for leases of workers, and the head asks nodes to reserve bundles."""

from __future__ import annotations

from dataclasses import field

from dualray.shared.model.errors import ErrorInfo
from dualray.shared.model.ids import Address, LeaseID, NodeID, PlacementGroupID, RequestID, WaitID
from dualray.shared.model.records import dataclass
from dualray.shared.model.resources import Resources
from dualray.shared.model.specs import BundleReport, LeaseShape, PlacementGroupSpec


@dataclass(slots=True, kw_only=True)
class LeaseRequested:
    """An owner wants `count` leases of a shape. `placed` is set by the head: queue it here, do not spill it back; it
    holds for that life of the node, its `incarnation`. `via` is the node that spilled it back."""

    request_id: RequestID
    owner: Address
    shape: LeaseShape
    count: int
    placed: bool = False
    incarnation: int = 0
    via: NodeID | None = None


@dataclass(slots=True, kw_only=True)
class LeaseGranted:
    """One of the leases asked for."""

    request_id: RequestID
    lease_id: LeaseID
    worker: Address
    node: NodeID
    incarnation: int
    device_ids: tuple[int, ...] = ()


@dataclass(slots=True, kw_only=True)
class LeasesGranted:
    """Several leases that one owner has asked for."""

    leases: tuple[LeaseGranted, ...]


@dataclass(slots=True, kw_only=True)
class LeaseRefused:
    """`count` of the leases asked for will not come, for a reason that does not pass."""

    request_id: RequestID
    count: int
    error: ErrorInfo


@dataclass(slots=True, kw_only=True)
class LeaseReturned:
    """The owner needs the lease no more. `worker_usable` is false when the worker holds an actor's remains."""

    lease_id: LeaseID
    worker_usable: bool = True


@dataclass(slots=True, kw_only=True)
class LeasesReturned:
    """The owner needs these leases of one node no more; the workers are usable."""

    lease_ids: tuple[LeaseID, ...]


@dataclass(slots=True, kw_only=True)
class LeaseWanted:
    """Node to owner: give the lease back when what you have pushed to its worker is done, and push no more."""

    lease_id: LeaseID


@dataclass(slots=True, kw_only=True)
class LeasePassedOn:
    """Owner to node: the lease serves another function from now on."""

    lease_id: LeaseID
    name: str


@dataclass(slots=True, kw_only=True)
class LeasedWorkerDied:
    """The worker of a lease died with whatever it ran."""

    lease_id: LeaseID
    worker: Address
    error: ErrorInfo


@dataclass(slots=True, kw_only=True)
class WorkerBlocked:
    """A worker's task waits in `get` or `wait`, or for its arguments.

    Its CPU may be leased to others meanwhile, unless `lends` is False: an actor keeps its CPU while a method waits.
    """

    worker: Address
    lends: bool = True


@dataclass(slots=True, kw_only=True)
class WorkerUnblocked:
    """The worker goes on."""

    worker: Address


@dataclass(slots=True, kw_only=True)
class BundleWanted:
    """Head to node: reserve this bundle, or say at once that you cannot. `attempt` counts the group's attempts. It
    holds for that life of the node, its `incarnation`."""

    group_id: PlacementGroupID
    index: int
    resources: Resources
    attempt: int
    incarnation: int


@dataclass(slots=True, kw_only=True)
class BundlesUnwanted:
    """Head to node: end what runs in these bundles, and take back what they hold. `is_removed`: with their group."""

    group_id: PlacementGroupID
    indices: tuple[int, ...]
    is_removed: bool


@dataclass(slots=True, kw_only=True)
class ResourcesReported:
    """What a node has free now. `settled` names the placed requests that it has granted or refused since its last
    report, once for each lease: what is not settled when a node dies is placed again. `allocated` names those that it
    has taken the resources for, though no worker is there yet: `available` is without these. `held` counts the leases
    here of each driver."""

    node: NodeID
    incarnation: int
    available: dict[str, int]
    settled: tuple[RequestID, ...] = ()
    allocated: tuple[RequestID, ...] = ()
    held: dict[str, int] = field(default_factory=dict)
    bundles: tuple[BundleReport, ...] = ()
    """What has become of bundles since the last report."""


@dataclass(slots=True, kw_only=True)
class TurnWanted:
    """Head to node: another driver waits that has less: have one of this one's leases back."""

    owner: Address


@dataclass(slots=True, kw_only=True)
class LeasesRecalled:
    """Head to node: you and the machine of this process do not reach one another. Give back what it waits for."""

    owner: Address


@dataclass(slots=True, kw_only=True)
class PlacementGroupRequested:
    """To the head: make this placement group, and tell its owner, under its `wait_id`, that it is noted."""

    wait_id: WaitID
    spec: PlacementGroupSpec


@dataclass(slots=True, kw_only=True)
class PlacementGroupNoted:
    """The answer to `PlacementGroupRequested`: it will be made as soon as it can be, or, with an error, never."""

    wait_id: WaitID
    error: ErrorInfo | None = None


@dataclass(slots=True, kw_only=True)
class PlacementGroupUnwanted:
    """To the head: remove the group, with what runs in it."""

    group_id: PlacementGroupID
