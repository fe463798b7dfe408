"""The core worker: what turns a user's verbs into events, and the owner machine's commands into values.

A driver and every worker have one, in both modes. It knows no process, socket, clock or thread: a `Host` stands for
them, one class in each mode. It decides nothing: it pickles and unpickles, keeps payloads (bytes named by id), calls
user functions, and hands everything else to the machine and back.

Locking. `Host.lock` makes one event and its commands one step. User code, pickling and waiting happen outside it.
Finalizers of references and views may run anywhere, at any time: they only append to a queue, which the next step of
this process takes in first.
"""

from __future__ import annotations

import traceback
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

from dualray import exceptions
from dualray.exceptions import DualrayError, GetTimeoutError, SerializationError, TaskError
from dualray.shared.machines.owner import Owner
from dualray.shared.model.commands import (
    ArmTimer,
    CancelTimer,
    Command,
    CompleteWait,
    CopyPayload,
    DropPayload,
    NoteRetry,
    RunTask,
    Send,
    WriteRecord,
)
from dualray.shared.model.config import Config
from dualray.shared.model.errors import ErrorInfo, ErrorKind
from dualray.shared.model.events import (
    ActorKillAsked,
    ClusterStateAsked,
    Event,
    RefsAdded,
    RefsDropped,
    Result,
    SpaceWanted,
    SpaceWritten,
    TaskPushed,
    TaskRan,
    TaskSubmitted,
    ValuePut,
    ViewReleased,
    WaitStarted,
)
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
    function_id,
    put_object_id,
    return_object_id,
)
from dualray.shared.model.specs import ActorSpec, FunctionTemplate, LeaseShape, NodeState, Ref, TaskSpec
from dualray.shared.model.states import ValueState
from dualray.shared.policies.retry import RETRY_FOREVER
from dualray.shared.serialization import Reference, Serialized, deserialize, serialize
from dualray.shared.trace import TraceKind


METHOD_OPTIONS = "__dualray_method_options__"
"""The attribute under which an actor class's method carries its options."""


class Signal(Protocol):
    """Something that one thread or fiber waits for."""

    def wait(self) -> object: ...

    def set(self) -> None: ...


class LocalStore(Protocol):
    """The bytes of this node's object store."""

    def create(self, object_id: bytes, size: int) -> memoryview: ...

    def seal(self, object_id: bytes) -> None: ...

    def open(self, object_id: bytes, on_release: Callable[[bytes], None]) -> memoryview: ...


class Host(Protocol):
    """What a mode provides to a process that runs user code."""

    @property
    def lock(self) -> AbstractContextManager[Any, bool | None]: ...

    @property
    def store(self) -> LocalStore: ...

    def now_ns(self) -> int: ...

    def send(self, to: Address, message: Event, payloads: Sequence[tuple[bytes, bytes]]) -> None: ...

    def arm_timer(self, timer: str, delay_ns: int) -> None: ...

    def cancel_timer(self, timer: str) -> None: ...

    def run_task(self, task: RunTask) -> None:
        """Have `CoreWorker.execute(task)` called where user code runs."""

    def call(
        self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], task: Execution
    ) -> Any:
        """Call user code, in the environment and, in sim mode, at the cost of the task."""

    def new_signal(self) -> Signal: ...

    def write_record(self, table: str, key: str, fields: tuple[tuple[str, str], ...]) -> None: ...

    def put_function(self, function: FunctionID, pickled: bytes) -> None: ...

    def get_function(self, function: FunctionID) -> bytes: ...

    def log(self, event: Event, now_ns: int, commands: Sequence[Command]) -> None: ...

    def trace(
        self,
        kind: TraceKind,
        subject: str,
        *,
        other: str = "",
        name: str = "",
        amount: int = 0,
        deps: tuple[str, ...] = (),
    ) -> None: ...

    def wake(self) -> None:
        """Queued finalizers want to be taken in soon."""


@dataclass(slots=True, kw_only=True)
class Execution:
    """The task that runs in a process, or the driver's implicit one: what ids are derived from."""

    task_id: TaskID
    attempt: int = 0
    name: str = "driver"
    gpu_ids: tuple[int, ...] = ()
    actor_id: ActorID | None = None
    resources: FunctionTemplate | None = None
    duration: Any = None
    is_task: bool = True
    submitted: int = 0
    puts: int = 0


@dataclass(slots=True)
class _Wait:
    signal: Signal
    ready: tuple[ObjectID, ...] = ()
    error: ErrorInfo | None = None
    is_done: bool = False


@dataclass(slots=True)
class Export:
    """What the function table holds, pickled: a function or class, and what sim mode needs to know of it."""

    target: Any
    duration: Any = None


@dataclass(frozen=True, slots=True)
class _Dep:
    """Stands in pickled arguments for the value of the task's `index`-th dependency."""

    index: int


@dataclass(slots=True)
class _Arguments:
    payload: bytes
    deps: list[Ref] = field(default_factory=list)
    nested: tuple[Ref, ...] = ()
    kept_alive: list[ObjectID] = field(default_factory=list)


_ERRORS: dict[ErrorKind, type[DualrayError]] = {
    ErrorKind.APPLICATION: exceptions.TaskError,
    ErrorKind.WORKER_CRASHED: exceptions.WorkerCrashedError,
    ErrorKind.NODE_DIED: exceptions.NodeDiedError,
    ErrorKind.TASK_UNSCHEDULABLE: exceptions.TaskUnschedulableError,
    ErrorKind.ACTOR_UNSCHEDULABLE: exceptions.ActorUnschedulableError,
    ErrorKind.ACTOR_DIED: exceptions.ActorDiedError,
    ErrorKind.ACTOR_UNAVAILABLE: exceptions.ActorUnavailableError,
    ErrorKind.OBJECT_LOST: exceptions.ObjectLostError,
    ErrorKind.RECONSTRUCTION_FAILED: exceptions.ObjectReconstructionFailedError,
    ErrorKind.OWNER_DIED: exceptions.OwnerDiedError,
    ErrorKind.STORE_FULL: exceptions.ObjectStoreFullError,
}


class CoreWorker:
    """See the module."""

    def __init__(
        self, *, address: Address, node: NodeID, config: Config, host: Host, root: TaskID, is_driver: bool
    ) -> None:
        self.address = address
        self.node = node
        self.config = config
        self.host = host
        self.machine = Owner(address=address, node=node, config=config, is_driver=is_driver)
        self.execution = Execution(task_id=root, is_task=not is_driver)
        self.payloads: dict[bytes, bytes] = {}
        self.is_closed = False
        self._has_ended = False
        self._end_reason = "the runtime was shut down"
        self._waits: dict[WaitID, _Wait] = {}
        self._wait_counter = 0
        self._exported: set[FunctionID] = set()
        self._loaded: dict[FunctionID, Export] = {}
        self._instance: Any = None
        self._dropped: deque[ObjectID] = deque()
        self._released: deque[ObjectID] = deque()

    # ---- One step --------------------------------------------------------------------------------------------

    def dispatch(self, event: Event) -> None:
        """Hand an event to the machine and carry out its commands."""
        with self.host.lock:
            self._take_in_finalizers()
            self._handle(event)

    def on_message(self, message: Event, payloads: Iterable[tuple[bytes, bytes]]) -> None:
        """A message has arrived, with the bytes that travel beside it."""
        with self.host.lock:
            self._take_in_finalizers()
            self.payloads.update(payloads)
            self._handle(message)

    def take_in_finalizers(self) -> None:
        """References and views that Python has dropped are reported to the machine."""
        if self._dropped or self._released:
            with self.host.lock:
                self._take_in_finalizers()

    def _take_in_finalizers(self) -> None:
        while self._dropped:
            self._handle(RefsDropped(object_ids=_take_all(self._dropped)))
        while self._released:
            self._handle(ViewReleased(object_id=self._released.popleft()))

    def _handle(self, event: Event) -> None:
        now_ns = self.host.now_ns()
        commands = self.machine.handle(event, now_ns)
        self.host.log(event, now_ns, commands)
        for command in commands:
            self._perform(command)

    def _perform(self, command: Command) -> None:
        match command:
            case Send():
                self._send(command)
            case CompleteWait():
                wait = self._waits.pop(command.wait_id, None)
                if wait is not None:
                    wait.ready, wait.error, wait.is_done = command.ready, command.error, True
                    wait.signal.set()
            case DropPayload():
                self.payloads.pop(command.key, None)
            case CopyPayload():
                if command.source in self.payloads:
                    self.payloads[command.target] = self.payloads[command.source]
            case ArmTimer():
                self.host.arm_timer(command.timer, command.delay_ns)
            case CancelTimer():
                self.host.cancel_timer(command.timer)
            case RunTask():
                self.host.run_task(command)
            case WriteRecord():
                self.host.write_record(command.table, command.key, command.fields)
            case NoteRetry():
                self.host.trace(
                    TraceKind.TASK_RETRIED, command.task_id.hex(), other=command.reason, amount=command.attempt
                )
            case _:
                raise TypeError(f"a process that runs user code cannot carry out {command!r}")

    def _send(self, command: Send) -> None:
        message = command.message
        if isinstance(message, TaskPushed):
            spec = message.spec
            self.host.trace(
                TraceKind.TASK_PUSHED,
                spec.task_id.hex(),
                other=command.to,
                name=spec.template.name,
                amount=message.attempt,
            )
        payloads = [(key, self.payloads[key]) for key in command.payloads if key in self.payloads]
        self.host.send(command.to, message, payloads)

    # ---- Waiting ---------------------------------------------------------------------------------------------

    def _new_wait(self) -> tuple[WaitID, _Wait]:
        with self.host.lock:
            if self._has_ended:
                raise DualrayError(self._end_reason)
            wait_id = WaitID(self._wait_counter)
            self._wait_counter += 1
            wait = self._waits[wait_id] = _Wait(self.host.new_signal())
        return wait_id, wait

    def _await(self, wait_id: WaitID, wait: _Wait) -> None:
        if not wait.is_done:
            wait.signal.wait()
        if not wait.is_done:
            raise DualrayError(self._end_reason)

    def fail(self, reason: str) -> None:
        """Nothing will come any more: whoever waits, or will wait, raises."""
        self._end_reason = reason
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
        return [reason for wait_id in self._waits for reason in self.machine.explain_wait(wait_id)]

    # ---- Functions and tasks ---------------------------------------------------------------------------------

    def export(self, target: Any, *, duration: Any, what: str) -> FunctionID:
        """Put a function or class into the function table, once."""
        pickled = serialize(Export(target, duration), what).to_bytes()
        identity = function_id(pickled)
        if identity not in self._exported:
            self._exported.add(identity)
            self.host.put_function(identity, pickled)
        return identity

    def submit_task(self, template: FunctionTemplate, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Ref]:
        """Submit a call of a remote function; its results, as references of this process."""
        self._check_feasible(template, exceptions.TaskUnschedulableError)
        task_id = self._next_task_id()
        spec = self._spec(task_id, template, args, kwargs)
        self._submit(spec)
        return [Ref(return_object_id(task_id, index), self.address) for index in range(template.num_returns)]

    def create_actor(
        self,
        template: FunctionTemplate,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        *,
        max_restarts: int,
        max_task_retries: int,
    ) -> Ref:
        """Submit the construction of an actor; the reference that its handle holds."""
        self._check_feasible(template, exceptions.ActorUnschedulableError)
        task_id = self._next_task_id()
        actor_id = ActorID(task_id)
        actor = ActorSpec(actor_id=actor_id, max_restarts=max_restarts, max_task_retries=max_task_retries)
        self._submit(self._spec(task_id, template, args, kwargs, creates=actor))
        return Ref(actor_handle_id(actor_id), self.address)

    def submit_actor_task(
        self, handle: Ref, template: FunctionTemplate, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> list[Ref]:
        """Submit a call of an actor's method."""
        task_id = self._next_task_id()
        actor_id = ActorID(handle.object_id[:16])
        spec = self._spec(task_id, template, args, kwargs, actor_id=actor_id, actor_handle=handle)
        self._submit(spec)
        return [Ref(return_object_id(task_id, index), self.address) for index in range(template.num_returns)]

    def _check_feasible(self, template: FunctionTemplate, error: type[DualrayError]) -> None:
        shape = LeaseShape(
            resources=template.resources, placement=template.placement, strategy=template.strategy, name=template.name
        )
        why = self.machine.why_infeasible(shape)
        if why is not None:
            raise error(f"{template.name} can never run in this cluster: {why}.")

    def _next_task_id(self) -> TaskID:
        with self.host.lock:
            execution = self.execution
            execution.submitted += 1
            return child_task_id(execution.task_id, execution.attempt, execution.submitted)

    def _spec(
        self,
        task_id: TaskID,
        template: FunctionTemplate,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        **actor: Any,
    ) -> TaskSpec:
        arguments = self._pack_arguments(template.name, args, kwargs)
        self.payloads[task_id] = arguments.payload
        spec = TaskSpec(
            task_id=task_id,
            template=template,
            owner=self.address,
            parent=self.execution.task_id,
            args_bytes=len(arguments.payload),
            deps=tuple(arguments.deps),
            nested=arguments.nested,
            **actor,
        )
        self._dropped.extend(arguments.kept_alive)  # from now on the task holds them
        return spec

    def _submit(self, spec: TaskSpec) -> None:
        with self.host.lock:
            self.host.trace(
                TraceKind.TASK_SUBMITTED,
                spec.task_id.hex(),
                name=spec.template.name,
                amount=spec.args_bytes,
                deps=tuple(ref.object_id.hex() for ref in spec.deps + spec.nested),
            )
            self._handle(TaskSubmitted(spec=spec))
            self._take_in_finalizers()

    def _pack_arguments(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> _Arguments:
        """Pickle arguments: references become dependencies, large values go to the store on their own."""
        arguments = _Arguments(b"")
        positions: dict[Ref, _Dep] = {}

        def depend(ref: Ref) -> _Dep:
            if ref not in positions:
                positions[ref] = _Dep(len(arguments.deps))
                arguments.deps.append(ref)
            return positions[ref]

        def pack(value: Any) -> Any:
            return depend(value.ref) if _is_object_ref(value) else value

        packed = ([pack(value) for value in args], {key: pack(value) for key, value in kwargs.items()})
        try:
            serialized = serialize(packed)
        except SerializationError:
            for position, value in [*enumerate(args), *kwargs.items()]:
                serialize(pack(value), f"argument {position!r} of {name}")
            raise
        if serialized.size_bytes > self.config.inline_bytes_max:

            def promote(value: Any, which: str) -> Any:
                if isinstance(value, _Dep):
                    return value
                alone = serialize(value, which)
                if alone.size_bytes <= self.config.inline_bytes_max:
                    return value
                ref = self._put(alone)
                arguments.kept_alive.append(ref.object_id)
                return depend(ref)

            packed = (
                [promote(value, f"argument {index} of {name}") for index, value in enumerate(packed[0])],
                {key: promote(value, f"argument {key!r} of {name}") for key, value in packed[1].items()},
            )
            serialized = serialize(packed)
        arguments.payload = serialized.to_bytes()
        arguments.nested = tuple(ref for ref in serialized.refs if ref not in positions)
        return arguments

    # ---- Values ----------------------------------------------------------------------------------------------

    def put(self, value: Any) -> Ref:
        """Store a value; the reference to it."""
        return self._put(serialize(value))

    def _put(self, serialized: Serialized) -> Ref:
        with self.host.lock:
            execution = self.execution
            execution.puts += 1
            object_id = put_object_id(execution.task_id, execution.attempt, execution.puts)
        inline = serialized.size_bytes <= self.config.inline_bytes_max
        if inline:
            self.payloads[object_id] = serialized.to_bytes()
        else:
            self._write_to_store(object_id, serialized, self.address, remakeable=False)
        self.dispatch(
            ValuePut(object_id=object_id, size_bytes=serialized.size_bytes, inline=inline, nested=serialized.refs)
        )
        return Ref(object_id, self.address)

    def _write_to_store(self, object_id: ObjectID, serialized: Serialized, owner: Address, *, remakeable: bool) -> None:
        wait_id, wait = self._new_wait()
        self.dispatch(
            SpaceWanted(
                wait_id=wait_id,
                object_id=object_id,
                size_bytes=serialized.size_bytes,
                owner=owner,
                remakeable=remakeable,
            )
        )
        self._await(wait_id, wait)
        if wait.error is not None:
            raise _exception(wait.error)
        if wait.ready:  # otherwise an earlier attempt has left the same object here
            serialized.write_into(self.host.store.create(object_id, serialized.size_bytes))
            self.host.store.seal(object_id)
            self.host.trace(TraceKind.OBJECT_STORED, object_id.hex(), amount=serialized.size_bytes)

    def get(self, refs: Sequence[Ref], timeout_ns: int | None) -> list[Any]:
        """The values, in order.

        Raises:
            GetTimeoutError: not all were ready in time.
            DualrayError: the first one, in order, that has failed.
        """
        distinct = tuple(dict.fromkeys(refs))
        wait_id, wait = self._new_wait()
        self.dispatch(
            WaitStarted(
                wait_id=wait_id,
                refs=distinct,
                num_ready=len(distinct),
                fetch=True,
                read=True,
                timeout_ns=timeout_ns,
                task_id=self._waiting_task(),
            )
        )
        self._await(wait_id, wait)
        values: dict[ObjectID, Any] = {}
        unread = deque(wait.ready)
        try:
            while unread:
                object_id = unread.popleft()
                values[object_id] = self._read(object_id)
        finally:
            self._release_unread(unread)
        if len(values) < len(distinct):
            raise self._timed_out(distinct, values, timeout_ns)
        return [values[ref.object_id] for ref in refs]

    def _waiting_task(self) -> TaskID | None:
        return self.execution.task_id if self.execution.is_task else None

    def _read(self, object_id: ObjectID) -> Any:
        value = self.machine.values.table[object_id]
        if value.state is ValueState.FAILED:
            assert value.error is not None
            raise self._failure(object_id, value.error)
        if value.state is ValueState.INLINE:
            return deserialize(self.payloads[object_id])
        return deserialize(self._open(object_id))

    def _open(self, object_id: ObjectID) -> memoryview:
        return self.host.store.open(object_id, self._on_view_released)

    def _release_unread(self, object_ids: Iterable[ObjectID]) -> None:
        for object_id in object_ids:
            if object_id in self.machine.values.views:
                self.dispatch(ViewReleased(object_id=object_id))

    def _failure(self, object_id: ObjectID, error: ErrorInfo) -> BaseException:
        if error.kind is ErrorKind.APPLICATION and object_id in self.payloads:
            failure: TaskError = deserialize(self.payloads[object_id])
            return failure.as_instance_of_cause()
        return _exception(error)

    def _timed_out(
        self, refs: Sequence[Ref], values: Mapping[ObjectID, Any], timeout_ns: int | None
    ) -> GetTimeoutError:
        missing = [ref.object_id for ref in refs if ref.object_id not in values]
        reason = self.machine.explain_object(missing[0])
        seconds = (timeout_ns or 0) / 1e9
        return GetTimeoutError(
            f"{len(missing)} of {len(refs)} objects were not ready within {seconds:g} s; the first: {reason}"
        )

    def wait(
        self, refs: Sequence[Ref], *, num_returns: int, timeout_ns: int | None, fetch_local: bool
    ) -> frozenset[ObjectID]:
        """The objects that are ready when `num_returns` of them are, or at the timeout."""
        wait_id, wait = self._new_wait()
        self.dispatch(
            WaitStarted(
                wait_id=wait_id,
                refs=tuple(refs),
                num_ready=num_returns,
                fetch=fetch_local,
                timeout_ns=timeout_ns,
                task_id=self._waiting_task(),
            )
        )
        self._await(wait_id, wait)
        return frozenset(wait.ready)

    # ---- References ------------------------------------------------------------------------------------------

    def adopt(self, ref: Ref) -> None:
        """A reference was unpickled in this process."""
        self.dispatch(RefsAdded(refs=(ref,)))

    def drop(self, object_id: ObjectID) -> None:
        """A reference's Python object is gone. Called by finalizers: it only queues."""
        if not self.is_closed:
            is_first = not self._dropped
            self._dropped.append(object_id)
            if is_first:
                self.host.wake()

    def _on_view_released(self, object_id: bytes) -> None:
        """A view of a stored object is gone. Called by finalizers: it only queues."""
        if not self.is_closed:
            self._released.append(ObjectID(object_id))
            self.host.wake()

    # ---- The cluster -----------------------------------------------------------------------------------------

    def cluster_state(self) -> tuple[NodeState, ...]:
        """The nodes, as the head sees them."""
        wait_id, wait = self._new_wait()
        self.dispatch(ClusterStateAsked(wait_id=wait_id))
        self._await(wait_id, wait)
        return self.machine.cluster_state.pop(wait_id)

    def kill_actor(self, handle: Ref, *, no_restart: bool) -> None:
        """End an actor now."""
        self.dispatch(ActorKillAsked(actor_id=ActorID(handle.object_id[:16]), no_restart=no_restart))

    # ---- Running a task --------------------------------------------------------------------------------------

    def execute(self, task: RunTask) -> None:
        """Run one task from its pickled arguments to its sealed results. Called where user code runs."""
        spec = task.spec
        is_actor_task = spec.actor_id is not None
        self.execution = Execution(
            task_id=spec.task_id,
            attempt=task.attempt,
            name=spec.template.name,
            gpu_ids=task.gpu_ids if not is_actor_task else self.execution.gpu_ids,
            actor_id=spec.actor_id or (spec.creates.actor_id if spec.creates else None),
            resources=spec.template if not is_actor_task else self.execution.resources,
        )
        self.host.trace(
            TraceKind.TASK_STARTED, spec.task_id.hex(), name=spec.template.name, amount=task.attempt
        )
        error: ErrorInfo | None = None
        results: list[Result] = []
        returned: list[Any] = []  # kept until TaskRan: from then on the machine holds the references among them
        try:
            returned = _split(self._call(task), spec.template.num_returns if spec.creates is None else 0, spec)
            results = self._store_results(task, returned)
        except Exception as exception:  # noqa: BLE001 - it is the user's, and travels to whoever asked
            error = self._note_failure(spec, exception)
            results = []
        self.host.trace(
            TraceKind.TASK_ENDED,
            spec.task_id.hex(),
            name=spec.template.name,
            amount=task.attempt,
            other=error.kind if error else "",
        )
        self.dispatch(TaskRan(task_id=spec.task_id, attempt=task.attempt, results=tuple(results), error=error))

    def _call(self, task: RunTask) -> Any:
        spec = task.spec
        args, kwargs = self._unpack_arguments(spec)
        export = self._load(spec.template.function_id)
        self.execution.duration = export.duration
        if spec.creates is not None:
            self._instance = self.host.call(export.target, args, kwargs, self.execution)
            return None
        if spec.actor_id is not None:
            method = getattr(self._instance, spec.template.name.rpartition(".")[2])
            self.execution.duration = getattr(getattr(method, METHOD_OPTIONS, None), "duration", None)
            return self.host.call(method, args, kwargs, self.execution)
        return self.host.call(export.target, args, kwargs, self.execution)

    def _load(self, function: FunctionID) -> Export:
        export = self._loaded.get(function)
        if export is None:
            export = self._loaded[function] = deserialize(self.host.get_function(function))
        return export

    def _unpack_arguments(self, spec: TaskSpec) -> tuple[list[Any], dict[str, Any]]:
        values: list[Any] = []
        unread = deque(ref.object_id for ref in spec.deps)
        try:
            while unread:
                values.append(self._read(unread.popleft()))
        finally:
            self._release_unread(unread)
        args, kwargs = deserialize(self.payloads[spec.task_id])

        def unpack(value: Any) -> Any:
            return values[value.index] if type(value) is _Dep else value

        return [unpack(value) for value in args], {key: unpack(value) for key, value in kwargs.items()}

    def _store_results(self, task: RunTask, values: Sequence[Any]) -> list[Result]:
        spec = task.spec
        # The attempts count retries and reconstructions alike; after the last one the object cannot be made again.
        max_retries = spec.template.max_retries
        remakeable = spec.actor_id is None and (max_retries == RETRY_FOREVER or task.attempt < max_retries)
        results = []
        for index, value in enumerate(values):
            object_id = return_object_id(spec.task_id, index)
            serialized = serialize(value, f"return value {index} of {spec.template.name}")
            inline = serialized.size_bytes <= self.config.inline_bytes_max
            if inline:
                self.payloads[object_id] = serialized.to_bytes()
            else:
                self._write_to_store(object_id, serialized, spec.owner, remakeable=remakeable)
                self.dispatch(SpaceWritten(object_id=object_id))
            results.append(
                Result(
                    object_id=object_id, size_bytes=serialized.size_bytes, inline=inline, nested=serialized.refs
                )
            )
        return results

    def _note_failure(self, spec: TaskSpec, exception: Exception) -> ErrorInfo:
        """Pickle what user code raised; the error that goes with it."""
        text = _user_traceback(exception)
        failure = TaskError(spec.template.name, text, exception)
        try:
            payload = serialize(failure).to_bytes()
            deserialize(payload)
        except Exception as why:  # noqa: BLE001 - pickling runs the user's code
            note = f"{text}(The exception itself could not be pickled: {why})\n"
            payload = serialize(TaskError(spec.template.name, note)).to_bytes()
        self.payloads[return_object_id(spec.task_id, 0)] = payload
        return ErrorInfo(kind=ErrorKind.APPLICATION, message=text)


def _take_all(queue: deque[ObjectID]) -> tuple[ObjectID, ...]:
    return tuple(queue.popleft() for _ in range(len(queue)))


def _is_object_ref(value: Any) -> bool:
    return isinstance(value, Reference) and getattr(value, "is_value", False)


def _split(returned: Any, count: int, spec: TaskSpec) -> list[Any]:
    name = spec.template.name
    if count == 0:
        return []
    if count == 1:
        return [returned]
    try:
        values = list(returned)
    except TypeError:
        raise ValueError(
            f"{name} has num_returns={count} and returned a {type(returned).__name__}, which cannot be split"
        ) from None
    if len(values) != count:
        raise ValueError(f"{name} has num_returns={count} and returned {len(values)} values")
    return values


def _exception(error: ErrorInfo) -> DualrayError:
    if error.kind is ErrorKind.APPLICATION:
        return TaskError("a task", error.message)
    return _ERRORS[error.kind](error.message)


def _user_traceback(exception: BaseException) -> str:
    """The traceback without the frames of this module and the host's."""
    frames = exception.__traceback__
    while frames is not None and "/dualray/" in frames.tb_frame.f_code.co_filename.replace("\\", "/"):
        frames = frames.tb_next
    return "".join(traceback.format_exception(type(exception), exception, frames or exception.__traceback__))

