"""`ray.data.collate_fn`, of dualray."""

from dualray.as_ray.refusals import refusing
from dualray.data.collate_fn import *

__getattr__ = refusing("ray.data.collate_fn")
