"""`ray.util.dask.scheduler`, of dualray."""

from dualray.as_ray.refusals import refusing
from dualray.util.dask.scheduler import *

__getattr__ = refusing("ray.util.dask.scheduler")
