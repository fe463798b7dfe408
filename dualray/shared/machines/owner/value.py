"""One object as this process sees it, and the failure that it may carry.

Theory of operation. A value is *held* while anything in this process needs it: local references (Python objects), tasks
that take it as an argument, containers (another held value whose bytes refer to it), results in transit, and, of owned
values, borrowers elsewhere. Each holder is a count, or a dict that keeps their order.

Guarantees: a value knows its holders and who waits for it, and decides nothing.
"""

from __future__ import annotations

from typing import Any, Final, Literal

from dualray.exceptions import InvariantViolation
from dualray.shared.model.commands import TellFailure
from dualray.shared.model.errors import ErrorInfo, ErrorKind
from dualray.shared.model.ids import ActorID, Address, NodeID, ObjectID, TaskID, WaitID, is_put, short
from dualray.shared.model.specs import Ref
from dualray.shared.model.states import VALUE, ValueState

READY = frozenset({ValueState.INLINE, ValueState.STORED, ValueState.FAILED})


PassedBy = tuple[str, Any]
"""The name of a task that failed because of an argument, and the PassedBy of the task before it, or None. Any: mypyc
cannot compile a type that names itself."""


class Failure:
    """What ended a task of this process: one for all values that carry it."""

    __slots__ = ("carriers", "error", "is_read", "name", "task_id")

    def __init__(self, task_id: TaskID, name: str, error: ErrorInfo) -> None:
        self.task_id = task_id
        self.name = name
        self.error = error
        self.carriers = 0
        self.is_read = False

    def told(self) -> TellFailure:
        """The command that tells it."""
        return TellFailure(task_id=self.task_id, name=self.name, error=self.error)


class _Nobody(dict[Any, None]):
    """Nobody waits, nobody borrows: one for all values, until somebody does (`Value.note`)."""

    def __setitem__(self, key: Any, value: None) -> None:
        raise InvariantViolation("all values share this empty dict: add an entry with Value.note")


class OneWait(dict[Any, None]):
    """One wait for many values: they share this dict, and a value that has others gets one of its own."""


NOBODY: Final = _Nobody()


class Value:
    """One object as this process sees it.

    Most values of most programs are made, read and dropped: what only others need has its first value on the class, so
    that making one costs six assignments.
    """

    size_bytes = 0
    error: ErrorInfo | None = None
    failed_with: Failure | None = None
    """Of a result of a task of this process that has failed."""
    failed_through: PassedBy | None = None
    """Of a result of a task that failed because another one had: the tasks between them, the last first."""
    is_asked_for = False
    """A `get` has named it, and ended with the error of another value: nobody is told that it failed, too."""
    sealed_by: Address | None = None
    sealer_died = False
    """The process that sealed the first copy has died, perhaps with the news of it."""
    nested: tuple[Ref, ...] = ()
    actor: ActorID | None = None
    """Set when the object stands for an actor's handle."""
    stream: TaskID | None = None
    """Set when the object stands for the consumer of that task's items (streams.py)."""
    is_ghost = False
    """A reference of our own that came back when the object had been freed."""
    # What holds it.
    task_uses = 0
    container_uses = 0
    transit_uses = 0
    lineage_uses = 0
    borrowers: dict[Address, None] = NOBODY
    borrow_sent = False
    # Who waits for it.
    readers: dict[WaitID, None] = NOBODY
    """Waits that have counted it as local, and wait for other objects: it stays pinned for them."""
    waiting_tasks: dict[TaskID, None] = NOBODY
    requesters: dict[Address, None] = NOBODY
    # In this node's store.
    wanted = False
    local = False
    fetch_error: ErrorInfo | None = None
    """Why it could not be brought here when it was last wanted; it may be possible another time."""
    last_fetch_error: ErrorInfo | None = None
    """The same, for those who were told of it, and read it when somebody else wants it again, or it is being remade."""
    # Reconstruction.
    is_last = False
    """Whether the task that made it has no attempt left."""
    losses_answered = 0
    losses_demanded = 0
    demanded = False
    near: NodeID | None = None
    """A node that could have none of the copies that were lost: it is to be made there."""
    is_held_up = False
    """Who wants it back waits for others that say nothing, and its store may be full of what they are to send."""
    was_evicted = False
    """The last copy left a full store."""
    moves = 0
    """How often its copies were given up for such a node."""
    is_in_doubt = False
    """It was lost while the attempt was under way that makes it again, for another result perhaps: that may have found
    the old copy, and written none."""
    asked_again = False
    """Whether the head was asked once more for a copy, when it knew none and who sealed it was dead."""

    def __init__(self, object_id: ObjectID, owner: Address, state: ValueState) -> None:
        self.object_id = object_id
        self.owner = owner
        self.state = state
        self.local_refs = 0
        self.waits: dict[WaitID, None] = NOBODY
        self.is_bare = False
        """Of a small value that was put, or that is the only result of a task, PENDING or INLINE: whether nothing but
        Python references and waits of this process has had to do with it yet. It goes with its last reference, and
        nobody need be asked."""

    def add_wait(self, wait_id: WaitID, alone: dict[WaitID, None]) -> None:
        """Somebody waits for it; `alone` is a dict with this wait, to be shared."""
        waits = self.waits
        if not waits:
            self.waits = alone
        elif type(waits) is OneWait:
            self.waits = {**waits, wait_id: None}
        else:
            waits[wait_id] = None

    def drop_wait(self, wait_id: WaitID) -> None:
        """That wait is over, or not for this value."""
        waits = self.waits
        if type(waits) is not OneWait:
            waits.pop(wait_id, None)
        elif wait_id in waits:
            self.waits = NOBODY

    def set_state(self, state: ValueState) -> None:
        """Change its state, if its table has that row."""
        if state not in VALUE.table[self.state]:
            VALUE.check(self.state, state, self.object_id, self.story())
        self.state = state

    def note(self, who: Literal["borrowers", "readers", "waiting_tasks", "requesters"], key: Any) -> None:
        """Add to one of the dicts of those that wait for it or hold it."""
        self.is_bare = False
        noted = getattr(self, who)
        if noted is NOBODY:
            setattr(self, who, {key: None})
        else:
            noted[key] = None

    @property
    def is_ready(self) -> bool:
        """Whether it is there, or never will be."""
        return self.state in READY

    @property
    def failure(self) -> ErrorInfo | None:
        """What reading the value here and now would raise, if it would."""
        if self.state is ValueState.FAILED:
            return self.error
        return None if self.local or self.state is ValueState.INLINE else self.last_fetch_error

    @property
    def held(self) -> bool:
        return bool(
            self.local_refs
            or self.task_uses
            or self.container_uses
            or self.transit_uses
            or self.borrowers
            or self.waits
            or (self.lineage_uses and self._ends_lineage)
        )

    @property
    def _ends_lineage(self) -> bool:
        """Kept while lineage needs it: a small value costs little, and some values can be made again by nobody."""
        return self.state is ValueState.INLINE or self.is_last or is_put(self.object_id)

    def __str__(self) -> str:
        return self.story()

    def story(self) -> str:
        """What is known of the object, for errors."""
        return (
            f"owner {self.owner}, {self.local_refs} local references, {self.task_uses} tasks, "
            f"{self.container_uses} containers, {self.transit_uses} in transit, borrowers {list(self.borrowers)}"
        )


def came_out_small(object_id: ObjectID) -> ErrorInfo:
    """Why nodes that wait for a stored copy of an object wait in vain, though the object is there."""
    message = f"Object {short(object_id)} was small when it was recomputed, but had been large before."
    return ErrorInfo(kind=ErrorKind.RECONSTRUCTION_FAILED, message=message)
