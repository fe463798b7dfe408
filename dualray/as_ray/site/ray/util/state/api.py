"""`ray.util.state.api`, of dualray."""

from dualray.as_ray.refusals import refusing
from dualray.as_ray.state_functions import *

__getattr__ = refusing("ray.util.state.api")
