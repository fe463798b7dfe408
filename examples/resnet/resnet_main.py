"""Data-parallel training of a residual network on CIFAR-10 or CIFAR-100: an actor for each GPU, or for each core.

Every actor has a copy of the pictures, from the object store, and a network. In a round all get the same weights, train
for ten steps, and return theirs; the driver puts the mean of these into the store for the next round. Beside them an
actor measures the accuracy, on its own time: the driver asks for it later.

    python examples/resnet/cifar_input.py digits.bin
    python examples/resnet/resnet_main.py --train_data_path=digits.bin --eval_data_path=digits.bin \
        --num_residual_units=1 --batch_size=32 --no-augment --target=0.99
    python examples/resnet/resnet_main.py --train_data_path='cifar-10-batches-bin/data_batch*' \
        --eval_data_path=cifar-10-batches-bin/test_batch.bin --dataset=cifar10 --num_gpus=1
"""

from __future__ import annotations

import os
import sys
import time
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.progress import Progress

import dualray.classic as ray
from dualray import method

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # its neighbours are found from wherever it is started

from examples.events import EventLog
from examples.resnet.cifar_input import CLASSES, Data, batch, read_cifar
from examples.resnet.resnet_model import HParams, ResNet, Weights

STEPS = 10  # of an actor in a round
EVAL_BATCH = 100  # pictures

# What calls take in sim mode, in seconds: measured on one core of a 2-core machine of 2025. A step's time is for one
# picture and one residual unit in each of the three stages. That a GPU is so much faster is a guess.
STEP_S = 5e-3
GPU_SPEEDUP = 50
EVALUATION_SHARE = 1 / 4  # of a step's time, since nothing is learned
READ_S = 0.2


class Dataset(StrEnum):
    """Which of the two."""

    CIFAR10 = "cifar10"
    CIFAR100 = "cifar100"


@ray.remote(duration=READ_S)
def get_data(path: str, dataset: str) -> Data:
    """Pictures and classes of the files that match a path."""
    return read_cifar(path, dataset)


def take_gpus() -> str:
    """Restrict TensorFlow to this actor's GPUs, which works before its first session only; the device to use."""
    ids = ray.get_gpu_ids()
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(str(number) for number in ids)
    return "/gpu:0" if ids else "/cpu:0"


class ResNetTrainActor:
    """A network, and the pictures that it learns from.

    Args:
        data: all of them.
        hps: what the network is like.
        is_augmented: whether pictures are shifted and mirrored at random.
        seed: of the order of pictures.
    """

    def __init__(self, data: Data, hps: HParams, is_augmented: bool, seed: int) -> None:
        self._data, self._hps, self._is_augmented = data, hps, is_augmented
        self._random = np.random.default_rng(seed)
        self._model = ResNet(hps, take_gpus())

    @method(duration=0)
    def get_weights(self) -> Weights:
        """The first weights."""
        found: Weights = self._model.variables.get_weights()
        return found

    @method(num_returns=2, duration=lambda weights, steps, step_s: steps * step_s)
    def compute_steps(self, weights: Weights, steps: int, step_s: float) -> tuple[Weights, float]:
        """Train for some steps from these weights; the new ones, and the mean loss. In sim mode a step takes `step_s`
        seconds."""
        self._model.variables.set_weights(weights)
        losses = []
        for _ in range(steps):
            rows = self._random.integers(0, len(self._data), self._hps.batch_size)
            images = batch(self._data, rows, self._random if self._is_augmented else None)
            losses.append(self._model.train_step(images, self._data.labels[rows]))
        new: Weights = self._model.variables.get_weights()
        return new, float(np.mean(losses))


class ResNetTestActor:
    """A network, and the pictures that the others are tested with.

    Args:
        data: all of them.
        hps: what the network is like.
        eval_batch_count: how many batches of 100 are looked at; no more than there are.
        eval_dir: for event files; none are written where it is None.
    """

    def __init__(self, data: Data, hps: HParams, eval_batch_count: int, eval_dir: str | None) -> None:
        self._data = data
        self._starts = range(0, len(data), EVAL_BATCH)[:eval_batch_count]
        self._model = ResNet(hps, take_gpus(), is_training=False)
        self._log = EventLog(Path(eval_dir)) if eval_dir is not None else None
        self._best = 0.0

    @method(duration=0)
    def get_ip_addr(self) -> str:
        """Of the node that has the event files."""
        return ray.services.get_node_ip_address()

    @method(duration=lambda weights, train_step, train_cost, test_s: test_s)
    def accuracy(self, weights: Weights, train_step: int, train_cost: float | None, test_s: float) -> float:
        """The share of the pictures that these weights classify rightly; written to the event file with the mean loss
        of the last steps of training, where there were any. In sim mode it takes `test_s` seconds."""
        self._model.variables.set_weights({name: weights[name] for name in self._model.variables.variables})
        right = cost = 0.0
        count = 0
        for start in self._starts:
            rows = np.arange(start, min(start + EVAL_BATCH, len(self._data)))
            precision, loss = self._model.evaluate(batch(self._data, rows, None), self._data.labels[rows])
            right, cost, count = right + precision * len(rows), cost + loss * len(rows), count + len(rows)
        self._best = max(self._best, right / count)
        if self._log is not None:
            scalars = {"Precision": right / count, "Best Precision": self._best, "eval/cost": cost / count}
            self._log.write(train_step, scalars | ({} if train_cost is None else {"train/cost": train_cost}))
            self._log.flush()
        return right / count


def mean(results: list[Weights]) -> Weights:
    """The mean of weights, variable by variable, each of its type."""
    return {
        name: np.mean([weights[name] for weights in results], axis=0).astype(value.dtype)
        for name, value in results[0].items()
    }


def train(
    train_data: Any,
    eval_data: Any,
    hps: HParams,
    *,
    num_gpus: int,
    num_actors: int,
    steps: int,
    eval_interval: int,
    eval_batch_count: int,
    eval_dir: str | None,
    is_augmented: bool,
    target: float,
    seed: int,
) -> tuple[float, int]:
    """The accuracy at the end, and after how many steps that was.

    Args:
        train_data, eval_data: ObjectIDs of pictures.
        hps: what the network is like.
        num_gpus: how many there are, with an actor for each; 0: no GPU, and `num_actors` actors.
        num_actors: see there.
        steps: of each actor at most; 0: without end.
        eval_interval: steps from one measurement of the accuracy to the next.
        eval_batch_count, eval_dir: see `ResNetTestActor`.
        is_augmented: see `ResNetTrainActor`.
        target: the accuracy that is enough.
        seed: of the order of pictures.
    """
    step_s = STEP_S * hps.batch_size * hps.num_residual_units / (GPU_SPEEDUP if num_gpus else 1)
    test_s = STEP_S * EVALUATION_SHARE * EVAL_BATCH * eval_batch_count * hps.num_residual_units
    # Who computes on a GPU leaves the cores to the test actor: on two cores it would wait for one for ever.
    share = {"num_cpus": 0, "num_gpus": 1} if num_gpus else {"num_gpus": 0}
    make: Any = ray.remote(**share)(ResNetTrainActor)
    actors = [make.remote(train_data, hps, is_augmented, seed + number) for number in range(num_gpus or num_actors)]
    make_test: Any = ray.remote(ResNetTestActor)
    tester = make_test.remote(eval_data, hps, eval_batch_count, eval_dir)
    if eval_dir is not None:
        print(f"The log files for tensorboard are stored at ip {ray.get(tester.get_ip_addr.remote())}.")
    measure = tester.accuracy
    weights_id = actors[0].get_weights.remote()
    asked_at, accuracy_id = 0, measure.remote(weights_id, 0, None, test_s)
    step, accuracy = 0, 0.0
    with Progress() as progress:
        bar = progress.add_task("steps", total=steps or None)

        def tell(accuracy: float, cost: float) -> None:
            progress.console.print(f"step {asked_at:5d}: {accuracy:7.2%} are right; loss {cost:.4f} at step {step}")

        while not steps or step < steps:
            results = [actor.compute_steps.remote(weights_id, STEPS, step_s) for actor in actors]
            weights_id = ray.put(mean(ray.get([new for new, _ in results])))
            cost = float(np.mean(ray.get([cost for _, cost in results])))
            step += STEPS
            progress.advance(bar, STEPS)
            if step % eval_interval == 0:
                # What was asked for an interval ago: it was measured while the others trained on.
                accuracy = ray.get(accuracy_id)
                tell(accuracy, cost)
                if accuracy >= target:
                    return accuracy, asked_at
                asked_at, accuracy_id = step, measure.remote(weights_id, step, cost, test_s)
        if asked_at != step:
            asked_at, accuracy_id = step, measure.remote(weights_id, step, cost, test_s)
        accuracy = ray.get(accuracy_id)
        tell(accuracy, cost)
    return accuracy, step


def main(
    train_data_path: Annotated[str, typer.Option("--train_data_path", help="Files to learn from; * is for anything.")],
    eval_data_path: Annotated[str, typer.Option("--eval_data_path", help="Files to test with; * is for anything.")],
    dataset: Annotated[Dataset, typer.Option(help="Of which the files are.")] = Dataset.CIFAR10,
    num_gpus: Annotated[int, typer.Option("--num_gpus", min=0, help="GPUs, each with an actor; 0: CPUs.")] = 0,
    num_actors: Annotated[int, typer.Option("--num_actors", min=1, help="Actors, where there is no GPU.")] = 1,
    eval_dir: Annotated[str | None, typer.Option("--eval_dir", help="Where event files for TensorBoard go.")] = None,
    eval_batch_count: Annotated[
        int, typer.Option("--eval_batch_count", min=1, help="Batches of 100 to test with.")
    ] = 50,
    eval_interval: Annotated[
        int, typer.Option("--eval_interval", min=STEPS, help="Steps from test to test; a multiple of 10.")
    ] = 200,
    batch_size: Annotated[int, typer.Option("--batch_size", min=1, help="Pictures of a step.")] = 128,
    num_residual_units: Annotated[
        int, typer.Option("--num_residual_units", min=1, help="In each of the three stages; 5 make 32 layers.")
    ] = 5,
    learning_rate: Annotated[float, typer.Option("--learning_rate", min=0, help="Of the first 40,000 steps.")] = 0.1,
    augment: Annotated[bool, typer.Option(help="Shift and mirror pictures at random.")] = True,
    steps: Annotated[int, typer.Option(min=0, help="Of each actor; 0: until Ctrl-C, or the target.")] = 0,
    target: Annotated[float, typer.Option(min=0, help="The accuracy that is enough; more than 1: none is.")] = 2.0,
    seed: Annotated[int, typer.Option(help="Of the order of pictures.")] = 0,
    redis_address: Annotated[
        str | None, typer.Option("--redis-address", "--redis_address", help="host:port of a running cluster.")
    ] = None,
) -> None:
    """Train a residual network."""
    if eval_interval % STEPS:
        raise typer.BadParameter(f"{eval_interval} is no multiple of {STEPS}", param_hint="--eval_interval")
    if redis_address is None:
        ray.init(num_gpus=num_gpus)
    else:
        ray.init(redis_address=redis_address)
    data = [get_data.remote(str(Path(path).absolute()), dataset) for path in (train_data_path, eval_data_path)]
    count = len(ray.get(data[0]))
    hps = HParams(
        batch_size=batch_size,
        num_classes=CLASSES[dataset],
        lrn_rate=learning_rate,
        num_residual_units=num_residual_units,
    )
    started = time.perf_counter()  # in sim mode this clock is the virtual one
    accuracy, at = train(
        *data,
        hps,
        num_gpus=num_gpus,
        num_actors=num_actors,
        steps=steps,
        eval_interval=eval_interval,
        eval_batch_count=min(eval_batch_count, -(-len(ray.get(data[1])) // EVAL_BATCH)),
        eval_dir=str(Path(eval_dir).absolute()) if eval_dir is not None else None,
        is_augmented=augment,
        target=target,
        seed=seed,
    )
    seconds = time.perf_counter() - started
    ray.worker.cleanup()
    number, what = (num_gpus, "GPU") if num_gpus else (num_actors, "CPU actor")
    where = f"{number} {what}{'s' * (number > 1)}"
    print(f"{dataset}, {count} pictures, {where}: {accuracy:.2%} are right after {at} steps, {seconds:.2f} s")
    if target <= 1 and accuracy < target:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
