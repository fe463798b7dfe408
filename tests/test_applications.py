"""The applications of the seed documents run in both modes, with the documents' flags, and reach their results."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from examples.input_data import digits, load, read_data_sets, read_idx, write_idx
from tests.applications import EXAMPLES, ROOT, run_application

MODES = ("sim", "real")


@dataclass(frozen=True, slots=True)
class Case:
    """One run: a program with its flags, and what its last line says.

    `least` is the least that the first number of that line may be, where there is one in the pattern."""

    program: str
    flags: str
    says: str
    least: float | None = None
    quick: tuple[str, ...] = ()
    """The modes in which it is a matter of seconds."""

    @property
    def name(self) -> str:
        return f"{Path(self.program).stem} {self.flags}"


LINE = "linear_regression/linear_regression.py"
EVOLUTION = "evolution_strategies/evolution_strategies.py"
CASES = [
    Case(LINE, "--form weights", r"weights: y = 0\.1\d* x \+ 0\.3"),
    Case(LINE, "--form actors --batches 2", r"actors: y = 0\.1\d* x \+ 0\.3"),
    Case(LINE, "--form gradients --batches 2", r"gradients: y = 0\.1\d* x \+ 0\.3"),
    Case("lbfgs/driver.py", "", r"60 iterations .*: ([\d.]+)% of the test images are right", 95),
    Case("hyperopt/hyperopt_simple.py", "--trials=5 --steps=10", r"best of 5 trials, .*: ([\d.]+)%", 10),
    Case("hyperopt/hyperopt_simple.py", "--trials=16 --steps=300", r"best of 16 trials, .*: ([\d.]+)%", 95),
    Case(
        "hyperopt/hyperopt_adaptive.py",
        "--num-starting-segments=5 --num-segments=10 --steps-per-segment=20",
        r"best of \d+ trials, 10 segments .*: ([\d.]+)%",
        10,
    ),
    Case("hyperopt/hyperopt_adaptive.py", "", r"best of \d+ trials, 40 segments .*: ([\d.]+)%", 95),
    Case(EVOLUTION, "--noise-size 1000000", r"CartPole-v0: mean return ([\d.]+)", 195),
    Case(
        EVOLUTION,
        "--noise-size 20000 --pairs 2 --iterations 2 --episodes 4 --target 5",
        r"CartPole-v0: mean return ([\d.]+)",
        5,
        quick=MODES,
    ),
    Case("policy_gradient/example.py", "--environment=CartPole-v0", r"CartPole-v0: mean return ([\d.]+)", 195),
    Case(
        "rl_pong/driver.py",
        "--batch-size=2 --iterations=2 --steps-max=200",
        r"4 games in .*: (-[\d.]+) points a game in the first 4",
        -21,
    ),
    Case(
        "policy_gradient/example.py",
        "--environment=Pong-ram-v3 --iterations 1 --steps 64 --episodes 2 --target -22",
        r"Pong-ram-v3: mean return (-[\d.]+)",
        -21,
    ),
]


def parameters() -> list[object]:
    return [
        pytest.param(case, mode, id=f"{case.name}-{mode}", marks=() if mode in case.quick else pytest.mark.slow)
        for case in CASES
        for mode in MODES
    ]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("case", "mode"), parameters())
def test_application(case: Case, mode: str, tmp_path: Path):
    said = run_application(case.program, mode, *case.flags.split(), cwd=tmp_path)
    found = re.search(case.says, said.splitlines()[-1])
    assert found is not None, said
    if case.least is not None:
        assert float(found[1]) >= case.least, said


def test_every_application_has_a_page():
    folders = {path.parent for case in CASES for path in [EXAMPLES / case.program]}
    assert [folder.name for folder in folders if not (folder / "README.md").exists()] == []


# ---- The images --------------------------------------------------------------------------------------------------


def test_digits():
    data = digits(one_hot=True)
    assert (data.train.images.shape, data.train.labels.shape) == ((1077, 64), (1077, 10))
    assert data.validation.num_examples == data.test.num_examples == 360
    assert load(None).train.labels.max() == 9
    seen = np.concatenate([data.train.next_batch(359)[0] for _ in range(3)])
    assert data.train.epochs_completed == 0
    assert sorted(map(bytes, seen)) == sorted(map(bytes, data.train.images))
    data.train.next_batch(2)
    assert data.train.epochs_completed == 1
    with pytest.raises(ValueError, match="batch_size=2000 must be between 1 and"):
        data.train.next_batch(2000)


def test_files_of_mnist(tmp_path: Path):
    images = np.arange(12 * 4, dtype=np.uint8).reshape(12, 2, 2)
    for part, end in (("train", ".gz"), ("t10k", "")):
        write_idx(tmp_path / f"{part}-images-idx3-ubyte{end}", images)
        write_idx(tmp_path / f"{part}-labels-idx1-ubyte", np.arange(12, dtype=np.uint8) % 10)
    assert (read_idx(tmp_path / "train-images-idx3-ubyte.gz") == images).all()
    data = read_data_sets(tmp_path, one_hot=True)
    assert data.train.images.shape == (10, 4)
    assert data.validation.num_examples == 2
    assert data.test.labels.shape == (12, 10)
    assert data.test.images.max() == pytest.approx(47 / 255)


def test_files_that_are_not_mnists(tmp_path: Path):
    with pytest.raises(FileNotFoundError, match="has no train-images-idx3-ubyte"):
        read_data_sets(tmp_path)
    path = tmp_path / "train-images-idx3-ubyte"
    path.write_bytes(b"PNG")
    with pytest.raises(ValueError, match="is no IDX file of unsigned bytes: it begins with 50 4e 47"):
        read_data_sets(tmp_path)
    write_idx(path, np.zeros((3, 2, 2), np.uint8))
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match="is cut off"):
        read_data_sets(tmp_path)
    write_idx(path, np.zeros((3, 2, 2), np.uint8))
    write_idx(tmp_path / "train-labels-idx1-ubyte", np.zeros(2, np.uint8))
    with pytest.raises(ValueError, match="3 images and 2 labels"):
        read_data_sets(tmp_path)


# ---- What the applications are made of ---------------------------------------------------------------------------


def test_ranks_are_fair():
    from examples.evolution_strategies.evolution_strategies import ranks

    ranked = ranks(np.array([[1.0, 9.0], [5.0, 5.0]], np.float32))
    assert ranked.tolist() == [[-0.5, 0.5], [0.0, 0.0]]
    assert ranks(np.zeros((3, 2), np.float32)).tolist() == [[0.0, 0.0]] * 3


def test_policies_flat_and_back():
    from examples.evolution_strategies.evolution_strategies import Policy
    from examples.gym_envs import make

    policy = Policy(make("CartPole-v1"))
    flat = np.arange(policy.size, dtype=np.float32)
    policy.set_trainable_flat(flat)
    assert policy.size == 5 * 16 + 17 * 2
    assert (policy.get_trainable_flat() == flat).all()
    assert policy.act(np.ones(4)) in (0, 1)


def test_points_are_discounted_up_to_the_next_point():
    from examples.rl_pong.driver import discounted

    worth = discounted(np.array([0, 0, 1, 0, -1], np.float32))
    assert worth == pytest.approx([0.9801, 0.99, 1, -0.99, -1])


def test_standard_errors_of_a_gain():
    from examples.rl_pong.driver import comparison, standard_errors

    first, last = [-21.0, -19.0] * 50, [-18.0, -16.0] * 50
    error = np.sqrt(2 * (100 / 99) / 100)
    assert standard_errors(first, last) == pytest.approx(3 / error)
    assert standard_errors(last, first) == pytest.approx(-3 / error)
    assert standard_errors([1.0] * 3, [1.0] * 3) == 0
    assert standard_errors([1.0] * 3, [0.0] * 3) == -np.inf
    said = comparison(first + last)
    assert (
        said
        == f"-20.00 points a game in the first 100, -17.00 in the last 100, better by {3 / error:.1f} standard errors"
    )
    assert comparison([-20.0]) == "-20.00 points a game in the first 1, -20.00 in the last 1"


def test_pongs_curve_is_drawn(tmp_path: Path):
    scores = tmp_path / "scores.txt"
    scores.write_text("".join(f"{-21 + number // 30}\n" for number in range(150)))
    command = [sys.executable, str(EXAMPLES / "rl_pong" / "plot.py"), str(scores), str(tmp_path / "curve.svg")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("150 games: -19.80 points a game in the first 100, -18.20 in the last 100, better by")
    assert "<svg" in (tmp_path / "curve.svg").read_text()


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_pong_is_learned(tmp_path: Path):
    flags = ["--batch-size=10", "--iterations=30"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DUALRAY_")}
    environment |= {"PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore", "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, str(EXAMPLES / "rl_pong" / "driver.py"), *flags]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path, timeout=1780)
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.search(r"300 games .*, better by ([\d.]+) standard errors$", done.stdout.splitlines()[-1])
    assert found is not None, done.stdout
    assert float(found[1]) >= 2, done.stdout


def test_pongs_gradient_is_that_of_its_policy():
    from examples.rl_pong.driver import PIXELS, new_model, policy_backward, policy_forward

    model: Any = {name: weights.astype(np.float64) for name, weights in new_model(0).items()}
    change: Any = np.random.default_rng(1).standard_normal(PIXELS)
    likely, hidden = policy_forward(model, change)
    gradient: Any = policy_backward(model, hidden[None], change[None], np.array([1 - likely], np.float32))
    places: list[tuple[str, Any]] = [("score", 3), ("hidden", (5, 7))]
    for name, place in places:
        moved = {**model, name: model[name].copy()}
        moved[name][place] += 1e-6
        slope = (np.log(policy_forward(moved, change)[0]) - np.log(likely)) / 1e-6
        assert gradient[name][place] == pytest.approx(slope, abs=1e-6)


@pytest.mark.slow
def test_a_history_says_who_is_promising():
    from examples.hyperopt.hyperopt_adaptive import History, Trial
    from examples.hyperopt.network import Hyperparameters

    history, point = History(), Hyperparameters(0.01, 10, 0.1, 0.1)
    trials = [Trial(number, point, [accuracy]) for number, accuracy in enumerate((0.1, 0.5, 0.9))]
    for trial in trials:
        history.add(trial)
    assert [history.is_promising(trial) for trial in trials] == [False, True, True]
