"""User code of a cluster in memory (harness.py): its fibers, its references and views, and the steps that it takes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any, Self

from dualray.shared.machines.owner.owner import Owner
from dualray.shared.model import commands as c
from dualray.shared.model import events as e
from dualray.shared.model.errors import ErrorInfo, ErrorKind
from dualray.shared.model.ids import (
    ActorID,
    Address,
    FunctionID,
    NodeID,
    ObjectID,
    TaskID,
    WaitID,
    actor_handle_id,
    child_task_id,
    is_put,
    put_object_id,
    return_index,
    return_object_id,
    root_task_id,
    short,
    stream_handle_id,
    task_of,
)
from dualray.shared.model.resources import CPU, GPU, UNITS, Resources, demand_in_group, from_units
from dualray.shared.model.specs import ActorSpec, FunctionTemplate, Ref, Strategy, Streaming, TaskSpec
from dualray.shared.model.states import ValueState
from dualray.shared.proof.decision_log import MachineSpec
from tests.shared.processes import Consumer, Content, Failed, Fiber, Frame, Interrupted, Process, PyRef, Runnable
from tests.shared.steps import (
    INLINE_MAX,
    MS,
    AskState,
    Call,
    Cancel,
    Drop,
    DropHandle,
    DropStream,
    DropValue,
    Get,
    KillActor,
    MakeActor,
    Next,
    Put,
    Sleep,
    Step,
    Submit,
    Wait,
)

if TYPE_CHECKING:
    from tests.shared.harness import Cluster


class CodeProcess(Process):
    """A driver or worker: its fibers, and the references and views of its user code."""

    machine: Owner

    def __init__(self, cluster: Cluster, spec: MachineSpec) -> None:
        super().__init__(cluster, spec)
        self.node = NodeID(spec.node)
        self.is_driver = spec.is_driver
        self.frame = Frame(task_id=root_task_id(self.address, 0), is_task=not spec.is_driver)
        self.kept: list[PyRef] = []
        self.environment: str | None = None
        self.opened: dict[ObjectID, int] = {}
        self.waits: dict[WaitID, Callable[[tuple[ObjectID, ...], ErrorInfo | None], None]] = {}
        self.wait_counter = 0
        self.fibers: dict[Fiber, None] = {}
        self.to_run: deque[Runnable] = deque()
        self.is_running = False
        self.ran: list[e.Outcome] = []
        self.current_task: Runnable | None = None
        self.interrupted: tuple[TaskID, int] | None = None
        self.is_interrupt_due = False
        self.task_fiber: Fiber | None = None
        self.task_waits: WaitID | None = None
        """The `get` or `wait` of the task in hand."""

    @classmethod
    def make(cls, cluster: Cluster, address: Address, node: NodeID, *, is_driver: bool) -> Self:
        spec = MachineSpec(kind="owner", address=address, node=node, config=cluster.config, is_driver=is_driver)
        process = cls(cluster, spec)
        cluster.add(process)
        cluster.users[address] = process
        return process

    @property
    def store(self) -> dict[ObjectID, Content]:
        return self.cluster.nodes[self.node].bytes

    def perform(self, command: c.Command) -> None:
        match command:
            case c.InterruptTask():
                self._interrupt(command)
            case c.CompleteWait():
                resume = self.waits.pop(command.wait_id)
                self.later(f"wake {command.wait_id}", lambda: resume(command.ready, command.error))
            case c.CopyPayload():
                # An exception that came by way of the head, to a node that wanted the object, is a text only.
                if command.source in self.payloads or not self.cluster.had_losses:
                    self.payloads[command.target] = self.payloads[command.source]
            case c.RunTask():
                self._hand_over([command])
            case c.RunTasks():
                self._hand_over(command.tasks)
            case c.ForgetTasks():
                forgotten = [task.spec.task_id for task in command.tasks]
                self.to_run = deque(task for task in self.to_run if task.spec.task_id not in forgotten)
            case _:
                super().perform(command)

    def handle(self, event: e.Event) -> None:
        self.take_in_ran()
        super().handle(event)

    def take_in_ran(self) -> None:
        """What tasks have returned that were handed over with others goes before everything else."""
        if self.ran and self.is_alive:
            ran, self.ran = tuple(self.ran), []
            super().handle(e.TasksRan(outcomes=ran))

    def _hand_over(self, tasks: Sequence[Runnable]) -> None:
        self.to_run.extend(tasks)
        if not self.is_running:
            self.is_running = True
            self.later("run", self._run_next)

    def _interrupt(self, command: c.InterruptTask) -> None:
        """As the core worker and its host do: in user code, and nowhere else."""
        wanted = (command.task_id, command.attempt)
        current_task = [self.current_task] if self.current_task is not None else []
        if any((task.spec.task_id, task.attempt) == wanted for task in [*current_task, *self.to_run]):
            self.interrupted, self.is_interrupt_due = wanted, True
            self.later("interrupt", self._interrupt_wait)

    def _interrupt_wait(self) -> None:
        if self.task_waits in self.waits and self._takes_interrupt():
            assert self.task_waits is not None
            assert self.task_fiber is not None
            del self.waits[self.task_waits]
            self.handle(e.WaitAbandoned(wait_id=self.task_waits))
            self._go_on(self.task_fiber, lambda fiber: fiber.throw(Interrupted()))

    def _takes_interrupt(self) -> bool:
        task = self.current_task
        if not self.is_interrupt_due or task is None or (task.spec.task_id, task.attempt) != self.interrupted:
            return False
        self.is_interrupt_due = False
        return True

    def _run_next(self) -> None:
        if self.to_run:
            self.current_task = self.to_run.popleft()
            self.task_fiber = self._run(self.current_task)
            self.spawn(self.task_fiber)
        else:
            self.is_running = False

    def _run(self, task: Runnable) -> Fiber:
        yield from self._execute(task)
        self.is_running = False
        if self.to_run:
            self._hand_over(())

    # ---- Fibers ----------------------------------------------------------------------------------------------

    def spawn(self, fiber: Fiber) -> None:
        self.fibers[fiber] = None
        self._resume(fiber, None)

    def _resume(self, fiber: Fiber, value: Any) -> None:
        self._go_on(fiber, lambda fiber: fiber.send(value))

    def _go_on(self, fiber: Fiber, go: Callable[[Fiber], Any]) -> None:
        if not self.is_alive:
            return
        try:
            awaited = go(fiber)
        except StopIteration:
            del self.fibers[fiber]
            return
        awaited(lambda result: self._resume(fiber, result))

    def _await(self, event: e.Event, wait_id: WaitID) -> Any:
        """What a fiber yields to start a wait, and be resumed with (ready, error)."""

        def start(resume: Callable[[Any], None]) -> None:
            self.waits[wait_id] = lambda ready, error: resume((ready, error))
            self.handle(event)

        return start

    def _sleep(self, ns: int) -> Any:
        def start(resume: Callable[[Any], None]) -> None:
            self.cluster.sleep(self, ns, lambda: resume(None))

        return start

    def _new_wait(self) -> WaitID:
        self.wait_counter += 1
        return WaitID(self.wait_counter)

    # ---- References and views ----------------------------------------------------------------------------------

    def adopt(self, ref: Ref, frame: Frame) -> PyRef:
        """A reference was unpickled."""
        self.handle(e.RefsAdded(refs=(ref,)))
        made = PyRef(ref)
        self._keep_in_frame(made, frame)
        return made

    def _keep_in_frame(self, ref: PyRef, frame: Frame) -> None:
        (frame.handles if ref.ref.object_id in self.cluster.handles else frame.refs).append(ref)

    def let_go(self, ref: PyRef) -> None:
        ref.users -= 1
        if not ref.users:
            object_id = ref.ref.object_id
            self.later("drop", lambda: self.handle(e.RefsDropped(object_ids=(object_id,))))

    def read(self, object_id: ObjectID, frame: Frame) -> None:
        """Open a value that a wait has found ready: its references appear, a view of its bytes opens.

        Raises:
            Failed: it has failed.
        """
        value = self.machine.values.table[object_id]
        if value.failure is not None:
            self.cluster.note_error(value.failure)
            if value.failure.kind is ErrorKind.APPLICATION and not self.cluster.had_losses:
                assert object_id in self.payloads, f"{self.address} has no exception of {short(object_id)}"
            raise Failed
        if value.state is ValueState.INLINE:
            assert object_id in self.payloads, f"{self.address} has no bytes of inline {short(object_id)}"
            content = self.payloads[object_id]
        else:
            content = self._open(object_id)
            self.opened[object_id] = self.opened.get(object_id, 0) + 1
            frame.views.append(object_id)
        for ref in content.nested:
            self.adopt(ref, frame)

    def _open(self, object_id: ObjectID) -> Content:
        loan = self.machine.values.pins.loans.get(object_id)
        if loan is not None:
            lodger, content = self.cluster.nodes[self.node].rooms[loan.place]
            assert lodger == object_id, f"{self.address} opens {short(object_id)}, and {short(lodger)} lies there"
            return content
        assert object_id in self.store, f"{self.address} opens {short(object_id)}, which is not in its store"
        return self.store[object_id]

    def close_view(self, object_id: ObjectID) -> None:
        def close() -> None:
            self.opened[object_id] -= 1
            self.handle(e.ViewReleased(object_id=object_id))

        self.later("close", close)

    def release_unread(self, object_ids: Sequence[ObjectID]) -> None:
        for object_id in object_ids:
            if object_id in self.machine.values.pins.views:
                self.handle(e.ViewReleased(object_id=object_id))

    def drop_frame(self, frame: Frame) -> None:
        for ref in frame.refs + frame.handles:
            self.let_go(ref)
        for object_id in frame.views:
            self.close_view(object_id)
        self.drop_streams(frame)
        frame.refs, frame.handles, frame.views = [], [], []

    def drop_streams(self, frame: Frame) -> None:
        for consumer in frame.streams:
            self._drop_stream(consumer)
        frame.streams = []

    def _drop_stream(self, consumer: Consumer) -> None:
        self.let_go(consumer.handle)
        if consumer.item is not None:
            self.let_go(consumer.item)
            consumer.item = None

    def _execute(self, task: Runnable) -> Fiber:
        """A task runs: see user_process.py."""
        raise NotImplementedError


class StepTaker(CodeProcess):
    """Takes the steps of user code, as its core worker would let a function take them."""

    def take(self, step: Step, frame: Frame) -> Fiber:
        match step:
            case Put():
                yield from self._put(step, frame)
            case Submit() | MakeActor() | Call():
                large: list[PyRef] = []
                if step.large > INLINE_MAX:
                    large = yield from self._put_argument(step.large, frame)
                if len(large) == (step.large > INLINE_MAX):  # else the store is full
                    self._submit(step, frame, large)
            case Get():
                yield from self._get(step, frame)
            case Wait():
                yield from self._wait(step, frame)
            case Drop(ref=index, keep=keep):
                self._drop(frame.refs, index, keep)
            case DropHandle(handle=index, keep=keep):
                self._drop(frame.handles, index, keep)
            case DropValue(value=index):
                if frame.views:
                    self.close_view(frame.views.pop(index % len(frame.views)))
            case KillActor():
                for handle in self.choose(frame.handles, (step.handle,)):
                    actor_id = ActorID(handle.ref.object_id[:16])
                    self.handle(e.ActorKillAsked(actor_id=actor_id, no_restart=step.no_restart))
            case Cancel():
                for ref in self.choose([ref for ref in frame.refs if not is_put(ref.ref.object_id)], (step.ref,)):
                    self.cluster.had_cancels = True
                    self.handle(e.CancelAsked(ref=ref.ref, force=step.force, recursive=step.recursive))
            case Next():
                yield from self._next(step, frame)
            case DropStream(stream=index):
                if frame.streams:
                    self._drop_stream(frame.streams.pop(index % len(frame.streams)))
            case Sleep(ns=ns):
                yield self._sleep(ns)
            case AskState():
                wait_id = self._new_wait()
                yield self._await(e.ClusterStateAsked(wait_id=wait_id), wait_id)
                self.machine.questions.cluster_state.pop(wait_id)

    def _drop(self, among: list[PyRef], index: int, keep: bool) -> None:
        if among:
            ref = among.pop(index % len(among))
            if keep:
                self.kept.append(ref)
            else:
                self.let_go(ref)

    def _put_argument(self, size: int, frame: Frame) -> Generator[Any, Any, list[PyRef]]:
        frame.puts += 1
        object_id = put_object_id(frame.task_id, frame.attempt, frame.puts)
        try:
            yield from self._write(object_id, size, Content(), self.address, False, is_argument=True)
        except Failed:
            return []
        self.cluster.safe.add(object_id)
        self.handle(e.ValuePut(object_id=object_id, size_bytes=size, inline=False))
        return [PyRef(Ref(object_id, self.address))]

    def _put(self, step: Put, frame: Frame) -> Fiber:
        frame.puts += 1
        object_id = put_object_id(frame.task_id, frame.attempt, frame.puts)
        content, refs = self._content(step.nested, frame)
        inline = step.size <= INLINE_MAX
        try:
            if inline:
                self.payloads[object_id] = content
            else:
                try:
                    yield from self._write(object_id, step.size, content, self.address, False)
                except Failed:
                    return  # the store is full: `put` raises, and user code goes on
            self.cluster.safe.add(object_id)
            put = e.ValuePut(object_id=object_id, size_bytes=step.size, inline=inline, nested=content.nested)
            self.handle(put)
            frame.refs.append(PyRef(Ref(object_id, self.address)))
        finally:
            for ref in refs if self.is_alive else ():
                self.let_go(ref)

    def _submit(self, step: Submit | MakeActor | Call, frame: Frame, large: Sequence[PyRef] = ()) -> None:
        try:
            self._submit_with(step, frame, large)
        finally:
            for ref in large:
                self.let_go(ref)

    def _submit_with(self, step: Submit | MakeActor | Call, frame: Frame, large: Sequence[PyRef]) -> None:
        frame.submitted += 1
        task_id = child_task_id(frame.task_id, frame.attempt, frame.submitted)
        deps = [*large, *self.choose(frame.refs, step.deps)]
        inside = [ref for ref in self.choose(frame.refs, step.nested) if ref not in deps]
        count = len(step.body.outs)
        streaming, ahead_max = Streaming.NO, 0
        resources = placement = from_units({})
        strategy = 0
        actor: dict[str, Any] = {}
        retries = 0
        match step:
            case Submit():
                resources = placement = from_units({CPU: step.cpus * UNITS, GPU: step.gpus * UNITS})
                strategy, retries = step.strategy, step.retries
                streaming, ahead_max = step.streaming, step.ahead_max
                inside += self.choose(frame.handles, step.handles)
            case MakeActor():
                placement, strategy, count = from_units({CPU: UNITS}), step.strategy, 0
                resources = from_units({CPU: step.cpus * UNITS})
                actor["creates"] = ActorSpec(
                    actor_id=ActorID(task_id), max_restarts=step.restarts, max_concurrency=step.concurrency
                )
                self.cluster.handles.add(actor_handle_id(ActorID(task_id)))
            case Call():
                handles = self.choose(frame.handles, (step.handle,))
                if not handles:
                    return
                retries, streaming, ahead_max = step.retries, step.streaming, step.ahead_max
                actor["actor_handle"] = handles[0].ref
                actor["actor_id"] = ActorID(handles[0].ref.object_id[:16])
                inside += self.choose(frame.handles, step.handles)
        count = 1 if streaming else count
        chosen = self.cluster.strategy(strategy)
        if chosen.group is not None:
            resources = demand_in_group(resources, chosen.group, chosen.bundle)
            placement = demand_in_group(placement, chosen.group, chosen.bundle)
        template = _template_of(step, resources, placement, chosen, count, retries, streaming, ahead_max)
        nested = tuple(ref.ref for ref in inside)
        spec = TaskSpec(
            task_id=task_id,
            template=template,
            owner=self.address,
            parent=frame.task_id,
            args_bytes=10,
            deps=tuple(ref.ref for ref in deps),
            nested=nested,
            **actor,
        )
        self.payloads[task_id] = Content(nested=nested, body=step.body)
        is_safe = isinstance(step, Submit) and all(ref.ref.object_id in self.cluster.safe for ref in deps)
        self.cluster.submitted(self, spec)
        self.handle(e.TaskSubmitted(spec=spec))
        if isinstance(step, MakeActor):
            frame.handles.append(PyRef(Ref(actor_handle_id(ActorID(task_id)), self.address)))
        self._hold_results(task_id, count, is_safe and not ahead_max, frame)
        if streaming is Streaming.STREAMING:
            self._consume(task_id, frame)

    def _hold_results(self, task_id: TaskID, count: int, is_safe: bool, frame: Frame) -> None:
        for index in range(count):
            object_id = return_object_id(task_id, index)
            if is_safe:
                self.cluster.safe.add(object_id)
            frame.refs.append(PyRef(Ref(object_id, self.address)))

    def _consume(self, task_id: TaskID, frame: Frame) -> None:
        handle, item = stream_handle_id(task_id), return_object_id(task_id, 1)
        frame.streams.append(Consumer(PyRef(Ref(handle, self.address)), PyRef(Ref(item, self.address))))
        if self.is_driver and self.cluster.is_ending:
            self.drop_streams(frame)

    def _timeout(self, refs: Sequence[PyRef], timeout_ns: int | None) -> int | None:
        """A task that waits for an actor without end may wait for itself: it waits for a while instead."""
        is_safe = not self.frame.is_task or all(ref.ref.object_id in self.cluster.safe for ref in refs)
        return timeout_ns if is_safe or timeout_ns is not None else 50 * MS

    def _get(self, step: Get, frame: Frame) -> Fiber:
        refs = self.choose(frame.refs, step.refs)
        if not refs:
            return
        for ref in refs:
            ref.users += 1
        wait_id = self._new_wait()
        started = e.WaitStarted(
            wait_id=wait_id,
            refs=tuple(ref.ref for ref in refs),
            num_ready=len(refs),
            fetch=True,
            read=True,
            timeout_ns=self._timeout(refs, step.timeout_ns),
            task_id=frame.task_id if frame.is_task else None,
        )
        unread: deque[ObjectID] = deque()
        try:
            ready, _ = yield from self._await_in_task(started, wait_id, frame)
            unread.extend(ready)
            while unread:
                self.read(unread.popleft(), frame)
        except Failed:
            pass
        finally:
            if self.is_alive:
                self.release_unread(unread)
                for ref in refs:
                    self.let_go(ref)

    def _wait(self, step: Wait, frame: Frame) -> Fiber:
        refs = self.choose(frame.refs, step.refs)
        if not refs:
            return
        for ref in refs:
            ref.users += 1
        wait_id = self._new_wait()
        started = e.WaitStarted(
            wait_id=wait_id,
            refs=tuple(ref.ref for ref in refs),
            num_ready=1 + (step.num - 1) % len(refs),
            fetch=step.fetch,
            timeout_ns=self._timeout(refs, step.timeout_ns),
            task_id=frame.task_id if frame.is_task else None,
        )
        try:
            yield from self._await_in_task(started, wait_id, frame)
        finally:
            for ref in refs if self.is_alive else ():
                self.let_go(ref)

    def _next(self, step: Next, frame: Frame) -> Fiber:
        """As an ObjectRefGenerator does it."""
        if not frame.streams:
            return
        consumer = frame.streams[step.stream % len(frame.streams)]
        item = consumer.item
        if item is None:
            return
        consumer.handle.users += 1
        item.users += 1
        wait_id = self._new_wait()
        started = e.WaitStarted(
            wait_id=wait_id,
            refs=(item.ref,),
            num_ready=1,
            fetch=False,
            timeout_ns=self._timeout([item], step.timeout_ns),
            task_id=frame.task_id if frame.is_task else None,
        )
        try:
            ready, _ = yield from self._await_in_task(started, wait_id, frame)
            if ready and consumer.item is item:  # else it was dropped, or another fiber has taken it
                self._take_item(consumer, item, frame)
        finally:
            for ref in (consumer.handle, item) if self.is_alive else ():
                self.let_go(ref)

    def _take_item(self, consumer: Consumer, item: PyRef, frame: Frame) -> None:
        object_id = item.ref.object_id
        task_id, index = task_of(object_id), return_index(object_id)
        if self.machine.tasks.streams.has_ended_before(task_id, index):
            consumer.item = None
            self.let_go(item)
            return
        self.handle(e.ItemTaken(task_id=task_id))
        taken = self.cluster.items_taken.setdefault(task_id, [])
        assert index == len(taken) + 1, f"item {index} of {short(task_id)} was taken after {taken}"
        taken.append(index)
        consumer.item = PyRef(Ref(return_object_id(task_id, index + 1), self.address))
        frame.refs.append(item)

    def _await_in_task(self, started: e.WaitStarted, wait_id: WaitID, frame: Frame) -> Fiber:
        """A wait that ends early when the task is cancelled."""
        if frame.is_task and frame.task_id == self.frame.task_id:
            self.task_waits = wait_id
        result = yield self._await(started, wait_id)
        return result

    def _write(
        self,
        object_id: ObjectID,
        size: int,
        content: Content,
        owner: Address,
        remakeable: bool,
        is_argument: bool = False,
    ) -> Fiber:
        wait_id = self._new_wait()
        wanted = e.SpaceWanted(
            wait_id=wait_id,
            object_id=object_id,
            size_bytes=size,
            owner=owner,
            remakeable=remakeable,
            is_argument=is_argument,
        )
        ready, error = yield self._await(wanted, wait_id)
        if error is not None:
            self.cluster.note_error(error)
            raise Failed
        place = self.machine.rooms.place_of(object_id)
        if ready and place is not None:
            self.cluster.nodes[self.node].write_at(place, object_id, content)
        elif ready:
            self.store[object_id] = content

    def _content(self, chosen: Sequence[int], frame: Frame) -> tuple[Content, list[PyRef]]:
        """A value with references in it, which stay alive while it is pickled and handed over."""
        refs = self.choose(frame.refs + frame.handles, chosen)
        for ref in refs:
            ref.users += 1
        return Content(nested=tuple(ref.ref for ref in refs)), refs

    @staticmethod
    def choose(among: Sequence[PyRef], chosen: Sequence[int]) -> list[PyRef]:
        """The references that a step's integers mean: each object once."""
        found: dict[ObjectID, PyRef] = {}
        for index in chosen if among else ():
            ref = among[index % len(among)]
            found.setdefault(ref.ref.object_id, ref)
        return list(found.values())


def _template_of(
    step: Submit | MakeActor | Call,
    resources: Resources,
    placement: Resources,
    strategy: Strategy,
    num_returns: int,
    retries: int,
    streaming: Streaming,
    ahead_max: int,
) -> FunctionTemplate:
    return FunctionTemplate(
        function_id=FunctionID(b"function"),
        name=type(step).__name__,
        resources=resources,
        placement=placement,
        num_returns=num_returns,
        max_retries=retries,
        retry_exceptions=isinstance(step, Submit) and step.retry_exceptions,
        strategy=strategy,
        max_calls=step.max_calls if isinstance(step, Submit) else 0,
        runtime_env=step.runtime_env if isinstance(step, Submit) else "",
        streaming=streaming,
        items_ahead_max=ahead_max if streaming is Streaming.STREAMING else 0,
    )
