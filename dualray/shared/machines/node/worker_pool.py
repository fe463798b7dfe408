"""The worker pool has worker processes started and ended, and chooses the idle one that a lease gets.

Theory of operation. A worker is STARTING until its process says that it is ready, then IDLE, LEASED, and IDLE again, or
DEAD. The last one used is the first to be used again.

A worker that has had a runtime environment is for slots of the same one; a slot with one gets such a worker, or a fresh
one. GPUs go to fresh workers, that have run nothing before: CUDA reads once in a process's life which ones it may see,
and keeps their memory. An actor gets a fresh worker, too: its process ends with the actor, and would take along the
objects and actors that earlier tasks in the process have made. A worker that is started though others are idle has the
longest idle one retire, when there are more than CPUs.

When the machine is out of memory, the memory policy chooses a worker, and that one is ended; its lease's owner learns
why. One at a time: while a worker that was chosen has not exited, what the runner says of memory is old news.

When the machine has no room for one more process, the pool starts none for `worker_start_retry_ns`, and then one at a
time until one is ready. The room may come back; after `worker_start_patience_ns` without any, the leases that wait for
a worker are refused.

Relies on: WorkerReady, WorkerExited or WorkerNotStarted for each StartWorker.
Guarantees: a worker is in the idle list exactly while it is IDLE.
"""

from __future__ import annotations

from dualray.shared.machines.base import Outbox, ensure
from dualray.shared.machines.node.lease_records import Lease, Slot, Worker
from dualray.shared.model.commands import ArmTimer, StartWorker, StopWorker
from dualray.shared.model.config import Config
from dualray.shared.model.events import MemoryExceeded, WorkerDied, WorkerRetired, WorkerUnwanted
from dualray.shared.model.ids import HEAD, Address, LeaseID, NodeID, worker_address
from dualray.shared.model.resources import CPU, UNITS
from dualray.shared.model.states import WorkerState
from dualray.shared.policies import load_policy
from dualray.shared.policies.worker_killing import MemoryPolicy, MemoryUser
from dualray.shared.units import size_words

STARTS_TIMER = "starts"
OUT_OF_MEMORY = "the node is out of memory"
"""Why a worker was ended, when the memory policy has chosen it."""


class WorkerPool:
    """See the module.

    Args:
        total: what the node has.
        leases: those of the node.
    """

    def __init__(
        self,
        *,
        out: Outbox,
        node: NodeID,
        incarnation: int,
        total: dict[str, int],
        config: Config,
        leases: dict[LeaseID, Lease],
    ) -> None:
        self.out = out
        self.node = node
        self.incarnation = incarnation
        self.total = total
        self.config = config
        self.workers: dict[Address, Worker] = {}
        self.idle: list[Worker] = []
        """The last one used is the first to be used again: its caches are warm."""
        self.leases = leases
        self.out_of_memory: dict[Address, str] = {}
        """Workers that are being ended because the machine is out of memory, and what is said of it."""
        self._memory_policy: MemoryPolicy = load_policy(config.memory_policy)
        self._worker_counter = 0
        self._start_failures = 0
        self.starts_wait = False
        """No worker is started until a timer fires: the machine had no room for one."""
        self._no_room_since_ns: int | None = None

    # ---- Starting and stopping -------------------------------------------------------------------------------

    def prestart(self) -> None:
        """Start workers before they are asked for."""
        count = self.config.workers_prestarted
        if count < 0:
            count = min(-(-self.total.get(CPU, 0) // UNITS), self.config.worker_starts_max)
        for _ in range(count):
            self.start_worker()

    def start_worker(self) -> None:
        """Have one more process started."""
        address = worker_address(self.node, self.incarnation, self._worker_counter)
        self._worker_counter += 1
        self.workers[address] = Worker(address)
        self.out.add(StartWorker(worker=address))

    def on_ready(self, address: Address) -> None:
        """A worker process is up."""
        worker = self.workers.get(address)
        if worker is not None and worker.state is WorkerState.STARTING:
            self._start_failures = 0
            self._no_room_since_ns = None
            worker.ready_ns = self.out.now_ns
            self.make_idle(worker)

    def make_idle(self, worker: Worker) -> None:
        """It is ready for a lease."""
        worker.become(WorkerState.IDLE)
        self.idle.append(worker)

    def remove(self, worker: Worker, reason: str) -> None:
        """Its process is gone."""
        del self.workers[worker.address]
        if worker.state is WorkerState.IDLE:
            self.idle.remove(worker)
        worker.become(WorkerState.DEAD)
        self.out.send(HEAD, WorkerDied(worker=worker.address, node=self.node, reason=reason))

    def count_failed_start(self) -> int:
        """A worker died while it started: how many have in a row, once that is too many, and counted anew from then."""
        self._start_failures += 1
        if self._start_failures < self.config.worker_start_failures_max:
            return 0
        failures, self._start_failures = self._start_failures, 0
        return failures

    @property
    def starts_max(self) -> int:
        """How many workers may be starting at this moment."""
        if self.starts_wait:
            return 0
        return self.config.worker_starts_max if self._no_room_since_ns is None else 1

    def put_off_starts(self) -> bool:
        """The machine had no room for a worker: the next is started later. True when that has gone on for too long, and
        is counted anew from then."""
        if not self.starts_wait:
            self.starts_wait = True
            self.out.add(ArmTimer(timer=STARTS_TIMER, delay_ns=self.config.worker_start_retry_ns))
        if self._no_room_since_ns is None:
            self._no_room_since_ns = self.out.now_ns
        is_too_long = self.out.now_ns - self._no_room_since_ns >= self.config.worker_start_patience_ns
        if is_too_long:
            self._no_room_since_ns = None
        return is_too_long

    def on_starts_timer(self, *, is_needed: bool) -> None:
        """A worker may be started again, if one is needed."""
        self.starts_wait = False
        if not is_needed:
            self._no_room_since_ns = None

    def stop(self, event: WorkerUnwanted) -> None:
        """The head does not want this worker's actor any more, or it has retired."""
        if event.worker in self.workers:
            self.out.add(StopWorker(worker=event.worker, reason=event.reason, is_graceful=event.is_graceful))

    def retire_idle(self, worker: Worker) -> None:
        """An idle worker is needed no more: it ends when nobody needs what it owns."""
        self.idle.remove(worker)
        worker.become(WorkerState.LEASED)
        self.out.send(worker.address, WorkerRetired(worker=worker.address))

    # ---- Choosing --------------------------------------------------------------------------------------------

    def fitting(self, slot: Slot, lease: Lease) -> Worker | None:
        """The idle worker for a lease, the one that was used last first: a fresh one for GPUs or an actor; one of the
        same environment, else a fresh one."""
        fresh: Worker | None = None
        needs_fresh = lease.needs_fresh_worker or lease.owner == HEAD
        for worker in reversed(self.idle):
            if worker.is_fresh:
                fresh = fresh or worker
            if needs_fresh:
                if fresh is not None:
                    return fresh
            elif worker.runtime_env == slot.shape.runtime_env:
                return worker
        return fresh

    def make_way(self) -> None:
        """A worker is started though others are idle, of other environments or not fresh: there are not to be more and
        more."""
        if len(self.idle) * UNITS > max(self.total.get(CPU, 0), UNITS):
            self.retire_idle(self.idle[0])

    # ---- Memory ----------------------------------------------------------------------------------------------

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
            f"{self.node} was out of memory: {used} were in use, and the limit is {limit}. This worker, which "
            f"{role}, used {own}. Give each task more CPUs (num_cpus=), so that fewer run at the same time, or use a "
            "node with more memory"
        )
        self.out_of_memory[chosen.worker] = why
        self.out.add(StopWorker(worker=chosen.worker, reason=OUT_OF_MEMORY))

    # ---- Invariants ------------------------------------------------------------------------------------------

    def check_invariants(self) -> None:
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
