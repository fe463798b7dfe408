"""`ray.train.lightgbm`, of dualray."""

from dualray.as_ray.refusals import refusing
from dualray.train.lightgbm import *

__getattr__ = refusing("ray.train.lightgbm")
