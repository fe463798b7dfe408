"""References in the results of tasks that ran here: this process holds them until the tasks' owners have borrowed them.

Theory of operation. Results may refer to objects. Each reference is held from the end of the task until its owner says
that it has borrowed them (ResultsTaken), or has died. A task whose process has borrows of its own that are not
acknowledged yet is reported when they are.

Relies on: references.py counts what is in transit.
Guarantees: what a result refers to is not freed on its way.
"""

from __future__ import annotations

from dualray.shared.machines.owner.values import Values
from dualray.shared.model.events import ResultsTaken, TaskPushed, TaskRan
from dualray.shared.model.ids import Address, TaskID
from dualray.shared.model.specs import Ref


class Transit:
    """See the module."""

    def __init__(self, *, values: Values) -> None:
        self.values = values
        self.in_transit: dict[tuple[TaskID, int], tuple[Address, tuple[Ref, ...]]] = {}

    def hold(self, pushed: TaskPushed, ran: TaskRan, caller_is_dead: bool) -> None:
        """A task has ended: hold what its results refer to."""
        nested: tuple[Ref, ...] = ()
        for result in ran.results:
            nested += result.nested
        if nested and not caller_is_dead:
            self.values.references.hold_in_transit(nested)
            self.in_transit[ran.task_id, ran.attempt] = (pushed.reply_to, nested)

    def is_to_wait_with(self, pushed: TaskPushed) -> bool:
        """Whether a task that has ended cannot be reported yet, for a borrow of this process is not acknowledged."""
        values = self.values
        if not values.borrows.unacknowledged:
            return False
        owners = {values.table[object_id].owner for object_id in values.borrows.unacknowledged}
        return bool(owners - {pushed.reply_to})  # to the task's own owner, the borrow goes ahead of TaskFinished

    def on_taken(self, event: ResultsTaken) -> None:
        """The owner has borrowed what our results refer to."""
        _, nested = self.in_transit.pop((event.task_id, event.attempt), (None, ()))
        self.values.references.release_from_transit(nested)

    def on_process_died(self, dead: frozenset[Address]) -> None:
        """Results for a process that died are taken by nobody."""
        for key, (to, nested) in list(self.in_transit.items()):
            if to in dead:
                del self.in_transit[key]
                self.values.references.release_from_transit(nested)
