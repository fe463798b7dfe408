"""`ray.util.queue`, of dualray."""

from dualray.as_ray.refusals import refusing
from dualray.util.queue import *

__getattr__ = refusing("ray.util.queue", {"_QueueActor": "dualray.util.queue"})
