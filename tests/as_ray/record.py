"""What Ray 2.60 has, by name, written to tests/data/rays_names.json: `python tests/as_ray/record.py`, where Ray is.

Counted is what `__all__` names, and, in modules without one, what is marked as public, and every exception. It needs
Ray with pandas, pyarrow and joblib, and nothing of dualray.
"""

from __future__ import annotations

import inspect
import json
from importlib import import_module
from pathlib import Path
from types import ModuleType

FILE = Path(__file__).parents[1] / "data" / "rays_names.json"

MODULES = (
    "ray",
    "ray.util",
    "ray.util.queue",
    "ray.util.actor_pool",
    "ray.util.placement_group",
    "ray.util.scheduling_strategies",
    "ray.util.state",
    "ray.util.metrics",
    "ray.util.multiprocessing",
    "ray.util.joblib",
    "ray.util.annotations",
    "ray.util.serialization",
    "ray.util.check_serialize",
    "ray.util.debug",
    "ray.util.helpers",
    "ray.util.accelerators",
    "ray.actor",
    "ray.exceptions",
    "ray.remote_function",
    "ray.runtime_context",
    "ray.runtime_env",
    "ray.cluster_utils",
    "ray.types",
    "ray.job_config",
    "ray.dag",
    "ray.experimental",
    "ray.data",
    "ray.train",
)
MEMBERS = (
    "ray.runtime_context.RuntimeContext",
    "ray.util.placement_group.PlacementGroup",
    "ray.util.queue.Queue",
    "ray.util.actor_pool.ActorPool",
    "ray.util.multiprocessing.Pool",
    "ray.cluster_utils.Cluster",
    "ray.job_config.JobConfig",
)
"""Classes whose public attributes are counted as well."""

STANDARD = {"ray.util.queue": {"Empty", "Full", "Queue"}, "ray.types": {"ObjectRef"}}
"""What Ray's documentation names in modules that mark nothing."""


def names_of(name: str) -> list[str]:
    """The counted names of a module; those of modules in `__all__` are left out: modules are listed as such."""
    module = import_module(name)
    named = set(getattr(module, "__all__", ())) | STANDARD.get(name, set())
    if not named:
        named = {each for each, value in vars(module).items() if is_public(name, each, value)}
    return sorted(each for each in named if not isinstance(vars(module).get(each), ModuleType) and each[0] != "_")


def is_public(module: str, name: str, value: object) -> bool:
    """Whether a name is marked as public, and is of this module."""
    if name[0] == "_" or getattr(value, "__module__", None) != module:
        return False
    if isinstance(value, type) and issubclass(value, BaseException):
        return True
    return getattr(value, "_annotated", None) == getattr(value, "__name__", "")


def members_of(name: str) -> list[str]:
    """The public attributes of a class."""
    module, _, of_class = name.rpartition(".")
    found = getattr(import_module(module), of_class)
    inherited = {each for base in (dict, list, object) if issubclass(found, base) for each in dir(base)}
    return sorted(each for each in dir(found) if each[0] != "_" and each not in inherited)


def record() -> None:
    """Write the file."""
    ray = import_module("ray")
    import_module("ray.cluster_utils")
    found = {
        "version": ray.__version__,
        "modules": {name: names_of(name) for name in MODULES},
        "members": {name: members_of(name) for name in MEMBERS},
        "arguments of ray.init": [each for each in inspect.signature(ray.init).parameters if each != "kwargs"],
    }
    FILE.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    record()
