"""People ask what the cluster is doing: rows of tables, the state of nodes, why something waits."""

from __future__ import annotations

from dualray.shared.model.ids import Address, WaitID
from dualray.shared.model.records import dataclass
from dualray.shared.model.specs import NodeState


@dataclass(slots=True, kw_only=True)
class RowsRequested:
    """Send `requester` the rows that you have of a table, under its `wait_id`."""

    wait_id: WaitID
    requester: Address
    table: str


@dataclass(slots=True, kw_only=True)
class WaitExplained:
    """From the head: what this process has asked for waits for what may never come, in words for its user."""

    words: str


@dataclass(slots=True, kw_only=True)
class RowsReported:
    """The answer to `RowsRequested`: each row is a JSON object."""

    wait_id: WaitID
    rows: tuple[str, ...]


@dataclass(slots=True, kw_only=True)
class ClusterStateRequested:
    """To the head: report the nodes' state to `requester`, under its `wait_id`."""

    wait_id: WaitID
    requester: Address


@dataclass(slots=True, kw_only=True)
class ClusterStateReported:
    """The answer to `ClusterStateRequested`."""

    wait_id: WaitID
    nodes: tuple[NodeState, ...]
