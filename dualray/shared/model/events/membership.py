"""Nodes, drivers and workers join and leave: the head decides who belongs to the cluster, and tells the others."""

from __future__ import annotations

from dualray.shared.model.ids import Address, NodeID, ObjectID
from dualray.shared.model.records import dataclass
from dualray.shared.model.specs import NodeInfo


@dataclass(slots=True, kw_only=True)
class NodeJoined:
    """A node manager reports for duty."""

    info: NodeInfo


@dataclass(slots=True, kw_only=True)
class NodeWelcomed:
    """The head has noted the node; its resources count from now on."""

    node: NodeID


@dataclass(slots=True, kw_only=True)
class NodeRefused:
    """The head has declared this life of the node dead: it must end itself, or come back as a new incarnation."""

    node: NodeID
    incarnation: int


@dataclass(slots=True, kw_only=True)
class NodeDied:
    """The head has declared this life of the node dead. `cluster` is what is left, unless that is announced later."""

    node: NodeID
    incarnation: int
    cluster: ClusterChanged | None = None


@dataclass(slots=True, kw_only=True)
class NodesDied:
    """`NodeDied` of several nodes: one message, however many leave a cluster that shrinks."""

    nodes: tuple[NodeID, ...]
    incarnations: tuple[int, ...]
    cluster: ClusterChanged | None = None


def lives_over(event: NodeDied | NodesDied) -> dict[NodeID, int]:
    """By node, the life of it that was declared dead."""
    if isinstance(event, NodeDied):
        return {event.node: event.incarnation}
    return dict(zip(event.nodes, event.incarnations, strict=True))


@dataclass(slots=True, kw_only=True)
class NodeDraining:
    """To the head: place nothing here any more; this node is about to leave. With `given_up`, the reason in words, it
    stays after all."""

    node: NodeID
    incarnation: int
    given_up: str = ""


@dataclass(slots=True, kw_only=True)
class NodeEmptied:
    """To the head: no task runs here any more. `needed` are the objects here that nothing can make again. `repeats` is
    how often the node has said so before: it says so again when an object was stored since."""

    node: NodeID
    incarnation: int
    needed: tuple[ObjectID, ...]
    repeats: int = 0


@dataclass(slots=True, kw_only=True)
class CopyWanted:
    """Head to node: have a copy of this object, because the only one is about to leave. `remakeable` as in
    `SpaceRequested`."""

    object_id: ObjectID
    owner: Address
    remakeable: bool


@dataclass(slots=True, kw_only=True)
class CopyKept:
    """To the head: the copy that it wanted is here, or cannot be had."""

    object_id: ObjectID
    node: NodeID


@dataclass(slots=True, kw_only=True)
class NodeReleased:
    """From the head: nothing depends on this node any more; it may end. `repeats` is that of the last `NodeEmptied`."""

    node: NodeID
    incarnation: int
    repeats: int = 0


@dataclass(slots=True, kw_only=True)
class WorkerDied:
    """To the head: a node's worker is gone, and with it what it owned."""

    worker: Address
    node: NodeID
    reason: str


@dataclass(slots=True, kw_only=True)
class LinkLost:
    """A process that uses workers of a node and that node do not reach one another, though the head hears both: what it
    has leased there is given up. Whoever notices tells the head, which tells the other."""

    process: Address
    node: NodeID
    incarnation: int
    by_node: bool
    """Whether the node has noticed, not the process."""


@dataclass(slots=True, kw_only=True)
class DriverJoined:
    """A driver takes part; `node` is the one it runs on, `namespace` where the names of its actors stand."""

    address: Address
    node: NodeID
    namespace: str = ""


@dataclass(slots=True, kw_only=True)
class DriverLeft:
    """A driver ends cleanly."""

    address: Address


@dataclass(slots=True, kw_only=True)
class ClusterChanged:
    """The nodes that are alive: what submission checks demands against."""

    nodes: tuple[NodeInfo, ...]
