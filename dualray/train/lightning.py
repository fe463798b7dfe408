"""PyTorch Lightning in the workers of a TorchTrainer.

    from dualray.train.lightning import RayDDPStrategy, RayLightningEnvironment, RayTrainReportCallback, prepare_trainer

    def train_func():
        trainer = pl.Trainer(
            devices="auto", accelerator="auto", strategy=RayDDPStrategy(), plugins=[RayLightningEnvironment()],
            callbacks=[RayTrainReportCallback()], enable_checkpointing=False,
        )
        prepare_trainer(trainer).fit(model, train_dataloaders=loader)

The names are those of `ray.train.lightning`. In sim mode, virtual workers exchange their gradients through
dualray/train/torch/virtual.py, since one process has one process group of `torch.distributed` at most.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from dualray.train import session
from dualray.train.checkpoint import Checkpoint
from dualray.train.collective import broadcast_from_rank_zero
from dualray.train.torch import get_device
from dualray.train.virtual_collectives import VirtualCollectives

try:
    import lightning.pytorch as pl
    from lightning.pytorch.plugins.environments import LightningEnvironment
except ModuleNotFoundError:
    import pytorch_lightning as pl
    from pytorch_lightning.plugins.environments import LightningEnvironment

__all__ = [
    "RayDDPStrategy",
    "RayDeepSpeedStrategy",
    "RayFSDPStrategy",
    "RayLightningEnvironment",
    "RayTrainReportCallback",
    "prepare_trainer",
]

_REDUCTIONS = {"max": "amax", "min": "amin", "prod": "prod"}


def _virtual() -> VirtualCollectives | None:
    """The exchanges of this worker in sim mode; None in real mode."""
    training = session.current_or_none()
    found: VirtualCollectives | None = None if training is None else training.virtual
    return found


class _OfTraining:
    """All strategies ask the training for the device and for the share of the data."""

    @property
    def root_device(self) -> torch.device:
        device: torch.device = get_device()
        return device

    @property
    def distributed_sampler_kwargs(self) -> dict[str, Any]:
        context = session.get_context()
        return {"num_replicas": context.world_size, "rank": context.world_rank}


class RayDDPStrategy(_OfTraining, pl.strategies.DDPStrategy):  # type: ignore[misc]  # Lightning has no types here
    """Lightning's DDPStrategy for the workers of a TorchTrainer. It takes the arguments of DDPStrategy.

    `process_group_backend`, `timeout` and `start_method` have no effect: set them in TorchConfig.
    """

    def setup_distributed(self) -> None:
        """Lightning calls this before the training."""
        if _virtual() is None:
            super().setup_distributed()

    def setup(self, trainer: pl.Trainer) -> None:
        """Lightning calls this before it trains, validates or predicts."""
        if _virtual() is None or trainer.state.fn == "fit":
            super().setup(trainer)
            return
        self.accelerator.setup(trainer)
        self.precision_plugin.convert_module(self.model)
        self.model_to_device()
        self.setup_precision_plugin()

    def _setup_model(self, model: Any) -> Any:
        virtual = _virtual()
        if virtual is None:
            return super()._setup_model(model)
        return import_module("dualray.train.torch.virtual").parallel(model, virtual)

    def barrier(self, *args: Any, **kwargs: Any) -> None:
        """Wait for all workers."""
        if _virtual() is None:
            super().barrier(*args, **kwargs)
        else:
            broadcast_from_rank_zero(None)

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        """Return the value of rank `src`, which must be 0 in sim mode."""
        if _virtual() is None:
            return super().broadcast(obj, src)
        if src != 0:
            raise ValueError(f"RayDDPStrategy.broadcast: src={src} must be 0 in sim mode")
        return broadcast_from_rank_zero(obj)

    def reduce(self, tensor: Any, group: Any = None, reduce_op: Any = "mean") -> Any:
        """Return the mean, or another combination, of the tensors of all workers."""
        virtual = _virtual()
        if virtual is None or not isinstance(tensor, torch.Tensor):
            return super().reduce(tensor, group, reduce_op)
        how = str(reduce_op or "mean").rpartition(".")[2].lower()
        value = tensor.detach().cpu().numpy()
        if how in ("mean", "avg", "sum"):
            combined = virtual.sum([value])[0]
            return torch.as_tensor(combined / virtual.size if how != "sum" else combined).to(tensor)
        if how not in _REDUCTIONS:
            raise ValueError(f"RayDDPStrategy.reduce: reduce_op={reduce_op!r} must be mean, sum, max, min or prod")
        return getattr(torch, _REDUCTIONS[how])(self._gathered(tensor, virtual), 0)

    def all_gather(self, tensor: Any, group: Any = None, sync_grads: bool = False) -> Any:
        """Return the tensors of all workers, by rank."""
        virtual = _virtual()
        if virtual is None:
            return super().all_gather(tensor, group, sync_grads)
        return self._gathered(tensor, virtual)

    @staticmethod
    def _gathered(tensor: Any, virtual: VirtualCollectives) -> Any:
        return torch.as_tensor(virtual.gather(tensor.detach().cpu().numpy()[None], axis=0)).to(tensor)

    @contextmanager
    def block_backward_sync(self) -> Iterator[None]:
        """Within it, gradients add up in each worker."""
        within: AbstractContextManager[Any] = getattr(self.model, "no_sync", nullcontext)()
        with within:
            yield


class RayFSDPStrategy(_OfTraining, pl.strategies.FSDPStrategy):  # type: ignore[misc]
    """Lightning's FSDPStrategy for the workers of a TorchTrainer. It takes the arguments of FSDPStrategy, and needs
    GPUs in real mode."""


class RayDeepSpeedStrategy(_OfTraining, pl.strategies.DeepSpeedStrategy):  # type: ignore[misc]
    """Lightning's DeepSpeedStrategy for the workers of a TorchTrainer. It takes the arguments of DeepSpeedStrategy,
    and needs DeepSpeed and GPUs in real mode."""


class RayLightningEnvironment(LightningEnvironment):  # type: ignore[misc]
    """Tells Lightning the number of workers and the rank of this worker."""

    @property
    def creates_processes_externally(self) -> bool:
        """The trainer has started all workers."""
        return True

    def world_size(self) -> int:
        """Return the number of workers."""
        return session.get_context().world_size

    def global_rank(self) -> int:
        """Return the number of this worker, from 0."""
        return session.get_context().world_rank

    def local_rank(self) -> int:
        """Return the number of this worker among the workers of its node, from 0."""
        return session.get_context().local_rank

    def node_rank(self) -> int:
        """Return the number of this worker's node among the nodes with workers, from 0."""
        return session.get_context().node_rank

    def set_world_size(self, size: int) -> None:
        """Do nothing: the trainer determines the number of workers."""

    def set_global_rank(self, rank: int) -> None:
        """Do nothing: the trainer determines the ranks."""

    def teardown(self) -> None:
        """Do nothing: the variables of the worker stay."""


class RayTrainReportCallback(pl.callbacks.Callback):  # type: ignore[misc]
    """Reports Lightning's metrics, `epoch` and `step` after each epoch, with a checkpoint.

    The checkpoint contains the file `checkpoint.ckpt`, from which `trainer.fit(model, ckpt_path=...)` continues.
    """

    CHECKPOINT_NAME = "checkpoint.ckpt"

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: Any) -> None:
        """Lightning calls this after each epoch."""
        metrics: dict[str, Any] = {name: value.item() for name, value in trainer.callback_metrics.items()}
        metrics |= {"epoch": trainer.current_epoch, "step": trainer.global_step}
        directory = tempfile.mkdtemp(prefix="dualray-lightning-")
        try:
            trainer.save_checkpoint(Path(directory, self.CHECKPOINT_NAME), weights_only=False)
            session.report(metrics, Checkpoint.from_directory(directory))
        finally:
            shutil.rmtree(directory, ignore_errors=True)


def prepare_trainer(trainer: pl.Trainer) -> pl.Trainer:
    """Return the trainer, if it can train in the workers of a TorchTrainer.

    Raises:
        RuntimeError: its strategy or its environment is not one of this module.
    """
    strategies = (RayDDPStrategy, RayFSDPStrategy, RayDeepSpeedStrategy)
    if not isinstance(trainer.strategy, strategies):
        raise RuntimeError(
            f"prepare_trainer: the trainer's strategy is a {type(trainer.strategy).__name__}; give the pl.Trainer one "
            f"of {', '.join(each.__name__ for each in strategies)}"
        )
    environment = getattr(trainer.strategy, "cluster_environment", None)
    if environment is not None and not isinstance(environment, RayLightningEnvironment):
        raise RuntimeError(
            f"prepare_trainer: the trainer's environment is a {type(environment).__name__}; give the pl.Trainer "
            "plugins=[RayLightningEnvironment()]"
        )
    if not isinstance(trainer.strategy, RayDDPStrategy) and _virtual() is not None:
        raise RuntimeError(
            f"prepare_trainer: {type(trainer.strategy).__name__} works only in real mode; in sim mode, use "
            "RayDDPStrategy"
        )
    return trainer
