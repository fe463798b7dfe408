"""What a node keeps of each object that it brings: who waits for it, and where it is to come from.

The parts of the transfer share these records, and the names under which transfers use the store.
"""

from __future__ import annotations

from collections import deque

from dualray.shared.model.errors import ErrorInfo
from dualray.shared.model.events import ObjectRequested
from dualray.shared.model.ids import Address, NodeID, ObjectID

INCOMING = "incoming"
"""The user on whose behalf an object is written that comes from elsewhere."""
_SENDING_TO = "sending to "


class Want:
    """An object that users of this node wait for."""

    __slots__ = (
        "asked",
        "asked_ns",
        "askers",
        "awaits_space",
        "is_early",
        "is_located",
        "object_id",
        "offset",
        "owner",
        "refusal",
        "refusals",
        "size_bytes",
        "source",
        "sources",
        "turn",
        "users",
        "vain",
        "watchers",
    )

    def __init__(self, object_id: ObjectID, owner: Address) -> None:
        self.object_id = object_id
        self.owner = owner
        self.size_bytes = 0
        self.offset = 0
        """So many of its bytes are here, and the sources that we know can go on from there."""
        self.asked = False
        """Whether the head is about to name sources."""
        self.turn = 0
        """Of the head's last answer."""
        self.askers: deque[ObjectRequested] = deque()
        """Nodes that were sent here for what we are about to receive."""
        self.awaits_space = False
        self.is_early = True
        """Only tasks that have not begun wait for it."""
        self.users: dict[str, None] = {}
        self.watchers: dict[str, None] = {}
        """Who wants to know that a copy exists, and does not want it here yet."""
        self.is_located = False
        """The head has named copies, and they have not failed us."""
        self.sources: deque[NodeID] = deque()
        """Where copies are said to be, and we have not tried yet."""
        self.source: NodeID | None = None
        """The node that was asked to send."""
        self.asked_ns = 0
        """When it was."""
        self.refusal: ErrorInfo | None = None
        """Why a node that has it on disk could not send it."""
        self.refusals = 0
        self.vain = 0
        """How often in a row none of the nodes that the head named had sent anything."""


def sending_to(node: NodeID) -> str:
    return _SENDING_TO + node


def receiver(user: str) -> NodeID:
    return NodeID(user.removeprefix(_SENDING_TO))


def is_sending(user: str) -> bool:
    """Whether a user stands for a node to which the object is sent."""
    return user.startswith(_SENDING_TO)


def is_incoming(user: str) -> bool:
    """Whether a space request came from a transfer, as opposed to a process of this node."""
    return user == INCOMING
