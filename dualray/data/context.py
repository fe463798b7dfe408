"""Limits on the tasks of datasets, one set for each process; change them with `DataContext.get_current()`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from dualray import api

MIB = 1024 * 1024


@dataclass(slots=True)
class DataContext:
    """Limits of this process's datasets.

    Attributes:
        target_max_block_size: size in bytes of the blocks into which dualray cuts what it reads. Default 32 MiB.
        bytes_in_flight_max: most bytes of blocks that the tasks of one pipeline compute or that wait for a consumer.
            The steps of the pipeline share them. Default 128 MiB. Keep it below half of the object store.
        tasks_max: most tasks of one step at a time. Default 0: the number of CPUs of the cluster, and 2 more.
        shuffle_seed: seed of shuffles without a seed. Default 0: a program's second run gives the same rows.
        task_duration: sim mode only: seconds of virtual time that a task on a block takes. Default None: the cluster's
            default.
    """

    target_max_block_size: int = 32 * MIB
    bytes_in_flight_max: int = 128 * MIB
    tasks_max: int = 0
    shuffle_seed: int = 0
    task_duration: float | None = None

    @staticmethod
    @cache
    def get_current() -> DataContext:
        """Return this process's context; change its attributes."""
        return DataContext()

    def tasks_max_of_cluster(self) -> int:
        """`tasks_max`, or what it stands for."""
        return self.tasks_max or int(api.cluster_resources().get("CPU", 1)) + 2
