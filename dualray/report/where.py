"""Where the time of a run went: every CPU-second that the living nodes had, and every second of the critical path.

At each moment a node's CPUs compute, do again what was lost (or what will be: attempts that were cut off), or are not
in use. Of those that are not, as many as tasks whose arguments are on their way to this node wait for a transfer, as
many of the rest as tasks that could run and will run here wait in a queue, and what is left is idle. So the parts add
up to the CPUs of the node times its life.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from dualray.report.critical_path import Spent, Stretch
from dualray.report.histories import Attempt, Lives
from dualray.report.usage import EMPTY, Floats, Steps, capacity, running
from dualray.shared.model.resources import CPU, UNITS


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """CPU-seconds by what they went on.

    Attributes:
        by_node: of each node.
        path: seconds of the critical path.
    """

    by_node: Mapping[str, Mapping[Spent, float]]
    path: Mapping[Spent, float]

    @property
    def total(self) -> dict[Spent, float]:
        """All nodes together."""
        return {spent: sum(parts[spent] for parts in self.by_node.values()) for spent in ON_NODES}


ON_NODES = (Spent.COMPUTE, Spent.RECONSTRUCTION, Spent.TRANSFER, Spent.QUEUE, Spent.IDLE)
ON_PATH = (Spent.COMPUTE, Spent.DRIVER, Spent.RECONSTRUCTION, Spent.TRANSFER, Spent.QUEUE)


def where_time_went(lives: Lives, path: Iterable[Stretch]) -> Where:
    """See the module."""
    spent_on_path = dict.fromkeys(ON_PATH, 0.0)
    for stretch in path:
        spent_on_path[stretch.spent] += stretch.lasted_ns / 1e9
    there = capacity(lives, CPU, UNITS)
    ran = running(lives)
    waited = _waiting(lives)
    by_node = {}
    for node, cpus in there.items():
        transfers, queued = waited.get(node, ([], []))
        by_node[node] = _parts(
            lives,
            cpus,
            Steps.of_stretches((start, end, amount) for start, end, amount, again in ran.get(node, ()) if not again),
            Steps.of_stretches((start, end, amount) for start, end, amount, again in ran.get(node, ()) if again),
            Steps.of_stretches(transfers),
            Steps.of_stretches(queued),
        )
    return Where(by_node=by_node, path=spent_on_path)


def _parts(
    lives: Lives, cpus: Steps, compute: Steps, again: Steps, transfers: Steps, queued: Steps
) -> dict[Spent, float]:
    edges = np.unique(
        np.concatenate(
            [[lives.start_ns, lives.end_ns], *(each.times_ns for each in (cpus, compute, again, transfers, queued))]
        )
    )
    edges = edges[(edges >= lives.start_ns) & (edges <= lives.end_ns)]
    if len(edges) < 2:
        return dict.fromkeys(ON_NODES, 0.0)
    lengths_s = np.diff(edges) / 1e9
    left = _values(cpus, edges)
    parts: dict[Spent, float] = {}
    for spent, steps in zip(ON_NODES, (compute, again, transfers, queued), strict=False):
        part = np.clip(np.minimum(_values(steps, edges), left), 0.0, None)
        parts[spent] = float((part * lengths_s).sum())
        left = left - part
    parts[Spent.IDLE] = float((left * lengths_s).sum())
    return parts


def _values(steps: Steps, edges: Floats) -> Floats:
    """The value from each edge to the next."""
    if steps is EMPTY or not len(steps.times_ns):
        return np.zeros(len(edges) - 1)
    positions = np.searchsorted(steps.times_ns, edges[:-1], side="right") - 1
    return np.where(positions >= 0, steps.values[positions], 0.0)


Stretches = list[tuple[float, float, float]]


def _waiting(lives: Lives) -> dict[str, tuple[Stretches, Stretches]]:
    """Of each node, when tasks that were to run there waited for their arguments on the way, and for their turn."""
    incoming: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for move in lives.moves:
        ended_ns = move.ended_ns if move.ended_ns is not None else lives.end_ns
        incoming.setdefault((move.object_id, move.target), []).append((move.started_ns, ended_ns))
    waiting: dict[str, tuple[Stretches, Stretches]] = {}
    for attempt in lives.attempts():
        assert attempt.started_ns is not None
        life = lives.tasks[attempt.task]
        transfers, queued = waiting.setdefault(attempt.node, ([], []))
        ready_ns = _ready_ns(lives, attempt)
        queued.append((ready_ns, attempt.started_ns, life.cpus))
        for dep in life.deps:
            for begun_ns, ended_ns in incoming.get((dep, attempt.node), ()):
                if begun_ns < attempt.started_ns and ended_ns > ready_ns:
                    transfers.append((max(begun_ns, ready_ns), min(ended_ns, attempt.started_ns), life.cpus))
    return waiting


def _ready_ns(lives: Lives, attempt: Attempt) -> int:
    """When all its arguments had been made, and it was submitted."""
    ready_ns = attempt.queued_ns
    started_ns = attempt.started_ns if attempt.started_ns is not None else attempt.queued_ns
    for dep in lives.tasks[attempt.task].deps:
        maker = lives.tasks.get(dep[:32])
        made = maker.finished_by(started_ns) if maker is not None else None
        if made is not None and made.ended_ns is not None:
            ready_ns = max(ready_ns, made.ended_ns)
    return ready_ns
