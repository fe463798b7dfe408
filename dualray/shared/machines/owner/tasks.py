"""The tasks that one process has submitted: from the call to the result, through retries and reconstruction.

Theory of operation. A submitted task waits until its arguments are ready (WAITING_ARGS), then queues for a lease, or in
its actor's order (QUEUED), is pushed (PUSHED) and ends FINISHED or FAILED. An argument that failed fails the task. What
ends an attempt without a result goes to the retry policy. A record outlives its task while lineage needs it: as long as
one of its results is held, or something made from its results may have to be made again.

Lineage. When a result is demanded and no copy exists, the tasks run again that lineage.py plans; their attempts rise,
and results of earlier attempts that come late are told by attempt and worker, and dropped. A demand says how often the
last known copy has gone, so that one that was answered already is known. When none has gone, the news of the copy is on
its way, unless it died with the process that sealed it: then the head is asked once more, and believed.

When the copies of a result are given up because none could be brought to a node (lineage.py), the head demands it and
names the node: the tasks of the plan run there, if their strategy leaves that open and the node could ever take them,
else in its reach.

Relies on: leases.py and actor_calls.py for a place to run; values.py for the arguments.
Guarantees: every task accepted reaches FINISHED or FAILED exactly once, unless a lost result makes it run again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from dualray.exceptions import InvariantViolation
from dualray.shared.machines.base import Outbox, ensure
from dualray.shared.machines.owner.garbage import Garbage
from dualray.shared.machines.owner.lineage import Lineage
from dualray.shared.machines.owner.streams import Streams
from dualray.shared.machines.owner.task_records import ATTEMPTS_MAX, TaskRecord, attempt_row, cancelled, task_row
from dualray.shared.machines.owner.value import Failure, Value
from dualray.shared.machines.owner.values import Values
from dualray.shared.model.commands import CopyPayload, DropPayload, NoteRetry, WriteRecord
from dualray.shared.model.config import Config
from dualray.shared.model.errors import ErrorInfo, ErrorKind
from dualray.shared.model.events import (
    ActorFailed,
    ObjectDemanded,
    ObjectFailed,
    ObjectsFreed,
    Outcome,
    Result,
    ResultsTaken,
    TaskFinished,
    TasksFinished,
)
from dualray.shared.model.ids import (
    HEAD,
    ActorID,
    Address,
    LeaseID,
    ObjectID,
    TaskID,
    actor_handle_id,
    exception_id,
    is_put,
    return_object_id,
    short,
    task_of,
)
from dualray.shared.model.specs import ObjectHint, Ref, TaskSpec
from dualray.shared.model.states import TASK, TaskState, ValueState
from dualray.shared.policies import load_policy
from dualray.shared.policies.reconstruction import Plan
from dualray.shared.policies.retry import RETRY_FOREVER, RetryPolicy


def _alive(actor: ActorID) -> ErrorInfo | None:
    return None


class Tasks:
    """See the module."""

    def __init__(
        self,
        *,
        out: Outbox,
        address: Address,
        values: Values,
        config: Config,
    ) -> None:
        self.out = out
        self.address = address
        self.values = values
        self.garbage = Garbage(out=out, address=address, table=values.table, interval_ns=config.garbage_ns)
        self.retry: RetryPolicy = load_policy(config.retry_policy)
        self.records: dict[TaskID, TaskRecord] = {}
        self.lineage = Lineage(
            out=out,
            address=address,
            values=values,
            records=self.records,
            reconstruction=load_policy(config.reconstruction_policy),
            remakes_max=config.remakes_without_progress_max,
        )
        self.results_to_acknowledge: list[tuple[Address, ResultsTaken]] = []
        self.streams = Streams(
            out=out,
            values=values,
            records=self.records,
            lineage=self.lineage,
            results_to_acknowledge=self.results_to_acknowledge,
        )
        self.newest_result: ObjectID | None = None
        """Of the call that stands alone, has one result and was submitted last: a runner that keeps the very object
        that is the key here has it found sooner."""
        self.why_dead: Callable[[ActorID], ErrorInfo | None] = _alive
        """Why an actor is dead that this process has called."""
        # Worklist that the owner machine drains.
        self.ready: deque[TaskID] = deque()
        self.given_back: list[TaskID] = []
        """Tasks that were pushed, and are to be placed again."""

    # ---- Submission ------------------------------------------------------------------------------------------

    def submit(self, spec: TaskSpec) -> TaskRecord:
        """Accept a task: its results exist as PENDING objects with one local reference each. One without
        dependencies is QUEUED at once, and the caller's to place."""
        task_id = spec.task_id
        if task_id in self.records:
            raise InvariantViolation(f"task {short(task_id)} was submitted twice")
        if spec.template.has_one_result and not (spec.deps or spec.nested or spec.creates):
            return self._submit_alone(spec)
        record = self.records[task_id] = TaskRecord(spec)
        if spec.creates is not None and spec.creates.is_detached:
            self.values.references.add((Ref(actor_handle_id(spec.creates.actor_id), HEAD),))
        elif spec.creates is not None:
            handle = self.values.references.owned(actor_handle_id(spec.creates.actor_id))
            handle.actor = spec.creates.actor_id
            handle.local_refs += 1
            record.returns_kept = 1
        else:
            num_returns = record.returns_kept = spec.template.num_returns
            values = self.values
            for index in range(num_returns):
                values.references.owned(return_object_id(task_id, index)).local_refs += 1
            if spec.template.streaming:
                self.streams.begin(record)
        if spec.deps:
            self._await_arguments(record)
            return record
        if spec.nested or spec.actor_handle is not None:
            self._hold_arguments(record)
        self._set_state(record, TaskState.QUEUED)
        return record

    def _submit_alone(self, spec: TaskSpec) -> TaskRecord:
        """`submit` of what most programs do most of the time."""
        values, task_id = self.values, spec.task_id
        record = self.records[task_id] = TaskRecord(spec, TaskState.QUEUED, 1)
        object_id = return_object_id(task_id, 0)
        if object_id in values.table:  # a reference came back
            values.references.owned(object_id).local_refs += 1
        else:
            value = record.value = values.table[object_id] = Value(object_id, self.address, ValueState.PENDING)
            value.local_refs = 1
            value.is_bare = True
        self.newest_result = object_id
        handle = spec.actor_handle
        if handle is not None:
            held = values.table.get(handle.object_id) or values.references.entry(handle)
            held.task_uses += 1
        return record

    def _hold_arguments(self, record: TaskRecord) -> None:
        values = self.values
        for ref in record.argument_refs:
            value = values.table.get(ref.object_id) or values.references.entry(ref)
            value.is_bare = False
            value.task_uses += 1
            value.lineage_uses += 1
        if record.spec.actor_handle is not None:
            values.references.hold_for_task((record.spec.actor_handle,))

    def _await_arguments(self, record: TaskRecord) -> None:
        self._hold_arguments(record)
        record.missing = missing = dict[ObjectID, None]()
        for ref in record.spec.deps:
            value = self.values.table[ref.object_id]
            if not value.is_ready:
                missing[ref.object_id] = None
                value.note("waiting_tasks", record.spec.task_id)
                self.values.references.look_up(value)
        self.look_at(record.spec.task_id)

    def look_at(self, task: TaskID) -> None:
        """An argument may have become ready."""
        record = self.records.get(task)
        if record is None or record.state is not TaskState.WAITING_ARGS:
            return
        table = self.values.table
        record.missing = {object_id: None for object_id in record.missing if not table[object_id].is_ready}
        if record.missing:
            return
        failed = self._failed_argument(record)
        if failed is not None:
            self._fail_by_argument(record, failed)
            return
        self._set_state(record, TaskState.QUEUED)
        self.ready.append(task)
        self.out.needs_drain = True

    def _failed_argument(self, record: TaskRecord) -> Value | None:
        for ref in record.spec.deps:
            value = self.values.table[ref.object_id]
            if value.state is ValueState.FAILED:
                return value
        return None

    def _fail_by_argument(self, record: TaskRecord, argument: Value) -> None:
        assert argument.error is not None
        of_actor = self.why_dead(record.spec.actor_id) if record.spec.actor_id is not None else None
        if of_actor is not None:
            self.fail(record, of_actor)  # whatever becomes of the call's arguments
        else:
            self.fail(record, argument.error, payload=argument.object_id)

    def refuse(self, task: TaskID, error: ErrorInfo) -> None:
        """No node runs the task, for this reason: an argument has failed meanwhile, or no node can ever take it."""
        record = self.records[task]
        failed = self._failed_argument(record)
        if failed is not None:
            self._fail_by_argument(record, failed)
        else:
            self.fail(record, error)

    def stored_deps(self, record: TaskRecord) -> tuple[ObjectHint, ...]:
        """The arguments that lie in the stores: calls with the same ones may share leases near them."""
        if not record.spec.deps:
            return ()
        hints = []
        for ref in record.spec.deps:
            value = self.values.table[ref.object_id]
            if value.state is ValueState.STORED and ref.object_id not in self.values.rooms.lodged:
                hints.append(ObjectHint(object_id=ref.object_id, owner=ref.owner, size_bytes=value.size_bytes))
        return tuple(hints)

    def inline_deps(self, record: TaskRecord) -> tuple[ObjectID, ...]:
        """The arguments that travel with the task."""
        if not record.spec.deps:
            return ()
        table = self.values.table
        return tuple([ref.object_id for ref in record.spec.deps if table[ref.object_id].state is ValueState.INLINE])

    # ---- Attempts --------------------------------------------------------------------------------------------

    def set_pushed(self, record: TaskRecord, worker: Address, lease_id: LeaseID | None) -> None:
        if record.state is TaskState.QUEUED:
            record.state = TaskState.PUSHED  # QUEUED -> PUSHED, without a call: every task goes this way
        else:
            self._set_state(record, TaskState.PUSHED)
        record.worker = worker
        record.lease_id = lease_id
        record.was_pushed = True

    def set_queued(self, record: TaskRecord) -> None:
        """A push was given back without having started, or is to be repeated."""
        self._set_state(record, TaskState.QUEUED)
        record.worker = record.lease_id = None

    def attempt_lost(self, record: TaskRecord, error: ErrorInfo, *, payload: ObjectID | None = None) -> bool:
        """An attempt ended without a result. True: it is queued again; False: the task has failed."""
        if record.is_cancelled:
            if error.kind is not ErrorKind.APPLICATION:
                error = cancelled(record.spec)
            self.fail(record, error, payload=payload)
            return False
        again = self.retry.should_retry(
            kind=error.kind,
            retries_left=record.retries_left,
            retry_exceptions=record.spec.template.retry_exceptions and not error.is_final,
        )
        if not again:
            if record.spec.template.max_retries and record.retries_left == 0:
                tries = record.spec.template.max_retries + 1
                error = ErrorInfo(kind=error.kind, message=f"{error.message} It was tried {tries} times.")
            self.fail(record, error, payload=payload)
            return False
        if payload is not None:
            self.out.add(DropPayload(key=payload))
        self._keep_attempt(record, TaskState.FAILED, error)
        self._use_attempt(record, "retry")
        self.set_queued(record)
        return True

    def _keep_attempt(self, record: TaskRecord, state: TaskState, error: ErrorInfo | None = None) -> None:
        if record.attempt < ATTEMPTS_MAX:
            self.out.add(attempt_row(record, state, error))

    def _use_attempt(self, record: TaskRecord, reason: str, *, is_free: bool = False) -> None:
        if record.retries_left != RETRY_FOREVER:
            record.retries_left -= 0 if is_free else 1
        record.attempt += 1
        record.value = None
        self.out.add(NoteRetry(task_id=record.spec.task_id, attempt=record.attempt, reason=reason))

    def drop_late(self, event: TaskFinished) -> None:
        """Late news of an attempt that was given up: its bytes are not needed, unless an earlier result is in use."""
        if event.error is not None and event.error.has_exception:
            self.out.add(DropPayload(key=exception_id(event.task_id)))
        for result in event.results:
            value = self.values.table.get(result.object_id)
            if result.inline and (value is None or value.state in (ValueState.PENDING, ValueState.FREED)):
                self.out.add(DropPayload(key=result.object_id))
            elif not result.inline and (value is None or value.state is ValueState.FAILED):
                self.free(result.object_id)
        if any(result.nested for result in event.results):
            self.out.send(event.worker, ResultsTaken(task_id=event.task_id, attempt=event.attempt))

    def drop_late_outcome(self, event: TasksFinished, outcome: Outcome) -> None:
        """`drop_late` of one of several calls."""
        task, attempt, size_bytes, duration_ns = outcome
        result = Result(object_id=return_object_id(task, 0), size_bytes=size_bytes, inline=True)
        late = TaskFinished(
            task_id=task,
            attempt=attempt,
            worker=event.worker,
            node=event.node,
            results=(result,),
            duration_ns=duration_ns,
        )
        self.drop_late(late)

    def finish(self, record: TaskRecord, event: TaskFinished) -> None:
        """The results are there."""
        self._set_state(record, TaskState.FINISHED)
        nested = stored = False
        for result in event.results:
            nested = nested or bool(result.nested)
            stored = stored or not result.inline
            self._accept(result, event)
        # An earlier attempt may have left a stored copy of what was small this time, or the other way round.
        stored = stored or record.attempt > 0
        if nested:
            self.results_to_acknowledge.append(
                (event.worker, ResultsTaken(task_id=event.task_id, attempt=event.attempt))
            )
            self.out.needs_drain = True
        again = None
        if record.stream is not None:
            again = self.streams.finish(record)
            stored = stored or record.stream.has_stored
        if not (stored and (record.stream or any(self._is_stored(result.object_id) for result in event.results))):
            record.returns_kept = 0  # small results are never lost: there is nothing to make again
        self._let_go_of_arguments(record)
        if again is not None:
            self._run_again(again, None, is_free=again.is_evicted)

    def finish_small(self, record: TaskRecord, size_bytes: int) -> None:
        """The one result is there, it is small, and refers to nothing."""
        record.state = TaskState.FINISHED  # PUSHED -> FINISHED, without a call: `current` has seen that it was pushed
        value = record.value
        if value is not None and value.is_bare and value.local_refs:
            self._finish_alone(record, value, size_bytes)
            return
        object_id = return_object_id(record.spec.task_id, 0)
        value = self.values.table.get(object_id)
        if value is None or value.state is ValueState.FAILED:  # as in _accept
            self.out.add(DropPayload(key=object_id))
        elif value.state is ValueState.PENDING:
            self.values.set_inline(value, size_bytes)
        if not (record.attempt and self._is_stored(object_id)):
            record.returns_kept = 0
        self._let_go_of_arguments(record)

    def _finish_alone(self, record: TaskRecord, value: Value, size_bytes: int) -> None:
        """`finish_small` of what most programs do most of the time: nothing is left of the task but its value."""
        spec = record.spec
        del self.records[spec.task_id]
        if spec.args_bytes:
            self.out.commands.append(DropPayload(key=spec.task_id))
        handle = spec.actor_handle
        if handle is not None:
            held = self.values.table[handle.object_id]
            held.task_uses -= 1
            if not held.local_refs:
                self.values.references.release(held)
        self.values.set_small(value, size_bytes)

    def _is_stored(self, object_id: ObjectID) -> bool:
        """Whether a result is in a store, or was, and may be wanted again: freed as it came, and kept for lineage."""
        value = self.values.table.get(object_id)
        return value is not None and value.state in (ValueState.STORED, ValueState.FREED)

    def _accept(self, result: Result, event: TaskFinished) -> None:
        value = self.values.table.get(result.object_id)
        if value is None or value.state is ValueState.FAILED:  # nobody wants it, or those who did were told
            if result.inline:
                self.out.add(DropPayload(key=result.object_id))
            else:
                self.free(result.object_id)
            return
        if value.state is not ValueState.PENDING:
            return  # still there from an earlier attempt with the same bytes
        if result.inline:
            self.values.set_inline(value, result.size_bytes, result.nested)
        else:
            value.is_last = not self.lineage.may_run_again(event.task_id)
            self.values.set_stored(value, result.size_bytes, event.worker, result.nested)
            if value.is_in_doubt:
                value.is_in_doubt = False
                self.values.ask_again(value)

    def free(self, object_id: ObjectID) -> None:
        """An attempt has left a sealed object, or may have, that no entry stands for."""
        self.out.send(HEAD, ObjectsFreed(object_ids=(object_id,)))

    def fail(self, record: TaskRecord, error: ErrorInfo, *, payload: ObjectID | None = None) -> None:
        """The task has failed for good; `payload` names the pickled exception, if the error has one."""
        spec = record.spec
        if spec.creates is not None and record.worker is None:
            failed = ActorFailed(actor_id=spec.creates.actor_id, owner=self.address, error=error)
            self.out.send(HEAD, failed)
        self._set_state(record, TaskState.FAILED)
        self._record_failure(record, error)
        carriers: list[Value] = []
        results = [
            return_object_id(spec.task_id, index) for index in range(0 if spec.creates else spec.template.num_returns)
        ]
        if record.stream is not None:
            results += self.streams.failing(record, error)
        for object_id in results:
            value = self.values.table.get(object_id)
            if record.was_pushed and (value is None or value.state is not ValueState.STORED):
                # A node may wait for it; or an attempt has sealed it before it came to its bad end.
                self.out.send(HEAD, ObjectFailed(object_id=object_id, error=error))
            if value is None or value.state is not ValueState.PENDING:
                continue
            if error.has_exception and payload is not None:
                self.out.add(CopyPayload(source=payload, target=object_id))
            carriers.append(value)
        self._carry(carriers, record, error, payload)
        if payload == exception_id(spec.task_id):
            self.out.add(DropPayload(key=payload))
        if results and record.stream is None and not any(self._is_stored(object_id) for object_id in results):
            record.returns_kept = 0  # an error is never lost: there is nothing to make again
        self._let_go_of_arguments(record)

    def _carry(self, carriers: list[Value], record: TaskRecord, error: ErrorInfo, payload: ObjectID | None) -> None:
        """Let the results carry the error: that of an argument, if it was one. An actor's is raised by its calls."""
        argument = self.values.table.get(payload) if payload is not None else None
        failure = argument.failed_with if argument is not None else None
        if argument is not None and failure is not None:
            through = (record.spec.template.name, argument.failed_through)
            for value in carriers:
                value.failed_through = through
        else:
            failure = Failure(record.spec.task_id, record.spec.template.name, error)
            failure.is_read = error.kind is ErrorKind.TASK_CANCELLED or any(  # who has cancelled it knows
                value.is_asked_for for value in carriers
            )
            if not (carriers or failure.is_read) and record.spec.creates is None:
                self.out.add(failure.told())
        failure.carriers += len(carriers)
        for value in carriers:
            value.failed_with = failure
        for value in carriers:
            self.values.set_failed(value, error)

    def _let_go_of_arguments(self, record: TaskRecord) -> None:
        if record.spec.deps or record.spec.nested:
            self.values.references.release_from_task(record.argument_refs)
        if record.spec.actor_handle is not None:
            self.values.references.release_from_task((record.spec.actor_handle,))
        self._drop_if_done(record)

    def _record_failure(self, record: TaskRecord, error: ErrorInfo) -> None:
        row = task_row(record.spec, record.state, record.attempt, record.worker)
        self.out.add(row)
        fields = (("kind", str(error.kind)), ("message", error.message))
        self.out.add(WriteRecord(table="errors", key=row.key, fields=fields))

    def _set_state(self, record: TaskRecord, state: TaskState) -> None:
        if state not in TASK.table[record.state]:
            TASK.check(record.state, state, record.spec.task_id, record.story())
        record.state = state

    # ---- Lineage ---------------------------------------------------------------------------------------------

    def on_return_gone(self, object_id: ObjectID) -> None:
        """The entry of a result is gone: nobody will ask for it again."""
        record = None if is_put(object_id) else self.records.get(task_of(object_id))
        if record is not None:
            record.returns_kept -= 1
            self._drop_if_done(record)

    def _drop_if_done(self, record: TaskRecord) -> None:
        if record.returns_kept > 0 or not record.is_done or self.records.pop(record.spec.task_id, None) is None:
            return
        if record.spec.args_bytes:
            self.out.add(DropPayload(key=record.spec.task_id))
        for ref in record.argument_refs:
            value = self.values.table[ref.object_id]
            value.lineage_uses -= 1
            if not value.local_refs:
                self.values.references.release(value)

    def on_demanded(self, event: ObjectDemanded) -> None:
        """A node wants an object of ours and the head knows no copy: it is lost, or the news of it is on its way."""
        error = self.lineage.why_not_stored(event.object_id)
        if error is not None:
            self.out.send(HEAD, ObjectFailed(object_id=event.object_id, error=error))
            return
        self.values.rooms.hand_over(event.object_id)
        if event.losses < 0:  # a copy is known, and it is wanted
            return
        value = self.values.table[event.object_id]
        value.is_bare = False
        value.demanded = True
        value.losses_demanded = max(event.losses, value.losses_demanded)
        value.near, value.is_held_up, value.was_evicted = event.near, event.is_held_up, event.was_evicted
        if value.state is not ValueState.STORED:
            return
        if self.lineage.is_lost(value) or (event.asked and value.asked_again):
            self.remake(value)
        elif value.sealer_died and not value.asked_again:
            self.values.ask_again(value)

    def remake(self, value: Value) -> None:
        """Make a lost or freed object again, with whatever of its lineage is gone too."""
        if value.state not in (ValueState.STORED, ValueState.FREED):
            return
        value.losses_answered = max(value.losses_demanded, value.losses_answered)
        near, value.near = value.near, None
        is_held_up, value.is_held_up = value.is_held_up, False
        was_evicted, value.was_evicted = value.was_evicted, False
        record = None if is_put(value.object_id) else self.records.get(task_of(value.object_id))
        if record is not None and not record.is_done:  # it runs again already, for another of its results
            self.values.set_remaking(value)
            value.is_in_doubt = True
            if record.stream is not None:
                self.streams.note_lost(record, value, is_held_up=is_held_up, was_evicted=was_evicted)
            return
        plan = self.lineage.plan(value.object_id, is_eviction=was_evicted)
        if (
            plan.impossible is None
            and record is not None
            and not is_held_up
            and self.lineage.is_in_vain(record, (value,))
        ):
            plan = Plan(impossible=self.lineage.in_vain)
        if plan.impossible is not None:
            kind = ErrorKind.RECONSTRUCTION_FAILED
            message = f"Object {short(value.object_id)} was lost and cannot be recomputed: {plan.impossible}."
            error = ErrorInfo(kind=kind, message=message)
            self.out.send(HEAD, ObjectFailed(object_id=value.object_id, error=error))
            self.values.set_remaking(value)
            self.values.set_failed(value, error)
            return
        for task in plan.tasks:
            self.records[task].near = near
            self._run_again(self.records[task], value, is_free=was_evicted)

    def _run_again(self, record: TaskRecord, wanted: Value | None, *, is_free: bool) -> None:
        """A task that has ended runs again; `is_free`: that uses no retry."""
        for index in range(record.spec.template.num_returns):
            value = self.values.table.get(return_object_id(record.spec.task_id, index))
            if value is not None and (value is wanted or value.state is ValueState.FREED):
                self.values.set_remaking(value)
        if record.stream is not None:
            self.streams.run_again(record, wanted, is_eviction=is_free)
        self._keep_attempt(record, TaskState.FINISHED)
        self._use_attempt(record, "reconstruction", is_free=is_free)
        record.again = record.has_finished = True
        record.is_cancelled = False  # it came too late, and this is another demand
        self._set_state(record, TaskState.WAITING_ARGS)
        record.worker = record.lease_id = None
        for ref in record.argument_refs:  # counted once already; _await_arguments counts again
            self.values.table[ref.object_id].lineage_uses -= 1
        self._await_arguments(record)

    # ---- Invariants ------------------------------------------------------------------------------------------

    def check_invariants(self) -> None:
        self.streams.check_invariants()
        for task, record in self.records.items():
            spec = record.spec
            if (  # most, in one look
                record.returns_kept > 0
                and (record.state is TaskState.PUSHED) == (record.worker is not None)
                and not (spec.deps or spec.nested)
            ):
                continue
            ensure(record.returns_kept >= 0, "task {} kept a negative number of results", task)
            ensure(record.returns_kept > 0 or not record.is_done, "task {} is done and kept by nothing", task)
            ensure(
                (record.state is TaskState.PUSHED) == (record.worker is not None) or record.is_done,
                "task {} is {} with worker {}",
                task,
                record.state,
                record.worker,
            )
            for ref in record.argument_refs:
                value = self.values.table.get(ref.object_id)
                ensure(value is not None, "task {} has lost its argument {}", task, ref.object_id)
                assert value is not None
                ensure(value.lineage_uses > 0, "object {} is not kept for lineage", ref.object_id)
                ensure(record.is_done or value.task_uses > 0, "object {} is not held for its task", ref.object_id)
