"""`ray.util.multiprocessing.pool`, of dualray."""

from dualray.as_ray.refusals import refusing
from dualray.util.multiprocessing.pool import *

__getattr__ = refusing("ray.util.multiprocessing.pool")
