"""What the head tells its autoscaler: nodes and what is free there, who uses them, and what waits."""

from __future__ import annotations

from collections.abc import Collection

from dualray.shared.machines.head.actors import Actors
from dualray.shared.machines.head.directory import Directory
from dualray.shared.machines.head.global_scheduler import GlobalScheduler
from dualray.shared.machines.head.membership import Membership
from dualray.shared.model.ids import HEAD, Address, NodeID, is_driver, node_of
from dualray.shared.model.specs import LeaseShape, NodeInfo
from dualray.shared.model.states import ActorState
from dualray.shared.policies.scaling import Gang


class HeadSupply:
    """See the module."""

    def __init__(
        self, *, membership: Membership, scheduler: GlobalScheduler, actors: Actors, directory: Directory
    ) -> None:
        self._membership = membership
        self._directory = directory
        self._scheduler = scheduler
        self._actors = actors

    def rooms(self) -> list[tuple[NodeInfo, dict[str, int]]]:
        """The nodes that are alive and stay, with what is free there, never below nothing."""
        leaving = self._membership.leaving
        return [
            (view.info, view.room if view.room is not None else view.offered())
            for node, view in self._scheduler.views.items()
            if node not in leaving
        ]

    def in_use(self) -> dict[NodeID, None]:
        """Nodes that hold a lease, a bundle, an actor or a driver, or are about to."""
        used = dict.fromkeys(self._membership.drivers.values())
        for node, view in self._scheduler.views.items():
            if view.is_in_use:
                used[node] = None
        for record in self._actors.records.values():
            if record.node is not None and record.state is not ActorState.DEAD:
                used[record.node] = None
        return used

    def owned_on(self, nodes: Collection[NodeID]) -> dict[NodeID, int]:
        """How many stored objects processes of these nodes own, which would be lost with them."""
        owned: dict[NodeID, int] = {}
        for entry in self._directory.entries.values():
            if is_driver(entry.owner) or entry.owner == HEAD:
                continue
            node = node_of(entry.owner)
            if node in nodes and entry.nodes:
                owned[node] = owned.get(node, 0) + 1
        return owned

    def waiting(self) -> list[tuple[Address, LeaseShape, int]]:
        """Leases that wait for a node: for whom, and how many."""
        return [(request.owner, request.shape, request.count) for request in self._scheduler.pending]

    def gangs(self) -> list[Gang]:
        """Placement groups that wait for nodes: the bundles that have no place."""
        gangs = []
        for group_id in self._scheduler.groups.waiting:
            record = self._scheduler.groups.records[group_id]
            spec = record.spec
            missing = [index for index in range(len(spec.bundles)) if index not in record.placed]
            if missing and not record.asked:
                gangs.append(
                    Gang(
                        name=record.words,
                        bundles=tuple([spec.bundles[index] for index in missing]),
                        strategy=spec.strategy,
                        selectors=tuple([spec.selector(index) for index in missing]),
                        nodes=tuple(record.placed.values()),
                    )
                )
        return gangs
