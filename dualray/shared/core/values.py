"""Values: put, get and wait, and the bytes behind them, here or in the node's store."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dualray.exceptions import DualrayError, GetTimeoutError, ReferenceEndedError
from dualray.shared.core.cluster_queries import CoreQueries
from dualray.shared.core.explain_pending import why_late, why_late_elsewhere
from dualray.shared.core.failures import as_argument_error, as_exception, is_of_argument, names_of, passed_by
from dualray.shared.core.layout import Serialized, deserialize, deserialize_all
from dualray.shared.core.serialization import serialize
from dualray.shared.core.state import PendingWait
from dualray.shared.model.events import (
    ItemTaken,
    PromiseKept,
    PutAbandoned,
    SpaceWanted,
    ValuePromised,
    ValuePut,
    WaitStarted,
)
from dualray.shared.model.ids import (
    Address,
    ObjectID,
    WaitID,
    put_object_id,
    return_index,
    return_object_id,
    short,
    task_of,
)
from dualray.shared.model.specs import Ref, new_ref
from dualray.shared.model.states import ValueState
from dualray.shared.proof.trace import TraceKind


class _Callback:
    """A signal that nobody waits for."""

    __slots__ = ("set",)

    def __init__(self, ready: Callable[[], None]) -> None:
        self.set = ready

    def wait(self) -> None:
        raise AssertionError(
            "a waiter with a callback cannot block: dualray calls the callback when the value is ready"
        )


class CoreValues(CoreQueries):
    """Stores and reads values. The machine decides where their bytes are and when they go."""

    # ---- Put -----------------------------------------------------------------------------------------------

    def put(self, value: Any) -> Ref:
        """Store a value; the reference to it."""
        return self._put(serialize(value))

    def promise(self) -> Ref:
        """A reference to a value that this process will give later, with `keep_promise`."""
        object_id = self._new_put_id()
        self.dispatch(ValuePromised(object_id=object_id))
        return Ref(object_id, self.address)

    def keep_promise(self, ref: Ref, value: Any) -> None:
        """Give a promised value; whoever waits for it goes on. The caller still holds the reference."""
        serialized = serialize(value)
        inline = self._place_bytes(ref.object_id, serialized)
        self.dispatch(
            PromiseKept(
                object_id=ref.object_id, size_bytes=serialized.size_bytes, inline=inline, nested=serialized.refs
            )
        )

    def is_held_elsewhere(self, ref: Ref) -> bool:
        """Whether, as far as this process knows, others still hold or are about to get a reference to its object."""
        with self.host.lock:
            self._take_in_finalizers()
            value = self.machine.known_values.get(ref.object_id)
            held = value is not None and bool(value.borrowers or value.transit_uses or value.container_uses)
            self.host.end_step()
        return held

    def find(self, object_id: bytes) -> Ref | None:
        """The reference to an object of which this process holds one; None: it holds none."""
        with self.host.lock:
            self._take_in_finalizers()
            value = self.machine.known_values.get(ObjectID(object_id))
            owner = value.owner if value is not None and value.local_refs else None
            self.host.end_step()
        return None if owner is None else Ref(ObjectID(object_id), owner)

    def _new_put_id(self) -> ObjectID:
        with self.host.lock:
            execution = self.execution
            execution.puts += 1
            return put_object_id(execution.task_id, execution.attempt, execution.puts)

    def _place_bytes(self, object_id: ObjectID, serialized: Serialized, *, is_argument: bool = False) -> bool:
        """Keep the bytes of a value that is put: here (True) or, large ones, in the node's store."""
        inline = serialized.size_bytes <= self.config.inline_bytes_max
        if inline:
            self.payloads[object_id] = serialized.to_bytes()
        else:
            self.write_to_store(object_id, serialized, self.address, remakeable=False, is_argument=is_argument)
        return inline

    def _put_argument(self, serialized: Serialized) -> Ref:
        return self._put(serialized, is_argument=True)

    def _put(self, serialized: Serialized, *, is_argument: bool = False) -> Ref:
        if serialized.size_bytes <= self.config.inline_bytes_max:
            return self._put_small(serialized)
        object_id = self._new_put_id()
        try:
            inline = self._place_bytes(object_id, serialized, is_argument=is_argument)
            self.dispatch(
                ValuePut(object_id=object_id, size_bytes=serialized.size_bytes, inline=inline, nested=serialized.refs)
            )
        except KeyboardInterrupt:
            if serialized.size_bytes > self.config.inline_bytes_max:
                self.dispatch(PutAbandoned(object_id=object_id))
            raise
        return Ref(object_id, self.address)

    def _put_small(self, serialized: Serialized) -> Ref:
        data, host = serialized.to_bytes(), self.host
        with host.lock:
            execution = self.execution
            execution.puts += 1
            object_id = put_object_id(execution.task_id, execution.attempt, execution.puts)
            self.payloads[object_id] = data
            if self._ran or self._dropped or self._released or self.has_notes or self.is_logged or serialized.refs:
                self.dispatch(
                    ValuePut(object_id=object_id, size_bytes=serialized.size_bytes, inline=True, nested=serialized.refs)
                )
            else:
                self.machine.put_small(object_id, serialized.size_bytes)
        return new_ref((object_id, self.address))

    def write_to_store(
        self,
        object_id: ObjectID,
        serialized: Serialized,
        owner: Address,
        *,
        remakeable: bool,
        is_argument: bool = False,
        remake_ns: int = 0,
    ) -> None:
        """Reserve room in this node's store, waiting for it if need be, and write the bytes; sealing is the caller's.
        `remake_ns` as in SpaceWanted.

        Raises:
            ObjectStoreFullError: no room; the message names the largest holders.
        """
        if is_argument and self._take_kept_room(object_id, serialized):
            return
        wait = self._wait_for(
            SpaceWanted(
                wait_id=self._next_wait(),
                object_id=object_id,
                size_bytes=serialized.size_bytes,
                owner=owner,
                remakeable=remakeable,
                is_argument=is_argument,
                remake_ns=remake_ns,
            )
        )
        if wait.error is not None:
            raise as_exception(self.view_sites.with_holders(wait.error, self.machine.views), None)
        if wait.ready:  # otherwise an earlier attempt has left the same object here
            store = self.host.store
            place = self.machine.place_of_argument(object_id) if is_argument else None
            if place is not None:  # it is no object of the store's yet
                serialized.write_into(store.create_at(place, serialized.size_bytes), store.copy)
                return
            size_bytes = serialized.size_bytes
            is_sparse = size_bytes > serialized.written_bytes()
            serialized.write_into(store.create(object_id, size_bytes, is_sparse=is_sparse), store.copy)
            store.seal(object_id)
            self.host.trace(TraceKind.OBJECT_STORED, object_id, amount=size_bytes)

    def _take_kept_room(self, object_id: ObjectID, serialized: Serialized) -> bool:
        """Write an argument where this process keeps room, if it does: as a SpaceWanted that leads to no message, where
        nobody logs events."""
        host = self.host
        with host.lock:
            if self._dropped or self._ran or self._released or self._has_ended or self.has_notes or self.is_logged:
                return False  # what is taken in first may decide, or hear of it
            place = self.machine.take_kept_room(object_id, serialized.size_bytes)
        if place is None:
            return False
        serialized.write_into(host.store.create_at(place, serialized.size_bytes), host.store.copy)
        return True

    # ---- Get and wait --------------------------------------------------------------------------------------

    def get(self, refs: Sequence[Ref], timeout_ns: int | None) -> list[Any]:
        """The values, in order.

        Raises:
            GetTimeoutError: not all were ready in time.
            DualrayError: the first one, in order, that has failed.
        """
        ready = self._get_inline(refs)
        if ready is not None:
            return ready
        distinct = tuple(dict.fromkeys(refs)) if len(refs) > 1 else (refs[0],)
        wait = self._wait_for(
            WaitStarted(
                wait_id=self._next_wait(),
                refs=distinct,
                num_ready=len(distinct),
                fetch=True,
                read=True,
                timeout_ns=timeout_ns,
                task_id=self._waiting_task(),
            ),
            is_read=True,
        )
        ready = self._get_inline(refs)
        if ready is not None:
            return ready
        values = dict(zip(wait.ready, self.read_all(wait.ready), strict=True))
        if len(values) < len(distinct):
            if timeout_ns == 0:
                self.host.on_empty_poll()
            raise self._timed_out(distinct, values, timeout_ns)
        return [values[ref.object_id] for ref in refs]

    def wait_async(self, ref: Ref, ready: Callable[[], None]) -> Awaited:
        """As `get_async`, until it is known how an object has ended: it is not read, and need not be here."""
        event = WaitStarted(
            wait_id=self._next_wait(), refs=(ref,), num_ready=1, fetch=False, task_id=self._waiting_task()
        )
        wait = PendingWait(_Callback(ready))
        self._begin_wait(event, wait)
        return Awaited(self, event.wait_id, wait)

    def get_async(self, ref: Ref, ready: Callable[[], None]) -> Awaited:
        """Begin to wait for a value. `ready` is called once, from any thread and in the middle of a step: it must not
        wait, and do no more than have `Awaited.result` called, where user code runs."""
        event = WaitStarted(
            wait_id=self._next_wait(), refs=(ref,), num_ready=1, fetch=True, read=True, task_id=self._waiting_task()
        )
        wait = PendingWait(_Callback(ready), is_read=True)
        self._begin_wait(event, wait)
        return Awaited(self, event.wait_id, wait)

    def _get_inline(self, refs: Sequence[Ref]) -> list[Any] | None:
        """The values, when all are small and here: then there is nothing to decide, and nothing changes by reading."""
        table, payloads = self.machine.known_values, self.payloads
        for object_id, _ in refs:
            value = table.get(object_id)
            if value is None or value.state is not ValueState.INLINE:
                return None
        if len(refs) == 1:
            return [deserialize(payloads[refs[0].object_id])]
        ids = [object_id for object_id, _ in refs]
        if len(set(ids)) == len(ids):
            return deserialize_all([payloads[object_id] for object_id in ids])
        read = {object_id: deserialize(payloads[object_id]) for object_id in dict.fromkeys(ids)}
        return [read[object_id] for object_id in ids]

    def read_all(self, object_ids: Sequence[ObjectID]) -> list[Any]:
        """The values of objects that are in reach, pinned for one read each.

        Raises:
            DualrayError: the first one, in order, that has failed.
        """
        if not object_ids:
            return []
        unread = deque(object_ids)
        values = []
        try:
            while unread:
                values.append(self._read(unread.popleft()))
        finally:
            self._release_unread(unread)
        return values

    def _read(self, object_id: ObjectID) -> Any:
        value = self.machine.known_values.get(object_id)
        if value is None:  # another thread has shut the cluster down since the wait was over
            self._check_it_goes_on()
            raise ReferenceEndedError(
                f"object {short(object_id)} belongs to a cluster that was shut down while this thread read the object: "
                f"create the object again after dualray.init()"
            )
        if value.state is ValueState.INLINE:
            return deserialize(self.payloads[object_id])
        if value.failure is not None:
            carried = value.failed_with
            if carried is not None and is_of_argument(value.failure, is_own=carried.task_id == task_of(object_id)):
                raise as_argument_error((*names_of(value.failed_through), carried.name), value.failure)
            failure = self.view_sites.with_holders(value.failure, self.machine.views)
            # No variable here holds the error: with its traceback it would keep what the caller's frames hold.
            raise passed_by(
                names_of(value.failed_through),
                as_exception(failure, self.payloads.get(object_id), task_of(object_id)),
            )
        self.view_sites.note(object_id, value.size_bytes, self.machine.views)
        return deserialize(self._open(object_id))

    def _open(self, object_id: ObjectID) -> memoryview:
        loan = self.machine.loans.get(object_id)
        if loan is not None:
            return self.host.store.open_at(loan.place, loan.size_bytes, object_id, self._on_view_released)
        return self.host.store.open(object_id, self._on_view_released)

    def _timed_out(
        self, refs: Sequence[Ref], values: Mapping[ObjectID, Any], timeout_ns: int | None
    ) -> GetTimeoutError:
        missing = [ref.object_id for ref in refs if ref.object_id not in values]
        # Who asks what is there now, time and again, is not made to wait for reasons.
        reason = why_late(self, missing[0]) if timeout_ns else self.machine.why_not_ready(missing[0])
        seconds = (timeout_ns or 0) / 1e9
        return GetTimeoutError(
            f"{len(missing)} of {len(refs)} objects were not ready within {seconds:g} s; the first: {reason}"
        )

    def explain(self, ref: Ref) -> str:
        """In words, what a value waits for that is not there."""
        is_known = ref.owner == self.address or ref.object_id in self.machine.known_values
        return why_late(self, ref.object_id) if is_known else why_late_elsewhere(self, ref)

    def wait(
        self, refs: Sequence[Ref], *, num_returns: int, timeout_ns: int | None, fetch_local: bool
    ) -> frozenset[ObjectID]:
        """The objects that are ready when `num_returns` of them are, or at the timeout."""
        wait = self._wait_for(
            WaitStarted(
                wait_id=self._next_wait(),
                refs=tuple(refs),
                num_ready=num_returns,
                fetch=fetch_local,
                timeout_ns=timeout_ns,
                task_id=self._waiting_task(),
            )
        )
        if timeout_ns == 0 and len(wait.ready) < num_returns:
            self.host.on_empty_poll()
        return frozenset(wait.ready)

    # ---- Generators ----------------------------------------------------------------------------------------

    def has_ended_before(self, item: Ref) -> bool:
        """Whether a generator that this process has called has ended before an item."""
        with self.host.lock:
            task_id, index = task_of(item.object_id), return_index(item.object_id)
            return self.machine.has_ended_before(task_id, index)

    def take_item(self, item: Ref) -> tuple[bool, Ref | None]:
        """Take the next item of a generator that this process has called. Return whether it was taken now, and a
        reference to the one behind it, or None when the items have ended before it. (Another thread may have taken it.)
        """
        with self.host.lock:
            task_id, index = task_of(item.object_id), return_index(item.object_id)
            machine = self.machine
            stream = machine.consumed_stream(task_id)
            if stream is None or stream.next != index:
                return False, item
            if machine.has_ended_before(task_id, index):
                return True, None
            self.dispatch(ItemTaken(task_id=task_id))
            return True, Ref(return_object_id(task_id, index + 1), self.address)


class Awaited:
    """A value that somebody waits for without blocking; see `CoreValues.get_async`."""

    __slots__ = ("_core", "_is_over", "_wait", "_wait_id")

    def __init__(self, core: CoreValues, wait_id: WaitID, wait: PendingWait) -> None:
        self._core = core
        self._wait_id = wait_id
        self._wait = wait
        self._is_over = False

    @property
    def is_ready(self) -> bool:
        """Whether `result` has what it needs."""
        return self._wait.is_done

    def result(self) -> Any:
        """The value, once.

        Raises:
            DualrayError: it has failed, or the runtime has ended.
        """
        self._is_over = True
        if not self._wait.is_done:
            raise DualrayError(self._core.end_reason)
        [value] = self._core.read_all(self._wait.ready)
        return value

    def abandon(self) -> None:
        """Nobody waits any more. Idempotent, and harmless after `result`."""
        if not self._is_over and not self._core.is_closed:
            self._is_over = True
            self._core.abandon(self._wait_id, self._wait)
