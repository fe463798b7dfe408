"""ReportCheckpointCallback: what Keras says at the end of an epoch goes to `train.report`, with the model."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import dualray.train.tensorflow  # noqa: F401 - chooses between Keras 2 and 3, before it is loaded here
from dualray.shared.nearest import nearest
from dualray.train.checkpoint import Checkpoint
from dualray.train.session import report

from tensorflow import keras  # isort: skip - after that choice

__all__ = ["ReportCheckpointCallback"]

MODEL: Final = "model.keras"
"""The model's file in a checkpoint."""

EVENTS: Final = (
    "train_begin", "train_end", "epoch_begin", "epoch_end", "train_batch_begin", "train_batch_end", "test_begin",
    "test_end", "test_batch_begin", "test_batch_end", "predict_begin", "predict_end", "predict_batch_begin",
    "predict_batch_end",
)  # fmt: skip


class ReportCheckpointCallback(keras.callbacks.Callback):  # type: ignore[misc]  # Keras ships no types
    """Reports Keras's metrics, and the model as a checkpoint with the one file `model.keras`.

    Args:
        checkpoint_on: when to store a checkpoint: the name of an event of Keras, such as "epoch_end" or
            "train_batch_end", or several. Default "epoch_end". A checkpoint is a report, too.
        report_metrics_on: when to report. Default "epoch_end".
        metrics: which metrics: a list of names, a dict of new name to Keras's name, or one name. Default: all.

    Raises:
        ValueError: an unknown event.
        KeyError: in training, a metric that Keras does not have at that event.
    """

    def __init__(
        self,
        checkpoint_on: str | Sequence[str] = "epoch_end",
        report_metrics_on: str | Sequence[str] = "epoch_end",
        metrics: str | Sequence[str] | Mapping[str, str] | None = None,
    ) -> None:
        super().__init__()
        self._checkpoint_on = _events("checkpoint_on", checkpoint_on)
        self._report_on = _events("report_metrics_on", report_metrics_on)
        self._metrics = [metrics] if isinstance(metrics, str) else metrics
        for event in self._checkpoint_on | self._report_on:
            setattr(self, f"on_{event}", self._handler(event))

    def _handler(self, event: str) -> Any:
        if event in ("train_begin", "train_end", "test_begin", "test_end", "predict_begin", "predict_end"):
            return lambda logs=None: self._handle(event, logs)
        return lambda number, logs=None: self._handle(event, logs)

    def _handle(self, event: str, logs: Mapping[str, Any] | None) -> None:
        chosen = self._chosen(event, logs or {})
        if event not in self._checkpoint_on:
            report(chosen)
            return
        with tempfile.TemporaryDirectory(prefix="dualray-model-") as directory:
            self.model.save(Path(directory) / MODEL)
            report(chosen, checkpoint=Checkpoint.from_directory(directory))

    def _chosen(self, event: str, logs: Mapping[str, Any]) -> dict[str, Any]:
        wanted = self._metrics
        if wanted is None:
            return dict(logs)
        names = dict(wanted) if isinstance(wanted, Mapping) else {name: name for name in wanted}
        for name in names.values():
            if name not in logs:
                raise KeyError(
                    f"ReportCheckpointCallback: at {event} Keras has no metric {name!r}{nearest(name, list(logs))}"
                )
        return {new: logs[name] for new, name in names.items()}


def _events(what: str, given: str | Sequence[str]) -> set[str]:
    found = [given] if isinstance(given, str) else list(given)
    for event in found:
        if event not in EVENTS:
            raise ValueError(
                f"ReportCheckpointCallback: {what}={event!r} is not an event of Keras{nearest(event, EVENTS)}"
            )
    return set(found)
