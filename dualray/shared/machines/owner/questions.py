"""What user code asks of the cluster, and the answers until it takes them: named actors, placement groups,
nodes, rows of tables.

Theory of operation. Each question waits under its `wait_id`; its answer lies here until the runner takes it. Rows may
be late: then the wait ends without them. A process that has died has no rows.

Relies on: the head answers each question; the own node manager reports the death of a process that was met.
Guarantees: each wait is completed once.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping

from dualray.shared.machines.base import Outbox
from dualray.shared.machines.owner.leases import Leases
from dualray.shared.machines.owner.rows import OwnerRows
from dualray.shared.machines.state_rows import TASK_TIMES
from dualray.shared.model.commands import ArmTimer, CancelTimer, CompleteWait, SettleRecords, TellTaskTimes
from dualray.shared.model.events import (
    ActorNameAsked,
    ActorNameReported,
    ActorNameRequested,
    ClusterStateAsked,
    ClusterStateReported,
    ClusterStateRequested,
    PeerMet,
    PlacementGroupAsked,
    PlacementGroupNoted,
    PlacementGroupRemovalAsked,
    PlacementGroupRequested,
    PlacementGroupUnwanted,
    RowsAsked,
    RowsReported,
    RowsRequested,
)
from dualray.shared.model.ids import HEAD, Address, NodeID, WaitID, is_driver, lived_on
from dualray.shared.model.specs import NodeState

ROWS_TIMER = "rows:"


class Questions:
    """See the module."""

    def __init__(self, out: Outbox, address: Address, node: Address, state_rows: OwnerRows, leases: Leases) -> None:
        self.out = out
        self._node = node
        self._leases = leases
        self.address = address
        self.state_rows = state_rows
        self.cluster_state: dict[WaitID, tuple[NodeState, ...]] = {}
        self.rows: dict[WaitID, tuple[str, ...]] = {}
        self.named_actors: dict[WaitID, ActorNameReported] = {}
        """Answers that were not taken yet."""
        self._rows_due: dict[WaitID, Address] = {}
        """The processes whose rows are to come."""

    def on_name_asked(self, event: ActorNameAsked) -> None:
        """User code looks for a named actor, or makes one."""
        self.out.send(
            HEAD,
            ActorNameRequested(
                wait_id=event.wait_id,
                requester=self.address,
                name=event.name,
                namespace=event.namespace,
                job=event.job,
                claim=event.claim,
                get_if_exists=event.get_if_exists,
            ),
        )

    def on_name_reported(self, event: ActorNameReported) -> None:
        """The head knows the actor of a name, or has none."""
        if event.error is None:
            self.named_actors[event.wait_id] = event
        self.out.add(CompleteWait(wait_id=event.wait_id, error=event.error))

    def on_state_asked(self, event: ClusterStateAsked) -> None:
        """User code asks for the cluster's state."""
        self.out.send(HEAD, ClusterStateRequested(wait_id=event.wait_id, requester=self.address))

    def on_state_reported(self, event: ClusterStateReported) -> None:
        """The head tells the cluster's state."""
        self.cluster_state[event.wait_id] = event.nodes
        self.out.add(CompleteWait(wait_id=event.wait_id))

    def on_group_asked(self, event: PlacementGroupAsked) -> None:
        """User code wants a placement group."""
        self.out.send(HEAD, PlacementGroupRequested(wait_id=event.wait_id, spec=event.spec))

    def on_group_removal_asked(self, event: PlacementGroupRemovalAsked) -> None:
        """User code wants a placement group no more."""
        self.out.send(HEAD, PlacementGroupUnwanted(group_id=event.group_id))
        self._leases.leave_group(event.group_id)

    def on_group_noted(self, event: PlacementGroupNoted) -> None:
        """The head will make a placement group, or cannot."""
        self.out.add(CompleteWait(wait_id=event.wait_id, error=event.error))

    def on_rows_asked(self, event: RowsAsked) -> None:
        """The rows of some process are asked for."""
        self._rows_due[event.wait_id] = event.to
        self.out.add(ArmTimer(timer=f"{ROWS_TIMER}{event.wait_id}", delay_ns=event.timeout_ns))
        if "/" in event.to or is_driver(event.to):
            self.out.send(self._node, PeerMet(process=self.address, peer=event.to))
        self.out.send(event.to, RowsRequested(wait_id=event.wait_id, requester=self.address, table=event.table))

    def on_rows_requested(self, event: RowsRequested) -> None:
        """Somebody asks for the rows of this process."""
        if event.table == TASK_TIMES:
            self.out.add(TellTaskTimes(requester=event.requester, wait_id=event.wait_id))
            return
        if event.table == "tasks":  # those that have ended here are in the control plane's table alone
            self.out.add(SettleRecords())
        rows = tuple(json.dumps(row) for row in self.state_rows.of(event.table))
        self.out.send(event.requester, RowsReported(wait_id=event.wait_id, rows=rows))

    def on_rows_reported(self, event: RowsReported) -> None:
        """The rows of some process have come."""
        self._take_rows(event.wait_id, event.rows)

    def on_process_died(self, dead: Collection[Address]) -> None:
        """Processes have died, and with them what they would have answered."""
        for wait_id in [wait_id for wait_id, process in self._rows_due.items() if process in dead]:
            self._take_rows(wait_id, ())

    def on_nodes_died(self, lives: Mapping[NodeID, int]) -> None:
        """The same of node managers and of all processes on their nodes."""
        asked = self._rows_due.values()
        self.on_process_died([each for each in asked if NodeID(each) in lives or lived_on(each, lives)])

    def _take_rows(self, wait_id: WaitID, rows: tuple[str, ...]) -> None:
        if wait_id in self._rows_due:
            self.rows[wait_id] = rows
            self.out.add(CancelTimer(timer=f"{ROWS_TIMER}{wait_id}"))
            self._rows_are_over(wait_id)

    def _rows_are_over(self, wait_id: WaitID) -> None:
        """They have come, or are late."""
        if wait_id in self._rows_due:
            del self._rows_due[wait_id]
            self.out.add(CompleteWait(wait_id=wait_id))

    def on_timer(self, timer: str) -> None:
        """Rows that were asked for are late."""
        self._rows_are_over(WaitID(int(timer.removeprefix(ROWS_TIMER))))
