"""A recorded program as scripts: the requests and computing times of the driver and of each task.

A script is a list of operations, each with the time that its code computed before it:

    SUBMIT  task                    GET     objects
    PUT     object, size, nested    WAIT    objects, num_returns, timeout_ns or None, ready, whether they are fetched
    DROP    objects                 ITEM    object, size, nested, error: a generator's
    TAKE    task (a generator)      KILL    actor, whether it may not start again
    GROUP   id, template            CANCEL  object, force, recursive
    UNGROUP id

The scripts of several attempts of a task are alike: that of the last which ended well is kept. Tasks of which no
attempt has ended (their worker died, or the run was over) take as long as the median of their function.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from dualray.recording.file import LEFT_THERE, RunRecord

SUBMIT, GET, WAIT, PUT, DROP, ITEM, TAKE, KILL, CANCEL, GROUP, UNGROUP = range(11)

Op = tuple[Any, ...]
"""Nanoseconds computed before it, kind, and what belongs to it."""

WEIGHT_MAX = 256.0
"""Cores that one execution uses at once."""

_TASK_ID_BYTES = 16

_COLD_NS = 20_000_000
"""A worker that is there takes a task sooner than this."""

UNKNOWN_NS = 1_000_000
"""What a task takes of whose function no attempt has ended."""


@dataclass(slots=True)
class Script:
    """What one execution does: its operations, and the time that it computes after the last; `compute_ns` is the sum
    over all, and `weight` the cores that it uses while it computes (CPU time / time)."""

    ops: list[Op] = field(default_factory=list)
    tail_ns: int = 0
    compute_ns: int = 0
    weight: float = 1.0
    before_ns: int = 0
    """For its arguments, before the function is called."""
    after_ns: int = 0
    """For its results, after it has returned."""
    sizes: tuple[int, ...] = ()
    nested: tuple[bytes, ...] = ()
    error: str = ""
    peak_bytes: int = 0
    """The most memory that its worker holds meanwhile, without the object store; 0: nobody knows."""


@dataclass(slots=True)
class TaskNode:
    """One call."""

    task_id: bytes
    template: int
    args_bytes: int
    deps: tuple[bytes, ...]
    nested: tuple[bytes, ...]
    actor: bytes
    max_restarts: int | None
    """Of a constructor; None of all else."""
    script: Script
    is_plain: bool = False
    """A call of a function that needs nothing but its arguments, computes, and returns small values."""
    may_fail: bool = False
    """It was cancelled, or its actor was killed, or its placement group removed: its caller is prepared for that."""
    values: int = 0
    """Calls with the same number were given the same values; 0: nobody knows."""
    place: int = 0
    """How many calls of the same function its parent had submitted before it."""


@dataclass(frozen=True, slots=True)
class Template:
    """What the calls of one function demand."""

    name: str
    words: Mapping[str, Any]


@dataclass(slots=True)
class Graph:
    """A recorded program.

    Attributes:
        driver: its script; `before_ns` and `after_ns` are none.
        tasks: by id.
        templates: `TaskNode.template` counts them.
        sizes: bytes of every object that was made, and of every task's arguments.
        cold_start_ns: how long the first task waited for the first worker of a cluster that had only just been started;
            0 when it did not.
        delayed_ns: how long tasks were ready to run, and no core was free, all in all: predictions leave it out.
        worker_bytes: what a worker holds that has done nothing; 0: nobody knows.
        groups: placement groups that are asked for: what each reserves, as JSON.
        remarks: in words, what the record does not tell, or what the replay leaves out.
    """

    driver_id: bytes
    driver: Script
    tasks: dict[bytes, TaskNode]
    templates: list[Template]
    inline_bytes_max: int
    sizes: dict[bytes, int]
    facts: Mapping[str, Any]
    remarks: list[str]
    makespan_ns: int
    cold_start_ns: int = 0
    delayed_ns: int = 0
    worker_bytes: int = 0
    groups: dict[bytes, str] = field(default_factory=dict)


def graph_of(record: RunRecord) -> Graph:
    """The graph of a recorded run.

    Raises:
        ValueError: the record has no driver: it holds nothing that could be run again; or a row is damaged.
    """
    try:
        return _graph_of(record)
    except KeyError as error:
        raise ValueError(f"the file of the recorded run is damaged: a row has no field {error}") from None


def _graph_of(record: RunRecord) -> Graph:
    facts = record.facts
    driver_id = bytes.fromhex(facts.get("driver", ""))
    made: dict[tuple[bytes, int], list[Mapping[str, Any]]] = {}
    submitted: list[Mapping[str, Any]] = []
    runs: dict[bytes, Mapping[str, Any]] = {}
    for row in record.rows:
        match row["kind"]:
            case "task":
                submitted.append(row)
                made.setdefault((row["parent"], row["attempt"]), []).append(row)
            case "get" | "wait" | "put" | "drop" | "item" | "take" | "kill" | "cancel" | "group" | "ungroup":
                made.setdefault((row["task"], row["attempt"]), []).append(row)
            case "run":
                known = runs.get(row["task"])
                if known is None or (bool(known["other"]), -known["attempt"]) >= (bool(row["other"]), -row["attempt"]):
                    runs[row["task"]] = row
            case _:
                pass
    if not submitted:
        raise ValueError("the recorded run has no tasks, so dualray cannot predict anything from this record")
    driver = _script(made.get((driver_id, 0), []), facts["began_ns"], facts["ended_ns"])
    graph = Graph(
        driver_id=driver_id,
        driver=driver,
        tasks={},
        templates=[],
        inline_bytes_max=facts["inline_bytes_max"],
        sizes={},
        facts=facts,
        remarks=[],
        makespan_ns=facts["ended_ns"] - facts["began_ns"],
    )
    _add_tasks(graph, submitted, runs, made)
    for row in record.of_kind("put", "item"):
        graph.sizes[row["objects"][0]] = row["bytes"]
    graph.groups = {row["objects"][0]: row["template"] for row in record.of_kind("group")}
    came = [run["came_ns"] for run in runs.values() if "came_ns" in run]
    waited_ns = min(came, default=0) - max(submitted[0]["time_ns"], facts["began_ns"])
    graph.delayed_ns = sum(run.get("delay_ns", 0) for run in runs.values())
    graph.cold_start_ns = waited_ns if waited_ns >= _COLD_NS else 0
    _guess_memory(graph)
    _note_ends(graph, record, submitted)
    graph.remarks += left_out(graph, record)
    return graph


def _note_ends(graph: Graph, record: RunRecord, submitted: Sequence[Mapping[str, Any]]) -> None:
    """Which calls the program itself has ended: they, and what they have called, may fail in a replay."""
    ended: dict[bytes, None] = {}
    for row in record.of_kind("kill", "cancel", "ungroup"):
        ended[row["actor"] if row["kind"] == "kill" else row["objects"][0][:_TASK_ID_BYTES]] = None
    if not ended:
        return
    of_group = [template.words.get("group", "") for template in graph.templates]
    for row in submitted:  # in order of time: who calls stands before who is called
        node = graph.tasks[row["task"]]
        group = bytes.fromhex(of_group[node.template])
        if any(it in ended for it in (node.task_id, node.actor, group, row["parent"])):
            node.may_fail = True
            ended[node.task_id] = None


def left_out(graph: Graph, record: RunRecord) -> list[str]:
    """In words, what of this record a replay leaves out."""
    labelled = [it.name for it in graph.templates if it.words.get("labels")]
    if any(json.loads(words)["labels"] for words in graph.groups.values()):
        labelled.append("the bundles of a placement group")
    remarks = [str(each) for each in graph.facts.get("estimates", ())]
    if labelled:
        remarks.append(
            f"The prediction ignores labels: {_listed(labelled)} requested nodes by label, but can run on any node in "
            "the prediction."
        )
    concurrent = [it.name for it in graph.templates if it.words.get("is_concurrent")]
    if concurrent:
        remarks.append(
            f"In the prediction, an actor runs one method at a time. The recorded actors of {_listed(concurrent)} ran "
            "several methods at a time, so their predicted times may be much too long."
        )
    faults = [row["name"] for row in record.of_kind("fault")]
    if faults:
        remarks.append(
            f"The recorded run had faults ({_listed(faults)}). The prediction contains the cost of these "
            "faults only if you request them with --fault-files."
        )
    return remarks


def _listed(names: Sequence[str]) -> str:
    """Some names, each once, the first few in full."""
    distinct = list(dict.fromkeys(names))
    more = f" and {len(distinct) - 4} more" if len(distinct) > 4 else ""
    return f"{', '.join(distinct[:4])}{more}"


def _add_tasks(
    graph: Graph,
    submitted: Sequence[Mapping[str, Any]],
    runs: Mapping[bytes, Mapping[str, Any]],
    made: Mapping[tuple[bytes, int], list[Mapping[str, Any]]],
) -> None:
    numbers: dict[tuple[str, str], int] = {}
    places: dict[tuple[bytes, str], int] = {}
    unknown: list[TaskNode] = []
    for row in submitted:
        key = (row["name"], row["template"])
        number = numbers.get(key)
        if number is None:
            number = numbers[key] = len(numbers)
            graph.templates.append(Template(row["name"], json.loads(row["template"])))
        task_id = row["task"]
        node = TaskNode(
            task_id=task_id,
            template=number,
            args_bytes=row.get("bytes", 0),
            deps=tuple(row.get("objects", ())),
            nested=tuple(row.get("nested", ())),
            actor=row.get("actor", b""),
            max_restarts=row.get("number"),
            script=Script(),
            values=row.get("values", 0),
            place=places.get((row["parent"], row["name"]), 0),
        )
        places[row["parent"], row["name"]] = node.place + 1
        graph.tasks[task_id] = node
        graph.sizes[task_id] = node.args_bytes
        run = runs.get(task_id)
        if run is None:
            unknown.append(node)
            continue
        script = node.script = _script(made.get((task_id, run["attempt"]), ()), run["called_ns"], run["returned_ns"])
        script.before_ns = max(0, run["called_ns"] - run["time_ns"])
        script.after_ns = max(0, run["end_ns"] - run["returned_ns"] - run.get("stored_ns", 0))
        script.sizes, script.nested, script.error = tuple(run["sizes"]), tuple(run["nested"]), run["other"]
        if "cpu_ns" in run:
            _weigh(script, run["cpu_ns"], run.get("delay_ns", 0))
        script.peak_bytes = run.get("peak_bytes", 0)
        for index, size in enumerate(script.sizes):
            graph.sizes[task_id + index.to_bytes(4, "big")] = size
    _guess(graph, unknown)
    for node in graph.tasks.values():
        words, script = graph.templates[node.template].words, node.script
        node.is_plain = (
            not (node.actor or node.nested or script.ops or script.nested or script.error)
            and node.max_restarts is None
            and "streaming" not in words
            and "max_calls" not in words
            and len(script.sizes) == words["num_returns"]
            and all(size <= graph.inline_bytes_max for size in script.sizes)
        )


def _weigh(script: Script, cpu_ns: int, delay_ns: int) -> None:
    """How much of a core it takes while it computes; what it waited for a core there says nothing of elsewhere."""
    spent_ns = max(1, script.before_ns + script.compute_ns + script.after_ns)
    need_ns = max(spent_ns - delay_ns, min(cpu_ns, spent_ns), 1)
    if need_ns < spent_ns:
        part = need_ns / spent_ns
        script.ops = [(round(op[0] * part), *op[1:]) for op in script.ops]
        script.before_ns, script.after_ns = round(script.before_ns * part), round(script.after_ns * part)
        script.compute_ns, script.tail_ns = round(script.compute_ns * part), round(script.tail_ns * part)
    script.weight = min(cpu_ns / need_ns, WEIGHT_MAX)


def _guess(graph: Graph, unknown: Sequence[TaskNode]) -> None:
    """Tasks of which no attempt has ended."""
    if not unknown:
        return
    ended: dict[str, list[Script]] = {}
    missing = {node.task_id for node in unknown}
    for node in graph.tasks.values():
        if node.task_id not in missing:
            ended.setdefault(graph.templates[node.template].name, []).append(node.script)
    for node in unknown:
        template = graph.templates[node.template]
        alike = ended.get(template.name, [])
        took_ns = round(median(script.compute_ns for script in alike)) if alike else UNKNOWN_NS
        node.script.compute_ns = node.script.tail_ns = took_ns
        count = 0 if node.max_restarts is not None else template.words["num_returns"]
        node.script.sizes = alike[0].sizes if alike else (64,) * count
    graph.remarks.append(
        f"{len(unknown)} of the tasks have no end in the record, so the replay takes their durations from other "
        "calls of their functions."
    )


def _guess_memory(graph: Graph) -> None:
    """Tasks that were too short to be looked at hold as much as others of their function with arguments of about the
    same size, else as others of their function, else as a worker that has done nothing."""
    known = [node for node in graph.tasks.values() if node.script.peak_bytes]
    if not known:
        return
    graph.worker_bytes = min(node.script.peak_bytes for node in known)
    peaks: dict[tuple[str, int], list[int]] = {}
    for node in known:
        name, size = graph.templates[node.template].name, _argument_class(graph, node)
        for key in ((name, size), (name, -1)):
            peaks.setdefault(key, []).append(node.script.peak_bytes)
    for node in graph.tasks.values():
        if not node.script.peak_bytes:
            name = graph.templates[node.template].name
            alike = peaks.get((name, _argument_class(graph, node))) or peaks.get((name, -1)) or [graph.worker_bytes]
            node.script.peak_bytes = round(median(alike))


def _argument_class(graph: Graph, node: TaskNode) -> int:
    return (node.args_bytes + sum(graph.sizes.get(dep, 0) for dep in node.deps)).bit_length()


def _without_delay(script: Script, since: int, row: Mapping[str, Any]) -> int:
    """Take from what a driver has computed since its last wait the time in which no core was free for it; where the
    next such time begins."""
    delay_ns = row.get("delay_ns", 0)
    if delay_ns:
        ops = script.ops
        spent_ns = sum(op[0] for op in ops[since:])
        left = max(0, spent_ns - delay_ns) / max(1, spent_ns)
        ops[since:] = [(round(op[0] * left), *op[1:]) for op in ops[since:]]
        script.compute_ns -= spent_ns - sum(op[0] for op in ops[since:])
    return len(script.ops)


def _script(rows: Sequence[Mapping[str, Any]], began_ns: int, ended_ns: int) -> Script:
    """The script of one execution, whose rows come in order of time."""
    script = Script()
    cursor_ns, late = began_ns, False
    since = 0  # the first operation after the last wait
    for row in rows:
        time_ns = min(row["time_ns"], ended_ns)
        late = late or row["time_ns"] > ended_ns
        think_ns = max(0, time_ns - cursor_ns - row.get("stored_ns", 0))
        script.compute_ns += think_ns
        cursor_ns = max(cursor_ns, min(row.get("end_ns", time_ns), ended_ns))
        match row["kind"]:
            case "task":
                script.ops.append((think_ns, SUBMIT, row["task"]))
            case "get":
                script.ops.append((think_ns, GET, tuple(row["objects"])))
                since = _without_delay(script, since, row)
            case "wait":
                is_fetched = row.get("other") != LEFT_THERE
                rest = (row["number"], row.get("timeout_ns"), tuple(row["ready"]), is_fetched)
                script.ops.append((think_ns, WAIT, tuple(row["objects"]), *rest))
                since = _without_delay(script, since, row)
            case "put":
                script.ops.append((think_ns, PUT, row["objects"][0], row["bytes"], tuple(row["nested"])))
            case "drop":
                script.ops.append((think_ns, DROP, tuple(row["objects"])))
            case _:
                script.ops.append(_rare(row, think_ns))
    script.tail_ns = max(0, ended_ns - cursor_ns)
    script.compute_ns += script.tail_ns
    return script


def _rare(row: Mapping[str, Any], think_ns: int) -> Op:
    """What few programs do."""
    match row["kind"]:
        case "item":
            return (think_ns, ITEM, row["objects"][0], row["bytes"], tuple(row["nested"]), row["other"])
        case "take":
            return (think_ns, TAKE, row["parent"])
        case "kill":
            return (think_ns, KILL, row["actor"], bool(row["number"]))
        case "cancel":
            return (think_ns, CANCEL, row["objects"][0], bool(row["number"] & 1), bool(row["number"] & 2))
        case "group":
            return (think_ns, GROUP, row["objects"][0], row["template"])
        case _:
            return (think_ns, UNGROUP, row["objects"][0])
