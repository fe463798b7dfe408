"""The record of a program of plain Ray, from what Ray leaves of it: `dualray import-ray`.

What the events do not tell is estimated, and the record says so (`facts["estimates"]`): a prediction lists it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from dualray.input_files import read_text
from dualray.recording.file import RunRecord
from dualray.recording.inferred import Inferred, Wait, infer
from dualray.recording.ray_events import Attempt, Call, RayJob, read_events
from dualray.recording.recorded import template_words
from dualray.shared.model.demands import parse_named
from dualray.shared.model.ids import function_id
from dualray.shared.model.resources import told
from dualray.shared.model.specs import FunctionTemplate

_INLINE_BYTES_MAX = 100 * 1024
_SMALL_NS = 400_000
"""To store a small result takes less."""
_SMALL_BYTES = 1024
_STORED_BYTES_PER_S = 1_500_000_000
"""How fast a worker of Ray stores a large result: pickling and one copy. Estimated; give sizes to be sure."""


def import_ray(
    logs: Path,
    *,
    job: str | None = None,
    timeline: Path | None = None,
    sizes: Path | None = None,
    edges: Path | None = None,
) -> RunRecord:
    """The record of one job.

    Args:
        logs, job, timeline: see `read_events`.
        sizes: a JSON file, `{"function": bytes of its result}`; what it does not name is estimated.
        edges: a JSON file, `[["maker's task id", "taker's task id"], ...]`, in hex; None: they are inferred.

    Raises:
        ValueError: a file cannot be used; the message names it and the way out.
    """
    read = read_events(logs, job=job, timeline=timeline)
    ends_ns = {call.task: (call.last.spans.get("execute") or (0, call.last.ended_ns))[1] for call in read.calls}
    found = infer(read.calls, ends_ns)
    estimates = [f"dualray imported {len(read.calls)} calls from Ray's events. {_lost_words(read)}."]
    if read.begins:
        estimates.append(
            f"dualray estimated the start times of {read.begins} attempts, because the workers of these attempts ended "
            "before they wrote their last events."
        )
    if edges is not None:
        found.arguments = _given_edges(edges, read)
    else:
        estimates.append(
            f"dualray inferred {found.seen + found.guessed} dependencies between calls: {found.seen} from observed "
            f"waits, and {found.guessed} from a pattern. {'. '.join(found.words)}{'.' if found.words else ''}"
        )
    estimates.append("dualray inferred from the pauses of callers what the callers waited for.")
    known = _given_sizes(sizes, read) if sizes is not None else {}
    guessed = dict.fromkeys(call.name for call in read.calls if call.name not in known and not call.is_creation)
    if guessed:
        listed = ", ".join(list(guessed)[:6]) + (f" and {len(guessed) - 6} more" if len(guessed) > 6 else "")
        estimates.append(
            f"dualray estimated the result sizes of {listed} from the time that storing the results took. Estimates "
            "above 1 MiB are right within a factor of three, and smaller estimates are not reliable. You can give the "
            "sizes with --sizes."
        )
    return _record(read, found, known, estimates)


def _lost_words(read: RayJob) -> str:
    lost = [f"{count} {what}" for what, count in read.lost.items() if count]
    return f"Lost events: {', '.join(lost)} ({read.lost_share:.1%})" if lost else "No event was lost"


def _given_sizes(path: Path, read: RayJob) -> dict[str, int]:
    given = _json(path, "--sizes")
    if not isinstance(given, dict) or not all(type(size) is int and size >= 0 for size in given.values()):
        raise ValueError(
            f'--sizes={path} must be a JSON object of function name to bytes, such as {{"function": 1048576}}'
        )
    names = {call.name for call in read.calls}
    for name in given:
        if name not in names:
            raise ValueError(
                f"--sizes={path} names the function {name!r}, but the job calls only the functions "
                f"{', '.join(sorted(names))}"
            )
    return given


def _given_edges(path: Path, read: RayJob) -> dict[str, tuple[str, ...]]:
    given = _json(path, "--edges")
    is_right = isinstance(given, list) and all(isinstance(pair, list) and len(pair) == 2 for pair in given)
    if not is_right:
        raise ValueError(
            f'--edges={path} must be a JSON list such as [["id of a task", "id of the task that takes its result"]]'
        )
    tasks = {call.task for call in read.calls}
    arguments: dict[str, list[str]] = {}
    for maker, taker in given:
        for task in (maker, taker):
            if task not in tasks:
                raise ValueError(f"--edges={path} names the task {task!r}, which job {read.job} does not have")
        arguments.setdefault(taker, []).append(maker)
    return {taker: tuple(dict.fromkeys(makers)) for taker, makers in arguments.items()}


def _json(path: Path, option: str) -> Any:
    try:
        return json.loads(read_text(path, bytes_max=None))
    except OSError as error:
        raise ValueError(f"{option}={str(path)!r} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{option}={path} is not valid JSON: {error}") from None


# ---- Rows ------------------------------------------------------------------------------------------------------------


def _id(task: str) -> bytes:
    """The record's id of a task; a constructor's is that of its actor."""
    ray_id = bytes.fromhex(task)
    return ray_id[8:24] if ray_id[:8] == b"\xff" * 8 else ray_id[:12] + ray_id[20:24]


def _result(task: str) -> bytes:
    return _id(task) + bytes(4)


def _size_of(call: Call, attempt: Attempt, known: Mapping[str, int]) -> int:
    """Of its result."""
    if call.name in known:
        return known[call.name]
    began_ns, ended_ns = attempt.spans.get("store_outputs", (0, 0))
    took_ns = ended_ns - began_ns
    return _SMALL_BYTES if took_ns <= _SMALL_NS else round((took_ns - _SMALL_NS) / 1e9 * _STORED_BYTES_PER_S)


def _record(read: RayJob, found: Inferred, known: Mapping[str, int], estimates: Sequence[str]) -> RunRecord:
    names = {node: f"node-{index}" for index, node in enumerate(read.nodes)}
    nodes = {names[node]: _node(resources) for node, resources in read.nodes.items()}
    if not nodes:
        workers = {call.last.worker for call in read.calls}
        nodes = {"node-0": {"resources": {"CPU": float(max(1, len(workers)))}, "object_store": 2**30}}
    driver = _id(read.driver)
    sizes = _median_sizes(read, known)
    rows: list[dict[str, Any]] = []
    for call in read.calls:
        rows.append(_task_row(call, found.arguments.get(call.task, ()), driver))
        rows += [_run_row(call, one, sizes[call.name], names) for one in call.attempts.values() if one.ended_ns]
    for caller, waits in found.waits.items():
        rows += [_get_row(_caller_id(caller, read, driver), wait) for wait in waits]
    began_ns = min(call.submitted_ns for call in read.calls)
    ended_ns = max(call.last.ended_ns for call in read.calls)
    for row in rows:
        for name in ("time_ns", "end_ns", "came_ns", "called_ns", "returned_ns"):
            if name in row:
                row[name] -= began_ns
    rows.sort(key=lambda row: row["time_ns"])
    facts = {
        "mode": "imported",
        "driver": driver.hex(),
        "nodes": nodes,
        "machine": "a Ray cluster, from its events",
        "cores": None,
        "date": "",
        "inline_bytes_max": _INLINE_BYTES_MAX,
        "began_ns": 0,
        "ended_ns": ended_ns - began_ns,
        "estimates": list(estimates),
    }
    return RunRecord(rows=rows, facts=facts)


def _node(resources: Mapping[str, float]) -> dict[str, Any]:
    kept = {name: amount for name, amount in resources.items() if name != "object_store_memory"}
    store_bytes = round(resources.get("object_store_memory", 2**30))
    return {"resources": told(parse_named(kept)).as_floats(), "object_store": store_bytes}


def _median_sizes(read: RayJob, known: Mapping[str, int]) -> dict[str, int]:
    """Of the results of each function: one time says little."""
    found: dict[str, list[int]] = {}
    for call in read.calls:
        found.setdefault(call.name, []).append(_size_of(call, call.last, known))
    return {name: round(median(each)) for name, each in found.items()}


def _caller_id(caller: str, read: RayJob, driver: bytes) -> bytes:
    return driver if caller == read.driver else _id(caller)


def _task_row(call: Call, arguments: Sequence[str], driver: bytes) -> dict[str, Any]:
    is_method = bool(call.actor) and not call.is_creation
    demand = parse_named(call.resources)
    template = FunctionTemplate(
        function_id=function_id(call.name.encode()),
        name=call.name,
        resources=demand,
        placement=demand,
        num_returns=0 if call.is_creation else 1,
        max_retries=max(call.attempts),
        retry_exceptions=max(call.attempts) > 0,
    )
    row = {
        "kind": "task",
        "time_ns": call.submitted_ns,
        "process": "driver-1" if _id(call.parent) == driver else "unknown",
        "parent": _id(call.parent),
        "attempt": 0,
        "task": _id(call.task),
        "name": call.name,
        "template": template_words(template),
        "bytes": _SMALL_BYTES,
        "objects": tuple([_result(task) for task in arguments]),
        "nested": (),
        "values": 0,
    }
    if is_method:
        row["actor"] = bytes.fromhex(call.actor)
    if call.is_creation:
        row["number"] = 0
    return row


def _run_row(call: Call, attempt: Attempt, size: int, names: Mapping[str, str]) -> dict[str, Any]:
    began_ns, ended_ns = attempt.began_ns, attempt.ended_ns
    called_ns, returned_ns = attempt.spans.get("execute", (began_ns, ended_ns))
    stored = attempt.spans.get("store_outputs", (returned_ns, returned_ns))
    node = names.get(attempt.node, "node-0")
    has_result = not (call.is_creation or attempt.error)
    return {
        "kind": "run",
        "time_ns": min(began_ns or called_ns, called_ns),
        "end_ns": max(stored[1], returned_ns),
        "process": f"{node}/w{attempt.worker[:8]}",
        "node": node,
        "task": _id(call.task),
        "attempt": attempt.number,
        "name": call.name,
        "came_ns": began_ns or called_ns,
        "called_ns": called_ns,
        "returned_ns": returned_ns,
        "stored_ns": max(0, stored[1] - stored[0]),
        "sizes": (size,) if has_result else (),
        "nested": (),
        "other": attempt.error,
    }


def _get_row(caller: bytes, wait: Wait) -> dict[str, Any]:
    return {
        "kind": "get",
        "time_ns": wait.began_ns,
        "end_ns": wait.ended_ns,
        "process": "driver-1",
        "task": caller,
        "attempt": 0,
        "objects": tuple([_result(task) for task in wait.tasks]),
    }
