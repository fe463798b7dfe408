"""`ray.util.metrics`, of dualray."""

from dualray.as_ray.refusals import refusing
from dualray.util.metrics import *

__getattr__ = refusing("ray.util.metrics")
