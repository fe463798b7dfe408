"""The policy of A3C: a network with memory (an LSTM), in TensorFlow, with its value function and its gradients.

Pictures go through four convolutions first, other observations through one layer; then comes the LSTM, and from it the
scores of the actions and the value of the state. The same cell is in the graph twice, with one set of variables: alone,
to act, and over all steps of a rollout, to learn.

The loss is that of Mnih et al., 2016 (arXiv:1602.01783), with advantages from generalized advantage estimation
(arXiv:1506.02438), which at lambda = 1 are those of that paper.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from tensorflow.compat import v1 as tf

from dualray.experimental import TensorFlowVariables

Floats = NDArray[np.float32]
Weights = dict[str, Floats]
Memory = tuple[Floats, Floats]
"""What the LSTM remembers: its cell and its output, each of the shape (1, width)."""

WIDTHS = {True: 256, False: 64}  # of the LSTM: for pictures, for other observations
FILTERS = 32
VALUE_WEIGHT = 0.5
ENTROPY_WEIGHT = 0.01
NORM_MAX = 40.0


@dataclass(slots=True)
class PartialRollout:
    """Some steps of one game, in the order in which they were made.

    Attributes:
        states: what was seen; actions, rewards, values: what was done then, what it earned, what was expected.
        memory: that of the LSTM before the first step.
        r: the value of the state after the last step; 0 where the game was over.
        terminal: whether it was over.
        returns, lengths: of the games that ended here, none or one.
    """

    memory: Memory
    states: list[Any] = field(default_factory=list)
    actions: list[int] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    r: float = 0.0
    terminal: bool = False
    returns: list[float] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Batch:
    """A rollout as `LSTMPolicy.get_gradients` takes it; `a`, `adv` and `r` have an entry for each step."""

    si: Floats
    a: NDArray[np.int32]
    adv: Floats
    r: Floats
    terminal: bool
    features: Memory


def discount(values: NDArray[Any], gamma: float) -> NDArray[Any]:
    """For each place the sum of what follows, itself included, `gamma` less for each step."""
    found = np.zeros(len(values))
    running = 0.0
    for step in reversed(range(len(values))):
        running = values[step] + gamma * running
        found[step] = running
    return found


def process_rollout(rollout: PartialRollout, gamma: float, lambda_: float = 1.0) -> Batch:
    """The returns and advantages of a rollout."""
    rewards = np.array(rollout.rewards)
    values = np.array([*rollout.values, rollout.r])
    surprises = rewards + gamma * values[1:] - values[:-1]
    return Batch(
        si=np.array(rollout.states, np.float32),
        a=np.array(rollout.actions, np.int32),
        adv=discount(surprises, gamma * lambda_).astype(np.float32),
        r=discount(np.array([*rewards, rollout.r]), gamma)[:-1].astype(np.float32),
        terminal=rollout.terminal,
        features=rollout.memory,
    )


class LSTMPolicy:
    """A network in a graph and a session of its own.

    Args:
        shape: of an observation: (height, width, channels) of pictures, (numbers,) else.
        actions: between how many there is a choice.
        seed: of the first weights.
        learning_rate: of Adam, which `model_update` uses.
    """

    def __init__(self, shape: tuple[int, ...], actions: int, seed: int, learning_rate: float = 1e-4) -> None:
        self.width = WIDTHS[len(shape) == 3]
        with tf.Graph().as_default():
            tf.set_random_seed(seed)
            self._build(shape, actions, learning_rate)
            self._session = tf.Session(
                config=tf.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=1)
            )
            self._variables = TensorFlowVariables([self._losses["total"], self._probabilities], self._session)
            self._session.run(tf.global_variables_initializer())
        # A callable is a run without the search for what is to be run: acting is many small runs.
        self._act = self._session.make_callable(
            [self._probabilities, self._value, *self._memory_after], [self._one, *self._memory_before]
        )

    def initial_memory(self) -> Memory:
        """What is remembered when a game begins: nothing."""
        return np.zeros((1, self.width), np.float32), np.zeros((1, self.width), np.float32)

    def act(self, state: Any, memory: Memory) -> tuple[Floats, float, Memory]:
        """How likely each action should be, the value of the state, and the memory after it."""
        probabilities, value, cell, output = self._act(np.asarray(state, np.float32)[None], *memory)
        return probabilities[0], float(value[0]), (cell, output)

    def get_weights(self) -> Weights:
        """All weights, by name."""
        found: Weights = self._variables.get_weights()
        return found

    def set_weights(self, weights: Weights) -> None:
        """Take other weights."""
        self._variables.set_weights(weights)

    def get_gradients(self, batch: Batch) -> tuple[list[Floats], dict[str, float]]:
        """The gradient for each variable, clipped together to a norm of 40; and for TensorBoard the parts of the loss,
        a step's each, and the two norms."""
        feed = {
            self._states: batch.si,
            self._actions: batch.a,
            self._advantages: batch.adv,
            self._returns: batch.r,
            **dict(zip(self._memory_before, batch.features, strict=True)),
        }
        gradients, summary = self._session.run([self._gradients, self._summary], feed)
        return gradients, {name: float(value) for name, value in summary.items()}

    def model_update(self, gradients: list[Floats]) -> None:
        """A step of Adam along a gradient from anywhere."""
        self._session.run(self._train, dict(zip(self._fed_gradients, gradients, strict=True)))

    def _build(self, shape: tuple[int, ...], actions: int, learning_rate: float) -> None:
        self._one = tf.placeholder(tf.float32, [1, *shape])
        self._states = tf.placeholder(tf.float32, [None, *shape])
        self._memory_before = [tf.placeholder(tf.float32, [1, self.width]) for _ in range(2)]
        with tf.variable_scope("policy", reuse=tf.AUTO_REUSE):
            cell, output = self._cell(self._see(self._one)[0], *self._memory_before)
            scores, self._value = self._heads(output, actions)
            self._probabilities = tf.nn.softmax(scores)
            self._memory_after = [cell, output]
            before = tuple(self._memory_before)
            _, outputs = tf.scan(lambda memory, seen: self._cell(seen, *memory), self._see(self._states), before)
            scores, values = self._heads(outputs[:, 0], actions)
        self._actions = tf.placeholder(tf.int32, [None])
        self._advantages = tf.placeholder(tf.float32, [None])
        self._returns = tf.placeholder(tf.float32, [None])
        logs = tf.nn.log_softmax(scores)
        taken = tf.reduce_sum(tf.one_hot(self._actions, actions) * logs, axis=1)
        self._losses = {
            "policy": -tf.reduce_sum(taken * self._advantages),
            "value": 0.5 * tf.reduce_sum(tf.square(values - self._returns)),
            "entropy": -tf.reduce_sum(tf.exp(logs) * logs),
        }
        self._losses["total"] = (
            self._losses["policy"] + VALUE_WEIGHT * self._losses["value"] - ENTROPY_WEIGHT * self._losses["entropy"]
        )
        variables = tf.trainable_variables()
        raw = tf.gradients(self._losses["total"], variables)
        self._gradients, norm = tf.clip_by_global_norm(raw, NORM_MAX)
        steps = tf.cast(tf.shape(self._states)[0], tf.float32)
        self._summary = {f"model/{name}_loss": loss / steps for name, loss in self._losses.items()}
        self._summary |= {"model/grad_global_norm": norm, "model/var_global_norm": tf.linalg.global_norm(variables)}
        self._fed_gradients = [tf.placeholder(tf.float32, variable.shape) for variable in variables]
        optimizer = tf.train.AdamOptimizer(learning_rate)
        self._train = optimizer.apply_gradients(zip(self._fed_gradients, variables, strict=True))

    def _see(self, states: Any) -> Any:
        """What the LSTM gets of observations, of the shape (steps, 1, numbers)."""
        layer = states
        if len(states.shape) == 4:
            for number in range(4):
                kernel = _weights(f"see{number}", [3, 3, layer.shape[-1], FILTERS], 1.0)
                layer = tf.nn.elu(
                    tf.nn.conv2d(layer, kernel, strides=2, padding="SAME") + _bias(f"see{number}", FILTERS)
                )
            layer = tf.reshape(layer, [-1, int(np.prod(layer.shape[1:]))])
        else:
            layer = tf.nn.elu(_dense("see", layer, self.width, 1.0))
        return layer[:, None]

    def _cell(self, seen: Any, cell: Any, output: Any) -> tuple[Any, Any]:
        """One step of the LSTM (Hochreiter and Schmidhuber, 1997; a forget gate that begins open)."""
        gates = _dense("lstm", tf.concat([seen, output], axis=1), 4 * self.width, 1.0)
        new, entrance, forget, leave = tf.split(gates, 4, axis=1)
        cell = tf.sigmoid(forget + 1.0) * cell + tf.sigmoid(entrance) * tf.tanh(new)
        return cell, tf.sigmoid(leave) * tf.tanh(cell)

    def _heads(self, output: Any, actions: int) -> tuple[Any, Any]:
        """The scores of the actions, and the value."""
        return _dense("action", output, actions, 0.01), _dense("value", output, 1, 1.0)[:, 0]


def _weights(name: str, shape: list[Any], scale: float) -> Any:
    start = tf.variance_scaling_initializer(scale=scale, mode="fan_in", seed=sum(name.encode()))
    return tf.get_variable(f"{name}_kernel", shape, initializer=start)


def _bias(name: str, width: int) -> Any:
    return tf.get_variable(f"{name}_bias", [width], initializer=tf.zeros_initializer())


def _dense(name: str, layer: Any, width: int, scale: float) -> Any:
    return layer @ _weights(name, [layer.shape[-1], width], scale) + _bias(name, width)
