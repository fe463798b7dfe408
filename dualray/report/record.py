"""The files of a finished run: its trace and, where it was recorded, the decision logs of its processes.

A run that is recorded (`init(decision_log=DIR)`, `dualray run --decision-log DIR`, in either mode) leaves both in one
directory. A simulation that was not has its trace in memory: `Record(events=...)` holds that alone, and what is made
from it says what it cannot know.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dualray.report.proof import load_log
from dualray.report.traces import DECISIONS, natural, read_traces
from dualray.shared.proof.decision_log import Decision, Log
from dualray.shared.proof.trace import TraceEvent, TraceKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """See the module.

    Attributes:
        events: the trace, in order of time.
        logs: by address, a log for each life of the process; empty when the run was not recorded.
        directory: where it was read from.
        is_virtual: whether the run was a simulation; a simulation's trace is one file, or is in memory.
    """

    events: Sequence[TraceEvent]
    logs: Mapping[str, Sequence[Log]] = field(default_factory=dict)
    directory: Path | None = None
    is_virtual: bool = True

    def decisions(self, address: str) -> Iterator[Decision]:
        """What the machine of one process decided, through all its lives."""
        for log in self.logs.get(address, ()):
            yield from log.decisions

    def owners(self) -> list[str]:
        """Drivers and workers that have left a log."""
        return [address for address, lives in self.logs.items() if lives[0].spec.kind == "owner"]

    def nodes(self) -> list[str]:
        """Node managers that have left a log."""
        return [address for address, lives in self.logs.items() if lives[0].spec.kind == "node"]


def read_record(directory: Path) -> Record:
    """The record of a run of either mode.

    Raises:
        ValueError: there is no trace in the directory, or a file that cannot be read; the message names it.
    """
    events = read_traces(directory)
    logs: dict[str, list[Log]] = {}
    for path in sorted(directory.glob(DECISIONS), key=lambda path: natural(path.name)):
        if path.stat().st_size:  # else its process was killed before it could open its log, and has decided nothing
            log = load_log(path)
            logs.setdefault(log.spec.address, []).append(log)
    for lives in logs.values():
        lives.sort(key=lambda log: log.spec.incarnation)
    is_virtual = (directory / "cluster.trace").exists()
    return Record(events=events, logs=logs, directory=directory, is_virtual=is_virtual)


def began_ns(events: Sequence[TraceEvent]) -> int:
    """When the first node started: moments are told from here on. The clock of a simulation is 0 then."""
    return next((event.time_ns for event in events if event.kind is TraceKind.NODE_STARTED), 0)
