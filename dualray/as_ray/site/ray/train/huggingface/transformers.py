"""`ray.train.huggingface.transformers`, of dualray."""

from dualray.as_ray.refusals import refusing
from dualray.train.huggingface.transformers import *

__getattr__ = refusing("ray.train.huggingface.transformers")
