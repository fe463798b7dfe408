"""The names that Ray's public tests and other suites import from here: `global_worker`, and the verbs."""

from typing import Any

from dualray import (
    cancel,
    get,
    get_actor,
    get_gpu_ids,
    is_initialized,
    kill,
    put,
    remote,
    shutdown,
    wait,
)
from dualray import cloudpickle as pickle
from dualray.as_ray.global_worker import global_worker
from dualray.as_ray.initializing import init
from dualray.as_ray.refusals import refusing
from dualray.cluster_context import ClusterContext as BaseContext
from dualray.cluster_context import hosted_dashboard as get_dashboard_url

SCRIPT_MODE, WORKER_MODE, LOCAL_MODE = 0, 1, 2
SPILL_WORKER_MODE, RESTORE_WORKER_MODE = 2, 3

__all__ = [
    "LOCAL_MODE",
    "RESTORE_WORKER_MODE",
    "SCRIPT_MODE",
    "SPILL_WORKER_MODE",
    "WORKER_MODE",
    "BaseContext",
    "cancel",
    "get",
    "get_actor",
    "get_dashboard_url",
    "get_gpu_ids",
    "global_worker",
    "init",
    "is_initialized",
    "kill",
    "pickle",
    "put",
    "remote",
    "shutdown",
    "wait",
]

_refused = refusing("ray._private.worker")


def __getattr__(name: str) -> Any:
    if name == "_global_node":
        return global_worker.node
    return _refused(name)
