"""`ray.util.debug`, of dualray."""

from dualray.as_ray.refusals import refusing
from dualray.util.debug import *

__getattr__ = refusing("ray.util.debug")
