"""`ray.dag.dag_node`, of dualray."""

from dualray.as_ray.refusals import refusing
from dualray.dag.dag_node import *

__getattr__ = refusing("ray.dag.dag_node")
