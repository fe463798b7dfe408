"""`ray.util.dask`, of dualray."""

from dualray.as_ray.refusals import refusing
from dualray.util.dask import *

__getattr__ = refusing("ray.util.dask")
