"""Answers what the process that drives an owner machine may ask of it.

Theory of operation. Runners and core workers drive the machine with events and carry out its commands. What they read
between events they read here, and not from its parts: how those keep it is theirs. The four tables are bound once, so
that reading a small value costs no call; only the machine changes them. An answer that the head has given to a question
is taken once.

Guarantees: a query leads to no command, and changes nothing that decides.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sized

from dualray.shared.machines.autoscaler.groups import groups_of
from dualray.shared.machines.base import Composition
from dualray.shared.machines.owner.actor_calls import ActorCalls
from dualray.shared.machines.owner.actor_executor import ActorExecutor
from dualray.shared.machines.owner.executor import Executor
from dualray.shared.machines.owner.explanation import Explanation
from dualray.shared.machines.owner.leases import Leases
from dualray.shared.machines.owner.pins import Borrowed
from dualray.shared.machines.owner.production import Production
from dualray.shared.machines.owner.questions import Questions
from dualray.shared.machines.owner.reserved_space import Rooms
from dualray.shared.machines.owner.rows import OwnerRows
from dualray.shared.machines.owner.task_records import Stream
from dualray.shared.machines.owner.tasks import Tasks
from dualray.shared.machines.owner.value import Failure, Value
from dualray.shared.machines.owner.values import Values
from dualray.shared.machines.state_rows import Row
from dualray.shared.model.config import Config
from dualray.shared.model.events import ActorNameReported, TaskPushed
from dualray.shared.model.ids import ActorID, Address, ObjectID, TaskID, WaitID
from dualray.shared.model.specs import LeaseShape, NodeInfo, NodeState, TaskSpec
from dualray.shared.policies.feasibility import why_infeasible


class OwnerQueries(Composition):
    """See the module; the owner makes the parts."""

    rooms: Rooms
    values: Values
    tasks: Tasks
    leases: Leases
    actor_calls: ActorCalls
    executor: Executor
    production: Production
    explanation: Explanation
    state_rows: OwnerRows
    questions: Questions
    actor_executor: ActorExecutor | None
    config: Config
    cluster: tuple[NodeInfo, ...]

    known_values: dict[ObjectID, Value]
    """All objects that the process has anything to do with."""
    views: dict[ObjectID, int]
    """Stored objects whose bytes it reads, and how many reads it has not given back."""
    loans: dict[ObjectID, Borrowed]
    """Arguments that their owners have lent to it."""
    unacknowledged: dict[ObjectID, None]
    """Borrows that their owners have not acknowledged."""

    def _bind_tables(self) -> None:
        values = self.values
        self.known_values = values.table
        self.views = values.pins.views
        self.loans = values.pins.loans
        self.unacknowledged = values.borrows.unacknowledged

    # ---- Values and waits ------------------------------------------------------------------------------------

    def why_not_ready(self, object_id: ObjectID) -> str:
        """In words, what an object that is not ready waits for, as far as this process knows."""
        return self.explanation.of_object(object_id)

    def rows(self, table: str) -> list[Row]:
        """The rows of a table of the cluster that this process has."""
        return self.state_rows.of(table)

    def late_row(self, object_id: ObjectID) -> Row:
        """The same as a row, with the task that it waits for and the worker that has it."""
        return self.state_rows.late(object_id)

    def misses(self, wait_id: WaitID) -> list[str]:
        """In words, each thing that a wait still misses."""
        return self.explanation.of_wait(wait_id)

    def call_that_waits(self, wait_id: WaitID) -> str | None:
        """The name of the call that waits, where several run at a time."""
        wait = self.values.waiting.waits.get(wait_id)
        return self.state_rows.call_name(wait.task_id) if wait is not None else None

    def unread_failures(self) -> list[Failure]:
        """What ended tasks of this process, and nobody has read, while references to their results are still there."""
        return self.values.references.unread_failures()

    def place_of_argument(self, object_id: ObjectID) -> int | None:
        """Where in kept space an argument is to be written; None: it is an object of the node's store."""
        return self.rooms.place_of(object_id)

    # ---- Tasks -----------------------------------------------------------------------------------------------

    def submitted(self, task_id: TaskID) -> TaskSpec | None:
        """What this process has submitted as a task, while it keeps the record."""
        record = self.tasks.records.get(task_id)
        return None if record is None else record.spec

    def unfinished_tasks(self) -> Counter[str]:
        """How many submitted tasks are in which state."""
        return Counter(record.state.value for record in self.tasks.records.values() if not record.is_done)

    def why_waiting(self, shape: LeaseShape) -> str | None:
        """Why no node that there is now, or that may be launched, could take the demand, or None."""
        why = why_infeasible(shape, self.cluster) if self.cluster else None
        if why is None or not self.config.autoscaler_groups:
            return why
        return None if any(group.could_take(shape) for group in groups_of(self.config.autoscaler_groups)) else why

    def has_pending_calls(self, actor_id: ActorID, limit: int) -> bool:
        """Whether so many calls of an actor have no answer yet."""
        return self.actor_calls.has_pending(actor_id, limit)

    def is_free_for(self, owner: Address) -> bool:
        """Whether no task is in hand, no object is known, and this owner is: then a task that brings all it needs
        begins at once, and nothing else follows from it."""
        values = self.values
        return self.executor.current is None and owner in values.borrows.met and not values.table

    def is_actor(self) -> bool:
        """Whether an actor lives in this process."""
        return self.executor.is_actor

    def newest_result(self) -> ObjectID | None:
        """The result of the newest call that stands alone and has one result: the very object that is the key here."""
        return self.tasks.newest_result

    def running_calls(self) -> list[TaskPushed]:
        """The calls that have begun, in an actor of which several methods may run at a time."""
        calls = self.actor_executor
        return [] if calls is None else [call.pushed for call in list(calls.calls.values())]

    # ---- Generators ------------------------------------------------------------------------------------------

    def consumed_stream(self, task_id: TaskID) -> Stream | None:
        """The items of a generator that this process has called, while it consumes them."""
        return self.tasks.streams.consumed.get(task_id)

    def has_ended_before(self, task_id: TaskID, index: int) -> bool:
        """Whether there is no item of this index, and never will be."""
        return self.tasks.streams.has_ended_before(task_id, index)

    def room_for_item(self, task_id: TaskID, attempt: int) -> ObjectID | None:
        """What a generator that runs here has to wait for before its next item, if anything."""
        return self.production.room_for(task_id, attempt)

    def is_item_wanted(self, task_id: TaskID, attempt: int) -> bool:
        """Whether anybody still wants the items of a generator that runs here."""
        return self.production.is_wanted(task_id, attempt)

    def has_caller_of_items(self, task_id: TaskID, attempt: int) -> bool:
        """Whether the process that has called a generator, which runs here, lives."""
        return self.production.has_caller(task_id, attempt)

    # ---- Answers of the head, taken once ---------------------------------------------------------------------

    def take_cluster_state(self, wait_id: WaitID) -> tuple[NodeState, ...]:
        """The nodes that a question has found."""
        return self.questions.cluster_state.pop(wait_id)

    def take_rows(self, wait_id: WaitID) -> tuple[str, ...] | None:
        """The rows that a question has found; None: they did not come in time."""
        return self.questions.rows.pop(wait_id, None)

    def take_named_actor(self, wait_id: WaitID) -> ActorNameReported:
        """The actor that a question has found."""
        return self.questions.named_actors.pop(wait_id)

    # ---- Sweeps ----------------------------------------------------------------------------------------------

    def things(self) -> int:
        """About how many things a sweep over the machine looks at."""
        return 10 + 2 * len(self.values.table) + 2 * len(self.tasks.records) + len(self.leases.leases)

    def kept(self) -> dict[str, Sized]:
        """What a process keeps that should be empty once nobody needs anything of it, by what it is."""
        return {
            "values": self.values.table,
            "waits": self.values.waiting.waits,
            "borrows that are not acknowledged": self.values.borrows.unacknowledged,
            "views": self.values.pins.views,
            "task records": self.tasks.records,
            "leases": self.leases.leases,
            "lease requests": self.leases.requests,
        }
