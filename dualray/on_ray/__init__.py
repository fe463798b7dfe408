"""Mode "ray": the same programs on a Ray cluster. Ray schedules, pickles, stores and restarts; this package is the thin
layer that makes Ray's verbs into those of the seam (dualray/runtime.py).

What Ray cannot give is refused at the call (`refusals.py`). `to_ray` and `from_ray` are for programs in which plain Ray
and dualray meet.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from dualray.exceptions import DualrayError

__all__ = ["from_ray", "to_ray"]

if find_spec("ray") is None:
    raise DualrayError("mode='ray' runs on Ray, which is not installed: pip install \"dualray[ray]\"")

if "/dualray/as_ray/" in (getattr(sys.modules.get("ray"), "__file__", None) or ""):
    raise DualrayError(
        "mode='ray' needs Ray, but `import ray` imports dualray in this process. Leave out --as-ray to run the "
        "program on Ray"
    )


def __getattr__(name: str) -> Any:
    if name in __all__:  # not at the top: a worker imports a module of this package before it has a runtime
        return getattr(import_module("dualray.on_ray.mixed"), name)
    raise AttributeError(f"module 'dualray.on_ray' has no attribute {name!r}")
