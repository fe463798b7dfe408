"""The state of a cluster: tasks, actors, objects, nodes, workers and placement groups, with Ray's interface.

    from dualray.util.state import list_tasks, summarize_tasks

    for task in list_tasks(filters=[("state", "=", "RUNNING")], limit=10):
        print(task.task_id, task["name"], task.worker_id)

The functions ask the head for actors, nodes, placement groups and stored objects, and node managers for workers. They
ask drivers and workers for their tasks and objects, and read ended tasks from the control plane's table. `missing`
names the processes that have not answered. `of_run(directory)` reads the decision log of a finished run in real or sim
mode. `list_logs` and `get_log` read the log files on this machine, and ask no process.
"""

from __future__ import annotations

import codecs
import dataclasses
import difflib
import functools
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from dualray import runtime
from dualray.exceptions import DualrayError, rays_words
from dualray.shared.model.ids import job_of
from dualray.shared.model.resources import HEAD_NODE

DEFAULT_LIMIT = 100
TABLES = ("tasks", "actors", "objects", "nodes", "workers", "placement_groups")

KEYS = {
    "tasks": "task_id",
    "actors": "actor_id",
    "objects": "object_id",
    "nodes": "node_id",
    "workers": "worker_id",
    "placement_groups": "placement_group_id",
}
"""By which of its fields a row is known."""

Filter = tuple[str, str, Any]
Source = Callable[[str, float], tuple[list[dict[str, Any]], list[str]]]
"""(table, timeout in seconds) -> its rows, and who has not answered."""

_PREDICATES: dict[str, Callable[[Any, Any], bool]] = {
    "=": lambda have, wanted: _as_text(have) == _as_text(wanted),
    "!=": lambda have, wanted: _as_text(have) != _as_text(wanted),
    "contains": lambda have, wanted: _as_text(wanted) in _as_text(have),
}


def _job_id(any_id: str) -> str:
    return f"{job_of(bytes.fromhex(any_id)):08x}"


def _node_ip(resources: dict[str, float]) -> str | None:
    """The address in the name of a node's own resource, `node:10.0.0.1`."""
    names = (name.removeprefix("node:") for name in resources if name.startswith("node:") and name != HEAD_NODE)
    return next(names, None)


def _reference_type(row: Mapping[str, Any]) -> str:
    """What Ray calls the strongest reason for which an object is kept."""
    if row["used_by_tasks"]:
        return "USED_BY_PENDING_TASK"
    if row["in_values"]:
        return "CAPTURED_IN_OBJECT"
    return "LOCAL_REFERENCE" if row["local_refs"] else "PINNED_IN_MEMORY"


_TABLE_OF = {
    "bundles": "placement_groups",
    "entrypoint": "jobs",
    "worker_type": "workers",
    "resources_total": "nodes",
    "object_id": "objects",
    "task_id": "tasks",
    "class_name": "actors",
}
"""A field that tells to which table a row belongs. The first that the row has counts."""

_RAYS_NAMES: dict[str, dict[str, Callable[[Mapping[str, Any]], Any]]] = {
    "tasks": {"func_or_class_name": lambda row: row["name"], "language": lambda row: "PYTHON"},
    "objects": {
        "object_size": lambda row: row["size_bytes"],
        "reference_type": _reference_type,
        "type": lambda row: "DRIVER" if row["owner"].startswith("driver-") else "WORKER",
    },
    "nodes": {
        "node_name": lambda row: row["node_id"],
        "node_ip": lambda row: _node_ip(row["resources_total"]),
        "is_head_node": lambda row: HEAD_NODE in row["resources_total"],
    },
    "workers": {"is_alive": lambda row: row["state"] != "DEAD"},
    "actors": {"job_id": lambda row: _job_id(row["actor_id"])},
    "placement_groups": {"creator_job_id": lambda row: _job_id(row["placement_group_id"])},
}
"""Fields that Ray has and that follow from ours, by table."""

_RAYS_EMPTY: dict[str, frozenset[str]] = {
    "tasks": frozenset(
        (
            *("call_site", "creation_time_ms", "end_time_ms", "error_message", "error_type", "events"),
            *("fallback_strategy", "is_debugger_paused", "label_selector", "placement_group_id"),
            *("profiling_data", "runtime_env_info", "start_time_ms", "task_log_info"),
        )
    ),
    "actors": frozenset(
        (
            *("call_site", "fallback_strategy", "label_selector", "num_restarts_due_to_lineage_reconstruction"),
            *("num_restarts_due_to_node_preemption", "placement_group_id", "repr_name", "required_resources"),
            "serialized_runtime_env",
        )
    ),
    "objects": frozenset(("attempt_number", "call_site", "ip", "task_status")),
    "nodes": frozenset(("end_time_ms", "start_time_ms", "state_message")),
    "jobs": frozenset(
        (
            *("driver_exit_code", "driver_info", "driver_node_id", "end_time", "error_type", "message", "metadata"),
            *("runtime_env", "start_time", "submission_id"),
        )
    ),
    "workers": frozenset(
        (
            *("debugger_port", "end_time_ms", "ip", "num_paused_threads", "start_time_ms"),
            *("worker_launch_time_ms", "worker_launched_time_ms"),
        )
    ),
    "placement_groups": frozenset(("is_detached", "label_domain_assignments", "label_domain_key", "stats")),
}
"""Fields that Ray has, also where a row has no value for them: then they are None, as on Ray without `detail`."""


@functools.cache
def _dataclass_fields(names: tuple[str, ...]) -> dict[str, dataclasses.Field[Any]]:
    return {field.name: field for field in dataclasses.fields(dataclasses.make_dataclass("Row", names))}


class Row(dict[str, Any]):
    """A dict whose fields are also attributes. Some fields also have Ray's name, such as `object_size`.

    `dataclasses.asdict(row)` and `row.asdict()` return a plain dict that also has the fields under Ray's names.
    """

    @property
    def __dataclass_fields__(self) -> dict[str, dataclasses.Field[Any]]:
        table = self._table()
        names = dict.fromkeys((*self, *_RAYS_NAMES.get(table, ()), *sorted(_RAYS_EMPTY.get(table, ()))))
        return _dataclass_fields(tuple(names))

    def asdict(self) -> dict[str, Any]:
        """Return all fields, also those under Ray's names, in a plain dict."""
        return {name: self[name] for name in self.__dataclass_fields__}

    def _table(self) -> str:
        return next((table for field, table in _TABLE_OF.items() if field in self), "")

    def __missing__(self, key: str) -> Any:
        table = self._table()
        follows = _RAYS_NAMES.get(table, {}).get(key)
        if follows is not None:
            return follows(self)
        if key in _RAYS_EMPTY.get(table, ()):
            return None
        raise KeyError(key)

    def get(self, key: str, default: Any = None) -> Any:
        """Return a field, or the default if the row does not have the field."""
        try:
            return self[key]
        except KeyError:
            return default

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(
                f"this row of the state API has no field {name!r}; its fields are {', '.join(self)}"
            ) from None


def whole_row(table: str, row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of a table as a plain dict, with the fields under Ray's names that follow from the others."""
    follows = {name: made(row) for name, made in _RAYS_NAMES.get(table, {}).items() if name not in row}
    return {**row, **follows}


class Rows(list[Row]):
    """The rows of a list. `total` counts the rows before the limit. `missing` names processes without an answer."""

    def __init__(self, rows: Iterable[Row], total: int, missing: Sequence[str]) -> None:
        super().__init__(rows)
        self.total = total
        self.missing = list(missing)


# ---- Asked -----------------------------------------------------------------------------------------------------------


class State:
    """The state of a running cluster (`live`) or of a finished run (`of_run`)."""

    def __init__(self, source: Source, tables: Sequence[str] = TABLES) -> None:
        self._source = source
        self._tables = tables

    def list(
        self,
        table: str,
        filters: Sequence[Filter] | None = None,
        limit: int = DEFAULT_LIMIT,
        timeout: float = 5.0,
        raise_on_missing_output: bool = True,
    ) -> Rows:
        """Return rows of one of TABLES.

        Args:
            table: name of the table.
            filters: conditions (field, "=", "!=" or "contains", value) that each row must meet. Values are compared as
                text. In fields and states, upper and lower case are equal.
            limit: how many rows to return at most.
            timeout: how many seconds to wait for the answer of each process.
            raise_on_missing_output: whether to raise an error if a process does not answer. If False, `missing` names
                the processes.

        Raises:
            ValueError: the table, a field or a predicate is unknown, or the limit is not positive.
            DualrayError: a process did not answer.
        """
        if table not in self._tables:
            _unknown("table", table, self._tables)
        if type(limit) is not int or limit < 1:
            raise ValueError(f"limit={limit!r} must be a positive int")
        found, missing = self._source(table, timeout)
        if missing and raise_on_missing_output:
            raise DualrayError(
                f"the processes {', '.join(missing)} did not answer within {timeout:g} s; try again, or get the other "
                "answers with raise_on_missing_output=False"
            )
        fields = list(dict.fromkeys(field for row in found for field in row))
        rows = [Row({field: row.get(field) for field in fields}) for row in found]
        known = {*fields, *_RAYS_NAMES.get(table, ()), *_RAYS_EMPTY.get(table, ())}
        for name, predicate, value in filters or ():
            if predicate not in _PREDICATES:
                _unknown("predicate", predicate, _PREDICATES)
            field = name if name in fields else name.lower()
            if fields and field not in known:
                _unknown("field", name, fields)
            if field == "state" and isinstance(value, str):
                value = value.upper()
            holds = _PREDICATES[predicate]
            rows = [row for row in rows if holds(row[field], value)]
        return Rows(rows[:limit], len(rows), missing)

    def get(self, table: str, key: str, timeout: float = 5.0) -> Row | None:
        """Return the row with an id, or None if no row has the id."""
        for row in self.list(table, [(KEYS[table], "=", key)], timeout=timeout, raise_on_missing_output=False):
            return row
        return None

    def summarize(self, table: str, timeout: float = 5.0) -> dict[str, Any]:
        """Count tasks (by name), actors (by class) or objects (by owner) in each state."""
        by = {"tasks": "name", "actors": "class_name", "objects": "owner"}
        if table not in by:
            _unknown("summary of", table, by)
        rows = self.list(table, limit=1 << 62, timeout=timeout, raise_on_missing_output=False)
        summary: dict[str, dict[str, Any]] = {}
        latest = list({row[KEYS[table]]: row for row in reversed(rows)}.values())  # not a task's earlier attempts
        for row in reversed(latest):
            entry = summary.setdefault(str(row[by[table]]), {"state_counts": {}})
            entry["state_counts"][row["state"]] = entry["state_counts"].get(row["state"], 0) + 1
            if table == "tasks":
                entry["type"] = row["type"]
            elif table == "objects":
                entry["total_bytes"] = entry.get("total_bytes", 0) + row["size_bytes"]
        return {
            "cluster": {
                "summary": dict(sorted(summary.items())),
                "summary_by": by[table],
                f"total_{table}": len(latest),
            }
        }


def _live(table: str, timeout: float) -> tuple[list[dict[str, Any]], list[str]]:
    asked = "tasks_ever" if table == "tasks" else table
    rows, missing = runtime.current(f"list_{table}").verbs.state_rows(asked, round(timeout * 1e9))
    words = rays_words()
    if words is not None and table.startswith("tasks"):
        rows = [
            row | words.error_fields(row["error_type"], row["error_message"]) if "error_type" in row else row
            for row in rows
        ]
        for row in rows:
            if row["type"] == "ACTOR_CREATION_TASK" and not row["name"].endswith(".__init__"):
                row["name"] += ".__init__"
    if words is not None and asked == "workers_ever":
        rows = [row | {"exit_detail": row["exit_detail"] and words.exit_detail(row["exit_detail"])} for row in rows]
    return rows, missing


live = State(_live)
_ever = State(lambda table, timeout: _live(f"{table}_ever", timeout))
_timed = State(lambda table, timeout: _live(f"{table}_timed", timeout))


def of_run(directory: str | Path) -> State:
    """Return the state at the end of a run in real or sim mode that was started with `decision_log=`.

    Times are seconds since the first node started. Actors and placement groups come from the head's decision log.

    Raises:
        ValueError: the directory has no trace.
    """
    from dualray.report.record import read_record  # noqa: PLC0415 - it loads the machines, for records alone
    from dualray.report.state import rows_of_record  # noqa: PLC0415

    record = read_record(Path(directory))
    return State(lambda table, timeout: (rows_of_record(record, table), []))


def _as_text(value: Any) -> str:
    return "" if value is None else str(value)


def _unknown(what: str, name: str, known: Iterable[str]) -> NoReturn:
    names = list(known)
    nearest = difflib.get_close_matches(str(name), names, n=1)
    hint = f" Did you mean {nearest[0]!r}?" if nearest else ""
    raise ValueError(f"there is no {what} {name!r}.{hint} Known: {', '.join(names)}")


# ---- Ray's functions -------------------------------------------------------------------------------------------------


def _lister(table: str, detailed: Callable[[], State] = lambda: live, more: str = "") -> Callable[..., Rows]:
    """The function that lists a table; `detailed` has its rows with `detail=True`, and `more` documents them."""

    def list_rows(
        address: str | None = None,
        filters: Sequence[Filter] | None = None,
        limit: int = DEFAULT_LIMIT,
        timeout: float = 5.0,
        detail: bool = False,
        raise_on_missing_output: bool = True,
    ) -> Rows:
        _check_address(f"list_{table}", address)
        state = detailed() if detail else live
        return state.list(table, filters, limit, timeout, raise_on_missing_output)

    list_rows.__name__ = list_rows.__qualname__ = f"list_{table}"
    list_rows.__doc__ = (
        f"The {table.replace('_', ' ')} of the cluster; see `State.list`. Rows are whole, also without `detail`.{more}"
    )
    return list_rows


def _getter(
    table: str, name: str, state: Callable[[], State] = lambda: live, more: str = ""
) -> Callable[..., Row | None]:
    def get_row(id: str, address: str | None = None, timeout: float = 5.0) -> Row | None:  # noqa: A002 - Ray's name
        _check_address(name, address)
        return state().get(table, id, timeout)

    get_row.__name__ = get_row.__qualname__ = name
    get_row.__doc__ = (
        f"One row of the {table.replace('_', ' ')} of the cluster, by its {KEYS[table]}; None: there is none.{more}"
    )
    return get_row


def _check_address(verb: str, address: str | None) -> None:
    if address in (None, "auto"):
        return
    here = runtime.current_or_none()
    if here is None or address != here.addresses()["control_plane_address"]:
        raise ValueError(
            f"{verb}: address={address!r}: {verb} reads only the cluster of this program. Leave out address=, or "
            "join the other cluster with init(address=...)"
        )


list_tasks = _lister(
    "tasks",
    detailed=lambda: _timed,
    more="""

As in Ray, each attempt of a task has a row. The last attempts of all tasks come first. Of the earlier attempts of a
task, only the first 100 have rows. With `detail=True`, rows have start_time_ms and end_time_ms, in ms since 1970. A
worker keeps the times of its last 10,000 tasks; where nobody has them they are None.""",
)
list_actors = _lister("actors")
list_objects = _lister("objects")
list_nodes = _lister("nodes")
list_workers = _lister(
    "workers",
    detailed=lambda: _ever,
    more="""

With `detail=True` the workers are there, too, that have ended. Such a worker is DEAD, and its exit_type and exit_detail
say why, as in Ray. Workers of dead nodes are left out.""",
)
list_placement_groups = _lister("placement_groups")

get_task = _getter("tasks", "get_task", lambda: _timed, more=" The row has start_time_ms and end_time_ms.")
get_actor = _getter("actors", "get_actor")
get_objects = _getter("objects", "get_objects")
get_node = _getter("nodes", "get_node")
get_worker = _getter("workers", "get_worker", lambda: _ever, more=" A worker that has ended is there, too.")
get_placement_group = _getter("placement_groups", "get_placement_group")


def list_jobs(
    address: str | None = None,
    filters: Sequence[Filter] | None = None,
    limit: int = DEFAULT_LIMIT,
    timeout: float = 5.0,
    detail: bool = False,
    raise_on_missing_output: bool = True,
) -> Rows:
    """Return the jobs of the cluster: the connected drivers, and drivers that have disconnected.

    A row has job_id, type (DRIVER), status (RUNNING or SUCCEEDED), driver, node_id, and entrypoint (the command of the
    calling driver). As in Ray, a driver that has disconnected is SUCCEEDED, even if it failed.

    Raises:
        ValueError, DualrayError: as for `State.list`.
    """
    _check_address("list_jobs", address)
    return _jobs.list("jobs", filters, limit, timeout, raise_on_missing_output)


def get_job(id: str, address: str | None = None, timeout: float = 5.0) -> Row | None:  # noqa: A002 - Ray's name
    """Return the row of the job with a job_id, or None if the cluster never had this job."""
    _check_address("get_job", address)
    return next((row for row in _jobs.list("jobs", timeout=timeout) if row["job_id"] == id), None)


def list_runtime_envs(
    address: str | None = None,
    filters: Sequence[Filter] | None = None,
    limit: int = DEFAULT_LIMIT,
    timeout: float = 5.0,
    detail: bool = False,
    raise_on_missing_output: bool = True,
) -> Rows:
    """Return a row for the default runtime environment of tasks, if there is one: runtime_env (JSON), success, node_id.

    Raises:
        ValueError: as for `State.list`.
    """
    _check_address("list_runtime_envs", address)
    return _environments.list("runtime_envs", filters, limit, timeout, raise_on_missing_output)


def _job_rows(table: str, timeout: float) -> tuple[list[dict[str, Any]], list[str]]:
    rows, missing = _live(table, timeout)
    here = runtime.current(f"list_{table}").verbs.context()
    command = " ".join(sys.argv) if here.task_id is None else ""
    return [{**row, "entrypoint": command if row["job_id"] == here.job_id else ""} for row in rows], missing


def _environment_of_this_program(table: str, timeout: float) -> tuple[list[dict[str, Any]], list[str]]:
    verbs = runtime.current(f"list_{table}").verbs
    said = verbs.runtime_env
    return [{"runtime_env": said, "success": True, "node_id": verbs.context().node_id}] if said else [], []


_jobs, _environments = State(_job_rows, ("jobs",)), State(_environment_of_this_program, ("runtime_envs",))


def summarize_tasks(address: str | None = None, timeout: float = 5.0) -> dict[str, Any]:
    """Count the tasks of each name in each state."""
    _check_address("summarize_tasks", address)
    return live.summarize("tasks", timeout)


def summarize_actors(address: str | None = None, timeout: float = 5.0) -> dict[str, Any]:
    """Count the actors of each class in each state."""
    _check_address("summarize_actors", address)
    return live.summarize("actors", timeout)


def summarize_objects(address: str | None = None, timeout: float = 5.0) -> dict[str, Any]:
    """Count the objects that each process owns, with their states and bytes."""
    _check_address("summarize_objects", address)
    return live.summarize("objects", timeout)


# ---- Logs ------------------------------------------------------------------------------------------------------------


def list_logs(
    *, node_id: str | None = None, glob_filter: str = "*", directory: str | Path | None = None
) -> dict[str, list[str]]:
    """Return the log files on this machine by kind: `head`, `node`, `daemon`, `worker_out`, `worker_err` ...

    Args:
        node_id: the node whose files to list. Default: all nodes of the cluster on this machine.
        glob_filter: a pattern for the names of files, such as `"*-w3.*"`.
        directory: a directory of `init(log_directory=)` with the logs of ended sessions, to read instead of a running
            cluster's logs.

    Raises:
        ValueError: the node or the directory does not exist, or a program without a cluster finds no cluster or several
            clusters on this machine.
        DualrayError: in sim mode, which has no log files.
    """
    return _logs(directory).names("list_logs", node_id, glob_filter, _path(directory))


def get_log(
    *,
    node_id: str | None = None,
    filename: str | None = None,
    actor_id: str | None = None,
    task_id: str | None = None,
    pid: int | None = None,
    follow: bool = False,
    tail: int = -1,
    suffix: str = "out",
    encoding: str | None = "utf-8",
    errors: str = "replace",
    attempt_number: int | None = None,
    directory: str | Path | None = None,
) -> Iterator[Any]:
    """Return the content of a log file, or the output of a task, an actor or a process, in chunks.

    Args:
        node_id: the node whose files to read. Default: all nodes of the cluster on this machine.
        filename: a name from `list_logs`; or
        actor_id: in hex: the output of this actor, through all restarts; or
        task_id: in hex: the output of this task; or
        pid: the output of tasks in this process.
        follow: whether to continue with new output until the session ends.
        tail: how many lines to return from the end. -1 returns all lines.
        suffix: "out" for stdout, "err" for stderr. Not for `filename`.
        encoding: encoding of the text. None returns bytes.
        errors: how to handle bytes that cannot be decoded, as for `bytes.decode`.
        attempt_number: the number of an attempt of the task, from 0. None returns the output of all attempts.
        directory: as for `list_logs`.

    Raises:
        ValueError: not exactly one of `filename`, `actor_id`, `task_id` and `pid` is given; nothing matches; or as for
            `list_logs`.
        DualrayError: in sim mode, which has no log files.
    """
    given = [
        name
        for name, value in (("filename", filename), ("actor_id", actor_id), ("task_id", task_id), ("pid", pid))
        if value is not None
    ]
    if len(given) != 1:
        raise ValueError(
            f"get_log needs exactly one of filename, actor_id, task_id and pid, but got {' and '.join(given) or 'none'}"
        )
    chunks = _logs(directory).read(
        "get_log",
        node_id=node_id,
        directory=_path(directory),
        filename=filename,
        actor_id=actor_id,
        task_id=task_id,
        pid=pid,
        attempt=attempt_number,
        stream=suffix,
        tail=tail,
        follow=follow,
    )
    return chunks if encoding is None else _decoded(chunks, codecs.getincrementaldecoder(encoding)(errors))


def _logs(directory: str | Path | None) -> runtime.LogReader:
    """Kept logs; else those of this process's cluster; outside of one, of the cluster that runs on this machine."""
    here = runtime.current_or_none()
    return here.logs if here is not None and directory is None else runtime.engine("real").logs_of_this_machine()


def _path(directory: str | Path | None) -> Path | None:
    return None if directory is None else Path(directory)


def _decoded(chunks: Iterator[bytes], decoder: codecs.IncrementalDecoder) -> Iterator[str]:
    for chunk in chunks:
        if text := decoder.decode(chunk):
            yield text
    if text := decoder.decode(b"", final=True):
        yield text
