"""`ray.data._internal`, of dualray: the two functions that other projects import, and nothing else."""

from dualray.as_ray.refusals import refusing

__getattr__ = refusing("ray.data._internal")
