"""`ray.data.preprocessors`, of dualray."""

from dualray.as_ray.refusals import refusing
from dualray.data.preprocessors import *

__getattr__ = refusing("ray.data.preprocessors")
