"""The Trainer of Hugging Face Transformers in the workers of a TorchTrainer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import dualray as ray
from dualray import train
from dualray.train import RunConfig, ScalingConfig, TrainingFailedError
from dualray.train.torch import TorchTrainer

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

pytestmark = [pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore")]

ROWS = 32


@pytest.fixture
def real() -> Iterator[None]:
    ray.init(mode="real", num_cpus=2)
    yield
    ray.shutdown()


def fit(config) -> None:
    from dualray.train.huggingface.transformers import RayTrainReportCallback, prepare_trainer

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.layer = torch.nn.Linear(1, 1)

        def forward(self, x, labels):
            out = self.layer(x)
            return {"loss": torch.nn.functional.mse_loss(out, labels), "logits": out}

    if config["from_data"]:
        shard = train.get_dataset_shard("train")
        dataset = shard.iter_torch_batches(batch_size=4, dtypes=torch.float32)
    else:
        dataset = [{"x": torch.tensor([float(n)]), "labels": torch.tensor([2.0 * n])} for n in range(ROWS)]
    arguments = transformers.TrainingArguments(
        output_dir=config["directory"],
        max_steps=6,
        per_device_train_batch_size=4,
        save_strategy="steps",
        save_steps=3,
        logging_steps=3,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
    )
    trainer = transformers.Trainer(model=Model(), args=arguments, train_dataset=dataset)
    trainer.add_callback(RayTrainReportCallback())
    prepare_trainer(trainer).train()


def run(tmp_path: Path, workers: int, *, from_data: bool) -> train.Result:
    rows = ray.data.from_items([{"x": [float(n)], "labels": [2.0 * n]} for n in range(ROWS)])
    return TorchTrainer(
        fit,
        train_loop_config={"directory": str(tmp_path / "out"), "from_data": from_data},
        scaling_config=ScalingConfig(num_workers=workers),
        run_config=RunConfig(verbose=0, storage_path=tmp_path / "runs"),
        datasets={"train": rows} if from_data else {},
    ).fit()


@pytest.mark.parametrize("from_data", [False, True])
def test_it_trains_and_reports_what_it_saves(real, tmp_path, from_data):
    result = run(tmp_path, 2, from_data=from_data)
    assert result.metrics is not None
    assert len(result.metrics_dataframe) == 2
    assert result.checkpoint is not None
    with result.checkpoint.as_directory() as directory:
        assert Path(directory, "checkpoint", "trainer_state.json").exists()


def test_several_workers_are_refused_in_sim_mode(tmp_path):
    ray.init(mode="sim", num_cpus=2)
    try:
        with pytest.raises(TrainingFailedError, match="the Trainer of Transformers needs a process group of torch"):
            run(tmp_path, 2, from_data=False)
    finally:
        ray.shutdown()
