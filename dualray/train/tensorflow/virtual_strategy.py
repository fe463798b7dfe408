"""A stand-in for MultiWorkerMirroredStrategy in a virtual worker, for `model.fit` and for loops of the user's own.

Theory of operation
-------------------
A virtual worker is one replica, and its scope puts nothing between the program and TensorFlow: a variable is the
worker's own, on the one device. What real workers do together is done here:

- Variables made in the scope take the values of rank 0 before the first step, in one broadcast; those made within
  `strategy.run`, as they are made.
- `strategy.run(fn)` takes the time of a step, and calls `fn` in a replica context, TensorFlow's default one, which then
  knows the number and the count of the replicas. Whoever reduces there, an optimizer's `apply_gradients` above all, has
  that context's `all_reduce` do it, or, by `merge_call`, the default strategy: exchanges of all workers here.
- An exchange waits in virtual time, which only the worker's own thread may do: not TensorFlow's, which run what has
  been compiled. So a `tf.function` that calls `run` or reduces is found out when it is first traced (`_WaitsError`),
  and called as the Python function that it is from then on; within `run` all of them are.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

import tensorflow as tf
from tensorflow.python.data.experimental.ops import distribute
from tensorflow.python.distribute import input_ops

from dualray.shared.nearest import nearest
from dualray.train.virtual_collectives import VirtualCollectives, current_or_none


class _WaitsError(BaseException):
    """Raised where a function that is being traced would wait for other workers; ends at the outermost function. Not an
    Exception: neither AutoGraph nor a program's own handlers are to see it."""


class VirtualStrategy:
    """See the module."""

    def __init__(self, collectives: VirtualCollectives) -> None:
        self._collectives = collectives
        self._unsettled: list[Any] = []
        self.num_replicas_in_sync = collectives.size

    def __getattr__(self, name: str) -> NoReturn:
        there = [each for each in dir(type(self)) if not each.startswith("_")]
        raise AttributeError(
            f"in sim mode MultiWorkerMirroredStrategy has no {name!r}{nearest(name, there)}; its attributes are "
            f"{', '.join(there)}"
        )

    @property
    def cluster_resolver(self) -> Any:
        """Who this worker is among all."""
        size = self._collectives.size
        spec = tf.train.ClusterSpec({"worker": [f"virtual-{rank}:0" for rank in range(size)]})
        return tf.distribute.cluster_resolver.SimpleClusterResolver(
            spec, task_type="worker", task_id=self._collectives.rank
        )

    @contextmanager
    def scope(self) -> Iterator[VirtualStrategy]:
        """Variables made in it are the same in all workers, from the first step on."""

        def make(next_creator: Callable[..., Any], **kwargs: Any) -> Any:
            variable = next_creator(**kwargs)
            self._unsettled.append(variable)
            return variable

        with tf.variable_creator_scope(make):
            yield self

    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        options: Any = None,
    ) -> Any:
        """Call it, as one step of this worker, in a replica context."""
        collectives, given = self._collectives, dict(kwargs or {})
        _must_be_eager()
        self._settle()
        collectives.compute(_rows(args, given))
        before, collectives.is_replica = collectives.is_replica, True
        try:
            with tf.variable_creator_scope(self._settled):
                return fn(*args, **given)
        finally:
            collectives.is_replica = before

    def reduce(self, reduce_op: Any, value: Any, axis: int | None = None) -> Any:
        """Over all workers, with the time of an all-reduce."""
        _must_be_eager()
        takes_mean = _takes_mean(reduce_op)
        if axis is not None:
            value = tf.nest.map_structure(lambda it: (tf.reduce_mean if takes_mean else tf.reduce_sum)(it, axis), value)
        self._settle()
        return _reduced(self._collectives, takes_mean, value)

    def gather(self, value: Any, axis: int) -> Any:
        """The values of all workers, one after the other along an axis."""
        _must_be_eager()
        return tf.nest.map_structure(lambda it: _gathered(self._collectives, it, axis), value)

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

    def _settle(self) -> None:
        """Variables of the scope take the values of rank 0."""
        unsettled, self._unsettled = self._unsettled, []
        if unsettled:
            first = self._collectives.from_first([variable.numpy() for variable in unsettled])
            for variable, value in zip(unsettled, first, strict=True):
                variable.assign(value)

    def _settled(self, next_creator: Callable[..., Any], **kwargs: Any) -> Any:
        variable = next_creator(**kwargs)
        [first] = self._collectives.from_first([variable.numpy()])
        variable.assign(first)
        return variable


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


def rows_of(data: Any) -> int:
    """How many rows a batch has."""
    first = tf.nest.flatten(data)[0]
    return int(first.shape[0]) if first.shape.rank else 1


def _rows(args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    found = [each for each in tf.nest.flatten([list(args), dict(kwargs)]) if tf.is_tensor(each)]
    return rows_of(found) if found else 1


def _must_be_eager() -> None:
    if not tf.executing_eagerly():
        raise _WaitsError


def _takes_mean(reduce_op: Any) -> bool:
    return str(getattr(reduce_op, "name", reduce_op)).upper() == "MEAN"


def _reduced(collectives: VirtualCollectives, takes_mean: bool, value: Any) -> Any:
    """The sum of all workers' tensors, or their mean, in the structure that they have."""
    tensors = [tf.convert_to_tensor(tensor) for tensor in tf.nest.flatten(value)]
    sums = collectives.sum([tensor.numpy() for tensor in tensors])
    if takes_mean:
        sums = [total / collectives.size for total in sums]
    reduced = [tf.cast(total, tensor.dtype) for total, tensor in zip(sums, tensors, strict=True)]
    return tf.nest.pack_sequence_as(value, reduced)


def _gathered(collectives: VirtualCollectives, value: Any, axis: int) -> Any:
    tensor = tf.convert_to_tensor(value)
    return tf.cast(collectives.gather(tensor.numpy(), axis), tensor.dtype)


# ---- Where TensorFlow asks ---------------------------------------------------------------------------------------


def _replica_or_none() -> VirtualCollectives | None:
    """Those of the virtual worker that runs, within `strategy.run`."""
    collectives = current_or_none()
    return collectives if collectives is not None and collectives.is_replica else None


def choose_functions(function: Any) -> None:
    """A function of TensorFlow's that waits for other workers is called, not compiled."""
    original = function.__call__

    @functools.wraps(original)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        collectives = current_or_none()
        if collectives is None or not tf.executing_eagerly():
            return original(self, *args, **kwargs)
        if not collectives.is_replica and self not in collectives.eager:
            try:
                return original(self, *args, **kwargs)
            except _WaitsError:
                collectives.eager.add(self)
        return self._python_function(*args, **kwargs)

    function.__call__ = call


def choose_replicas(context: Any, extended: Any) -> None:
    """The default strategy's replica context is that of a virtual worker, within its `strategy.run`."""
    original_id, original_count = context.replica_id_in_sync_group, extended._num_replicas_in_sync
    original_reduce, original_gather = extended._reduce_to, extended._gather_to_implementation
    original_batch, original_all_reduce = extended._batch_reduce_to, context.all_reduce

    def replica_id(self: Any) -> Any:
        collectives = _replica_or_none()
        return original_id.fget(self) if collectives is None else collectives.rank

    def count(self: Any) -> int:
        collectives = _replica_or_none()
        return int(original_count.fget(self)) if collectives is None else collectives.size

    def all_reduce(self: Any, reduce_op: Any, value: Any, options: Any = None) -> Any:
        collectives = _replica_or_none()
        if collectives is None:
            return original_all_reduce(self, reduce_op, value, options)
        _must_be_eager()
        reduced = tf.nest.flatten(_reduced(collectives, _takes_mean(reduce_op), value))

        @tf.custom_gradient  # type: ignore[untyped-decorator]
        def known(*_: Any) -> Any:  # no more than that: what is watched here, is watched of all workers of the thread
            return reduced, lambda *grads: self.all_reduce(reduce_op, list(grads))

        return tf.nest.pack_sequence_as(value, known(*map(tf.convert_to_tensor, tf.nest.flatten(value))))

    def reduce_to(self: Any, reduce_op: Any, value: Any, destinations: Any, options: Any) -> Any:
        collectives = _replica_or_none()
        if collectives is None:
            return original_reduce(self, reduce_op, value, destinations, options)
        _must_be_eager()
        return _reduced(collectives, _takes_mean(reduce_op), [value])[0]

    def batch_reduce_to(self: Any, reduce_op: Any, value_destination_pairs: Any, options: Any) -> Any:
        collectives = _replica_or_none()
        if collectives is None:
            return original_batch(self, reduce_op, value_destination_pairs, options)
        _must_be_eager()
        values = [tf.convert_to_tensor(value) for value, _ in value_destination_pairs]
        return _reduced(collectives, _takes_mean(reduce_op), values)

    def gather_to(self: Any, value: Any, destinations: Any, axis: int, options: Any) -> Any:
        collectives = _replica_or_none()
        if collectives is None:
            return original_gather(self, value, destinations, axis, options)
        _must_be_eager()
        return _gathered(collectives, value, axis)

    context.replica_id_in_sync_group, context.all_reduce = property(replica_id), all_reduce
    extended._num_replicas_in_sync = property(count)
    extended._reduce_to, extended._batch_reduce_to = reduce_to, batch_reduce_to
    extended._gather_to_implementation = gather_to
