"""The result of a training run: its metrics and checkpoints, and the cost of failures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from dualray.exceptions import DualrayError
from dualray.train.checkpoint import Checkpoint
from dualray.train.config import CheckpointConfig
from dualray.train.storage import RunFolder, flat


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
        return_value: what the training function of rank 0 returned; None if that cannot be pickled.
    """

    metrics: Mapping[str, Any] | None
    checkpoint: Checkpoint | None
    error: BaseException | None
    path: str
    best_checkpoints: Sequence[tuple[Checkpoint, Mapping[str, Any]]] = ()
    failures: tuple[Failure, ...] = ()
    return_value: Any = None
    history: Sequence[Mapping[str, Any]] = field(default=(), repr=False)

    @classmethod
    def of(cls, folder: RunFolder, config: CheckpointConfig) -> Self:
        """What a run's folder says."""
        metrics = [row["metrics"] for row in folder.history]
        return cls(
            metrics=metrics[-1] if metrics else None,
            checkpoint=folder.latest(),
            best_checkpoints=[
                (folder.checkpoint(iteration), metrics[iteration - 1]) for iteration in folder.best(config)
            ],
            error=None,
            path=str(folder.path),
            history=[flat(row) for row in folder.history],
        )

    @classmethod
    def from_path(cls, path: str | Path) -> Self:
        """Return the result of an earlier run, from its folder. `error` and `failures` are not stored there.

        Args:
            path: `Result.path` of the run.

        Raises:
            ValueError: the folder has no run.
        """
        if not RunFolder.is_one(path):
            raise ValueError(f"Result.from_path: the directory {str(path)!r} has no run of a trainer")
        folder = RunFolder.open(Path(path).absolute())
        run_config = folder.read_trainer()["run_config"]
        return cls.of(folder, run_config.checkpoint_config)

    @property
    def filesystem(self) -> Any:
        """The `pyarrow.fs.LocalFileSystem` on which `path` is a folder."""
        import pyarrow.fs  # noqa: PLC0415 - only who asks for it needs it

        return pyarrow.fs.LocalFileSystem()

    @property
    def metrics_dataframe(self) -> Any:
        """A pandas DataFrame with a row for each valid report.

        Its columns are the metrics, `training_iteration` (from 1), `time_total_s` (since `fit` began), `attempt` (from
        0) and `checkpoint_dir_name` (None without a checkpoint).
        """
        import pandas as pd  # noqa: PLC0415 - only who asks for it needs pandas

        return pd.DataFrame(list(self.history))

    def get_best_checkpoint(self, metric: str, mode: str) -> Checkpoint | None:
        """Return the kept checkpoint with the largest ("max") or smallest ("min") value of a metric.

        Args:
            metric: its name; "a/b" also means the metric `b` in the dict `a`.
            mode: "max" or "min".

        Raises:
            ValueError: `mode` is another text.
        """
        if mode not in ("max", "min"):
            raise ValueError(f"get_best_checkpoint: mode={mode!r} must be 'max' or 'min'")
        values = [(_value(metrics, metric), checkpoint) for checkpoint, metrics in self.best_checkpoints]
        known = [pair for pair in values if pair[0] is not None]
        choose = max if mode == "max" else min
        return choose(known, key=lambda pair: pair[0])[1] if known else None


def _value(metrics: Mapping[str, Any], name: str) -> Any:
    """A metric, or one in dicts of dicts; None if there is none."""
    if name in metrics:
        return metrics[name]
    first, _, rest = name.partition("/")
    inner = metrics.get(first)
    return _value(inner, rest) if rest and isinstance(inner, Mapping) else None


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
