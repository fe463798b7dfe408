"""`UserVerbs` of a process of Ray's; see dualray/runtime.py for what each does."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import ray

from dualray.on_ray.actors import RayActors
from dualray.on_ray.cluster import RayCluster
from dualray.on_ray.promises import Promises
from dualray.on_ray.values import RayValues
from dualray.shared.handles import ProcessKey
from dualray.user_verbs import CallContext


class RayVerbs(RayActors, RayValues, RayCluster):
    """All of them. Args:

    is_worker: whether this process runs tasks of Ray's.
    waits_for_nodes: whether what no node can meet waits, for nodes may join.
    """

    __slots__ = ("is_closed", "is_in_task", "key", "promises", "record_to", "waits_for_nodes", "warned")

    def __init__(self, *, is_worker: bool, waits_for_nodes: bool) -> None:
        self.is_closed = False
        self.is_in_task = is_worker
        self.key = ProcessKey()
        self.promises = Promises()
        self.waits_for_nodes = waits_for_nodes
        self.warned: set[str] = set()
        self.record_to: Any = None

    @property
    def runtime_env(self) -> str:
        return str(ray.get_runtime_context().get_runtime_env_string())

    @property
    def namespace(self) -> str:
        return str(ray.get_runtime_context().namespace)

    @property
    def ip_address(self) -> str:
        return str(ray.util.get_node_ip_address())

    def context(self) -> CallContext:
        here = ray.get_runtime_context()
        actor_id = here.get_actor_id()
        return CallContext(
            job_id=here.get_job_id(),
            node_id=here.get_node_id(),
            worker_id=here.get_worker_id(),
            task_id=here.get_task_id() if self.is_in_task else None,
            task_name=here.get_task_name() if self.is_in_task else None,
            function_name=here.get_task_function_name if self.is_in_task else _no_function,
            attempt=_attempt() if self.is_in_task else 0,
            actor_id=actor_id,
            actor_name=here.get_actor_name() if actor_id is not None else None,
            is_restarted=bool(here.was_current_actor_reconstructed) if actor_id is not None else False,
            is_cancelled=_is_cancelled(here) if self.is_in_task else False,
            placement_group_id=here.get_placement_group_id(),
            captures_children=bool(here.should_capture_child_tasks_in_placement_group),
            accelerators=here.get_accelerator_ids(),
            resources=dict(here.get_assigned_resources()) if self.is_in_task else {},
        )


def _no_function() -> None:
    """A driver runs none."""


def _attempt() -> int:
    """Ray's public context does not say which attempt runs."""
    with suppress(AttributeError):
        return int(ray._private.worker.global_worker.core_worker.get_current_task_attempt_number())
    return 0


def _is_cancelled(here: Any) -> bool | None:
    try:
        return bool(here.is_canceled())
    except RuntimeError:  # in an actor of coroutines, which Ray does not ask
        return None
