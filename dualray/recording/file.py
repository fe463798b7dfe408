"""The recorded run as one Parquet file, and back.

One table; a row is a thing that happened, its `kind` says which columns it uses. Times are nanoseconds since the first
node began. The schema's metadata carry, under `dualray`, a JSON object: the schema's version, the mode, what each node
had, the machine and the date. A file of another version is refused, and so is one that was cut off. Version 3 lacks the
columns in `_YOUNGER`, and is read.

    task      a call was submitted: time, task, parent (execution), attempt (of the parent), name, template, objects
              (arguments), nested, bytes (of the pickled arguments), actor; number (max_restarts) of a constructor;
              values (calls with the same number were given the same values; 0: nobody knows)
    run       an attempt ended: task, attempt, process, node, came, time (began), called, returned, end, sizes and
              nested (of its results), stored (time that storing large ones took), other (error); of those that took a
              millisecond or more cpu and delay (ready to run, and no core was free), and peak (the most memory of its
              own that the worker held meanwhile, with what ran within the same 5 ms)
    get       user code waited: time, end, task (execution), attempt, objects; of the driver delay, since its last wait
    wait      as get; number (num_returns), timeout, ready, other (`left there`: fetch_local=False)
    put       a value was put: time, end, task, attempt, objects (one), bytes, nested
    drop      references were let go: time, task, attempt, objects
    item      a generator made an item: time, task, attempt, objects (one), bytes, nested, stored, other (error)
    take      the next item of a generator was taken: time, task, attempt, parent (the generator's task)
    kill      an actor was killed: time, task, attempt, actor, number (1: for good)
    cancel    a task was cancelled: time, task, attempt, objects (one), number (1: with its worker; 2: with its own)
    group     a placement group was asked for: time, task, attempt, objects (its id), template (what it reserves)
    ungroup   a placement group was removed: time, task, attempt, objects (its id)
    retry     a task is tried again: time, task, attempt, other (why)
    transfer  an object came from another node: time, end, objects (one), bytes, node (to), other (from)
    evicted, spilled, restored, deleted    an object of a store: time, node, objects (one), bytes
    worker    a worker started (no end) or ended (other: why): time, process, node
    fault     something was made to go wrong: time, process, name
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import msgpack

from dualray.output_files import create_file
from dualray.shared.model.codec import SURROGATES
from dualray.shared.model.ids import Address, node_of
from dualray.shared.proof.trace import TraceEvent, TraceKind

SCHEMA_VERSION = 4
_READABLE = (3, 4)
_YOUNGER = ("values", "peak_bytes")
"""Columns that version 3 does not have."""
_SHORT_NS = 1_000_000
"""What takes less has computed all the time, as far as anybody knows."""
METADATA_KEY = b"dualray"
LEFT_THERE = "left there"
"""Said of a `wait` that does not bring objects here."""

_STORE_KINDS = {
    TraceKind.OBJECT_EVICTED: "evicted",
    TraceKind.OBJECT_SPILLED: "spilled",
    TraceKind.OBJECT_RESTORED: "restored",
    TraceKind.OBJECT_DELETED: "deleted",
}

_TIMES = ("time_ns", "end_ns", "came_ns", "called_ns", "returned_ns")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """A recorded run.

    Attributes:
        rows: in order of time, each with the columns that its kind uses.
        facts: what is known of the run as a whole: `mode`, `nodes` (by name: its resources by name, and
            `object_store`, bytes), `driver` (the id of its execution in hex), `began_ns` and `ended_ns` (of the
            program), `machine`, `cores`, `date`, `inline_bytes_max`; `estimates` of what was not seen, in sentences.
    """

    rows: Sequence[Mapping[str, Any]]
    facts: Mapping[str, Any] = field(default_factory=dict)

    def of_kind(self, *kinds: str) -> Iterator[Mapping[str, Any]]:
        """The rows of these kinds."""
        return (row for row in self.rows if row["kind"] in kinds)

    def to_arrow(self) -> Any:
        """The same as a `pyarrow.Table`, as it stands in the file."""
        return _table(self.rows, self.facts)


def make_record(
    notes: Mapping[str, bytes],
    trace: Iterable[TraceEvent],
    *,
    began_ns: int,
    ended_ns: int,
    facts: Mapping[str, Any],
) -> RunRecord:
    """The record of a run: from the notes of its processes, by address (see recorded.py), and its nodes' trace; the
    program ran from `began_ns`, when `init` was over, to `ended_ns`, when it called `shutdown`."""
    rows: list[dict[str, Any]] = []
    came: dict[tuple[bytes, int], int] = {}
    names: dict[bytes, str] = {}
    for address, stream in notes.items():
        rows += _rows_of_process(address, stream, came, names)
    for row in rows:
        if row["kind"] == "run":
            row["came_ns"] = came.get((row["task"], row["attempt"]))
            row["name"] = names.get(row["task"], "")
    rows += _rows_of_trace(trace)
    start_ns = min((row["time_ns"] for row in rows), default=began_ns)
    start_ns = min(start_ns, began_ns)
    for row in rows:
        for name in _TIMES:
            if row.get(name) is not None:
                row[name] -= start_ns
    rows.sort(key=lambda row: row["time_ns"])
    _number_values(rows)
    return RunRecord(rows=rows, facts={**facts, "began_ns": began_ns - start_ns, "ended_ns": ended_ns - start_ns})


def _number_values(rows: Iterable[dict[str, Any]]) -> None:
    """The file says which calls were given the same values, and nothing by which a value could be guessed."""
    numbers: dict[int, int] = {0: 0}
    for row in rows:
        if row["kind"] == "task":
            row["values"] = numbers.setdefault(row["values"], len(numbers))


def _rows_of_process(
    address: str, stream: bytes, came: dict[tuple[bytes, int], int], names: dict[bytes, str]
) -> Iterator[dict[str, Any]]:
    templates: dict[int, tuple[str, str]] = {}
    unpacker = msgpack.Unpacker(raw=False, use_list=False, max_buffer_size=0, unicode_errors=SURROGATES)
    unpacker.feed(stream)
    base = {"process": address}
    runs: list[dict[str, Any]] = []
    usages: list[tuple[int, int, int, int, int]] = []
    for note in chain.from_iterable(unpacker):
        match note:
            case ("template", number, name, words):
                templates[number] = (name, words)
            case ("came", time_ns, tasks):
                for task, attempt in tasks:
                    came[task, attempt] = time_ns
            case ("submit", *rest):
                yield base | _row_of_submission(rest, templates, names)
            case ("get" | "wait" | "put", *_):
                yield base | _row_of_verb(note)
            case ("drop", time_ns, task, attempt, ids):
                yield base | {"kind": "drop", "time_ns": time_ns, "task": task, "attempt": attempt, "objects": ids}
            case ("retry", time_ns, task, attempt, reason):
                yield base | {"kind": "retry", "time_ns": time_ns, "task": task, "attempt": attempt, "other": reason}
            case ("run", *rest):
                run = base | _row_of_run(rest, address)
                runs.append(run)
                yield run
            case ("usage", began_ns, ended_ns, cpu_ns, delay_ns, peak_bytes):
                usages.append((began_ns, ended_ns, cpu_ns, delay_ns, peak_bytes))
            case (kind, time_ns, task, attempt, *rest):
                yield base | {"kind": kind, "time_ns": time_ns, "task": task, "attempt": attempt} | _rare(kind, rest)
            case _:
                raise ValueError(
                    f"the process {address} sent a row of the unknown kind {note[0]!r} for the recording of the run"
                )
    _share_out(usages, runs)


def _row_of_submission(
    note: Sequence[Any], templates: Mapping[int, tuple[str, str]], names: dict[bytes, str]
) -> dict[str, Any]:
    time_ns, execution, attempt, task, number, size, deps, nested, actor, creates, values = note
    name, words = templates[number]
    names[task] = name
    if creates is not None:
        of_actor = {"max_task_retries": creates[1], "is_concurrent": creates[2]}
        words = json.dumps(json.loads(words) | of_actor, sort_keys=True)
    return {
        "kind": "task",
        "time_ns": time_ns,
        "parent": execution,
        "attempt": attempt,
        "task": task,
        "name": name,
        "template": words,
        "bytes": size,
        "objects": deps,
        "nested": nested,
        "actor": actor or None,
        "number": None if creates is None else creates[0],
        "values": values,
    }


def _row_of_verb(note: Sequence[Any]) -> dict[str, Any]:
    """Of a `get`, `wait` or `put`."""
    kind, began_ns, ended_ns, task, attempt, *rest = note
    row = {"kind": kind, "time_ns": began_ns, "end_ns": ended_ns, "task": task, "attempt": attempt}
    if kind == "put":
        object_id, size, nested = rest
        return row | {"objects": (object_id,), "bytes": size, "nested": nested}
    ids, delay_ns, *of_wait = rest
    row |= {"objects": ids, "delay_ns": delay_ns or None}
    if kind == "wait":
        number, timeout_ns, ready, is_fetched = of_wait
        row |= {"number": number, "timeout_ns": timeout_ns if timeout_ns >= 0 else None, "ready": ready}
        row["other"] = None if is_fetched else LEFT_THERE
    return row


def _row_of_run(note: Sequence[Any], address: str) -> dict[str, Any]:
    task, attempt, started_ns, called_ns, returned_ns, ended_ns, stored_ns, error, sizes, nested = note
    return {
        "kind": "run",
        "time_ns": started_ns,
        "end_ns": ended_ns,
        "task": task,
        "attempt": attempt,
        "node": node_of(Address(address)),
        "called_ns": called_ns,
        "returned_ns": returned_ns,
        "stored_ns": stored_ns or None,
        "sizes": sizes,
        "nested": nested,
        "other": error,
    }


def _share_out(usages: Iterable[tuple[int, int, int, int, int]], runs: Sequence[dict[str, Any]]) -> None:
    """Tell each attempt that took a millisecond or more what it used of what its process used in the meantime."""
    runs = sorted(runs, key=lambda run: run["end_ns"])
    ends = [run["end_ns"] for run in runs]
    for began_ns, ended_ns, cpu_ns, delay_ns, peak_bytes in usages:
        among = runs[bisect_right(ends, began_ns) : bisect_right(ends, ended_ns)]
        took_ns = sum(run["end_ns"] - max(run["time_ns"], began_ns) for run in among)
        # Between tasks a process may rest, or compute for itself: that is not theirs.
        all_ns = max(took_ns, min(cpu_ns + delay_ns, ended_ns - began_ns), 1)
        for run in among:
            own_ns = run["end_ns"] - max(run["time_ns"], began_ns)
            if run["end_ns"] - run["time_ns"] >= _SHORT_NS:
                run["cpu_ns"] = cpu_ns * own_ns // all_ns
                run["delay_ns"] = delay_ns * own_ns // all_ns
                if peak_bytes:
                    run["peak_bytes"] = peak_bytes


def _rare(kind: str, rest: Sequence[Any]) -> dict[str, Any]:
    """The other columns of what few programs do.

    Raises:
        ValueError: nobody knows this kind.
    """
    match kind, rest:
        case "item", (object_id, size, nested, stored_ns, error):
            columns = {"objects": (object_id,), "bytes": size, "nested": nested, "stored_ns": stored_ns or None}
            return columns | {"other": error}
        case "take", (generator,):
            return {"parent": generator}
        case "kill", (actor, no_restart):
            return {"actor": actor, "number": int(no_restart)}
        case "cancel", (object_id, force, recursive):
            return {"objects": (object_id,), "number": int(force) + 2 * int(recursive)}
        case "group", (group, words):
            return {"objects": (group,), "template": words}
        case "ungroup", (group,):
            return {"objects": (group,)}
        case _:
            raise ValueError(f"a process sent a row of the unknown kind {kind!r} for the recording of the run")


def _rows_of_trace(trace: Iterable[TraceEvent]) -> Iterator[dict[str, Any]]:
    """What nodes did. A transfer is one row: from when its source began to when it had all come."""
    begun: dict[tuple[str, str, str], int] = {}
    for event in trace:
        base = {"time_ns": event.time_ns, "process": event.process}
        match event.kind:
            case TraceKind.TRANSFER_STARTED:
                begun[event.subject, event.process, event.other] = event.time_ns
            case TraceKind.TRANSFER_ENDED:
                started_ns = begun.pop((event.subject, event.other, event.process), event.time_ns)
                yield base | {
                    "kind": "transfer",
                    "time_ns": started_ns,
                    "end_ns": event.time_ns,
                    "objects": (bytes.fromhex(event.subject),),
                    "bytes": event.amount,
                    "node": event.process,
                    "other": event.other,
                }
            case kind if kind in _STORE_KINDS:
                objects = (bytes.fromhex(event.subject),)
                row = {"kind": _STORE_KINDS[kind], "node": event.process, "objects": objects, "bytes": event.amount}
                yield base | row
            case TraceKind.WORKER_STARTED:
                yield base | {"kind": "worker", "process": event.subject, "node": event.process}
            case TraceKind.WORKER_ENDED:
                row = {"kind": "worker", "process": event.subject, "node": event.process}
                yield base | row | {"end_ns": event.time_ns, "other": event.other}
            case TraceKind.FAULT:
                yield base | {"kind": "fault", "process": event.subject, "name": event.name}
            case _:
                pass


# ---- Parquet -------------------------------------------------------------------------------------------------------


def check_can_write(path: Path, what: str = "record") -> None:
    """Before a run: whether its record can be written at all.

    Raises:
        ValueError: pyarrow is missing, or there is no such directory; the message says what to do.
    """
    _check_has_arrow(what)
    check_place(path, what)
    _load_arrow()


def _load_arrow() -> None:
    """Load what `write_record` uses: a program that ends without `shutdown` writes its record while Python ends, and
    then nothing that starts threads can be imported. The first `pyarrow.array` imports pandas, if it is there."""
    import pyarrow as pa  # noqa: PLC0415 - as above
    import pyarrow.parquet  # noqa: PLC0415 - as above

    pa.array([])


def _check_has_arrow(what: str) -> None:
    try:
        import pyarrow  # noqa: ICN001, F401, PLC0415 - 0.1 s, which only who records pays
    except ImportError:
        raise ValueError(f"{what} needs pyarrow, which is not installed: pip install 'dualray[whatif]'") from None


def check_place(path: Path, what: str) -> None:
    """Before a run: whether there can be a file of this name.

    Raises:
        ValueError: it is a directory, or its directory is not there; the message says what to do.
    """
    if path.is_dir():
        raise ValueError(f"{what}={str(path)!r} is a directory; give the path of a file")
    if not path.absolute().parent.is_dir():
        raise ValueError(f"{what}={str(path)!r}: there is no directory {str(path.parent)!r}; create it first")


def _schema(facts: Mapping[str, Any]) -> Any:
    import pyarrow as pa  # noqa: PLC0415 - as above

    word, id_, ids = pa.dictionary(pa.int32(), pa.string()), pa.binary(), pa.list_(pa.binary())
    columns = {
        "kind": word,
        "time_ns": pa.int64(),
        "end_ns": pa.int64(),
        "process": word,
        "node": word,
        "task": id_,
        "parent": id_,
        "attempt": pa.int32(),
        "name": word,
        "template": word,
        "actor": id_,
        "objects": ids,
        "nested": ids,
        "ready": ids,
        "sizes": pa.list_(pa.int64()),
        "bytes": pa.int64(),
        "number": pa.int64(),
        "timeout_ns": pa.int64(),
        "came_ns": pa.int64(),
        "called_ns": pa.int64(),
        "returned_ns": pa.int64(),
        "cpu_ns": pa.int64(),
        "delay_ns": pa.int64(),
        "stored_ns": pa.int64(),
        "other": word,
        "values": pa.int64(),
        "peak_bytes": pa.int64(),
    }
    words = json.dumps({"schema": SCHEMA_VERSION, **facts}, sort_keys=True)
    return pa.schema(list(columns.items()), metadata={METADATA_KEY: words.encode()})


def _table(rows: Sequence[Mapping[str, Any]], facts: Mapping[str, Any]) -> Any:
    import pyarrow as pa  # noqa: PLC0415 - as above

    schema = _schema(facts)
    columns = [pa.array([row.get(name) for row in rows], type=schema.field(name).type) for name in schema.names]
    return pa.Table.from_arrays(columns, schema=schema)


def write_record(path: Path, record: RunRecord) -> None:
    """Write the file; it is there whole, or not at all."""
    import pyarrow.parquet as pq  # noqa: PLC0415 - as above

    beside = path.with_name(f".{path.name}.part")
    try:
        with create_file(beside) as file:
            pq.write_table(record.to_arrow(), file, compression="zstd")
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def read_record_file(path: Path) -> RunRecord:
    """Read a recorded run.

    Raises:
        ValueError: there is no such file, it was cut off, is no record, or one of another version; one line says which.
            So it says when pyarrow, which reads it, is missing.
    """
    _check_has_arrow(str(path))
    import pyarrow as pa  # noqa: PLC0415 - as above
    import pyarrow.parquet as pq  # noqa: PLC0415 - as above

    if path.is_dir():
        raise ValueError(f"{str(path)!r} is a directory; give the path of a file")
    try:
        table = pq.read_table(path)
    except FileNotFoundError:
        raise ValueError(f"there is no file {str(path)!r}") from None
    except (pa.ArrowException, OSError) as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(f"{path} is not a complete Parquet file (was it cut off?): {reason}") from None
    facts = _facts_of(path, table.schema.metadata or {})
    wanted = _schema({}).remove_metadata()
    if facts.pop("version") < SCHEMA_VERSION:
        for name in _YOUNGER:
            wanted = wanted.remove(wanted.get_field_index(name))
    if not table.schema.remove_metadata().equals(wanted):
        missing = [name for name in wanted.names if name not in table.schema.names]
        what = f"it has no column {missing[0]!r}" if missing else "its columns have other types"
        raise ValueError(f"{path} is a damaged recorded run of format version {SCHEMA_VERSION}: {what}")
    return RunRecord(rows=_rows_of(table), facts=facts)


def _rows_of(table: Any) -> list[dict[str, Any]]:
    """The rows of a table, in order, each without the columns that it does not use. Kind by kind: rows of a kind use
    the same few columns."""
    import pyarrow as pa  # noqa: PLC0415 - as above
    import pyarrow.compute as pc  # noqa: PLC0415 - as above

    rows: list[dict[str, Any]] = [{}] * len(table)
    places = pa.array(range(len(table)))
    for kind in pc.unique(table.column("kind")).to_pylist():
        is_of_kind = pc.equal(table.column("kind"), kind)
        of_kind = table.filter(is_of_kind)
        full = [name for name in table.schema.names if not of_kind.column(name).null_count]
        some = [name for name in table.schema.names if 0 < of_kind.column(name).null_count < len(of_kind)]
        values = zip(*[_values(of_kind.column(name)) for name in full], strict=True)
        found = [dict(zip(full, each, strict=True)) for each in values]
        for name in some:
            for row, value in zip(found, _values(of_kind.column(name)), strict=True):
                if value is not None:
                    row[name] = value
        for place, row in zip(places.filter(is_of_kind).to_pylist(), found, strict=True):
            rows[place] = row
    return rows


def _values(column: Any) -> list[Any]:
    """A column as Python values; words that are the same are one object."""
    import pyarrow as pa  # noqa: PLC0415 - as above

    if pa.types.is_dictionary(column.type):
        joined = column.combine_chunks()
        chunks = joined.chunks if isinstance(joined, pa.ChunkedArray) else [joined]
        return [
            None if index is None else words[index]
            for chunk in chunks
            for words in [chunk.dictionary.to_pylist()]
            for index in _values(chunk.indices)
        ]
    if pa.types.is_integer(column.type) and not column.null_count:
        values: list[Any] = column.to_numpy().tolist()
        return values
    plain: list[Any] = column.to_pylist()
    return plain


def _facts_of(path: Path, metadata: Mapping[bytes, bytes]) -> dict[str, Any]:
    if METADATA_KEY not in metadata:
        raise ValueError(f"{path} is a Parquet file but not a recorded run; `dualray record SCRIPT -o FILE` writes one")
    try:
        facts: dict[str, Any] = json.loads(metadata[METADATA_KEY])
        version = facts.pop("schema")
    except (ValueError, KeyError, AttributeError):
        raise ValueError(
            f"{path} is not a recorded run, because dualray cannot read the run's description in the file"
        ) from None
    if version not in _READABLE:
        raise ValueError(
            f"{path} is a recorded run of format version {version}, but this dualray reads only versions "
            f"{_READABLE[0]} to {_READABLE[-1]}: record the run again"
        )
    wrong = [name for name, is_right in _FACTS.items() if name not in facts or not is_right(facts[name])]
    if wrong:
        raise ValueError(f"{path} is a damaged recorded run: the value {wrong[0]!r} is missing or wrong")
    return facts | {"version": version}


def _is_hex(value: Any) -> bool:
    return isinstance(value, str) and not set(value) - set("0123456789abcdef") and len(value) % 2 == 0


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and value >= 0


def _are_nodes(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and bool(value)
        and all(
            isinstance(node, dict) and isinstance(node.get("resources"), dict) and _is_count(node.get("object_store"))
            for node in value.values()
        )
    )


_FACTS: Mapping[str, Callable[[Any], bool]] = {
    "driver": _is_hex,
    "began_ns": _is_count,
    "ended_ns": _is_count,
    "inline_bytes_max": _is_count,
    "nodes": _are_nodes,
}
"""What a replay needs of a run as a whole."""
