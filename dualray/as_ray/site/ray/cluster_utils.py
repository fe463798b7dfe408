"""`ray.cluster_utils`, of dualray."""

from dualray.as_ray.refusals import refusing
from dualray.cluster_utils import *

cluster_not_supported = False

__getattr__ = refusing("ray.cluster_utils")
