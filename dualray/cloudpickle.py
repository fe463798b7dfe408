"""The pickler that dualray uses, at the place where Ray has it: `from dualray import cloudpickle`."""

from __future__ import annotations

from pickle import PicklingError
from typing import Any

from cloudpickle import (
    CloudPickler,
    Pickler,
    dump,
    dumps,
    load,
    loads,
    register_pickle_by_value,
    unregister_pickle_by_value,
)

from dualray.shared.core import serialization

__all__ = [
    "CloudPickler",
    "Pickler",
    "dump",
    "dumps",
    "dumps_debug",
    "load",
    "loads",
    "register_pickle_by_value",
    "unregister_pickle_by_value",
]

_DEPTH_MAX = 3
"""As of `dualray.util.inspect_serializability`."""


def dumps_debug(obj: Any, *args: Any, **kwargs: Any) -> bytes:
    """Pickle as `dumps` does. If that fails, the error names the innermost parts that cannot be pickled.

    Args:
        obj: what to pickle.
        args, kwargs: further arguments of `dumps`.

    Raises:
        TypeError, pickle.PicklingError: the object cannot be pickled.
    """
    try:
        pickled: bytes = dumps(obj, *args, **kwargs)
    except (TypeError, PicklingError) as error:
        name = getattr(obj, "__qualname__", None) or f"the {type(obj).__name__}"
        culprits = serialization.find_culprits(obj, name, depth_max=_DEPTH_MAX)
        parts = [f"{culprit.path} (a {type(culprit.value).__name__}): {culprit.reason}" for culprit in culprits]
        raise type(error)("\n  ".join([f"{error}. These parts cannot be pickled:", *parts])) from error
    return pickled
