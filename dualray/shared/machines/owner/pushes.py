"""Pushes tasks to workers: it chooses messages and payloads, and which tasks travel together.

Theory of operation. Leases and actor calls say which tasks go to which worker, and when. Tasks that follow one another,
stand alone and differ in little travel in one message. Arguments that lie in room of this process are lent to the
worker, which reads them there.

Relies on: leases.py and actor_calls.py for the order and the worker.
Guarantees: what is sent is noted as pushed, in the order in which it is sent.
"""

from __future__ import annotations

from dualray.shared.machines.base import Outbox
from dualray.shared.machines.owner.lease_queues import Lease
from dualray.shared.machines.owner.reserved_space import Rooms
from dualray.shared.machines.owner.task_records import TaskRecord
from dualray.shared.machines.owner.tasks import Tasks
from dualray.shared.machines.owner.values import Values
from dualray.shared.model.commands import Send
from dualray.shared.model.events import ActorRegistered, Call, TasksPushed, new_push
from dualray.shared.model.ids import HEAD, Address, LeaseID, TaskID
from dualray.shared.model.specs import TaskSpec
from dualray.shared.model.states import TaskState


class Pushes:
    """See the module."""

    def __init__(self, *, out: Outbox, address: Address, values: Values, rooms: Rooms, tasks: Tasks) -> None:
        self.out = out
        self.address = address
        self.values = values
        self.rooms = rooms
        self.tasks = tasks

    def to_lease(self, pushed: list[TaskID], lease: Lease) -> None:
        is_alone = len(lease.in_flight) == len(pushed)  # else the worker has something to do
        records = self.tasks.records
        if len(pushed) == 1:
            self._push(records[pushed[0]], lease.worker, lease.lease_id, lease.device_ids, urgent=is_alone)
            return
        self._push_several([records[task] for task in pushed], lease.worker, lease, urgent=is_alone)

    def calls(self, records: list[TaskRecord], worker: Address, is_alone: bool) -> None:
        self._push_several(records, worker, None, urgent=is_alone)

    def to_head(self, record: TaskRecord) -> None:
        """Hand the constructor of an actor to the head; from here on the head knows the actor's fate."""
        for ref in record.spec.deps:
            self.rooms.hand_over(ref.object_id)
        inline = self.tasks.inline_deps(record)
        message = ActorRegistered(spec=record.spec, inline_deps=inline)
        self.out.send(HEAD, message, (*record.spec.payload_keys, *inline))
        self.tasks.set_pushed(record, HEAD, None)

    def _push_several(self, records: list[TaskRecord], worker: Address, lease: Lease | None, *, urgent: bool) -> None:
        """Push tasks in order: those that follow one another, stand alone and differ in little, together."""
        device_ids = lease.device_ids if lease is not None else ()
        lease_id = lease.lease_id if lease is not None else None
        if len(records) == 1:
            self._push(records[0], worker, lease_id, device_ids, urgent=urgent)
            return
        first: TaskSpec | None = None
        calls: list[Call] = []
        payloads: list[bytes] = []
        for record in records:
            spec = record.spec
            if spec.deps or spec.nested or spec.creates or record.again:
                if first is not None:
                    self._push_together(first, calls, payloads, worker, device_ids, urgent=urgent)
                    first, calls, payloads = None, [], []
                self._push(record, worker, lease_id, device_ids, urgent=urgent)
                continue
            if first is not None and not (
                (spec.template is first.template or spec.template == first.template)
                and spec.parent == first.parent
                and spec.actor_handle == first.actor_handle
            ):
                self._push_together(first, calls, payloads, worker, device_ids, urgent=urgent)
                first, calls, payloads = None, [], []
            if first is None:
                first = spec
            if record.state is TaskState.QUEUED:
                record.state = TaskState.PUSHED  # QUEUED -> PUSHED, without a call: most tasks go this way
                record.worker = worker
                record.lease_id = lease_id
                record.was_pushed = True
            else:
                self.tasks.set_pushed(record, worker, lease_id)
            calls.append((spec.task_id, record.attempt, spec.args_bytes))
            if spec.args_bytes:
                payloads.append(spec.task_id)
        if first is not None:
            self._push_together(first, calls, payloads, worker, device_ids, urgent=urgent)

    def _push_together(
        self,
        first: TaskSpec,
        calls: list[Call],
        payloads: list[bytes],
        worker: Address,
        device_ids: tuple[int, ...],
        *,
        urgent: bool,
    ) -> None:
        """Push calls of one function, or of one method of an actor, of which `first` is the first: they are noted as
        pushed already."""
        message = TasksPushed(
            template=first.template,
            owner=self.address,
            parent=first.parent,
            calls=tuple(calls),
            device_ids=device_ids,
            actor_id=first.actor_id,
            actor_handle=first.actor_handle,
        )
        self.out.commands.append(Send(to=worker, message=message, payloads=tuple(payloads), urgent=urgent))

    def _push(
        self,
        record: TaskRecord,
        worker: Address,
        lease_id: LeaseID | None,
        device_ids: tuple[int, ...],
        *,
        urgent: bool,
    ) -> None:
        spec = record.spec
        inline = self.tasks.inline_deps(record) if spec.deps else ()
        if spec.deps and self.rooms.lodged:
            self._lend(record, worker)
        self.tasks.set_pushed(record, worker, lease_id)
        message = new_push(spec, record.attempt, self.address, inline, device_ids, record.again)
        payloads = (spec.task_id, *inline) if spec.args_bytes else inline
        self.out.commands.append(Send(to=worker, message=message, payloads=payloads, urgent=urgent))

    def _lend(self, record: TaskRecord, worker: Address) -> None:
        """Arguments of a task that is about to be pushed may lie in room of ours: the worker may read them there, and
        we must hear when it can no more."""
        if self.rooms.lend(record.spec.task_id, record.spec.deps, worker):
            self.values.borrows.meet(worker)
