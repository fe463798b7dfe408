"""The oracles: what must hold in every run, whatever goes wrong. They know nothing of the faults.

Machines check their own invariants after every event; here stands what no single machine can see: that the trace of the
whole cluster makes sense, and that a run with faults gave what the run without them gave, or an honest error.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from dualray.shared.trace import TraceEvent, TraceKind

if TYPE_CHECKING:
    from dualray.testing.outcome import Outcome

HONEST_ERRORS = frozenset(
    {
        "ActorDiedError",
        "ActorUnavailableError",
        "ActorUnschedulableError",
        "NodeDiedError",
        "ObjectLostError",
        "ObjectStoreFullError",
        "OutOfMemoryError",
        "TaskUnschedulableError",
        "WorkerCrashedError",
    }
)
"""What a program that does not survive every fault may end with, subclasses included."""

LISTED_MAX = 5
"""Findings of one kind that are listed."""


def check_trace(trace: Sequence[TraceEvent]) -> list[str]:
    """What is wrong in the trace of a cluster, in words."""
    return [*_started_twice(trace), *_ended_without_start(trace), *_bytes_changed(trace)]


def _started_twice(trace: Iterable[TraceEvent]) -> Iterator[str]:
    """An attempt of a task, or of an actor's method, runs at most once."""
    started: dict[tuple[str, int], str] = {}
    found = 0
    for event in trace:
        if event.kind is TraceKind.TASK_STARTED:
            key = (event.subject, event.amount)
            if key in started and found < LISTED_MAX:
                found += 1
                yield (
                    f"attempt {event.amount} of {event.name} (task {event.subject[:8]}) started on {started[key]} and "
                    f"again on {event.process}"
                )
            started[key] = event.process


def _ended_without_start(trace: Iterable[TraceEvent]) -> Iterator[str]:
    """What ends has started, once, and in the same process."""
    running: dict[tuple[str, int, str], int] = {}
    found = 0
    for event in trace:
        key = (event.subject, event.amount, event.process)
        if event.kind is TraceKind.TASK_STARTED:
            running[key] = running.get(key, 0) + 1
        elif event.kind is TraceKind.TASK_ENDED:
            if not running.get(key) and found < LISTED_MAX:
                found += 1
                yield f"attempt {event.amount} of {event.name} ({event.subject[:8]}) ended twice on {event.process}"
            running[key] = running.get(key, 0) - 1


def _bytes_changed(trace: Iterable[TraceEvent]) -> Iterator[str]:
    """An object that travels has one size, whoever sends it."""
    sizes: dict[str, int] = {}
    found = 0
    for event in trace:
        if event.kind is TraceKind.TRANSFER_STARTED:
            size = sizes.setdefault(event.subject, event.amount)
            if size != event.amount and found < LISTED_MAX:
                found += 1
                yield f"object {event.subject[:8]} had {size:,} bytes and was sent with {event.amount:,}"


def compare(outcome: Outcome, reference: Outcome, *, must_succeed: bool) -> list[str]:
    """What is wrong with a run under faults, in view of the run without them.

    Args:
        must_succeed: the program survives whatever happens to nodes and workers.
    """
    if outcome.error:
        if reference.error:
            return []
        if "SimulationDeadlockError" in outcome.error:
            return [f"it does not end: {outcome.message}"]
        if must_succeed or not HONEST_ERRORS & set(outcome.error):
            return [f"it fails with {outcome.error[0]}: {outcome.message.splitlines()[-1] if outcome.message else ''}"]
        return []
    if must_succeed and outcome.result != reference.result:
        return [f"its result is {_short(outcome.result)}, and without faults {_short(reference.result)}"]
    return []


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}..."
