"""The head: what the head process runs.

Theory of operation. Four machines share one outbox: membership (who takes part), global_scheduler (where leases go),
directory (where objects are) and actors (where actors live). A death, found by membership, reaches the other three in
a fixed order, and is announced to every node and driver that is alive; node managers relay to their workers. A fifth,
starvation, looks at the scheduler and the actors, and tells who waits in vain. Where there are groups of nodes, the
autoscaler (machines/autoscaler) is a sixth: it hears of whatever may change how many nodes there should be.

What runners, metrics and the examination of a run read of it is a query (below); they do not look into its parts.

Relies on: runners report closed connections and silence.
Guarantees: see the four modules; in addition every event that the head can hear is in its table.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from dualray.shared.machines.autoscaler.autoscaler import AUTOSCALER_TIMER, Autoscaler
from dualray.shared.machines.base import bounded_steps
from dualray.shared.machines.head.actors import Actors
from dualray.shared.machines.head.directory import Directory
from dualray.shared.machines.head.global_scheduler import PARTED_TIMER, TURN_TIMER, GlobalScheduler
from dualray.shared.machines.head.membership import Membership
from dualray.shared.machines.head.queries import HeadQueries
from dualray.shared.machines.head.rows import HeadRows
from dualray.shared.machines.head.starvation import WAITS_TIMER, Starvation
from dualray.shared.machines.head.supply import HeadSupply
from dualray.shared.model.commands import ArmTimer
from dualray.shared.model.config import Config
from dualray.shared.model.events import (
    ActorExited,
    ActorFailed,
    ActorKillRequested,
    ActorNameRequested,
    ActorOutOfScope,
    ActorRegistered,
    ActorSubscribed,
    BacklogReported,
    BorrowAcknowledged,
    BorrowAdded,
    BorrowRemoved,
    ClusterChanged,
    ClusterStateReported,
    ClusterStateRequested,
    CopiesJudged,
    CopyKept,
    DriverJoined,
    DriverLeft,
    Event,
    ItemsDoubted,
    LaunchesFailed,
    LeasedWorkerDied,
    LeaseGranted,
    LeaseRefused,
    LeaseRequested,
    LeasesRecalled,
    LinkLost,
    LocationsWanted,
    NodeDied,
    NodeDraining,
    NodeEmptied,
    NodeHeard,
    NodeJoined,
    NodeReleased,
    NodesDied,
    NodeSilent,
    ObjectAdded,
    ObjectFailed,
    ObjectRemoved,
    ObjectsFreed,
    OwnerDied,
    PeerLost,
    PlacementGroupRequested,
    PlacementGroupUnwanted,
    ResourcesReported,
    ResourcesWanted,
    RowsReported,
    RowsRequested,
    Started,
    TaskFinished,
    TimerFired,
    WorkerDied,
)
from dualray.shared.model.ids import (
    Address,
    NodeID,
    job_of,
    job_of_driver,
    lives_on,
    node_of,
)
from dualray.shared.model.resources import from_units, without_bundles
from dualray.shared.model.specs import LAUNCH_LABEL, NodeInfo, NodeState, PlacementGroupSpec
from dualray.shared.model.states import NodeHealth
from dualray.shared.policies import load_policy
from dualray.shared.policies.scaling import Demand

ANNOUNCE_TIMER = "announce-cluster"


class Head(HeadQueries):
    """See the module."""

    kind = "head"

    def __init__(self, *, config: Config) -> None:
        super().__init__()
        self.config = config
        self._announcement_armed = False
        self._announcement_due = False
        self._gone: dict[NodeID, int] = {}
        """Nodes that have left, each with its life, of which the others hear with the next announcement."""
        self.membership = Membership(out=self.out, config=config)
        self.directory = Directory(
            out=self.out,
            is_alive=self.membership.is_alive,
            is_gone=self.membership.is_gone,
            staying=self.membership.staying,
            broadcast=load_policy(config.broadcast_policy),
            piece_bytes=config.transfer_chunk_bytes,
        )
        self.scheduler = GlobalScheduler(
            out=self.out,
            config=config,
            nodes=self.membership.alive,
            local_bytes=self.directory.local_bytes,
            copies_on=self.directory.copies_on,
            is_gone=self.membership.is_gone,
        )
        self.actors = Actors(out=self.out, request_lease=self.scheduler.request, is_gone=self.membership.is_gone)
        self.starvation = Starvation(out=self.out, config=config, scheduler=self.scheduler, actors=self.actors)
        self.autoscaler: Autoscaler | None = None
        """Only where there are groups of nodes."""
        if config.autoscaler_groups:
            supply = HeadSupply(
                membership=self.membership, scheduler=self.scheduler, actors=self.actors, directory=self.directory
            )
            self.autoscaler = Autoscaler(out=self.out, config=config, supply=supply)
            self.scheduler.why_not_launched = self.autoscaler.why_not
        self.scheduler.on_waiting = self._on_waiting
        self.scheduler.home_of = self._home_of
        self.scheduler.groups.namespace_of = self.actors.names.namespace_of
        self.scheduler.groups.ends_with = self._end_of_group
        self.scheduler.who_holds = self.starvation.explain
        self.state_rows = HeadRows(
            membership=self.membership, directory=self.directory, scheduler=self.scheduler, actors=self.actors
        )
        self.state_rows.autoscaler = self.autoscaler
        self.table = _TABLE

    def _on_waiting(self) -> None:
        self.starvation.on_waiting()
        self._look()

    def _look(self) -> None:
        """How many nodes there should be may have changed."""
        if self.autoscaler is not None:
            self.autoscaler.look()

    # ---- Who takes part --------------------------------------------------------------------------------------

    def _on_timer(self, event: TimerFired) -> None:
        if event.timer == TURN_TIMER:
            self.scheduler.on_turn()
        elif event.timer == ANNOUNCE_TIMER:
            self._on_announce_timer()
        elif event.timer == PARTED_TIMER:
            self.scheduler.on_parted_timer()
        elif event.timer == WAITS_TIMER:
            self.starvation.on_timer()
        elif event.timer == AUTOSCALER_TIMER:
            if self.autoscaler is not None:
                self.autoscaler.on_timer()
        else:
            self.membership.on_timer(event.timer)

    def _on_peer_lost(self, event: PeerLost) -> None:
        if "/" in event.address:
            self.actors.on_unreachable(event.address, event.limit)
        elif event.address in self.membership.drivers:
            self._driver_gone(event.address)
        else:
            self.membership.on_node_lost(NodeID(event.address))

    def _announce_cluster(self) -> None:
        """Tell everybody which nodes there are: at once, or, in a burst of changes, once for all that come within
        `announce_ns`, for each announcement goes to all nodes and names all of them."""
        changed = self._cluster_to_announce()
        if changed is not None:
            self._announce(changed)

    def _cluster_to_announce(self) -> ClusterChanged | None:
        """What is to be announced now of a change; None: it will be, with others."""
        if self._announcement_armed:
            self._announcement_due = True
            return None
        self._announcement_armed = True
        self.out.add(ArmTimer(timer=ANNOUNCE_TIMER, delay_ns=self.config.announce_ns))
        return ClusterChanged(nodes=self.membership.alive())

    def _on_announce_timer(self) -> None:
        self._announcement_armed = False
        if self._announcement_due:
            self._announcement_due = False
            if self._gone:
                self._announce_gone()
            else:
                self._announce_cluster()

    def _announce_gone(self) -> None:
        """Tell of all nodes that have left, in one message."""
        nodes, lives = tuple(self._gone), tuple(self._gone.values())
        self._gone.clear()
        self._announce(NodesDied(nodes=nodes, incarnations=lives, cluster=self._cluster_to_announce()))

    def _on_silent(self, event: NodeSilent) -> None:
        if self.membership.on_silent(event):
            self.scheduler.on_node_silent(event.node)

    def _on_heard(self, event: NodeHeard) -> None:
        if self.membership.on_heard(event):
            self.scheduler.on_node_heard(event.node)

    def _on_draining(self, event: NodeDraining) -> None:
        if event.given_up:
            if self.membership.on_drain_given_up(event):
                self.directory.on_drain_given_up(event.node)
                self.scheduler.on_drain_given_up(event.node)
                if self.autoscaler is not None:
                    self.autoscaler.on_drain_given_up(event.node, event.given_up)
        elif self.membership.on_draining(event):
            self.scheduler.on_node_draining(event.node)

    def _on_emptied(self, event: NodeEmptied) -> None:
        if self.membership.is_alive(event.node, event.incarnation):
            self.directory.on_emptied(event)

    def _on_driver_joined(self, event: DriverJoined) -> None:
        self.membership.drivers[event.address] = event.node
        self.membership.since_ns[event.address] = self.out.now_ns
        if event.namespace:
            self.actors.names.jobs[job_of_driver(event.address)] = event.namespace
        changed = ClusterChanged(nodes=self.membership.alive())
        if self._announcement_due and not self._gone:
            self._announcement_due = False  # each node asks which others there are, from the first task on
            self._announce(changed)
        else:
            self.out.send(event.address, changed)

    def _on_borrow_added(self, event: BorrowAdded) -> None:
        """A handle to a detached actor has come to a process: the head owns such handles, and counts none of them."""
        self.out.send(event.borrower, BorrowAcknowledged(object_id=event.object_id))

    def _driver_gone(self, address: Address) -> None:
        if self.membership.drivers.pop(address, None) is not None:
            self.membership.note_dead(address)
            self._owners_died(lambda other: other == address)
            self._announce(OwnerDied(address=address))

    def _on_worker_died(self, event: WorkerDied) -> None:
        if self.membership.is_gone(event.worker):
            return
        self.membership.note_dead(event.worker, event.reason)
        self._owners_died(lambda other: other == event.worker)
        self._announce(OwnerDied(address=event.worker))

    def _on_link_lost(self, event: LinkLost) -> None:
        """A process and a node on which it has leased workers do not reach one another, and we hear both."""
        if not self.membership.is_alive(event.node, event.incarnation) or self.membership.is_gone(event.process):
            return
        self.out.send(event.process if event.by_node else Address(event.node), event)
        self.scheduler.part(self._home_of(event.process), event.node)

    def _part(self, one: NodeID, other: NodeID) -> None:
        """Two nodes do not reach one another: what processes of each wait for on the other is placed elsewhere."""
        self.scheduler.part(one, other)
        for node, home in ((one, other), (other, one)):
            for owner in self.scheduler.owners_waiting(node):
                if self._home_of(owner) == home:
                    self.out.send(Address(node), LeasesRecalled(owner=owner))

    def _home_of(self, process: Address) -> NodeID:
        """The node on whose machine a driver or worker runs."""
        return self.membership.drivers.get(process) or node_of(process)

    def _end_of_group(self, spec: PlacementGroupSpec) -> Address:
        """The process whose end removes a group: the actor that made it, or the driver of its job.

        A worker that is no actor may end before the job, or run tasks of other jobs after it.
        """
        if self.actors.runs_at(spec.owner):
            return spec.owner
        job = job_of(spec.group_id)
        return next((driver for driver in self.membership.drivers if job_of_driver(driver) == job), spec.owner)

    def _owners_died(self, is_dead: Callable[[Address], bool]) -> None:
        self.scheduler.owners_died(is_dead)
        self.directory.owners_died(is_dead)
        self.actors.owners_died(is_dead)
        self.starvation.owners_died(is_dead)
        if self.autoscaler is not None:
            self.autoscaler.owners_died(is_dead)

    def _announce(self, event: Event) -> None:
        for info in self.membership.alive():
            self.out.send(Address(info.node), event)
        for driver in self.membership.drivers:
            self.out.send(driver, event)

    def _on_granted(self, event: LeaseGranted) -> None:
        if self.membership.is_alive(event.node, event.incarnation):  # else it has been placed again
            self.actors.on_granted(event)
            self.starvation.on_waiting()

    def _on_reported(self, event: ResourcesReported) -> None:
        if self.membership.is_alive(event.node, event.incarnation):
            self.scheduler.on_reported(event)
            if self.autoscaler is not None:
                self.autoscaler.on_reported(event.node)

    def _on_state_requested(self, event: ClusterStateRequested) -> None:
        rows = []
        for node, member in self.membership.members.items():
            view = self.scheduler.views.get(node)
            # Below zero while a task that was blocked goes on before others have given its CPU back.
            reported = view.reported if view is not None else {}
            rows.append(
                NodeState(
                    node=node,
                    incarnation=member.info.incarnation,
                    alive=member.health is not NodeHealth.DEAD,
                    total=member.info.total,
                    available=from_units({name: max(units, 0) for name, units in without_bundles(reported).items()}),
                    labels=member.info.labels,
                )
            )
        self.out.send(event.requester, ClusterStateReported(wait_id=event.wait_id, nodes=tuple(rows)))

    def _on_group_requested(self, event: PlacementGroupRequested) -> None:
        if not self.membership.is_gone(event.spec.owner):
            self.scheduler.groups.on_requested(event)
            self._look()

    def _on_group_unwanted(self, event: PlacementGroupUnwanted) -> None:
        self.scheduler.groups.remove(event.group_id)
        self.scheduler.retry_pending()

    def _on_rows_requested(self, event: RowsRequested) -> None:
        rows = tuple(json.dumps(row) for row in self.state_rows.of(event.table))
        self.out.send(event.requester, RowsReported(wait_id=event.wait_id, rows=rows))

    # ---- The drain -------------------------------------------------------------------------------------------

    def drain(self) -> None:
        """React until nothing is left: see the module."""
        for _ in bounded_steps("the head machine"):
            if self.membership.died:
                self._node_died(self.membership.died.popleft())
            elif self.membership.joined:
                info = self.membership.joined.popleft()
                if info.node in self._gone:
                    self._announce_gone()
                self._announce_cluster()
                self.membership.tell_of_the_dead(info.node)
                self.scheduler.on_node_joined(info)
                if self.autoscaler is not None:
                    self.autoscaler.on_joined(info)
            elif self.directory.released:
                node, repeats = self.directory.released.pop(0)
                life = self.membership.members[node].info.incarnation
                self.out.send(Address(node), NodeReleased(node=node, incarnation=life, repeats=repeats))
            elif self.membership.changed:
                self._announce_cluster()
                self.scheduler.on_node_changed(self.membership.changed.popleft())
            elif self.directory.parted:
                self._part(*self.directory.parted.pop(0))
            elif self.directory.copies_lost:
                self.directory.copies_lost.clear()
                self.scheduler.on_copies_lost()
            elif self.scheduler.refused_actors:
                self.actors.on_refused(self.scheduler.refused_actors.popleft())
            else:
                return

    def _node_died(self, info: NodeInfo) -> None:
        if self._announcement_armed and self._is_missed_by_nobody(info):
            self._gone[info.node] = info.incarnation
            self._announcement_due = True
        else:
            # First the news, so that an owner that is asked for an object knows that the node which held it is gone.
            self._announce(NodeDied(node=info.node, incarnation=info.incarnation, cluster=self._cluster_to_announce()))
        self.membership.forget_dead_on(info)
        self._owners_died(lambda address: lives_on(address, info.node, info.incarnation))
        self.directory.node_died(info.node)
        self.scheduler.on_node_died(info.node)  # before actors ask for new places
        self.actors.on_node_died(info.node)
        if self.autoscaler is not None:
            self.autoscaler.on_died(info)

    def _is_missed_by_nobody(self, info: NodeInfo) -> bool:
        """Whether a node was launched and has left in order, so that the news of it is not urgent: thousands may leave
        at a time, and each message goes to all processes."""
        if LAUNCH_LABEL not in dict(info.labels) or self.directory.needs(info.node):
            return False
        view = self.scheduler.views.get(info.node)
        return view is None or not (view.is_in_use or self.actors.is_any_on(info.node))

    def explain(self) -> list[str]:
        """In words, what waits on the head and why."""
        unmet = self.autoscaler.explain() if self.autoscaler is not None else []
        return self.scheduler.explain() + self.actors.explain() + unmet

    def _on_launches_failed(self, event: LaunchesFailed) -> None:
        if self.autoscaler is not None:
            self.autoscaler.on_failed(event)

    def _on_backlog(self, event: BacklogReported) -> None:
        if self.autoscaler is not None:
            self.autoscaler.on_backlog(event)

    def _on_resources_wanted(self, event: ResourcesWanted) -> None:
        """A request is its job's, and ends with the job's driver; an actor that outlives that has its own."""
        drivers = [driver for driver in self.membership.drivers if job_of_driver(driver) == event.job]
        process = drivers[0] if drivers else event.requester
        if self.autoscaler is not None and not self.membership.is_gone(process):
            rows = zip(event.bundles, event.selectors, event.counts, strict=True)
            demands = [Demand(resources=bundle, labels=terms, count=count) for bundle, terms, count in rows]
            self.autoscaler.request(process, tuple(demands))

    def check_invariants(self) -> None:
        self.membership.check_invariants()
        self.scheduler.check_invariants()
        self.actors.check_invariants()
        if self.autoscaler is not None:
            self.autoscaler.check_invariants()


_TABLE: Final[Mapping[type[Any], Callable[[Any, Any], object]]] = {
    Started: lambda head, event: None,
    TimerFired: Head._on_timer,
    NodeJoined: lambda head, event: head.membership.on_joined(event),
    NodeDraining: Head._on_draining,
    NodeEmptied: Head._on_emptied,
    CopyKept: lambda head, event: head.directory.on_kept(event),
    CopiesJudged: lambda head, event: head.directory.on_judged(event),
    ItemsDoubted: lambda head, event: head.directory.on_items_doubted(event),
    NodeSilent: Head._on_silent,
    NodeHeard: Head._on_heard,
    PeerLost: Head._on_peer_lost,
    DriverJoined: Head._on_driver_joined,
    DriverLeft: lambda head, event: head._driver_gone(event.address),
    WorkerDied: Head._on_worker_died,
    LinkLost: Head._on_link_lost,
    LeaseRequested: lambda head, event: head.scheduler.request(event),
    LeaseGranted: Head._on_granted,
    LeaseRefused: lambda head, event: head.actors.on_refused(event),
    LeasedWorkerDied: lambda head, event: head.actors.on_worker_died(event),
    TaskFinished: lambda head, event: head.actors.on_constructed(event),
    ResourcesReported: Head._on_reported,
    ObjectAdded: lambda head, event: head.directory.on_added(event),
    ObjectRemoved: lambda head, event: head.directory.on_removed(event),
    LocationsWanted: lambda head, event: head.directory.on_wanted(event),
    ObjectsFreed: lambda head, event: head.directory.on_freed(event),
    ObjectFailed: lambda head, event: head.directory.on_failed(event),
    ActorRegistered: lambda head, event: head.actors.on_registered(event),
    ActorFailed: lambda head, event: head.actors.on_failed(event),
    ActorSubscribed: lambda head, event: head.actors.on_subscribed(event),
    ActorOutOfScope: lambda head, event: head.actors.on_out_of_scope(event),
    ActorKillRequested: lambda head, event: head.actors.on_kill(event),
    ActorExited: lambda head, event: head.actors.on_exited(event),
    ActorNameRequested: lambda head, event: head.actors.on_name_requested(event),
    BorrowAdded: Head._on_borrow_added,
    BorrowRemoved: lambda head, event: None,
    ClusterStateRequested: Head._on_state_requested,
    PlacementGroupRequested: Head._on_group_requested,
    PlacementGroupUnwanted: Head._on_group_unwanted,
    RowsRequested: Head._on_rows_requested,
    LaunchesFailed: Head._on_launches_failed,
    BacklogReported: Head._on_backlog,
    ResourcesWanted: Head._on_resources_wanted,
}
"""What each event leads to; one table for all machines of the kind."""
