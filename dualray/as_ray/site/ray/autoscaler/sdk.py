"""`ray.autoscaler.sdk`, of dualray."""

from dualray.as_ray.refusals import refusing
from dualray.autoscaler.sdk import *

__getattr__ = refusing("ray.autoscaler.sdk")
