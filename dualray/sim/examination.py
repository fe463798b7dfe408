"""What became of a simulated run: figures that only the simulator knows, and what is left when all should be gone.

`examine` ends the faults, lets everything come to rest, and looks into every machine that is alive: when the driver
holds no reference any more, nothing may be left: no value, task, lease, object, payload, want or placement, and the
resources that are free are all that there are, but for those of placement groups that nobody has removed.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sized
from dataclasses import dataclass
from typing import Any

from dualray.exceptions import InvariantViolation
from dualray.shared.machines.head import Head
from dualray.shared.machines.owner import Owner
from dualray.shared.model.ids import PlacementGroupID, short
from dualray.shared.model.states import ActorState, GroupState
from dualray.sim.cluster import Cluster
from dualray.sim.node import NodeProcess
from dualray.sim.worker import UserProcess

REST_STEP_NS = 1_000_000_000
REST_STEPS_MAX = 300
"""Seconds of virtual time that a cluster may take to come to rest: several times every timeout of the core."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """What became of a run. The fields are plain values: it can be written as JSON.

    Attributes:
        ended_ns: virtual time when the program had ended, before the cluster came to rest.
        counters: what the network and the membership counted.
        performed, missed, outstanding: faults in words; see FaultInjector.
        leaks: what was left, in words; None when the driver still held references, so that nothing can be said.
        violations: invariants that do not hold.
        witnessed: what the program did that no simulation can repeat, in words.
        random: a digest of all seeds that were handed out, and of where the network's stream stands.
    """

    ended_ns: int
    counters: dict[str, int]
    performed: list[str]
    missed: list[str]
    outstanding: list[str]
    leaks: list[str] | None
    violations: list[str]
    random: str
    witnessed: list[str]


def examine(cluster: Cluster) -> Examination:
    """Called by the driver, when the program has ended and before the cluster is closed."""
    ended_ns = cluster.kernel.now_ns
    faults = cluster.faults
    outstanding = [str(fault) for fault in faults.outstanding]
    violations: list[str] = []
    leaks: list[str] | None = None
    faults.stop()
    cluster.lift_time_limit()
    try:
        with cluster.fibers.system:
            is_at_rest = _come_to_rest(cluster)
            if _holds_references(cluster) or next(_leaks(cluster), None) is not None:  # what is left may be garbage
                gc.collect()
                is_at_rest = _come_to_rest(cluster)
        cluster.check_invariants()
        if not _holds_references(cluster):
            leaks = list(_leaks(cluster))
            if not is_at_rest:
                leaks.insert(0, f"the cluster did not come to rest within {REST_STEPS_MAX} s of virtual time")
    except InvariantViolation as violation:
        violations.append(str(violation))
    return Examination(
        ended_ns=ended_ns,
        counters={
            "messages": cluster.network.messages_sent,
            "messages_held": cluster.network.messages_held,
            "messages_dropped": cluster.network.messages_dropped,
            "messages_doubled": cluster.network.messages_doubled,
            "transfers_lost": cluster.network.transfers_lost,
            "nodes_refused": cluster.nodes_refused,
            "nodes_left": cluster.nodes_left,
            "faults": len(faults.performed),
        },
        performed=[str(fault) for fault in faults.performed],
        missed=[str(fault) for fault in faults.missed],
        outstanding=outstanding,
        leaks=leaks,
        violations=violations,
        random=_random_digest(cluster),
        witnessed=[f"{call}: {words}" for call, words in cluster.witnessed.items()],
    )


def _random_digest(cluster: Cluster) -> str:
    digest = cluster.seeds_handed_out.copy()
    digest.update(repr(cluster.network.random.getstate()).encode())
    return digest.hexdigest()


def _come_to_rest(cluster: Cluster) -> bool:
    for _ in range(REST_STEPS_MAX):
        cluster.fibers.sleep_ns(REST_STEP_NS)
        if cluster.kernel.events_pending == 0:
            return True
    return False


def _holds_references(cluster: Cluster) -> bool:
    """Whether the program could still read a value."""
    assert cluster.driver is not None
    return any(value.local_refs for value in cluster.driver.core.machine.values.table.values())


def _leaks(cluster: Cluster) -> Iterator[str]:
    for process in cluster.processes.values():
        if not process.is_alive:
            continue
        if isinstance(process, UserProcess) and process.is_untouched:
            continue
        if isinstance(process, UserProcess):
            yield from _of_owner(process)
        elif isinstance(process, NodeProcess):
            yield from _of_node(process, _groups_that_stay(cluster))
    yield from _of_head(cluster)


def _left(who: str, what: str, things: Sized) -> Iterator[str]:
    if things:
        yield f"{who} keeps {len(things)} {what}: {_some(things)}"


def _some(things: Any) -> str:
    shown = [short(thing) if isinstance(thing, bytes) else str(thing) for thing in list(things)[:3]]
    return ", ".join(shown) + (", ..." if len(things) > len(shown) else "")


def _of_owner(process: UserProcess) -> Iterator[str]:
    core, who = process.core, process.address
    if not core.is_folded:
        yield from _of_machine(core.machine, who)
    yield from _left(who, "payloads", core.payloads)


def _of_machine(owner: Owner, who: str) -> Iterator[str]:
    yield from _left(who, "values", owner.values.table)
    yield from _left(who, "waits", owner.values.waits)
    yield from _left(who, "borrows that are not acknowledged", owner.values.unacknowledged)
    yield from _left(who, "views", owner.values.views)
    yield from _left(who, "task records", owner.tasks.records)
    yield from _left(who, "leases", owner.leases.leases)
    yield from _left(who, "lease requests", owner.leases.requests)


def _groups_that_stay(cluster: Cluster) -> frozenset[PlacementGroupID]:
    """Placement groups that nobody has removed, as a program that has failed may leave them."""
    records = cluster.head.control.scheduler.groups.records
    return frozenset(group for group, record in records.items() if record.state is not GroupState.REMOVED)


def _of_node(process: NodeProcess, groups: frozenset[PlacementGroupID]) -> Iterator[str]:
    manager, who = process.manager, process.address
    yield from _left(who, "objects", manager.store.objects)
    yield from _left(who, "stored bytes", process.store.objects)
    yield from _left(who, "writers in line", manager.store.waiting)
    yield from _left(who, "wants", manager.transfer.wants)
    yield from _left(who, "leases", manager.scheduler.leases)
    yield from _left(who, "slots", manager.scheduler.waiting)
    scheduler = manager.scheduler
    free = dict(scheduler.free)
    for group in groups & scheduler.bundles.keys():
        for bundle in scheduler.bundles[group].values():
            for name, units in bundle.resources.units:
                free[name] += units
    if free != scheduler.total:
        yield f"{who} has {free} free of {scheduler.total}"


def _of_head(cluster: Cluster) -> Iterator[str]:
    head = cluster.head.machine
    assert isinstance(head, Head)
    yield from _left("the head", "objects in its directory", head.directory.entries)
    yield from _left("the head", "lease requests", head.scheduler.pending)
    for node, view in head.scheduler.views.items():
        yield from _left("the head", f"placements on {node}", view.placed)
    for actor_id, record in head.actors.records.items():
        if record.state is not ActorState.DEAD and record.spec is not None:
            yield f"the head keeps actor {short(actor_id)}, which is {record.state}"
