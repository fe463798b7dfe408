"""`ray.data.expressions`, of dualray."""

from dualray.as_ray.refusals import refusing
from dualray.data.expressions import *

__getattr__ = refusing("ray.data.expressions")
