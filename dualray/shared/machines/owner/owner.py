"""The owner: what a driver and every worker runs.

Theory of operation. The owner is composed of six machines that share one outbox: values (objects and waits), tasks
(submission, retries, lineage), leases (push windows), actor_calls (order per actor), executor (tasks pushed to this
process; idle in a driver), and cancellation. Smaller parts serve them. After the event's own method, `drain` lets them
react in a fixed order until nothing is left: ready values wake tasks, ready tasks queue, queues meet leases.

Runners hand it events, or call `submit` and `put_small`, which each stand for one; what they may read is in queries.py.

Relies on: the node manager for workers of its own node, the head for everything beyond it.
Guarantees: see the modules; in addition every event that an owner can hear is in its table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from dualray.exceptions import InvariantViolation
from dualray.shared.machines.base import DRAIN_STEPS_MAX
from dualray.shared.machines.owner.actor_calls import CALLS_TIMER, ActorCalls
from dualray.shared.machines.owner.actor_executor import ActorExecutor
from dualray.shared.machines.owner.actor_exit import EXIT_TIMER
from dualray.shared.machines.owner.cancellation import FORCE_TIMER, Cancellation
from dualray.shared.machines.owner.executor import FETCH_TIMER, Executor
from dualray.shared.machines.owner.explanation import Explanation
from dualray.shared.machines.owner.leases import IDLE_TIMER, OVERDUE_TIMER, PUSH_TIMER, Leases
from dualray.shared.machines.owner.losses import Losses
from dualray.shared.machines.owner.production import Production
from dualray.shared.machines.owner.pushes import Pushes
from dualray.shared.machines.owner.puts import Puts
from dualray.shared.machines.owner.queries import OwnerQueries
from dualray.shared.machines.owner.questions import ROWS_TIMER, Questions
from dualray.shared.machines.owner.reach import REACH_TIMER, Reach
from dualray.shared.machines.owner.reserved_space import ROOM_TIMER, Rooms
from dualray.shared.machines.owner.rows import OwnerRows
from dualray.shared.machines.owner.task_records import TaskRecord, current
from dualray.shared.machines.owner.tasks import Tasks
from dualray.shared.machines.owner.value import Value
from dualray.shared.machines.owner.values import Values
from dualray.shared.model import events
from dualray.shared.model.commands import Command, TellWait
from dualray.shared.model.config import Config
from dualray.shared.model.errors import ErrorKind
from dualray.shared.model.events import (
    ActorChanged,
    ActorExitAsked,
    ActorLeavingHeard,
    ArgumentsLent,
    CancelAsked,
    ClusterChanged,
    DriverJoined,
    ItemMade,
    ItemReported,
    ItemTaken,
    LinkLost,
    Outcome,
    RefsAdded,
    RefsDropped,
    ResultsTaken,
    SpaceWanted,
    Started,
    TaskFinished,
    TaskPushed,
    TaskRan,
    TasksFinished,
    TasksPushed,
    TasksRan,
    TaskSubmitted,
    TaskUnwanted,
    TimerFired,
    ValuePut,
    WaitAbandoned,
    WaitStarted,
    WorkerRetired,
    WorkerUnwanted,
)
from dualray.shared.model.ids import (
    HEAD,
    Address,
    LeaseID,
    NodeID,
    ObjectID,
    TaskID,
    WaitID,
    exception_id,
    lived_on,
    short,
)
from dualray.shared.model.specs import ActorSpec, TaskSpec, placed_near
from dualray.shared.model.states import ActorState, TaskState, ValueState


class Owner(OwnerQueries):
    """See the module."""

    kind = "owner"

    def __init__(self, *, address: Address, node: NodeID, config: Config, is_driver: bool = False) -> None:
        super().__init__()
        self.address = address
        self.node = node
        self.config = config
        self.is_driver = is_driver
        self.rooms = Rooms(out=self.out, address=address, node=node, config=config)
        self.values = Values(out=self.out, address=address, node=Address(node), rooms=self.rooms)
        self.tasks = Tasks(
            out=self.out,
            address=address,
            values=self.values,
            config=config,
        )
        self.pushes = Pushes(out=self.out, address=address, values=self.values, rooms=self.rooms, tasks=self.tasks)
        self.leases = Leases(
            out=self.out, address=address, node_manager=Address(node), config=config, push=self.pushes.to_lease
        )
        self.actor_calls = ActorCalls(out=self.out, address=address, tasks=self.tasks, push=self.pushes.calls)
        self.executor = Executor(
            out=self.out,
            address=address,
            node=node,
            values=self.values,
            config=config,
            become_concurrent=self._become_concurrent,
            refuse_tasks=self._refuse_tasks,
        )
        self.losses = Losses(out=self.out, rooms=self.rooms, tasks=self.tasks, leases=self.leases)
        self.puts = Puts(out=self.out, address=address, node=node, values=self.values, rooms=self.rooms)
        self.production = Production(out=self.out, address=address, values=self.values)
        self.actor_executor: ActorExecutor | None = None
        """Of an actor of which several methods may run at a time."""
        self._compose(config)
        self._bind_tables()
        self.cluster = ()
        self._is_retired = False
        """A worker that gets no more tasks, and has not said yet that nobody needs it."""
        self.table = _TABLE
        self.no_drain_events = _NO_DRAIN_EVENTS

    def _compose(self, config: Config) -> None:
        """The parts that look at others, or end what they do."""
        self.reach = Reach(
            out=self.out,
            address=self.address,
            node=self.node,
            config=config,
            leases=self.leases,
            actor_calls=self.actor_calls,
            give_up=self._on_link_lost,
        )
        self.cancellation = Cancellation(
            out=self.out,
            address=self.address,
            node=self.node,
            tasks=self.tasks,
            leases=self.leases,
            actor_calls=self.actor_calls,
            executor=self.executor,
            end_worker=self._refuse_tasks,
        )
        self.explanation = Explanation(
            address=self.address,
            node=self.node,
            values=self.values,
            tasks=self.tasks,
            actor_calls=self.actor_calls,
            why_waiting=self.why_waiting,
        )
        self.state_rows = OwnerRows(
            address=self.address,
            values=self.values,
            tasks=self.tasks,
            actor_calls=self.actor_calls,
            executor=self.executor,
            explanation=self.explanation,
        )
        self.questions = Questions(self.out, self.address, Address(self.node), self.state_rows, self.leases)

    # ---- What the user's code asks ---------------------------------------------------------------------------

    def _on_started(self, event: Started) -> None:
        if self.is_driver:
            self.out.send(HEAD, DriverJoined(address=self.address, node=self.node, namespace=event.namespace))

    def submit(self, spec: TaskSpec, now_ns: int) -> list[Command]:
        """As `handle(TaskSubmitted(spec=spec), now_ns)`, for a runner that logs no events."""
        out = self.out
        out.now_ns = now_ns
        out.needs_drain = TaskSubmitted not in self.no_drain_events
        self._submit(spec)
        if out.needs_drain:
            self.drain()
        commands = out.commands
        if commands:
            out.commands = []
        return commands

    def take_over(self, pushed: TaskPushed, began_ns: int, now_ns: int) -> list[Command]:
        """As `handle(pushed, now_ns)`, for a runner that began with the task without asking, as `is_free_for` lets it:
        it has run since `began_ns`."""
        commands = self.handle(pushed, now_ns)
        self.executor.started_ns = began_ns
        return commands

    def put_small(self, object_id: ObjectID, size_bytes: int) -> None:
        """As `handle(ValuePut(...))` of a small value without references, for a runner that logs no events: it leads to
        no commands."""
        if (known := self.known_values.get(object_id)) is not None and not known.is_ghost:
            raise InvariantViolation(f"object {short(object_id)} was put twice")
        value = self.known_values[object_id] = Value(object_id, self.address, ValueState.INLINE)
        value.size_bytes = size_bytes
        value.local_refs = 1 if known is None else known.local_refs + 1
        value.is_bare = True

    def take_kept_room(self, object_id: ObjectID, size_bytes: int) -> int | None:
        """As `handle(SpaceWanted(...))` of an argument for which this process keeps room, for a runner that logs no
        events: where to write it; None: nothing has happened."""
        return self.rooms.place_of(object_id) if self.rooms.take(object_id, size_bytes) else None

    def _on_put(self, event: ValuePut) -> None:
        if event.inline and not event.nested:
            self.put_small(event.object_id, event.size_bytes)
        else:
            self.puts.on_put(event)

    def _on_submitted(self, event: TaskSubmitted) -> None:
        self._submit(event.spec)

    def _submit(self, spec: TaskSpec) -> None:
        record = self.tasks.submit(spec)
        if spec.actor_id is not None:
            self.actor_calls.accept(record)
            return
        if record.value is not None:  # it stands alone
            leases = self.leases
            leases.enqueue(spec.task_id, leases.queue_for(spec.template, ()), is_new=True)
            return
        if spec.creates is not None:
            self.actor_calls.client(spec.creates.actor_id)
        if not spec.deps:
            self._place(record, first=False, is_new=True)

    def _on_wait_started(self, event: WaitStarted) -> None:
        self.leases.on_wait()
        self.actor_calls.send_deferred()
        self.values.waiting.start(event)
        wait = self.values.waiting.waits.get(event.wait_id)
        if wait is not None and wait.blocked:
            self.executor.recall_waiting()

    def _on_wait_abandoned(self, event: WaitAbandoned) -> None:
        if event.wait_id in self.values.waiting.waits:
            self.values.waiting.cancel(event.wait_id)

    def _on_actor_changed(self, event: ActorChanged) -> None:
        self.actor_calls.on_changed(event)
        record = self.tasks.records.get(TaskID(event.actor_id))
        if record is not None and not record.is_done and event.state is ActorState.DEAD:
            assert event.error is not None
            self.tasks.fail(record, event.error)  # the constructor's arguments are needed no more

    def _on_cancel_asked(self, event: CancelAsked) -> None:
        self.leases.on_wait()
        self.actor_calls.send_deferred()
        self.cancellation.on_asked(event)

    def _refuse_tasks(self) -> None:
        """This process is about to end."""
        refuse = self.executor.refuse
        self._hear({TaskPushed: refuse, TasksPushed: refuse})

    def _hear(self, otherwise: Mapping[type[Any], Callable[[Any], object]]) -> None:
        """From now on these events lead to something else in this process."""
        self.table = {**self.table, **{kind: partial(_pass_on, do) for kind, do in otherwise.items()}}

    def _on_cluster_changed(self, event: ClusterChanged) -> None:
        self.cluster = event.nodes

    # ---- What others report ----------------------------------------------------------------------------------

    def _on_timer(self, event: TimerFired) -> None:
        if event.timer in _TIMERS:
            _TIMERS[event.timer](self)
        elif event.timer.startswith(FORCE_TIMER):
            self.cancellation.on_force_timer(event.timer)
        elif event.timer.startswith(ROWS_TIMER):
            self.questions.on_timer(event.timer)
        elif self.values.waiting.on_timer(event.timer):
            self.executor.recall_waiting()

    def _on_task_finished(self, event: TaskFinished) -> None:
        if self.rooms.lent:
            self.rooms.settle(event.worker, event.task_id)
        record = current(self.tasks.records, event.task_id, event.attempt, event.worker)
        if record is None:
            self.tasks.drop_late(event)
            return
        lease_id = record.lease_id
        if event.error is None:
            if record.spec.actor_id is not None:
                self.actor_calls.finished(record)
            results = event.results
            if record.value is not None and len(results) == 1 and results[0].inline and not results[0].nested:
                self.tasks.finish_small(record, results[0].size_bytes)
            else:
                self.tasks.finish(record, event)
            if lease_id is not None:
                self.leases.finished(event.task_id, lease_id, event.duration_ns)
            return
        payload = exception_id(event.task_id) if event.error.has_exception else None
        if event.error.kind is ErrorKind.TASK_CANCELLED:
            self.tasks.fail(record, event.error, payload=payload)
            if record.spec.actor_id is not None:
                self.actor_calls.finished(record)
            elif lease_id is not None:
                self.leases.cancelled(event.task_id, lease_id)
            return
        if lease_id is not None:
            self.leases.finished(event.task_id, lease_id, event.duration_ns)
        if self.tasks.attempt_lost(record, event.error, payload=payload):
            if record.spec.actor_id is not None:
                self.actor_calls.repeat(record)
            else:
                self.tasks.given_back.append(event.task_id)
                self.out.needs_drain = True
        elif record.spec.actor_id is not None:
            self.actor_calls.finished(record)

    def _on_several_finished(self, event: TasksFinished) -> None:
        tasks, worker, outcomes = self.tasks, event.worker, event.outcomes
        if len(outcomes) == 1:
            self._on_one_finished(event, outcomes[0])
            return
        done: dict[LeaseID, list[Outcome]] = {}
        lease_id: LeaseID | None = None
        of_lease: list[Outcome] = []
        for outcome in outcomes:
            task, attempt, size_bytes, _ = outcome
            record = tasks.records.get(task)
            if (
                record is None
                or record.state is not TaskState.PUSHED
                or record.attempt != attempt
                or record.worker != worker
            ):
                self.tasks.drop_late_outcome(event, outcome)
                continue
            if record.lease_id is not None:
                if record.lease_id is not lease_id:
                    lease_id = record.lease_id
                    of_lease = done.setdefault(lease_id, [])
                of_lease.append(outcome)
            elif record.spec.actor_id is not None:
                self.actor_calls.finished(record)
            tasks.finish_small(record, size_bytes)
        for lease_id, outcomes_of in done.items():
            self.leases.several_finished(lease_id, outcomes_of)

    def _on_one_finished(self, event: TasksFinished, outcome: Outcome) -> None:
        """As `_on_several_finished`, of one: of tasks that are not pushed ahead each comes alone."""
        task, attempt, size_bytes, duration_ns = outcome
        record = self.tasks.records.get(task)
        if (
            record is None
            or record.state is not TaskState.PUSHED
            or record.attempt != attempt
            or record.worker != event.worker
        ):
            self.tasks.drop_late_outcome(event, outcome)
            return
        lease_id = record.lease_id
        if lease_id is None and record.spec.actor_id is not None:
            self.actor_calls.finished(record)
        self.tasks.finish_small(record, size_bytes)
        if lease_id is not None:
            self.leases.finished(task, lease_id, duration_ns)

    def _on_results_taken(self, event: ResultsTaken) -> None:
        taken_from = self.production if event.index else self.executor.transit
        taken_from.on_taken(event)

    def _on_nodes_died(self, event: events.NodeDied | events.NodesDied) -> None:
        if event.cluster is not None:
            self.cluster = event.cluster.nodes
        lives = events.lives_over(event)
        self.losses.on_nodes_died(lives)
        self.questions.on_nodes_died(lives)
        self._processes_died(frozenset([address for address in self.values.borrows.met if lived_on(address, lives)]))

    def _on_link_lost(self, event: LinkLost) -> None:
        why = self.reach.why(event.node)
        lost = self.losses.on_link_lost(event, why)
        if lost and self.is_driver:
            words = f"{lost} tasks got no answer, and run on other nodes if they have a retry left: {why}"
            self.out.add(TellWait(words=words))

    def _processes_died(self, dead: frozenset[Address]) -> None:
        self.rooms.on_process_died(dead)
        self.values.on_process_died(dead)
        self.executor.on_process_died(dead)
        self.production.on_process_died(dead)
        if self.actor_executor is not None:
            self.actor_executor.on_process_died(dead)
        self.actor_calls.on_process_died(dead)
        self.questions.on_process_died(dead)

    def _on_retired(self, event: WorkerRetired) -> None:
        self._is_retired = True
        self.no_drain_events = frozenset()  # each event may be the last that this process is needed for

    def _leave_if_spare(self) -> None:
        if self.values.table or self.tasks.records or not self.executor.is_idle():
            return
        self._is_retired = False
        reason = (
            "it has run as many calls as max_calls allows"
            if self.executor.is_spent
            else "no task needs it: it held GPUs, has a runtime_env of its own, or was idle when another worker started"
        )
        self.out.send(Address(self.node), WorkerUnwanted(worker=self.address, reason=reason))

    # ---- The drain -------------------------------------------------------------------------------------------

    def drain(self) -> None:
        """React until nothing is left: see the module."""
        steps = 0
        while self._drain_once():
            steps += 1
            if steps > DRAIN_STEPS_MAX:
                raise InvariantViolation(f"the owner state machine of process {self.address} does not become idle")
        if self._is_retired:
            self._leave_if_spare()

    def _drain_once(self) -> bool:
        values, tasks, leases, calls = self.values, self.tasks, self.leases, self.actor_calls
        left = values.worklists
        if left.remake_wanted:
            value = values.table.get(left.remake_wanted.popleft())
            if value is not None and (value.state is ValueState.FREED or tasks.lineage.is_lost(value)):
                tasks.remake(value)
        elif left.tasks_to_look_at:
            while left.tasks_to_look_at:
                self._look_at(left.tasks_to_look_at.popleft())
        elif self.tasks.given_back:
            for task in reversed(self.tasks.given_back):
                self._place(tasks.records[task], first=True)
            self.tasks.given_back.clear()
        elif tasks.ready:
            while tasks.ready:
                self._place(tasks.records[tasks.ready.popleft()], first=False)
        elif leases.dirty:
            leases.pump()
        elif leases.refused:
            tasks.refuse(*leases.refused.popleft())
        elif calls.dirty:
            calls.pump()
        elif left.waits_completed:
            self._on_fetched(*left.waits_completed.popleft())
        elif left.lineage_released:
            while left.lineage_released:
                tasks.on_return_gone(left.lineage_released.popleft())
        elif left.streams_dropped:
            tasks.streams.drop(left.streams_dropped.popleft())
        elif self.production.queue and self.production.flush():
            pass
        elif tasks.results_to_acknowledge and not values.borrows.unacknowledged:
            to, message = tasks.results_to_acknowledge.pop(0)
            self.out.send(to, message)
        elif self.executor.ended is not None:
            return self.executor.end_if_possible()
        elif self.executor.current is None and self.executor.queue:
            self.executor.next()
        elif self.actor_executor is not None and self.actor_executor.unreported:
            return self.actor_executor.end_if_possible()
        else:
            return False
        return True

    def _on_fetched(self, wait_id: WaitID, opened: tuple[ObjectID, ...]) -> None:
        if self.actor_executor is not None and wait_id in self.actor_executor.fetching:
            self.actor_executor.on_fetched(wait_id, opened)
        else:
            self.executor.on_fetched(wait_id, opened)

    def _on_call_unwanted(self, event: TaskUnwanted) -> None:
        assert self.actor_executor is not None
        self.actor_executor.take_unwanted(event)
        self.cancellation.on_unwanted(event)

    def _become_concurrent(self, promises: ActorSpec) -> None:
        """The constructor of an actor has come of which several methods may run at a time: they go a way of their own,
        so that the others' costs nothing."""
        executor, actor = (
            self.executor,
            ActorExecutor(out=self.out, values=self.values, executor=self.executor, promises=promises),
        )
        self.actor_executor = self.state_rows.actor_executor = actor
        self.no_drain_events = frozenset()
        self._hear(
            {
                TaskPushed: actor.on_pushed,
                TaskUnwanted: self._on_call_unwanted,
                TasksPushed: actor.on_several_pushed,
                TaskRan: lambda event: (actor if event.task_id in actor.calls else executor).on_ran(event),
                ActorExitAsked: lambda event: (actor if event.task_id in actor.calls else executor).on_exit_asked(
                    event
                ),
            }
        )

    def _look_at(self, task: TaskID) -> None:
        record = self.tasks.records.get(task)
        self.tasks.look_at(task)
        if record is not None and record.is_done and record.spec.actor_id is not None:
            self.actor_calls.gave_way(record)

    def _place(self, record: TaskRecord, *, first: bool, is_new: bool = False) -> None:
        spec = record.spec
        if spec.actor_id is not None:
            self.actor_calls.became_ready(record)
        elif spec.creates is not None:
            self.pushes.to_head(record)
        else:
            template = spec.template if record.near is None else placed_near(spec.template, record.near)
            queue = self.leases.queue_for(template, self.tasks.stored_deps(record))
            self.leases.enqueue(spec.task_id, queue, first=first, is_new=is_new)

    # ---- Invariants ------------------------------------------------------------------------------------------

    def check_invariants(self) -> None:
        self.values.check_invariants()
        self.tasks.check_invariants()
        self.leases.check_invariants()
        self.actor_calls.check_invariants()
        self.executor.check_invariants()
        self.rooms.check_invariants()
        if self.actor_executor is not None:
            self.actor_executor.check_invariants()


def _pass_on(do: Callable[[Any], object], owner: Owner, event: Any) -> None:
    do(event)


_TIMERS: Final[Mapping[str, Callable[[Owner], object]]] = {
    IDLE_TIMER: lambda owner: owner.leases.on_idle_timer(),
    PUSH_TIMER: lambda owner: owner.leases.on_push_timer(),
    OVERDUE_TIMER: lambda owner: owner.leases.on_overdue_timer(),
    CALLS_TIMER: lambda owner: owner.actor_calls.on_timer(),
    EXIT_TIMER: lambda owner: owner.executor.exit.on_timer(),
    FETCH_TIMER: lambda owner: owner.executor.on_fetch_timer(),
    ROOM_TIMER: lambda owner: owner.rooms.on_timer(),
    REACH_TIMER: lambda owner: owner.reach.on_timer(),
}
"""Timers of which a process has at most one."""

_TABLE: Final[Mapping[type[Any], Callable[[Any, Any], object]]] = {
    TaskSubmitted: Owner._on_submitted,
    ValuePut: Owner._on_put,
    events.ValuePromised: lambda owner, event: owner.puts.on_promised(event),
    events.PromiseKept: lambda owner, event: owner.puts.on_kept(event),
    SpaceWanted: lambda owner, event: owner.puts.on_space_wanted(event),
    events.SpaceWritten: lambda owner, event: owner.puts.on_space_written(event),
    events.PutAbandoned: lambda owner, event: owner.puts.on_put_abandoned(event),
    events.SpaceGranted: lambda owner, event: owner.puts.on_space_granted(event),
    events.SpaceDenied: lambda owner, event: owner.puts.on_space_denied(event),
    events.RoomWanted: lambda owner, event: owner.rooms.on_wanted(),
    events.CollectionWanted: lambda owner, event: owner.tasks.garbage.on_wanted(),
    ArgumentsLent: lambda owner, event: owner.values.pins.on_lent(event),
    events.LoansKept: lambda owner, event: owner.rooms.on_kept(event),
    events.LoanPinned: lambda owner, event: owner.values.pins.on_loan_pinned(event),
    events.LoansAsked: lambda owner, event: owner.values.pins.on_loans_asked(event),
    WaitStarted: Owner._on_wait_started,
    WaitAbandoned: Owner._on_wait_abandoned,
    RefsAdded: lambda owner, event: owner.values.references.add(event.refs),
    RefsDropped: lambda owner, event: owner.values.references.drop(event.object_ids),
    events.ViewReleased: lambda owner, event: owner.values.pins.on_view_released(event.object_id),
    TaskRan: lambda owner, event: owner.executor.on_ran(event),
    TasksRan: lambda owner, event: owner.executor.on_several_ran(event),
    events.ActorKillAsked: lambda owner, event: owner.actor_calls.on_kill_asked(event),
    events.ActorNameAsked: lambda owner, event: owner.questions.on_name_asked(event),
    events.ActorNameReported: lambda owner, event: owner.questions.on_name_reported(event),
    ActorExitAsked: lambda owner, event: owner.executor.on_exit_asked(event),
    events.ActorLeaving: lambda owner, event: owner.out.send(event.worker, ActorLeavingHeard(process=owner.address)),
    ActorLeavingHeard: lambda owner, event: owner.executor.exit.on_heard(event.process),
    CancelAsked: Owner._on_cancel_asked,
    events.CancelRequested: lambda owner, event: owner.cancellation.on_requested(event),
    TaskUnwanted: lambda owner, event: owner.cancellation.on_unwanted(event),
    events.ClusterStateAsked: lambda owner, event: owner.questions.on_state_asked(event),
    events.ClusterStateReported: lambda owner, event: owner.questions.on_state_reported(event),
    events.PlacementGroupAsked: lambda owner, event: owner.questions.on_group_asked(event),
    events.PlacementGroupRemovalAsked: lambda owner, event: owner.questions.on_group_removal_asked(event),
    events.PlacementGroupNoted: lambda owner, event: owner.questions.on_group_noted(event),
    events.RowsAsked: lambda owner, event: owner.questions.on_rows_asked(event),
    events.RowsRequested: lambda owner, event: owner.questions.on_rows_requested(event),
    events.RowsReported: lambda owner, event: owner.questions.on_rows_reported(event),
    events.BacklogWanted: lambda owner, event: owner.leases.report_backlog(),
    events.ResourcesWanted: lambda owner, event: owner.out.send(HEAD, event),
    events.WaitExplained: lambda owner, event: owner.out.add(TellWait(words=event.words)),
    ClusterChanged: Owner._on_cluster_changed,
    Started: Owner._on_started,
    TimerFired: Owner._on_timer,
    events.LeaseGranted: lambda owner, event: owner.leases.on_granted(event),
    events.LeasesGranted: lambda owner, event: owner.leases.on_several_granted(event),
    events.LeaseRefused: lambda owner, event: owner.leases.on_refused(event),
    events.LeaseWanted: lambda owner, event: owner.leases.on_wanted(event),
    events.LeasedWorkerDied: lambda owner, event: owner.losses.on_leased_worker_died(event),
    events.NodeDied: Owner._on_nodes_died,
    events.NodesDied: Owner._on_nodes_died,
    events.OwnerDied: lambda owner, event: owner._processes_died(frozenset((event.address,))),
    events.PeerLost: lambda owner, event: owner.reach.on_peer_lost(event),
    LinkLost: Owner._on_link_lost,
    TaskPushed: lambda owner, event: owner.executor.on_pushed(event),
    TasksPushed: lambda owner, event: owner.executor.on_several_pushed(event),
    TaskFinished: Owner._on_task_finished,
    TasksFinished: Owner._on_several_finished,
    events.TasksWanted: lambda owner, event: owner.executor.recall_waiting(),
    events.TasksRecalled: lambda owner, event: owner.losses.on_recalled(event),
    events.ValueRequested: lambda owner, event: owner.values.on_value_requested(event),
    events.ValueReported: lambda owner, event: owner.values.on_value_reported(event),
    events.BorrowAdded: lambda owner, event: owner.values.borrows.on_added(event),
    events.BorrowAcknowledged: lambda owner, event: owner.values.borrows.on_acknowledged(event),
    events.BorrowRemoved: lambda owner, event: owner.values.references.on_borrow_removed(event),
    ResultsTaken: Owner._on_results_taken,
    ItemMade: lambda owner, event: owner.production.on_made(event),
    events.ItemsEnded: lambda owner, event: owner.production.on_ended(event),
    ItemTaken: lambda owner, event: owner.tasks.streams.on_taken(event),
    ItemReported: lambda owner, event: owner.tasks.streams.on_reported(event),
    events.ItemsRead: lambda owner, event: owner.production.on_read(event),
    events.ObjectArrived: lambda owner, event: owner.values.on_object_arrived(event),
    events.ObjectUnavailable: lambda owner, event: owner.values.on_object_unavailable(event),
    events.ObjectDemanded: lambda owner, event: owner.tasks.on_demanded(event),
    events.CopiesDoubted: lambda owner, event: owner.tasks.lineage.on_doubted(event),
    ActorChanged: Owner._on_actor_changed,
    WorkerRetired: Owner._on_retired,
}
"""What each event leads to; one table for all machines of the kind."""

_NO_DRAIN_EVENTS: Final = frozenset(
    {
        TaskSubmitted,
        TaskFinished,
        TasksFinished,
        TaskPushed,
        TasksPushed,
        TaskRan,
        TasksRan,
        ValuePut,
        SpaceWanted,
        ArgumentsLent,
        RefsAdded,
        RefsDropped,
        WaitStarted,
        ItemMade,
        ItemReported,
        ItemTaken,
    }
)
