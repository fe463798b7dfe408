"""`ray.train`, of dualray."""

from dualray.as_ray.refusals import refusing
from dualray.train import *

__getattr__ = refusing("ray.train")
