"""Training with PyTorch: a process group of real workers, or gradients that virtual workers exchange.

    from dualray.train.torch import TorchTrainer, prepare_model

    def train_func(config):
        model = prepare_model(Net())
        ...

    TorchTrainer(train_func, scaling_config=ScalingConfig(num_workers=2)).fit()

The names are those of `ray.train.torch`. In real mode each worker is a member of a group of `torch.distributed`, and
`prepare_model` makes a DistributedDataParallel. In sim mode see virtual.py.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from importlib import import_module
from typing import Any

import numpy as np

from dualray import runtime
from dualray.train import session
from dualray.train.backend import BackendConfig, Place
from dualray.train.checkpoint import Checkpoint
from dualray.train.config import DataConfig, RunConfig, ScalingConfig
from dualray.train.session import TrainContext
from dualray.train.trainer import DataParallelTrainer
from dualray.train.virtual_collectives import virtual_collectives

__all__ = [
    "TorchConfig",
    "TorchTrainer",
    "enable_reproducibility",
    "get_device",
    "get_devices",
    "prepare_data_loader",
    "prepare_model",
]


@dataclass(frozen=True, slots=True)
class TorchConfig(BackendConfig):
    """How PyTorch's workers find one another, and, in sim mode, how long a step of training takes.

    Attributes:
        backend: of `torch.distributed`. Default: "nccl" where workers have GPUs, else "gloo".
        init_method: "env" or "tcp": whether the workers find one another by variables or by an address.
        timeout_s: seconds after which an exchange among the workers fails.
        step_duration: sim mode: seconds of virtual time for the computation of one step in one worker, or a function of
            the rows of the worker's batch. Default: 1 ms. The all-reduce comes on top.
    """

    backend: str | None = None
    init_method: str = "env"
    timeout_s: float = 1800
    step_duration: float | Callable[[int], float] = 0.001

    def __post_init__(self) -> None:
        if self.init_method not in ("env", "tcp"):
            raise ValueError(f"TorchConfig: init_method={self.init_method!r} must be 'env' or 'tcp'")
        if not callable(self.step_duration) and not self.step_duration >= 0:
            raise ValueError(f"TorchConfig: step_duration={self.step_duration!r} must not be negative")

    def environment(self, places: Sequence[Place]) -> list[Mapping[str, str]]:
        if any(place.is_virtual for place in places):
            import_module("dualray.train.torch.virtual").install()
        first = places[0]
        nodes = list(dict.fromkeys(place.node for place in places))
        local: dict[str, int] = {}
        variables: list[Mapping[str, str]] = []
        for rank, place in enumerate(places):
            local_rank = local[place.node] = local.get(place.node, -1) + 1
            variables.append(
                {
                    "MASTER_ADDR": first.ip_address,
                    "MASTER_PORT": str(first.port),
                    "RANK": str(rank),
                    "LOCAL_RANK": str(local_rank),
                    "LOCAL_WORLD_SIZE": str(sum(each.node == place.node for each in places)),
                    "NODE_RANK": str(nodes.index(place.node)),
                    "WORLD_SIZE": str(len(places)),
                }
            )
        return variables

    def training(self, context: TrainContext) -> AbstractContextManager[None]:
        if runtime.current("a training worker").owns_interpreter:
            return self._process_group(context)
        return virtual_collectives(self.step_duration)

    @contextmanager
    def _process_group(self, context: TrainContext) -> Iterator[None]:
        import torch  # noqa: PLC0415 - the driver of a run need not have imported it
        import torch.distributed  # noqa: PLC0415

        device = get_device()
        os.environ["ACCELERATE_TORCH_DEVICE"] = str(device)  # Accelerate of Hugging Face asks for it
        if device.type == "cuda":
            torch.cuda.set_device(device)
        url = "env://"
        if self.init_method == "tcp":
            url = f"tcp://{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        torch.distributed.init_process_group(
            backend=self.backend or ("nccl" if device.type == "cuda" else "gloo"),
            init_method=url,
            rank=context.world_rank,
            world_size=context.world_size,
            timeout=timedelta(seconds=self.timeout_s),
        )
        try:
            yield
        finally:
            torch.distributed.destroy_process_group()


class TorchTrainer(DataParallelTrainer):
    """Runs a function with PyTorch in `scaling_config.num_workers` workers: see DataParallelTrainer.

    Args:
        torch_config: default: TorchConfig().
    """

    _backend_argument = "torch_config"

    def __init__(
        self,
        train_loop_per_worker: Callable[..., Any],
        *,
        train_loop_config: Mapping[str, Any] | None = None,
        torch_config: TorchConfig | None = None,
        scaling_config: ScalingConfig | None = None,
        dataset_config: DataConfig | None = None,
        run_config: RunConfig | None = None,
        datasets: Mapping[str, Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
        resume_from_checkpoint: Checkpoint | None = None,
    ) -> None:
        super().__init__(
            train_loop_per_worker,
            train_loop_config=train_loop_config,
            backend_config=torch_config or TorchConfig(),
            scaling_config=scaling_config,
            dataset_config=dataset_config,
            run_config=run_config,
            datasets=datasets,
            metadata=metadata,
            resume_from_checkpoint=resume_from_checkpoint,
        )


def get_devices() -> list[Any]:
    """Return the `torch.device`s of this worker: one for each GPU that it holds, or the CPU.

    Raises:
        RuntimeError: not called in a training function.
    """
    import torch  # noqa: PLC0415

    training = _training("get_devices")
    if training.virtual is None and torch.cuda.is_available() and torch.cuda.device_count():
        return [torch.device(f"cuda:{number}") for number in range(torch.cuda.device_count())]
    return [torch.device("cpu")]


def get_device() -> Any:
    """Return the first one of `get_devices()`."""
    return get_devices()[0]


def prepare_model(
    model: Any,
    move_to_device: Any = True,
    parallel_strategy: str | None = "ddp",
    parallel_strategy_kwargs: Mapping[str, Any] | None = None,
) -> Any:
    """Return the model, moved to this worker's device, with gradients that are the means of all workers'.

    Args:
        model: a `torch.nn.Module`.
        move_to_device: False: it stays where it is; a `torch.device`: it goes there.
        parallel_strategy: "ddp"; "fsdp", with GPUs in real mode; None: each worker trains its model alone.
        parallel_strategy_kwargs: further arguments for the class that wraps the model.

    Raises:
        RuntimeError: not called in a training function, or "fsdp" without GPUs.
        ValueError: an unknown parallel_strategy.
    """
    training = _training("prepare_model")
    if parallel_strategy not in ("ddp", "fsdp", None):
        raise ValueError(f"prepare_model: parallel_strategy={parallel_strategy!r} must be 'ddp', 'fsdp' or None")
    device = move_to_device if not isinstance(move_to_device, bool) else get_device()
    if move_to_device:
        model = model.to(device)
    if parallel_strategy is None or training.context.world_size == 1:
        return model
    options = dict(parallel_strategy_kwargs or {})
    if parallel_strategy == "fsdp":
        if device.type == "cpu":
            raise RuntimeError(
                "prepare_model: parallel_strategy='fsdp' works only with GPUs in real mode. Set "
                "ScalingConfig(use_gpu=True), or use parallel_strategy='ddp'"
            )
        from torch.distributed.fsdp import FullyShardedDataParallel  # noqa: PLC0415

        return FullyShardedDataParallel(model, **options)
    if training.virtual is not None:
        return import_module("dualray.train.torch.virtual").parallel(model, training.virtual)
    from torch.nn.parallel import DistributedDataParallel  # noqa: PLC0415

    if device.type != "cpu":
        options = {"device_ids": [device], "output_device": device, **options}
    return DistributedDataParallel(model, **options)


def prepare_data_loader(
    data_loader: Any, add_dist_sampler: bool = True, move_to_device: bool = True, auto_transfer: bool = True
) -> Any:
    """Return a `DataLoader` that reads this worker's share of the dataset, on this worker's device.

    With more than one worker, its sampler is a DistributedSampler: call `loader.sampler.set_epoch(epoch)` before each
    epoch, so that each epoch has another order.

    Args:
        data_loader: a `torch.utils.data.DataLoader`.
        add_dist_sampler: False: each worker reads the whole dataset.
        move_to_device: False: the batches stay on the CPU.
        auto_transfer: whether batches may go to a GPU while the model computes.

    Raises:
        RuntimeError: not called in a training function.
    """
    from dualray.train.torch.loader import on_device, with_share  # noqa: PLC0415 - they import PyTorch

    context = _training("prepare_data_loader").context
    if context.world_size > 1 and add_dist_sampler:
        data_loader = with_share(data_loader, context.world_rank, context.world_size)
    return on_device(data_loader, get_device(), is_early=auto_transfer) if move_to_device else data_loader


def enable_reproducibility(seed: int = 0) -> None:
    """Seed PyTorch, Python and NumPy, and have PyTorch use deterministic algorithms."""
    import torch  # noqa: PLC0415

    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - programs use it
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # else CUDA refuses deterministic algorithms


def _training(what: str) -> session.Session:
    found = session.current_or_none()
    if found is None:
        raise RuntimeError(f"{what}() works only in a training function, which a trainer such as TorchTrainer runs")
    return found
