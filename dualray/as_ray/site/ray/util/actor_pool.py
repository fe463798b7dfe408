"""`ray.util.actor_pool`, of dualray."""

from dualray.as_ray.refusals import refusing
from dualray.util.actor_pool import *

__getattr__ = refusing("ray.util.actor_pool")
