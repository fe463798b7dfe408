"""The tables of a run, put together from the rows of its trace as they come.

Theory of operation. A trace tells what happened, a moment a row. Each row changes a few things, in time that does not
depend on how long the run is: a task's state, who holds an object, what runs on a node. A task that is submitted waits
for those of its arguments that have not been made; when the last one has been, it stands in line for a worker. An
argument that was lost and must be made again is not counted: the task that makes it again is, as it runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, Final

from dualray.dashboard.demand import Demand
from dualray.dashboard.happened import Happened, Lost, Named, time_words
from dualray.dashboard.rows import (
    BLOCKED,
    FAILED,
    FINISHED,
    FOR_ACTOR,
    IN_LINE,
    LOST,
    PUSHED,
    QUEUED,
    RUNNING,
    ActorRow,
    NodeRow,
    ObjectRow,
    TaskRow,
    WorkerRow,
)
from dualray.dashboard.tables import Tables
from dualray.report.colours import FUNCTIONS_MAX, colours_of
from dualray.report.fault_costs import FaultCost, FaultCosts
from dualray.report.lineage import is_of_node
from dualray.report.notices import ActorNamed, NodeNotice, Noticed
from dualray.shared.model.ids import HEAD, Address, ObjectID, is_put, node_of
from dualray.shared.model.resources import CPU, UNITS
from dualray.shared.proof.trace import TraceEvent, TraceKind

__all__ = ["TASK_HEX", "TraceTables", "seconds"]

TASK_HEX: Final = 32
"""Hex digits of a task's id; an object's begins with its task's."""

_MICRO: Final = 1_000_000


def seconds(ns: int) -> float:
    """Rounded to a microsecond, which is what a page can show."""
    return round(ns / 1000) / _MICRO


class TraceTables:
    """See the module; `tables` are filled."""

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        self.start_ns: int | None = None
        self.now_s = 0.0
        self._tasks: dict[str, TaskRow] = {}
        self._objects: dict[str, ObjectRow] = {}
        self._nodes: dict[str, NodeRow] = {}
        self._workers: dict[str, WorkerRow] = {}
        self._actors: dict[str, ActorRow] = {}
        self._actor_at: dict[str, ActorRow] = {}
        self._waiting_for: dict[str, list[TaskRow]] = {}
        """By object, the tasks of which it is an argument that has not been made."""
        self._consumers: Counter[str] = Counter()
        self._lost_for: dict[str, list[TaskRow]] = {}
        """By object whose only copy is gone, the tasks that have no worker yet and need it."""
        self._undetected: dict[str, tuple[int, float]] = {}
        """The nodes that a fault has killed, and of which the head does not know it: in which life, and when."""
        self._says_undetected = ""
        """The same, behind what a task waits for: it may wait because of that."""
        self._waits: dict[str, list[Any]] = {}
        self._states: Counter[str] = Counter()
        self._for_actors = 0
        """Methods that wait for their actor."""
        self._names: dict[str, None] = {}
        """The functions that have a colour, in order of their first calls."""
        self.demand = Demand(tables)
        self.happened = Happened(tables)
        self._costs = FaultCosts()
        self._told_of: dict[FaultCost, list[Any]] = {}
        """The sentence about each fault."""
        self._handlers = {
            TraceKind.TASK_SUBMITTED: self._submitted,
            TraceKind.TASK_PUSHED: self._pushed,
            TraceKind.TASK_STARTED: self._started,
            TraceKind.TASK_ENDED: self._ended,
            TraceKind.TASK_RETRIED: self._retried,
            TraceKind.NODE_STARTED: self._node_started,
            TraceKind.WORKER_STARTED: self._worker_started,
            TraceKind.WORKER_ENDED: self._worker_ended,
            TraceKind.FAULT: self._fault,
            TraceKind.OBJECT_STORED: self._stored,
            TraceKind.TRANSFER_ENDED: self._stored,
            TraceKind.OBJECT_RESTORED: self._stored,
            TraceKind.OBJECT_EVICTED: self._left,
            TraceKind.OBJECT_SPILLED: self._left,
            TraceKind.OBJECT_DELETED: self._left,
        }

    def take(self, events: Iterable[TraceEvent | NodeNotice | ActorNamed]) -> None:
        """More rows of the trace, and what the head has noticed, in order of time."""
        for event in events:
            if self.start_ns is None:
                self.start_ns = event.time_ns
            self.now_s = max(self.now_s, seconds(event.time_ns - self.start_ns))
            faults, last = len(self._costs.all), self.happened.last
            self._costs.take(event)
            if isinstance(event, TraceEvent):
                handler = self._handlers.get(event.kind)
                if handler is not None:
                    handler(event)
            elif isinstance(event, NodeNotice):
                self._noticed(event)
            else:
                self._actor_named(event)
            if len(self._costs.all) > faults and self.happened.last is not last:
                self._told_of[self._costs.all[-1]] = self.happened.last
        self._say_costs()
        self._say()

    def _say_costs(self) -> None:
        costs = self._costs
        if not costs.changed:
            return
        for cost in costs.changed:
            if cost in self._told_of:
                self.happened.costs(self._told_of[cost], costs.words(cost))
        costs.changed = {cost: None for cost in costs.changed if cost.waiting}  # nodes may be idle for it
        self.tables.head["fault_cost"] = costs.words_of_all() if len(costs.all) > 1 else ""

    def reach(self, time_ns: int) -> None:
        """The run has come to this time, and all rows until then were taken."""
        if self.start_ns is not None:
            self.now_s = max(self.now_s, seconds(time_ns - self.start_ns))
            self._say()

    def _say(self) -> None:
        states = self._states
        self.tables.head.update(
            now_s=self.now_s,
            tasks=states.total(),
            running=states[RUNNING],
            queued=states[QUEUED] + states[PUSHED],
            blocked=states[BLOCKED],
            for_actors=self._for_actors,
            finished=states[FINISHED],
            failed=states[FAILED],
            nodes=sum(node.state != "DEAD" for node in self._nodes.values()),
            store=sum(node.stored for node in self._nodes.values()),
            colours=list(colours_of(self._names).items()),
        )

    def end(self) -> None:
        """The run is over: what was lost and not tried again has failed."""
        self._undetected.clear()
        self._tell_undetected()
        for task in self._tasks.values():
            if task.is_lost:
                task.is_lost = False
                self._change(task, FAILED)
        self._say()

    def has(self, node: str, amounts: Iterable[tuple[str, int]]) -> None:
        """What a node has, where its trace does not say it: `CPU` in units, `object_store` in bytes."""
        known = self._nodes.get(node)
        if known is not None and not known.capacity:
            known.capacity.update(amounts)
            self._supply(known)

    # ---- Tasks -----------------------------------------------------------------------------------------------

    def _submitted(self, event: TraceEvent) -> None:
        task = self._task(event)
        task.owner, task.deps = event.process, event.deps
        if event.other:
            task.kind, task.actor = "ACTOR_TASK", self._actor(event.other)
        for dep in event.deps:
            self._consumers[dep] += 1
            if dep in self._objects:
                self._objects[dep].used_by += 1
            maker = self._tasks.get(dep[:TASK_HEX])
            if maker is not None and maker.state not in (FINISHED, FAILED) and not is_put(ObjectID(bytes.fromhex(dep))):
                task.missing.add(dep)
                self._waiting_for.setdefault(dep[:TASK_HEX], []).append(task)
        self._change(task, BLOCKED if task.missing else QUEUED)

    def _task(self, event: TraceEvent) -> TaskRow:
        subject = event.subject
        task = self._tasks.get(subject)
        if task is None:  # also of a task whose owner's rows were lost
            task = self._tasks[subject] = TaskRow(subject, event.name, "", self.now_s, ())
        elif event.name and not task.name:
            task.name = event.name
        if event.name and len(self._names) < FUNCTIONS_MAX:
            self._names[event.name] = None
        return task

    def _actor(self, actor_id: str) -> ActorRow:
        actor = self._actors.get(actor_id)
        if actor is None:
            task = self._tasks.get(actor_id)
            if task is None:  # the rows of whoever constructs it have not come yet, or never will
                task = self._tasks[actor_id] = TaskRow(actor_id, "", "", self.now_s, ())
            task.kind = "ACTOR_CREATION_TASK"
            actor = self._actors[actor_id] = task.actor = ActorRow(task)
            self.tables.put("actors", actor_id, actor.row)
        return actor

    def _actor_changed(self, actor: ActorRow) -> None:
        """It has another state, place or name: who waits for it waits for something else."""
        self.tables.put("actors", actor.task.task, actor.row)
        for call in actor.calls.values():
            if self._say_why(call):
                self.tables.put("tasks", call.task, call.row)

    def _actor_named(self, notice: ActorNamed) -> None:
        actor = self._actor(notice.actor)
        actor.name = notice.name
        self._actor_changed(actor)

    def _change(self, task: TaskRow, state: str) -> None:
        """It is in another state: the tables, counts and the demand follow."""
        before = task.state
        if state != before:
            if before:
                self._states[before] -= 1
            self._states[state] += 1
            task.state = state
            if task.kind == "ACTOR_TASK":
                self._for_actors += (state in IN_LINE) - (before in IN_LINE)
                if task.actor is not None and state in IN_LINE:
                    task.actor.calls[task.task] = task
                elif task.actor is not None:
                    task.actor.calls.pop(task.task, None)
        self._say_why(task)
        if state != before and not task.waits:
            task.since_s = self.now_s
        self.tables.put("tasks", task.task, task.row)
        if state != before:
            self._note_demand()

    def _say_why(self, task: TaskRow) -> bool:
        """Say for what a task waits; whether that is something else than before."""
        waits = self._words_of_wait(task)
        if waits == task.waits:
            return False
        self._count_wait(task.counted, -1)
        if waits.partition(";")[0] != task.waits.partition(";")[0]:
            task.since_s = self.now_s
        task.waits = waits
        self._count_wait(task.counted, 1, task.since_s)
        return True

    def _tell_undetected(self) -> None:
        """The head has to detect the death of other nodes than before: who waits may wait for that."""
        nodes = [f"{node} died at {time_words(died_s)}" for node, (_, died_s) in self._undetected.items()]
        more = f" and {len(nodes) - UNDETECTED_SHOWN} others" if len(nodes) > UNDETECTED_SHOWN else ""
        says = f"; {', '.join(nodes[:UNDETECTED_SHOWN])}{more}, and the head has not detected that yet" if nodes else ""
        if says != self._says_undetected:
            self._says_undetected = says
            for task in self._tasks.values():
                if task.waits and self._say_why(task):
                    self.tables.put("tasks", task.task, task.row)

    def _note_demand(self) -> None:
        states, now = self._states, self.demand.now
        now[0], now[1], now[2] = states[RUNNING], states[QUEUED] + states[PUSHED], states[BLOCKED]
        self.demand.note(self.now_s)

    def _words_of_wait(self, task: TaskRow) -> str:
        if task.state in _WAITS_NOT:
            return ""
        match task.state:
            case "PENDING_ARGS_AVAIL":
                makers = {self._name_of_maker(dep) for dep in task.missing}
                return f"waits for what {' and '.join(sorted(makers))} {_verb(makers)}"
            case "PENDING_NODE_ASSIGNMENT" if task.is_lost:
                return f"was lost with its worker, and has not started again{self._says_undetected}"
            case "PENDING_NODE_ASSIGNMENT" | "SUBMITTED_TO_WORKER" if task.kind == "ACTOR_TASK":
                turn = FOR_ACTOR if task.actor is None else task.actor.words_of_turn()
                is_there = task.actor is not None and node_of(Address(task.actor.worker)) in self._undetected
                return f"{turn}{self._says_undetected}" if is_there else turn
            case "PENDING_NODE_ASSIGNMENT":
                args = (dep for dep in task.deps if dep in self._objects and self._objects[dep].state == "LOST")
                makers = {self._name_of_maker(dep) for dep in args}
                what = f"what {' and '.join(sorted(makers))} returned, whose only copy was lost" if makers else ""
                return f"waits for {what or 'a free worker'}{self._says_undetected}"
            case "SUBMITTED_TO_WORKER":
                sent = "was sent to its worker, which has not started it"
                is_there = node_of(Address(task.worker)) in self._undetected
                return f"{sent}{self._says_undetected}" if is_there else sent
        return ""

    def _tell_lost(self, lost: Sequence[str]) -> None:
        """The only copies of these objects are gone: tasks that have no worker yet wait for them again."""
        gone = frozenset(lost)
        for task in self._tasks.values():
            if task.state == QUEUED and not gone.isdisjoint(task.deps):
                for dep in gone.intersection(task.deps):
                    self._lost_for.setdefault(dep, []).append(task)
                if self._say_why(task):
                    self.tables.put("tasks", task.task, task.row)

    def _name_of_maker(self, dep: str) -> str:
        maker = self._tasks.get(dep[:TASK_HEX])
        return maker.name if maker is not None else "an unknown task"

    def _count_wait(self, words: str, by: int, since_s: float = 0.0) -> None:
        if not words:
            return
        row = self._waits.get(words)
        if row is None:
            row = self._waits[words] = [words, 0, since_s]
        elif by > 0:
            row[2] = min(row[2], since_s)
        row[1] += by
        if row[1] == 0:
            del self._waits[words]
        self.tables.put("waits", words, partial(self._waits.get, words))

    def _pushed(self, event: TraceEvent) -> None:
        task = self._task(event)
        task.worker, task.attempt, task.is_lost = event.other, event.amount, False
        if event.process == HEAD:  # the head has actors made, and nothing else
            actor = self._actor(event.subject)
            actor.worker = event.other
            if event.amount:
                actor.state, actor.restarts = "RESTARTING", event.amount
                self.happened.actor_restarts(self.now_s, (event.subject, actor.called), event.other)
            self._actor_changed(actor)
        elif task.actor is None and task.kind == "ACTOR_TASK":  # its submission did not say, or was not traced
            task.actor = self._actor_at.get(event.other)
        if task.state not in (FINISHED, FAILED, RUNNING):
            self._change(task, PUSHED)

    def _started(self, event: TraceEvent) -> None:
        task = self._task(event)
        task.missing.clear()
        task.error, task.is_lost = "", False
        task.worker, task.attempt, task.started_s, task.ended_s = event.process, event.amount, self.now_s, None
        cause = task.spans[event.amount][7] if event.amount in task.spans else ""
        span: list[Any] = [
            *(f"{task.task}:{event.amount}", task.task, event.amount, event.process, self.now_s, None, "", cause),
            task.name,
        ]
        task.spans[event.amount] = span
        self.tables.put("spans", span[0], lambda: span)
        worker = self._worker(event.process)
        worker.runs[task.task, event.amount] = task
        self._of_worker(worker, 1)
        self._change(task, RUNNING)

    def _ended(self, event: TraceEvent) -> None:
        task = self._task(event)
        worker = self._worker(event.process)
        if worker.runs.pop((task.task, event.amount), None) is not None:
            self._of_worker(worker, -1)
        span = task.spans.get(event.amount)
        if span is not None:
            span[5], span[6] = self.now_s, event.other
            self.tables.put("spans", span[0], lambda: span)
        task.ended_s, task.error, task.worker = self.now_s, event.other, event.process
        self._change(task, FAILED if event.other else FINISHED)
        if event.other:
            self.happened.failed(self.now_s, (task.task, task.name), event.other, event.process)
        actor = self._actors.get(task.task)
        if actor is not None:
            actor.state, actor.worker = ("DEAD" if event.other else "ALIVE"), event.process
            actor.why = event.other
            self._actor_at[event.process] = actor
            self._actor_changed(actor)
        for waiting in self._waiting_for.pop(task.task, ()):
            waiting.missing = {dep for dep in waiting.missing if dep[:TASK_HEX] != task.task}
            if waiting.state == BLOCKED:
                self._change(waiting, BLOCKED if waiting.missing else QUEUED)

    def _retried(self, event: TraceEvent) -> None:
        task = self._task(event)
        for number, span in task.spans.items():
            if span[4] is not None and span[5] is None and number < event.amount:
                self._lose(self._worker(span[3]), task.task, number)
        task.attempt, task.ended_s, task.started_s = event.amount, None, None
        task.worker, task.error, task.is_lost = "", "", False
        key = f"{task.task}:{event.amount}"
        task.spans[event.amount] = [key, task.task, event.amount, "", None, None, "", event.other, task.name]
        self.happened.again(self.now_s, (task.task, task.name), event.other)
        self._change(task, QUEUED)

    # ---- Nodes and workers -----------------------------------------------------------------------------------

    def _node(self, name: str) -> NodeRow:
        node = self._nodes.get(name)
        if node is None:
            node = self._nodes[name] = NodeRow(name)
            node.started_s = self.now_s
        return node

    def _worker(self, address: str) -> WorkerRow:
        worker = self._workers.get(address)
        if worker is None:
            is_driver = "/" not in address
            node = node_of(Address(address)) if not is_driver else address.partition("@")[2]
            worker = self._workers[address] = WorkerRow(address, "driver" if is_driver else "worker", node, self.now_s)
            self.tables.put("workers", address, worker.row)
        return worker

    def _of_worker(self, worker: WorkerRow, by: int) -> None:
        """One attempt more, or less, runs there."""
        self.tables.put("workers", worker.worker, worker.row)
        if worker.node:
            node = self._node(worker.node)
            node.running += by
            self.tables.put("nodes", node.node, node.row)

    def _lose(self, worker: WorkerRow, task_id: str, number: int) -> None:
        """An attempt ends with its worker."""
        task = worker.runs.pop((task_id, number), None)
        if task is None:
            return
        self._of_worker(worker, -1)
        span = task.spans[number]
        span[5], span[6] = self.now_s, LOST
        self.tables.put("spans", span[0], lambda: span)
        if task.attempt == number and task.state == RUNNING:
            task.ended_s, task.error, task.is_lost = self.now_s, LOST_WORDS, True
            self._change(task, QUEUED)

    def _end_worker(self, worker: WorkerRow, why: str) -> list[Named]:
        """It is gone, and what ran there."""
        lost = [(task.task, task.name) for task in worker.runs.values()]
        for task_id, number in list(worker.runs):
            self._lose(worker, task_id, number)
        if worker.state != "DEAD":
            worker.state, worker.ended_s, worker.why = "DEAD", self.now_s, why
            actor = self._actor_at.pop(worker.worker, None)
            if actor is not None:
                actor.state, actor.why = "DEAD", why or "its worker ended"
                self._actor_changed(actor)
        self.tables.put("workers", worker.worker, worker.row)
        return lost

    def _worker_started(self, event: TraceEvent) -> None:
        worker = self._worker(event.subject)
        worker.started_s = self.now_s
        self._node(worker.node).workers.add(worker.worker)

    def _worker_ended(self, event: TraceEvent) -> None:
        why = event.other or event.name
        actors = self._actors_on((event.subject,))
        tasks = self._end_worker(self._worker(event.subject), why)
        if tasks:
            self.happened.worker_lost(self.now_s, event.subject, why, Lost(tasks, [], actors))

    def _node_started(self, event: TraceEvent) -> None:
        is_new = event.subject not in self._nodes
        node = self._node(event.subject)
        if not is_new:
            self._end_node(node)
            node.lives += 1
        node.begin(self.now_s)
        for text in event.deps:
            name, _, amount = text.rpartition(" ")
            node.capacity[name] = int(amount)
        if not is_new or self.now_s > 0:
            self.happened.node_started(self.now_s, node.node, is_new=is_new)
        self._supply(node)

    def _supply(self, node: NodeRow) -> None:
        alive = [each for each in self._nodes.values() if each.state != "DEAD"]
        self.demand.now[3] = sum(each.capacity.get(CPU, 0) for each in alive) / UNITS
        self.demand.now[4] = len(alive)
        self.demand.note(self.now_s)
        self.tables.put("nodes", node.node, node.row)

    def _actors_on(self, workers: Iterable[str]) -> list[Named]:
        found = [self._actor_at[worker] for worker in sorted(workers) if worker in self._actor_at]
        return [(actor.task.task, actor.called) for actor in found]

    def _end_node(self, node: NodeRow, why: str = "") -> Lost:
        """It is gone, and what was there."""
        actors = self._actors_on(node.workers)
        tasks = [
            task for worker in sorted(node.workers) for task in self._end_worker(self._workers[worker], _NODE_LOST)
        ]
        node.workers.clear()
        for object_id in list(node.held):
            known = self._objects[object_id]
            known.nodes.pop(node.node, None)
            if not known.nodes:
                known.state = "LOST"
                node.lost.append(object_id)
            self.tables.put("objects", object_id, known.row)
        node.held.clear()
        node.stored = 0
        if node.lost:
            self._tell_lost(node.lost)
        if node.state != "DEAD":
            node.state, node.ended_s, node.why = "DEAD", self.now_s, why
        self._supply(node)
        return Lost(tasks, list(node.lost), actors)

    def _fault(self, event: TraceEvent) -> None:
        if event.name == "kill node" and is_of_node(event):
            node = self._node(event.subject)
            lost = self._end_node(node, "killed by a fault")
            self.happened.node_killed(self.now_s, event.subject, node.lives, lost)
            if self.happened.is_head_seen:
                self._undetected[node.node] = node.lives, self.now_s
                self._tell_undetected()
            return
        actors = self._actors_on((event.subject,))
        tasks = self._end_worker(self._worker(event.subject), event.name) if "/" in event.subject else []
        self.happened.fault(self.now_s, event.name, event.subject, Lost(tasks, [], actors))

    def _noticed(self, notice: NodeNotice) -> None:
        """The head knows more of a node; the trace has no row for that."""
        node = self._node(notice.node)
        time_s = seconds(notice.time_ns - self.start_ns) if self.start_ns is not None else self.now_s
        is_over = notice.incarnation < node.lives or node.state == "DEAD"
        if notice.what is not Noticed.DEAD:
            if not is_over:
                node.state = _STATE_OF[notice.what]
            if not is_over or notice.what is Noticed.SILENT:
                self.happened.noticed(time_s, notice.node, notice.what)
        elif is_over:
            if notice.incarnation >= self._undetected.get(node.node, (node.lives + 1, 0))[0]:
                del self._undetected[node.node]
                self._tell_undetected()
            if notice.incarnation == node.lives:
                node.noticed_s = time_s
            is_back = notice.incarnation < node.lives
            self.happened.found_dead(time_s, notice.node, notice.incarnation, is_back=is_back)
        else:
            has_left = node.state == _STATE_OF[Noticed.LEAVING]
            lost = self._end_node(node, "left the cluster" if has_left else "the head declared it dead")
            node.noticed_s = time_s
            self.happened.declared_dead(time_s, notice.node, lost, has_left=has_left)
        self._supply(node)

    # ---- Objects ---------------------------------------------------------------------------------------------

    def _stored(self, event: TraceEvent) -> None:
        object_id = event.subject
        known = self._objects.get(object_id)
        if known is None:
            maker = self._tasks.get(object_id[:TASK_HEX])
            was_put = is_put(ObjectID(bytes.fromhex(object_id)))
            owner = event.process if was_put or maker is None else maker.owner
            of = (
                f"put by {maker.name if maker else 'the driver'}"
                if was_put
                else f"made by {maker.name if maker else '?'}"
            )
            known = self._objects[object_id] = ObjectRow(object_id, owner, of)
            known.used_by = self._consumers[object_id]
        known.size = known.size or event.amount
        known.state = "STORED"
        for task in self._lost_for.pop(object_id, ()):
            if self._say_why(task):
                self.tables.put("tasks", task.task, task.row)
        node = self._node_of_process(event.process)
        if node is not None and object_id not in node.held:
            known.nodes[node.node] = None
            node.held[object_id] = known.size
            node.stored += known.size
            self.tables.put("nodes", node.node, node.row)
        self.tables.put("objects", object_id, known.row)

    def _left(self, event: TraceEvent) -> None:
        known = self._objects.get(event.subject)
        node = self._node_of_process(event.process)
        if known is None or node is None:
            return
        node.stored -= node.held.pop(event.subject, 0)
        known.nodes.pop(node.node, None)
        if not known.nodes:
            known.state = _LEFT[event.kind]
        self.tables.put("nodes", node.node, node.row)
        self.tables.put("objects", event.subject, known.row)

    def _node_of_process(self, process: str) -> NodeRow | None:
        name = node_of(Address(process))
        if name in self._nodes:
            return self._nodes[name]
        of_driver = process.partition("@")[2] or next(iter(self._nodes), "")
        return self._nodes.get(of_driver)


UNDETECTED_SHOWN: Final = 3
_WAITS_NOT: Final = (RUNNING, FINISHED, FAILED)
LOST_WORDS: Final = "lost with its worker"
_NODE_LOST: Final = "node lost"
_STATE_OF: Final = {
    Noticed.SILENT: "SUSPECT",
    Noticed.HEARD: "ALIVE",
    Noticed.LEAVING: "DRAINING",
    Noticed.STAYING: "ALIVE",
}
_LEFT: Final = {
    TraceKind.OBJECT_EVICTED: "EVICTED",
    TraceKind.OBJECT_SPILLED: "SPILLED",
    TraceKind.OBJECT_DELETED: "DELETED",
}


def _verb(makers: set[str]) -> str:
    return "returns" if len(makers) == 1 else "return"
