"""The verbs: init, shutdown, remote, get, put, wait, kill, and questions about the cluster.

The mode is chosen once, in `init`; nothing below it asks which one it is.
"""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, overload

from dualray import runtime
from dualray.actor import ActorClass, ActorHandle, exit_actor, get_actor, method
from dualray.cluster_address import ClusterAddress
from dualray.cluster_context import ClusterContext
from dualray.exceptions import AlreadyInitializedError, NotInitializedError
from dualray.first_verb import started
from dualray.object_ref import ObjectRef
from dualray.object_ref_generator import ObjectRefGenerator
from dualray.options import ActorOptions, TaskOptions, returns_of, unknown_name, with_changes
from dualray.remote_function import RemoteFunction
from dualray.runtime_context import RuntimeContext, get_gpu_ids, get_runtime_context
from dualray.settings import SETTINGS, Resolved, limits_of, resolve
from dualray.version import __version__

T = TypeVar("T")
R = TypeVar("R")


class WrongTypeError(TypeError, ValueError):
    """A verb was given what it does not take: a TypeError, as in Python, and a ValueError, as in Ray."""


def init(
    address: str | None = None,
    *,
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
    durations: str | None = None,
    ignore_reinit_error: bool = False,
    **of_ray: Any,
) -> ClusterContext:
    """Start a cluster and connect this process to it as the driver.

    Args:
        address: real mode: join the cluster whose head is at "host:port", through its node on this machine. "auto"
            joins the one that runs here: that of a parent process, else that of `dualray start`, else that of the one
            other program which called `init()`. The directory of such a program's session names it. `shutdown` leaves
            a joined cluster running. "local", and the default: start a cluster.
        mode: "real" (processes on this machine; the default), "sim" (a virtual cluster in this process) or "ray" (a
            cluster of Ray; see docs/ray.md).
        num_cpus, num_gpus, resources: what each node has. Default: real as found, with the GPUs that
            CUDA_VISIBLE_DEVICES shows (docs/real_mode.md); sim 4 CPUs.
        memory: bytes, or a text such as "16GiB", that each node offers to tasks and actors that say `memory=`; see
            docs/api/tasks.md. Default: 70 % of the node's memory; sim 11.2 GiB.
        labels: of each node, such as {"zone": "a"}; sim mode: or a list with those of each node. See
            docs/api/placement.md.
        object_store_memory: bytes of each node's object store, or a text such as "2GiB".
        seed: seeds the randomness of tasks from their ids (sim: 0 when not given).
        object_id_seed: the root of all ids.
        decision_log: a directory for the decision logs and traces of every process (`dualray replay`).
        record: a Parquet file for the record of the run, which `dualray predict` runs again on other clusters; written
            by `shutdown`. See docs/whatif.md.
        infeasible: what a demand does that no node can meet, beside a warning: "raise" fails it at once, so that `get`
            raises TaskUnschedulableError; "wait" lets it wait for a node that can. Default: "raise", unless the
            cluster was joined by its address: nodes may join it.
        runtime_env: environment variables and import paths of all tasks and actors; see docs/api/tasks.md.
        limits: limits and policies of the core, by name; `dualray config` lists them.
        log_to_driver: show what workers print. Default True.
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
        durations: sim mode: tasks of whose duration neither program nor profile nor scenario says anything take 1 ms on
            average and "vary" around it (the default), by 30 %, or are "fixed" at it.
        ignore_reinit_error: return the context of the current cluster instead of raising when there is one.
        of_ray: arguments of Ray's `init` that dualray needs for nothing, such as `include_dashboard`: they are accepted
            and ignored; in mode "ray", Ray gets them.

    Each argument may also come from the environment or a config file; see dualray/settings.py.

    Returns:
        Where the cluster is: see `ClusterContext`.

    Raises:
        AlreadyInitializedError: `init` was called before, and `shutdown` was not.
        ValueError, TypeError: an argument that is unknown (with the nearest known one) or wrong, or that belongs to the
            other mode.
        DualrayError: the cluster at `address` has no node on this machine, or does not answer.
    """
    given = {name: value for name, value in locals().items() if name in SETTINGS and value is not None}
    if isinstance(address, ClusterAddress):
        given = {**address.settings, **given}
    _check_arguments_of_ray(of_ray)
    existing = runtime.current_or_none()
    if existing is not None:
        if ignore_reinit_error:
            return ClusterContext(existing, __version__)
        raise AlreadyInitializedError(
            "dualray.init() was called before. Call dualray.shutdown() first, or pass ignore_reinit_error=True."
        )
    return ClusterContext(_start(resolve(given), of_ray), __version__)


def _start(settings: Mapping[str, Resolved], of_ray: Mapping[str, Any] | None = None) -> runtime.Runtime:
    config = limits_of(settings)
    engine = runtime.engine(settings["mode"].value)  # the only choice of mode
    given = {name: entry.value for name, entry in settings.items()}
    started = engine.start({**given, "of_ray": of_ray or {}}, config)
    runtime.set_current(started)
    return started


def init_for(verb: str) -> None:
    """Start a cluster with the defaults, for a verb that came before `init`.

    Raises:
        NotInitializedError: the setting `auto_init` forbids it.
    """
    of_ray = sys.modules.get("dualray.as_ray.initializing")  # loaded by `import ray`, whose programs have its defaults
    settings = resolve(of_ray.defaults_of_first_verb() if of_ray is not None else {})
    if of_ray is not None and settings["auto_init"].value and of_ray.joins_own_cluster():
        of_ray.init()
        return
    if not settings["auto_init"].value:
        raise NotInitializedError(
            f"{verb} was called before dualray.init(), and auto_init=False ({settings['auto_init'].source}) keeps it "
            f"from starting a cluster. Call dualray.init() first."
        )
    _start(settings)


OF_RAY = frozenset(
    ("configure_logging", "dashboard_host", "dashboard_port", "enable_resource_isolation", "include_dashboard")
    + ("job_config", "logging_config", "logging_format", "logging_level", "system_reserved_cpu")
    + ("system_reserved_memory", "_cgroup_path", "_driver_object_store_memory", "_enable_object_reconstruction")
    + ("_metrics_export_port", "_node_ip_address", "_node_name", "_plasma_directory", "_redis_password")
    + ("_redis_max_memory", "_redis_username", "_skip_env_hook", "_system_config", "_temp_dir")
    + ("_tracing_startup_hook",)
)
"""Arguments of Ray's `init` that say how Ray's own processes run: dualray has no use for them."""


def _check_arguments_of_ray(given: Mapping[str, Any]) -> None:
    if given.get("local_mode"):
        raise TypeError("init: Ray has withdrawn local_mode; init(mode='sim') runs a cluster in this process")
    known = inspect.signature(init).parameters
    for name in given:
        if name not in OF_RAY and name != "local_mode":
            raise TypeError(unknown_name("argument", name, [one for one in known if one != "of_ray"], "init()"))


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

    Options: docs/api/tasks.md has a task's, docs/api/actors.md an actor's.

    Raises:
        ValueError, TypeError: an unknown option (with the nearest known one), a value that it cannot have, or a target
            that is neither function nor class.
    """
    if options or not targets:
        if targets:
            raise TypeError("remote takes a function or class, or options by name, not both")
        if not options:
            raise TypeError("@remote() has no options in its parentheses: write @remote, or @remote(num_cpus=2)")
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
    if inspect.iscoroutinefunction(target):
        raise ValueError(
            f"remote function {name}: 'async def' is for methods of actors. Make it a plain function that calls "
            f"asyncio.run({name}())"
        )
    of_ray = sys.modules.get("dualray.as_ray.initializing")
    checked = with_changes(
        TaskOptions(), {**(of_ray.defaults_of_tasks() if of_ray else {}), **options}, f"remote function {name}"
    )
    returns_of(checked, target, f"remote function {name}")
    return RemoteFunction(target, checked)


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
    if isinstance(refs, ObjectRef):
        refs._check_usable()
        return runtime.current("get").verbs.get([refs.ref], _timeout_ns(timeout))[0]
    if isinstance(refs, ObjectRefGenerator):
        return refs
    if not isinstance(refs, list | tuple):
        raise WrongTypeError(f"get takes an ObjectRef or a list of them, not {refs!r} (a {type(refs).__name__})")
    _check_refs("get", refs)
    verbs = started("get").verbs
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
    verbs = started("put").verbs
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
    if not isinstance(refs, list):
        raise TypeError(f"wait takes a list of ObjectRefs, not {refs!r} (a {type(refs).__name__})")
    if any(isinstance(ref, ObjectRefGenerator) for ref in refs):
        return _wait_with_generators(refs, num_returns, timeout, fetch_local=fetch_local)
    _check_refs("wait", refs)
    verbs = started("wait").verbs
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
            raise WrongTypeError(f"{verb}: item {index} is {ref!r} (a {type(ref).__name__}), not an ObjectRef")
        ref._check_usable()


def _timeout_ns(timeout: float | None) -> int | None:
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, int | float):
        raise TypeError(f"timeout={timeout!r} must be a number of seconds, or None")
    if not timeout >= 0:
        raise ValueError(f"timeout={timeout!r} must not be negative; it counts seconds, and None waits without end")
    if timeout == math.inf:
        return None
    timeout_ns = round(timeout * 1e9)
    return timeout_ns + (timeout_ns / 1e9 < timeout)  # never shorter than asked


def kill(actor: ActorHandle, *, no_restart: bool = True) -> None:
    """End an actor now, whatever it does. With `no_restart=False` it may come back, as max_restarts allows.

    Raises:
        TypeError: not an actor handle.
    """
    if not isinstance(actor, ActorHandle):
        raise WrongTypeError(
            f"kill takes an actor handle, not {actor!r} (a {type(actor).__name__}); cancel() is for tasks"
        )
    actor._check_usable()
    runtime.current("kill").verbs.kill_actor(actor.ref, no_restart=no_restart)


def cancel(ref: ObjectRef[Any] | ObjectRefGenerator, *, force: bool = False, recursive: bool = True) -> None:
    """End the task that makes `ref`, if it has not ended: see docs/api/tasks.md. Who gets the reference gets
    TaskCancelledError, and so does what needs its value; it is not tried again.

    A task that has not begun does not begin. In one that runs, KeyboardInterrupt is raised in its main thread: it may
    catch it, and then what it returns stands. Returns at once; the task may go on for a while.

    Args:
        ref: what `.remote()` of a function, generator or actor's method has returned. A method that runs goes on,
            unless it is a coroutine; its result is discarded.
        force: end the worker of a task that runs, whatever it does.
        recursive: cancel also the tasks that the task has submitted, and theirs.

    Raises:
        TypeError: not a reference.
        ValueError: a reference that `put` has made; or `force` with a method of an actor.
    """
    if isinstance(ref, ObjectRefGenerator):
        ref = ref.completed()
    if not isinstance(ref, ObjectRef):
        raise TypeError(f"cancel takes an ObjectRef, not {ref!r} (a {type(ref).__name__})")
    ref._check_usable()
    runtime.current("cancel").verbs.cancel(ref.ref, force=force, recursive=recursive)


def nodes() -> list[dict[str, Any]]:
    """The nodes that the cluster has had, a dict each.

    dualray's own are Incarnation (how often the node was replaced) and Available (amounts by name); the others are
    Ray's: NodeID, Alive and `alive`, Resources (amounts by name), Labels, NodeManagerAddress and NodeName (the IP
    address), NodeManagerHostname, and what stands for ports and sockets of Ray's own processes: 0 and "".
    """
    return [
        {
            "NodeID": row.node_id,
            "Alive": row.is_alive,
            "Incarnation": row.incarnation,
            "Resources": row.resources,
            "Available": row.available,
            "Labels": row.labels,
            "NodeManagerAddress": row.ip_address,
            "NodeManagerHostname": row.hostname,
            "NodeName": row.ip_address,
            "alive": row.is_alive,
            **dict.fromkeys(_PORTS, 0),
            **dict.fromkeys(_SOCKETS, ""),
            "DeathReason": 0 if row.is_alive else 2,
            "DeathReasonMessage": "",
        }
        for row in runtime.current("nodes").verbs.nodes()
    ]


_PORTS = ("NodeManagerPort", "ObjectManagerPort", "MetricsExportPort", "MetricsAgentPort", "RuntimeEnvAgentPort")
_SOCKETS = ("ObjectStoreSocketName", "RayletSocketName")


def cluster_resources() -> dict[str, float]:
    """The resources of all nodes that are alive, by name."""
    return runtime.current("cluster_resources").verbs.cluster_resources()


def available_resources() -> dict[str, float]:
    """What is not leased now, over all nodes that are alive; names of which nothing is free are absent."""
    return runtime.current("available_resources").verbs.available_resources()


__all__ = [
    "ClusterContext",
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
