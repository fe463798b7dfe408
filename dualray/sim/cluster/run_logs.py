"""A run leaves logs: each process's decisions, the cluster's trace, and digests of its values on demand.

The trace is written while the run goes on, so that `dualray dashboard` can show it: what is new goes to the file once
in write_every_s of real time. A run can be slowed down to be watched: `pace` is how many seconds of virtual time pass
in a second of real time at most. Neither changes what the run does, nor what its files hold at the end.

While a run with a pace goes on, the file `cluster.clock` says which virtual time it has reached: the trace says that
only when something happens. The file is gone at the end.
"""

from __future__ import annotations

# By name: a simulation replaces what stands in the modules `atexit` and `time`.
from atexit import register, unregister
from pathlib import Path
from time import monotonic, sleep
from typing import Any, BinaryIO, Final

from dualray.output_files import create_file
from dualray.shared.proof.decision_log import DecisionLog, MachineSpec
from dualray.shared.proof.trace import TraceEvent, to_bytes
from dualray.sim.cluster.value_digests import ValueDigests, are_asked_for
from dualray.sim.kernel.kernel import Kernel
from dualray.sim.processes.runner import Process

LOOK_EVERY_EVENTS: Final = 100
"""So often it is asked whether it is time to write."""
write_every_s = 0.1
"""Tests write more often: in capitals, a compiled module would copy it into its code."""
SLEEP_S: Final = 0.1
"""At a time, so that a run that waits for real time still writes what is new."""


class _TraceFile:
    """A file of trace rows; `rows` grows, and what has come since is written."""

    def __init__(self, path: Path, rows: list[TraceEvent]) -> None:
        self._file = create_file(path, buffering=0)
        self._rows = rows
        self._written = 0

    def write_rows(self) -> None:
        """Write the rows that have come since the last time."""
        if self._written < len(self._rows):
            self._file.write(to_bytes(self._rows[self._written :]))
            self._written = len(self._rows)

    def close(self) -> None:
        """Write the last rows. Idempotent."""
        if not self._file.closed:
            self.write_rows()
            self._file.close()


class _ClockFile:
    """The virtual time that a run with a pace has reached, and for how long it rests there."""

    def __init__(self, path: Path, pace: float) -> None:
        self._path = path
        self._file = create_file(path, buffering=0)
        self._pace = pace

    def write(self, now_ns: int, left_s: float) -> None:
        """Say it in place of what was said before, in as many bytes."""
        self._file.seek(0)
        self._file.write(f"{now_ns:20d} {left_s:12.3f} {self._pace:12.6g}\n".encode())

    def close(self) -> None:
        """Remove it. Idempotent."""
        if not self._file.closed:
            self._file.close()
            self._path.unlink(missing_ok=True)


class RunLogs:
    """The logs of one run; see the module.

    directory: where they will be; None: the run leaves none.
    rows: the trace; what is added to it is written.
    pace: see the module; None: as fast as can be.
    """

    def __init__(
        self, directory: Path | None, *, kernel: Kernel, seed: int, rows: list[TraceEvent], pace: float | None
    ) -> None:
        self.directory = directory
        self.digests: ValueDigests | None = None
        """What was made, if somebody asks for that."""
        self._kernel = kernel
        self._seed = seed
        self._sinks: list[BinaryIO] = []
        """Of every process that ever was: a node that reboots has one for each life."""
        self._trace: _TraceFile | None = None
        self._head: BinaryIO | None = None
        """The head's decisions, which say when it notices that a node is dead."""
        self._clock: _ClockFile | None = None
        self._written_s = 0.0
        self._began_s = monotonic()
        self._pace = pace or 0.0
        if pace is not None:
            kernel.on_event(self._wait, every=1)
        if directory is not None:
            self._trace = _TraceFile(directory / "cluster.trace", rows)
            register(self._trace.close)  # of a program that ends without shutdown()
            register(self._flush)
            kernel.on_event(self._look, every=LOOK_EVERY_EVENTS)
            if pace is not None:
                self._clock = _ClockFile(directory / "cluster.clock", pace)
                register(self._clock.close)

    def begin_digests(self) -> None:
        """Keep digests of values from now on, if they are asked for."""
        if self.directory is not None and are_asked_for(self.directory):
            self.digests = ValueDigests()

    def open(self, process: Process, spec: MachineSpec) -> None:
        """Begin the decision log of a process."""
        if self.directory is not None:
            life = f"~{spec.incarnation}" if spec.incarnation else ""
            path = self.directory / f"{process.address.replace('/', '.')}{life}.decisions"
            sink = create_file(path)
            self._sinks.append(sink)
            if spec.kind == "head":
                self._head = sink
            process.decisions = DecisionLog(sink, spec, seed=str(self._seed))

    def note_sealed(self, node: str, object_id: bytes, data: Any) -> None:
        """An object of a node's store is complete."""
        if self.digests is not None:
            self.digests.note(self._kernel.now_ns, node, object_id, memoryview(data))

    def _look(self, events: int, left_s: float = 0.0) -> None:
        """Write if it is time to."""
        now_s = monotonic()
        if now_s - self._written_s >= write_every_s:
            self._written_s = now_s
            if self._trace is not None:
                self._trace.write_rows()
            if self._head is not None:
                self._head.flush()
            if self._clock is not None:  # last: all that came before this time is written then
                self._clock.write(self._kernel.now_ns, left_s)

    def _wait(self, events: int) -> None:
        """Wait until real time has come as far as virtual time, at this pace."""
        due_s = self._began_s + self._kernel.now_ns / 1e9 / self._pace
        while (left_s := due_s - monotonic()) > 0:
            self._look(events, left_s)
            sleep(min(left_s, SLEEP_S))

    def _flush(self) -> None:
        """The program ends without shutdown(): Python drops what is still in a file's buffer."""
        for sink in self._sinks:
            sink.flush()

    def write(self) -> None:
        """The simulation is over."""
        unregister(self._flush)
        for sink in self._sinks:
            sink.close()
        if self._trace is not None:
            self._trace.close()
            unregister(self._trace.close)
        if self._clock is not None:
            self._clock.close()
            unregister(self._clock.close)
        if self.directory is not None and self.digests is not None:
            self.digests.write(self.directory)
