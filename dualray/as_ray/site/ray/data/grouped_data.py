"""`ray.data.grouped_data`, of dualray."""

from dualray.as_ray.refusals import refusing
from dualray.data.grouped import *

__getattr__ = refusing("ray.data.grouped_data")
