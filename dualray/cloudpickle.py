"""The pickler that dualray uses, at the place where Ray has it: `from dualray import cloudpickle`."""

from __future__ import annotations

import io
from pickle import PicklingError
from typing import IO, Any

import cloudpickle
from cloudpickle import load, loads, register_pickle_by_value, unregister_pickle_by_value

from dualray.shared.core import serialization
from dualray.shared.handles import Reference

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


class CloudPickler(cloudpickle.CloudPickler):  # type: ignore[misc]  # cloudpickle ships no types
    """The pickler of cloudpickle, which keeps each actor whose handle it pickles.

    The process keeps the actor until the process ends: the bytes may be read at any time. As in Ray, Python's own
    pickle module keeps no actor.
    """

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, Reference) and not obj.is_value and obj.is_counted:
            reduced = obj.__reduce__()  # it checks that the handle can be used
            obj.holder.adopt(obj.ref)  # this reference is never dropped
            return reduced
        return super().reducer_override(obj)


Pickler = CloudPickler


def dump(obj: Any, file: IO[bytes], protocol: int | None = None, buffer_callback: Any = None) -> None:
    """Write the pickled object to a file, as `dump` of cloudpickle does."""
    CloudPickler(file, protocol=protocol, buffer_callback=buffer_callback).dump(obj)


def dumps(obj: Any, protocol: int | None = None, buffer_callback: Any = None) -> bytes:
    """Return the pickled object, as `dumps` of cloudpickle does."""
    with io.BytesIO() as file:
        dump(obj, file, protocol, buffer_callback)
        return file.getvalue()


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
