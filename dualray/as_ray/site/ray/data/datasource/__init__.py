"""`ray.data.datasource`, of dualray: the order of files, and sources and targets of programs."""

from dualray.as_ray.refusals import refusing
from dualray.data.choices import FileShuffleConfig, SaveMode  # noqa: F401 - names of the module
from dualray.data.interfaces import Datasink, Datasource, ReadTask, WriteResult  # noqa: F401 - names of the module

__getattr__ = refusing("ray.data.datasource")
