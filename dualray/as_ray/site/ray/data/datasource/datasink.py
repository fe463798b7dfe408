"""`ray.data.datasource.datasink`, of dualray."""

from dualray.as_ray.refusals import refusing
from dualray.data.interfaces import Datasink, WriteResult  # noqa: F401 - names of the module

__getattr__ = refusing("ray.data.datasource.datasink")
