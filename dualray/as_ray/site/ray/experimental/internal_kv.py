"""`ray.experimental.internal_kv`, of dualray."""

from dualray.as_ray.internal_kv import *
from dualray.as_ray.refusals import refusing

__getattr__ = refusing("ray.experimental.internal_kv")
