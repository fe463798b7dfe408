"""The core worker of a virtual process: what every call asks of its host is asked without a step through Python.

`Host` is a protocol, whose methods are looked up by name, also where both sides are compiled. A task asks twenty times.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dualray.shared.core.core_worker import CoreWorker
from dualray.shared.core.execution import Execution
from dualray.shared.machines.owner.plain_worker import PlainWorker
from dualray.shared.model.commands import RunTask, TellFailure, WriteRecord
from dualray.shared.model.config import Config
from dualray.shared.model.events import Event, TaskPushed
from dualray.shared.model.ids import Address, NodeID, TaskID
from dualray.shared.proof.trace import TraceKind
from dualray.sim.kernel.calendar import Calendar
from dualray.sim.kernel.fibers import SystemSection
from dualray.sim.processes.worker import UserProcess


class VirtualCore(CoreWorker):
    """See the module."""

    def __init__(
        self,
        *,
        address: Address,
        node: NodeID,
        config: Config,
        host: UserProcess,
        root: TaskID,
        is_driver: bool,
        is_folded: bool = False,
    ) -> None:
        super().__init__(
            address=address,
            node=node,
            config=config,
            host=host,
            root=root,
            is_driver=is_driver,
            is_folded=is_folded,
        )
        self._process = host
        self._calendar: Calendar = host.calendar
        self._system: SystemSection = host.lock

    def serve(self, process: UserProcess, plain: PlainWorker, task: TaskPushed) -> None:
        """Be the core of a process that has none, while a plain task runs; nobody else has this one now."""
        self.address, self.node = process.address, NodeID(process.node)
        self.host = self._process = process
        self._runner.serve(process)
        self.payloads.clear()
        self._folded = plain
        self.current_task = task

    def now_ns(self) -> int:
        return self._calendar.now_ns

    def begin_step(self) -> None:
        self._system.begin()

    def leave_step(self) -> None:
        self._system.leave()

    def end_step(self) -> None:
        """Messages were sent as they came."""

    def send_out(
        self, to: Address, message: Event, payloads: Sequence[tuple[bytes, bytes]], urgent: bool = True
    ) -> None:
        self._process.send(to, message, payloads)

    def yield_point(self) -> None:
        self._process.yield_point()

    def trace(
        self, kind: TraceKind, about: str | bytes, other: str, name: str, amount: int, deps: tuple[str, ...] = ()
    ) -> None:
        self._process.trace(kind, about, other=other, name=name, amount=amount, deps=deps)

    def write_record(self, record: WriteRecord) -> None:
        self._process.write_record(record)

    def _tell_failure(self, command: TellFailure) -> None:
        """What its process has said of errors in its own environment counts also while none of its code runs."""
        environment = self._process.environment
        if environment is None or environment.is_entered:
            super()._tell_failure(command)
            return
        environment.enter()
        try:
            super()._tell_failure(command)
        finally:
            environment.leave()

    def call(
        self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], task: Execution
    ) -> Any:
        return self._process.call(function, args, kwargs, task)

    def ends_later(self, task: RunTask | TaskPushed, size_bytes: int, start_ns: int) -> bool:
        process = self._process
        if not process.is_ahead:
            return False
        process.end_later(task, size_bytes, start_ns)
        return True
