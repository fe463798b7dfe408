"""`ray.train.lightning`, of dualray."""

from dualray.as_ray.refusals import refusing
from dualray.train.lightning import *

__getattr__ = refusing("ray.train.lightning")
