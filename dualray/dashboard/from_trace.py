"""The tables of a run, put together from the rows of its trace as they come.

Theory of operation. A trace tells what happened, a moment a row. Each row changes a few things, in time that does not
depend on how long the run is: a task's state, who holds an object, what runs on a node. A task that is submitted waits
for those of its arguments that have not been made; when the last one has been, it stands in line for a worker. An
argument that was lost and must be made again is not counted: the task that makes it again is, as it runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, Final

from dualray.dashboard.demand import Demand
from dualray.dashboard.happened import Happened
from dualray.dashboard.tables import Tables
from dualray.report.lineage import is_of_node
from dualray.shared.model.ids import HEAD, Address, ObjectID, is_put, node_of
from dualray.shared.model.resources import CPU, UNITS
from dualray.shared.proof.trace import TraceEvent, TraceKind

__all__ = ["TASK_HEX", "TraceTables", "seconds"]

TASK_HEX: Final = 32
"""Hex digits of a task's id; an object's begins with its task's."""

BLOCKED, QUEUED, PUSHED = "PENDING_ARGS_AVAIL", "PENDING_NODE_ASSIGNMENT", "SUBMITTED_TO_WORKER"
RUNNING, FINISHED, FAILED = "RUNNING", "FINISHED", "FAILED"
LOST: Final = "lost"

_MICRO: Final = 1_000_000


def seconds(ns: int) -> float:
    """Rounded to a microsecond, which is what a page can show."""
    return round(ns / 1000) / _MICRO


class _Task:
    __slots__ = (
        *("attempt", "deps", "ended_s", "error", "kind", "missing", "name", "owner", "spans"),
        *("started_s", "state", "submitted_s", "task", "waits", "worker"),
    )

    def __init__(self, task: str, name: str, owner: str, submitted_s: float, deps: tuple[str, ...]) -> None:
        self.task, self.name, self.owner, self.submitted_s, self.deps = task, name, owner, submitted_s, deps
        self.kind = "ACTOR_TASK" if "." in name else "NORMAL_TASK"
        self.state, self.attempt, self.worker, self.error = "", 0, "", ""
        self.started_s: float | None = None
        self.ended_s: float | None = None
        self.missing: set[str] = set()
        self.waits = ""
        """What the table `waits` counts it under."""
        self.spans: dict[int, list[Any]] = {}

    def row(self) -> list[Any]:
        node = node_of(Address(self.worker)) if self.worker else ""
        return [
            *(self.task, self.name, self.kind, self.state, self.attempt, self.owner, self.worker, node),
            *(self.submitted_s, self.started_s, self.ended_s, self.error, sorted(self.missing)),
        ]


class _Node:
    __slots__ = ("capacity", "ended_s", "held", "lives", "node", "running", "started_s", "state", "stored", "workers")

    def __init__(self, node: str) -> None:
        self.node, self.state, self.lives = node, "ALIVE", 0
        self.started_s: float = 0.0
        self.ended_s: float | None = None
        self.capacity: dict[str, int] = {}
        self.running = self.stored = 0
        self.held: dict[str, int] = {}
        """The objects in its store, with their sizes."""
        self.workers: set[str] = set()

    def row(self) -> list[Any]:
        cpus = self.capacity.get(CPU)
        return [
            *(self.node, self.state, None if cpus is None else cpus / UNITS, self.running, None, None),
            *(self.capacity.get("object_store"), self.stored, self.started_s, self.ended_s, self.lives, None),
        ]


class _Worker:
    __slots__ = ("ended_s", "kind", "node", "runs", "started_s", "state", "why", "worker")

    def __init__(self, worker: str, kind: str, node: str, started_s: float) -> None:
        self.worker, self.kind, self.node, self.started_s = worker, kind, node, started_s
        self.state, self.why = "ALIVE", ""
        self.ended_s: float | None = None
        self.runs: dict[tuple[str, int], _Task] = {}

    def row(self) -> list[Any]:
        names = ", ".join(dict.fromkeys(task.name for task in self.runs.values()))
        first = next(iter(self.runs), ("", 0))[0]
        return [*(self.worker, self.node, self.kind, self.state, names, first, self.started_s, self.ended_s, self.why)]


class _Object:
    __slots__ = ("nodes", "object_id", "of", "owner", "size", "state", "used_by")

    def __init__(self, object_id: str, owner: str, of: str) -> None:
        self.object_id, self.owner, self.of = object_id, owner, of
        self.size, self.state = 0, "STORED"
        self.nodes: dict[str, None] = {}
        self.used_by = 0

    def row(self) -> list[Any]:
        return [self.object_id, self.size, self.state, self.owner, list(self.nodes), self.used_by, self.of]


class _Actor:
    __slots__ = ("restarts", "state", "task", "why", "worker")

    def __init__(self, task: _Task) -> None:
        self.task, self.state, self.worker, self.restarts, self.why = task, "PENDING_CREATION", "", 0, ""

    def row(self) -> list[Any]:
        node = node_of(Address(self.worker)) if self.worker else ""
        return [
            *(self.task.task, self.task.name, "", self.state, node, self.worker, self.restarts),
            *(self.task.owner, self.why),
        ]


class TraceTables:
    """See the module; `tables` are filled."""

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        self.start_ns: int | None = None
        self.now_s = 0.0
        self._tasks: dict[str, _Task] = {}
        self._objects: dict[str, _Object] = {}
        self._nodes: dict[str, _Node] = {}
        self._workers: dict[str, _Worker] = {}
        self._actors: dict[str, _Actor] = {}
        self._actor_at: dict[str, _Actor] = {}
        self._waiting_for: dict[str, list[_Task]] = {}
        """By object, the tasks of which it is an argument that has not been made."""
        self._consumers: Counter[str] = Counter()
        self._waits: dict[str, list[Any]] = {}
        self._states: Counter[str] = Counter()
        self.demand = Demand(tables)
        self.happened = Happened(tables)
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

    def take(self, events: Iterable[TraceEvent]) -> None:
        """More rows of the trace, in order of time."""
        for event in events:
            if self.start_ns is None:
                self.start_ns = event.time_ns
            self.now_s = max(self.now_s, seconds(event.time_ns - self.start_ns))
            handler = self._handlers.get(event.kind)
            if handler is not None:
                handler(event)
        self._say()

    def _say(self) -> None:
        states = self._states
        self.tables.head.update(
            now_s=self.now_s,
            tasks=states.total(),
            running=states[RUNNING],
            queued=states[QUEUED] + states[PUSHED],
            blocked=states[BLOCKED],
            finished=states[FINISHED],
            failed=states[FAILED],
            nodes=sum(node.state == "ALIVE" for node in self._nodes.values()),
            store=sum(node.stored for node in self._nodes.values()),
        )

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
        for dep in event.deps:
            self._consumers[dep] += 1
            if dep in self._objects:
                self._objects[dep].used_by += 1
            maker = self._tasks.get(dep[:TASK_HEX])
            if maker is not None and maker.state not in (FINISHED, FAILED) and not is_put(ObjectID(bytes.fromhex(dep))):
                task.missing.add(dep)
                self._waiting_for.setdefault(dep[:TASK_HEX], []).append(task)
        self._change(task, BLOCKED if task.missing else QUEUED)

    def _task(self, event: TraceEvent) -> _Task:
        subject = event.subject
        task = self._tasks.get(subject)
        if task is None:  # also of a task whose owner's rows were lost
            task = self._tasks[subject] = _Task(subject, event.name, "", self.now_s, ())
        elif event.name and not task.name:
            task.name = event.name
        return task

    def _change(self, task: _Task, state: str) -> None:
        """It is in another state: the tables, counts and the demand follow."""
        before = task.state
        if state != before:
            if before:
                self._states[before] -= 1
            self._states[state] += 1
            task.state = state
        waits = self._words_of_wait(task)
        if waits != task.waits:
            self._count_wait(task.waits, -1)
            self._count_wait(waits, 1)
            task.waits = waits
        self.tables.put("tasks", task.task, task.row)
        if state != before:
            self._note_demand()

    def _note_demand(self) -> None:
        states, now = self._states, self.demand.now
        now[0], now[1], now[2] = states[RUNNING], states[QUEUED] + states[PUSHED], states[BLOCKED]
        self.demand.note(self.now_s)

    def _words_of_wait(self, task: _Task) -> str:
        match task.state:
            case "PENDING_ARGS_AVAIL":
                makers = {self._name_of_maker(dep) for dep in task.missing}
                return f"{task.name} waits for what {' and '.join(sorted(makers))} {_verb(makers)}"
            case "PENDING_NODE_ASSIGNMENT":
                what = "its actor" if task.kind == "ACTOR_TASK" else "a free worker"
                return f"{task.name} waits for {what}"
            case "SUBMITTED_TO_WORKER":
                return f"{task.name} is with its worker, which has not begun it"
        return ""

    def _name_of_maker(self, dep: str) -> str:
        maker = self._tasks.get(dep[:TASK_HEX])
        return maker.name if maker is not None else "an unknown task"

    def _count_wait(self, words: str, by: int) -> None:
        if not words:
            return
        row = self._waits.get(words)
        if row is None:
            row = self._waits[words] = [words, 0, self.now_s]
        if row[1] == 0:
            row[2] = self.now_s
        row[1] += by
        if row[1] == 0:
            del self._waits[words]
        self.tables.put("waits", words, lambda: self._waits.get(words))

    def _pushed(self, event: TraceEvent) -> None:
        task = self._task(event)
        task.worker, task.attempt = event.other, event.amount
        if event.process == HEAD and task.kind != "ACTOR_CREATION_TASK":  # the head has actors made, and nothing else
            task.kind = "ACTOR_CREATION_TASK"
            self._actors[task.task] = _Actor(task)
        actor = self._actors.get(task.task)
        if actor is not None:
            actor.worker = event.other
            self.tables.put("actors", task.task, actor.row)
        if task.state not in (FINISHED, FAILED, RUNNING):
            self._change(task, PUSHED)

    def _started(self, event: TraceEvent) -> None:
        task = self._task(event)
        task.missing.clear()
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
            self.happened.failed(self.now_s, task.name, event.other, event.process)
        actor = self._actors.get(task.task)
        if actor is not None:
            actor.state, actor.worker = ("DEAD" if event.other else "ALIVE"), event.process
            actor.why = event.other
            self._actor_at[event.process] = actor
            self.tables.put("actors", task.task, actor.row)
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
        key = f"{task.task}:{event.amount}"
        task.spans[event.amount] = [key, task.task, event.amount, "", None, None, "", event.other, task.name]
        self.happened.again(self.now_s, task.name, event.other)
        actor = self._actors.get(task.task)
        if actor is not None:
            actor.state, actor.restarts = "RESTARTING", actor.restarts + (event.other == "restart")
            self.tables.put("actors", task.task, actor.row)
        self._change(task, QUEUED)

    # ---- Nodes and workers -----------------------------------------------------------------------------------

    def _node(self, name: str) -> _Node:
        node = self._nodes.get(name)
        if node is None:
            node = self._nodes[name] = _Node(name)
            node.started_s = self.now_s
        return node

    def _worker(self, address: str) -> _Worker:
        worker = self._workers.get(address)
        if worker is None:
            is_driver = "/" not in address
            node = node_of(Address(address)) if not is_driver else address.partition("@")[2]
            worker = self._workers[address] = _Worker(address, "driver" if is_driver else "worker", node, self.now_s)
            self.tables.put("workers", address, worker.row)
        return worker

    def _of_worker(self, worker: _Worker, by: int) -> None:
        """One attempt more, or less, runs there."""
        self.tables.put("workers", worker.worker, worker.row)
        if worker.node:
            node = self._node(worker.node)
            node.running += by
            self.tables.put("nodes", node.node, node.row)

    def _lose(self, worker: _Worker, task_id: str, number: int) -> None:
        """An attempt ends with its worker."""
        task = worker.runs.pop((task_id, number), None)
        if task is None:
            return
        self._of_worker(worker, -1)
        span = task.spans[number]
        span[5], span[6] = self.now_s, LOST
        self.tables.put("spans", span[0], lambda: span)
        if task.attempt == number and task.state == RUNNING:
            task.ended_s, task.error = self.now_s, "lost with its worker"
            self._change(task, QUEUED)

    def _end_worker(self, worker: _Worker, why: str) -> list[str]:
        """It is gone, and what ran there; the names of that."""
        lost = [task.name for task in worker.runs.values()]
        for task_id, number in list(worker.runs):
            self._lose(worker, task_id, number)
        if worker.state != "DEAD":
            worker.state, worker.ended_s, worker.why = "DEAD", self.now_s, why
            actor = self._actor_at.pop(worker.worker, None)
            if actor is not None:
                actor.state, actor.why = "DEAD", why or "its worker ended"
                self.tables.put("actors", actor.task.task, actor.row)
        self.tables.put("workers", worker.worker, worker.row)
        return lost

    def _worker_started(self, event: TraceEvent) -> None:
        worker = self._worker(event.subject)
        worker.started_s = self.now_s
        self._node(worker.node).workers.add(worker.worker)

    def _worker_ended(self, event: TraceEvent) -> None:
        why = event.other or event.name
        lost = self._end_worker(self._worker(event.subject), why)
        if lost:
            self.happened.worker_lost(self.now_s, event.subject, why, lost)

    def _node_started(self, event: TraceEvent) -> None:
        is_new = event.subject not in self._nodes
        node = self._node(event.subject)
        if not is_new:
            self._end_node(node)
            node.lives += 1
        node.state, node.started_s, node.ended_s = "ALIVE", self.now_s, None
        for text in event.deps:
            name, _, amount = text.rpartition(" ")
            node.capacity[name] = int(amount)
        if not is_new or self.now_s > 0:
            self.happened.node_started(self.now_s, node.node, is_new=is_new)
        self._supply(node)

    def _supply(self, node: _Node) -> None:
        alive = [each for each in self._nodes.values() if each.state == "ALIVE"]
        self.demand.now[3] = sum(each.capacity.get(CPU, 0) for each in alive) / UNITS
        self.demand.now[4] = len(alive)
        self.demand.note(self.now_s)
        self.tables.put("nodes", node.node, node.row)

    def _end_node(self, node: _Node) -> tuple[list[str], int]:
        """It is gone: the names of what ran there, and how many objects had their only copy there."""
        lost = [
            name for worker in sorted(node.workers) for name in self._end_worker(self._workers[worker], "node lost")
        ]
        node.workers.clear()
        only = 0
        for object_id in list(node.held):
            known = self._objects[object_id]
            known.nodes.pop(node.node, None)
            if not known.nodes:
                known.state = "LOST"
                only += 1
            self.tables.put("objects", object_id, known.row)
        node.held.clear()
        node.stored = 0
        if node.state != "DEAD":
            node.state, node.ended_s = "DEAD", self.now_s
        self._supply(node)
        return lost, only

    def _fault(self, event: TraceEvent) -> None:
        if event.name == "kill node" and is_of_node(event):
            lost, only = self._end_node(self._node(event.subject))
            self.happened.node_lost(self.now_s, event.subject, lost, only)
            return
        lost = self._end_worker(self._worker(event.subject), event.name) if "/" in event.subject else []
        self.happened.fault(self.now_s, event.name, event.subject, lost)

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
            known = self._objects[object_id] = _Object(object_id, owner, of)
            known.used_by = self._consumers[object_id]
        known.size = known.size or event.amount
        known.state = "STORED"
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

    def _node_of_process(self, process: str) -> _Node | None:
        name = node_of(Address(process))
        if name in self._nodes:
            return self._nodes[name]
        of_driver = process.partition("@")[2] or next(iter(self._nodes), "")
        return self._nodes.get(of_driver)


_LEFT: Final = {
    TraceKind.OBJECT_EVICTED: "EVICTED",
    TraceKind.OBJECT_SPILLED: "SPILLED",
    TraceKind.OBJECT_DELETED: "DELETED",
}


def _verb(makers: set[str]) -> str:
    return "returns" if len(makers) == 1 else "return"
