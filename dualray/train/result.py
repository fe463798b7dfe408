"""The result of a training run: its metrics and checkpoints, and the cost of failures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dualray.exceptions import DualrayError
from dualray.train.checkpoint import Checkpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """An attempt of a training run that failed.

    Attributes:
        error: the reason.
        iteration: number of valid reports when it failed.
        resumed_from: report after which the run continued, that of the last checkpoint; 0 is the beginning.
        lost_s: seconds since that checkpoint or since the start of the attempt, whose work is done again.
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
    """The result of `fit`.

    Attributes:
        metrics: metrics of the last report; None if there was no report.
        checkpoint: latest checkpoint; None if there is none.
        best_checkpoints: kept checkpoints, each with the metrics of its report. With `checkpoint_score_attribute` the
            best comes first; otherwise they are in order.
        error: why the run ended early; None if it did not.
        path: folder of the run.
        failures: failures that the run survived, and last the failure that ended it.
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
        """A pandas DataFrame with a row for each valid report.

        Its columns are the metrics, `training_iteration` (from 1), `time_total_s` (since `fit` began), `attempt` (from
        0) and `checkpoint_dir_name` (None without a checkpoint).
        """
        import pandas as pd  # noqa: PLC0415 - only who asks for it needs pandas

        return pd.DataFrame(list(self.history))

    def get_best_checkpoint(self, metric: str, mode: str) -> Checkpoint | None:
        """Return the kept checkpoint with the largest ("max") or smallest ("min") value of a metric."""
        if mode not in ("max", "min"):
            raise ValueError(f"get_best_checkpoint: mode={mode!r} must be 'max' or 'min'")
        known = [(metrics[metric], checkpoint) for checkpoint, metrics in self.best_checkpoints if metric in metrics]
        choose = max if mode == "max" else min
        return choose(known, key=lambda pair: pair[0])[1] if known else None


class TrainingFailedError(DualrayError):
    """A run failed more often than FailureConfig(max_failures) allows.

    Attributes:
        result: the result so far, with `error` and `failures`. `Trainer.restore(result.path)` continues the run.
    """

    def __init__(self, message: str, result: Result | None = None) -> None:
        super().__init__(message)
        self.result = result


class WorkerGroupError(TrainingFailedError):
    """The last failure of a run was in its workers.

    Attributes:
        worker_failures: the exception of each worker that has raised or has died, by rank.
    """

    def __init__(
        self, message: str, result: Result | None = None, worker_failures: Mapping[int, Exception] | None = None
    ) -> None:
        super().__init__(message, result)
        self.worker_failures = dict(worker_failures or {})
