"""TensorFlow's collectives in sim mode: the sums are real, their time is modelled.

Theory of operation
-------------------
Virtual workers share one interpreter and one TensorFlow, in which no two of them can be members of a cluster. So in a
virtual worker `MultiWorkerMirroredStrategy()` gives a VirtualStrategy (virtual_strategy.py), whose exchanges are those
of dualray/train/virtual_collectives.py. `model.fit` differs in three places:

- The dataset is cut as TensorFlow cuts it: each worker gets its share (unless sharding is off), and of each batch one
  part in N.
- A step of training is two functions, with the exchange between them: `train_step` runs with an optimizer that keeps
  the gradients instead of applying them; the workers meet; the mean of their gradients is applied. Its time is that of
  the computation (`step_duration`) on the slowest worker, and then that of a ring all-reduce of the gradients' bytes
  (dualray/sim/network/collectives.py). Before the first step all take the weights of rank 0, which costs a broadcast.
- The metrics of training that Keras gets are the means of the workers'.

The values pass from worker to worker through this process, not through the object store; what the simulation sees of
them is their size. A worker whose rows are at an end joins with nothing until all are at the end.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.distribute import collective_all_reduce_strategy, distribute_lib
from tensorflow.python.eager.polymorphic_function import polymorphic_function

from dualray.experimental.tf_stacks import set_aside, take_over
from dualray.train import session
from dualray.train.tensorflow.virtual_strategy import (
    VirtualStrategy,
    choose_functions,
    choose_replicas,
    rows_of,
    split,
)
from dualray.train.virtual_collectives import (
    Values,
    VirtualCollectives,
    current_or_none,
)

__all__ = ["install", "set_aside"]

# ---- A step of training ------------------------------------------------------------------------------------------


class Step:
    """A model's `train_function`: takes the next batch, and trains on it with the others."""

    def __init__(self, model: Any, collectives: VirtualCollectives) -> None:
        self._model = model
        self._collectives = collectives
        self._variables: list[Any] = []
        self._compute = _compiled(self._gradients, model)
        self._apply = _compiled(self._update, model)
        self._has_begun = False

    def __call__(self, iterator: Any) -> Any:
        per_call = self._model._steps_per_execution
        logs = None
        for _ in range(1 if per_call is None else int(per_call.numpy())):
            logs = self._one(iterator)
        return logs

    def _one(self, iterator: Any) -> Any:
        try:
            data = next(iterator)
        except (StopIteration, tf.errors.OutOfRangeError):
            while (mean := self._collectives.mean(None)) is not None:
                self._apply(self._gradients_of(mean))
            self._count_no_step()
            raise
        if not self._has_begun:
            self._begin(data)
        logs, gradients = self._compute(data)
        self._collectives.compute(rows_of(data))
        numbers = [np.asarray(value, np.float64) for value in tf.nest.flatten(logs)]
        mean = self._collectives.mean([gradient.numpy() for gradient in gradients] + numbers)
        assert mean is not None, "there is at least this worker's"
        self._apply(self._gradients_of(mean))
        return tf.nest.pack_sequence_as(logs, [float(value) for value in mean[len(self._variables) :]])

    def _count_no_step(self) -> None:
        """TensorFlow finds the end of the data in the middle of a step, one compiled function, of which it has run by
        then what needs no data: the optimizer has counted that step. So Adam's next steps are of another size, and a
        schedule's next rates. (An optimizer of Keras's `legacy` counts after the update, and a model that is run
        eagerly asks for data first.)"""
        optimizer = self._model.optimizer
        if not self._model.run_eagerly and not isinstance(optimizer, tf.keras.optimizers.legacy.Optimizer):
            optimizer.iterations.assign_add(1)

    def _begin(self, data: Any) -> None:
        """All start with the weights of rank 0."""
        self._has_begun = True
        if not self._model.run_eagerly:
            self._compute.get_concrete_function(data)  # makes the variables of a model that is not built yet
        self._model.set_weights(self._collectives.from_first(self._model.get_weights()))

    def _gradients(self, data: Any) -> tuple[Any, list[Any]]:
        """What `train_step` reports, and the gradients that it would have applied."""
        kept: list[tuple[Any, Any]] = []
        optimizer = self._model.optimizer

        def keep(grads_and_vars: Any, *_: Any, **__: Any) -> Any:
            kept.extend((gradient, variable) for gradient, variable in grads_and_vars if gradient is not None)
            return optimizer.iterations

        optimizer.__dict__["apply_gradients"] = keep
        try:
            logs = self._model.train_step(data)
        finally:
            del optimizer.__dict__["apply_gradients"]
        self._variables = [variable for _, variable in kept]
        return logs, [tf.convert_to_tensor(gradient) for gradient, _ in kept]

    def _gradients_of(self, mean: Values) -> list[Any]:
        return [
            tf.cast(value, variable.dtype) for value, variable in zip(mean, self._variables, strict=False)
        ]  # after the gradients come the metrics

    def _update(self, gradients: list[Any]) -> None:
        self._model.optimizer.apply_gradients(list(zip(gradients, self._variables, strict=True)))
        self._model._train_counter.assign_add(1)


def _compiled(function: Callable[..., Any], model: Any) -> Any:
    if model.run_eagerly:
        return function
    made = tf.function(function, reduce_retracing=True)
    made._omit_frequent_tracing_warning = True  # it counts those of all workers together
    return made


# ---- Where TensorFlow and Keras ask ------------------------------------------------------------------------------


@functools.cache
def install() -> None:
    """Once in a process, by the driver: an import in a virtual worker may be met half done by another. Elsewhere than
    in a virtual worker that trains nothing is changed."""
    take_over()
    # It logs with this lock held, and logging asks for the time: another virtual worker, of the same thread, runs on.
    polymorphic_function._frequent_tracing_detector_manager._lock = threading.RLock()
    _choose_strategy(collective_all_reduce_strategy.CollectiveAllReduceStrategy)
    _choose_dataset(distribute_lib._DefaultDistributionExtended)
    choose_replicas(distribute_lib._DefaultReplicaContext, distribute_lib._DefaultDistributionExtended)
    choose_functions(polymorphic_function.Function)
    _choose_step(tf.keras.Model)


def _choose_strategy(strategy: Any) -> None:
    def new(cls: Any, *_: Any, **__: Any) -> Any:
        training = session.current_or_none()
        if training is None or training.virtual is None:
            return object.__new__(cls)
        training.virtual.is_multi_worker = True
        return VirtualStrategy(training.virtual)

    strategy.__new__ = staticmethod(new)


def _choose_dataset(extended: Any) -> None:
    original = extended._experimental_distribute_dataset

    def distributed(self: Any, dataset: Any, options: Any) -> Any:
        collectives = current_or_none()
        if collectives is None or not collectives.splits_next_dataset:
            return original(self, dataset, options)
        collectives.splits_next_dataset = False
        return split(dataset, collectives)

    extended._experimental_distribute_dataset = distributed


def _choose_step(model: Any) -> None:
    original_fit, original_make = model.fit, model.make_train_function
    original_result = model._validate_and_get_metrics_result

    @functools.wraps(original_fit)
    def fit(self: Any, *args: Any, **kwargs: Any) -> Any:
        collectives = current_or_none()
        if collectives is not None:
            collectives.splits_next_dataset = True  # of training, not of validation
        return original_fit(self, *args, **kwargs)

    @functools.wraps(original_make)
    def make_train_function(self: Any, force: bool = False) -> Any:
        collectives = current_or_none()
        if collectives is None:
            return original_make(self, force)
        if self.train_function is None or force or not isinstance(self.train_function, Step):
            self.train_function = Step(self, collectives)
        return self.train_function

    @functools.wraps(original_result)
    def result(self: Any, logs: Any) -> Any:
        if current_or_none() is None or not isinstance(self.train_function, Step):
            return original_result(self, logs)
        return logs  # those of all workers, and not what this one's metrics say

    model.fit, model.make_train_function, model._validate_and_get_metrics_result = fit, make_train_function, result
