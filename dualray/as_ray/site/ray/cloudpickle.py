"""`ray.cloudpickle`, of dualray."""

import pickle  # noqa: F401 - Ray has it here, too

from dualray.as_ray.refusals import refusing
from dualray.cloudpickle import *

__getattr__ = refusing("ray.cloudpickle")
