"""The functions of dualray's API: init, shutdown, remote, get, put, wait, kill, cancel, and queries about the cluster.

`init` chooses the mode: real processes, a simulation, or a Ray cluster. All other functions work in the same way in
each mode.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from typing import Any, TypeVar, overload

from dualray import runtime
from dualray.actor import ActorClass, ActorHandle, exit_actor, get_actor, method
from dualray.cluster_address import ClusterAddress
from dualray.cluster_context import ClusterContext
from dualray.exceptions import AlreadyInitializedError, NotInitializedError, rays_words
from dualray.first_verb import started
from dualray.object_ref import ObjectRef
from dualray.object_ref_generator import ObjectRefGenerator
from dualray.options import ActorOptions, TaskOptions, returns_of, unknown_name, with_changes
from dualray.remote_function import RemoteFunction
from dualray.runtime import ambient
from dualray.runtime_context import RuntimeContext, get_gpu_ids, get_runtime_context
from dualray.settings import SETTINGS, Resolved, limits_of, resolve
from dualray.version import __version__

T = TypeVar("T")
R = TypeVar("R")


class WrongTypeError(TypeError, ValueError):
    """An argument of a function of the API has a wrong type. The error is a TypeError and, as in Ray, a ValueError."""


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
    """Start or join a cluster, and make the calling process a driver of the cluster.

    Args:
        address: the cluster to join, which must have a node on this machine: "host:port" of its head, the directory of
            a program's session, or "auto". "auto" joins the cluster of a parent process. Without a parent process in a
            cluster, "auto" joins the cluster of `dualray start`, or the cluster of the only other program that called
            `init()`. `shutdown` leaves a joined cluster running. Without an address, or with "local", `init` starts a
            cluster. In sim mode, a program cannot join a cluster.
        mode: "real" (processes on this machine; the default), "sim" (a virtual cluster in this process) or "ray" (a
            cluster of Ray; see docs/ray.md).
        num_cpus: the number of CPUs of each node. By default, a node has all CPUs of this machine in real mode, and 4
            CPUs in sim mode.
        num_gpus: the number of GPUs of each node. By default, a node has all GPUs that CUDA_VISIBLE_DEVICES allows in
            real mode (docs/real_mode.md), and no GPU in sim mode.
        resources: custom resources of each node, such as {"disk": 2}. By default, a node has the accelerators other
            than GPUs that dualray finds on this machine in real mode (docs/real_mode.md), and no custom resources in
            sim mode.
        memory: how much memory of each node tasks and actors can reserve with `memory=`, in bytes or as a text such as
            "16GiB"; see docs/api/tasks.md. The default is 70 % of the node's memory in real mode, and 11.2 GiB in sim
            mode.
        labels: labels of each node, such as {"zone": "a"}. In sim mode, a list with one dict for each node is also
            possible. See docs/api/placement.md.
        object_store_memory: size of each node's object store, in bytes or as a text such as "2GiB". The default is 30 %
            of the node's memory in real mode, and 2 GiB in sim mode.
        seed: seed of the random numbers that tasks use. The seed of a task depends on this seed and on the task's id.
            In sim mode, the default is 0.
        object_id_seed: seed from which dualray derives all ids.
        decision_log: a directory to which every process writes its decision log and trace, for `dualray replay`.
        record: a Parquet file to which `shutdown` writes a record of the run for `dualray predict`; see docs/whatif.md.
        infeasible: what dualray does, after a warning, with a task or actor that no node can run. With "raise", `get`
            raises TaskUnschedulableError at once. With "wait", the task waits until a suitable node joins. The default
            is "raise" in a cluster that `init` starts, which no node can join. In a cluster that `dualray start`
            started, the default is "wait".
        runtime_env: environment variables and import paths of all tasks and actors; see docs/api/tasks.md.
        limits: values for limits and policies, by name. `dualray config` lists all limits and policies.
        log_to_driver: whether this process prints the output of workers. Default: True.
        redirect_output: in real mode, whether dualray writes the output of workers only to files. Default: False.
        log_directory: in real mode, a directory in which dualray keeps the logs of all processes, in a subdirectory
            with the session's name. The default is the session's directory, which dualray removes when the session
            ends.
        namespace: the namespace of this program's named actors. Programs with the same namespace find one another's
            named actors. Default: a new namespace.
        num_redis_shards: in real mode, the number of additional Redis servers (at most 64) over which dualray
            distributes the tables of the control plane. Default: 0. See docs/cluster.md.
        metrics_port: in real mode, the port on 127.0.0.1 at which dualray serves metrics for Prometheus. 0 means any
            free port, which `metrics_address` of the returned context gives. By default, dualray serves no metrics. See
            docs/metrics.md.
        nodes: in sim mode, the number of virtual nodes. Default: 1.
        faults: in sim mode, faults to inject, such as "kill node-5 at 2.5s"; see docs/scenarios.md.
        scenario: in sim mode, a scenario file (docs/scenarios.md). The scenario's cluster and config replace the other
            arguments of `init`, and dualray adds `faults` to the scenario's faults.
        calibration: in sim mode, a calibration file, whose costs replace the defaults of the cost model. The `costs` of
            a scenario take precedence over the calibration. See docs/whatif.md.
        task_profile: in sim mode, a file of a recorded run (`record`), preferably of real processes. A task without a
            duration takes as long as a task with the same name took in the recorded run. See docs/simulation.md.
        sim_unsafe: in sim mode, what happens when a task or an actor uses something that a simulation does not control,
            such as a socket or a process. With "refuse" (the default), the call raises a PermissionError that names the
            call. With "allow", the call runs in real time. See docs/simulation.md.
        durations: in sim mode, how long a task takes if neither the program nor a profile nor a scenario gives its
            duration. "vary" (the default) means 1 ms on average, with a coefficient of variation of 0.3. "fixed" means
            always 1 ms.
        ignore_reinit_error: whether `init` returns the context of a cluster that already runs, instead of raising an
            error.
        of_ray: other arguments of Ray's `init`, such as `include_dashboard`. dualray passes these arguments to Ray in
            mode "ray", and ignores them in other modes.

    You can also set each argument with an environment variable (DUALRAY_<NAME>) or in dualray.toml. `dualray config`
    shows the values and their sources.

    Returns:
        A `ClusterContext` with the addresses of the cluster.

    Raises:
        AlreadyInitializedError: the program has already called `init`, and has not called `shutdown` since.
        ValueError, TypeError: an argument is unknown (the message names the most similar argument), has a wrong value,
            or belongs to another mode.
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
            "This program has already called dualray.init(). Call dualray.shutdown() first, or pass "
            "ignore_reinit_error=True."
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
    if of_ray is not None and settings["auto_init"].value and of_ray.joins_a_cluster():
        of_ray.init()
        return
    if not settings["auto_init"].value:
        raise NotInitializedError(
            f"{verb} was called before dualray.init(), and auto_init=False (set by: "
            f"{settings['auto_init'].source}) does not allow {verb} to start a cluster. Call dualray.init() first."
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
        raise TypeError(
            "init has no argument local_mode, because Ray removed this argument. To simulate a cluster within this "
            "process, use init(mode='sim')"
        )
    known = inspect.signature(init).parameters
    for name in given:
        if name not in OF_RAY and name != "local_mode":
            raise TypeError(unknown_name("argument", name, [one for one in known if one != "of_ray"], "init()"))


def shutdown() -> None:
    """End the cluster that `init` started and all its processes, or leave the cluster that `init` joined.

    If the program has not called `init`, `shutdown` does nothing.
    """
    existing = runtime.current_or_none()
    if existing is not None:
        try:
            existing.shutdown()
        finally:
            runtime.set_current(None)


def is_initialized() -> bool:
    """Return whether the calling process is connected to a cluster, after `init` and before `shutdown`."""
    return runtime.current_or_none() is not None


@overload
def remote(target: type[T], /) -> ActorClass[T]: ...  # type: ignore[overload-overlap]  # a class is a callable too


@overload
def remote(target: Callable[..., R], /) -> RemoteFunction[R]: ...


@overload
def remote(**options: Any) -> Callable[[Any], Any]: ...


def remote(*targets: Any, **options: Any) -> Any:
    """Turn a function into a remote function, or a class into an actor class.

    Write `@remote`, `@remote(num_cpus=2)` or `remote(function)`. docs/api/tasks.md lists the options of tasks, and
    docs/api/actors.md the options of actors.

    Raises:
        ValueError, TypeError: an option is unknown (the message names the most similar option) or has a wrong value, or
            the target is neither a function nor a class.
    """
    if options or not targets:
        if targets:
            raise TypeError("@remote takes either a function or a class, or keyword options, but not both")
        if not options:
            raise TypeError("@remote() has no options in its parentheses: write @remote, or @remote(num_cpus=2)")
        return lambda target: _make_remote(target, options)
    if len(targets) > 1:
        raise TypeError(f"remote takes one function or one class, but got {len(targets)} arguments")
    return _make_remote(targets[0], {})


def _make_remote(target: Any, options: Mapping[str, Any]) -> RemoteFunction[Any] | ActorClass[Any]:
    if inspect.isclass(target):
        return ActorClass(target, with_changes(ActorOptions(), options, f"actor class {target.__name__}"))
    if isinstance(target, RemoteFunction | ActorClass):
        raise TypeError(f"{target!r} is already remote; leave out the second @remote")
    if not callable(target):
        raise TypeError(f"@remote takes a function or a class, not {target!r}")
    name = getattr(target, "__name__", type(target).__name__)
    if inspect.iscoroutinefunction(target):
        raise ValueError(
            f"remote function {name} is an 'async def' function, but only methods of actors can be async. Write a "
            f"plain function that calls asyncio.run({name}())"
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
    """Wait until the values of ObjectRefs are ready, and return the values.

    Args:
        refs: one ObjectRef, or a list of ObjectRefs. `get` of an ObjectRefGenerator returns the generator itself, as in
            Ray.
        timeout: how many seconds `get` waits at most. With None or, as in Ray, -1, `get` waits without a limit. With 0,
            `get` does not wait.

    Returns:
        The value of one reference, or a list with the values of a list of references.

    Raises:
        GetTimeoutError: not every value was ready within the timeout.
        TaskError: a task raised an exception. The TaskError is also an instance of the exception's type, and its
            `.cause` is the exception.
        ObjectLostError, WorkerCrashedError, ActorDiedError, ...: see `dualray.exceptions`.
        TypeError: an item is not a reference.
    """
    now = ambient.runtime  # before the check: the next cluster uses ids again
    if isinstance(refs, ObjectRef):
        refs._check_usable(_UNKNOWN_OWNERS)
        return (now or runtime.current("get")).verbs.get([refs.ref], _timeout_ns(timeout, -1))[0]
    if isinstance(refs, ObjectRefGenerator):
        return refs
    if not isinstance(refs, list | tuple):
        raise WrongTypeError(
            f"get takes an ObjectRef or a list of ObjectRefs, not {refs!r} (type {type(refs).__name__})"
        )
    _check_refs("get", refs)
    for ref in refs:
        ref._check_usable(_UNKNOWN_OWNERS)
    verbs = (now or started("get")).verbs
    if not refs:
        return []
    return verbs.get([ref.ref for ref in refs], _timeout_ns(timeout, -1))


def put(value: T) -> ObjectRef[T]:
    """Store a value in the cluster, and return an ObjectRef to the value.

    `put` writes a value of more than 100 KiB to the object store of this node. A smaller value stays in the memory of
    this process.

    Raises:
        ObjectStoreFullError: the object store has no space. The message names the objects that take most of the space.
        SerializationError: the value cannot be pickled.
        TypeError: the value is a reference.
    """
    verbs = started("put").verbs
    if isinstance(value, ObjectRef):
        raise TypeError(
            f"put takes a value, not the ObjectRef {value!r}: use the ObjectRef itself, or put a list that "
            "contains the ObjectRef"
        )
    return ObjectRef(verbs.put(value), verbs)


def wait(
    refs: list[ObjectRef[Any]], *, num_returns: int = 1, timeout: float | None = None, fetch_local: bool = True
) -> tuple[list[ObjectRef[Any]], list[ObjectRef[Any]]]:
    """Wait until `num_returns` of the ObjectRefs are ready, and return two lists: the ready and the other ObjectRefs.

    Args:
        refs: a list of distinct ObjectRefs and ObjectRefGenerators. A generator is ready when its next item exists, or
            when it has ended. A reference of a cluster that was shut down is never ready.
        num_returns: the number of references to wait for, from 1 to len(refs). `wait` returns at most this number of
            references as ready.
        timeout: how many seconds `wait` waits at most. With None, `wait` waits without a limit. With 0, `wait` does not
            wait.
        fetch_local: whether a reference counts as ready only when its value is on this node.

    Returns:
        Two lists, the ready references and the others, each in the order of `refs`.

    Raises:
        TypeError: `refs` is not a list, or an item is not a reference.
        ValueError: `refs` has duplicates, or fewer than `num_returns` items.
        ReferenceEndedError: all `refs` are of a cluster that was shut down.
    """
    if not isinstance(refs, list):
        raise TypeError(f"wait takes a list of ObjectRefs, not {refs!r} (type {type(refs).__name__})")
    if any(isinstance(ref, ObjectRefGenerator) for ref in refs):
        return _wait_with_generators(refs, num_returns, timeout, fetch_local=fetch_local)
    _check_refs("wait", refs)
    _check_one_usable(refs)
    verbs = started("wait").verbs
    seen: dict[ObjectRef[Any], int] = {}
    usable = [ref for ref in refs if not ref.holder.is_closed]
    for index, ref in enumerate(usable):
        if ref in seen:
            raise ValueError(f"wait accepts no duplicates, but {ref!r} is at index {seen[ref]} and at index {index}")
        seen[ref] = index
    if not refs and num_returns == 1:
        return [], []
    num_returns = _plain(num_returns, int)
    if isinstance(num_returns, bool) or not isinstance(num_returns, int):
        raise TypeError(f"wait: num_returns={num_returns!r} must be an int")
    if not 1 <= num_returns <= len(refs):
        raise ValueError(f"wait: num_returns={num_returns} must be between 1 and {len(refs)}, the number of references")
    done = verbs.wait(
        [ref.ref for ref in usable],
        num_returns=min(num_returns, len(usable)),
        timeout_ns=_timeout_ns(timeout),
        fetch_local=fetch_local,
    )
    ready = [ref for ref in usable if ref.ref.object_id in done][:num_returns]
    chosen = {id(ref) for ref in ready}  # an ended reference may have the id of another
    return ready, [ref for ref in refs if id(ref) not in chosen]


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
            raise WrongTypeError(
                f"{verb} takes a list of ObjectRefs, but item {index} is {ref!r} (type {type(ref).__name__})"
            )


def _check_one_usable(refs: Sequence[ObjectRef[Any]]) -> None:
    """Raise if each of them has ended. One that has ended, among others, is never ready, as in Ray."""
    if refs and all(ref.holder.is_closed for ref in refs):
        refs[0]._check_usable()


def _is_rays_program() -> bool:
    """Whether `import ray` imports dualray here."""
    return rays_words() is not None


def _plain(number: Any, kind: Callable[[Any], Any]) -> Any:
    """The number as a float or an int. Ray accepts all numbers, NumPy's too, and cuts fractions."""
    if type(number) is kind or not isinstance(number, Real) or not _is_rays_program():
        return number
    return kind(number)


_UNKNOWN_OWNERS = "You are trying to access Ray objects whose owner is unknown."
"""Ray's error for references of an earlier cluster that a program passes to `get`."""


_FOR_EVER_S = 2**33
"""From so many seconds on, 272 years, a timeout is none: its nanoseconds have no room in 64 bits."""


def _timeout_ns(timeout: float | None, no_limit: float | None = None) -> int | None:
    """The timeout in ns. `no_limit`: a number that means none."""
    if timeout is None:
        return None
    timeout = _plain(timeout, float)
    if isinstance(timeout, bool) or not isinstance(timeout, int | float):
        raise TypeError(f"timeout={timeout!r} must be a number of seconds, or None")
    if not timeout >= 0:
        if timeout == no_limit:
            return None
        if no_limit is not None and timeout < 0 and _is_rays_program():
            return 0
        raise ValueError(f"timeout={timeout!r} must not be negative: give a number of seconds, or None for no limit")
    if timeout >= _FOR_EVER_S:
        return None
    timeout_ns = round(timeout * 1e9)
    return timeout_ns + (timeout_ns / 1e9 < timeout)  # never shorter than asked


def kill(actor: ActorHandle[Any], *, no_restart: bool = True) -> None:
    """End an actor at once, even while the actor runs a method.

    Args:
        actor: the handle of the actor.
        no_restart: with True, the actor does not restart. With False, the actor restarts if its `max_restarts` allows a
            restart.

    Raises:
        TypeError: `actor` is not an actor handle.
    """
    if not isinstance(actor, ActorHandle):
        raise WrongTypeError(
            f"kill takes an actor handle, not {actor!r} (type {type(actor).__name__}). To cancel a task, use cancel()"
        )
    actor._check_usable()
    runtime.current("kill").verbs.kill_actor(actor.ref, no_restart=no_restart)


def cancel(ref: ObjectRef[Any] | ObjectRefGenerator, *, force: bool = False, recursive: bool = True) -> None:
    """Cancel the task that computes `ref`, unless the task has ended. See docs/api/tasks.md.

    `get` of a cancelled task's result raises TaskCancelledError. `get` of a task that needs this result also raises
    TaskCancelledError. dualray does not retry a cancelled task.

    A cancelled task that has not started never starts. In a cancelled task that runs, dualray raises KeyboardInterrupt
    in the main thread. If the task catches KeyboardInterrupt and returns a value, `get` returns the value. `cancel`
    returns at once, although the task may continue for a while.

    Args:
        ref: the result of `.remote()` of a function, a generator or an actor's method. A method that already runs
            continues, unless it is a coroutine, and dualray discards its result.
        force: whether `cancel` ends the worker process of a running task.
        recursive: whether `cancel` also cancels the tasks that the task has submitted, and the tasks that these have
            submitted.

    Raises:
        TypeError: `ref` is not a reference.
        ValueError: `ref` comes from `put`, or `force` is given for a method of an actor.
    """
    if isinstance(ref, ObjectRefGenerator):
        ref = ref.completed()
    if not isinstance(ref, ObjectRef):
        raise TypeError(f"cancel takes an ObjectRef, not {ref!r} (type {type(ref).__name__})")
    ref._check_usable()
    runtime.current("cancel").verbs.cancel(ref.ref, force=force, recursive=recursive)


def nodes() -> list[dict[str, Any]]:
    """Return a dict for each node of the cluster, including nodes that have died.

    As in Ray, the keys are NodeID, Alive and alive, Resources (amounts by name), Labels, NodeManagerAddress and
    NodeName (the IP address), and NodeManagerHostname. Keys for ports of Ray's own processes have the value 0, and keys
    for sockets have the value "". dualray adds the keys Incarnation (the number of times that the node was restarted)
    and Available (free amounts by name).
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
    """Return the total resources of all alive nodes, as a dict from resource names to amounts."""
    return runtime.current("cluster_resources").verbs.cluster_resources()


def available_resources() -> dict[str, float]:
    """Return the free resources of all alive nodes, as a dict from resource names to amounts above 0."""
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
