"""The resource pool counts what one node has and what is free of it, and picks the GPUs of a lease.

Theory of operation. What a lease holds is taken from `free` and given back when it ends. A worker that goes on after
`get` takes back what it has lent, and what is free may be negative for a while. A GPU demand is met from the node's own
GPUs, or from those of bundles (bundles.py). Whole GPUs are those with the lowest ids; a share comes from the fullest
GPU that still has room for it. Each share remembers the pool that it goes back to.

Relies on: whoever takes gives the same back, once.
Guarantees: what is free and what is taken add up to the total, for each resource and each GPU.
"""

from __future__ import annotations

from dualray.shared.machines.node.lease_records import Bundle, GpuShare
from dualray.shared.model.ids import PlacementGroupID
from dualray.shared.model.resources import GPU, UNITS, Resources, fits, from_units, gpu_units
from dualray.shared.model.specs import LeaseShape, Strategy


class ResourcePool:
    """See the module."""

    def __init__(self, *, total: Resources) -> None:
        self.total = dict(total.units)
        self.free = dict(total.units)
        gpu_units = total.get(GPU)
        self.gpus = {gpu: min(UNITS, gpu_units - gpu * UNITS) for gpu in range(-(-gpu_units // UNITS))}
        self.gpus_free = dict(self.gpus)
        self.bundles: dict[PlacementGroupID, dict[int, Bundle]] = {}
        """Of each placement group, what is reserved here."""

    # ---- What fits -------------------------------------------------------------------------------------------

    def has_room(self, shape: LeaseShape) -> bool:
        """Whether one such lease can be granted now."""
        units = gpu_units(shape.resources)
        return fits(self.free, shape.placement) and (not units or self.gpu_places(units, shape.strategy) > 0)

    def _gpu_pools(self, strategy: Strategy) -> list[dict[int, int]]:
        """Where a lease's GPUs come from: the node's own, or those of a bundle, or of any bundle of a group."""
        if strategy.group is None:
            return [self.gpus_free]
        bundles = self.bundles.get(strategy.group, {})
        return [bundle.gpus_free for bundle in bundles.values() if strategy.bundle in (-1, bundle.index)]

    def gpu_places(self, units: int, strategy: Strategy) -> int:
        """How many such demands the GPUs can take: what is free on two of them does not make a third."""
        free = [amount for pool in self._gpu_pools(strategy) for amount in pool.values()]
        if units >= UNITS:
            return sum(amount == UNITS for amount in free) // (units // UNITS)
        return sum(amount // units for amount in free)

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

    def take_gpus(self, units: int, strategy: Strategy) -> tuple[GpuShare, ...]:
        """Whole GPUs: the free ones with the lowest ids. A share: the fullest GPU that still has room for it."""
        if not units:
            return ()
        offers = [(free, gpu, pool) for pool in self._gpu_pools(strategy) for gpu, free in pool.items()]
        if units >= UNITS:
            whole = [(gpu, pool) for free, gpu, pool in offers if free == UNITS][: units // UNITS]
            shares = tuple(GpuShare(gpu, UNITS, pool) for gpu, pool in whole)
        else:
            _, gpu, pool = min((offer for offer in offers if offer[0] >= units), key=lambda offer: offer[:2])
            shares = (GpuShare(gpu, units, pool),)
        for share in shares:
            share.pool[share.gpu] -= share.units
        return shares

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
        units = self.gpus.pop(gpu)
        self.total[GPU] -= units
        self.free[GPU] -= self.gpus_free.pop(gpu)


def without_gpu(resources: Resources, units_lost: int) -> Resources:
    """What is left when so much of a GPU is lost."""
    left = dict(resources.units)
    left[GPU] -= units_lost
    return from_units(left)
