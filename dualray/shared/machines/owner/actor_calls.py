"""The calls that one process makes to actors: in order, straight to the actor's worker.

Theory of operation. For each actor that this process calls there is one client with one queue. Calls are sent in the
order in which they were made; a call whose arguments are not ready holds back those behind it, unless the actor takes
calls in any order: then it takes its place when they are ready. The head tells where the actor lives (ActorChanged).
When its worker is lost, calls that were sent and not answered go to the retry policy (max_task_retries): those that
may run again are queued before the others, in their old order, and sent to the actor's next life; the others fail
with ActorUnavailableError, or with ActorDiedError when there is no next life. So do calls without retries that would be
sent while the actor is RESTARTING: a caller that asks for no retries does not wait for a next life. A call whose result
was lost goes before all that wait, here and at the actor: it is older than they are.

Relies on: messages to one worker stay in order; the head reports every change of an actor's state, in order of lives.
Guarantees: the calls of one caller start in the order in which they were made, within each life of the actor; those
that are made again are excepted, and the calls of actors that take them in any order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from dualray.shared.machines.base import Outbox, ensure
from dualray.shared.machines.owner.leases import BURST_NS, DEFER_NS
from dualray.shared.machines.owner.task_records import TaskRecord
from dualray.shared.machines.owner.tasks import Tasks
from dualray.shared.model.commands import ArmTimer
from dualray.shared.model.errors import ErrorInfo, ErrorKind
from dualray.shared.model.events import ActorChanged, ActorKillAsked, ActorKillRequested, ActorSubscribed
from dualray.shared.model.ids import HEAD, ActorID, Address, TaskID, short
from dualray.shared.model.states import ActorState, TaskState

CALLS_TIMER = "send-calls"
_DEFER_MAX = 16
"""Calls that are held back at most, while the actor is busy with others of ours or in a burst, to be sent together."""


class ActorClient:
    """One actor as one caller sees it."""

    __slots__ = ("actor_id", "error", "in_flight", "is_killed", "life", "owner", "queue", "state", "unready", "worker")

    def __init__(self, actor_id: ActorID) -> None:
        self.actor_id = actor_id
        self.state = ActorState.PENDING
        self.life = 0
        self.worker: Address | None = None
        self.owner: Address | None = None
        self.error: ErrorInfo | None = None
        self.is_killed = False
        """This process has killed it: what it calls from now on fails, though the actor may still be up."""
        self.queue: deque[TaskID] = deque()
        self.unready: dict[TaskID, None] = {}
        """Calls of an actor that takes them in any order, until their arguments are ready: they hold back nobody."""
        self.in_flight: dict[TaskID, None] = {}


class ActorCalls:
    """See the module."""

    def __init__(
        self, *, out: Outbox, address: Address, tasks: Tasks, push: Callable[[list[TaskRecord], Address, bool], None]
    ) -> None:
        self.out = out
        self._push = push
        self.address = address
        self.tasks = tasks
        tasks.why_dead = self._why_dead
        self.clients: dict[ActorID, ActorClient] = {}
        # Worklist that the owner machine drains.
        self.dirty: dict[ActorID, None] = {}
        self.deferred: dict[ActorID, None] = {}
        """Those with calls that are held back to be sent with others, until somebody waits, the actor has no more, or
        for `DEFER_NS`."""
        self._timer_armed = False
        self._last_ns = 0
        """When a call was made last, unless somebody has waited since."""

    def client(self, actor_id: ActorID, owner: Address | None = None) -> ActorClient:
        """The client for an actor; the first time, the head is asked to tell of its state."""
        client = self.clients.get(actor_id)
        if client is None:
            client = self.clients[actor_id] = ActorClient(actor_id)
            self.out.send(HEAD, ActorSubscribed(actor_id=actor_id, subscriber=self.address, owner=owner))
        return client

    def _why_dead(self, actor_id: ActorID) -> ErrorInfo | None:
        client = self.clients.get(actor_id)
        return client.error if client is not None and client.state is ActorState.DEAD else None

    def has_pending(self, actor_id: ActorID, count: int) -> bool:
        """Whether there are so many calls of this process that the actor has not answered."""
        client = self.clients.get(actor_id)
        if client is None:
            return False
        sure = len(client.unready) + len(client.in_flight)
        if len(client.queue) + sure < count:
            return False
        records = self.tasks.records
        queued = sum(1 for task in client.queue if task in records and not records[task].is_done)  # some are cancelled
        return queued + sure >= count

    def accept(self, record: TaskRecord) -> None:
        """A call was made: its place in the order is taken now, whenever its arguments are ready."""
        assert record.spec.actor_id is not None
        owner = record.spec.actor_handle.owner if record.spec.actor_handle is not None else None
        client = self.clients.get(record.spec.actor_id) or self.client(record.spec.actor_id, owner)
        if owner is not None:
            client.owner = owner
        if record.spec.template.is_unordered and record.state is TaskState.WAITING_ARGS:
            client.unready[record.spec.task_id] = None
            self.dirty[client.actor_id] = None  # the actor may be dead
            self.out.needs_drain = True
            return
        last_ns, self._last_ns = self._last_ns, self.out.now_ns
        is_busy = bool(client.in_flight) or (last_ns and self.out.now_ns - last_ns < BURST_NS)
        if (
            record.state is TaskState.QUEUED
            and not client.queue
            and client.state is ActorState.ALIVE
            and not client.is_killed
            and not is_busy
        ):
            self._send(client, [record])
            return
        client.queue.append(record.spec.task_id)
        if is_busy and len(client.queue) < _DEFER_MAX and record.spec.stands_alone:
            self.deferred[client.actor_id] = None
            if not self._timer_armed:
                self._timer_armed = True
                self.out.add(ArmTimer(timer=CALLS_TIMER, delay_ns=DEFER_NS))
            return
        self.dirty[client.actor_id] = None
        self.out.needs_drain = True

    def on_timer(self) -> None:
        """What was held back has waited for others long enough."""
        self._timer_armed = False
        self.send_deferred()

    def send_deferred(self) -> None:
        """Send what was held back to go with others."""
        self._last_ns = 0
        if self.deferred:
            self.dirty |= self.deferred
            self.deferred = {}
            self.out.needs_drain = True

    def _send(self, client: ActorClient, records: list[TaskRecord]) -> None:
        assert client.worker is not None
        is_idle = not client.in_flight
        for record in records:
            client.in_flight[record.spec.task_id] = None
        self._push(records, client.worker, is_idle)

    def pump(self) -> None:
        """Send what can be sent, in order; fail what can never be."""
        for actor_id in list(self.dirty):
            client = self.clients[actor_id]
            if client.state is ActorState.DEAD:
                self._fail_all(client)
            elif client.state is ActorState.ALIVE and not client.is_killed:
                ready = self._take_ready(client)
                if ready:
                    self._send(client, ready)
            elif client.state is ActorState.RESTARTING and client.queue:
                self._refuse_ready(client)
        self.dirty.clear()

    def _refuse_ready(self, client: ActorClient) -> None:
        """Fail what could be sent if the actor were up, and must not be repeated."""
        kept: list[TaskID] = []
        for record in self._take_ready(client):
            if record.spec.template.max_retries:
                kept.append(record.spec.task_id)
                continue
            name, task = record.spec.template.name, short(record.spec.task_id)
            message = (
                f"The actor is restarting: actor {short(client.actor_id)} is temporarily unavailable, and the call "
                f"{name} (task {task}) was not sent. Call again later, or set max_task_retries, so that calls wait."
            )
            self.tasks.fail(record, ErrorInfo(kind=ErrorKind.ACTOR_UNAVAILABLE, message=message, actor=client.actor_id))
        client.queue.extendleft(reversed(kept))

    def _take_ready(self, client: ActorClient) -> list[TaskRecord]:
        """Take from the queue, in order, what can be sent."""
        ready: list[TaskRecord] = []
        while client.queue:
            record = self.tasks.records.get(client.queue[0])
            if record is not None and not record.is_done:  # else an argument of it failed
                if record.state is TaskState.QUEUED:
                    ready.append(record)
                elif record.spec.template.is_unordered:  # an argument was lost, and is made again
                    client.unready[record.spec.task_id] = None
                else:
                    break
            client.queue.popleft()
        return ready

    def _fail_all(self, client: ActorClient) -> None:
        assert client.error is not None
        client.queue.extend(client.unready)
        client.unready.clear()
        while client.queue:
            record = self.tasks.records.get(client.queue.popleft())
            if record is not None and not record.is_done:
                self.tasks.fail(record, client.error)

    def became_ready(self, record: TaskRecord) -> None:
        """The call's arguments are ready."""
        assert record.spec.actor_id is not None
        client = self.client(record.spec.actor_id)
        if record.spec.task_id in client.unready:
            del client.unready[record.spec.task_id]
            client.queue.append(record.spec.task_id)
        elif record.again and record.spec.task_id not in client.queue:
            # It was made before all that wait: they may even wait for its result, to be made from it again.
            client.queue.appendleft(record.spec.task_id)
        self.dirty[client.actor_id] = None
        self.out.needs_drain = True

    def gave_way(self, record: TaskRecord) -> None:
        """The call failed before it was sent: it holds back those behind it no more."""
        assert record.spec.actor_id is not None
        self.clients[record.spec.actor_id].unready.pop(record.spec.task_id, None)
        self.dirty[record.spec.actor_id] = None
        self.out.needs_drain = True

    def finished(self, record: TaskRecord) -> None:
        """A call was answered."""
        assert record.spec.actor_id is not None
        client = self.clients[record.spec.actor_id]
        client.in_flight.pop(record.spec.task_id, None)
        if client.queue and not client.in_flight and client.actor_id not in self.deferred:
            self.dirty[client.actor_id] = None
            self.out.needs_drain = True

    def repeat(self, record: TaskRecord) -> None:
        """The method raised and is to run again (retry_exceptions)."""
        assert record.spec.actor_id is not None
        client = self.clients[record.spec.actor_id]
        client.in_flight.pop(record.spec.task_id, None)
        client.queue.appendleft(record.spec.task_id)
        self.dirty[client.actor_id] = None
        self.out.needs_drain = True

    def on_kill_asked(self, event: ActorKillAsked) -> None:
        """User code ends an actor."""
        self.send_deferred()
        if event.no_restart:
            self.client(event.actor_id).is_killed = True  # its calls wait for the news of its death
        self.out.send(HEAD, ActorKillRequested(actor_id=event.actor_id, no_restart=event.no_restart))

    def on_changed(self, event: ActorChanged) -> None:
        """The head tells of the actor's state."""
        client = self.client(event.actor_id)
        if client.state is ActorState.DEAD or event.life < client.life:
            return
        lost = client.worker is not None and event.worker != client.worker
        # What the head says: it makes the transitions, and not each of them is heard here.
        client.state, client.life, client.worker = event.state, event.life, event.worker
        client.error = event.error
        if lost or event.state is ActorState.DEAD:
            self._give_back(client, event)
        if event.state is not ActorState.RESTARTING:  # calls that wait already, for its constructor too, go on waiting
            self.dirty[client.actor_id] = None
            self.out.needs_drain = True

    def sent_to(self, worker: Address) -> tuple[TaskID, ...]:
        """The calls that an actor's worker has, as far as we know."""
        return tuple(task for client in self.clients.values() if client.worker == worker for task in client.in_flight)

    def unanswered(self, worker: Address, calls: tuple[TaskID, ...], why: str) -> None:
        """The worker lives, as far as is known, and calls that were sent to it may never be answered."""
        for client in self.clients.values():
            if client.worker != worker:
                continue
            again: list[TaskID] = []
            for task in [task for task in calls if task in client.in_flight]:
                del client.in_flight[task]
                record = self.tasks.records[task]
                what = f"The call {record.spec.template.name} (task {short(task)}) of actor {short(client.actor_id)}"
                message = f"{what} got no answer: {why}. Set max_task_retries, so that dualray repeats such calls."
                error = ErrorInfo(kind=ErrorKind.ACTOR_UNAVAILABLE, message=message, actor=client.actor_id)
                if self.tasks.attempt_lost(record, error):
                    again.append(task)
            for task in reversed(again):
                client.queue.appendleft(task)
            self.dirty[client.actor_id] = None
            self.out.needs_drain = True

    def _give_back(self, client: ActorClient, event: ActorChanged) -> None:
        dead = event.state is ActorState.DEAD
        again: list[TaskID] = []
        for task in client.in_flight:
            record = self.tasks.records[task]
            if dead:
                assert event.error is not None
                self.tasks.fail(record, event.error)
                continue
            reason = event.error.message if event.error is not None else "its worker was lost"
            error = ErrorInfo(
                kind=ErrorKind.ACTOR_UNAVAILABLE,
                message=(
                    f"Actor {short(client.actor_id)} was lost while it had the call {record.spec.template.name} "
                    f"(task {short(task)}): {reason} The actor restarts; set max_task_retries, so that dualray "
                    "repeats such calls."
                ),
                actor=client.actor_id,
            )
            if self.tasks.attempt_lost(record, error):
                again.append(task)
        client.in_flight.clear()
        client.queue.extendleft(reversed(again))

    def on_process_died(self, dead: frozenset[Address]) -> None:
        """Actors end with the process that made them. The head knows of that, unless the process died before it could
        tell the head of the actor."""
        for client in self.clients.values():
            if client.owner in dead and client.state is not ActorState.DEAD:
                why = f"The actor is dead because its owner has died: {client.owner}."
                message = f"Actor {short(client.actor_id)} has ended: {why}"
                error = ErrorInfo(kind=ErrorKind.ACTOR_DIED, message=message, actor=client.actor_id)
                self.on_changed(
                    ActorChanged(
                        actor_id=client.actor_id,
                        state=ActorState.DEAD,
                        life=client.life,
                        worker=None,
                        error=error,
                    )
                )

    def check_invariants(self) -> None:
        for client in self.clients.values():
            ensure(
                client.state is not ActorState.ALIVE or client.worker is not None,
                "actor {} is alive nowhere",
                client.actor_id,
            )
            for task in client.in_flight:
                record = self.tasks.records.get(task)
                ensure(
                    record is not None and record.state is TaskState.PUSHED,
                    "call {} is in flight and its record says otherwise",
                    task,
                )
