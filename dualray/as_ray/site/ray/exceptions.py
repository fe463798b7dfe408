"""`ray.exceptions`, of dualray."""

from dualray.as_ray.refusals import refusing
from dualray.exceptions import *

__getattr__ = refusing("ray.exceptions")
