"""`ray.dag.class_node`, of dualray."""

from dualray.as_ray.refusals import refusing
from dualray.dag.class_node import *

__getattr__ = refusing("ray.dag.class_node")
