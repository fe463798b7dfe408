"""`ray.experimental.locations`, of dualray."""

from dualray.as_ray.refusals import refusing
from dualray.experimental.locations import *

__getattr__ = refusing("ray.experimental.locations")
