"""The generators that run in this process: their items on the way to those who called them.

Theory of operation. Where user code runs, each item that a generator yields is stored and handed in here (ItemMade);
it goes to the task's owner at once, unless it holds references whose borrow is not acknowledged (see borrows.py): then
it waits, and what its generator makes after it too. References in an item are held until its owner has taken it.

A generator that is as many items ahead of its consumer as it may is held back: an object is made, PENDING, and user
code waits for it as for any other, so that its CPU is lent, what stands behind it is given back, and whoever cancels it
finds it waiting. The consumer's progress (ItemsRead) fills the object. When nobody wants what is to come, or whoever
called the generator has died, it is closed after the item that it makes.

Relies on: user code asks `room_for` after each item, and waits.
Guarantees: items of an attempt are reported in order, before its end, each exactly once.
"""

from __future__ import annotations

from collections import deque

from dualray.shared.machines.base import Outbox
from dualray.shared.machines.owner.values import Values
from dualray.shared.model.commands import DropPayload, Send
from dualray.shared.model.events import ItemMade, ItemReported, ItemsEnded, ItemsRead, ResultsTaken
from dualray.shared.model.ids import Address, ObjectID, TaskID, return_index, stream_room_id
from dualray.shared.model.specs import Ref
from dualray.shared.model.states import ValueState

_HASTE_NS = 1_000_000
"""Items that are made faster than this, one after the other, may wait for one another on their way."""


class Produced:
    """What one attempt of a generator has made."""

    __slots__ = ("ahead_max", "is_wanted", "last_ns", "made", "owner", "taken")

    def __init__(self, owner: Address, ahead_max: int) -> None:
        self.owner = owner
        self.ahead_max = ahead_max
        self.made = 0
        self.taken = 0
        self.is_wanted = True
        self.last_ns = -_HASTE_NS

    @property
    def has_room(self) -> bool:
        return not self.ahead_max or not self.is_wanted or self.made - self.taken < self.ahead_max


class Production:
    """See the module."""

    def __init__(self, *, out: Outbox, address: Address, values: Values) -> None:
        self.out = out
        self.address = address
        self.values = values
        self.running: dict[tuple[TaskID, int], Produced] = {}
        self.queue: deque[tuple[Address, ItemReported, bool]] = deque()
        """What waits for borrows to be acknowledged; and whether it is urgent."""
        self.in_transit: dict[tuple[TaskID, int, int], tuple[Address, tuple[Ref, ...]]] = {}

    def _is_alive(self, owner: Address) -> bool:
        """Whether the caller of a generator has not died since."""
        return owner in self.values.borrows.met or owner == self.address

    def on_made(self, event: ItemMade) -> None:
        """A generator has yielded."""
        key = event.task_id, event.attempt
        produced = self.running.get(key)
        if produced is None:
            produced = self.running[key] = Produced(event.owner, event.ahead_max)
            produced.is_wanted = self._is_alive(event.owner)
        produced.made = return_index(event.result.object_id)
        is_urgent = not event.result.inline or self.out.now_ns - produced.last_ns >= _HASTE_NS
        produced.last_ns = self.out.now_ns
        if event.result.nested and self._is_alive(event.owner):
            self.values.references.hold_in_transit(event.result.nested)
            self.in_transit[(*key, produced.made)] = (event.owner, event.result.nested)
        report = ItemReported(
            task_id=event.task_id,
            attempt=event.attempt,
            worker=self.address,
            result=event.result,
            error=event.error,
        )
        self.queue.append((event.owner, report, is_urgent))
        self.flush()
        self._close_room(event.task_id)
        if not produced.has_room:
            self.values.references.owned(stream_room_id(event.task_id)).local_refs += 1

    def flush(self) -> bool:
        """Report what can be reported; whether something was."""
        before = len(self.queue)
        for _ in range(before):
            to, report, is_urgent = self.queue.popleft()
            if self._is_to_wait(to):
                self.queue.append((to, report, is_urgent))
            else:
                self._report(to, report, is_urgent=is_urgent)
        return len(self.queue) < before

    def _is_to_wait(self, to: Address) -> bool:
        values = self.values
        if not values.borrows.unacknowledged:
            return False
        owners = {values.table[object_id].owner for object_id in values.borrows.unacknowledged}
        return bool(owners - {to})  # to the task's own owner, the borrow goes ahead of the item

    def _report(self, to: Address, report: ItemReported, *, is_urgent: bool) -> None:
        object_id = report.result.object_id
        has_payload = report.result.inline if report.error is None else report.error.has_exception
        payloads = (object_id,) if has_payload else ()
        self.out.commands.append(Send(to=to, message=report, payloads=payloads, urgent=is_urgent))
        value = self.values.table.get(object_id)
        is_used = value is not None and value.state in (ValueState.INLINE, ValueState.FAILED)
        if has_payload and not is_used and to != self.address:
            self.out.add(DropPayload(key=object_id))

    def room_for(self, task_id: TaskID, attempt: int) -> ObjectID | None:
        """What the generator is to wait for before it goes on; None: nothing."""
        produced = self.running.get((task_id, attempt))
        return None if produced is None or produced.has_room else stream_room_id(task_id)

    def is_wanted(self, task_id: TaskID, attempt: int) -> bool:
        """Whether somebody wants the next item."""
        produced = self.running.get((task_id, attempt))
        return produced is None or produced.is_wanted

    def has_caller(self, task_id: TaskID, attempt: int) -> bool:
        """Whether the process that has called the generator lives."""
        produced = self.running.get((task_id, attempt))
        return produced is None or self._is_alive(produced.owner)

    def on_read(self, event: ItemsRead) -> None:
        """The owner tells how far the consumer is."""
        produced = self.running.get((event.task_id, event.attempt))
        if produced is None:
            return
        produced.taken = max(event.taken, produced.taken)
        produced.is_wanted = event.is_wanted and self._is_alive(produced.owner)
        if produced.has_room:
            self._open_room(event.task_id)

    def _open_room(self, task_id: TaskID) -> None:
        value = self.values.table.get(stream_room_id(task_id))
        if value is not None and value.state is ValueState.PENDING:
            self.values.set_inline(value, 0)

    def _close_room(self, task_id: TaskID) -> None:
        """Whoever waited for it goes on."""
        object_id = stream_room_id(task_id)
        if object_id in self.values.table:
            self._open_room(task_id)
            self.values.references.drop((object_id,))

    def on_ended(self, event: ItemsEnded) -> None:
        """A generator makes no more."""
        self.running.pop((event.task_id, event.attempt), None)
        self._close_room(event.task_id)

    def on_taken(self, event: ResultsTaken) -> None:
        """The owner has borrowed what an item refers to."""
        _, nested = self.in_transit.pop((event.task_id, event.attempt, event.index), (None, ()))
        self.values.references.release_from_transit(nested)

    def on_process_died(self, dead: frozenset[Address]) -> None:
        """Nobody takes the items of a caller that has died."""
        for key, produced in self.running.items():
            if produced.owner in dead:
                produced.is_wanted = False
                self._open_room(key[0])
        for item, (to, nested) in list(self.in_transit.items()):
            if to in dead:
                del self.in_transit[item]
                self.values.references.release_from_transit(nested)
