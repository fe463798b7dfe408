"""`ray.data.datatype`, of dualray."""

from dualray.as_ray.refusals import refusing
from dualray.data.choices import DataType  # noqa: F401 - a name of the module

__getattr__ = refusing("ray.data.datatype")
