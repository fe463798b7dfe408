"""`ray.remote_function`, of dualray."""

from dualray.as_ray.refusals import refusing
from dualray.remote_function import *

__getattr__ = refusing("ray.remote_function")
