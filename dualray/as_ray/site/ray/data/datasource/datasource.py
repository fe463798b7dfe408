"""`ray.data.datasource.datasource`, of dualray."""

from dualray.as_ray.refusals import refusing
from dualray.data.interfaces import Datasource, ReadTask  # noqa: F401 - names of the module

__getattr__ = refusing("ray.data.datasource.datasource")
