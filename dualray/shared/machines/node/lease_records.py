"""What a node keeps of its workers, of leases that were asked for and granted, and of bundles that it has reserved.

The parts of the local scheduler share these records.
"""

from __future__ import annotations

from typing import NamedTuple

from dualray.shared.model.accelerators import need_fresh_worker
from dualray.shared.model.errors import ErrorInfo
from dualray.shared.model.events import BundleWanted, LeaseRequested
from dualray.shared.model.ids import Address, LeaseID, ObjectID
from dualray.shared.model.resources import bundle_resources
from dualray.shared.model.states import WORKER, WorkerState


class Worker:
    """One worker process of this node."""

    __slots__ = ("address", "is_fresh", "is_spent", "lease", "ready_ns", "runtime_env", "state")

    def __init__(self, address: Address) -> None:
        self.address = address
        self.is_fresh = True
        """It has run nothing yet."""
        self.is_spent = False
        """It takes no more calls."""
        self.ready_ns = -1
        """When its process was up; -1: it is starting."""
        self.runtime_env = ""
        self.state = WorkerState.STARTING
        self.lease: Lease | None = None

    def become(self, state: WorkerState) -> None:
        self.state = WORKER.check(self.state, state, self.address)


class Slot:
    """One lease that was asked for and is not granted yet."""

    __slots__ = ("is_admitted", "key", "missing", "owner", "placed", "refusals", "request_id", "shape", "unlocated")

    def __init__(self, key: str, request: LeaseRequested) -> None:
        self.key = key
        self.request_id = request.request_id
        self.owner = request.owner
        self.shape = request.shape
        self.placed = request.placed
        self.missing: dict[ObjectID, None] = {}
        """Of one that is admitted: arguments that are not here yet."""
        self.unlocated: dict[ObjectID, None] = {}
        """Of which no copy is known."""
        self.is_admitted = False
        """Its arguments are being brought, or here and pinned; one without arguments is from the beginning."""
        self.refusals = 0
        """So often there was no room while all tasks here were blocked."""


class DeviceShare(NamedTuple):
    """Of a lease, or of a bundle, what it holds of one GPU or other accelerator; `pool` is where that goes back to."""

    device: int
    units: int
    pool: dict[int, int]


class Bundle:
    """A bundle of a placement group that this node has reserved."""

    __slots__ = ("attempt", "device_shares", "devices_free", "error", "index", "offered", "resources")

    def __init__(self, event: BundleWanted, device_shares: tuple[DeviceShare, ...]) -> None:
        self.index = event.index
        self.attempt = event.attempt
        self.resources = event.resources
        self.offered = bundle_resources(event.resources, event.group_id, event.index)
        self.device_shares = device_shares
        self.devices_free = {share.device: share.units for share in device_shares}
        self.error: ErrorInfo | None = None
        """Why it is being given back; None while it is in use."""


class Lease:
    """The right to use a worker, its resources, and its pinned arguments (`key` is the pin's name)."""

    __slots__ = (
        "blocked",
        "bundle",
        "device_shares",
        "end_error",
        "group",
        "is_wanted",
        "key",
        "lease_id",
        "lends",
        "name",
        "owner",
        "resources",
        "worker",
    )

    def __init__(self, slot: Slot, lease_id: LeaseID, device_shares: tuple[DeviceShare, ...]) -> None:
        self.lease_id = lease_id
        self.group = slot.shape.strategy.group
        self.bundle = slot.shape.strategy.bundle
        self.end_error: ErrorInfo | None = None
        """What its owner hears when its worker, which is being ended, has."""
        self.owner = slot.owner
        self.name = slot.shape.name
        self.key = slot.key
        self.resources = slot.shape.resources
        self.device_shares = device_shares
        self.worker: Worker | None = None
        self.blocked = False
        self.lends = False
        """Whether others may have its CPU while its task waits."""
        self.is_wanted = False
        """For another driver."""

    @property
    def needs_fresh_worker(self) -> bool:
        """Whether only a worker that has run nothing can have it."""
        return bool(self.device_shares) and need_fresh_worker([share.device for share in self.device_shares])
