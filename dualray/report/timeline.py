"""A run as a picture: Chrome's trace format, which https://ui.perfetto.dev and chrome://tracing open.

Each node is a process of the picture, each worker a thread of it. A task is a slice on its worker; a transfer is an
asynchronous slice on the node that receives it; faults, retries, evictions and the ends of workers are instants; what
flows through a simulated node's network card is a curve.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dualray.report.traces import natural
from dualray.shared.model.ids import Address, node_of
from dualray.shared.proof.trace import TraceEvent, TraceKind

Row = dict[str, Any]

_NS_PER_US = 1_000
_INSTANTS = {
    TraceKind.FAULT: "fault",
    TraceKind.TASK_RETRIED: "retry",
    TraceKind.OBJECT_EVICTED: "evict",
    TraceKind.OBJECT_SPILLED: "spill",
    TraceKind.OBJECT_RESTORED: "restore",
    TraceKind.WORKER_ENDED: "worker ended",
}


def write_timeline(events: Sequence[TraceEvent], path: Path) -> None:
    """Write a run's timeline as a file that Perfetto opens."""
    path.write_text(json.dumps(timeline(events), sort_keys=True))


def timeline(events: Sequence[TraceEvent]) -> dict[str, Any]:
    """The picture as plain data; times count from the first event, in microseconds."""
    picture = _Picture(events)
    for event in events:
        picture.add(event)
    return {"displayTimeUnit": "ms", "traceEvents": picture.finished()}


class _Picture:
    """The rows of one picture while it is drawn."""

    def __init__(self, events: Sequence[TraceEvent]) -> None:
        self._start_ns = events[0].time_ns if events else 0
        self._end_ns = events[-1].time_ns if events else 0
        self._rows: list[Row] = []
        self._running: dict[tuple[str, str, int], TraceEvent] = {}
        self._transfers: dict[tuple[str, str, str], deque[TraceEvent]] = {}
        self._transfer_count = 0
        addresses = sorted({event.process for event in events}, key=natural)
        places = sorted({_place(address) for address in addresses}, key=natural)
        self._pids = {place: number for number, place in enumerate(places, 1)}
        self._tids = {address: number for number, address in enumerate(addresses, 1)}
        self._rows += [_name("process_name", pid, 0, place) for place, pid in self._pids.items()]
        self._rows += [
            _name("thread_name", self._pids[_place(address)], tid, _thread(address))
            for address, tid in self._tids.items()
        ]

    def add(self, event: TraceEvent) -> None:
        """Draw one row of the trace."""
        match event.kind:
            case TraceKind.TASK_STARTED:
                self._running[event.process, event.subject, event.amount] = event
            case TraceKind.TASK_ENDED:
                started = self._running.pop((event.process, event.subject, event.amount), None)
                if started is not None:
                    self._slice(started, event.time_ns, event.other)
            case TraceKind.TRANSFER_STARTED:
                self._transfers.setdefault((event.subject, event.process, event.other), deque()).append(event)
            case TraceKind.TRANSFER_ENDED:
                begun = self._transfers.get((event.subject, event.other, event.process))
                if begun:
                    self._transfer(begun.popleft(), event.time_ns, "")
            case TraceKind.NIC_RATE:
                self._count(event)
            case kind if kind in _INSTANTS:
                self._instant(event)
            case _:
                pass
        if event.kind in (TraceKind.FAULT, TraceKind.WORKER_ENDED):
            self._lose(event)

    def finished(self) -> list[Row]:
        """All rows; what has not ended lasts to the end of the trace."""
        for started in self._running.values():
            self._slice(started, self._end_ns, "not ended")
        for begun in self._transfers.values():
            for transfer in begun:
                self._transfer(transfer, self._end_ns, "not ended")
        return self._rows

    def _lose(self, event: TraceEvent) -> None:
        """A worker, or a node with all its workers, is gone: so is what ran there."""
        for key in list(self._running):
            if event.subject in (key[0], node_of(Address(key[0]))):
                self._slice(self._running.pop(key), event.time_ns, "lost")

    def _us(self, time_ns: int) -> float:
        return (time_ns - self._start_ns) / _NS_PER_US

    def _at(self, event: TraceEvent, process: str) -> Row:
        return {
            "pid": self._pids[_place(process)],
            "tid": self._tids[process],
            "ts": self._us(event.time_ns),
        }

    def _slice(self, started: TraceEvent, end_ns: int, outcome: str) -> None:
        args = {"task": started.subject, "attempt": started.amount, "outcome": outcome or "finished"}
        duration = {"dur": (end_ns - started.time_ns) / _NS_PER_US}
        row = {"ph": "X", "cat": "task", "name": started.name, "args": args}
        self._rows.append(row | duration | self._at(started, started.process))

    def _transfer(self, started: TraceEvent, end_ns: int, outcome: str) -> None:
        receiver = started.other if started.other in self._tids else started.process
        self._transfer_count += 1
        args = {"object": started.subject, "bytes": started.amount, "outcome": outcome or "arrived"}
        row = {
            "cat": "transfer",
            "name": f"{started.process} to {started.other}",
            "id": self._transfer_count,
            **self._at(started, receiver),
        }
        self._rows.append(row | {"ph": "b", "args": args})
        self._rows.append(row | {"ph": "e", "ts": self._us(end_ns)})

    def _count(self, event: TraceEvent) -> None:
        """What flows through a node's card, as a curve of its process."""
        row = {"ph": "C", "name": f"network {event.other}", "args": {"bytes per second": event.amount}}
        self._rows.append(row | self._at(event, event.subject))

    def _instant(self, event: TraceEvent) -> None:
        what = _INSTANTS[event.kind]
        args = {"subject": event.subject, "reason": event.other, "amount": event.amount}
        row = {
            "ph": "i",
            "s": "g" if event.kind is TraceKind.FAULT else "t",  # a fault is drawn through the whole picture
            "cat": what,
            "name": f"{what}: {event.name or event.other or event.subject[:8]}",
            "args": args,
        }
        self._rows.append(row | self._at(event, event.process))


def _place(address: str) -> str:
    """The process of the picture: the node, or the driver or head itself."""
    return node_of(Address(address))


def _thread(address: str) -> str:
    worker = address.partition("/")[2]
    return worker or ("node manager" if address.startswith("node-") else address)


def _name(kind: str, pid: int, tid: int, name: str) -> Row:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": {"name": name}}
