"""The drawings of the page, as plain values that its script draws (assets/charts.js).

Time runs from the first submission to the end of the program, in the unit that suits its length, on every axis alike,
so that the page can zoom all drawings together. Moments count from the start of the first node, as those of faults do.
A drawing has a bound on what it shows: neighbouring short bars of one function are drawn as one when there are too
many, and workers share rows when there are too many of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dualray.report.colours import OTHERS, colours_of
from dualray.report.critical_path import Spent, Stretch
from dualray.report.histories import Attempt, Lives
from dualray.report.traces import duration, natural
from dualray.report.usage import Floats, Resource
from dualray.report.where import ON_NODES, ON_PATH, Where
from dualray.shared.model.ids import Address, incarnation_of, node_of
from dualray.shared.proof.trace import TraceEvent

BARS_MAX = 4_000
ROWS_MAX = 160
BINS = 240
SPENT = {
    Spent.COMPUTE: "#3ca951",
    Spent.DRIVER: "#6cc5b0",
    Spent.RECONSTRUCTION: "#d1242f",
    Spent.TRANSFER: "#efb118",
    Spent.QUEUE: "#a463f2",
    Spent.IDLE: "#c4cbd3",
}
Drawing = dict[str, Any]
"""Numbers and plain text; the script shows text as text, never as markup."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """Trace times as numbers of an axis."""

    zero_ns: int
    start_ns: int
    end_ns: int
    unit: str
    unit_ns: int

    @classmethod
    def of(cls, lives: Lives) -> Clock:
        """The unit that suits the run's length."""
        span = lives.end_ns - lives.start_ns
        unit, unit_ns = next(
            ((unit, ns) for unit, ns in (("s", 10**9), ("ms", 10**6), ("µs", 10**3)) if span >= ns / 2), ("ns", 1)
        )
        return cls(zero_ns=lives.zero_ns, start_ns=lives.start_ns, end_ns=lives.end_ns, unit=unit, unit_ns=unit_ns)

    def __call__(self, time_ns: float) -> float:
        return round((time_ns - self.zero_ns) / self.unit_ns, 6)

    def lasting(self, ns: float) -> float:
        """A length of time."""
        return round(ns / self.unit_ns, 6)

    @property
    def span(self) -> float:
        return self.lasting(self.end_ns - self.start_ns)

    def moment(self, time_ns: float) -> str:
        """A moment, for people: to the last digit of the axis."""
        number = f"{self(time_ns):,.6f}"
        return f"{number.rstrip('0').rstrip('.')} {self.unit}"

    def words(self, ns: float) -> str:
        """A length of time, for people: three digits."""
        return duration(ns)


# ---- Who ran what, when ------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Bar:
    attempt: Attempt
    start: float
    length: float
    row: int
    count: int = 1


class Rows:
    """The rows of the chart: of each node its workers, in order; `of` finds the row of an attempt."""

    def __init__(self, lives: Lives) -> None:
        attempts = list(lives.attempts())
        workers = sorted({attempt.worker for attempt in attempts}, key=natural)
        nodes = sorted({*lives.nodes, *(node_of(Address(worker)) for worker in workers)}, key=natural)
        self.are_packed = len(workers) > ROWS_MAX
        self.labels: list[str] = []
        self.of_node: dict[str, tuple[int, int]] = {}
        """Its first row and the one after its last."""
        self._of: dict[tuple[str, int], int] = {}
        self._of_worker: dict[str, int] = {}
        by_node: dict[str, list[Attempt]] = {node: [] for node in nodes}
        for attempt in attempts:
            by_node[attempt.node].append(attempt)
        for node in nodes:
            first = len(self.labels)
            if self.are_packed:
                self._pack(by_node[node], first)
            else:
                for worker in (worker for worker in workers if node_of(Address(worker)) == node):
                    self._of_worker[worker] = len(self.labels)
                    self.labels.append(_worker_words(worker))
            if len(self.labels) == first:
                self.labels.append("")
            self.of_node[node] = (first, len(self.labels))

    def _pack(self, attempts: Iterable[Attempt], first: int) -> None:
        """Rows that workers share: each attempt in the first that is free."""
        free_at: list[int] = []
        for attempt in sorted(attempts, key=lambda each: (each.started_ns or 0, each.task)):
            start_ns, end_ns = attempt.started_ns or 0, attempt.ended_ns or 0
            row = next((row for row, at_ns in enumerate(free_at) if at_ns <= start_ns), len(free_at))
            if row == len(free_at):
                free_at.append(0)
            free_at[row] = end_ns
            self._of[attempt.task, attempt.number] = first + row
        self.labels += [""] * len(free_at)

    def of(self, task: str, number: int, worker: str) -> int:
        """The row of an attempt."""
        return self._of[task, number] if self.are_packed else self._of_worker[worker]


def _worker_words(worker: str) -> str:
    name = worker.partition("/")[2]
    life = incarnation_of(Address(worker))
    return f"{name} (restarted{f' {life} times' if life > 1 else ''})" if life else name


def gantt(lives: Lives, path: Sequence[Stretch], clock: Clock, rows: Rows) -> Drawing:
    """The chart of attempts by node and worker, with faults and the critical path.

    A bar is [start, length, row, function, task, attempt, cause, outcome, worker, how many attempts it is, name].
    """
    bars, merged = _bars(lives, clock, rows)
    drawn = {bar.attempt.name for bar in bars}
    colours = colours_of(task.name for task in lives.tasks.values())
    colours = {name: colour for name, colour in colours.items() if name in drawn}
    named = list(colours)
    if len(drawn) > len(named):
        colours["other functions"] = OTHERS
    place = {name: position for position, name in enumerate(named)}
    return {
        "rows": rows.labels,
        "nodes": [[node, first, end] for node, (first, end) in rows.of_node.items()],
        "functions": [[name, colour] for name, colour in colours.items()],
        "bars": [_bar_row(bar, place.get(bar.attempt.name, len(named))) for bar in bars],
        "path": _path_line(lives, path, clock, rows),
        "dead": _dead(lives, clock, rows),
        "faults": [
            [clock(fault.time_ns), fault_words(fault)]
            for fault in lives.faults
            if lives.start_ns <= fault.time_ns <= lives.end_ns
        ],
        "merged": merged,
    }


def _bars(lives: Lives, clock: Clock, rows: Rows) -> tuple[list[_Bar], int]:
    """Every attempt as a bar; too many, neighbours that are short become one. Also: how many were merged."""
    bars = []
    for attempt in lives.attempts():
        start_ns, end_ns = attempt.started_ns or 0, attempt.ended_ns or 0
        row = rows.of(attempt.task, attempt.number, attempt.worker)
        bars.append(_Bar(attempt, clock(start_ns), clock.lasting(end_ns - start_ns), row))
    total = len(bars)
    for gap_max in (clock.span / 500, clock.span):  # a gap that can be seen is hidden only when nothing else helps
        least = clock.span / 2_000
        while len(bars) > BARS_MAX and least <= clock.span:
            bars = _merge(bars, least, min(least, gap_max))
            least *= 2
    return bars, total - len(bars)


def _merge(bars: Iterable[_Bar], least: float, gap_max: float) -> list[_Bar]:
    """Bars shorter than `least` that follow one another in a row, with gaps of less than `gap_max`, become one."""
    last: dict[tuple[int, str, bool], _Bar] = {}
    kept: list[_Bar] = []
    for bar in sorted(bars, key=lambda bar: (bar.start, bar.row)):
        key = (bar.row, bar.attempt.name, _is_special(bar.attempt))
        before = last.get(key)
        gap = bar.start - (before.start + before.length) if before is not None else gap_max
        if before is not None and gap < gap_max and bar.length < least:
            before.length = max(before.length, bar.start + bar.length - before.start)
            before.count += bar.count
        else:
            kept.append(bar)
            last[key] = bar
    return kept


def _is_special(attempt: Attempt) -> bool:
    return attempt.is_done_again or attempt.outcome != ""


def _bar_row(bar: _Bar, function: int) -> list[Any]:
    attempt = bar.attempt
    cause = attempt.cause or ("again" if attempt.is_done_again else "")
    task = attempt.task if bar.count == 1 else ""
    return [
        bar.start, bar.length, bar.row, function, task, attempt.number, cause, attempt.outcome, attempt.worker,
        bar.count, attempt.name,
    ]  # fmt: skip


def _path_line(lives: Lives, path: Sequence[Stretch], clock: Clock, rows: Rows) -> list[tuple[float, float, int]]:
    """The bars of the path: from, until, row."""
    line = []
    for stretch in path:
        attempt = lives.tasks[stretch.task].attempts.get(stretch.number) if stretch.task else None
        if attempt is not None and attempt.started_ns is not None and stretch.place == attempt.worker:
            row = rows.of(attempt.task, attempt.number, attempt.worker)
            line.append((clock(stretch.started_ns), clock(stretch.ended_ns), row))
    return line


def _dead(lives: Lives, clock: Clock, rows: Rows) -> list[tuple[float, float, int, int]]:
    """While which nodes are dead: from, until, first row, the one after the last."""
    dead = []
    for node, (first, end) in rows.of_node.items():
        of_node = lives.nodes.get(node, ())
        for life, following in zip(of_node, [*of_node[1:], None], strict=False):
            if life.ended_ns is not None and life.ended_ns < lives.end_ns:
                until_ns = following.started_ns if following is not None else lives.end_ns
                dead.append((clock(life.ended_ns), clock(until_ns), first, end))
    return dead


def fault_words(fault: TraceEvent) -> str:
    """What a fault was and whom it befell."""
    return f"{fault.name or 'fault'}: {fault.subject}"


# ---- The critical path -------------------------------------------------------------------------------------------


def path_strip(path: Sequence[Stretch], clock: Clock) -> Drawing:
    """The critical path as one bar along the time. A stretch is [start, length, kind, task, who, where, reason]."""
    kinds = [spent for spent in ON_PATH if any(stretch.spent is spent for stretch in path)]
    return {
        "kinds": [[str(spent), SPENT[spent]] for spent in kinds],
        "stretches": [
            [
                clock(stretch.started_ns),
                clock.lasting(stretch.lasted_ns),
                kinds.index(stretch.spent),
                stretch.task,
                stretch.name if stretch.task else "the driver",
                stretch.place,
                stretch.words,
            ]
            for stretch in path
        ],
    }


# ---- Where the time went -----------------------------------------------------------------------------------------


def where_bars(where: Where) -> Drawing:
    """The seconds of the path, and the CPU-seconds of all nodes and of each, by kind."""
    rows: list[tuple[str, Mapping[Spent, float], str]] = [("critical path", where.path, "s")]
    if where.by_node:
        rows.append(("all CPUs", where.total, "CPU s"))
        rows += [(node, parts, "CPU s") for node, parts in where.by_node.items()]
    kinds = list(dict.fromkeys((*ON_PATH, *ON_NODES)))
    return {
        "kinds": [[str(spent), SPENT[spent]] for spent in kinds],
        "rows": [[name, unit, [round(parts.get(spent, 0.0), 9) for spent in kinds]] for name, parts, unit in rows],
    }


# ---- How busy it was ---------------------------------------------------------------------------------------------


def usage_chart(resources: Sequence[Resource], lives: Lives) -> Drawing:
    """Of each resource, all nodes together as a line over what there is, and each node's share in BINS stretches."""
    nodes = list(lives.nodes)
    edges = np.linspace(lives.start_ns, max(lives.end_ns, lives.start_ns + 1), BINS + 1)
    return {"nodes": nodes, "resources": [_usage_of(resource, nodes, lives, edges) for resource in resources]}


def _usage_of(resource: Resource, nodes: Sequence[str], lives: Lives, edges: Floats) -> Drawing:
    total, there = resource.total(edges), resource.total_capacity(edges)
    shares = resource.share(edges)
    highest = max((float(share.max(initial=0.0)) for share in shares.values()), default=0.0)
    scale = 1.0 if resource.capacity or not highest else highest
    bands = []
    for node in nodes:
        alive = np.zeros(BINS, dtype=bool)
        for life in lives.nodes[node]:
            end_ns = life.ended_ns if life.ended_ns is not None else lives.end_ns
            alive |= (edges[1:] > life.started_ns) & (edges[:-1] < end_ns)
        values = np.round(shares.get(node, np.zeros(BINS)) / scale, 4)
        bands.append([float(value) if is_alive else None for value, is_alive in zip(values, alive, strict=True)])
    return {
        "name": resource.name,
        "unit": resource.unit,
        "total": _four_digits(total),
        "there": None if there is None else _four_digits(there),
        "wanted": None if resource.wanted is None else _four_digits(resource.wanted.means(edges)),
        "bands": bands,
        "of": "of the node's capacity" if resource.capacity else "of the busiest node's peak",
    }


def _four_digits(values: Floats) -> list[float]:
    return [float(f"{value:.4g}") for value in values]
