"""Random search for hyperparameters: results are looked at as they come, each finished trial makes room for the next.

python examples/hyperopt/hyperopt_simple.py --trials=16 --steps=300
dualray run examples/hyperopt/hyperopt_simple.py --mode sim --nodes 11 -- --trials=64 --steps=10
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.progress import Progress

import dualray.classic as ray

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # its neighbours are found from wherever it is started

from examples import input_data
from examples.hyperopt.network import Hyperparameters, generate_hyperparameters, seconds, train

train_and_score = ray.remote(num_return_vals=2, duration=seconds)(train)


def search(
    data: input_data.Datasets, *, trials: int, steps: int, at_once: int, seed: int
) -> tuple[float, Hyperparameters]:
    """The best accuracy on the validation images, and where it was found.

    Args:
        trials: how many points are tried.
        steps: batches that each network is trained on.
        at_once: how many trials are under way at a time.
        seed: of the search.
    """
    random = np.random.default_rng(seed)
    parts = (data.train.images, data.train.labels, data.validation.images, data.validation.labels)
    data_ids = [ray.put(part) for part in parts]
    running = {}
    best: tuple[float, Hyperparameters] | None = None

    def start() -> None:
        point = generate_hyperparameters(random)
        accuracy_id, _ = train_and_score.remote(point, steps, *data_ids)
        running[accuracy_id] = point

    with Progress() as progress:
        bar = progress.add_task("trials", total=trials)
        for _ in range(min(at_once, trials)):
            start()
        for finished in range(trials):
            [accuracy_id], _ = ray.wait(list(running))
            point, accuracy = running.pop(accuracy_id), ray.get(accuracy_id)
            if finished + at_once < trials:
                start()
            if best is None or accuracy > best[0]:
                best = accuracy, point
            progress.console.print(f"{accuracy:6.1%}  {point}")
            progress.update(bar, advance=1, description=f"trials, best {best[0]:.1%}")
    assert best is not None
    return best


def main(
    trials: Annotated[int, typer.Option(min=1, help="How many points are tried.")] = 16,
    steps: Annotated[int, typer.Option(min=1, help="Batches that each network is trained on.")] = 300,
    data: Annotated[Path | None, typer.Option(help="Directory of MNIST's files; else scikit-learn's digits.")] = None,
    seed: Annotated[int, typer.Option(help="Of the search.")] = 0,
    redis_address: Annotated[str | None, typer.Option(help="host:port of a running cluster.")] = None,
) -> None:
    """Search at random."""
    datasets = input_data.load(data, one_hot=True)
    ray.init(redis_address=redis_address)
    started = time.perf_counter()  # in sim mode this clock is the virtual one
    at_once = cpus()
    accuracy, point = search(datasets, trials=trials, steps=steps, at_once=at_once, seed=seed)
    print(
        f"best of {trials} trials, {at_once} at once, in {time.perf_counter() - started:.1f} s: {accuracy:.1%}, {point}"
    )
    ray.worker.cleanup()


def cpus() -> int:
    """How many trials can run at once."""
    from dualray import cluster_resources  # noqa: PLC0415 - 2017 had no word for it

    return max(1, int(cluster_resources().get("CPU", 1)))


if __name__ == "__main__":
    typer.run(main)
