"""The drawings of the page: plotly figures of one run.

Time runs from the first submission to the end of the program, in the unit that suits its length, on every axis alike,
so that the page can zoom all drawings together. A drawing has a bound on what it shows: neighbouring short bars of one
function are drawn as one when there are too many, and workers share rows when there are too many of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from dualray.report.critical_path import Spent, Stretch
from dualray.report.histories import LOST, Attempt, Lives
from dualray.report.traces import natural
from dualray.report.usage import Floats, Resource
from dualray.report.where import ON_NODES, ON_PATH, Where
from dualray.shared.model.ids import Address, incarnation_of, node_of
from dualray.shared.proof.trace import TraceEvent

BARS_MAX = 4_000
ROWS_MAX = 160
BINS = 240
FUNCTIONS_MAX = 9
"""Functions with a colour of their own; the others share grey."""

PALETTE = ("#4269d0", "#efb118", "#3ca951", "#a463f2", "#6cc5b0", "#ff725c", "#97bbf5", "#9c6b4e", "#ff8ab7")
OTHERS = "#9498a0"
FAULT = "#d1242f"
INK = "#1f2328"
FAINT = "#d8dee4"
SPENT = {
    Spent.COMPUTE: "#3ca951",
    Spent.DRIVER: "#6cc5b0",
    Spent.RECONSTRUCTION: "#d1242f",
    Spent.TRANSFER: "#efb118",
    Spent.QUEUE: "#a463f2",
    Spent.IDLE: "#d8dee4",
}
_FONT = {"family": "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif", "size": 12, "color": INK}
_ROW_PX = 18
_ROW_PX_MIN = 7
_LABEL_PX = 13
"""The least height of a row with a label of its own; below it, each node has one."""
TINY_PER_SPAN = 500
"""A bar shorter than the run's length by this is drawn with an outline of its own colour, so that it can be seen."""
_CHART_PX = 880
"""What the chart's rows take at most, until each has its least height."""
_TOTAL_PX = 80
_BETWEEN_PX = 54
_LEFT_PX = 120
_BLUES = [[0.0, "#f6f8fa"], [0.01, "#ddeaf9"], [0.5, "#6ea8e8"], [1.0, "#1b4b8f"], [1.0, "#1b4b8f"]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """Trace times as numbers of an axis."""

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
        return cls(start_ns=lives.start_ns, end_ns=lives.end_ns, unit=unit, unit_ns=unit_ns)

    def __call__(self, time_ns: float) -> float:
        return round((time_ns - self.start_ns) / self.unit_ns, 6)

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
        for unit, unit_ns in (("s", 10**9), ("ms", 10**6), ("µs", 10**3)):
            if ns >= unit_ns:
                return f"{ns / unit_ns:.3g} {unit}" if ns < 1000 * unit_ns else f"{ns / unit_ns:,.0f} {unit}"
        return f"{ns:.0f} ns"


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


def gantt(lives: Lives, path: Sequence[Stretch], clock: Clock, rows: Rows) -> go.Figure:
    """The chart of attempts by node and worker, with faults and the critical path."""
    figure = go.Figure()
    bars, merged = _bars(lives, clock, rows)
    counted = Counter(bar.attempt.name for bar in bars)
    named = [name for name, _ in counted.most_common(FUNCTIONS_MAX)]
    colours = {name: PALETTE[position] for position, name in enumerate(named)}
    for name in [*named, ""]:
        mine = [bar for bar in bars if (bar.attempt.name if bar.attempt.name in colours else "") == name]
        if mine:
            figure.add_trace(_bar_trace(mine, escape(name) or "other functions", colours.get(name, OTHERS), clock))
    _draw_path(figure, lives, path, clock, rows)
    _draw_faults(figure, lives, clock, rows)
    row_px = min(max(_CHART_PX // max(len(rows.labels), 1), _ROW_PX_MIN), _ROW_PX)
    firsts = {first: node for node, (first, _) in rows.of_node.items()}
    ticks = []
    for row, label in enumerate(rows.labels):
        node = f"<b>{escape(firsts[row])}</b>" if row in firsts else ""
        ticks.append(f"{node}  {label}" if row_px >= _LABEL_PX else node)
    figure.update_layout(
        **_look(clock, height=130 + max(row_px * len(rows.labels), 90)),
        barmode="overlay",
        bargap=0.18,
        clickmode="event",
        meta={"merged": merged},
    )
    figure.update_yaxes(
        tickvals=list(range(len(rows.labels))),
        ticktext=ticks,
        range=[len(rows.labels) - 0.4, -1.3],
        showgrid=False,
        zeroline=False,
        fixedrange=True,
    )
    return figure


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


def _bar_trace(bars: Sequence[_Bar], name: str, colour: str, clock: Clock) -> go.Bar:
    tiny = clock.span / TINY_PER_SPAN
    return go.Bar(
        name=name,
        orientation="h",
        base=[bar.start for bar in bars],
        x=[bar.length for bar in bars],
        y=[bar.row for bar in bars],
        customdata=[bar.attempt.task if bar.count == 1 else "" for bar in bars],
        text=[_bar_words(bar, clock) for bar in bars],
        textposition="none",
        hovertemplate="%{text}<extra></extra>",
        marker={
            "color": colour,
            "line": {
                "width": [3 if bar.length < tiny else 1.5 if bar.attempt.outcome else 0.4 for bar in bars],
                "color": [FAULT if bar.attempt.outcome else colour if bar.length < tiny else "white" for bar in bars],
            },
            "pattern": {
                "shape": [
                    "x" if bar.attempt.outcome == LOST else "/" if bar.attempt.is_done_again else "" for bar in bars
                ],
                "fgcolor": "white",
                "fgopacity": 0.75,
                "size": 6,
                "solidity": 0.35,
            },
        },
    )


def _bar_words(bar: _Bar, clock: Clock) -> str:
    attempt = bar.attempt
    lines = [f"<b>{escape(attempt.name)}</b>"]
    if bar.count > 1:
        lines.append(f"{bar.count:,} short tasks, drawn as one: zoom cannot part them")
    else:
        lines.append(
            f"task {attempt.task[:8]}, attempt {attempt.number}" + (f" ({attempt.cause})" if attempt.cause else "")
        )
    lines.append(f"{escape(attempt.worker)}: {clock.words(bar.length * clock.unit_ns)} from {bar.start:g} {clock.unit}")
    if attempt.outcome:
        lines.append(f"<b>{escape(attempt.outcome)}</b>")
    return "<br>".join(lines)


def _draw_path(figure: go.Figure, lives: Lives, path: Sequence[Stretch], clock: Clock, rows: Rows) -> None:
    """A line through the bars of the path, thin from one to the next."""
    x: list[float] = []
    y: list[int] = []
    gaps: list[tuple[float | None, int | None]] = []
    for stretch in path:
        attempt = lives.tasks[stretch.task].attempts.get(stretch.number) if stretch.task else None
        if attempt is not None and attempt.started_ns is not None and stretch.place == attempt.worker:
            row = rows.of(attempt.task, attempt.number, attempt.worker)
            x += [clock(stretch.started_ns), clock(stretch.ended_ns)]
            y += [row, row]
            gaps += [(x[-2], row), (x[-1], row), (None, None)]
    if x:
        group = {"mode": "lines", "hoverinfo": "skip", "legendgroup": "path"}
        thin = {"color": INK, "width": 1, "dash": "dot"}
        figure.add_trace(go.Scatter(name="from one to the next", x=x, y=y, line=thin, showlegend=False, **group))
        thick = {"color": INK, "width": 3}
        xs, ys = [at for at, _ in gaps], [row for _, row in gaps]
        figure.add_trace(go.Scatter(name="critical path", x=xs, y=ys, line=thick, **group))


def _draw_faults(figure: go.Figure, lives: Lives, clock: Clock, rows: Rows) -> None:
    bottom = len(rows.labels)
    for node, (first, end) in rows.of_node.items():
        for life, following in zip(lives.nodes.get(node, ()), [*lives.nodes.get(node, ())[1:], None], strict=False):
            if life.ended_ns is not None and life.ended_ns < lives.end_ns:
                until_ns = following.started_ns if following is not None else lives.end_ns
                figure.add_shape(
                    type="rect",
                    x0=clock(life.ended_ns),
                    x1=clock(until_ns),
                    y0=first - 0.5,
                    y1=end - 0.5,
                    fillcolor="rgba(209,36,47,0.10)",
                    line_width=0,
                    layer="below",
                )
        figure.add_shape(
            type="line",
            xref="paper",
            x0=0,
            x1=1,
            y0=end - 0.5,
            y1=end - 0.5,
            line={"color": FAINT, "width": 1},
            layer="below",
        )
    faults = [fault for fault in lives.faults if lives.start_ns <= fault.time_ns <= lives.end_ns]
    for fault in faults:
        at = clock(fault.time_ns)
        line = {"color": FAULT, "width": 1.2, "dash": "dot"}
        figure.add_shape(type="line", x0=at, x1=at, y0=-0.9, y1=bottom - 0.5, line=line)
    if faults:
        figure.add_trace(
            go.Scatter(
                name="fault",
                x=[clock(fault.time_ns) for fault in faults],
                y=[-0.9] * len(faults),
                mode="markers",
                marker={"symbol": "triangle-down", "size": 11, "color": FAULT},
                text=[
                    f"<b>fault</b>: {escape(fault_words(fault))}<br>at {clock(fault.time_ns):g} {clock.unit}"
                    for fault in faults
                ],
                hovertemplate="%{text}<extra></extra>",
            )
        )


def fault_words(fault: TraceEvent) -> str:
    """What a fault was and whom it befell."""
    return f"{fault.name or 'fault'}: {fault.subject}"


# ---- The critical path -------------------------------------------------------------------------------------------


def path_strip(path: Sequence[Stretch], clock: Clock) -> go.Figure:
    """The critical path as one bar along the time."""
    figure = go.Figure()
    for spent in ON_PATH:
        mine = [stretch for stretch in path if stretch.spent is spent]
        if not mine:
            continue
        figure.add_trace(
            go.Bar(
                name=str(spent),
                orientation="h",
                base=[clock(stretch.started_ns) for stretch in mine],
                x=[clock.lasting(stretch.lasted_ns) for stretch in mine],
                y=[0] * len(mine),
                customdata=[stretch.task for stretch in mine],
                text=[_stretch_words(stretch, clock) for stretch in mine],
                textposition="none",
                hovertemplate="%{text}<extra></extra>",
                marker={"color": SPENT[spent], "line": {"width": 0.5, "color": "white"}},
            )
        )
    figure.update_layout(**_look(clock, height=150), barmode="overlay", bargap=0.1, clickmode="event")
    figure.update_yaxes(tickvals=[0], ticktext=["<b>path</b>"], fixedrange=True, showgrid=False, zeroline=False)
    return figure


def _stretch_words(stretch: Stretch, clock: Clock) -> str:
    who = f"{escape(stretch.name)} (task {stretch.task[:8]})" if stretch.task else "the driver"
    return (
        f"<b>{stretch.spent}</b>: {clock.words(stretch.lasted_ns)}<br>{who} on {escape(stretch.place)}<br>"
        f"{escape(stretch.words)}"
    )


# ---- Where the time went -----------------------------------------------------------------------------------------


def where_bars(where: Where) -> go.Figure:
    """The shares of the path's seconds, and of the CPU-seconds of all nodes and of each."""
    rows: list[tuple[str, Mapping[Spent, float], str]] = [("<b>critical path</b>", where.path, "s")]
    if where.by_node:
        rows.append(("<b>all CPUs</b>", where.total, "CPU s"))
        rows += [(escape(node), parts, "CPU s") for node, parts in where.by_node.items()]
    figure = go.Figure()
    for spent in dict.fromkeys((*ON_PATH, *ON_NODES)):
        shares = []
        words = []
        for _, parts, unit in rows:
            total = sum(parts.values())
            share = parts.get(spent, 0.0) / total if total else 0.0
            shares.append(round(100 * share, 3))
            words.append(f"<b>{spent}</b>: {share:.1%}, {parts.get(spent, 0.0):,.4g} of {total:,.4g} {unit}")
        figure.add_trace(
            go.Bar(
                name=str(spent),
                orientation="h",
                x=shares,
                y=[name for name, _, _ in rows],
                text=[f"{share:.0f} %" if share >= 4 else "" for share in shares],
                textposition="inside",
                insidetextanchor="middle",
                textangle=0,
                textfont={"color": INK if spent in (Spent.IDLE, Spent.TRANSFER) else "white"},
                hovertext=words,
                hovertemplate="%{hovertext}<extra>%{y}</extra>",
                marker={"color": SPENT[spent], "line": {"width": 0.5, "color": "white"}},
            )
        )
    figure.update_layout(
        font=_FONT,
        height=110 + 24 * len(rows),
        margin={"l": _LEFT_PX, "r": 20, "t": 40, "b": 40},
        barmode="stack",
        bargap=0.22,
        plot_bgcolor="white",
        paper_bgcolor="rgba(0,0,0,0)",
        legend={**_legend(), "traceorder": "normal"},
    )
    figure.update_xaxes(range=[0, 100], ticksuffix=" %", fixedrange=True, gridcolor=FAINT)
    figure.update_yaxes(autorange="reversed", fixedrange=True)
    return figure


# ---- How busy it was ---------------------------------------------------------------------------------------------


def usage_chart(resources: Sequence[Resource], lives: Lives, clock: Clock) -> go.Figure:
    """Of each resource, all nodes together as a line over what there is, and each node as a band of colour."""
    nodes = list(lives.nodes)
    band_px = min(max(14 * len(nodes), 40), 260)
    edges = np.linspace(lives.start_ns, max(lives.end_ns, lives.start_ns + 1), BINS + 1)
    centres = np.round(((edges[:-1] + edges[1:]) / 2 - lives.start_ns) / clock.unit_ns, 6)
    figure = make_subplots(rows=2 * len(resources), cols=1, shared_xaxes=True)
    for position, resource in enumerate(resources):
        row = 2 * position + 1
        _draw_total(figure, resource, edges, centres, row)
        _draw_bands(figure, resource, nodes, lives, edges, centres, row + 1)
    each_px = _TOTAL_PX + band_px + _BETWEEN_PX
    whole_px = each_px * len(resources)
    for position in range(len(resources)):
        top = 1 - position * each_px / whole_px - _BETWEEN_PX / 2 / whole_px
        middle, bottom = top - _TOTAL_PX / whole_px, top - (_TOTAL_PX + 6 + band_px) / whole_px
        figure.update_yaxes(domain=[middle, top], row=2 * position + 1, col=1)
        figure.update_yaxes(domain=[max(bottom, 0), middle - 6 / whole_px], row=2 * position + 2, col=1)
    figure.update_layout(
        **_look(clock, height=whole_px + 100),
        coloraxis={
            "colorscale": _BLUES,
            "cmin": 0,
            "cmax": 1,
            "colorbar": {
                "orientation": "h",
                "tickformat": ".0%",
                "thickness": 8,
                "len": 220,
                "lenmode": "pixels",
                "x": 1,
                "xanchor": "right",
                "y": 1,
                "yanchor": "bottom",
            },
        },
        showlegend=False,
    )
    figure.update_xaxes(_axis(clock), title=None)
    figure.update_xaxes(title=f"time [{clock.unit}]", row=2 * len(resources), col=1)
    return figure


def _draw_total(figure: go.Figure, resource: Resource, edges: Floats, centres: Floats, row: int) -> None:
    total, there = resource.total(edges), resource.total_capacity(edges)
    figure.add_trace(
        go.Scatter(
            x=centres,
            y=np.round(total, 4),
            mode="lines",
            line={"color": PALETTE[0], "width": 1.6, "shape": "hvh"},
            fill="tozeroy",
            fillcolor="rgba(66,105,208,0.18)",
            name=resource.name,
            hovertemplate=f"{resource.name}: %{{y:.4s}} {resource.unit}<extra></extra>",
        ),
        row=row,
        col=1,
    )
    top = float(total.max(initial=0.0))
    if there is not None:
        top = max(top, float(there.max(initial=0.0))) if resource.unit in ("CPU", "GPU") else top
        figure.add_trace(
            go.Scatter(
                x=centres,
                y=np.round(there, 4),
                mode="lines",
                line={"color": INK, "width": 1, "dash": "dot", "shape": "hvh"},
                name="there is",
                hovertemplate=f"there is: %{{y:.4s}} {resource.unit}<extra></extra>",
            ),
            row=row,
            col=1,
        )
    title = f"<b>{resource.name}</b> [{resource.unit}], all nodes"
    figure.add_annotation(
        text=title, xref="x domain", yref="y domain", x=0, y=1.0, yanchor="bottom", showarrow=False, row=row, col=1
    )
    figure.update_yaxes(
        range=[0, top * 1.08 or 1],
        tickformat="~s",
        nticks=4,
        fixedrange=True,
        gridcolor=FAINT,
        zeroline=False,
        row=row,
        col=1,
    )


def _draw_bands(
    figure: go.Figure,
    resource: Resource,
    nodes: Sequence[str],
    lives: Lives,
    edges: Floats,
    centres: Floats,
    row: int,
) -> None:
    shares = resource.share(edges)
    highest = max((float(share.max(initial=0.0)) for share in shares.values()), default=0.0)
    scale = 1.0 if resource.capacity or not highest else highest
    values = np.array([shares.get(node, np.zeros(BINS)) / scale for node in nodes])
    for position, node in enumerate(nodes):
        alive = np.zeros(BINS, dtype=bool)
        for life in lives.nodes[node]:
            end_ns = life.ended_ns if life.ended_ns is not None else lives.end_ns
            alive |= (edges[1:] > life.started_ns) & (edges[:-1] < end_ns)
        values[position, ~alive] = np.nan
    what = "%{z:.1%}" if resource.capacity else "%{z:.1%} of the busiest node's most"
    figure.add_trace(
        go.Heatmap(
            x=centres,
            y=list(nodes),
            z=np.round(values, 4),
            coloraxis="coloraxis",
            ygap=1,
            hoverongaps=False,
            hovertemplate=f"%{{y}}: {what}<extra>{resource.name}</extra>",
        ),
        row=row,
        col=1,
    )
    figure.add_shape(
        type="rect",
        xref="x domain",
        yref="y domain",
        x0=0,
        x1=1,
        y0=0,
        y1=1,
        fillcolor="#c9ced6",
        line_width=0,
        layer="below",
        row=row,
        col=1,
    )
    figure.update_yaxes(autorange="reversed", fixedrange=True, showgrid=False, row=row, col=1)


# ---- Look --------------------------------------------------------------------------------------------------------


def _legend() -> dict[str, Any]:
    return {"orientation": "h", "x": 0, "y": 1.0, "yanchor": "bottom", "bgcolor": "rgba(0,0,0,0)"}


def _axis(clock: Clock) -> dict[str, Any]:
    return {
        "range": [0, clock.span],
        "gridcolor": FAINT,
        "zeroline": False,
        "title": f"time [{clock.unit}]",
    }


def _look(clock: Clock, *, height: int) -> dict[str, Any]:
    return {
        "font": _FONT,
        "height": height,
        "margin": {"l": _LEFT_PX, "r": 20, "t": 40, "b": 40},
        "plot_bgcolor": "white",
        "paper_bgcolor": "rgba(0,0,0,0)",
        "hovermode": "closest",
        "hoverdistance": 6,  # pixels: a fault's mark must not answer for the bar below it
        "hoverlabel": {"align": "left", "bgcolor": "white", "font": _FONT},
        "legend": _legend(),
        "xaxis": _axis(clock),
    }
