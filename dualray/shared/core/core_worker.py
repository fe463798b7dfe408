"""The core worker: what turns a user's verbs into events, and the owner machine's commands into values.

A driver and every worker have one, in both modes. It knows no process, socket, clock or thread: a `Host` stands for
them, one class in each mode. It decides nothing: it pickles and unpickles, keeps payloads (bytes named by id), calls
user functions, and hands everything else to the machine and back.

Locking. `Host.lock` makes one event and its commands one step. User code, pickling and waiting happen outside it.
Finalizers of references and views may run anywhere, at any time: they only append to a queue, which the next step of
this process takes in first.
"""

from __future__ import annotations

import itertools
import json
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, TypeVar

from dualray import exceptions
from dualray.exceptions import DualrayError, GetTimeoutError, SerializationError
from dualray.shared.core.arguments import NO_ARGUMENTS, pack_arguments, pack_plain
from dualray.shared.core.execution import Execution, ExecutionContext
from dualray.shared.core.explain_pending import why_late
from dualray.shared.core.failures import as_exception, failure_in_words
from dualray.shared.core.host import Host, Signal
from dualray.shared.core.layout import Serialized, deserialize, deserialize_all
from dualray.shared.core.serialization import serialize
from dualray.shared.core.task_runner import Export, TaskRunner
from dualray.shared.handles import ProcessKey, Reference
from dualray.shared.machines.owner.owner import Owner
from dualray.shared.machines.owner.plain_worker import PlainWorker
from dualray.shared.machines.owner.tasks import TASK_TABLE
from dualray.shared.model.commands import (
    ArmTimer,
    CancelTimer,
    Command,
    CompleteWait,
    CopyPayload,
    DropPayload,
    DropPayloads,
    ForgetTasks,
    InterruptTask,
    NoteRetry,
    RunTask,
    RunTasks,
    Send,
    TellFailure,
    TellWait,
    WriteRecord,
    WriteRecords,
)
from dualray.shared.model.config import Config
from dualray.shared.model.errors import ErrorInfo
from dualray.shared.model.events import (
    ActorKillAsked,
    ActorNameAsked,
    ActorNameReported,
    CancelAsked,
    ClusterChanged,
    ClusterStateAsked,
    Event,
    ItemTaken,
    Outcome,
    PlacementGroupAsked,
    PlacementGroupRemovalAsked,
    PromiseKept,
    PutAbandoned,
    RefsAdded,
    RefsDropped,
    Result,
    RowsAsked,
    SpaceWanted,
    TaskPushed,
    TaskRan,
    TasksPushed,
    TasksRan,
    TaskSubmitted,
    ValuePromised,
    ValuePut,
    ViewReleased,
    WaitAbandoned,
    WaitStarted,
)
from dualray.shared.model.ids import (
    HEAD,
    ActorID,
    Address,
    ChildIds,
    FunctionID,
    NodeID,
    ObjectID,
    PlacementGroupID,
    TaskID,
    WaitID,
    actor_handle_id,
    child_task_id,
    function_id,
    job_of,
    own_namespace,
    put_object_id,
    return_index,
    return_object_id,
    short,
    stream_handle_id,
    task_of,
)
from dualray.shared.model.resources import NOTHING, Resources
from dualray.shared.model.specs import (
    DEFAULT_STRATEGY,
    ActorSpec,
    FunctionTemplate,
    GroupStrategy,
    LabelTerm,
    LeaseShape,
    NamedActor,
    NodeInfo,
    NodeState,
    PlacementGroupSpec,
    Ref,
    Streaming,
    TaskSpec,
    new_ref,
    new_spec,
)
from dualray.shared.model.states import ValueState
from dualray.shared.proof.trace import TraceKind

T = TypeVar("T")

_EMBEDDED_BYTES_MAX = 1024
"""Of a value that travels in the payload of a call instead of beside it: each call that waits holds a copy."""

_WaitEvent: TypeAlias = WaitStarted | SpaceWanted | ClusterStateAsked | RowsAsked | PlacementGroupAsked | ActorNameAsked


@dataclass(slots=True)
class _Wait:
    signal: Signal
    is_read: bool = False
    """Whether what is ready is pinned until it has been read."""
    ready: tuple[ObjectID, ...] = ()
    error: ErrorInfo | None = None
    is_done: bool = False


class CoreWorker:
    """See the module."""

    holder: Any = None
    """What references of this process name as their holder; it is closed with the core."""
    _performers: dict[type[Any], Callable[[Any], object]] | None = None
    """How the less frequent commands are carried out; made when there is one."""

    def __init__(
        self,
        *,
        address: Address,
        node: NodeID,
        config: Config,
        host: Host,
        root: TaskID,
        is_driver: bool,
        is_folded: bool = False,
    ) -> None:
        self.address = address
        self.node = node
        self.config = config
        self.host = host
        self.is_traced, self.is_logged = host.is_traced, host.is_logged
        self._folded = PlainWorker(address=address, node=node, config=config) if is_folded else None
        """In place of the owner machine, until more than plain tasks is asked of it: see plain_worker.py."""
        self._owner = None if is_folded else Owner(address=address, node=node, config=config, is_driver=is_driver)
        self._execution = Execution(task_id=root, is_task=not is_driver)
        self._key: ProcessKey | None = None
        self.has_notes = False
        """Whether a subclass notes what events go through `_handle`."""
        self._children: ChildIds | None = None
        """What the task that submitted last derives the ids of its tasks with."""
        self._contexts: ExecutionContext | None = None
        """Of an actor of which several methods may run at a time."""
        self.runtime_env = ""
        """What tasks that are submitted here run with, as text, unless they say: in a worker, what it runs with."""
        self.payloads: dict[bytes, bytes] = {}
        self.is_closed = False
        self._has_ended = False
        self.end_reason = "the runtime was shut down"
        self._waits: dict[WaitID, _Wait] = {}
        self._wait_counter = itertools.count()
        self._exported: dict[FunctionID, None] = {}
        self._runner = TaskRunner(self)
        self._feasible: dict[FunctionTemplate, None] | None = None
        self._feasible_in: tuple[NodeInfo, ...] = ()
        self._feasible_last: FunctionTemplate | None = None
        self._dropped: list[ObjectID] = []
        self._released: list[ObjectID] = []
        self._to_run: list[RunTask | TaskPushed] = []
        """Mostly one, and never many: a list takes a tenth of the room of a deque, and workers may be many."""
        self._is_woken = False
        """Whether the host was asked for a step since finalizers were last taken in."""
        self._ran: list[Outcome] = []
        """What tasks have returned that were handed over with others, until it is taken in."""
        self.in_hand: RunTask | TaskPushed | None = None
        """The task that was taken to run, until its user code has ended."""
        self.is_in_user_code = False
        self.interrupted: tuple[TaskID, int] | None = None
        """The task and attempt that was last to be interrupted."""
        self.is_interrupt_due = False
        """Whether it has still to hear of it."""
        self._may_block_a_loop = False
        """Whether this is an actor whose methods are coroutines."""
        self._has_warned = False
        """Whether a coroutine was told that it blocks its loop."""
        self._cancelled_calls: dict[TaskID, int] | None = None
        """Methods that run as coroutines and were cancelled, with their attempt."""

    @property
    def key(self) -> ProcessKey:
        """What stands for this process where something is kept for each, weakly."""
        if self._key is None:
            self._key = ProcessKey()
        return self._key

    @property
    def machine(self) -> Owner:
        """The owner machine, unfolded if it was not."""
        owner = self._owner
        if owner is None:
            assert self._folded is not None
            owner = self._owner = self._folded.unfold()
            self._folded = None
        return owner

    @property
    def is_folded(self) -> bool:
        """Whether nothing but plain tasks has come so far: there are no values, waits, tasks of its own, or leases."""
        return self._folded is not None

    def hear_of_cluster(self, news: ClusterChanged) -> None:
        """What it would have been told before anything else happened to it."""
        if self._folded is not None:
            self._folded.handle(news, 0)
        else:
            self.machine.cluster = news.nodes

    def take_over(self, plain: PlainWorker, to_run: TaskPushed | None, in_hand: RunTask | TaskPushed | None) -> None:
        """Go on with the machine of a process that had no core: with a task that is to run, or one in hand."""
        self._folded = plain
        if to_run is not None:
            self._to_run.append(to_run)
        self.in_hand = in_hand

    def remember(self, payload: tuple[bytes, bytes] | None, function: FunctionID | None, export: Export | None) -> None:
        """It keeps what that process did: one payload, and the one function that it has loaded."""
        if payload is not None:
            self.payloads[payload[0]] = payload[1]
        loaded = self._runner.loaded
        if function is None or export is None:
            loaded.clear()
        elif loaded.get(function) is not export:
            loaded.clear()
            loaded[function] = export

    def export_of(self, function: FunctionID) -> Export | None:
        """What it has loaded."""
        return self._runner.loaded.get(function)

    def forget_functions(self) -> None:
        """Have what was loaded loaded again."""
        self._runner.loaded.clear()

    def check_invariants(self) -> None:
        """A full sweep over the machine."""
        if self._folded is not None:
            self._folded.check_invariants()
        else:
            self.machine.check_invariants()

    # ---- What every call asks of the host -------------------------------------------------------------------- A mode
    # whose host is compiled may answer these itself, without a call through Python for each:
    # sim/processes/core_worker.py.

    def now_ns(self) -> int:
        """The host's."""
        return self.host.now_ns()

    def begin_step(self) -> None:
        """Take the host's lock."""
        self.host.lock.__enter__()

    def leave_step(self) -> None:
        """Give it back."""
        self.host.lock.__exit__(None, None, None)

    def end_step(self) -> None:
        """What was sent may go out."""
        self.host.end_step()

    def send_out(
        self, to: Address, message: Event, payloads: Sequence[tuple[bytes, bytes]], urgent: bool = True
    ) -> None:
        """The host's `send`."""
        self.host.send(to, message, payloads, urgent=urgent)

    def breathe(self) -> None:
        """The host's."""
        self.host.breathe()

    def trace(
        self, kind: TraceKind, about: str | bytes, other: str, name: str, amount: int, deps: tuple[str, ...] = ()
    ) -> None:
        """The host's."""
        self.host.trace(kind, about, other=other, name=name, amount=amount, deps=deps)

    def write_record(self, record: WriteRecord) -> None:
        """The host's."""
        self.host.write_record(record)

    def call(
        self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], task: Execution
    ) -> Any:
        """The host's."""
        return self.host.call(function, args, kwargs, task)

    def ends_later(self, task: RunTask | TaskPushed, size_bytes: int, start_ns: int) -> bool:
        """Whether the time of the task in hand, whose code has returned, is not over; `end_small` is called then."""
        if not self.host.is_ahead:
            return False
        self.host.end_later(task, size_bytes, start_ns)
        return True

    # ---- One step --------------------------------------------------------------------------------------------

    def dispatch(self, event: Event) -> None:
        """Hand an event to the machine and carry out its commands."""
        with self.host.lock:
            if self._ran:
                self._take_in_ran()
            if self._dropped:
                self._take_in_dropped()
            self._handle(event)
            if self._released:
                self._take_in_released()
            self.host.end_step()

    def on_messages(self, messages: Iterable[tuple[Event, Sequence[tuple[bytes, bytes]]]]) -> None:
        """Messages have arrived, each with the bytes that travel beside it."""
        self.begin_step()
        try:
            if self._ran:
                self._take_in_ran()
            if self._dropped or self._is_woken:
                self._take_in_dropped()
            for message, payloads in messages:
                for key, data in payloads:
                    self.payloads[key] = data
                self._handle(message)
            if self._released:
                self._take_in_released()
            self.end_step()
        finally:
            self.leave_step()

    def begins(self, pushed: TaskPushed, payloads: Sequence[tuple[bytes, bytes]]) -> bool:
        """A call was pushed: whether it is the next to run, and nothing else follows from that; then that has happened.
        As `on_messages`, in fewer steps: most workers get nothing but such calls. Only where nobody else could take a
        step meanwhile."""
        folded = self._folded
        if folded is None or self._to_run or not self._has_nothing_queued():
            return False
        if not folded.starts(pushed, self.now_ns()):
            return False
        for key, data in payloads:
            self.payloads[key] = data
        self._to_run.append(pushed)
        return True

    def _has_nothing_queued(self) -> bool:
        """Whether an event could be handled now without anything before it, and nobody notes events."""
        return not (self._ran or self._dropped or self._released or self._is_woken or self.has_notes or self.is_logged)

    def take_in_finalizers(self) -> None:
        """References and views that Python has dropped, and results of tasks, are reported to the machine."""
        if self._dropped or self._released or self._ran:
            with self.host.lock:
                self._take_in_finalizers()
                self.host.end_step()

    def _take_in_finalizers(self) -> None:
        if self._ran:
            self._take_in_ran()
        if self._dropped or self._is_woken:
            self._take_in_dropped()
        if self._released:
            self._take_in_released()

    def _take_in_ran(self) -> None:
        if self._ran:
            self._handle(TasksRan(outcomes=_take_all(self._ran)))

    def _take_in_dropped(self) -> None:
        self._is_woken = False  # before the queue is looked at: what comes later wakes again
        while self._dropped:
            self._handle(RefsDropped(object_ids=_take_all(self._dropped)))

    def _take_in_released(self) -> None:
        """After an event, and not before: an object that is read over and over again stays pinned meanwhile."""
        self._is_woken = False
        while self._released:
            for object_id in _take_all(self._released):
                self._handle(ViewReleased(object_id=object_id))

    def _handle(self, event: Event) -> None:
        now_ns = self.now_ns()
        folded = self._folded
        if folded is None:
            commands = self.machine.handle(event, now_ns)
        else:
            commands = folded.handle(event, now_ns)
            if folded.owner is not None:
                self._owner, self._folded = folded.owner, None
        if self.is_logged:
            self.host.log(event, now_ns, commands)
        self._perform(commands)

    def _perform(self, commands: Sequence[Command]) -> None:
        """Carry out what the machine has ordered."""
        for command in commands:
            if isinstance(command, Send):  # these five are most, and all that most workers get
                self._send(command)
            elif isinstance(command, WriteRecords):
                self.host.write_records(command)
            elif isinstance(command, DropPayloads):
                self._drop_payloads(command)
            elif (performers := self._performers) is None and isinstance(command, RunTask):
                self._run_task(command)
            elif performers is None and isinstance(command, RunTasks):
                self._run_tasks(command)
            else:
                if performers is None:
                    performers = self._performers = self._make_performers()
                performers[type(command)](command)

    def _make_performers(self) -> dict[type[Any], Callable[[Any], object]]:
        host = self.host
        return {
            CompleteWait: self._complete_wait,
            DropPayload: self._drop_payload,
            CopyPayload: self._copy_payload,
            ArmTimer: lambda command: host.arm_timer(command.timer, command.delay_ns),
            CancelTimer: lambda command: host.cancel_timer(command.timer),
            RunTask: self._run_task,
            RunTasks: self._run_tasks,
            ForgetTasks: self._forget_tasks,
            InterruptTask: self._interrupt_task,
            WriteRecord: host.write_record,
            NoteRetry: self._note_retry,
            TellFailure: self._tell_failure,
            TellWait: self._tell_wait,
        }

    def _complete_wait(self, command: CompleteWait) -> None:
        wait = self._waits.pop(command.wait_id, None)
        if wait is not None:
            wait.ready, wait.error, wait.is_done = command.ready, command.error, True
            wait.signal.set()

    def _drop_payload(self, command: DropPayload) -> None:
        self.payloads.pop(command.key, None)

    def _drop_payloads(self, command: DropPayloads) -> None:
        for key in command.keys:
            self.payloads.pop(key, None)

    def _copy_payload(self, command: CopyPayload) -> None:
        if command.source in self.payloads:
            self.payloads[command.target] = self.payloads[command.source]

    def _note_retry(self, command: NoteRetry) -> None:
        self.trace(TraceKind.TASK_RETRIED, command.task_id, command.reason, "", command.attempt)

    def _tell_failure(self, command: TellFailure) -> None:
        self.host.tell(failure_in_words(command.task_id, command.name, command.error))

    def _tell_wait(self, command: TellWait) -> None:
        self.host.tell(f"dualray: {command.words}.\n")

    def tell_unread_failures(self) -> None:
        """The program ends: errors that it holds references to, and has never read, are told now."""
        with self.host.lock:
            for failure in self.machine.values.unread_failures():
                failure.is_read = True
                self._tell_failure(failure.told())

    def _send(self, command: Send) -> None:
        message = command.message
        if self.is_traced and isinstance(message, (TaskPushed, TasksPushed)):
            for push in (message,) if isinstance(message, TaskPushed) else message.each():
                self.trace(
                    TraceKind.TASK_PUSHED,
                    push.spec.task_id,
                    other=command.to,
                    name=push.spec.template.name,
                    amount=push.attempt,
                )
        payloads: Sequence[tuple[bytes, bytes]] = ()
        if command.payloads:
            keys, kept = command.payloads, self.payloads
            if len(keys) == 1:  # the way of most calls
                [key] = keys
                only = kept.get(key)
                payloads = () if only is None else ((key, only),)
            else:
                payloads = [(key, kept[key]) for key in keys if key in kept]
        self.send_out(command.to, message, payloads, command.urgent)

    # ---- Waiting ---------------------------------------------------------------------------------------------

    def _next_wait(self) -> WaitID:
        return WaitID(next(self._wait_counter))

    def _wait_for(self, event: _WaitEvent, *, is_read: bool = False) -> _Wait:
        """Begin a wait, and return when it is over.

        Raises:
            DualrayError: the runtime has ended, or ends meanwhile.
        """
        if self._may_block_a_loop:
            self._warn_of_blocked_loop(event)
        wait = _Wait(self.host.new_signal(), is_read)
        try:
            self._begin_wait(event, wait)
            self._end_wait(wait)
        except (Exception, KeyboardInterrupt):
            self.abandon(event.wait_id, wait)
            raise
        return wait

    def _begin_wait(self, event: _WaitEvent, wait: _Wait) -> None:
        with self.host.lock:
            self._check_it_goes_on()
            self._waits[event.wait_id] = wait
            self.dispatch(event)

    def _end_wait(self, wait: _Wait) -> None:
        if not wait.is_done:
            wait.signal.wait()
        if not wait.is_done:
            raise DualrayError(self.end_reason)

    def abandon(self, wait_id: WaitID, wait: _Wait) -> None:
        """The thread that waits was interrupted, by Ctrl-C or by an error of its own."""
        with self.host.lock:
            if self._waits.pop(wait_id, None) is not None:
                self.dispatch(WaitAbandoned(wait_id=wait_id))
            elif wait.is_done and wait.is_read:
                self._release_unread(wait.ready)

    def fail(self, reason: str) -> None:
        """Nothing will come any more: whoever waits, or will wait, raises."""
        self.end_reason = reason
        self.abandon_waits()

    def abandon_waits(self) -> None:
        """The runtime ends: whoever still waits is woken, and raises."""
        with self.host.lock:
            self._has_ended = True
            waits, self._waits = list(self._waits.values()), {}
        for wait in waits:
            wait.signal.set()

    def waiting(self) -> list[str]:
        """In words, what this process waits for."""
        return [reason for _, reason in self.waiters()]

    def waiters(self) -> list[tuple[str, str]]:
        """Who waits in this process, and in words for what."""
        found = []
        for wait_id in self._waits:
            wait = self.machine.values.waits.get(wait_id)
            name = self.machine.call_name(wait.task_id) if wait is not None else None
            found += [(name or self.execution.name, reason) for reason in self.machine.explain_wait(wait_id)]
        return found

    def close(self) -> None:
        """The cluster is gone: references of this process mean nothing any more."""
        self.is_closed = True
        if self.holder is not None:
            self.holder.is_closed = True

    # ---- Functions and tasks ---------------------------------------------------------------------------------

    def captures_children(self) -> bool:
        """Whether what is submitted now goes to the caller's placement group when it does not say where."""
        running = self._execution.resources if self._contexts is None else self._contexts.here.resources
        return running is not None and running.strategy.captures

    def export(
        self,
        target: Any,
        *,
        duration: Any,
        what: str,
        collect: Callable[[Sequence[Ref]], Any] | None = None,
        retried: tuple[type[BaseException], ...] | None = None,
        sim_unsafe: str | None = None,
    ) -> FunctionID:
        """Put a function or class into the function table, once. `collect` makes the result of a dynamic generator out
        of its items; `retried` are the exceptions for which a call is tried again, if not all are; `sim_unsafe` is what
        becomes of calls that lead out of a simulation."""
        try:
            pickled = serialize(Export(target, duration, collect, retried, sim_unsafe), what).to_bytes()
        except SerializationError:
            serialize(target, what)  # raises, and names the part of the function or class
            raise
        identity = function_id(pickled)
        if identity not in self._exported:
            self._check_it_goes_on()
            try:
                self.host.put_function(identity, pickled)
            except DualrayError:
                self._check_it_goes_on()  # the end that we have heard of meanwhile says more
                raise
            self._exported[identity] = None  # not earlier: another thread would not wait until it is there
        return identity

    def _check_it_goes_on(self) -> None:
        if self._has_ended:
            raise DualrayError(self.end_reason)

    def submit_task(self, template: FunctionTemplate, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Ref]:
        """Submit a call of a remote function; its results, as references of this process."""
        self._check_feasible(template, exceptions.TaskUnschedulableError)
        task_id = self._submit(template, args, kwargs)
        return self._returns(task_id, template)

    def submit_call(self, template: FunctionTemplate, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Ref:
        """`submit_task` of a function that has one result: that."""
        if template is not self._feasible_last or self._feasible_in is not self.machine.cluster:
            self._check_feasible(template, exceptions.TaskUnschedulableError)
            self._feasible_last = template
        return new_ref((return_object_id(self._submit(template, args, kwargs), 0), self.address))

    def submit_actor_call(
        self, handle: Ref, template: FunctionTemplate, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Ref:
        """`submit_actor_task` of a method that has one result: that."""
        return new_ref((return_object_id(self._submit(template, args, kwargs, handle=handle), 0), self.address))

    def _returns(self, task_id: TaskID, template: FunctionTemplate) -> list[Ref]:
        """The references that a call returns: of a generator, to its end, its first item, and its consumer."""
        count = template.num_returns
        if template.streaming is Streaming.STREAMING:
            ids = (return_object_id(task_id, 0), return_object_id(task_id, 1), stream_handle_id(task_id))
            return [Ref(object_id, self.address) for object_id in ids]
        if count == 1:
            return [Ref(return_object_id(task_id, 0), self.address)]
        return [Ref(return_object_id(task_id, index), self.address) for index in range(count)]

    def create_actor(
        self,
        template: FunctionTemplate,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        *,
        promises: ActorSpec,
        get_if_exists: bool = False,
    ) -> tuple[Ref, NamedActor | None]:
        """Submit the construction of an actor; the reference that its handle holds, counted already. With
        `get_if_exists`, and an actor of the name that `promises` has: that actor, of which no reference is counted.

        Raises:
            ActorAlreadyExistsError: the name is taken.
        """
        self._check_feasible(template, exceptions.ActorUnschedulableError)
        owner = HEAD if promises.is_detached else self.address
        task_id: TaskID | None = None
        if promises.name:
            task_id = self._next_task_id()
            claim = NamedActor(
                spec=replace(promises, actor_id=ActorID(task_id)), template=_without_place(template), owner=owner
            )
            answer = self._ask_for_name(promises.name, promises.namespace, claim, get_if_exists=get_if_exists)
            assert answer.actor is not None
            if not answer.is_new:
                return Ref(actor_handle_id(answer.actor.spec.actor_id), answer.actor.owner), answer.actor
            promises = answer.actor.spec
        task_id = self._submit(template, args, kwargs, creates=promises, task_id=task_id)
        return Ref(actor_handle_id(ActorID(task_id)), owner), None

    def find_actor(self, name: str, namespace: str) -> NamedActor:
        """The actor of a name; `namespace` "" is the one that this code runs in.

        Raises:
            ActorHandleNotFoundError: there is none.
        """
        actor = self._ask_for_name(name, namespace).actor
        assert actor is not None
        return actor

    def _ask_for_name(
        self, name: str, namespace: str, claim: NamedActor | None = None, *, get_if_exists: bool = False
    ) -> ActorNameReported:
        wait_id = self._next_wait()
        wait = self._wait_for(
            ActorNameAsked(
                wait_id=wait_id,
                name=name,
                namespace=namespace,
                job=self._job(),
                claim=claim,
                get_if_exists=get_if_exists,
            )
        )
        if wait.error is not None:
            raise as_exception(wait.error, None)
        return self.machine.named_actors.pop(wait_id)

    def _job(self) -> int:
        """The job whose namespace this code runs in: inside an actor, that of its maker."""
        constructor = self.execution.constructor
        return job_of(constructor.task_id if constructor is not None else self.execution.task_id)

    @property
    def namespace(self) -> str:
        """The namespace in which this code names actors."""
        job = self._job()
        chosen = {row["job"]: row["namespace"] for row in self.head_rows("namespaces")}
        return str(chosen.get(job) or own_namespace(job))

    def load_class(self, function: FunctionID) -> Any:
        """A function or class of the function table."""
        return self._runner.load(function).target

    def submit_actor_task(
        self, handle: Ref, template: FunctionTemplate, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> list[Ref]:
        """Submit a call of an actor's method."""
        task_id = self._submit(template, args, kwargs, handle=handle)
        return self._returns(task_id, template)

    def check_pending_calls(self, handle: Ref, template: FunctionTemplate, limit: int) -> None:
        """Refuse a call of an actor of which this process has too many without an answer.

        Raises:
            PendingCallsLimitExceeded: it has `limit` of them.
        """
        with self.host.lock:
            is_full = self.machine.actor_calls.has_pending(ActorID(handle.object_id[:16]), limit)
        if is_full:
            raise exceptions.PendingCallsLimitExceeded(
                f"{template.name}: this process has {limit} calls of actor {short(handle.object_id[:16])} without an "
                f"answer, and max_pending_calls={limit}. Wait for some of them, or give the actor a higher limit."
            )

    def _check_feasible(self, template: FunctionTemplate, error: type[DualrayError]) -> None:
        feasible = self._feasible
        if feasible is None or self._feasible_in is not self.machine.cluster:
            self._feasible_in = self.machine.cluster
            feasible = self._feasible = {}
        if template in feasible:
            return
        shape = LeaseShape(
            resources=template.resources, placement=template.placement, strategy=template.strategy, name=template.name
        )
        why = self.machine.why_infeasible(shape)
        if why is not None:
            raise error(f"{template.name} can never run in this cluster: {why}.")
        if (why := self.machine.why_waiting(shape)) is not None:
            self.host.tell(f"dualray: {template.name} waits for a node that can take it, for {why}.\n")
        feasible[template] = None

    def _submit(
        self,
        template: FunctionTemplate,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        *,
        handle: Ref | None = None,
        creates: ActorSpec | None = None,
        task_id: TaskID | None = None,
    ) -> TaskID:
        """Submit a call: of a function, of the method of an actor that `handle` names, or of the constructor of one
        that promises `creates`; `task_id` is its id, if it has one already."""
        arguments = NO_ARGUMENTS
        payload = b""
        if args or kwargs:
            payload = pack_plain(args, kwargs, self.config.inline_bytes_max)
        if not payload and (args or kwargs):
            arguments = pack_arguments(
                template.name,
                args,
                kwargs,
                inline_bytes_max=self.config.inline_bytes_max,
                put=self._put_argument,
                drop=self.drop,
                look=self._look_at_arguments,
            )
            payload = arguments.payload
        self.begin_step()
        try:
            execution = self.execution
            if task_id is None:
                execution.submitted += 1
                children = self._children
                if (
                    children is None
                    or children.parent is not execution.task_id
                    or children.attempt != execution.attempt
                ):
                    children = self._children = ChildIds(execution.task_id, execution.attempt)
                task_id = children.of(execution.submitted)
            spec = new_spec(
                task_id,
                template,
                self.address,
                execution.task_id,
                len(payload),
                tuple(arguments.deps) if arguments.deps else (),
                arguments.nested,
                ActorID(handle.object_id[:16]) if handle is not None else None,
                handle,
            )
            if creates is not None:
                spec.creates = replace(creates, actor_id=ActorID(task_id))
            if payload:
                self.payloads[task_id] = payload
            if self.has_notes or self.is_logged:
                self._submit_observed(spec, tuple(arguments.embedded))
                self.end_step()
            else:
                if self.is_traced:
                    self._trace_submitted(spec, arguments.embedded)
                commands = self.machine.submit(spec, self.now_ns())
                if commands:
                    self._perform(commands)
                    self.end_step()  # before the rest: the worker may begin
            if arguments.put:
                # From now on the task holds what packing has put; not earlier: another thread may take in finalizers.
                self._dropped.extend(ref.object_id for ref in arguments.put)
            if self._dropped or self._released:
                self._take_in_finalizers()
                self.end_step()
        finally:
            self.leave_step()
        try:
            self.breathe()
        except BaseException:  # a task that is cancelled: it will never have the references
            for ref in self._returns(task_id, template) if creates is None else ():
                self.drop(ref.object_id)
            raise
        return task_id

    def _look_at_arguments(self, references: Sequence[Reference]) -> Sequence[bytes | None]:
        """The pickled values of those arguments that may travel in the call's payload: of this process, here and very
        small, and referring to nothing. What is noted of a program keeps all of its references.

        Raises:
            DualrayError: one of them belongs to a cluster that is gone.
        """
        is_closed, has_notes, address, holder = self.is_closed, self.has_notes, self.address, self.holder
        get, payload_of, inline = self.machine.values.table.get, self.payloads.get, ValueState.INLINE
        found: list[bytes | None] = []
        for reference in references:
            if reference.holder is not holder or is_closed:
                reference.check()
            ref = reference.ref
            value = get(ref.object_id)
            found.append(
                payload_of(ref.object_id)
                if value is not None
                and value.state is inline
                and value.size_bytes <= _EMBEDDED_BYTES_MAX
                and (value.is_bare or (ref.owner == address and not value.nested))
                and not has_notes
                else None
            )
        return found

    def _submit_observed(self, spec: TaskSpec, embedded: tuple[Ref, ...]) -> None:
        """What is submitted is traced, logged or noted; `embedded` are the arguments whose values are in its
        payload."""
        if self.is_traced:
            self._trace_submitted(spec, embedded)
        self._handle(TaskSubmitted(spec=spec))

    def _trace_submitted(self, spec: TaskSpec, embedded: Sequence[Ref]) -> None:
        deps: tuple[str, ...] = ()
        if spec.deps or embedded or spec.nested:
            deps = tuple([ref.object_id.hex() for ref in (*spec.deps, *embedded, *spec.nested)])
        self.trace(TraceKind.TASK_SUBMITTED, spec.task_id, "", spec.template.name, spec.args_bytes, deps)

    def _next_task_id(self) -> TaskID:
        with self.host.lock:
            execution = self.execution
            execution.submitted += 1
            return child_task_id(execution.task_id, execution.attempt, execution.submitted)

    # ---- Values ----------------------------------------------------------------------------------------------

    def put(self, value: Any) -> Ref:
        """Store a value; the reference to it."""
        return self._put(serialize(value))

    @property
    def actor_instance(self) -> Any:
        """The instance of the actor that lives in this process; None when there is none."""
        return self._runner.instance

    def promise(self) -> Ref:
        """A reference to a value that this process will give later, with `keep_promise`."""
        object_id = self._new_put_id()
        self.dispatch(ValuePromised(object_id=object_id))
        return Ref(object_id, self.address)

    def keep_promise(self, ref: Ref, value: Any) -> None:
        """Give a promised value; whoever waits for it goes on. The caller still holds the reference."""
        serialized = serialize(value)
        inline = self._place_bytes(ref.object_id, serialized)
        self.dispatch(
            PromiseKept(
                object_id=ref.object_id, size_bytes=serialized.size_bytes, inline=inline, nested=serialized.refs
            )
        )

    def is_held_elsewhere(self, ref: Ref) -> bool:
        """Whether, as far as this process knows, others still hold or are about to get a reference to its object."""
        with self.host.lock:
            self._take_in_finalizers()
            value = self.machine.values.table.get(ref.object_id)
            held = value is not None and bool(value.borrowers or value.transit_uses or value.container_uses)
            self.host.end_step()
        return held

    def _new_put_id(self) -> ObjectID:
        with self.host.lock:
            execution = self.execution
            execution.puts += 1
            return put_object_id(execution.task_id, execution.attempt, execution.puts)

    def _place_bytes(self, object_id: ObjectID, serialized: Serialized, *, is_argument: bool = False) -> bool:
        """Keep the bytes of a value that is put: here (True) or, large ones, in the node's store."""
        inline = serialized.size_bytes <= self.config.inline_bytes_max
        if inline:
            self.payloads[object_id] = serialized.to_bytes()
        else:
            self.write_to_store(object_id, serialized, self.address, remakeable=False, is_argument=is_argument)
        return inline

    def _put_argument(self, serialized: Serialized) -> Ref:
        return self._put(serialized, is_argument=True)

    def _put(self, serialized: Serialized, *, is_argument: bool = False) -> Ref:
        if serialized.size_bytes <= self.config.inline_bytes_max:
            return self._put_small(serialized)
        object_id = self._new_put_id()
        try:
            inline = self._place_bytes(object_id, serialized, is_argument=is_argument)
            self.dispatch(
                ValuePut(object_id=object_id, size_bytes=serialized.size_bytes, inline=inline, nested=serialized.refs)
            )
        except KeyboardInterrupt:
            if serialized.size_bytes > self.config.inline_bytes_max:
                self.dispatch(PutAbandoned(object_id=object_id))
            raise
        return Ref(object_id, self.address)

    def _put_small(self, serialized: Serialized) -> Ref:
        data, host = serialized.to_bytes(), self.host
        with host.lock:
            execution = self.execution
            execution.puts += 1
            object_id = put_object_id(execution.task_id, execution.attempt, execution.puts)
            self.payloads[object_id] = data
            if self._ran or self._dropped or self._released or self.has_notes or self.is_logged or serialized.refs:
                self.dispatch(
                    ValuePut(object_id=object_id, size_bytes=serialized.size_bytes, inline=True, nested=serialized.refs)
                )
            else:
                self.machine.put_small(object_id, serialized.size_bytes)
        return new_ref((object_id, self.address))

    def write_to_store(
        self,
        object_id: ObjectID,
        serialized: Serialized,
        owner: Address,
        *,
        remakeable: bool,
        is_argument: bool = False,
    ) -> None:
        """Reserve room in this node's store, waiting for it if need be, and write the bytes; sealing is the caller's.

        Raises:
            ObjectStoreFullError: no room; the message names the largest holders.
        """
        if is_argument and self._take_kept_room(object_id, serialized):
            return
        wait = self._wait_for(
            SpaceWanted(
                wait_id=self._next_wait(),
                object_id=object_id,
                size_bytes=serialized.size_bytes,
                owner=owner,
                remakeable=remakeable,
                is_argument=is_argument,
            )
        )
        if wait.error is not None:
            raise as_exception(wait.error, None)
        if wait.ready:  # otherwise an earlier attempt has left the same object here
            store = self.host.store
            place = self.machine.rooms.place_of(object_id) if is_argument else None
            if place is not None:  # it is no object of the store's yet
                serialized.write_into(store.create_at(place, serialized.size_bytes), store.copy)
                return
            serialized.write_into(store.create(object_id, serialized.size_bytes), store.copy)
            store.seal(object_id)
            self.host.trace(TraceKind.OBJECT_STORED, object_id, amount=serialized.size_bytes)

    def _take_kept_room(self, object_id: ObjectID, serialized: Serialized) -> bool:
        """Write an argument where this process keeps room, if it does: as a SpaceWanted that leads to no message, where
        nobody logs events."""
        host = self.host
        with host.lock:
            if self._dropped or self._ran or self._released or self._has_ended or self.has_notes or self.is_logged:
                return False  # what is taken in first may decide, or hear of it
            rooms = self.machine.rooms
            place = rooms.place_of(object_id) if rooms.take(object_id, serialized.size_bytes) else None
        if place is None:
            return False
        serialized.write_into(host.store.create_at(place, serialized.size_bytes), host.store.copy)
        return True

    def get(self, refs: Sequence[Ref], timeout_ns: int | None) -> list[Any]:
        """The values, in order.

        Raises:
            GetTimeoutError: not all were ready in time.
            DualrayError: the first one, in order, that has failed.
        """
        ready = self._get_inline(refs)
        if ready is not None:
            return ready
        distinct = tuple(dict.fromkeys(refs)) if len(refs) > 1 else (refs[0],)
        wait = self._wait_for(
            WaitStarted(
                wait_id=self._next_wait(),
                refs=distinct,
                num_ready=len(distinct),
                fetch=True,
                read=True,
                timeout_ns=timeout_ns,
                task_id=self._waiting_task(),
            ),
            is_read=True,
        )
        ready = self._get_inline(refs)
        if ready is not None:
            return ready
        values = dict(zip(wait.ready, self.read_all(wait.ready), strict=True))
        if len(values) < len(distinct):
            if timeout_ns == 0:
                self.host.has_looked()
            raise self._timed_out(distinct, values, timeout_ns)
        return [values[ref.object_id] for ref in refs]

    def wait_async(self, ref: Ref, ready: Callable[[], None]) -> Awaited:
        """As `get_async`, until it is known how an object has ended: it is not read, and need not be here."""
        event = WaitStarted(
            wait_id=self._next_wait(), refs=(ref,), num_ready=1, fetch=False, task_id=self._waiting_task()
        )
        wait = _Wait(_Callback(ready))
        self._begin_wait(event, wait)
        return Awaited(self, event.wait_id, wait)

    def get_async(self, ref: Ref, ready: Callable[[], None]) -> Awaited:
        """Begin to wait for a value. `ready` is called once, from any thread and in the middle of a step: it must not
        wait, and do no more than have `Awaited.result` called, where user code runs."""
        event = WaitStarted(
            wait_id=self._next_wait(), refs=(ref,), num_ready=1, fetch=True, read=True, task_id=self._waiting_task()
        )
        wait = _Wait(_Callback(ready), is_read=True)
        self._begin_wait(event, wait)
        return Awaited(self, event.wait_id, wait)

    def _get_inline(self, refs: Sequence[Ref]) -> list[Any] | None:
        """The values, when all are small and here: then there is nothing to decide, and nothing changes by reading."""
        table, payloads = self.machine.values.table, self.payloads
        for object_id, _ in refs:
            value = table.get(object_id)
            if value is None or value.state is not ValueState.INLINE:
                return None
        if len(refs) == 1:
            return [deserialize(payloads[refs[0].object_id])]
        ids = [object_id for object_id, _ in refs]
        if len(set(ids)) == len(ids):
            return deserialize_all([payloads[object_id] for object_id in ids])
        read = {object_id: deserialize(payloads[object_id]) for object_id in dict.fromkeys(ids)}
        return [read[object_id] for object_id in ids]

    def _waiting_task(self) -> TaskID | None:
        return self.execution.task_id if self.execution.is_task else None

    def read_all(self, object_ids: Sequence[ObjectID]) -> list[Any]:
        """The values of objects that are in reach, pinned for one read each.

        Raises:
            DualrayError: the first one, in order, that has failed.
        """
        if not object_ids:
            return []
        unread = deque(object_ids)
        values = []
        try:
            while unread:
                values.append(self._read(unread.popleft()))
        finally:
            self._release_unread(unread)
        return values

    def _read(self, object_id: ObjectID) -> Any:
        value = self.machine.values.table[object_id]
        if value.state is ValueState.INLINE:
            return deserialize(self.payloads[object_id])
        if value.failure is not None:
            raise as_exception(value.failure, self.payloads.get(object_id))
        return deserialize(self._open(object_id))

    def _open(self, object_id: ObjectID) -> memoryview:
        loan = self.machine.values.loans.get(object_id)
        if loan is not None:
            return self.host.store.open_at(loan.place, loan.size_bytes, object_id, self._on_view_released)
        return self.host.store.open(object_id, self._on_view_released)

    def _release_unread(self, object_ids: Iterable[ObjectID]) -> None:
        for object_id in object_ids:
            if object_id in self.machine.values.views:
                self.dispatch(ViewReleased(object_id=object_id))

    def _timed_out(
        self, refs: Sequence[Ref], values: Mapping[ObjectID, Any], timeout_ns: int | None
    ) -> GetTimeoutError:
        missing = [ref.object_id for ref in refs if ref.object_id not in values]
        # Who asks what is there now, time and again, is not made to wait for reasons.
        reason = why_late(self, missing[0]) if timeout_ns else self.machine.explain_object(missing[0])
        seconds = (timeout_ns or 0) / 1e9
        return GetTimeoutError(
            f"{len(missing)} of {len(refs)} objects were not ready within {seconds:g} s; the first: {reason}"
        )

    def explain(self, ref: Ref) -> str:
        """In words, what a value waits for that is not there."""
        return why_late(self, ref.object_id)

    def wait(
        self, refs: Sequence[Ref], *, num_returns: int, timeout_ns: int | None, fetch_local: bool
    ) -> frozenset[ObjectID]:
        """The objects that are ready when `num_returns` of them are, or at the timeout."""
        wait = self._wait_for(
            WaitStarted(
                wait_id=self._next_wait(),
                refs=tuple(refs),
                num_ready=num_returns,
                fetch=fetch_local,
                timeout_ns=timeout_ns,
                task_id=self._waiting_task(),
            )
        )
        if timeout_ns == 0 and len(wait.ready) < num_returns:
            self.host.has_looked()
        return frozenset(wait.ready)

    def has_ended_before(self, item: Ref) -> bool:
        """Whether a generator that this process has called has ended before an item."""
        with self.host.lock:
            task_id, index = task_of(item.object_id), return_index(item.object_id)
            return self.machine.tasks.streams.has_ended_before(task_id, index)

    def take_item(self, item: Ref) -> tuple[bool, Ref | None]:
        """The next item of a generator that this process has called is ready: take it. Whether it was taken now; and a
        reference to the one behind it, or None when the items have ended before it. (Another thread may have taken it.)
        """
        with self.host.lock:
            task_id, index = task_of(item.object_id), return_index(item.object_id)
            streams = self.machine.tasks.streams
            stream = streams.consumed.get(task_id)
            if stream is None or stream.next != index:
                return False, item
            if streams.has_ended_before(task_id, index):
                return True, None
            self.dispatch(ItemTaken(task_id=task_id))
            return True, Ref(return_object_id(task_id, index + 1), self.address)

    # ---- References ------------------------------------------------------------------------------------------

    def adopt(self, ref: Ref) -> None:
        """A reference was unpickled in this process."""
        self.dispatch(RefsAdded(refs=(ref,)))

    def drop(self, object_id: ObjectID) -> None:
        """A reference's Python object is gone. Called by finalizers: it only queues."""
        if not self.is_closed:
            self._dropped.append(object_id)
            self._wake_once()

    def _on_view_released(self, object_id: bytes) -> None:
        """A view of a stored object is gone. Called by finalizers: it only queues."""
        if not self.is_closed:
            self._released.append(ObjectID(object_id))
            self._wake_once()

    def _wake_once(self) -> None:
        """Have queued finalizers taken in soon; called after one was queued, by any thread and within any other one."""
        if not self._is_woken:
            self._is_woken = True
            self.host.wake()

    def spawn(self, function: Callable[[], object]) -> None:
        """Run `function` beside the caller, in this process: on a thread, or in a fiber."""
        self.host.spawn(function)

    @property
    def ip_address(self) -> str:
        """The node's address, as the other nodes know it."""
        return self.host.ip_address

    # ---- The cluster -----------------------------------------------------------------------------------------

    def cluster_state(self) -> tuple[NodeState, ...]:
        """The nodes, as the head sees them."""
        wait_id = self._next_wait()
        self._wait_for(ClusterStateAsked(wait_id=wait_id))
        return self.machine.cluster_state.pop(wait_id)

    def rows_of(
        self, addresses: Sequence[Address], table: str, timeout_ns: int
    ) -> dict[Address, list[dict[str, Any]] | None]:
        """The rows that processes have of a table (state_rows.py); None of one that has not answered in time."""
        asked = [
            RowsAsked(wait_id=self._next_wait(), table=table, to=address, timeout_ns=timeout_ns)
            for address in addresses
        ]
        waits = [_Wait(self.host.new_signal()) for _ in asked]
        for question, wait in zip(asked, waits, strict=True):
            self._begin_wait(question, wait)
        found: dict[Address, list[dict[str, Any]] | None] = {}
        for question, wait in zip(asked, waits, strict=True):
            self._end_wait(wait)
            rows = self.machine.rows.pop(question.wait_id, None)
            found[question.to] = [json.loads(row) for row in rows] if rows is not None else None
        return found

    def head_rows(self, table: str) -> list[dict[str, Any]]:
        """The rows of one of the head's tables.

        Raises:
            DualrayError: the head has not answered.
        """
        rows = self.rows_of([HEAD], table, self.config.state_timeout_ns)[HEAD]
        if rows is None:
            raise DualrayError(f"the head has not answered within {self.config.state_timeout_ns / 1e9:g} s")
        return rows

    def read_table(self, table: str) -> dict[str, dict[str, str]]:
        """The rows of one of the control plane's tables, by key."""
        return self.host.read_table(table)

    def create_placement_group(
        self,
        *,
        bundles: Sequence[Resources],
        strategy: GroupStrategy,
        name: str,
        is_detached: bool,
        selectors: tuple[tuple[LabelTerm, ...], ...],
    ) -> PlacementGroupID:
        """Have the head note a placement group.

        Raises:
            PlacementGroupUnschedulableError: the cluster can never take it, or its name is taken.
        """
        spec = PlacementGroupSpec(
            group_id=PlacementGroupID(self._next_task_id()),
            bundles=tuple(bundles),
            strategy=strategy,
            owner=self.address,
            name=name,
            is_detached=is_detached,
            selectors=selectors,
        )
        wait = self._wait_for(PlacementGroupAsked(wait_id=self._next_wait(), spec=spec))
        if wait.error is not None:
            raise as_exception(wait.error, None)
        return spec.group_id

    def remove_placement_group(self, group_id: PlacementGroupID) -> None:
        """Have the head remove a placement group, with what runs in it."""
        self.dispatch(PlacementGroupRemovalAsked(group_id=group_id))

    def kill_actor(self, handle: Ref, *, no_restart: bool) -> None:
        """End an actor now."""
        self.dispatch(ActorKillAsked(actor_id=ActorID(handle.object_id[:16]), no_restart=no_restart))

    def cancel(self, ref: Ref, *, force: bool, recursive: bool) -> None:
        """End the task that makes an object.

        Raises:
            ValueError: it is a method of an actor, and `force` would end the actor.
        """
        with self.host.lock:
            record = self.machine.tasks.records.get(task_of(ref.object_id))
            if force and record is not None and record.spec.actor_id is not None:
                raise ValueError(
                    f"cancel(force=True) would end the actor that runs {record.spec.template.name}: use force=False, "
                    f"or dualray.kill(actor)"
                )
            self.dispatch(CancelAsked(ref=ref, force=force, recursive=recursive))

    # ---- Running tasks ---------------------------------------------------------------------------------------

    def enter(self, execution: Execution) -> None:
        """The caller runs a task from now on."""
        if self._contexts is None:
            self._execution = execution
        else:
            self._contexts.enter(execution)

    @property
    def execution(self) -> Execution:
        """The task that the caller runs, and always the same object for it."""
        return self._execution if self._contexts is None else self._contexts.here

    def take_environment(self, text: str) -> None:
        """The task in hand, and all that follow here, run with a runtime environment.

        Raises:
            RuntimeEnvSetupError: it cannot be had here.
        """
        if self.runtime_env != text:
            self.host.take_environment(text)
            self.runtime_env = text

    def become_concurrent(self, promises: ActorSpec) -> None:
        """An actor is about to be constructed of which several methods may run at a time."""
        self._contexts = ExecutionContext(self._execution)
        start = self.host.start_on_loop if promises.is_async else self.host.start_beside
        performers = self._performers = self._make_performers()
        if promises.is_async:
            performers[InterruptTask] = self._cancel_call
            self._may_block_a_loop = True
        performers[RunTask] = lambda command: start(command) if command.spec.actor_id else self._run_task(command)

    async def execute_async(self, task: RunTask) -> None:
        """Run a method of an actor whose methods are coroutines. Called on its event loop."""
        try:
            await self._runner.execute_async(task)
        finally:
            if self._cancelled_calls is not None:
                self._cancelled_calls.pop(task.spec.task_id, None)

    def _warn_of_blocked_loop(self, event: _WaitEvent) -> None:
        """A method that is a coroutine, and blocks its loop, is told so, once."""
        if not self._has_warned and isinstance(event, WaitStarted) and event.timeout_ns != 0 and self.host.is_on_loop:
            self._has_warned = True
            verb = "get" if event.read else "wait"
            self.host.tell(
                f"{self.execution.name} calls dualray.{verb}() on the event loop of its actor: until that returns, no "
                f"other method of its concurrency group goes on, and if it waits for one of them, it waits for ever. "
                f"Use `await ref` or `await asyncio.gather(*refs)`.\n"
            )

    def _cancel_call(self, command: InterruptTask) -> None:
        if self._cancelled_calls is None:
            self._cancelled_calls = {}
        self._cancelled_calls[command.task_id] = command.attempt
        self.host.cancel_on_loop(command.task_id)

    def was_call_cancelled(self, task: RunTask) -> bool:
        """Whether a method that runs as a coroutine was cancelled by who made the call."""
        cancelled = self._cancelled_calls
        return cancelled is not None and cancelled.get(task.spec.task_id) == task.attempt

    def _run_task(self, command: RunTask) -> None:
        self._to_run.append(command)
        self.host.tasks_came()

    def _run_tasks(self, command: RunTasks) -> None:
        self._to_run.extend(command.tasks)
        self.host.tasks_came()

    def _forget_tasks(self, command: ForgetTasks) -> None:
        forgotten = {task.spec.task_id for task in command.tasks}
        self._to_run = [task for task in self._to_run if task.spec.task_id not in forgotten]

    def _interrupt_task(self, command: InterruptTask) -> None:
        waiting = (self.in_hand, *self._to_run) if self.in_hand is not None else self._to_run
        wanted = (command.task_id, command.attempt)
        if any((task.spec.task_id, task.attempt) == wanted for task in waiting):  # else it has just ended
            self.interrupted, self.is_interrupt_due = wanted, True
            self.host.interrupt()

    def is_to_be_interrupted(self) -> bool:
        """Whether the task in hand has still to be interrupted."""
        task = self.in_hand
        return self.is_interrupt_due and task is not None and self.was_interrupted(task)

    def takes_interrupt(self) -> bool:
        """`is_to_be_interrupted`; then the caller does it."""
        if not self.is_to_be_interrupted():
            return False
        self.is_interrupt_due = False
        return True

    def was_interrupted(self, task: RunTask | TaskPushed) -> bool:
        """Whether the task was cancelled while it was in hand."""
        return self.interrupted is not None and self.interrupted == (task.spec.task_id, task.attempt)

    @property
    def has_tasks(self) -> bool:
        """Whether there are tasks to run."""
        return bool(self._to_run)

    def next_task(self) -> RunTask | TaskPushed | None:
        """The next task that is to run, if there is one: it counts as begun."""
        self.begin_step()
        try:
            task = self.in_hand = self._to_run.pop(0) if self._to_run else None
            return task
        finally:
            self.leave_step()

    def execute(self, task: RunTask | TaskPushed) -> None:
        """Run one task. Called where user code runs."""
        self._runner.execute(task)

    def end_small(self, task: RunTask | TaskPushed, size_bytes: int, start_ns: int) -> None:
        """The time of a task is over that has one small result, and that the host has ended later."""
        self._runner.end_small(task, size_bytes, start_ns)

    def end_cancelled(self, task: RunTask | TaskPushed, start_ns: int) -> None:
        """Such a task was cancelled before."""
        self._runner.end_cancelled(task, start_ns)

    @property
    def may_run_ahead(self) -> bool:
        """Whether the code of a task may return before its time is over: nobody notes when it does."""
        return self._contexts is None and self._runner.reports_small

    def report_ran(self, ran: TaskRan, duration_ns: int, *, is_alone: bool = False) -> None:
        """A task has ended. Small results wait for those of the tasks behind it, if others were handed over with it."""
        if self._released and self.machine.values.loans:
            with self.host.lock:  # before the task is reported: what was lent to it goes back with the report
                self._take_in_released()
        if (self._to_run or self._ran) and ran.error is None and len(ran.results) == 1 and not is_alone:
            [result] = ran.results
            # A result that must wait for an acknowledgement waits alone; so does what comes after it.
            if result.inline and not result.nested and not self.machine.values.unacknowledged:
                self._ran.append((ran.task_id, ran.attempt, result.size_bytes, duration_ns))
                if not self._to_run:
                    self.take_in_finalizers()
                elif len(self._ran) == 1:
                    self.host.wake()
                return
        self.dispatch(ran)

    def report_small(self, task: RunTask | TaskPushed, size_bytes: int, duration_ns: int) -> None:
        """A task has returned one small value that refers to nothing; as `report_ran`."""
        task_id = task.spec.task_id
        if (
            task.spec.deps
            or self._contexts is not None
            or (self._folded is None and self.machine.values.unacknowledged)
        ):
            result = Result(object_id=return_object_id(task_id, 0), size_bytes=size_bytes, inline=True)
            self.report_ran(TaskRan(task_id=task_id, attempt=task.attempt, results=(result,), error=None), duration_ns)
            return
        if (
            self._folded is not None
            and not self._to_run
            and self._report_alone(self._folded, task, size_bytes, duration_ns)
        ):
            return
        self._ran.append((task_id, task.attempt, size_bytes, duration_ns))
        if not self._to_run:
            self.take_in_finalizers()
        elif len(self._ran) == 1:
            self.host.wake()

    def _report_alone(self, folded: PlainWorker, task: RunTask | TaskPushed, size_bytes: int, duration_ns: int) -> bool:
        """Report a task that is the only one here, if nothing else is to be done: as `TasksRan`, in fewer steps."""
        pushed = folded.current
        if pushed is None or not self._has_nothing_queued():
            return False
        spec = task.spec
        self.begin_step()
        try:
            finished = folded.report(size_bytes, self.now_ns(), duration_ns)
            if finished is None:
                return False
            fields = folded.row_fields(spec, pushed.attempt)
            self.write_record(WriteRecord(table=TASK_TABLE, key=spec.task_id.hex(), fields=fields))
            object_id = return_object_id(spec.task_id, 0)
            self.send_out(pushed.reply_to, finished, ((object_id, self.payloads.pop(object_id)),))
            if spec.owner != self.address:
                self.payloads.pop(spec.task_id, None)
            self.end_step()
        finally:
            self.leave_step()
        return True


class _Callback:
    """A signal that nobody waits for."""

    __slots__ = ("set",)

    def __init__(self, ready: Callable[[], None]) -> None:
        self.set = ready

    def wait(self) -> None:
        raise AssertionError("a callback is waited for by nobody")


class Awaited:
    """A value that somebody waits for without blocking; see `CoreWorker.get_async`."""

    __slots__ = ("_core", "_is_over", "_wait", "_wait_id")

    def __init__(self, core: CoreWorker, wait_id: WaitID, wait: _Wait) -> None:
        self._core = core
        self._wait_id = wait_id
        self._wait = wait
        self._is_over = False

    @property
    def is_ready(self) -> bool:
        """Whether `result` has what it needs."""
        return self._wait.is_done

    def result(self) -> Any:
        """The value, once.

        Raises:
            DualrayError: it has failed, or the runtime has ended.
        """
        self._is_over = True
        if not self._wait.is_done:
            raise DualrayError(self._core.end_reason)
        [value] = self._core.read_all(self._wait.ready)
        return value

    def abandon(self) -> None:
        """Nobody waits any more. Idempotent, and harmless after `result`."""
        if not self._is_over and not self._core.is_closed:
            self._is_over = True
            self._core.abandon(self._wait_id, self._wait)


def _without_place(template: FunctionTemplate) -> FunctionTemplate:
    """What a handle to an actor needs of its constructor: not where it goes."""
    return replace(template, resources=NOTHING, placement=NOTHING, strategy=DEFAULT_STRATEGY)


def write_row(core: CoreWorker, table: str, key: str, fields: Mapping[str, str]) -> None:
    """Write a record of the layers above the core into a table of the control plane."""
    with core.host.lock:
        core.host.write_record(WriteRecord(table=table, key=key, fields=tuple(fields.items())))
        core.host.end_step()


def _take_all(queue: list[T]) -> tuple[T, ...]:
    """What is in a queue to which others may append meanwhile, and from which nobody else takes."""
    taken = tuple([queue[index] for index in range(len(queue))])  # not tuple(queue): a finalizer may append within it
    del queue[: len(taken)]
    return taken
