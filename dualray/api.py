"""The verbs: init, shutdown, remote, get, put, wait, kill, and questions about the cluster.

The mode is chosen once, in `init`; nothing below it asks which one it is.
"""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, overload

from dualray import runtime
from dualray.actor import ActorClass, ActorHandle, exit_actor, get_actor, handle_to, method
from dualray.exceptions import AlreadyInitializedError
from dualray.object_ref import ObjectRef
from dualray.object_ref_generator import ObjectRefGenerator
from dualray.options import ActorOptions, TaskOptions, with_changes
from dualray.remote_function import RemoteFunction
from dualray.settings import SETTINGS, limits_of, resolve
from dualray.shared.model.resources import GPU

T = TypeVar("T")
R = TypeVar("R")


def init(
    *,
    address: str | None = None,
    mode: str | None = None,
    num_cpus: float | None = None,
    num_gpus: float | None = None,
    resources: Mapping[str, float] | None = None,
    memory: int | str | None = None,
    labels: Mapping[str, str] | Sequence[Mapping[str, str]] | None = None,
    object_store_memory: int | str | None = None,
    seed: int | None = None,
    object_id_seed: int | None = None,
    decision_log: Any = None,
    record: Any = None,
    runtime_env: Mapping[str, Any] | None = None,
    infeasible: str | None = None,
    limits: Mapping[str, Any] | None = None,
    log_to_driver: bool | None = None,
    redirect_output: bool | None = None,
    log_directory: Any = None,
    namespace: str | None = None,
    num_redis_shards: int | None = None,
    metrics_port: int | None = None,
    nodes: int | None = None,
    faults: Sequence[Any] | None = None,
    scenario: Any = None,
    calibration: Any = None,
    task_profile: Any = None,
    sim_unsafe: str | None = None,
    ignore_reinit_error: bool = False,
) -> runtime.Runtime:
    """Start a cluster and connect this process to it as the driver.

    Args:
        address: real mode: join the cluster whose head is at "host:port", through its node on this machine, or with
            "auto" the one that runs here; `shutdown` then leaves it running. Default: start a cluster.
        mode: "real" (processes on this machine; the default) or "sim" (a virtual cluster in this process).
        num_cpus, num_gpus, resources: what each node has. Default: real as found, with the GPUs that
            CUDA_VISIBLE_DEVICES shows (docs/real_mode.md); sim 4 CPUs.
        memory: bytes, or a text such as "16GiB", that each node offers to tasks and actors that say `memory=`; see
            docs/api/tasks.md. Default: none.
        labels: of each node, such as {"zone": "a"}; sim mode: or a list with those of each node. See
            docs/api/placement.md.
        object_store_memory: bytes of each node's object store, or a text such as "2GiB".
        seed: seeds the randomness of tasks from their ids (sim: 0 when not given).
        object_id_seed: the root of all ids.
        decision_log: a directory for the decision logs and traces of every process (`dualray replay`).
        record: a Parquet file for the record of the run, which `dualray predict` runs again on other clusters; written
            by `shutdown`. See docs/whatif.md.
        infeasible: what a demand does that no node can ever meet: "raise" an error at once, or "wait" for a node that
            can. Default: "raise", unless the cluster was joined by its address.
        runtime_env: environment variables and import paths of all tasks and actors; see docs/api/tasks.md.
        limits: limits and policies of the core, by name; `dualray config` lists them.
        log_to_driver: real mode: show what workers print. Default True.
        redirect_output: real mode: what workers print goes to files only. Default False.
        log_directory: real mode: keep the logs of all processes in a directory of the session's name in here. Default:
            with the session's other files, which go when it ends.
        namespace: where the names of this program's actors stand; programs that are to find one another's actors on one
            cluster give the same one. Default: one of its own.
        num_redis_shards: real mode: servers of the control plane to start beside the primary one; its tables are then
            spread among them. Default 0, at most 64. See docs/cluster.md.
        metrics_port: real mode: serve metrics for Prometheus at this port of 127.0.0.1; 0: any that is free (see
            `metrics_address` of what is returned). Default: not. See docs/metrics.md.
        nodes: sim mode: how many virtual nodes. Default 1.
        faults: sim mode: faults to inject, such as "kill node-5 at 2.5s"; see dualray/shared/scenario/fault_model.py.
        scenario: sim mode: a scenario file (docs/scenarios.md); its cluster and config take the place of those above,
            its faults come before `faults`.
        calibration: sim mode: a calibration file; its costs take the place of the cost model's defaults, and
            a scenario's `costs` take precedence. See docs/whatif.md.
        task_profile: sim mode: a recorded run (`record`), preferably of real processes; each task without a duration
            of its own takes what one of those of its name took there. See docs/simulation.md.
        sim_unsafe: sim mode: what becomes of calls of tasks and actors that lead out of the simulation (sockets,
            processes): "refuse" them with a PermissionError that names the call (the default), or "allow" them, in real
            time. See docs/simulation.md.
        ignore_reinit_error: return the current runtime instead of raising when there is one.

    Each argument may also come from the environment or a config file; see dualray/settings.py.

    Raises:
        AlreadyInitializedError: `init` was called before, and `shutdown` was not.
        ValueError, TypeError: an argument that is wrong, or that belongs to the other mode.
        DualrayError: the cluster at `address` has no node on this machine, or does not answer.
    """
    given = {name: value for name, value in locals().items() if name in SETTINGS and value is not None}
    existing = runtime.current_or_none()
    if existing is not None:
        if ignore_reinit_error:
            return existing
        raise AlreadyInitializedError(
            "dualray.init() was called before. Call dualray.shutdown() first, or pass ignore_reinit_error=True."
        )
    settings = resolve(given)
    config = limits_of(settings)
    engine = runtime.engine(settings["mode"].value)  # the only choice of mode
    started = engine.start({name: entry.value for name, entry in settings.items()}, config)
    runtime.set_current(started)
    return started


def shutdown() -> None:
    """End what `init` started: tasks, actors, processes, segments. Without `init`, nothing happens."""
    existing = runtime.current_or_none()
    if existing is not None:
        try:
            existing.shutdown()
        finally:
            runtime.set_current(None)


def is_initialized() -> bool:
    """Whether `init` was called and `shutdown` was not."""
    return runtime.current_or_none() is not None


@overload
def remote(target: type[T], /) -> ActorClass[T]: ...  # type: ignore[overload-overlap]  # a class is a callable too


@overload
def remote(target: Callable[..., R], /) -> RemoteFunction[R]: ...


@overload
def remote(**options: Any) -> Callable[[Any], Any]: ...


def remote(*targets: Any, **options: Any) -> Any:
    """Make a function a task, or a class an actor: `@remote`, `@remote(num_cpus=2)`, or `remote(function)`.

    Options: see dualray/options.py.

    Raises:
        ValueError, TypeError: an unknown option (with the nearest known one), a value that it cannot have, or a target
            that is neither function nor class.
    """
    if options or not targets:
        if targets:
            raise TypeError("remote takes a function or class, or options by name, not both")
        return lambda target: _make_remote(target, options)
    if len(targets) > 1:
        raise TypeError(f"remote takes one function or class, not {len(targets)}")
    return _make_remote(targets[0], {})


def _make_remote(target: Any, options: Mapping[str, Any]) -> RemoteFunction[Any] | ActorClass[Any]:
    if inspect.isclass(target):
        return ActorClass(target, with_changes(ActorOptions(), options, f"actor class {target.__name__}"))
    if isinstance(target, RemoteFunction | ActorClass):
        raise TypeError(f"{target!r} is remote already")
    if not callable(target):
        raise TypeError(f"remote was given {target!r}, which is neither a function nor a class")
    name = getattr(target, "__name__", type(target).__name__)
    return RemoteFunction(target, with_changes(TaskOptions(), options, f"remote function {name}"))


@overload
def get(refs: ObjectRef[T], *, timeout: float | None = None) -> T: ...


@overload
def get(refs: Sequence[ObjectRef[Any]], *, timeout: float | None = None) -> list[Any]: ...


def get(refs: Any, *, timeout: float | None = None) -> Any:
    """The value of a reference, or the values of a list of them, waiting until they exist.

    Args:
        refs: one ObjectRef, or a list of them. (An ObjectRefGenerator is returned as it is, as in Ray.)
        timeout: seconds; None waits without end, 0 means what is there now.

    Raises:
        GetTimeoutError: not all values were there in time.
        TaskError: a task failed: an instance of its own exception's type too, with `.cause`.
        ObjectLostError, WorkerCrashedError, ActorDiedError, ...: see dualray/exceptions.py.
        TypeError: something that is not a reference.
    """
    verbs = runtime.current("get").verbs
    if isinstance(refs, ObjectRef):
        refs.check()
        return verbs.get([refs.ref], _timeout_ns(timeout))[0]
    if isinstance(refs, ObjectRefGenerator):
        return refs
    if not isinstance(refs, list | tuple):
        raise TypeError(f"get takes an ObjectRef or a list of them, not {refs!r} (a {type(refs).__name__})")
    _check_refs("get", refs)
    if not refs:
        return []
    return verbs.get([ref.ref for ref in refs], _timeout_ns(timeout))


def put(value: T) -> ObjectRef[T]:
    """Store a value; a reference to it. Small ones stay in this process, large ones go to the node's object store.

    Raises:
        ObjectStoreFullError: no room; the message names the largest holders.
        SerializationError: the value cannot be pickled.
        TypeError: the value is itself a reference.
    """
    verbs = runtime.current("put").verbs
    if isinstance(value, ObjectRef):
        raise TypeError(f"put was given {value!r}, which is a reference already; put a list that holds it if you must")
    return ObjectRef(verbs.put(value), verbs)


def wait(
    refs: list[ObjectRef[Any]], *, num_returns: int = 1, timeout: float | None = None, fetch_local: bool = True
) -> tuple[list[ObjectRef[Any]], list[ObjectRef[Any]]]:
    """Wait until `num_returns` of the references are ready; (ready, not ready), each in the order given.

    Args:
        refs: a list of distinct references, ObjectRefGenerators among them: one of these is ready when its next item is
            there, or when there are no more.
        num_returns: at least 1, at most len(refs). At most this many are returned as ready.
        timeout: seconds; None waits without end, 0 means what is there now.
        fetch_local: count a value only when it is on this node.

    Raises:
        TypeError: refs is no list, or holds something that is not a reference.
        ValueError: duplicates, or a num_returns that cannot be met.
    """
    verbs = runtime.current("wait").verbs
    if not isinstance(refs, list):
        raise TypeError(f"wait takes a list of ObjectRefs, not {refs!r} (a {type(refs).__name__})")
    if any(isinstance(ref, ObjectRefGenerator) for ref in refs):
        return _wait_with_generators(refs, num_returns, timeout, fetch_local=fetch_local)
    _check_refs("wait", refs)
    seen: dict[ObjectRef[Any], int] = {}
    for index, ref in enumerate(refs):
        if ref in seen:
            raise ValueError(f"wait was given duplicates: {ref!r} at index {seen[ref]} and at index {index}")
        seen[ref] = index
    if not refs and num_returns == 1:
        return [], []
    if isinstance(num_returns, bool) or not isinstance(num_returns, int):
        raise TypeError(f"num_returns={num_returns!r} must be an int")
    if not 1 <= num_returns <= len(refs):
        raise ValueError(f"num_returns={num_returns} must be between 1 and the number of references, {len(refs)}")
    done = verbs.wait(
        [ref.ref for ref in refs],
        num_returns=num_returns,
        timeout_ns=_timeout_ns(timeout),
        fetch_local=fetch_local,
    )
    ready = [ref for ref in refs if ref.ref.object_id in done][:num_returns]
    chosen = set(ready)
    return ready, [ref for ref in refs if ref not in chosen]


def _wait_with_generators(
    refs: list[Any], num_returns: int, timeout: float | None, *, fetch_local: bool
) -> tuple[list[Any], list[Any]]:
    """`wait`, with the next items of generators in their place."""
    waited_for = [ref.waited_for if isinstance(ref, ObjectRefGenerator) else ref for ref in refs]
    ready, _ = wait(waited_for, num_returns=num_returns, timeout=timeout, fetch_local=fetch_local)
    found = set(ready)
    is_ready = [ref in found for ref in waited_for]
    return (
        [ref for ref, now in zip(refs, is_ready, strict=True) if now],
        [ref for ref, now in zip(refs, is_ready, strict=True) if not now],
    )


def _check_refs(verb: str, refs: Sequence[Any]) -> None:
    for index, ref in enumerate(refs):
        if not isinstance(ref, ObjectRef):
            raise TypeError(f"{verb}: item {index} is {ref!r} (a {type(ref).__name__}), not an ObjectRef")
        ref.check()


def _timeout_ns(timeout: float | None) -> int | None:
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, int | float):
        raise TypeError(f"timeout={timeout!r} must be a number of seconds, or None")
    if not timeout >= 0:
        raise ValueError(f"timeout={timeout!r} must not be negative; it counts seconds, and None waits without end")
    return None if timeout == math.inf else round(timeout * 1e9)


def kill(actor: ActorHandle, *, no_restart: bool = True) -> None:
    """End an actor now, whatever it does. With `no_restart=False` it may come back, as max_restarts allows.

    Raises:
        TypeError: not an actor handle.
    """
    verbs = runtime.current("kill").verbs
    if not isinstance(actor, ActorHandle):
        raise TypeError(f"kill takes an actor handle, not {actor!r} (a {type(actor).__name__})")
    actor.check()
    verbs.kill_actor(actor.ref, no_restart=no_restart)


def cancel(ref: ObjectRef[Any] | ObjectRefGenerator, *, force: bool = False, recursive: bool = True) -> None:
    """End the task that makes `ref`, if it has not ended: see docs/api/tasks.md. Who gets the reference gets
    TaskCancelledError, and so does what needs its value; it is not tried again.

    A task that has not begun does not begin. In one that runs, KeyboardInterrupt is raised in its main thread: it may
    catch it, and then what it returns stands. Returns at once; the task may go on for a while.

    Args:
        ref: what `.remote()` of a function, generator or actor's method has returned. A method that runs goes on.
        force: end the worker of a task that runs, whatever it does.
        recursive: cancel also the tasks that the task has submitted, and theirs.

    Raises:
        TypeError: not a reference.
        ValueError: a reference that `put` has made; or `force` with a method of an actor.
    """
    verbs = runtime.current("cancel").verbs
    if isinstance(ref, ObjectRefGenerator):
        ref = ref.completed()
    if not isinstance(ref, ObjectRef):
        raise TypeError(f"cancel takes an ObjectRef, not {ref!r} (a {type(ref).__name__})")
    ref.check()
    verbs.cancel(ref.ref, force=force, recursive=recursive)


def nodes() -> list[dict[str, Any]]:
    """The nodes that the cluster has had: NodeID, Alive, Incarnation, Resources, Available (amounts by name),
    Labels."""
    return [
        {
            "NodeID": row.node_id,
            "Alive": row.is_alive,
            "Incarnation": row.incarnation,
            "Resources": row.resources,
            "Available": row.available,
            "Labels": row.labels,
        }
        for row in runtime.current("nodes").verbs.nodes()
    ]


def cluster_resources() -> dict[str, float]:
    """The resources of all nodes that are alive, by name."""
    return runtime.current("cluster_resources").verbs.cluster_resources()


def available_resources() -> dict[str, float]:
    """What is not leased now, over all nodes that are alive; names of which nothing is free are absent."""
    return runtime.current("available_resources").verbs.available_resources()


def get_gpu_ids() -> list[int | str]:
    """The GPUs that the current task or actor holds; in a driver, none.

    They are what CUDA_VISIBLE_DEVICES of the task says: numbers, or, where whoever started the node has named its GPUs
    otherwise, UUIDs such as "GPU-5f0e...".
    """
    return [
        int(name) if name.isdigit() else name
        for name in RuntimeContext(runtime.current("get_gpu_ids")).get_accelerator_ids()[GPU]
    ]


@dataclass(frozen=True, slots=True)
class RuntimeContext:
    """Where this code runs; see `get_runtime_context`."""

    _runtime: runtime.Runtime

    @property
    def mode(self) -> str:
        """`real` or `sim`."""
        return self._runtime.mode

    @property
    def _here(self) -> runtime.CallContext:
        return self._runtime.verbs.context()

    def get_node_id(self) -> str:
        """The node, such as `node-0`."""
        return self._here.node_id

    def get_worker_id(self) -> str:
        """The process: `driver-1`, or a worker such as `node-0/w3`."""
        return self._here.worker_id

    def get_task_id(self) -> str | None:
        """The task's id in hex; None in a driver."""
        return self._here.task_id

    def get_task_name(self) -> str | None:
        """The task's function, or Class.method; None in a driver."""
        return self._here.task_name

    def get_actor_id(self) -> str | None:
        """The actor's id in hex; None outside an actor."""
        return self._here.actor_id

    def get_actor_name(self) -> str | None:
        """The name under which `get_actor` finds the actor that this runs in; None when it has none, or outside."""
        return self._here.actor_name

    @property
    def namespace(self) -> str:
        """Where the names of actors that are made here stand, unless they say: what `init(namespace=)` was given, or a
        namespace of the job's own. Inside an actor: of the job that made it."""
        return self._runtime.verbs.namespace

    def get_job_id(self) -> str:
        """The number of the driver that this work goes back to, as 8 hex digits."""
        return self._here.job_id

    def get_task_function_name(self) -> str | None:
        """The task's function, or Class.method; None in a driver."""
        return self.get_task_name()

    def get_placement_group_id(self) -> str | None:
        """The id in hex of the placement group that this runs in; None outside of any."""
        return self._here.placement_group_id

    @property
    def should_capture_child_tasks_in_placement_group(self) -> bool:
        """Whether tasks and actors that are made here go to this placement group when they do not say where."""
        return self._here.captures_children

    @property
    def was_current_actor_reconstructed(self) -> bool:
        """Whether the actor has been restarted; False outside an actor."""
        return self._here.is_restarted

    @property
    def current_actor(self) -> ActorHandle:
        """A handle to the actor that this runs in.

        Raises:
            RuntimeError: outside an actor.
        """
        verbs = self._runtime.verbs
        actor = verbs.own_actor()
        if actor is None:
            raise RuntimeError("current_actor is asked for outside an actor")
        return handle_to(actor, verbs)

    @property
    def runtime_env(self) -> dict[str, Any]:
        """The runtime environment that this runs in; in a driver, that which its tasks have unless they say."""
        environment: dict[str, Any] = json.loads(self.get_runtime_env_string())
        return environment

    def get_runtime_env_string(self) -> str:
        """`runtime_env` as JSON."""
        return self._runtime.verbs.runtime_env or "{}"

    def get_node_labels(self) -> dict[str, str]:
        """The labels of the node."""
        verbs = self._runtime.verbs
        here = verbs.context().node_id
        return next((row.labels for row in verbs.nodes() if row.node_id == here), {})

    def get(self) -> dict[str, Any]:
        """What there is to know here, by name; what does not apply is absent."""
        here = self._here
        found = {
            "job_id": here.job_id,
            "node_id": here.node_id,
            "worker_id": here.worker_id,
            "task_id": here.task_id,
            "actor_id": here.actor_id,
            "actor_name": here.actor_name,
            "placement_group_id": here.placement_group_id,
        }
        return {name: value for name, value in found.items() if value is not None}

    def get_attempt(self) -> int:
        """How often this task has been tried before, as far as anybody knows: more often than `max_retries` allows, if
        earlier attempts stood behind another task when their worker was lost. Such a one may have begun, so that the
        next is another attempt; it uses no retry, for it mostly had not."""
        return self._here.attempt

    def get_accelerator_ids(self) -> dict[str, list[str]]:
        """`{"GPU": [...]}`: the GPUs that the task or actor holds, as `get_gpu_ids` has them, as text."""
        return {GPU: list(self._here.gpus)}

    def get_assigned_resources(self) -> dict[str, float]:
        """What the task or actor holds, by name."""
        return dict(self._here.resources)


def get_runtime_context() -> RuntimeContext:
    """Where this code runs: job, node, worker, task, actor, attempt, resources, placement group."""
    return RuntimeContext(runtime.current("get_runtime_context"))


__all__ = [
    "RuntimeContext",
    "available_resources",
    "cancel",
    "cluster_resources",
    "exit_actor",
    "get",
    "get_actor",
    "get_gpu_ids",
    "get_runtime_context",
    "init",
    "is_initialized",
    "kill",
    "method",
    "nodes",
    "put",
    "remote",
    "shutdown",
    "wait",
]
