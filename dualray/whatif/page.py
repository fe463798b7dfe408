"""The page of a prediction: one HTML file with the table, the makespans, the costs and the use; it needs no network."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from re import sub

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from dualray.shared.units import size_words
from dualray.whatif.answers import (
    CAUSE_COLUMNS,
    COLUMNS,
    LIKELY,
    answers_of,
    cause_cells,
    causes_words,
    cells,
    path_words,
    varying_of,
    verdicts_of,
)
from dualray.whatif.critical_path import Stretch, by_function
from dualray.whatif.predicted import Predicted, Row

_STYLE = """body{margin:0;background:#f3f5f8;color:#1f2328;font:14px/1.5 system-ui,sans-serif}
header{background:#16233b;color:white;padding:20px 32px}h1{margin:0;font-size:22px}
header p{font-size:17px;margin:6px 0}
main{max-width:1280px;margin:16px auto;padding:0 24px}
section{background:white;border:1px solid #d8dee4;border-radius:10px;padding:14px 18px;margin-bottom:14px;
 overflow-x:auto}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th,td{text-align:right;padding:3px 8px;border-bottom:1px solid #eee}
th:first-child,td:first-child{text-align:left}.wide{overflow-x:auto}.no{color:#d1242f}
@media(max-width:640px){header{padding:16px}main{padding:0 8px}section{padding:10px}}"""
_CONFIG = {"displayModeBar": False, "responsive": True}
"""No tool bar over the charts; their width is that of the page."""

_LEGEND = {"orientation": "h", "yref": "container", "y": 0.02, "yanchor": "bottom"}
"""Below the title of the horizontal axis, however low the chart is."""

_CSP = "default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; style-src 'unsafe-inline'; img-src data: blob:"


def write_page(prediction: Predicted, path: Path, *, deadline: str | None = None, probability: float = LIKELY) -> None:
    """Write the page.

    Raises:
        OSError: the file cannot be written.
    """
    path.write_text(page(prediction, deadline=deadline, probability=probability), encoding="utf-8")


def page(prediction: Predicted, *, deadline: str | None = None, probability: float = LIKELY) -> str:
    """The page as text."""
    charts: list[str | go.Figure] = [_makespans(prediction), _use(prediction)]
    if any(row.cost is not None for row in prediction.possible):
        charts.append(_costs(prediction))
    lines = answers_of(prediction, deadline, probability)
    chosen = prediction.chosen(deadline)
    if chosen is not None:
        path = prediction.critical_path(chosen)
        charts.append(_critical_path(path))
        lines.append(path_words(chosen, path))
        table = html_table(CAUSE_COLUMNS, cause_cells(prediction.causes(chosen)))
        charts.append(f"<p>{escape(causes_words(chosen))}</p>{table}")
    headline = lines.pop(0) if verdicts_of(prediction, deadline, probability) else ""
    answers = "".join(f"<p>{_marked_up(line)}</p>" for line in lines)
    name = prediction.trace.path.name
    parts = [answers, *charts, _table(prediction.rows)]
    return html_page(f"{name}: what if?", prediction.trace.words, parts, headline=headline)


def html_page(title: str, words: str, parts: Sequence[str | go.Figure], *, headline: str = "") -> str:
    """One page of HTML that needs no network, from texts of HTML and charts; the headline stands below the title."""
    sections = ""
    for number, part in enumerate(parts):
        body = part
        if not isinstance(part, str):
            part.update_layout(legend=_LEGEND, margin={"r": 16, "t": 56})
            body = part.to_html(full_html=False, include_plotlyjs=False, div_id=f"chart{number}", config=_CONFIG)
        sections += f"<section>{body}</section>"
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="generator" content="dualray">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><title>{escape(title)}</title>'
        f'<meta http-equiv="Content-Security-Policy" content="{_CSP}"><style>{_STYLE}</style>'
        f"<script>{get_plotlyjs()}</script></head><body><header><h1>{escape(title)}</h1>"
        f"{f'<p>{escape(headline)}</p>' if headline else ''}{escape(words)}</header>"
        f"<main>{sections}</main></body></html>"
    )


def _marked_up(line: str) -> str:
    """A text for people, with its `code` as code."""
    return sub(r"`([^`]+)`", r"<code>\1</code>", escape(line))


def html_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of texts."""
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return _scrolling(f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>", columns[0])


def _scrolling(table: str, name: str) -> str:
    """A table that is wider than a narrow window can be reached, and then scrolled, with the keyboard."""
    return f'<div class="wide" tabindex="0" role="region" aria-label="table: {escape(name)}">{table}</div>'


def _series(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Rows that differ in the CPUs of a node only: a line has one row at most for a number of CPUs."""
    found: dict[str, list[Row]] = {}
    has_several = (
        len({row.configuration.nodes for row in rows}) > 1 and len({row.configuration.cpus for row in rows}) > 1
    )
    for row in rows:
        it = row.configuration
        network = f"{it.network_bytes_per_s * 8 / 1e9:g} Gbps"
        parts = [f"{it.nodes} node{'s' * (it.nodes > 1)}"] * has_several
        parts += [f"{it.policy}, {it.eviction}, {size_words(it.store_bytes)}, {network}"]
        parts += [f"{it.gpus:g} GPUs"] * bool(it.gpus) + [it.faults] * bool(it.faults)
        found.setdefault(", ".join(parts), []).append(row)
    return {name: sorted(each, key=_cpus) for name, each in found.items()}


def _cpus(row: Row) -> float:
    return row.configuration.nodes * row.configuration.cpus


def _makespans(prediction: Predicted) -> go.Figure:
    figure = go.Figure(layout={"title": "Makespan by CPUs, with its 90 % interval"})
    for name, rows in _series(prediction.possible).items():
        figure.add_scatter(
            x=[_cpus(row) for row in rows],
            y=[row.makespan_s for row in rows],
            name=name,
            text=[row.configuration.words for row in rows],
            error_y={
                "symmetric": False,
                "array": [row.high_s - row.makespan_s for row in rows],
                "arrayminus": [row.makespan_s - row.low_s for row in rows],
            },
        )
    figure.update_xaxes(title="CPUs in all")
    figure.update_yaxes(title="seconds", rangemode="tozero")
    return figure


def _use(prediction: Predicted) -> go.Figure:
    figure = go.Figure(layout={"title": "Use of the CPUs"})
    for name, rows in _series(prediction.possible).items():
        figure.add_scatter(x=[_cpus(row) for row in rows], y=[row.utilisation for row in rows], name=name)
    figure.update_xaxes(title="CPUs in all")
    figure.update_yaxes(tickformat=".0%", range=[0, 1.05])
    return figure


def _costs(prediction: Predicted) -> go.Figure:
    figure = go.Figure(layout={"title": "What a run costs, and how long it takes"})
    for name, rows in _series(prediction.possible).items():
        words = [row.configuration.words for row in rows]
        figure.add_scatter(
            x=[row.makespan_s for row in rows], y=[row.cost for row in rows], name=name, text=words, mode="markers"
        )
    figure.update_xaxes(title="seconds", rangemode="tozero")
    figure.update_yaxes(title="cost", rangemode="tozero")
    return figure


def _critical_path(path: list[Stretch]) -> go.Figure:
    figure = go.Figure(layout={"title": "Critical path: seconds by function"})
    rows = by_function(path)
    names = [name for name, _, _ in rows]
    figure.add_bar(y=names, x=[computed for _, computed, _ in rows], name="computes", orientation="h")
    figure.add_bar(
        y=names, x=[waited for _, _, waited in rows], name="waits: messages, transfers, room", orientation="h"
    )
    figure.update_layout(barmode="stack", height=220 + 28 * len(rows))
    figure.update_xaxes(title="seconds")
    figure.update_yaxes(autorange="reversed", automargin=True)
    return figure


def _table(rows: Sequence[Row]) -> str:
    head = "".join(f"<th>{name}</th>" for name in COLUMNS)
    body = ""
    varying = varying_of(rows)
    for row in rows:
        body += f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in cells(row, varying))}</tr>"
        if row.lacks:
            body += f'<tr><td colspan="{len(COLUMNS)}" class="no">{escape(row.lacks)}</td></tr>'
    return _scrolling(f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>", COLUMNS[0])
