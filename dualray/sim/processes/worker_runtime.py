"""A virtual worker offers this runtime to its user code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NoReturn

from dualray import runtime
from dualray.core_verbs import VerbsOverCore
from dualray.exceptions import DualrayError
from dualray.progress_bars import DISPLAY, BarState
from dualray.shared.core.core_worker import write_row
from dualray.shared.model.accelerators import Names
from dualray.shared.model.ids import FunctionID, NodeID
from dualray.sim.network.collectives import all_reduce_ns, broadcast_ns
from dualray.sim.processes.host_process import HostProcess

VIRTUAL_PORT: Final = 12345
"""Of a virtual node; nobody listens there."""


def no_logs() -> DualrayError:
    """What a simulation raises when it is asked for its log files."""
    return DualrayError("a simulation has no log files; its tasks print to the driver's stdout")


class WorkerRuntime:
    """The runtime that user code in a virtual worker sees."""

    mode = "sim"
    owns_interpreter = False
    models_calls = True
    threads_may_wait = False

    def __init__(self, process: HostProcess) -> None:
        self._process = process
        self._verbs: VerbsOverCore | None = None

    @property
    def verbs(self) -> VerbsOverCore:
        core = self._process.core
        verbs = self._verbs
        if verbs is None or verbs.core is not core:
            verbs = self._verbs = VerbsOverCore(core, self._process.device_names)
        return verbs

    @property
    def logs(self) -> NoReturn:
        raise no_logs()

    def free_port(self) -> int:
        return VIRTUAL_PORT

    @property
    def device_names(self) -> Names:
        return self._process.device_names

    def addresses(self) -> dict[str, str]:
        return self._process.addresses()

    def read_table(self, name: str) -> dict[str, dict[str, str]]:
        return self._process.read_table(name)

    def write_row(self, table: str, key: str, fields: Mapping[str, str]) -> None:
        write_row(self._process.core, table, key, fields)

    def read_functions(self) -> dict[FunctionID, bytes]:
        return dict(self._process.cluster.functions.pickled)

    def raise_in_driver(self, error: BaseException) -> None:
        """The OS process got a signal while this worker's code ran."""
        self._process.cluster.fibers.throw_into_driver(error)

    def trace_source(self) -> NoReturn:
        raise runtime.only_in_the_driver("timeline")

    def show_bar(self, state: BarState) -> None:
        if not self._process.cluster.shows_bars:
            return
        context = self.verbs.context()
        name = context.task_name or ""
        if context.actor_id is not None:
            name = name.rpartition(".")[0] or name
        DISPLAY.take(f"({name}, {context.node_id})", state)

    def silence(self) -> None:
        self._process.is_silent = True

    def end_in_fork(self) -> bool:
        self._process.core.close()
        return True

    def shutdown(self) -> None:
        """A task cannot end the cluster."""

    def all_reduce_s(self, nodes: Sequence[NodeID], size_bytes: int) -> float:
        """Seconds of an all-reduce among processes on these nodes: see dualray/sim/network/collectives.py."""
        cluster = self._process.cluster
        return all_reduce_ns(cluster.network.topology, cluster.cost_model, nodes, size_bytes) / 1e9

    def broadcast_s(self, nodes: Sequence[NodeID], size_bytes: int) -> float:
        """Seconds of a broadcast from the first process to the others."""
        cluster = self._process.cluster
        return broadcast_ns(cluster.network.topology, cluster.cost_model, nodes, size_bytes) / 1e9
