"""The names that types have under the name `ray`, where Ray calls a type something else than dualray.

Programs print `type(error).__name__`, and compare it. The modules of these types have Ray's names, too, so that pickles
load in processes of either kind.
Libraries also read `ray.get_runtime_context().worker`, which Ray's type has for its own use.
"""

from __future__ import annotations

from typing import Final

from dualray import cluster_context, exceptions, runtime_context
from dualray.as_ray.global_worker import global_worker

_TYPES: Final = {
    "RayError": exceptions.DualrayError,
    "RayTaskError": exceptions.TaskError,
    "RayActorError": exceptions.ActorError,
    "RayContext": cluster_context.ClusterContext,
}


def take_rays_names() -> None:
    """Give the types Ray's names, and contexts the attribute `worker`, from now on, in this process."""
    for name, cls in _TYPES.items():
        cls.__name__ = cls.__qualname__ = name
    setattr(runtime_context.RuntimeContext, "worker", property(lambda _context: global_worker))  # noqa: B010 - for mypy
