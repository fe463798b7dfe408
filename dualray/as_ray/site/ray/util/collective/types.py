"""`ray.util.collective.types`, of dualray."""

from dualray.as_ray.refusals import refusing
from dualray.util.collective.types import *

__getattr__ = refusing("ray.util.collective.types")
