"""`ray.train.xgboost`, of dualray."""

from dualray.as_ray.refusals import refusing
from dualray.train.xgboost import *

__getattr__ = refusing("ray.train.xgboost")
