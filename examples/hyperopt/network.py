"""What is searched over: a convolutional network on images of digits, and four of its hyperparameters.

The ranges are narrower than those of the seed document (which are from 1e-5 to 1e5): with those, nearly all of the
computation would go into networks that cannot learn.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tensorflow.compat import v1 as tf

from dualray.experimental import TensorFlowVariables

CLASSES = 10
FILTERS = (8, 16)
HIDDEN = 64

Images = NDArray[np.float32]
Labels = NDArray[np.float32]
Weights = dict[str, NDArray[np.float32]]

# What training takes in sim mode: measured on one core of a 2-core machine of 2025, with images of 8 x 8.
BUILD_S = 0.3
STEP_S = 2e-3
STEP_S_PER_IMAGE = 3e-5


@dataclass(frozen=True, slots=True)
class Hyperparameters:
    """One point of the search space."""

    learning_rate: float
    batch_size: int
    dropout: float
    stddev: float

    def __str__(self) -> str:
        return (
            f"learning rate {self.learning_rate:.2g}, batches of {self.batch_size}, dropout {self.dropout:.2f}, "
            f"stddev {self.stddev:.2g}"
        )


def generate_hyperparameters(random: np.random.Generator) -> Hyperparameters:
    """A point drawn at random."""
    return Hyperparameters(
        learning_rate=float(10 ** random.uniform(-4, -1)),
        batch_size=int(random.integers(10, 100)),
        dropout=float(random.uniform(0, 0.8)),
        stddev=float(10 ** random.uniform(-2.5, 0)),
    )


def seconds(hyperparameters: Hyperparameters, steps: int, *_: object, **__: object) -> float:
    """What `train` takes in sim mode."""
    return BUILD_S + steps * (STEP_S + STEP_S_PER_IMAGE * hyperparameters.batch_size)


def train(
    hyperparameters: Hyperparameters,
    steps: int,
    train_images: Images,
    train_labels: Labels,
    validation_images: Images,
    validation_labels: Labels,
    weights: Weights | None = None,
    seed: int = 0,
) -> tuple[float, Weights]:
    """Train a network, a new one or one with weights from earlier.

    Args:
        steps: batches to train on.
        train_images, validation_images: of the shape (count, pixels), with a square number of pixels.
        train_labels, validation_labels: of the shape (count, 10), one-hot.
        weights: where to go on from. Default: drawn at random.
        seed: of the order of images and of dropout.

    Returns:
        The share of the validation images that are classified rightly, and the weights.
    """
    with tf.Graph().as_default():
        tf.set_random_seed(seed)
        net = _Network(hyperparameters, train_images.shape[1])
        config = tf.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=1)
        session = tf.Session(config=config)
        variables = TensorFlowVariables(net.loss, session)
        session.run(tf.global_variables_initializer())
    with session:
        if weights is not None:
            variables.set_weights(weights)
        random = np.random.default_rng(seed)
        for _ in range(steps):
            rows = random.integers(0, len(train_images), hyperparameters.batch_size)
            feed = {
                net.images: train_images[rows],
                net.labels: train_labels[rows],
                net.dropout: hyperparameters.dropout,
            }
            session.run(net.train, feed)
        feed = {net.images: validation_images, net.labels: validation_labels, net.dropout: 0.0}
        return float(session.run(net.accuracy, feed)), variables.get_weights()


class _Network:
    """Two convolutions with pooling, one hidden layer with dropout."""

    def __init__(self, hyperparameters: Hyperparameters, pixels: int) -> None:
        side = int(pixels**0.5)
        start = tf.truncated_normal_initializer(stddev=hyperparameters.stddev, seed=1)
        self.images = tf.placeholder(tf.float32, [None, pixels])
        self.labels = tf.placeholder(tf.float32, [None, CLASSES])
        self.dropout = tf.placeholder(tf.float32, [])
        layer: Any = tf.reshape(self.images, [-1, side, side, 1])
        before = 1
        for number, filters in enumerate(FILTERS):
            kernel = tf.get_variable(f"kernel{number}", [3, 3, before, filters], initializer=start)
            bias = tf.get_variable(f"bias{number}", [filters], initializer=tf.zeros_initializer())
            layer = tf.nn.relu(tf.nn.conv2d(layer, kernel, strides=1, padding="SAME") + bias)
            layer = tf.nn.max_pool2d(layer, ksize=2, strides=2, padding="SAME")
            before = filters
        size = int(np.prod(layer.shape[1:]))
        layer = tf.reshape(layer, [-1, size])
        for name, width in (("hidden", HIDDEN), ("scores", CLASSES)):
            kernel = tf.get_variable(f"{name}_kernel", [layer.shape[1], width], initializer=start)
            layer = layer @ kernel + tf.get_variable(f"{name}_bias", [width], initializer=tf.zeros_initializer())
            if name == "hidden":
                layer = tf.nn.dropout(tf.nn.relu(layer), rate=self.dropout, seed=2)
        self.loss = tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits_v2(labels=self.labels, logits=layer))
        self.train = tf.train.AdamOptimizer(hyperparameters.learning_rate).minimize(self.loss)
        right = tf.equal(tf.argmax(layer, 1), tf.argmax(self.labels, 1))
        self.accuracy = tf.reduce_mean(tf.cast(right, tf.float32))
