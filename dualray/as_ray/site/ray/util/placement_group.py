"""`ray.util.placement_group`, of dualray."""

from dualray.as_ray.refusals import refusing
from dualray.util.placement_group import *

__getattr__ = refusing("ray.util.placement_group")
