"""The tables of a run: what they hold, what a page is told, and that they stay small."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest

import dualray as ray
from dualray.dashboard import tables as tables_module
from dualray.dashboard.demand import STEPS_MAX, Demand
from dualray.dashboard.feeds import DirectoryFeed
from dualray.dashboard.from_trace import TraceTables, seconds
from dualray.dashboard.happened import ABOUT_MAX, MORE
from dualray.dashboard.tables import COLUMNS, Tables
from dualray.report.notices import ActorNamed, HeadTail, NodeNotice, Noticed
from dualray.report.page import page as page_of_report
from dualray.report.record import read_record
from dualray.report.state import rows_of_run
from dualray.report.traces import read_traces
from dualray.shared.model.codec import pack
from dualray.shared.proof.trace import TraceEvent, TraceKind, to_bytes
from tests.dashboard.support import wide_trace
from tests.report.support import MIB, Rows, result, simulate, task, two_steps, was_put


def told(tables: Tables, version: int = 0) -> tuple[dict[str, dict[str, Any]], int]:
    """All that is newer, as a page puts it together."""
    tables.publish()
    rows: dict[str, dict[str, Any]] = {name: {} for name in COLUMNS}
    while True:
        found = tables.since(version, limit=7)
        for name, changed in found["tables"].items():
            for row in changed:
                if row[1:] == [None]:
                    rows[name].pop(row[0], None)
                else:
                    rows[name][str(row[0])] = dict(zip(COLUMNS[name], row, strict=True))
        version = found["version"]
        if not found["more"]:
            return rows, version


def of_trace(events: list[TraceEvent]) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    tables = Tables()
    TraceTables(tables).take(events)
    return told(tables)[0], tables.head


class Restarting:
    def __init__(self) -> None:
        self.calls = 0

    def call(self) -> int:
        self.calls += 1
        return self.calls


def with_actor() -> Any:
    actor = ray.remote(Restarting).options(max_restarts=1, max_task_retries=-1).remote()
    return [ray.get(actor.call.remote()) for _ in range(3)], two_steps(4)


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> list[TraceEvent]:
    log = tmp_path_factory.mktemp("run")
    simulate(with_actor, log, faults=["reboot node-1 when augment starts 2 for 3s"])
    return read_traces(log)


def test_tasks_workers_and_nodes_are_those_of_the_state_api(events: list[TraceEvent]) -> None:
    rows, head = of_trace(events)
    workers = {key for key, row in rows["workers"].items() if row["kind"] == "worker"}
    assert workers == {row["worker_id"] for row in rows_of_run(events, "workers")}
    for table, key in (("tasks", "task_id"), ("nodes", "node_id")):
        theirs = {row[key]: row for row in rows_of_run(events, table)}
        ours = rows[table]
        assert ours.keys() == theirs.keys()
        assert {key: row["state"] for key, row in ours.items()} == {key: row["state"] for key, row in theirs.items()}
    assert head["finished"] == head["tasks"] == len(rows["tasks"])
    assert (head["running"], head["queued"], head["blocked"]) == (0, 0, 0)
    assert rows["waits"] == {}
    assert [row["class"] for row in rows["actors"].values()] == ["Restarting"]


def test_a_killed_node_is_told_with_what_was_lost_and_done_again(events: list[TraceEvent]) -> None:
    rows, _ = of_trace(events)
    words = [row["words"] for row in rows["happened"].values()]
    killed = next(each for each in words if each.startswith("node-1 was killed."))
    assert "running task" in killed or "only cop" in killed
    assert "node-1 came back, with an empty store." in words
    assert any("again" in each for each in words)
    lost = [row for row in rows["spans"].values() if row["outcome"] == "lost"]
    starts = [event for event in events if event.kind is TraceKind.TASK_STARTED]
    ends = [event for event in events if event.kind is TraceKind.TASK_ENDED]
    assert len(rows["spans"]) - len(lost) == len(ends)
    assert len([row for row in rows["spans"].values() if row["started_s"] is not None]) == len(starts)


def test_every_prefix_of_a_run_counts_each_task_once(events: list[TraceEvent]) -> None:
    tables = Tables()
    trace = TraceTables(tables)
    rows: dict[str, dict[str, Any]] = {name: {} for name in COLUMNS}
    version = 0
    for event in events:
        trace.take([event])
        changed, version = told(tables, version)
        for name, table in changed.items():
            rows[name].update(table)
        head = tables.head
        running = [row for row in rows["tasks"].values() if row["state"] == "RUNNING"]
        assert head["running"] == len(running) == sum(row["cpus_used"] for row in rows["nodes"].values())
        assert head["running"] + head["queued"] + head["blocked"] + head["finished"] + head["failed"] == head["tasks"]
        assert head["store"] == sum(row["store_used"] for row in rows["nodes"].values()) >= 0
        waiting = sum(row["count"] for row in tables_rows(tables, "waits"))
        assert waiting == head["queued"] + head["blocked"]
    assert rows["tasks"] == told(tables)[0]["tasks"]


def tables_rows(tables: Tables, name: str) -> list[dict[str, Any]]:
    return [dict(zip(COLUMNS[name], row, strict=True)) for row in tables.rows(name)]


def test_what_waits_says_for_what() -> None:
    trace = Rows()
    trace.submitted(task(1))
    trace.submitted(task(2), result(1))
    trace.submitted(task(3), was_put(1))
    rows, head = of_trace(trace.events)
    assert {row["what"]: row["count"] for row in rows["waits"].values()} == {
        "f waits for a free worker": 2,
        "f waits for what f returns": 1,
    }
    assert rows["tasks"][task(2)]["waits_for"] == [result(1)]
    assert (head["queued"], head["blocked"]) == (2, 1)
    trace.ran("node-1/w0", task(1))
    rows, head = of_trace(trace.events)
    assert rows["tasks"][task(2)]["state"] == "PENDING_NODE_ASSIGNMENT"
    assert head["blocked"] == 0


def test_an_object_knows_who_holds_it_until_nobody_does() -> None:
    trace = Rows()
    for node in ("node-1", "node-2"):
        trace.add(TraceKind.NODE_STARTED, node, node)
    trace.stored("node-1/w0", result(1))
    trace.moved("node-1", "node-2", result(1))
    rows, head = of_trace(trace.events)
    assert rows["objects"][result(1)]["nodes"] == ["node-1", "node-2"]
    assert head["store"] == 2 * MIB
    trace.deleted("node-2", result(1))
    trace.killed("node-1")
    rows, head = of_trace(trace.events)
    assert rows["objects"][result(1)]["nodes"] == []
    assert rows["objects"][result(1)]["state"] == "LOST"
    assert head["store"] == 0
    assert "The only copy of 1 object was lost." in rows["happened"]["2"]["words"]


def test_a_page_is_told_what_is_newer_and_nothing_else() -> None:
    tables = Tables()
    for key in ("a", "b", "c"):
        tables.put("waits", key, lambda key=key: [key, 1, 0.0])  # type: ignore[misc]
    tables.publish()
    first = tables.since(0, limit=2)
    assert [row[0] for row in first["tables"]["waits"]] == ["a", "b"]
    assert first["more"]
    tables.put("waits", "a", lambda: None)
    assert [row[0] for row in tables.since(first["version"])["tables"]["waits"]] == ["c"], "that is a later moment"
    tables.publish()
    rest = tables.since(first["version"])
    assert rest["tables"]["waits"] == [["c", 1, 0.0], ["a", None]]
    assert not rest["more"]
    assert tables.since(rest["version"])["tables"] == {}


def test_tables_keep_the_newest_rows_and_count_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(tables_module.LIMITS, "tasks", 3)
    trace = Rows()
    for number in range(5):
        trace.submitted(task(number))
    tables = Tables()
    kept = TraceTables(tables)
    kept.take(trace.events)
    assert [row[0] for row in tables.rows("tasks")] == [task(2), task(3), task(4)]
    assert tables.publish().dropped == {"tasks": 2}
    assert [row[0] for row in tables.since(0)["tables"]["tasks"]] == [task(2), task(3), task(4)]
    trace.submitted(task(5))
    kept.take(trace.events[-1:])
    tables.publish()
    assert [row[0] for row in tables.since(0)["tables"]["tasks"]] == [task(3), task(4), task(5)]


def test_demand_of_a_long_run_keeps_its_peaks_in_few_steps() -> None:
    tables = Tables()
    demand = Demand(tables)
    for second in range(5_000):
        demand.now = [second % 7, 100 if second == 1_234 else 0, 0, 4.0, 2]
        demand.note(float(second))
    rows = told(tables)[0]["demand"]
    assert len(rows) <= STEPS_MAX
    assert max(row["most queued"] for row in rows.values()) == 100
    peak = next(row for row in rows.values() if row["most queued"] == 100)
    assert peak["queued"] == 0, "the peak is over at the end of its step"
    assert peak["step"] * demand.step_s <= 1_234 < (peak["step"] + 1) * demand.step_s


def test_a_trace_of_many_tasks_is_taken_in_whole(tmp_path: Path) -> None:
    rows, head = of_trace(read_traces(wide_trace(tmp_path, 2_000)))
    assert head["finished"] == len(rows["tasks"]) == len(rows["spans"]) == 2_000
    assert rows["demand"]


# ---- What the head notices -------------------------------------------------------------------------------------------


def whole(directory: Path) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    """The tables of a run's directory, as its page has them."""
    feed = DirectoryFeed(directory)
    while feed.refresh():
        pass
    return told(feed.tables)[0], feed.tables.head


def opening_of(log: Path) -> dict[str, Any]:
    """The first value of a decision log."""
    stream = msgpack.Unpacker(raw=False)
    stream.feed(log.read_bytes())
    opening: dict[str, Any] = next(stream)
    return opening


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    log = tmp_path_factory.mktemp("killed") / "log"
    simulate(lambda: two_steps(4), log, faults=["kill node-2 when augment starts 2"])
    return log


def test_the_moment_is_told_at_which_the_head_finds_out(killed: Path) -> None:
    rows, head = whole(killed)
    noticed = [notice for notice in HeadTail(killed).look() if isinstance(notice, NodeNotice)]
    assert [notice.what for notice in noticed] == [Noticed.SILENT, Noticed.DEAD]
    found = {row["kind"]: row for row in rows["happened"].values()}
    words = found["fault"]["words"]
    died_s, noticed_s = found["fault"]["time_s"], seconds(noticed[-1].time_ns)
    told_s, later_s = map(float, re.search(r"The head detected this at (\S+) s \((\S+) s later\)\.$", words).groups())  # type: ignore[union-attr]
    assert (told_s, later_s) == pytest.approx((noticed_s, noticed_s - died_s), abs=1e-3)
    assert "detected that node-2 is dead" in found["notice"]["words"]
    node = rows["nodes"]["node-2"]
    assert (node["state"], node["why"], node["noticed_s"]) == ("DEAD", "killed by a fault", noticed_s)
    assert node["lost"][0] == len(node["lost"]) - 1
    assert head["knows_head"]


def test_until_the_head_finds_out_the_page_says_that_it_does_not_know(killed: Path, tmp_path: Path) -> None:
    events = read_traces(killed)
    death = next(number for number, event in enumerate(events) if event.kind is TraceKind.FAULT)
    (tmp_path / "cluster.trace").write_bytes(to_bytes(events[: death + 1]))
    opening = len(pack(opening_of(killed / "head.decisions")))
    (tmp_path / "head.decisions").write_bytes((killed / "head.decisions").read_bytes()[:opening])
    rows, head = whole(tmp_path)
    fault = next(row for row in rows["happened"].values() if row["kind"] == "fault")
    assert fault["words"].endswith("The head has not detected this yet.")
    assert rows["nodes"]["node-2"]["noticed_s"] is None
    assert head["knows_head"]


def test_a_node_whose_death_no_row_tells_is_dead_when_the_head_says_so() -> None:
    trace = Rows()
    for node in ("node-0", "node-1", "node-2"):
        trace.add(TraceKind.NODE_STARTED, node, node)
    trace.submitted(task(1))
    trace.add(TraceKind.TASK_STARTED, "node-1/w0", task(1), name="f")
    trace.add(TraceKind.WORKER_STARTED, "node-1", "node-1/w0")
    now_ns = 1000 * len(trace.events)
    tables = Tables()
    of_run = TraceTables(tables)
    of_run.take([*trace.events, NodeNotice(now_ns, "node-1", 0, Noticed.DEAD)])
    of_run.take([NodeNotice(now_ns, "node-2", 0, Noticed.LEAVING), NodeNotice(now_ns + 1, "node-2", 0, Noticed.DEAD)])
    rows = told(tables)[0]
    said = [row["words"] for row in rows["happened"].values()]
    assert "The head declared node-1 dead. 1 running task was lost: f." in said
    assert "node-2 has left the cluster." in said
    assert [rows["nodes"][node]["state"] for node in ("node-0", "node-1", "node-2")] == ["ALIVE", "DEAD", "DEAD"]
    assert rows["nodes"]["node-1"]["why"] == "the head declared it dead"
    assert rows["nodes"]["node-2"]["why"] == "left the cluster"
    assert tables.head["nodes"] == 1
    assert rows["tasks"][task(1)]["waits"] == "was lost with its worker, and has not started again"
    of_run.end()
    assert told(tables)[0]["tasks"][task(1)]["state"] == "FAILED"


def test_a_log_of_another_version_tells_nothing_and_one_that_is_cut_off_tells_its_whole_decisions(
    killed: Path, tmp_path: Path
) -> None:
    data = (killed / "head.decisions").read_bytes()
    path = tmp_path / "head.decisions"
    tail = HeadTail(tmp_path)
    found = []
    for end in range(0, len(data) + 500, 500):
        path.write_bytes(data[:end])
        found += tail.look()
    assert found == HeadTail(killed).look()
    opening = opening_of(killed / "head.decisions")
    path.write_bytes(pack(opening | {"names": ["Other"]}) + data[len(pack(opening)) :])
    other = HeadTail(tmp_path)
    assert other.look() == []
    assert not other.has_logs


# ---- What a method waits for -----------------------------------------------------------------------------------------


def test_a_method_says_for_which_actor_it_waits_and_since_when() -> None:
    trace = Rows()
    trace.add(TraceKind.NODE_STARTED, "node-1", "node-1")
    trace.add(TraceKind.TASK_SUBMITTED, "driver-1", task(1), name="Counter")
    for number in (2, 3):
        trace.add(TraceKind.TASK_SUBMITTED, "driver-1", task(number), name="Counter.add", other=task(1))
    tables = Tables()
    of_run = TraceTables(tables)

    def waits() -> tuple[str, int]:
        of_run.take(trace.events)
        trace.events = []
        row = told(tables)[0]["tasks"][task(3)]
        assert tables.head["for_actors"] == (2 if row["waits"] else 0)
        return row["waits"], round(row["since_s"] * 1e6)

    assert waits() == ("waits for its actor Counter, which is being created", 3)
    of_run.take([ActorNamed(5_000, task(1), "tally")])
    assert waits() == ('waits for its actor Counter "tally", which is being created', 5)
    trace.events = [
        TraceEvent(6_000, TraceKind.TASK_PUSHED, "head", task(1), "node-1/w0", "Counter"),
        TraceEvent(7_000, TraceKind.TASK_STARTED, "node-1/w0", task(1), "", "Counter"),
        TraceEvent(8_000, TraceKind.TASK_ENDED, "node-1/w0", task(1), "", "Counter"),
        TraceEvent(9_000, TraceKind.TASK_PUSHED, "driver-1", task(3), "node-1/w0", "Counter.add"),
    ]
    assert waits() == ('waits for its turn at its actor Counter "tally"', 8)
    counted = {row["what"]: row["count"] for row in told(tables)[0]["waits"].values()}
    assert counted == {'Counter.add waits for its turn at its actor Counter "tally"': 2}
    trace.events = [TraceEvent(10_000, TraceKind.WORKER_ENDED, "node-1", "node-1/w0", "killed")]
    assert waits() == ('waits for its actor Counter "tally", which died with its worker', 10)
    trace.events = [TraceEvent(11_000, TraceKind.TASK_PUSHED, "head", task(1), "node-1/w1", "Counter", 1)]
    assert waits() == ('waits for its actor Counter "tally", which restarts', 11)
    actor = told(tables)[0]["actors"][task(1)]
    assert (actor["state"], actor["restarts"], actor["name"]) == ("RESTARTING", 1, "tally")


def test_what_waits_says_that_the_head_has_not_detected_the_death_of_a_node() -> None:
    trace = Rows()
    for node in ("node-1", "node-2"):
        trace.add(TraceKind.NODE_STARTED, node, node)
    trace.add(TraceKind.WORKER_STARTED, "node-2", "node-2/w0")
    for number in (1, 2, 3):
        trace.submitted(task(number))
    trace.add(TraceKind.TASK_PUSHED, "driver-1", task(1), other="node-2/w0", name="f")
    trace.add(TraceKind.TASK_STARTED, "node-2/w0", task(1), name="f")
    trace.add(TraceKind.TASK_PUSHED, "driver-1", task(2), other="node-2/w0", name="f")
    trace.killed("node-2")
    tables = Tables()
    of_run = TraceTables(tables)
    of_run.happened.is_head_seen = True
    of_run.take(trace.events)
    undetected = "; node-2 died at 0 s, and the head has not detected that yet"

    def waits() -> list[str]:
        rows = told(tables)[0]
        assert sum(row["count"] for row in rows["waits"].values()) == 3
        return [rows["tasks"][task(number)]["waits"] for number in (1, 2, 3)]

    words = [
        "was lost with its worker, and has not started again",
        "was sent to its worker, which has not started it",
        "waits for a free worker",
    ]
    assert waits() == [each + undetected for each in words]
    since = {row["since_s"] for row in told(tables)[0]["waits"].values()}
    assert since == {row["since_s"] for row in told(tables)[0]["tasks"].values()} == {5e-06, 8e-06, 9e-06}
    of_run.take([NodeNotice(20_000, "node-2", 0, Noticed.DEAD)])
    assert waits() == words
    assert {row["since_s"] for row in told(tables)[0]["waits"].values()} == since, "it waits for the same"


def test_a_task_whose_argument_is_lost_waits_for_that_and_not_for_a_worker() -> None:
    trace = Rows()
    for node in ("node-1", "node-2"):
        trace.add(TraceKind.NODE_STARTED, node, node)
    trace.ran("node-1/w0", task(1))
    trace.stored("node-1/w0", result(1))
    trace.submitted(task(2), result(1))
    tables = Tables()
    of_run = TraceTables(tables)

    def waits() -> str:
        of_run.take(trace.events)
        trace.events.clear()
        return str(told(tables)[0]["tasks"][task(2)]["waits"])

    assert waits() == "waits for a free worker"
    trace.killed("node-1")
    assert waits() == "waits for what f returned, whose only copy was lost"
    trace.stored("node-2/w0", result(1))
    assert waits() == "waits for a free worker"


def test_without_the_log_of_the_head_nothing_is_said_of_what_it_knows() -> None:
    trace = Rows()
    trace.add(TraceKind.NODE_STARTED, "node-2", "node-2")
    trace.submitted(task(1))
    trace.killed("node-2")
    rows, _ = of_trace(trace.events)
    assert rows["tasks"][task(1)]["waits"] == "waits for a free worker"


class Slow:
    @ray.method(duration=0.5)
    def step(self) -> int:
        return 1


def test_a_trace_says_whose_method_is_called(tmp_path: Path) -> None:
    def program() -> Any:
        actors = [ray.remote(Slow).options(name=f"slow-{number}").remote() for number in range(2)]
        return ray.get([actor.step.remote() for actor in actors for _ in range(3)])

    simulate(program, tmp_path / "log")
    rows, _ = whole(tmp_path / "log")
    calls = [row for row in rows["tasks"].values() if row["name"] == "Slow.step"]
    assert sorted(Counter(rows["actors"][row["actor"]]["name"] for row in calls).items()) == [
        ("slow-0", 3),
        ("slow-1", 3),
    ]


# ---- Sentences, colours, moments -------------------------------------------------------------------------------------


def test_a_sentence_leads_to_each_thing_that_it_is_about(killed: Path) -> None:
    rows, _ = whole(killed)
    tables = {"nodes": rows["nodes"], "tasks": rows["tasks"], "objects": rows["objects"], "workers": rows["workers"]}
    kinds = set()
    for row in rows["happened"].values():
        for table, key, called in row["about"]:
            kinds.add(table)
            assert called
            if table == MORE:
                continue
            assert key in (rows["nodes"] if table == "lost" else tables[table]), row
    assert kinds >= {"nodes", "tasks", "objects", "lost"}
    lost = next(row for row in rows["happened"].values() if row["kind"] == "fault")
    names = [called for table, _, called in lost["about"] if table == "tasks"]
    assert len(set(names)) == len(names), "two tasks are called the same"


def test_a_sentence_counts_what_it_does_not_lead_to(tmp_path: Path) -> None:
    @ray.remote(duration="10ms", num_cpus=0.1)
    def make(number: int) -> Any:
        return np.zeros(50_000)

    @ray.remote(duration="2s", num_cpus=0.1)
    def rest(values: Any) -> int:
        return values.size

    def program() -> None:
        ray.get([rest.remote(make.options(scheduling_strategy="SPREAD").remote(number)) for number in range(40)])

    simulate(program, tmp_path, nodes=2, faults=["kill node-1 at 1s"])
    rows, _ = whole(tmp_path)
    lost = next(row for row in rows["happened"].values() if row["kind"] == "fault")
    leads = Counter(table for table, _, _ in lost["about"])
    assert leads["objects"] == ABOUT_MAX
    (objects,) = re.findall(r"only copies of (\d+) objects", lost["words"])
    assert [MORE, "", f"and {int(objects) - ABOUT_MAX} more objects"] in lost["about"]
    again = [row for row in rows["happened"].values() if row["kind"] == "again"]
    assert any(called.endswith("more tasks") for row in again for _, _, called in row["about"])


def test_a_function_has_the_same_colour_on_the_page_and_in_the_report(killed: Path) -> None:
    _, head = whole(killed)
    text = page_of_report(read_record(killed))
    of_report = json.loads(re.search(r'"functions":(\[\[.*?\]\])', text)[1])  # type: ignore[index]
    assert dict(of_report) == dict(head["colours"])
    assert list(dict(head["colours"])) == ["load", "augment", "digest"]


def test_all_that_a_page_is_told_is_of_one_moment() -> None:
    """What happens after the moment is not told, not even of rows that have changed since."""
    trace = Rows()
    trace.add(TraceKind.NODE_STARTED, "node-1", "node-1")
    for number in range(20):
        trace.submitted(task(number))
    for number in range(20):
        trace.ran("node-1/w0", task(number))
    tables = Tables()
    of_run = TraceTables(tables)
    known: dict[str, dict[str, Any]] = {name: {} for name in COLUMNS}
    version = 0
    moment = tables.publish()
    for number, event in enumerate(trace.events):
        of_run.take([event])
        if number % 5 == 0:
            moment = tables.publish()
        if number % 7 != 0:
            continue
        while True:  # between two moments, and in parts
            found = tables.since(version, limit=3)
            version = found["version"]
            for name, changed in found["tables"].items():
                known[name].update({str(row[0]): dict(zip(COLUMNS[name], row, strict=False)) for row in changed})
            if not found["more"]:
                break
        assert version == moment.version
        states = Counter(row["state"] for row in known["tasks"].values())
        head = found["head"]
        assert (states["RUNNING"], states["FINISHED"]) == (head["running"], head["finished"])
        assert len(known["tasks"]) == head["tasks"]
        assert known["nodes"]["node-1"]["cpus_used"] == head["running"]


def test_a_node_that_came_back_before_the_head_noticed_is_alive(tmp_path: Path) -> None:
    simulate(with_actor, tmp_path / "log", faults=["reboot node-1 when augment starts 2 for 2s"])
    rows, head = whole(tmp_path / "log")
    said = [row["words"] for row in rows["happened"].values()]
    killed = next(words for words in said if words.startswith("node-1 was killed."))
    assert "s later)" in killed
    assert any(words.startswith("The head detected that node-1 had died") for words in said)
    node = rows["nodes"]["node-1"]
    assert (node["state"], node["lives"], node["noticed_s"], node["why"]) == ("ALIVE", 1, None, "")
    assert head["nodes"] == 3


class Restarted:
    @ray.method(duration=0.3)
    def step(self) -> int:
        return 1


def test_an_actor_that_died_with_its_node_is_told_of_and_where_it_restarts(tmp_path: Path) -> None:
    def program() -> Any:
        options = {"max_restarts": 1, "max_task_retries": -1, "scheduling_strategy": "SPREAD"}
        actors = [ray.remote(Restarted).options(name=f"actor-{number}", **options).remote() for number in range(3)]
        return ray.get([actor.step.remote() for actor in actors for _ in range(6)])

    simulate(program, tmp_path / "log", faults=["kill node-1 at 1s"])
    rows, _ = whole(tmp_path / "log")
    said = {row["kind"]: row for row in rows["happened"].values() if "ctor" in row["words"]}
    actor = next(row for row in rows["actors"].values() if row["restarts"])
    assert f'1 actor died there: Restarted "{actor["name"]}".' in said["fault"]["words"]
    assert said["again"]["words"] == f'Actor Restarted "{actor["name"]}" restarts on {actor["worker"]}.'
    for row in said.values():
        assert ["actors", actor["actor"], f'Restarted "{actor["name"]}"'] in row["about"]
