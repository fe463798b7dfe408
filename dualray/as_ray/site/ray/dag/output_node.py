"""`ray.dag.output_node`, of dualray."""

from dualray.as_ray.refusals import refusing
from dualray.dag.output_node import *

__getattr__ = refusing("ray.dag.output_node")
