"""Processes, node managers and the head tell one another of objects in stores: space, copies, loans, transfers."""

from __future__ import annotations

from typing import TypeAlias

from dualray.shared.model.errors import ErrorInfo
from dualray.shared.model.ids import Address, NodeID, ObjectID, TaskID
from dualray.shared.model.records import dataclass


@dataclass(slots=True, kw_only=True)
class ObjectWanted:
    """A process on this node wants the object here, pinned until `ObjectReleased`."""

    object_id: ObjectID
    owner: Address
    requester: Address


@dataclass(slots=True, kw_only=True)
class ObjectArrived:
    """The object is here, sealed and pinned for whoever wanted it."""

    object_id: ObjectID
    size_bytes: int


@dataclass(slots=True, kw_only=True)
class ObjectUnavailable:
    """The object will not come."""

    object_id: ObjectID
    error: ErrorInfo


@dataclass(slots=True, kw_only=True)
class ObjectReleased:
    """The requester needs the object's bytes no more."""

    object_id: ObjectID
    requester: Address


@dataclass(slots=True, kw_only=True)
class SpaceRequested:
    """A process on this node wants to write an object into the store. `is_room`: it may write others there after it,
    and says so when it seals one (`ObjectPlaced`) or needs the room no more (`SpaceReturned`)."""

    object_id: ObjectID
    size_bytes: int
    owner: Address
    requester: Address
    remakeable: bool
    is_room: bool = False
    remake_ns: int = 0
    """As in SpaceWanted."""


@dataclass(slots=True, kw_only=True)
class SpaceGranted:
    """The space is reserved: write, then seal. `present`: the object is here already, write nothing. `place` is for the
    runner of a process that asked for room."""

    object_id: ObjectID
    present: bool = False
    place: int = 0


@dataclass(slots=True, kw_only=True)
class SpaceDenied:
    """There is no room, now or ever; the message names the largest holders."""

    object_id: ObjectID
    error: ErrorInfo


@dataclass(slots=True, kw_only=True)
class ObjectSealed:
    """The object's bytes are complete and will not change."""

    object_id: ObjectID
    requester: Address


@dataclass(slots=True, kw_only=True)
class ObjectPlaced:
    """As `ObjectSealed`, for an object that was written into room that had been asked for under `room_id`; it takes the
    room over, and leaves what it does not need. One that `is_lent` stays until its owner releases it; `readers` are
    workers that read it beyond that, and hear when it is pinned for them (`LoanPinned`)."""

    object_id: ObjectID
    room_id: ObjectID
    size_bytes: int
    owner: Address
    requester: Address
    is_lent: bool = False
    readers: tuple[Address, ...] = ()


@dataclass(slots=True, kw_only=True)
class SpaceReturned:
    """A process needs room no more that it had asked for."""

    object_id: ObjectID
    requester: Address


@dataclass(slots=True, kw_only=True)
class RoomWanted:
    """A node manager is short of room, to the processes that keep some."""


@dataclass(slots=True, kw_only=True)
class CollectionWanted:
    """A node manager whose store is nearly full, to the owners of what it holds; an owner, to those who borrow that."""


Loan: TypeAlias = tuple[ObjectID, ObjectID, int, int]
"""An object that lies in room of its owner: the object, the room, its place, its size in bytes."""


@dataclass(slots=True, kw_only=True)
class ArgumentsLent:
    """An owner to a worker of its node, ahead of a task: where the arguments lie that only the owner knows of."""

    lender: Address
    loans: tuple[Loan, ...]


@dataclass(slots=True, kw_only=True)
class LoansKept:
    """A worker to a lender, ahead of the report of a task: views of these objects outlive it."""

    worker: Address
    object_ids: tuple[ObjectID, ...]


@dataclass(slots=True, kw_only=True)
class LoanPinned:
    """A node manager to a worker: an object that it goes on reading is pinned for it."""

    object_id: ObjectID


@dataclass(slots=True, kw_only=True)
class LoansAsked:
    """A node manager to its workers: a process has died that kept room; what of it do you read?"""

    lender: Address


@dataclass(slots=True, kw_only=True)
class LoansKnown:
    """The answer to `LoansAsked`."""

    worker: Address
    lender: Address
    loans: tuple[Loan, ...]


@dataclass(slots=True, kw_only=True)
class ObjectAdded:
    """To the head: a node holds a sealed copy."""

    object_id: ObjectID
    size_bytes: int
    owner: Address
    node: NodeID
    incarnation: int
    turn: int = 0
    """Of the head's answer by which the bytes came from elsewhere; 0: they were written there."""


@dataclass(slots=True, kw_only=True)
class ObjectRemoved:
    """To the head: a node holds no copy any more. `is_held_up`: as in LocationsWanted. `is_eviction`: its store needed
    the room."""

    object_id: ObjectID
    node: NodeID
    incarnation: int
    is_held_up: bool = False
    is_eviction: bool = False


@dataclass(slots=True, kw_only=True)
class LocationsWanted:
    """To the head: a node wants to know where the object is, now or as soon as it is anywhere. `by_owner`: the object's
    owner asks in the node's name, to hear whether there is a copy at all. `unreachable`: nodes from which nothing has
    come to this one for long, though it waits for something. `is_held_up`: what it has asked others for, and keeps room
    for, does not come."""

    object_id: ObjectID
    owner: Address
    node: NodeID
    by_owner: bool = False
    unreachable: tuple[NodeID, ...] = ()
    is_held_up: bool = False


@dataclass(slots=True, kw_only=True)
class LocationsKnown:
    """From the head: the nodes to ask for the object, one after the other. The first may be one that is receiving it
    itself, since before this answer: `turn` grows from answer to answer."""

    object_id: ObjectID
    size_bytes: int
    owner: Address
    nodes: tuple[NodeID, ...]
    turn: int = 0


@dataclass(slots=True, kw_only=True)
class ObjectRequested:
    """Node to node: send me the object, from the byte `offset` on. `turn` is that of the head's answer: who does not
    have all of the object itself serves those with a later one than its own. `incarnation` is the asker's."""

    object_id: ObjectID
    to: NodeID
    offset: int = 0
    turn: int = 0
    incarnation: int = 0


@dataclass(slots=True, kw_only=True)
class ObjectNotHere:
    """Node to node: I do not have it, or, with an error, have no room to read it back from disk."""

    object_id: ObjectID
    node: NodeID
    error: ErrorInfo | None = None


@dataclass(slots=True, kw_only=True)
class ObjectsAwaited:
    """Node to node: I asked you for these objects long ago, and wait for them still. What you are not about to send you
    do not have (ObjectNotHere); and say that you are there."""

    object_ids: tuple[ObjectID, ...]
    to: NodeID
    incarnation: int


@dataclass(slots=True, kw_only=True)
class NodeThere:
    """Node to node: the answer to `ObjectsAwaited`."""

    node: NodeID


@dataclass(slots=True, kw_only=True)
class ObjectElsewhere:
    """Node to node: others are before you here, and `holder` has got the object from me just now: ask there."""

    object_id: ObjectID
    node: NodeID
    holder: NodeID


@dataclass(slots=True, kw_only=True)
class ObjectDemanded:
    """Head to owner: a node wants the object and no copy is known. `losses` counts how often the last known copy has
    gone: an owner that has answered to this loss already waits for the copy that is being made. `asked`: the owner
    itself has asked for a copy. `near`: the copies were given up because none could be brought to that node."""

    object_id: ObjectID
    losses: int
    asked: bool = False
    near: NodeID | None = None
    is_held_up: bool = False
    """As in LocationsWanted, of a node that wants it, or of the one that has evicted the last copy."""
    was_evicted: bool = False
    """The last copy left a full store: to make the object again is no retry."""


@dataclass(slots=True, kw_only=True)
class CopiesDoubted:
    """Head to owner: copies are known, and none can be brought to `node`. Can you make the object again?"""

    object_id: ObjectID
    node: NodeID


@dataclass(slots=True, kw_only=True)
class CopiesJudged:
    """Owner to head: the copies may be given up, and then the object demanded; or why it cannot be made again."""

    object_id: ObjectID
    why_kept: str | None = None


@dataclass(slots=True, kw_only=True)
class ItemsDoubted:
    """Owner to head: an attempt of a generator was lost, perhaps with the news of items that it had stored. Ask about
    each item that you know of, or will hear of."""

    task_id: TaskID


@dataclass(slots=True, kw_only=True)
class ObjectsFreed:
    """Owner to head, head to nodes: nobody wants these objects any more."""

    object_ids: tuple[ObjectID, ...]


@dataclass(slots=True, kw_only=True)
class ObjectFailed:
    """Owner to head, head to nodes that wait: the object cannot be made again."""

    object_id: ObjectID
    error: ErrorInfo
