"""Limits on the tasks of datasets, one set for each process; change them with `DataContext.get_current()`."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from typing import Any

from dualray import api

MIB = 1024 * 1024

_logger = logging.getLogger("dualray.data")

_OF_RAY: dict[str, Any] = {
    **dict.fromkeys(
        (
            *("enable_progress_bars", "enable_operator_progress_bars", "enable_progress_bar_name_truncation"),
            *("enable_rich_progress_bars", "use_ray_tqdm", "enable_tensor_extension_casting", "use_arrow_tensor_v2"),
            *("op_resource_reservation_enabled", "actor_prefetcher_enabled", "write_file_retry_on_errors"),
        ),
        True,
    ),
    **dict.fromkeys(
        (
            *("use_push_based_shuffle", "verbose_stats_logs", "enable_auto_log_stats", "use_polars", "use_polars_sort"),
            *("print_on_execution_start", "log_internal_stack_trace", "raise_original_map_exception"),
            *("actor_task_retry_on_errors", "enable_per_node_metrics", "trace_allocations", "enable_pandas_block"),
            *("use_disk_based_hash_shuffle", "pandas_block_ignore_metadata", "enforce_schemas"),
        ),
        False,
    ),
    "target_min_block_size": 1 * MIB,
    "streaming_read_buffer_size": 32 * MIB,
    "read_op_min_num_blocks": 200,
    "min_parallelism": 200,
    "default_hash_shuffle_parallelism": 200,
    "max_hash_shuffle_aggregators": 128,
    "op_resource_reservation_ratio": 0.5,
    "max_errored_blocks": 0,
    "wait_for_min_actors_s": -1,
    "max_tasks_in_flight_per_actor": None,
    "shuffle_strategy": None,
    "scheduling_strategy": "SPREAD",
    "large_args_threshold": 50 * MIB,
    "retried_io_errors": (),
}
"""Attributes of Ray's context that dualray does not use, and their values in Ray."""


class _Accepting:
    """Attributes of Ray's that have no effect here: setting one is said once."""

    _own: frozenset[str] = frozenset()

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self._own and name not in self.__dict__ and not name.startswith("_"):
            known = name in _OF_RAY or name in _QUIET
            if not known or (value != _OF_RAY.get(name, value) and name not in _QUIET):
                _warn_once(f"{type(self).__name__}.{name}")
        object.__setattr__(self, name, value)


_QUIET = frozenset(
    {
        *("preserve_order", "verbose_progress", "actor_locality_enabled", "locality_with_output"),
        *("enable_progress_bars", "enable_rich_progress_bars", "use_ray_tqdm", "enable_operator_progress_bars"),
        *("verbose_stats_logs", "enable_auto_log_stats", "print_on_execution_start"),
    }
)
"""What dualray does anyway, or what asks for less output than it prints; no warning is needed."""


@cache
def _warn_once(name: str) -> None:
    _logger.warning("%s is an attribute of Ray's, and has no effect in dualray", name)


@dataclass
class ExecutionResources:
    """Amounts of resources, as in Ray; dualray does not limit a dataset by them. None becomes 0."""

    cpu: float | None = None
    gpu: float | None = None
    object_store_memory: float | None = None
    memory: float | None = None

    def __post_init__(self) -> None:
        for each in fields(self):
            if getattr(self, each.name) is None:
                setattr(self, each.name, 0.0)

    @classmethod
    def for_limits(
        cls,
        cpu: float | None = None,
        gpu: float | None = None,
        object_store_memory: float | None = None,
        memory: float | None = None,
    ) -> ExecutionResources:
        """Make limits of a dataset. None means that there is no limit."""
        given = (cpu, gpu, object_store_memory, memory)
        return cls(*(math.inf if amount is None else amount for amount in given))

    @classmethod
    def zero(cls) -> ExecutionResources:
        """Make amounts that are all 0."""
        return cls()

    @classmethod
    def inf(cls) -> ExecutionResources:
        """Make amounts that are all infinite."""
        return cls.for_limits()

    @classmethod
    def from_resource_dict(cls, resource_dict: Mapping[str, float]) -> ExecutionResources:
        """Make amounts of a dict with the keys CPU or num_cpus, GPU or num_gpus, object_store_memory and memory."""
        return cls(
            cpu=resource_dict.get("CPU") or resource_dict.get("num_cpus"),
            gpu=resource_dict.get("GPU") or resource_dict.get("num_gpus"),
            object_store_memory=resource_dict.get("object_store_memory"),
            memory=resource_dict.get("memory"),
        )

    def to_resource_dict(self) -> dict[str, float | None]:
        """Return the amounts by the names CPU, GPU, object_store_memory and memory."""
        return {
            "CPU": self.cpu,
            "GPU": self.gpu,
            "object_store_memory": self.object_store_memory,
            "memory": self.memory,
        }

    def copy(
        self,
        cpu: float | None = None,
        gpu: float | None = None,
        memory: float | None = None,
        object_store_memory: float | None = None,
    ) -> ExecutionResources:
        """Return the same amounts, with the given amounts in place of these."""
        given = {"cpu": cpu, "gpu": gpu, "memory": memory, "object_store_memory": object_store_memory}
        return replace(self, **{name: amount for name, amount in given.items() if amount is not None})


@dataclass
class ExecutionOptions(_Accepting):
    """How Ray runs a dataset. dualray accepts the options. It always keeps the order of blocks.

    Attributes:
        resource_limits, exclude_resources: without effect; use `tasks_max` and `bytes_in_flight_max` of the context.
        preserve_order: without effect: dualray keeps the order.
        actor_locality_enabled, verbose_progress, label_selector: without effect.
    """

    resource_limits: ExecutionResources = field(default_factory=ExecutionResources.for_limits)
    exclude_resources: ExecutionResources = field(default_factory=ExecutionResources)
    preserve_order: bool = True
    actor_locality_enabled: bool = True
    verbose_progress: bool | None = None
    label_selector: dict[str, str] | None = None


@dataclass
class DataContext(_Accepting):
    """Limits of this process's datasets. Other attributes of Ray's context are accepted, without effect.

    Attributes:
        target_max_block_size: size in bytes of the blocks into which dualray cuts what it reads. Default 32 MiB.
        bytes_in_flight_max: most bytes of blocks that the tasks of one pipeline compute or that wait for a consumer.
            The steps of the pipeline share them. Default 128 MiB. Keep it below half of the object store.
        tasks_max: most tasks of one step at a time. Default 0: the number of CPUs of the cluster, and 2 more.
        shuffle_seed: seed of what draws random numbers without a seed. Default 0. Each execution of a dataset draws
            others, and a second run of the program draws the same.
        task_duration: sim mode only: seconds of virtual time that a task on a block takes. Default None: the cluster's
            default.
        execution_options: options of Ray's execution.
    """

    target_max_block_size: int = 32 * MIB
    bytes_in_flight_max: int = 128 * MIB
    tasks_max: int = 0
    shuffle_seed: int = 0
    task_duration: float | None = None
    execution_options: ExecutionOptions = field(default_factory=ExecutionOptions)
    _configs: dict[str, Any] = field(default_factory=dict, repr=False)

    @staticmethod
    @cache
    def get_current() -> DataContext:
        """Return this process's context; change its attributes."""
        return DataContext()

    def tasks_max_of_cluster(self) -> int:
        """`tasks_max`, or what it stands for."""
        return self.tasks_max or int(api.cluster_resources().get("CPU", 1)) + 2

    def set_config(self, key: str, value: Any) -> None:
        """Keep a value under a name; Ray's own names have no effect in dualray."""
        _warn_once(f"DataContext.set_config({key!r})")
        self._configs[key] = value

    def get_config(self, key: str, default: Any = None) -> Any:
        """Return the value that `set_config` keeps under a name."""
        return self._configs.get(key, default)

    def remove_config(self, key: str) -> None:
        """Forget the value under a name."""
        self._configs.pop(key, None)

    def __getattr__(self, name: str) -> Any:
        if name in _OF_RAY:
            return _OF_RAY[name]
        raise AttributeError(f"DataContext has no attribute {name!r}")


DataContext._own = frozenset(each.name for each in fields(DataContext))
ExecutionOptions._own = frozenset(each.name for each in fields(ExecutionOptions))


def set_progress_bars(enabled: bool) -> bool:
    """Accept Ray's switch. dualray prints no progress of datasets, so nothing changes.

    Returns:
        What the switch was before.
    """
    context = DataContext.get_current()
    before = bool(context.enable_progress_bars)
    context.enable_progress_bars = enabled
    return before
