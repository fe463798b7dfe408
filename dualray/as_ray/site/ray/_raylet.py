"""Private to Ray; of it there are the classes that programs name: references, generators, ids and `GcsClient`."""

from dualray import DynamicObjectRefGenerator, ObjectRef, ObjectRefGenerator
from dualray.as_ray.global_worker import GcsClient
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
from dualray.as_ray.refusals import refusing
from dualray.exceptions import ObjectRefStreamEndOfStreamError

RAY_NODE_ID_KEY = "ray.io/node-id"
"""The label that names a node."""

StreamingObjectRefGenerator = ObjectRefGenerator

__all__ = [
    "RAY_NODE_ID_KEY",
    "ActorClassID",
    "ActorID",
    "ClusterID",
    "DynamicObjectRefGenerator",
    "FunctionID",
    "GcsClient",
    "JobID",
    "Language",
    "NodeID",
    "ObjectID",
    "ObjectRef",
    "ObjectRefGenerator",
    "ObjectRefStreamEndOfStreamError",
    "PlacementGroupID",
    "StreamingObjectRefGenerator",
    "TaskID",
    "UniqueID",
    "WorkerID",
]

__getattr__ = refusing("ray._raylet")
