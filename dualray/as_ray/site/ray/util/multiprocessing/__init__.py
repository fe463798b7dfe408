"""`ray.util.multiprocessing`, of dualray."""

from dualray.as_ray.refusals import refusing
from dualray.util.multiprocessing import *

__getattr__ = refusing("ray.util.multiprocessing")
