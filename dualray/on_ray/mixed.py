"""For programs in which plain Ray and dualray meet."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import ray

from dualray import runtime
from dualray.on_ray.here import have_runtime
from dualray.on_ray.references import Item, Value
from dualray.shared.handles import Reference


def to_ray(reference: Any) -> Any:
    """The `ray.ObjectRef` behind a reference of dualray's: the same object, for plain Ray.

    Raises:
        TypeError: it is no reference of mode "ray".
    """
    behind: Any = reference.ref if isinstance(reference, Reference) else None
    if not isinstance(behind, Value | Item) or behind.ray is None:
        raise TypeError(f"to_ray takes an ObjectRef that dualray created in mode='ray', not {reference!r}")
    return behind.ray


def from_ray(reference: Any) -> Any:
    """A reference of dualray's to what a `ray.ObjectRef` refers to.

    Raises:
        TypeError: it is no `ray.ObjectRef`.
        DualrayError: this process is not connected to Ray.
    """
    if not isinstance(reference, ray.ObjectRef):
        raise TypeError(f"from_ray takes a ray.ObjectRef, not {reference!r}")
    have_runtime()
    return import_module("dualray.object_ref").ObjectRef(Value(reference), runtime.current("from_ray").verbs)
