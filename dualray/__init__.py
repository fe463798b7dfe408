"""dualray: distributed Python that you can test before you deploy it.

dualray has Ray's tasks, actors and objects. `init(mode="real")` runs them on real processes, and `init(mode="sim",
nodes=11)` runs them on a deterministic virtual cluster. Both modes use the same policies for scheduling, reconstruction
and eviction.

dualray imports a name when a program first uses it, because the head and the node managers need none of these names.

PYTEST_DONT_REWRITE: with DUALRAY_AS_RAY=1, Python imports this package before pytest, and pytest warns of it otherwise.
"""

from importlib import import_module
from os import environ
from typing import TYPE_CHECKING, Any

from dualray.random_seeds import begin
from dualray.version import __version__

if TYPE_CHECKING:
    from dualray import dag as dag
    from dualray import data as data
    from dualray import exceptions
    from dualray import experimental as experimental
    from dualray import train as train
    from dualray import util as util
    from dualray.actor import ActorClass, ActorHandle, exit_actor, get_actor, method
    from dualray.api import (
        available_resources,
        cancel,
        cluster_resources,
        get,
        init,
        is_initialized,
        kill,
        nodes,
        put,
        remote,
        shutdown,
        wait,
    )
    from dualray.cluster_context import ClusterContext
    from dualray.object_ref import ObjectRef
    from dualray.object_ref_generator import DynamicObjectRefGenerator, ObjectRefGenerator
    from dualray.remote_function import RemoteFunction
    from dualray.report.present import timeline
    from dualray.runtime_context import RuntimeContext, get_gpu_ids, get_runtime_context

__compiled__: bool
"""Whether this process runs the compiled core (docs/performance.md)."""

__all__ = [
    "ActorClass",
    "ActorHandle",
    "ClusterContext",
    "DynamicObjectRefGenerator",
    "ObjectRef",
    "ObjectRefGenerator",
    "RemoteFunction",
    "RuntimeContext",
    "__version__",
    "available_resources",
    "cancel",
    "cluster_resources",
    "exceptions",
    "exit_actor",
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

_HOMES = {
    "ActorClass": "dualray.actor",
    "ActorHandle": "dualray.actor",
    "ClusterContext": "dualray.cluster_context",
    "exit_actor": "dualray.actor",
    "get_actor": "dualray.actor",
    "method": "dualray.actor",
    "DynamicObjectRefGenerator": "dualray.object_ref_generator",
    "ObjectRef": "dualray.object_ref",
    "ObjectRefGenerator": "dualray.object_ref_generator",
    "RemoteFunction": "dualray.remote_function",
    "RuntimeContext": "dualray.runtime_context",
    "get_gpu_ids": "dualray.runtime_context",
    "get_runtime_context": "dualray.runtime_context",
    "timeline": "dualray.report.present",
}
"""Where a name is, if not in `dualray.api`."""

_ROOMS = ("cloudpickle", "dag", "data", "exceptions", "experimental", "train", "util")
"""Modules that need no import of their own: `dualray.data.range(9)`."""


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return import_module(f"dualray.{name}")
    if name == "__compiled__":
        from importlib.util import find_spec  # noqa: PLC0415 - few ask

        core = find_spec("dualray.shared.machines.owner.owner")
        return core is not None and core.origin is not None and not core.origin.endswith(".py")
    if name not in __all__:
        raise AttributeError(f"module 'dualray' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOMES.get(name, "dualray.api")), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


begin()
if environ.get("DUALRAY_AS_RAY", "0") not in ("", "0"):  # a parent has the name `ray`, and so have its children
    import_module("dualray.as_ray").install()
