"""`ray.experimental.tqdm_ray`, of dualray."""

from dualray.as_ray.refusals import refusing
from dualray.experimental.tqdm_ray import *

__getattr__ = refusing("ray.experimental.tqdm_ray")
