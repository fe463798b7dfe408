"""`ray.data.dataset`, of dualray."""

from dualray.as_ray.refusals import refusing
from dualray.data.dataset import *

__getattr__ = refusing("ray.data.dataset")
