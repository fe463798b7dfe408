"""The task that runs: what ids are derived from, and what user code is told of itself.

A process that runs one task at a time has one Execution at a time; in one that runs several, each thread, fiber and
coroutine has its own. Every task passes through here: the wheel compiles it.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from dualray.shared.model.ids import ActorID, TaskID
from dualray.shared.model.specs import FunctionTemplate, TaskSpec


@dataclass(slots=True, kw_only=True)
class Execution:
    """The task that runs in a process, or the driver's implicit one: what ids are derived from."""

    task_id: TaskID
    attempt: int = 0
    name: str = "driver"
    device_ids: tuple[int, ...] = ()
    actor_id: ActorID | None = None
    resources: FunctionTemplate | None = None
    duration: Any = None
    constructor: TaskSpec | None = None
    """Of the actor that this runs in."""
    actor_life: int = 0
    """How often that actor had been restarted."""
    sim_unsafe: str | None = None
    """What becomes of its calls that lead out of a simulation, if it says so."""
    is_task: bool = True
    submitted: int = 0
    puts: int = 0
    method: str = ""
    """Of an actor's call that has a name of its own: the method."""


def new_execution(
    task_id: TaskID, attempt: int, template: FunctionTemplate, device_ids: tuple[int, ...], duration: Any
) -> Execution:
    """That of a plain task. One is made for every task: this takes a third of the time of the constructor."""
    execution = _new(Execution)
    execution.task_id = task_id
    execution.attempt = attempt
    execution.name = template.name
    execution.device_ids = device_ids
    execution.actor_id = None
    execution.resources = template
    execution.duration = duration
    execution.constructor = None
    execution.actor_life = attempt
    execution.sim_unsafe = None
    execution.is_task = True
    execution.submitted = 0
    execution.puts = 0
    execution.method = ""
    return execution


_new = object.__new__


class ExecutionContext:
    """The Execution that the caller is in; outside of all calls, `base`."""

    __slots__ = ("_base", "_current")

    def __init__(self, base: Execution) -> None:
        self._base = base
        self._current: ContextVar[Execution] = ContextVar("dualray-execution")

    def enter(self, execution: Execution) -> None:
        """From now on the caller, and what it starts, is in `execution`."""
        self._current.set(execution)

    @property
    def here(self) -> Execution:
        """The Execution that the caller is in."""
        return self._current.get(self._base)
