"""Limits on the tasks of a dataset, one set for each process; change it with `DataContext.get_current()`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from dualray import api

MIB = 1024 * 1024


@dataclass(slots=True)
class DataContext:
    """Limits of this process's datasets.

    Attributes:
        target_max_block_size: bytes; what is read is cut into blocks of about this much. Default 32 MiB.
        bytes_in_flight_max: bytes of blocks that tasks of one pipeline are making, or that wait for a consumer;
            its steps share them. Default 128 MiB. Keep it below half of the object store.
        tasks_max: tasks of one step under way. Default 0: as many as the cluster has CPUs, and 2 more.
        shuffle_seed: of shuffles that were given none. Default 0: a program's second run gives the same rows.
        task_duration: sim mode: seconds of virtual time that a task on a block takes; None: the cluster's default.
    """

    target_max_block_size: int = 32 * MIB
    bytes_in_flight_max: int = 128 * MIB
    tasks_max: int = 0
    shuffle_seed: int = 0
    task_duration: float | None = None

    @staticmethod
    @cache
    def get_current() -> DataContext:
        """This process's context; change its attributes."""
        return DataContext()

    def tasks_max_of_cluster(self) -> int:
        """`tasks_max`, or what it stands for."""
        return self.tasks_max or int(api.cluster_resources().get("CPU", 1)) + 2
