"""Examines a finished simulation: figures that only the simulator has, and leaks.

`examine` ends the faults, lets everything come to rest, and looks into every machine that is alive: when the driver
holds no reference any more, nothing may be left: no value, task, lease, object, payload, want or placement, and the
resources that are free are all that there are, but for those of placement groups that nobody has removed.
"""

from __future__ import annotations

import gc
from array import array
from typing import NamedTuple

from dualray.exceptions import InvariantViolation
from dualray.shared.machines.head.global_scheduler import PARTED_TIMER
from dualray.shared.machines.head.head import Head
from dualray.shared.machines.owner.task_records import TASK_TABLE
from dualray.shared.model.errors import ErrorKind
from dualray.shared.model.ids import Address
from dualray.shared.model.states import TaskState
from dualray.shared.proof.leftovers import has_references, kept_words, left_in_head, left_in_node, left_in_owner
from dualray.shared.proof.trace import TraceKind
from dualray.sim.cluster.cluster import Cluster
from dualray.sim.processes.node import NodeProcess
from dualray.sim.processes.worker import UserProcess

REST_STEP_NS = 1_000_000_000
REST_STEPS_MAX = 300
"""Seconds of virtual time that a cluster may take to come to rest: several times every timeout of the core."""


class Examination(NamedTuple):
    """What became of a run. The fields are plain values: it can be written as JSON.

    Attributes:
        ended_ns: virtual time when the program had ended, before the cluster came to rest.
        counters: what the network and the membership counted.
        performed, missed, outstanding: faults in words; see FaultInjector.
        leaks: what was left, in words; None when the driver still held references, so that nothing can be said.
        violations: invariants that do not hold.
        witnessed: what the program did that no simulation can repeat, in words.
        random: a digest of all seeds that were handed out, and of where the network's stream stands.
        rows_used: of the tables of durations and memory, and of the profile, the rows that said something of a task.
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
    rows_used: list[tuple[str, str]]


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
            if _goes_on(cluster) or _leaks(cluster):  # what is left may be garbage
                gc.collect()
                is_at_rest = _come_to_rest(cluster)
        cluster.check_invariants()
        if not _goes_on(cluster) and not cluster.outages.is_down:
            leaks = _leaks(cluster)
            if not is_at_rest:
                leaks.insert(0, f"the cluster did not become idle within {REST_STEPS_MAX} s of virtual time")
    except InvariantViolation as violation:
        violations.append(str(violation))
    return Examination(
        ended_ns=ended_ns,
        counters=_counters(cluster),
        performed=[str(fault) for fault in faults.performed],
        missed=[str(fault) for fault in faults.missed],
        outstanding=outstanding,
        leaks=leaks,
        violations=violations,
        random=_random_digest(cluster),
        witnessed=[f"{call}: {words}" for call, words in cluster.witnessed.items()],
        rows_used=list(cluster.task_costs.rows_used),
    )


def examine_replay(cluster: Cluster) -> Examination:
    """The same of a replay that has ended, which does not come to rest: its driver has let go of no more than when it
    was recorded."""
    faults = cluster.faults
    violations: list[str] = []
    try:
        cluster.check_invariants()
    except InvariantViolation as violation:
        violations.append(str(violation))
    return Examination(
        ended_ns=cluster.kernel.now_ns,
        counters=_counters(cluster),
        performed=[str(fault) for fault in faults.performed],
        missed=[str(fault) for fault in faults.missed],
        outstanding=[str(fault) for fault in faults.outstanding],
        leaks=None,
        violations=violations,
        random=_random_digest(cluster),
        witnessed=[],
        rows_used=[],
    )


def _counters(cluster: Cluster) -> dict[str, int]:
    """What only the simulator counts."""
    network = cluster.network
    provider = cluster.provider
    of_groups = {} if provider is None else provider.counters()
    return of_groups | {
        "tasks_lost": _tasks_lost(cluster),
        "messages": network.messages_sent,
        "messages_held": network.messages_held,
        "messages_dropped": network.messages_dropped,
        "messages_doubled": network.messages_doubled,
        "transfers_lost": network.flows.transfers_lost,
        "nodes_refused": cluster.nodes_refused,
        "nodes_left": cluster.nodes_left,
        "faults": len(cluster.faults.performed),
    }


_THEIR_OWN = (str(ErrorKind.APPLICATION), str(ErrorKind.TASK_CANCELLED))
"""Errors of tasks that are not lost."""


def _tasks_lost(cluster: Cluster) -> int:
    """Tasks that never ended, or failed for a reason that is neither theirs nor the program's. What a process has
    asked for that died has gone with it: it is asked for again, where it is still wanted."""
    ended, errors = cluster.tables.read(TASK_TABLE), cluster.tables.read("errors")
    lost = 0
    for event in cluster.trace_events:
        if event.kind is _SUBMITTED:
            task = event.subject
            state = dict(ended.get(task, ())).get("state")
            if state == _FINISHED or (state == _FAILED and dict(errors.get(task, ())).get("kind") in _THEIR_OWN):
                continue
            owner = cluster.processes.get(Address(event.process))
            if owner is not None and owner.is_alive:
                lost += 1
    return lost


_SUBMITTED = TraceKind.TASK_SUBMITTED
_FINISHED, _FAILED = TaskState.FINISHED.value, TaskState.FAILED.value


def _random_digest(cluster: Cluster) -> str:
    digest = cluster.seeds_handed_out.copy()
    _, words, gauss = cluster.network.random.getstate()
    digest.update(array("Q", words).tobytes() + repr(gauss).encode())
    return digest.hexdigest()


def _come_to_rest(cluster: Cluster) -> bool:
    for _ in range(REST_STEPS_MAX):
        cluster.fibers.sleep_ns(REST_STEP_NS)
        if cluster.kernel.events_pending == 0:
            return True
    # That two nodes did not reach one another the head remembers for up to twelve times `link_patience_ns`.
    return cluster.kernel.events_pending == 1 and cluster.head.is_armed(PARTED_TIMER)


def _goes_on(cluster: Cluster) -> bool:
    """Whether the program could still read a value, or has threads that run."""
    driver = cluster.driver
    assert driver is not None
    return has_references(driver.core.machine) or any(
        process.has_threads for process in cluster.processes.values() if isinstance(process, UserProcess)
    )


def _leaks(cluster: Cluster) -> list[str]:
    left: list[str] = []
    groups = cluster.head.control.groups_kept()
    for process in cluster.processes.values():
        if not process.is_alive:
            continue
        who = process.address
        if isinstance(process, UserProcess):
            if process.has_core:
                core = process.core
                left += [] if core.is_folded else left_in_owner(core.machine, who)
                left += kept_words(core.payloads, "payloads", who)
        elif isinstance(process, NodeProcess):
            left += left_in_node(process.manager, who, groups)
            left += kept_words(process.store.objects, "stored bytes", who)
    head = cluster.head.machine
    assert isinstance(head, Head)
    left += left_in_head(head)
    if cluster.provider is not None and cluster.growth is not None:
        left += cluster.growth.wrong(cluster.provider.machines.values(), cluster.trace_events)
    return left
