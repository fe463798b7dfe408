"""The rows that a node manager has of the tables of the cluster (state_rows.py): plain values, nothing decided."""

from __future__ import annotations

from dualray.shared.machines.node.local_scheduler import LocalScheduler
from dualray.shared.machines.node.object_store import ObjectStore
from dualray.shared.machines.state_rows import Row
from dualray.shared.model.ids import NodeID
from dualray.shared.model.resources import in_plain_names


class NodeRows:
    """What a node manager tells: see state_rows.py."""

    def __init__(self, *, node: NodeID, scheduler: LocalScheduler, store: ObjectStore) -> None:
        self.node = node
        self.scheduler = scheduler
        self.store = store

    def of(self, table: str) -> list[Row]:
        """A node manager's rows; none of a table that it has no part in."""
        if table == "workers":
            return [
                {
                    "worker_id": worker.address,
                    "node_id": self.node,
                    "worker_type": "WORKER",
                    "state": str(worker.state),
                    "leased_by": worker.lease.owner if worker.lease is not None else None,
                    "leased_for": worker.lease.name if worker.lease is not None else None,
                    "is_blocked": worker.lease is not None and worker.lease.blocked,
                    "resources": in_plain_names(self.scheduler.held_by(worker.lease)).as_floats()
                    if worker.lease is not None
                    else {},
                    "started_ago_ns": self.scheduler.out.now_ns - worker.ready_ns if worker.ready_ns >= 0 else None,
                }
                for worker in self.scheduler.workers.values()
            ]
        if table == "store":
            stored = [*self.store.objects.values(), *self.store.spilled.values()]
            return [
                {
                    "object_id": each.object_id.hex(),
                    "node_id": self.node,
                    "owner": each.owner,
                    "state": str(each.state),
                    "size_bytes": each.size_bytes,
                    "pinned_by": list(each.pins),
                }
                for each in stored
            ]
        return []
