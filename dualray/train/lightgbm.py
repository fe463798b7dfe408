"""Training with LightGBM: workers that find one another by the parameters of `get_network_params`.

    from dualray.train.lightgbm import LightGBMTrainer, RayTrainReportCallback, get_network_params

    def train_func():
        rows = train.get_dataset_shard("train").materialize().to_pandas()
        data = lightgbm.Dataset(rows.drop("target", axis=1), label=rows["target"])
        parameters = {"tree_learner": "data_parallel", "pre_partition": True, **get_network_params()}
        lightgbm.train(parameters, data, callbacks=[RayTrainReportCallback()])

    LightGBMTrainer(train_func, datasets={"train": dataset}, scaling_config=ScalingConfig(num_workers=2)).fit()

The names are those of `ray.train.lightgbm`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightgbm

from dualray.train import session
from dualray.train.backend import BackendConfig, Place
from dualray.train.boosting import BoostingReport, check_mode
from dualray.train.checkpoint import Checkpoint
from dualray.train.session import TrainContext
from dualray.train.trainer import DataParallelTrainer

__all__ = ["LightGBMConfig", "LightGBMTrainer", "RayTrainReportCallback", "get_network_params"]

_VARIABLE = "LIGHTGBM_NETWORK_PARAMS"


@dataclass(frozen=True, slots=True)
class LightGBMConfig(BackendConfig):
    """Gives each worker a port, and tells each the addresses of all."""

    def environment(self, places: Sequence[Place]) -> list[Mapping[str, str]]:
        machines = ",".join(f"{place.ip_address}:{place.port}" for place in places)
        common = {"num_machines": len(places), "machines": machines}
        return [{_VARIABLE: json.dumps(common | {"local_listen_port": place.port})} for place in places]

    def training(self, context: TrainContext) -> AbstractContextManager[None]:
        check_mode("LightGBMTrainer", context)
        return nullcontext()


def get_network_params() -> dict[str, Any]:
    """Return the parameters by which LightGBM's workers find one another: `num_machines`, `machines` and
    `local_listen_port`. With one worker the dict is empty.

    Raises:
        RuntimeError: called outside a training function.
    """
    if session.get_context().world_size == 1:
        return {}
    found: dict[str, Any] = json.loads(os.environ.get(_VARIABLE, "{}"))
    return found


class LightGBMTrainer(DataParallelTrainer):
    """Runs a function with LightGBM in `scaling_config.num_workers` workers: see DataParallelTrainer.

    Args:
        lightgbm_config: default: LightGBMConfig().
        options: as for DataParallelTrainer.
    """

    _backend_argument = "lightgbm_config"

    def __init__(
        self,
        train_loop_per_worker: Callable[..., Any],
        *,
        lightgbm_config: LightGBMConfig | None = None,
        **options: Any,
    ) -> None:
        super().__init__(train_loop_per_worker, backend_config=lightgbm_config or LightGBMConfig(), **options)


class RayTrainReportCallback(BoostingReport):
    """Reports LightGBM's metrics after each round, and the model as a checkpoint: see BoostingReport."""

    CHECKPOINT_NAME = "model.txt"

    @classmethod
    def get_model(cls, checkpoint: Checkpoint, filename: str = CHECKPOINT_NAME) -> lightgbm.Booster:
        """Return the model of a checkpoint that this callback has reported."""
        with checkpoint.as_directory() as directory:
            return lightgbm.Booster(model_file=str(Path(directory, filename)))

    def __call__(self, env: Any) -> None:
        """LightGBM calls this after each round."""
        values: dict[str, Any] = {}
        for data, name, value, *more in env.evaluation_result_list or ():
            is_of_folds = len(more) > 1  # what lightgbm.cv gives: a mean and a standard deviation
            values[f"{data}-{name}{'-mean' * is_of_folds}"] = value
            if is_of_folds:
                values[f"{data}-{name}-stdv"] = more[1]
        is_last = env.iteration == env.end_iteration - 1
        has_checkpoint = self._is_due(env.iteration) or (is_last and self._checkpoint_at_end)
        self._report(values, env.model if has_checkpoint else None)
