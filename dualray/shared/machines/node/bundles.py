"""A node reserves bundles of placement groups, and takes back what they hold.

Theory of operation. A bundle is reserved when the head asks for it and all of it is free now: what it takes is offered
under the bundle's own names (model/resources.py), and its devices go into a pool of their own. When the head does not
want it any more, or a GPU of it is lost, the local scheduler ends what runs in it; with the last lease in it its
resources are the node's again. The head hears of each bundle, by its attempt: it is reserved, or it is not.

Relies on: the local scheduler ends the leases in a bundle that is given back, and asks for its dissolution with each.
Guarantees: a bundle is reserved whole or not at all; nothing of it is the node's before its last lease has ended.
"""

from __future__ import annotations

from collections.abc import Callable

from dualray.shared.machines.node.lease_records import Bundle, Lease
from dualray.shared.machines.node.resource_pool import ResourcePool, without_gpu
from dualray.shared.model.errors import ErrorInfo, ErrorKind
from dualray.shared.model.events import BundlesUnwanted, BundleWanted
from dualray.shared.model.ids import LeaseID, NodeID, PlacementGroupID, short
from dualray.shared.model.resources import fits
from dualray.shared.model.specs import DEFAULT_STRATEGY, BundleReport, LeaseShape


class ReservedBundles:
    """See the module.

    Args:
        leases: those of the node.
        end_leases: end the leases, and what waits for one, in these bundles of a group, for a reason.
    """

    def __init__(
        self,
        *,
        node: NodeID,
        resources: ResourcePool,
        leases: dict[LeaseID, Lease],
        end_leases: Callable[[PlacementGroupID, tuple[int, ...], ErrorInfo], None],
    ) -> None:
        self.node = node
        self.bundles = resources.bundles
        self.bundle_reports: list[BundleReport] = []
        """What the head has not been told yet."""
        self.leases = leases
        self.resources = resources
        self._end_leases = end_leases

    def on_wanted(self, event: BundleWanted, *, is_draining: bool) -> None:
        """Reserve a bundle, if it fits here and now."""
        resources = self.resources
        fitting = (
            fits(resources.free, event.resources) and resources.device_places(event.resources, DEFAULT_STRATEGY, 1) > 0
        )
        is_ending = event.index in self.bundles.get(event.group_id, {})
        if fitting and not is_ending and not is_draining:
            resources.take(event.resources)
            bundle = Bundle(event, resources.take_devices(event.resources, DEFAULT_STRATEGY))
            self.bundles.setdefault(event.group_id, {})[event.index] = bundle
            resources.offer(bundle.offered)
            self._report(event.group_id, bundle, is_reserved=True)
            return
        self.bundle_reports.append(
            BundleReport(group_id=event.group_id, index=event.index, attempt=event.attempt, is_reserved=False)
        )

    def _report(self, group: PlacementGroupID, bundle: Bundle, *, is_reserved: bool) -> None:
        self.bundle_reports.append(
            BundleReport(group_id=group, index=bundle.index, attempt=bundle.attempt, is_reserved=is_reserved)
        )

    def on_unwanted(self, event: BundlesUnwanted) -> bool:
        """End what runs in these bundles, and take back what they hold; whether that is free by now."""
        what = "was removed" if event.is_removed else "is being placed anew"
        error = ErrorInfo(
            kind=ErrorKind.TASK_GROUP_REMOVED if event.is_removed else ErrorKind.WORKER_CRASHED,
            message=f"placement group {short(event.group_id)} {what}",
        )
        return self._end(event.group_id, event.indices, error)

    def _end(self, group: PlacementGroupID, indices: tuple[int, ...], error: ErrorInfo) -> bool:
        for index in indices:
            bundle = self.bundles.get(group, {}).get(index)
            if bundle is not None:
                bundle.error = error
        self._end_leases(group, indices, error)
        return self.dissolve(group)

    def has_bundle_for(self, shape: LeaseShape) -> bool:
        """Whether a slot can wait here: yes, unless it is in a bundle that is not here (any more)."""
        strategy = shape.strategy
        if strategy.group is None:
            return True
        bundles = self.bundles.get(strategy.group, {})
        return any(
            bundle.error is None
            for bundle in bundles.values()
            if strategy.bundle < 0 or strategy.bundle == bundle.index
        )

    def dissolve(self, group: PlacementGroupID) -> bool:
        """Take back the bundles that are given back, once no lease is in them; whether more is free now."""
        has_given = False
        bundles = self.bundles.get(group, {})
        for bundle in list(bundles.values()):
            if bundle.error is None or any(
                lease.group == group and (lease.bundle < 0 or lease.bundle == bundle.index)
                for lease in self.leases.values()
            ):
                continue
            del bundles[bundle.index]
            self.resources.withdraw(bundle.offered)
            has_given = self.resources.give(bundle.resources) or has_given
            for share in bundle.device_shares:
                share.pool[share.device] += share.units
        if not bundles:
            self.bundles.pop(group, None)
        return has_given

    def lose_gpu(self, gpu: int) -> None:
        """Bundles that hold the GPU are to be placed anew. What they hold of it is gone; the rest is taken back when
        what runs in them has ended."""
        for lease in self.leases.values():
            if lease.group is not None:
                lease.device_shares = tuple(share for share in lease.device_shares if share.device != gpu)
        for group, bundles in list(self.bundles.items()):
            for bundle in list(bundles.values()):
                lost = sum(share.units for share in bundle.device_shares if share.device == gpu)
                if lost:
                    bundle.device_shares = tuple(share for share in bundle.device_shares if share.device != gpu)
                    bundle.resources = without_gpu(bundle.resources, lost)
                    bundle.devices_free.pop(gpu)
                    if bundle.error is None:
                        self._report(group, bundle, is_reserved=False)
                        message = f"GPU {gpu} of {self.node}, which the placement group had reserved, was lost"
                        error = ErrorInfo(kind=ErrorKind.WORKER_CRASHED, message=message)
                        self._end(group, (bundle.index,), error)
