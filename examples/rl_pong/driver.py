"""Learning to play Pong from pixels, after Andrej Karpathy's "Pong from Pixels": actors play, and return gradients.

A network of one hidden layer sees what has changed on the field since the last picture and says how likely it is best
to go up. After a game, each decision is made more or less likely, as the points that followed it say. Games are
independent of each other, so a batch of them is played at once; their gradients are summed, and the model moves.

Of the 6,400 points of the field some 25 change from one picture to the next, so only their rows of the first layer are
read, and written when it learns: a game costs what the console costs, not what the network would.

    python examples/rl_pong/driver.py --batch-size=10
    dualray run examples/rl_pong/driver.py --mode sim --nodes 11 -- --batch-size=44 --iterations=2
"""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray
from rich.progress import Progress
from scipy import sparse

import dualray.classic as ray
from dualray import method

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # its neighbours are found from wherever it is started

from examples import gym_envs as gym

Floats = NDArray[np.float32]
Model = dict[str, Floats]

PIXELS = 80 * 80
UP, DOWN = 2, 3
DISCOUNT = 0.99
DECAY = 0.99  # of RMSProp
GAMES_REMEMBERED = 100

GAME_S = 0.7  # in sim mode: a game of a bad player with its gradient, on one core of a 2-core machine of 2025


def new_model(seed: int, hidden: int = 200) -> Model:
    """Weights at random: `hidden` of the shape (PIXELS, hidden), `score` of the shape (hidden,)."""
    random = np.random.default_rng(seed)
    return {
        "hidden": (random.standard_normal((PIXELS, hidden)) / np.sqrt(PIXELS)).astype(np.float32),
        "score": (random.standard_normal(hidden) / np.sqrt(hidden)).astype(np.float32),
    }


def field(picture: NDArray[np.uint8]) -> NDArray[np.int8]:
    """210 x 160 pixels in colour as 80 x 80 of the field: 1 where there is a racket or the ball."""
    cut = picture[35:195:2, ::2, 0]
    return ((cut != 144) & (cut != 109) & (cut != 0)).astype(np.int8).ravel()


def discounted(rewards: Floats) -> Floats:
    """What each decision led to, up to the next point: that ends a rally, and later ones have nothing to do with it."""
    found = np.zeros_like(rewards)
    running = np.float32(0)
    for step in reversed(range(len(rewards))):
        running = rewards[step] or running * np.float32(DISCOUNT)
        found[step] = running
    return found


def policy_forward(model: Model, change: NDArray[Any]) -> tuple[float, Floats]:
    """How likely going up is, and the hidden layer."""
    changed = np.flatnonzero(change)
    rows = model["hidden"][changed]
    hidden = np.maximum(change[changed].astype(rows.dtype) @ rows, 0)
    return float(1 / (1 + np.exp(-(model["score"] @ hidden)))), hidden


def policy_backward(model: Model, hidden: Floats, changes: NDArray[Any], push: Floats) -> Model:
    """The gradient, from hidden layers and inputs of the shape (steps, ...), and how much each score should rise."""
    below = np.outer(push, model["score"])
    below[hidden <= 0] = 0
    return {"score": hidden.T @ push, "hidden": sparse.csr_array(changes).T.astype(below.dtype) @ below}


@ray.remote
class PongEnv:
    """A console."""

    def __init__(self, seed: int) -> None:
        # Numpy's threads are for one program at a time; here there is an actor for each core. OpenBLAS reads this when
        # numpy is loaded: `export OPENBLAS_NUM_THREADS=1` before the start, as the document says, is what helps there.
        os.environ["MKL_NUM_THREADS"] = "1"
        self._environment = gym.make("ALE/Pong-v5")
        self._random = np.random.default_rng(seed)

    @method(num_returns=3, duration=GAME_S)
    def compute_gradient(self, model: Model, steps_max: int) -> tuple[Model, float, int]:
        """Play a game; the gradient, the points won less those lost, and the number of decisions."""
        picture, _ = self._environment.reset(seed=int(self._random.integers(2**31)))
        last = np.zeros(PIXELS, np.int8)
        changes, hiddens, pushes, rewards = [], [], [], []
        is_over = False
        while not is_over and len(rewards) < steps_max:
            now = field(picture)
            change, last = now - last, now
            likely, hidden = policy_forward(model, change)
            goes_up = self._random.random() < likely
            picture, reward, ended, cut, _ = self._environment.step(UP if goes_up else DOWN)
            changes.append(change)
            hiddens.append(hidden)
            pushes.append(float(goes_up) - likely)
            rewards.append(float(reward))
            is_over = ended or cut
        worth = discounted(np.array(rewards, np.float32))
        worth = (worth - worth.mean()) / (worth.std() + 1e-8)
        push = np.array(pushes, np.float32) * worth
        gradient = policy_backward(model, np.array(hiddens), np.array(changes), push)
        return gradient, float(np.sum(rewards)), len(rewards)


class RmsProp:
    """Moves the model along gradients, each weight by its own measure."""

    def __init__(self, model: Model, learning_rate: float) -> None:
        self._learning_rate = learning_rate
        self._squares = {name: np.zeros_like(weights) for name, weights in model.items()}

    def apply(self, model: Model, gradient: Model) -> None:
        """Move `model`, in place."""
        for name, weights in model.items():
            square = self._squares[name]
            square *= DECAY
            square += (1 - DECAY) * gradient[name] ** 2
            weights += self._learning_rate * gradient[name] / (np.sqrt(square) + 1e-5)


def sum_of(gradients: list[Any]) -> Model:
    """The sum of gradients that lie in the store."""
    values: list[Model] = ray.get(gradients)
    return {name: np.sum([value[name] for value in values], axis=0) for name in values[0]}


def train(
    *,
    batch_size: int,
    iterations: int,
    steps_max: int,
    hidden: int,
    learning_rate: float,
    minutes: float,
    seed: int,
    scores_path: Path | None,
) -> list[float]:
    """The points of every game, in the order in which they were played.

    Args:
        batch_size: games, and actors, in a round.
        iterations: rounds at most.
        steps_max: decisions of a game at most.
        hidden: width of the hidden layer.
        learning_rate: of RMSProp.
        minutes: after which no further round begins.
        seed: of everything.
        scores_path: a file for the points of each game, a line each; what it held is gone.
    """
    actors = [PongEnv(seed + number) for number in range(batch_size)]
    model = new_model(seed, hidden)
    optimizer = RmsProp(model, learning_rate)
    scores: list[float] = []
    recent: deque[float] = deque(maxlen=GAMES_REMEMBERED)
    ends = time.perf_counter() + 60 * minutes
    if scores_path is not None:
        scores_path.write_text("")
    with Progress() as progress:
        bar = progress.add_task("rounds", total=iterations)
        for iteration in range(1, iterations + 1):
            started = time.perf_counter()
            if started >= ends:
                break
            model_id = ray.put(model)
            results = [actor.compute_gradient.remote(model_id, steps_max) for actor in actors]
            optimizer.apply(model, sum_of([gradient for gradient, _, _ in results]))
            points = ray.get([points for _, points, _ in results])
            steps = sum(ray.get([steps for _, _, steps in results]))
            scores.extend(points)
            recent.extend(points)
            if scores_path is not None:
                with scores_path.open("a") as file:
                    file.writelines(f"{value:g}\n" for value in points)
            progress.console.print(
                f"round {iteration:4d}: {np.mean(points):6.2f} points a game, {np.mean(recent):6.2f} over the last "
                f"{len(recent)}; {steps} steps, {time.perf_counter() - started:.2f} s"
            )
            progress.advance(bar)
    return scores


def standard_errors(first: list[float], last: list[float]) -> float:
    """By how many standard errors of the difference of their means the last games are better than the first."""
    error = np.sqrt(sum(np.var(games, ddof=1) / len(games) for games in (first, last)))
    gain = float(np.mean(last) - np.mean(first))
    return gain / float(error) if error else float(np.sign(gain)) * float("inf") if gain else 0.0


def comparison(points: list[float]) -> str:
    """How the last hundred games compare with the first hundred, in words."""
    first, last = points[:GAMES_REMEMBERED], points[-GAMES_REMEMBERED:]
    better = f", better by {standard_errors(first, last):.1f} standard errors" if len(points) > len(first) else ""
    means = float(np.mean(first)), float(np.mean(last))
    return f"{means[0]:.2f} points a game in the first {len(first)}, {means[1]:.2f} in the last {len(last)}{better}"


def main(
    batch_size: Annotated[int, typer.Option(min=1, help="Games in a round, each on an actor of its own.")] = 10,
    iterations: Annotated[int, typer.Option(min=1, help="Rounds at most.")] = 100,
    minutes: Annotated[float, typer.Option(min=0, help="After which no further round begins.")] = float("inf"),
    steps_max: Annotated[int, typer.Option(min=1, help="Decisions of a game at most.")] = 10_000,
    hidden: Annotated[int, typer.Option(min=1, help="Width of the hidden layer.")] = 200,
    learning_rate: Annotated[float, typer.Option(min=0, help="Of RMSProp.")] = 1e-3,
    scores: Annotated[Path | None, typer.Option(help="A file for the points of each game; it is overwritten.")] = None,
    seed: Annotated[int, typer.Option(help="Of everything.")] = 0,
    redis_address: Annotated[str | None, typer.Option(help="host:port of a running cluster.")] = None,
) -> None:
    """Learn to play Pong."""
    ray.init(redis_address=redis_address)
    started = time.perf_counter()  # in sim mode this clock is the virtual one
    points = train(
        batch_size=batch_size,
        iterations=iterations,
        steps_max=steps_max,
        hidden=hidden,
        learning_rate=learning_rate,
        minutes=minutes,
        seed=seed,
        scores_path=scores,
    )
    print(f"{len(points)} games in {time.perf_counter() - started:.1f} s: {comparison(points)}")
    ray.worker.cleanup()


if __name__ == "__main__":
    typer.run(main)
