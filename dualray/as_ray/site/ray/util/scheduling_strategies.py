"""`ray.util.scheduling_strategies`, of dualray."""

from dualray.as_ray.refusals import refusing
from dualray.util.scheduling_strategies import *

__getattr__ = refusing("ray.util.scheduling_strategies")
