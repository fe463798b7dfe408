"""States and their legal transitions, as data.

Every state change of a task, an actor, a node, a worker or a stored object goes through `Transitions.check`, which
raises `InvalidTransition` with the story of the id when the table does not have it.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Generic, TypeVar

from dualray.exceptions import InvalidTransition
from dualray.shared.model.ids import short


class TaskState(StrEnum):
    """A task, as its owner sees it."""

    WAITING_ARGS = "WAITING_ARGS"
    QUEUED = "QUEUED"
    PUSHED = "PUSHED"
    FINISHED = "FINISHED"
    FAILED = "FAILED"


class ValueState(StrEnum):
    """An object, as a process that holds a reference to it sees it."""

    UNKNOWN = "UNKNOWN"
    """Borrowed, and its owner has not been asked yet."""
    PENDING = "PENDING"
    """The task that makes it has not finished; or its owner has been asked."""
    INLINE = "INLINE"
    """Small: its bytes are with its owner, and with each borrower that asked."""
    STORED = "STORED"
    """Large: in the store of at least one node, as far as is known."""
    FAILED = "FAILED"
    FREED = "FREED"
    """Nobody wants the value; kept only for the lineage of what was made from it."""


class WorkerState(StrEnum):
    """A worker process, as its node manager sees it."""

    STARTING = "STARTING"
    IDLE = "IDLE"
    LEASED = "LEASED"
    DEAD = "DEAD"


class ActorState(StrEnum):
    """An actor, as the head sees it."""

    PENDING = "PENDING"
    ALIVE = "ALIVE"
    RESTARTING = "RESTARTING"
    DEAD = "DEAD"


class GroupState(StrEnum):
    """A placement group, as the head sees it. Ray's names."""

    PENDING = "PENDING"
    CREATED = "CREATED"
    RESCHEDULING = "RESCHEDULING"
    """Some of its bundles were lost with their node, and have no new place yet."""
    INFEASIBLE = "INFEASIBLE"
    """The nodes that are left can never take all of its bundles, and no others will come."""
    REMOVED = "REMOVED"


class NodeHealth(StrEnum):
    """A node, as the head sees it."""

    ALIVE = "ALIVE"
    SUSPECT = "SUSPECT"
    DEAD = "DEAD"


class LaunchState(StrEnum):
    """A node that the autoscaler has asked for."""

    REQUESTED = "REQUESTED"
    JOINED = "JOINED"
    FAILED = "FAILED"
    """Refused, or given up: it has not joined in time."""
    ENDED = "ENDED"


class StoredState(StrEnum):
    """An object in one node's store."""

    CREATED = "CREATED"
    SEALED = "SEALED"
    SPILLING = "SPILLING"  # being copied to disk; it can still be read
    SPILLED = "SPILLED"  # on disk alone
    RESTORING = "RESTORING"  # being read back


S = TypeVar("S", bound=StrEnum)


class Transitions(Generic[S]):
    """A table of legal transitions."""

    def __init__(self, subject: str, table: Mapping[S, frozenset[S]]) -> None:
        self.subject = subject
        self.table = table

    def check(self, old: S, new: S, any_id: bytes | str, story: str = "") -> S:
        """Return `new`; raise `InvalidTransition` when `old -> new` is not in the table."""
        if new not in self.table[old]:
            legal = ", ".join(sorted(self.table[old])) or "none"
            raise InvalidTransition(
                f"{self.subject} {short(any_id)}: the state {old} cannot change to {new}; "
                f"legal next states: {legal}. {story}"
            )
        return new


_T = TaskState
TASK = Transitions(
    "task",
    {
        _T.WAITING_ARGS: frozenset({_T.QUEUED, _T.FAILED}),
        _T.QUEUED: frozenset({_T.PUSHED, _T.FAILED, _T.WAITING_ARGS}),
        _T.PUSHED: frozenset({_T.FINISHED, _T.FAILED, _T.QUEUED, _T.WAITING_ARGS}),
        _T.FINISHED: frozenset({_T.WAITING_ARGS}),  # reconstruction: the task runs again
        _T.FAILED: frozenset(),
    },
)

_V = ValueState
VALUE = Transitions(
    "object",
    {
        _V.UNKNOWN: frozenset({_V.PENDING}),
        _V.PENDING: frozenset({_V.INLINE, _V.STORED, _V.FAILED, _V.FREED}),
        _V.INLINE: frozenset({_V.FREED, _V.PENDING, _V.INLINE}),
        _V.STORED: frozenset({_V.FREED, _V.PENDING, _V.FAILED, _V.STORED}),
        _V.FAILED: frozenset({_V.FREED}),
        _V.FREED: frozenset({_V.PENDING, _V.INLINE, _V.STORED, _V.FAILED}),
    },
)

_W = WorkerState
WORKER = Transitions(
    "worker",
    {
        _W.STARTING: frozenset({_W.IDLE, _W.DEAD}),
        _W.IDLE: frozenset({_W.LEASED, _W.DEAD}),
        _W.LEASED: frozenset({_W.IDLE, _W.DEAD}),
        _W.DEAD: frozenset(),
    },
)

_A = ActorState
ACTOR = Transitions(
    "actor",
    {
        _A.PENDING: frozenset({_A.ALIVE, _A.RESTARTING, _A.DEAD}),
        _A.ALIVE: frozenset({_A.RESTARTING, _A.DEAD}),
        _A.RESTARTING: frozenset({_A.ALIVE, _A.RESTARTING, _A.DEAD}),
        _A.DEAD: frozenset(),
    },
)

_G = GroupState
GROUP = Transitions(
    "placement group",
    {
        _G.PENDING: frozenset({_G.CREATED, _G.INFEASIBLE, _G.REMOVED}),
        _G.CREATED: frozenset({_G.RESCHEDULING, _G.REMOVED}),
        _G.RESCHEDULING: frozenset({_G.CREATED, _G.INFEASIBLE, _G.REMOVED}),
        _G.INFEASIBLE: frozenset({_G.RESCHEDULING, _G.REMOVED}),
        _G.REMOVED: frozenset(),
    },
)

_N = NodeHealth
NODE = Transitions(
    "node",
    {
        _N.ALIVE: frozenset({_N.SUSPECT, _N.DEAD}),
        _N.SUSPECT: frozenset({_N.ALIVE, _N.DEAD}),
        _N.DEAD: frozenset(),
    },
)

_L = LaunchState
LAUNCH = Transitions(
    "launch",
    {
        _L.REQUESTED: frozenset({_L.JOINED, _L.FAILED}),
        _L.JOINED: frozenset({_L.ENDED}),
        _L.FAILED: frozenset(),
        _L.ENDED: frozenset(),
    },
)

_O = StoredState
STORED = Transitions(
    "stored object",
    {
        _O.CREATED: frozenset({_O.SEALED}),
        _O.SEALED: frozenset({_O.SPILLING, _O.SPILLED}),
        _O.SPILLING: frozenset({_O.SEALED, _O.SPILLED}),
        _O.SPILLED: frozenset({_O.RESTORING}),
        _O.RESTORING: frozenset({_O.SEALED, _O.SPILLED}),
    },
)
