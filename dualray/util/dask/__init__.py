"""Run Dask's graphs on the cluster: each task of a graph is a task of dualray.

    import dask
    from dualray.util.dask import enable_dask_on_ray

    enable_dask_on_ray()
    dask.delayed(sum)([1, 2]).compute()

The functions have the names that they have in Ray. `persist()` leaves the values in the object store, and the
collection holds references to them. Needs the extra: `pip install 'dualray[dask]'`.
"""

from __future__ import annotations

from typing import Any

import dask

from dualray.util.dask.callbacks import ProgressBarCallback, RayDaskCallback
from dualray.util.dask.scheduler import (
    dataframe_optimize,
    disable_dask_on_ray,
    enable_dask_on_ray,
    ray_dask_get,
    ray_dask_get_sync,
)

__all__ = [
    "ProgressBarCallback",
    "RayDaskCallback",
    "dataframe_optimize",
    "disable_dask_on_ray",
    "enable_dask_on_ray",
    "ray_dask_get",
    "ray_dask_get_sync",
]

_persist, _persist_collection = dask.persist, dask.base.DaskMethodsMixin.persist


def _persist_references(*args: Any, **kwargs: Any) -> Any:
    return _persist(*args, **{"ray_persist": True, **kwargs})


def _persist_collection_references(self: Any, **kwargs: Any) -> Any:
    return _persist_collection(self, **{"ray_persist": True, **kwargs})


# Dask calls a scheduler in the same way for `compute` and for `persist`. Other schedulers ignore the argument.
_persist_references.__doc__ = _persist.__doc__
_persist_collection_references.__doc__ = _persist_collection.__doc__
dask.persist = _persist_references
dask.base.DaskMethodsMixin.persist = _persist_collection_references
