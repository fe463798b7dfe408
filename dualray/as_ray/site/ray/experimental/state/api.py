"""`ray.experimental.state.api`, the older place of `ray.util.state`, of dualray."""

from dualray.as_ray.refusals import refusing
from dualray.util.state import *

__getattr__ = refusing("ray.experimental.state.api")
