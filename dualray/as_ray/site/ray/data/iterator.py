"""`ray.data.iterator`, of dualray."""

from dualray.as_ray.refusals import refusing
from dualray.data.iterator import *

__getattr__ = refusing("ray.data.iterator")
