"""`ray.util.accelerators.accelerators`, of dualray."""

from dualray.as_ray.refusals import refusing
from dualray.util.accelerators import *

__getattr__ = refusing("ray.util.accelerators.accelerators")
