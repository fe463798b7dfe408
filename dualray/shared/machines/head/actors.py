"""The actors of the cluster: where each lives, in which life, and whether it comes back.

Theory of operation. An actor is registered by the process that made it, which owns it. The head asks the global
scheduler for a lease, as an owner of its own would; when it is granted, the constructor is pushed to the worker, with
the arguments that the head has kept (PENDING -> ALIVE). When the worker or its node is lost, the actor is restarted in
a new life while it has restarts left (RESTARTING), else it is DEAD. The request of a restart names the constructor's
arguments: one that was lost is made again before the actor holds anything that this may need. It is DEAD too when its
constructor raises, when its last handle goes, when it is killed, when it wants to (`exit_actor`), and when its owner
dies. Everyone who subscribed hears of each change. A detached actor is owned by the head itself: no handle keeps it,
and it ends when it is killed, or with the cluster. Names are the matter of actor_names.py.

Relies on: the global scheduler settles each request; the node reports the death of a leased worker.
Guarantees: at most one worker holds an actor's current life; DEAD is final, and its reason is kept for later callers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from dualray.shared.machines.base import Outbox, ensure
from dualray.shared.machines.head.actor_names import ActorNames
from dualray.shared.model.commands import DropPayload, WriteRecord
from dualray.shared.model.errors import ErrorInfo, ErrorKind
from dualray.shared.model.events import (
    ActorChanged,
    ActorExited,
    ActorFailed,
    ActorKillRequested,
    ActorNameRequested,
    ActorOutOfScope,
    ActorRegistered,
    ActorSubscribed,
    LeasedWorkerDied,
    LeaseGranted,
    LeaseRefused,
    LeaseRequested,
    LeaseReturned,
    TaskFinished,
    TaskPushed,
    WorkerUnwanted,
)
from dualray.shared.model.ids import (
    HEAD,
    ActorID,
    Address,
    LeaseID,
    NodeID,
    ObjectID,
    RequestID,
    exception_id,
    node_of,
    short,
)
from dualray.shared.model.specs import LeaseShape, ObjectHint, TaskSpec
from dualray.shared.model.states import ACTOR, ActorState

RESTART_FOREVER = -1

_OF_ARGUMENTS = frozenset(
    {
        ErrorKind.APPLICATION,
        ErrorKind.TASK_CANCELLED,
        ErrorKind.OBJECT_LOST,
        ErrorKind.RECONSTRUCTION_FAILED,
        ErrorKind.OWNER_DIED,
        ErrorKind.STORE_FULL,
        ErrorKind.UNREACHABLE,
    }
)
"""Why a request for a lease is refused because of an argument."""


class ActorRecord:
    """One actor as the head sees it."""

    __slots__ = (
        "error",
        "granted",
        "inline_deps",
        "lease_id",
        "life",
        "node",
        "restarts_left",
        "spec",
        "state",
        "subscribers",
        "worker",
    )

    def __init__(self) -> None:
        self.spec: TaskSpec | None = None
        self.inline_deps: tuple[ObjectID, ...] = ()
        self.state = ActorState.PENDING
        self.life = 0
        self.restarts_left = 0
        self.worker: Address | None = None
        self.node: NodeID | None = None
        self.lease_id: LeaseID | None = None
        self.error: ErrorInfo | None = None
        self.subscribers: dict[Address, None] = {}

    @property
    def is_detached(self) -> bool:
        """Whether it outlives the process that made it."""
        return self.spec is not None and self.spec.creates is not None and self.spec.creates.is_detached

    def arguments(self) -> tuple[ObjectHint, ...]:
        """The constructor's arguments that lie in the stores. Their sizes are not known here."""
        assert self.spec is not None
        inline = frozenset(self.inline_deps)
        refs = dict.fromkeys(ref for ref in self.spec.deps if ref.object_id not in inline)
        return tuple([ObjectHint(object_id=ref.object_id, owner=ref.owner, size_bytes=0) for ref in refs])


class Actors:
    """See the module."""

    def __init__(
        self, *, out: Outbox, request_lease: Callable[[LeaseRequested], None], is_gone: Callable[[Address], bool]
    ) -> None:
        self.out = out
        self._request_lease = request_lease
        self._is_gone = is_gone
        self.records: dict[ActorID, ActorRecord] = {}
        self.names = ActorNames(out=out)
        self.by_lease: dict[LeaseID, ActorID] = {}
        self.payload_uses: dict[bytes, int] = {}
        """Payloads kept for restarts: a small argument may belong to several actors."""

    def _record(self, actor_id: ActorID) -> ActorRecord:
        record = self.records.get(actor_id)
        if record is None:
            record = self.records[actor_id] = ActorRecord()
        return record

    # ---- Made and placed -------------------------------------------------------------------------------------

    def on_registered(self, event: ActorRegistered) -> None:
        """Make this actor."""
        spec = event.spec
        assert spec.creates is not None
        self._use_payloads(event)
        if self._is_gone(spec.owner):
            self._drop_payloads(spec, event.inline_deps)
            return
        record = self._record(spec.creates.actor_id)
        if record.state is ActorState.DEAD:  # killed, or its last handle went, before it was made
            self._drop_payloads(spec, event.inline_deps)
            return
        self.names.registered(spec.creates.actor_id)
        record.spec = spec
        record.inline_deps = event.inline_deps
        record.restarts_left = spec.creates.max_restarts
        self._place(record)

    def _use_payloads(self, event: ActorRegistered) -> None:
        for key in (*event.spec.payload_keys, *event.inline_deps):
            self.payload_uses[key] = self.payload_uses.get(key, 0) + 1

    def _drop_payloads(self, spec: TaskSpec, inline_deps: tuple[ObjectID, ...]) -> None:
        for key in (*spec.payload_keys, *inline_deps):
            self.payload_uses[key] -= 1
            if not self.payload_uses[key]:
                del self.payload_uses[key]
                self.out.add(DropPayload(key=key))

    def _place(self, record: ActorRecord) -> None:
        spec = record.spec
        assert spec is not None and spec.creates is not None
        template = spec.template
        self._request_lease(
            LeaseRequested(
                request_id=_request_id(spec.creates.actor_id, record.life),
                owner=HEAD,
                shape=LeaseShape(
                    resources=template.resources,
                    placement=template.placement,
                    strategy=template.strategy,
                    runtime_env=template.runtime_env,
                    name=template.name,
                    deps=record.arguments() if record.life else (),
                ),
                count=1,
                via=node_of(spec.owner) if "/" in spec.owner else None,
            )
        )

    def on_granted(self, event: LeaseGranted) -> None:
        """There is a worker for a life of an actor."""
        actor_id, life = _parse_request_id(event.request_id)
        record = self.records[actor_id]
        if record.lease_id == event.lease_id:
            return  # it is known
        if record.state is ActorState.DEAD or record.life != life or record.lease_id is not None:
            self.out.send(Address(event.node), LeaseReturned(lease_id=event.lease_id))
            return
        assert record.spec is not None
        record.lease_id, record.node, record.worker = event.lease_id, event.node, event.worker
        self.by_lease[event.lease_id] = actor_id
        self.out.send(
            event.worker,
            TaskPushed(
                spec=record.spec,
                attempt=record.life,
                reply_to=HEAD,
                inline_deps=record.inline_deps,
                device_ids=event.device_ids,
            ),
            (*record.spec.payload_keys, *record.inline_deps),
        )

    def made_by(self, request_id: RequestID) -> Address:
        """The process that has made the actor for which there is this request for a lease."""
        spec = self.records[_parse_request_id(request_id)[0]].spec
        return HEAD if spec is None else spec.owner

    def on_refused(self, event: LeaseRefused) -> None:
        """No node can ever hold it, or an argument of its constructor failed."""
        actor_id, life = _parse_request_id(event.request_id)
        record = self.records[actor_id]
        if record.life != life or record.state is ActorState.DEAD:
            return
        error = event.error
        if error.kind in _OF_ARGUMENTS:
            message = f"The actor died because an argument of its constructor failed when it restarted: {error.message}"
            error = ErrorInfo(kind=ErrorKind.ACTOR_DIED, message=message)
        self._end(actor_id, record, error)

    def on_constructed(self, event: TaskFinished) -> None:
        """The constructor returned, or raised."""
        if event.error is not None and event.error.has_exception:
            self.out.add(DropPayload(key=exception_id(event.task_id)))  # its text is enough for us
        actor_id = ActorID(event.task_id)
        record = self.records.get(actor_id)
        if record is None or record.life != event.attempt or record.worker != event.worker:
            return
        if record.state in (ActorState.DEAD, ActorState.ALIVE):
            return
        if event.error is None:
            self._become(actor_id, record, ActorState.ALIVE)
            return
        assert record.spec is not None
        name = record.spec.template.name
        message = f"The constructor of actor {name} ({short(actor_id)}) raised: {event.error.message}"
        self._end(actor_id, record, ErrorInfo(kind=ErrorKind.ACTOR_DIED, message=message))

    # ---- Lost and ended --------------------------------------------------------------------------------------

    def on_worker_died(self, event: LeasedWorkerDied) -> None:
        """The worker of a lease that we hold died."""
        actor_id = self.by_lease.pop(event.lease_id, None)
        if actor_id is not None:
            is_full = event.error.kind is ErrorKind.OUT_OF_MEMORY  # as in Ray, its calls fail with that error
            kind = ErrorKind.OUT_OF_MEMORY if is_full else ErrorKind.ACTOR_DIED
            why = f"The actor is dead because its worker process has died. {event.error.message}"
            self._lost(actor_id, why, kind)

    def on_unreachable(self, worker: Address, why: str) -> None:
        """The head cannot connect to a living worker, so the constructor that it sent there is lost."""
        for actor_id in self.by_lease.values():
            record = self.records[actor_id]
            if record.worker == worker and record.node is not None and record.state is not ActorState.ALIVE:
                reason = f"the head reports that it cannot connect to {worker}: {why}"
                self.out.send(Address(record.node), WorkerUnwanted(worker=worker, reason=reason))

    def is_any_on(self, node: NodeID) -> bool:
        """Whether an actor lives there, or is about to."""
        return any(self.records[actor_id].node == node for actor_id in self.by_lease.values())

    def on_node_died(self, node: NodeID) -> None:
        """Every actor there is lost."""
        for actor_id in [actor_id for actor_id in self.by_lease.values() if self.records[actor_id].node == node]:
            lease_id = self.records[actor_id].lease_id
            assert lease_id is not None
            del self.by_lease[lease_id]
            self._lost(actor_id, f"The actor died because its node has died: {node}.")

    def _lost(self, actor_id: ActorID, why: str, kind: ErrorKind = ErrorKind.ACTOR_DIED) -> None:
        record = self.records[actor_id]
        record.lease_id = record.worker = record.node = None
        if record.state is ActorState.DEAD:
            return
        assert record.spec is not None
        if record.restarts_left == 0:
            name = record.spec.template.name
            restarts = f"it had been restarted {record.life} times" if record.life else "max_restarts is 0"
            message = f"Actor {name} ({short(actor_id)}) died and is not restarted ({restarts}): {why}"
            self._end(actor_id, record, ErrorInfo(kind=kind, message=message), is_lost=not record.is_detached)
            return
        if record.restarts_left != RESTART_FOREVER:
            record.restarts_left -= 1
        record.life += 1
        record.error = ErrorInfo(kind=ErrorKind.ACTOR_UNAVAILABLE, message=why, actor=actor_id)
        self._become(actor_id, record, ActorState.RESTARTING)
        self._place(record)

    def on_kill(self, event: ActorKillRequested) -> None:
        """`kill(actor)` was called."""
        record = self._record(event.actor_id)
        if record.state is ActorState.DEAD:
            self.names.release(event.actor_id)
        elif event.no_restart or record.spec is None:
            self.end(event.actor_id, "it was killed by `ray.kill` (dualray.kill).")
        elif record.worker is not None and record.node is not None:
            unwanted = WorkerUnwanted(worker=record.worker, reason="kill(actor, no_restart=False)")
            self.out.send(Address(record.node), unwanted)

    def on_out_of_scope(self, event: ActorOutOfScope) -> None:
        """Nobody can call it any more: what its class does at its end is done."""
        spec = self._record(event.actor_id).spec
        is_graceful = spec is not None and spec.creates is not None and spec.creates.has_shutdown
        self.end(event.actor_id, "Its last handle is gone.", is_graceful=is_graceful)

    def end(self, actor_id: ActorID, why: str, *, is_graceful: bool = False) -> None:
        """The actor is not wanted any more."""
        record = self._record(actor_id)
        if record.state is not ActorState.DEAD:
            error = ErrorInfo(kind=ErrorKind.ACTOR_DIED, message=f"Actor {short(actor_id)} has ended: {why}")
            self._end(actor_id, record, error, is_graceful=is_graceful)
        else:
            self.names.release(actor_id)

    def on_exited(self, event: ActorExited) -> None:
        """It wants to end, and is not restarted."""
        record = self.records.get(event.actor_id)
        if record is not None and record.worker == event.worker:
            self.end(event.actor_id, f"exit_actor() was called in {event.method}.")

    def on_name_requested(self, event: ActorNameRequested) -> None:
        """Who has this name?"""
        if not self._is_gone(event.requester):
            self.names.on_requested(event)

    def on_failed(self, event: ActorFailed) -> None:
        """An argument of its constructor failed."""
        record = self._record(event.actor_id)
        if record.state is not ActorState.DEAD:
            message = (
                f"Actor {short(event.actor_id)} was not created, because an argument failed: {event.error.message}"
            )
            self._end(event.actor_id, record, ErrorInfo(kind=ErrorKind.ACTOR_DIED, message=message))

    def runs_at(self, worker: Address) -> bool:
        """Whether an actor runs in this process."""
        return any(record.worker == worker for record in self.records.values())

    def owners_died(self, is_dead: Callable[[Address], bool]) -> None:
        """Actors end with the process that made them; dead subscribers hear of nothing."""
        for actor_id, record in list(self.records.items()):
            for subscriber in [address for address in record.subscribers if is_dead(address)]:
                del record.subscribers[subscriber]
            if record.spec is not None and not record.is_detached and is_dead(record.spec.owner):
                self.end(actor_id, _owner_died(record.spec.owner))
        for actor_id in self.names.claimed_by(is_dead):
            self.end(actor_id, "the process that was creating it died before its constructor could run.")

    def _end(
        self,
        actor_id: ActorID,
        record: ActorRecord,
        error: ErrorInfo,
        *,
        is_graceful: bool = False,
        is_lost: bool = False,
    ) -> None:
        record.error = replace(error, actor=actor_id)
        if record.worker is not None and record.node is not None:
            unwanted = WorkerUnwanted(worker=record.worker, reason=error.message, is_graceful=is_graceful)
            self.out.send(Address(record.node), unwanted)
        self._become(actor_id, record, ActorState.DEAD)
        record.worker = None
        if is_lost:
            self.names.lost(actor_id)
        else:
            self.names.release(actor_id)
        if record.spec is not None:
            self._drop_payloads(record.spec, record.inline_deps)

    # ---- Told ------------------------------------------------------------------------------------------------

    def on_subscribed(self, event: ActorSubscribed) -> None:
        """Tell the subscriber of the state, now and whenever it changes."""
        if self._is_gone(event.subscriber):
            return
        record = self._record(event.actor_id)
        record.subscribers[event.subscriber] = None
        is_dead = record.state is ActorState.DEAD
        if record.spec is None and not is_dead and event.owner is not None and self._is_gone(event.owner):
            self.end(event.actor_id, _owner_died(event.owner))  # it died while an argument was not there yet
        else:
            self._tell(event.actor_id, record, event.subscriber)

    def _become(self, actor_id: ActorID, record: ActorRecord, state: ActorState) -> None:
        record.state = ACTOR.check(record.state, state, actor_id)
        fields = (("state", str(state)), ("life", str(record.life)), ("worker", record.worker or ""))
        self.out.add(WriteRecord(table="actors", key=actor_id.hex(), fields=fields))
        for subscriber in record.subscribers:
            self._tell(actor_id, record, subscriber)

    def _tell(self, actor_id: ActorID, record: ActorRecord, subscriber: Address) -> None:
        alive = record.state is ActorState.ALIVE
        changed = ActorChanged(
            actor_id=actor_id,
            state=record.state,
            life=record.life,
            worker=record.worker if alive else None,
            error=record.error,
        )
        self.out.send(subscriber, changed)

    def explain(self) -> list[str]:
        """In words, which actors are not alive and not dead."""
        return [
            f"actor {record.spec.template.name if record.spec else '?'} ({short(actor_id)}) is {record.state}"
            for actor_id, record in self.records.items()
            if record.state in (ActorState.PENDING, ActorState.RESTARTING)
        ]

    def check_invariants(self) -> None:
        self.names.check_invariants()
        for actor_id in self.names.by_actor:
            named = self.records.get(actor_id)
            is_free = named is not None and named.state is ActorState.DEAD and not self.names.is_kept(actor_id)
            ensure(not is_free, "actor {} is DEAD and has a name that no handle keeps", actor_id)
        for lease_id, actor_id in self.by_lease.items():
            ensure(self.records[actor_id].lease_id == lease_id, "actor {} holds another lease", actor_id)
        for actor_id, record in self.records.items():
            ensure(
                record.state is not ActorState.ALIVE or record.worker is not None,
                "actor {} is alive nowhere",
                actor_id,
            )


def _owner_died(owner: Address) -> str:
    return f"The actor is dead because its owner has died: {owner}."


def _request_id(actor_id: ActorID, life: int) -> RequestID:
    return RequestID(f"actor:{actor_id.hex()}:{life}")


def _parse_request_id(request_id: RequestID) -> tuple[ActorID, int]:
    _, actor_hex, life = request_id.split(":")
    return ActorID(bytes.fromhex(actor_hex)), int(life)
