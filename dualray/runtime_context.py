"""`get_runtime_context`: the node, worker, task and actor in which code runs, and the resources that they hold."""

from __future__ import annotations

import json
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from dualray import runtime
from dualray.actor import ActorHandle, handle_to
from dualray.first_verb import started
from dualray.hex_id import HexId
from dualray.shared.model.accelerators import KINDS
from dualray.shared.model.resources import GPU
from dualray.user_verbs import CallContext


def _id_or_none(text: str | None) -> HexId | None:
    return None if text is None else HexId(text)


def _deprecated(name: str, better: str | None = None) -> None:
    better = better or f"get_{name}"
    warnings.warn(f"RuntimeContext.{name} is deprecated. Use {better}() instead", DeprecationWarning, stacklevel=3)


@dataclass(frozen=True, slots=True)
class RuntimeContext:
    """The job, node, worker, task and actor in which the calling code runs; see `get_runtime_context`."""

    _runtime: runtime.Runtime

    @property
    def mode(self) -> str:
        """The mode of the cluster: `real`, `sim` or `ray`."""
        return self._runtime.mode

    @property
    def _here(self) -> CallContext:
        return self._runtime.verbs.context()

    def get_node_id(self) -> str:
        """Return the name of the node, such as `node-0`."""
        return self._here.node_id

    def get_worker_id(self) -> str:
        """Return the name of the process: `driver-1`, or a worker such as `node-0/w3`."""
        return self._here.worker_id

    def get_task_id(self) -> str | None:
        """Return the id of the current task in hex, or None in a driver."""
        return self._here.task_id

    def get_task_name(self) -> str | None:
        """Return the name of the current task's function, or Class.method in an actor, or None in a driver."""
        return self._here.task_name

    def get_actor_id(self) -> str | None:
        """Return the id of the current actor in hex, or None outside an actor."""
        return self._here.actor_id

    def get_actor_name(self) -> str | None:
        """Return the name of the current actor, "" if the actor has no name, or None outside an actor."""
        return self._here.actor_name

    @property
    def namespace(self) -> str:
        """The namespace in which this code creates and finds named actors.

        By default, each job has its own namespace, and `init(namespace=)` sets another one. Inside an actor, the
        namespace is that of the job that created the actor.
        """
        return self._runtime.verbs.namespace

    def get_job_id(self) -> str:
        """Return the number of the driver whose program this code belongs to, as 8 hex digits."""
        return self._here.job_id

    def get_task_function_name(self) -> str | None:
        """Return the qualified name of the current function, such as "module.Class.method", or None in a driver.

        The name of a local function contains the enclosing names: "module.f.<locals>.Class.method".
        """
        return self._here.function_name()

    def get_placement_group_id(self) -> str | None:
        """Return the id of the current placement group in hex, or None outside a placement group."""
        return self._here.placement_group_id

    @property
    def should_capture_child_tasks_in_placement_group(self) -> bool:
        """Whether tasks and actors that this code submits run in the current placement group by default."""
        return self._here.captures_children

    @property
    def was_current_actor_reconstructed(self) -> bool:
        """Whether the current actor has restarted, or False outside an actor."""
        return self._here.is_restarted

    @property
    def current_actor(self) -> ActorHandle[Any]:
        """A handle to the current actor.

        Raises:
            RuntimeError: this code runs outside an actor.
        """
        verbs = self._runtime.verbs
        actor = verbs.own_actor()
        if actor is None:
            raise RuntimeError(
                "current_actor was read outside an actor; read current_actor only in a method of an actor"
            )
        return handle_to(actor, verbs)

    @property
    def runtime_env(self) -> dict[str, Any]:
        """The runtime environment of the current task or actor. In a driver, the default environment of its tasks."""
        environment: dict[str, Any] = json.loads(self.get_runtime_env_string())
        return environment

    def get_runtime_env_string(self) -> str:
        """Return `runtime_env` as JSON."""
        return self._runtime.verbs.runtime_env or "{}"

    def get_node_labels(self) -> dict[str, str]:
        """Return the labels of the current node."""
        verbs = self._runtime.verbs
        here = verbs.context().node_id
        return next((row.labels for row in verbs.nodes() if row.node_id == here), {})

    @property
    def job_id(self) -> HexId:
        """As `get_job_id`, in the form of Ray's ids. Deprecated, as in Ray."""
        _deprecated("job_id")
        return HexId(self._here.job_id)

    @property
    def node_id(self) -> HexId:
        """As `get_node_id`, in the form of Ray's ids. Deprecated, as in Ray."""
        _deprecated("node_id")
        return HexId(self._here.node_id)

    @property
    def task_id(self) -> HexId | None:
        """As `get_task_id`, in the form of Ray's ids. Deprecated, as in Ray."""
        _deprecated("task_id")
        return _id_or_none(self._here.task_id)

    @property
    def actor_id(self) -> HexId | None:
        """As `get_actor_id`, in the form of Ray's ids. Deprecated, as in Ray."""
        _deprecated("actor_id")
        return _id_or_none(self._here.actor_id)

    @property
    def current_placement_group_id(self) -> HexId | None:
        """As `get_placement_group_id`, in the form of Ray's ids."""
        _deprecated("current_placement_group_id", "get_placement_group_id")
        return _id_or_none(self._here.placement_group_id)

    @property
    def gcs_address(self) -> str:
        """The address of the cluster's head. (In Ray, this is the address of the global control store.)"""
        return self._runtime.addresses()["control_plane_address"]

    def get_session_name(self) -> str:
        """Return the name of the session, which is also the name of its directory. In sim mode: `simulation`."""
        return PurePath(self._runtime.addresses()["session_dir"]).name or "simulation"

    def get_temp_dir(self) -> str:
        """Return the parent directory of the sessions' directories. In sim mode: the directory of temporary files."""
        directory = self._runtime.addresses()["session_dir"]
        return str(PurePath(directory).parent) if directory else tempfile.gettempdir()

    def get(self) -> dict[str, Any]:
        """Return the ids and names of this context in a dict, without those that do not apply."""
        here = self._here
        found = {
            "job_id": _id_or_none(here.job_id),
            "node_id": _id_or_none(here.node_id),
            "namespace": self.namespace,
            "worker_id": _id_or_none(here.worker_id),
            "task_id": _id_or_none(here.task_id),
            "actor_id": _id_or_none(here.actor_id),
            "actor_name": here.actor_name,
            "placement_group_id": _id_or_none(here.placement_group_id),
        }
        return {name: value for name, value in found.items() if value is not None}

    def is_canceled(self) -> bool:
        """Return whether a program has called `cancel` for the current task or method.

        A method that is not a coroutine continues after `cancel`. A long method can call `is_canceled`, and return
        early.

        Raises:
            RuntimeError: this code runs in a driver.
        """
        here = self._here
        if here.task_id is None:
            raise RuntimeError("is_canceled() was called in the driver; call it in a task or a method of an actor")
        if here.is_cancelled is None:
            raise RuntimeError(
                "is_canceled() is not supported in async actors: cancel() cancels the coroutine. (This method is not "
                "supported in an async actor.)"
            )
        return here.is_cancelled

    def get_attempt(self) -> int:
        """Return how many earlier attempts the current task had.

        The number can be above `max_retries`. If a worker is lost while a task waits behind another task in its queue,
        the waiting task gets another attempt without using a retry.
        """
        return self._here.attempt

    def get_accelerator_ids(self) -> dict[str, list[str]]:
        """Return the accelerators that the task or actor holds, as text: `{"GPU": ["0", "1"], "TPU": [], ...}`.

        The dict has a list for each kind of accelerator. The ids of a kind are the entries of its environment variable,
        such as CUDA_VISIBLE_DEVICES.
        """
        held = self._here.accelerators
        return {kind.name: list(held.get(kind.name, ())) for kind in KINDS}

    def get_resource_ids(self) -> dict[str, list[str]]:
        """Return the same as `get_accelerator_ids`, whose older name in Ray this is."""
        return self.get_accelerator_ids()

    def get_assigned_resources(self) -> dict[str, float]:
        """Return the resources that the current task or actor holds, as amounts by name."""
        return dict(self._here.resources)


def get_runtime_context() -> RuntimeContext:
    """Return the context of this code: job, node, worker, task, actor, attempt, resources and placement group."""
    return RuntimeContext(started("get_runtime_context"))


def get_gpu_ids() -> list[int | str]:
    """Return the GPUs that the current task or actor holds, or an empty list in a driver.

    The GPUs are the entries of the task's CUDA_VISIBLE_DEVICES: numbers, or UUIDs such as "GPU-5f0e..." if the node was
    started with UUIDs.
    """
    return [
        int(name) if name.isdigit() else name
        for name in RuntimeContext(started("get_gpu_ids")).get_accelerator_ids()[GPU]
    ]
