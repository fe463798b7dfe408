"""`ray.init`: it takes all that Ray's takes, and what `dualray.init` takes beside."""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import logging
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from dualray import api, runtime
from dualray.as_ray import structured_logs
from dualray.as_ray.job_config import JobConfig
from dualray.as_ray.metadata import RAYS_VERSION, VERSIONS, version_here
from dualray.as_ray.system_config import limits_of_ray, limits_of_variables
from dualray.cluster_address import ClusterAddress, planned
from dualray.cluster_context import ClusterContext
from dualray.exceptions import AlreadyInitializedError, DualrayError, rays_words
from dualray.fork_signals import reset_in_forks
from dualray.options import unknown_name
from dualray.settings import resolve

ADDRESS_VARIABLE: Final = "RAY_ADDRESS"

_IGNORED: Final[dict[str, tuple[Any, ...]]] = {
    "cgroup_path": (None,),
    "configure_logging": (True, False),
    "dashboard_host": ("127.0.0.1",),
    "dashboard_port": (None, 8265),
    "enable_resource_isolation": (False,),
    "include_dashboard": (None, False),
    "logging_format": (None,),
    "proxy_server_url": (None,),
    "system_reserved_cpu": (None,),
    "system_reserved_memory": (None,),
}
"""Arguments that mean nothing here, with the values of which nothing is said: Ray's defaults, and what asks for less.
So are those of `dualray.api.OF_RAY` that Ray keeps to itself."""

_TAKEN: Final = {"_memory": "memory", "_metrics_export_port": "metrics_port"}
"""Private arguments of Ray's, and ours."""

_OF_THIS_MODULE: Final = ("logging_config", "logging_level", "_system_config", "_temp_dir")
"""Arguments of `dualray.api.OF_RAY` that mean something here."""

_AS_LIMIT: Final = {"object_spilling_directory": "spill_directory"}
"""Arguments of Ray's for which dualray has a limit."""

_OF_REAL_MODE: Final = ("metrics_port",)
"""What Ray's programs say of processes: in a simulation there are none, and nothing is said of it."""

AUTO_CONNECT_VARIABLE: Final = "RAY_ENABLE_AUTO_CONNECT"

RETRIES_VARIABLE: Final = "RAY_TASK_MAX_RETRIES"

LOG_VARIABLE: Final = "RAY_LOG_TO_DRIVER"
"""Says what `log_to_driver` is where the program does not."""

_FLAGS: Final = ("ignore_reinit_error", "log_to_driver")
"""Arguments of which Ray asks only whether they are true: a program may give 0 or 1."""

_log: Final = logging.getLogger("ray")
_named: Final[set[str]] = set()
"""Arguments that were named in a warning."""


def init(address: str | None = None, *, local_mode: bool = False, job_config: Any = None, **given: Any) -> Any:
    """Start a cluster, or join one, as `dualray.init` does, under the arguments of Ray's `init`.

    Args:
        address: "local" starts a cluster; so does None, unless RAY_ADDRESS names one, this process has made a
            `Cluster`, or `ray start` has started one here, which is joined; "auto" joins that of RAY_ADDRESS, or any
            that runs here; "host:port" joins. In sim mode, and where there is none under `dualray run`, "auto" starts a
            cluster.
        local_mode: simulate a cluster of one node in this process.
        job_config: a JobConfig; `runtime_env` and `ray_namespace` are taken from it unless they are given, and
            `default_actor_lifetime` where the program starts the cluster.
        given: the other arguments of Ray's `init`, of which those without a meaning here are named once in a warning;
            and those of `dualray.init`: `mode`, `nodes`, `seed`, `faults`, ...

    Returns:
        Where the cluster is: see `ClusterContext`.

    Raises:
        AlreadyInitializedError (a RuntimeError): `init` was called before, and `ignore_reinit_error` is not given.
        ValueError, TypeError: an argument that is unknown, or has a value that it cannot have; `_system_config` of a
            cluster that is joined.
        ConnectionError: no cluster is at the address, or it begins with "ray://".
        RuntimeError: the program has changed `ray.__version__`, and joins a cluster.
    """
    _check_known(given)
    _check_values(given)
    level = given.pop("logging_level", None)
    if level is not None and given.get("configure_logging", True):
        logging.getLogger("ray").setLevel(level.upper() if isinstance(level, str) else level)
    said = _meant(given)
    _add_job_config(said, job_config)
    config = said.pop("_system_config", None)
    if config and address not in (None, "local", "auto"):
        raise ValueError(
            f"ray.init(address={address!r}, _system_config={config!r}): only the program that starts a cluster can "
            f"give _system_config"
        )
    _add_system_config(said, config)
    _add_limits(said)
    logging_config = said.pop("logging_config", None)
    if local_mode:
        said = {**said, "mode": "sim", "nodes": 1}
    if said.get("log_to_driver") is None and (shown := os.environ.get(LOG_VARIABLE)):
        said["log_to_driver"] = shown.lower() in ("1", "true")  # as Ray reads its flags
    address = _checked(named_address(address))
    _check_version(address)
    is_simulated = resolve({"mode": said["mode"]} if said.get("mode") else {})["mode"].value == "sim"
    if is_simulated:
        said = {name: value for name, value in said.items() if name not in _OF_REAL_MODE}
    structured_logs.add(said, logging_config, is_simulated=is_simulated)
    directory = said.pop("_temp_dir", None)
    with _sessions_in(directory if address in (None, "local") else None):
        is_first = not api.is_initialized()  # else it is a worker, or the cluster that the program already has
        context = _start_or_join(address, said, is_simulated=is_simulated)
        context.ray_version = RAYS_VERSION
        _exit_on_sigterm(is_first)
        return _name_session(context) if is_simulated else context


def _check_version(address: Any) -> None:
    """Refuse, as Ray does, to join a cluster that was started with another value of `ray.__version__`."""
    version = version_here() if rays_words() is not None else RAYS_VERSION
    expected = VERSIONS.get(address, RAYS_VERSION)
    if version != expected and address not in (None, "local"):
        raise RuntimeError(
            f"Version mismatch: the cluster was started with ray.__version__ = {expected!r}, and this program has set "
            f"ray.__version__ to {version!r}"
        )


@contextlib.contextmanager
def _sessions_in(directory: str | None) -> Iterator[None]:
    """Create the directory of a new session in this one (`_temp_dir`); None: where RAY_TMPDIR or TMPDIR says."""
    if not directory:
        yield
        return
    before = os.environ.get(TMPDIR_VARIABLE)
    os.environ[TMPDIR_VARIABLE] = os.fspath(directory)
    try:
        yield
    finally:
        if before is None:
            del os.environ[TMPDIR_VARIABLE]
        else:
            os.environ[TMPDIR_VARIABLE] = before


def _start_or_join(address: Any, said: dict[str, Any], *, is_simulated: bool) -> ClusterContext:
    if address != "local" and not isinstance(address, ClusterAddress):
        address = _running_cluster(address, said, is_simulated=is_simulated)
    if isinstance(address, ClusterAddress):
        return api.init(address, **said)
    if address in (None, "local") or is_simulated:
        own = "local" if address == "local" else None
        return api.init(own, **_starting(said, own))
    return _join(str(address), said)


def named_address(address: str | None) -> str | None:
    """The address that the program gives; without one, and of "auto", that of RAY_ADDRESS."""
    named = os.environ.get(ADDRESS_VARIABLE)
    if not address or (address == "auto" and named != "local"):
        return named or address or None
    return address


def _exit_on_sigterm(is_first: bool) -> None:
    """SIGTERM ends the program as `sys.exit(15)` does, so that it closes the cluster that it has started. As Ray's
    `init`, this replaces a handler that the program has set before, and does so only where it connects. A child process
    that the program forks ends at once, unlike in Ray, where it may lose the signal."""
    if is_first and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _exit)
        _reset_in_forks()


def _exit(number: int, _frame: object) -> None:
    # In a simulation, code of a virtual worker runs perhaps: the exit would be that worker's alone.
    raise_in_driver = getattr(runtime.current_or_none(), "raise_in_driver", None)
    if raise_in_driver is not None:
        raise_in_driver(SystemExit(number))
    sys.exit(number)


@functools.cache
def _reset_in_forks() -> None:
    reset_in_forks(signal.SIGTERM, _exit)


def _name_session(context: ClusterContext) -> ClusterContext:
    """Tell the program of a directory that no other session has. In a simulation nothing is there."""
    cluster = getattr(context.runtime, "cluster", None)
    if cluster is not None and not cluster.session_directory:
        directory = os.environ.get(TMPDIR_VARIABLE) or tempfile.gettempdir()
        cluster.session_directory = f"{directory}/simulation-{next(_simulations)}"
        context.address_info["session_dir"] = cluster.session_directory
    return context


_simulations: Final = itertools.count(1)
TMPDIR_VARIABLE: Final = "RAY_TMPDIR"


def _running_cluster(address: str | None, said: Mapping[str, Any], *, is_simulated: bool) -> str | None:
    """The cluster that `init` joins where the program did not say which: its own, or the one of `ray start`."""
    found = _own_cluster(address, said, is_simulated=is_simulated) or address
    if found is None and not is_simulated and resolve({})["address"].value is None:
        return _started_cluster(said)
    return found


def _own_cluster(address: str | None, said: Mapping[str, Any], *, is_simulated: bool) -> str | None:
    """The address of the `Cluster` that this process has made, where `init` joins that: without an address, with
    "auto", and in a simulation with any.

    Raises:
        ValueError: CPUs or GPUs are given, which whoever adds a node says.
    """
    own = planned.address()
    if own is None or isinstance(own, ClusterAddress) != is_simulated:
        return None
    if not is_simulated and address not in (None, "auto"):
        return None
    given = [name for name in ("num_cpus", "num_gpus") if said.get(name) is not None]
    if address is None and given:
        raise ValueError(
            f"ray.init({given[0]}={said[given[0]]!r}) would join the Cluster of this process at {own}, and cannot "
            f"set {given[0]} for its nodes. Pass {given[0]} to Cluster.add_node(), or pass address='local' to "
            "start another cluster. (When connecting to an existing cluster, num_cpus and num_gpus must not be "
            "provided.)"
        )
    return own


def started_address() -> str | None:
    """The address of the cluster on this machine that `ray start` has started last; None: none runs."""
    from dualray.real.session.session import RAYS_START_COMMAND, started_by  # noqa: PLC0415 - simulations need none

    found = [session.cluster.address for session in started_by(RAYS_START_COMMAND) if session.cluster is not None]
    return found[-1] if found else None


def _started_cluster(said: Mapping[str, Any]) -> str | None:
    """The cluster that `ray start` has started, for an `init` without an address.

    Raises:
        ValueError: CPUs or GPUs are given, which `ray start` has said.
    """
    found = started_address()
    given = [name for name in ("num_cpus", "num_gpus") if said.get(name) is not None]
    if found is not None and given:
        raise ValueError(
            f"ray.init({given[0]}={said[given[0]]!r}): `ray start` has started a cluster at {found}, which init joins: "
            f"pass --{given[0].replace('_', '-')} to `ray start`, or address='local' to start another cluster. (When "
            f"connecting to an existing cluster, num_cpus and num_gpus must not be provided.)"
        )
    return found


def joins_a_cluster() -> bool:
    """Whether a verb that comes before `init` joins the `Cluster` of this process, or the cluster of `ray start`."""
    if os.environ.get(ADDRESS_VARIABLE) == "local":
        return False
    if planned.address() is not None:
        return True
    resolved = resolve({})
    return resolved["mode"].value == "real" and resolved["address"].value is None and started_address() is not None


def defaults(address: str | None = None) -> dict[str, Any]:
    """Settings of a cluster that a program starts under the name `ray`, where nothing else says them: a demand that no
    node can meet is warned of, and waits for a node that can, as on Ray."""
    resolved = resolve({} if address is None else {"address": address})
    starts = resolved["address"].value in (None, "local")  # a cluster that it joins has its own
    return {"infeasible": "wait"} if starts and resolved["infeasible"].value is None else {}


def defaults_of_first_verb() -> dict[str, Any]:
    """Those of a cluster that a verb starts which comes before `init`: RAY_ENABLE_AUTO_CONNECT=0 forbids it."""
    return _starting({"auto_init": False} if os.environ.get(AUTO_CONNECT_VARIABLE) == "0" else {})


def defaults_of_tasks() -> dict[str, Any]:
    """Options of tasks where nothing else says them: RAY_TASK_MAX_RETRIES has their `max_retries`."""
    retries = os.environ.get(RETRIES_VARIABLE, "")
    return {"max_retries": int(retries)} if retries.removeprefix("-").isdigit() else {}


_DEFAULT_RESOURCES: Final = ("CPU", "GPU", "memory", "object_store_memory")
"""Resources for which `ray.init` has arguments of their own."""


class DefaultResourceError(ValueError, AssertionError):
    """`resources=` names a default resource: a ValueError, as in dualray, and an AssertionError, as in Ray."""


class UnknownArgumentError(TypeError, RuntimeError):
    """An argument that nobody knows: a TypeError, as in Python, and a RuntimeError, as in Ray."""


def _check_known(given: Mapping[str, Any]) -> None:
    known = {*inspect.signature(api.init).parameters, *_IGNORED, *_TAKEN, *_AS_LIMIT, *api.OF_RAY} - {"of_ray"}
    public = sorted(name for name in known if not name.startswith("_"))
    for name in given:
        if name not in known:
            message = unknown_name("argument", name, public, "ray.init()")
            raise UnknownArgumentError(message)


def _check_values(given: Mapping[str, Any]) -> None:
    for name in _DEFAULT_RESOURCES:
        if name in (given.get("resources") or {}):
            raise DefaultResourceError(
                f"ray.init(resources=...): `{name}` cannot be a custom resource because it is one of the default "
                f"resources; use the argument for this resource (_memory= for memory)"
            )
    directory = given.get("_temp_dir")
    if directory and not Path(directory).is_absolute():
        raise ValueError(f"ray.init(_temp_dir={directory!r}): the path must be absolute")


def _is_ignored(name: str, value: Any) -> bool:
    """Whether an argument means nothing here; the first time that it asks for something, a warning names it."""
    if name not in _IGNORED and (name not in api.OF_RAY or name in _TAKEN or name in _OF_THIS_MODULE):
        return False
    asks = value not in _IGNORED[name] if name in _IGNORED else value is not None
    if asks and name not in _named:
        _named.add(name)
        _log.warning(
            "ray.init(%s=%r) has no effect: `import ray` imports dualray here, which has no such setting", name, value
        )
    return True


def _meant(given: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that have a meaning here, under dualray's names."""
    taken = {_TAKEN.get(name, name): value for name, value in given.items() if not _is_ignored(name, value)}
    return taken | {name: bool(taken[name]) for name in _FLAGS if taken.get(name) is not None}


def _add_job_config(said: dict[str, Any], job_config: JobConfig | Mapping[str, Any] | None) -> None:
    if job_config is None:
        return
    config = job_config if isinstance(job_config, JobConfig) else JobConfig.from_json(job_config)
    if config.runtime_env and said.get("runtime_env"):
        raise ValueError(
            "ray.init: both runtime_env= and job_config= set a runtime environment; pass only one of the two"
        )
    if config.runtime_env:
        said["runtime_env"] = config.runtime_env
    if config.ray_namespace and not said.get("namespace"):
        said["namespace"] = config.ray_namespace
    if config.py_logging_config is not None and said.get("logging_config") is None:
        said["logging_config"] = config.py_logging_config
    if config.default_actor_lifetime != "non_detached":
        said["limits"] = {"actor_lifetime": config.default_actor_lifetime, **(said.get("limits") or {})}


def _add_system_config(said: dict[str, Any], config: Mapping[str, Any] | None) -> None:
    for key, value in (config or {}).items():
        meant = limits_of_ray(key, value)
        if meant is not None:
            said["limits"] = {**(said.get("limits") or {}), **meant}
        elif key not in _named:
            _named.add(key)
            _log.warning("ray.init(_system_config={%r: ...}) has no effect: `dualray config` lists the limits", key)


def _add_limits(said: dict[str, Any]) -> None:
    for name, limit in _AS_LIMIT.items():
        value = said.pop(name, None)
        if value is not None:
            said["limits"] = {**(said.get("limits") or {}), limit: os.fspath(value)}


def _starting(said: Mapping[str, Any], address: str | None = None) -> dict[str, Any]:
    """Return the settings of a new cluster: arguments of the program, then Ray's variables, then the defaults."""
    whole = {**defaults(address), **said}
    if limits := limits_of_variables():
        whole["limits"] = {**limits, **(whole.get("limits") or {})}
    return whole


def _checked(address: str | None) -> str | None:
    if address is not None and "://" in address:
        raise ConnectionError(
            f"ray.init(address={address!r}): dualray has no Ray Client, because each driver runs on a node of the "
            "cluster. Start a node on this machine with `dualray start --address HOST:PORT`, and pass "
            "address='auto'"
        )
    return address


def _join(address: str, said: dict[str, Any]) -> ClusterContext:
    try:
        if address != "auto":
            return api.init(address=address, **said)
        found = _found_here()
        if found is not None:
            return api.init(address=found, **said)
    except AlreadyInitializedError:
        raise
    except DualrayError as error:
        raise ConnectionError(str(error)) from error
    if resolve({})["run_summary"].value is not None:
        return api.init(**_starting(said))  # `dualray run` is asked to run the program as it is
    raise ConnectionError(
        "ray.init(address='auto'): no cluster runs on this machine for this user. Call ray.init() to start one in this "
        "program, run `ray start --head` first, or run the program with `dualray run --as-ray`"
    )


def _found_here() -> str | None:
    """What "auto" joins: of several clusters, the one that `ray start` has started last. None: there is no cluster.
    That of a program which did not start this one is none: test processes that run side by side each have their own."""
    from dualray.real.cluster.joining import find_session, is_of_ancestor  # noqa: PLC0415 - few join

    try:
        session = find_session("auto")
    except DualrayError as error:
        return started_address() or "auto" if "several clusters" in str(error) else None
    return "auto" if session.cluster is not None or is_of_ancestor(session) else None
