"""`ray.experimental.state.api`, the older place of `ray.util.state`, of dualray."""

from dualray.as_ray.refusals import refusing
from dualray.as_ray.state_functions import *

__getattr__ = refusing("ray.experimental.state.api")
