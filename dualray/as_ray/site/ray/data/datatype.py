"""`ray.data.datatype`, of dualray."""

from dualray.as_ray.refusals import refusing

__getattr__ = refusing("ray.data.datatype")
