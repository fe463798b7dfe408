"""A modelled worker runs its tasks one after another, and only their time passes.

It is its owner machine, folded up as long as it does nothing but run plain tasks. Each task costs one kernel event.
Several that were handed over together cost one, if they take no longer than an owner pushes ahead.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from dualray.shared.machines.owner.owner import Owner
from dualray.shared.machines.owner.plain_worker import PlainWorker
from dualray.shared.machines.owner.remake_costs import RemakeCosts, is_remakeable
from dualray.shared.model.commands import (
    Command,
    CompleteWait,
    ForgetTasks,
    RunTask,
    RunTasks,
)
from dualray.shared.model.events import (
    Outcome,
    Result,
    SpaceWanted,
    SpaceWritten,
    TaskPushed,
    TaskRan,
    TasksRan,
)
from dualray.shared.model.ids import (
    Address,
    NodeID,
    return_object_id,
)
from dualray.shared.proof.trace import TraceKind
from dualray.sim.modelled.processes import ALL_ENDED, ENDED, PUSHED, ModelledProcess
from dualray.sim.processes.object_store import VirtualStore

_NO_BYTES = np.zeros(0, dtype=np.uint8)


class ModelledWorker(ModelledProcess):
    """A worker: it runs what it is told to, one after another."""

    __slots__ = ("_began_ns", "_plain", "_remake_costs", "_running", "_to_run")

    def __init__(self, *, cluster: Any, address: Address, node: NodeID, store: VirtualStore) -> None:
        super().__init__(cluster=cluster, address=address, node=node, store=store)
        self._plain = PlainWorker(address=address, node=node, config=cluster.config, keeps_rows=False)
        self._to_run: deque[RunTask | TaskPushed] | None = None
        self._running: Any = None
        """The task in hand, or several; None: none."""
        self._began_ns = 0
        self._remake_costs = RemakeCosts()

    @classmethod
    def as_worker(cls, *, cluster: Any, address: Address, node: NodeID, store: VirtualStore) -> ModelledWorker:
        """A worker."""
        return ModelledWorker(cluster=cluster, address=address, node=node, store=store)

    @property
    def machine(self) -> Owner | PlainWorker:
        """What decides."""
        return self._plain

    @property
    def owner(self) -> Owner:
        """The whole machine."""
        return self._plain.unfold()

    def _decide(self, event: Any) -> list[Command]:
        return self._plain.handle(event, self._calendar.now_ns)

    def things(self) -> int:
        owner = self._plain.owner
        return 1 if owner is None else owner.things()

    def arrive(self, message: Any) -> None:
        model = self.model
        if isinstance(message, TaskPushed) and model.is_calm and self.is_alive and self._running is None:
            calendar = self._calendar
            now_ns = calendar.now_ns
            if self._plain.starts(message, now_ns):  # the way of most tasks
                spec = message.spec
                model.note(self.number, PUSHED, spec.task_id)
                self._running = message
                calendar.post(now_ns + model.begins_ns(spec, self.node), self._ended, message)
                return
        super().arrive(message)

    def _run_task(self, task: RunTask | TaskPushed) -> None:
        if self._running is not None:
            if self._to_run is None:
                self._to_run = deque()
            self._to_run.append(task)
            return
        calendar, model = self._calendar, self.model
        now_ns = calendar.now_ns
        self._running = task
        self._began_ns = now_ns
        takes_ns = model.begins_ns(task.spec, self.node)
        if model.is_anchored:
            dispatch_ns = model.cost_model.dispatch_ns
            calendar.post(now_ns + dispatch_ns, self._begin, (task, max(takes_ns - dispatch_ns, 0)))
        else:
            self._compute(takes_ns, self._ended, task)

    def _compute(self, takes_ns: int, then: Callable[[Any], None], what: Any) -> None:
        """Call `then(what)` when so much work is done."""
        cores = None if self.model.is_steady else self.model.cluster.nodes[NodeID(self.node)].cores
        if cores is None:
            self._calendar.post(self._calendar.now_ns + takes_ns, then, what)
        else:
            cores.run(takes_ns, 1.0, then, what, whose=self)

    def _begin(self, what: tuple[RunTask | TaskPushed, int]) -> None:
        """Where a fault may be anchored at the begin of a task: it begins with an event of its own."""
        task, left_ns = what
        if not self.is_alive:
            return
        if self.model.cluster.pauses.holds(self):
            self.model.cluster.pauses.when_it_runs(self, self._begin, what)
            return
        spec = task.spec
        self.trace(TraceKind.TASK_STARTED, spec.task_id, name=spec.template.name, amount=task.attempt)
        if self.is_alive:
            self._compute(left_ns, self._ended, task)

    def _run_tasks(self, command: RunTasks) -> None:
        tasks, model = command.tasks, self.model
        if self._running is None and not model.is_anchored:
            specs = [task.spec for task in tasks]
            takes = [model.takes_ns(spec, self.node) for spec in specs]
            together_ns = sum(takes)
            if together_ns <= model.push_window_ns and min([model.one_small_size(spec) for spec in specs]) >= 0:
                # Nobody looks in between: an owner pushes so much ahead, and is told of it together.
                self._running = tasks
                for spec in specs:
                    model.begins_ns(spec, self.node)
                self._compute(together_ns, self._all_ended, (tasks, takes))
                return
        for task in tasks:
            self._run_task(task)

    def _forget_tasks(self, command: ForgetTasks) -> None:
        forgotten = {task.spec.task_id for task in command.tasks}
        if self._to_run:
            self._to_run = deque([task for task in self._to_run if task.spec.task_id not in forgotten])
        if type(self._running) is tuple:
            self._running = tuple([task for task in self._running if task.spec.task_id not in forgotten])

    def _all_ended(self, what: tuple[tuple[TaskPushed, ...], list[int]]) -> None:
        tasks, takes = what
        if not self.is_alive:
            return
        model = self.model
        if not model.is_steady and model.cluster.pauses.holds(self):
            model.cluster.pauses.when_it_runs(self, self._all_ended, what)
            return
        outcomes: tuple[Outcome, ...] = tuple(
            [
                (task.spec.task_id, task.attempt, model.one_small_size(task.spec), took)
                for task, took in zip(tasks, takes, strict=True)
            ]
        )
        if len(self._running) < len(tasks):  # some were taken back meanwhile
            left = {task.spec.task_id for task in self._running}
            outcomes = tuple([outcome for outcome in outcomes if outcome[0] in left])
        self._running = None
        if outcomes:
            model.note(self.number, ALL_ENDED, outcomes[0][0])
            self.handle(TasksRan(outcomes=outcomes))
        self._go_on()

    def _ended(self, task: RunTask | TaskPushed) -> None:
        """A task has computed for as long as it takes."""
        if not self.is_alive:
            return
        model = self.model
        if not model.is_steady and model.cluster.pauses.holds(self):
            model.cluster.pauses.when_it_runs(self, self._ended, task)
            return
        spec = task.spec
        task_id = spec.task_id
        model.note(self.number, ENDED, task_id)
        size = model.one_small_size(spec)
        if size < 0:
            self._store_results(task, 0)
            return
        self._running = None
        if model.is_anchored:
            self._trace_end(task)
        plain = self._plain
        now_ns = self._calendar.now_ns
        finished = plain.report(size, now_ns) if plain.owner is None else None
        if finished is not None:
            if not model.send(self, spec.owner, finished):
                self.cluster.send(self, spec.owner, finished, ())
            return
        if spec.deps:
            result = Result(object_id=return_object_id(task_id, 0), size_bytes=size, inline=True)
            self._report(task, TaskRan(task_id=task_id, attempt=task.attempt, results=(result,)))
            return
        duration_ns = now_ns - self._began_ns
        self.handle(TasksRan(outcomes=((task_id, task.attempt, size, duration_ns),)))
        if self._to_run:
            self._go_on()

    def _go_on(self) -> None:
        if self._to_run and self._running is None:
            self._run_task(self._to_run.popleft())

    def _store_results(self, task: RunTask | TaskPushed, index: int) -> None:
        """Write those results into the store that are large, one after another; then report."""
        spec, model = task.spec, self.model
        sizes = model.sizes_of(spec)
        inline_max = model.inline_bytes_max
        while index < len(sizes) and sizes[index] <= inline_max:
            index += 1
        if index == len(sizes):
            if model.is_anchored:
                self._trace_end(task)
            results = tuple(
                [
                    Result(object_id=return_object_id(spec.task_id, at), size_bytes=size, inline=size <= inline_max)
                    for at, size in enumerate(sizes)
                ]
            )
            self._report(task, TaskRan(task_id=spec.task_id, attempt=task.attempt, results=results))
            return
        object_id, size_bytes = return_object_id(spec.task_id, index), sizes[index]
        next_index = index + 1

        def granted(command: CompleteWait) -> None:
            if command.error is not None:
                self._report(task, TaskRan(task_id=spec.task_id, attempt=task.attempt, results=(), error=command.error))
            elif not command.ready:
                self._store_results(task, next_index)  # an earlier attempt has left the same object here
            else:
                takes_ns = model.cost_model.seal_ns + model.cost_model.copy_ns(size_bytes)
                self._calendar.post(self._calendar.now_ns + takes_ns, written, None)

        def written(_: None) -> None:
            if self.is_alive:
                self.store.objects[object_id] = _NO_BYTES
                if model.is_anchored:
                    self.trace(TraceKind.OBJECT_STORED, object_id, amount=size_bytes)
                model.cluster.pauses.when_it_runs(self, sealed)

        def sealed() -> None:
            self.handle(SpaceWritten(object_id=object_id))
            self._store_results(task, next_index)

        event = SpaceWanted(
            wait_id=self._next_wait(),
            object_id=object_id,
            size_bytes=size_bytes,
            owner=spec.owner,
            remakeable=is_remakeable(task),
            remake_ns=self._remake_costs.of(task, self._calendar.now_ns - self._began_ns),
        )
        self._wait_for(event, granted)

    def _trace_end(self, task: RunTask | TaskPushed) -> None:
        spec = task.spec
        self.trace(TraceKind.TASK_ENDED, spec.task_id, name=spec.template.name, amount=task.attempt)

    def _report(self, task: RunTask | TaskPushed, ran: TaskRan) -> None:
        self._running = None
        self.handle(ran)
        self.let_go_of([ref.object_id for ref in task.spec.deps])
        self._go_on()
