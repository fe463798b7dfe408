"""Settings of a trainer: number and size of workers, storage, checkpoints to keep, failures to survive.

The names and defaults are those of today's Ray Train.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from dualray.shared.model.demands import memory_bytes, parse_named
from dualray.shared.model.resources import MEMORY

CPU = "CPU"
GPU = "GPU"


def _checked_count(what: str, value: Any, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{what}={value!r} must be an int")
    if value < least:
        raise ValueError(f"{what}={value!r} must be at least {least}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingConfig:
    """How many workers, and what each holds.

    Attributes:
        num_workers: processes that run the training function. Default 1.
        use_gpu: whether each of them holds a GPU. Default False.
        resources_per_worker: amounts by name, such as {"CPU": 2, "GPU": 0.5}. Default: {"CPU": 1}, with `use_gpu`
            {"GPU": 1}. OMP_NUM_THREADS of a worker is its number of CPUs, at least 1, unless the driver's environment
            sets it.
        placement_strategy: of the placement group that the workers are in: "PACK" (the default), "SPREAD",
            "STRICT_PACK" or "STRICT_SPREAD".
        trainer_resources: accepted for Ray's sake: the trainer itself runs in the process that calls `fit`.
    """

    num_workers: int = 1
    use_gpu: bool = False
    resources_per_worker: Mapping[str, float] | None = None
    placement_strategy: str = "PACK"
    trainer_resources: Mapping[str, float] | None = None

    def __post_init__(self) -> None:
        _checked_count("ScalingConfig: num_workers", self.num_workers, 1)
        if not isinstance(self.use_gpu, bool):
            raise TypeError(f"ScalingConfig: use_gpu={self.use_gpu!r} must be True or False")
        given = self.resources_per_worker
        if given is None:
            return
        if not isinstance(given, Mapping):
            raise TypeError(f"ScalingConfig: resources_per_worker={given!r} must be a dict, such as {{'CPU': 2}}")
        if given.get(GPU) and not self.use_gpu:
            raise ValueError(
                f"ScalingConfig: resources_per_worker={dict(given)!r} has GPUs, but use_gpu is False. Set use_gpu=True."
            )
        if self.use_gpu and given.get(GPU) == 0:
            raise ValueError("ScalingConfig: use_gpu=True, but resources_per_worker gives each worker no GPU")
        try:
            demand = parse_named(given)
        except (TypeError, ValueError) as error:
            raise type(error)(f"ScalingConfig: resources_per_worker: {error}") from None
        if not demand.units and not self.use_gpu:
            raise ValueError(f"ScalingConfig: resources_per_worker={dict(given)!r} reserves nothing")

    @property
    def bundle(self) -> dict[str, float]:
        """What one worker holds, by name."""
        if self.resources_per_worker is None:
            return {GPU: 1} if self.use_gpu else {CPU: 1}
        found = {name: amount for name, amount in self.resources_per_worker.items() if amount}
        if MEMORY in found:
            found[MEMORY] = memory_bytes("resources_per_worker: memory", found[MEMORY])
        return found | ({GPU: 1} if self.use_gpu and GPU not in found else {})

    @property
    def total_resources(self) -> dict[str, float]:
        """What all workers hold together, by name."""
        return {name: amount * self.num_workers for name, amount in self.bundle.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureConfig:
    """What failures cost.

    Attributes:
        max_failures: how often a run goes on from its last checkpoint after a worker has died or its function has
            raised; -1: without end. Default 0.
    """

    max_failures: int = 0

    def __post_init__(self) -> None:
        _checked_count("FailureConfig: max_failures", self.max_failures, -1)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointConfig:
    """Which checkpoints are kept.

    Attributes:
        num_to_keep: how many; the latest one is always kept, too. Default None: all.
        checkpoint_score_attribute: the metric by which they are compared. Default: the newest are the best.
        checkpoint_score_order: "max" (the default) or "min": which of its values are the best.
    """

    num_to_keep: int | None = None
    checkpoint_score_attribute: str | None = None
    checkpoint_score_order: Literal["max", "min"] = "max"

    def __post_init__(self) -> None:
        if self.num_to_keep is not None:
            _checked_count("CheckpointConfig: num_to_keep", self.num_to_keep, 1)
        if self.checkpoint_score_order not in ("max", "min"):
            raise ValueError(
                f"CheckpointConfig: checkpoint_score_order={self.checkpoint_score_order!r} must be 'max' or 'min'"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """One run: its name, its place, and what it does about failures and checkpoints.

    Attributes:
        name: of the run's folder. Default: the trainer's class and the time.
        storage_path: where that folder is made, on the machine of the driver. Default: ~/dualray_results.
        failure_config, checkpoint_config: see those.
        verbose: 0: silent; 1 (the default): each report and a table at the end, on standard error.
    """

    name: str | None = None
    storage_path: str | Path | None = None
    failure_config: FailureConfig = field(default_factory=FailureConfig)
    checkpoint_config: CheckpointConfig = field(default_factory=CheckpointConfig)
    verbose: int = 1

    def __post_init__(self) -> None:
        if self.name is not None and (not self.name or Path(self.name).name != self.name):
            raise ValueError(f"RunConfig: name={self.name!r} must be the name of a folder")
        if self.storage_path is not None and "://" in str(self.storage_path):
            raise ValueError(f"RunConfig: storage_path={str(self.storage_path)!r} must be a path of this machine")


@dataclass(frozen=True, slots=True, kw_only=True)
class DataConfig:
    """How datasets reach the workers.

    Attributes:
        datasets_to_split: the names of those of which each worker gets its share; the others go whole to every worker.
            Default: "all".
    """

    datasets_to_split: Literal["all"] | Sequence[str] = "all"

    def splits(self, name: str) -> bool:
        """Whether each worker gets a share of this dataset."""
        return self.datasets_to_split == "all" or name in self.datasets_to_split
