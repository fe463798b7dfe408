"""The tables of a run: what they hold, what a page is told, and that they stay small."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import dualray as ray
from dualray.dashboard import tables as tables_module
from dualray.dashboard.demand import STEPS_MAX, Demand
from dualray.dashboard.from_trace import TraceTables
from dualray.dashboard.tables import COLUMNS, Tables
from dualray.report.state import rows_of_run
from dualray.report.traces import read_traces
from dualray.shared.proof.trace import TraceEvent, TraceKind
from tests.dashboard.support import wide_trace
from tests.report.support import MIB, Rows, result, simulate, task, two_steps, was_put


def told(tables: Tables, version: int = 0) -> tuple[dict[str, dict[str, Any]], int]:
    """All that is newer, as a page puts it together."""
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
    assert "The only copy of 1 object went with it." in rows["happened"]["2"]["words"]


def test_a_page_is_told_what_is_newer_and_nothing_else() -> None:
    tables = Tables()
    for key in ("a", "b", "c"):
        tables.put("waits", key, lambda key=key: [key, 1, 0.0])  # type: ignore[misc]
    first = tables.since(0, limit=2)
    assert [row[0] for row in first["tables"]["waits"]] == ["a", "b"]
    assert first["more"]
    tables.put("waits", "a", lambda: None)
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
    TraceTables(tables).take(trace.events)
    assert [row[0] for row in tables.rows("tasks")] == [task(2), task(3), task(4)]
    assert tables.since(0)["dropped"] == {"tasks": 2}


def test_demand_of_a_long_run_keeps_its_peaks_in_few_steps() -> None:
    tables = Tables()
    demand = Demand(tables)
    for second in range(5_000):
        demand.now = [second % 7, 100 if second == 1_234 else 0, 0, 4.0, 2]
        demand.note(float(second))
    rows = told(tables)[0]["demand"]
    assert len(rows) <= STEPS_MAX
    assert max(row["queued"] for row in rows.values()) == 100
    peak = next(row for row in rows.values() if row["queued"] == 100)
    assert peak["step"] * demand.step_s <= 1_234 < (peak["step"] + 1) * demand.step_s


def test_a_trace_of_many_tasks_is_taken_in_whole(tmp_path: Path) -> None:
    rows, head = of_trace(read_traces(wide_trace(tmp_path, 2_000)))
    assert head["finished"] == len(rows["tasks"]) == len(rows["spans"]) == 2_000
    assert rows["demand"]
