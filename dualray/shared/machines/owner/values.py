"""The objects that one process holds references to, its own and borrowed ones, and who waits for them.

Theory of operation. A process has one `Value` for each object that it has anything to do with. The process that made
the first reference owns the object: it knows its state and who borrows it. A value is *held* while anything in this
process needs it: local references (Python objects), tasks that take it as an argument, containers (another held value
whose bytes refer to it), results in transit, and, of owned values, borrowers elsewhere. When nothing holds it any
more it is freed: its bytes go, and what its bytes referred to is released in turn. An owned entry outlives its bytes
while lineage needs it (tasks.py), unless lineage ends with it: small values, and values that were put, are kept whole
as long as something in use may have to be made from them again.

Handing a reference over. Whoever sends a reference keeps it until the receiver has registered with the owner:
- a task's arguments are held by its submitter until the task has finished;
- a process lets go of nothing borrowed (BorrowRemoved), and reports no task as finished and no result as taken, while
  an acknowledgement of one of its own borrows is outstanding (`unacknowledged`);
- results that carry references are held by the worker until the owner of the task reports ResultsTaken.

Waiting. A wait counts objects that are ready; with `fetch` a stored object is ready when it is pinned in this node's
store. With `read` the process will open the bytes, and the pin ends with its last view.

Errors nobody reads. What ends a task for good is told once, in words, when the last value that carries it goes unread:
at once when there is none, else with the last reference. Read is what a `get` waited for, and what another process has
asked for. A task that failed by its argument carries the argument's error on: one error, told once, however far it
came.

Relies on: messages between two processes stay in order; OwnerDied is reported for each process that dies.
Guarantees: no owned object is freed while a live reference or a pending task anywhere needs it; each wait completes
once, when enough is ready, when one of a `read` has failed, or at its timeout.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any, Final, Literal

from dualray.exceptions import InvariantViolation
from dualray.shared.machines.base import Outbox, ensure
from dualray.shared.machines.owner.reserved_space import Rooms
from dualray.shared.model.commands import ArmTimer, CancelTimer, CompleteWait, DropPayload, DropPayloads, TellFailure
from dualray.shared.model.errors import ErrorInfo, ErrorKind
from dualray.shared.model.events import (
    ActorOutOfScope,
    ArgumentsLent,
    BorrowAcknowledged,
    BorrowAdded,
    BorrowRemoved,
    Loan,
    LoanPinned,
    LoansAsked,
    LoansKept,
    LoansKnown,
    LocationsWanted,
    ObjectArrived,
    ObjectFailed,
    ObjectReleased,
    ObjectsFreed,
    ObjectUnavailable,
    ObjectWanted,
    PeerMet,
    ValueReported,
    ValueRequested,
    WaitStarted,
    WorkerBlocked,
    WorkerUnblocked,
)
from dualray.shared.model.ids import HEAD, ActorID, Address, NodeID, ObjectID, TaskID, WaitID, is_put, short
from dualray.shared.model.specs import Ref
from dualray.shared.model.states import VALUE, ValueState

_READY = frozenset({ValueState.INLINE, ValueState.STORED, ValueState.FAILED})


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
        raise InvariantViolation("this dict is shared by all values: add to it with Value.note")


class _OneWait(dict[Any, None]):
    """One wait for many values: they share this dict, and a value that has others gets one of its own."""


_NOBODY: Final = _Nobody()


class Value:
    """One object as this process sees it.

    Most values of most programs are made, read and dropped: what only others need has its first value on the class, so
    that making one costs six assignments.
    """

    size_bytes = 0
    error: ErrorInfo | None = None
    failed_with: Failure | None = None
    """Of a result of a task of this process that has failed."""
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
    borrowers: dict[Address, None] = _NOBODY
    borrow_sent = False
    # Who waits for it.
    readers: dict[WaitID, None] = _NOBODY
    """Waits that have counted it as local, and wait for other objects: it stays pinned for them."""
    waiting_tasks: dict[TaskID, None] = _NOBODY
    requesters: dict[Address, None] = _NOBODY
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
        self.waits: dict[WaitID, None] = _NOBODY
        self.is_bare = False
        """Of a small value that was put, or that is the only result of a task, PENDING or INLINE: whether nothing but
        Python references and waits of this process has had to do with it yet. It goes with its last reference, and
        nobody need be asked."""

    def add_wait(self, wait_id: WaitID, alone: dict[WaitID, None]) -> None:
        """Somebody waits for it; `alone` is a dict with this wait, to be shared."""
        waits = self.waits
        if not waits:
            self.waits = alone
        elif type(waits) is _OneWait:
            self.waits = {**waits, wait_id: None}
        else:
            waits[wait_id] = None

    def drop_wait(self, wait_id: WaitID) -> None:
        """That wait is over, or not for this value."""
        waits = self.waits
        if type(waits) is not _OneWait:
            waits.pop(wait_id, None)
        elif wait_id in waits:
            self.waits = _NOBODY

    def note(self, who: Literal["borrowers", "readers", "waiting_tasks", "requesters"], key: Any) -> None:
        """Add to one of the dicts of those that wait for it or hold it."""
        self.is_bare = False
        noted = getattr(self, who)
        if noted is _NOBODY:
            setattr(self, who, {key: None})
        else:
            noted[key] = None

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


class Wait:
    """One `get`, `wait`, or fetching of a task's arguments."""

    __slots__ = (
        "blocked",
        "failed",
        "fetch",
        "is_small",
        "missing",
        "num_ready",
        "object_ids",
        "read",
        "task_id",
        "timed",
    )

    def __init__(self, event: WaitStarted) -> None:
        self.object_ids = tuple([ref.object_id for ref in event.refs])
        self.num_ready = event.num_ready
        self.fetch = event.fetch
        self.read = event.read
        self.task_id = event.task_id
        self.timed = False
        self.blocked = False
        self.failed = False
        self.is_small = True
        """Whether all that it has looked at up to now was small, or not ready: nothing was fetched or pinned for it."""
        self.missing: dict[ObjectID, None] = {}
        """Those that are not ready; the objects are distinct, so that all others are."""


class Borrowed:
    """An argument that its owner has lent to this process: its bytes can be read, nobody is to be asked for them."""

    __slots__ = ("is_pinned", "lender", "place", "room_id", "size_bytes")

    def __init__(self, lender: Address, room_id: ObjectID, place: int, size_bytes: int) -> None:
        self.lender = lender
        self.room_id = room_id
        self.place = place
        self.size_bytes = size_bytes
        self.is_pinned = False
        """It is the node manager's meanwhile, and pinned for us."""


class Values:
    """See the module."""

    def __init__(self, *, out: Outbox, address: Address, node: Address, rooms: Rooms) -> None:
        self.out = out
        self.rooms = rooms
        self.address = address
        self.node = node
        self.table: dict[ObjectID, Value] = {}
        self.waits: dict[WaitID, Wait] = {}
        self.unacknowledged: dict[ObjectID, None] = {}
        self.removals_held_back: list[tuple[ObjectID, Address]] = []
        self.met: dict[Address, None] = {}
        """Processes that we have to do with, and that are alive as far as we know."""
        self.asked: dict[ObjectID, None] = {}
        """Objects that we asked the node manager for, and that it has not answered."""
        self.views: dict[ObjectID, int] = {}
        """Reads of stored objects that this process has not given back; they outlive references."""
        self.loans: dict[ObjectID, Borrowed] = {}
        """Arguments that lie in room of their owners, and that tasks here may read there (reserved_space.py)."""
        self.loans_kept: dict[ObjectID, Borrowed] = {}
        """Those of which views have outlived the task, until they are pinned for us."""
        self.lenders_lost: dict[Address, None] = {}
        """Dead ones, of which the node manager has asked us: what comes late from them lies nowhere any more."""
        # Worklists that the owner machine drains.
        self.tasks_to_look_at: deque[TaskID] = deque()
        self.waits_completed: deque[tuple[WaitID, tuple[ObjectID, ...]]] = deque()
        self.lineage_released: deque[ObjectID] = deque()
        self.remake_wanted: deque[ObjectID] = deque()
        self.streams_dropped: deque[TaskID] = deque()

    # ---- Entries ---------------------------------------------------------------------------------------------

    def owned(self, object_id: ObjectID) -> Value:
        """The entry of an object that this process makes; new ones are PENDING."""
        value = self.table.get(object_id)
        if value is None:
            value = self.table[object_id] = Value(object_id, self.address, ValueState.PENDING)
        return value

    def entry(self, ref: Ref) -> Value:
        """The entry for a reference; a new one is borrowed and UNKNOWN, or was freed by its owner."""
        value = self.table.get(ref.object_id)
        if value is None:
            is_ghost = ref.owner == self.address  # a reference of our own came back after we had freed the object
            state = ValueState.FAILED if is_ghost else ValueState.UNKNOWN
            value = self.table[ref.object_id] = Value(ref.object_id, ref.owner, state)
            self.meet(ref.owner)
            if is_ghost:
                value.is_ghost = True
                value.error = ErrorInfo(
                    kind=ErrorKind.OBJECT_LOST,
                    message=f"Object {short(ref.object_id)} was freed: its last reference had been dropped.",
                )
        return value

    def meet(self, peer: Address) -> None:
        """From now on we want to hear of the peer's death. It may have died already: the node manager knows. Of who has
        a lease on this worker it tells without being asked, and ends the worker."""
        if peer not in self.met and peer not in (self.address, self.node, HEAD):
            self.met[peer] = None
            self.out.send(self.node, PeerMet(process=self.address, peer=peer))

    @property
    def is_blocked(self) -> bool:
        """Whether a task of this process waits."""
        return any(wait.blocked for wait in self.waits.values())

    def is_ready(self, value: Value) -> bool:
        return value.state in _READY

    def look_up(self, value: Value) -> None:
        """See to it that we learn when the value is ready."""
        if value.state is ValueState.UNKNOWN:
            value.state = VALUE.check(value.state, ValueState.PENDING, value.object_id)
            self.out.send(value.owner, ValueRequested(object_id=value.object_id, requester=self.address))
        elif value.state is ValueState.FREED:
            self.remake_wanted.append(value.object_id)
            self.out.needs_drain = True

    # ---- States ----------------------------------------------------------------------------------------------

    def _set_state(self, value: Value, state: ValueState) -> None:
        if state not in VALUE.table[value.state]:
            VALUE.check(value.state, state, value.object_id, value.story())
        value.state = state

    def set_inline(self, value: Value, size_bytes: int, nested: tuple[Ref, ...] = ()) -> None:
        """The bytes are a payload of this process."""
        if value.state is ValueState.PENDING:
            value.state = ValueState.INLINE  # PENDING -> INLINE, without a call: each small result comes this way
        else:
            self._set_state(value, ValueState.INLINE)
        value.is_bare = False
        value.size_bytes = size_bytes
        if nested or value.nested:
            self._contain(value, nested)
        if value.demanded and value.owner == self.address:  # nodes that wait for a stored copy would wait for ever
            self.out.send(HEAD, ObjectFailed(object_id=value.object_id, error=came_out_small(value.object_id)))
        self._became_ready(value)

    def set_small(self, value: Value, size_bytes: int) -> None:
        """`set_inline` of one that is bare, PENDING and referred to, and that no task makes any more."""
        value.state = ValueState.INLINE  # PENDING -> INLINE, without a call: what most tasks end with
        value.size_bytes = size_bytes
        if value.waits:
            waits, value.waits = value.waits, _NOBODY
            for wait_id in waits:
                wait = self.waits[wait_id]
                missing = wait.missing
                del missing[value.object_id]
                if len(wait.object_ids) - len(missing) >= wait.num_ready:
                    self._complete(wait_id, wait)

    def set_stored(self, value: Value, size_bytes: int, by: Address | None, nested: tuple[Ref, ...] = ()) -> None:
        """The bytes are in the store of some node; `by` is the process that sealed the first copy."""
        self._set_state(value, ValueState.STORED)
        value.size_bytes = size_bytes
        value.sealed_by = by
        value.sealer_died = value.asked_again = False
        if by is not None and by not in self.met:
            self.meet(by)
        value.demanded = value.losses_demanded > value.losses_answered
        if value.demanded:  # it has been made again, and the copy has gone meanwhile
            self.remake_wanted.append(value.object_id)
            self.out.needs_drain = True
        self._contain(value, nested)
        self._became_ready(value)

    def set_failed(self, value: Value, error: ErrorInfo) -> None:
        """The value will never be there; with an APPLICATION error, the exception is its payload."""
        if value.state is ValueState.UNKNOWN:
            self._set_state(value, ValueState.PENDING)
        self._set_state(value, ValueState.FAILED)
        value.error = error
        self._became_ready(value)

    def set_remaking(self, value: Value) -> None:
        """The task that makes the value runs again."""
        if (
            value.state is ValueState.FREED
        ):  # the head's count of losses begins anew, and may have begun before our news
            value.losses_answered = value.losses_demanded = -1
        self._set_state(value, ValueState.PENDING)
        value.sealed_by = None
        for task in self.tasks_to_look_at:  # woken, perhaps by this very value, and not looked at yet
            value.note("waiting_tasks", task)

    def _contain(self, value: Value, nested: tuple[Ref, ...]) -> None:
        before, value.nested = value.nested, nested
        for ref in nested:
            inner = self.entry(ref)
            inner.is_bare = False
            inner.container_uses += 1
            self._register_borrow(inner)
        self._release_contained(before)

    def _became_ready(self, value: Value) -> None:
        if value.waiting_tasks:
            self.tasks_to_look_at.extend(value.waiting_tasks)
            self.out.needs_drain = True
            value.waiting_tasks.clear()
        if value.requesters:
            for requester in value.requesters:
                self._report(value, requester)
            value.requesters.clear()
        if value.waits:
            for wait_id in list(value.waits):
                self._progress(wait_id, value)
        self.release(value)

    # ---- References ------------------------------------------------------------------------------------------

    def add_refs(self, refs: Iterable[Ref]) -> None:
        """Python references appeared in this process."""
        for ref in refs:
            value = self.entry(ref)
            value.local_refs += 1
            self._register_borrow(value)

    def drop_refs(self, object_ids: Iterable[ObjectID]) -> None:
        """Python references went."""
        table = self.table
        gone: list[bytes] = []
        for object_id in object_ids:
            value = table[object_id]
            value.local_refs -= 1
            if value.local_refs > 0:
                continue
            if value.local_refs < 0:
                raise InvariantViolation(f"object {short(object_id)} lost more references than it had")
            if value.is_bare and value.state is ValueState.INLINE:
                del table[object_id]
                gone.append(object_id)
            else:
                self.release(value)
        if len(gone) == 1:
            self.out.commands.append(DropPayload(key=gone[0]))
        elif gone:
            self.out.commands.append(DropPayloads(keys=tuple(gone)))

    def hold_for_task(self, refs: Iterable[Ref]) -> None:
        for ref in refs:
            value = self.entry(ref)
            value.is_bare = False
            value.task_uses += 1

    def release_from_task(self, refs: Iterable[Ref]) -> None:
        for ref in refs:
            value = self.table[ref.object_id]
            value.task_uses -= 1
            if value.task_uses < 0:
                raise InvariantViolation(f"object {short(ref.object_id)} was released by a task twice")
            if not value.local_refs:
                self.release(value)

    def hold_in_transit(self, refs: Iterable[Ref]) -> None:
        for ref in refs:
            value = self.entry(ref)
            value.is_bare = False
            value.transit_uses += 1

    def release_from_transit(self, refs: Iterable[Ref]) -> None:
        for ref in refs:
            value = self.table[ref.object_id]
            value.transit_uses -= 1
            self.release(value)

    def _register_borrow(self, value: Value) -> None:
        if value.owner != self.address and not value.borrow_sent:
            value.borrow_sent = True
            self.unacknowledged[value.object_id] = None
            self.out.send(value.owner, BorrowAdded(object_id=value.object_id, borrower=self.address))

    def release(self, value: Value) -> None:
        """Free the value if nothing in this process, and no borrower, holds it any more."""
        if value.local_refs or value.held or self.table.get(value.object_id) is not value:
            return
        if value.owner != self.address:
            if value.lineage_uses:
                return  # a task of ours may have to run again with it, and only its owner could make it again
            self._forget_bytes(value)
            del self.table[value.object_id]
            if value.borrow_sent:
                self._send_removal(value.object_id, value.owner)
            return
        if value.actor is not None:
            if value.state is not ValueState.FREED:
                self._set_state(value, ValueState.FREED)
                self.out.send(HEAD, ActorOutOfScope(actor_id=value.actor))
            if value.lineage_uses == 0:
                del self.table[value.object_id]
                self.lineage_released.append(value.object_id)
                self.out.needs_drain = True
            return
        if value.state is ValueState.PENDING:
            if value.stream is not None:
                del self.table[value.object_id]
                self.streams_dropped.append(value.stream)
                self.out.needs_drain = True
            return  # its task still runs: freed when it arrives
        if value.state is ValueState.STORED and not (self.rooms.lodged and self.rooms.free(value.object_id)):
            self.out.send(HEAD, ObjectsFreed(object_ids=(value.object_id,)))
        self._forget_bytes(value)
        if value.state is not ValueState.FREED:
            self._set_state(value, ValueState.FREED)
        if value.lineage_uses == 0:
            del self.table[value.object_id]
            if not value.is_ghost:
                self.lineage_released.append(value.object_id)
                self.out.needs_drain = True

    def _forget_bytes(self, value: Value) -> None:
        if value.state in (ValueState.INLINE, ValueState.FAILED):
            self.out.add(DropPayload(key=value.object_id))
            if value.failed_with is not None:
                self._drop_failure(value.failed_with)
                value.failed_with = None
        if value.wanted or value.local:
            self._unpin(value)
        if value.nested:
            nested, value.nested = value.nested, ()
            self._release_contained(nested)

    def _drop_failure(self, failure: Failure) -> None:
        failure.carriers -= 1
        if failure.carriers == 0 and not failure.is_read:
            self.out.add(failure.told())

    def unread_failures(self) -> list[Failure]:
        """What ended tasks of this process, and nobody has read, while references to their results are still there."""
        failures = [value.failed_with for value in self.table.values() if value.failed_with is not None]
        return [failure for failure in dict.fromkeys(failures) if not failure.is_read]

    def _release_contained(self, nested: tuple[Ref, ...]) -> None:
        for ref in nested:
            inner = self.table[ref.object_id]
            inner.container_uses -= 1
            self.release(inner)

    def _unpin(self, value: Value) -> None:
        if value.object_id in self.views or value.readers or value.object_id in self.loans:
            return  # a view lives on, or is about to be opened: its release unpins
        value.wanted = value.local = False
        self._release_pin(value.object_id)

    def _release_pin(self, object_id: ObjectID) -> None:
        """Give the pin back, unless a view lives on, whose release does so, or the node has still to answer that it is
        pinned: an answer to an old question must not be taken for one to a new question."""
        if object_id not in self.views and object_id not in self.asked and object_id not in self.loans_kept:
            self.out.send(self.node, ObjectReleased(object_id=object_id, requester=self.address))

    def _send_removal(self, object_id: ObjectID, owner: Address) -> None:
        self.unacknowledged.pop(object_id, None)
        if self.unacknowledged:
            self.removals_held_back.append((object_id, owner))
        else:
            self.out.send(owner, BorrowRemoved(object_id=object_id, borrower=self.address))

    # ---- Between owner and borrower --------------------------------------------------------------------------

    def on_borrow_added(self, event: BorrowAdded) -> None:
        value = self.table.get(event.object_id)
        if value is not None:
            self.meet(event.borrower)
            value.note("borrowers", event.borrower)
        self.out.send(event.borrower, BorrowAcknowledged(object_id=event.object_id))

    def on_borrow_acknowledged(self, event: BorrowAcknowledged) -> None:
        self.unacknowledged.pop(event.object_id, None)
        self._flush_removals()

    def _flush_removals(self) -> None:
        if self.unacknowledged or not self.removals_held_back:
            return
        held_back, self.removals_held_back = self.removals_held_back, []
        for object_id, owner in held_back:
            if object_id in self.table and self.table[object_id].borrow_sent:
                continue  # borrowed again meanwhile: the owner must keep us
            self.out.send(owner, BorrowRemoved(object_id=object_id, borrower=self.address))

    def on_borrow_removed(self, event: BorrowRemoved) -> None:
        value = self.table.get(event.object_id)
        if value is not None:
            value.borrowers.pop(event.borrower, None)
            value.requesters.pop(event.borrower, None)
            self.release(value)

    def on_value_requested(self, event: ValueRequested) -> None:
        value = self.table.get(event.object_id)
        if value is None or value.owner != self.address:
            error = ErrorInfo(
                kind=ErrorKind.OBJECT_LOST,
                message=f"Object {short(event.object_id)} was freed by its owner {self.address}.",
            )
            self.out.send(
                event.requester,
                ValueReported(object_id=event.object_id, state=ValueState.FAILED, size_bytes=0, error=error),
            )
        elif self.is_ready(value):
            self._report(value, event.requester)
        else:
            self.meet(event.requester)
            value.note("requesters", event.requester)
            self.look_up(value)

    def _report(self, value: Value, requester: Address) -> None:
        if value.failed_with is not None:
            value.failed_with.is_read = True
        self.rooms.hand_over(value.object_id)
        with_bytes = value.state is ValueState.INLINE or (
            value.error is not None and value.error.kind is ErrorKind.APPLICATION
        )
        self.out.send(
            requester,
            ValueReported(object_id=value.object_id, state=value.state, size_bytes=value.size_bytes, error=value.error),
            (value.object_id,) if with_bytes else (),
        )

    def on_value_reported(self, event: ValueReported) -> None:
        value = self.table.get(event.object_id)
        if value is None or value.state is not ValueState.PENDING or value.owner == self.address:
            if value is None or value.state not in (ValueState.INLINE, ValueState.FAILED):
                self.out.add(DropPayload(key=event.object_id))  # nobody here wants the bytes that came along
            return
        if event.state is ValueState.INLINE:
            self.set_inline(value, event.size_bytes)
        elif event.state is ValueState.STORED:
            self.set_stored(value, event.size_bytes, None)
        else:
            assert event.error is not None
            self.set_failed(value, event.error)

    def on_process_died(self, dead: Iterable[Address]) -> None:
        """Borrowers that died hold nothing; what dead processes owned is lost unless we have it."""
        gone = frozenset(dead)
        for address in dead:
            self.met.pop(address, None)
        for value in list(self.table.values()):
            if value.owner in gone:
                self.unacknowledged.pop(value.object_id, None)
                if not self.is_ready(value) or value.state is ValueState.STORED:
                    self._owner_lost(value)
            else:
                if value.sealed_by in gone and not value.sealer_died:
                    value.sealer_died = True
                    if value.state is ValueState.STORED and value.demanded:
                        self.ask_again(value)
                for address in [requester for requester in value.requesters if requester in gone]:
                    del value.requesters[address]
                for address in [borrower for borrower in value.borrowers if borrower in gone]:
                    del value.borrowers[address]
                    self.release(value)
        self._flush_removals()

    def ask_again(self, value: Value) -> None:
        """The head knew of no copy when it last asked for the object. It now knows all that the sealer's node had told
        it before it told of the sealer's death: if it answers with a demand, there is none."""
        value.asked_again = True
        self.out.send(
            HEAD, LocationsWanted(object_id=value.object_id, owner=self.address, node=NodeID(self.node), by_owner=True)
        )

    def _owner_lost(self, value: Value) -> None:
        error = ErrorInfo(
            kind=ErrorKind.OWNER_DIED,
            message=(
                f"Object {short(value.object_id)} is lost: {value.owner}, which owned it, died. Keep references in a "
                f"process that outlives the work, or return the value itself."
            ),
        )
        if value.state is ValueState.STORED and value.local:
            return  # its bytes are pinned here: they can still be read
        self.set_failed(value, error)

    # ---- Waits -----------------------------------------------------------------------------------------------

    def start_wait(self, event: WaitStarted) -> None:
        wait_id = event.wait_id
        wait = self.waits[wait_id] = Wait(event)
        table, missing = self.table, wait.missing
        alone: dict[WaitID, None] = _OneWait({wait_id: None})
        for ref in event.refs:
            value = table.get(ref.object_id) or self.entry(ref)
            if value.state is ValueState.INLINE:
                continue
            if value.is_bare and value.state is ValueState.PENDING:  # there is nothing to ask, or to fetch
                missing[value.object_id] = None
                if value.waits:
                    value.add_wait(wait_id, alone)
                else:
                    value.waits = alone
                continue
            wait.is_small = False
            if wait.fetch:
                value.fetch_error = None
            if self._counts(wait, value):
                self._count(wait_id, wait, value)
            else:
                missing[value.object_id] = None
                value.add_wait(wait_id, alone)
                self.look_up(value)
                self._fetch_if_needed(wait, value)
        if self._is_complete(wait) or event.timeout_ns == 0:
            self._complete(wait_id, wait)
            return
        if event.timeout_ns is not None:
            wait.timed = True
            self.out.add(ArmTimer(timer=f"wait:{wait_id}", delay_ns=event.timeout_ns))
        if wait.task_id is not None:
            self.block(wait_id)

    def block(self, wait_id: WaitID) -> None:
        """The task of this process lends its CPU until the wait is over."""
        self.waits[wait_id].blocked = True
        self.out.send(self.node, WorkerBlocked(worker=self.address))

    def on_wait_timer(self, wait_id: WaitID) -> None:
        wait = self.waits.get(wait_id)
        if wait is not None:
            wait.timed = False
            self._complete(wait_id, wait)

    def _counts(self, wait: Wait, value: Value) -> bool:
        if value.state is ValueState.STORED and wait.fetch:
            return value.local or value.fetch_error is not None
        return value.state in _READY

    def _fetch_if_needed(self, wait: Wait, value: Value) -> None:
        if wait.fetch and value.state is ValueState.STORED and not value.wanted:
            value.wanted = True
            self.rooms.hand_over(value.object_id)
            if value.object_id not in self.asked:
                self.asked[value.object_id] = None
                self.out.send(
                    self.node,
                    ObjectWanted(object_id=value.object_id, owner=value.owner, requester=self.address),
                )

    def _progress(self, wait_id: WaitID, value: Value) -> None:
        wait = self.waits[wait_id]
        if value.state is not ValueState.INLINE:
            wait.is_small = False
            if not self._counts(wait, value):
                self._fetch_if_needed(wait, value)
                return
            self._count(wait_id, wait, value)
        wait.missing.pop(value.object_id, None)
        value.drop_wait(wait_id)
        if self._is_complete(wait):
            self._complete(wait_id, wait)

    def _count(self, wait_id: WaitID, wait: Wait, value: Value) -> None:
        if wait.fetch and value.local:
            value.note("readers", wait_id)
        wait.failed = wait.failed or value.failure is not None
        if wait.read and value.failed_with is not None:
            value.failed_with.is_read = True

    def _is_complete(self, wait: Wait) -> bool:
        return len(wait.object_ids) - len(wait.missing) >= wait.num_ready or (wait.read and wait.failed)

    def _complete(self, wait_id: WaitID, wait: Wait) -> None:
        del self.waits[wait_id]
        table = self.table
        if wait.missing:
            ready = tuple([object_id for object_id in wait.object_ids if object_id not in wait.missing])
            for object_id in wait.missing:
                table[object_id].drop_wait(wait_id)
        else:
            ready = wait.object_ids
        opened = []
        for object_id in ready if wait.read and not wait.is_small else ():
            value = table[object_id]
            if value.state is ValueState.STORED and value.local:
                opened.append(object_id)
                self.views[object_id] = self.views.get(object_id, 0) + 1
        if wait_id >= 0:
            self.out.commands.append(CompleteWait(wait_id=wait_id, ready=ready))
        else:
            self.waits_completed.append((wait_id, tuple(opened)))
            self.out.needs_drain = True
        self._end_wait(wait_id, wait)

    def cancel(self, wait_id: WaitID) -> None:
        """Nobody waits any more."""
        wait = self.waits.pop(wait_id)
        for object_id in wait.missing:
            self.table[object_id].drop_wait(wait_id)
        self._end_wait(wait_id, wait)

    def _end_wait(self, wait_id: WaitID, wait: Wait) -> None:
        table = self.table
        if wait.timed:
            self.out.add(CancelTimer(timer=f"wait:{wait_id}"))
        if wait.blocked and not self.is_blocked:  # a thread or coroutine beside it may wait on
            self.out.send(self.node, WorkerUnblocked(worker=self.address))
        for object_id in wait.object_ids if not wait.is_small else ():
            kept = table.get(object_id)
            if kept is not None:
                if kept.wanted or kept.readers:
                    kept.readers.pop(wait_id, None)
                    if kept.wanted and not kept.waits:
                        self._unpin(kept)
                if not kept.local_refs:
                    self.release(kept)

    def on_view_released(self, object_id: ObjectID) -> None:
        """A view of the bytes that a `read` wait opened is gone."""
        self.views[object_id] -= 1
        if self.views[object_id]:
            return
        del self.views[object_id]
        value = self.table.get(object_id)
        if value is None:  # the references went before the view
            self._release_pin(object_id)
        elif not (value.waits and value.wanted):
            self._unpin(value)

    # ---- This node's store -----------------------------------------------------------------------------------

    def on_object_arrived(self, event: ObjectArrived) -> None:
        self.asked.pop(event.object_id, None)
        value = self.table.get(event.object_id)
        if value is None or not value.wanted:
            self._release_pin(event.object_id)
            return
        value.local = True
        for wait_id in list(value.waits):
            self._progress(wait_id, value)

    def on_object_unavailable(self, event: ObjectUnavailable) -> None:
        self.asked.pop(event.object_id, None)
        value = self.table.get(event.object_id)
        if value is None or not value.wanted:
            return
        value.wanted = False
        if value.state is not ValueState.STORED:
            return
        if event.error.kind in (ErrorKind.STORE_FULL, ErrorKind.UNREACHABLE):
            value.fetch_error = value.last_fetch_error = event.error
        elif value.owner != self.address:
            self.set_failed(value, event.error)
            return
        for wait_id in list(value.waits):  # we own it, and know better: ask again
            self._progress(wait_id, value)

    # ---- Arguments that were lent ------------------------------------------------------------------------------

    def on_lent(self, event: ArgumentsLent) -> None:
        """A task follows whose arguments lie in room of its owner."""
        if event.lender in self.lenders_lost:
            return
        for object_id, room_id, place, size_bytes in event.loans:
            self.loans[object_id] = Borrowed(event.lender, room_id, place, size_bytes)

    def take_loan(self, value: Value) -> None:
        """An argument that has come is here already, if it was lent to us."""
        if value.object_id in self.loans and value.state is ValueState.STORED:
            value.wanted = value.local = True

    def end_loans(self, refs: Iterable[Ref]) -> None:
        """The task with these arguments is about to be reported, or given back. Those of which views live on are kept:
        their lender hears it first."""
        kept: list[ObjectID] = []
        lender: Address | None = None
        for ref in refs:
            loan = self.loans.pop(ref.object_id, None)
            if loan is None:
                continue
            is_read = ref.object_id in self.views
            if is_read and not loan.is_pinned:
                lender = loan.lender
                kept.append(ref.object_id)
                self.loans_kept[ref.object_id] = loan
            elif not is_read:
                value = self.table.get(ref.object_id)
                if value is not None:
                    value.wanted = value.local = False
                if loan.is_pinned:
                    self._release_pin(ref.object_id)
        if lender is not None:
            self.out.send(lender, LoansKept(worker=self.address, object_ids=tuple(kept)))

    def on_loan_pinned(self, event: LoanPinned) -> None:
        """What has outlived the task that it was lent to is kept for us now, whether or not we read it still."""
        self.loans_kept.pop(event.object_id, None)
        value = self.table.get(event.object_id)
        if value is None or not value.wanted:
            self._release_pin(event.object_id)

    def on_loans_asked(self, event: LoansAsked) -> None:
        """The lender has died: what we read of it is kept for us from now on."""
        self.lenders_lost[event.lender] = None
        known: list[Loan] = []
        for loans in (self.loans, self.loans_kept):
            for object_id, loan in list(loans.items()):
                if loan.lender == event.lender and not loan.is_pinned:
                    loan.is_pinned = True
                    known.append((object_id, loan.room_id, loan.place, loan.size_bytes))
        for object_id, *_ in known:
            self.loans_kept.pop(object_id, None)
        self.out.send(self.node, LoansKnown(worker=self.address, lender=event.lender, loans=tuple(known)))

    # ---- Invariants ------------------------------------------------------------------------------------------

    def check_invariants(self) -> None:
        for object_id, value in self.table.items():
            if (  # most, in one look: it is held, no count is negative, and it is not pinned
                value.local_refs > 0
                and value.task_uses >= 0
                and value.container_uses >= 0
                and value.transit_uses >= 0
                and value.lineage_uses >= 0
                and not value.local
            ):
                continue
            counts = (value.local_refs, value.task_uses, value.container_uses, value.transit_uses, value.lineage_uses)
            ensure(min(counts) >= 0, "object {}: a negative count; {}", object_id, value)
            ensure(
                value.held or value.lineage_uses > 0 or value.owner == self.address,
                "borrowed object {} is kept by nothing",
                object_id,
            )
            ensure(
                value.held or value.lineage_uses > 0 or value.state is ValueState.PENDING,
                "owned object {} ({}) is kept by nothing",
                object_id,
                value.state,
            )
            ensure(not value.local or value.wanted, "object {} is pinned but was not wanted", object_id)
        for wait_id, wait in self.waits.items():
            for object_id in wait.missing:
                ensure(
                    wait_id in self.table[object_id].waits,
                    "wait {} misses object {}, which does not know of it",
                    wait_id,
                    object_id,
                )


def came_out_small(object_id: ObjectID) -> ErrorInfo:
    """Why nodes that wait for a stored copy of an object wait in vain, though the object is there."""
    message = f"Object {short(object_id)} came out small when it was made again, and large before."
    return ErrorInfo(kind=ErrorKind.RECONSTRUCTION_FAILED, message=message)
