"""Callbacks of a run: the driver tells them of reports and errors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dualray.train.checkpoint import Checkpoint
    from dualray.train.config import RunConfig, ScalingConfig


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
