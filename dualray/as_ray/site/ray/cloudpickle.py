"""`ray.cloudpickle`, of dualray."""

from dualray.as_ray.refusals import refusing
from dualray.cloudpickle import *

__getattr__ = refusing("ray.cloudpickle")
