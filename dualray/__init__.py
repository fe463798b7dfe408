"""dualray: distributed Python that you can prove before you deploy.

Tasks, actors and objects in the manner of Ray, with one set of scheduling, reconstruction and eviction policies and two
ways to drive them: `init(mode="real")` on processes, `init(mode="sim", nodes=11)` on a deterministic virtual cluster.
"""

from dualray import exceptions
from dualray.actor import ActorClass, ActorHandle, method
from dualray.api import (
    RuntimeContext,
    available_resources,
    cluster_resources,
    get,
    get_gpu_ids,
    get_runtime_context,
    init,
    is_initialized,
    kill,
    nodes,
    put,
    remote,
    shutdown,
    wait,
)
from dualray.object_ref import ObjectRef
from dualray.remote_function import RemoteFunction

__version__ = "0.1.0"

__all__ = [
    "ActorClass",
    "ActorHandle",
    "ObjectRef",
    "RemoteFunction",
    "RuntimeContext",
    "__version__",
    "available_resources",
    "cluster_resources",
    "exceptions",
    "get",
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
