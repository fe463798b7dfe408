"""Runs an application of examples/, which says `import dualray.classic as ray`, on plain Ray:

    python -m benchmarks.plain_ray SCRIPT [ARGUMENT ...]

The words of 2017 are given to Ray in those of today, one for one. Nothing of dualray runs the program's tasks.
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import ray

import dualray
import dualray.classic
from dualray import experimental

_OF_SIMULATIONS = ("duration", "execute", "returns")


def _todays(options: dict[str, Any]) -> dict[str, Any]:
    found = {name: value for name, value in options.items() if name not in _OF_SIMULATIONS}
    if "num_return_vals" in found:
        found["num_returns"] = found.pop("num_return_vals")
    return found


class BothForms:
    """An actor's class of plain Ray: `Cls(...)` makes an actor, too, as in 2017."""

    def __init__(self, made: Any) -> None:
        self.remote = made.remote
        self.options = made.options

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.remote(*args, **kwargs)


def classic() -> ModuleType:
    """The module that stands for `dualray.classic`. It is in no package, so that Ray sends it to workers by value."""

    def remote(*targets: Any, **options: Any) -> Any:
        said = _todays(options)

        def make(target: Any) -> Any:
            made = ray.remote(**said)(target) if said else ray.remote(target)
            return BothForms(made) if isinstance(target, type) else made

        return make(*targets) if targets else make

    def init(redis_address: str | None = None, **_: Any) -> None:
        ray.init(address=redis_address, log_to_driver=False, logging_level="ERROR")

    module: Any = ModuleType("plain_ray_of_2017")
    module.init, module.remote = init, remote
    module.get, module.put, module.wait, module.get_gpu_ids = ray.get, ray.put, ray.wait, ray.get_gpu_ids
    module.worker = SimpleNamespace(cleanup=ray.shutdown)
    module.services = SimpleNamespace(get_node_ip_address=ray.util.get_node_ip_address)
    module.experimental = experimental
    return module  # type: ignore[no-any-return]  # it was `Any`, to be given attributes


def method(**options: Any) -> Callable[[Any], Any]:
    """`ray.method`, without what is for simulations."""
    said = _todays(options)
    return ray.method(**said) if said else lambda function: function


if __name__ == "__main__":
    sys.modules["dualray.classic"] = dualray.classic = classic()
    dualray.method = method  # type: ignore[assignment]  # the one that Ray knows
    dualray.cluster_resources = ray.cluster_resources
    sys.argv = sys.argv[1:]
    sys.path.insert(0, sys.argv[0].rpartition("/")[0])
    runpy.run_path(sys.argv[0], run_name="__main__")
