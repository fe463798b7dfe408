"""`ray.util.state.api`, of dualray."""

from dualray.as_ray.refusals import refusing
from dualray.util.state import *

__getattr__ = refusing("ray.util.state.api")
