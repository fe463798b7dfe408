"""Short forms of what a node is told of transfers, and of what it answers."""

from __future__ import annotations

from dualray.shared.model.commands import ReceiveObject, SendObject
from dualray.shared.model.events import ObjectRequested
from dualray.shared.model.ids import NodeID
from tests.shared.builders import of, oid, sends

X, Y, Z = oid(9), oid(10), oid(11)

A, B = "driver-1", "driver-2"

N0, N1, N2, N3, N4, N5 = (NodeID(f"node-{index}") for index in range(6))


def asked(commands) -> list[str]:
    """Which nodes were asked to send X."""
    return [to for to, name in sends(commands) if name == "ObjectRequested"]


def arrived(commands) -> list[str]:
    return [to for to, name in sends(commands) if name == "ObjectArrived"]


def offsets(commands) -> list[tuple[str, int]]:
    """Whom the runner is to take in X from, and where it goes on."""
    return [(receive.source, receive.offset) for receive in of(commands, ReceiveObject) if receive.object_id == X]


def pull(node, *object_ids, size_bytes=100):
    commands = []
    for object_id in object_ids:
        node.want(object_id)
        commands += node.locations(object_id, "node-1", "node-2", size_bytes=size_bytes)
    return commands


def requested(to: NodeID = N1) -> ObjectRequested:
    return ObjectRequested(object_id=X, to=to)


def sends_to(commands) -> list[str]:
    return [send.to for send in of(commands, SendObject)]
