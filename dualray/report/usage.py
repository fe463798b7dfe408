"""Use of each node's CPUs, GPUs, network card and object store, at every moment of a run.

Each figure is a step function of time, with the best source that the record has:

- CPUs and GPUs leased: what the node itself reported to the head (its decision log);
- CPUs computing: the attempts that ran there, less the time in which they waited and had lent their CPU;
- network cards: what the simulated network reported at each change of a rate; else, in real mode, each transfer's bytes
  spread evenly over the time that it took;
- object store: a fresh node machine is fed the log's events, and asked after each; without a log, the objects that the
  trace shows there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from dualray.report.histories import Lives
from dualray.shared.model.commands import Send
from dualray.shared.model.events import GpuLost, ResourcesReported
from dualray.shared.model.ids import Address, ObjectID, node_of, task_of
from dualray.shared.model.resources import CPU, GPU, UNITS
from dualray.shared.proof.trace import TraceEvent, TraceKind

Floats = np.ndarray[Any, np.dtype[np.float64]]

NIC = "nic"
STORE = "object_store"


@dataclass(frozen=True, slots=True)
class Steps:
    """A step function: `values[i]` from `times_ns[i]` on, 0 before the first. Times ascend."""

    times_ns: Floats
    values: Floats

    @classmethod
    def of_levels(cls, levels: Iterable[tuple[int, float]]) -> Steps:
        """From (time, new value), in any order of time; of several at one moment the last counts."""
        latest: dict[int, float] = dict(levels)
        times = sorted(latest)
        return cls(np.array(times, dtype=float), np.array([latest[time] for time in times], dtype=float))

    @classmethod
    def of_changes(cls, changes: Iterable[tuple[float, float]]) -> Steps:
        """From (time, how much is added)."""
        total: dict[float, float] = {}
        for time_ns, change in changes:
            total[time_ns] = total.get(time_ns, 0.0) + change
        times = sorted(total)
        values = np.cumsum([total[time] for time in times]) if times else np.zeros(0)
        return cls(np.array(times, dtype=float), values)

    @classmethod
    def of_stretches(cls, stretches: Iterable[tuple[float, float, float]]) -> Steps:
        """From (start, end, height): the sum of all that last at a moment."""
        changes: list[tuple[float, float]] = []
        for start_ns, end_ns, height in stretches:
            if end_ns > start_ns:
                changes += [(start_ns, height), (end_ns, -height)]
        return cls.of_changes(changes)

    def integral(self, at_ns: Floats) -> Floats:
        """The area up to each of these times, in ns times the unit of the values."""
        if not len(self.times_ns):
            return np.zeros(len(at_ns))
        areas = np.concatenate([[0.0], np.cumsum(np.diff(self.times_ns) * self.values[:-1])])
        inside = np.interp(at_ns, self.times_ns, areas)
        beyond = np.maximum(at_ns - self.times_ns[-1], 0.0) * self.values[-1]
        return cast(Floats, np.where(at_ns < self.times_ns[0], 0.0, inside + beyond))

    def means(self, edges_ns: Floats) -> Floats:
        """The mean between each two neighbouring edges."""
        return cast(Floats, np.diff(self.integral(edges_ns)) / np.diff(edges_ns))

    def at(self, time_ns: float) -> float:
        """The value at a moment."""
        position = int(np.searchsorted(self.times_ns, time_ns, side="right")) - 1
        return float(self.values[position]) if position >= 0 else 0.0


EMPTY = Steps(np.zeros(0), np.zeros(0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """One resource on every node: what was used, and what there is.

    Attributes:
        name: such as `CPUs leased`.
        unit: `CPU`, `GPU`, `B/s` or `B`.
        used: by node.
        capacity: by node, 0 while the node is dead; empty when nothing tells.
        source: in words, where the figures come from.
        wanted: by all nodes together, what is used and what waits for it; None where nothing tells.
    """

    name: str
    unit: str
    used: Mapping[str, Steps]
    capacity: Mapping[str, Steps]
    source: str
    wanted: Steps | None = None

    def share(self, edges_ns: Floats) -> dict[str, Floats]:
        """Of each node, the mean use between neighbouring edges, from 0 to 1; without a capacity, in the unit."""
        shares = {}
        for node, used in self.used.items():
            means = used.means(edges_ns)
            if node in self.capacity:
                capacity = self.capacity[node].means(edges_ns)
                means = np.divide(means, capacity, out=np.zeros_like(means), where=capacity > 0)
            shares[node] = means
        return shares

    def total(self, edges_ns: Floats) -> Floats:
        """All nodes together, in the unit."""
        return cast(Floats, sum((used.means(edges_ns) for used in self.used.values()), np.zeros(len(edges_ns) - 1)))

    def total_capacity(self, edges_ns: Floats) -> Floats | None:
        """All nodes together; None when nothing tells."""
        if not self.capacity:
            return None
        return cast(Floats, sum((each.means(edges_ns) for each in self.capacity.values()), np.zeros(len(edges_ns) - 1)))


def resources(lives: Lives) -> list[Resource]:
    """Every resource of which the record knows something."""
    found = [_computing(lives)]
    leased = _leased(lives, CPU)
    if leased is not None:
        found.append(leased)
    gpus = _leased(lives, GPU)
    if gpus is not None:
        found.append(gpus)
    return [*found, *_nics(lives), _stores(lives)]


def capacity(lives: Lives, name: str, unit: int = 1) -> dict[str, Steps]:
    """What each node has of a resource, while it lives; without nodes that have none."""
    steps = {}
    for node, spans in lives.nodes.items():
        amount = lives.capacity.get(node, {}).get(name, 0) / unit
        if not amount:
            continue
        stretches: list[tuple[float, float, float]] = []
        for span in spans:
            end_ns = lives.end_ns if span.ended_ns is None else span.ended_ns
            stretches.append((span.started_ns, end_ns, amount))
            if name == GPU:
                stretches += [
                    (lost_ns, end_ns, -1.0) for lost_ns in _gpus_lost(lives, node) if span.started_ns <= lost_ns
                ]
        steps[node] = Steps.of_stretches(stretches)
    return steps


def _gpus_lost(lives: Lives, node: str) -> Sequence[int]:
    return lives.gpus_lost.get(node, ())


def running(lives: Lives) -> dict[str, list[tuple[int, int, float, bool]]]:
    """Of each node, when an attempt computed there: start, end, CPUs, and whether its work is done again or lost. An
    attempt that waits in `get` has lent its CPU to others, and does not compute."""
    stretches: dict[str, list[tuple[int, int, float, bool]]] = {}
    for attempt in lives.attempts():
        assert attempt.started_ns is not None and attempt.ended_ns is not None
        cpus = lives.tasks[attempt.task].cpus
        again = attempt.is_done_again or attempt.outcome == "lost"
        here = stretches.setdefault(attempt.node, [])
        start_ns = attempt.started_ns
        for blocked_ns, unblocked_ns in lives.blocked.get(attempt.worker, ()):
            if start_ns <= blocked_ns < attempt.ended_ns:
                here.append((start_ns, blocked_ns, cpus, again))
                start_ns = min(unblocked_ns, attempt.ended_ns)
        here.append((start_ns, attempt.ended_ns, cpus, again))
    return stretches


def _computing(lives: Lives) -> Resource:
    stretches = running(lives)
    used = {
        node: Steps.of_stretches((start, end, cpus) for start, end, cpus, _ in stretches.get(node, ()))
        for node in lives.nodes
    }
    source = "tasks that ran" if lives.record.logs else "tasks that ran, with one CPU assumed for each"
    there = capacity(lives, CPU, UNITS)
    runs = [(start, end, cpus) for of_node in stretches.values() for start, end, cpus, _ in of_node]
    wanted = Steps.of_stretches([*runs, *_waiting(lives)])
    return Resource(name="CPUs computing", unit="CPU", used=used, capacity=there, source=source, wanted=wanted)


def _waiting(lives: Lives) -> Iterator[tuple[int, int, float]]:
    """While which attempts could have run and had no worker: from, until, CPUs. Tasks that wait for arguments do not
    count."""
    made_ns: dict[str, int] = {}
    for life in lives.tasks.values():
        ends = [attempt.ended_ns for attempt in life.attempts.values() if attempt.ended_ns is not None]
        if ends:
            made_ns[life.task] = min(ends)
    for life in lives.tasks.values():
        if life.actor_cpus is not None:  # a call waits for its actor
            continue
        makers = [task_of(ObjectID(bytes.fromhex(dep))).hex() for dep in life.deps]
        if not all(maker in made_ns or maker not in lives.tasks for maker in makers):
            continue
        ready_ns = max((made_ns.get(maker, 0) for maker in makers), default=0)
        for attempt in life.attempts.values():
            until_ns = lives.end_ns if attempt.started_ns is None else attempt.started_ns
            if attempt.started_ns is not None or attempt.ended_ns is None:
                yield max(attempt.queued_ns, ready_ns), until_ns, life.cpus


def _leased(lives: Lives, name: str) -> Resource | None:
    there = capacity(lives, name, UNITS)
    used: dict[str, Steps] = {}
    for node in lives.record.nodes():
        total = lives.capacity[node].get(name, 0)
        if not total:
            continue
        levels: list[tuple[int, float]] = []
        for decision in lives.record.decisions(node):
            if name == GPU and isinstance(decision.event, GpuLost):
                total -= UNITS
            for command in decision.commands:
                if isinstance(command, Send) and isinstance(command.message, ResourcesReported):
                    free = command.message.available.get(name, 0)
                    levels.append((decision.now_ns, max(total - free, 0) / UNITS))
        levels += [(span.ended_ns, 0.0) for span in lives.nodes.get(node, ()) if span.ended_ns is not None]
        used[node] = Steps.of_levels(levels)
    if not used:
        return None
    return Resource(name=f"{name}s leased", unit=name, used=used, capacity=there, source="the nodes' own reports")


def _nics(lives: Lives) -> list[Resource]:
    rates: dict[str, dict[str, list[tuple[int, float]]]] = {"in": {}, "out": {}}
    for event in lives.record.events:
        if event.kind is TraceKind.NIC_RATE and event.subject in lives.nodes:
            rates[event.other].setdefault(event.subject, []).append((event.time_ns, event.amount))
    there = capacity(lives, NIC)
    found = []
    for direction, end in (("in", "target"), ("out", "source")):
        if there:  # a simulation: its network has said so
            used = {node: Steps.of_levels(rates[direction].get(node, ())) for node in lives.nodes}
            source = "the simulated network"
        else:
            used = {node: _spread(lives, end, node) for node in lives.nodes}
            source = "each transfer's bytes, spread over its time"
        found.append(Resource(name=f"network {direction}", unit="B/s", used=used, capacity=there, source=source))
    return found


def _spread(lives: Lives, end: str, node: str) -> Steps:
    return Steps.of_stretches(
        (move.started_ns, move.ended_ns, move.size_bytes * 1e9 / (move.ended_ns - move.started_ns))
        for move in lives.moves
        if getattr(move, end) == node and move.ended_ns is not None and move.ended_ns > move.started_ns
    )


def _stores(lives: Lives) -> Resource:
    used: dict[str, Steps] = {}
    logged = set(lives.record.nodes())
    for node in lives.nodes:
        used[node] = _replayed_store(lives, node) if node in logged else _traced_store(lives, node)
    source = "the nodes' own accounts" if logged else "objects that the trace shows on the node"
    return Resource(name="object store", unit="B", used=used, capacity=capacity(lives, STORE), source=source)


def _replayed_store(lives: Lives, node: str) -> Steps:
    levels = [(time_ns, float(used_bytes)) for time_ns, used_bytes in lives.replayed.store_levels[node]]
    levels += [(span.ended_ns, 0.0) for span in lives.nodes.get(node, ()) if span.ended_ns is not None]
    return Steps.of_levels(levels)


_IN = (TraceKind.OBJECT_STORED, TraceKind.TRANSFER_ENDED, TraceKind.OBJECT_RESTORED)
_OUT = (TraceKind.OBJECT_EVICTED, TraceKind.OBJECT_DELETED, TraceKind.OBJECT_SPILLED)


def _traced_store(lives: Lives, node: str) -> Steps:
    """Rows of the node and of its workers (and of the driver, who writes into his node's store; which that is no row
    says) about objects."""
    changes: list[tuple[int, float]] = []
    here: dict[str, int] = {}
    rows: Sequence[TraceEvent] = sorted(
        (row for life in lives.objects.values() for row in life.rows), key=lambda row: row.time_ns
    )
    for row in rows:
        if node_of(Address(row.process)) != node:
            continue
        if row.kind in _IN and row.subject not in here:
            here[row.subject] = row.amount
            changes.append((row.time_ns, row.amount))
        elif row.kind in _OUT:
            changes.append((row.time_ns, -here.pop(row.subject, 0)))
    for span in lives.nodes.get(node, ()):
        if span.ended_ns is not None:
            left = sum(change for time_ns, change in changes if time_ns <= span.ended_ns)
            changes.append((span.ended_ns, -left))
    return Steps.of_changes(changes)
