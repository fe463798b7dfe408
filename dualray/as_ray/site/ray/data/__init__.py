"""`ray.data`, of dualray."""

from dualray.as_ray.refusals import refusing
from dualray.data import *

__getattr__ = refusing("ray.data")
