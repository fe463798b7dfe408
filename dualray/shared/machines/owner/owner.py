"""The owner: what a driver and every worker runs.

Theory of operation. The owner is composed of six machines that share one outbox: values (objects and waits), tasks
(submission, retries, lineage), leases (push windows), actor_calls (order per actor), executor (tasks pushed to this
process; idle in a driver), and cancellation. After the event's own method, `drain` lets them react to one another in a
fixed order until nothing is left: values that became ready wake tasks, tasks that are ready queue, queues are matched
with leases, waits that ended start or end tasks.

Relies on: the node manager for workers of its own node, the head for everything beyond it.
Guarantees: see the modules; in addition every event that an owner can hear is in its table.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from dualray.exceptions import InvariantViolation
from dualray.shared.machines.base import DRAIN_STEPS_MAX, Composition
from dualray.shared.machines.owner.actor_calls import CALLS_TIMER, ActorCalls
from dualray.shared.machines.owner.actor_executor import ActorExecutor
from dualray.shared.machines.owner.actor_exit import EXIT_TIMER
from dualray.shared.machines.owner.cancellation import FORCE_TIMER, Cancellation
from dualray.shared.machines.owner.executor import FETCH_TIMER, Executor
from dualray.shared.machines.owner.explanation import Explanation
from dualray.shared.machines.owner.leases import IDLE_TIMER, PUSH_TIMER, Lease, Leases
from dualray.shared.machines.owner.production import Production
from dualray.shared.machines.owner.reach import REACH_TIMER, Reach
from dualray.shared.machines.owner.reserved_space import ROOM_TIMER, Rooms
from dualray.shared.machines.owner.rows import OwnerRows
from dualray.shared.machines.owner.task_records import TaskRecord, cancelled, current
from dualray.shared.machines.owner.tasks import Tasks
from dualray.shared.machines.owner.values import Value, Values
from dualray.shared.model.commands import ArmTimer, CancelTimer, Command, CompleteWait, Send, TellWait
from dualray.shared.model.config import Config
from dualray.shared.model.errors import ErrorInfo, ErrorKind
from dualray.shared.model.events import (
    ActorChanged,
    ActorExitAsked,
    ActorKillAsked,
    ActorKillRequested,
    ActorLeaving,
    ActorLeavingHeard,
    ActorNameAsked,
    ActorNameReported,
    ActorNameRequested,
    ActorRegistered,
    ArgumentsLent,
    BorrowAcknowledged,
    BorrowAdded,
    BorrowRemoved,
    Call,
    CancelAsked,
    CancelRequested,
    ClusterChanged,
    ClusterStateAsked,
    ClusterStateReported,
    ClusterStateRequested,
    CopiesDoubted,
    DriverJoined,
    ItemMade,
    ItemReported,
    ItemsEnded,
    ItemsRead,
    ItemTaken,
    LeasedWorkerDied,
    LeaseGranted,
    LeaseRefused,
    LeasesGranted,
    LeaseWanted,
    LinkLost,
    LoanPinned,
    LoansAsked,
    LoansKept,
    NodeDied,
    ObjectArrived,
    ObjectDemanded,
    ObjectSealed,
    ObjectsFreed,
    ObjectUnavailable,
    Outcome,
    OwnerDied,
    PeerLost,
    PlacementGroupAsked,
    PlacementGroupNoted,
    PlacementGroupRemovalAsked,
    PlacementGroupRequested,
    PlacementGroupUnwanted,
    PromiseKept,
    PutAbandoned,
    RefsAdded,
    RefsDropped,
    Result,
    ResultsTaken,
    RoomWanted,
    RowsAsked,
    RowsReported,
    RowsRequested,
    SpaceDenied,
    SpaceGranted,
    SpaceRequested,
    SpaceWanted,
    SpaceWritten,
    Started,
    TaskFinished,
    TaskPushed,
    TaskRan,
    TasksFinished,
    TasksPushed,
    TasksRan,
    TasksRecalled,
    TaskSubmitted,
    TaskUnwanted,
    TimerFired,
    ValuePromised,
    ValuePut,
    ValueReported,
    ValueRequested,
    ViewReleased,
    WaitAbandoned,
    WaitExplained,
    WaitStarted,
    WorkerRetired,
    WorkerUnwanted,
    new_push,
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
    lives_on,
    return_object_id,
    short,
)
from dualray.shared.model.specs import (
    ActorSpec,
    LeaseShape,
    NodeInfo,
    NodeState,
    TaskSpec,
    placed_near,
)
from dualray.shared.model.states import ActorState, TaskState, ValueState
from dualray.shared.policies import load_policy
from dualray.shared.policies.feasibility import why_infeasible

_ROWS_TIMER = "rows:"


class Owner(Composition):
    """See the module."""

    kind = "owner"

    def __init__(self, *, address: Address, node: NodeID, config: Config, is_driver: bool = False) -> None:
        super().__init__()
        self.address = address
        self.node = node
        self.config = config
        self.is_driver = is_driver
        node_manager = Address(node)
        self.rooms = Rooms(out=self.out, address=address, node=node, config=config)
        self.values = Values(out=self.out, address=address, node=node_manager, rooms=self.rooms)
        self.tasks = Tasks(
            out=self.out,
            address=address,
            values=self.values,
            retry=load_policy(config.retry_policy),
            reconstruction=load_policy(config.reconstruction_policy),
        )
        self.leases = Leases(
            out=self.out, address=address, node_manager=node_manager, config=config, push=self._push_to_lease
        )
        self.actor_calls = ActorCalls(out=self.out, address=address, tasks=self.tasks, push=self._push_calls)
        self.executor = Executor(
            out=self.out,
            address=address,
            node=node,
            values=self.values,
            config=config,
            become_concurrent=self._become_concurrent,
            refuse_tasks=self._refuse_tasks,
        )
        self.reach = Reach(
            out=self.out,
            address=address,
            node=node,
            config=config,
            leases=self.leases,
            actor_calls=self.actor_calls,
            give_up=self._on_link_lost,
        )
        self.production = Production(out=self.out, address=address, values=self.values)
        self.actor_executor: ActorExecutor | None = None
        """Of an actor of which several methods may run at a time."""
        self.cancellation = Cancellation(
            out=self.out,
            address=address,
            node=node,
            tasks=self.tasks,
            leases=self.leases,
            actor_calls=self.actor_calls,
            executor=self.executor,
            end_worker=self._refuse_tasks,
        )
        self.cluster: tuple[NodeInfo, ...] = ()
        self.cluster_state: dict[WaitID, tuple[NodeState, ...]] = {}
        self.rows: dict[WaitID, tuple[str, ...]] = {}
        self.named_actors: dict[WaitID, ActorNameReported] = {}
        """Answers that were not taken yet."""
        self._rows_due: dict[WaitID, None] = {}
        self._space: dict[ObjectID, deque[WaitID | None]] = {}
        """Who waits for room for an object, first come first; None: nobody does any more."""
        self._given_back: list[TaskID] = []
        self.explanation = Explanation(
            address=address,
            node=node,
            values=self.values,
            tasks=self.tasks,
            actor_calls=self.actor_calls,
            why_waiting=self.why_waiting,
        )
        self.state_rows = OwnerRows(
            address=address,
            values=self.values,
            tasks=self.tasks,
            actor_calls=self.actor_calls,
            executor=self.executor,
            explanation=self.explanation,
        )
        self._is_retired = False
        """A worker that gets no more tasks, and has not said yet that nobody needs it."""
        self.table = _TABLE
        self.calm = _CALM

    # ---- What the user's code asks ---------------------------------------------------------------------------

    def why_infeasible(self, shape: LeaseShape) -> str | None:
        """Why no node could ever take the demand, or None; only asked where infeasible demands raise."""
        if self.config.infeasible != "raise":
            return None
        return self.why_waiting(shape)

    def why_waiting(self, shape: LeaseShape) -> str | None:
        """Why no node that there is now could take the demand, or None."""
        return why_infeasible(shape, self.cluster) if self.cluster else None

    def _on_started(self, event: Started) -> None:
        if self.is_driver:
            self.out.send(HEAD, DriverJoined(address=self.address, node=self.node, namespace=event.namespace))

    def submit(self, spec: TaskSpec, now_ns: int) -> list[Command]:
        """As `handle(TaskSubmitted(spec=spec), now_ns)`, for a runner that logs no events."""
        out = self.out
        out.now_ns = now_ns
        out.is_stirred = TaskSubmitted not in self.calm
        self._submit(spec)
        if out.is_stirred:
            self.drain()
        commands = out.commands
        if commands:
            out.commands = []
        return commands

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

    def _on_put(self, event: ValuePut) -> None:
        if event.inline and not event.nested:
            self.put_small(event.object_id, event.size_bytes)
            return
        value = self.values.owned(event.object_id)
        value.local_refs += 1
        self._fill(value, event)

    def put_small(self, object_id: ObjectID, size_bytes: int) -> None:
        """As `handle(ValuePut(...))` of a small value without references, for a runner that logs no events: it leads to
        no commands."""
        if object_id in self.values.table:
            raise InvariantViolation(f"object {short(object_id)} was put twice")
        value = self.values.table[object_id] = Value(object_id, self.address, ValueState.INLINE)
        value.size_bytes = size_bytes
        value.local_refs = 1
        value.is_bare = True

    def _on_promised(self, event: ValuePromised) -> None:
        self.values.owned(event.object_id).local_refs += 1

    def _on_kept(self, event: PromiseKept) -> None:
        value = self.values.owned(event.object_id)
        if value.state is ValueState.PENDING:
            self._fill(value, event)

    def _fill(self, value: Value, event: ValuePut | PromiseKept) -> None:
        if event.inline:
            self.values.set_inline(value, event.size_bytes, event.nested)
        else:
            if not self.rooms.written(event.object_id):
                self.out.send(Address(self.node), ObjectSealed(object_id=event.object_id, requester=self.address))
            self.values.set_stored(value, event.size_bytes, self.address, event.nested)

    def _on_wait_started(self, event: WaitStarted) -> None:
        self.leases.on_wait()
        self.actor_calls.send_deferred()
        self.values.start_wait(event)
        wait = self.values.waits.get(event.wait_id)
        if wait is not None and wait.blocked:
            self.executor.recall_waiting()

    def _on_wait_abandoned(self, event: WaitAbandoned) -> None:
        if event.wait_id in self.values.waits:
            self.values.cancel(event.wait_id)

    def _on_actor_changed(self, event: ActorChanged) -> None:
        self.actor_calls.on_changed(event)
        record = self.tasks.records.get(TaskID(event.actor_id))
        if record is not None and not record.is_done and event.state is ActorState.DEAD:
            assert event.error is not None
            self.tasks.fail(record, event.error)  # the constructor's arguments are needed no more

    def _on_kill_asked(self, event: ActorKillAsked) -> None:
        self.actor_calls.send_deferred()
        if event.no_restart:
            self.actor_calls.client(event.actor_id).is_killed = True  # its calls wait for the news of its death
        self.out.send(HEAD, ActorKillRequested(actor_id=event.actor_id, no_restart=event.no_restart))

    def _on_name_asked(self, event: ActorNameAsked) -> None:
        self.out.send(
            HEAD,
            ActorNameRequested(
                wait_id=event.wait_id,
                requester=self.address,
                name=event.name,
                namespace=event.namespace,
                job=event.job,
                claim=event.claim,
                get_if_exists=event.get_if_exists,
            ),
        )

    def _on_name_reported(self, event: ActorNameReported) -> None:
        if event.error is None:
            self.named_actors[event.wait_id] = event
        self.out.add(CompleteWait(wait_id=event.wait_id, error=event.error))

    def _on_cancel_asked(self, event: CancelAsked) -> None:
        self.leases.on_wait()
        self.actor_calls.send_deferred()
        self.cancellation.on_asked(event)

    def _on_cancel_requested(self, event: CancelRequested) -> None:
        self.cancellation.on_requested(event)

    def _refuse_tasks(self) -> None:
        """This process is about to end."""
        refuse = self.executor.refuse
        self._hear({TaskPushed: refuse, TasksPushed: refuse})

    def _hear(self, otherwise: Mapping[type[Any], Callable[[Any], object]]) -> None:
        """From now on these events lead to something else in this process."""
        self.table = {**self.table, **{kind: partial(_pass_on, do) for kind, do in otherwise.items()}}

    def _on_state_asked(self, event: ClusterStateAsked) -> None:
        self.out.send(HEAD, ClusterStateRequested(wait_id=event.wait_id, requester=self.address))

    def _on_state_reported(self, event: ClusterStateReported) -> None:
        self.cluster_state[event.wait_id] = event.nodes
        self.out.add(CompleteWait(wait_id=event.wait_id))

    def _on_rows_asked(self, event: RowsAsked) -> None:
        self._rows_due[event.wait_id] = None
        self.out.add(ArmTimer(timer=f"{_ROWS_TIMER}{event.wait_id}", delay_ns=event.timeout_ns))
        self.out.send(event.to, RowsRequested(wait_id=event.wait_id, requester=self.address, table=event.table))

    def _on_rows_requested(self, event: RowsRequested) -> None:
        rows = tuple(json.dumps(row) for row in self.state_rows.of(event.table))
        self.out.send(event.requester, RowsReported(wait_id=event.wait_id, rows=rows))

    def _on_rows_reported(self, event: RowsReported) -> None:
        if event.wait_id in self._rows_due:
            self.rows[event.wait_id] = event.rows
            self.out.add(CancelTimer(timer=f"{_ROWS_TIMER}{event.wait_id}"))
            self._rows_are_over(event.wait_id)

    def _rows_are_over(self, wait_id: WaitID) -> None:
        """They have come, or are late."""
        if wait_id in self._rows_due:
            del self._rows_due[wait_id]
            self.out.add(CompleteWait(wait_id=wait_id))

    def _on_cluster_changed(self, event: ClusterChanged) -> None:
        self.cluster = event.nodes

    # ---- Room in this node's store ---------------------------------------------------------------------------

    def _on_space_wanted(self, event: SpaceWanted) -> None:
        if event.is_argument and self.rooms.take(event.object_id, event.size_bytes):
            self.out.add(CompleteWait(wait_id=event.wait_id, ready=(event.object_id,)))
            return
        self._space.setdefault(event.object_id, deque()).append(event.wait_id)
        self.out.send(
            Address(self.node),
            SpaceRequested(
                object_id=event.object_id,
                size_bytes=event.size_bytes,
                owner=event.owner,
                requester=self.address,
                remakeable=event.remakeable,
                is_room=event.is_argument and self.rooms.may_ask(event.object_id, event.size_bytes),
            ),
        )

    def _on_space_granted(self, event: SpaceGranted) -> None:
        wait_id = self._next_space_wait(event.object_id)
        if wait_id is not None:
            self.rooms.on_granted(event)
            self.out.add(CompleteWait(wait_id=wait_id, ready=() if event.present else (event.object_id,)))
        elif not event.present:
            self._give_back_space(event.object_id)

    def _on_space_denied(self, event: SpaceDenied) -> None:
        self.rooms.asked.pop(event.object_id, None)
        wait_id = self._next_space_wait(event.object_id)
        if wait_id is not None:
            self.out.add(CompleteWait(wait_id=wait_id, error=event.error))

    def _on_put_abandoned(self, event: PutAbandoned) -> None:
        """Of an object that was put: its id was given once, so that at most one thread waits for its room."""
        if event.object_id in self._space:
            self._space[event.object_id] = deque([None])
            self.rooms.asked.pop(event.object_id, None)
        elif event.object_id in self.values.table:
            self.values.drop_refs((event.object_id,))
        else:
            self._give_back_space(event.object_id)

    def _give_back_space(self, object_id: ObjectID) -> None:
        """Room that was reserved, and may be half written: what is sealed can be freed."""
        if self.rooms.free(object_id):
            return
        self.out.send(Address(self.node), ObjectSealed(object_id=object_id, requester=self.address))
        self.out.send(HEAD, ObjectsFreed(object_ids=(object_id,)))

    def _next_space_wait(self, object_id: ObjectID) -> WaitID | None:
        waiting = self._space[object_id]
        wait_id = waiting.popleft()
        if not waiting:
            del self._space[object_id]
        return wait_id

    def _on_space_written(self, event: SpaceWritten) -> None:
        self.out.send(Address(self.node), ObjectSealed(object_id=event.object_id, requester=self.address))

    # ---- What others report ----------------------------------------------------------------------------------

    def _on_timer(self, event: TimerFired) -> None:
        if event.timer == IDLE_TIMER:
            self.leases.on_idle_timer()
        elif event.timer == PUSH_TIMER:
            self.leases.on_push_timer()
        elif event.timer == CALLS_TIMER:
            self.actor_calls.on_timer()
        elif event.timer == EXIT_TIMER:
            self.executor.exit.on_timer()
        elif event.timer == FETCH_TIMER:
            self.executor.on_fetch_timer()
        elif event.timer == ROOM_TIMER:
            self.rooms.on_timer()
        elif event.timer == REACH_TIMER:
            self.reach.on_timer()
        elif event.timer.startswith(FORCE_TIMER):
            self.cancellation.on_force_timer(event.timer)
        elif event.timer.startswith(_ROWS_TIMER):
            self._rows_are_over(WaitID(int(event.timer.removeprefix(_ROWS_TIMER))))
        else:
            self.values.on_wait_timer(WaitID(int(event.timer.partition(":")[2])))

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
        if event.error.kind is ErrorKind.TASK_CANCELLED:
            self.tasks.fail(record, event.error)
            if record.spec.actor_id is not None:
                self.actor_calls.finished(record)
            elif lease_id is not None:
                self.leases.cancelled(event.task_id, lease_id)
            return
        if lease_id is not None:
            self.leases.finished(event.task_id, lease_id, event.duration_ns)
        payload = exception_id(event.task_id) if event.error.kind is ErrorKind.APPLICATION else None
        if self.tasks.attempt_lost(record, event.error, payload=payload):
            if record.spec.actor_id is not None:
                self.actor_calls.repeat(record)
            else:
                self._given_back.append(event.task_id)
                self.out.is_stirred = True
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
                self._drop_late(event, outcome)
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
            self._drop_late(event, outcome)
            return
        lease_id = record.lease_id
        if lease_id is None and record.spec.actor_id is not None:
            self.actor_calls.finished(record)
        self.tasks.finish_small(record, size_bytes)
        if lease_id is not None:
            self.leases.finished(task, lease_id, duration_ns)

    def _drop_late(self, event: TasksFinished, outcome: Outcome) -> None:
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
        self.tasks.drop_late(late)

    def _on_results_taken(self, event: ResultsTaken) -> None:
        if event.index:
            self.production.on_taken(event)
        else:
            self.executor.on_results_taken(event)

    def _on_recalled(self, event: TasksRecalled) -> None:
        for task in event.tasks:
            self.rooms.settle(event.worker, task)
            record = self.tasks.records.get(task)
            if record is None or record.state is not TaskState.PUSHED or record.worker != event.worker:
                continue
            assert record.lease_id is not None
            self.leases.recalled(task, record.lease_id)
            if record.is_cancelled:
                self.tasks.fail(record, cancelled(record.spec))
                continue
            self.tasks.set_queued(record)
            self._given_back.append(task)
            self.out.is_stirred = True

    def _on_leased_worker_died(self, event: LeasedWorkerDied) -> None:
        self.rooms.borrower_died(event.worker)
        lost, error = self.leases.lost(event), event.error
        if lost:
            error = ErrorInfo(kind=error.kind, message=f"{self._name_of(lost[0])} was lost: {error.message}")
        self._attempts_lost(lost, error)

    def _on_node_died(self, event: NodeDied) -> None:
        if event.cluster is not None:
            self.cluster = event.cluster.nodes
        for lost in self.leases.lost_with_node(event.node, event.incarnation):
            running = f"Node {event.node} died while it ran {self._name_of(lost[0])}." if lost else ""
            self._attempts_lost(lost, ErrorInfo(kind=ErrorKind.NODE_DIED, message=running))
        met = self.values.met
        self._processes_died(frozenset(address for address in met if lives_on(address, event.node, event.incarnation)))

    def _on_link_lost(self, event: LinkLost) -> None:
        """What was pushed there may have run, and its report be lost: each of these tasks uses a retry."""
        why = self.reach.why(event.node)
        tasks = [task for lost in self.leases.lost_with_node(event.node, event.incarnation) for task in lost]
        for task in tasks:
            message = f"{self._name_of(task)} has no answer: {why}."
            self._attempts_lost([task], ErrorInfo(kind=ErrorKind.WORKER_UNREACHABLE, message=message))
        if tasks and self.is_driver:
            words = f"{len(tasks)} tasks have no answer, and are tried elsewhere if they may: {why}"
            self.out.add(TellWait(words=words))

    def _name_of(self, task: TaskID) -> str:
        return f"{self.tasks.records[task].spec.template.name} (task {short(task)})"

    def _attempts_lost(self, tasks: list[TaskID], error: ErrorInfo) -> None:
        """The oldest task of a lost worker may have been running. The others mostly had not started: they use no retry.
        But the oldest may have ended, and the news of it be lost with the worker: what begins again is another attempt.
        Tasks that may not run twice are never behind another one (leases.py)."""
        for position, task in enumerate(tasks):
            record = self.tasks.records[task]
            record.again = True
            if position == 0 or record.is_cancelled:
                if self.tasks.attempt_lost(record, error):
                    self._given_back.append(task)
                    self.out.is_stirred = True
            else:
                record.attempt += 1
                self.tasks.set_queued(record)
                self._given_back.append(task)
                self.out.is_stirred = True

    def _on_owner_died(self, event: OwnerDied) -> None:
        self._processes_died(frozenset((event.address,)))

    def _processes_died(self, dead: frozenset[Address]) -> None:
        for borrower in [borrower for borrower in self.rooms.lent if borrower in dead]:
            self.rooms.borrower_died(borrower)
        self.values.on_process_died(dead)
        self.executor.on_process_died(dead)
        self.production.on_process_died(dead)
        if self.actor_executor is not None:
            self.actor_executor.on_process_died(dead)
        self.actor_calls.on_process_died(dead)

    def _on_retired(self, event: WorkerRetired) -> None:
        self._is_retired = True
        self.calm = frozenset()  # each event may be the last that this process is needed for

    def _leave_if_spare(self) -> None:
        if self.values.table or self.tasks.records or self.executor.in_transit or self.executor.current is not None:
            return
        self._is_retired = False
        reason = (
            "it has run as many calls as max_calls lets it"
            if self.executor.is_spent
            else "its lease has ended, and it has had GPUs, or is of another runtime_env than others need"
        )
        self.out.send(Address(self.node), WorkerUnwanted(worker=self.address, reason=reason))

    # ---- The drain -------------------------------------------------------------------------------------------

    def drain(self) -> None:
        """React until nothing is left: see the module."""
        steps = 0
        while self._drain_once():
            steps += 1
            if steps > DRAIN_STEPS_MAX:
                raise InvariantViolation(f"the owner machine of {self.address} does not come to rest")
        if self._is_retired:
            self._leave_if_spare()

    def _drain_once(self) -> bool:
        values, tasks, leases, calls = self.values, self.tasks, self.leases, self.actor_calls
        if values.remake_wanted:
            value = values.table.get(values.remake_wanted.popleft())
            if value is not None and (value.state is ValueState.FREED or tasks.lineage.is_lost(value)):
                tasks.remake(value)
        elif values.tasks_to_look_at:
            while values.tasks_to_look_at:
                self._look_at(values.tasks_to_look_at.popleft())
        elif self._given_back:
            for task in reversed(self._given_back):
                self._place(tasks.records[task], first=True)
            self._given_back.clear()
        elif tasks.ready:
            while tasks.ready:
                self._place(tasks.records[tasks.ready.popleft()], first=False)
        elif leases.dirty:
            leases.pump()
        elif leases.refused:
            task, error = leases.refused.popleft()
            tasks.fail(tasks.records[task], error)
        elif calls.dirty:
            calls.pump()
        elif values.waits_completed:
            self._on_fetched(*values.waits_completed.popleft())
        elif values.lineage_released:
            while values.lineage_released:
                tasks.on_return_gone(values.lineage_released.popleft())
        elif values.streams_dropped:
            tasks.streams.drop(values.streams_dropped.popleft())
        elif self.production.queue and self.production.flush():
            pass
        elif tasks.results_to_acknowledge and not values.unacknowledged:
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
        self.calm = frozenset()
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
            self._register_actor(record)
        else:
            template = spec.template if record.near is None else placed_near(spec.template, record.near)
            queue = self.leases.queue_for(template, self.tasks.stored_deps(record))
            self.leases.enqueue(spec.task_id, queue, first=first, is_new=is_new)

    def _register_actor(self, record: TaskRecord) -> None:
        """Hand the constructor to the head; from here on the head knows the actor's fate."""
        for ref in record.spec.deps:
            self.rooms.hand_over(ref.object_id)
        inline = self.tasks.inline_deps(record)
        message = ActorRegistered(spec=record.spec, inline_deps=inline)
        self.out.send(HEAD, message, (*record.spec.payload_keys, *inline))
        self.tasks.set_pushed(record, HEAD, None)

    def _push_to_lease(self, pushed: list[TaskID], lease: Lease) -> None:
        is_alone = len(lease.in_flight) == len(pushed)  # else the worker has something to do
        records = self.tasks.records
        if len(pushed) == 1:
            self._push(records[pushed[0]], lease.worker, lease.lease_id, lease.gpu_ids, urgent=is_alone)
            return
        self._push_several([records[task] for task in pushed], lease.worker, lease, urgent=is_alone)

    def _push_calls(self, records: list[TaskRecord], worker: Address, is_alone: bool) -> None:
        self._push_several(records, worker, None, urgent=is_alone)

    def _push_several(self, records: list[TaskRecord], worker: Address, lease: Lease | None, *, urgent: bool) -> None:
        """Push tasks in order: those that follow one another, stand alone and differ in little, together."""
        gpu_ids = lease.gpu_ids if lease is not None else ()
        lease_id = lease.lease_id if lease is not None else None
        if len(records) == 1:
            self._push(records[0], worker, lease_id, gpu_ids, urgent=urgent)
            return
        first: TaskSpec | None = None
        calls: list[Call] = []
        payloads: list[bytes] = []
        for record in records:
            spec = record.spec
            if spec.deps or spec.nested or spec.creates or record.again:
                if first is not None:
                    self._push_together(first, calls, payloads, worker, gpu_ids, urgent=urgent)
                    first, calls, payloads = None, [], []
                self._push(record, worker, lease_id, gpu_ids, urgent=urgent)
                continue
            if first is not None and not (
                (spec.template is first.template or spec.template == first.template)
                and spec.parent == first.parent
                and spec.actor_handle == first.actor_handle
            ):
                self._push_together(first, calls, payloads, worker, gpu_ids, urgent=urgent)
                first, calls, payloads = None, [], []
            if first is None:
                first = spec
            if record.state is TaskState.QUEUED:
                record.state = TaskState.PUSHED
                record.worker = worker
                record.lease_id = lease_id
                record.was_pushed = True
            else:
                self.tasks.set_pushed(record, worker, lease_id)
            calls.append((spec.task_id, record.attempt, spec.args_bytes))
            if spec.args_bytes:
                payloads.append(spec.task_id)
        if first is not None:
            self._push_together(first, calls, payloads, worker, gpu_ids, urgent=urgent)

    def _push_together(
        self,
        first: TaskSpec,
        calls: list[Call],
        payloads: list[bytes],
        worker: Address,
        gpu_ids: tuple[int, ...],
        *,
        urgent: bool,
    ) -> None:
        """Push calls of one function, or of one method of an actor, of which `first` is the first: they are noted as
        pushed already."""
        message = TasksPushed(
            template=first.template,
            owner=self.address,
            parent=first.parent,
            calls=tuple(calls),
            gpu_ids=gpu_ids,
            actor_id=first.actor_id,
            actor_handle=first.actor_handle,
        )
        self.out.commands.append(Send(to=worker, message=message, payloads=tuple(payloads), urgent=urgent))

    def _push(
        self, record: TaskRecord, worker: Address, lease_id: LeaseID | None, gpu_ids: tuple[int, ...], *, urgent: bool
    ) -> None:
        spec = record.spec
        inline = self.tasks.inline_deps(record) if spec.deps else ()
        if spec.deps and self.rooms.lodged:
            self._lend(record, worker)
        self.tasks.set_pushed(record, worker, lease_id)
        message = new_push(spec, record.attempt, self.address, inline, gpu_ids, record.again)
        payloads = (spec.task_id, *inline) if spec.args_bytes else inline
        self.out.commands.append(Send(to=worker, message=message, payloads=payloads, urgent=urgent))

    def _lend(self, record: TaskRecord, worker: Address) -> None:
        """Arguments of a task that is about to be pushed may lie in room of ours: the worker may read them there, and
        we must hear when it can no more."""
        if self.rooms.lend(record.spec.task_id, record.spec.deps, worker):
            self.values.meet(worker)

    def call_name(self, task: TaskID | None) -> str | None:
        """What a call is called that runs in this process, beside others."""
        call = self.actor_executor.calls.get(task) if self.actor_executor is not None and task is not None else None
        return None if call is None else call.pushed.spec.template.name

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


_TABLE: Final[Mapping[type[Any], Callable[[Any, Any], object]]] = {
    TaskSubmitted: Owner._on_submitted,
    ValuePut: Owner._on_put,
    ValuePromised: Owner._on_promised,
    PromiseKept: Owner._on_kept,
    SpaceWanted: Owner._on_space_wanted,
    SpaceWritten: Owner._on_space_written,
    PutAbandoned: Owner._on_put_abandoned,
    SpaceGranted: Owner._on_space_granted,
    SpaceDenied: Owner._on_space_denied,
    RoomWanted: lambda owner, event: owner.rooms.on_wanted(),
    ArgumentsLent: lambda owner, event: owner.values.on_lent(event),
    LoansKept: lambda owner, event: owner.rooms.on_kept(event),
    LoanPinned: lambda owner, event: owner.values.on_loan_pinned(event),
    LoansAsked: lambda owner, event: owner.values.on_loans_asked(event),
    WaitStarted: Owner._on_wait_started,
    WaitAbandoned: Owner._on_wait_abandoned,
    RefsAdded: lambda owner, event: owner.values.add_refs(event.refs),
    RefsDropped: lambda owner, event: owner.values.drop_refs(event.object_ids),
    ViewReleased: lambda owner, event: owner.values.on_view_released(event.object_id),
    TaskRan: lambda owner, event: owner.executor.on_ran(event),
    TasksRan: lambda owner, event: owner.executor.on_several_ran(event),
    ActorKillAsked: Owner._on_kill_asked,
    ActorNameAsked: Owner._on_name_asked,
    ActorNameReported: Owner._on_name_reported,
    ActorExitAsked: lambda owner, event: owner.executor.on_exit_asked(event),
    ActorLeaving: lambda owner, event: owner.out.send(event.worker, ActorLeavingHeard(process=owner.address)),
    ActorLeavingHeard: lambda owner, event: owner.executor.exit.on_heard(event.process),
    CancelAsked: Owner._on_cancel_asked,
    CancelRequested: Owner._on_cancel_requested,
    TaskUnwanted: lambda owner, event: owner.cancellation.on_unwanted(event),
    ClusterStateAsked: Owner._on_state_asked,
    ClusterStateReported: Owner._on_state_reported,
    PlacementGroupAsked: lambda owner, event: owner.out.send(
        HEAD, PlacementGroupRequested(wait_id=event.wait_id, spec=event.spec)
    ),
    PlacementGroupRemovalAsked: lambda owner, event: owner.out.send(
        HEAD, PlacementGroupUnwanted(group_id=event.group_id)
    ),
    PlacementGroupNoted: lambda owner, event: owner.out.add(CompleteWait(wait_id=event.wait_id, error=event.error)),
    RowsAsked: Owner._on_rows_asked,
    RowsRequested: Owner._on_rows_requested,
    RowsReported: Owner._on_rows_reported,
    WaitExplained: lambda owner, event: owner.out.add(TellWait(words=event.words)),
    ClusterChanged: Owner._on_cluster_changed,
    Started: Owner._on_started,
    TimerFired: Owner._on_timer,
    LeaseGranted: lambda owner, event: owner.leases.on_granted(event),
    LeasesGranted: lambda owner, event: owner.leases.on_several_granted(event),
    LeaseRefused: lambda owner, event: owner.leases.on_refused(event),
    LeaseWanted: lambda owner, event: owner.leases.on_wanted(event),
    LeasedWorkerDied: Owner._on_leased_worker_died,
    NodeDied: Owner._on_node_died,
    OwnerDied: Owner._on_owner_died,
    PeerLost: lambda owner, event: owner.reach.on_peer_lost(event),
    LinkLost: Owner._on_link_lost,
    TaskPushed: lambda owner, event: owner.executor.on_pushed(event),
    TasksPushed: lambda owner, event: owner.executor.on_several_pushed(event),
    TaskFinished: Owner._on_task_finished,
    TasksFinished: Owner._on_several_finished,
    TasksRecalled: Owner._on_recalled,
    ValueRequested: lambda owner, event: owner.values.on_value_requested(event),
    ValueReported: lambda owner, event: owner.values.on_value_reported(event),
    BorrowAdded: lambda owner, event: owner.values.on_borrow_added(event),
    BorrowAcknowledged: lambda owner, event: owner.values.on_borrow_acknowledged(event),
    BorrowRemoved: lambda owner, event: owner.values.on_borrow_removed(event),
    ResultsTaken: Owner._on_results_taken,
    ItemMade: lambda owner, event: owner.production.on_made(event),
    ItemsEnded: lambda owner, event: owner.production.on_ended(event),
    ItemTaken: lambda owner, event: owner.tasks.streams.on_taken(event),
    ItemReported: lambda owner, event: owner.tasks.streams.on_reported(event),
    ItemsRead: lambda owner, event: owner.production.on_read(event),
    ObjectArrived: lambda owner, event: owner.values.on_object_arrived(event),
    ObjectUnavailable: lambda owner, event: owner.values.on_object_unavailable(event),
    ObjectDemanded: lambda owner, event: owner.tasks.on_demanded(event),
    CopiesDoubted: lambda owner, event: owner.tasks.lineage.on_doubted(event),
    ActorChanged: Owner._on_actor_changed,
    WorkerRetired: Owner._on_retired,
}
"""What each event leads to; one table for all machines of the kind."""

_CALM: Final = frozenset(
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
