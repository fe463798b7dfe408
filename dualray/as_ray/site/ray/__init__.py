"""Ray's names, of dualray: see the package dualray.as_ray."""

import logging

import dualray
from dualray import (
    DynamicObjectRefGenerator,
    ObjectRef,
    ObjectRefGenerator,
    cancel,
    get,
    get_actor,
    get_gpu_ids,
    get_runtime_context,
    is_initialized,
    kill,
    method,
    put,
    remote,
    shutdown,
    wait,
)
from dualray.as_ray.ids import (
    ActorClassID,
    ActorID,
    ClusterID,
    FunctionID,
    JobID,
    Language,
    NodeID,
    ObjectID,
    PlacementGroupID,
    TaskID,
    UniqueID,
    WorkerID,
)
from dualray.as_ray.initializing import init
from dualray.as_ray.job_config import LoggingConfig
from dualray.as_ray.metadata import RAYS_VERSION
from dualray.as_ray.old_modules import OldModule
from dualray.as_ray.refusals import refusing
from dualray.as_ray.resources import available_resources, cluster_resources, nodes
from dualray.as_ray.type_names import take_rays_names

__version__ = RAYS_VERSION
logger = logging.getLogger("ray")
ray_constants, state, worker = OldModule("ray_constants"), OldModule("state"), OldModule("worker")
__commit__ = f"dualray-{dualray.__version__}"

SCRIPT_MODE, WORKER_MODE = 0, 1

__all__ = [
    "SCRIPT_MODE",
    "WORKER_MODE",
    "ActorClassID",
    "ActorID",
    "ClusterID",
    "DynamicObjectRefGenerator",
    "FunctionID",
    "JobID",
    "Language",
    "LoggingConfig",
    "NodeID",
    "ObjectID",
    "ObjectRef",
    "ObjectRefGenerator",
    "PlacementGroupID",
    "TaskID",
    "UniqueID",
    "WorkerID",
    "__version__",
    "available_resources",
    "cancel",
    "cluster_resources",
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
    "timeline",
    "wait",
]


take_rays_names()
__getattr__ = refusing("ray", {"timeline": "dualray.as_ray.pictures"})
del RAYS_VERSION, OldModule, dualray, logging, refusing, take_rays_names  # Ray has no such names
