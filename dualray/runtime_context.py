"""Where code runs: the node, worker, task and actor, and what they hold. `get_runtime_context` is the entry."""

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
from dualray.shared.model.resources import GPU
from dualray.user_verbs import CallContext

ACCELERATORS = (GPU, "FURIOSA", "HPU", "MBLT", "NPU", "RBLN", "TPU", "TTNPU", "neuron_cores")
"""The kinds of accelerators that Ray names; dualray places GPUs, and has none of the others."""


def _id_or_none(text: str | None) -> HexId | None:
    return None if text is None else HexId(text)


def _deprecated(name: str, better: str | None = None) -> None:
    better = better or f"get_{name}"
    warnings.warn(f"RuntimeContext.{name} is deprecated. Use {better}() instead", DeprecationWarning, stacklevel=3)


@dataclass(frozen=True, slots=True)
class RuntimeContext:
    """Where this code runs; see `get_runtime_context`."""

    _runtime: runtime.Runtime

    @property
    def mode(self) -> str:
        """`real` or `sim`."""
        return self._runtime.mode

    @property
    def _here(self) -> CallContext:
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
        """The name under which `get_actor` finds the actor that this runs in, "" when it has none; None outside."""
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
        """The function or method, behind its module: "module.function", "module.Class.method"; None in a driver.
        A coroutine's has the names of what it is defined in, too: "module.f.<locals>.Class.method"."""
        return self._here.function_name()

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
        """Where the cluster's head is; in dualray, where its control plane is."""
        return self._runtime.addresses()["control_plane_address"]

    def get_session_name(self) -> str:
        """The name of the cluster's session, which is its directory's; `simulation` in sim mode."""
        return PurePath(self._runtime.addresses()["session_dir"]).name or "simulation"

    def get_temp_dir(self) -> str:
        """Where the directories of sessions are; in sim mode, where temporary files are."""
        directory = self._runtime.addresses()["session_dir"]
        return str(PurePath(directory).parent) if directory else tempfile.gettempdir()

    def get(self) -> dict[str, Any]:
        """What there is to know here, by name; what does not apply is absent."""
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
        """Whether `cancel` was called for the task or method that runs here. A method that is not a coroutine goes on
        after that; a long one may ask, and end.

        Raises:
            RuntimeError: in the driver.
        """
        here = self._here
        if here.task_id is None:
            raise RuntimeError("is_canceled() is for tasks and methods of actors, and was called in the driver")
        if here.is_cancelled is None:
            raise RuntimeError(
                "is_canceled() is not supported in async actors: cancel() cancels the coroutine. (This method is not "
                "supported in an async actor.)"
            )
        return here.is_cancelled

    def get_attempt(self) -> int:
        """How often this task has been tried before, as far as anybody knows: more often than `max_retries` allows, if
        earlier attempts stood behind another task when their worker was lost. Such a one may have begun, so that the
        next is another attempt; it uses no retry, for it mostly had not."""
        return self._here.attempt

    def get_accelerator_ids(self) -> dict[str, list[str]]:
        """`{"GPU": [...], ...}`: the GPUs that the task or actor holds, as `get_gpu_ids` has them, as text. The other
        kinds that Ray knows are there, and empty."""
        return {kind: list(self._here.gpus) if kind == GPU else [] for kind in ACCELERATORS}

    def get_resource_ids(self) -> dict[str, list[str]]:
        """The older name of `get_accelerator_ids`."""
        return self.get_accelerator_ids()

    def get_assigned_resources(self) -> dict[str, float]:
        """What the task or actor holds, by name."""
        return dict(self._here.resources)


def get_runtime_context() -> RuntimeContext:
    """Where this code runs: job, node, worker, task, actor, attempt, resources, placement group."""
    return RuntimeContext(started("get_runtime_context"))


def get_gpu_ids() -> list[int | str]:
    """The GPUs that the current task or actor holds; in a driver, none.

    They are what CUDA_VISIBLE_DEVICES of the task says: numbers, or, where whoever started the node has named its GPUs
    otherwise, UUIDs such as "GPU-5f0e...".
    """
    return [
        int(name) if name.isdigit() else name
        for name in RuntimeContext(started("get_gpu_ids")).get_accelerator_ids()[GPU]
    ]
