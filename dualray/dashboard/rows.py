"""The rows of a page's tables that are put together from a trace: tasks, nodes, workers, objects and actors."""

from __future__ import annotations

from typing import Any, Final

from dualray.shared.machines.state_rows import CALL_FETCHES, CALL_WAITS
from dualray.shared.model.ids import Address, node_of
from dualray.shared.model.resources import CPU, UNITS

__all__ = [
    "BLOCKED",
    "FAILED",
    "FINISHED",
    "FOR_ACTOR",
    "IN_LINE",
    "LOST",
    "PUSHED",
    "QUEUED",
    "RUNNING",
    "ActorRow",
    "NodeRow",
    "ObjectRow",
    "TaskRow",
    "WorkerRow",
    "words_of_turn",
]

BLOCKED, QUEUED, PUSHED = "PENDING_ARGS_AVAIL", "PENDING_NODE_ASSIGNMENT", "SUBMITTED_TO_WORKER"
RUNNING, FINISHED, FAILED = "RUNNING", "FINISHED", "FAILED"
LOST: Final = "lost"

IN_LINE: Final = (QUEUED, PUSHED, CALL_FETCHES, CALL_WAITS)
"""The states of a task that waits for its worker, or for its actor."""
FOR_ACTOR: Final = "waits for its actor"

LOST_SHOWN: Final = 20
"""Objects that a dead node's row names."""


class TaskRow:
    """A task."""

    __slots__ = (
        *("actor", "attempt", "deps", "ended_s", "error", "is_lost", "kind", "missing", "name", "owner"),
        *("since_s", "spans", "started_s", "state", "submitted_s", "task", "waits", "worker"),
    )

    def __init__(self, task: str, name: str, owner: str, submitted_s: float, deps: tuple[str, ...]) -> None:
        self.task, self.name, self.owner, self.submitted_s, self.deps = task, name, owner, submitted_s, deps
        self.kind = "ACTOR_TASK" if "." in name else "NORMAL_TASK"
        self.state, self.attempt, self.worker, self.error = "", 0, "", ""
        self.started_s: float | None = None
        self.ended_s: float | None = None
        self.actor: ActorRow | None = None
        """Whose method it is, or which it constructs."""
        self.is_lost = False
        """Whether its last attempt ended with its worker, and there was no other yet."""
        self.missing: set[str] = set()
        self.waits = ""
        """For what, in words."""
        self.since_s = submitted_s
        """When it began to wait for that, or came into its state."""
        self.spans: dict[int, list[Any]] = {}

    @property
    def counted(self) -> str:
        """What the table `waits` counts it under."""
        return f"{self.name} {self.waits}" if self.waits else ""

    def row(self) -> list[Any]:
        """Of the table `tasks`."""
        node = node_of(Address(self.worker)) if self.worker else ""
        return [
            *(self.task, self.name, self.kind, self.state, self.attempt, self.owner, self.worker, node),
            *(self.submitted_s, self.started_s, self.ended_s, self.error, sorted(self.missing)),
            *(self.waits, self.since_s, self.actor.task.task if self.actor is not None else ""),
        ]


class NodeRow:
    """A node: its present life, or its last one."""

    __slots__ = (
        *("capacity", "ended_s", "held", "lives", "lost", "node", "noticed_s", "running", "started_s", "state"),
        *("stored", "why", "workers"),
    )

    def __init__(self, node: str) -> None:
        self.node, self.state, self.lives, self.why = node, "ALIVE", 0, ""
        self.started_s: float = 0.0
        self.ended_s: float | None = None
        self.noticed_s: float | None = None
        """When the head found out that it is dead."""
        self.capacity: dict[str, int] = {}
        self.running = self.stored = 0
        self.held: dict[str, int] = {}
        """The objects in its store, with their sizes."""
        self.lost: list[str] = []
        """The objects whose only copy was there when it died."""
        self.workers: set[str] = set()

    def begin(self, time_s: float) -> None:
        """Another life begins, or the first one."""
        self.state, self.started_s, self.ended_s, self.noticed_s, self.why = "ALIVE", time_s, None, None, ""
        self.lost = []

    def row(self) -> list[Any]:
        """Of the table `nodes`."""
        cpus = self.capacity.get(CPU)
        return [
            *(self.node, self.state, None if cpus is None else cpus / UNITS, self.running, None, None),
            *(self.capacity.get("object_store"), self.stored, self.started_s, self.ended_s, self.lives, None),
            *(self.noticed_s, self.why, [len(self.lost), *self.lost[:LOST_SHOWN]]),
        ]


class WorkerRow:
    """A worker or a driver."""

    __slots__ = ("ended_s", "kind", "node", "runs", "started_s", "state", "why", "worker")

    def __init__(self, worker: str, kind: str, node: str, started_s: float) -> None:
        self.worker, self.kind, self.node, self.started_s = worker, kind, node, started_s
        self.state, self.why = "ALIVE", ""
        self.ended_s: float | None = None
        self.runs: dict[tuple[str, int], TaskRow] = {}

    def row(self) -> list[Any]:
        """Of the table `workers`."""
        names = ", ".join(dict.fromkeys(task.name for task in self.runs.values()))
        first = next(iter(self.runs), ("", 0))[0]
        return [*(self.worker, self.node, self.kind, self.state, names, first, self.started_s, self.ended_s, self.why)]


class ObjectRow:
    """An object that was in a store."""

    __slots__ = ("nodes", "object_id", "of", "owner", "size", "state", "used_by")

    def __init__(self, object_id: str, owner: str, of: str) -> None:
        self.object_id, self.owner, self.of = object_id, owner, of
        self.size, self.state = 0, "STORED"
        self.nodes: dict[str, None] = {}
        self.used_by = 0

    def row(self) -> list[Any]:
        """Of the table `objects`."""
        return [self.object_id, self.size, self.state, self.owner, list(self.nodes), self.used_by, self.of]


class ActorRow:
    """An actor; its id is that of the task that constructs it."""

    __slots__ = ("calls", "name", "restarts", "state", "task", "why", "worker")

    def __init__(self, task: TaskRow) -> None:
        self.task, self.state, self.worker, self.restarts, self.why = task, "PENDING_CREATION", "", 0, ""
        self.name = ""
        self.calls: dict[str, TaskRow] = {}
        """Its methods that wait for it, or for their turn."""

    @property
    def called(self) -> str:
        """What a person calls it."""
        return called(self.task.name or f"actor {self.task.task[:8]}", self.name)

    def words_of_turn(self) -> str:
        """For what a method waits whose arguments are there."""
        return words_of_turn(self.state, self.task.name or f"actor {self.task.task[:8]}", self.name)

    def row(self) -> list[Any]:
        """Of the table `actors`."""
        node = node_of(Address(self.worker)) if self.worker else ""
        return [
            *(self.task.task, self.task.name, self.name, self.state, node, self.worker, self.restarts),
            *(self.task.owner, self.why),
        ]


def called(class_name: str, name: str) -> str:
    """What a person calls an actor."""
    return f'{class_name} "{name}"' if name else class_name


def words_of_turn(state: str, class_name: str, name: str) -> str:
    """For what a method waits whose arguments are there, by the state of its actor."""
    actor = called(class_name, name)
    match state:
        case "PENDING_CREATION":
            return f"{FOR_ACTOR} {actor}, which is being created"
        case "RESTARTING":
            return f"{FOR_ACTOR} {actor}, which restarts"
        case "DEAD":
            return f"{FOR_ACTOR} {actor}, which died with its worker"
    return f"waits for its turn at its actor {actor}"
