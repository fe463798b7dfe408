"""The leases that an owner holds, and the tasks that it pushes to leased workers.

Theory of operation. Tasks whose arguments are ready queue by shape (resources, strategy, large arguments). For each
shape the owner asks for at most `lease_requests_max` leases at a time, through its node manager; when it has asked for
so many, not again before half of them have come: then for several in one message. While tasks are submitted one after
another it asks for one lease, one more, two, four and so on, and for the rest when it waits. A lease is the right to
use one worker with its resources: the owner pushes tasks of that shape straight to the worker, as many ahead as
`push_window_ns` of work (1 while the mean is unknown), so that short tasks are pipelined and long ones are not stuck
behind one another. Tasks without retries are pushed one by one: of several that were lost with a node, nobody knows
which had begun. Leases that stay idle go back after `lease_idle_ns`, those of one node together. Before that, an idle
lease goes to tasks of another function with the same resources (lease_queues.py).

A worker that blocks in `get` recalls what it has not started, and gets nothing more before its task is done: what it
waits for may be the very task that would wait behind it. A task may also run for much longer than its predecessors, or
block in something that is not ours. When the oldest task of a lease has made no progress for `OVERDUE_NS`, the owner
asks for those behind it, and gives them to other workers. A worker or node that dies gives back what was pushed to
it, and only the task that was running (the oldest) is told that it failed.

Relies on: each lease asked for is granted or refused, as long as no node dies.
Guarantees: a task is pushed to one worker at a time; no lease is kept idle for ever; none is asked for without a task
that waits for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from dualray.shared.machines.base import Outbox, ensure
from dualray.shared.machines.owner.lease_queues import AllPeers, Lease, ShapeQueue
from dualray.shared.model.commands import ArmTimer
from dualray.shared.model.config import Config
from dualray.shared.model.errors import ErrorInfo
from dualray.shared.model.events import (
    BacklogReported,
    LeasedWorkerDied,
    LeaseGranted,
    LeasePassedOn,
    LeaseRefused,
    LeaseRequested,
    LeaseReturned,
    LeasesGranted,
    LeasesReturned,
    LeaseWanted,
    Outcome,
    TasksWanted,
)
from dualray.shared.model.ids import HEAD, Address, LeaseID, NodeID, PlacementGroupID, RequestID, TaskID
from dualray.shared.model.specs import FunctionTemplate, LeaseShape, ObjectHint

IDLE_TIMER = "idle-leases"
PUSH_TIMER = "push-tasks"
OVERDUE_TIMER = "overdue-tasks"
OVERDUE_NS: Final = 100_000_000
"""A task that others wait behind may run for so long before they are asked for: fifty times the window."""
DEFER_NS: Final = 1_000_000
_DEFER_MAX: Final = 32
"""Tasks that are held back at most, to be pushed together: while all leases with room are busy, or in a burst."""
_TOGETHER_NS: Final = 300_000
"""Work that is not divided among workers: to push it takes both ends 100 us, and where many workers share a few
processors, an owner that wakes one with each task is not given the time to submit the next."""
BURST_NS: Final = 1_000_000
"""Who has submitted a task so short a time ago, and has not waited since, is about to submit more."""
_MEAN_WEIGHT: Final = 8
"""The mean task time follows the last eight tasks or so."""


class Leases:
    """See the module."""

    def __init__(
        self,
        *,
        out: Outbox,
        address: Address,
        node_manager: Address,
        config: Config,
        push: Callable[[list[TaskID], Lease], None],
    ) -> None:
        self.out = out
        self._push = push
        self.address = address
        self.node_manager = node_manager
        self.config = config
        self._requests_max = config.lease_requests_max
        self._window_ns = config.push_window_ns
        self._window_max = config.push_window_max
        self.queues: dict[tuple[LeaseShape, bool], ShapeQueue] = {}
        """By shape, and by whether their tasks may not run twice."""
        self._peers = AllPeers()
        self._queue_of_template: dict[FunctionTemplate, ShapeQueue] = {}
        self._last: tuple[FunctionTemplate, ShapeQueue] | None = None
        """The function that was called last, and where its calls queue: most programs call it again."""
        self.leases: dict[LeaseID, Lease] = {}
        self.requests: dict[RequestID, tuple[ShapeQueue, int]] = {}
        self._request_counter = 0
        self._idle_timer_armed = False
        self._idle: dict[LeaseID, Lease] = {}
        """Those that have become idle, the first of them first; they may be busy again."""
        self._push_timer_armed = False
        self._overdue_timer_armed = False
        self._last_new_ns = 0
        """When a task was submitted last, unless somebody has waited since."""
        # Worklists that the owner machine drains.
        self.dirty: dict[ShapeQueue, None] = {}
        self.deferred: dict[ShapeQueue, None] = {}
        """Those with tasks that are held back to be pushed with others, until somebody waits, a lease has news, or for
        `DEFER_NS`."""
        self.unasked: dict[ShapeQueue, None] = {}
        """Those for whose last tasks no lease was asked for yet: that is done when they are twice as many, or when
        what was deferred is pushed."""
        self.refused: deque[tuple[TaskID, ErrorInfo]] = deque()

    # ---- Queueing and pushing --------------------------------------------------------------------------------

    def report_backlog(self) -> None:
        """Tell the head, of each shape, how many tasks wait for whose leases nobody was asked yet."""
        counts: dict[LeaseShape, int] = {}
        for queue in self.queues.values():
            waiting = len(queue.tasks) - queue.requested
            if waiting > 0:
                counts[queue.shape] = counts.get(queue.shape, 0) + waiting
        self.out.send(HEAD, BacklogReported(owner=self.address, shapes=tuple(counts), counts=tuple(counts.values())))

    def queue_for(self, template: FunctionTemplate, deps: tuple[ObjectHint, ...]) -> ShapeQueue:
        """Where the calls of a function queue that have these large arguments."""
        if not deps:
            last = self._last
            if last is not None and last[0] is template:
                return last[1]
        queue = None if deps else self._queue_of_template.get(template)
        if queue is None:
            shape = LeaseShape(
                resources=template.resources,
                placement=template.placement,
                strategy=template.strategy,
                deps=deps,
                runtime_env=template.runtime_env,
                name=template.name,
            )
            runs_once = template.max_retries == 0
            queue = self.queues.get((shape, runs_once))
            if queue is None:
                queue = ShapeQueue(shape, self._peers.of(shape), runs_once=runs_once)
                self.queues[shape, runs_once] = queue
            if not deps:
                self._queue_of_template[template] = queue
        if not deps:
            self._last = template, queue
        return queue

    def enqueue(self, task: TaskID, queue: ShapeQueue, *, first: bool = False, is_new: bool = False) -> None:
        """A task is ready to run; `first` puts one that was given back before the others. Others that are `is_new` may
        follow at once."""
        if first:
            queue.tasks.appendleft(task)
        else:
            queue.tasks.append(task)
        is_burst = False
        if queue.room:
            # A lease that is busy, and will say so when it is not, is given several at a time; so are all in a burst.
            if is_new:
                is_burst = self._is_burst()
                if len(queue.tasks) < _DEFER_MAX and (queue.room[-1].in_flight or is_burst):
                    if queue not in self.deferred or not self._push_timer_armed:
                        self.deferred[queue] = None
                        self._arm_push_timer()
                    return
            self.fill(queue)
        elif is_new and queue.may_ask and queue.requested:
            is_burst = self._is_burst()
        if queue.tasks and queue.peers.queues > 1 and queue.peers.wait(queue):
            self.dirty[queue] = None
            self.out.needs_drain = True
        if queue.tasks and queue.may_ask:
            if is_burst and len(queue.tasks) < 2 * queue.requested:  # in a burst, as many again as were asked for
                if queue not in self.unasked or not self._push_timer_armed:
                    self.unasked[queue] = None
                    self._arm_push_timer()
                return
            if self.unasked:
                self._ask_for_the_rest()  # what was submitted before is asked for before
            self.dirty[queue] = None
            self.out.needs_drain = True

    def _is_burst(self) -> bool:
        """A task is submitted: whether it follows another one closely."""
        last_ns, self._last_new_ns = self._last_new_ns, self.out.now_ns
        return last_ns > 0 and self.out.now_ns - last_ns < BURST_NS

    def pump(self) -> None:
        """Match waiting tasks with leases that have room, and ask for more leases where tasks are left."""
        for queue in self.dirty:
            self.fill(queue)
            if queue.tasks and queue.peers.idle and not queue.shape.deps:
                self._take_idle(queue)
            if queue.tasks:
                self._ask(queue)
            elif queue.shape.deps:
                self._retire_if_unused(queue)
        self.dirty.clear()

    def fill(self, queue: ShapeQueue) -> None:
        """Push waiting tasks to leases that have room, each its share of them."""
        tasks, room = queue.tasks, queue.room
        while tasks and room:
            lease = room.pop()
            lease.has_room = False
            if not lease.in_flight:
                lease.progress_ns = self.out.now_ns
            ahead = queue.window - len(lease.in_flight)
            if ahead > 1 and len(tasks) > 1:
                parts = min(len(room) + 1, len(tasks) // queue.together) or 1
                ahead = min(ahead, -(-len(tasks) // parts))  # each its share
                pushed = [tasks.popleft() for _ in range(ahead)]
                lease.in_flight.update(dict.fromkeys(pushed))
            else:
                task = tasks.popleft()
                pushed = [task]
                lease.in_flight[task] = None
            self._push(pushed, lease)
            if not self._overdue_timer_armed and len(lease.in_flight) > 1:
                self._arm_overdue_timer()
            self._offer(lease)

    def _arm_overdue_timer(self) -> None:
        self._overdue_timer_armed = True
        self.out.add(ArmTimer(timer=OVERDUE_TIMER, delay_ns=OVERDUE_NS))

    def on_overdue_timer(self) -> None:
        """Ask for the tasks that wait behind one that runs for too long."""
        self._overdue_timer_armed = False
        due_ns = self.out.now_ns - OVERDUE_NS
        for lease in self.leases.values():
            if len(lease.in_flight) < 2 or lease.blocked:
                continue
            if lease.progress_ns <= due_ns:
                lease.progress_ns = self.out.now_ns  # the answer is given so long
                self.out.send(lease.worker, TasksWanted(owner=self.address))
            if not self._overdue_timer_armed:
                self._arm_overdue_timer()

    def _arm_push_timer(self) -> None:
        if not self._push_timer_armed:
            self._push_timer_armed = True
            self.out.add(ArmTimer(timer=PUSH_TIMER, delay_ns=DEFER_NS))

    def on_push_timer(self) -> None:
        """What was held back has waited for others long enough."""
        self._push_timer_armed = False
        self._fill_deferred()

    def on_wait(self) -> None:
        """Somebody waits: nothing is held back any longer, and the burst, if it was one, is over."""
        self._last_new_ns = 0
        self._fill_deferred()

    def _fill_deferred(self) -> None:
        """Push what was held back to go with others, and ask for the leases that were to be asked for with others."""
        if self.deferred:
            deferred, self.deferred = self.deferred, {}
            for queue in deferred:
                self.fill(queue)
                if queue.tasks and queue.may_ask:
                    self.dirty[queue] = None
                    self.out.needs_drain = True
        if self.unasked:
            self._ask_for_the_rest()

    def _ask_for_the_rest(self) -> None:
        for queue in self.unasked:
            if queue.tasks and queue.may_ask:
                self.dirty[queue] = None
                self.out.needs_drain = True
        self.unasked.clear()

    def _offer(self, lease: Lease) -> None:
        """Note that the lease has room, if it has: idle leases are preferred to busy ones."""
        if lease.has_room or lease.blocked or lease.is_wanted or len(lease.in_flight) >= lease.queue.window:
            return
        lease.has_room = True
        if lease.in_flight:
            lease.queue.room.appendleft(lease)
        else:
            lease.queue.room.append(lease)

    def _ask(self, queue: ShapeQueue) -> None:
        wanted = min(len(queue.tasks), self._requests_max) - queue.requested
        if wanted <= 0 or not queue.may_ask:
            return
        request_id = RequestID(f"{self.address}#{self._request_counter}")
        self._request_counter += 1
        queue.requested += wanted
        queue.may_ask = queue.requested < self._requests_max
        queue.peers.wait(queue)
        self.requests[request_id] = (queue, wanted)
        self.out.send(
            self.node_manager,
            LeaseRequested(request_id=request_id, owner=self.address, shape=queue.shape, count=wanted),
        )

    def _retire_if_unused(self, queue: ShapeQueue) -> None:
        """Shapes with arguments of their own would pile up: forget those that nothing needs."""
        if queue.shape.deps and not (queue.tasks or queue.leases or queue.requested):
            self.queues.pop((queue.shape, queue.runs_once), None)

    # ---- Answers ---------------------------------------------------------------------------------------------

    def on_granted(self, event: LeaseGranted) -> None:
        if event.lease_id in self.leases:
            return  # it is known
        queue = self._settle(event.request_id, 1)
        if queue is None:
            self.out.send(Address(event.node), LeaseReturned(lease_id=event.lease_id))
            return
        lease = Lease(event, queue)
        self.leases[lease.lease_id] = queue.leases[lease.lease_id] = lease
        self._offer(lease)
        self._note_idle(lease)
        self.dirty[queue] = None
        self.out.needs_drain = True

    def on_several_granted(self, event: LeasesGranted) -> None:
        """A node grants several leases at once."""
        for lease in event.leases:
            self.on_granted(lease)

    def on_wanted(self, event: LeaseWanted) -> None:
        """The node needs the worker for others, or is about to leave."""
        lease = self.leases.get(event.lease_id)
        if lease is not None:
            self._give_up(lease)

    def _give_up(self, lease: Lease) -> None:
        lease.is_wanted = True
        self._withdraw(lease)
        self._note_idle(lease)

    def leave_group(self, group: PlacementGroupID) -> None:
        """This process has removed the placement group: what it submits from now on asks for a lease anew."""
        for lease in [lease for lease in self.leases.values() if lease.queue.shape.strategy.group == group]:
            self._give_up(lease)

    def on_refused(self, event: LeaseRefused) -> None:
        """The demand can never be met: every task of the shape that still waits for a lease fails."""
        queue = self._settle(event.request_id, event.count)
        if queue is None:
            return
        if not queue.leases:
            while queue.tasks:
                self.refused.append((queue.tasks.popleft(), event.error))
        self.dirty[queue] = None
        self.out.needs_drain = True

    def _settle(self, request_id: RequestID, count: int) -> ShapeQueue | None:
        queue, left = self.requests.get(request_id, (None, 0))
        if queue is None:
            return None
        count = min(count, left)
        queue.requested -= count
        queue.may_ask = queue.may_ask or queue.requested <= self._requests_max // 2
        if left == count:
            del self.requests[request_id]
        else:
            self.requests[request_id] = (queue, left - count)
        return queue

    def finished(self, task: TaskID, lease_id: LeaseID, duration_ns: int) -> None:
        """A pushed task is done: its place is free."""
        lease = self.leases.get(lease_id)
        if lease is None:
            return
        del lease.in_flight[task]
        self._finished(lease, duration_ns, 1)

    def _finished(self, lease: Lease, duration_ns: int, count: int) -> None:
        """`count` tasks of the lease have finished, that took `duration_ns` each."""
        lease.blocked = False
        lease.progress_ns = self.out.now_ns
        queue = lease.queue
        mean_ns = queue.mean_ns or duration_ns
        weight = min(count, _MEAN_WEIGHT)
        queue.mean_ns = mean_ns = (mean_ns * (_MEAN_WEIGHT - weight) + duration_ns * weight) // _MEAN_WEIGHT or 1
        if not queue.runs_once:
            window = self._window_ns // mean_ns
            queue.window = window if 1 <= window <= self._window_max else (self._window_max if window else 1)
        queue.together = min(_TOGETHER_NS // mean_ns, _DEFER_MAX) or 1
        if not lease.has_room:
            self._offer(lease)
        if queue.tasks and (len(queue.tasks) >= _DEFER_MAX or queue not in self.deferred):
            self.fill(queue)
        if not lease.in_flight:
            self._note_idle(lease)
        if queue.shape.deps or (queue.tasks and queue.may_ask):
            self.dirty[queue] = None
            self.out.needs_drain = True

    def several_finished(self, lease_id: LeaseID, outcomes: list[Outcome]) -> None:
        """Pushed tasks are done: as if each had finished, and then the lease is filled again."""
        lease = self.leases.get(lease_id)
        if lease is None:
            return
        duration_ns, in_flight = 0, lease.in_flight
        for outcome in outcomes:
            del in_flight[outcome[0]]
            duration_ns += outcome[3]
        self._finished(lease, duration_ns // len(outcomes), len(outcomes))

    def recalled(self, task: TaskID, lease_id: LeaseID) -> None:
        """A task was given back by a worker that is blocked."""
        lease = self.leases[lease_id]
        del lease.in_flight[task]
        lease.blocked = bool(lease.in_flight)
        if lease.blocked:
            self._withdraw(lease)
        else:
            self._offer(lease)
            self._note_idle(lease)
        self.dirty[lease.queue] = None
        self.out.needs_drain = True

    def cancelled(self, task: TaskID, lease_id: LeaseID) -> None:
        """A pushed task has ended before its time: its place is free, and how long it took says nothing."""
        lease = self.leases.get(lease_id)
        if lease is None:
            return
        if next(iter(lease.in_flight)) == task:
            lease.blocked = False  # the oldest is the one that ran
            lease.progress_ns = self.out.now_ns
        del lease.in_flight[task]
        self._offer(lease)
        self._note_idle(lease)
        self.dirty[lease.queue] = None
        self.out.needs_drain = True

    def forget(self, task: TaskID) -> None:
        """A task that waits for a lease is to run no more. What is asked for too much goes back when it comes."""
        for queue in self.queues.values():
            if task in queue.tasks:
                queue.tasks.remove(task)
                self.dirty[queue] = None
                self.out.needs_drain = True
                return

    def lost(self, event: LeasedWorkerDied) -> list[TaskID]:
        """A leased worker died: the tasks pushed to it, the one that may have been running first."""
        lease = self.leases.get(event.lease_id)
        return [] if lease is None else self._drop(lease)

    def lost_with_node(self, node: NodeID, incarnation: int) -> list[list[TaskID]]:
        """A node died: for each lease there, the tasks pushed to it. Leases granted there may have been lost on their
        way, when the head knew already that they were granted: all that is asked for is asked for again. What is
        granted to the old requests is given back."""
        for queue, count in self.requests.values():
            queue.requested -= count
            queue.may_ask = True
            self.dirty[queue] = None
            self.out.needs_drain = True
        self.requests.clear()
        on_node = [lease for lease in self.leases.values() if lease.node == node and lease.incarnation <= incarnation]
        return [self._drop(lease) for lease in on_node]

    def _drop(self, lease: Lease) -> list[TaskID]:
        del self.leases[lease.lease_id]
        del lease.queue.leases[lease.lease_id]
        self._withdraw(lease)
        lease.queue.peers.idle.pop(lease.lease_id, None)
        self.dirty[lease.queue] = None
        self.out.needs_drain = True
        return list(lease.in_flight)

    def _withdraw(self, lease: Lease) -> None:
        if lease.has_room:
            lease.queue.room.remove(lease)
            lease.has_room = False

    # ---- Idle leases -----------------------------------------------------------------------------------------

    def _note_idle(self, lease: Lease) -> None:
        if lease.in_flight:
            return
        if lease.is_wanted:
            self._drop(lease)
            self.out.send(Address(lease.node), LeaseReturned(lease_id=lease.lease_id))
            return
        peers = lease.queue.peers
        if not lease.device_ids and peers.queues > 1:
            queue = peers.next_waiting() if peers.waiting and not lease.queue.tasks else None
            if queue is not None:
                self._pass_on(lease, queue)
            else:
                peers.idle[lease.lease_id] = lease
        lease.idle_since_ns = self.out.now_ns
        self._idle.pop(lease.lease_id, None)
        self._idle[lease.lease_id] = lease
        if not self._idle_timer_armed:
            self._idle_timer_armed = True
            self.out.add(ArmTimer(timer=IDLE_TIMER, delay_ns=self.config.lease_idle_ns))

    def _take_idle(self, queue: ShapeQueue) -> None:
        """Have idle leases of other functions serve the tasks that wait in a queue."""
        idle, left = queue.peers.idle, len(queue.tasks)
        while idle and left:
            _, lease = idle.popitem()
            if not (lease.in_flight or lease.queue.tasks or lease.queue is queue):
                self._pass_on(lease, queue)
                left -= 1
        self.fill(queue)

    def _pass_on(self, lease: Lease, queue: ShapeQueue) -> None:
        """An idle lease serves another function from now on; its node hears for which."""
        before = lease.queue
        self._withdraw(lease)
        del before.leases[lease.lease_id]
        lease.queue = queue
        queue.leases[lease.lease_id] = lease
        self._offer(lease)
        self.out.send(Address(lease.node), LeasePassedOn(lease_id=lease.lease_id, name=queue.shape.name))
        self.dirty[queue] = None
        self.out.needs_drain = True
        if before.shape.deps:
            self._retire_if_unused(before)

    def on_idle_timer(self) -> None:
        """Give back the leases that have been idle for long enough."""
        self._idle_timer_armed = False
        due_ns = self.out.now_ns - self.config.lease_idle_ns
        looked_at: list[Lease] = []
        next_ns: int | None = None
        for lease_id, lease in self._idle.items():
            is_idle = not lease.in_flight and lease_id in self.leases
            if is_idle and lease.idle_since_ns > due_ns:
                next_ns = lease.idle_since_ns
                break
            looked_at.append(lease)
        returned: dict[NodeID, list[LeaseID]] = {}
        for lease in looked_at:
            del self._idle[lease.lease_id]
            if lease.in_flight or lease.lease_id not in self.leases:
                continue
            if lease.queue.tasks:
                self._idle[lease.lease_id] = lease  # the next time
                continue
            self._drop(lease)
            returned.setdefault(lease.node, []).append(lease.lease_id)
        for node, lease_ids in returned.items():
            if len(lease_ids) == 1:
                self.out.send(Address(node), LeaseReturned(lease_id=lease_ids[0]))
            else:
                self.out.send(Address(node), LeasesReturned(lease_ids=tuple(lease_ids)))
        if next_ns is not None:
            self._idle_timer_armed = True
            # Those that become idle soon after one another go back together.
            delay_ns = max(next_ns - due_ns, self.config.lease_idle_ns // 2)
            self.out.add(ArmTimer(timer=IDLE_TIMER, delay_ns=delay_ns))

    # ---- Invariants ------------------------------------------------------------------------------------------

    def check_invariants(self) -> None:
        pushed: set[TaskID] = set()
        for lease in self.leases.values():
            ensure(lease.queue.leases.get(lease.lease_id) is lease, "lease {} is in no queue", lease.lease_id)
            ensure(pushed.isdisjoint(lease.in_flight), "a task is pushed to two workers, one is {}", lease.worker)
            pushed.update(lease.in_flight)
            ensure(
                lease.has_room == (lease in lease.queue.room),
                "lease {} and its queue disagree on its room",
                lease.lease_id,
            )
        for queue in self.queues.values():
            asked = sum(count for other, count in self.requests.values() if other is queue)
            ensure(queue.requested == asked, "{} leases counted, {} asked for", queue.requested, asked)
            ensure(
                not queue.tasks or bool(queue.requested) or bool(queue.leases),
                "{} tasks of shape {} wait and no lease is asked for",
                len(queue.tasks),
                queue.shape.name,
            )
