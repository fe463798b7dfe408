"""The verbs of 2017: init, get, put, wait and their like."""

from __future__ import annotations

import inspect
import ipaddress
import logging
from importlib import import_module
from typing import Any, NamedTuple

from dualray import api, runtime
from dualray.classic.functions import CUSTOM_RESOURCE
from dualray.classic.modes import DRIVER_MODES, PYTHON_MODE, SCRIPT_MODE, SILENT_MODE, WORKER_MODE, runs_in_place
from dualray.classic.object_id import ObjectID
from dualray.exceptions import AlreadyInitializedError
from dualray.first_verb import started
from dualray.object_ref import ObjectRef
from dualray.settings import resolve
from dualray.shared.core.serialization import serialize

_log = logging.getLogger("dualray")


class ObjectStoreAddress(NamedTuple):
    """Where a node's object store is. A node has one process for what 2017 had two for."""

    name: str
    manager_name: str
    manager_port: int | None


def init(
    redis_address: str | None = None,
    node_ip_address: str | None = None,
    object_id_seed: int | None = None,
    num_workers: int | None = None,
    driver_mode: int = SCRIPT_MODE,
    redirect_output: bool = False,
    num_cpus: float | None = None,
    num_gpus: float | None = None,
    num_redis_shards: int | None = None,
    num_custom_resource: float | None = None,
) -> dict[str, Any]:
    """Start a cluster, or join the one at `redis_address`, and connect this process to it as a driver.

    Args:
        redis_address: "host:port" of a cluster's head (`start_ray.sh --head`). Default: start a cluster.
        node_ip_address: this machine's address, for the result. Default: as the cluster knows it.
        object_id_seed: the root of all ids: two runs with the same give the same ids.
        num_workers: how many workers are started at once; more come when they are needed. Default: one for each CPU.
        driver_mode: SCRIPT_MODE, SILENT_MODE or PYTHON_MODE.
        redirect_output: what workers print goes to files only.
        num_cpus, num_gpus: what each node has. Default: as many CPUs as there are (sim: 4), and the GPUs
            that CUDA_VISIBLE_DEVICES shows (sim: none).
        num_custom_resource: how much each node has of the one custom resource that there was, "CustomResource": tasks
            and actors say `num_custom_resource=` too. Default: none.
        num_redis_shards: accepted, and of no effect: the control plane is one server.

    Mode and number of nodes come from outside: DUALRAY_MODE, DUALRAY_NODES, or `dualray run --mode sim --nodes 11`.

    Returns:
        node_ip_address, redis_address, object_store_addresses and local_scheduler_socket_names.

    Raises:
        AlreadyInitializedError: `init` was called before.
        ValueError, TypeError: an argument that is wrong, or that does not go with `redis_address`.
        DualrayError: the cluster at `redis_address` has no node on this machine, or does not answer.
    """
    if runtime.current_or_none() is not None:
        raise AlreadyInitializedError(
            "ray.init() was called before. Call ray.worker.cleanup() first, or leave out the second call."
        )
    if driver_mode not in DRIVER_MODES.values():
        what = (
            "driver_mode=ray.WORKER_MODE is only for worker processes"
            if driver_mode == WORKER_MODE
            else f"driver_mode={driver_mode!r}"
        )
        names = ", ".join(f"ray.{name}" for name in DRIVER_MODES)
        raise ValueError(f"{what} must be one of {names}")
    if node_ip_address is not None:
        ipaddress.ip_address(node_ip_address.partition(":")[0])  # raises with the address in it
    _check_count("num_workers", num_workers)
    _check_count("num_redis_shards", num_redis_shards)
    if redis_address is not None and (num_workers is not None or num_redis_shards is not None):
        raise ValueError(
            f"init(redis_address={redis_address!r}) joins a cluster, and cannot set num_workers or "
            "num_redis_shards for this cluster. Leave out both arguments, or pass --num-workers to start_ray.sh"
        )
    if num_redis_shards:
        _log.info("num_redis_shards=%d has no effect: the control plane is one server", num_redis_shards)
    resources = None if num_custom_resource is None else {CUSTOM_RESOURCE: num_custom_resource}
    if driver_mode == PYTHON_MODE:
        inline = import_module("dualray.classic.inline")  # which other programs need not load
        started: runtime.Runtime = inline.start(
            num_cpus=num_cpus, num_gpus=num_gpus, resources=resources, object_id_seed=object_id_seed
        )
        runtime.set_current(started)
    else:
        started = api.init(
            address=redis_address,
            num_cpus=num_cpus,
            num_gpus=num_gpus,
            resources=resources,
            object_id_seed=object_id_seed,
            limits={"workers_prestarted": num_workers} if num_workers is not None else None,
            **_about_output(redirect_output, driver_mode),
        )
        if driver_mode == SILENT_MODE:
            started.silence()
    addresses = started.addresses()
    return {
        "node_ip_address": node_ip_address or addresses["node_ip_address"],
        "redis_address": addresses["control_plane_address"],
        "object_store_addresses": [
            ObjectStoreAddress(addresses["object_store_address"], addresses["local_scheduler_address"], None)
        ],
        "local_scheduler_socket_names": [addresses["local_scheduler_address"]],
    }


def _about_output(redirect_output: bool, driver_mode: int) -> dict[str, Any]:
    """Settings for what workers print. A simulation has none: what is printed there is printed by this process."""
    given = {"redirect_output": True} if redirect_output else {}
    if driver_mode == SILENT_MODE:
        given["log_to_driver"] = False
    return given if given and resolve({})["mode"].value == "real" else {}


def _check_count(name: str, value: int | None) -> None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
        raise TypeError(f"{name}={value!r} must be an int")
    if value is not None and value < 0:
        raise ValueError(f"{name}={value!r} must not be negative")


def shutdown() -> None:
    """End the cluster that `init` started. Without a call of `init` before, nothing happens."""
    api.shutdown()


def get(object_ids: Any) -> Any:
    """Wait for the value of an ObjectID, or for the values of a list of them, and return it.

    In PYTHON_MODE, where calls return values, return the argument.

    Raises:
        TaskError: a task raised an exception. The error is also an instance of that exception's type; `.cause` has it.
        TypeError: an item is not an ObjectID.
    """
    if runs_in_place():
        if isinstance(object_ids, list):
            return [api.get(each) if isinstance(each, ObjectRef) else each for each in object_ids]
        return api.get(object_ids) if isinstance(object_ids, ObjectRef) else object_ids
    return api.get(object_ids)


def put(value: Any) -> Any:
    """Store a value, and return its ObjectID.

    In PYTHON_MODE return the value as its readers would see it: a copy, with read-only arrays.

    Raises:
        ObjectStoreFullError: the object store has no space.
        SerializationError: the value cannot be pickled.
        TypeError: the value is an ObjectID.
    """
    verbs = started("put").verbs
    if isinstance(value, ObjectRef):
        raise TypeError(
            f"put takes a value, not the ObjectID {value!r}: use the ObjectID itself, or put a list that contains "
            "the ObjectID"
        )
    object_id = ObjectID[Any](verbs.put(value), verbs)
    return api.get(object_id) if runs_in_place() else object_id


def wait(
    object_ids: list[ObjectID[Any]], num_returns: int = 1, timeout: float | None = None
) -> tuple[list[ObjectID[Any]], list[ObjectID[Any]]]:
    """Wait until a number of objects are ready, and return the ready ones and the others.

    Args:
        object_ids: a list of distinct ObjectIDs.
        num_returns: the number of objects to wait for. With a timeout it can be above the number of objects, and means
            all.
        timeout: milliseconds; None waits without limit, 0 does not wait.

    Returns:
        Two lists, the ready ObjectIDs and the others, each in the order of `object_ids`.

    Raises:
        TypeError: `object_ids` is not a list, or an item is not an ObjectID.
        ValueError: `object_ids` has duplicates, or fewer than `num_returns` items.
    """
    if timeout is not None:
        if isinstance(timeout, bool) or not isinstance(timeout, int | float):
            raise TypeError(f"timeout={timeout!r} must be a number of milliseconds, or None")
        if not timeout >= 0:
            raise ValueError(f"timeout={timeout!r} must not be negative: give a number of milliseconds")
        if object_ids:
            num_returns = min(num_returns, len(object_ids))
    if runs_in_place():
        return _wait_in_place(object_ids, num_returns)
    ready, rest = api.wait(
        object_ids,  # type: ignore[arg-type]  # a list of ObjectIDs is one of references
        num_returns=num_returns,
        timeout=None if timeout is None else timeout / 1e3,
    )
    return ready, rest  # type: ignore[return-value]  # they are those that came in


def _wait_in_place(values: list[Any], num_returns: int) -> tuple[list[Any], list[Any]]:
    """What `wait` says of values, which are all there."""
    if not isinstance(values, list):
        raise TypeError(f"wait takes a list, not {values!r} (type {type(values).__name__})")
    if values and not 1 <= num_returns <= len(values):
        raise ValueError(f"wait: num_returns={num_returns!r} must be between 1 and the {len(values)} values given")
    return values[:num_returns], values[num_returns:]


def register_class(cls: type[Any], **how: Any) -> None:
    """Check that a class can be pickled. Classes need no registration any more.

    Raises:
        TypeError: the argument is not a class.
        SerializationError: the class cannot be pickled; the message names the part that cannot.
    """
    if not inspect.isclass(cls):
        raise TypeError(f"register_class was given {cls!r} (type {type(cls).__name__}), which is not a class")
    serialize(cls, f"class {cls.__name__}")
    if how:
        _log.info(
            "register_class(%s) ignores %s, because dualray pickles the instances", cls.__name__, ", ".join(sorted(how))
        )
