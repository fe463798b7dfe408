"""A3C: its gradient is right, its thread is one rollout ahead, and it learns, in both modes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.applications import run_application

SAYS = re.compile(r"CartPole-v1: mean return ([\d.]+) over the last \d+ games, ([\d.]+) by chance; \d+ steps in")


def run_driver(mode: str, *flags: str, cwd: Path, timeout: float = 580) -> str:
    return run_application("a3c/driver.py", mode, *flags, cwd=cwd, timeout=timeout)


# ---- The driver --------------------------------------------------------------------------------------------------


@pytest.mark.timeout(600)
@pytest.mark.slow
@pytest.mark.parametrize("mode", ["sim", "real"])
def test_a_few_steps(mode: str, tmp_path: Path):
    from examples.events import read_scalars

    workers = {"sim": 1, "real": 2}[mode]  # in one process, each takes its time to make a network
    said = run_driver(mode, str(workers), "--steps", "150", cwd=tmp_path)
    assert SAYS.search(said.splitlines()[-1]), said
    games = 0
    agents = [number for number in range(workers) if any((tmp_path / "results" / f"agent_{number}").glob("events.*"))]
    assert agents  # on a busy machine one may have played all before the other has made its network
    for number in agents:
        logged = read_scalars(tmp_path / "results" / f"agent_{number}")
        assert "model/grad_global_norm" in logged
        rewards, lengths = logged["global/episode_reward"], logged["global/episode_length"]
        assert rewards == lengths  # a point for each step that the pole stands
        games += len(rewards)
    assert f"over the last {games} games" in said


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_simulated_run_can_be_repeated(tmp_path: Path):
    first, second = (run_driver("sim", "3", "--steps", "600", cwd=tmp_path) for _ in range(2))
    assert first == second


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("mode", ["sim", "real"])
def test_it_learns(mode: str, tmp_path: Path):
    said = run_driver(mode, "2", "--steps", "20000", cwd=tmp_path, timeout=580)
    found = SAYS.search(said.splitlines()[-1])
    assert found, said
    assert float(found[1]) > 3 * float(found[2]), said


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_an_atari_game(tmp_path: Path):
    flags = [
        "1",
        "--environment",
        "PongDeterministic-v3",
        "--steps",
        "1100",
        "--random-games",
        "1",
        "--reward-scale",
        "1",
    ]
    said = run_driver("real", *flags, cwd=tmp_path, timeout=580)
    assert re.search(r"PongDeterministic-v3: mean return -(21|20|19)", said.splitlines()[-1]), said


# ---- Its parts ---------------------------------------------------------------------------------------------------


def test_advantages_of_a_rollout():
    from examples.a3c.policy import PartialRollout, process_rollout

    zeros = np.zeros((1, 2), np.float32)
    rollout = PartialRollout((zeros, zeros), [[0.0]] * 3, [0, 1, 0], [1.0, 0.0, 2.0], [0.5, 0.25, 1.0], r=4.0)
    batch = process_rollout(rollout, gamma=0.5)
    assert batch.r.tolist() == [2.0, 2.0, 4.0]  # 1 + 0/2 + 2/4 + 4/8, ...
    assert batch.adv == pytest.approx(batch.r - np.array(rollout.values))  # at lambda = 1 the paper's


@pytest.fixture(scope="module")
def policy() -> Any:
    from examples.a3c.policy import LSTMPolicy

    return LSTMPolicy((3,), 2, seed=0, learning_rate=0.01)


def batch_of(policy: Any) -> Any:
    from examples.a3c.policy import Batch

    random = np.random.default_rng(1)
    return Batch(
        si=random.standard_normal((5, 3)).astype(np.float32),
        a=np.array([0, 1, 1, 0, 1], np.int32),
        adv=random.standard_normal(5).astype(np.float32),
        r=random.standard_normal(5).astype(np.float32),
        terminal=False,
        features=(
            random.standard_normal((1, policy.width)).astype(np.float32),
            random.standard_normal((1, policy.width)).astype(np.float32),
        ),
    )


def test_acting_step_by_step_is_what_is_learned_from(policy: Any):
    batch = batch_of(policy)
    memory, total = batch.features, 0.0
    for step, action in enumerate(batch.a):
        likely, value, memory = policy.act(batch.si[step], memory)
        total += -np.log(likely[action]) * batch.adv[step] + 0.25 * (value - batch.r[step]) ** 2
        total += 0.01 * float((likely * np.log(likely)).sum())
    _, summary = policy.get_gradients(batch)
    assert summary["model/total_loss"] == pytest.approx(total / 5, abs=1e-5)


def test_updates_lower_the_loss(policy: Any):
    batch = batch_of(policy)
    before = policy.get_weights()
    losses = []
    for _ in range(30):
        gradient, summary = policy.get_gradients(batch)
        losses.append(summary["model/total_loss"])
        policy.model_update(gradient)
    assert losses[-1] < losses[0] - 0.1
    policy.set_weights(before)
    assert policy.get_gradients(batch)[1]["model/total_loss"] == pytest.approx(losses[0], abs=1e-6)


class Counting:
    """A game that tells how often it was stepped, and breaks at the end."""

    def __init__(self, end: int) -> None:
        self.steps, self.end = 0, end

    def reset(self, seed: int) -> tuple[np.ndarray, dict[str, Any]]:
        return np.zeros(3, np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        if self.steps == self.end:
            raise RuntimeError("the console is broken")
        return np.full(3, self.steps, np.float32), 1.0, self.steps % 7 == 0, False, {}


def test_the_thread_is_one_rollout_ahead(policy: Any):
    from examples.a3c.runner import RunnerThread

    game = Counting(end=16)
    runner = RunnerThread(game, policy, 5, seed=0, reward_scale=0.5)
    runner.start_runner(policy.get_weights())
    rollouts = [runner.pull(policy.get_weights()) for _ in range(4)]
    assert [len(rollout.actions) for rollout in rollouts] == [5, 2, 5, 2]
    assert [rollout.returns for rollout in rollouts] == [[], [7.0], [], [7.0]]
    assert [rollout.terminal for rollout in rollouts] == [False, True, False, True]
    assert rollouts[1].r == 0 and rollouts[0].r != 0
    assert rollouts[0].rewards == [0.5] * 5
    with pytest.raises(RuntimeError, match="the console is broken"):
        runner.pull(policy.get_weights())
    runner.join(timeout=30)
    assert not runner.is_alive()


def test_a_thread_that_is_stopped_ends(policy: Any):
    from examples.a3c.runner import RunnerThread

    runner = RunnerThread(Counting(end=1000), policy, 5, seed=0)
    runner.stop()  # never started
    runner.start_runner(policy.get_weights())
    runner.pull(policy.get_weights())
    runner.stop()
    assert not runner.is_alive()
    runner.stop()


def test_a_game_whose_actions_are_numbers_is_refused():
    from examples.a3c.envs import create_env

    with pytest.raises(ValueError, match="learns to choose one of several"):
        create_env("MountainCarContinuous-v0")


def test_pictures_are_small_and_grey():
    from examples.a3c.envs import create_env

    env = create_env("PongDeterministic-v3")
    picture, _ = env.reset(seed=0)
    assert (picture.shape, picture.dtype) == ((40, 40, 1), np.float32)
    assert 0 <= picture.min() < picture.max() <= 1
    env.close()
