"""`ray.dag`, of dualray."""

from dualray.as_ray.refusals import refusing
from dualray.dag import *

__getattr__ = refusing("ray.dag")
