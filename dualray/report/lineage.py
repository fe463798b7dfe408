"""Reconstructions that a trace makes necessary, predicted without looking at those that happened.

Theory of operation. The rows of a trace tell which nodes held a copy of which object at any moment (OBJECT_STORED,
TRANSFER_ENDED, OBJECT_EVICTED, OBJECT_DELETED), and what each task was made from (TASK_SUBMITTED). When a node dies,
the objects that only it had are lost. Those among them that a task needs which had not ended, was submitted later, or
was started again for another reason, must be made again; what that takes, the product's own reconstruction policy
plans, on a lineage read from the trace. Rows of reconstructions are left out: so the number that is predicted and the
number that is counted come from different rows, and must be equal.

Limits. What a node's death costs is predicted, not what eviction costs. A `get` in a driver or task leaves no row: an
object that only it needs is not predicted. An argument that was never in a store travelled inline, and is taken to be
with its owner still. An argument that is freed between the death and the moment at which it is needed again counts as
available. References inside an argument count as needed. That a task has no attempt left cannot be seen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf

from dualray.report.summary import RECONSTRUCTION
from dualray.shared.model.ids import Address, ObjectID, TaskID, node_of
from dualray.shared.policies.reconstruction import LineageReconstruction, ReconstructionPolicy
from dualray.shared.proof.trace import TraceEvent, TraceKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """What the death of one node cost, and what that takes.

    Attributes:
        lost: objects that have no copy from then on.
        needed: those of them that some task needs.
        again: tasks that must run again, arguments before what is made from them.
        impossible: why an object cannot be made again, one sentence for each such object.
    """

    time_ns: int
    node: str
    lost: tuple[ObjectID, ...]
    needed: tuple[ObjectID, ...]
    again: tuple[TaskID, ...]
    impossible: tuple[str, ...]


class Copies:
    """Which nodes hold a copy of which object."""

    def __init__(self) -> None:
        self.by_object: dict[ObjectID, dict[str, None]] = {}
        """Objects that have ever been in a store; without a copy they stay, with no node."""

    def apply(self, event: TraceEvent) -> None:
        """Take in one row."""
        match event.kind:
            case TraceKind.OBJECT_STORED | TraceKind.TRANSFER_ENDED:
                self.by_object.setdefault(_object(event), {})[node_of(Address(event.process))] = None
            case TraceKind.OBJECT_DELETED | TraceKind.OBJECT_EVICTED:
                self.by_object.get(_object(event), {}).pop(node_of(Address(event.process)), None)
            case TraceKind.FAULT if is_of_node(event):
                self._empty(event.subject)
            case TraceKind.NODE_STARTED:  # as its next incarnation, perhaps: with an empty store
                self._empty(event.subject)
            case _:
                pass

    def _empty(self, node: str) -> None:
        for nodes in self.by_object.values():
            nodes.pop(node, None)

    def sole(self, node: str) -> tuple[ObjectID, ...]:
        """The objects whose only copy is on the node."""
        return tuple(object_id for object_id, nodes in self.by_object.items() if list(nodes) == [node])


def predict(events: Sequence[TraceEvent], policy: ReconstructionPolicy | None = None) -> list[Loss]:
    """Every death of a node in a trace, with the reconstructions that it takes."""
    policy = policy or LineageReconstruction()
    copies = Copies()
    dependencies = {
        _task(event): tuple(ObjectID(bytes.fromhex(dep)) for dep in event.deps)
        for event in events
        if event.kind is TraceKind.TASK_SUBMITTED
    }
    lineage = _TraceLineage(copies, dependencies)
    last_needs = _last_needs(events, dependencies)
    losses = []
    for position, event in enumerate(events):
        is_death = event.kind is TraceKind.FAULT and is_of_node(event)
        lost = copies.sole(event.subject) if is_death else ()
        copies.apply(event)
        if not is_death:
            continue
        needed = tuple(object_id for object_id in lost if last_needs.get(object_id, -1) > position)
        again: dict[TaskID, None] = {}
        impossible = []
        for object_id in needed:
            plan = policy.plan(object_id, lineage)
            again.update(dict.fromkeys(plan.tasks))
            if plan.impossible is not None:
                impossible.append(plan.impossible)
        losses.append(
            Loss(
                time_ns=event.time_ns,
                node=event.subject,
                lost=lost,
                needed=needed,
                again=tuple(again),
                impossible=tuple(impossible),
            )
        )
    return losses


def predicted_reconstructions(events: Sequence[TraceEvent]) -> int:
    """How many reconstructions the deaths of nodes take."""
    return sum(len(loss.again) for loss in predict(events))


def _last_needs(
    events: Sequence[TraceEvent], dependencies: Mapping[TaskID, Sequence[ObjectID]]
) -> dict[ObjectID, float]:
    """For each argument, the position in the trace up to which a task needs it: the last at which a task that takes it
    was submitted, ended for the first time, or started, reconstructions left out; without end if it never ended."""
    last: dict[TaskID, int] = {}
    ended: set[TaskID] = set()
    reconstructed: set[tuple[str, int]] = set()
    for position, event in enumerate(events):
        if event.kind is TraceKind.TASK_RETRIED and event.other == RECONSTRUCTION:
            reconstructed.add((event.subject, event.amount))
            continue
        match event.kind:
            case TraceKind.TASK_SUBMITTED:
                last[_task(event)] = position
            case TraceKind.TASK_STARTED if (event.subject, event.amount) not in reconstructed:
                last[_task(event)] = position
            case TraceKind.TASK_ENDED if _task(event) not in ended:
                ended.add(_task(event))
                last[_task(event)] = position
            case _:
                pass
    needs: dict[ObjectID, float] = {}
    for task, arguments in dependencies.items():
        until = last[task] if task in ended else inf
        for argument in arguments:
            needs[argument] = max(until, needs.get(argument, until))
    return needs


def is_of_node(fault: TraceEvent) -> bool:
    """Whether a fault befell a node as a whole."""
    return fault.subject == node_of(Address(fault.subject))


def _object(event: TraceEvent) -> ObjectID:
    return ObjectID(bytes.fromhex(event.subject))


def _task(event: TraceEvent) -> TaskID:
    return TaskID(bytes.fromhex(event.subject))


class _TraceLineage:
    """The past, as the reconstruction policy asks for it, at one moment of a trace."""

    def __init__(self, copies: Copies, dependencies: Mapping[TaskID, Sequence[ObjectID]]) -> None:
        self._copies = copies
        self._dependencies = dependencies

    def dependencies(self, task: TaskID) -> Sequence[ObjectID] | None:
        return self._dependencies.get(task)

    def is_available(self, object_id: ObjectID) -> bool:
        nodes = self._copies.by_object.get(object_id)
        return nodes is None or bool(nodes)

    def is_cancelled(self, task: TaskID) -> bool:
        """A trace does not say which tasks were cancelled too late."""
        return False

    def may_run_again(self, task: TaskID) -> bool:
        return True
