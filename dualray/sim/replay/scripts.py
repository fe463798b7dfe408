"""A script runner follows recorded scripts: it submits, puts, waits, lets go, and computes in between.

Theory of operation. What a script refers to by the ids of the recorded run is looked up in what has been submitted here
(rerun.py).

`wait` may be answered by other objects than in the recorded run, for others may be ready first. The execution then
goes on with those in their place: each pair of an object that was ready and one that is swaps its roles in all that
this execution does later. So a driver that hands out work to whoever is free does so here, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from dualray.recording.graph import (
    CANCEL,
    DROP,
    GET,
    GROUP,
    ITEM,
    KILL,
    PUT,
    SUBMIT,
    TAKE,
    UNGROUP,
    WAIT,
    TaskNode,
)
from dualray.shared.machines.owner.owner import Owner
from dualray.shared.machines.owner.remake_costs import is_remakeable
from dualray.shared.model.commands import CompleteWait
from dualray.shared.model.errors import ErrorInfo
from dualray.shared.model.events import (
    ActorKillAsked,
    CancelAsked,
    Event,
    ItemMade,
    ItemTaken,
    PlacementGroupAsked,
    PlacementGroupRemovalAsked,
    RefsAdded,
    RefsDropped,
    Result,
    SpaceWanted,
    SpaceWritten,
    ValuePut,
    ViewReleased,
    WaitStarted,
)
from dualray.shared.model.ids import (
    ActorID,
    Address,
    ObjectID,
    PlacementGroupID,
    TaskID,
    WaitID,
    actor_handle_id,
    child_task_id,
    put_object_id,
    return_index,
    return_object_id,
    stream_handle_id,
)
from dualray.shared.model.specs import ActorSpec, Ref, Streaming, TaskSpec, new_ref, new_spec
from dualray.shared.proof.trace import TraceKind
from dualray.sim.processes.host_process import OWED_NS_MAX
from dualray.sim.processes.runner import VirtualCluster
from dualray.sim.replay.execution import Execution, recorded_error
from dualray.sim.replay.replayed import Step
from dualray.sim.replay.rerun import Rerun

_TASK_ID_BYTES = 16
_WAITING = frozenset({GET, WAIT})
_BLOCKING = frozenset({GET, WAIT, PUT, ITEM, TAKE, GROUP})


class ScriptHost(Protocol):
    """The process in which a script runs."""

    address: Address
    cluster: VirtualCluster
    machine: Owner

    def handle(self, event: Event) -> None: ...

    def submit(self, spec: TaskSpec) -> None: ...

    def next_wait(self) -> WaitID: ...

    def wait_for(
        self, event: WaitStarted | SpaceWanted | PlacementGroupAsked, then: Callable[[CompleteWait], None]
    ) -> CompleteWait | None: ...

    def compute(self, work_ns: float, weight: float, execution: Execution) -> None: ...

    def write(
        self,
        execution: Execution,
        object_id: ObjectID,
        size: int,
        owner: Address,
        then: Callable[[], None],
        *,
        remakeable: bool,
    ) -> None: ...

    def fail(self, execution: Execution, error: ErrorInfo) -> None: ...

    def trace(
        self,
        kind: TraceKind,
        about: str | bytes,
        *,
        other: str = "",
        name: str = "",
        amount: int = 0,
        deps: tuple[str, ...] = (),
    ) -> None: ...


class ScriptRunner:
    """Follows the scripts of one process."""

    def __init__(self, process: ScriptHost, rerun: Rerun) -> None:
        self._process = process
        self._rerun = rerun
        self._is_noted = rerun.is_noted
        self.held_by_actor: dict[ObjectID, int] = {}
        """Of the actor that lives here."""

    def advance(self, execution: Execution) -> None:
        """Go on with a script until it has to wait, or has ended."""
        script, ops = execution.script, execution.script.ops
        scale = execution.scale
        while execution.at < len(ops):
            op = ops[execution.at]
            if not execution.has_paid:
                execution.owed_ns += op[0] * scale
            kind = op[1]
            if execution.owed_ns >= OWED_NS_MAX or (execution.owed_ns >= 1.0 and kind in _BLOCKING):
                owed_ns, execution.owed_ns = execution.owed_ns, 0.0
                execution.has_paid = True
                self._process.compute(owed_ns, script.weight, execution)
                return
            execution.has_paid = False
            execution.at += 1
            if kind == SUBMIT:
                self._submit(execution, op[2])
            elif kind == DROP:
                self._drop(execution, op[2])
            elif kind in _BLOCKING:
                if not self._block(execution, op):
                    return
            else:
                self._ask(execution, op)
            if self._rerun.is_over:
                return
        execution.at = len(ops)
        owed_ns, execution.owed_ns = execution.owed_ns, 0.0
        self._process.compute(owed_ns + script.tail_ns * scale + script.after_ns, script.weight, execution)

    def _block(self, execution: Execution, op: tuple[Any, ...]) -> bool:
        """Perform an operation that may wait; False when it does."""
        kind = op[1]
        if kind not in _WAITING:
            return self._put(execution, op) if kind == PUT else self._block_rarely(execution, op)
        refs = [ref for object_id in op[2] if (ref := self.ref(execution, object_id)) is not None]
        distinct = tuple(dict.fromkeys(refs))
        if not distinct:
            return True
        task_id = None if execution.task is None else execution.task.spec.task_id
        wait_id = self._process.next_wait()
        if self._rerun.result.steps is not None:
            began_ns = self._process.cluster.kernel.now_ns - self._rerun.began_ns
            ids = tuple([ref.object_id for ref in distinct])
            self._rerun.result.steps[task_id or b""].waits.append((began_ns, 0, ids))
        if kind == GET:
            event = WaitStarted(
                wait_id=wait_id, refs=distinct, num_ready=len(distinct), fetch=True, read=True, task_id=task_id
            )
            done = self._process.wait_for(event, lambda command: self._got(execution, distinct, command, is_late=True))
            if done is None:
                return False
            self._got(execution, distinct, done)
            return True
        number = min(op[3], len(distinct))
        event = WaitStarted(
            wait_id=wait_id, refs=distinct, num_ready=number, fetch=op[6], timeout_ns=op[4], task_id=task_id
        )
        done = self._process.wait_for(event, lambda command: self._waited(execution, op, command, is_late=True))
        if done is None:
            return False
        self._waited(execution, op, done)
        return True

    def _got(self, execution: Execution, refs: Sequence[Ref], done: CompleteWait, *, is_late: bool = False) -> None:
        machine, rerun = self._process.machine, self._rerun
        for ref in refs:
            value = machine.known_values.get(ref.object_id)
            failure = None if value is None else value.failure
            if failure is not None and not rerun.expects_failure(ref.object_id):
                self._process.fail(execution, failure)
                return
        for object_id in done.ready:
            if object_id in machine.views:
                self._process.handle(ViewReleased(object_id=object_id))
            nested = rerun.nested_in(object_id)
            if nested:
                self.hold(execution, nested)
        if is_late:
            self._note_end_of_wait(execution)
            self.advance(execution)

    def _note_end_of_wait(self, execution: Execution) -> None:
        steps = self._rerun.result.steps
        if steps is not None:
            waits = steps[b"" if execution.task is None else execution.task.spec.task_id].waits
            waits[-1] = (waits[-1][0], self._process.cluster.kernel.now_ns - self._rerun.began_ns, waits[-1][2])

    def _waited(self, execution: Execution, op: tuple[Any, ...], done: CompleteWait, *, is_late: bool = False) -> None:
        """The objects that are ready take the roles of those that were."""
        number, recorded = op[3], op[5]
        roles = execution.roles
        here = set(done.ready)
        wanted = [object_id if roles is None else roles.get(object_id, object_id) for object_id in recorded]
        ready_now: list[bytes] = []  # in the ids of the script
        for object_id in op[2]:
            played = object_id if roles is None else roles.get(object_id, object_id)
            ref = self._ref_of(played)
            if ref is not None and ref.object_id in here:
                ready_now.append(played)
        chosen = ready_now[:number]
        others = [played for played in chosen if played not in wanted]
        if others:
            if roles is None:
                roles = execution.roles = {}
            back = {played: script for script, played in roles.items()}
            for missing in [played for played in wanted if played not in chosen]:
                if not others:
                    break
                other = others.pop(0)
                first, second = back.get(missing, missing), back.get(other, other)
                roles[first], roles[second] = other, missing
                back[other], back[missing] = first, second
        if is_late:
            self._note_end_of_wait(execution)
            self.advance(execution)

    # ---- What a script does ----------------------------------------------------------------------------------

    def ref(self, execution: Execution, object_id: bytes) -> Ref | None:
        """A reference of the script, here; None: it was never made."""
        roles = execution.roles
        return self._ref_of(object_id if roles is None else roles.get(object_id, object_id))

    def _ref_of(self, object_id: bytes) -> Ref | None:
        return self._rerun.refs.get(object_id)

    def _submit(self, execution: Execution, recorded: bytes) -> None:
        rerun = self._rerun
        node = rerun.graph.tasks[recorded]
        parent = rerun.graph.driver_id if execution.task is None else execution.task.spec.task_id
        execution.counter += 1
        task_id = TaskID(recorded)
        if execution.attempt or recorded in rerun.submitted:
            task_id = child_task_id(TaskID(parent), execution.attempt, execution.counter)
            rerun.sizes[task_id] = node.args_bytes
            for index, size in enumerate(node.script.sizes):
                rerun.sizes[return_object_id(task_id, index)] = size
        rerun.submitted[task_id] = node
        template = rerun.templates[node.template]
        handle = None
        if node.actor:
            handle = rerun.refs.get(actor_handle_id(ActorID(node.actor)))
            if handle is None:
                return
        deps = tuple([ref for it in node.deps if (ref := self.ref(execution, it)) is not None]) if node.deps else ()
        nested = (
            tuple([ref for it in node.nested if (ref := self.ref(execution, it)) is not None]) if node.nested else ()
        )
        spec = new_spec(
            task_id,
            template,
            self._process.address,
            TaskID(parent),
            node.args_bytes,
            deps,
            nested,
            ActorID(handle.object_id[:_TASK_ID_BYTES]) if handle is not None else None,
            handle,
        )
        held = execution.held
        if node.max_restarts is not None:
            self._make_actor(execution, spec, node, recorded)
        else:
            for index in range(template.num_returns):
                object_id = return_object_id(task_id, index)
                known = object_id if task_id == recorded else return_object_id(TaskID(recorded), index)
                rerun.refs[known] = new_ref((object_id, self._process.address))
                held[object_id] = held.get(object_id, 0) + 1
            if template.streaming is Streaming.STREAMING:
                self._new_ref(execution, return_object_id(TaskID(recorded), 1), return_object_id(task_id, 1))
                self._new_ref(execution, stream_handle_id(TaskID(recorded)), stream_handle_id(task_id))
        rerun.result.tasks += 1
        if rerun.result.steps is not None:
            self._begin_step(execution, spec)
        if rerun.since is not None and template.name == rerun.since and not rerun.since_ns:
            rerun.since_ns = self._process.cluster.kernel.now_ns
        if self._is_noted:
            ids = tuple([ref.object_id.hex() for ref in (*deps, *nested)])
            actor = spec.actor_id.hex() if spec.actor_id is not None else ""
            self._process.trace(
                TraceKind.TASK_SUBMITTED, task_id, other=actor, name=template.name, amount=node.args_bytes, deps=ids
            )
        self._process.submit(spec)

    def _make_actor(self, execution: Execution, spec: TaskSpec, node: TaskNode, recorded: bytes) -> None:
        """The call that is about to be submitted makes an actor."""
        assert node.max_restarts is not None
        rerun, held, task_id = self._rerun, execution.held, spec.task_id
        retries = rerun.graph.templates[node.template].words.get("max_task_retries", 0)
        spec.creates = ActorSpec(actor_id=ActorID(task_id), max_restarts=node.max_restarts, max_task_retries=retries)
        ref = Ref(actor_handle_id(ActorID(task_id)), self._process.address)
        rerun.refs[actor_handle_id(ActorID(recorded))] = ref
        held[ref.object_id] = held.get(ref.object_id, 0) + 1

    def _begin_step(self, execution: Execution, spec: TaskSpec) -> None:
        """What the call that is about to be submitted does is wanted, for the critical path."""
        rerun = self._rerun
        assert rerun.result.steps is not None
        rerun.result.steps[spec.task_id] = Step(
            spec.template.name,
            "",
            b"" if execution.task is None else execution.task.spec.task_id,
            self._process.cluster.kernel.now_ns - rerun.began_ns,
            tuple([ref.object_id for ref in spec.deps]),
        )

    def _new_ref(self, execution: Execution, recorded: bytes, object_id: ObjectID) -> None:
        """An execution holds a reference to an object of its process, known to its script as another."""
        self._rerun.refs[recorded] = Ref(object_id, self._process.address)
        execution.held[object_id] = execution.held.get(object_id, 0) + 1

    # ---- What few scripts do ---------------------------------------------------------------------------------

    def _ask(self, execution: Execution, op: tuple[Any, ...]) -> None:
        """Perform an operation that needs no answer."""
        kind = op[1]
        if kind == KILL:
            handle = self._ref_of(actor_handle_id(ActorID(op[2])))
            if handle is not None:
                actor = ActorID(handle.object_id[:_TASK_ID_BYTES])
                self._process.handle(ActorKillAsked(actor_id=actor, no_restart=op[3]))
        elif kind == CANCEL:
            ref = self.ref(execution, op[2])
            if ref is not None:
                self._process.handle(CancelAsked(ref=ref, force=op[3], recursive=op[4]))
        else:
            assert kind == UNGROUP
            self._process.handle(PlacementGroupRemovalAsked(group_id=PlacementGroupID(op[2])))

    def _block_rarely(self, execution: Execution, op: tuple[Any, ...]) -> bool:
        """Perform an operation that may wait; False when it does."""
        kind = op[1]
        if kind == ITEM:
            return self._make_item(execution, op)
        if kind == TAKE:
            return self._take(execution, op[2])
        if execution.attempt:
            return True  # an attempt before has asked for the group
        group = self._rerun.group_of(PlacementGroupID(op[2]), op[3], self._process.address)
        event = PlacementGroupAsked(wait_id=self._process.next_wait(), spec=group)

        def noted(command: CompleteWait) -> None:
            if command.error is not None:
                self._process.fail(execution, command.error)
            else:
                self.advance(execution)

        done = self._process.wait_for(event, noted)
        assert done is None, "the head has answered before it was asked"
        return False

    def _make_item(self, execution: Execution, op: tuple[Any, ...]) -> bool:
        """A generator yields: the item is stored and reported, and may have to wait for its consumer."""
        _, _, recorded, size, nested, error = op
        task, rerun = execution.task, self._rerun
        assert task is not None
        spec = task.spec
        object_id = return_object_id(spec.task_id, return_index(recorded))
        rerun.sizes[object_id] = size
        rerun.refs.setdefault(recorded, Ref(object_id, spec.owner))
        inner = tuple([ref for it in nested if (ref := self.ref(execution, it)) is not None])
        is_inline = bool(error) or size <= self._process.cluster.config.inline_bytes_max

        def stored() -> None:
            if not is_inline:
                self._process.handle(SpaceWritten(object_id=object_id))
            self._process.handle(
                ItemMade(
                    task_id=spec.task_id,
                    attempt=task.attempt,
                    owner=spec.owner,
                    result=Result(object_id=object_id, size_bytes=size, inline=is_inline, nested=inner),
                    error=recorded_error(error, spec.template.name),
                    ahead_max=spec.template.items_ahead_max,
                )
            )
            if self._has_room(execution):
                self.advance(execution)

        if is_inline:
            stored()
        else:
            self._process.write(execution, object_id, size, spec.owner, stored, remakeable=is_remakeable(task))
        return False

    def _has_room(self, execution: Execution) -> bool:
        """Whether a generator may go on now; else it does so when its consumer lets it."""
        task = execution.task
        assert task is not None
        spec, machine = task.spec, self._process.machine
        if not machine.is_item_wanted(spec.task_id, task.attempt):
            execution.at = len(execution.script.ops)  # it is closed
            return True
        room = machine.room_for_item(spec.task_id, task.attempt)
        if room is None:
            return True
        event = WaitStarted(
            wait_id=self._process.next_wait(),
            refs=(Ref(room, self._process.address),),
            num_ready=1,
            fetch=False,
            task_id=spec.task_id,
        )

        def opened(_: CompleteWait) -> None:
            if self._has_room(execution):
                self.advance(execution)

        return self._process.wait_for(event, opened) is not None

    def _take(self, execution: Execution, recorded: bytes) -> bool:
        """The consumer of a generator takes the next item, which has been waited for."""
        first = self._rerun.refs.get(return_object_id(TaskID(recorded), 0))
        machine = self._process.machine
        task_id = TaskID(b"" if first is None else first.object_id[:_TASK_ID_BYTES])
        stream = machine.consumed_stream(task_id)
        if stream is None:
            return True

        def take() -> None:
            index = stream.next
            if not machine.has_ended_before(task_id, index):
                self._process.handle(ItemTaken(task_id=task_id))
                self._new_ref(
                    execution, return_object_id(TaskID(recorded), index + 1), return_object_id(task_id, index + 1)
                )

        if stream.next <= stream.reported or stream.has_ended:
            take()
            return True

        def came(_: CompleteWait) -> None:
            take()
            self.advance(execution)

        ref = Ref(return_object_id(task_id, stream.next), self._process.address)
        event = WaitStarted(wait_id=self._process.next_wait(), refs=(ref,), num_ready=1, fetch=False)
        if self._process.wait_for(event, came) is None:
            return False
        take()
        return True

    def hold(self, execution: Execution, refs: Iterable[Ref]) -> None:
        """References have come into this process."""
        refs = tuple(refs)
        self._process.handle(RefsAdded(refs=refs))
        for ref in refs:
            execution.held[ref.object_id] = execution.held.get(ref.object_id, 0) + 1

    def _drop(self, execution: Execution, recorded: Iterable[bytes]) -> None:
        held, dropped = execution.held, []
        for object_id in recorded:
            ref = self.ref(execution, object_id)
            if ref is None:
                continue
            for holder in (held, self.held_by_actor):
                if holder.get(ref.object_id):
                    holder[ref.object_id] -= 1
                    if not holder[ref.object_id]:
                        del holder[ref.object_id]
                    dropped.append(ref.object_id)
                    break
        if dropped:
            self._process.handle(RefsDropped(object_ids=tuple(dropped)))

    def _put(self, execution: Execution, op: tuple[Any, ...]) -> bool:
        _, _, recorded, size, nested = op
        execution.puts += 1
        object_id = ObjectID(recorded)
        if execution.attempt or recorded in self._rerun.refs:
            parent = self._rerun.graph.driver_id if execution.task is None else execution.task.spec.task_id
            object_id = put_object_id(TaskID(parent), execution.attempt, execution.puts)
        self._rerun.sizes[object_id] = size
        inner = tuple([ref for it in nested if (ref := self.ref(execution, it)) is not None])

        def stored() -> None:
            self._has_put(execution, recorded, object_id, size, inner, inline=False)
            self.advance(execution)

        if size <= self._process.cluster.config.inline_bytes_max:
            if execution.task is None:
                self._rerun.result.marks.append(self._process.cluster.kernel.now_ns - self._rerun.began_ns)
            self._has_put(execution, recorded, object_id, size, inner, inline=True)
            return True
        self._process.write(execution, object_id, size, self._process.address, stored, remakeable=False)
        return False

    def _has_put(
        self,
        execution: Execution,
        recorded: bytes,
        object_id: ObjectID,
        size: int,
        nested: tuple[Ref, ...],
        *,
        inline: bool,
    ) -> None:
        self._rerun.refs[recorded] = Ref(object_id, self._process.address)
        execution.held[object_id] = execution.held.get(object_id, 0) + 1
        self._process.handle(ValuePut(object_id=object_id, size_bytes=size, inline=inline, nested=nested))
