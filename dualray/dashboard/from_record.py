"""A recorded run (Parquet, `init(record=)`, `dualray record`, `dualray import-ray`) as the source of a page.

A record says of each attempt when it began and ended, and where. It has no decisions, and not when a task was given to
its worker, and lacks attempts that ended with their worker. So a page of a record tells no stories.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from dualray.dashboard.feeds import EVENTS_AT_ONCE, LogFile, answer_of
from dualray.dashboard.from_trace import TraceTables
from dualray.dashboard.tables import Tables
from dualray.recording.file import RunRecord, read_record_file
from dualray.report.histories import Lives
from dualray.report.record import Record
from dualray.shared.model.ids import HEAD
from dualray.shared.model.resources import CPU, UNITS
from dualray.shared.proof.trace import TraceEvent, TraceKind

__all__ = ["RecordFeed", "events_of"]

_STORES: Final = {
    "evicted": TraceKind.OBJECT_EVICTED,
    "spilled": TraceKind.OBJECT_SPILLED,
    "restored": TraceKind.OBJECT_RESTORED,
    "deleted": TraceKind.OBJECT_DELETED,
}
_INDEX_BYTES: Final = 4


def events_of(record: RunRecord) -> list[TraceEvent]:
    """What a trace of the same run would say, in order of time, as far as the record knows it."""
    inline_max = int(record.facts.get("inline_bytes_max", 0))
    found = [
        *(_node(name, amounts) for name, amounts in record.facts.get("nodes", {}).items()),
        *(event for row in record.rows for event in _of_row(row, inline_max)),
    ]
    found.sort(key=lambda event: event.time_ns)
    return found


def _node(name: str, amounts: Mapping[str, Any]) -> TraceEvent:
    cpus, store_bytes = amounts.get("resources", {}).get(CPU, 0), amounts.get("object_store", 0)
    deps = (f"{CPU} {round(cpus * UNITS)}", f"object_store {round(store_bytes)}")
    return TraceEvent(0, TraceKind.NODE_STARTED, name, name, deps=deps)


def _of_row(row: Mapping[str, Any], inline_max: int) -> Iterator[TraceEvent]:
    began_ns, process, attempt = row["time_ns"], row.get("process") or "", row.get("attempt") or 0
    match row["kind"]:
        case "task":
            deps = tuple(each.hex() for each in row.get("objects") or ())
            name = row.get("name") or ""
            yield TraceEvent(began_ns, TraceKind.TASK_SUBMITTED, process, row["task"], name=name, deps=deps)
            if row.get("number") is not None:  # the head has actors made
                yield TraceEvent(began_ns, TraceKind.TASK_PUSHED, HEAD, row["task"], name=name)
        case "run":
            yield from _attempt(row, process, attempt, inline_max)
        case "put" | "item":
            if row["bytes"] > inline_max:
                end_ns = row.get("end_ns") or began_ns
                size = row["bytes"]
                yield TraceEvent(end_ns, TraceKind.OBJECT_STORED, process, row["objects"][0], amount=size)
        case "retry":
            why = row.get("other") or ""
            yield TraceEvent(began_ns, TraceKind.TASK_RETRIED, process, row["task"], other=why, amount=attempt)
        case "transfer":
            where, from_ = row["node"], row.get("other") or ""
            amount = row["bytes"]
            yield TraceEvent(row["end_ns"], TraceKind.TRANSFER_ENDED, where, row["objects"][0], from_, amount=amount)
        case "worker":
            kind = TraceKind.WORKER_STARTED if row.get("end_ns") is None else TraceKind.WORKER_ENDED
            yield TraceEvent(began_ns, kind, row["node"], process, other=row.get("other") or "")
        case "fault":
            yield TraceEvent(began_ns, TraceKind.FAULT, process, process, name=row["name"])
        case kind if kind in _STORES:
            yield TraceEvent(began_ns, _STORES[kind], row["node"], row["objects"][0], amount=row["bytes"])


def _attempt(row: Mapping[str, Any], process: str, attempt: int, inline_max: int) -> Iterator[TraceEvent]:
    """Its beginning, its end, and its results that went into the store."""
    task, name, error = row["task"], row.get("name") or "", row.get("other") or ""
    yield TraceEvent(row["time_ns"], TraceKind.TASK_STARTED, process, task, name=name, amount=attempt)
    for index, size in enumerate(row.get("sizes") or ()):
        if size > inline_max:
            made = task + index.to_bytes(_INDEX_BYTES, "big")
            yield TraceEvent(row["end_ns"], TraceKind.OBJECT_STORED, process, made, amount=size)
    yield TraceEvent(row["end_ns"], TraceKind.TASK_ENDED, process, task, other=error, name=name, amount=attempt)


class RecordFeed:
    """A recorded run, which is over.

    Args:
        path: of the Parquet file.

    Raises:
        ValueError: it is no record, or pyarrow, which reads it, is missing; the message says which.
    """

    def __init__(self, path: Path) -> None:
        self.name = path.name
        self.tables = Tables()
        self.asked_s = time.monotonic()
        self.pages, self.is_opening, self.asks_others = 0, True, False
        record = read_record_file(path)
        self._pending: Sequence[TraceEvent] = events_of(record)
        self._events = self._pending
        self._answer: str | None = None
        self._reading = threading.Lock()
        """Held while the answer is worked out: several pages ask at once."""
        self._trace = TraceTables(self.tables)
        is_virtual = record.facts.get("mode") == "sim"
        self.tables.head.update(
            run=uuid4().hex, name=self.name, source="run", state="reading", error="", is_virtual=is_virtual
        )

    def refresh(self) -> bool:
        """Put a part of it into the tables."""
        taken, self._pending = self._pending[:EVENTS_AT_ONCE], self._pending[EVENTS_AT_ONCE:]
        with self.tables.lock:
            self._trace.take(taken)
            self.tables.head["state"] = "reading" if self._pending else "over"
        return bool(self._pending)

    def story(self, wanted: str) -> dict[str, Any]:
        raise ValueError(
            f"a recorded run (record=FILE) has no scheduling decisions, so dualray cannot explain {wanted!r}: to see "
            "scheduling decisions, run the program with decision_log=DIR"
        )

    def answer(self) -> str:
        with self._reading:
            if self._answer is None:
                self._answer = answer_of(Lives(Record(events=self._events, is_virtual=self.tables.head["is_virtual"])))
            return self._answer

    def logs(self) -> list[LogFile]:
        return []

    def log(self, name: str, node: str) -> str:
        raise ValueError(f"the log {name!r} does not exist, because a recorded run has no logs")

    def close(self) -> None:
        """Nothing was started for it."""
