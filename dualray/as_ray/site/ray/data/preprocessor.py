"""`ray.data.preprocessor`, of dualray."""

from dualray.as_ray.refusals import refusing
from dualray.data.preprocessors.preprocessor import *

__getattr__ = refusing("ray.data.preprocessor")
