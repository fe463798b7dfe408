"""Batch L-BFGS on real data: softmax regression on scikit-learn's handwritten digits, with gradients on actors.

From the seed documents of 2017, in today's vocabulary. Tasks load the images and augment them, so that the data never
pass through this program: they live in the object stores, as shards of more than 1 MiB each. Actors compute loss and
gradient on one shard at a time, and scipy's L-BFGS, here in the driver, drives them.

    dualray run examples/lbfgs.py
    dualray run examples/lbfgs.py --mode sim --nodes 11

The result is the same to the last bit in every mode, on any number of nodes, and when a node dies on the way: seeds are
fixed, sums are formed in the order of the shards, and the linear algebra runs on one thread. A shard that is lost with
its node is made again from its lineage: its images are loaded again, and augmented again.
"""

import hashlib
import json
import time
from typing import Annotated

import numpy as np
import typer
from numpy.typing import NDArray
from scipy.optimize import fmin_l_bfgs_b
from sklearn.datasets import load_digits
from threadpoolctl import threadpool_limits

import dualray as ray
from dualray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

Floats = NDArray[np.float64]

SIDE = 8  # pixels along an edge of an image
FINE = 4  # each pixel is cut into FINE x FINE, so that an image can be shifted by a fraction of a pixel
SHIFTS = tuple((down, right) for down in range(-2, 3) for right in range(-2, 3))  # in fine pixels
PIXELS = SIDE * SIDE
DIGITS = 10
FEATURES = PIXELS + 1  # the last one is 1: its weight is the bias
LABEL = FEATURES  # the column of a shard that holds the digits
IMAGES_HELD_OUT = 360
SEED = 0
REGULARIZATION = 1e-4
SHARDS_MAX = 16  # with more, a shard would be smaller than 1 MiB

# What a call takes in sim mode, in seconds for each row: measured on one core of a 2-core machine of 2025.
LOAD_S_PER_ROW = 10e-6
AUGMENT_S_PER_ROW = 30e-6
GRADIENT_S_PER_ROW = 1e-6


# ---- The data: made by tasks, kept in the stores -----------------------------------------------------------------


def split() -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Which images are for training and which are held out."""
    order = np.random.default_rng(SEED).permutation(len(load_digits().target))
    return order[IMAGES_HELD_OUT:], order[:IMAGES_HELD_OUT]


def rows_of(shard: int, num_shards: int) -> NDArray[np.intp]:
    """Which images belong to a shard."""
    training, _ = split()
    return np.array_split(training, num_shards)[shard]


@ray.remote(
    scheduling_strategy="SPREAD",
    duration=lambda shard, num_shards: LOAD_S_PER_ROW * len(rows_of(shard, num_shards)),
)
def load_rows(shard: int, num_shards: int) -> tuple[Floats, Floats]:
    """The images of one shard, of the shape (images, SIDE * FINE, SIDE * FINE), and their digits."""
    data = load_digits()
    rows = rows_of(shard, num_shards)
    coarse = data.images[rows] / 16.0
    return coarse.repeat(FINE, axis=1).repeat(FINE, axis=2), data.target[rows].astype(np.float64)


@ray.remote(
    num_returns=2,
    scheduling_strategy="SPREAD",
    duration=lambda loaded: AUGMENT_S_PER_ROW * len(SHIFTS) * len(loaded[0]),
)
def augment(loaded: tuple[Floats, Floats]) -> tuple[Floats, str]:
    """A shard, and the node on which it was made.

    A shard has each image once for each shift. A row holds the pixels, a 1 for the bias, and the digit.
    """
    images, digits = loaded
    count = len(images)
    shard = np.empty((len(SHIFTS) * count, FEATURES + 1))
    for index, (down, right) in enumerate(SHIFTS):
        block = shard[index * count : (index + 1) * count]
        block[:, :PIXELS] = coarse_pixels(np.roll(padded(images), (down, right), axis=(1, 2)))
        block[:, PIXELS] = 1.0
        block[:, LABEL] = digits
    return shard, ray.get_runtime_context().get_node_id()


def padded(fine: Floats) -> Floats:
    """Images with an empty margin as wide as the largest shift, so that what is shifted out does not come back."""
    margin = max(max(abs(down), abs(right)) for down, right in SHIFTS)
    return np.pad(fine, ((0, 0), (margin, margin), (margin, margin)))


def coarse_pixels(margined: Floats) -> Floats:
    """Back to SIDE x SIDE pixels, without the margin, each the mean of its fine ones."""
    margin = (margined.shape[1] - SIDE * FINE) // 2
    inner = margined[:, margin : margin + SIDE * FINE, margin : margin + SIDE * FINE]
    cut = inner.reshape(-1, SIDE, FINE, SIDE, FINE)
    pixels: Floats = cut.mean(axis=(2, 4)).reshape(-1, PIXELS)
    return pixels


# ---- Loss and gradient, on actors --------------------------------------------------------------------------------


class Network:
    """Computes on whatever shard it is given. It keeps nothing, so it can be restarted anywhere."""

    def __init__(self) -> None:
        threadpool_limits(1)

    @ray.method(duration=lambda theta, shard: GRADIENT_S_PER_ROW * len(shard))
    def loss_and_gradient(self, theta: Floats, shard: Floats) -> tuple[float, Floats]:
        """The summed cross entropy of a shard, and its gradient, of the shape of `theta`."""
        features, digits = shard[:, :FEATURES], shard[:, LABEL].astype(np.intp)
        index = np.arange(len(shard))
        scores = features @ theta.reshape(FEATURES, DIGITS)
        scores -= scores.max(axis=1, keepdims=True)
        odds = np.exp(scores)
        norms = odds.sum(axis=1, keepdims=True)
        loss = float(np.log(norms).sum() - scores[index, digits].sum())
        odds /= norms
        odds[index, digits] -= 1.0
        return loss, (features.T @ odds).ravel()


Worker = ray.remote(max_restarts=3, max_task_retries=3)(Network)


# ---- The driver --------------------------------------------------------------------------------------------------


def accuracy_held_out(theta: Floats) -> float:
    """The share of the held-out images that are classified rightly."""
    data = load_digits()
    _, held_out = split()
    features = np.column_stack([data.data[held_out] / 16.0, np.ones(len(held_out))])
    scores = features @ theta.reshape(FEATURES, DIGITS)
    return float((scores.argmax(axis=1) == data.target[held_out]).mean())


def near(node: str) -> NodeAffinitySchedulingStrategy:
    """Work goes to its data; when the node is gone, anywhere."""
    return NodeAffinitySchedulingStrategy(node, soft=True)


def train(num_shards: int, num_actors: int, iterations: int) -> tuple[Floats, dict[str, object]]:
    """The parameters after L-BFGS, and what scipy says of the way there."""
    made = [augment.remote(load_rows.remote(shard, num_shards)) for shard in range(num_shards)]
    shards = [shard for shard, _ in made]
    homes = ray.get([node for _, node in made])
    actors = [Worker.options(scheduling_strategy=near(home)).remote() for home in homes[:num_actors]]
    count = len(SHIFTS) * len(split()[0])

    def loss_and_gradient(theta: Floats) -> tuple[float, Floats]:
        theta_ref = ray.put(theta)
        results = [
            actors[number % num_actors].loss_and_gradient.remote(theta_ref, shard)
            for number, shard in enumerate(shards)
        ]
        loss, gradient = 0.0, np.zeros_like(theta)
        for shard_loss, shard_gradient in ray.get(results):  # in the order of the shards: sums round the same way
            loss += shard_loss
            gradient += shard_gradient
        return loss / count + REGULARIZATION / 2 * float(theta @ theta), gradient / count + REGULARIZATION * theta

    theta_init = 1e-2 * np.random.default_rng(SEED).normal(size=FEATURES * DIGITS)
    theta, _, story = fmin_l_bfgs_b(loss_and_gradient, theta_init, maxiter=iterations)
    return theta, story


def main(
    shards: Annotated[int, typer.Option(min=1, max=SHARDS_MAX, help="Into how many shards the data are cut.")] = 11,
    actors: Annotated[int, typer.Option(min=0, help="Default 0: one for each CPU, at most one for each shard.")] = 0,
    iterations: Annotated[int, typer.Option(min=1, help="At most so many iterations of L-BFGS.")] = 60,
    json_: Annotated[bool, typer.Option("--json", help="End with a line of JSON: the result.")] = False,
) -> None:
    """Train softmax regression on scikit-learn's digits with batch L-BFGS."""
    threadpool_limits(1)
    ray.init()
    num_actors = actors or max(1, min(shards, int(ray.cluster_resources().get("CPU", 1))))
    print(f"{shards} shards, {num_actors} actors, at most {iterations} iterations")
    started = time.perf_counter()  # in sim mode this clock is the virtual one
    theta, story = train(shards, num_actors, iterations)
    seconds = time.perf_counter() - started
    result = {
        "accuracy": accuracy_held_out(theta),
        "sha256": hashlib.sha256(theta.tobytes()).hexdigest(),
        "iterations": story["nit"],
        "evaluations": story["funcalls"],
        "shards": shards,
        "actors": num_actors,
        "seconds": seconds,
    }
    ray.shutdown()
    print(
        f"{result['iterations']} iterations and {result['evaluations']} evaluations in {seconds:.3f} s: "
        f"{result['accuracy']:.1%} of the held-out digits are right"
    )
    print(f"sha256 of the parameters: {result['sha256']}")
    if json_:
        print(json.dumps(result))


if __name__ == "__main__":
    typer.run(main)
