"""The run that is going on, as far as it has been recorded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from dualray import runtime
from dualray.report.timeline import timeline as picture
from dualray.report.timeline import write_timeline
from dualray.report.traces import read_traces
from dualray.shared.proof.trace import TraceEvent, TraceKind

_TIMEOUT_NS: Final = 5_000_000_000
"""For how long the workers are asked."""


def timeline(filename: str | Path | None = None) -> list[dict[str, Any]] | None:
    """What this program has done so far, in Chrome's trace format, which https://ui.perfetto.dev opens.

    In sim mode, and in real mode with `init(decision_log=DIR)`, the timeline has all that has happened. In real mode
    without it, the timeline has the last 10,000 tasks of each worker that lives.

    Args:
        filename: the file to write. Default: none; the rows are returned.

    Returns:
        The rows, each a dict as Chrome's format has it, with times in microseconds since the run began; with `filename`
        None.

    Raises:
        DualrayError: this is not the driver.
        OSError: the file cannot be written.
    """
    current = runtime.current("timeline")
    source = current.trace_source()
    if source is None:
        events: Sequence[TraceEvent] = _of_rows(current.verbs.state_rows("task_times", _TIMEOUT_NS)[0])
    else:
        events = read_traces(source) if isinstance(source, Path) else source
    if filename is None:
        rows: list[dict[str, Any]] = picture(events)["traceEvents"]
        return rows
    write_timeline(events, Path(filename))
    return None


def _of_rows(rows: Sequence[Mapping[str, Any]]) -> list[TraceEvent]:
    """The events that the times of tasks tell, in order of time."""
    events = []
    for row in rows:
        for kind, time_ns in ((TraceKind.TASK_STARTED, row["start_ns"]), (TraceKind.TASK_ENDED, row["end_ns"])):
            if time_ns is not None:
                task, attempt = row["task_id"], row["attempt_number"]
                events.append(TraceEvent(time_ns, kind, row["worker_id"], task, "", row["name"], attempt))
    return sorted(events, key=lambda event: event.time_ns)
