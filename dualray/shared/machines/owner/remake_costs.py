"""Tells what it costs to make a task's result again: the time that its function has run here.

Theory of operation. A node's eviction policy chooses between dropping an object, to be made again when it is needed,
and writing it to disk. The process that runs a task knows how long the run took, and says so when it asks for room for
the result. The first runs of a function in a process import modules and compile: their time says little. A result that
was made again is made no third time for want of room. Both count as not measured.

Guarantees: reads no clock; the same runs give the same answers.
"""

from __future__ import annotations

from dualray.shared.model.commands import RunTask
from dualray.shared.model.events import TaskPushed
from dualray.shared.model.ids import FunctionID, TaskID

UNMEASURED_RUNS = 3
"""Of each function, in each process."""


def is_remakeable(task: RunTask | TaskPushed) -> bool:
    """Whether the task may run again to make its results again: an actor's call may not, nor a task with
    `max_retries=0`."""
    return task.spec.actor_id is None and task.spec.template.max_retries != 0


class RemakeCosts:
    """See the module."""

    __slots__ = ("_last", "_runs")

    def __init__(self) -> None:
        self._runs: dict[FunctionID, int] = {}
        self._last: TaskID | None = None

    def of(self, task: RunTask | TaskPushed, elapsed_ns: int) -> int:
        """What it costs to make the results of a task again that has run for `elapsed_ns`, in ns; 0: not measured, or
        impossible. To be asked for each result of the run."""
        spec = task.spec
        function = spec.template.function_id
        runs = self._runs.get(function, 0)
        if spec.task_id != self._last:
            self._last = spec.task_id
            if runs <= UNMEASURED_RUNS:
                runs += 1
                self._runs[function] = runs
        if runs <= UNMEASURED_RUNS or task.attempt or not is_remakeable(task):
            return 0
        return max(elapsed_ns, 1)
