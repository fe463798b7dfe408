"""Answers what the process that drives the head machine may ask of it.

Theory of operation. The head drives the machine with events and carries out its commands. What it reads between events
it reads here, and not from the machine's parts: how those keep it is theirs.

Guarantees: a query leads to no command, and changes nothing that decides.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sized

from dualray.shared.machines.base import Composition
from dualray.shared.machines.head.actors import Actors
from dualray.shared.machines.head.directory import Directory
from dualray.shared.machines.head.global_scheduler import GlobalScheduler
from dualray.shared.machines.head.membership import Membership
from dualray.shared.machines.head.rows import HeadRows
from dualray.shared.machines.state_rows import Row
from dualray.shared.model.events import LeaseRequested
from dualray.shared.model.ids import ActorID, PlacementGroupID, TaskID
from dualray.shared.model.states import ActorState, GroupState
from dualray.shared.policies.placement import ClusterView, Placement, PlacementPolicy


class HeadQueries(Composition):
    """See the module; the head makes the parts."""

    membership: Membership
    directory: Directory
    scheduler: GlobalScheduler
    actors: Actors
    state_rows: HeadRows

    def things(self) -> int:
        """About how many things a sweep over the machine looks at."""
        return 10 + 2 * len(self.scheduler.views) + len(self.directory.entries) + len(self.actors.records)

    def counts(self) -> dict[str, int]:
        """How many nodes and actors are in which state, and how much else there is."""
        nodes = Counter(member.health.value for member in self.membership.members.values())
        actors = Counter(record.state.value for record in self.actors.records.values())
        counts = {f"nodes:{health}": count for health, count in sorted(nodes.items())}
        counts |= {f"actors:{state}": count for state, count in sorted(actors.items())}
        return counts | {
            "drivers": len(self.membership.drivers),
            "leases_pending": sum(request.count for request in self.scheduler.pending),
            "objects": len(self.directory.entries),
        }

    def kept(self) -> dict[str, Sized]:
        """What the head keeps that should be empty once nobody needs anything of it, by what it is."""
        kept: dict[str, Sized] = {
            "objects in its directory": self.directory.entries,
            "lease requests": self.scheduler.pending,
        }
        return kept | {f"placements on {node}": view.placed for node, view in self.scheduler.views.items()}

    def rows(self, table: str) -> list[Row]:
        """The rows of a table of the cluster that the head keeps."""
        return self.state_rows.of(table)

    def constructors(self) -> list[TaskID]:
        """The tasks that construct the actors that the head knows."""
        return [record.spec.task_id for record in self.actors.records.values() if record.spec is not None]

    def actors_kept(self) -> list[tuple[ActorID, ActorState]]:
        """The actors that are not dead."""
        records = self.actors.records.items()
        return [
            (actor_id, record.state)
            for actor_id, record in records
            if record.state is not ActorState.DEAD and record.spec is not None
        ]

    def groups_kept(self) -> set[PlacementGroupID]:
        """The placement groups that nobody has removed."""
        records = self.scheduler.groups.records.items()
        return {group for group, record in records if record.state is not GroupState.REMOVED}

    def watch_choices(self, see: Callable[[LeaseRequested, PlacementPolicy, ClusterView, Placement], None]) -> None:
        """From now on call `see` with each choice of a node, and with what it was chosen from: for a replay."""
        self.scheduler.on_choice = see
