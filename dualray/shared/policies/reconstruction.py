"""Lineage reconstruction: which tasks must run again so that a lost object exists again.

The plan is the closure over the arguments that are gone too, each task once, arguments before what is made from them.
An argument that lies in some store, or inline with its owner, is taken as it is; if its last copy turns out to be gone
when a node asks for it, that is a demand of its own. What cannot be made again: an object that was put, the output of
a task without attempts left or of one that was cancelled, an actor's output unless its calls may be retried.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from dualray.shared.model.ids import ObjectID, TaskID, is_put, short, task_of


class Lineage(Protocol):
    """What the policy may ask about the past."""

    def dependencies(self, task: TaskID) -> Sequence[ObjectID] | None:
        """The task's arguments, or None when its lineage is not kept."""

    def is_available(self, object_id: ObjectID) -> bool:
        """Whether the object exists, or is being made."""

    def may_run_again(self, task: TaskID) -> bool:
        """Whether the task has an attempt left."""

    def is_cancelled(self, task: TaskID) -> bool:
        """Whether the task may not run again, for it was cancelled."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The tasks to run again in order, or the reason why that is not possible."""

    tasks: tuple[TaskID, ...] = ()
    impossible: str | None = None


class ReconstructionPolicy(Protocol):
    """Plans how a lost object is made again."""

    def plan(self, object_id: ObjectID, lineage: Lineage) -> Plan: ...


NO_ATTEMPT_LEFT = (
    "has no attempt left, because each loss of its results with a node uses one. Set a higher max_retries=, or keep "
    "the results on the node that reads them"
)


class NoReconstruction:
    """Lost is lost: for programs that would rather fail than run a task again.

    Together with an eviction policy that spills, such as "spill", nothing is dropped that cannot be read back.
    """

    def plan(self, object_id: ObjectID, lineage: Lineage) -> Plan:
        return Plan(
            impossible=f"object {short(object_id)} is not recomputed, because the reconstruction policy forbids it"
        )


class LineageReconstruction:
    """See the module."""

    def plan(self, object_id: ObjectID, lineage: Lineage) -> Plan:
        planned: dict[TaskID, None] = {}
        stack: list[tuple[ObjectID, bool]] = [(object_id, False)]
        while stack:
            wanted, arguments_done = stack.pop()
            task = task_of(wanted)
            if task in planned:
                continue
            if arguments_done:
                planned[task] = None
                continue
            if is_put(wanted):
                return Plan(impossible=f"object {short(wanted)} was created by put(), and no task can recompute it")
            dependencies = lineage.dependencies(task)
            if dependencies is None:
                return Plan(impossible=f"the task that computed object {short(wanted)} is no longer known")
            if lineage.is_cancelled(task):
                return Plan(impossible=f"task {short(task)}, which computes object {short(wanted)}, was cancelled")
            if not lineage.may_run_again(task):
                return Plan(impossible=f"task {short(task)}, which computes object {short(wanted)}, {NO_ATTEMPT_LEFT}")
            stack.append((wanted, True))
            stack.extend((dep, False) for dep in reversed(dependencies) if not lineage.is_available(dep))
        return Plan(tuple(planned))
