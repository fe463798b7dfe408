"""Processes tell one another of values and of references: who owns an object, who borrows it, who has died."""

from __future__ import annotations

from dualray.shared.model.errors import ErrorInfo
from dualray.shared.model.ids import Address, ObjectID, TaskID
from dualray.shared.model.records import dataclass
from dualray.shared.model.states import ValueState


@dataclass(slots=True, kw_only=True)
class ValueRequested:
    """A borrower wants to know when the object is ready, and has it sent when it is small."""

    object_id: ObjectID
    requester: Address


@dataclass(slots=True, kw_only=True)
class ValueReported:
    """The answer to `ValueRequested`: INLINE (payload), STORED or FAILED. PENDING: it is not there, and another answer
    follows."""

    object_id: ObjectID
    state: ValueState
    size_bytes: int
    error: ErrorInfo | None = None


@dataclass(slots=True, kw_only=True)
class BorrowAdded:
    """A process that does not own the object holds references to it."""

    object_id: ObjectID
    borrower: Address


@dataclass(slots=True, kw_only=True)
class BorrowAcknowledged:
    """The owner has noted the borrower: whoever handed the reference over may let go of it."""

    object_id: ObjectID


@dataclass(slots=True, kw_only=True)
class BorrowRemoved:
    """The borrower has dropped its last reference."""

    object_id: ObjectID
    borrower: Address


@dataclass(slots=True, kw_only=True)
class ResultsTaken:
    """The owner of a task has borrowed what its results refer to, or, with an `index`, that item of a generator: the
    worker may let go of those references."""

    task_id: TaskID
    attempt: int
    index: int = 0


@dataclass(slots=True, kw_only=True)
class OwnerDied:
    """A driver or worker is gone, and with it the objects and leases that it owned."""

    address: Address


@dataclass(slots=True, kw_only=True)
class PeerMet:
    """To a node manager: a process of its node has to do with another one from now on, and must hear of its death; the
    other may have died already."""

    process: Address
    peer: Address
