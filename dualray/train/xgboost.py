"""Training with XGBoost: workers that form a group of its communicator.

    from dualray.train.xgboost import RayTrainReportCallback, XGBoostTrainer

    def train_func():
        rows = train.get_dataset_shard("train").materialize().to_pandas()
        data = xgboost.DMatrix(rows.drop("target", axis=1), label=rows["target"])
        xgboost.train({"objective": "reg:squarederror"}, data, callbacks=[RayTrainReportCallback()])

    XGBoostTrainer(train_func, datasets={"train": dataset}, scaling_config=ScalingConfig(num_workers=2)).fit()

The names are those of `ray.train.xgboost`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xgboost

from dualray import api
from dualray.train.backend import BackendConfig
from dualray.train.boosting import BoostingReport, check_mode
from dualray.train.checkpoint import Checkpoint
from dualray.train.collective import broadcast_from_rank_zero
from dualray.train.session import TrainContext
from dualray.train.trainer import DataParallelTrainer
from dualray.util.node import get_node_ip_address

__all__ = ["RayTrainReportCallback", "XGBoostConfig", "XGBoostTrainer"]

_JOIN_S = 5.0


@dataclass(frozen=True, slots=True)
class XGBoostConfig(BackendConfig):
    """How XGBoost's workers find one another: by a tracker in the worker with rank 0.

    Attributes:
        xgboost_communicator: "rabit", the only one.
    """

    xgboost_communicator: str = "rabit"

    def __post_init__(self) -> None:
        if self.xgboost_communicator != "rabit":
            raise ValueError(f"XGBoostConfig: xgboost_communicator={self.xgboost_communicator!r} must be 'rabit'")

    def training(self, context: TrainContext) -> AbstractContextManager[None]:
        check_mode("XGBoostTrainer", context)
        return _group(context)


@contextmanager
def _group(context: TrainContext) -> Iterator[None]:
    if context.world_size == 1:
        yield
        return
    given: Any = None
    waiting = None
    if context.world_rank == 0:
        tracker = xgboost.RabitTracker(n_workers=context.world_size, host_ip=get_node_ip_address(), sortby="task")
        tracker.start()
        waiting = threading.Thread(target=tracker.wait_for, daemon=True)
        waiting.start()
        given = tracker.worker_args()
    arguments = broadcast_from_rank_zero(given)
    task = f"{context.world_rank:08}:{api.get_runtime_context().get_actor_id()}"  # the tracker numbers them in order
    with xgboost.collective.CommunicatorContext(**arguments, dmlc_task_id=task):
        yield
    if waiting is not None:
        waiting.join(_JOIN_S)


class XGBoostTrainer(DataParallelTrainer):
    """Runs a function with XGBoost in `scaling_config.num_workers` workers: see DataParallelTrainer.

    Args:
        xgboost_config: default: XGBoostConfig().
        options: as for DataParallelTrainer.
    """

    _backend_argument = "xgboost_config"

    def __init__(
        self,
        train_loop_per_worker: Callable[..., Any],
        *,
        xgboost_config: XGBoostConfig | None = None,
        **options: Any,
    ) -> None:
        super().__init__(train_loop_per_worker, backend_config=xgboost_config or XGBoostConfig(), **options)


class RayTrainReportCallback(BoostingReport, xgboost.callback.TrainingCallback):  # type: ignore[misc]
    """Reports XGBoost's metrics after each round, and the model as a checkpoint: see BoostingReport."""

    CHECKPOINT_NAME = "model.ubj"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._last: dict[str, Any] = {}
        self._stored_round: int | None = None

    @classmethod
    def get_model(cls, checkpoint: Checkpoint, filename: str = CHECKPOINT_NAME) -> xgboost.Booster:
        """Return the model of a checkpoint that this callback has reported."""
        with checkpoint.as_directory() as directory:
            booster = xgboost.Booster()
            booster.load_model(str(Path(directory, filename)))
            return booster

    def after_iteration(self, model: Any, epoch: int, evals_log: Mapping[str, Mapping[str, Any]]) -> bool:
        """XGBoost calls this after each round."""
        self._last = {f"{data}-{name}": log[-1] for data, logs in evals_log.items() for name, log in logs.items()}
        is_due = self._is_due(epoch)
        if is_due:
            self._stored_round = epoch
        self._report(self._last, model if is_due else None)
        return False

    def after_training(self, model: Any) -> Any:
        """XGBoost calls this at the end."""
        if self._checkpoint_at_end and self._stored_round != model.num_boosted_rounds() - 1:
            self._report(self._last, model)
        return model
