"""Evolution strategies (Salimans et al., 2017, arXiv:1703.03864): learning to act from returns alone.

Each round, workers play with the policy moved a little along random directions, and back along the same ones; the
policy then moves along each direction as far as it paid. Directions never travel: all processes of a node see one table
of random numbers in the object store, without copies, and a direction is a place in it. Returns are turned into ranks,
so that it does not matter how large they are. The sum over all directions is formed by tasks, in a tree.

    python examples/evolution_strategies/evolution_strategies.py --environment CartPole-v0
    dualray run examples/evolution_strategies/evolution_strategies.py --mode sim --nodes 11 -- --num-workers 44
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray
from rich.progress import Progress

import dualray.classic as ray
from dualray import method

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # its neighbours are found from wherever it is started

from examples import gym_envs as gym

Floats = NDArray[np.float32]

NOISE_S_PER_NUMBER = 1.2e-8  # in sim mode: drawing a number, measured on one core of a 2-core machine of 2025
STEP_S = 2.5e-5  # a step of CartPole, with the choice of the action
SUM_S_PER_NUMBER = 1e-9


@dataclass(frozen=True, slots=True)
class Config:
    """What a round looks like.

    Attributes:
        pairs: directions that each worker tries in a round, each forth and back.
        stddev: how far the policy is moved along a direction.
        stepsize: of Adam, which moves the policy.
        decay: of the policy's weights, each round.
        branches: partial sums that are added up by one task.
    """

    pairs: int = 8
    stddev: float = 0.1
    stepsize: float = 0.05
    decay: float = 0.001
    branches: int = 4


class Policy:
    """One hidden layer; the action is the largest score, or the scores themselves where actions are numbers."""

    def __init__(self, environment: Any, hidden: int = 16) -> None:
        self._inputs = int(np.prod(environment.observation_space.shape))
        self._hidden = hidden
        self._is_discrete = hasattr(environment.action_space, "n")
        self._shape = None if self._is_discrete else environment.action_space.shape
        self._outputs = int(environment.action_space.n if self._is_discrete else np.prod(self._shape))
        self._flat = np.zeros(self.size, np.float32)

    @property
    def size(self) -> int:
        """How many numbers the policy is."""
        return (self._inputs + 1) * self._hidden + (self._hidden + 1) * self._outputs

    def get_trainable_flat(self) -> Floats:
        """The policy as numbers."""
        return self._flat.copy()

    def set_trainable_flat(self, flat: Floats) -> None:
        """Make it another one."""
        self._flat = np.asarray(flat, np.float32)
        end = (self._inputs + 1) * self._hidden
        self._first = self._flat[:end].reshape(self._inputs + 1, self._hidden)
        self._second = self._flat[end:].reshape(self._hidden + 1, self._outputs)

    def act(self, observation: Any) -> Any:
        """What to do."""
        inner = np.tanh(np.ravel(observation) @ self._first[:-1] + self._first[-1])
        scores = inner @ self._second[:-1] + self._second[-1]
        return int(scores.argmax()) if self._is_discrete else np.clip(scores, -1, 1).reshape(self._shape)


@ray.remote(duration=lambda count, seed: NOISE_S_PER_NUMBER * count)
def create_shared_noise(count: int, seed: int) -> Floats:
    """The table of random numbers."""
    return np.random.default_rng(seed).standard_normal(count, dtype=np.float32)


@ray.remote
class Worker:
    """Plays."""

    def __init__(self, config: Config, environment: str, noise: Floats, seed: int) -> None:
        self._config = config
        self._environment = gym.make(environment)
        self._policy = Policy(self._environment)
        self._noise = noise
        self._random = np.random.default_rng(seed)

    def size(self) -> int:
        return self._policy.size

    @method(duration=0.04)
    def do_rollouts(self, params: Floats) -> tuple[NDArray[np.int64], Floats, int]:
        """Play with directions drawn at random: their places in the table, the returns forth and back (of the shape
        (pairs, 2)), and how many steps that were."""
        places = self._random.integers(0, len(self._noise) - self._policy.size, self._config.pairs)
        returns = np.empty((len(places), 2), np.float32)
        steps = 0
        for row, place in enumerate(places):
            perturbation = self._config.stddev * self._noise[place : place + self._policy.size]
            for column, moved in enumerate((params + perturbation, params - perturbation)):
                self._policy.set_trainable_flat(moved)
                returns[row, column], length = self._rollout()
                steps += length
        return places, returns, steps

    @method(duration=lambda params, episodes: 200 * STEP_S * episodes)
    def evaluate(self, params: Floats, episodes: int) -> list[float]:
        """The returns of the policy as it is."""
        self._policy.set_trainable_flat(params)
        return [self._rollout()[0] for _ in range(episodes)]

    def _rollout(self) -> tuple[float, int]:
        observation, _ = self._environment.reset(seed=int(self._random.integers(2**31)))
        total, steps, is_over = 0.0, 0, False
        while not is_over:
            observation, reward, ended, cut, _ = self._environment.step(self._policy.act(observation))
            total, steps, is_over = total + float(reward), steps + 1, ended or cut
        return total, steps


@ray.remote(duration=lambda noise, size, places, pays: SUM_S_PER_NUMBER * size * len(places))
def weighted_sum(noise: Floats, size: int, places: NDArray[np.int64], pays: Floats) -> Floats:
    """A leaf of the tree: directions, each times what it paid, summed."""
    total = np.zeros(size, np.float32)
    for place, pay in zip(places, pays, strict=True):
        total += pay * noise[place : place + size]
    return total


@ray.remote(duration=lambda *parts: SUM_S_PER_NUMBER * len(parts) * len(parts[0]))
def add(*parts: Floats) -> Floats:
    """An inner node of the tree."""
    return np.sum(parts, axis=0)


def tree_sum(parts: list[Any], branches: int) -> Any:
    """The ObjectID of the sum of all parts, formed `branches` at a time."""
    while len(parts) > 1:
        parts = [
            add.remote(*parts[first : first + branches]) if len(parts[first : first + branches]) > 1 else parts[first]
            for first in range(0, len(parts), branches)
        ]
    return parts[0]


def ranks(returns: Floats) -> Floats:
    """Returns by rank, from -0.5 for the worst to 0.5 for the best; equal ones have equal ranks."""
    _, inverse, counts = np.unique(returns.ravel(), return_inverse=True, return_counts=True)
    middle = np.cumsum(counts) - (counts + 1) / 2
    centered = middle[inverse] / max(1, returns.size - 1) - 0.5
    return np.asarray(centered, np.float32).reshape(returns.shape)


class Adam:
    """Kingma and Ba, 2015, with their constants; climbs."""

    def __init__(self, size: int, stepsize: float) -> None:
        self._stepsize, self._time = stepsize, 0
        self._mean, self._square = np.zeros(size, np.float32), np.zeros(size, np.float32)

    def update(self, gradient: Floats) -> Floats:
        """By how much to move."""
        self._time += 1
        self._mean += 0.1 * (gradient - self._mean)
        self._square += 0.001 * (gradient**2 - self._square)
        rate = self._stepsize * np.sqrt(1 - 0.999**self._time) / (1 - 0.9**self._time)
        return np.asarray(rate * self._mean / (np.sqrt(self._square) + 1e-8), np.float32)


def train(
    environment: str,
    config: Config,
    *,
    num_workers: int,
    iterations: int,
    target: float,
    noise_size: int,
    episodes: int,
    seed: int,
) -> tuple[float, int]:
    """The mean return at the end, and after how many rounds that was.

    Args:
        environment: gymnasium's name for it.
        num_workers: actors that play.
        iterations: rounds at most.
        target: the mean return that is enough.
        noise_size: numbers in the shared table.
        episodes: over which the mean is taken.
        seed: of everything.
    """
    noise_id = create_shared_noise.remote(noise_size, seed)
    workers = [Worker.remote(config, environment, noise_id, seed + number) for number in range(num_workers)]
    size = ray.get(workers[0].size.remote())
    theta, adam = np.zeros(size, np.float32), Adam(size, config.stepsize)
    mean, share = float("-inf"), -(-episodes // num_workers)
    with Progress() as progress:
        bar = progress.add_task("rounds", total=iterations)
        for iteration in range(1, iterations + 1):
            started = time.perf_counter()
            theta_id = ray.put(theta)
            results = ray.get([worker.do_rollouts.remote(theta_id) for worker in workers])
            paid = ranks(np.concatenate([returns for _, returns, _ in results]))
            pays = np.split(paid[:, 0] - paid[:, 1], num_workers)
            leaves = [
                weighted_sum.remote(noise_id, size, places, pay)
                for (places, _, _), pay in zip(results, pays, strict=True)
            ]
            total = ray.get(tree_sum(leaves, config.branches))
            gradient = total / (paid.size * config.stddev) - config.decay * theta
            theta = theta + adam.update(gradient)
            theta_id = ray.put(theta)
            found = ray.get([worker.evaluate.remote(theta_id, share) for worker in workers])
            mean = float(np.mean([value for values in found for value in values]))
            steps = sum(steps for _, _, steps in results)
            progress.console.print(
                f"round {iteration:3d}: mean return {mean:7.1f} over {share * num_workers} episodes; {steps} steps, "
                f"{time.perf_counter() - started:.2f} s"
            )
            progress.advance(bar)
            if mean >= target:
                return mean, iteration
    return mean, iterations


def main(
    environment: Annotated[str, typer.Option(help="gymnasium's name of it.")] = "CartPole-v0",
    num_workers: Annotated[int, typer.Option(min=1, help="Actors that play.")] = 4,
    iterations: Annotated[int, typer.Option(min=1, help="Rounds at most.")] = 100,
    target: Annotated[float, typer.Option(help="The mean return that is enough.")] = 195.0,
    pairs: Annotated[int, typer.Option(min=1, help="Directions a worker tries in a round.")] = 8,
    noise_size: Annotated[
        int, typer.Option(min=10_000, help="Numbers in the shared table, 4 bytes each.")
    ] = 25_000_000,
    episodes: Annotated[int, typer.Option(min=1, help="Over which the mean return is taken.")] = 100,
    seed: Annotated[int, typer.Option(help="Of everything.")] = 0,
    redis_address: Annotated[str | None, typer.Option(help="host:port of a running cluster.")] = None,
) -> None:
    """Learn to act."""
    ray.init(redis_address=redis_address)
    started = time.perf_counter()  # in sim mode this clock is the virtual one
    mean, rounds = train(
        environment,
        Config(pairs=pairs),
        num_workers=num_workers,
        iterations=iterations,
        target=target,
        noise_size=noise_size,
        episodes=episodes,
        seed=seed,
    )
    print(f"{environment}: mean return {mean:.1f} after {rounds} rounds, {time.perf_counter() - started:.1f} s")
    ray.worker.cleanup()
    if mean < target:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
