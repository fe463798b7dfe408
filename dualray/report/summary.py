"""The figures of one run, counted from its trace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dualray.shared.model.ids import Address, node_of
from dualray.shared.proof.trace import TraceEvent, TraceKind

RECONSTRUCTION = "reconstruction"
"""The reason of a TASK_RETRIED row by which a lost object is made again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The figures of one run.

    Attributes:
        makespan_ns: from the first submission to the end of the last task.
        nodes: that started, or had a worker that did something.
        tasks: calls that were submitted, constructors of actors included.
        failed: attempts that ended with an error.
        retries: attempts after one that was lost or raised.
        reconstructions: attempts that made a lost object again.
        bytes_moved: bytes that arrived in a store from another one.
        faults: in words.
        counts: rows by kind.
    """

    makespan_ns: int
    nodes: int
    tasks: int
    failed: int
    retries: int
    reconstructions: int
    bytes_moved: int
    faults: tuple[str, ...]
    counts: Mapping[TraceKind, int]


_SUBMITTED, _ENDED, _RETRIED = TraceKind.TASK_SUBMITTED, TraceKind.TASK_ENDED, TraceKind.TASK_RETRIED
_TRANSFERRED, _FAULT, _NODE_STARTED = TraceKind.TRANSFER_ENDED, TraceKind.FAULT, TraceKind.NODE_STARTED
# An attribute of an enumeration is looked up through three functions, and a trace has very many events.


def summary(events: Sequence[TraceEvent]) -> Summary:
    """Count."""
    counts = Counter([event.kind for event in events])
    nodes: set[str] = set()
    processes: dict[str, None] = {}
    first_submission: int | None = None
    last_end = failed = reconstructions = bytes_moved = 0
    faults = []
    for event in events:
        kind = event.kind
        processes[event.process] = None
        if kind is _SUBMITTED:
            if first_submission is None:
                first_submission = event.time_ns
        elif kind is _ENDED:
            last_end = max(last_end, event.time_ns)
            failed += event.other != ""
        elif kind is _RETRIED:
            reconstructions += event.other == RECONSTRUCTION
        elif kind is _TRANSFERRED:
            bytes_moved += event.amount
        elif kind is _FAULT:
            faults.append(f"{event.name.partition(' ')[0]} {event.subject}")
        elif kind is _NODE_STARTED:
            nodes.add(event.process)
    nodes.update(node_of(Address(process)) for process in processes if "/" in process)
    return Summary(
        makespan_ns=max(0, last_end - first_submission) if first_submission is not None else 0,
        nodes=len(nodes),
        tasks=counts[TraceKind.TASK_SUBMITTED],
        failed=failed,
        retries=counts[TraceKind.TASK_RETRIED] - reconstructions,
        reconstructions=reconstructions,
        bytes_moved=bytes_moved,
        faults=tuple(faults),
        counts={kind: counts[kind] for kind in TraceKind},
    )
