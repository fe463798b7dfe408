"""The residual network (He et al., 2015, arXiv:1512.03385), as TensorFlow's example of 2017 has it for CIFAR.

A convolution, three stages of residual units with 16, 32 and 64 filters (times `width`), each stage but the first
halving the picture, then the mean over the picture and one layer to the classes. With 5 units a stage these are 32
layers.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from tensorflow.compat import v1 as tf

from dualray.experimental import TensorFlowVariables
from examples.resnet.cifar_input import CHANNELS, SIDE

Weights = dict[str, NDArray[Any]]

FILTERS = (16, 16, 32, 64)
MOMENTUM = 0.9
NORM_DECAY = 0.9  # of the means and variances that stand for those of a batch when nothing is learned


@dataclass(frozen=True, slots=True)
class HParams:
    """What the network is like, and how it learns: TensorFlow's names and numbers.

    Attributes:
        batch_size: pictures a step.
        num_classes: 10 or 100.
        lrn_rate: of gradient descent with momentum; a tenth of it from step 40,000, a hundredth from 60,000, a
            thousandth from 80,000.
        num_residual_units: in each of the three stages.
        weight_decay_rate: the share of half the squared weights in the loss.
        relu_leakiness: the slope below 0.
    """

    batch_size: int = 128
    num_classes: int = 10
    lrn_rate: float = 0.1
    num_residual_units: int = 5
    weight_decay_rate: float = 0.0002
    relu_leakiness: float = 0.1


class ResNet:
    """The network in a graph and a session of its own.

    Args:
        hps: what it is like.
        device: where it is computed; a GPU that is not there is replaced by the CPU.
        is_training: whether it can learn, too.
        threads: that TensorFlow may use for it. Default: 1, because there is an actor for each core.
    """

    def __init__(self, hps: HParams, device: str = "/cpu:0", *, is_training: bool = True, threads: int = 1) -> None:
        self._hps = hps
        with tf.Graph().as_default(), tf.device(device):
            tf.set_random_seed(0)
            self.images = tf.placeholder(tf.float32, [None, SIDE, SIDE, CHANNELS])
            self.labels = tf.placeholder(tf.int32, [None])
            self._is_training = tf.placeholder_with_default(False, [])
            self._moving: list[Any] = []
            with tf.variable_scope("resnet"):
                scores = self._layers(self.images)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=self.labels, logits=scores)
            self.cost = tf.reduce_mean(losses)
            self.precision = tf.reduce_mean(tf.cast(tf.nn.in_top_k(scores, self.labels, 1), tf.float32))
            self.train_op = self._learning() if is_training else None
            config = tf.ConfigProto(
                allow_soft_placement=True, intra_op_parallelism_threads=threads, inter_op_parallelism_threads=1
            )
            config.gpu_options.allow_growth = True
            self._session = tf.Session(config=config)
            # Of the train operation, so that momentum and the means of batches travel with the weights.
            roots = [self.cost, self.train_op] if is_training else [self.cost]
            self.variables = TensorFlowVariables(roots, self._session)
            self._session.run(tf.global_variables_initializer())

    def train_step(self, images: NDArray[np.float32], labels: NDArray[Any]) -> float:
        """One step on a batch; its loss, without the decay."""
        feed = {self.images: images, self.labels: labels, self._is_training: True}
        cost, _ = self._session.run([self.cost, self.train_op], feed)
        return float(cost)

    def evaluate(self, images: NDArray[np.float32], labels: NDArray[Any]) -> tuple[float, float]:
        """The share of pictures that are classified rightly, and the loss."""
        precision, cost = self._session.run([self.precision, self.cost], {self.images: images, self.labels: labels})
        return float(precision), float(cost)

    def _learning(self) -> Any:
        """The operation that makes a step."""
        hps = self._hps
        kernels = [variable for variable in tf.trainable_variables() if "kernel" in variable.op.name]
        decay = tf.add_n([tf.nn.l2_loss(kernel) for kernel in kernels])
        step = tf.get_variable("global_step", [], tf.int64, tf.zeros_initializer(), trainable=False)
        rates = [hps.lrn_rate * share for share in (1, 0.1, 0.01, 0.001)]
        rate = tf.train.piecewise_constant(step, [40_000, 60_000, 80_000], rates)
        optimizer = tf.train.MomentumOptimizer(rate, MOMENTUM)
        with tf.control_dependencies(self._moving):
            return optimizer.minimize(self.cost + hps.weight_decay_rate * decay, global_step=step)

    def _layers(self, images: Any) -> Any:
        layer = _convolution("first", images, FILTERS[0], 3, 1)
        for stage, filters in enumerate(FILTERS[1:], 1):
            for unit in range(self._hps.num_residual_units):
                with tf.variable_scope(f"unit_{stage}_{unit}"):
                    layer = self._residual(
                        layer, filters, 2 if stage > 1 and unit == 0 else 1, is_first=stage == 1 and unit == 0
                    )
        layer = self._active(self._normal("last", layer))
        layer = tf.reduce_mean(layer, axis=[1, 2])
        return _dense("scores", layer, self._hps.num_classes)

    def _residual(self, layer: Any, filters: int, stride: int, *, is_first: bool) -> Any:
        """Two convolutions, each after normalisation and activation, added to what came in.

        In the first unit of all, what is added is already activated; elsewhere it is what came in."""
        before = layer
        layer = self._active(self._normal("one", layer))
        if is_first:
            before = layer
        layer = _convolution("one", layer, filters, 3, stride)
        layer = self._active(self._normal("two", layer))
        layer = _convolution("two", layer, filters, 3, 1)
        if stride > 1:
            before = tf.nn.avg_pool2d(before, stride, stride, "VALID")
        missing = filters - before.shape[-1]
        if missing:
            before = tf.pad(before, [[0, 0], [0, 0], [0, 0], [missing // 2, missing - missing // 2]])
        return layer + before

    def _active(self, layer: Any) -> Any:
        return tf.nn.leaky_relu(layer, self._hps.relu_leakiness)

    def _normal(self, name: str, layer: Any) -> Any:
        """Batch normalization: by the batch's mean and variance while learning, else by those that went before."""
        with tf.variable_scope(f"normal_{name}"):
            size = [layer.shape[-1]]
            beta = tf.get_variable("beta", size, initializer=tf.zeros_initializer())
            gamma = tf.get_variable("gamma", size, initializer=tf.ones_initializer())
            mean = tf.get_variable("mean", size, initializer=tf.zeros_initializer(), trainable=False)
            variance = tf.get_variable("variance", size, initializer=tf.ones_initializer(), trainable=False)
            of_batch = tf.nn.moments(layer, [0, 1, 2])
            for moving, new in zip((mean, variance), of_batch, strict=True):
                share = tf.cast(self._is_training, tf.float32) * (1 - NORM_DECAY)
                self._moving.append(moving.assign_sub(share * (moving - new)))
            used = [
                tf.where(self._is_training, new, moving) for moving, new in zip((mean, variance), of_batch, strict=True)
            ]
            return tf.nn.batch_normalization(layer, *used, beta, gamma, 0.001)


def _convolution(name: str, layer: Any, filters: int, size: int, stride: int) -> Any:
    start = tf.random_normal_initializer(stddev=float(np.sqrt(2 / (size * size * filters))), seed=sum(name.encode()))
    kernel = tf.get_variable(f"{name}_kernel", [size, size, layer.shape[-1], filters], initializer=start)
    return tf.nn.conv2d(layer, kernel, strides=stride, padding="SAME")


def _dense(name: str, layer: Any, width: int) -> Any:
    start = tf.variance_scaling_initializer(distribution="uniform", seed=0)
    kernel = tf.get_variable(f"{name}_kernel", [layer.shape[-1], width], initializer=start)
    return layer @ kernel + tf.get_variable(f"{name}_bias", [width], initializer=tf.zeros_initializer())
