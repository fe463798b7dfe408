"""A process runs its async methods as coroutines, on one event loop for each concurrency group."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dualray.shared.handles import CALL_TASK
from dualray.shared.model.commands import RunTask
from dualray.shared.model.ids import TaskID
from dualray.shared.seeding import task_seed
from dualray.sim.processes.code_process import CodeProcess

if TYPE_CHECKING:
    import asyncio

    from dualray.sim.usercode.virtual_loop import VirtualLoop


class EventLoops:
    """The loops of one process, made as they are needed."""

    def __init__(self, process: CodeProcess) -> None:
        self._process = process
        self._loops: dict[str, VirtualLoop] = {}
        """By concurrency group."""
        self._running: dict[str, None] = {}
        self._coroutines: dict[TaskID, asyncio.Task[None]] = {}
        self._escaped: BaseException | None = None

    def begin(self, task: RunTask) -> None:
        """Run a call as a coroutine on the loop of its group."""
        if self._process.cluster.pauses.holds(self._process):
            self._process.cluster.pauses.when_it_runs(self._process, self.begin, task)
        elif self._process.is_alive:
            group = task.spec.template.concurrency_group if task.spec.creates is None else ""
            loop = self._loop_of(group)
            if group not in self._running:
                self._running[group] = None
                self._process.spawn_seeded(lambda: self._run_loop(loop), self._seed(group, task))
            loop.call_soon_threadsafe(self._begin_coroutine, loop, task)

    def _loop_of(self, group: str) -> VirtualLoop:
        loop = self._loops.get(group)
        if loop is None:
            loop = self._loops[group] = self._process.cluster.new_event_loop()
        return loop

    def _seed(self, group: str, task: RunTask) -> bytes:
        """The seed of a loop's random streams: the constructor's, as on real processes, or one of its own."""
        seed = self._process.cluster.seed
        if task.spec.creates is not None:
            return task_seed(seed, task.spec.task_id, task.attempt)
        return f"{seed}:{self._process.address}:loop {group}".encode()

    def _begin_coroutine(self, loop: VirtualLoop, task: RunTask) -> None:
        from asyncio import Task  # noqa: PLC0415 - most simulations have no event loop

        # Not by create_task: a method may have set a task factory, which may return anything.
        running = Task(self._process.core.execute_async(task), loop=loop, name=CALL_TASK)
        task_id = task.spec.task_id
        self._coroutines[task_id] = running  # the loop keeps only weak references
        running.add_done_callback(lambda ended: self._end_coroutine(task_id, ended))

    def _end_coroutine(self, task_id: TaskID, ended: asyncio.Task[None]) -> None:
        if self._coroutines.get(task_id) is ended:  # else it was made again meanwhile
            del self._coroutines[task_id]
        error = ended.exception() if not ended.cancelled() else None
        if error is not None:
            self._escaped = error
            ended.get_loop().stop()

    def cancel(self, task: TaskID) -> None:
        """Cancel the coroutine of a call, wherever it runs."""
        if self._process.cluster.pauses.holds(self._process):
            self._process.cluster.pauses.when_it_runs(self._process, self.cancel, task)
        elif self._process.is_alive:
            for loop in self._loops.values():
                loop.call_soon_threadsafe(loop.call_soon, self._cancel_if_running, loop, task)

    def _cancel_if_running(self, loop: VirtualLoop, task: TaskID) -> None:
        running = self._coroutines.get(task)
        if running is not None and running.get_loop() is loop:
            running.cancel()

    def _run_loop(self, loop: VirtualLoop) -> None:
        try:
            while self._escaped is None:  # a method may have stopped the loop, and calls wait
                loop.run_forever()
        finally:
            self._coroutines.clear()
            loop.close_all()
        if self._escaped is not None:
            raise self._escaped
