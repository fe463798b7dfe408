"""A run leaves logs: each process's decisions, the cluster's trace, and digests of its values on demand."""

from __future__ import annotations

from pathlib import Path
from typing import Any, BinaryIO

from dualray.shared.proof.decision_log import DecisionLog, MachineSpec
from dualray.shared.proof.trace import TraceEvent, to_bytes
from dualray.sim.cluster.value_digests import ValueDigests, are_asked_for
from dualray.sim.kernel.kernel import Kernel
from dualray.sim.processes.runner import Process


class RunLogs:
    """The logs of one run; see the module.

    directory: where they will be; None: the run leaves none.
    """

    def __init__(self, directory: Path | None, *, kernel: Kernel, seed: int) -> None:
        self.directory = directory
        self.digests: ValueDigests | None = None
        """What was made, if somebody asks for that."""
        self._kernel = kernel
        self._seed = seed
        self._sinks: list[BinaryIO] = []
        """Of every process that ever was: a node that reboots has one for each life."""

    def begin_digests(self) -> None:
        """Keep digests of values from now on, if they are asked for."""
        if self.directory is not None and are_asked_for(self.directory):
            self.digests = ValueDigests()

    def open(self, process: Process, spec: MachineSpec) -> None:
        """Begin the decision log of a process."""
        if self.directory is not None:
            life = f"~{spec.incarnation}" if spec.incarnation else ""
            path = self.directory / f"{process.address.replace('/', '.')}{life}.decisions"
            sink = path.open("wb")
            self._sinks.append(sink)
            process.decisions = DecisionLog(sink, spec, seed=str(self._seed))

    def note_sealed(self, node: str, object_id: bytes, data: Any) -> None:
        """An object of a node's store is complete."""
        if self.digests is not None:
            self.digests.note(self._kernel.now_ns, node, object_id, memoryview(data))

    def write(self, trace_events: list[TraceEvent]) -> None:
        """The simulation is over."""
        for sink in self._sinks:
            sink.close()
        if self.directory is not None:
            (self.directory / "cluster.trace").write_bytes(to_bytes(trace_events))
            if self.digests is not None:
                self.digests.write(self.directory)
