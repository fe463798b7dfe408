"""The core worker turns a user's verbs into events, and the owner machine's commands into values.

A driver and every worker have one, in both modes. It knows no process, socket, clock or thread: a `Host` stands for
them, one class in each mode. It decides nothing: it pickles and unpickles, keeps payloads (bytes named by id), calls
user functions, and hands everything else to the machine and back.

It is one object, built in layers, a module each, that use those before them: `state`, `step` (an event and its
commands), `waiting`, `cluster_queries`, `values`, `tasks_in_hand`, `submission`; here, user code is run. One object,
because every task crosses all layers, and compiled code calls methods of its own object directly.

Locking. `Host.lock` makes one event and its commands one step. User code, pickling and waiting happen outside it.
Finalizers of references and views may run anywhere, at any time: they only append to a queue, which the next step of
this process takes in first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dualray.shared.core.host import Host
from dualray.shared.core.submission import CoreSubmission
from dualray.shared.core.task_runner import Export, TaskRunner
from dualray.shared.machines.owner.plain_worker import PlainWorker
from dualray.shared.model.commands import RunTask, WriteRecord
from dualray.shared.model.config import Config
from dualray.shared.model.events import TaskPushed
from dualray.shared.model.ids import Address, FunctionID, NodeID, TaskID


class CoreWorker(CoreSubmission):
    """See the module."""

    def __init__(
        self,
        *,
        address: Address,
        node: NodeID,
        config: Config,
        host: Host,
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
        self._runner = TaskRunner(self)

    def take_over(
        self, plain: PlainWorker, to_run: TaskPushed | None, current_task: RunTask | TaskPushed | None
    ) -> None:
        """Continue with the machine of a process that had no core: with a task that is to run, or one that runs."""
        self._folded = plain
        if to_run is not None:
            self._to_run.append(to_run)
        self.current_task = current_task

    def remember(self, payload: tuple[bytes, bytes] | None, function: FunctionID | None, export: Export | None) -> None:
        """Keep one payload, and the one function that a process without a core has loaded."""
        if payload is not None:
            self.payloads[payload[0]] = payload[1]
        loaded = self._runner.loaded
        if function is None or export is None:
            loaded.clear()
        elif loaded.get(function) is not export:
            loaded.clear()
            loaded[function] = export

    def export_of(self, function: FunctionID) -> Export | None:
        """Return a function that this process has loaded, or None."""
        return self._runner.loaded.get(function)

    def forget_functions(self) -> None:
        """Forget all loaded functions, so that they are loaded again."""
        self._runner.loaded.clear()

    def load_class(self, function: FunctionID) -> Any:
        """Return a function or class of the function table."""
        return self._runner.load(function).target

    @property
    def actor_instance(self) -> Any:
        """The instance of the actor that lives in this process; None when there is none."""
        return self._runner.instance

    def forget_instance(self) -> None:
        """Release the instance of an actor whose process has ended."""
        self._runner.instance = None

    def execute(self, task: RunTask | TaskPushed) -> None:
        """Run one task. Called where user code runs."""
        creates = task.spec.creates
        if creates is not None and creates.is_async:
            assert isinstance(task, RunTask)
            self._runner.construct_on_loop(task)
        else:
            self._runner.execute(task)

    async def execute_async(self, task: RunTask) -> None:
        """Run the constructor or a method of an actor whose methods are coroutines. Called on its event loop."""
        try:
            await self._runner.execute_async(task)
        finally:
            if self._cancelled_calls is not None:
                self._cancelled_calls.pop(task.spec.task_id, None)

    def shut_down(self) -> None:
        """Call the actor's shutdown method, since it ends without being killed. Called where user code runs."""
        self._runner.shut_down()

    def end_small(self, task: RunTask | TaskPushed, size_bytes: int, start_ns: int) -> None:
        """Report a task with one small result after its virtual time has passed."""
        self._runner.end_small(task, size_bytes, start_ns)

    def end_cancelled(self, task: RunTask | TaskPushed, start_ns: int) -> None:
        """Report that such a task was cancelled before."""
        self._runner.end_cancelled(task, start_ns)

    @property
    def may_run_ahead(self) -> bool:
        """Whether a task's code may return before its virtual time has passed, because no one observes when."""
        return self._contexts is None and self._runner.reports_small


def write_row(core: CoreWorker, table: str, key: str, fields: Mapping[str, str]) -> None:
    """Write a record of the layers above the core into a table of the control plane."""
    with core.host.lock:
        core.host.write_record(WriteRecord(table=table, key=key, fields=tuple(fields.items())))
        core.host.end_step()
