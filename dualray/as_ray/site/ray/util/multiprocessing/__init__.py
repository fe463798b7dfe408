"""`ray.util.multiprocessing`, of dualray."""

from dualray.as_ray.refusals import refusing
from dualray.util.multiprocessing import *

from dualray.as_ray.pools import *  # isort: skip - the Pool of this name comes last

__getattr__ = refusing("ray.util.multiprocessing")
