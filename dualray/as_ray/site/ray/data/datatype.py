"""`ray.data.datatype`, of dualray."""

from dualray.as_ray.refusals import refusing
from dualray.data.datatype import DataType, TypeCategory  # noqa: F401 - names of the module

__getattr__ = refusing("ray.data.datatype")
