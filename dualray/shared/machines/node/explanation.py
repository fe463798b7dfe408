"""Explains why a node does not grant a request for a lease.

A request that a node cannot serve goes on to the head, or waits. Here stands, in words, what speaks against granting it
here and now. Nothing is decided here: the local scheduler decides.
"""

from __future__ import annotations

from collections import Counter

from dualray.shared.machines.node.local_scheduler import LocalScheduler
from dualray.shared.machines.node.object_store import ObjectStore
from dualray.shared.model.events import LeaseRequested
from dualray.shared.model.resources import UNITS, fits, free_words, number_words
from dualray.shared.model.specs import LeaseShape, StrategyKind
from dualray.shared.policies.placement import count_below

HOLDERS_SHOWN = 3


def why_not_here(scheduler: LocalScheduler, store: ObjectStore, request: LeaseRequested, now_ns: int) -> list[str]:
    """Before a node answers a request: what speaks against granting it here and now."""
    if request.placed:
        return _what_is_taken(scheduler, request.shape)
    shape = request.shape
    reasons = []
    if scheduler.is_draining:
        reasons.append("the node is draining")
    if now_ns < scheduler.waits_until_ns.get(request.owner, 0):
        reasons.append("the driver has just given a lease back for another driver")
    if shape.strategy.kind is not StrategyKind.DEFAULT:
        reasons.append(f"its scheduling strategy is {shape.strategy.kind}: the head decides")
    if scheduler.waiting:
        reasons.append(f"{len(scheduler.waiting)} other requests wait on this node before it")
    reasons += _why_no_room(scheduler, store, shape)
    return reasons or _why_the_head_compares(scheduler, request)


def _why_the_head_compares(scheduler: LocalScheduler, request: LeaseRequested) -> list[str]:
    """The resource whose use ends what this node grants by itself, though it is free."""
    threshold = scheduler.config.spread_threshold_percent
    for name, amount in request.shape.placement.units:
        total, free = scheduler.total.get(name, 0), scheduler.free.get(name, 0)
        here = count_below(threshold, total, free, amount)
        if not scheduler.is_alone and here < min(request.count, free // amount):
            return [f"the node grants requests itself only while less than {threshold} % of its {name} is in use"]
    return []


def _what_is_taken(scheduler: LocalScheduler, shape: LeaseShape) -> list[str]:
    """The resources of which too little is free, and what holds them."""
    reasons = []
    if not fits(scheduler.free, shape.placement):
        for name, amount in shape.placement.units:
            free = scheduler.free.get(name, 0)
            if free < amount:
                total = scheduler.total.get(name, 0)
                wanted = number_words(name, amount / UNITS)
                words = free_words(max(free, 0), total, name)
                reasons.append(f"{words}, and it needs {wanted}{_held_by(scheduler, name)}")
    return reasons


def _held_by(scheduler: LocalScheduler, resource: str) -> str:
    """The tasks and actors whose leases hold some of a resource, by name."""
    holders = Counter(
        lease.name or "a task"
        for lease in scheduler.leases.values()
        if any(name == resource for name, _ in lease.resources.units)
    )
    named = ", ".join(f"{count} x {name}" for name, count in holders.most_common(HOLDERS_SHOWN))
    more = ", ..." if len(holders) > HOLDERS_SHOWN else ""
    return f"; held by {named}{more}" if holders else ""


def _why_no_room(scheduler: LocalScheduler, store: ObjectStore, shape: LeaseShape) -> list[str]:
    reasons = _what_is_taken(scheduler, shape)
    missing = [hint.size_bytes for hint in shape.deps if not store.is_here(hint.object_id)]
    if sum(missing) > scheduler.config.locality_bytes_max:
        reasons.append(
            f"{sum(missing):,} bytes of its arguments are on other nodes, more than locality_bytes_max "
            f"({scheduler.config.locality_bytes_max:,})"
        )
    return reasons
