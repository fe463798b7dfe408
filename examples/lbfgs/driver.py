"""Batch L-BFGS with TensorFlow, as the seed document of 2017 has it: scipy drives, actors compute loss and gradient.

Each actor has a network and part of the data; parameters travel as one flat array, through the object store, once for
all actors. `examples/lbfgs.py` is the same optimization in today's vocabulary, without TensorFlow, on data that tasks
make: it is what `make demo` runs.

    python examples/lbfgs/driver.py
    dualray run examples/lbfgs/driver.py --mode sim --nodes 11 -- --num-actors 22
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray
from rich.progress import Progress
from scipy.optimize import fmin_l_bfgs_b

import dualray.classic as ray
from dualray import method

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # its neighbours are found from wherever it is started

from examples import input_data

Doubles = NDArray[np.float64]

CLASSES = 10
HIDDEN = 64
REGULARIZATION = 1e-3
# In sim mode: loss and gradient of images of 8 x 8, on one core of a 2-core machine of 2025; measured with 17 to 1,077.
EVALUATION_S = 9e-4
EVALUATION_S_PER_IMAGE = 6.5e-7


class Network:
    """One hidden layer; its loss is summed over the images that it was given."""

    def __init__(self, images: NDArray[np.float32], labels: NDArray[np.float32]) -> None:
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
        from tensorflow.compat import v1 as tf  # noqa: PLC0415 - a driver with actors need not load it

        with tf.Graph().as_default():
            tf.set_random_seed(0)
            self._images = tf.placeholder(tf.float32, [None, images.shape[1]])
            self._labels = tf.placeholder(tf.float32, [None, CLASSES])
            layer: Any = self._images
            for name, width in (("hidden", HIDDEN), ("scores", CLASSES)):
                start = tf.truncated_normal_initializer(stddev=0.1, seed=len(name))
                kernel = tf.get_variable(f"{name}_kernel", [layer.shape[1], width], initializer=start)
                bias = tf.get_variable(f"{name}_bias", [width], initializer=tf.zeros_initializer())
                layer = layer @ kernel + bias
                if name == "hidden":
                    layer = tf.tanh(layer)
            losses = tf.nn.softmax_cross_entropy_with_logits_v2(labels=self._labels, logits=layer)
            self._loss = tf.reduce_sum(losses)
            self._right = tf.reduce_sum(tf.cast(tf.equal(tf.argmax(layer, 1), tf.argmax(self._labels, 1)), tf.int32))
            self._session = tf.Session(
                config=tf.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=1)
            )
            self._variables = ray.experimental.TensorFlowVariables(self._loss, self._session)
            # In the order of the flat array: gradients come as the parameters go.
            parts = tf.gradients(self._loss, list(self._variables.variables.values()))
            self._gradient = tf.concat([tf.reshape(part, [-1]) for part in parts], axis=0)
            self._session.run(tf.global_variables_initializer())
        self._feed = {self._images: images, self._labels: labels}

    @method(num_returns=2, duration=0.0)
    def start(self) -> tuple[Doubles, int]:
        """Parameters to begin with, and the number of images."""
        return self._variables.get_flat().astype(np.float64), len(self._feed[self._images])

    @method(num_returns=2, duration=lambda theta, count: EVALUATION_S + EVALUATION_S_PER_IMAGE * count)
    def loss_and_grad(self, theta: Doubles, count: int) -> tuple[float, Doubles]:
        """The loss of these parameters, and its gradient: fmin_l_bfgs_b wants doubles. In sim mode it takes as long as
        for `count` images."""
        self._variables.set_flat(theta)
        loss, gradient = self._session.run([self._loss, self._gradient], self._feed)
        return float(loss), gradient.astype(np.float64)

    def accuracy(self, theta: Doubles, images: NDArray[np.float32], labels: NDArray[np.float32]) -> float:
        """The share of other images that these parameters classify rightly."""
        self._variables.set_flat(theta)
        right = self._session.run(self._right, {self._images: images, self._labels: labels})
        return float(right) / len(images)


def train(data: input_data.Datasets, *, num_actors: int, iterations: int) -> tuple[float, dict[str, Any]]:
    """The accuracy on the test images, and what scipy says of the way there."""
    images, labels = (np.array_split(part, num_actors) for part in (data.train.images, data.train.labels))
    actors = [ray.remote(Network).remote(*map(ray.put, part)) for part in zip(images, labels, strict=True)]
    counts = [len(part) for part in images]
    count = data.train.num_examples
    theta_init = ray.get(actors[0].start.remote()[0])

    def full_loss_and_grad(theta: Doubles) -> tuple[float, Doubles]:
        theta_id = ray.put(theta)
        results = [actor.loss_and_grad.remote(theta_id, own) for actor, own in zip(actors, counts, strict=True)]
        losses = ray.get([loss for loss, _ in results])
        gradient = np.sum(ray.get([gradient for _, gradient in results]), axis=0)
        penalty = REGULARIZATION / 2 * float(theta @ theta)
        return sum(losses) / count + penalty, gradient / count + REGULARIZATION * theta

    with Progress(transient=True) as progress:
        bar = progress.add_task("iterations of L-BFGS", total=iterations)
        theta, _, story = fmin_l_bfgs_b(
            full_loss_and_grad, theta_init, maxiter=iterations, callback=lambda _: progress.advance(bar)
        )
    accuracy = ray.get(actors[0].accuracy.remote(ray.put(theta), data.test.images, data.test.labels))
    return accuracy, story


def main(
    num_actors: Annotated[int, typer.Option(min=1, help="Actors, each with its part of the images.")] = 2,
    iterations: Annotated[int, typer.Option(min=1, help="At most so many of L-BFGS.")] = 60,
    data: Annotated[Path | None, typer.Option(help="Directory of MNIST's files; else scikit-learn's digits.")] = None,
    redis_address: Annotated[str | None, typer.Option(help="host:port of a running cluster.")] = None,
) -> None:
    """Train a network on images of digits with batch L-BFGS."""
    datasets = input_data.load(data, one_hot=True)
    ray.init(redis_address=redis_address)
    started = time.perf_counter()  # in sim mode this clock is the virtual one
    accuracy, story = train(datasets, num_actors=num_actors, iterations=iterations)
    print(
        f"{story['nit']} iterations and {story['funcalls']} evaluations on {num_actors} actors in "
        f"{time.perf_counter() - started:.2f} s: {accuracy:.1%} of the test images are right"
    )
    ray.worker.cleanup()


if __name__ == "__main__":
    typer.run(main)
