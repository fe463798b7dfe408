"""The runtime of this process: a worker of Ray gets it when the first thing of dualray's arrives."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import ray

from dualray.runtime import ambient


def have_runtime() -> Any:
    """The runtime of this process; a worker that has none gets one."""
    if ambient.runtime is None:
        ambient.runtime = import_module("dualray.on_ray.runtime").of_worker()
    return ambient.runtime


def as_ours(value: Any) -> Any:
    """A value as dualray gives it: what Ray makes of a dynamic generator becomes dualray's."""
    if type(value) is ray.DynamicObjectRefGenerator:
        return _collected(value)
    return value


def _collected(generator: Any) -> Any:
    value = import_module("dualray.on_ray.references").Value
    refs = [value(ref) for ref in list(generator._refs)]
    return import_module("dualray.object_ref_generator").DynamicObjectRefGenerator.collect(refs)
