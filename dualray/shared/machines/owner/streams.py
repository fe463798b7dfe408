"""The items of generators that one process has called: results that come one by one, as many as are made.

Theory of operation. A call of a generator has one result of its own, index 0, which ends it, and items, from index 1
on. Its worker reports each item as it is made, in order; an attempt that makes again what is here already is told by
the index, and what it brings is dropped. The consumer waits for one item at a time, the *next*: an object like any
other, PENDING until it is made, so that `get`, `wait` and whatever else waits need not know of generators. Taking it
(ItemTaken) makes the one behind it the next. Items that are made and not taken are held by the stream; what is taken is
held by the consumer's references.

Where the items end, the next one fails: with the task's error, if it has one, and the one behind it with the news that
there are no more (`has_ended_before`). When the last reference to the stream's handle goes, nobody takes any more: its
items go, and the worker is told to close the generator after the item that it makes, unless somebody waits for its end
(index 0), or for an item that was lost.

A dynamic call has no consumer: its one result refers to all items, and the stream holds them until it is there.

An item that was lost is made again like any result, by running the task again. When that happens while an attempt runs
that has passed the item already, or was told to make no more, the task runs once more after it; not for ever, if that
is in vain (tasks.py). Until then that attempt may be any number of items ahead: who waits for the item that was lost
takes no other one, and the attempt would wait for him. An item may come out otherwise than before, as an error, or not
at all: then nodes that wait for it are told.

A node that dies may take many items with it, and each is missed only when somebody asks for it. So an attempt that
makes a lost item goes on as far as anybody keeps stored items: otherwise each of them would use a retry. After an
eviction, which uses none, it makes no more than is asked for: memory is short then.

An attempt that is lost may have stored items of which the news is lost, too. An item that another attempt makes again
is the same object; of the others nobody knows. So when a generator ends of which an attempt was lost, the head asks
about each copy of an item that it knows (directory.py).

Relies on: items of an attempt come in order, and before its end.
Guarantees: each index is given once, with one value; the consumer sees every item that was made, then the error, if
there is one, then the end.
"""

from __future__ import annotations

from dualray.shared.machines.base import Outbox, ensure
from dualray.shared.machines.owner.lineage import Lineage
from dualray.shared.machines.owner.task_records import Stream, TaskRecord, current
from dualray.shared.machines.owner.value import Failure, Value
from dualray.shared.machines.owner.values import Values
from dualray.shared.model.commands import DropPayload
from dualray.shared.model.errors import ErrorInfo, ErrorKind
from dualray.shared.model.events import (
    ItemReported,
    ItemsDoubted,
    ItemsRead,
    ItemTaken,
    ObjectFailed,
    ObjectsFreed,
    ResultsTaken,
)
from dualray.shared.model.ids import (
    HEAD,
    Address,
    ObjectID,
    TaskID,
    return_index,
    return_object_id,
    short,
    stream_handle_id,
)
from dualray.shared.model.specs import Streaming
from dualray.shared.model.states import TaskState, ValueState

NO_MORE = ErrorInfo(kind=ErrorKind.OBJECT_LOST, message="There is no such item: the generator has ended before it.")
_SAID_AT_THE_END = (ErrorKind.APPLICATION, ErrorKind.TASK_CANCELLED)
"""What a generator has ended with that has come to its end: the news of its items was before that."""


class Streams:
    """See the module. Part of `Tasks`, which knows when a task ends and runs again."""

    def __init__(
        self,
        *,
        out: Outbox,
        values: Values,
        records: dict[TaskID, TaskRecord],
        lineage: Lineage,
        results_to_acknowledge: list[tuple[Address, ResultsTaken]],
    ) -> None:
        self.out = out
        self.values = values
        self.records = records
        self.lineage = lineage
        self.results_to_acknowledge = results_to_acknowledge
        self.consumed: dict[TaskID, Stream] = {}
        """Those with a consumer."""

    def begin(self, record: TaskRecord) -> None:
        """A generator was called."""
        task_id = record.spec.task_id
        is_dynamic = record.spec.template.streaming is Streaming.DYNAMIC
        stream = record.stream = Stream(has_consumer=not is_dynamic)
        if not is_dynamic:
            self.consumed[task_id] = stream
            handle = self.values.references.owned(stream_handle_id(task_id))
            handle.stream = task_id
            handle.local_refs += 1
            self._item(task_id, 1).local_refs += 1

    def _item(self, task_id: TaskID, index: int) -> Value:
        """The entry of an item."""
        object_id = return_object_id(task_id, index)
        value = self.values.table.get(object_id)
        if value is None:
            value = self.values.references.owned(object_id)
            record = self.records.get(task_id)
            if record is not None:
                record.returns_kept += 1
        return value

    # ---- The consumer ----------------------------------------------------------------------------------------

    def has_ended_before(self, task_id: TaskID, index: int) -> bool:
        """Whether there is no item of this index, and never will be."""
        stream = self.consumed.get(task_id)
        return stream is not None and stream.has_ended and index > stream.reported

    def on_taken(self, event: ItemTaken) -> None:
        """The consumer has got the next item, and wants the one behind it."""
        stream = self.consumed[event.task_id]
        stream.next += 1
        value = self._item(event.task_id, stream.next)
        value.local_refs += 1
        if stream.next <= stream.reported:
            value.container_uses -= 1  # from now on the consumer holds it
        elif stream.has_ended:
            self._end_at(event.task_id, stream)
        record = self.records.get(event.task_id)
        if record is not None and record.spec.template.items_ahead_max:
            self._tell(record, stream)

    def drop(self, task_id: TaskID) -> None:
        """Nobody takes items any more."""
        stream = self.consumed.pop(task_id)
        self._let_go(task_id, stream, stream.next + 1)
        record = self.records.get(task_id)
        if record is not None and (record.spec.template.items_ahead_max or self._is_unwanted(record, stream)):
            self._tell(record, stream)

    def _let_go(self, task_id: TaskID, stream: Stream, first: int) -> None:
        """Of the items that the stream holds."""
        stream.is_held = False
        for index in range(first, stream.reported + 1):
            value = self.values.table[return_object_id(task_id, index)]
            value.container_uses -= 1
            self.values.references.release(value)

    def _is_unwanted(self, record: TaskRecord, stream: Stream) -> bool:
        """Whether nobody waits for anything that the task has still to make."""
        if stream.is_held or stream.lost:
            return False
        if stream.until > (stream.passed if stream.attempt == record.attempt else 0):
            return False
        end = self.values.table.get(return_object_id(record.spec.task_id, 0))
        return end is None or end.state is not ValueState.PENDING or not end.held

    def _tell(self, record: TaskRecord, stream: Stream) -> None:
        """The worker is told how far the consumer is."""
        if record.state is TaskState.PUSHED and record.worker is not None:
            is_wanted = not self._is_unwanted(record, stream)
            if not is_wanted:
                stream.closed = record.attempt
            is_waited_for = stream.is_held and not self._is_behind(record, stream)
            message = ItemsRead(
                task_id=record.spec.task_id,
                attempt=record.attempt,
                taken=stream.next - 1 if is_waited_for else 1 << 62,
                is_wanted=is_wanted,
            )
            self.out.send(record.worker, message)

    @staticmethod
    def _is_behind(record: TaskRecord, stream: Stream) -> bool:
        """Whether an item was lost that this attempt has made already."""
        return stream.attempt == record.attempt and any(index <= stream.passed for index in stream.lost)

    def _close(self, event: ItemReported) -> None:
        """Nobody waits for this attempt any more; it may have been told before it had made anything, or never."""
        closed = ItemsRead(task_id=event.task_id, attempt=event.attempt, taken=1 << 62, is_wanted=False)
        self.out.send(event.worker, closed)

    # ---- The task --------------------------------------------------------------------------------------------

    def on_reported(self, event: ItemReported) -> None:
        """A worker has made an item."""
        record = current(self.records, event.task_id, event.attempt, event.worker)
        object_id, index = event.result.object_id, return_index(event.result.object_id)
        if event.result.nested:
            taken = ResultsTaken(task_id=event.task_id, attempt=event.attempt, index=index)
            self.results_to_acknowledge.append((event.worker, taken))
            self.out.needs_drain = True
        stream = record.stream if record is not None else None
        if record is None or stream is None:
            self._drop(event, self.values.table.get(object_id))
            self._close(event)
            return
        if stream.attempt != event.attempt:
            stream.attempt, stream.passed = event.attempt, 0
        stream.passed = index
        stream.has_stored = stream.has_stored or not event.result.inline
        if index > stream.reported and not stream.has_ended:
            stream.reported = index
            if stream.is_held:
                value = self._item(event.task_id, index)
                if index != stream.next:
                    value.container_uses += 1
        self._accept(record, event)
        stream.lost.pop(index, None)
        is_news = index < stream.next or not stream.is_held  # for an attempt that knows nothing of it
        if (is_news and record.spec.template.items_ahead_max) or self._is_unwanted(record, stream):
            self._tell(record, stream)

    def _accept(self, record: TaskRecord, event: ItemReported) -> None:
        result = event.result
        value = self.values.table.get(result.object_id)
        if value is None or value.state is not ValueState.PENDING:
            self._drop(event, value)
        elif event.error is not None:
            failure = value.failed_with = Failure(event.task_id, record.spec.template.name, event.error)
            failure.carriers = 1
            self._fail(value, event.error)
        elif result.inline:
            self.values.set_inline(value, result.size_bytes, result.nested)
        else:
            value.is_last = record.retries_left == 0
            self.values.set_stored(value, result.size_bytes, event.worker, result.nested)

    def _drop(self, event: ItemReported, value: Value | None) -> None:
        """Nobody waits for what has come: it was there, or is wanted no more, or its attempt was given up."""
        result = event.result
        if result.inline:
            if value is None or value.state not in (ValueState.INLINE, ValueState.FAILED):
                self.out.add(DropPayload(key=result.object_id))
        elif value is None or value.state is ValueState.FAILED:
            self.out.send(HEAD, ObjectsFreed(object_ids=(result.object_id,)))

    def finish(self, record: TaskRecord) -> TaskRecord | None:
        """The generator has returned. The record, if the task is to run once more: for items that were lost too late
        for this attempt to make them again."""
        stream = record.stream
        assert stream is not None
        if stream.attempt != record.attempt:  # it has made nothing
            stream.attempt, stream.passed = record.attempt, 0
        self._end(record, stream)
        if record.attempt:
            self._doubt(record)
        if not stream.lost:
            return None
        lost = self._still_lost(record.spec.task_id, stream)
        is_closed = stream.closed == record.attempt
        missed = {index: value for index, value in lost.items() if index <= stream.passed or is_closed}
        counted = [value for index, value in missed.items() if not stream.lost[index]]
        why_not = self.lineage.why_not_again(record, counted, is_eviction=record.is_evicted) if missed else None
        stream.lost = {} if why_not is not None else dict.fromkeys(missed, False)
        for index, value in lost.items():
            if index not in missed:
                self._give_up(
                    value, f"{record.spec.template.name} yielded only {stream.passed} items when it ran again"
                )
            elif why_not is not None:
                self._give_up(value, why_not)
        return record if stream.lost else None

    def _still_lost(self, task_id: TaskID, stream: Stream) -> dict[int, Value]:
        """The items that are being made again, and are not there, as long as somebody wants them."""
        found = ((index, self.values.table.get(return_object_id(task_id, index))) for index in stream.lost)
        return {index: value for index, value in found if value is not None and value.state is ValueState.PENDING}

    def _doubt(self, record: TaskRecord) -> None:
        """An attempt was lost, perhaps with the news of items that it had stored, and no other one has made them."""
        self.out.send(HEAD, ItemsDoubted(task_id=record.spec.task_id))

    def _give_up(self, value: Value, why: str) -> None:
        message = f"Object {short(value.object_id)} was lost and cannot be recomputed: {why}."
        self._fail(value, ErrorInfo(kind=ErrorKind.RECONSTRUCTION_FAILED, message=message))

    def _fail(self, value: Value, error: ErrorInfo) -> None:
        """An item is not there, or not any more: nodes that wait for a copy would wait for ever."""
        if value.demanded:
            self.out.send(HEAD, ObjectFailed(object_id=value.object_id, error=error))
        self.values.set_failed(value, error)

    def failing(self, record: TaskRecord, error: ErrorInfo) -> list[ObjectID]:
        """The task has failed for good: the items that are to carry its error."""
        stream = record.stream
        assert stream is not None
        task_id = record.spec.task_id
        carriers = [return_object_id(task_id, index) for index in stream.lost]
        stream.lost = {}
        if stream.next and stream.is_held and not stream.has_ended:
            stream.reported += 1
            value = self._item(task_id, stream.reported)
            if stream.reported != stream.next:
                value.container_uses += 1
            carriers.append(value.object_id)
        self._end(record, stream)
        if record.attempt or record.again or (record.was_pushed and error.kind not in _SAID_AT_THE_END):
            self._doubt(record)
        return carriers

    def _end(self, record: TaskRecord, stream: Stream) -> None:
        if stream.has_ended:
            return
        stream.has_ended = True
        if stream.next:
            self._end_at(record.spec.task_id, stream)
        else:
            self._let_go(record.spec.task_id, stream, 1)

    def _end_at(self, task_id: TaskID, stream: Stream) -> None:
        """If the consumer waits for more than there is, tell it."""
        value = self.values.table.get(return_object_id(task_id, stream.reported + 1))
        if value is not None and value.state is ValueState.PENDING:
            self.values.set_failed(value, NO_MORE)

    # ---- Items that were lost --------------------------------------------------------------------------------

    def note_lost(self, record: TaskRecord, value: Value, *, is_held_up: bool, was_evicted: bool) -> None:
        """The value is being made again by the task that runs."""
        assert record.stream is not None
        record.is_evicted = was_evicted and (record.is_evicted or not record.stream.lost)
        index = return_index(value.object_id)
        if index:
            record.stream.lost[index] = is_held_up
            is_held_back = record.spec.template.items_ahead_max and self._is_behind(record, record.stream)
            if record.stream.closed == record.attempt or is_held_back:  # it may be in time to go on
                self._tell(record, record.stream)

    def run_again(self, record: TaskRecord, wanted: Value | None, *, is_eviction: bool) -> None:
        """The task is about to run again: for `wanted`, and for what of its items was freed, and may be needed."""
        stream = record.stream
        assert stream is not None
        stream.until = 0
        for index in range(1, stream.reported + 1):
            value = self.values.table.get(return_object_id(record.spec.task_id, index))
            if value is not None and value.state is ValueState.STORED and not is_eviction:
                stream.until = index
            if value is None or not (value is wanted or value.state is ValueState.FREED):
                continue
            if value.state is not ValueState.PENDING:
                self.values.set_remaking(value)
            stream.lost[index] = False

    def check_invariants(self) -> None:
        for task_id, stream in self.consumed.items():
            ensure(stream_handle_id(task_id) in self.values.table, "the stream of task {} has no consumer", task_id)
            ensure(
                return_object_id(task_id, stream.next) in self.values.table
                or not self.values.table[stream_handle_id(task_id)].local_refs
                or stream.next <= stream.reported
                or stream.has_ended,
                "the stream of task {} waits for nothing",
                task_id,
            )
