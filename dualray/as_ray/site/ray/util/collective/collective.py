"""`ray.util.collective.collective`, of dualray."""

from dualray.as_ray.refusals import refusing
from dualray.util.collective import *

__getattr__ = refusing("ray.util.collective.collective")
