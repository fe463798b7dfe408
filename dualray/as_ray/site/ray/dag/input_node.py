"""`ray.dag.input_node`, of dualray."""

from dualray.as_ray.refusals import refusing
from dualray.dag.input_node import *

__getattr__ = refusing("ray.dag.input_node")
