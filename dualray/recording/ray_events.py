"""What a Ray cluster has left of its own accord, as calls: the export of its events, and `ray timeline`.

With RAY_enable_export_api_write=1 in its environment each process of a cluster writes JSON lines to the directory
`logs/export_events` of its session: `event_EXPORT_TASK_<pid>.log`, and others of actors, nodes and jobs. A task has
several rows: of its owner (what it is, when its state changed) and of its worker (what it spent its time on). So it was
seen on Ray 2.60. `ray timeline` writes a Chrome trace: the same spans, of which those that lack in the export are
taken.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dualray.input_files import read_text

SUBMITTED, ARGUMENTS_THERE, SENT, RUNNING, FINISHED, FAILED = 1, 2, 5, 8, 11, 12
"""Ray's numbers of the states that are looked at."""
LOST_MAX = 0.02
"""More lost events than this, and nothing is predicted."""
_DRIVER = "DRIVER_TASK"
_CREATION = "ACTOR_CREATION_TASK"


@dataclass(slots=True)
class Attempt:
    """One attempt of a call. Times in ns; 0: unknown.

    states: when it entered a state, by number.
    spans: begin and end, by what the worker did: `deserialize_arguments`, `execute`, `store_outputs`.
    """

    number: int
    states: dict[int, int] = field(default_factory=dict)
    spans: dict[str, tuple[int, int]] = field(default_factory=dict)
    node: str = ""
    worker: str = ""
    error: str = ""

    @property
    def began_ns(self) -> int:
        """When the worker had it."""
        known = self.spans.get("deserialize_arguments") or self.spans.get("execute") or (0, 0)
        return self.states.get(RUNNING) or known[0]

    @property
    def ended_ns(self) -> int:
        """When its owner knew of its end."""
        known = self.spans.get("store_outputs") or self.spans.get("execute") or (0, 0)
        return self.states.get(FINISHED) or self.states.get(FAILED) or known[1]


@dataclass(slots=True)
class Call:
    """One call: of a function, of a method, or of an actor's class."""

    task: str
    name: str = ""
    kind: str = ""
    parent: str = ""
    actor: str = ""
    resources: dict[str, float] = field(default_factory=dict)
    attempts: dict[int, Attempt] = field(default_factory=dict)

    @property
    def is_creation(self) -> bool:
        """Whether the task constructs an actor."""
        return self.kind == _CREATION

    @property
    def submitted_ns(self) -> int:
        """When it was submitted; 0: unknown."""
        return min((one.states[SUBMITTED] for one in self.attempts.values() if SUBMITTED in one.states), default=0)

    @property
    def last(self) -> Attempt:
        """The attempt that counts."""
        return self.attempts[max(self.attempts)]


@dataclass(slots=True)
class RayJob:
    """What one driver did.

    calls: in order of submission. nodes: the resources of each, by Ray's id. driver: its task.
    lost: what lacks, in words, each with how many. total: how many events there ought to be.
    begins: how many attempts have an estimated begin, because their worker ended before it wrote its last events.
    """

    job: str
    driver: str
    calls: list[Call]
    nodes: dict[str, dict[str, float]]
    lost: dict[str, int]
    total: int
    begins: int = 0

    @property
    def lost_share(self) -> float:
        """How much of it lacks."""
        return sum(self.lost.values()) / max(1, self.total)


def read_events(logs: Path, *, job: str | None = None, timeline: Path | None = None) -> RayJob:
    """Read what a cluster has left.

    Args:
        logs: the directory `export_events`, or one that holds it, such as a session's.
        job: of which driver, in hex; None: there is one.
        timeline: a file of `ray timeline`, for spans that lack.

    Raises:
        ValueError: there are no such files, or none of this job; they are cut off or of another kind; too much is lost.
    """
    files = _files(logs)
    try:
        rows = [row for file in files for row in _rows(file)]
        calls, drivers, jobs = _calls(rows)
        nodes = _nodes(rows)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"the events in {logs} are damaged: {type(error).__name__}: {error}") from None
    chosen = _chosen(job, jobs, calls)
    own = {key: call for key, call in calls.items() if key.endswith(chosen) and call.kind != _DRIVER}
    if timeline is not None:
        _add_timeline(timeline, own)
    found = [call for call in own.values() if call.name]
    lost, total = _lost(own)
    kept = [call for call in found if call.submitted_ns and call.attempts]
    kept.sort(key=lambda call: (call.submitted_ns, call.task))
    read = RayJob(chosen, drivers.get(chosen, "ff" * 20 + chosen), kept, nodes, lost, total, _estimate_begins(kept))
    if read.lost_share > LOST_MAX:
        words = ", ".join(f"{count} {what}" for what, count in lost.items() if count)
        raise ValueError(
            f"{logs}: {read.lost_share:.1%} of the events of job {chosen} are lost ({words}), and a "
            f"prediction allows at most {LOST_MAX:.0%}. Let the program end with ray.shutdown(), and copy the logs "
            "some seconds later"
        )
    if not kept:
        raise ValueError(f"{logs}: job {chosen} has no tasks, so dualray cannot convert the job into a recorded run")
    return read


def _files(logs: Path) -> list[Path]:
    if not logs.exists():
        raise ValueError(f"there is no file or directory {str(logs)!r}")
    files = [logs] if logs.is_file() else sorted(logs.rglob("event_EXPORT_*.log"))
    if not any("EXPORT_TASK" in file.name for file in files):
        raise ValueError(
            f"{str(logs)!r} has no event_EXPORT_TASK_*.log: start the cluster with RAY_enable_export_api_write=1, "
            "and give the directory logs/export_events of the cluster's session"
        )
    return files


def _text_of(file: Path) -> str:
    try:
        return read_text(file, bytes_max=None, errors="replace")
    except OSError as error:
        raise ValueError(f"{str(file)!r} cannot be read: {error.strerror}") from None


def _rows(file: Path) -> Iterator[dict[str, Any]]:
    """The rows of one file. The last line may be cut off: its process was ended."""
    lines = _text_of(file).splitlines()
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            kind, data = row["source_type"], row["event_data"]
        except (ValueError, KeyError, TypeError, RecursionError):
            if number == len(lines):
                return
            raise ValueError(f"{file}, line {number}: the line is not an event that Ray exported") from None
        yield {"kind": kind, **data}


def _hex(text: str | None) -> str:
    """An id, of base64."""
    try:
        return base64.b64decode(text or "", validate=True).hex()
    except (binascii.Error, ValueError):
        raise ValueError(f"{text!r} is not an id of Ray, because it is not base64") from None


def _calls(rows: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Call], dict[str, str], dict[str, str]]:
    """Calls by id; the driver's task of each job; and what each job ran."""
    calls: dict[str, Call] = {}
    drivers: dict[str, str] = {}
    jobs: dict[str, str] = {}
    for row in rows:
        if row["kind"] == "EXPORT_DRIVER_JOB":
            jobs[_hex(row["job_id"])] = row.get("entrypoint", "")
        if row["kind"] != "EXPORT_TASK":
            continue
        key = _hex(row["task_id"])
        call = calls.get(key)
        if call is None:
            call = calls[key] = Call(key)
        number = int(row.get("attempt_number", 0))
        attempt = call.attempts.get(number)
        if attempt is None:
            attempt = call.attempts[number] = Attempt(number)
        _add(call, attempt, row)
        if call.kind == _DRIVER:
            drivers[key[-8:]] = key
    return calls, drivers, jobs


def _add(call: Call, attempt: Attempt, row: Mapping[str, Any]) -> None:
    """What a row says of a call."""
    info = row.get("task_info")
    if info:
        call.name, call.kind = info.get("func_or_class_name", ""), info.get("type", "")
        call.parent, call.actor = _hex(info.get("parent_task_id")), _hex(info.get("actor_id"))
        call.resources = {name: float(amount) for name, amount in info.get("required_resources", {}).items()}
    updates = row.get("state_updates", {})
    for state, time_ns in updates.get("state_ts_ns", {}).items():
        attempt.states[int(state)] = int(time_ns)
    attempt.node = _hex(updates.get("node_id")) or attempt.node
    attempt.worker = _hex(updates.get("worker_id")) or attempt.worker
    if FAILED in attempt.states:
        attempt.error = "APPLICATION"
    for event in row.get("profile_events", {}).get("events", ()):
        name = event["event_name"]
        if name.startswith("task:") and not name.startswith("task::"):
            attempt.spans[name.removeprefix("task:")] = int(event["start_time"]), int(event["end_time"])


def _nodes(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """The resources of each node, that of the head first."""
    found: dict[str, tuple[bool, dict[str, float]]] = {}
    for row in rows:
        if row["kind"] == "EXPORT_NODE" and row.get("resources_total"):
            resources = {name: float(amount) for name, amount in row["resources_total"].items()}
            found[_hex(row["node_id"])] = bool(row.get("is_head_node")), resources
    return {node: found[node][1] for node in sorted(found, key=lambda node: not found[node][0])}


def _chosen(job: str | None, jobs: Mapping[str, str], calls: Mapping[str, Call]) -> str:
    counts: dict[str, int] = {}
    for call in calls.values():
        if call.kind != _DRIVER:
            counts[call.task[-8:]] = counts.get(call.task[-8:], 0) + 1
    if job is not None and job not in counts:
        raise ValueError(f"job={job!r} has no tasks; jobs with tasks: {', '.join(sorted(counts)) or 'none'}")
    if job is not None:
        return job
    if len(counts) > 1:
        listed = "; ".join(f"{each} ({counts[each]} calls, {jobs.get(each) or 'unknown'})" for each in sorted(counts))
        raise ValueError(f"the events belong to several jobs; choose one with --job: {listed}")
    return next(iter(counts), "")


def _lost(calls: Mapping[str, Call]) -> tuple[dict[str, int], int]:
    """What lacks, and how many events there ought to be: of each call its submission, and of each attempt an end."""
    lost = {"submissions": 0, "attempts": 0, "ends": 0, "begins": 0}
    total = 0
    for call in calls.values():
        last = max(call.attempts)
        total += last + 2
        lost["submissions"] += not (call.name and call.submitted_ns)
        lost["attempts"] += last + 1 - len(call.attempts)
        lost["ends"] += sum(not one.ended_ns for one in call.attempts.values())
        known = [one for one in call.attempts.values() if one.ended_ns]
        lost["begins"] += sum(not (one.began_ns or one.states.get(SENT)) for one in known)
    return lost, total


def _estimate_begins(calls: Sequence[Call]) -> int:
    """Give attempts whose worker tells of no begin the time when they were sent to it, or when the worker was free, if
    that was later; how many there were."""
    count = 0
    free_ns: dict[str, int] = {}
    ended = [one for call in calls for one in call.attempts.values() if one.ended_ns]
    for attempt in sorted(ended, key=lambda one: one.ended_ns):
        if not attempt.began_ns:
            attempt.states[RUNNING] = max(attempt.states.get(SENT, 0), free_ns.get(attempt.worker, 0))
            count += 1
        if attempt.worker:
            free_ns[attempt.worker] = attempt.ended_ns
    return count


def _add_timeline(file: Path, calls: Mapping[str, Call]) -> None:
    """Spans of a Chrome trace: those of a worker that lie within the span of a task are the task's."""
    try:
        events = json.loads(read_text(file, bytes_max=None))
        spans = [event for event in events if event["ph"] == "X"]
        if not spans:
            raise ValueError(events)
    except OSError as error:
        raise ValueError(f"{str(file)!r} cannot be read: {error.strerror}") from None
    except (ValueError, TypeError, KeyError, RecursionError):
        raise ValueError(f"{file} is not a timeline; `ray timeline` writes one") from None
    of_worker: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for event in spans:
        of_worker.setdefault((event["pid"], event["tid"]), []).append(event)
    for each in of_worker.values():
        each.sort(key=lambda event: (event["ts"], -event["dur"]))  # a task stands before what is done for it
        attempt, end = None, 0.0
        for event in each:
            task = event.get("args", {}).get("task_id")
            if task is not None:
                attempt = calls[task].last if task in calls else None
                end = event["ts"] + event["dur"]
            elif attempt is not None and event["ts"] + event["dur"] <= end:
                span = round(event["ts"] * 1e3), round((event["ts"] + event["dur"]) * 1e3)
                attempt.spans.setdefault(event["cat"].removeprefix("task:"), span)
