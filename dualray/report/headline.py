"""The answer of a run in two sentences: what ended and when, and why it took that long."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from dualray.report.critical_path import FOR_ACTOR, FOR_WORKER, NOTICED, Spent, Stretch
from dualray.report.drawings import Clock, fault_words
from dualray.report.histories import LOST, NOT_ENDED, Lives
from dualray.report.summary import Summary

__all__ = ["busy_spans", "headline"]

FAULTS_MAX: Final = 3
"""So many are named."""
REASONS_MAX: Final = 3
SHARE_MIN: Final = 0.05
"""Of the run: what took less is not named."""

BUSY_SHARE_MAX: Final = 0.5
"""Of the run: work that fills more than that can be seen without zooming."""
SPANS_MAX: Final = 4


def headline(lives: Lives, path: Sequence[Stretch], figures: Summary, clock: Clock) -> str:
    """What ended, when and how; then why it took that long."""
    mode = "of virtual time" if lives.record.is_virtual else "of real time"
    nodes = _count(figures.nodes, "node")
    took = clock.words(lives.end_ns - lives.start_ns)
    lost = sum(attempt.outcome == LOST for attempt in lives.attempts())
    unfinished = sum(_never_ended(life.attempts) for life in lives.tasks.values())
    troubles = [
        f"{_count(lost, 'attempt')} {'was' if lost == 1 else 'were'} lost" if lost else "",
        f"{_count(figures.failed, 'attempt')} raised an error" if figures.failed else "",
        f"{_count(unfinished, 'task')} did not end" if unfinished else "",
    ]
    named = [fault_words(fault) for fault in lives.faults[:FAULTS_MAX]]
    more = ["..."] if len(lives.faults) > FAULTS_MAX else []
    faults = f", after {_count(len(lives.faults), 'fault')} ({', '.join(named + more)})" if lives.faults else ""
    said = " and ".join(filter(None, troubles)) or "nothing was lost"
    return f"{_count(figures.tasks, 'task')} on {nodes} took {took} {mode}; {said}{faults}. {_why(path)}".strip()


def _never_ended(attempts: object) -> bool:
    assert isinstance(attempts, dict)
    return not any(attempt.outcome != NOT_ENDED and attempt.outcome != LOST for attempt in attempts.values())


def _why(path: Sequence[Stretch]) -> str:
    """On what most of the time went, with shares."""
    whole = sum(stretch.lasted_ns for stretch in path)
    if not whole:
        return ""
    spent: Counter[str] = Counter()
    for stretch in path:
        spent[_reason(stretch)] += stretch.lasted_ns
    chosen = [(reason, ns / whole) for reason, ns in spent.most_common(REASONS_MAX) if ns >= SHARE_MIN * whole]
    words = [f"{_percent(share)} {reason}" for reason, share in chosen]
    all_words = " and ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))
    return f"On the critical path, the chain of steps that set this time, {all_words}." if chosen else ""


def _percent(share: float) -> str:
    return "over 99 %" if 0.99 < share < 1 else f"{100 * share:.0f} %"


def _reason(stretch: Stretch) -> str:
    match stretch.spent:
        case Spent.COMPUTE:
            return f"was spent running {stretch.name or 'tasks'}"
        case Spent.DRIVER:
            return "was spent in the driver's own program"
        case Spent.TRANSFER:
            return "was spent moving objects"
        case Spent.QUEUE if stretch.words == FOR_ACTOR:
            return "was spent waiting for an actor that was busy"
        case Spent.QUEUE:
            return f"was spent {FOR_WORKER}"
        case Spent.RECONSTRUCTION if stretch.words == NOTICED:
            return "passed until a failure was detected"
        case Spent.RECONSTRUCTION:
            return "went into repeating lost work"
    return "was idle"


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def busy_spans(lives: Lives) -> list[tuple[int, int, int]]:
    """Where tasks ran, when that is a small part of the run: from, until (ns), and how many attempts."""
    gap_ns = max(1, (lives.end_ns - lives.start_ns) // 20)
    spans: list[tuple[int, int, int]] = []
    for attempt in sorted(lives.attempts(), key=lambda each: each.started_ns or 0):
        start_ns, end_ns = attempt.started_ns or 0, attempt.ended_ns or attempt.started_ns or 0
        if spans and start_ns - spans[-1][1] < gap_ns:
            first, until, count = spans[-1]
            spans[-1] = first, max(until, end_ns), count + 1
        else:
            spans.append((start_ns, end_ns, 1))
    busy_ns = sum(until - first for first, until, _ in spans)
    return spans[:SPANS_MAX] if busy_ns < BUSY_SHARE_MAX * (lives.end_ns - lives.start_ns) else []
