"""`ray.data.aggregate`, of dualray."""

from dualray.as_ray.refusals import refusing
from dualray.data.aggregate import *

__getattr__ = refusing("ray.data.aggregate")
