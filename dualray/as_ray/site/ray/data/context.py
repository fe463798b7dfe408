"""`ray.data.context`, of dualray."""

from dualray.as_ray.refusals import refusing
from dualray.data.context import *

__getattr__ = refusing("ray.data.context")
