"""Mode "ray"'s way in: `init` starts a local Ray, joins a cluster of Ray's, or adopts the connection that there is.

A worker of Ray gets its runtime when the first thing of dualray's arrives (`here.py`).
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import warnings
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

import ray
from ray.experimental.internal_kv import _internal_kv_get, _internal_kv_put

from dualray.exceptions import DualrayError
from dualray.on_ray.anchors import Watched, watched
from dualray.on_ray.notes import Notes, RecordTo, here
from dualray.on_ray.refusals import refused
from dualray.on_ray.shipping import with_package, workers_have_package
from dualray.on_ray.verbs import RayVerbs
from dualray.progress_bars import DISPLAY, BarState
from dualray.runtime import only_in_the_driver
from dualray.runtime_env import HOOK, hook_of
from dualray.user_metrics import METRICS

HIDES_GPUS = "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"
"""Ray's variable: with 1, workers hide GPUs from code that holds none, as in the other modes."""


class RayRuntime:
    """One process, connected to Ray.

    Args:
        is_worker: whether it runs tasks.
        owns_connection: whether `init` has connected it, so that `shutdown` ends that.
        waits_for_nodes: see RayVerbs.
    """

    mode = "ray"
    owns_interpreter = True
    threads_may_wait = True
    models_calls = False

    def __init__(self, *, is_worker: bool, owns_connection: bool, waits_for_nodes: bool) -> None:
        self.is_worker = is_worker
        self.owns_connection = owns_connection
        self.verbs: RayVerbs = RayVerbs(is_worker=is_worker, waits_for_nodes=waits_for_nodes)
        self.notes: Notes | None = None
        """Of a process of a run that is recorded."""
        self.record_to: RecordTo | None = None
        """Where this process notes what it does, and who counts the events of a plan of faults."""
        self.record: Any = None
        """Makes the record, in the driver: a `RunOnRay`."""
        self.instance: Any = None
        """Of the user's class, in an actor."""

    def begin_notes(self, record_to: RecordTo) -> None:
        """This worker runs a task of a run that is recorded, or has a plan of faults."""
        self.record_to = record_to
        if record_to.collector is None:
            self.verbs.record_to = record_to
            return
        self.notes = here(record_to)
        recorded = import_module("dualray.on_ray.recorded")
        self.verbs = recorded.in_worker(self.notes, waits_for_nodes=self.verbs.waits_for_nodes)

    def begin(self, record: Path | None) -> None:
        """This program begins: it is recorded, if `record` is a file, and counted, if there is a plan of faults."""
        plan = watched()
        if plan is not None:
            self.record_to = self.verbs.record_to = RecordTo(None, {}, b"", plan)
        if record is not None:
            self._begin_record(record, plan)

    def _begin_record(self, path: Path, plan: Watched | None) -> None:
        recorded = import_module("dualray.on_ray.recorded")
        self.record = recorded.RunOnRay(path, plan)
        verbs = recorded.RecordedVerbs(
            is_worker=False, waits_for_nodes=self.verbs.waits_for_nodes, notes=self.record.notes
        )
        self.verbs = verbs

    @property
    def device_names(self) -> dict[str, list[str]]:
        return dict(ray.get_runtime_context().get_accelerator_ids())

    @property
    def logs(self) -> NoReturn:
        raise refused("logs")

    def free_port(self) -> int:
        with socket.socket() as listening:
            listening.bind(("", 0))
            return int(listening.getsockname()[1])

    def addresses(self) -> dict[str, str]:
        node = ray._private.worker.global_worker.node
        return {
            "node_ip_address": str(ray.util.get_node_ip_address()),
            "control_plane_address": str(ray.get_runtime_context().gcs_address),
            "object_store_address": str(node.plasma_store_socket_name),
            "local_scheduler_address": str(node.raylet_socket_name),
            "session_dir": str(node.get_session_dir_path()),
        }

    def read_table(self, name: str) -> dict[str, dict[str, str]]:
        raise refused("tables")

    def write_row(self, table: str, key: str, fields: Mapping[str, str]) -> None:
        raise refused("tables")

    def read_functions(self) -> NoReturn:
        raise refused("functions")

    def trace_source(self) -> NoReturn:
        if self.is_worker:
            raise only_in_the_driver("timeline")
        raise refused("timeline")

    def show_bar(self, state: BarState) -> None:
        if not self.is_worker:
            DISPLAY.take("", state)

    def silence(self) -> None:
        """Ray tells of no errors that nobody reads."""

    def end_in_fork(self) -> bool:
        """Ray decides."""
        return False

    def shutdown(self) -> None:
        if self.is_worker:
            return
        self.verbs.is_closed = True
        record, self.record = self.record, None
        try:
            if record is not None and ray.is_initialized():
                record.write()
        finally:
            self._disconnect()

    def _disconnect(self) -> None:
        DISPLAY.forget()
        METRICS.clear()
        if self.owns_connection and ray.is_initialized():
            ray.shutdown()


def of_worker() -> RayRuntime:
    """The runtime of a process that Ray runs tasks in, or of a program that has connected itself to Ray."""
    is_worker = ray._private.worker.global_worker.mode == ray.WORKER_MODE
    return RayRuntime(is_worker=is_worker, owns_connection=False, waits_for_nodes=_said_waits())


def start(settings: Mapping[str, Any], config: Any) -> RayRuntime:
    """Start a local Ray, join a cluster, or adopt a connection.

    Raises:
        ValueError: a setting that Ray has no counterpart of; `ray://`.
        DualrayError: no such cluster; another version at its workers.
    """
    if ray.is_initialized():
        is_worker = ray._private.worker.global_worker.mode == ray.WORKER_MODE
        waits = _may_grow(settings["infeasible"] or "")
        _say_waits(waits)
        adopted = RayRuntime(is_worker=is_worker, owns_connection=False, waits_for_nodes=waits)
        if settings["record"] is not None and is_worker:
            raise ValueError("init(record=...) cannot be used in a task; pass record= to init() in the driver")
        adopted.begin(settings["record"])
        return adopted
    address = settings["address"] or os.environ.get("RAY_ADDRESS") or "local"
    is_joined = address != "local"
    environment: dict[str, Any] = json.loads(settings["runtime_env"] or "{}")
    if HOOK in environment:
        environment[HOOK] = hook_of(environment[HOOK])
    said: dict[str, Any] = {
        **_for_ray(settings["of_ray"]),
        "address": address,
        "namespace": settings["namespace"],
        "log_to_driver": settings["log_to_driver"],
        "runtime_env": environment or None,
    }
    if not is_joined:
        os.environ.setdefault(HIDES_GPUS, "1")
        said |= {
            "num_cpus": settings["num_cpus"],
            "num_gpus": settings["num_gpus"],
            "resources": settings["resources"],
            "labels": settings["labels"],
            "object_store_memory": settings["object_store_memory"],
            "_memory": settings["memory"],
        }
    _connect(said)
    try:
        if is_joined and not workers_have_package():
            ray.shutdown()
            shipped, copied = with_package(environment)
            try:
                _connect({**said, "runtime_env": shipped})
            finally:
                shutil.rmtree(copied.parent, ignore_errors=True)  # the cluster has it
            workers_have_package()
    except BaseException:
        ray.shutdown()
        raise
    waits = _may_grow(settings["infeasible"] or ("" if is_joined else "raise"))
    _say_waits(waits)
    started = RayRuntime(is_worker=False, owns_connection=True, waits_for_nodes=waits)
    started.begin(settings["record"])
    return started


def _for_ray(given: Mapping[str, Any]) -> dict[str, Any]:
    """What `init` was given of Ray's own arguments, for Ray."""
    return {name: value for name, value in given.items() if name != "local_mode"}


def _connect(said: Mapping[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Ray's own, about Ray's own
        try:
            ray.init(**{name: value for name, value in said.items() if value is not None})
        except (ConnectionError, RuntimeError) as error:
            raise DualrayError(f"init(mode='ray', address={said['address']!r}): {error}") from error


def _may_grow(infeasible: str) -> bool:
    """Whether what no node can meet waits: as the program says; else where nodes may join."""
    return infeasible != "raise"


_KV_NAMESPACE = b"dualray"


def _key_of_job() -> bytes:
    return f"waits for nodes, {ray.get_runtime_context().get_job_id()}".encode()


def _say_waits(waits: bool) -> None:
    """Tell the job's workers how the driver has chosen."""
    _internal_kv_put(_key_of_job(), b"1" if waits else b"0", namespace=_KV_NAMESPACE)


def _said_waits() -> bool:
    """What the job's driver has chosen; where it has said nothing, calls wait, as on any cluster of Ray's."""
    return bool(_internal_kv_get(_key_of_job(), namespace=_KV_NAMESPACE) != b"0")
