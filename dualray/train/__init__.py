"""Training in several workers: one function, which each worker runs on its share of the data, with checkpoints.

    from dualray import train
    from dualray.train import ScalingConfig
    from dualray.train.tensorflow import TensorflowTrainer

    def train_func(config):
        shard = train.get_dataset_shard("train")
        ...
        train.report({"loss": loss}, checkpoint=train.Checkpoint.from_directory(directory))

    result = TensorflowTrainer(train_func, scaling_config=ScalingConfig(num_workers=4), datasets={"train": data}).fit()

The names are those of Ray Train. The package runs on dualray's actors, placement groups and objects, in both modes. See
docs/train.md.
"""

from dualray.train import collective
from dualray.train.backend import BackendConfig
from dualray.train.checkpoint import Checkpoint
from dualray.train.config import (
    CheckpointConfig,
    DataConfig,
    FailureConfig,
    RunConfig,
    ScalingConfig,
    TrainRunContext,
    UserCallback,
)
from dualray.train.result import Failure, Result, TrainingFailedError, WorkerGroupError
from dualray.train.session import (
    CheckpointUploadMode,
    TrainContext,
    get_checkpoint,
    get_context,
    get_dataset_shard,
    report,
)
from dualray.train.trainer import DataParallelTrainer

__all__ = [
    "BackendConfig",
    "Checkpoint",
    "CheckpointConfig",
    "CheckpointUploadMode",
    "DataConfig",
    "DataParallelTrainer",
    "Failure",
    "FailureConfig",
    "Result",
    "RunConfig",
    "ScalingConfig",
    "TrainContext",
    "TrainRunContext",
    "TrainingFailedError",
    "UserCallback",
    "WorkerGroupError",
    "collective",
    "get_checkpoint",
    "get_context",
    "get_dataset_shard",
    "report",
]
