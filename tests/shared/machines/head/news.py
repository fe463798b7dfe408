"""Short forms of what the head is told, and of what it answers."""

from __future__ import annotations

from dualray.shared.model.commands import Send
from dualray.shared.model.events import ActorRegistered, LeaseGranted, LeaseRequested, PeerLost, TaskFinished
from dualray.shared.model.ids import Address, LeaseID, NodeID, RequestID
from tests.shared.builders import HeadStepper, aid, constructor, of, oid, sends, tid

N0, N1 = NodeID("node-0"), NodeID("node-1")

X = oid(9)


def lost(address: str = N0) -> PeerLost:
    return PeerLost(address=Address(address))


def told(commands, kind) -> list[str]:
    """Who was sent messages of a type."""
    return [to for to, name in sends(commands) if name == kind.__name__]


def placed(commands) -> list[tuple[str, str]]:
    """Which requests were placed on which nodes, lease by lease."""
    forwarded = [each for each in of(commands, Send) if isinstance(each.message, LeaseRequested)]
    assert all(each.message.placed for each in forwarded)
    return [(each.message.request_id, each.to) for each in forwarded for _ in range(each.message.count)]


def register(head: HeadStepper, number: int = 1, *, inline=(), **options):
    return head(ActorRegistered(spec=constructor(number, **options), inline_deps=inline))


def grant(head: HeadStepper, number: int = 1, *, life: int = 0, node: str = "node-0", lease: str = "L"):
    return head(
        LeaseGranted(
            request_id=RequestID(f"actor:{aid(number).hex()}:{life}"),
            lease_id=LeaseID(f"{lease}{number}.{life}"),
            worker=Address(f"{node}/w5"),
            node=NodeID(node),
            incarnation=0,
        )
    )


def constructed(head: HeadStepper, number: int = 1, *, life: int = 0, node: str = "node-0", failed=None):
    worker = Address(f"{node}/w5")
    return head(
        TaskFinished(
            task_id=tid(number),
            attempt=life,
            worker=worker,
            node=NodeID(node),
            results=(),
            duration_ns=1,
            error=failed,
        )
    )
