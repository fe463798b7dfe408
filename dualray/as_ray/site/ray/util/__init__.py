"""`ray.util`, of dualray. Its `placement_group` is a function, as in Ray: the module of that name comes first."""

from ray.util import accelerators as accelerators
from ray.util import placement_group as _module  # noqa: F401 - loaded before the function takes its name
from ray.util import scheduling_strategies as scheduling_strategies

from dualray.as_ray.ids import get_node_instance_id as get_node_instance_id
from dualray.as_ray.refusals import refusing
from dualray.util import *
from dualray.util import __all__ as _of_dualray

__all__ = list(_of_dualray)
__all__ += ["accelerators", "collective", "get_node_instance_id"]  # noqa: F405 - loaded on use

__getattr__ = refusing("ray.util")
