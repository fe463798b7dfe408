"""PYTHON_MODE: a runtime without processes. A task runs in the driver, when it is submitted.

For finding errors: a debugger stops in tasks, a traceback leads to the line that submitted. As in 2017, calls give the
program values in place of ObjectIDs, and raise what the task raises (functions.py, verbs.py: to this module calls
return references, as everywhere). Values are pickled on their way in and out (so a task cannot change its arguments
behind the caller's back, and arrays are read-only), and resources that the machine does not have are refused. Each
actor, and all plain tasks together, are processes of their own as far as environment variables go. What differs:
nothing runs beside anything else, `wait` finds everything ready, and a task that ends its process ends the program.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NoReturn

from dualray import exceptions, runtime
from dualray.classic.inline_refusals import InlineRefusals
from dualray.core_verbs import VerbsOverCore
from dualray.exceptions import DualrayError, ObjectLostError
from dualray.progress_bars import DISPLAY, BarState
from dualray.settings import limits_of, resolve
from dualray.shared.core.arguments import Arguments, pack_arguments, unpack_arguments
from dualray.shared.core.execution import Execution
from dualray.shared.core.failures import as_exception, as_payload
from dualray.shared.core.layout import Serialized, deserialize, deserialize_own
from dualray.shared.core.serialization import serialize
from dualray.shared.core.task_runner import Export
from dualray.shared.handles import ProcessKey
from dualray.shared.model.accelerators import DEVICES_MAX, Names, devices_of, devices_wanted
from dualray.shared.model.config import Config
from dualray.shared.model.errors import ErrorInfo, ErrorKind
from dualray.shared.model.ids import (
    FIRST_DRIVER,
    ActorID,
    Address,
    FunctionID,
    NodeID,
    ObjectID,
    TaskID,
    actor_handle_id,
    child_task_id,
    function_id,
    put_object_id,
    return_object_id,
    root_task_id,
    worker_address,
)
from dualray.shared.model.resources import UNITS, Resources, fits, shortfall
from dualray.shared.model.specs import ActorSpec, FunctionTemplate, NamedActor, NodeState, Ref
from dualray.shared.model.states import TaskState

NODE = NodeID("node-0")


@dataclass(slots=True)
class _Object:
    """A stored value, or why there is none; with the number of references to it."""

    payload: bytes
    error: ErrorInfo | None = None
    nested: tuple[Ref, ...] = ()
    count: int = 0


@dataclass(slots=True)
class _Actor:
    """An actor: its instance and its process, or why it has none."""

    process: InlineProcess
    device_ids: tuple[int, ...] = ()
    count: int = 0
    instance: Any = None
    error: tuple[bytes, ErrorInfo] | None = None


@dataclass(slots=True)
class _Shared:
    """What the processes of one program share."""

    total: Resources
    device_names: Names
    inline_bytes_max: int
    objects: dict[ObjectID, _Object] = field(default_factory=dict)
    actors: dict[ObjectID, _Actor] = field(default_factory=dict)
    functions: dict[FunctionID, bytes] = field(default_factory=dict)
    loaded: dict[FunctionID, Export] = field(default_factory=dict)
    tables: dict[str, dict[str, dict[str, str]]] = field(default_factory=dict)
    devices: dict[int, list[int]] = field(default_factory=dict)
    """By the kind: those that are handed out next come first."""
    tasks_process: InlineProcess | None = None
    workers: int = 0


class InlineProcess(InlineRefusals):
    """The verbs of the driver, or of what stands for a worker."""

    def __init__(self, shared: _Shared, address: Address, root: TaskID, *, is_driver: bool) -> None:
        self.address = address
        self.node = NODE
        self.config = Config()
        self.execution = Execution(task_id=root, is_task=not is_driver)
        self.key = ProcessKey()
        self.is_closed = False
        self.holder: Any = None
        self.runtime_env = ""
        self.is_busy = False
        self._shared = shared
        self.runtime = InlineRuntime(self)

    # ---- Functions and tasks ---------------------------------------------------------------------------------

    def captures_children(self) -> bool:
        """There are no placement groups here."""
        return False

    def export(self, exported: Export, what: str) -> FunctionID:
        """Put a function or class into the function table."""
        pickled = serialize(exported, what).to_bytes()
        identity = function_id(pickled)
        self._shared.functions[identity] = pickled
        return identity

    def submit_task(self, template: FunctionTemplate, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Ref]:
        """Run a remote function; its results."""
        self._check_feasible(template, exceptions.TaskUnschedulableError)
        shared = self._shared
        process = shared.tasks_process
        if process is None or process.is_busy:  # a task that submits a task waits in the first one's process
            process = self._new_worker()
            shared.tasks_process = shared.tasks_process or process
        with self._devices_for(template, keep=False) as device_ids:
            execution, packed = self._pack(template, args, kwargs, device_ids=device_ids)
            return self._run(process, execution, template, packed, None)

    def submit_call(self, template: FunctionTemplate, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Ref:
        """`submit_task` of a function that has one result: that."""
        return self.submit_task(template, args, kwargs)[0]

    def create_actor(
        self,
        template: FunctionTemplate,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        *,
        promises: ActorSpec,
        get_if_exists: bool = False,
    ) -> tuple[Ref, NamedActor | None]:
        """Make an actor; the reference that its handle holds. It cannot die alone, so nothing restarts."""
        if promises.name:
            self.find_actor(promises.name, promises.namespace)
        self._check_feasible(template, exceptions.ActorUnschedulableError)
        with self._devices_for(template, keep=True) as device_ids:
            execution, packed = self._pack(template, args, kwargs, device_ids=device_ids)
        actor_id = ActorID(execution.task_id)
        execution.actor_id = actor_id
        handle = Ref(actor_handle_id(actor_id), self.address)
        actor = self._shared.actors[handle.object_id] = _Actor(self._new_worker(), device_ids, count=1)
        self._run(actor.process, execution, template, packed, actor)
        return handle, None

    def submit_actor_task(
        self, handle: Ref, template: FunctionTemplate, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> list[Ref]:
        """Run an actor's method; its results."""
        actor = self._shared.actors.get(handle.object_id)
        execution, packed = self._pack(template, args, kwargs, device_ids=actor.device_ids if actor is not None else ())
        execution.actor_id = ActorID(handle.object_id[:16])
        if actor is None:
            error = ErrorInfo(kind=ErrorKind.ACTOR_DIED, message=f"{template.name}: kill() ended the actor")
            return self._fail(execution, template, b"", error)
        if actor.error is not None:
            return self._fail(execution, template, *actor.error)
        return self._run(actor.process, execution, template, packed, actor)

    def submit_actor_call(
        self, handle: Ref, template: FunctionTemplate, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Ref:
        """`submit_actor_task` of a method that has one result: that."""
        return self.submit_actor_task(handle, template, args, kwargs)[0]

    def _new_worker(self) -> InlineProcess:
        self._shared.workers += 1
        address = worker_address(NODE, 0, self._shared.workers)
        return InlineProcess(self._shared, address, root_task_id(address, 0), is_driver=False)

    def _check_feasible(self, template: FunctionTemplate, error: type[DualrayError]) -> None:
        total = dict(self._shared.total.units)
        if not fits(total, template.placement):
            lacks = shortfall(total, template.placement)
            raise error(
                f"{template.name} can never run in this process: node {NODE} has {self._shared.total} and lacks "
                f"{lacks}."
            )

    @contextmanager
    def _devices_for(self, template: FunctionTemplate, *, keep: bool) -> Iterator[tuple[int, ...]]:
        """GPUs and other accelerators. Tasks run one by one, so there are always enough; actors keep theirs, and share
        in turn when there are more of them."""
        chosen: list[int] = []
        for kind, units in devices_wanted(template.resources):
            free, count = self._shared.devices[kind], -(-units // UNITS)
            chosen += free[:count]
            if keep:
                self._shared.devices[kind] = free[count:] + free[:count]
        yield tuple(sorted(chosen))

    def _pack(
        self, template: FunctionTemplate, args: Sequence[Any], kwargs: Mapping[str, Any], *, device_ids: tuple[int, ...]
    ) -> tuple[Execution, Arguments]:
        """The task that a call makes, and its arguments: as they are now, whatever the task does to them."""
        arguments = pack_arguments(
            template.name,
            args,
            kwargs,
            inline_bytes_max=self._shared.inline_bytes_max,
            put=self._put,
            drop=self.drop,
            look=lambda refs: [None] * len(refs),
        )
        self.execution.submitted += 1
        task_id = child_task_id(self.execution.task_id, self.execution.attempt, self.execution.submitted)
        execution = Execution(task_id=task_id, name=template.name, device_ids=device_ids, resources=template)
        return execution, arguments

    def _run(
        self,
        process: InlineProcess,
        execution: Execution,
        template: FunctionTemplate,
        packed: Arguments,
        actor: _Actor | None,
    ) -> list[Ref]:
        for ref in packed.deps:
            stored = self._shared.objects[ref.object_id]
            if stored.error is not None:
                return self._fail(execution, template, stored.payload, stored.error, actor)
        before, process.execution, process.is_busy = process.execution, execution, True
        previous = runtime.set_current(process.runtime)
        try:
            args, kwargs = unpack_arguments(packed.payload, self.get(packed.deps, None))
            result = self._call(template, actor, args, kwargs)
            return self._store_results(execution, template, result)
        except Exception as error:  # noqa: BLE001 - it is the user's, and is raised by whoever asks
            return self._fail(execution, template, *as_payload(template.name, error), actor)
        finally:
            runtime.set_current(previous)
            process.execution, process.is_busy = before, False
            for ref in packed.put:
                self.drop(ref.object_id)

    def _call(self, template: FunctionTemplate, actor: _Actor | None, args: list[Any], kwargs: dict[str, Any]) -> Any:
        if actor is not None and actor.instance is not None:
            method = template.method or template.name.rpartition(".")[2]
            return getattr(actor.instance, method)(*args, **kwargs)
        export = self._shared.loaded.get(template.function_id)
        if export is None:
            export = deserialize_own(self._shared.functions[template.function_id])
            self._shared.loaded[template.function_id] = export
        result = export.target(*args, **kwargs)
        if actor is not None:
            actor.instance = result
        return result

    # ---- Results ---------------------------------------------------------------------------------------------

    def _store_results(self, execution: Execution, template: FunctionTemplate, result: Any) -> list[Ref]:
        count = template.num_returns
        if count == 1:
            values = [result]
        else:
            values = list(result) if count else []
            if len(values) != count:
                raise ValueError(f"{template.name} has num_returns={count}, but returned {len(values)} values")
        what = f"return value of {template.name}"
        stored = [serialize(value, what) for value in values]
        self._write_task_row(execution, template, TaskState.FINISHED)
        return [
            self._store(return_object_id(execution.task_id, index), serialized.to_bytes(), nested=serialized.refs)
            for index, serialized in enumerate(stored)
        ]

    def _fail(
        self,
        execution: Execution,
        template: FunctionTemplate,
        payload: bytes,
        error: ErrorInfo,
        actor: _Actor | None = None,
    ) -> list[Ref]:
        if actor is not None and actor.instance is None:
            actor.error = payload, error
        self._write_task_row(execution, template, TaskState.FAILED)
        row = {"kind": str(error.kind), "message": error.message}
        self._shared.tables.setdefault("errors", {})[execution.task_id.hex()] = row
        return [
            self._store(return_object_id(execution.task_id, index), payload, error)
            for index in range(template.num_returns)
        ]

    def _write_task_row(self, execution: Execution, template: FunctionTemplate, state: TaskState) -> None:
        row = {"name": template.name, "state": state.value, "attempt": "0", "worker": self.address}
        self._shared.tables.setdefault("tasks", {})[execution.task_id.hex()] = row

    def _store(
        self, object_id: ObjectID, payload: bytes, error: ErrorInfo | None = None, nested: tuple[Ref, ...] = ()
    ) -> Ref:
        self._shared.objects[object_id] = _Object(payload, error, nested, count=1)
        for ref in nested:
            self.adopt(ref)
        fields = {"owner": self.address, "bytes": str(len(payload)), "nodes": NODE}
        self._shared.tables.setdefault("objects", {})[object_id.hex()] = fields
        return Ref(object_id, self.address)

    # ---- Values ----------------------------------------------------------------------------------------------

    def put(self, value: Any) -> Ref:
        """Store a value."""
        return self._put(serialize(value))

    def _put(self, serialized: Serialized) -> Ref:
        self.execution.puts += 1
        object_id = put_object_id(self.execution.task_id, self.execution.attempt, self.execution.puts)
        return self._store(object_id, serialized.to_bytes(), nested=serialized.refs)

    def get(self, refs: Sequence[Ref], timeout_ns: int | None) -> list[Any]:
        """The values, in order; nothing has to be waited for.

        Raises:
            DualrayError: the first one, in order, that has failed.
        """
        values = []
        for ref in refs:
            stored = self._shared.objects.get(ref.object_id)
            if stored is None:
                raise ObjectLostError(f"object {ref.object_id.hex()} was freed")
            if stored.error is not None:
                raise as_exception(stored.error, stored.payload or None)
            values.append(deserialize(stored.payload))
        return values

    def wait(
        self, refs: Sequence[Ref], *, num_returns: int, timeout_ns: int | None, fetch_local: bool
    ) -> frozenset[ObjectID]:
        """All of them are ready."""
        return frozenset(ref.object_id for ref in refs)

    # ---- References ------------------------------------------------------------------------------------------

    def adopt(self, ref: Ref) -> None:
        """There is one more reference."""
        counted = self._counted(ref.object_id)
        if counted is not None:
            counted.count += 1

    def drop(self, object_id: ObjectID) -> None:
        """There is one fewer."""
        counted = self._counted(object_id)
        if counted is not None:
            counted.count -= 1
            if counted.count <= 0:
                self._free(object_id)

    def _counted(self, object_id: ObjectID) -> _Object | _Actor | None:
        return self._shared.objects.get(object_id) or self._shared.actors.get(object_id)

    def _free(self, object_id: ObjectID) -> None:
        self._shared.actors.pop(object_id, None)
        stored = self._shared.objects.pop(object_id, None)
        for ref in stored.nested if stored is not None else ():
            self.drop(ref.object_id)

    # ---- The cluster -----------------------------------------------------------------------------------------

    def cluster_state(self) -> tuple[NodeState, ...]:
        """One node, of which nothing is ever in use."""
        total = self._shared.total
        return (NodeState(node=NODE, incarnation=0, alive=True, total=total, available=total),)

    def cancel(self, ref: Ref, *, force: bool, recursive: bool) -> None:
        """Every call has ended before its reference is there."""

    def kill_actor(self, handle: Ref, *, no_restart: bool) -> None:
        """The actor is gone."""
        self._shared.actors.pop(handle.object_id, None)

    # ---- Tables ----------------------------------------------------------------------------------------------

    def read_table(self, table: str) -> dict[str, dict[str, str]]:
        """A table, as the program's tasks have filled it."""
        if table == "nodes":
            total = str(self._shared.total)
            return {NODE: {"health": "ALIVE", "incarnation": "0", "total": total, "store_bytes": "0"}}
        return {key: dict(row) for key, row in self._shared.tables.get(table, {}).items()}

    @property
    def shared(self) -> _Shared:
        """What all processes of the program have in common."""
        return self._shared


class InlineRuntime:
    """PYTHON_MODE, as one of its processes sees it."""

    mode = "inline"
    owns_interpreter = True
    threads_may_wait = True
    models_calls = False

    def __init__(self, process: InlineProcess) -> None:
        self.core = process
        self.verbs = VerbsOverCore(process, process.shared.device_names)

    @property
    def device_names(self) -> Names:
        return self.core.shared.device_names

    @property
    def logs(self) -> NoReturn:
        raise DualrayError("PYTHON_MODE has no log files, because its tasks print to the stdout of the program")

    def free_port(self) -> int:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]
            return port

    def addresses(self) -> dict[str, str]:
        return {
            "node_ip_address": "127.0.0.1",
            "control_plane_address": "this process",
            "object_store_address": "this process",
            "local_scheduler_address": "this process",
            "session_dir": "",
        }

    def read_table(self, name: str) -> dict[str, dict[str, str]]:
        return self.core.read_table(name)

    def write_row(self, table: str, key: str, fields: Mapping[str, str]) -> None:
        self.core.shared.tables.setdefault(table, {})[key] = dict(fields)

    def read_functions(self) -> dict[FunctionID, bytes]:
        return dict(self.core.shared.functions)

    def trace_source(self) -> NoReturn:
        raise DualrayError(
            "timeline: PYTHON_MODE records no events. To record a run, use dualray.init(mode='sim', "
            "decision_log='DIR')."
        )

    def show_bar(self, state: BarState) -> None:
        DISPLAY.take("", state)

    def silence(self) -> None:
        """Errors are raised where the program asks for values; nothing is told besides."""

    def end_in_fork(self) -> bool:
        """Everything is in this process."""
        return False

    def shutdown(self) -> None:
        """Forget everything. A task cannot do so: what it was given goes on."""
        if not self.core.execution.is_task:
            self.core.is_closed = self.verbs.is_closed = True
            self.core.shared.objects.clear()
            self.core.shared.actors.clear()


def start(
    *,
    num_cpus: float | None,
    num_gpus: float | None,
    resources: Mapping[str, float] | None,
    object_id_seed: int | None,
) -> InlineRuntime:
    """Make the runtime; the caller is its driver.

    Raises:
        ValueError: resources that are wrong.
    """
    given = {"num_cpus": num_cpus, "num_gpus": num_gpus, "resources": resources, "object_id_seed": object_id_seed}
    settings = resolve({name: value for name, value in given.items() if value is not None})
    total, device_names = runtime.engine("real").total_of(
        *(settings[name].value for name in ("num_cpus", "num_gpus", "resources", "memory"))
    )
    shared = _Shared(total=total, device_names=device_names, inline_bytes_max=limits_of(settings).inline_bytes_max)
    for device in devices_of(dict(total.units)):
        shared.devices.setdefault(device // DEVICES_MAX, []).append(device)
    root = root_task_id(str(settings["object_id_seed"].value or ""), 1)
    return InlineProcess(shared, FIRST_DRIVER, root, is_driver=True).runtime
