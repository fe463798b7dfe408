"""`ray.train.v2.api`: of its modules, Ray's guide imports one."""

from dualray.as_ray.refusals import refusing

__getattr__ = refusing("ray.train.v2.api")
