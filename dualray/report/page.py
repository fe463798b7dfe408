"""The page: one self-contained HTML file that shows a finished run of either mode, and needs no network to do so.

    from dualray.report.page import write_page
    from dualray.report.record import read_record

    write_page(read_record(Path("runs/1")), Path("run.html"))

`runs/1` is what `init(decision_log="runs/1")` has left. A simulation that was not recorded has its trace in memory:
`Record(events=...)`. The same record gives the same bytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from string import Template
from typing import Any

from dualray.report.critical_path import Spent, Stretch, critical_path
from dualray.report.drawings import SPENT, Clock, Drawing, Rows, fault_words, gantt, path_strip, usage_chart, where_bars
from dualray.report.explain import Story, Teller
from dualray.report.fault_costs import costs_of
from dualray.report.headline import busy_spans, headline
from dualray.report.histories import Lives
from dualray.report.record import Record
from dualray.report.summary import Summary, summary
from dualray.report.usage import Resource, resources
from dualray.report.where import Where, where_time_went
from dualray.shared.proof.trace import TraceKind

STORIES_MAX = 1_500
"""Tasks and objects of which the page carries the story; `dualray explain` tells that of any."""
STRETCHES_SHOWN = 12
INDEX_MAX = 50_000
"""Tasks and objects that the page's search finds."""

_ASSETS = Path(__file__).with_name("assets")


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """An expectation and whether it holds."""

    what: str
    expected: str
    found: str
    holds: bool


def write_page(
    record: Record, path: Path, *, title: str = "", subtitle: str = "", checks: Sequence[Check] = ()
) -> None:
    """Write the page of a run.

    Args:
        title: the page's; default: the name of the record's directory.
        subtitle: what it shows, in a sentence.
        checks: expectations, as a scenario has them; shown with their verdicts.

    Raises:
        ValueError: the record holds nothing that could be shown, or a log cannot be replayed.
        OSError: the file cannot be written.
    """
    text = page(record, title=title, subtitle=subtitle, checks=checks)
    path.write_text(text, encoding="utf-8")


def page(record: Record, *, title: str = "", subtitle: str = "", checks: Sequence[Check] = ()) -> str:
    """The page as text; see `write_page`."""
    lives = Lives(record)
    if not lives.tasks:
        where = f"{record.directory}: " if record.directory is not None else ""
        raise ValueError(f"{where}the trace has no tasks, so the report would be empty")
    path = critical_path(lives)
    went = where_time_went(lives, path)
    used = resources(lives)
    unused = [resource.name for resource in used if not any(steps.values.any() for steps in resource.used.values())]
    clock = Clock.of(lives)
    rows = Rows(lives)
    chart = gantt(lives, path, clock, rows)
    figures = {
        "gantt": chart,
        "path": path_strip(path, clock),
        "where": where_bars(went),
    }
    if len(unused) < len(used):
        drawn = [resource for resource in used if resource.name not in unused]
        figures["usage"] = usage_chart(drawn, lives)
    figures_of_run = summary(record.events)
    name = title or (record.directory.name if record.directory is not None else "a run")
    merged = chart["merged"]
    return Template((_ASSETS / "page.html").read_text(encoding="utf-8")).substitute(
        title=escape(name),
        subtitle=escape(subtitle),
        verdict=_verdict(checks),
        answer=escape(headline(lives, path, figures_of_run, clock)),
        cards=_cards(figures_of_run, went, lives, clock),
        spans=_spans(lives, clock),
        merged=f"{merged:,} short attempts are drawn together with a neighbouring attempt of the same function."
        if merged
        else "",
        guess="" if lives.has_waits else "Without decision logs, dualray guesses what the driver waited for.",
        stretches=_stretches(path, clock),
        unused=f"Resources that no task used, and that are not drawn: {escape(', '.join(unused))}." if unused else "",
        expectations=_expectations(checks),
        faults=_faults(lives, clock),
        footer=_footer(lives, used),
        css=(_ASSETS / "page.css").read_text(encoding="utf-8"),
        js=(_ASSETS / "page.js").read_text(encoding="utf-8"),
        charts=(_ASSETS / "charts.js").read_text(encoding="utf-8"),
        run=_carried(lives, path, clock, figures),
    )


def _carried(lives: Lives, path: Sequence[Stretch], clock: Clock, figures: Mapping[str, Drawing]) -> str:
    """What the page's script reads, as JSON that cannot end the script element it stands in."""
    teller = Teller(lives)
    stories = {each: _told(teller.tell(each), clock) for each in _most_telling(lives, path)}
    index = [[task.task, task.name] for task in lives.tasks.values()]
    index += [[life.object_id, _object_name(lives, life.task, life.is_put)] for life in lives.objects.values()]
    directory = lives.record.directory
    carried = {
        "figures": figures,
        "span": [clock(clock.start_ns), clock(clock.end_ns)],
        "unit": clock.unit,
        "stories": stories,
        "index": index[:INDEX_MAX],
        "where": f" {directory}" if directory is not None else "",
    }
    text = json.dumps(carried, separators=(",", ":"), sort_keys=True)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _object_name(lives: Lives, task: str, is_put: bool) -> str:
    maker = lives.tasks.get(task)
    what = "put by" if is_put else "result of"
    return f"{what} {maker.name if maker is not None else 'the driver'}"


def _told(story: Story, clock: Clock) -> dict[str, Any]:
    lines = []
    for line in story.lines:
        when = clock.moment(line.time_ns) if line.time_ns is not None else ""
        lines.append([when, line.text, list(line.details)])
    return {"title": story.title, "lines": lines}


def _most_telling(lives: Lives, path: Sequence[Stretch]) -> list[str]:
    """The tasks and objects to tell of: those of the path, those that something befell, then the rest in order."""
    chosen: dict[str, None] = dict.fromkeys(stretch.task for stretch in path if stretch.task)
    for task in lives.tasks.values():
        if len(task.attempts) > 1 or any(attempt.outcome for attempt in task.attempts.values()):
            chosen[task.task] = None
    rest = {TraceKind.OBJECT_EVICTED, TraceKind.OBJECT_SPILLED, TraceKind.OBJECT_RESTORED}
    for life in lives.objects.values():
        if any(row.kind in rest for row in life.rows):
            chosen[life.object_id] = None
    chosen.update(dict.fromkeys(lives.tasks))
    chosen.update(dict.fromkeys(lives.objects))
    return list(chosen)[:STORIES_MAX]


# ---- Words and tables --------------------------------------------------------------------------------------------


def _verdict(checks: Sequence[Check]) -> str:
    if not checks:
        return ""
    failing = sum(not check.holds for check in checks)
    if failing:
        return f'<a class="verdict bad" href="#expectations">{failing} of {len(checks)} expectations fail</a>'
    return '<a class="verdict good" href="#expectations">all expectations hold</a>'


def _cards(figures: Summary, where: Where, lives: Lives, clock: Clock) -> str:
    total = where.total
    cpus = sum(total.values())
    busy = (total[Spent.COMPUTE] + total[Spent.RECONSTRUCTION]) / cpus if cpus else 0.0
    cards = [
        (clock.words(lives.end_ns - lives.start_ns), "virtual time" if lives.record.is_virtual else "real time", False),
        (f"{figures.tasks:,}", _plural(figures.tasks, "task", "tasks"), False),
        (f"{figures.failed:,}" if figures.failed else "", "failed attempts", True),
        (f"{figures.retries:,}" if figures.retries else "", _plural(figures.retries, "retry", "retries"), False),
        (f"{figures.reconstructions:,}" if figures.reconstructions else "", "recomputed objects", False),
        (f"{len(figures.faults):,}" if figures.faults else "", _plural(len(figures.faults), "fault", "faults"), False),
        (f"{figures.nodes:,}", _plural(figures.nodes, "node", "nodes"), False),
        (f"{busy:.0%}" if cpus else "", "CPU time in use", False),
        (_bytes(figures.bytes_moved) if figures.bytes_moved else "", "moved", False),
        (f"{evicted:,}" if (evicted := figures.counts[TraceKind.OBJECT_EVICTED]) else "", "evictions", False),
    ]
    return "".join(
        f'<div class="card{" bad" if is_bad else ""}"><b>{escape(value)}</b><span>{what}</span></div>'
        for value, what, is_bad in cards
        if value
    )


def _plural(count: int, one: str, many: str) -> str:
    return one if count == 1 else many


def _spans(lives: Lives, clock: Clock) -> str:
    """A button for each stretch of work, when all of them together are a small part of the run."""
    return "".join(
        f'<button class="span" data-from="{clock(from_ns)}" data-until="{clock(until_ns)}">zoom to {count:,} '
        f"attempt{'' if count == 1 else 's'} in {clock.words(until_ns - from_ns)}</button>"
        for from_ns, until_ns, count in busy_spans(lives)
    )


def _bytes(amount: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000:
            return f"{amount:.3g} {unit}"
        amount /= 1000
    return f"{amount:.3g} TB"


def _stretches(path: Sequence[Stretch], clock: Clock) -> str:
    """The longest stretches of the path."""
    whole = sum(stretch.lasted_ns for stretch in path) or 1
    longest = sorted(path, key=lambda stretch: -stretch.lasted_ns)[:STRETCHES_SHOWN]
    longest.sort(key=lambda stretch: stretch.started_ns)
    rows = [
        f"<tr{_link(stretch.task)}>"
        f'<td><span class="dot" style="background:{SPENT[stretch.spent]}"></span>{stretch.spent}</td>'
        f'<td class="number">{clock.words(stretch.lasted_ns)}</td>'
        f'<td class="number">{stretch.lasted_ns / whole:.1%}</td>'
        f'<td class="number">{clock.moment(stretch.started_ns)}</td>'
        f"<td>{escape(stretch.name or 'the driver')}</td><td>{escape(stretch.place)}</td>"
        f"<td>{escape(stretch.words)}</td></tr>"
        for stretch in longest
    ]
    head = _head("kind", "#lasted", "#share", "#from", "task", "where", "reason")
    note = (
        f"<p>The {len(rows)} longest of {len(path):,} stretches, in order of time.</p>" if len(path) > len(rows) else ""
    )
    return f"{note}<table>{head}{''.join(rows)}</table>"


def _link(task: str) -> str:
    return f' class="link" data-task="{task}"' if task else ""


def _head(*columns: str) -> str:
    cells = (f"<th{' class=number' if column.startswith('#') else ''}>{column.lstrip('#')}</th>" for column in columns)
    return f"<tr>{''.join(cells)}</tr>"


def _expectations(checks: Sequence[Check]) -> str:
    if not checks:
        return ""
    rows = "".join(
        f"<tr><td>{escape(check.what)}</td><td>{escape(check.expected)}</td><td>{escape(check.found)}</td>"
        f'<td class="{"holds" if check.holds else "fails"}">{"holds" if check.holds else "fails"}</td></tr>'
        for check in checks
    )
    head = _head("expectation", "expected", "found", "verdict")
    return f'<section id="expectations"><h2>Expectations</h2><table>{head}{rows}</table></section>'


def _faults(lives: Lives, clock: Clock) -> str:
    """What was done to the run, and what each of them cost it."""
    costs = costs_of(lives.record)
    injected = {(fault.time_ns, fault_words(fault)) for fault in lives.faults}
    shown = [cost for cost in costs.all if cost.again or (cost.time_ns, cost.what) in injected]
    if not shown:
        return ""
    rows = "".join(
        f'<tr><td class="number">{clock.moment(cost.time_ns)}</td><td>{escape(cost.what)}</td>'
        f"<td>{escape(costs.words(cost))}</td></tr>"
        for cost in shown
    )
    words = costs.words_of_all() if len(shown) > 1 else ""
    total = f"<p>All faults together: {escape(words)}</p>" if words else ""
    head = _head("#at", "fault", "what it cost")
    return f'<section><h2>Faults</h2>{total}<table class="narrow">{head}{rows}</table></section>'


def _footer(lives: Lives, used: Iterable[Resource]) -> str:
    sources = "".join(f"<li>{escape(resource.name)}: {escape(resource.source)}</li>" for resource in used)
    logs = len(lives.record.logs)
    recorded = (
        f"the trace and {logs:,} decision logs" if logs else "the trace alone (record a run to see leases and waits)"
    )
    return f"Made by dualray from {recorded}. Where the figures come from:<ul>{sources}</ul>"
