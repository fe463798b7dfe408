"""`ray.runtime_env`, of dualray."""

from dualray.as_ray.environments import *
from dualray.as_ray.refusals import refusing

__getattr__ = refusing("ray.runtime_env")
