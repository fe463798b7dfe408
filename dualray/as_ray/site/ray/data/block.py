"""`ray.data.block`, of dualray: what sources and targets of programs need."""

from dualray.as_ray.refusals import refusing
from dualray.data.interfaces import Block, BlockMetadata  # noqa: F401 - names of the module

__getattr__ = refusing("ray.data.block")
