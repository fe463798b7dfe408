"""`ray.util.annotations`, of dualray."""

from dualray.as_ray.refusals import refusing
from dualray.util.annotations import *

__getattr__ = refusing("ray.util.annotations")
