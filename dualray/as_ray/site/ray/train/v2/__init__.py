"""`ray.train.v2`: Ray's guide imports one trainer from it."""

from dualray.as_ray.refusals import refusing

__getattr__ = refusing("ray.train.v2")
