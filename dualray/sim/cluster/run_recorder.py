"""The record of a simulated run (`init(mode="sim", record=...)`): in the schema of a real one, with virtual times."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from dualray.recording.file import make_record, write_record
from dualray.recording.recorded import RecordedCoreWorker
from dualray.shared.model.resources import told

if TYPE_CHECKING:
    from dualray.sim.cluster.cluster import Cluster


class RunRecorder:
    """See the module; the file is `path`. The cluster has made no process yet."""

    def __init__(self, path: Path, cluster: Cluster) -> None:
        self._path = path
        self._cores: list[RecordedCoreWorker] = []
        self._began_ns = 0
        cluster.make_core = self._make_core

    def _make_core(self, **arguments: Any) -> RecordedCoreWorker:
        core = RecordedCoreWorker(**arguments, usage=None)
        self._cores.append(core)
        return core

    def program_begins(self, cluster: Cluster) -> None:
        """`init` is over."""
        self._began_ns = cluster.kernel.now_ns

    def write(self, cluster: Cluster, ended_ns: int) -> None:
        """Make the file; the program has ended."""
        assert cluster.driver is not None
        facts = {
            "mode": "sim",
            "driver": cluster.driver.core.execution.task_id.hex(),
            "nodes": {
                node: {
                    "resources": told(process.hardware.total).as_floats(),
                    "object_store": process.hardware.store_bytes,
                }
                for node, process in cluster.nodes.items()
            },
            "machine": f"a simulation, seed {cluster.seed}",
            "cores": None,
            "date": "",
            "inline_bytes_max": cluster.config.inline_bytes_max,
        }
        notes = {str(core.address): core.take() for core in self._cores}
        record = make_record(notes, cluster.trace_events, began_ns=self._began_ns, ended_ns=ended_ns, facts=facts)
        write_record(self._path, record)
