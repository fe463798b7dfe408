"""Executes the tasks that were pushed to a worker: one at a time, in the order of their arrival.

Theory of operation. A pushed task waits in the queue (QUEUED here, PUSHED for its owner); the head of the queue has its
arguments fetched (FETCHING), then runs (RUNNING), then ends: results in the store are sealed already, the others travel
with TaskFinished. A task that still holds references whose borrow is not acknowledged is reported when it is (ENDING,
see borrows.py).

When a plain task blocks in `get`, the tasks behind it are given back to their owners, so that no child waits behind its
blocked parent, and what is pushed while it is blocked is given back at once; an actor keeps its queue, because its
callers' order is kept here. A task whose arguments do not come within `fetch_patience_ns` blocks in the same way: one
may have been lost, and be made again behind it. The owner asks for the tasks behind one that runs for long. A call of
an actor that is made again goes before all that have not begun. Calls of a process that died are dropped if they have
not started.

Tasks that stand alone, with no argument that is to be fetched, are handed over several at a time: those behind the one
in hand wait for it where user code runs, and what they return is reported together, when the last has ended or the
process has a moment. When the one in hand blocks, those that have not begun are taken back first. A process that dies
takes what it has not reported with it, and the oldest of that is taken for the one that it died of. So a task that
must not be tried twice runs alone and is reported at once; so does one that a dying process has given back.

A task whose owner has cancelled it is taken from the queue and reported, or interrupted where user code runs. An
actor's method that runs goes on; it may ask whether it was cancelled.

Relies on: waits.py for the fetching, references.py for references in results.
Guarantees: at most one task runs; each pushed attempt is reported, or recalled, once, if no later one takes its place.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import StrEnum

from dualray.exceptions import InvariantViolation
from dualray.shared.machines.base import Outbox, ensure
from dualray.shared.machines.owner.actor_exit import ActorExit
from dualray.shared.machines.owner.plain_tasks import RUN_MAX, goes_with_others, is_reported_at_once, is_reported_with
from dualray.shared.machines.owner.task_records import TASK_TABLE, FinishedFields, cancelled, task_row
from dualray.shared.machines.owner.transit import Transit
from dualray.shared.machines.owner.values import Values
from dualray.shared.model.commands import (
    ArmTimer,
    CancelTimer,
    CopyPayload,
    DropPayload,
    DropPayloads,
    ForgetTasks,
    InterruptTask,
    RunTask,
    RunTasks,
    Send,
    WriteRecords,
)
from dualray.shared.model.config import Config
from dualray.shared.model.errors import ErrorInfo
from dualray.shared.model.events import (
    ActorExitAsked,
    Outcome,
    TaskFinished,
    TaskPushed,
    TaskRan,
    TasksFinished,
    TasksPushed,
    TasksRan,
    TasksRecalled,
    TaskUnwanted,
    WaitStarted,
    WorkerSpent,
)
from dualray.shared.model.ids import (
    Address,
    FunctionID,
    NodeID,
    ObjectID,
    TaskID,
    WaitID,
    exception_id,
    return_object_id,
    short,
)
from dualray.shared.model.specs import ActorSpec, FunctionTemplate
from dualray.shared.model.states import VALUE, TaskState, ValueState

FETCH_TIMER = "fetch"


class Phase(StrEnum):
    FETCHING = "FETCHING"
    RUNNING = "RUNNING"
    ENDING = "ENDING"


class Executor:
    """See the module."""

    def __init__(
        self,
        *,
        out: Outbox,
        address: Address,
        node: NodeID,
        values: Values,
        config: Config,
        become_concurrent: Callable[[ActorSpec], None],
        refuse_tasks: Callable[[], None],
    ) -> None:
        self._become_concurrent = become_concurrent
        self._refuse_tasks = refuse_tasks
        self.out = out
        self.address = address
        self.node = node
        self.values = values
        self.config = config
        self.exit = ActorExit(out=out, address=address)
        self.queue: deque[TaskPushed] = deque()
        self.current: TaskPushed | None = None
        self.handed: deque[TaskPushed] = deque()
        """What was handed over together with the task in hand, to run after it."""
        self.phase = Phase.FETCHING
        self.ended: TaskRan | None = None
        self.started_ns = 0
        self.is_actor = False
        self.caller_is_dead = False
        """Whether the process that pushed the task in hand has died: nobody will take its results."""
        self.calls: dict[FunctionID, int] = {}
        """Of functions that this process may call so often, and then ends."""
        self.is_spent = False
        self.transit = Transit(values=values)
        self._fields = FinishedFields(address)
        self._fetch_counter = 0
        self._fetch: WaitID | None = None
        self._is_timed = False
        """Whether the fetch timer is armed."""
        self.repeated: dict[TaskID, TaskPushed] = {}
        """Tasks that are made again while an earlier attempt of theirs runs here: they wait until that has ended."""
        self.take_up: Callable[[TaskPushed], object] = self.queue.appendleft
        """Called with such a task when it need not wait any more."""

    def resume(
        self,
        current: TaskPushed | None,
        handed: tuple[TaskPushed, ...],
        queue: tuple[TaskPushed, ...],
        *,
        started_ns: int,
    ) -> None:
        """Go on with tasks that stand alone where plain_worker.py has left them: `current` runs since `started_ns`."""
        self.current = current
        self.handed.extend(handed)
        self.queue.extend(queue)
        self.phase = Phase.RUNNING
        self.started_ns = started_ns

    def on_pushed(self, event: TaskPushed) -> None:
        """A task arrived: what comes with it is noted, its turn is later."""
        spec = event.spec
        if self.current is not None and self._is_last(spec.task_id, event.attempt):
            return  # heard twice
        if event.reply_to not in self.values.borrows.met:
            if spec.actor_id is None and spec.creates is None:
                self.values.borrows.met[event.reply_to] = None  # a lease's owner: see borrows.py
            else:
                self.values.borrows.meet(event.reply_to)
        if spec.creates is not None:
            self.is_actor = True
            self.values.waiting.keeps_cpu = True
            if spec.creates.is_concurrent:
                self._become_concurrent(spec.creates)
        if spec.deps:
            self.note_arguments(event)
        if event.attempt and self._waits_for_earlier(event):
            return
        if event.again and self.is_actor:
            self._put_first(event)
        else:
            self.queue.append(event)
        if self.current is None:
            if not self.out.needs_drain:  # else the drain begins with it
                self.next()
        elif self.values.waiting.waits and self.values.waiting.is_blocked:
            self.recall_waiting()

    def _is_last(self, task_id: TaskID, attempt: int) -> bool:
        """Whether it is this attempt that arrived last, of those that are here."""
        last = self.queue[-1] if self.queue else self.handed[-1] if self.handed else self.current
        return last is not None and last.spec.task_id == task_id and last.attempt == attempt

    def _waits_for_earlier(self, event: TaskPushed) -> bool:
        """Whether an earlier attempt of a task is in hand: then this one waits. One that has not begun never does.

        Who makes an actor's call again was out of reach for longer than he would wait: what he has sent comes all at
        once when he is not.
        """
        task_id = event.spec.task_id
        for waiting in (self.handed, self.queue):
            for pushed in waiting:
                if pushed.spec.task_id == task_id:
                    if waiting is self.handed:
                        self.out.add(ForgetTasks(tasks=(pushed,)))
                    waiting.remove(pushed)
                    self.supersede(pushed)
                    return False
        if self.current is None or self.current.spec.task_id != task_id:
            return False
        self.keep_waiting(event)
        return True

    def keep_waiting(self, event: TaskPushed) -> None:
        """A task is made again that is in hand: it waits for the end of that; of several the last one."""
        earlier = self.repeated.pop(event.spec.task_id, None)
        if earlier is not None:
            self.supersede(earlier)
        self.repeated[event.spec.task_id] = event

    def supersede(self, pushed: TaskPushed) -> None:
        """An attempt never begins: there is another one, which needs what came with it."""
        if pushed.spec.deps:
            self.values.references.release_from_task(pushed.spec.deps)

    def _take_up_repeated(self, task_id: TaskID) -> None:
        """An attempt has ended: another one need not wait for it any more."""
        repeated = self.repeated.pop(task_id, None)
        if repeated is not None:
            self.take_up(repeated)

    def note_arguments(self, event: TaskPushed) -> None:
        """Of a task that has arrived: the arguments that came along are here, the others lie in stores."""
        inline = frozenset(event.inline_deps)
        for ref in event.spec.deps:
            value = self.values.references.entry(ref)
            value.is_bare = False
            value.task_uses += 1
            if value.is_ready:
                continue
            if value.state is ValueState.UNKNOWN:
                value.state = VALUE.check(value.state, ValueState.PENDING, value.object_id)
            if ref.object_id in inline:
                self.values.set_inline(value, 0)
            elif value.owner != self.address:
                self.values.set_stored(value, 0, None)
        if self.values.pins.loans:
            for ref in event.spec.deps:
                self.values.pins.take_loan(self.values.table[ref.object_id])

    def _put_first(self, event: TaskPushed) -> None:
        """A call that is made again: the one in hand, if it has not begun, may wait for its result."""
        current = self.current
        if current is not None and self._fetch is not None and self._fetch in self.values.waiting.waits:
            self.values.waiting.cancel(self._fetch)
            self._cancel_timer()
            self.current = None
            if self.caller_is_dead:
                self.caller_is_dead = False
                self.forget(current)
            else:
                self.queue.appendleft(current)
        self.queue.appendleft(event)

    def on_several_pushed(self, event: TasksPushed) -> None:
        """Calls arrived that need nothing but what came with them."""
        if self.current is not None and self._is_last(*event.calls[-1][:2]):
            return  # heard twice
        if event.actor_id is not None and any(call[1] for call in event.calls):
            for pushed in event.each():
                self.on_pushed(pushed)
            return
        self.queue.extend(event.each())
        if event.owner not in self.values.borrows.met:
            if event.actor_id is None:
                self.values.borrows.met[event.owner] = None
            else:
                self.values.borrows.meet(event.owner)
        if self.current is None:
            if not self.out.needs_drain:
                self.next()
        elif self.values.waiting.waits and self.values.waiting.is_blocked:
            self.recall_waiting()

    def next(self) -> None:
        """Begin with the next task if none is in hand."""
        if self.current is not None or not self.queue:
            return
        event = self.current = self.queue.popleft()
        if event.spec.stands_alone:
            self._run(event)
            return
        self.phase = Phase.FETCHING
        self._fetch_counter += 1
        self._fetch = WaitID(-self._fetch_counter)
        if not event.spec.deps:
            self.on_fetched(self._fetch, ())
            return
        deps = tuple(dict.fromkeys(event.spec.deps))
        self.values.waiting.start(
            WaitStarted(wait_id=self._fetch, refs=deps, num_ready=len(deps), fetch=True, read=True)
        )
        if self._fetch in self.values.waiting.waits:
            self._is_timed = True
            self.out.add(ArmTimer(timer=FETCH_TIMER, delay_ns=self.config.fetch_patience_ns))

    def _run(self, event: TaskPushed) -> None:
        """Have a task run that stands alone, and with it those behind it that do so too."""
        self._fetch = None
        self.phase = Phase.RUNNING
        self.started_ns = self.out.now_ns
        queue, handed = self.queue, self.handed
        if queue and goes_with_others(event):
            template = event.spec.template
            while queue and len(handed) < RUN_MAX:
                pushed = queue[0]
                spec = pushed.spec
                if spec.template is template and not (spec.deps or spec.nested or pushed.again):
                    handed.append(queue.popleft())  # as in `goes_with_others`, of a call of the same function
                elif goes_with_others(pushed):
                    handed.append(queue.popleft())
                else:
                    break
        if handed:
            self.out.commands.append(RunTasks(tasks=(event, *handed)))
        else:
            self.out.commands.append(RunTask(spec=event.spec, attempt=event.attempt, device_ids=event.device_ids))

    def _cancel_timer(self) -> None:
        if self._is_timed:
            self._is_timed = False
            self.out.add(CancelTimer(timer=FETCH_TIMER))

    def on_fetch_timer(self) -> None:
        """The arguments take long: one that was lost may be made again behind us, or with our CPU."""
        self._is_timed = False
        if self._fetch is not None and self._fetch in self.values.waiting.waits:
            self.values.waiting.block(self._fetch)
            self.recall_waiting()

    def on_fetched(self, wait_id: WaitID, opened: tuple[ObjectID, ...]) -> None:
        """The arguments of the task in hand are here, or one of them never will be; `opened` are pinned for it."""
        event = self.current
        if event is None or wait_id != self._fetch:
            return
        if self._is_timed:
            self._cancel_timer()
        self.started_ns = self.out.now_ns
        failed = self.failed_argument(event)
        if failed is None:
            self.phase = Phase.RUNNING
            self.out.add(RunTask(spec=event.spec, attempt=event.attempt, device_ids=event.device_ids))
            return
        object_id, error = failed
        for opened_id in opened:  # those that did come were pinned for reading
            self.values.pins.on_view_released(opened_id)
        if error.has_exception:
            self.out.add(CopyPayload(source=object_id, target=exception_id(event.spec.task_id)))
        self._end(TaskRan(task_id=event.spec.task_id, attempt=event.attempt, results=(), error=error))

    def failed_argument(self, event: TaskPushed) -> tuple[ObjectID, ErrorInfo] | None:
        """The first argument of a task that failed, and why."""
        for ref in event.spec.deps:
            error = self.values.table[ref.object_id].failure
            if error is not None:
                return ref.object_id, error
        return None

    def on_ran(self, event: TaskRan) -> None:
        """The function returned or raised."""
        if self.current is None or self.current.spec.task_id != event.task_id:
            raise InvariantViolation(f"task {short(event.task_id)} ended, but this worker was not running the task")
        self._take_exception(event)
        self._end(event)

    def _take_exception(self, event: TaskRan) -> None:
        """What a task raised is the payload of its first result: it travels under a key of its own."""
        if event.error is not None and event.error.has_exception:
            key = return_object_id(event.task_id, 0)
            self.out.add(CopyPayload(source=key, target=exception_id(event.task_id)))
            self._drop_unless_used(key)

    def keep_results(self, pushed: TaskPushed, ran: TaskRan, *, caller_is_dead: bool) -> None:
        """A call of a concurrent actor has ended: hold what its results refer to."""
        self._take_exception(ran)
        self.transit.hold(pushed, ran, caller_is_dead)

    def on_exit_asked(self, event: ActorExitAsked) -> None:
        """The actor wants to end: nothing begins any more, and the call in hand is never reported."""
        pushed = self.current
        if pushed is None or pushed.spec.task_id != event.task_id:
            raise InvariantViolation(
                f"task {short(event.task_id)} ended its actor, but this worker was not running the task"
            )
        name, actor_id = pushed.spec.template.name, pushed.spec.actor_id
        if actor_id is None:
            creates = pushed.spec.creates
            assert creates is not None, "a task that is of no actor ends none"
            name, actor_id = f"the constructor of {name}", creates.actor_id
        self.phase = Phase.ENDING
        self._take_back()
        self.exit.begin(actor_id, name, self.values.borrows.met)

    def on_several_ran(self, event: TasksRan) -> None:
        """The task in hand, and those handed over with it, have returned: each one small value."""
        group: list[Outcome] = []
        first: TaskPushed | None = None
        handed = self.handed
        for outcome in event.outcomes:
            pushed = self.current
            if pushed is None or pushed.spec.task_id != outcome[0]:
                raise InvariantViolation(f"task {short(outcome[0])} ended, but this worker was not running the task")
            if first is not None and not is_reported_with(pushed, first):
                self._report(first, group)
                group = []
            if not group:
                first = pushed
            group.append(outcome)
            self.current = handed.popleft() if handed else None
        self.caller_is_dead = False
        self.started_ns = self.out.now_ns
        if first is not None:
            self._report(first, group)
            if first.spec.template.max_calls:  # such a one runs alone
                self._count_call(first.spec.template)
        if self.current is None and self.queue and not self.out.needs_drain:
            self.next()

    def _report(self, first: TaskPushed, outcomes: list[Outcome]) -> None:
        """Report calls of one function by one owner."""
        keys = tuple([return_object_id(outcome[0], 0) for outcome in outcomes])
        commands = self.out.commands
        commands.append(
            WriteRecords(
                table=TASK_TABLE,
                keys=tuple([outcome[0].hex() for outcome in outcomes]),
                fields=self._fields.of(first.spec, first.attempt),
            )
        )
        finished = TasksFinished(worker=self.address, node=self.node, outcomes=tuple(outcomes))
        urgent = not (self.queue or self.current) or is_reported_at_once(first)
        commands.append(Send(to=first.reply_to, message=finished, payloads=keys, urgent=urgent))
        dropped: list[bytes] = [key for key in keys if not self._is_used(key)] if self.values.table else [*keys]
        if first.spec.owner != self.address:
            dropped += [outcome[0] for outcome in outcomes if outcome[0] not in self.repeated]
        commands.append(DropPayloads(keys=tuple(dropped)))
        if self.repeated:
            for outcome in outcomes:
                self._take_up_repeated(outcome[0])

    def _is_used(self, object_id: ObjectID) -> bool:
        """Whether this process needs the bytes of a result for itself."""
        value = self.values.table.get(object_id)
        return value is not None and value.state in (ValueState.INLINE, ValueState.FAILED)

    def _end(self, event: TaskRan) -> None:
        pushed = self.current
        assert pushed is not None
        self.transit.hold(pushed, event, self.caller_is_dead)
        self.phase = Phase.ENDING
        self.ended = event
        if not self.end_if_possible():
            self._take_back()
            self.out.needs_drain = True
        elif not self.out.needs_drain:
            self.next()  # unless another one is in hand

    def cancel_repeated(self, event: TaskUnwanted) -> bool:
        """Report a task as cancelled that waits for the end of its earlier attempt; whether it is such a one."""
        repeated = self.repeated.get(event.task_id)
        if repeated is None or not is_attempt(repeated, event):
            return False
        del self.repeated[event.task_id]
        self._tell_cancelled(repeated)
        self.supersede(repeated)
        return True

    def unwanted(self, event: TaskUnwanted) -> bool:
        """End a task, whose owner has cancelled it; whether its worker is to end for that."""
        if self.cancel_repeated(event):
            return False
        current = self.current
        if current is not None and is_attempt(current, event):
            if self._fetch is not None and self._fetch in self.values.waiting.waits:
                self.values.waiting.cancel(self._fetch)
                self._cancel_timer()
                self._end(_cancelled(current))
            elif self.phase is Phase.RUNNING and not current.spec.creates:
                if event.force and not current.spec.actor_id:
                    return True
                self.out.add(InterruptTask(task_id=event.task_id, attempt=event.attempt))
            return False
        for waiting in (self.handed, self.queue):
            for pushed in waiting:
                if is_attempt(pushed, event):
                    if waiting is self.handed:
                        self.out.add(ForgetTasks(tasks=(pushed,)))
                    waiting.remove(pushed)
                    self.report_cancelled(pushed)
                    return False
        return False

    def report_cancelled(self, pushed: TaskPushed) -> None:
        """Report a task that has not begun, and never will."""
        self._tell_cancelled(pushed)
        self.forget(pushed)

    def _tell_cancelled(self, pushed: TaskPushed) -> None:
        finished = TaskFinished(
            task_id=pushed.spec.task_id,
            attempt=pushed.attempt,
            worker=self.address,
            node=self.node,
            results=(),
            duration_ns=0,
            error=cancelled(pushed.spec),
        )
        self.out.send(pushed.reply_to, finished)

    def refuse(self, event: TaskPushed | TasksPushed) -> None:
        """A task arrived at a worker that is about to end."""
        pushes = [event] if isinstance(event, TaskPushed) else event.each()
        tasks = tuple([pushed.spec.task_id for pushed in pushes])
        self.out.send(pushes[0].reply_to, TasksRecalled(worker=self.address, tasks=tasks))
        for pushed in pushes:
            for key in (*pushed.spec.payload_keys, *pushed.inline_deps):
                self._drop_unless_used(ObjectID(key))

    def _take_back(self) -> None:
        """What was handed over and has not begun is not to begin before the task in hand is reported."""
        if self.handed:
            self.out.add(ForgetTasks(tasks=tuple(self.handed)))
            self.queue.extendleft(reversed(self.handed))
            self.handed.clear()

    def end_if_possible(self) -> bool:
        """Report the task that has ended, unless a borrow of this process is still to be acknowledged; whether it was
        reported."""
        if self.current is None or self.ended is None:
            return False
        pushed, ran = self.current, self.ended
        if self.transit.is_to_wait_with(pushed):
            return False
        self.current = self.handed.popleft() if self.handed else None
        self.ended = None
        self.phase = Phase.RUNNING
        self.caller_is_dead = False
        urgent = not (self.queue or self.current) or is_reported_at_once(pushed)
        duration_ns, self.started_ns = self.out.now_ns - self.started_ns, self.out.now_ns
        self.write_report(pushed, ran, duration_ns, urgent=urgent)
        if pushed.spec.template.max_calls:
            self._count_call(pushed.spec.template)
        return True

    def _count_call(self, template: FunctionTemplate) -> None:
        """One of a function that a worker may call so often, and then ends."""
        self.calls[template.function_id] = calls = self.calls.get(template.function_id, 0) + 1
        if calls >= template.max_calls and not self.is_spent:
            self.is_spent = True
            self.recall_waiting()
            self.out.send(Address(self.node), WorkerSpent(worker=self.address))
            self._refuse_tasks()

    def write_report(self, pushed: TaskPushed, ran: TaskRan, duration_ns: int, *, urgent: bool) -> None:
        """Tell whoever has pushed a task how it ended."""
        out = self.out
        if self.values.pins.loans:
            self.values.pins.end_loans(pushed.spec.deps)
        if ran.error is None:
            out.commands.append(task_row(pushed.spec, TaskState.FINISHED, ran.attempt, self.address))
        payloads: list[bytes] = [result.object_id for result in ran.results if result.inline]
        if ran.error is not None and ran.error.has_exception:
            payloads.append(exception_id(ran.task_id))
        finished = TaskFinished(
            task_id=ran.task_id,
            attempt=ran.attempt,
            worker=self.address,
            node=self.node,
            results=ran.results,
            duration_ns=duration_ns,
            error=ran.error,
        )
        out.commands.append(Send(to=pushed.reply_to, message=finished, payloads=tuple(payloads), urgent=urgent))
        for key in payloads:
            self._drop_unless_used(ObjectID(key))
        self.forget(pushed)

    def _drop_unless_used(self, object_id: ObjectID) -> None:
        """Bytes that a task of this process made: it may hold a reference to the same object, of an earlier attempt."""
        if not self._is_used(object_id):
            self.out.add(DropPayload(key=object_id))

    def forget(self, pushed: TaskPushed) -> None:
        """Nothing of a pushed task is needed any more, unless it is made again here."""
        task_id = pushed.spec.task_id
        if pushed.spec.args_bytes and pushed.spec.owner != self.address:  # else we need them in case it runs again
            if task_id not in self.repeated:
                self.out.add(DropPayload(key=task_id))
        if pushed.spec.deps:
            if self.values.pins.loans:
                self.values.pins.end_loans(pushed.spec.deps)
            self.values.references.release_from_task(pushed.spec.deps)
        self._take_up_repeated(task_id)

    def on_process_died(self, dead: frozenset[Address]) -> None:
        """Results in transit to a process that died are taken by nobody, and what it has pushed is not begun."""
        if self.exit.has_begun:
            for address in sorted(dead):
                self.exit.on_heard(address)
        if self.current is not None and self.current.reply_to in dead:
            self.caller_is_dead = True
        for event in [event for event in self.queue if event.reply_to in dead]:
            self.queue.remove(event)
            self.forget(event)
        for event in [event for event in self.repeated.values() if event.reply_to in dead]:
            del self.repeated[event.spec.task_id]
            self.supersede(event)
        self.transit.on_process_died(dead)

    def recall_waiting(self) -> None:
        """The task in hand blocks, or runs for long: give back what has not started."""
        if self.is_actor or not (self.queue or self.handed):
            return
        if self.handed:
            self.out.add(ForgetTasks(tasks=tuple(self.handed)))
        by_owner: dict[Address, list[TaskID]] = {}
        for event in (*self.handed, *self.queue):
            by_owner.setdefault(event.reply_to, []).append(event.spec.task_id)
            self.forget(event)
        self.handed.clear()
        self.queue.clear()
        for owner, tasks in by_owner.items():
            self.out.send(owner, TasksRecalled(worker=self.address, tasks=tuple(tasks)))

    def is_idle(self) -> bool:
        """Whether no task is in hand, and no result on its way holds anything here."""
        return self.current is None and not self.transit.in_transit

    def check_invariants(self) -> None:
        ensure(self.current is not None or self.ended is None, "a task ended that was not in hand")
        ensure(self.current is not None or not self.queue, "tasks wait and none is in hand")
        ensure(self.current is not None or not self.handed, "tasks were handed over and none is in hand")


def is_attempt(pushed: TaskPushed, event: TaskUnwanted) -> bool:
    """Whether it is this attempt of a task that is not wanted any more."""
    return pushed.spec.task_id == event.task_id and pushed.attempt == event.attempt


def _cancelled(pushed: TaskPushed) -> TaskRan:
    return TaskRan(task_id=pushed.spec.task_id, attempt=pushed.attempt, results=(), error=cancelled(pushed.spec))
