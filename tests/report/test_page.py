"""The page as a file: whole, self-contained, the same each time, and safe whatever a program calls its functions."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dualray as ray
from dualray.report.colours import FUNCTIONS_MAX
from dualray.report.critical_path import NOTICED, critical_path
from dualray.report.drawings import BARS_MAX, ROWS_MAX
from dualray.report.histories import Lives
from dualray.report.page import Check, page, write_page
from dualray.report.record import Record, read_record
from dualray.scheduling_strategies import NodeAffinitySchedulingStrategy
from dualray.shared.proof.trace import TraceEvent, TraceKind
from dualray.sim.runtime import SimRuntime
from tests.report.support import Rows, simulate, task, two_steps

FAULTS = ["reboot node-2 when digest starts 5 for 3s"]


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    log = tmp_path_factory.mktemp("log")
    simulate(lambda: two_steps(6), log, faults=FAULTS)
    return log


@pytest.fixture(scope="module")
def text(log: Path) -> str:
    return page(read_record(log), title="two steps", subtitle="a node reboots")


class Elements(HTMLParser):
    """The elements of a page, with their attributes, and what its scripts hold."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data: str) -> None:
        if self.lasttag == "script":
            self.scripts[-1] += data


FUNCTION, TASK, OUTCOME, NAME = 3, 4, 7, 10
"""Of a bar: see `gantt`."""


def makespan(text: str) -> float:
    """How long the page's axis is."""
    begun, ended = carried(text)["span"]
    return float(ended - begun)


def carried(text: str) -> Any:
    """What the page's script reads."""
    found = re.search(r'<script id="run" type="application/json">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def test_page_needs_nothing_from_elsewhere(text: str):
    elements = Elements(text)
    for tag, attributes in elements.found:
        for name in ("src", "href", "action", "data"):
            assert (attributes.get(name) or "data:").startswith("data:"), (tag, attributes)
    policy = next(each["content"] for tag, each in elements.found if "http-equiv" in each)
    assert policy is not None
    assert "default-src 'none'" in policy
    assert "http" not in policy
    assert len(elements.scripts) == 3
    assert len(text) < 300_000, "the page of a small run is small"


def test_page_shows_every_attempt_fault_and_resource(log: Path, text: str):
    record = read_record(log)
    figures = carried(text)["figures"]
    gantt = figures["gantt"]
    started = [event.subject for event in record.events if event.kind is TraceKind.TASK_STARTED]
    assert sorted(bar[TASK] for bar in gantt["bars"]) == sorted(started)
    assert {name for name, _ in gantt["functions"]} == {"load", "augment", "digest"}
    assert {gantt["functions"][bar[FUNCTION]][0] == bar[NAME] for bar in gantt["bars"]} == {True}
    assert {bar[OUTCOME] for bar in gantt["bars"]} >= {"", "lost"}
    assert gantt["path"]
    assert [words for _, words in gantt["faults"]] == ["kill node: node-2"]
    [(died, back, first, end)] = gantt["dead"]
    assert back - died == pytest.approx(3)
    assert gantt["nodes"][2] == ["node-2", first, end]
    shown = {resource["name"] for resource in figures["usage"]["resources"]}
    assert {"CPUs computing", "CPUs leased", "network in", "network out", "object store"} <= shown
    assert {name for name, _ in figures["path"]["kinds"]} >= {"compute", "reconstruction"}
    assert sum(length for _, length, *_ in figures["path"]["stretches"]) == pytest.approx(makespan(text))
    assert "kill node: node-2" in text
    assert "a node reboots" in text


def test_page_tells_the_story_of_each_task_and_object(log: Path, text: str):
    stories = carried(text)["stories"]
    record = read_record(log)
    assert {event.subject for event in record.events if event.kind is TraceKind.TASK_SUBMITTED} <= stories.keys()
    told = json.dumps(stories)
    assert "The head chooses node-" in told
    assert "runs again, as attempt 1" in told


def test_same_record_gives_the_same_page(log: Path, text: str):
    assert page(read_record(log), title="two steps", subtitle="a node reboots") == text


def test_page_of_a_simulation_that_was_not_recorded(tmp_path: Path):
    started = ray.init(mode="sim", nodes=2).runtime
    assert isinstance(started, SimRuntime)
    try:
        two_steps(2)
        events = list(started.cluster.trace_events)
    finally:
        ray.shutdown()
    write_page(Record(events=events), tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    assert "dualray guesses what the driver waited for" in text
    assert "from the trace alone" in text


def test_page_shows_what_was_expected(log: Path):
    checks = [Check(what="makespan", expected="at most 1s", found="2s", holds=False)]
    text = page(read_record(log), checks=checks)
    assert "1 of 1 expectations fail" in text
    assert "at most 1s" in text
    assert "<h2>Expectations</h2>" not in page(read_record(log))


def test_page_opens_with_the_answer_and_leaves_zeros_out(log: Path, text: str):
    answer = text.partition('<p id="answer">')[2].partition("</p>")[0]
    assert re.match(r"\d+ tasks on 3 nodes took [\d.]+ s of virtual time; \d+ attempts? (was|were) lost", answer)
    assert "after 1 fault (" in answer or "after 2 faults (" in answer
    assert re.search(
        r"On the critical path, the chain of steps that set this time, (over )?\d+ % (was spent|passed) ", answer
    )
    cards = text.partition('<div class="cards">')[2].partition("<h2>")[0]
    assert "<b>0</b>" not in cards
    assert "evictions" not in cards
    assert text.index("<h2>Faults</h2>") < text.index("<h2>Tasks on workers over time</h2>")
    assert "<th></th>" not in text


def test_page_of_a_run_that_mostly_waits_offers_to_zoom_to_its_work():
    late = {task(3), task(4)}
    waits = [replace(it, time_ns=it.time_ns + 6 * 10**9 * (it.subject in late)) for it in many(5, workers=1)]
    text = page(Record(events=waits))
    assert "zoom to 3 attempts in 3 µs" in text
    assert "zoom to 2 attempts in 2 µs" in text
    assert "zoom to" not in page(Record(events=many(5, workers=1)))


def test_names_are_shown_and_never_obeyed():
    evil = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"
    rows = Rows()
    rows.add(TraceKind.TASK_SUBMITTED, "driver-1", task(1), name=evil)
    rows.add(TraceKind.TASK_STARTED, "node-1/w0", task(1), name=evil)
    rows.add(TraceKind.TASK_ENDED, "node-1/w0", task(1), name=evil)
    text = page(Record(events=rows.events), title=evil, subtitle=evil)
    elements = Elements(text)
    assert len(elements.scripts) == 3
    assert all(tag != "img" for tag, _ in elements.found)
    assert evil in json.dumps(carried(text), ensure_ascii=False)  # which the scripts show as text, and never as HTML
    assert "innerHTML" not in "".join(elements.scripts)


def many(tasks: int, workers: int, functions: int = 1) -> list[TraceEvent]:
    """So many tasks of 1 µs, one after the other on each worker."""
    events = []
    for number in range(tasks):
        at_ns = 1000 * (number // workers)
        name, worker = f"f{number % functions}", f"node-{number % workers % 7}/w{number % workers}"
        events.append(TraceEvent(at_ns, TraceKind.TASK_SUBMITTED, "driver-1", task(number), name=name))
        events.append(TraceEvent(at_ns, TraceKind.TASK_STARTED, worker, task(number), name=name))
        events.append(TraceEvent(at_ns + 1000, TraceKind.TASK_ENDED, worker, task(number), name=name))
    return sorted(events, key=lambda event: event.time_ns)


def test_page_of_many_tasks_stays_small_and_says_what_it_merged():
    text = page(Record(events=many(3 * BARS_MAX, workers=4)))
    bars = len(carried(text)["figures"]["gantt"]["bars"])
    assert 0 < bars <= BARS_MAX
    merged = f"{3 * BARS_MAX - bars:,} short attempts are drawn together"
    assert merged in text


def test_many_workers_share_rows_and_many_functions_share_a_colour():
    text = page(Record(events=many(2 * ROWS_MAX, workers=ROWS_MAX + 10, functions=FUNCTIONS_MAX + 5)))
    figure = carried(text)["figures"]["gantt"]
    assert len(figure["rows"]) <= ROWS_MAX + 10
    assert len(figure["functions"]) == FUNCTIONS_MAX + 1
    assert figure["functions"][-1][0] == "other functions"
    assert {bar[FUNCTION] for bar in figure["bars"]} == set(range(FUNCTIONS_MAX + 1))


def test_nothing_to_draw():
    with pytest.raises(ValueError, match="the trace has no tasks, so the report would be empty"):
        page(Record(events=[]))


def test_the_first_sentence_names_an_actor_that_calls_waited_for(tmp_path: Path):
    class Slow:
        @ray.method(duration=1)
        def go(self) -> None:
            pass

    def calls() -> None:
        slow = ray.remote(Slow).remote()
        ray.get([slow.go.remote() for _ in range(10)])

    simulate(calls, tmp_path)
    assert "90 % was spent waiting for an actor that was busy" in page(read_record(tmp_path), title="calls")


def test_the_first_sentence_does_not_call_a_dead_actor_busy(tmp_path: Path):
    class Slow:
        @ray.method(duration=1)
        def go(self, value: int) -> int:
            return value

    @ray.remote(duration=2, num_cpus=0)
    def late() -> int:
        return 1

    def calls() -> None:
        options = {"max_restarts": 1, "max_task_retries": -1, "num_cpus": 2, "scheduling_strategy": "SPREAD"}
        slow = [ray.remote(Slow).options(**options).remote() for _ in range(3)]
        made = late.options(scheduling_strategy=NodeAffinitySchedulingStrategy("node-0", soft=False)).remote()
        ray.get([each.go.remote(made) for each in slow])

    simulate(calls, tmp_path, faults=["reboot node-1 at 1500ms for 3s"])
    lives = Lives(read_record(tmp_path))
    path = critical_path(lives)
    assert sum(stretch.lasted_ns for stretch in path) == lives.end_ns - lives.start_ns
    made_ns = next(task for task in lives.tasks.values() if task.name.endswith("late")).attempts[0].ended_ns
    unnoticed = [stretch for stretch in path if stretch.words == NOTICED]
    assert unnoticed[0].started_ns == made_ns
    assert unnoticed[-1].ended_ns / 1e9 == pytest.approx(4.5, abs=0.01), "the node came back then"
    assert sum(stretch.lasted_ns for stretch in unnoticed) == unnoticed[-1].ended_ns - made_ns
    assert "passed until a failure was detected" in page(read_record(tmp_path), title="calls")


def test_a_retried_task_that_stands_in_line_is_not_said_to_wait_for_the_detection(tmp_path: Path):
    @ray.remote(duration="lognormal(400ms, 0.4)")
    def read(number: int) -> Any:
        return np.full(20_000, number)

    @ray.remote(duration="lognormal(600ms, 0.4)")
    def total(numbers: Any) -> int:
        return int(numbers.sum())

    def calls() -> None:
        parts = [read.remote(number) for number in range(40)]
        ray.get([total.remote(part) for part in parts])

    simulate(calls, tmp_path, nodes=4, faults=["kill node-2 at 3s"])
    lives = Lives(read_record(tmp_path))
    path = critical_path(lives)
    assert sum(stretch.lasted_ns for stretch in path) == lives.end_ns - lives.start_ns
    lost = [life.attempts[1] for life in lives.tasks.values() if 1 in life.attempts]
    known_ns = min(attempt.queued_ns for attempt in lost if attempt.cause == "retry")
    unnoticed = [stretch for stretch in path if stretch.words == NOTICED]
    assert unnoticed
    assert max(stretch.ended_ns for stretch in unnoticed) == known_ns
