"""`ray.data.datasource`, of dualray: the order of files, and nothing else."""

from dualray.as_ray.refusals import refusing

__getattr__ = refusing("ray.data.datasource")
