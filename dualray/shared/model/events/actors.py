"""Processes, the head and node managers tell one another of actors: their lives, names, ends, and workers' ends."""

from __future__ import annotations

from dualray.shared.model.errors import ErrorInfo
from dualray.shared.model.ids import ActorID, Address, ObjectID, WaitID
from dualray.shared.model.records import dataclass
from dualray.shared.model.specs import NamedActor, TaskSpec
from dualray.shared.model.states import ActorState


@dataclass(slots=True, kw_only=True)
class ActorRegistered:
    """To the head: make this actor. The constructor's arguments are the payload `spec.task_id`."""

    spec: TaskSpec
    inline_deps: tuple[ObjectID, ...] = ()


@dataclass(slots=True, kw_only=True)
class ActorFailed:
    """To the head: the actor was never made, because an argument of its constructor failed."""

    actor_id: ActorID
    owner: Address
    error: ErrorInfo


@dataclass(slots=True, kw_only=True)
class ActorSubscribed:
    """To the head: tell `subscriber` of the actor's state, now and whenever it changes. `owner` made the actor, as the
    handle says: it may have died before it could register the actor."""

    actor_id: ActorID
    subscriber: Address
    owner: Address | None = None


@dataclass(slots=True, kw_only=True)
class ActorChanged:
    """From the head: the actor's state. `life` counts its restarts."""

    actor_id: ActorID
    state: ActorState
    life: int
    worker: Address | None
    error: ErrorInfo | None = None


@dataclass(slots=True, kw_only=True)
class ActorOutOfScope:
    """To the head: the last handle is gone; end the actor after the calls it has."""

    actor_id: ActorID


@dataclass(slots=True, kw_only=True)
class ActorKillRequested:
    """To the head: end the actor now."""

    actor_id: ActorID
    no_restart: bool


@dataclass(slots=True, kw_only=True)
class ActorExited:
    """To the head: the actor wants to end; `method` has called `exit_actor()`."""

    actor_id: ActorID
    worker: Address
    method: str


@dataclass(slots=True, kw_only=True)
class ActorLeaving:
    """From an actor's worker: it is about to end; you have all that it has sent to you. Say so (ActorLeavingHeard)."""

    worker: Address


@dataclass(slots=True, kw_only=True)
class ActorLeavingHeard:
    """The answer to `ActorLeaving`."""

    process: Address


@dataclass(slots=True, kw_only=True)
class ActorNameRequested:
    """To the head: `ActorNameAsked` of the requester."""

    wait_id: WaitID
    requester: Address
    name: str
    namespace: str
    job: int
    claim: NamedActor | None = None
    get_if_exists: bool = False


@dataclass(slots=True, kw_only=True)
class ActorNameReported:
    """From the head: the actor of that name, with its namespace. `is_new`: it is the requester's, who is to register
    it."""

    wait_id: WaitID
    actor: NamedActor | None = None
    is_new: bool = False
    error: ErrorInfo | None = None


@dataclass(slots=True, kw_only=True)
class WorkerUnwanted:
    """To node: end this worker. From the head: its actor is not wanted any more; from the worker: it has retired and
    owns nothing."""

    worker: Address
    reason: str
    is_graceful: bool = False
    """Its actor's `__ray_shutdown__` is to run first."""


@dataclass(slots=True, kw_only=True)
class WorkerSpent:
    """Worker to node: this worker has run as many calls of a function as it may (`max_calls`), and takes no more."""

    worker: Address


@dataclass(slots=True, kw_only=True)
class WorkerRetired:
    """Node to worker: you get no more tasks. Say so (WorkerUnwanted) when nobody needs anything of yours."""

    worker: Address
