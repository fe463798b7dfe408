"""Answers what the process that drives a node machine may ask of it.

Theory of operation. A node manager drives the machine with events and carries out its commands. What it reads between
events it reads here, and not from the machine's parts: how those keep it is theirs. The tables are bound once; only the
machine changes them.

Guarantees: a query leads to no command, and changes nothing that decides. Only a replay sets `eviction`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sized

from dualray.shared.machines.base import Composition
from dualray.shared.machines.node.explanation import why_not_here
from dualray.shared.machines.node.lease_records import Lease, Worker
from dualray.shared.machines.node.local_scheduler import LocalScheduler
from dualray.shared.machines.node.object_store import ObjectStore
from dualray.shared.machines.node.stored import StoredObject
from dualray.shared.machines.node.transfer import Transfer
from dualray.shared.model.events import LeaseRequested
from dualray.shared.model.ids import Address, NodeID, ObjectID, PlacementGroupID
from dualray.shared.model.states import WorkerState
from dualray.shared.policies.eviction.policy import EvictionPolicy


class NodeQueries(Composition):
    """See the module; the node makes the parts."""

    scheduler: LocalScheduler
    store: ObjectStore
    transfer: Transfer

    workers: dict[Address, Worker]
    """All workers of the node that have not exited, by address."""
    resources_total: dict[str, int]
    """The resources of the node, with those of bundles, in units."""
    resources_free: dict[str, int]
    """What of them no lease has taken."""

    def _bind_tables(self) -> None:
        self.workers = self.scheduler.workers
        self.resources_total = self.scheduler.total
        self.resources_free = self.scheduler.free

    # ---- Workers and leases ----------------------------------------------------------------------------------

    def lease_of(self, worker: Address) -> Lease | None:
        """The lease that a worker serves, if it has one and has not exited."""
        known = self.workers.get(worker)
        return None if known is None else known.lease

    def started_workers(self) -> list[Address]:
        """The workers that have reported that they are ready."""
        return [worker.address for worker in self.workers.values() if worker.state is not WorkerState.STARTING]

    def worker_states(self) -> Counter[WorkerState]:
        """How many workers are in which state."""
        return Counter(worker.state for worker in self.workers.values())

    def lease_counts(self) -> dict[str, int]:
        """How many leases have a worker, how many requests wait, and how many leases wait for a worker."""
        scheduler = self.scheduler
        return {
            "granted": len(scheduler.leases) - len(scheduler.unstaffed),
            "waiting": len(scheduler.waiting),
            "without_worker": len(scheduler.unstaffed),
        }

    def is_freeing_memory(self) -> bool:
        """Whether a worker was told to end because the machine is out of memory, and has not exited yet."""
        return bool(self.scheduler.worker_pool.out_of_memory)

    def has_gpu(self, gpu: int) -> bool:
        """Whether the node has a GPU of this id that it has not lost."""
        return gpu in self.scheduler.resources.devices

    def why_not_here(self, request: LeaseRequested, now_ns: int) -> list[str]:
        """In words, what speaks against granting a request here and now."""
        return why_not_here(self.scheduler, self.store, request, now_ns)

    # ---- Objects ---------------------------------------------------------------------------------------------

    def is_here(self, object_id: ObjectID) -> bool:
        """Whether the bytes of an object are on this node, in memory or on disk."""
        return self.store.is_here(object_id)

    def is_readable(self, object_id: ObjectID) -> bool:
        """Whether the bytes of an object are in memory, though perhaps only until their last reader has gone."""
        return self.store.is_readable(object_id)

    def size_of(self, object_id: ObjectID) -> int:
        """The bytes of an object in memory."""
        return self.store.objects[object_id].size_bytes

    def unsealed(self, object_id: ObjectID, writer: Address) -> StoredObject | None:
        """The record of an object that a process writes, or will write when there is memory; None: it writes no such
        object."""
        stored = self.store.objects.get(object_id)
        return stored if stored is not None and self.store.is_being_written(object_id, writer) else None

    def complete_objects(self) -> list[tuple[StoredObject, bool]]:
        """The record of each object whose bytes are on this node, and whether they are on disk alone."""
        store = self.store
        stored = [(each, False) for each in store.objects.values()] + [(each, True) for each in store.spilled.values()]
        return [(each, is_spilled) for each, is_spilled in stored if store.is_here(each.object_id)]

    def object_count(self) -> int:
        """How many objects are in memory."""
        return len(self.store.objects)

    def store_used_bytes(self) -> int:
        """Bytes of the objects in memory."""
        return self.store.contents.used_bytes

    def store_spilled_bytes(self) -> int:
        """Bytes of the objects on disk."""
        return self.store.contents.spilled_bytes

    def store_capacity_bytes(self) -> int:
        """Bytes that the store may hold in memory."""
        return self.store.space.capacity_bytes

    @property
    def eviction(self) -> EvictionPolicy:
        """The policy that chooses what leaves the store. A replay sets a policy that also notes each choice."""
        return self.store.space.eviction

    @eviction.setter
    def eviction(self, policy: EvictionPolicy) -> None:
        self.store.space.eviction = policy

    # ---- Other nodes -----------------------------------------------------------------------------------------

    def has_returned(self, node: NodeID, incarnation: int) -> bool:
        """Whether a later incarnation of a node has asked for an object than this one."""
        return self.transfer.sending.has_returned(node, incarnation)

    # ---- Sweeps ----------------------------------------------------------------------------------------------

    def things(self) -> int:
        """About how many things a sweep over the machine looks at."""
        return 10 + 3 * len(self.workers) + len(self.store.objects) + len(self.transfer.wants)

    def kept(self) -> dict[str, Sized]:
        """What a node keeps that should be empty once nobody needs anything of it, by what it is."""
        return {
            "objects": self.store.objects,
            "writers in line": self.store.waiting,
            "wants": self.transfer.wants,
            "leases": self.scheduler.leases,
            "slots": self.scheduler.waiting,
        }

    def free_without(self, groups: Collection[PlacementGroupID]) -> dict[str, int]:
        """What would be free if the bundles of these placement groups were given back, in units."""
        free = dict(self.resources_free)
        for group, bundles in self.scheduler.resources.bundles.items():
            if group in groups:
                for bundle in bundles.values():
                    for name, units in bundle.resources.units:
                        free[name] += units
        return free
