"""The resource pool counts what one node has and what is free of it, and picks the accelerators of a lease.

Theory of operation. What a lease holds is taken from `free` and given back when it ends. A worker that goes on after
`get` takes back what it has lent, and what is free may be negative for a while. A demand of GPUs, or of another kind
of accelerator, is met from the node's own devices, or from those of bundles (bundles.py). Whole devices are those with
the lowest ids; a share comes from the fullest device that still has room for it. Each share remembers the pool that it
goes back to. A node without accelerators looks for none in a demand.

Relies on: whoever takes gives the same back, once.
Guarantees: what is free and what is taken add up to the total, for each resource and each device.
"""

from __future__ import annotations

from dualray.shared.machines.node.lease_records import Bundle, DeviceShare
from dualray.shared.model.accelerators import DEVICES_MAX, devices_of, devices_wanted
from dualray.shared.model.ids import PlacementGroupID
from dualray.shared.model.resources import GPU, UNITS, Resources, fits, from_units
from dualray.shared.model.specs import LeaseShape, Strategy


class ResourcePool:
    """See the module."""

    def __init__(self, *, total: Resources) -> None:
        self.total = dict(total.units)
        self.free = dict(total.units)
        self.devices = devices_of(self.total)
        """Of each GPU and each other accelerator, its units."""
        self.devices_free = dict(self.devices)
        self._had_devices = bool(self.devices)
        self.bundles: dict[PlacementGroupID, dict[int, Bundle]] = {}
        """Of each placement group, what is reserved here."""

    # ---- What fits -------------------------------------------------------------------------------------------

    def has_room(self, shape: LeaseShape) -> bool:
        """Whether one such lease can be granted now."""
        return fits(self.free, shape.placement) and (
            not self._had_devices or self.device_places(shape.resources, shape.strategy, 1) > 0
        )

    def _device_pools(self, strategy: Strategy) -> list[dict[int, int]]:
        """Where a lease's devices come from: the node's own, or those of a bundle, or of any bundle of a group."""
        if strategy.group is None:
            return [self.devices_free]
        bundles = self.bundles.get(strategy.group, {})
        return [
            bundle.devices_free for bundle in bundles.values() if strategy.bundle < 0 or strategy.bundle == bundle.index
        ]

    def device_places(self, resources: Resources, strategy: Strategy, most: int) -> int:
        """How many such demands, up to `most`, the devices can take: what is free on two of them does not make a
        third."""
        if not self._had_devices:
            return most
        for kind, units in devices_wanted(resources):
            offers = self._free_of(kind, strategy)
            if units >= UNITS:
                most = min(most, sum([offer[0] == UNITS for offer in offers]) // (units // UNITS))
            else:
                most = min(most, sum([offer[0] // units for offer in offers]))
        return most

    def _free_of(self, kind: int, strategy: Strategy) -> list[tuple[int, int, dict[int, int]]]:
        """What is free of each device of a kind, with the device and its pool."""
        return [
            (free, device, pool)
            for pool in self._device_pools(strategy)
            for device, free in pool.items()
            if device // DEVICES_MAX == kind
        ]

    # ---- Taking and giving back ------------------------------------------------------------------------------

    def take(self, resources: Resources) -> bool:
        """They are in use from now on; whether that changes what is free."""
        for name, amount in resources.units:
            self.free[name] = self.free.get(name, 0) - amount
        return bool(resources.units)

    def give(self, resources: Resources) -> bool:
        """They are free again; whether that changes what is free."""
        for name, amount in resources.units:
            self.free[name] += amount
        return bool(resources.units)

    def take_devices(self, resources: Resources, strategy: Strategy) -> tuple[DeviceShare, ...]:
        """Of each kind of accelerator. Whole devices: the free ones with the lowest ids. A share: the fullest device
        that still has room for it."""
        if not self._had_devices:
            return ()
        shares: list[DeviceShare] = []
        for kind, units in devices_wanted(resources):
            offers = self._free_of(kind, strategy)
            if units >= UNITS:
                whole = [(device, pool) for free, device, pool in offers if free == UNITS][: units // UNITS]
                shares += [DeviceShare(device, UNITS, pool) for device, pool in whole]
            else:
                _, device, pool = min((offer for offer in offers if offer[0] >= units), key=lambda offer: offer[:2])
                shares.append(DeviceShare(device, units, pool))
        for share in shares:
            share.pool[share.device] -= share.units
        return tuple(shares)

    # ---- What the node has -----------------------------------------------------------------------------------

    def offer(self, resources: Resources) -> None:
        """The node has this as well, and it is free: a bundle's own names."""
        for name, amount in resources.units:
            self.total[name] = self.total.get(name, 0) + amount
            self.free[name] = self.free.get(name, 0) + amount

    def withdraw(self, resources: Resources) -> None:
        """The node has this no more; all of it was free."""
        for name, amount in resources.units:
            self.total[name] -= amount
            self.free[name] -= amount
            if not self.total[name]:
                del self.total[name], self.free[name]

    def lose_gpu(self, gpu: int) -> None:
        """A GPU is gone, and with it what was free of it; what leases held of it is theirs to lose."""
        units = self.devices.pop(gpu)
        self.total[GPU] -= units
        self.free[GPU] -= self.devices_free.pop(gpu)


def without_gpu(resources: Resources, units_lost: int) -> Resources:
    """What is left when so much of a GPU is lost."""
    left = dict(resources.units)
    left[GPU] -= units_lost
    return from_units(left)
