"""`ray.util.helpers`, of dualray."""

from dualray.as_ray.refusals import refusing
from dualray.util.helpers import *

__getattr__ = refusing("ray.util.helpers")
