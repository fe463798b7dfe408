"""`ray.dag.function_node`, of dualray."""

from dualray.as_ray.refusals import refusing
from dualray.dag.function_node import *

__getattr__ = refusing("ray.dag.function_node")
