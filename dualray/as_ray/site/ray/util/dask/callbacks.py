"""`ray.util.dask.callbacks`, of dualray."""

from dualray.as_ray.refusals import refusing
from dualray.util.dask.callbacks import *

__getattr__ = refusing("ray.util.dask.callbacks")
