"""Errors as the core sees them: a kind and a sentence. Exceptions themselves are payloads and never enter the core."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from dualray.shared.model.ids import ActorID


class ErrorKind(StrEnum):
    """What went wrong. APPLICATION means: the user's own exception, pickled, travels as the object's payload."""

    APPLICATION = "APPLICATION"
    WORKER_CRASHED = "WORKER_CRASHED"
    NODE_DIED = "NODE_DIED"
    WORKER_UNREACHABLE = "WORKER_UNREACHABLE"
    TASK_CANCELLED = "TASK_CANCELLED"
    TASK_UNSCHEDULABLE = "TASK_UNSCHEDULABLE"
    ACTOR_UNSCHEDULABLE = "ACTOR_UNSCHEDULABLE"
    TASK_GROUP_REMOVED = "TASK_GROUP_REMOVED"
    ACTOR_GROUP_REMOVED = "ACTOR_GROUP_REMOVED"
    GROUP_UNSCHEDULABLE = "GROUP_UNSCHEDULABLE"
    ACTOR_DIED = "ACTOR_DIED"
    ACTOR_UNAVAILABLE = "ACTOR_UNAVAILABLE"
    ACTOR_EXISTS = "ACTOR_EXISTS"
    ACTOR_NOT_FOUND = "ACTOR_NOT_FOUND"
    OBJECT_LOST = "OBJECT_LOST"
    RECONSTRUCTION_FAILED = "RECONSTRUCTION_FAILED"
    OWNER_DIED = "OWNER_DIED"
    STORE_FULL = "STORE_FULL"
    UNREACHABLE = "UNREACHABLE"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorInfo:
    """A kind, and a message that says what happened, to which id and function, and what to do."""

    kind: ErrorKind
    message: str
    is_final: bool = False
    """Of an APPLICATION error: none of those that the task is to be tried again for. Of STORE_FULL: it was tried often
    enough."""
    actor: ActorID | None = None
    """Of ACTOR_DIED and ACTOR_UNAVAILABLE: which actor."""
    is_interrupt: bool = False
    """Of TASK_CANCELLED: the task was running, and its own exception tells where it was interrupted."""

    @property
    def has_exception(self) -> bool:
        """Whether an exception of user code, pickled, travels as the object's payload."""
        return self.kind is ErrorKind.APPLICATION or self.is_interrupt
