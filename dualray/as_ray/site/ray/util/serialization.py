"""`ray.util.serialization`, of dualray."""

from dualray.as_ray.refusals import refusing
from dualray.util.serialization import *

__getattr__ = refusing("ray.util.serialization")
