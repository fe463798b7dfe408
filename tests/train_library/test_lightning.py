"""PyTorch Lightning in the workers of a TorchTrainer, real and virtual."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import dualray as ray
from dualray import train
from dualray.train import FailureConfig, RunConfig, ScalingConfig, TrainingFailedError
from dualray.train.torch import TorchTrainer

torch = pytest.importorskip("torch")
pl = pytest.importorskip("lightning.pytorch")

pytestmark = [pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore")]  # Lightning warns of much

ROWS = 64


@pytest.fixture(params=["real", "sim"])
def mode(request) -> Iterator[str]:
    ray.init(mode=request.param, num_cpus=2)
    yield request.param
    ray.shutdown()


def make_loader() -> object:
    inputs = torch.randn(ROWS, 3, generator=torch.Generator().manual_seed(0))
    return torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size=8
    )


def fit(config) -> None:
    from dualray.train.lightning import (
        RayDDPStrategy,
        RayLightningEnvironment,
        RayTrainReportCallback,
        prepare_trainer,
    )

    class Model(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(train.get_context().get_world_rank())
            self.layer = torch.nn.Linear(3, 1)

        def training_step(self, batch, index):
            inputs, wanted = batch
            loss = torch.nn.functional.mse_loss(self.layer(inputs), wanted)
            self.log("loss", loss, on_epoch=True, sync_dist=True)
            if config.get("fails_in") == self.current_epoch and train.get_checkpoint() is None:
                raise OSError("an epoch fails")
            return loss

        def validation_step(self, batch, index):
            inputs, wanted = batch
            self.log("val_loss", torch.nn.functional.mse_loss(self.layer(inputs), wanted), sync_dist=True)

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    trainer = prepare_trainer(
        pl.Trainer(
            max_epochs=3,
            accelerator="cpu",
            devices="auto",
            strategy=RayDDPStrategy(),
            plugins=[RayLightningEnvironment()],
            callbacks=[RayTrainReportCallback()],
            enable_progress_bar=False,
            enable_model_summary=False,
            enable_checkpointing=False,
            logger=False,
            accumulate_grad_batches=config.get("accumulate", 1),
        )
    )
    model = Model()
    checkpoint = train.get_checkpoint()
    if checkpoint is None:
        trainer.fit(model, train_dataloaders=make_loader(), val_dataloaders=make_loader())
    else:
        with checkpoint.as_directory() as directory:
            trainer.fit(model, make_loader(), make_loader(), ckpt_path=Path(directory, "checkpoint.ckpt"))
    weights = [round(float(value), 4) for value in model.layer.weight.detach().flatten()]
    gathered = ray.get(ray.put(weights))
    print("weights", train.get_context().get_world_rank(), gathered, flush=True)


def run(config, **options) -> train.Result:
    trainer = TorchTrainer(
        fit,
        train_loop_config=config,
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(verbose=0, **options),
    )
    return trainer.fit()


def state(result: train.Result) -> dict:
    assert result.checkpoint is not None
    with result.checkpoint.as_directory() as directory:
        found: dict = torch.load(Path(directory, "checkpoint.ckpt"), weights_only=False)["state_dict"]
    return found


def test_it_trains_and_reports_each_epoch_with_a_checkpoint(mode, capfd):
    result = run({})
    assert result.metrics is not None
    assert (result.metrics["epoch"], result.metrics["step"]) == (2, 3 * ROWS // 2 // 8)
    assert result.metrics["val_loss"] < 0.5
    assert len(result.metrics_dataframe) == 3
    assert set(state(result)) == {"layer.weight", "layer.bias"}
    lines = {line.split("weights ")[1][2:] for line in capfd.readouterr().out.splitlines() if "weights " in line}
    assert len(lines) == 1  # both workers have the same


def test_both_modes_compute_the_same():
    found = []
    for mode in ("real", "sim"):
        ray.init(mode=mode, num_cpus=2)
        result = run({"accumulate": 2})
        assert result.metrics is not None
        found.append((round(result.metrics["loss"], 5), round(result.metrics["val_loss"], 5)))
        ray.shutdown()
    assert found[0] == found[1]


def test_it_goes_on_from_its_last_checkpoint(mode):
    result = run({"fails_in": 1}, failure_config=FailureConfig(max_failures=1))
    assert result.metrics is not None
    assert result.metrics["epoch"] == 2


def test_a_trainer_with_another_strategy_is_refused(mode):
    def wrong() -> None:
        from dualray.train.lightning import prepare_trainer

        prepare_trainer(pl.Trainer(accelerator="cpu", logger=False))

    with pytest.raises(
        TrainingFailedError, match=r"the trainer's strategy is a .*; give the pl\.Trainer one of RayDDP"
    ):
        TorchTrainer(wrong, scaling_config=ScalingConfig(num_workers=1), run_config=RunConfig(verbose=0)).fit()
