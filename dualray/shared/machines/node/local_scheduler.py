"""The local scheduler: one node's resources, its workers and its leases.

Theory of operation. A request for leases that comes from an owner of this node is granted here as far as the resources
are free and its arguments are here or small; the rest is spilled back to the head. What the head has placed here is
queued here. A queued slot waits for its arguments (transfer.py brings and pins them), then for its resources, then for
a worker process; a slot that has resources and no worker waits in `unstaffed`, and a worker is started for it.

Whose arguments are brought, and in which order, is admission.py's. A slot that found no room is refused only when no
task runs here whose end may make some; tasks that are blocked may wait for this very slot, and count for `refusals_max`
times. The arguments of a granted lease stay pinned for it until its worker has pinned them itself.

A worker that has had a runtime environment is for slots of the same one; a slot with one gets such a worker, or a fresh
one. A worker that says that it is spent retires as soon as its lease is given back, which its owner is asked to do.

GPUs go to workers that have run nothing before, and a worker that has had some retires with its lease: CUDA reads once
in a process's life which ones it may see, and keeps their memory. It ends when nobody needs what it owns.

A worker whose task blocks in `get` lends its CPUs to others, not its GPUs; when it goes on it takes them back, and
what is free may be negative for a while. A worker that dies takes its lease with it; the lease's owner is told. When an
owner dies, the workers that it leased are ended: nobody would take their results.

When the head says that a driver has more leases than one that waits, the oldest of them is had back, and for one
`lease_turn_ns` that driver is granted nothing here that the head has not placed: else it would take again what it gave.

A bundle of a placement group is reserved when the head asks for it and all of it is free now: what it takes is offered
under the bundle's own names (model/resources.py), and its GPUs go into a pool of their own. When the head does not want
it any more, slots in it go back to the head, workers in it are ended, and with the last of them its resources are the
node's again.

A node that drains grants nothing more: what was placed here and not granted goes back to the head, and the owners of
leases are asked to give them back when what they have pushed is done. Actors stay until the node ends.

When the machine is out of memory, the memory policy chooses a worker, and that one is ended; its lease's owner learns
why. One at a time: while a worker that was chosen has not exited, what the runner says of memory is old news.

Relies on: WorkerReady or WorkerExited for each StartWorker.
Guarantees: what is leased and what is free add up to the node's total; no GPU share is leased twice; each placed
request is settled once for each lease it asked for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from dualray.shared.machines.base import Outbox, ensure
from dualray.shared.machines.node.admission import Admission
from dualray.shared.machines.node.grants import Bundle, GpuShare, Lease, Slot, Worker
from dualray.shared.machines.node.object_store import ObjectStore
from dualray.shared.model.commands import ArmTimer, StartWorker, StopWorker
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
    MemoryExceeded,
    ResourcesReported,
    WorkerDied,
    WorkerExited,
    WorkerRetired,
)
from dualray.shared.model.ids import (
    HEAD,
    Address,
    LeaseID,
    NodeID,
    ObjectID,
    PlacementGroupID,
    RequestID,
    is_driver,
    short,
    worker_address,
)
from dualray.shared.model.resources import (
    CPU,
    GPU,
    UNITS,
    Resources,
    fits,
    from_units,
    gpu_units,
    is_cpu,
)
from dualray.shared.model.specs import DEFAULT_STRATEGY, BundleReport, LeaseShape, Strategy, StrategyKind
from dualray.shared.model.states import WorkerState
from dualray.shared.policies import load_policy
from dualray.shared.policies.memory import MemoryPolicy, MemoryUser
from dualray.shared.units import size_words

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
        total: Resources,
        config: Config,
        want: Callable[[ObjectID, Address, str], None],
        locate: Callable[[ObjectID, Address, str], bool],
        release: Callable[[str], None],
        is_local: Callable[[ObjectID], bool],
        store: ObjectStore,
    ) -> None:
        self.out = out
        self.node = node
        self.incarnation = 0
        self.config = config
        self.total = dict(total.units)
        self.free = dict(total.units)
        gpu_units = total.get(GPU)
        self.gpus = {gpu: min(UNITS, gpu_units - gpu * UNITS) for gpu in range(-(-gpu_units // UNITS))}
        self.gpus_free = dict(self.gpus)
        self.bundles: dict[PlacementGroupID, dict[int, Bundle]] = {}
        self.bundle_reports: list[BundleReport] = []
        """What the head has not been told yet."""
        self._release = release
        self._is_local = is_local
        self._store = store
        self.workers: dict[Address, Worker] = {}
        self.idle: list[Worker] = []
        """The last one used is the first to be used again: its caches are warm."""
        self.leases: dict[LeaseID, Lease] = {}
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
        self.out_of_memory: dict[Address, str] = {}
        """Workers that are being ended because the machine is out of memory, and what is said of it."""
        self._memory_policy: MemoryPolicy = load_policy(config.memory_policy)
        self._granted: dict[Address, list[LeaseGranted]] = {}
        """By owner, what it has not been told yet."""
        self._worker_counter = 0
        self._lease_counter = 0
        self._slot_counter = 0
        self._start_failures = 0

    # ---- Requests --------------------------------------------------------------------------------------------

    def prestart(self) -> None:
        """Start workers before they are asked for."""
        count = self.config.workers_prestarted
        if count < 0:
            count = min(-(-self.total.get(CPU, 0) // UNITS), self.config.worker_starts_max)
        for _ in range(count):
            self._start_worker()

    def on_requested(self, request: LeaseRequested) -> None:
        """An owner, or the head, asks for leases."""
        if request.placed and request.incarnation != self.incarnation:
            return  # placed on another life of this node: the head hears that it is over, and places it again
        has_lost = request.placed and not fits(self.total, request.shape.placement)  # a GPU, since it was placed here
        if self.is_draining or has_lost or not self._has_bundle_for(request.shape):
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
        missing = sum(hint.size_bytes for hint in shape.deps if not self._is_local(hint.object_id))
        if missing > self.config.locality_bytes_max:
            return 0
        fitting = count
        for name, amount in shape.placement.units:
            fitting = min(fitting, self.free.get(name, 0) // amount)
        units = gpu_units(shape.resources)
        if units:
            fitting = min(fitting, self._gpu_places(units, shape.strategy))
        return max(fitting, 0)

    def _gpu_pools(self, strategy: Strategy) -> list[dict[int, int]]:
        """Where a lease's GPUs come from: the node's own, or those of a bundle, or of any bundle of a group."""
        if strategy.group is None:
            return [self.gpus_free]
        bundles = self.bundles.get(strategy.group, {})
        return [bundle.gpus_free for bundle in bundles.values() if strategy.bundle in (-1, bundle.index)]

    def _gpu_places(self, units: int, strategy: Strategy) -> int:
        """How many such demands the GPUs can take: what is free on two of them does not make a third."""
        free = [amount for pool in self._gpu_pools(strategy) for amount in pool.values()]
        if units >= UNITS:
            return sum(amount == UNITS for amount in free) // (units // UNITS)
        return sum(amount // units for amount in free)

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
        fits_in = together <= self._store.capacity_bytes
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
        units = gpu_units(event.resources)
        fitting = fits(self.free, event.resources) and (not units or self._gpu_places(units, DEFAULT_STRATEGY) > 0)
        is_ending = event.index in self.bundles.get(event.group_id, {})
        if fitting and not is_ending and not self.is_draining:
            self._take(event.resources)
            bundle = Bundle(event, self._take_gpus(units, DEFAULT_STRATEGY))
            self.bundles.setdefault(event.group_id, {})[event.index] = bundle
            for name, amount in bundle.offered.units:
                self.total[name] = self.total.get(name, 0) + amount
                self.free[name] = self.free.get(name, 0) + amount
            self._report_bundle(event.group_id, bundle, is_reserved=True)
            return
        self.bundle_reports.append(
            BundleReport(group_id=event.group_id, index=event.index, attempt=event.attempt, is_reserved=False)
        )
        self._changed = True

    def _report_bundle(self, group: PlacementGroupID, bundle: Bundle, *, is_reserved: bool) -> None:
        self.bundle_reports.append(
            BundleReport(group_id=group, index=bundle.index, attempt=bundle.attempt, is_reserved=is_reserved)
        )
        self._changed = True

    def on_bundles_unwanted(self, event: BundlesUnwanted) -> None:
        """End what runs in these bundles, and take back what they hold."""
        what = "was removed" if event.is_removed else "is being placed anew"
        error = ErrorInfo(
            kind=ErrorKind.TASK_GROUP_REMOVED if event.is_removed else ErrorKind.WORKER_CRASHED,
            message=f"placement group {short(event.group_id)} {what}",
        )
        self._end_bundles(event.group_id, event.indices, error)

    def _end_bundles(self, group: PlacementGroupID, indices: tuple[int, ...], error: ErrorInfo) -> None:
        for index in indices:
            bundle = self.bundles.get(group, {}).get(index)
            if bundle is not None:
                bundle.error = error
        for slot, lease in list(self.unstaffed):
            if lease.group == group and (lease.bundle == -1 or lease.bundle in indices):
                self.unstaffed.remove((slot, lease))
                self._end_lease(lease)
                self._spill_back(slot)
        for slot in [slot for slot in self.waiting.values() if not self._has_bundle_for(slot.shape)]:
            del self.waiting[slot.key]
            self._release(slot.key)
            self._spill_back(slot)
        for lease in list(self.leases.values()):
            if lease.group == group and (lease.bundle == -1 or lease.bundle in indices) and lease.worker is not None:
                lease.end_error = error
                self.out.add(StopWorker(worker=lease.worker.address, reason=error.message))
        self._dissolve(group)

    def _has_bundle_for(self, shape: LeaseShape) -> bool:
        """Whether a slot can wait here: yes, unless it is in a bundle that is not here (any more)."""
        strategy = shape.strategy
        if strategy.group is None:
            return True
        bundles = self.bundles.get(strategy.group, {})
        return any(bundle.error is None for bundle in bundles.values() if strategy.bundle in (-1, bundle.index))

    def _dissolve(self, group: PlacementGroupID) -> None:
        """Take back the bundles that are given back, once no lease is in them."""
        bundles = self.bundles.get(group, {})
        for bundle in list(bundles.values()):
            if bundle.error is None or any(
                lease.group == group and lease.bundle in (-1, bundle.index) for lease in self.leases.values()
            ):
                continue
            del bundles[bundle.index]
            for name, amount in bundle.offered.units:
                self.total[name] -= amount
                self.free[name] -= amount
                if not self.total[name]:
                    del self.total[name], self.free[name]
            self._give(bundle.resources)
            for share in bundle.gpu_shares:
                share.pool[share.gpu] += share.units
        if not bundles:
            self.bundles.pop(group, None)

    # ---- Dispatch --------------------------------------------------------------------------------------------

    def dispatch(self) -> None:
        """Give resources and workers to slots, in order of arrival, as far as they go."""
        if self.waiting:
            for slot in list(self.waiting.values()):
                if self._has_room(slot.shape) and self.admission.has_arguments(slot):
                    self.admission.stop_waiting(slot)
                    self._allocate(slot)
            self.admission.admit()
        if not self.unstaffed:
            return
        self._staff()
        if self._granted:
            self._tell_granted()
        starting = sum(worker.state is WorkerState.STARTING for worker in self.workers.values())
        for _ in range(min(len(self.unstaffed), self.config.worker_starts_max) - starting):
            if self.idle:
                self._make_way_for_worker()
            self._start_worker()

    def _staff(self) -> None:
        """Give idle workers to those that wait for one."""
        unfit: deque[tuple[Slot, Lease]] = deque()
        while self.unstaffed and self.idle:
            slot, lease = self.unstaffed.popleft()
            worker = self._fitting(slot, lease)
            if worker is not None:
                self.idle.remove(worker)
                self._grant(slot, lease, worker)
            else:
                unfit.append((slot, lease))
        self.unstaffed.extendleft(reversed(unfit))

    def _fitting(self, slot: Slot, lease: Lease) -> Worker | None:
        """The idle worker for a lease, the one that was used last first: a fresh one for GPUs; one of the same
        environment, else a fresh one."""
        fresh: Worker | None = None
        for worker in reversed(self.idle):
            if worker.is_fresh:
                fresh = fresh or worker
            if lease.gpu_shares:
                if fresh is not None:
                    return fresh
            elif worker.runtime_env == slot.shape.runtime_env:
                return worker
        return fresh

    def _make_way_for_worker(self) -> None:
        """A worker is started though others are idle, of other environments: there are not to be more and more."""
        if len(self.idle) * UNITS >= max(self.total.get(CPU, 0), UNITS):
            worker = self.idle.pop(0)
            worker.become(WorkerState.LEASED)
            self.out.send(worker.address, WorkerRetired(worker=worker.address))

    def _has_room(self, shape: LeaseShape) -> bool:
        units = gpu_units(shape.resources)
        return fits(self.free, shape.placement) and (not units or self._gpu_places(units, shape.strategy) > 0)

    def _allocate(self, slot: Slot) -> None:
        lease_id = LeaseID(f"{self.node}~{self.incarnation}/lease{self._lease_counter}")
        self._lease_counter += 1
        self._take(slot.shape.resources)
        lease = Lease(slot, lease_id, self._take_gpus(gpu_units(slot.shape.resources), slot.shape.strategy))
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
            gpu_ids=tuple(share.gpu for share in lease.gpu_shares),
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

    def _take(self, resources: Resources) -> None:
        for name, amount in resources.units:
            self.free[name] = self.free.get(name, 0) - amount
        self._changed = self._changed or bool(resources.units)

    def _give(self, resources: Resources) -> None:
        for name, amount in resources.units:
            self.free[name] += amount
        self._changed = self._changed or bool(resources.units)

    def _take_gpus(self, units: int, strategy: Strategy) -> tuple[GpuShare, ...]:
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

    def lose_gpu(self, gpu: int) -> bool:
        """A GPU is gone: its share of a lease with it, and the worker that held it ends. What waits here and can never
        be met here now goes back to the head. False when there is no such GPU."""
        if gpu not in self.gpus:
            return False
        self._lose_bundles_with(gpu)
        units = self.gpus.pop(gpu)
        self.total[GPU] -= units
        self.free[GPU] -= self.gpus_free.pop(gpu)
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

    def _lose_bundles_with(self, gpu: int) -> None:
        """Bundles that hold the GPU are to be placed anew. What they hold of it is gone; the rest is taken back when
        what runs in them has ended."""
        for lease in self.leases.values():
            if lease.group is not None:
                lease.gpu_shares = tuple(share for share in lease.gpu_shares if share.gpu != gpu)
        for group, bundles in list(self.bundles.items()):
            for bundle in list(bundles.values()):
                lost = sum(share.units for share in bundle.gpu_shares if share.gpu == gpu)
                if lost:
                    bundle.gpu_shares = tuple(share for share in bundle.gpu_shares if share.gpu != gpu)
                    bundle.resources = _without(bundle.resources, lost)
                    bundle.gpus_free.pop(gpu)
                    if bundle.error is None:
                        self._report_bundle(group, bundle, is_reserved=False)
                        message = f"GPU {gpu} of {self.node}, which the placement group had reserved, was lost"
                        error = ErrorInfo(kind=ErrorKind.WORKER_CRASHED, message=message)
                        self._end_bundles(group, (bundle.index,), error)

    def _strip_gpu(self, lease: Lease, gpu: int) -> bool:
        """The lease holds the GPU no more; whether it did."""
        lost = sum(share.units for share in lease.gpu_shares if share.gpu == gpu)
        if not lost:
            return False
        lease.gpu_shares = tuple(share for share in lease.gpu_shares if share.gpu != gpu)
        lease.resources = _without(lease.resources, lost)
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
        had_gpus = bool(lease.gpu_shares)
        self._end_lease(lease)
        if worker is None:
            return
        worker.lease = None
        if event.worker_usable and (had_gpus or worker.is_spent):
            self.out.send(worker.address, WorkerRetired(worker=worker.address))
        elif event.worker_usable:
            self._make_idle(worker)
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
        self._give(self._held_by(lease))
        for share in lease.gpu_shares:
            share.pool[share.gpu] += share.units
        self._release(lease.key)
        if lease.group is not None:
            self._dissolve(lease.group)

    def _held_by(self, lease: Lease) -> Resources:
        if not lease.blocked:
            return lease.resources
        return Resources(tuple((name, amount) for name, amount in lease.resources.units if not is_cpu(name)))

    def set_blocked(self, address: Address, blocked: bool) -> None:
        """A worker's task waits in `get`, or goes on."""
        worker = self.workers.get(address)
        lease = worker.lease if worker is not None else None
        if lease is None or lease.blocked == blocked:
            return
        lease.blocked = blocked
        cpus = Resources(tuple((name, amount) for name, amount in lease.resources.units if is_cpu(name)))
        if blocked:
            self._give(cpus)
        else:
            self._take(cpus)

    def _start_worker(self) -> None:
        address = worker_address(self.node, self.incarnation, self._worker_counter)
        self._worker_counter += 1
        self.workers[address] = Worker(address)
        self.out.add(StartWorker(worker=address))

    def on_worker_ready(self, address: Address) -> None:
        """A worker process is up."""
        worker = self.workers.get(address)
        if worker is not None and worker.state is WorkerState.STARTING:
            self._start_failures = 0
            self._make_idle(worker)

    def _make_idle(self, worker: Worker) -> None:
        worker.become(WorkerState.IDLE)
        self.idle.append(worker)

    def on_worker_exited(self, event: WorkerExited) -> None:
        """A worker process is gone."""
        worker = self.workers.pop(event.worker, None)
        if worker is None:
            return
        starting = worker.state is WorkerState.STARTING
        if worker.state is WorkerState.IDLE:
            self.idle.remove(worker)
        worker.become(WorkerState.DEAD)
        self.out.send(HEAD, WorkerDied(worker=event.worker, node=self.node, reason=event.reason))
        memory = self.out_of_memory.pop(event.worker, None)
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
            self._start_failures += 1
            if self._start_failures >= self.config.worker_start_failures_max:
                self._refuse_unstaffed(event)

    def on_memory_exceeded(self, event: MemoryExceeded) -> None:
        """The machine is out of memory: one worker ends."""
        if self.out_of_memory:
            return
        sizes = dict(event.workers)
        leased = [lease.worker for lease in self.leases.values() if lease.worker is not None]
        users = [
            MemoryUser(
                worker=worker.address,
                size_bytes=sizes[worker.address],
                is_idle=worker.lease is None,
                is_actor=worker.lease is not None and worker.lease.owner == HEAD,
            )
            for worker in (*self.idle, *leased)
            if worker.address in sizes
        ]
        chosen = self._memory_policy.choose(users, event.used_bytes - event.limit_bytes)
        if chosen is None:
            return
        role = "was idle" if chosen.is_idle else "held an actor" if chosen.is_actor else "ran a task"
        used, limit, own = map(size_words, (event.used_bytes, event.limit_bytes, chosen.size_bytes))
        why = (
            f"{self.node} was out of memory: {used} were used, of {limit} that may be, {own} of them by this worker, "
            f"which {role}. Ask for more CPUs a task, so that fewer run at once, or for a node with more memory"
        )
        self.out_of_memory[chosen.worker] = why
        self.out.add(StopWorker(worker=chosen.worker, reason="the node is out of memory"))

    def _refuse_unstaffed(self, event: WorkerExited) -> None:
        message = (
            f"{self._start_failures} workers in a row died while starting on {self.node}; the last: {event.reason}."
        )
        error = ErrorInfo(kind=ErrorKind.WORKER_CRASHED, message=message)
        while self.unstaffed:
            slot, lease = self.unstaffed.popleft()
            self._end_lease(lease)
            self._refuse(slot, error)
        self._start_failures = 0

    def on_worker_spent(self, address: Address) -> None:
        """A worker takes no more calls: it retires, with its lease if it has one."""
        worker = self.workers.get(address)
        if worker is None or worker.is_spent:
            return
        worker.is_spent = True
        if worker.lease is not None:
            self._want_back(worker.lease)
        elif worker.state is WorkerState.IDLE:
            self.idle.remove(worker)
            worker.become(WorkerState.LEASED)
            self.out.send(worker.address, WorkerRetired(worker=worker.address))

    def stop_worker(self, address: Address, reason: str) -> None:
        """The head does not want this worker's actor any more, or it has retired."""
        if address in self.workers:
            self.out.add(StopWorker(worker=address, reason=reason))

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
        bundles, self.bundle_reports = tuple(self.bundle_reports), []
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
        for bundle in [bundle for bundles in self.bundles.values() for bundle in bundles.values()]:
            for name, amount in bundle.resources.units:
                held[name] = held.get(name, 0) + amount
            for gpu, free in bundle.gpus_free.items():
                shares[gpu] = shares.get(gpu, 0) + free
        for lease in self.leases.values():
            for name, amount in self._held_by(lease).units:
                held[name] = held.get(name, 0) + amount
            for share in lease.gpu_shares:
                shares[share.gpu] = shares.get(share.gpu, 0) + share.units
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
        for gpu, free in self.gpus_free.items():
            whole = free + shares.get(gpu, 0) == self.gpus[gpu]
            ensure(free >= 0 and whole, "{}: GPU {} is leased twice", self.node, gpu)
        self.admission.check_invariants()
        for worker in self.workers.values():
            ensure(
                (worker.state is WorkerState.LEASED) == (worker.lease is not None) or worker.lease is None,
                "worker {} is {} and has a lease",
                worker.address,
                worker.state,
            )
            ensure(
                (worker in self.idle) == (worker.state is WorkerState.IDLE),
                "worker {} and the idle list disagree",
                worker.address,
            )


def _without(resources: Resources, gpu_units_lost: int) -> Resources:
    left = dict(resources.units)
    left[GPU] -= gpu_units_lost
    return from_units(left)


def is_slot(user: str) -> bool:
    """Whether a user of the store is a slot or lease, as opposed to a process."""
    return user.startswith(_SLOT)
