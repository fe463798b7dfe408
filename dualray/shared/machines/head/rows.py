"""The rows that the head has of the tables of the cluster (state_rows.py): plain values, nothing decided."""

from __future__ import annotations

from dualray.shared.machines.autoscaler.autoscaler import Autoscaler
from dualray.shared.machines.head.actors import Actors
from dualray.shared.machines.head.directory import Directory
from dualray.shared.machines.head.global_scheduler import GlobalScheduler
from dualray.shared.machines.head.membership import Membership
from dualray.shared.machines.state_rows import Row, exit_type
from dualray.shared.model.ids import Address, is_driver, job_of_driver, node_of
from dualray.shared.model.resources import UNITS, without_bundles
from dualray.shared.model.states import ActorState, NodeHealth

_ACTOR_STATES = {
    ActorState.PENDING: "PENDING_CREATION",
    ActorState.ALIVE: "ALIVE",
    ActorState.RESTARTING: "RESTARTING",
    ActorState.DEAD: "DEAD",
}


class HeadRows:
    """What the head tells: see state_rows.py."""

    def __init__(
        self, *, membership: Membership, directory: Directory, scheduler: GlobalScheduler, actors: Actors
    ) -> None:
        self.membership = membership
        self.directory = directory
        self.scheduler = scheduler
        self.actors = actors
        self.autoscaler: Autoscaler | None = None

    def of(self, table: str) -> list[Row]:
        """The head's rows; none of a table that it has no part in."""
        match table:
            case "placement_groups":
                return self.scheduler.groups.rows()
            case "actors":
                return self._actor_rows()
            case "named_actors":
                return self.actors.names.rows()
            case "nodes":
                return self._node_rows()
            case "waits":
                return [{"words": words} for words in self.scheduler.explain() + self.actors.explain()]
            case "autoscaler":
                return self.autoscaler.rows() if self.autoscaler is not None else []
            case "demands":
                return self.autoscaler.demand_rows() if self.autoscaler is not None else []
            case "launches":
                return self.autoscaler.launch_rows() if self.autoscaler is not None else []
            case "scale_view":
                return self.autoscaler.view_rows() if self.autoscaler is not None else []
            case "ended_workers":
                return self._ended_worker_rows()
            case "jobs":
                return self._job_rows()
            case "namespaces":
                return [{"job": job, "namespace": namespace} for job, namespace in self.actors.names.jobs.items()]
            case "objects":
                return [
                    {
                        "object_id": object_id.hex(),
                        "owner": entry.owner,
                        "size_bytes": entry.size_bytes,
                        "node_ids": list(entry.nodes),
                    }
                    for object_id, entry in self.directory.entries.items()
                    if entry.nodes
                ]
            case "processes":
                drivers: list[Row] = [
                    {
                        "address": driver,
                        "node_id": node,
                        "started_ago_ns": self._ago_ns(self.membership.since_ns.get(driver, -1)),
                    }
                    for driver, node in self.membership.drivers.items()
                ]
                return drivers + [{"address": info.node, "node_id": info.node} for info in self.membership.alive()]
        return []

    def _ended_worker_rows(self) -> list[Row]:
        return [
            {
                "worker_id": address,
                "node_id": node_of(address),
                "worker_type": "WORKER",
                "state": "DEAD",
                "exit_type": exit_type(why),
                "exit_detail": why,
                "ended_ago_ns": self._ago_ns(self.membership.since_ns.get(address, -1)),
            }
            for address, why in self.membership.dead.items()
            if not is_driver(address)
        ]

    def _ago_ns(self, at_ns: int) -> int | None:
        return self.membership.out.now_ns - at_ns if at_ns >= 0 else None

    def _job_rows(self) -> list[Row]:
        """Each driver that is connected or has left is a job; of those that have left, how they ended is not known."""
        running: list[Row] = [
            _job_row(driver, "RUNNING") | {"node_id": node} for driver, node in self.membership.drivers.items()
        ]
        return running + [_job_row(address, "SUCCEEDED") for address in self.membership.dead if is_driver(address)]

    def _actor_rows(self) -> list[Row]:
        return [
            {
                "actor_id": actor_id.hex(),
                "class_name": record.spec.template.name if record.spec is not None else "",
                "name": record.spec.creates.name if record.spec is not None and record.spec.creates is not None else "",
                "ray_namespace": self.actors.names.namespace_of_actor(actor_id, record.spec),
                "is_detached": record.is_detached,
                "state": _ACTOR_STATES[record.state],
                "num_restarts": record.life,
                "node_id": record.node,
                "worker_id": record.worker,
                "owner": record.spec.owner if record.spec is not None else None,
                "death_cause": record.error.message if record.error is not None else "",
            }
            for actor_id, record in self.actors.records.items()
        ]

    def _node_rows(self) -> list[Row]:
        rows: list[Row] = []
        for node, member in self.membership.members.items():
            view = self.scheduler.views.get(node)
            free = without_bundles(view.reported) if view is not None else {}
            is_draining = member.health is NodeHealth.ALIVE and node in self.membership.leaving
            rows.append(
                {
                    "node_id": node,
                    "state": "DRAINING" if is_draining else str(member.health),
                    "incarnation": member.info.incarnation,
                    "resources_total": member.info.total.as_floats(),
                    "resources_available": {name: max(units, 0) / UNITS for name, units in free.items()},
                    "store_bytes": member.info.store_bytes,
                    "labels": dict(member.info.labels),
                    "started_ago_ns": self._ago_ns(member.started_ns),
                    "ended_ago_ns": self._ago_ns(member.ended_ns),
                }
            )
        return rows


def _job_row(driver: Address, status: str) -> Row:
    return {
        "job_id": f"{job_of_driver(driver):08x}",
        "type": "DRIVER",
        "status": status,
        "driver": driver,
        "node_id": None,
    }
