"""`ray.cluster_utils`, of dualray."""

from dualray.as_ray.refusals import refusing
from dualray.cluster_utils import *

from dualray.as_ray.clusters import *  # isort: skip - the Cluster of this name comes last

cluster_not_supported = False

__getattr__ = refusing("ray.cluster_utils")
