"""Linear regression with TensorFlow, in the three forms of the seed documents of 2017.

Data are made so that y = 0.1 x + 0.3; a network of two weights finds the two numbers. The network itself never travels,
its weights do (`dualray.experimental.TensorFlowVariables`):

    weights      each worker makes the network once, as an environment variable; tasks take weights, train, return them
    actors       each actor has a network and its part of the data; they take weights, train, return weights
    gradients    actors return gradients; the driver applies their mean to a network of its own

    python examples/linear_regression/linear_regression.py --form actors
    dualray run examples/linear_regression/linear_regression.py --mode sim --nodes 4 -- --form gradients --batches 4
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray
from rich.progress import Progress

import dualray.classic as ray
import dualray.experimental.tf1 as tf

SLOPE, OFFSET = 0.1, 0.3
TOLERANCE = 0.01
BATCH_SIZE = 100
LEARNING_RATE = 0.5

# What a call takes in sim mode, in seconds: measured on one core of a 2-core machine of 2025.
DATA_S = 1e-4
STEP_S = 1e-3

Weights = dict[str, NDArray[np.float32]]


class Form(StrEnum):
    """What travels, and who computes it."""

    WEIGHTS = "weights"
    ACTORS = "actors"
    GRADIENTS = "gradients"


class Network:
    """A network of two weights, in a graph and a session of its own."""

    def __init__(self) -> None:
        self.graph = tf.Graph()
        with self.graph.as_default():
            tf.set_random_seed(0)
            self.x = tf.placeholder(tf.float32, shape=[None])
            self.y = tf.placeholder(tf.float32, shape=[None])
            slope = tf.get_variable("slope", initializer=tf.random_uniform([1], -1.0, 1.0))
            offset = tf.get_variable("offset", initializer=tf.zeros([1]))
            self.loss = tf.reduce_mean(tf.square(slope * self.x + offset - self.y))
            optimizer = tf.train.GradientDescentOptimizer(LEARNING_RATE)
            self.gradients = optimizer.compute_gradients(self.loss)
            self.train = optimizer.apply_gradients(self.gradients)
            self.session = tf.Session()
            self.variables = ray.experimental.TensorFlowVariables(self.loss, self.session)
            self.session.run(tf.global_variables_initializer())

    def step(self, weights: Weights, x: NDArray[np.float64], y: NDArray[np.float64]) -> Weights:
        """The weights after one step of training on a batch."""
        self.variables.set_weights(weights)
        self.session.run(self.train, feed_dict={self.x: x, self.y: y})
        new: Weights = self.variables.get_weights()
        return new

    def gradients_of(self, weights: Weights, x: NDArray[np.float64], y: NDArray[np.float64]) -> list[Any]:
        """The gradients of a batch, one for each variable."""
        self.variables.set_weights(weights)
        wanted = [gradient for gradient, _ in self.gradients]
        found: list[Any] = self.session.run(wanted, feed_dict={self.x: x, self.y: y})
        return found

    def apply(self, gradients: list[Any]) -> Weights:
        """The weights after one step with gradients from elsewhere."""
        feed = {symbolic: number for (symbolic, _), number in zip(self.gradients, gradients, strict=True)}
        self.session.run(self.train, feed_dict=feed)
        new: Weights = self.variables.get_weights()
        return new


class Trainer:
    """A network with its part of the data; lives in an actor."""

    def __init__(self, x: NDArray[np.float64], y: NDArray[np.float64]) -> None:
        self._network = Network()
        self._x, self._y = x, y

    def step(self, weights: Weights) -> Weights:
        return self._network.step(weights, self._x, self._y)

    def gradients(self, weights: Weights) -> list[Any]:
        return self._network.gradients_of(weights, self._x, self._y)


@ray.remote(num_return_vals=2, duration=DATA_S)
def make_data(count: int, seed: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """x between 0 and 1, and the y that belong to them."""
    x = np.random.default_rng(seed).random(count)
    return x, x * SLOPE + OFFSET


@ray.remote(duration=STEP_S)
def step(weights: Weights, x: NDArray[np.float64], y: NDArray[np.float64]) -> Weights:
    """One step of training, with the network that this worker has."""
    network: Network = ray.env.network
    return network.step(weights, x, y)


def mean(results: list[Weights]) -> Weights:
    """The mean of weights, variable by variable."""
    return {name: np.mean([weights[name] for weights in results], axis=0) for name in results[0]}


def train(form: Form, *, batches: int, iterations: int) -> Weights:
    """The weights after so many rounds, in each of which every batch is looked at once."""
    data = [make_data.remote(BATCH_SIZE, seed) for seed in range(batches)]
    ray.env.network = ray.EnvironmentVariable(Network, lambda network: network)
    actors = [] if form is Form.WEIGHTS else [ray.remote(Trainer).remote(x, y) for x, y in data]
    network = Network() if form is Form.GRADIENTS else ray.env.network
    weights: Weights = network.variables.get_weights()
    with Progress(transient=True) as progress:
        for _ in progress.track(range(iterations), description=form):
            weights_id = ray.put(weights)
            if form is Form.WEIGHTS:
                weights = mean(ray.get([step.remote(weights_id, x, y) for x, y in data]))
            elif form is Form.ACTORS:
                weights = mean(ray.get([actor.step.remote(weights_id) for actor in actors]))
            else:
                results = ray.get([actor.gradients.remote(weights_id) for actor in actors])
                weights = network.apply([np.mean(parts, axis=0) for parts in zip(*results, strict=True)])
    return weights


def main(
    form: Annotated[Form, typer.Option(help="What travels: weights of tasks, weights of actors, or gradients.")] = (
        Form.WEIGHTS
    ),
    batches: Annotated[int, typer.Option(min=1, help="How many batches of 100, each for a task or actor.")] = 1,
    iterations: Annotated[int, typer.Option(min=1, help="How many rounds.")] = 201,
    redis_address: Annotated[str | None, typer.Option(help="host:port of a running cluster.")] = None,
) -> None:
    """Find the two numbers of a line."""
    ray.init(redis_address=redis_address)
    weights = train(form, batches=batches, iterations=iterations)
    ray.worker.cleanup()
    slope, offset = float(weights["slope"][0]), float(weights["offset"][0])
    print(f"{form}: y = {slope:.4f} x + {offset:.4f} after {iterations} rounds of {batches} batches")
    if abs(slope - SLOPE) > TOLERANCE or abs(offset - OFFSET) > TOLERANCE:
        print(f"not yet within {TOLERANCE} of {SLOPE} and {OFFSET}")
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
