"""TensorFlow's collectives in sim mode: the sums are real, their time is modelled.

Theory of operation
-------------------
Virtual workers share one interpreter and one TensorFlow, in which no two of them can be members of a cluster. So in a
virtual worker `MultiWorkerMirroredStrategy()` gives a VirtualStrategy, whose scope is empty: a model lives on the one
device. `model.fit` then differs in three places:

- The dataset is cut as TensorFlow cuts it: each worker gets its share (unless sharding is off), and of each batch one
  part in N.
- A step of training is two functions, with the exchange between them: `train_step` runs with an optimizer that keeps
  the gradients instead of applying them; the workers meet; the mean of their gradients is applied. Its time is that of
  the computation (`step_duration`) on the slowest worker, and then that of a ring all-reduce of the gradients' bytes
  (dualray/sim/collectives.py). Before the first step all take the weights of rank 0, which costs a broadcast.
- The metrics of training that Keras gets are the means of the workers'.

The values pass from worker to worker through this module, not through the object store; what the simulation sees of
them is their size. A worker whose rows are at an end joins with nothing until all are at the end.

A loop of one's own (`strategy.run`) is not looked into: it trains each worker on its own rows, in no time, until it
calls `strategy.reduce`.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, cast

import numpy as np
import tensorflow as tf
from tensorflow.python.data.experimental.ops import distribute
from tensorflow.python.distribute import collective_all_reduce_strategy, distribute_lib, input_ops
from tensorflow.python.eager.polymorphic_function import polymorphic_function

from dualray import api, runtime
from dualray.experimental.tf_stacks import take_over
from dualray.train import session

StepDuration = float | Callable[[int], float]
Values = list[np.ndarray[Any, Any]]


class Ring:
    """What the workers of one attempt have in their hands, in this process."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._given: dict[int, dict[int, Any]] = {}
        self._taken: dict[int, int] = {}
        self._combined: dict[int, Any] = {}

    def give(self, number: int, rank: int, values: Any) -> None:
        """A worker's part of an exchange."""
        self._given.setdefault(number, {})[rank] = values

    def take(self, number: int, combine: Callable[[list[Any]], Any]) -> Any:
        """What all parts together make, by rank; forgotten when all have taken it."""
        if number not in self._combined:
            parts = self._given.pop(number)
            assert len(parts) == self.size, "a worker has taken before all have given"
            self._combined[number] = combine([parts[rank] for rank in range(self.size)])
        combined = self._combined[number]
        self._taken[number] = self._taken.get(number, 0) + 1
        if self._taken[number] == self.size:
            del self._combined[number], self._taken[number]
        return combined


_rings: dict[bytes, tuple[Ring, set[int]]] = {}
"""By ledger, which each attempt has of its own; with the ranks that are in it."""


class VirtualCollectives:
    """One worker's side of the exchanges of its attempt."""

    def __init__(self, of: session.Session, step_duration: StepDuration) -> None:
        self._session = of
        self._context = of.context
        self._step_duration = step_duration
        self._ring = _rings[of.ledger.ref.object_id][0]
        self._number = 0
        self.is_multi_worker = False
        self.splits_next_dataset = False
        of.modelled.update(steps=0, compute_s=0.0, all_reduce_s=0.0, all_reduce_bytes=0)

    @property
    def rank(self) -> int:
        return self._context.world_rank

    @property
    def size(self) -> int:
        return self._context.world_size

    def compute(self, rows: int) -> None:
        """A step's computation on so many rows takes its time."""
        given = self._step_duration
        duration_s = float(given(rows) if callable(given) else given)
        self._session.modelled["steps"] += 1
        self._session.modelled["compute_s"] += duration_s
        time.sleep(duration_s)

    def mean(self, values: Values | None) -> Values | None:
        """The sum of all workers' values over the number of workers; None when nobody has any."""

        def combine(parts: list[Values | None]) -> Values | None:
            present = [part for part in parts if part is not None]
            return [sum(of_all) / self.size for of_all in zip(*present, strict=True)] if present else None

        size_bytes = sum(value.nbytes for value in values or [])
        mean: Values | None = self._exchange(values, combine, self._runtime.all_reduce_s(self._nodes, size_bytes))
        self._session.modelled["all_reduce_bytes"] += size_bytes
        return mean

    def from_first(self, values: Values) -> Values:
        """The values of rank 0."""
        takes_s = self._runtime.broadcast_s(self._nodes, sum(value.nbytes for value in values))
        first: Values = self._exchange(values, lambda parts: parts[0], takes_s)
        return first

    @property
    def _nodes(self) -> Sequence[str]:
        return self._context.nodes

    @property
    def _runtime(self) -> Any:
        return cast(Any, runtime.current("a collective"))  # a virtual worker's

    def _exchange(self, values: Any, combine: Callable[[list[Any]], Any], takes_s: float) -> Any:
        number, self._number = self._number, self._number + 1
        self._ring.give(number, self.rank, values)
        began_s = time.monotonic()
        [met] = api.get(self._session.ledger.meet.remote(self.rank, began_s))
        left_s = api.get(met) + takes_s - time.monotonic()
        if left_s > 0:
            time.sleep(left_s)
        self._session.modelled["all_reduce_s"] += takes_s
        return self._ring.take(number, combine)


@contextmanager
def virtual_collectives(step_duration: StepDuration) -> Iterator[None]:
    """In a virtual worker, around its training function."""
    training = session.current_or_none()
    assert training is not None, "a session has begun"
    key, rank = training.ledger.ref.object_id, training.context.world_rank
    _, members = _rings.setdefault(key, (Ring(training.context.world_size), set()))
    members.add(rank)
    training.virtual = VirtualCollectives(training, step_duration)
    try:
        yield
    finally:
        members.discard(rank)
        if not members:
            _rings.pop(key, None)


def current_or_none() -> VirtualCollectives | None:
    """Those of the virtual worker that runs, once it has made a strategy of many workers."""
    training = session.current_or_none()
    found: VirtualCollectives | None = None if training is None else training.virtual
    return found if found is not None and found.is_multi_worker else None


class VirtualStrategy:
    """What stands for MultiWorkerMirroredStrategy in a virtual worker; see the module."""

    def __init__(self, collectives: VirtualCollectives) -> None:
        self._collectives = collectives
        self.num_replicas_in_sync = collectives.size

    @property
    def cluster_resolver(self) -> Any:
        """Who this worker is among all."""
        size = self._collectives.size
        spec = tf.train.ClusterSpec({"worker": [f"virtual-{rank}:0" for rank in range(size)]})
        return tf.distribute.cluster_resolver.SimpleClusterResolver(
            spec, task_type="worker", task_id=self._collectives.rank
        )

    def scope(self) -> AbstractContextManager[VirtualStrategy]:
        """Empty: variables are the worker's own."""
        return nullcontext(self)

    def run(self, fn: Callable[..., Any], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        """Call it, here."""
        return fn(*args, **dict(kwargs or {}))

    def reduce(self, reduce_op: Any, value: Any, axis: int | None = None) -> Any:
        """Over all workers, with the time of an all-reduce; not within a `tf.function`."""
        if not tf.executing_eagerly():
            raise RuntimeError("in sim mode strategy.reduce cannot be called within a tf.function: call it outside")
        takes_mean = str(getattr(reduce_op, "name", reduce_op)).upper() == "MEAN"
        if axis is not None:
            value = (tf.reduce_mean if takes_mean else tf.reduce_sum)(value, axis=axis)
        value = tf.convert_to_tensor(value)
        mean = self._collectives.mean([value.numpy()])
        assert mean is not None, "there is at least this worker's"
        return tf.cast(mean[0] if takes_mean else mean[0] * self._collectives.size, value.dtype)

    def experimental_local_results(self, value: Any) -> tuple[Any, ...]:
        """The value: a worker has one replica."""
        return (value,)

    def experimental_distribute_dataset(self, dataset: Any, options: Any = None) -> Any:
        """This worker's part of it."""
        return split(dataset, self._collectives)

    def distribute_datasets_from_function(self, dataset_fn: Callable[[Any], Any], options: Any = None) -> Any:
        """What the function makes for this worker."""
        size, rank = self._collectives.size, self._collectives.rank
        return dataset_fn(
            tf.distribute.InputContext(num_input_pipelines=size, input_pipeline_id=rank, num_replicas_in_sync=size)
        )


def split(dataset: Any, collectives: VirtualCollectives) -> Any:
    """A worker's part of a dataset of global batches, as TensorFlow makes it (`DistributedDataset`)."""
    size, rank = collectives.size, collectives.rank
    if size == 1:
        return dataset
    batch_size = int(distribute.compute_batch_size(dataset).numpy())
    if batch_size != -1:
        sizes = distribute.batch_sizes_for_worker(batch_size, size, 1, rank)
        parts = dataset.rebatch(sizes)
    else:
        parts = distribute._LegacyRebatchDataset(dataset, size)
    options = tf.data.Options()
    options.autotune.enabled = False  # its thread, one for each worker's dataset, is waited for when the dataset ends
    return input_ops.auto_shard_dataset(parts, size, rank, size).with_options(options)


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
            raise
        if not self._has_begun:
            self._begin(data)
        logs, gradients = self._compute(data)
        self._collectives.compute(_rows(data))
        numbers = [np.asarray(value, np.float64) for value in tf.nest.flatten(logs)]
        mean = self._collectives.mean([gradient.numpy() for gradient in gradients] + numbers)
        assert mean is not None, "there is at least this worker's"
        self._apply(self._gradients_of(mean))
        return tf.nest.pack_sequence_as(logs, [float(value) for value in mean[len(self._variables) :]])

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


def _rows(data: Any) -> int:
    first = tf.nest.flatten(data)[0]
    return int(first.shape[0]) if first.shape.rank else 1


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
