"""`ray.data.context`, of dualray."""

from dualray.as_ray.refusals import refusing
from dualray.data.choices import ShuffleStrategy  # noqa: F401 - a name of the module
from dualray.data.context import *

__getattr__ = refusing("ray.data.context")
