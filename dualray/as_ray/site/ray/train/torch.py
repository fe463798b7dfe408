"""`ray.train.torch`, of dualray."""

from dualray.as_ray.refusals import refusing
from dualray.train.torch import *

__getattr__ = refusing("ray.train.torch")
