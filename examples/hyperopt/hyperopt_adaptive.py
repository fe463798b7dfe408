"""Search for hyperparameters with early stopping: training goes on in segments, and only what looks promising goes on.

A trial that has finished a segment is promising when it is at least as good as half of those that have come as far. If
not, its place is given to a new one. Weights travel between segments; a network is never kept.

    python examples/hyperopt/hyperopt_adaptive.py --num-starting-segments=5 --num-segments=10 --steps-per-segment=20
"""

from __future__ import annotations

import statistics
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.progress import Progress

import dualray.classic as ray

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # its neighbours are found from wherever it is started

from examples import input_data
from examples.hyperopt.network import Hyperparameters, generate_hyperparameters, seconds, train

train_segment = ray.remote(num_return_vals=2, duration=seconds)(train)


@dataclass(slots=True)
class Trial:
    """A point of the search space, and how far its network has come."""

    number: int
    point: Hyperparameters
    accuracies: list[float] = field(default_factory=list)
    """After each segment."""
    weights_id: Any = None


@dataclass(slots=True)
class History:
    """What all trials had after each number of segments."""

    by_length: dict[int, list[float]] = field(default_factory=dict)

    def add(self, trial: Trial) -> None:
        """A trial has finished one more segment."""
        self.by_length.setdefault(len(trial.accuracies), []).append(trial.accuracies[-1])

    def is_promising(self, trial: Trial) -> bool:
        """Whether it is at least as good as half of those that have come as far."""
        return trial.accuracies[-1] >= statistics.median(self.by_length[len(trial.accuracies)])


def search(
    data: input_data.Datasets, *, num_starting_segments: int, num_segments: int, steps_per_segment: int, seed: int
) -> tuple[Trial, int]:
    """The best trial, and how many there were.

    Args:
        num_starting_segments: trials that are under way at a time.
        num_segments: segments in all.
        steps_per_segment: batches of each.
        seed: of the search.
    """
    random = np.random.default_rng(seed)
    parts = (data.train.images, data.train.labels, data.validation.images, data.validation.labels)
    data_ids = [ray.put(part) for part in parts]
    running: dict[Any, Trial] = {}
    trials: list[Trial] = []
    history = History()

    def run_segment(trial: Trial) -> None:
        segment = len(trial.accuracies)
        accuracy_id, trial.weights_id = train_segment.remote(
            trial.point, steps_per_segment, *data_ids, weights=trial.weights_id, seed=segment
        )
        running[accuracy_id] = trial

    def start_trial() -> None:
        trials.append(Trial(len(trials), generate_hyperparameters(random)))
        run_segment(trials[-1])

    for _ in range(min(num_starting_segments, num_segments)):
        start_trial()
    with Progress() as progress:
        bar = progress.add_task("segments", total=num_segments)
        for finished in range(num_segments):
            [accuracy_id], _ = ray.wait(list(running))
            trial = running.pop(accuracy_id)
            trial.accuracies.append(ray.get(accuracy_id))
            history.add(trial)
            goes_on = history.is_promising(trial)
            if finished + num_starting_segments < num_segments:
                if goes_on:
                    run_segment(trial)
                else:
                    trial.weights_id = None  # nobody goes on from here: the store may forget the weights
                    start_trial()
            verdict = "goes on" if goes_on else "is stopped"
            progress.console.print(
                f"trial {trial.number:3d}, segment {len(trial.accuracies):2d}: {trial.accuracies[-1]:6.1%}, {verdict}"
            )
            progress.advance(bar)
    return max(trials, key=lambda trial: max(trial.accuracies, default=0.0)), len(trials)


def main(
    num_starting_segments: Annotated[int, typer.Option(min=1, help="Trials under way at a time.")] = 5,
    num_segments: Annotated[int, typer.Option(min=1, help="Segments in all.")] = 40,
    steps_per_segment: Annotated[int, typer.Option(min=1, help="Batches of a segment.")] = 60,
    data: Annotated[Path | None, typer.Option(help="Directory of MNIST's files; else scikit-learn's digits.")] = None,
    seed: Annotated[int, typer.Option(help="Of the search.")] = 0,
    redis_address: Annotated[str | None, typer.Option(help="host:port of a running cluster.")] = None,
) -> None:
    """Search at random, and stop early what does not look promising."""
    datasets = input_data.load(data, one_hot=True)
    ray.init(redis_address=redis_address)
    started = time.perf_counter()  # in sim mode this clock is the virtual one
    best, count = search(
        datasets,
        num_starting_segments=num_starting_segments,
        num_segments=num_segments,
        steps_per_segment=steps_per_segment,
        seed=seed,
    )
    print(
        f"best of {count} trials, {num_segments} segments in {time.perf_counter() - started:.1f} s: "
        f"{max(best.accuracies):.1%} after {len(best.accuracies)} segments, {best.point}"
    )
    ray.worker.cleanup()


if __name__ == "__main__":
    typer.run(main)
