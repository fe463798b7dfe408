"""ResNet: the loader of CIFAR's files, the network, and data-parallel training in both modes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from examples.resnet.cifar_input import Data, batch, coloured_digits, read_cifar, write_cifar
from tests.applications import run_application


def run_driver(mode: str, *flags: str, cwd: Path, timeout: float = 580) -> str:
    return run_application("resnet/resnet_main.py", mode, *flags, cwd=cwd, nodes=2, timeout=timeout)


# ---- Training ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("mode", ["sim", pytest.param("real", marks=pytest.mark.slow)])
def test_a_round_on_two_gpus(mode: str, tmp_path: Path):
    """GPUs that are not there: dualray hands out their numbers, and TensorFlow takes the CPU."""
    from examples.events import read_scalars

    write_cifar(tmp_path / "data_batch_1.bin", coloured_digits(16, seed=0), "cifar10")
    write_cifar(tmp_path / "data_batch_2.bin", coloured_digits(16, seed=1), "cifar10")
    write_cifar(tmp_path / "test_batch.bin", coloured_digits(20, seed=2), "cifar10")
    flags = (
        "--train_data_path=data_batch* --eval_data_path=test_batch.bin --eval_dir=eval --dataset=cifar10 --num_gpus=2"
    )
    small = "--num_residual_units=1 --batch_size=2 --steps=10 --eval_interval=10"
    said = run_driver(mode, *flags.split(), *small.split(), cwd=tmp_path)
    assert re.search(r"The log files for tensorboard are stored at ip [\d.]+\.\n", said)
    found = re.search(r"cifar10, 32 pictures, 2 GPUs: ([\d.]+)% are right after 10 steps, ", said)
    assert found, said
    logged = read_scalars(tmp_path / "eval")
    assert [step for step, _ in logged["Precision"]] == [0, 10]
    assert logged["Precision"][-1][1] == pytest.approx(float(found[1]) / 100, abs=1e-4)
    assert [step for step, _ in logged["train/cost"]] == [10]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("mode", ["sim", "real"])
def test_a_small_file_is_learned_by_heart(mode: str, tmp_path: Path):
    write_cifar(tmp_path / "digits.bin", coloured_digits(200, seed=0), "cifar10")
    flags = (
        "--train_data_path=digits.bin --eval_data_path=digits.bin --num_residual_units=1 --batch_size=32 --no-augment"
    )
    bound = "--num_actors=2 --steps=200 --eval_interval=20 --target=0.99"
    said = run_driver(mode, *flags.split(), *bound.split(), cwd=tmp_path, timeout=880)
    found = re.search(r"cifar10, 200 pictures, 2 CPU actors: ([\d.]+)% are right", said)
    assert found, said
    assert float(found[1]) >= 99, said


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_hundred_classes(tmp_path: Path):
    write_cifar(tmp_path / "train.bin", coloured_digits(16, seed=0), "cifar100")
    flags = "--train_data_path=train.bin --eval_data_path=train.bin --dataset=cifar100 --num_residual_units=1"
    said = run_driver("sim", *flags.split(), "--batch_size=2", "--steps=10", cwd=tmp_path, timeout=580)
    assert re.search(r"cifar100, 16 pictures, 1 CPU actor: ", said), said


# ---- The files ---------------------------------------------------------------------------------------------------


def test_a_record_of_cifar10(tmp_path: Path):
    """Class, then all of red, of green, of blue, row by row: written here by hand."""
    red = [10, 11, *[0] * 1022]
    green = [20, *[0] * 1023]
    blue = [0] * 31 + [30] + [0] * 992
    (tmp_path / "one.bin").write_bytes(bytes([7, *red, *green, *blue]))
    data = read_cifar(str(tmp_path / "one.bin"), "cifar10")
    assert data.labels.tolist() == [7]
    assert data.images.shape == (1, 32, 32, 3)
    assert data.images[0, 0, 0].tolist() == [10, 20, 0]
    assert data.images[0, 0, 1].tolist() == [11, 0, 0]
    assert data.images[0, 0, 31].tolist() == [0, 0, 30]
    assert data.images.astype(int).sum() == 71


def test_a_record_of_cifar100_has_two_classes(tmp_path: Path):
    (tmp_path / "one.bin").write_bytes(bytes([3, 99, *[1] * 3072]))
    assert read_cifar(str(tmp_path / "one.bin"), "cifar100").labels.tolist() == [99]


@pytest.mark.parametrize("dataset", ["cifar10", "cifar100"])
def test_files_come_back_as_they_were(dataset: str, tmp_path: Path):
    random = np.random.default_rng(0)
    parts = [
        Data(random.integers(0, 256, (5, 32, 32, 3), np.uint8), random.integers(0, 10, 5, np.uint8)) for _ in range(2)
    ]
    for number, part in enumerate(parts):
        write_cifar(tmp_path / f"data_batch_{number}.bin", part, dataset)
    found = read_cifar(str(tmp_path / "data_batch*"), dataset)
    assert (found.images == np.concatenate([part.images for part in parts])).all()
    assert (found.labels == np.concatenate([part.labels for part in parts])).all()


def test_files_that_are_not_cifars(tmp_path: Path):
    with pytest.raises(FileNotFoundError, match=r"no file matches .*none\*'\. Nothing is downloaded"):
        read_cifar(str(tmp_path / "none*"), "cifar10")
    path = tmp_path / "data.bin"
    path.write_bytes(b"")
    with pytest.raises(ValueError, match="is no file of cifar10: it has 0 bytes, and records have 3073"):
        read_cifar(str(path), "cifar10")
    write_cifar(path, coloured_digits(3, seed=0), "cifar100")
    with pytest.raises(ValueError, match="it has 9222 bytes, and records have 3073"):
        read_cifar(str(path), "cifar10")
    path.write_bytes(bytes(3073) + bytes([10]) + bytes(3072))
    with pytest.raises(ValueError, match="record 1 has class 10, and there are 10"):
        read_cifar(str(path), "cifar10")


def test_pictures_are_shifted_and_mirrored_at_random():
    data = coloured_digits(8, seed=0)
    rows = np.arange(8)
    plain = batch(data, rows, None)
    assert plain.mean(axis=(1, 2, 3)) == pytest.approx(np.zeros(8), abs=1e-5)
    assert plain.std(axis=(1, 2, 3)) == pytest.approx(np.ones(8), abs=1e-5)
    moved = batch(data, rows, np.random.default_rng(0))
    assert moved.shape == plain.shape
    assert not np.allclose(moved, plain)
    assert (batch(data, rows, np.random.default_rng(0)) == moved).all()
    flat = Data(np.full((1, 32, 32, 3), 9, np.uint8), np.zeros(1, np.uint8))
    assert (batch(flat, np.array([0]), None) == 0).all()


# ---- The network -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model() -> Any:
    from examples.resnet.resnet_model import HParams, ResNet

    return ResNet(HParams(batch_size=4, num_residual_units=1))


def test_weights_bring_momentum_means_and_the_step(model: Any):
    weights = model.variables.get_weights()
    shapes = {name: value.shape for name, value in weights.items()}
    assert shapes["resnet/first_kernel"] == (3, 3, 3, 16)
    assert shapes["resnet/unit_3_0/two_kernel"] == (3, 3, 64, 64)
    assert shapes["resnet/scores_kernel"] == (64, 10)
    assert shapes["resnet/normal_last/variance"] == (64,)
    assert shapes["resnet/first_kernel/Momentum"] == (3, 3, 3, 16)
    assert weights["global_step"].dtype == np.int64


def test_a_step_moves_all_of_it_and_weights_take_it_back(model: Any):
    data = coloured_digits(4, seed=0)
    images = batch(data, np.arange(4), None)
    before = model.variables.get_weights()
    first = model.evaluate(images, data.labels)
    losses = [model.train_step(images, data.labels) for _ in range(8)]
    after = model.variables.get_weights()
    assert min(losses) < losses[0] / 2
    assert after["global_step"] == before["global_step"] + 8
    assert [name for name in before if (before[name] == after[name]).all()] == []
    model.variables.set_weights(before)
    assert model.evaluate(images, data.labels) == pytest.approx(first, abs=1e-5)


def test_the_mean_of_weights_keeps_their_types():
    from examples.resnet.resnet_main import mean

    results: Any = [{"a": np.array([number, 2], np.float32), "step": np.int64(10)} for number in (1, 3)]
    found: Any = mean(results)
    assert found["a"].tolist() == [2, 2] and found["a"].dtype == np.float32
    assert found["step"] == 10 and found["step"].dtype == np.int64
