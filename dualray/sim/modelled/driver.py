"""A modelled driver follows a program: a generator that makes calls, and yields when it waits."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from typing import Any, TypeAlias

from dualray.shared.machines.owner.owner import Owner
from dualray.shared.machines.owner.plain_worker import PlainWorker
from dualray.shared.model.commands import (
    Command,
    CompleteWait,
)
from dualray.shared.model.errors import ErrorInfo
from dualray.shared.model.events import (
    RefsDropped,
    TaskSubmitted,
    WaitStarted,
)
from dualray.shared.model.ids import (
    ActorID,
    Address,
    ChildIds,
    NodeID,
    TaskID,
    actor_handle_id,
    return_object_id,
    root_task_id,
)
from dualray.shared.model.specs import (
    ActorSpec,
    FunctionTemplate,
    Ref,
    new_ref,
    new_spec,
)
from dualray.shared.proof.trace import TraceKind
from dualray.sim.modelled.calls import Call, Get, Step, Wait
from dualray.sim.modelled.processes import ModelledProcess
from dualray.sim.processes.host_process import OWED_NS_MAX
from dualray.sim.processes.object_store import VirtualStore

Program: TypeAlias = "Callable[[ModelledDriver], Generator[Step, Any, None]]"


class ModelledDriver(ModelledProcess):
    """The driver: it follows a program."""

    __slots__ = ("_ids", "_machine", "_program", "_submitted", "owed_ns", "root")

    def __init__(self, *, cluster: Any, address: Address, node: NodeID, store: VirtualStore) -> None:
        super().__init__(cluster=cluster, address=address, node=node, store=store)
        self._machine = Owner(address=address, node=node, config=cluster.config, is_driver=True)
        self.root = root_task_id("", 1)
        self._ids = ChildIds(self.root, 0)
        self.owed_ns = 0
        self._submitted = 0
        self._program: Generator[Step, Any, None] | None = None

    @property
    def machine(self) -> Owner | PlainWorker:
        """What decides."""
        return self._machine

    @property
    def owner(self) -> Owner:
        """The whole machine."""
        return self._machine

    def _decide(self, event: Any) -> list[Command]:
        return self._machine.handle(event, self._calendar.now_ns)

    def things(self) -> int:
        return self._machine.things()

    # ---- What programs call ----------------------------------------------------------------------------------

    def submit(
        self,
        what: Call,
        deps: tuple[Ref, ...] = (),
        *,
        takes_ns: int | None = None,
        sizes: tuple[int, ...] | None = None,
    ) -> tuple[Ref, ...]:
        """Make a call, with these objects as its arguments; references to its results. The program pays for it with
        its next `yield driver.pay()`."""
        self._submitted += 1
        task_id = self._ids.of(self._submitted)
        model, address, template = self.model, self.address, what.template
        if takes_ns is not None or sizes is not None:
            model.is_plain = False
            model.told[task_id] = (
                what.takes_ns if takes_ns is None else takes_ns,
                what.sizes if sizes is None else sizes,
            )
        model.tasks += 1
        self.owed_ns += model.submit_ns
        self._trace_submission(task_id, template)
        spec = new_spec(task_id, template, address, self.root, 0, deps, (), None, None)
        commands = self._machine.submit(spec, self._calendar.now_ns)
        if commands:
            self.perform(commands)
        if template.num_returns == 1:
            return (new_ref((return_object_id(task_id, 0), address)),)
        return tuple([new_ref((return_object_id(task_id, index), address)) for index in range(template.num_returns)])

    def submit_several(self, what: Call, count: int) -> list[Ref]:
        """Make up to `count` calls that have no arguments and one result, and are told nothing of their own: fewer when
        it is time to pay before. References to their results, of one call at least."""
        refs: list[Ref] = []
        model, machine, ids = self.model, self._machine, self._ids
        address, root, template, submit_ns = self.address, self.root, what.template, model.submit_ns
        now_ns = self._calendar.now_ns
        while True:
            self._submitted += 1
            task_id = ids.of(self._submitted)
            self.owed_ns += submit_ns
            if model.is_anchored:
                self._trace_submission(task_id, template)
            commands = machine.submit(new_spec(task_id, template, address, root, 0, (), (), None, None), now_ns)
            if commands:
                self.perform(commands)
            object_id = machine.newest_result()
            assert object_id is not None
            refs.append(new_ref((object_id, address)))
            if self.owed_ns >= OWED_NS_MAX or len(refs) >= count:
                model.tasks += len(refs)
                return refs

    def create(self, what: Call, *, max_restarts: int = 0) -> Ref:
        """Make an actor, by a call of its class: a handle to it."""
        self._submitted += 1
        task_id = self._ids.of(self._submitted)
        spec = new_spec(task_id, what.template, self.address, self.root, 0, (), (), None, None)
        spec.creates = ActorSpec(actor_id=ActorID(task_id), max_restarts=max_restarts, max_task_retries=-1)
        self._trace_submission(task_id, what.template)
        self.owed_ns += self.model.submit_ns
        self.handle(TaskSubmitted(spec=spec))
        return Ref(actor_handle_id(ActorID(task_id)), self.address)

    def invoke(
        self,
        actor: Ref,
        what: Call,
        deps: tuple[Ref, ...] = (),
        *,
        takes_ns: int | None = None,
    ) -> Ref:
        """Call a method of an actor: a reference to its first result."""
        self._submitted += 1
        task_id = self._ids.of(self._submitted)
        if takes_ns is not None:
            self.model.is_plain = False
            self.model.told[task_id] = takes_ns, what.sizes
        actor_id = ActorID(actor.object_id[:16])
        spec = new_spec(task_id, what.template, self.address, self.root, 0, deps, (), actor_id, actor)
        self.model.tasks += 1
        self.owed_ns += self.model.submit_ns
        self._trace_submission(task_id, what.template)
        self.handle(TaskSubmitted(spec=spec))
        return Ref(return_object_id(task_id, 0), self.address)

    def _trace_submission(self, task_id: TaskID, template: FunctionTemplate) -> None:
        """Where a fault may be anchored at it."""
        if self.model.is_anchored:
            self.trace(TraceKind.TASK_SUBMITTED, task_id, name=template.name)

    @property
    def owes(self) -> bool:
        """Whether it is time to pay for calls."""
        return self.owed_ns >= OWED_NS_MAX

    def pay(self) -> int:
        """The time that calls have taken so far: to be yielded."""
        owed_ns, self.owed_ns = self.owed_ns, 0
        return owed_ns

    def drop(self, refs: Iterable[Ref]) -> None:
        """Let go of references."""
        self.handle(RefsDropped(object_ids=tuple([ref[0] for ref in refs])))

    # ---- Following it ----------------------------------------------------------------------------------------

    def follow(self, program: Program) -> None:
        """Begin with a program."""
        self._program = program(self)
        self._advance(None)

    def _advance(self, answer: Any) -> None:
        if not self.is_alive:
            return
        if not self.model.is_steady and self.model.cluster.pauses.holds(self):
            self.model.cluster.pauses.when_it_runs(self, self._advance, answer)
            return
        assert self._program is not None
        step: Any
        try:
            step = self._program.send(answer)
        except StopIteration:
            self.model.cluster.program_ended("")
            return
        if type(step) is int:
            self._calendar.post(self._calendar.now_ns + step, self._advance, None)
            return
        assert isinstance(step, (Get, Wait))
        is_get = isinstance(step, Get)
        event = WaitStarted(
            wait_id=self._next_wait(),
            refs=step.refs,
            num_ready=step.num_ready if isinstance(step, Wait) else len(step.refs),
            fetch=True,
            read=is_get,
        )
        self._wait_for(event, self._got if is_get else self._waited)

    def _got(self, done: CompleteWait) -> None:
        table = self._machine.known_values
        for object_id in done.ready:
            failure: ErrorInfo | None = table[object_id].failure
            if failure is not None:
                self.model.cluster.program_ended(failure.message)
                return
        if self._machine.views:
            self.let_go_of(done.ready)
        self._calendar.post(self._calendar.now_ns, self._advance, None)

    def _waited(self, done: CompleteWait) -> None:
        self._calendar.post(self._calendar.now_ns, self._advance, frozenset(done.ready))
