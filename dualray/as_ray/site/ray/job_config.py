"""`ray.job_config`, of dualray."""

from dualray.as_ray.job_config import *
from dualray.as_ray.refusals import refusing

__getattr__ = refusing("ray.job_config")
