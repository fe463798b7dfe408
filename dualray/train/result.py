"""The result of a training run: its metrics and checkpoints, and the cost of failures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dualray.exceptions import DualrayError
from dualray.train.checkpoint import Checkpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """An attempt that failed.

    Attributes:
        error: why.
        iteration: how many reports stood when it happened.
        resumed_from: after which of them the run went on: that of the last checkpoint; 0: from the beginning.
        lost_s: seconds since that checkpoint was stored, or since this attempt began: the work to be done again.
    """

    error: str
    iteration: int
    resumed_from: int
    lost_s: float

    @property
    def lost_reports(self) -> int:
        """How many reports were made again."""
        return self.iteration - self.resumed_from


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What `fit` returns.

    Attributes:
        metrics: those of the last report; None when there was none.
        checkpoint: the latest one; None when there is none.
        best_checkpoints: those that were kept, each with the metrics of its report, the best first where
            `checkpoint_score_attribute` says what is good, else in order.
        error: why the run ended early; None: it did not.
        path: the run's folder.
        failures: the failures that it has survived, and, last, the one that it has not.
    """

    metrics: Mapping[str, Any] | None
    checkpoint: Checkpoint | None
    best_checkpoints: Sequence[tuple[Checkpoint, Mapping[str, Any]]]
    error: BaseException | None
    path: str
    failures: tuple[Failure, ...] = ()
    history: Sequence[Mapping[str, Any]] = field(default=(), repr=False)

    @property
    def metrics_dataframe(self) -> Any:
        """A pandas DataFrame with a row for each report that stands: its metrics, `training_iteration` (from 1),
        `time_total_s` (since `fit` began), `attempt` (from 0) and `checkpoint_dir_name` (None without one)."""
        import pandas as pd  # noqa: PLC0415 - only who asks for it needs pandas

        return pd.DataFrame(list(self.history))

    def get_best_checkpoint(self, metric: str, mode: str) -> Checkpoint | None:
        """Of the checkpoints that were kept, the one with the largest ("max") or smallest ("min") value of a metric."""
        if mode not in ("max", "min"):
            raise ValueError(f"get_best_checkpoint: mode={mode!r} must be 'max' or 'min'")
        known = [(metrics[metric], checkpoint) for checkpoint, metrics in self.best_checkpoints if metric in metrics]
        choose = max if mode == "max" else min
        return choose(known, key=lambda pair: pair[0])[1] if known else None


class TrainingFailedError(DualrayError):
    """A run has failed more often than FailureConfig(max_failures) allows.

    Attributes:
        result: what there is of it, with `error` and `failures`. `Trainer.restore(result.path)` goes on from there.
    """

    def __init__(self, message: str, result: Result | None = None) -> None:
        super().__init__(message)
        self.result = result
