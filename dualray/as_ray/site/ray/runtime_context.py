"""`ray.runtime_context`, of dualray."""

from dualray.as_ray.refusals import refusing
from dualray.runtime_context import *

__getattr__ = refusing("ray.runtime_context")
