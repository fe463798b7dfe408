"""`ray.util.joblib`, of dualray."""

from dualray.as_ray.refusals import refusing
from dualray.util.joblib import *

__getattr__ = refusing("ray.util.joblib")
