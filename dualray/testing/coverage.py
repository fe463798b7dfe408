"""Coverage of a run: rare situations that exploration tries to reach.

Exploration that never reached a situation has said nothing about it. `SITUATIONS` declares what a run under faults of
all kinds can reach; beside them each kind of fault counts, and each kind of failure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from dualray.report.histories import TASK_HEX
from dualray.shared.proof.trace import TraceEvent, TraceKind

SITUATIONS: tuple[str, ...] = (
    "task retried",
    "task in its fourth attempt",
    "task retried on another node",
    "task began twice at once",
    "task ended after its next attempt had begun",
    "task pushed and never begun",
    "worker ended",
    "worker ended in a task",
    "worker ended between tasks",
    "node came back",
    "object reconstructed",
    "object reconstructed twice",
    "object reconstructed at depth 3",
    "last copy lost",
    "object evicted",
    "object evicted and wanted again",
    "object stored again where it was",
    "object stored by two nodes",
    "object went to two nodes",
    "transfer broken off",
    "fault while an object was reconstructed",
    "fault within a second of another",
    "message held",
    "message of a dead node dropped",
    "zombie node refused",
)
"""Each is counted once for each time that it happened."""

SOON_NS = 1_000_000_000
DEPTH = 3
"""Of tasks that run again, each for an argument of the one before."""

_OF_THE_CLUSTER = {
    "zombie node refused": "nodes_refused",
    "message held": "messages_held",
    "message of a dead node dropped": "messages_dropped",
    "transfer broken off": "transfers_lost",
}
"""What the cluster counts itself, by its own name for that."""


def coverage(trace: Sequence[TraceEvent], counters: Mapping[str, int]) -> dict[str, int]:
    """What happened, by name, and how often.

    Args:
        trace: of the whole cluster, in order of time.
        counters: those of the cluster: see dualray.sim.cluster.examination.
    """
    watch = _Watch()
    see = watch.see
    for event in trace:
        on_event = see.get(event.kind)
        if on_event is not None:
            on_event(event)
    reached = watch.reached
    reached["task pushed and never begun"] = len(watch.pushed)
    for name, counter in _OF_THE_CLUSTER.items():
        reached[name] += counters.get(counter, 0)
    return {name: times for name, times in reached.items() if times}


class _Watch:
    """Remembers of a trace what the situations are told by."""

    def __init__(self) -> None:
        self.reached: Counter[str] = Counter()
        self.pushed: set[tuple[str, int]] = set()
        """Attempts that have not begun."""
        self._attempts: dict[str, tuple[int, str]] = {}
        """Of each task the last attempt that began, and its process."""
        self._running: dict[str, set[str]] = {}
        """Of each process the tasks in it."""
        self._in: Counter[str] = Counter()
        """In how many processes each task is."""
        self._nodes: set[str] = set()
        self._reconstructed: Counter[str] = Counter()
        self._reconstructing: set[str] = set()
        self._makers: dict[str, tuple[str, ...]] = {}
        """Of each task that has arguments, the tasks that made them."""
        self._copies: dict[str, set[str]] = {}
        """Of each object, the nodes that have it."""
        self._stored: dict[str, set[str]] = {}
        self._evicted: set[str] = set()
        self._receivers: dict[str, set[str]] = {}
        self._last_fault_ns: int | None = None
        self.see = {
            TraceKind.TASK_SUBMITTED: self._on_submitted,
            TraceKind.TASK_PUSHED: self._on_pushed,
            TraceKind.TASK_STARTED: self._on_started,
            TraceKind.TASK_ENDED: self._on_ended,
            TraceKind.TASK_RETRIED: self._on_retried,
            TraceKind.WORKER_ENDED: self._on_worker_ended,
            TraceKind.NODE_STARTED: self._on_node_started,
            TraceKind.OBJECT_STORED: self._on_stored,
            TraceKind.OBJECT_EVICTED: self._on_evicted,
            TraceKind.OBJECT_DELETED: self._on_deleted,
            TraceKind.TRANSFER_ENDED: self._on_transferred,
            TraceKind.FAULT: self._on_fault,
        }
        """What takes in an event of each kind that says anything."""

    def _on_submitted(self, event: TraceEvent) -> None:
        if event.deps:
            self._makers[event.subject] = tuple([made[:TASK_HEX] for made in event.deps])

    def _on_pushed(self, event: TraceEvent) -> None:
        self.pushed.add((event.subject, event.amount))

    def _on_node_started(self, event: TraceEvent) -> None:
        self.reached["node came back"] += event.subject in self._nodes
        self._nodes.add(event.subject)

    def _on_evicted(self, event: TraceEvent) -> None:
        self.reached["object evicted"] += 1
        self._evicted.add(event.subject)
        nodes = self._copies.get(event.subject)
        if nodes is not None:
            self.reached["last copy lost"] += nodes == {_node(event.process)}
            nodes.discard(_node(event.process))

    def _on_deleted(self, event: TraceEvent) -> None:
        nodes = self._copies.get(event.subject)
        if nodes is not None:
            nodes.discard(_node(event.process))

    def _on_transferred(self, event: TraceEvent) -> None:
        receivers = self._receivers.setdefault(event.subject, set())
        receivers.add(event.process)
        self._copies.setdefault(event.subject, set()).add(_node(event.process))
        self.reached["object went to two nodes"] += len(receivers) == 2

    def _on_started(self, event: TraceEvent) -> None:
        self.pushed.discard((event.subject, event.amount))
        before = self._attempts.get(event.subject)
        if before is not None and before[1] and _node(before[1]) != _node(event.process):
            self.reached["task retried on another node"] += 1
        self._attempts[event.subject] = event.amount, event.process
        self._running.setdefault(event.process, set()).add(event.subject)
        attempts = self._in[event.subject] = self._in.get(event.subject, 0) + 1
        self.reached["task began twice at once"] += attempts == 2

    def _on_ended(self, event: TraceEvent) -> None:
        if event.other:
            self.reached[f"task failed: {event.other}"] += 1
        if self._attempts.get(event.subject, (0, event.process))[1] != event.process:
            self.reached["task ended after its next attempt had begun"] += 1
        self._leave(event.process, event.subject)
        self._reconstructing.discard(event.subject)

    def _on_retried(self, event: TraceEvent) -> None:
        self.reached["task in its fourth attempt"] += event.amount >= 3
        if event.other != "reconstruction":
            self.reached["task retried"] += 1
            return
        self.reached["object reconstructed"] += 1
        self._reconstructed[event.subject] += 1
        self.reached["object reconstructed twice"] += self._reconstructed[event.subject] == 2
        self._reconstructing.add(event.subject)
        self.reached["object reconstructed at depth 3"] += self._depth(event.subject) >= DEPTH

    def _depth(self, task: str) -> int:
        """How many tasks run again one for the other, of those that lead to this one and from it."""
        makers, again = self._makers, self._reconstructing

        def above(maker: str, seen: int) -> int:
            users = [user for user in again if maker in makers.get(user, ())] if seen < DEPTH else []
            return 1 + max([above(user, seen + 1) for user in users], default=0)

        def below(user: str, seen: int) -> int:
            made = [maker for maker in makers.get(user, ()) if maker in again] if seen < DEPTH else []
            return 1 + max([below(maker, seen + 1) for maker in made], default=0)

        return above(task, 1) + below(task, 1) - 1

    def _on_worker_ended(self, event: TraceEvent) -> None:
        worker = event.subject
        tasks = self._running.get(worker, set())
        self.reached["worker ended"] += 1
        self.reached["worker ended in a task" if tasks else "worker ended between tasks"] += 1
        for task in list(tasks):
            self._leave(worker, task)

    def _leave(self, process: str, task: str) -> None:
        tasks = self._running.get(process, set())
        if task in tasks:
            tasks.remove(task)
            self._in[task] -= 1

    def _on_stored(self, event: TraceEvent) -> None:
        self._copies.setdefault(event.subject, set()).add(_node(event.process))
        nodes = self._stored.setdefault(event.subject, set())
        self.reached["object stored again where it was"] += event.process in nodes
        self.reached["object stored by two nodes"] += event.process not in nodes and len(nodes) == 1
        nodes.add(event.process)
        if event.subject in self._evicted:
            self._evicted.remove(event.subject)
            self.reached["object evicted and wanted again"] += 1

    def _on_fault(self, event: TraceEvent) -> None:
        self.reached[f"fault: {event.name}"] += 1
        self.reached["fault while an object was reconstructed"] += bool(self._reconstructing)
        last_ns, self._last_fault_ns = self._last_fault_ns, event.time_ns
        self.reached["fault within a second of another"] += last_ns is not None and event.time_ns - last_ns <= SOON_NS
        if event.name == "kill node":  # its store and its workers go with it, unnoted
            for nodes in self._copies.values():
                self.reached["last copy lost"] += nodes == {event.subject}
                nodes.discard(event.subject)
            for process in [process for process in self._running if _node(process) == event.subject]:
                for task in list(self._running[process]):
                    self._leave(process, task)


def _node(process: str) -> str:
    return process.partition("/")[0]
