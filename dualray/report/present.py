"""The run that is going on, as far as it has been recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dualray import runtime
from dualray.report.timeline import timeline as picture
from dualray.report.timeline import write_timeline
from dualray.report.traces import read_traces


def timeline(filename: str | Path | None = None) -> list[dict[str, Any]] | None:
    """What this program has done so far, in Chrome's trace format, which https://ui.perfetto.dev opens.

    Sim mode always knows; real mode knows when it records: `init(decision_log=DIR)`.

    Args:
        filename: the file to write. Default: none; the rows are returned.

    Returns:
        The rows, each a dict as Chrome's format has it, with times in microseconds since the run began; with `filename`
        None.

    Raises:
        DualrayError: nothing is recorded, or this is not the driver.
        OSError: the file cannot be written.
    """
    source = runtime.current("timeline").trace_source()
    events = read_traces(source) if isinstance(source, Path) else source
    if filename is None:
        rows: list[dict[str, Any]] = picture(events)["traceEvents"]
        return rows
    write_timeline(events, Path(filename))
    return None
