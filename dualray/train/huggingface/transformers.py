"""The Trainer of Hugging Face Transformers in the workers of a TorchTrainer, in real mode.

    from dualray.train.huggingface.transformers import RayTrainReportCallback, prepare_trainer

    def train_func():
        trainer = transformers.Trainer(model=model, args=arguments, train_dataset=dataset)
        trainer.add_callback(RayTrainReportCallback())
        prepare_trainer(trainer).train()

The names are those of `ray.train.huggingface.transformers`.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers.trainer_utils import get_last_checkpoint

from dualray.data.passes import Passes
from dualray.train import session
from dualray.train.checkpoint import Checkpoint

__all__ = ["RayTrainReportCallback", "prepare_trainer"]


class RayTrainReportCallback(transformers.TrainerCallback):  # type: ignore[misc]  # it has no types here
    """Reports the logged metrics whenever the Trainer saves, with the checkpoint that it has saved.

    The checkpoint contains the directory `checkpoint`, from which `trainer.train(resume_from_checkpoint=...)`
    continues.
    """

    CHECKPOINT_NAME = "checkpoint"

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The Trainer calls this after it has saved."""
        metrics = {name: value for row in state.log_history for name, value in row.items()}
        saved = get_last_checkpoint(args.output_dir)
        with tempfile.TemporaryDirectory(prefix="dualray-transformers-") as directory:
            if saved is not None:
                shutil.copytree(saved, Path(directory, self.CHECKPOINT_NAME))
            session.report(metrics, None if saved is None else Checkpoint.from_directory(directory))


class _Batches(torch.utils.data.IterableDataset):  # type: ignore[misc]
    """The batches of an iterator of dualray.data, which can be read again for each epoch."""

    def __init__(self, batches: Any) -> None:
        super().__init__()
        self._batches = batches

    def __iter__(self) -> Iterator[Any]:
        return iter(self._batches)


def _loader(batches: Any) -> Any:
    return torch.utils.data.DataLoader(_Batches(batches), batch_size=1, collate_fn=lambda rows: rows[0])


def prepare_trainer(trainer: Any) -> Any:
    """Return the Trainer, which then also trains on batches of dualray.data.

    Give the Trainer `train_dataset=shard.iter_torch_batches(...)`, and the same for `eval_dataset`; set `max_steps` in
    its arguments, because the number of batches is not known.

    Raises:
        RuntimeError: in sim mode with several workers: the Trainer needs a process group of `torch.distributed`.
    """
    training = session.current_or_none()
    if training is not None and training.virtual is not None and training.context.world_size > 1:
        raise RuntimeError(
            "prepare_trainer: the Trainer of Transformers needs a process group of torch.distributed, which sim mode "
            "does not have; use real mode, or ScalingConfig(num_workers=1)"
        )
    base: Any = type(trainer)

    class PreparedTrainer(base):  # type: ignore[misc]
        def get_train_dataloader(self) -> Any:
            given = self.train_dataset
            return _loader(given) if isinstance(given, Passes) else super().get_train_dataloader()

        def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
            given = self.eval_dataset if eval_dataset is None else eval_dataset
            if isinstance(given, str):
                given = self.eval_dataset[given]
            return _loader(given) if isinstance(given, Passes) else super().get_eval_dataloader(eval_dataset)

    trainer.__class__ = PreparedTrainer
    return trainer
