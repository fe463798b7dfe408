"""The outcome of one run of a scenario, as plain data, in either mode."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dualray.exceptions import DualrayError, InvalidTransition, InvariantViolation, SimulationDeadlockError
from dualray.report.summary import summary
from dualray.shared.proof.trace import TraceEvent, TraceKind
from dualray.shared.scenario.fault_model import EVENT_ANCHORS
from dualray.testing.checkers import HONEST_ERRORS, check_trace
from dualray.testing.coverage import coverage
from dualray.testing.failures import Ended


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of one run. Plain values only.

    Attributes:
        result: what the program returned, as JSON gives it back; None when it failed.
        error: the names of the error's class and its bases, most derived first; empty when the program succeeded.
        message: the error's.
        where, traceback, output: see `Ended`; they are for people, and no part of what two equal runs have in common.
        makespan_ns: from the first submission to the end of the program, in virtual time (real mode: wall time).
        counters: see COUNTERS in dualray/shared/scenario/expect.py.
        performed, missed, outstanding: faults in words.
        leaks: what was left; None when nothing can be said.
        violations: invariants that do not hold, and what the oracles found.
        coverage: what happened at all, by name: how often.
        starts, events: how many tasks of each name started, and how many trace events there were of the kinds at which
            a fault can be anchored.
        longest_ns: how long the longest task of each name took.
        random: a digest of all random streams.
        witnessed: what the program did that no simulation can repeat, in words.
        rows_used: of the tables of durations and memory, and of the profile, the rows that said something of a task.
        remarks: what is to be known of this run, in words: what a replay leaves out, rows that said nothing.
    """

    result: Any = None
    error: tuple[str, ...] = ()
    message: str = ""
    where: str = ""
    traceback: str = ""
    output: str = ""
    makespan_ns: int = 0
    counters: dict[str, int] = field(default_factory=dict)
    performed: tuple[str, ...] = ()
    missed: tuple[str, ...] = ()
    outstanding: tuple[str, ...] = ()
    leaks: tuple[str, ...] | None = None
    violations: tuple[str, ...] = ()
    coverage: dict[str, int] = field(default_factory=dict)
    starts: dict[str, int] = field(default_factory=dict)
    longest_ns: dict[str, int] = field(default_factory=dict)
    events: dict[str, int] = field(default_factory=dict)
    random: str = ""
    witnessed: tuple[str, ...] = ()
    rows_used: tuple[tuple[str, str], ...] = ()
    remarks: tuple[str, ...] = ()

    @property
    def succeeded(self) -> bool:
        """Whether the program returned."""
        return not self.error


def examination_of(faults: Any, *, ended_ns: int, leaks: Any, violations: Sequence[str] = ()) -> dict[str, Any]:
    """What `make_outcome` takes of a run that was no simulation. `faults` has performed them."""
    return {
        "ended_ns": ended_ns,
        "leaks": leaks,
        "performed": faults.performed,
        "missed": faults.problems,
        "outstanding": [str(fault) for fault in faults.outstanding],
        "violations": list(violations),
        "random": "",
        "witnessed": [],
        "rows_used": [],
        "counters": {"faults": len(faults.performed)},
    }


def make_outcome(
    ended: Ended,
    trace: Sequence[TraceEvent],
    examination: Mapping[str, Any],
    *,
    remarks: tuple[str, ...] = (),
) -> Outcome:
    """What became of a run, from its trace and from what was found in the cluster: see
    dualray.sim.cluster.examination."""
    figures = summary(trace)
    first_ns = next((event.time_ns for event in trace if event.kind is _SUBMITTED), 0)
    leaks = examination["leaks"]
    broken = [ended.message] if ended.error and ended.error[0] in _BUGS else []
    return Outcome(
        result=ended.result,
        error=ended.error,
        message=ended.message,
        where=ended.where,
        traceback=ended.traceback,
        output=ended.output,
        makespan_ns=examination["ended_ns"] - first_ns,
        counters={
            "tasks": figures.tasks,
            "failed": figures.failed,
            "retries": figures.retries,
            "reconstructions": figures.reconstructions,
            "evictions": figures.counts[TraceKind.OBJECT_EVICTED],
            "transfers": figures.counts[TraceKind.TRANSFER_STARTED],
            "bytes_moved": figures.bytes_moved,
            "workers_started": figures.counts[TraceKind.WORKER_STARTED],
            "workers_ended": figures.counts[TraceKind.WORKER_ENDED],
            **examination["counters"],
        },
        performed=tuple(examination["performed"]),
        missed=tuple(examination["missed"]),
        outstanding=tuple(examination["outstanding"]),
        leaks=None if leaks is None else tuple(leaks),
        violations=(*broken, *examination["violations"], *check_trace(trace)),
        random=examination["random"],
        witnessed=tuple(examination["witnessed"]),
        rows_used=tuple((table, row) for table, row in examination["rows_used"]),
        remarks=remarks,
        coverage=coverage(trace, examination["counters"]),
        starts=dict(Counter([event.name for event in trace if event.kind is _STARTED])),
        longest_ns=_longest_ns(trace),
        events={kind: count for kind, count in figures.counts.items() if kind in EVENT_ANCHORS and count},
    )


def _longest_ns(trace: Sequence[TraceEvent]) -> dict[str, int]:
    """How long the longest task of each name took."""
    began_ns: dict[str, int] = {}
    longest_ns: dict[str, int] = {}
    for event in trace:
        if event.kind is TraceKind.TASK_STARTED:
            began_ns[event.subject] = event.time_ns
        elif event.kind is TraceKind.TASK_ENDED and event.subject in began_ns:
            took_ns = event.time_ns - began_ns.pop(event.subject)
            longest_ns[event.name] = max(longest_ns.get(event.name, 0), took_ns)
    return longest_ns


_STARTED, _SUBMITTED = TraceKind.TASK_STARTED, TraceKind.TASK_SUBMITTED

_BUGS = (InvariantViolation.__name__, InvalidTransition.__name__)
"""Errors that say that dualray itself is wrong."""

STUCK = SimulationDeadlockError.__name__
OURS = DualrayError.__name__


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
        return [f"its result is {_short(outcome.result)}, but without faults it is {_short(reference.result)}"]
    return []


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}..."
