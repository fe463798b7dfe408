"""Settings of a trainer: workers, storage, checkpoints to keep, failures to survive, callbacks.

The names and defaults are those of Ray Train.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from dualray.shared.model.demands import memory_bytes, parse_named
from dualray.shared.model.resources import MEMORY

if TYPE_CHECKING:
    from dualray.train.checkpoint import Checkpoint

CPU = "CPU"
GPU = "GPU"


def _checked_count(what: str, value: Any, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{what}={value!r} must be an int")
    if value < least:
        raise ValueError(f"{what}={value!r} must be at least {least}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingConfig:
    """The number of workers, and the resources of each.

    Attributes:
        num_workers: processes that run the training function. Default 1. With 0, the process that calls `fit` runs the
            function itself, as in Ray's local mode: breakpoints stop in it, and `fit` raises its errors.
        use_gpu: whether each worker holds a GPU. Default False.
        resources_per_worker: amounts by name, such as {"CPU": 2, "GPU": 0.5}. Default: {"CPU": 1}, with `use_gpu`
            {"GPU": 1}. OMP_NUM_THREADS of a worker is its number of CPUs, at least 1, unless the driver's environment
            sets it.
        placement_strategy: strategy of the workers' placement group: "PACK" (the default), "SPREAD", "STRICT_PACK" or
            "STRICT_SPREAD".
        trainer_resources: accepted as in Ray, and without effect, because the trainer runs in the process that calls
            `fit`.
    """

    num_workers: int = 1
    use_gpu: bool = False
    resources_per_worker: Mapping[str, float] | None = None
    placement_strategy: str = "PACK"
    trainer_resources: Mapping[str, float] | None = None

    def __post_init__(self) -> None:
        _checked_count("ScalingConfig: num_workers", self.num_workers, 0)
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
            raise ValueError("ScalingConfig: use_gpu=True needs a GPU for each worker in resources_per_worker")
        try:
            demand = parse_named(given)
        except (TypeError, ValueError) as error:
            raise type(error)(f"ScalingConfig: resources_per_worker: {error}") from None
        if not demand.units and not self.use_gpu:
            raise ValueError(
                f"ScalingConfig: resources_per_worker={dict(given)!r} reserves nothing; give an amount above 0"
            )

    @property
    def bundle(self) -> dict[str, float]:
        """The resources of one worker, by name."""
        if self.resources_per_worker is None:
            return {GPU: 1} if self.use_gpu else {CPU: 1}
        found = {name: amount for name, amount in self.resources_per_worker.items() if amount}
        if MEMORY in found:
            found[MEMORY] = memory_bytes("resources_per_worker: memory", found[MEMORY])
        return found | ({GPU: 1} if self.use_gpu and GPU not in found else {})

    @property
    def total_resources(self) -> dict[str, float]:
        """The resources of all workers together, by name."""
        return {name: amount * self.num_workers for name, amount in self.bundle.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureConfig:
    """How many failures a run survives.

    Attributes:
        max_failures: how often a run continues from its last checkpoint after a worker died or its function raised; -1
            means without limit. Default 0.
    """

    max_failures: int = 0

    def __post_init__(self) -> None:
        _checked_count("FailureConfig: max_failures", self.max_failures, -1)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointConfig:
    """Which checkpoints a run keeps.

    Attributes:
        num_to_keep: number of checkpoints. The latest one is always kept as well. Default None: all.
        checkpoint_score_attribute: metric by which checkpoints are compared. Default: the newest are the best.
        checkpoint_score_order: whether "max" (the default) or "min" values of the metric are the best.
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
    """One run: its name, its folder, and its rules for failures and checkpoints.

    Attributes:
        name: name of the run's folder. Default: the trainer's class and the time.
        storage_path: directory of that folder, on the driver's machine. Default: ~/dualray_results.
        failure_config, checkpoint_config: see `FailureConfig` and `CheckpointConfig`.
        verbose: 0 prints nothing; 1 (the default) prints each report and a table at the end, on standard error.
        callbacks: told, in the driver, of reports and errors; see `UserCallback`.
    """

    name: str | None = None
    storage_path: str | Path | None = None
    failure_config: FailureConfig = field(default_factory=FailureConfig)
    checkpoint_config: CheckpointConfig = field(default_factory=CheckpointConfig)
    verbose: int = 1
    callbacks: Sequence[UserCallback] | None = None

    def __post_init__(self) -> None:
        for callback in self.callbacks or ():
            if not isinstance(callback, UserCallback):
                raise TypeError(
                    f"RunConfig: callbacks contains {callback!r}, which must be an instance of a subclass of "
                    "dualray.train.UserCallback"
                )
        if self.name is not None and (not self.name or Path(self.name).name != self.name):
            raise ValueError(f"RunConfig: name={self.name!r} must be the name of a folder")
        if self.storage_path is not None and "://" in str(self.storage_path):
            raise ValueError(f"RunConfig: storage_path={str(self.storage_path)!r} must be a path on this machine")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainRunContext:
    """A run, as its callbacks see it.

    Attributes:
        run_id: name of the run's folder.
        run_config, scaling_config: those of the trainer.
        train_loop_config: what the training function gets; None if the trainer has none.
    """

    run_id: str
    run_config: RunConfig
    scaling_config: ScalingConfig
    train_loop_config: Mapping[str, Any] | None


class UserCallback:
    """Define a subclass, and pass an instance in `RunConfig(callbacks=[...])`. The driver calls its methods.

    An error that a method raises ends the training, and `fit` raises it.
    """

    def after_report(
        self, run_context: TrainRunContext, metrics: list[dict[str, Any]], checkpoint: Checkpoint | None
    ) -> None:
        """All workers have called `train.report`.

        Args:
            run_context: the run.
            metrics: what each worker has reported, by rank.
            checkpoint: the checkpoint that was stored; None if no worker has reported one.
        """

    def after_exception(self, run_context: TrainRunContext, worker_exceptions: dict[int, Exception]) -> None:
        """A worker has raised an exception or has died. Training may continue from the last checkpoint after this.

        Args:
            run_context: the run.
            worker_exceptions: the exception, by the rank of the worker.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class DataConfig:
    """How datasets reach the workers.

    Attributes:
        datasets_to_split: names of the datasets of which each worker gets a share. Every worker gets the others as a
            whole. Default: "all".
    """

    datasets_to_split: Literal["all"] | Sequence[str] = "all"

    def splits(self, name: str) -> bool:
        """Whether each worker gets a share of this dataset."""
        return self.datasets_to_split == "all" or name in self.datasets_to_split
