"""Event logs as Ray 2.60 exports them, of programs that a small scheduler has made up: `write`."""

from __future__ import annotations

import base64
import heapq
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

JOB = "01000000"
DRIVER = "ff" * 20 + JOB
NODE = "ab" * 28
_MS = 1_000_000
_BEGIN_NS = 1_700_000_000 * 10**9


@dataclass(frozen=True)
class Made:
    """A call of a made-up program: which results it takes, how long it computes, and how long storing takes, in ms."""

    name: str
    takes: tuple[int, ...] = ()
    takes_ms: float = 20.0
    stores_ms: float = 0.15


def task_id(number: int, job: str = JOB) -> str:
    """The id of a call."""
    return f"{number + 1:016x}" + "ff" * 12 + job


def edges_of(program: Sequence[Made]) -> list[list[str]]:
    """Which call's result is which call's argument."""
    return [[task_id(maker), task_id(taker)] for taker, made in enumerate(program) for maker in made.takes]


def _b64(text: str) -> str:
    return base64.b64encode(bytes.fromhex(text)).decode()


def rows_of(program: Sequence[Made], workers: int = 1, job: str = JOB) -> list[dict[str, Any]]:
    """The rows of a run of the program: its driver submits all calls, 0.05 ms apart, and waits for all."""
    submitted = [_BEGIN_NS + index * 50_000 for index in range(len(program))]
    ended: dict[int, int] = {}
    free = [_BEGIN_NS + 500_000] * workers
    rows: list[dict[str, Any]] = []
    waiting = list(range(len(program)))
    while waiting:
        ready = [index for index in waiting if all(maker in ended for maker in program[index].takes)]
        there = {index: max([submitted[index], *[ended[maker] for maker in program[index].takes]]) for index in ready}
        index = min(ready, key=lambda each: (max(there[each], free[0]), each))
        waiting.remove(index)
        began = max(there[index], heapq.heappop(free)) + 400_000
        rows += _rows_of_call(index, program[index], submitted[index], there[index] + 30_000, began, job)
        ended[index] = began + round((program[index].takes_ms + program[index].stores_ms) * _MS) + 300_000
        heapq.heappush(free, ended[index])
    return rows


def _rows_of_call(
    index: int, made: Made, submitted_ns: int, there_ns: int, began_ns: int, job: str
) -> list[dict[str, Any]]:
    called = began_ns + 100_000
    returned = called + round(made.takes_ms * _MS)
    stored = returned + round(made.stores_ms * _MS)
    common = {"task_id": _b64(task_id(index, job)), "attempt_number": 0, "job_id": _b64(job)}
    info = {
        "func_or_class_name": made.name,
        "type": "NORMAL_TASK",
        "parent_task_id": _b64("ff" * 20 + job),
        "required_resources": {"CPU": 1},
    }
    states = {"1": submitted_ns, "2": there_ns, "5": began_ns - 200_000, "11": stored + 200_000}
    owner = {
        **common,
        "task_info": info,
        "state_updates": {"node_id": _b64(NODE), "state_ts_ns": {key: str(value) for key, value in states.items()}},
    }
    spans = {
        "deserialize_arguments": (began_ns, called),
        "execute": (called, returned),
        "store_outputs": (returned, stored),
    }
    events = [
        {"event_name": f"task:{name}", "start_time": str(first), "end_time": str(last)}
        for name, (first, last) in spans.items()
    ]
    worker = {**common, "profile_events": {"events": events}, "state_updates": {"state_ts_ns": {"8": str(began_ns)}}}
    return [owner, worker]


def write(directory: Path, rows: Sequence[dict[str, Any]], cpus: int = 1) -> Path:
    """The directory of logs."""
    logs = directory / "export_events"
    logs.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"source_type": "EXPORT_TASK", "event_data": row}) for row in rows]
    (logs / "event_EXPORT_TASK_17.log").write_text("\n".join(lines) + "\n")
    node = {
        "node_id": _b64(NODE),
        "is_head_node": True,
        "resources_total": {"CPU": cpus, "object_store_memory": 2**28, "node:192.0.2.1": 1},
    }
    (logs / "event_EXPORT_NODE.log").write_text(json.dumps({"source_type": "EXPORT_NODE", "event_data": node}) + "\n")
    return logs


def timeline_of(program: Sequence[Made], rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """What `ray timeline` writes of the same run."""
    events = []
    for row in rows:
        if "profile_events" not in row:
            continue
        task = base64.b64decode(row["task_id"]).hex()
        spans = [
            {
                "cat": each["event_name"],
                "name": each["event_name"],
                "ts": int(each["start_time"]) / 1e3,
                "dur": (int(each["end_time"]) - int(each["start_time"])) / 1e3,
                "args": {},
            }
            for each in row["profile_events"]["events"]
        ]
        whole = {"cat": "task::f", "name": "f", "ts": spans[0]["ts"] - 1, "args": {"task_id": task}}
        whole["dur"] = spans[-1]["ts"] + spans[-1]["dur"] - whole["ts"] + 1
        events += [{"ph": "X", "pid": "192.0.2.1", "tid": "worker:1", **each} for each in (*spans, whole)]
    return events
