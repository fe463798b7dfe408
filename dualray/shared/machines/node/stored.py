"""What a node keeps of each object in its store, and of each request for room.

The parts of the object store share these records.
"""

from __future__ import annotations

from dataclasses import dataclass

from dualray.shared.model.ids import Address, ObjectID
from dualray.shared.model.states import StoredState

RESTORING = "restoring"
"""The user on whose behalf a spilled object is read back."""


class StoredObject:
    """One object in this store."""

    __slots__ = (
        "copies_gone",
        "freed",
        "has_copy",
        "is_copy",
        "is_room",
        "object_id",
        "owner",
        "pins",
        "place",
        "remake_ns",
        "remakeable",
        "request",
        "size_bytes",
        "state",
    )

    def __init__(self, request: SpaceRequest) -> None:
        self.object_id = request.object_id
        self.size_bytes = request.size_bytes
        self.owner = request.owner
        self.remakeable = request.remakeable
        self.remake_ns = request.remake_ns
        """As in SpaceWanted."""
        self.is_copy = request.is_copy
        """It came from another node, and others may have it from there."""
        self.state = StoredState.CREATED
        self.pins: dict[str, None] = {}
        self.freed = False
        self.has_copy = False
        """It is in memory, and on disk as well."""
        self.copies_gone = 0
        """How many had gone from the disk when this one was last written there."""
        self.request: SpaceRequest | None = request
        """Who is to write it, while memory is being found."""
        self.is_room = False
        """Its writer may keep it and write others there."""
        self.place = 0
        """Where it lies, as the runner counts."""


@dataclass(slots=True, kw_only=True)
class SpaceRequest:
    """Someone who needs room: a process of this node that writes, or a transfer that arrives (`user`)."""

    object_id: ObjectID
    size_bytes: int
    owner: Address
    remakeable: bool
    user: str
    is_early: bool = False
    """For a task that has not begun: nothing that runs waits for it."""
    is_room: bool = False
    """Its user may keep it and write others there."""
    remake_ns: int = 0
    """As in SpaceWanted."""
    is_copy: bool = False
    """It comes from another node."""
    tries: int = 0
    """How often there was room for it and no memory."""


def timer_of(request: SpaceRequest) -> str:
    """The timer of a request that waits in line."""
    return f"space:{request.object_id.hex()}:{request.user}"
