"""Training with XGBoost and LightGBM."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import numpy as np
import pytest

import dualray as ray
from dualray import train
from dualray.train import RunConfig, ScalingConfig, TrainingFailedError

pytestmark = [pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore")]

ROWS = 400


@pytest.fixture(params=["real", "sim"])
def mode(request) -> Iterator[str]:
    ray.init(mode=request.param, num_cpus=2)
    yield request.param
    ray.shutdown()


def rows() -> ray.data.Dataset:
    return ray.data.from_items([{"x": n / ROWS, "y": (n * 7 % 40) / 40, "target": 2.0 * n / ROWS} for n in range(ROWS)])


def fit_xgboost(config) -> dict:
    import xgboost

    from dualray.train.xgboost import RayTrainReportCallback

    shard = train.get_dataset_shard("train").materialize().to_pandas()
    data = xgboost.DMatrix(shard.drop("target", axis=1), label=shard["target"])
    model = xgboost.train(
        {"objective": "reg:squarederror", "tree_method": "hist", "nthread": 1},
        data,
        num_boost_round=5,
        evals=[(data, "train")],
        callbacks=[RayTrainReportCallback(frequency=config["frequency"])],
        verbose_eval=False,
    )
    return {"rows": len(shard), "model": hash(tuple(model.get_dump()))}


def fit_lightgbm(config) -> dict:
    import lightgbm

    from dualray.train.lightgbm import RayTrainReportCallback, get_network_params

    shard = train.get_dataset_shard("train").materialize().to_pandas()
    data = lightgbm.Dataset(shard.drop("target", axis=1), label=shard["target"])
    parameters = {"objective": "regression", "verbosity": -1, "num_threads": 1, "min_data_in_leaf": 5}
    parameters |= {"tree_learner": "data_parallel", "pre_partition": True, **get_network_params()}
    callback = RayTrainReportCallback(metrics={"error": "train-l2"}, frequency=config["frequency"])
    lightgbm.train(parameters, data, num_boost_round=5, valid_sets=[data], valid_names=["train"], callbacks=[callback])
    return {"rows": len(shard), "machines": get_network_params().get("num_machines", 1)}


def run(library: str, workers: int, frequency: int = 2) -> train.Result:
    if library == "xgboost":
        from dualray.train.xgboost import XGBoostTrainer as Trainer

        function = fit_xgboost
    else:
        from dualray.train.lightgbm import LightGBMTrainer as Trainer

        function = fit_lightgbm
    return Trainer(
        function,
        train_loop_config={"frequency": frequency},
        scaling_config=ScalingConfig(num_workers=workers),
        run_config=RunConfig(verbose=0),
        datasets={"train": rows()},
    ).fit()


@pytest.mark.parametrize("library", ["xgboost", "lightgbm"])
@pytest.mark.parametrize("workers", [1, 2])
def test_workers_train_one_model_and_report_each_round(mode, library, workers):
    pytest.importorskip(library)
    if mode == "sim" and workers > 1:
        with pytest.raises(TrainingFailedError, match=r"Trainer: sim mode can train with one worker only"):
            run(library, workers)
        return
    result = run(library, workers)
    metric = "train-rmse" if library == "xgboost" else "error"
    history = [row[metric] for row in result.history]
    assert len({round(value, 6) for value in history}) == 5
    assert history[0] > history[-1]
    assert [row["training_iteration"] for row in result.history if row["checkpoint_dir_name"]] in ([2, 4, 6], [2, 4, 5])
    assert result.return_value["rows"] == ROWS // workers
    assert result.return_value.get("machines", workers) == workers
    assert result.checkpoint is not None
    if library == "xgboost":
        from dualray.train.xgboost import RayTrainReportCallback

        assert RayTrainReportCallback.get_model(result.checkpoint).num_boosted_rounds() == 5
    else:
        from dualray.train.lightgbm import RayTrainReportCallback as OfLightGBM

        assert OfLightGBM.get_model(result.checkpoint).num_trees() == 5


def test_a_metric_that_there_is_not_is_named(mode):
    pytest.importorskip("lightgbm")
    from dualray.train.boosting import BoostingReport

    with pytest.raises(KeyError, match=r"there is no metric 'loss'; the metrics are 'train-l2'"):
        BoostingReport(metrics="loss")._chosen({"train-l2": 1.0})


@pytest.mark.parametrize("kind", ["raises", "dies"])
def test_a_worker_that_fails_ends_the_training_of_all(kind):
    xgboost = pytest.importorskip("xgboost")
    from dualray.train.xgboost import XGBoostTrainer

    def loop() -> None:
        class Fails(xgboost.callback.TrainingCallback):
            def after_iteration(self, model, epoch, evals_log):
                if epoch == 1 and train.get_context().get_world_rank() == 1:
                    if kind == "dies":
                        os.kill(os.getpid(), signal.SIGKILL)
                    raise ValueError("a bad round")
                return False

        rows = np.arange(60.0).reshape(20, 3)
        xgboost.train({"nthread": 1}, xgboost.DMatrix(rows, label=rows.sum(1)), 4, callbacks=[Fails()])

    ray.init(mode="real", num_cpus=2)
    try:
        with pytest.raises(train.WorkerGroupError, match="a bad round" if kind == "raises" else "SIGKILL"):
            XGBoostTrainer(loop, scaling_config=ScalingConfig(num_workers=2), run_config=RunConfig(verbose=0)).fit()
    finally:
        ray.shutdown()
