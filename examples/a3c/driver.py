"""A3C (Mnih et al., 2016, arXiv:1602.01783): actors play and return gradients; each is applied when it comes.

As the document has it: nobody waits for the slowest. Whenever a gradient is there, the driver moves the model along it
and sends that actor on with the newest parameters, while the others go on with those that they have.

    python examples/a3c/driver.py 2
    python examples/a3c/driver.py 8 --environment PongDeterministic-v3 --reward-scale 1 --learning-rate 1e-4
    dualray run examples/a3c/driver.py --mode sim --nodes 4 -- 16 --steps 20000
"""

from __future__ import annotations

import sys
import time
from collections import deque
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.progress import Progress

import dualray.classic as ray

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # its neighbours are found from wherever it is started

from examples.a3c.envs import create_env
from examples.a3c.policy import LSTMPolicy
from examples.a3c.runner import Runner
from examples.events import EventLog

EPISODES_REMEMBERED = 100
ROWS = 12  # of the curve
BAR = 40


def train(
    num_workers: int,
    env_name: str,
    *,
    steps: int,
    learning_rate: float,
    reward_scale: float,
    log_dir: Path,
    seed: int,
) -> list[tuple[int, float]]:
    """Every game that was ended: after how many steps of all workers together, and its return.

    Args:
        num_workers: actors, each with a game.
        env_name: see `create_env`.
        steps: of all workers together.
        learning_rate: of Adam.
        reward_scale: times which rewards are learned from.
        log_dir: for event files, a directory in it for each actor.
        seed: of everything.
    """
    env = create_env(env_name)
    policy = LSTMPolicy(env.observation_space.shape, int(env.action_space.n), seed, learning_rate)
    make: Any = ray.remote(Runner)
    agents = [make.remote(env_name, number, seed + number, reward_scale) for number in range(num_workers)]
    logs = [EventLog(log_dir / f"agent_{number}") for number in range(num_workers)]
    parameters = ray.put(policy.get_weights())
    gradient_list = [agent.compute_gradient.remote(parameters) for agent in agents]
    games: list[tuple[int, float]] = []
    recent: deque[float] = deque(maxlen=EPISODES_REMEMBERED)
    obs, told = 0, 0
    updates = [0] * num_workers
    with Progress() as progress:
        bar = progress.add_task("steps", total=steps)
        while obs < steps:
            done_id, gradient_list = ray.wait(gradient_list)
            gradient, info = ray.get(done_id)[0]
            obs += info["size"]
            policy.model_update(gradient)
            if obs < steps:
                parameters = ray.put(policy.get_weights())
                gradient_list.append(agents[info["id"]].compute_gradient.remote(parameters))
            games.extend((obs, value) for value in info["returns"])
            recent.extend(info["returns"])
            scalars = dict(info["summary"]) if updates[info["id"]] % 10 == 0 else {}
            updates[info["id"]] += 1
            for value, length in zip(info["returns"], info["lengths"], strict=True):
                scalars |= {"global/episode_reward": value, "global/episode_length": length}
            logs[info["id"]].write(obs, scalars)
            if recent and obs * ROWS // steps > told:
                told = obs * ROWS // steps
                progress.console.print(
                    f"{obs:8d} steps, {sum(updates):6d} gradients: mean return {np.mean(recent):8.2f} over the last "
                    f"{len(recent)} games"
                )
            progress.update(bar, completed=min(obs, steps))
    ray.get([agent.stop.remote() for agent in agents])  # what the others were computing comes too late
    for log in logs:
        log.close()
    return games


def random_play(env_name: str, *, games: int, seed: int) -> float:
    """The mean return of games in which every action is drawn."""
    env, random = create_env(env_name), np.random.default_rng(seed)
    total = 0.0
    for _ in range(games):
        env.reset(seed=int(random.integers(2**31)))
        is_over = False
        while not is_over:
            _, reward, ended, cut, _ = env.step(int(random.integers(env.action_space.n)))
            total, is_over = total + float(reward), ended or cut
    return total / games


def curve(games: list[tuple[int, float]], steps: int) -> str:
    """The mean return of each twelfth of the training, with a bar."""
    parts: list[list[float]] = [[] for _ in range(ROWS)]
    for at, value in games:
        parts[min(ROWS - 1, at * ROWS // steps)].append(value)
    means = [float(np.mean(part)) if part else None for part in parts]
    known = [mean for mean in means if mean is not None]
    low, high = min([*known, 0.0]), max([*known, 0.0])
    lines = []
    for row, mean in enumerate(means):
        if mean is not None:
            width = round(BAR * (mean - low) / (high - low)) if high > low else 0
            lines.append(f"{(row + 1) * steps // ROWS:10d} {mean:9.2f} {'#' * width}")
    return "\n".join(lines)


def main(
    num_workers: Annotated[int, typer.Argument(min=1, help="Actors, each with a game.")] = 2,
    environment: Annotated[str, typer.Option(help="gymnasium's name, or PongDeterministic-v3.")] = "CartPole-v1",
    steps: Annotated[int, typer.Option(min=1, help="Of all workers together.")] = 30_000,
    learning_rate: Annotated[float, typer.Option(min=0, help="Of Adam.")] = 1e-3,
    reward_scale: Annotated[
        float, typer.Option(help="Times which rewards are learned from: such that a game's values are about 1.")
    ] = 0.05,
    log_dir: Annotated[Path, typer.Option(help="Where event files for TensorBoard go.")] = Path("results"),
    random_games: Annotated[int, typer.Option(min=1, help="Of random play, to compare with.")] = 20,
    seed: Annotated[int, typer.Option(help="Of everything.")] = 0,
    redis_address: Annotated[str | None, typer.Option(help="host:port of a running cluster.")] = None,
) -> None:
    """Learn to act."""
    ray.init(redis_address=redis_address)
    chance = random_play(environment, games=random_games, seed=seed)
    started = time.perf_counter()  # in sim mode this clock is the virtual one
    games = train(
        num_workers,
        environment,
        steps=steps,
        learning_rate=learning_rate,
        reward_scale=reward_scale,
        log_dir=log_dir,
        seed=seed,
    )
    seconds = time.perf_counter() - started
    ray.worker.cleanup()
    last = [value for _, value in games[-EPISODES_REMEMBERED:]]
    if not last:
        print(f"{environment}: no game ended in {steps} steps")
        raise typer.Exit(1)
    print("     steps    return")
    print(curve(games, steps))
    print(
        f"{environment}: mean return {np.mean(last):.2f} over the last {len(last)} games, {chance:.2f} by chance; "
        f"{steps} steps in {seconds:.1f} s"
    )


if __name__ == "__main__":
    typer.run(main)
