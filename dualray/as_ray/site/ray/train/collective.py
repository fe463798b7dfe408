"""`ray.train.collective`, of dualray."""

from dualray.as_ray.refusals import refusing
from dualray.train.collective import *

__getattr__ = refusing("ray.train.collective")
