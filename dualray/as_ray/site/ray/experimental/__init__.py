"""`ray.experimental`, of dualray."""

from dualray.as_ray.refusals import refusing
from dualray.experimental import *

__getattr__ = refusing("ray.experimental")
