"""The node: what a node manager runs.

Theory of operation. Three machines and their parts share one outbox: local_scheduler (resources, workers, leases),
object_store (accounting of this node's store) and transfer (bringing objects here, and sending them). `drain` lets them
react to one another: room that was granted starts a pull or lets a writer write, an object that was sealed wakes those
who wait for it, leases whose arguments are here are granted; last, the head is told what has changed.

The node manager hands it events; what it may read is in queries.py.

Draining. A node that is to leave in good order tells the head (which places nothing there any more), has its leases
back, names the objects that nothing can make again, and leaves when the head says that others have what only it had;
after `drain_timeout_ns` it leaves all the same. Actors end with it, and restart elsewhere as their options say. The
news that a worker has stored an object may come after its lease is back, for that comes from another process: the node
then names its objects again, and takes no notice of a release that was sent before. It does so `_REPEATS_MAX` times,
for an actor may go on storing objects.

A process of another machine that has leased workers here may be out of reach, though the head hears both (reach.py).
When its connection has closed and nobody has told of its death for `link_patience_ns`, what it has leased here ends
with its workers, and the head is told (LinkLost): so it does when the head tells us.

Relies on: the head for placement, locations and news of the dead; the runner for workers and bytes.
Guarantees: see the three modules; in addition every event that a node can hear is in its table.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

from dualray.shared.machines.base import bounded_steps
from dualray.shared.machines.node.local_scheduler import REPORT_TIMER, LocalScheduler, is_slot
from dualray.shared.machines.node.object_store import ObjectStore
from dualray.shared.machines.node.queries import NodeQueries
from dualray.shared.machines.node.rows import NodeRows
from dualray.shared.machines.node.stored import RESTORING, SpaceRequest
from dualray.shared.machines.node.transfer import ASKS_TIMER, PULLS_TIMER, Transfer
from dualray.shared.machines.node.wants import is_incoming, is_sending
from dualray.shared.machines.node.worker_pool import STARTS_TIMER
from dualray.shared.model.accelerators import type_labels
from dualray.shared.model.commands import ArmTimer
from dualray.shared.model.config import Config
from dualray.shared.model.events import (
    BundlesUnwanted,
    BundleWanted,
    ClusterChanged,
    CopyKept,
    CopyWanted,
    DrainAsked,
    GpuLost,
    LeasePassedOn,
    LeaseRequested,
    LeaseReturned,
    LeasesRecalled,
    LeasesReturned,
    LinkLost,
    LoanPinned,
    LoansAsked,
    LoansKnown,
    LocationsKnown,
    MemoryExceeded,
    NodeDied,
    NodeDraining,
    NodeEmptied,
    NodeJoined,
    NodeRefused,
    NodeReleased,
    NodesDied,
    NodeThere,
    NodeWelcomed,
    ObjectArrived,
    ObjectElsewhere,
    ObjectFailed,
    ObjectNotHere,
    ObjectPlaced,
    ObjectReceived,
    ObjectReleased,
    ObjectRequested,
    ObjectRestored,
    ObjectsAwaited,
    ObjectSealed,
    ObjectSent,
    ObjectsFreed,
    ObjectSpilled,
    ObjectUnavailable,
    ObjectWanted,
    OwnerDied,
    PeerLost,
    PeerMet,
    ReceiveFailed,
    ReserveFailed,
    RestoreFailed,
    RowsReported,
    RowsRequested,
    SpaceDenied,
    SpaceGranted,
    SpaceRequested,
    SpaceReserved,
    SpaceReturned,
    SpillFailed,
    Started,
    TimerFired,
    TurnWanted,
    WorkerBlocked,
    WorkerExited,
    WorkerNotStarted,
    WorkerReady,
    WorkerSpent,
    WorkerUnblocked,
    WorkerUnwanted,
    lives_over,
)
from dualray.shared.model.ids import HEAD, Address, NodeID, ObjectID, is_driver, lent_by, lived_on, lives_on, node_of
from dualray.shared.model.resources import Resources, from_units, without_bundles
from dualray.shared.model.specs import NodeInfo
from dualray.shared.model.states import WorkerState
from dualray.shared.policies import load_policy

_DRAIN_TIMER = "drain"
_REPEATS_MAX = 8
_LINKS_TIMER = "links"
_KEEPER = "the head, for a node that leaves"


class Node(NodeQueries):
    """See the module. `store_bytes` is the capacity of the object store."""

    kind = "node"

    def __init__(
        self,
        *,
        node: NodeID,
        incarnation: int,
        total: Resources,
        store_bytes: int,
        config: Config,
        labels: tuple[tuple[str, str], ...] = (),
    ) -> None:
        super().__init__()
        self.node, self.incarnation, self.config = node, incarnation, config
        labels = type_labels(total, labels)
        self.info = NodeInfo(node=node, incarnation=incarnation, total=total, store_bytes=store_bytes, labels=labels)
        self.store = ObjectStore(
            out=self.out,
            node=node,
            incarnation=incarnation,
            capacity_bytes=store_bytes,
            config=config,
            eviction=load_policy(config.eviction_policy),
        )
        self.transfer = Transfer(out=self.out, node=node, incarnation=incarnation, store=self.store, config=config)
        self.scheduler = LocalScheduler(
            out=self.out,
            node=node,
            incarnation=incarnation,
            total=total,
            config=config,
            want=partial(self.transfer.want, is_early=True),
            locate=self.transfer.locate,
            release=self._release_slot,
            store=self.store,
        )
        self._bind_tables()
        self.state_rows = NodeRows(node=node, scheduler=self.scheduler, store=self.store)
        self.cluster: ClusterChanged | None = None
        self.table = _TABLE
        self.dead: dict[Address, None] = {}
        """Owners that died, but not with their node."""
        self.dead_nodes: dict[NodeID, int] = {}
        self.met: dict[Address, dict[Address, None]] = {}
        """Which drivers want to hear of a process's death."""
        self.refused = False
        """The head has declared this life of the node dead: the runner must end it."""
        self.drained = False
        """Nothing depends on this node any more: the runner is to end it."""
        self.may_stay = False
        """A drain that does not come to its end in time is given up."""
        self.has_given_up = False
        """It was: a release that was on its way means nothing any more."""
        self.has_emptied = False
        self.repeats = 0  # of NodeEmptied, in this drain
        """Its tasks have ended, and the head was told."""
        self.doubts: dict[Address, dict[Address, None]] = {}
        """Dead processes that kept room, and the workers that have still to say what they read there."""
        self.out_of_touch: dict[Address, int] = {}
        """Processes of other machines whose connection has closed, and when they are out of reach if they live."""
        self.needed: dict[ObjectID, None] = {}
        """Copies on their way here that nothing can make again."""

    # ---- The runner ------------------------------------------------------------------------------------------

    def _on_started(self, event: Started) -> None:
        self.out.send(HEAD, NodeJoined(info=self.info))

    def _on_timer(self, event: TimerFired) -> None:
        if event.timer == _DRAIN_TIMER:
            _drain_has_taken_long(self)
        elif event.timer == REPORT_TIMER:
            self.scheduler.on_report_timer()
        elif event.timer == PULLS_TIMER:
            self.transfer.on_pulls_timer()
        elif event.timer == ASKS_TIMER:
            self.transfer.on_asks_timer()
        elif event.timer == STARTS_TIMER:
            self.scheduler.worker_pool.on_starts_timer(is_needed=bool(self.scheduler.unstaffed))
        elif event.timer == _LINKS_TIMER:
            self._on_links_timer()
        else:
            self.store.space.on_space_timer(event.timer)

    def _on_drain_asked(self, event: DrainAsked) -> None:
        self.may_stay = event.is_cancellable and (self.may_stay or not self.scheduler.is_draining)
        if not self.scheduler.is_draining:
            self.has_given_up = False
            self.repeats = 0
            self.out.send(HEAD, NodeDraining(node=self.node, incarnation=self.incarnation))
            self.out.add(ArmTimer(timer=_DRAIN_TIMER, delay_ns=self.config.drain_timeout_ns))
            self.scheduler.start_draining()
            self.store.space.call_back()

    def _on_released_by_head(self, event: NodeReleased) -> None:
        if not self.has_given_up and event.repeats == self.repeats:
            self.drained = self.drained or event.incarnation == self.incarnation

    def _on_copy_wanted(self, event: CopyWanted) -> None:
        if not event.remakeable:
            self.needed[event.object_id] = None
        self.transfer.want(event.object_id, event.owner, _KEEPER)

    def _copy_kept(self, object_id: ObjectID) -> None:
        """A copy that the head wanted is here, or cannot be had."""
        self.store.keep(object_id, is_needed=self.needed.pop(object_id, "") is None)
        self.store.unpin(object_id, _KEEPER)
        self.out.send(HEAD, CopyKept(object_id=object_id, node=self.node))

    def _on_worker_ready(self, event: WorkerReady) -> None:
        self.scheduler.worker_pool.on_ready(event.worker)
        if self.cluster is not None:
            self.out.send(event.worker, self.cluster)

    def _on_worker_exited(self, event: WorkerExited) -> None:
        self.scheduler.on_worker_exited(event)
        self._process_died(event.worker)
        for lender in list(self.doubts):
            self._has_answered(lender, event.worker)

    def _process_died(self, process: Address) -> None:
        """Others may read what lies in room that it kept: only they know."""
        if process not in self.doubts and (process in self.store.space.room_of or self.store.is_user(lent_by(process))):
            self.doubts[process] = workers = {
                worker.address: None
                for worker in self.scheduler.workers.values()
                if worker.state is not WorkerState.STARTING
            }
            for worker in workers:
                self.out.send(worker, LoansAsked(lender=process))
        self._user_died(process)
        if process in self.doubts:
            self._settle_doubts(process)

    def _settle_doubts(self, lender: Address) -> None:
        if not self.doubts[lender]:
            del self.doubts[lender]
            self.store.release_all(lender)
            self.store.release_all(lent_by(lender))

    def _has_answered(self, lender: Address, worker: Address) -> None:
        if lender in self.doubts and worker in self.doubts[lender]:
            del self.doubts[lender][worker]
            self._settle_doubts(lender)

    def _on_loans_known(self, event: LoansKnown) -> None:
        if self._has_exited(event.worker):
            return
        for object_id, room_id, _, size_bytes in event.loans:
            is_new = self.store.take_over(room_id, object_id, size_bytes, user=event.lender)
            if self.store.is_readable(object_id):
                self.store.pin(object_id, event.worker)
            if is_new:
                self.store.free_unannounced(object_id, event.lender)
        self._has_answered(event.lender, event.worker)

    def _on_placed(self, event: ObjectPlaced) -> None:
        if self._has_exited(event.requester) or event.requester in self.dead:
            return
        if self.store.take_over(event.room_id, event.object_id, event.size_bytes, user=event.requester):
            if event.is_lent:
                self.store.pin(event.object_id, lent_by(event.requester))
            self.store.announce(event.object_id, event.requester)
        if not self.store.is_readable(event.object_id):
            return
        for worker in event.readers:
            if not self._has_exited(worker):
                self.store.pin(event.object_id, worker)
                self.out.send(worker, LoanPinned(object_id=event.object_id))

    def _user_died(self, user: str) -> None:
        self.transfer.give_up_all(user)
        self.store.release_all(user, but_rooms=user in self.doubts)

    def _release_slot(self, key: str) -> None:
        """A lease, or a slot for one, needs its arguments no more."""
        self._user_died(key)

    def _on_gpu_lost(self, event: GpuLost) -> None:
        """The head, and through it everybody, learns what this node offers from now on."""
        if self.scheduler.lose_gpu(event.gpu):
            self.info = replace(self.info, total=from_units(without_bundles(self.scheduler.total)))
            self.out.send(HEAD, NodeJoined(info=self.info))

    # ---- Processes of this node --------------------------------------------------------------------------------

    def _has_exited(self, address: Address) -> bool:
        """Whether it was a worker of ours. What it had asked for may arrive after the news of its end: if it were
        granted, nobody would ever give it back."""
        return lives_on(address, self.node, self.incarnation) and address not in self.scheduler.workers

    def _on_lease_requested(self, event: LeaseRequested) -> None:
        if not self._has_exited(event.owner) and event.owner not in self.dead:
            self.scheduler.on_requested(event)
        elif event.placed:
            self.scheduler.settle(event)

    def _on_wanted(self, event: ObjectWanted) -> None:
        if not self._has_exited(Address(event.requester)) and event.requester not in self.dead:
            self.transfer.want(event.object_id, event.owner, event.requester)
            worker = self.scheduler.workers.get(Address(event.requester))
            if worker is not None and worker.lease is not None and self.store.is_readable(event.object_id):
                self.store.unpin(event.object_id, worker.lease.key)  # it has its own pin now

    def _on_released(self, event: ObjectReleased) -> None:
        self.transfer.give_up(event.object_id, event.requester)
        self.store.unpin(event.object_id, event.requester)

    def _on_space_requested(self, event: SpaceRequested) -> None:
        if self._has_exited(event.requester) or event.requester in self.dead:
            return
        self.store.space.request_space(
            SpaceRequest(
                object_id=event.object_id,
                size_bytes=event.size_bytes,
                owner=event.owner,
                remakeable=event.remakeable,
                user=event.requester,
                is_room=event.is_room,
                remake_ns=event.remake_ns,
            )
        )

    # ---- The head --------------------------------------------------------------------------------------------

    def _on_freed(self, event: ObjectsFreed) -> None:
        for object_id in event.object_ids:
            self.store.free(object_id)

    def _on_owner_died(self, event: OwnerDied) -> None:
        self.dead[event.address] = None
        self._owners_died(lambda address: address == event.address)
        self._process_died(event.address)
        self._relay(event)

    def _is_dead(self, process: Address) -> bool:
        """Whether we have heard of the death of a process of another node."""
        node = node_of(process)
        return process in self.dead or lives_on(process, node, self.dead_nodes.get(node, -1))

    def _on_peer_lost(self, event: PeerLost) -> None:
        """A connection to a process of another machine has closed."""
        if "/" not in event.address and not is_driver(event.address):
            self.transfer.source_lost(NodeID(event.address))
        elif node_of(event.address) != self.node and event.address not in self.out_of_touch:
            if not self.out_of_touch:
                self.out.add(ArmTimer(timer=_LINKS_TIMER, delay_ns=self.config.link_patience_ns))
            self.out_of_touch[event.address] = self.out.now_ns + self.config.link_patience_ns

    def _on_links_timer(self) -> None:
        """Processes of whose death nobody has told live, and are out of reach."""
        due = [process for process, due_ns in self.out_of_touch.items() if due_ns <= self.out.now_ns]
        for process in due:
            del self.out_of_touch[process]
            if not self._is_dead(process):
                lost = LinkLost(process=process, node=self.node, incarnation=self.incarnation, by_node=True)
                self.out.send(HEAD, lost)
                self._on_link_lost(lost)
        if self.out_of_touch:
            next_ns = min(self.out_of_touch.values())
            self.out.add(ArmTimer(timer=_LINKS_TIMER, delay_ns=next_ns - self.out.now_ns))

    def _on_link_lost(self, event: LinkLost) -> None:
        """A process that uses workers of ours and we do not reach one another."""
        if event.incarnation == self.incarnation:
            why = f"and {self.node} cannot reach one another"
            self.scheduler.owners_died(lambda address: address == event.process, why)

    def _on_peer_met(self, event: PeerMet) -> None:
        """A process of ours wants to hear of another's death: it may have started after the news."""
        if self._is_dead(event.peer):
            self.out.send(event.process, OwnerDied(address=event.peer))
        elif event.process not in self.scheduler.workers:  # a driver hears it from the head, and may have before us
            self.met.setdefault(event.peer, {})[event.process] = None

    def _tell_drivers(self, is_dead: Callable[[Address], bool]) -> None:
        for peer in [peer for peer in self.met if is_dead(peer)]:
            for process in self.met.pop(peer):
                self.out.send(process, OwnerDied(address=peer))

    def _on_nodes_died(self, event: NodeDied | NodesDied) -> None:
        lives = lives_over(event)
        for node, incarnation in lives.items():
            self.dead_nodes[node] = max(incarnation, self.dead_nodes.get(node, -1))
        if event.cluster is not None:
            self.cluster = event.cluster
            self.scheduler.on_cluster_announced(event.cluster.nodes)
        for address in [address for address in self.dead if lived_on(address, lives)]:
            del self.dead[address]
        self._owners_died(lambda address: lived_on(address, lives))
        for node, incarnation in lives.items():
            self.transfer.node_died(node, incarnation)
        self._relay(event)

    def _owners_died(self, is_dead: Callable[[Address], bool]) -> None:
        self._tell_drivers(is_dead)
        self.scheduler.owners_died(is_dead)
        for stored in [*self.store.objects.values(), *self.store.spilled.values()]:
            if is_dead(stored.owner):
                self.store.free(stored.object_id)

    def _on_rows_requested(self, event: RowsRequested) -> None:
        rows = tuple(json.dumps(row) for row in self.state_rows.of(event.table))
        self.out.send(event.requester, RowsReported(wait_id=event.wait_id, rows=rows))

    def _on_cluster_changed(self, event: ClusterChanged) -> None:
        self.cluster = event
        self.scheduler.on_cluster_announced(event.nodes)
        self._relay(event)

    def _relay(self, event: ClusterChanged | NodeDied | NodesDied | OwnerDied) -> None:
        """Workers hear of the cluster through their node manager."""
        for worker in self.scheduler.workers.values():
            if worker.state is not WorkerState.STARTING:
                self.out.send(worker.address, event)

    def _on_refused(self, event: NodeRefused) -> None:
        self.refused = self.refused or event.incarnation == self.incarnation

    # ---- The drain -------------------------------------------------------------------------------------------

    def drain(self) -> None:
        """React until nothing is left: see the module."""
        for _ in bounded_steps(f"the node machine of {self.node}"):
            if not self._drain_once():
                self.scheduler.dispatch()
                if not self._is_stirred and not (self.store.waiting and self.scheduler.admission.make_way()):
                    break
        self.scheduler.report()
        if self.scheduler.has_drained and not self.has_emptied:
            self.has_emptied = True
            objects = [*self.store.objects.values(), *self.store.spilled.values()]
            needed = tuple(stored.object_id for stored in objects if not (stored.remakeable or stored.is_room))
            emptied = NodeEmptied(node=self.node, incarnation=self.incarnation, needed=needed, repeats=self.repeats)
            self.out.send(HEAD, emptied)

    @property
    def _is_stirred(self) -> bool:
        """Whether the scheduler has left something for the others."""
        store, space, transfer = self.store, self.store.space, self.transfer
        return bool(space.granted or space.denied or store.sealed or transfer.arrived or transfer.located)

    def _drain_once(self) -> bool:
        store, space, transfer = self.store, self.store.space, self.transfer
        if store.sealed:
            object_id, writer = store.sealed.popleft()
            _name_again(self)
            transfer.on_sealed(object_id)
            store.unpin(object_id, writer)
        elif space.granted:
            request, present = space.granted.popleft()
            if is_incoming(request.user):
                transfer.on_space_granted(request, present=present)
            else:
                place = self.store.place_of(request.object_id) if request.is_room else 0
                granted = SpaceGranted(object_id=request.object_id, present=present, place=place)
                self.out.send(Address(request.user), granted)
        elif space.denied:
            request, error = space.denied.popleft()
            if is_incoming(request.user) or request.user == RESTORING:
                transfer.on_refused(request.object_id, error)
            else:
                self.out.send(Address(request.user), SpaceDenied(object_id=request.object_id, error=error))
        elif space.contested:
            transfer.on_contested(space.contested.popleft())
        elif store.abandoned:
            transfer.on_abandoned(store.abandoned.popleft())
        elif transfer.arrived:
            user, object_id, size_bytes = transfer.arrived.popleft()
            if is_slot(user):
                self.scheduler.admission.on_argument(user, object_id)
            elif is_sending(user):
                transfer.sending.send(object_id, user)
            elif user == _KEEPER:
                self._copy_kept(object_id)
            else:
                self.out.send(Address(user), ObjectArrived(object_id=object_id, size_bytes=size_bytes))
        elif transfer.located:
            self.scheduler.admission.on_located(*transfer.located.popleft())
        elif transfer.lost:
            self.scheduler.admission.on_argument_lost(*transfer.lost.popleft())
        elif transfer.unavailable:
            user, object_id, error = transfer.unavailable.popleft()
            if is_slot(user):
                self.scheduler.on_argument_failed(user, error)
            elif is_sending(user):
                transfer.sending.cannot_send(object_id, user, error)
            elif user == _KEEPER:
                self._copy_kept(object_id)
            else:
                self.out.send(Address(user), ObjectUnavailable(object_id=object_id, error=error))
        else:
            return False
        return True

    def check_invariants(self) -> None:
        self.store.check_invariants()
        self.transfer.check_invariants()
        self.scheduler.check_invariants()


def _name_again(node: Node) -> None:
    """An object was stored: the head may have to know of it before this node leaves."""
    if node.has_emptied and node.repeats < _REPEATS_MAX:
        node.has_emptied = False
        node.repeats += 1


def _drain_has_taken_long(node: Node) -> None:
    """It has not left in time: it leaves all the same, or goes on, if whoever has told it so prefers that."""
    if not node.may_stay:
        node.drained = True
    elif node.scheduler.is_draining and not node.drained:
        what = "the objects that only this node had were not moved" if node.has_emptied else "its tasks did not end"
        why = f"{what} within {node.config.drain_timeout_ns / 1e9:g} s"
        node.scheduler.is_draining = node.may_stay = node.has_emptied = False
        node.has_given_up = True
        node.out.send(HEAD, NodeDraining(node=node.node, incarnation=node.incarnation, given_up=why))


def _lease_passed_on(node: Node, event: LeasePassedOn) -> None:
    """The owner uses a lease for another function, whose name is told to people from now on."""
    lease = node.scheduler.leases.get(event.lease_id)
    if lease is not None:
        lease.name = event.name


def _worker_not_started(node: Node, event: WorkerNotStarted) -> None:
    """The machine has no room for one more worker process."""
    pool = node.scheduler.worker_pool
    if event.worker not in pool.workers:
        return
    pool.remove(pool.workers[event.worker], event.reason)
    if pool.put_off_starts():
        patience_s = node.config.worker_start_patience_ns / 1e9
        node.scheduler.refuse_unstaffed(f"{node.node} could not start a worker for {patience_s:g} s: {event.reason}.")


_TABLE: Final[Mapping[type[Any], Callable[[Any, Any], object]]] = {
    Started: Node._on_started,
    TimerFired: Node._on_timer,
    DrainAsked: Node._on_drain_asked,
    CopyWanted: Node._on_copy_wanted,
    NodeReleased: Node._on_released_by_head,
    WorkerReady: Node._on_worker_ready,
    WorkerExited: Node._on_worker_exited,
    WorkerNotStarted: _worker_not_started,
    LeaseRequested: Node._on_lease_requested,
    GpuLost: Node._on_gpu_lost,
    MemoryExceeded: lambda node, event: node.scheduler.worker_pool.on_memory_exceeded(event),
    LeasePassedOn: _lease_passed_on,
    LeaseReturned: lambda node, event: node.scheduler.on_returned(event),
    LeasesReturned: lambda node, event: node.scheduler.on_several_returned(event),
    RowsRequested: Node._on_rows_requested,
    BundleWanted: lambda node, event: node.scheduler.on_bundle_wanted(event),
    BundlesUnwanted: lambda node, event: node.scheduler.on_bundles_unwanted(event),
    LeasesRecalled: lambda node, event: node.scheduler.give_back(event.owner),
    TurnWanted: lambda node, event: node.scheduler.on_turn_wanted(event.owner),
    WorkerBlocked: lambda node, event: node.scheduler.set_blocked(event.worker, True, lends=event.lends),
    WorkerUnblocked: lambda node, event: node.scheduler.set_blocked(event.worker, False, lends=False),
    WorkerSpent: lambda node, event: node.scheduler.on_worker_spent(event.worker),
    WorkerUnwanted: lambda node, event: node.scheduler.worker_pool.stop(event),
    ObjectWanted: Node._on_wanted,
    ObjectReleased: Node._on_released,
    SpaceRequested: Node._on_space_requested,
    SpaceReserved: lambda node, event: node.store.space.on_reserved(event.object_id, event.place),
    ReserveFailed: lambda node, event: node.store.space.on_reserve_failed(event.object_id, event.reason),
    ObjectSpilled: lambda node, event: node.store.on_spilled(event),
    SpillFailed: lambda node, event: node.store.on_spill_failed(event.object_id, event.reason),
    ObjectRestored: lambda node, event: node.store.on_restored(event),
    RestoreFailed: lambda node, event: node.store.on_restore_failed(event.object_id),
    ObjectSealed: lambda node, event: node.store.seal(event.object_id, event.requester),
    ObjectPlaced: Node._on_placed,
    SpaceReturned: lambda node, event: node.store.abort(event.object_id, event.requester),
    LoansKnown: Node._on_loans_known,
    LocationsKnown: lambda node, event: node.transfer.on_locations(event),
    ObjectRequested: lambda node, event: node.transfer.sending.on_requested(event),
    ObjectNotHere: lambda node, event: node.transfer.on_not_here(event),
    ObjectsAwaited: lambda node, event: node.transfer.sending.on_awaited(event),
    NodeThere: lambda node, event: node.transfer.links.heard(event.node),
    ObjectElsewhere: lambda node, event: node.transfer.on_elsewhere(event),
    ObjectSent: lambda node, event: node.transfer.sending.on_sent(event.object_id, event.to, complete=event.complete),
    ObjectReceived: lambda node, event: node.transfer.on_received(event.object_id, event.source),
    ReceiveFailed: lambda node, event: node.transfer.source_failed(event.object_id, event.source, event.received_bytes),
    ObjectsFreed: Node._on_freed,
    ObjectFailed: lambda node, event: node.transfer.on_failed(event.object_id, event.error),
    OwnerDied: Node._on_owner_died,
    PeerMet: Node._on_peer_met,
    NodeDied: Node._on_nodes_died,
    NodesDied: Node._on_nodes_died,
    PeerLost: Node._on_peer_lost,
    LinkLost: Node._on_link_lost,
    NodeWelcomed: lambda node, event: node.scheduler.worker_pool.prestart(),
    NodeRefused: Node._on_refused,
    ClusterChanged: Node._on_cluster_changed,
}
"""What each event leads to; one table for all machines of the kind."""
