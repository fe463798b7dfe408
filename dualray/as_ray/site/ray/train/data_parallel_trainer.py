"""`ray.train.data_parallel_trainer`, of dualray."""

from dualray.as_ray.refusals import refusing
from dualray.train import DataParallelTrainer

__all__ = ["DataParallelTrainer"]

__getattr__ = refusing("ray.train.data_parallel_trainer")
