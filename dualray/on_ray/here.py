"""The runtime of this process: a worker of Ray gets it when the first thing of dualray's arrives."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import ray

from dualray.runtime import ambient


def have_runtime(record_to: Any = None) -> Any:
    """The runtime of this process; a worker that has none gets one. `record_to`: see notes.py; None: as it is."""
    here: Any = ambient.runtime
    if here is None:
        here = ambient.runtime = import_module("dualray.on_ray.runtime").of_worker()
    if record_to is not None and here.record_to is None:
        here.begin_notes(record_to)
    return here


def as_ours(value: Any) -> Any:
    """A value as dualray gives it: what Ray makes of a dynamic generator becomes dualray's."""
    if type(value) is ray.DynamicObjectRefGenerator:
        return _collected(value)
    return value


def _collected(generator: Any) -> Any:
    value = import_module("dualray.on_ray.references").Value
    refs = [value(ref) for ref in list(generator._refs)]
    return import_module("dualray.object_ref_generator").DynamicObjectRefGenerator.collect(refs)
