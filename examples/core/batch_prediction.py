"""Batch prediction: a trained model goes once to each of a pool of actors, and batches go to whoever is free.

Shows a large value that is put once and shared by all (`put`: readers on a node share its memory), an ActorPool that
keeps all actors busy and gives results in the order of the batches, and models that are loaded once and not once a
batch. The model is a small network of two layers whose weights were trained by the driver on points in two rings.

    python examples/core/batch_prediction.py --batches 40
    dualray run examples/core/batch_prediction.py --mode sim --nodes 4 -- --predictors 8
"""

import click
import numpy as np

import dualray as ray
from dualray.util import ActorPool

HIDDEN = 64


def rings(points, seed):
    """Points in two rings, and in which of them each is."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, 2, points)
    radius = 1 + labels + 0.2 * generator.normal(size=points)
    angle = generator.uniform(0, 2 * np.pi, points)
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1), labels


def layer(points, weights):
    return np.tanh(points @ weights["inward"] + weights["bias"])


def train(points, labels):
    """Random features, and a least-squares fit of the last layer on them."""
    generator = np.random.default_rng(0)
    weights = {"inward": generator.normal(size=(2, HIDDEN)), "bias": generator.normal(size=HIDDEN)}
    features = layer(points, weights)
    weights["outward"] = np.linalg.lstsq(features, 2.0 * labels - 1, rcond=None)[0]
    return weights


@ray.remote(num_cpus=0)
class Predictor:
    """A model in memory. It gets the weights as a value; what is passed is a reference."""

    def __init__(self, weights):
        self.weights = weights
        self.batches = 0

    def predict(self, points):
        self.batches += 1
        return (layer(points, self.weights) @ self.weights["outward"] > 0).astype(int)

    def get_batches(self):
        return self.batches


@ray.remote
def load_batch(number, size):
    """As it would be read from a file: a task, so that loading runs beside predicting."""
    return rings(size, seed=1000 + number)


@ray.remote
def first(pair):
    return pair[0]


@click.command(context_settings={"show_default": True})
@click.option("--predictors", default=3, type=click.IntRange(1), help="Actors with the model.")
@click.option("--batches", default=12, type=click.IntRange(1), help="Batches to predict.")
@click.option("--size", default=500, type=click.IntRange(1), help="Points of a batch.")
def main(predictors: int, batches: int, size: int) -> None:
    """Train a model, and predict batches with a pool of actors."""
    ray.init()
    weights = ray.put(train(*rings(4000, seed=1)))
    actors = [Predictor.remote(weights) for _ in range(predictors)]
    pool = ActorPool(actors)
    loaded = [load_batch.remote(number, size) for number in range(batches)]
    points = [first.remote(pair) for pair in loaded]  # the driver sees no points

    right = 0
    results = pool.map(lambda actor, batch: actor.predict.remote(batch), points)
    for pair, predicted in zip(loaded, results, strict=True):
        _, labels = ray.get(pair)
        right += int((predicted == labels).sum())
    print(f"{batches} batches of {size} points: {right / (batches * size):.1%} are right")
    print(f"{sum(ray.get([actor.get_batches.remote() for actor in actors]))} batches by {predictors} predictors")
    ray.shutdown()


if __name__ == "__main__":
    main()
