"""Writes one process's decision log and trace, when a run is recorded.

Both files are unbuffered: what was decided and done survives a SIGKILL.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from dualray.output_files import create_file
from dualray.shared.model.commands import Command
from dualray.shared.model.events import Event
from dualray.shared.proof.decision_log import DecisionLog, MachineSpec
from dualray.shared.proof.trace import TraceEvent, TraceKind, to_bytes


class Recorder:
    """See the module. Without a directory it writes nothing, or the trace alone: into `trace_directory`."""

    def __init__(
        self, directory: Path | None, spec: MachineSpec, *, seed: int | None, trace_directory: Path | None = None
    ) -> None:
        self._address = spec.address
        self._decisions: DecisionLog | None = None
        self._trace: BinaryIO | None = None
        self._files: list[BinaryIO] = []
        # Each life of a node has files of its own; workers' addresses are never used twice.
        life = f"~{spec.incarnation}" if spec.incarnation else ""
        name = f"{spec.address.replace('/', '.')}{life}"
        place = directory or trace_directory
        if place is not None:
            self._trace = create_file(place / f"{name}.trace", buffering=0)
            self._files = [self._trace]
        if directory is not None:
            decisions = create_file(directory / f"{name}.decisions", buffering=0)
            self._files.append(decisions)
            self._decisions = DecisionLog(decisions, spec, seed=str(seed))

    @property
    def is_recording(self) -> bool:
        """Whether there is a decision log."""
        return self._decisions is not None

    def log(self, event: Event, now_ns: int, commands: Sequence[Command]) -> None:
        """Write a decision of this process's machine."""
        if self._decisions is not None:
            self._decisions.record(event, now_ns, commands)

    def trace(
        self,
        kind: TraceKind,
        about: str | bytes,
        *,
        other: str = "",
        name: str = "",
        amount: int = 0,
        deps: tuple[str, ...] = (),
    ) -> None:
        """Note what this process does."""
        if self._trace is not None:
            event = TraceEvent(time.monotonic_ns(), kind, self._address, about, other, name, amount, deps)
            self._trace.write(to_bytes((event,)))

    def close(self) -> None:
        """Close the files."""
        self._decisions = self._trace = None
        files, self._files = self._files, []
        for file in files:
            file.close()
