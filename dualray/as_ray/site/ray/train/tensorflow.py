"""`ray.train.tensorflow`, of dualray."""

from dualray.as_ray.refusals import refusing
from dualray.train.tensorflow import *

__getattr__ = refusing("ray.train.tensorflow")
