"""Shared by XGBoost and LightGBM: a callback that reports metrics and checkpoints."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dualray import runtime
from dualray.train import session
from dualray.train.checkpoint import Checkpoint
from dualray.train.session import TrainContext

Postprocessing = Callable[[dict[str, Any]], dict[str, Any]]


class BoostingReport:
    """Which metrics are reported, and when with a checkpoint.

    Args:
        metrics: name of a metric such as "eval-logloss", names, or a dict from the reported name to the metric.
            Default: all metrics.
        filename: name of the model's file in the checkpoint.
        frequency: rounds between two checkpoints. Default: none before the end.
        checkpoint_at_end: whether the last round has a checkpoint.
        results_postprocessing_fn: changes the reported metrics.
    """

    CHECKPOINT_NAME = ""

    def __init__(
        self,
        metrics: str | Sequence[str] | Mapping[str, str] | None = None,
        filename: str | None = None,
        frequency: int = 0,
        checkpoint_at_end: bool = True,
        results_postprocessing_fn: Postprocessing | None = None,
    ) -> None:
        super().__init__()
        self._metrics = [metrics] if isinstance(metrics, str) else metrics
        self._filename = filename or self.CHECKPOINT_NAME
        self._frequency = frequency
        self._checkpoint_at_end = checkpoint_at_end
        self._postprocess = results_postprocessing_fn

    def _is_due(self, number: int) -> bool:
        """Whether round `number`, from 0, has a checkpoint."""
        return bool(self._frequency) and (number + 1) % self._frequency == 0

    def _chosen(self, values: Mapping[str, Any]) -> dict[str, Any]:
        chosen = dict(values)
        if self._metrics:
            names = self._metrics if isinstance(self._metrics, Mapping) else {name: name for name in self._metrics}
            for metric in names.values():
                if metric not in values:
                    raise KeyError(
                        f"RayTrainReportCallback: there is no metric {metric!r}; the metrics are "
                        f"{', '.join(map(repr, values)) or 'none'}"
                    )
            chosen = {reported: values[metric] for reported, metric in names.items()}
        return self._postprocess(chosen) if self._postprocess else chosen

    def _report(self, values: Mapping[str, Any], model: Any = None) -> None:
        """Report metrics; with the model, rank 0 reports it as a checkpoint."""
        metrics = self._chosen(values)
        if model is None or session.get_context().world_rank != 0:
            session.report(metrics)
            return
        with tempfile.TemporaryDirectory(prefix="dualray-boosting-") as directory:
            model.save_model(str(Path(directory, self._filename)))
            session.report(metrics, Checkpoint.from_directory(directory))


def check_mode(trainer: str, context: TrainContext) -> None:
    """Several workers exchange through a library of their own.

    Raises:
        RuntimeError: they are virtual workers, which share a process.
    """
    if context.world_size > 1 and not runtime.current("a training worker").owns_interpreter:
        raise RuntimeError(
            f"{trainer}: sim mode can train with one worker only, because the workers exchange through a library in "
            "which a process is one worker; use ScalingConfig(num_workers=1), or real mode"
        )
