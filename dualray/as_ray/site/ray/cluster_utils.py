"""`ray.cluster_utils`, of dualray."""

from dualray.as_ray.refusals import refusing
from dualray.cluster_utils import *

__getattr__ = refusing("ray.cluster_utils")
