"""Executes the calls of an actor that may run several methods at a time: on threads, or as coroutines on a loop.

Theory of operation. The constructor ran alone, in executor.py; from then on calls come here. Each belongs to a
concurrency group, those that name none to the default one; a group has a limit of calls that run. A call whose
arguments are not here is fetched for before it takes a place; meanwhile the calls of the same caller behind it in its
group wait, those of others do not. A call starts when its group has room, in the order of arrival, and is reported as
soon as it has ended: results arrive in any order. A call that is made again goes before all that have not begun.

A call that is cancelled before it begins never begins. One that runs as a coroutine is interrupted where it waits, and
reported when it has ended; one that runs on a thread goes on.

When the actor exits, nothing begins any more, and calls that run are not reported. Calls of a process that died are
dropped if they have not started.

Relies on: waits.py for the fetching; executor.py for what all tasks have in common.
Guarantees: at most `limit` calls of a group run; the calls of one caller in one group start in the order in which they
were pushed, but for those that are made again; each is reported once, but for attempts that gave way to a later one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from dualray.exceptions import InvariantViolation
from dualray.shared.machines.base import Outbox, ensure
from dualray.shared.machines.owner.executor import Executor, is_attempt
from dualray.shared.machines.owner.values import Values
from dualray.shared.model.commands import CopyPayload, InterruptTask, RunTask
from dualray.shared.model.events import ActorExitAsked, TaskPushed, TaskRan, TasksPushed, TaskUnwanted, WaitStarted
from dualray.shared.model.ids import Address, ObjectID, TaskID, WaitID, exception_id, short
from dualray.shared.model.specs import ActorSpec


class Group:
    """One concurrency group."""

    __slots__ = ("fetched", "held", "limit", "queue", "running")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.running = 0
        self.queue: deque[TaskPushed] = deque()
        self.held: dict[Address, int] = {}
        """Callers of which so many calls have their arguments fetched, or wait for room with all of them: those that
        come after these wait."""
        self.fetched: deque[tuple[TaskPushed, tuple[ObjectID, ...]]] = deque()
        """Calls that have their arguments, and wait for room; with the arguments that are pinned for them."""

    def hold(self, caller: Address) -> None:
        self.held[caller] = self.held.get(caller, 0) + 1

    def let_go(self, caller: Address) -> None:
        self.held[caller] -= 1
        if not self.held[caller]:
            del self.held[caller]


class Call:
    """A call that runs, or has ended and is not reported yet."""

    __slots__ = ("caller_is_dead", "ended", "group", "pushed", "started_ns")

    def __init__(self, pushed: TaskPushed, group: Group, now_ns: int) -> None:
        self.pushed = pushed
        self.group = group
        self.started_ns = now_ns
        self.caller_is_dead = False
        self.ended: TaskRan | None = None


class ActorExecutor:
    """See the module."""

    def __init__(self, *, out: Outbox, values: Values, executor: Executor, promises: ActorSpec) -> None:
        self.out = out
        self.values = values
        self.executor = executor
        self.is_async = promises.is_async
        self.groups = {"": Group(promises.max_concurrency)}
        self.groups |= {name: Group(limit) for name, limit in promises.concurrency_groups}
        self.calls: dict[TaskID, Call] = {}
        self.fetching: dict[WaitID, tuple[Group, TaskPushed]] = {}
        self.unreported: dict[TaskID, None] = {}
        """Calls that have ended and wait for borrows to be acknowledged."""
        self._fetch_counter = 0
        executor.take_up = self._take_up

    # ---- Begun -----------------------------------------------------------------------------------------------

    def on_pushed(self, event: TaskPushed) -> None:
        """A call arrived: what comes with it is noted; it starts when it can."""
        if event.spec.deps:
            self.executor.note_arguments(event)
        self._meet(event.reply_to)
        group = self._group_of(event)
        if event.attempt:
            for pushed in self._take_unbegun(lambda pushed: pushed.spec.task_id == event.spec.task_id):
                self.executor.supersede(pushed)
            if event.spec.task_id in self.calls:
                self.executor.keep_waiting(event)
                return
        if event.again:
            group.queue.appendleft(event)
        else:
            group.queue.append(event)
        self._start(group)

    def on_several_pushed(self, event: TasksPushed) -> None:
        """Calls arrived that need nothing but what came with them."""
        pushes = event.each()
        if any(pushed.attempt for pushed in pushes):
            for pushed in pushes:
                self.on_pushed(pushed)
            return
        self._meet(event.owner)
        group = self._group_of(pushes[0])  # they are of one method
        group.queue.extend(pushes)
        self._start(group)

    def _take_up(self, event: TaskPushed) -> None:
        """A call need not wait for its earlier attempt any more."""
        group = self._group_of(event)
        group.queue.appendleft(event)
        self._start(group)

    def _meet(self, peer: Address) -> None:
        if peer not in self.values.borrows.met:
            self.values.borrows.meet(peer)

    def _group_of(self, event: TaskPushed) -> Group:
        return self.groups.get(event.spec.template.concurrency_group, self.groups[""])

    def _start(self, group: Group) -> None:
        """Start what has room; fetch for what comes next."""
        if self.executor.exit.has_begun:
            return
        while group.fetched and group.running < group.limit:
            pushed, _ = group.fetched.popleft()
            group.let_go(pushed.reply_to)
            self._run(group, pushed)
        while group.running < group.limit:
            next_one = self._next(group)
            if next_one is None:
                return
            if not next_one.spec.deps:
                self._run(group, next_one)
            else:
                self._fetch(group, next_one)

    def _next(self, group: Group) -> TaskPushed | None:
        """The first call of a caller that no earlier one holds back."""
        if not group.held:
            return group.queue.popleft() if group.queue else None
        for index, pushed in enumerate(group.queue):
            if pushed.again or pushed.reply_to not in group.held:
                del group.queue[index]
                return pushed
        return None

    def _fetch(self, group: Group, pushed: TaskPushed) -> None:
        group.hold(pushed.reply_to)
        self._fetch_counter += 1
        wait_id = WaitID(-self._fetch_counter)
        self.fetching[wait_id] = group, pushed
        deps = tuple(dict.fromkeys(pushed.spec.deps))
        self.values.waiting.start(WaitStarted(wait_id=wait_id, refs=deps, num_ready=len(deps), fetch=True, read=True))
        if wait_id in self.values.waiting.waits:
            self.values.waiting.block(wait_id)  # an argument that was lost may be made again with our CPU

    def on_fetched(self, wait_id: WaitID, opened: tuple[ObjectID, ...]) -> None:
        """The arguments of a call are here, or one of them never will be; `opened` are pinned for it."""
        found = self.fetching.pop(wait_id, None)
        if found is None:
            return
        group, pushed = found
        failed = self.executor.failed_argument(pushed)
        if failed is None:
            group.fetched.append((pushed, opened))
        else:
            object_id, error = failed
            self._unpin(opened)
            if error.has_exception:
                self.out.add(CopyPayload(source=object_id, target=exception_id(pushed.spec.task_id)))
            group.let_go(pushed.reply_to)
            ran = TaskRan(task_id=pushed.spec.task_id, attempt=pushed.attempt, results=(), error=error)
            self.executor.write_report(pushed, ran, 0, urgent=True)
        self._start(group)

    def _run(self, group: Group, pushed: TaskPushed) -> None:
        task_id = pushed.spec.task_id
        if task_id in self.calls:
            raise InvariantViolation(f"the executor started call {short(task_id)} again before the call ended")
        self.calls[task_id] = Call(pushed, group, self.out.now_ns)
        group.running += 1
        self.out.commands.append(RunTask(spec=pushed.spec, attempt=pushed.attempt, device_ids=pushed.device_ids))

    # ---- Ended -----------------------------------------------------------------------------------------------

    def on_ran(self, event: TaskRan) -> None:
        """A method returned or raised."""
        call = self.calls[event.task_id]
        call.group.running -= 1
        call.ended = event
        if not self.executor.exit.has_begun:
            self.executor.keep_results(call.pushed, event, caller_is_dead=call.caller_is_dead)
            self.unreported[event.task_id] = None
            self.end_if_possible()
        self._start(call.group)

    def end_if_possible(self) -> bool:
        """Report what has ended, unless a borrow of this process is still to be acknowledged; whether something was."""
        reported = False
        for task_id in list(self.unreported):
            call = self.calls[task_id]
            if self.executor.transit.is_to_wait_with(call.pushed):
                continue
            assert call.ended is not None
            del self.unreported[task_id], self.calls[task_id]
            self.executor.write_report(call.pushed, call.ended, self.out.now_ns - call.started_ns, urgent=True)
            reported = True
        return reported

    def take_unwanted(self, event: TaskUnwanted) -> None:
        """A call was cancelled: see the module."""
        if self.executor.cancel_repeated(event):
            return
        call = self.calls.get(event.task_id)
        if call is not None:
            if call.ended is None and is_attempt(call.pushed, event):
                self.out.add(InterruptTask(task_id=event.task_id, attempt=event.attempt))
            return
        for pushed in self._take_unbegun(lambda pushed: is_attempt(pushed, event)):
            self.executor.report_cancelled(pushed)
            self._start(self._group_of(pushed))

    def on_exit_asked(self, event: ActorExitAsked) -> None:
        """The actor wants to end: nothing begins any more, and what runs is never reported."""
        pushed = self.calls[event.task_id].pushed
        assert pushed.spec.actor_id is not None
        self.executor.exit.begin(pushed.spec.actor_id, pushed.spec.template.name, self.values.borrows.met)

    def on_process_died(self, dead: frozenset[Address]) -> None:
        """What a process that died has pushed is not begun, and of what runs nobody takes the results."""
        for call in self.calls.values():
            call.caller_is_dead = call.caller_is_dead or call.pushed.reply_to in dead
        for pushed in self._take_unbegun(lambda pushed: pushed.reply_to in dead):
            self.executor.forget(pushed)
        for group in self.groups.values():
            self._start(group)

    def _take_unbegun(self, is_meant: Callable[[TaskPushed], bool]) -> list[TaskPushed]:
        """Take out of their groups those calls that have not begun."""
        taken = []
        for wait_id, (group, pushed) in list(self.fetching.items()):
            if is_meant(pushed):
                del self.fetching[wait_id]
                if wait_id in self.values.waiting.waits:
                    self.values.waiting.cancel(wait_id)
                group.let_go(pushed.reply_to)
                taken.append(pushed)
        for group in self.groups.values():
            taken += self._take(group, is_meant)
        return taken

    def _take(self, group: Group, is_meant: Callable[[TaskPushed], bool]) -> list[TaskPushed]:
        """Take those out of a group that have not begun, and have no arguments to be fetched any more."""
        queued = [pushed for pushed in group.queue if is_meant(pushed)]
        fetched = [(pushed, opened) for pushed, opened in group.fetched if is_meant(pushed)]
        if queued:
            group.queue = deque(pushed for pushed in group.queue if not is_meant(pushed))
        if fetched:
            group.fetched = deque((pushed, opened) for pushed, opened in group.fetched if not is_meant(pushed))
        for pushed, opened in fetched:
            group.let_go(pushed.reply_to)
            self._unpin(opened)
        return [pushed for pushed, _ in fetched] + queued

    def _unpin(self, opened: tuple[ObjectID, ...]) -> None:
        for object_id in opened:
            self.values.pins.on_view_released(object_id)

    def check_invariants(self) -> None:
        for name, group in self.groups.items():
            ensure(0 <= group.running <= group.limit, "group {} runs {} calls", name, group.running)
            fetching = sum(each is group for each, _ in self.fetching.values())
            ensure(sum(group.held.values()) == len(group.fetched) + fetching, "group {} holds callers wrongly", name)
        running = sum(call.ended is None for call in self.calls.values())
        ensure(running == sum(group.running for group in self.groups.values()), "calls that run are counted wrongly")
