from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from dualray.report.timeline import timeline, write_timeline
from dualray.report.traces import read_traces
from dualray.shared.proof.trace import TraceKind
from tests.report.support import Rows, result, simulate, task, two_steps


def rows_of(rows: Rows, phase: str) -> list[dict[str, Any]]:
    return [row for row in timeline(rows.events)["traceEvents"] if row["ph"] == phase]


def test_task_is_a_slice_on_its_worker():
    rows = Rows()
    rows.submitted(task(1))
    rows.ran("node-1/w0", task(1))
    (drawn,) = rows_of(rows, "X")
    assert (drawn["name"], drawn["ts"], drawn["dur"]) == ("f", 1.0, 1.0)
    assert drawn["args"] == {"task": task(1), "attempt": 0, "outcome": "finished"}
    names = {(row["name"], row["pid"], row["tid"]): row["args"]["name"] for row in rows_of(rows, "M")}
    assert names["process_name", drawn["pid"], 0] == "node-1"
    assert names["thread_name", drawn["pid"], drawn["tid"]] == "w0"


def test_slice_of_a_task_that_died_with_its_node_ends_there():
    rows = Rows()
    rows.add(TraceKind.TASK_STARTED, "node-1/w0", task(1), name="f")
    rows.add(TraceKind.TASK_STARTED, "node-10/w0", task(2), name="g")
    rows.killed("node-1")
    rows.retried(task(1), "retry")
    lost, running = rows_of(rows, "X")
    assert (lost["name"], lost["dur"], lost["args"]["outcome"]) == ("f", 2.0, "lost")
    assert (running["name"], running["dur"], running["args"]["outcome"]) == ("g", 2.0, "not ended")


def test_slice_of_a_task_that_died_with_its_worker_ends_there():
    rows = Rows()
    rows.add(TraceKind.TASK_STARTED, "node-1/w0", task(1), name="f")
    rows.add(TraceKind.WORKER_ENDED, "node-1", "node-1/w0", other="killed by SIGKILL")
    rows.ran("node-1/w1", task(1), attempt=1)
    lost, again = rows_of(rows, "X")
    assert (lost["dur"], lost["args"]["outcome"]) == (1.0, "lost")
    assert again["args"]["attempt"] == 1


def test_transfer_is_an_asynchronous_slice_on_the_receiver():
    rows = Rows()
    rows.add(TraceKind.NODE_STARTED, "node-2", "node-2")
    rows.moved("node-1", "node-2", result(1), amount=77)
    (begun,), (ended,) = rows_of(rows, "b"), rows_of(rows, "e")
    assert (begun["name"], begun["args"]["bytes"], begun["args"]["outcome"]) == ("node-1 to node-2", 77, "arrived")
    assert begun["id"] == ended["id"]
    assert (begun["ts"], ended["ts"]) == (1.0, 2.0)
    places = {row["pid"]: row["args"]["name"] for row in rows_of(rows, "M") if row["name"] == "process_name"}
    assert places[begun["pid"]] == "node-2"


def test_transfer_that_broke_off_lasts_to_the_end_and_says_so():
    rows = Rows()
    rows.add(TraceKind.TRANSFER_STARTED, "node-1", result(1), other="node-2", amount=77)
    rows.killed("node-1")
    (begun,), (ended,) = rows_of(rows, "b"), rows_of(rows, "e")
    assert begun["args"]["outcome"] == "not ended"
    assert ended["ts"] == 1.0


def test_faults_retries_and_evictions_are_instants():
    rows = Rows()
    rows.killed("node-1")
    rows.retried(task(1), "reconstruction")
    rows.add(TraceKind.OBJECT_EVICTED, "node-2", result(1))
    assert [(row["name"], row["s"]) for row in rows_of(rows, "i")] == [
        ("fault: kill node", "g"),
        ("retry: reconstruction", "t"),
        (f"evict: {result(1)[:8]}", "t"),
    ]


def test_of_nothing_is_an_empty_picture():
    assert timeline([])["traceEvents"] == []


def test_file_of_a_run_has_what_the_format_asks_for(tmp_path: Path):
    """https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU, the keys of each phase."""
    simulate(lambda: two_steps(4), tmp_path, faults=["kill node-2 when digest starts 5"])
    write_timeline(read_traces(tmp_path), tmp_path / "timeline.json")
    picture = json.loads((tmp_path / "timeline.json").read_text())
    rows = picture["traceEvents"]
    assert {row["ph"] for row in rows} == {"M", "X", "b", "e", "i", "C"}
    asked = {
        "M": {"name", "args"},
        "X": {"ts", "dur"},
        "b": {"ts", "id", "cat"},
        "e": {"ts", "id", "cat"},
        "i": {"s"},
        "C": {"ts", "args"},
    }
    for row in rows:
        assert {"pid", "tid", "name"} | asked[row["ph"]] <= row.keys(), row
        assert row.get("ts", 0) >= 0
        assert row.get("dur", 0) >= 0
    for row in rows:
        if row["ph"] == "C":
            assert all(isinstance(value, int | float) for value in row["args"].values()), row
    begun = Counter((row["cat"], row["id"], row["pid"]) for row in rows if row["ph"] == "b")
    assert begun == Counter((row["cat"], row["id"], row["pid"]) for row in rows if row["ph"] == "e")
    assert set(begun.values()) == {1}
    threads = {(row["pid"], row["tid"]) for row in rows if row["ph"] == "M" and row["name"] == "thread_name"}
    assert {(row["pid"], row["tid"]) for row in rows if row["ph"] != "M"} <= threads
