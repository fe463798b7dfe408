"""Policy gradients in the manner of PPO (Schulman et al., 2017, arXiv:1707.06347): actors play, the driver learns.

Each round, every actor plays some steps with the newest weights and returns what it saw, did and got, with advantages
(generalized advantage estimation, arXiv:1506.02438). The driver makes several passes over all of it with TensorFlow,
and ships the new weights. Actors need no TensorFlow: two layers are quickly computed with numpy.

    python examples/policy_gradient/example.py --environment=CartPole-v0
    dualray run examples/policy_gradient/example.py --mode sim --nodes 11 -- --num-workers 40
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import gymnasium
import numpy as np
import typer
from numpy.typing import NDArray
from rich.progress import Progress

import dualray.classic as ray
from dualray import method

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # its neighbours are found from wherever it is started

from examples import gym_envs as gym

Floats = NDArray[np.float32]
Weights = dict[str, Floats]

STEP_S = 4e-5  # in sim mode: a step of CartPole, with the choice of the action, on one core of a machine of 2025


@dataclass(frozen=True, slots=True)
class Config:
    """What a round looks like.

    Attributes:
        hidden: width of each of the two hidden layers.
        discount, smoothing: gamma and lambda of the advantages.
        clip: how far the new policy may leave the old one.
        entropy: how much a policy is worth that is not sure yet.
        learning_rate: of Adam.
        passes, batch_size: over what was played, in a round.
    """

    hidden: int = 64
    discount: float = 0.99
    smoothing: float = 0.95
    clip: float = 0.2
    entropy: float = 0.01
    learning_rate: float = 1e-3
    passes: int = 8
    batch_size: int = 128


# ---- The games ---------------------------------------------------------------------------------------------------


class Ram(gymnasium.ObservationWrapper):  # type: ignore[type-arg]
    """The 128 bytes of the console's memory, as numbers around 0."""

    def observation(self, observation: Any) -> Floats:
        return observation.astype(np.float32) / 128 - 1


class Difference(gymnasium.ObservationWrapper):  # type: ignore[type-arg]
    """What has changed on the field since the last picture, as 80 x 80 numbers."""

    def __init__(self, environment: Any) -> None:
        super().__init__(environment)
        self.observation_space = gymnasium.spaces.Box(-1, 1, (6400,))
        self._last = np.zeros(6400, np.float32)

    def observation(self, observation: Any) -> Floats:
        field = observation[35:195:2, ::2, 0]
        ball_and_rackets = ((field != 144) & (field != 109) & (field != 0)).astype(np.float32).ravel()
        change, self._last = ball_and_rackets - self._last, ball_and_rackets
        return np.asarray(change, np.float32)


def make_environment(name: str) -> Any:
    """A game by gymnasium's name, or by one of 2017: Pong-ram-v3, Pong-v0.

    Raises:
        ValueError: its actions are not a few to choose from.
    """
    if "-ram" in name:
        made = Ram(gym.make(f"ALE/{name.partition('-')[0]}-v5", obs_type="ram"))
    elif name.startswith("Pong"):
        made = Difference(gym.make("ALE/Pong-v5"))
    else:
        made = gym.make(name)
    if not hasattr(made.action_space, "n"):
        raise ValueError(f"{name} has actions {made.action_space}: this program learns to choose one of several")
    return made


# ---- Playing, on actors ------------------------------------------------------------------------------------------


def forward(weights: Weights, part: str, observation: Any) -> Floats:
    """A network of two hidden layers: `part` is policy or value."""
    layer = np.ravel(observation)
    for number in (0, 1):
        layer = np.tanh(layer @ weights[f"{part}/kernel{number}"] + weights[f"{part}/bias{number}"])
    return np.asarray(layer @ weights[f"{part}/kernel2"] + weights[f"{part}/bias2"])


@ray.remote
class Player:
    """A game, and what was played of it so far."""

    def __init__(self, environment: str, config: Config, seed: int) -> None:
        self._config = config
        self._environment = make_environment(environment)
        self._random = np.random.default_rng(seed)
        self._observation: Any = None
        self._total = 0.0

    @method(duration=lambda weights, steps: STEP_S * steps)
    def play(self, weights: Weights, steps: int) -> tuple[dict[str, NDArray[Any]], list[float]]:
        """Go on for some steps; what there is to learn from, and the returns of the games that ended."""
        seen, acted, logs, values, gains, ends = [], [], [], [], [], []
        returns: list[float] = []
        if self._observation is None:
            self._begin()
        for _ in range(steps):
            observation = np.ravel(self._observation).astype(np.float32)
            scores = forward(weights, "policy", observation)
            logits = scores - scores.max()
            logits = logits - np.log(np.exp(logits).sum())
            action = int(min((np.exp(logits).cumsum() < self._random.random()).sum(), len(logits) - 1))
            value = float(forward(weights, "value", observation)[0])
            self._observation, reward, ended, cut, _ = self._environment.step(action)
            self._total += float(reward)
            gain = float(reward)
            if cut and not ended:  # the clock ended it: what would have come counts
                gain += self._config.discount * float(forward(weights, "value", self._observation)[0])
            seen.append(observation)
            acted.append(action)
            logs.append(logits[action])
            values.append(value)
            gains.append(gain)
            ends.append(ended or cut)
            if ended or cut:
                returns.append(self._total)
                self._begin()
        last = float(forward(weights, "value", self._observation)[0])
        advantages = self._advantages(np.array(gains), np.array([*values, last]), np.array(ends))
        played = {
            "seen": np.array(seen),
            "acted": np.array(acted, np.int32),
            "logs": np.array(logs, np.float32),
            "advantages": advantages,
            "targets": advantages + np.array(values, np.float32),
        }
        return played, returns

    @method(duration=lambda weights, episodes: STEP_S * 200 * episodes)
    def evaluate(self, weights: Weights, episodes: int) -> list[float]:
        """The returns of games in which the best action is always taken."""
        returns = []
        for _ in range(episodes):
            self._begin()
            is_over = False
            while not is_over:
                action = int(forward(weights, "policy", self._observation).argmax())
                self._observation, reward, ended, cut, _ = self._environment.step(action)
                self._total += float(reward)
                is_over = ended or cut
            returns.append(self._total)
        self._begin()
        return returns

    def shape(self) -> tuple[int, int]:
        """How many numbers are seen, and between how many actions there is a choice."""
        return int(np.prod(self._environment.observation_space.shape)), int(self._environment.action_space.n)

    def _begin(self) -> None:
        self._observation, _ = self._environment.reset(seed=int(self._random.integers(2**31)))
        self._total = 0.0

    def _advantages(self, gains: NDArray[Any], values: NDArray[Any], ends: NDArray[Any]) -> Floats:
        config = self._config
        advantages = np.zeros(len(gains), np.float32)
        running = 0.0
        for step in reversed(range(len(gains))):
            goes_on = 0.0 if ends[step] else 1.0
            surprise = gains[step] + config.discount * values[step + 1] * goes_on - values[step]
            running = surprise + config.discount * config.smoothing * goes_on * running
            advantages[step] = running
        return advantages


# ---- Learning, in the driver -------------------------------------------------------------------------------------


class Learner:
    """The network in TensorFlow, and its loss."""

    def __init__(self, inputs: int, actions: int, config: Config, seed: int) -> None:
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
        from tensorflow.compat import v1 as tf  # noqa: PLC0415 - actors, which load this module, need no TensorFlow

        self._config = config
        self._random = np.random.default_rng(seed)
        with tf.Graph().as_default():
            tf.set_random_seed(seed)
            self._feeds = {
                "seen": tf.placeholder(tf.float32, [None, inputs]),
                "acted": tf.placeholder(tf.int32, [None]),
                "logs": tf.placeholder(tf.float32, [None]),
                "advantages": tf.placeholder(tf.float32, [None]),
                "targets": tf.placeholder(tf.float32, [None]),
            }
            scores = _layers(tf, "policy", self._feeds["seen"], actions, config.hidden, 0.01)
            values = _layers(tf, "value", self._feeds["seen"], 1, config.hidden, 1.0)[:, 0]
            all_logs = tf.nn.log_softmax(scores)
            logs = tf.reduce_sum(tf.one_hot(self._feeds["acted"], actions) * all_logs, axis=1)
            ratio = tf.exp(logs - self._feeds["logs"])
            advantages = self._feeds["advantages"]
            clipped = tf.clip_by_value(ratio, 1 - config.clip, 1 + config.clip) * advantages
            gain = tf.reduce_mean(tf.minimum(ratio * advantages, clipped))
            entropy = -tf.reduce_mean(tf.reduce_sum(tf.exp(all_logs) * all_logs, axis=1))
            miss = tf.reduce_mean(tf.square(values - self._feeds["targets"]))
            self._loss = 0.5 * miss - gain - config.entropy * entropy
            self._train = tf.train.AdamOptimizer(config.learning_rate).minimize(self._loss)
            self._session = tf.Session(
                config=tf.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=1)
            )
            self._variables = ray.experimental.TensorFlowVariables(self._loss, self._session)
            self._session.run(tf.global_variables_initializer())

    def weights(self) -> Weights:
        """The network, as actors need it."""
        found: Weights = self._variables.get_weights()
        return found

    def learn(self, played: list[dict[str, NDArray[Any]]]) -> None:
        """Several passes over what was played."""
        data = {name: np.concatenate([part[name] for part in played]) for name in self._feeds}
        advantages = data["advantages"]
        data["advantages"] = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        count = len(advantages)
        for _ in range(self._config.passes):
            order = self._random.permutation(count)
            for first in range(0, count, self._config.batch_size):
                rows = order[first : first + self._config.batch_size]
                self._session.run(self._train, {feed: data[name][rows] for name, feed in self._feeds.items()})


def _layers(tf: Any, part: str, layer: Any, outputs: int, hidden: int, last_scale: float) -> Any:
    with tf.variable_scope(part):
        for number, (width, scale) in enumerate(((hidden, 1.4), (hidden, 1.4), (outputs, last_scale))):
            start = tf.orthogonal_initializer(gain=scale, seed=number)
            kernel = tf.get_variable(f"kernel{number}", [layer.shape[1], width], initializer=start)
            layer = layer @ kernel + tf.get_variable(f"bias{number}", [width], initializer=tf.zeros_initializer())
            if number < 2:
                layer = tf.tanh(layer)
    return layer


def train(
    environment: str,
    config: Config,
    *,
    num_workers: int,
    iterations: int,
    steps: int,
    target: float,
    episodes: int,
    seed: int,
) -> tuple[float, int]:
    """The mean return at the end, and after how many rounds that was.

    Args:
        environment: its name.
        num_workers: actors that play.
        iterations: rounds at most.
        steps: of each actor in a round.
        target: the mean return that is enough.
        episodes: over which that mean is taken.
        seed: of everything.
    """
    players = [Player.remote(environment, config, seed + number) for number in range(num_workers)]
    learner = Learner(*ray.get(players[0].shape.remote()), config, seed)
    recent: list[float] = []
    mean, share = float("-inf"), -(-episodes // num_workers)
    with Progress() as progress:
        bar = progress.add_task("rounds", total=iterations)
        for iteration in range(1, iterations + 1):
            started = time.perf_counter()
            weights_id = ray.put(learner.weights())
            results = ray.get([player.play.remote(weights_id, steps) for player in players])
            recent = [*recent, *(value for _, returns in results for value in returns)][-episodes:]
            learner.learn([played for played, _ in results])
            mean = float(np.mean(recent)) if recent else float("-inf")
            words = f"round {iteration:3d}: mean return {mean:7.1f} over the last {len(recent)} episodes"
            if mean >= 0.8 * target or (target <= 0 and iteration == iterations):
                weights_id = ray.put(learner.weights())
                found = ray.get([player.evaluate.remote(weights_id, share) for player in players])
                mean = float(np.mean([value for values in found for value in values]))
                words += f"; {mean:.1f} without chance"
            progress.console.print(f"{words}; {time.perf_counter() - started:.2f} s")
            progress.advance(bar)
            if mean >= target:
                return mean, iteration
    return mean, iterations


def main(
    environment: Annotated[str, typer.Option(help="gymnasium's name, or Pong-ram-v3, Pong-v0.")] = "CartPole-v0",
    num_workers: Annotated[int, typer.Option(min=1, help="Actors that play.")] = 2,
    iterations: Annotated[int, typer.Option(min=1, help="Rounds at most.")] = 60,
    steps: Annotated[int, typer.Option(min=1, help="Of each actor in a round.")] = 1024,
    target: Annotated[float, typer.Option(help="The mean return that is enough.")] = 195.0,
    episodes: Annotated[int, typer.Option(min=1, help="Over which the mean return is taken.")] = 100,
    seed: Annotated[int, typer.Option(help="Of everything.")] = 0,
    redis_address: Annotated[str | None, typer.Option(help="host:port of a running cluster.")] = None,
) -> None:
    """Learn to act."""
    ray.init(redis_address=redis_address)
    started = time.perf_counter()  # in sim mode this clock is the virtual one
    mean, rounds = train(
        environment,
        Config(),
        num_workers=num_workers,
        iterations=iterations,
        steps=steps,
        target=target,
        episodes=episodes,
        seed=seed,
    )
    print(f"{environment}: mean return {mean:.1f} after {rounds} rounds, {time.perf_counter() - started:.1f} s")
    ray.worker.cleanup()
    if mean < target:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
