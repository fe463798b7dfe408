"""`ray.data.datasource`, of dualray: the order of files, and nothing else."""

from dualray.as_ray.refusals import refusing
from dualray.data.choices import FileShuffleConfig  # noqa: F401 - a name of the module

__getattr__ = refusing("ray.data.datasource")
