"""What each fault cost a run. The report and the live page count it from the rows of the trace, as they come.

Theory of operation. A fault takes attempts that run on its node or worker, actors, and the only copies of objects. What
is done for it later is booked on it: attempts in place of those that were lost, attempts that make a lost object again,
and constructors of actors that are made again. Lost work is the time for which lost attempts had run. It is also the
time that it had taken to make lost objects, once they are made again. A node is idle if it lives and runs nothing.
Idle time is booked on a fault only while lost work waits to start again: from the loss of an attempt until the next one
starts, and of an object from the decision to make it again.

An attempt that makes an object again which was in no store (its value was given up, or was on a disk) is booked on the
last loss. A worker that ends without a fault, and a node that the head declares dead, count as faults if something was
lost with them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Final

from dualray.report.lineage import is_of_node
from dualray.report.notices import ActorNamed, NodeNotice, Noticed, notices_of
from dualray.report.record import Record
from dualray.report.summary import RECONSTRUCTION
from dualray.report.traces import duration
from dualray.shared.model.ids import HEAD, Address, node_of
from dualray.shared.proof.trace import TraceEvent, TraceKind

__all__ = ["FaultCost", "FaultCosts", "costs_of"]

_TASK_HEX: Final = 32

_Point = tuple[int, int]
"""A time, and for how long nodes had been idle by then, all together."""


@dataclass(slots=True, kw_only=True, eq=False)
class FaultCost:
    """What one fault has cost until now.

    Attributes:
        what: the fault, in words.
        lost: attempts.
        lost_ns: for how long the work had run that was lost.
        again: the tasks that ran again, or wait to; constructors of actors, too.
        redone_ns: for how long tasks ran again.
        actors: of each actor that was lost, its constructor, its name, and how many of its calls had ended.
    """

    time_ns: int
    what: str
    lost: int = 0
    lost_ns: int = 0
    again: dict[str, None] = field(default_factory=dict)
    redone_ns: int = 0
    actors: dict[str, tuple[str, int]] = field(default_factory=dict)
    undetected: str = ""
    """The node that died, until the head has detected that, or a task runs again for it."""
    taken: dict[str, _Point] = field(default_factory=dict)
    """The tasks whose attempts were lost, and which nobody has queued again."""
    waiting: dict[str, _Point] = field(default_factory=dict)
    """The tasks that are to run again, and have not started."""
    waits: list[tuple[_Point, _Point]] = field(default_factory=list)
    """When such tasks waited."""


class FaultCosts:
    """See the module."""

    def __init__(self) -> None:
        self.all: list[FaultCost] = []
        self.changed: dict[FaultCost, None] = {}
        """Those that cost more than when this was emptied."""
        self._running: dict[str, dict[tuple[str, int], int]] = {}
        """By worker, the attempts and their starts."""
        self._busy: dict[str, int] = {}
        """Of each living node, how many attempts run there."""
        self._at_ns = self._idle_ns = self._idle_nodes = 0
        self._lasted: dict[str, int] = {}
        """Of each task, how long its last attempt took."""
        self._held: dict[str, dict[str, None]] = {}
        self._holders: dict[str, dict[str, None]] = {}
        self._lost_tasks: dict[str, FaultCost] = {}
        self._lost_values: dict[str, FaultCost] = {}
        """By the task that makes them."""
        self._repeats: dict[tuple[str, int], FaultCost] = {}
        self._constructors: set[str] = set()
        self._actors: dict[str, str] = {}
        """By worker, the constructor of its actor."""
        self._names: dict[str, str] = {}
        """By constructor, the name of the actor."""
        self._calls: dict[str, int] = {}
        """By worker of an actor, how many of its calls have ended."""
        self._latest: FaultCost | None = None
        self._leaving: set[str] = set()
        self._lives: dict[str, int] = {}
        self._handlers = {
            TraceKind.TASK_PUSHED: self._pushed,
            TraceKind.TASK_STARTED: self._started,
            TraceKind.TASK_ENDED: self._ended,
            TraceKind.TASK_RETRIED: self._retried,
            TraceKind.NODE_STARTED: self._node_started,
            TraceKind.WORKER_ENDED: self._worker_ended,
            TraceKind.FAULT: self._fault,
            TraceKind.OBJECT_STORED: self._stored,
            TraceKind.TRANSFER_ENDED: self._stored,
            TraceKind.OBJECT_RESTORED: self._stored,
            TraceKind.OBJECT_EVICTED: self._left,
            TraceKind.OBJECT_SPILLED: self._left,
            TraceKind.OBJECT_DELETED: self._left,
        }

    def take(self, event: TraceEvent | NodeNotice | ActorNamed) -> None:
        """The next row of the trace, or what the head notices, in order of time."""
        if isinstance(event, TraceEvent):
            handler = self._handlers.get(event.kind)
            if handler is not None:
                handler(event)
        elif isinstance(event, NodeNotice):
            self._noticed(event)

    def idle_ns(self, cost: FaultCost) -> int:
        """For how long nodes were idle while lost work waited to start again, all nodes together."""
        now = self._at_ns, self._idle_ns
        cost.waits = _merged(cost.waits)
        waiting = (*cost.waiting.values(), *cost.taken.values()) if cost.undetected else cost.waiting.values()
        opened = [(since, now) for since in waiting]
        return sum(until[1] - since[1] for since, until in _merged([*cost.waits, *opened]))

    def words(self, cost: FaultCost) -> str:
        """What it has cost, in sentences."""
        return self._words([cost]) or "No work was lost."

    def words_of_all(self) -> str:
        """What all of them have cost together; empty if nothing was lost."""
        return self._words(self.all)

    def _words(self, costs: Sequence[FaultCost]) -> str:
        again = {task for cost in costs for task in cost.again} - self._constructors
        lost_ns, redone_ns = sum(cost.lost_ns for cost in costs), sum(cost.redone_ns for cost in costs)
        actors = [(*lost, actor in cost.again) for cost in costs for actor, lost in cost.actors.items()]
        is_open = any(cost.undetected or self._is_open(cost) for cost in costs)
        sentences = [_of_tasks(lost_ns, len(again), redone_ns, is_open=is_open), _of_actors(actors)]
        if again or (is_open and lost_ns):
            idle_ns = sum(self.idle_ns(cost) for cost in costs)
            if idle_ns or not is_open:  # a node that is idle tells nothing, until something happens somewhere
                sentences.append(_of_nodes(idle_ns))
        return " ".join(filter(None, sentences))

    def _is_open(self, cost: FaultCost) -> bool:
        """Whether work that was lost is still being repeated."""
        return bool(cost.waiting) or cost in self._repeats.values()

    # ---- Time ------------------------------------------------------------------------------------------------

    def _now(self, time_ns: int) -> _Point:
        if time_ns > self._at_ns:
            self._idle_ns += self._idle_nodes * (time_ns - self._at_ns)
            self._at_ns = time_ns
        return self._at_ns, self._idle_ns

    def _runs(self, node: str, by: int, time_ns: int) -> None:
        """Attempts more, or less, run on a node."""
        busy = self._busy.get(node)
        if busy is None:  # it is dead, or never began
            return
        self._busy[node] = after = busy + by
        if (busy == 0) != (after == 0):
            self._now(time_ns)
            self._idle_nodes += 1 if after == 0 else -1

    # ---- Tasks -----------------------------------------------------------------------------------------------

    def _pushed(self, event: TraceEvent) -> None:
        if event.process != HEAD:  # the head has actors made, and nothing else
            return
        task = event.subject
        self._constructors.add(task)
        cost = self._lost_tasks.pop(task, None) if event.amount else None
        if cost is not None:
            self._again(cost, task, event.amount, cost.taken.pop(task))

    def _started(self, event: TraceEvent) -> None:
        worker, key = event.process, (event.subject, event.amount)
        self._running.setdefault(worker, {})[key] = event.time_ns
        self._runs(node_of(Address(worker)), 1, event.time_ns)
        if key[0] in self._constructors:
            self._actors[worker] = key[0]
            self._names[key[0]] = event.name
            self._calls[worker] = 0
        cost = self._repeats.get(key)
        if cost is not None:
            since = cost.waiting.pop(key[0], None)
            if since is not None:
                cost.waits.append((since, self._now(event.time_ns)))
            self.changed[cost] = None

    def _ended(self, event: TraceEvent) -> None:
        worker, key = event.process, (event.subject, event.amount)
        started_ns = self._running.get(worker, {}).pop(key, None)
        if started_ns is None:
            return
        self._runs(node_of(Address(worker)), -1, event.time_ns)
        self._lasted[key[0]] = event.time_ns - started_ns
        if worker in self._calls and key[0] not in self._constructors:
            self._calls[worker] += 1
        self._repeated(key, event.time_ns - started_ns)

    def _repeated(self, key: tuple[str, int], lasted_ns: int) -> None:
        cost = self._repeats.pop(key, None)
        if cost is not None:
            cost.redone_ns += lasted_ns if key[0] not in self._constructors else 0
            self.changed[cost] = None

    def _retried(self, event: TraceEvent) -> None:
        task = event.subject
        if event.other == RECONSTRUCTION:
            cost = self._lost_values.pop(task, None) or self._latest
            since = self._now(event.time_ns)
            if cost is not None:
                cost.lost_ns += self._lasted.get(task, 0)
        else:
            cost = self._lost_tasks.pop(task, None)
            since = cost.taken.pop(task) if cost is not None else (0, 0)
        if cost is not None:
            self._again(cost, task, event.amount, since)

    def _again(self, cost: FaultCost, task: str, number: int, since: _Point) -> None:
        cost.again[task] = None
        cost.undetected = ""
        cost.waiting[task] = since
        self._repeats[task, number] = cost
        self.changed[cost] = None

    # ---- Losses ----------------------------------------------------------------------------------------------

    def _fault(self, event: TraceEvent) -> None:
        cost = FaultCost(time_ns=event.time_ns, what=f"{event.name or 'fault'}: {event.subject}")
        if is_of_node(event):
            if event.name == "kill node":
                self._lose_node(cost, event.subject)
                cost.undetected = event.subject
        else:
            self._lose(cost, event.subject)
        self._note(cost)

    def _worker_ended(self, event: TraceEvent) -> None:
        why = event.other or event.name
        self._note_loss(event.time_ns, f"{event.subject} ended{f': {why}' if why else ''}", [event.subject])

    def _note_loss(self, time_ns: int, what: str, workers: Iterable[str] = (), node: str = "") -> None:
        """Something has ended without a fault: a fault if work was lost with it."""
        cost = FaultCost(time_ns=time_ns, what=what)
        for worker in workers:
            self._lose(cost, worker)
        has_values = bool(node) and self._lose_node(cost, node)
        if cost.taken or has_values:
            self._note(cost)

    def _note(self, cost: FaultCost) -> None:
        self.all.append(cost)
        self.changed[cost] = None
        self._latest = cost

    def _lose(self, cost: FaultCost, worker: str) -> None:
        """What ran on a worker is lost with it, and its actor."""
        now = self._now(cost.time_ns)
        for key, started_ns in self._running.pop(worker, {}).items():
            self._runs(node_of(Address(worker)), -1, cost.time_ns)
            cost.lost += 1
            cost.lost_ns += cost.time_ns - started_ns
            self._repeated(key, cost.time_ns - started_ns)
            cost.taken[key[0]] = now
            self._lost_tasks[key[0]] = cost
        actor = self._actors.pop(worker, None)
        if actor is not None:
            cost.taken[actor] = now
            self._lost_tasks[actor] = cost
            cost.actors[actor] = self._names[actor], self._calls.pop(worker)

    def _lose_node(self, cost: FaultCost, node: str) -> bool:
        """A life of a node is over. Whether the only copies of some objects were there."""
        for worker in [each for each in {**self._running, **self._actors} if node_of(Address(each)) == node]:
            self._lose(cost, worker)
        self._now(cost.time_ns)
        if self._busy.pop(node, None) == 0:
            self._idle_nodes -= 1
        lost = False
        for object_id in self._held.pop(node, ()):
            holders = self._holders[object_id]
            holders.pop(node, None)
            if not holders:
                lost = True
                self._lost_values[object_id[:_TASK_HEX]] = cost
        return lost

    def _node_started(self, event: TraceEvent) -> None:
        node = event.subject
        if node in self._busy:
            self._note_loss(event.time_ns, f"{node} started again", node=node)
        self._now(event.time_ns)
        self._lives[node] = self._lives.get(node, -1) + 1
        self._busy[node] = 0
        self._idle_nodes += 1
        self._leaving.discard(node)

    def _noticed(self, notice: NodeNotice) -> None:
        if notice.what is Noticed.LEAVING:
            self._leaving.add(notice.node)
        elif notice.what is Noticed.DEAD:
            for cost in self.all:
                if cost.undetected == notice.node:
                    cost.undetected = ""
            if notice.node in self._busy and notice.incarnation >= self._lives[notice.node]:  # else its next life began
                what = "left the cluster" if notice.node in self._leaving else "was declared dead"
                self._note_loss(notice.time_ns, f"{notice.node} {what}", node=notice.node)

    # ---- Objects ---------------------------------------------------------------------------------------------

    def _stored(self, event: TraceEvent) -> None:
        node = node_of(Address(event.process))
        self._held.setdefault(node, {})[event.subject] = None
        self._holders.setdefault(event.subject, {})[node] = None

    def _left(self, event: TraceEvent) -> None:
        node = node_of(Address(event.process))
        self._held.get(node, {}).pop(event.subject, None)
        self._holders.get(event.subject, {}).pop(node, None)


def _merged(spans: Iterable[tuple[_Point, _Point]]) -> list[tuple[_Point, _Point]]:
    """The same stretches of time, in order and without overlaps."""
    found: list[tuple[_Point, _Point]] = []
    for since, until in sorted(spans):
        if found and since <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], until)
        else:
            found.append((since, until))
    return found


def _of_tasks(lost_ns: int, again: int, redone_ns: int, *, is_open: bool) -> str:
    if not again:
        last = "." if is_open else ", and no task ran again."
        return f"{duration(lost_ns)} of work was lost{last}" if lost_ns else ""
    tasks = f"{again:,} task{'' if again == 1 else 's'}"
    if is_open:
        return f"{duration(lost_ns)} of work was lost, and {tasks} {'runs' if again == 1 else 'run'} again."
    return f"{duration(lost_ns)} of work was lost, and {tasks} ran again, for {duration(redone_ns)} in total."


def _of_actors(lost: Sequence[tuple[str, int, bool]]) -> str:
    """Of the actors that died: their names, how many of their calls had ended, and whether they are made again."""
    if not lost:
        return ""
    calls, is_one = sum(ended for _, ended, _ in lost), len(lost) == 1
    whose = f"The actor {lost[0][0]}" if is_one else f"{len(lost):,} actors"
    finished = f"{calls:,} finished call{'' if calls == 1 else 's'}"
    what = (
        f"with what {finished} had changed in {'it' if is_one else 'them'}" if calls else "before a call had finished"
    )
    restarted = sum(is_again for _, _, is_again in lost)
    then = ", and started again from its constructor" if is_one else f", and {restarted:,} started again"
    return f"{whose} died {what}{then if restarted else ''}."


def _of_nodes(idle_ns: int) -> str:
    if not idle_ns:
        return "No node was idle while lost work waited to start again."
    return f"While lost work waited to start again, nodes ran nothing for {duration(idle_ns)}, summed over the nodes."


def costs_of(record: Record) -> FaultCosts:
    """Of a run that was recorded."""
    costs = FaultCosts()
    notices = notices_of(record.decisions(HEAD))
    for event in sorted(chain(record.events, notices), key=lambda event: event.time_ns):
        costs.take(event)
    return costs
