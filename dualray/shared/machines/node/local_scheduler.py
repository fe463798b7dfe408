"""The local scheduler grants leases on one node, and finds each a worker.

Theory of operation. A request for leases that comes from an owner of this node is granted here as far as the resources
are free and its arguments are here or small; the rest is spilled back to the head. A node beside others grants only
while less than `spread_threshold_percent` of its resources is in use. A node with GPUs leaves it to the
head where work without GPUs runs, if a node without GPUs could take it. What the head has placed here is queued here.
A queued slot waits for its arguments (transfer.py brings and pins them), then for its resources, then for a worker
process; a slot that has resources and no worker waits in `unstaffed`, and a worker is started for it.

Four parts have tables of their own: admission.py says whose arguments are brought, and in which order; resource_pool.py
counts what is free; bundles.py reserves bundles of placement groups; worker_pool.py starts workers and chooses one.

A slot that found no room is refused only when no task runs here whose end may make some; tasks that are blocked may
wait for this very slot, and count for `refusals_max` times. The arguments of a granted lease stay pinned for it until
its worker has pinned them itself.

A worker that says that it is spent retires as soon as its lease is given back, which its owner is asked to do. One that
has had GPUs retires with its lease, too. It ends when nobody needs what it owns.

A worker whose task blocks in `get` lends its CPUs to others, not its GPUs; when it goes on it takes them back. A worker
that dies takes its lease with it; the lease's owner is told. When an owner dies, the workers that it leased are ended:
nobody would take their results.

When the head says that a driver has more leases than one that waits, the oldest of them is had back, and for one
`lease_turn_ns` that driver is granted nothing here that the head has not placed: else it would take again what it gave.

When a bundle, or a GPU, goes, slots that need it go back to the head, and workers that use it are ended.

A node that drains grants nothing more: what was placed here and not granted goes back to the head, and the owners of
leases are asked to give them back when what they have pushed is done. Actors stay until the node ends.

Relies on: WorkerReady, WorkerExited or WorkerNotStarted for each StartWorker.
Guarantees: what is leased and what is free add up to the node's total; no share of a device is leased twice; each
placed request is settled once for each lease it asked for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from dualray.shared.machines.base import Outbox, ensure
from dualray.shared.machines.node.admission import Admission
from dualray.shared.machines.node.bundles import ReservedBundles
from dualray.shared.machines.node.lease_records import Lease, Slot, Worker
from dualray.shared.machines.node.object_store import ObjectStore
from dualray.shared.machines.node.resource_pool import ResourcePool, without_gpu
from dualray.shared.machines.node.worker_pool import WorkerPool
from dualray.shared.model.accelerators import device_words
from dualray.shared.model.commands import ArmTimer, StopWorker
from dualray.shared.model.config import Config
from dualray.shared.model.errors import ErrorInfo, ErrorKind
from dualray.shared.model.events import (
    BundlesUnwanted,
    BundleWanted,
    LeasedWorkerDied,
    LeaseGranted,
    LeaseRefused,
    LeaseRequested,
    LeaseReturned,
    LeasesGranted,
    LeasesReturned,
    LeaseWanted,
    ResourcesReported,
    WorkerExited,
    WorkerRetired,
)
from dualray.shared.model.ids import HEAD, Address, LeaseID, NodeID, ObjectID, PlacementGroupID, RequestID, is_driver
from dualray.shared.model.resources import GPU, Resources, fits, is_cpu
from dualray.shared.model.specs import LeaseShape, NodeInfo, StrategyKind
from dualray.shared.model.states import WorkerState
from dualray.shared.policies.placement import count_below, spares_gpus

REPORT_TIMER = "report"
_SLOT = "lease slot "


class LocalScheduler:
    """See the module."""

    _changed: bool = False
    """What is free, or was refused, has changed, and the head does not know."""
    _may_report: bool = False
    """Something else has changed, and the head does not know."""
    _report_is_due: bool = False
    """A timer runs until it is told of that."""

    def __init__(
        self,
        *,
        out: Outbox,
        node: NodeID,
        incarnation: int,
        total: Resources,
        config: Config,
        want: Callable[[ObjectID, Address, str], None],
        locate: Callable[[ObjectID, Address, str], bool],
        release: Callable[[str], None],
        store: ObjectStore,
    ) -> None:
        self.out = out
        self.node = node
        self.incarnation = incarnation
        self.config = config
        self.resources = ResourcePool(total=total)
        self.total = self.resources.total
        self.free = self.resources.free
        self.without_gpus: list[dict[str, int]] = []
        """The total resources of each announced node without GPUs. Empty if this node itself has none to spare."""
        self.is_alone = True
        """Whether the head has announced no other node."""
        self._release = release
        self._store = store
        self.leases: dict[LeaseID, Lease] = {}
        self.reserved = ReservedBundles(
            node=node, resources=self.resources, leases=self.leases, end_leases=self._end_leases_in
        )
        self.worker_pool = WorkerPool(
            out=out, node=node, incarnation=incarnation, total=self.total, config=config, leases=self.leases
        )
        self.workers = self.worker_pool.workers
        self.idle = self.worker_pool.idle
        self.waiting: dict[str, Slot] = {}
        """Slots that wait for arguments or resources, in order of arrival."""
        self.admission = Admission(
            node=node, waiting=self.waiting, want=want, locate=locate, release=release, store=store
        )
        self.unstaffed: deque[tuple[Slot, Lease]] = deque()
        """Slots that have their resources and wait for a worker process."""
        self.settled: list[RequestID] = []
        self.allocated: list[RequestID] = []
        self.held: dict[str, int] = {}
        """Of each driver, its leases here."""
        self.is_draining = False
        self.waits_until_ns: dict[Address, int] = {}
        """Drivers that have given a lease back for others, and until when only the head may place more for them."""
        self._granted: dict[Address, list[LeaseGranted]] = {}
        """By owner, what it has not been told yet."""
        self._lease_counter = 0
        self._slot_counter = 0

    # ---- Requests --------------------------------------------------------------------------------------------

    def on_requested(self, request: LeaseRequested) -> None:
        """An owner, or the head, asks for leases."""
        if request.placed and request.incarnation != self.incarnation:
            return  # placed on another life of this node: the head hears that it is over, and places it again
        has_lost = request.placed and not fits(self.total, request.shape.placement)  # a GPU, since it was placed here
        if self.is_draining or has_lost or not self.reserved.has_bundle_for(request.shape):
            self._hand_back(request)
            return
        here = request.count if request.placed else self._how_many_fit(request.shape, request.count)
        if not request.placed and self.out.now_ns < self.waits_until_ns.get(request.owner, 0):
            here = 0
        for _ in range(here):
            self._queue(request)
        if here < request.count:
            spilled = LeaseRequested(
                request_id=request.request_id,
                owner=request.owner,
                shape=request.shape,
                count=request.count - here,
                via=self.node,
            )
            self.out.send(HEAD, spilled)

    def _hand_back(self, request: LeaseRequested) -> None:
        """To the head, to be placed elsewhere."""
        again = LeaseRequested(
            request_id=request.request_id,
            owner=request.owner,
            shape=request.shape,
            count=request.count,
            via=self.node,
        )
        self.out.send(HEAD, again)
        if request.placed:
            self.settle(request)

    def on_cluster_announced(self, nodes: tuple[NodeInfo, ...]) -> None:
        """These nodes are alive. A node without GPUs keeps nothing of them: on a large cluster that would take long."""
        self.is_alone = len(nodes) < 2
        if self.total.get(GPU):
            self.without_gpus = [dict(node.total.units) for node in nodes if not node.total.get(GPU)]

    def give_back(self, owner: Address) -> None:
        """What a process waits for here is to be placed elsewhere."""
        for slot in [slot for slot in self.waiting.values() if slot.owner == owner]:
            self._give_back(slot)

    def _give_back(self, slot: Slot) -> None:
        self.admission.stop_waiting(slot)
        self._release(slot.key)
        self._hand_back(
            LeaseRequested(request_id=slot.request_id, owner=slot.owner, shape=slot.shape, count=1, placed=slot.placed)
        )

    def start_draining(self) -> None:
        """Grant nothing more, and have back what is granted."""
        self.is_draining = True
        for slot in list(self.waiting.values()):
            self._give_back(slot)
        for lease in self.leases.values():
            if lease.worker is not None:
                self._want_back(lease)

    def on_turn_wanted(self, owner: Address) -> None:
        """Another driver waits that has less than this one."""
        for lease in self.leases.values():
            if lease.owner == owner and lease.worker is not None and not lease.is_wanted and lease.resources.units:
                lease.is_wanted = True
                self._want_back(lease)
                return

    def _want_back(self, lease: Lease) -> None:
        if lease.owner != HEAD:
            self.out.send(lease.owner, LeaseWanted(lease_id=lease.lease_id))

    @property
    def has_drained(self) -> bool:
        """Whether no task runs here any more; actors may."""
        return self.is_draining and not any(lease.owner != HEAD for lease in self.leases.values())

    def _how_many_fit(self, shape: LeaseShape, count: int) -> int:
        """How many of the leases can be granted here and now, without a placement by the head."""
        if shape.strategy.kind is not StrategyKind.DEFAULT or self.waiting:
            return 0
        if self.total.get(GPU) and spares_gpus(shape.placement, self.without_gpus):
            return 0
        missing = sum(hint.size_bytes for hint in shape.deps if not self._store.is_here(hint.object_id))
        if missing > self.config.locality_bytes_max:
            return 0
        fitting = count
        for name, amount in shape.placement.units:
            free = self.free.get(name, 0)
            fitting = min(fitting, free // amount)
            if not self.is_alone:  # from this use on the head compares this node with the others
                total, threshold = self.total.get(name, 0), self.config.spread_threshold_percent
                fitting = min(fitting, count_below(threshold, total, free, amount))
        return max(self.resources.device_places(shape.resources, shape.strategy, fitting), 0)

    def _queue(self, request: LeaseRequested) -> None:
        slot = Slot(f"{_SLOT}{self._slot_counter} of {self.node}", request)
        self._slot_counter += 1
        self.waiting[slot.key] = slot
        if request.shape.deps:
            self.admission.line_up(slot)
            self.admission.admit()
        else:
            slot.is_admitted = True

    def on_argument_failed(self, key: str, error: ErrorInfo) -> None:
        """An argument of a slot will not come."""
        slot = self.waiting.get(key)
        if slot is None:
            return
        together = sum({hint.object_id: hint.size_bytes for hint in slot.shape.deps}.values())
        fits_in = together <= self._store.space.capacity_bytes
        if error.kind is ErrorKind.STORE_FULL and not error.is_final and fits_in and self._may_find_room(slot):
            self.admission.stand_back(slot)
        else:
            self.admission.stop_waiting(slot)
            self._refuse(slot, error)

    def _may_find_room(self, slot: Slot) -> bool:
        """Whether a task runs here whose end may make room; one that is blocked may wait for this very slot."""
        running = [lease for lease in self.leases.values() if lease.owner != HEAD and lease.worker is not None]
        if running and all(lease.blocked for lease in running):
            slot.refusals += 1
            return slot.refusals < self.config.refusals_max
        return bool(running)

    def _refuse(self, slot: Slot, error: ErrorInfo) -> None:
        self._release(slot.key)
        self._settle(slot)
        self.out.send(slot.owner, LeaseRefused(request_id=slot.request_id, count=1, error=error))

    def _settle(self, slot: Slot) -> None:
        if slot.placed:
            self.settled.append(slot.request_id)
            self._changed = True

    def settle(self, request: LeaseRequested) -> None:
        """Nobody waits for what was placed here."""
        self.settled.extend([request.request_id] * request.count)
        self._changed = True

    # ---- Bundles of placement groups -------------------------------------------------------------------------

    def on_bundle_wanted(self, event: BundleWanted) -> None:
        """Reserve a bundle, if it fits here and now."""
        if event.incarnation != self.incarnation:
            return  # asked of another life of this node: the head hears that it is over, and places the bundle again
        self.reserved.on_wanted(event, is_draining=self.is_draining)
        self._changed = True

    def on_bundles_unwanted(self, event: BundlesUnwanted) -> None:
        """End what runs in these bundles, and take back what they hold."""
        if self.reserved.on_unwanted(event):
            self._changed = True

    def _end_leases_in(self, group: PlacementGroupID, indices: tuple[int, ...], error: ErrorInfo) -> None:
        """What waits for a lease in these bundles goes back to the head, and workers in them are ended."""
        for slot, lease in list(self.unstaffed):
            if lease.group == group and (lease.bundle < 0 or lease.bundle in indices):
                self.unstaffed.remove((slot, lease))
                self._end_lease(lease)
                self._spill_back(slot)
        for slot in [slot for slot in self.waiting.values() if not self.reserved.has_bundle_for(slot.shape)]:
            del self.waiting[slot.key]
            self._release(slot.key)
            self._spill_back(slot)
        for lease in list(self.leases.values()):
            if lease.group == group and (lease.bundle < 0 or lease.bundle in indices) and lease.worker is not None:
                lease.end_error = error
                self.out.add(StopWorker(worker=lease.worker.address, reason=error.message))

    # ---- Dispatch --------------------------------------------------------------------------------------------

    def dispatch(self) -> None:
        """Give resources and workers to slots, in order of arrival, as far as they go."""
        if self.waiting:
            for slot in list(self.waiting.values()):
                if self.resources.has_room(slot.shape) and self.admission.has_arguments(slot):
                    self.admission.stop_waiting(slot)
                    self._allocate(slot)
            self.admission.admit()
        if not self.unstaffed:
            return
        self._staff()
        if self._granted:
            self._tell_granted()
        starting = sum(worker.state is WorkerState.STARTING for worker in self.workers.values())
        for _ in range(min(len(self.unstaffed), self.worker_pool.starts_max) - starting):
            if self.idle:
                self.worker_pool.make_way()
            self.worker_pool.start_worker()

    def _staff(self) -> None:
        """Give idle workers to those that wait for one."""
        unfit: deque[tuple[Slot, Lease]] = deque()
        while self.unstaffed and self.idle:
            slot, lease = self.unstaffed.popleft()
            worker = self.worker_pool.fitting(slot, lease)
            if worker is not None:
                self.idle.remove(worker)
                self._grant(slot, lease, worker)
            else:
                unfit.append((slot, lease))
        self.unstaffed.extendleft(reversed(unfit))

    def _allocate(self, slot: Slot) -> None:
        lease_id = LeaseID(f"{self.node}~{self.incarnation}/lease{self._lease_counter}")
        self._lease_counter += 1
        resources = slot.shape.resources
        self._changed = self.resources.take(resources) or self._changed
        lease = Lease(slot, lease_id, self.resources.take_devices(resources, slot.shape.strategy))
        self.leases[lease_id] = lease
        if is_driver(lease.owner):
            self.held[lease.owner] = self.held.get(lease.owner, 0) + 1
            self._may_report = True
        self.unstaffed.append((slot, lease))
        if slot.placed:
            self.allocated.append(slot.request_id)
            self._changed = True

    def _grant(self, slot: Slot, lease: Lease, worker: Worker) -> None:
        worker.become(WorkerState.LEASED)
        worker.is_fresh = False
        worker.runtime_env = slot.shape.runtime_env
        worker.lease = lease
        lease.worker = worker
        if slot.placed:
            self.settled.append(slot.request_id)
            self._may_report = True
        granted = LeaseGranted(
            request_id=slot.request_id,
            lease_id=lease.lease_id,
            worker=worker.address,
            node=self.node,
            incarnation=self.incarnation,
            device_ids=tuple(share.device for share in lease.device_shares),
        )
        if slot.owner == HEAD or self.is_draining:
            self.out.send(slot.owner, granted)
            if self.is_draining:
                self._want_back(lease)
        else:
            self._granted.setdefault(slot.owner, []).append(granted)

    def _tell_granted(self) -> None:
        """Tell owners of their leases: of all that were granted now, in one message."""
        for owner, leases in self._granted.items():
            self.out.send(owner, leases[0] if len(leases) == 1 else LeasesGranted(leases=tuple(leases)))
        self._granted.clear()

    def lose_gpu(self, gpu: int) -> bool:
        """A GPU is gone: its share of a lease with it, and the worker that held it ends. What waits here and can never
        be met here now goes back to the head. False when there is no such GPU."""
        if gpu not in self.resources.devices:
            return False
        self.reserved.lose_gpu(gpu)
        self.resources.lose_gpu(gpu)
        self._changed = True
        for slot, lease in list(self.unstaffed):
            if self._strip_gpu(lease, gpu):
                self.unstaffed.remove((slot, lease))
                self._end_lease(lease)
                self._spill_back(slot)
        for lease in list(self.leases.values()):
            if self._strip_gpu(lease, gpu) and lease.worker is not None:
                self.out.add(StopWorker(worker=lease.worker.address, reason=f"GPU {gpu} of {self.node} was lost"))
        for slot in [slot for slot in self.waiting.values() if not fits(self.total, slot.shape.placement)]:
            self.admission.stop_waiting(slot)
            self._release(slot.key)
            self._spill_back(slot)
        return True

    def _strip_gpu(self, lease: Lease, gpu: int) -> bool:
        """The lease holds the GPU no more; whether it did."""
        lost = sum(share.units for share in lease.device_shares if share.device == gpu)
        if not lost:
            return False
        lease.device_shares = tuple(share for share in lease.device_shares if share.device != gpu)
        lease.resources = without_gpu(lease.resources, lost)
        return True

    def _spill_back(self, slot: Slot) -> None:
        """The head may know a better place."""
        self._settle(slot)
        self.out.send(
            HEAD,
            LeaseRequested(request_id=slot.request_id, owner=slot.owner, shape=slot.shape, count=1, via=self.node),
        )

    # ---- Leases and workers ------------------------------------------------------------------------------------

    def on_returned(self, event: LeaseReturned) -> None:
        """The owner needs the lease no more."""
        lease = self.leases.get(event.lease_id)
        if lease is None:
            return
        worker = lease.worker
        is_used_up = lease.needs_fresh_worker
        self._end_lease(lease)
        if worker is None:
            return
        worker.lease = None
        if event.worker_usable and (is_used_up or worker.is_spent):
            self.out.send(worker.address, WorkerRetired(worker=worker.address))
        elif event.worker_usable:
            self.worker_pool.make_idle(worker)
        else:
            self.out.add(StopWorker(worker=worker.address, reason="its actor has ended"))

    def on_several_returned(self, event: LeasesReturned) -> None:
        """The owner needs these leases no more."""
        for lease_id in event.lease_ids:
            self.on_returned(LeaseReturned(lease_id=lease_id))

    def _end_lease(self, lease: Lease) -> None:
        del self.leases[lease.lease_id]
        if is_driver(lease.owner):
            self.held[lease.owner] -= 1
            self._may_report = True
            if not self.held[lease.owner]:
                del self.held[lease.owner]
        if lease.is_wanted:
            self.waits_until_ns[lease.owner] = self.out.now_ns + self.config.lease_turn_ns
        self._changed = self.resources.give(self.held_by(lease)) or self._changed
        for share in lease.device_shares:
            share.pool[share.device] += share.units
        self._release(lease.key)
        if lease.group is not None and self.reserved.dissolve(lease.group):
            self._changed = True

    def held_by(self, lease: Lease) -> Resources:
        """What nobody else can have meanwhile: a worker that lends its CPU holds the rest."""
        if not lease.lends:
            return lease.resources
        return Resources(tuple((name, amount) for name, amount in lease.resources.units if not is_cpu(name)))

    def set_blocked(self, address: Address, blocked: bool, *, lends: bool) -> None:
        """A worker's task waits, and lends its CPU or not; or it goes on."""
        worker = self.workers.get(address)
        lease = worker.lease if worker is not None else None
        if lease is None:
            return
        lease.blocked = blocked
        lends = lends or (blocked and lease.lends)  # another method of the actor may wait for its arguments
        if lease.lends == lends:
            return
        lease.lends = lends
        cpus = Resources(tuple((name, amount) for name, amount in lease.resources.units if is_cpu(name)))
        has_changed = self.resources.give(cpus) if lends else self.resources.take(cpus)
        self._changed = has_changed or self._changed

    def on_worker_exited(self, event: WorkerExited) -> None:
        """A worker process is gone."""
        worker = self.workers.get(event.worker)
        if worker is None:
            return
        starting = worker.state is WorkerState.STARTING
        self.worker_pool.remove(worker, event.reason)
        memory = self.worker_pool.out_of_memory.pop(event.worker, None)
        if worker.lease is not None:
            lease = worker.lease
            self._end_lease(lease)
            if memory is not None:
                kind, why = ErrorKind.OUT_OF_MEMORY, memory
            elif lease.end_error is not None:
                kind, why = lease.end_error.kind, event.reason
            else:
                kind, why = ErrorKind.WORKER_CRASHED, event.reason
            error = ErrorInfo(kind=kind, message=f"Worker {event.worker} died: {why}.")
            self.out.send(lease.owner, LeasedWorkerDied(lease_id=lease.lease_id, worker=event.worker, error=error))
        if starting:
            failures = self.worker_pool.count_failed_start()
            if failures:
                self.refuse_unstaffed(
                    f"{failures} workers in a row died while starting on {self.node}; the last: {event.reason}."
                )

    def refuse_unstaffed(self, message: str) -> None:
        """No worker can be had for the leases that wait for one."""
        error = ErrorInfo(kind=ErrorKind.WORKER_CRASHED, message=message)
        while self.unstaffed:
            slot, lease = self.unstaffed.popleft()
            self._end_lease(lease)
            self._refuse(slot, error)

    def on_worker_spent(self, address: Address) -> None:
        """A worker takes no more calls: it retires, with its lease if it has one."""
        worker = self.workers.get(address)
        if worker is None or worker.is_spent:
            return
        worker.is_spent = True
        if worker.lease is not None:
            self._want_back(worker.lease)
        elif worker.state is WorkerState.IDLE:
            self.worker_pool.retire_idle(worker)

    def owners_died(self, is_dead: Callable[[Address], bool], why: str = "died") -> None:
        """Leases of dead owners end with their workers; what they had asked for is forgotten."""
        for owner in [owner for owner in self.waits_until_ns if is_dead(owner)]:
            del self.waits_until_ns[owner]
        for key in [key for key, slot in self.waiting.items() if is_dead(slot.owner)]:
            slot = self.waiting[key]
            self.admission.stop_waiting(slot)
            self._release(key)
            self._settle(slot)
        kept: deque[tuple[Slot, Lease]] = deque()
        for slot, lease in self.unstaffed:
            if is_dead(slot.owner):
                self._end_lease(lease)
                self._settle(slot)
            else:
                kept.append((slot, lease))
        self.unstaffed = kept
        for lease in list(self.leases.values()):
            if lease.worker is not None and is_dead(lease.owner):
                self.out.add(StopWorker(worker=lease.worker.address, reason=f"its lease's owner {lease.owner} {why}"))

    def report(self) -> None:
        """Tell the head what is free and what is settled, if that has changed; soon, if it changes nothing about what
        is free: that a lease has got its worker, or who holds it."""
        if not self._changed:
            if self._may_report and not self._report_is_due:
                self._report_is_due = True
                self.out.add(ArmTimer(timer=REPORT_TIMER, delay_ns=self.config.report_ns))
            return
        self._changed = self._may_report = False
        settled, self.settled = tuple(self.settled), []
        allocated, self.allocated = tuple(self.allocated), []
        bundles, self.reserved.bundle_reports = tuple(self.reserved.bundle_reports), []
        report = ResourcesReported(
            node=self.node,
            incarnation=self.incarnation,
            available=dict(self.free),
            settled=settled,
            allocated=allocated,
            held=dict(self.held),
            bundles=bundles,
        )
        self.out.send(HEAD, report)

    def on_report_timer(self) -> None:
        """What has waited to be reported is reported now, unless it was with something else."""
        self._report_is_due = False
        self._changed = self._changed or self._may_report

    # ---- Invariants ------------------------------------------------------------------------------------------

    def check_invariants(self) -> None:
        of_drivers = [lease.owner for lease in self.leases.values() if is_driver(lease.owner)]
        ensure(
            self.held == {owner: of_drivers.count(owner) for owner in of_drivers},
            "{}: the leases of drivers are not {}",
            self.node,
            self.held,
        )
        held: dict[str, int] = {}
        shares: dict[int, int] = {}
        for bundle in [bundle for bundles in self.resources.bundles.values() for bundle in bundles.values()]:
            for name, amount in bundle.resources.units:
                held[name] = held.get(name, 0) + amount
            for device, free in bundle.devices_free.items():
                shares[device] = shares.get(device, 0) + free
        for lease in self.leases.values():
            for name, amount in self.held_by(lease).units:
                held[name] = held.get(name, 0) + amount
            for share in lease.device_shares:
                shares[share.device] = shares.get(share.device, 0) + share.units
        for name, total in self.total.items():
            ensure(
                held.get(name, 0) + self.free[name] == total,
                "{}: {} units of {} leased and {} free make not {}",
                self.node,
                held.get(name, 0),
                name,
                self.free[name],
                total,
            )
            ensure(is_cpu(name) or self.free[name] >= 0, "{}: {} is leased twice", self.node, name)
        for device, free in self.resources.devices_free.items():
            whole = free + shares.get(device, 0) == self.resources.devices[device]
            ensure(free >= 0 and whole, "{}: {} is leased twice", self.node, device_words((device,)))
        self.admission.check_invariants()
        self.worker_pool.check_invariants()


def is_slot(user: str) -> bool:
    """Whether a user of the store is a slot or lease, as opposed to a process."""
    return user.startswith(_SLOT)
