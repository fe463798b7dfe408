"""Reading what runs leave behind: the traces and decision logs in a run's directory.

A simulation writes one trace, a real run one for each process. Times of one machine can be compared, so the traces are
merged by time; rows of one process stay in their order.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from dualray.shared.proof.trace import TraceEvent, from_bytes

TRACES = "*.trace"
DECISIONS = "*.decisions"


def read_traces(directory: Path) -> list[TraceEvent]:
    """All trace events of a run, in order of time.

    Raises:
        ValueError: there is no trace in the directory, or a file that is none; the message names it.
    """
    events: list[TraceEvent] = []
    for path in _files(directory, TRACES, "traces"):
        try:
            events += from_bytes(path.read_bytes())
        except (ValueError, TypeError, IndexError) as error:
            raise ValueError(f"{path} is not a trace that this dualray can read: {error}") from error
    return sorted(events, key=lambda event: event.time_ns)


def decision_logs(directory: Path) -> list[Path]:
    """The decision logs of a run, one for each process, in order of name.

    A process that was killed before it could open its log has left an empty file: it has decided nothing, and is left
    out. If it had acted, its trace would have actions without a command.

    Raises:
        ValueError: there is none.
    """
    return [path for path in _files(directory, DECISIONS, "decision logs") if path.stat().st_size]


def _files(directory: Path, pattern: str, what: str) -> list[Path]:
    if not directory.is_dir():
        raise ValueError(f"{directory} is not a directory")
    found: Sequence[Path] = sorted(directory.glob(pattern), key=lambda path: natural(path.name))
    if not found:
        raise ValueError(
            f"{directory} has no {what} ({pattern}); to write these files, run the program with "
            f"decision_log={str(directory)!r}"
        )
    return list(found)


def natural(name: str) -> list[tuple[int, str]]:
    """A key that sorts node-2 before node-10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


def duration(ns: float) -> str:
    """A length of time, for people: three digits."""
    for unit, unit_ns in (("s", 10**9), ("ms", 10**6), ("µs", 10**3)):
        if ns >= unit_ns:
            return f"{ns / unit_ns:.3g} {unit}" if ns < 1000 * unit_ns else f"{ns / unit_ns:,.0f} {unit}"
    return f"{ns:.0f} ns"
