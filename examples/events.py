"""Event files for TensorBoard: scalars by name and step. `tensorboard --logdir DIRECTORY` draws them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Self

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from tensorflow.compat import v1 as tf


class EventLog:
    """An event file in a directory, which is made where it is missing."""

    def __init__(self, directory: Path) -> None:
        with tf.Graph().as_default():  # outside of a graph, TensorFlow 2 has another writer, with a state of its own
            self._writer = tf.summary.FileWriter(str(directory))

    def write(self, step: int, scalars: dict[str, float]) -> None:
        """Add numbers that belong to a step; none is nothing."""
        if scalars:
            values = [tf.Summary.Value(tag=name, simple_value=float(value)) for name, value in scalars.items()]
            self._writer.add_summary(tf.Summary(value=values), step)

    def flush(self) -> None:
        """Bring everything to the file."""
        self._writer.flush()

    def close(self) -> None:
        """Flush, and write no more."""
        self._writer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_scalars(directory: Path) -> dict[str, list[tuple[int, float]]]:
    """What the event files of a directory hold: by name, steps with their numbers.

    Raises:
        FileNotFoundError: there is no event file.
    """
    files = sorted(directory.glob("events.out.tfevents.*"))
    if not files:
        raise FileNotFoundError(f"{directory} has no file events.out.tfevents.*: nothing was logged there")
    found: dict[str, list[tuple[int, float]]] = {}
    for path in files:
        for event in tf.train.summary_iterator(str(path)):
            for value in event.summary.value:
                found.setdefault(value.tag, []).append((event.step, value.simple_value))
    return found
