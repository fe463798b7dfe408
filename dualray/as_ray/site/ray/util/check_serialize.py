"""`ray.util.check_serialize`, of dualray."""

from dualray.as_ray.refusals import refusing
from dualray.util.check_serialize import *

__getattr__ = refusing("ray.util.check_serialize")
