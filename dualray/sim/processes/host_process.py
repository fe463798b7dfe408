"""A virtual process gives its core worker time, messages, the tables, and a way to tell the user something.

The cost of submissions is paid in virtual time, for several of them at once.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Mapping, Sequence

from dualray.shared.core.core_worker import CoreWorker
from dualray.shared.core.task_times import time_row
from dualray.shared.machines.state_rows import Row
from dualray.shared.model.accelerators import Names
from dualray.shared.model.commands import WriteRecord, WriteRecords
from dualray.shared.model.events import Event
from dualray.shared.model.ids import HEAD, Address, FunctionID, NodeID
from dualray.shared.proof.trace import TraceKind
from dualray.sim.kernel.calendar import Calendar
from dualray.sim.kernel.fiber_signal import FiberSignal
from dualray.sim.kernel.fibers import FIBER_STOPS
from dualray.sim.kernel.raised import was_raised
from dualray.sim.processes import control_plane
from dualray.sim.processes.node import ClusterOfNodes
from dualray.sim.processes.object_store import VirtualStore
from dualray.sim.processes.runner import Process
from dualray.sim.usercode.polling import poll
from dualray.sim.usercode.process_calls import ExitFunction, ip_of
from dualray.sim.usercode.virtual_time import EPOCH_NS

OWED_NS_MAX = 50_000
"""Of submissions that are not paid for yet: about as much as two messages within a node take."""


class HostProcess(Process):
    """The part of a `Host` that only passes things on."""

    exit_functions: Sequence[ExitFunction] = ()

    def __init__(self, *, cluster: ClusterOfNodes, address: Address, node: NodeID, store: VirtualStore) -> None:
        super().__init__(cluster=cluster, address=address, node=node)
        self.calendar: Calendar = cluster.calendar
        self._owed_ns = 0
        self.store = store
        self.lock = cluster.fibers.system
        self.pid = cluster.next_pid(address)
        self.hostname = str(node)
        self.is_silent = False
        self._wake_scheduled = False
        self._nodes = cluster.nodes
        self._pids = cluster.pids

    @property
    def core(self) -> CoreWorker:
        """What it runs."""
        raise NotImplementedError

    # ---- Time and messages -----------------------------------------------------------------------------------

    def now_ns(self) -> int:
        return self.calendar.now_ns

    def send(
        self, to: Address, message: Event, payloads: Sequence[tuple[bytes, bytes]], *, urgent: bool = True
    ) -> None:
        if self.is_alive:  # user code that unwinds in a process that is dead may still come here
            self.cluster.send(self, to, message, payloads)

    def end_step(self) -> None:
        """Messages were sent as they came."""

    def yield_point(self) -> None:
        """A call was submitted. What that costs is paid in virtual time, for several calls at once, so that a switch
        is not paid for each."""
        self._owed_ns += self.cluster.submit_ns
        if self._owed_ns >= OWED_NS_MAX:
            owed_ns, self._owed_ns = self._owed_ns, 0
            self.cluster.fibers.sleep_ns(owed_ns)

    def on_empty_poll(self) -> None:
        """Who looks again and again waits a moment each time: else it would never come."""
        poll(self.cluster.kernel, self.cluster.fibers)

    def new_signal(self) -> FiberSignal:
        return FiberSignal(self.cluster.fibers)

    def write_record(self, record: WriteRecord) -> None:
        if self.is_alive:
            self.cluster.write_record(record.table, record.key, record.fields)

    def write_records(self, records: WriteRecords) -> None:
        if self.is_alive:
            for key in records.keys:
                self.cluster.write_record(records.table, key, records.fields)

    def settle_records(self) -> None:
        """Each record can be read as soon as it was written."""

    def put_function(self, function: FunctionID, pickled: bytes) -> None:
        control_plane.reach_tables(self)
        self.cluster.functions.put(function, pickled)

    def read_table(self, name: str) -> dict[str, dict[str, str]]:
        """A table of the control plane."""
        control_plane.reach_tables(self)
        return {key: dict(fields) for key, fields in self.cluster.tables.read(name).items()}

    def addresses(self) -> dict[str, str]:
        """Where things are; see `dualray.runtime.Runtime.addresses`. Virtual nodes have the addresses 10.x.y.z."""
        return {
            "node_ip_address": ip_of(self.node),
            "control_plane_address": f"{HEAD} of a simulation",
            "object_store_address": f"{self.node} of a simulation",
            "local_scheduler_address": f"{self.node} of a simulation",
            "session_dir": self.cluster.session_directory,
        }

    def place_of(self, node: NodeID) -> tuple[str, str]:
        """An address of a network that nothing routes to, 10.0.0.0/8, in the order of the nodes; the node's name."""
        return ip_of(node), node

    @property
    def device_names(self) -> Names:
        """Of this node's GPUs and other accelerators."""
        return self._nodes[NodeID(self.node)].device_names

    def tell(self, words: str) -> None:
        if not self.is_silent:
            sys.stderr.write(words)

    def new_times(self) -> None:
        """The trace of the run has the times of all tasks."""

    def epoch_ns(self) -> int:
        return EPOCH_NS

    def all_task_times(self) -> list[Row]:
        rows: dict[tuple[str, str, int], Row] = {}
        for event in self.cluster.trace_events:
            key = event.process, event.subject, event.amount
            if event.kind is TraceKind.TASK_STARTED:
                rows[key] = time_row(key[1], key[2], event.name, key[0], EPOCH_NS + event.time_ns, None)
            elif event.kind is TraceKind.TASK_ENDED and key in rows:
                rows[key]["end_ns"] = EPOCH_NS + event.time_ns
        return [*rows.values()]

    def pids(self) -> Mapping[str, int]:
        return {**self._pids, self.address: self.pid}

    def is_of_process(self, exception: BaseException) -> bool:
        is_ctrl_c = isinstance(exception, KeyboardInterrupt) and not was_raised(exception)
        return is_ctrl_c or isinstance(exception, FIBER_STOPS)

    def run_at_exit(self) -> None:
        functions, self.exit_functions = self.exit_functions, ()
        for function, args, kwargs in reversed(functions):
            try:
                function(*args, **kwargs)
            except Exception:  # noqa: BLE001 - it is the user's: as Python does, the others are called
                self.tell(f"Exception ignored in atexit callback {function!r}:\n{traceback.format_exc()}")

    def wake(self) -> None:
        if not self._wake_scheduled and self.is_alive and not self.cluster.is_closed:
            self._wake_scheduled = True
            self.cluster.kernel.call_after(0, self._take_in_finalizers)

    def _take_in_finalizers(self) -> None:
        self._wake_scheduled = False
        if self.is_alive:
            self.core.take_in_finalizers()
