"""`ray.actor`, of dualray."""

from dualray.actor import *
from dualray.as_ray.refusals import refusing

__getattr__ = refusing("ray.actor")
