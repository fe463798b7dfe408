"""Training with TensorFlow: TF_CONFIG for MultiWorkerMirroredStrategy, over real processes or virtual workers.

`model.fit` of Keras 3 fails under MultiWorkerMirroredStrategy with more than one worker; that of tf_keras, Keras 2,
works. TensorFlow chooses between them when `tf.keras` is first used, by TF_USE_LEGACY_KERAS. So importing this module
sets it to "1", and the workers get what the driver has; set it to "0" before for Keras 3, with a loop of your own or
one worker.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final

from dualray import runtime
from dualray.train.backend import BackendConfig, Place
from dualray.train.checkpoint import Checkpoint
from dualray.train.config import DataConfig, RunConfig, ScalingConfig
from dualray.train.session import TrainContext
from dualray.train.trainer import DataParallelTrainer
from dualray.train.virtual_collectives import virtual_collectives

__all__ = ["TensorflowConfig", "TensorflowTrainer", "prepare_dataset_shard"]

LEGACY_KERAS: Final = "TF_USE_LEGACY_KERAS"

os.environ.setdefault(LEGACY_KERAS, "1")


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorflowConfig(BackendConfig):
    """What TensorFlow's workers need to find one another, and, in sim mode, how long a step of training takes.

    Attributes:
        step_duration: sim mode: seconds of virtual time for the computation of one step in one worker, or a function of
            the rows of the worker's part of the batch. Default: 1 ms. The all-reduce comes on top.
    """

    step_duration: float | Callable[[int], float] = 0.001

    def __post_init__(self) -> None:
        if not callable(self.step_duration) and not self.step_duration >= 0:
            raise ValueError(f"TensorflowConfig: step_duration={self.step_duration!r} must not be negative")

    def environment(self, places: Sequence[Place]) -> list[Mapping[str, str]]:
        if any(place.is_virtual for place in places):
            _virtual().install()
        addresses = [f"{place.ip_address}:{place.port}" for place in places]
        return [
            {
                "TF_CONFIG": json.dumps({"cluster": {"worker": addresses}, "task": {"type": "worker", "index": rank}}),
                LEGACY_KERAS: os.environ.get(LEGACY_KERAS, "1"),
            }
            for rank in range(len(places))
        ]

    def training(self, context: TrainContext) -> AbstractContextManager[None]:
        if runtime.current("a training worker").owns_interpreter:
            return nullcontext()
        return virtual_collectives(self.step_duration, _virtual().set_aside)


class TensorflowTrainer(DataParallelTrainer):
    """Runs a function with TensorFlow in `scaling_config.num_workers` workers: see DataParallelTrainer.

    Args:
        tensorflow_config: default: TensorflowConfig(). Also under the name `tensorflow_backend`.
    """

    _backend_argument = "tensorflow_config"

    def __init__(
        self,
        train_loop_per_worker: Callable[..., Any],
        *,
        train_loop_config: Mapping[str, Any] | None = None,
        tensorflow_config: TensorflowConfig | None = None,
        tensorflow_backend: TensorflowConfig | None = None,
        scaling_config: ScalingConfig | None = None,
        dataset_config: DataConfig | None = None,
        run_config: RunConfig | None = None,
        datasets: Mapping[str, Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
        resume_from_checkpoint: Checkpoint | None = None,
    ) -> None:
        if tensorflow_config is not None and tensorflow_backend is not None:
            raise TypeError(
                "TensorflowTrainer: tensorflow_config and tensorflow_backend are two names of one argument; give "
                "only one"
            )
        super().__init__(
            train_loop_per_worker,
            train_loop_config=train_loop_config,
            backend_config=tensorflow_config or tensorflow_backend or TensorflowConfig(),
            scaling_config=scaling_config,
            dataset_config=dataset_config,
            run_config=run_config,
            datasets=datasets,
            metadata=metadata,
            resume_from_checkpoint=resume_from_checkpoint,
        )


def _virtual() -> Any:
    return import_module("dualray.train.tensorflow.virtual")  # it imports TensorFlow


def prepare_dataset_shard(tf_dataset_shard: Any) -> Any:
    """A `tf.data.Dataset` that is a worker's share already: a strategy does not shard it again.

    Args:
        tf_dataset_shard: the dataset.
    """
    import tensorflow as tf  # noqa: PLC0415 - the driver of a run need not have imported it

    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return tf_dataset_shard.with_options(options)
