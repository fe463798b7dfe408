"""Iterators over blocks: rows, batches, and batches for TensorFlow.

A `DataIterator` gives the blocks of a dataset or of a training worker's shard. Each pass over it reads the blocks
again. dualray cuts batches across blocks, so that only the last batch can be smaller.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dualray import runtime
from dualray.data import blocks
from dualray.data.blocks import Batch, Row
from dualray.data.context import DataContext
from dualray.data.draws import Seeds
from dualray.data.executor import load
from dualray.data.passes import Passes
from dualray.data.plan import Part, Read, Transform, block_of
from dualray.data.schema import Schema
from dualray.data.torch_batches import collated, torch_dataset

Columns = str | Sequence[str] | Mapping[str, str]


class DataIterator(ABC):
    """Rows over which you can iterate several times."""

    @abstractmethod
    def _tables(self) -> Iterator[pa.Table]:
        """The blocks, in order."""

    def iter_rows(self) -> Iterator[Row]:
        """Iterate over the rows as dicts."""
        return Passes(lambda: (row for table in self._tables() for row in blocks.rows_of(table)))

    def iter_batches(
        self,
        *,
        batch_size: int | None = 256,
        batch_format: str | None = "numpy",
        drop_last: bool = False,
        local_shuffle_buffer_size: int | None = None,
        local_shuffle_seed: int | None = None,
        prefetch_batches: int = 1,
    ) -> Iterator[Batch]:
        """Iterate over batches of rows. Each `for` over what this returns reads the batches from the start.

        Args:
            batch_size: rows of a batch; None makes a batch of each block.
            batch_format: "numpy" (a dict of arrays), "pandas" or "pyarrow".
            drop_last: leave out the last batch if it is smaller.
            local_shuffle_buffer_size: draw rows at random from a buffer of at least this number of rows.
            local_shuffle_seed: seed of these draws. Default: other draws each time, which follow from the context's
                `shuffle_seed`.
            prefetch_batches: accepted as in Ray, and without effect; the context's limits decide what is computed
                ahead.

        Raises:
            ValueError: the batch size or the format is wrong.
        """
        check_batch_size(batch_size)
        form = blocks.check_format(batch_format)
        if local_shuffle_buffer_size and batch_size is None:
            raise ValueError("iter_batches: local_shuffle_buffer_size= needs a batch_size=, and batch_size is None")

        def begin() -> Iterator[Batch]:
            tables: Iterator[pa.Table] = (table for table in self._tables() if table.num_rows)
            if local_shuffle_buffer_size:
                random = np.random.default_rng(Seeds(local_shuffle_seed).next())
                tables = _stirred(tables, local_shuffle_buffer_size, random)
            return (blocks.batch_of(table, form) for table in batched(tables, batch_size, drop_last=drop_last))

        return Passes(begin)

    def iter_tf_batches(
        self, *, batch_size: int | None = 256, dtypes: Any = None, drop_last: bool = False, **options: Any
    ) -> Iterator[Any]:
        """Iterate over batches as dicts of TensorFlow tensors.

        Args:
            batch_size, drop_last, options: as for `iter_batches`.
            dtypes: a `tf.DType` for all columns, or a dict with one for each column. Default: the types of the columns.
        """
        import tensorflow as tf  # noqa: PLC0415 - only programs that use TensorFlow pay for it

        batches = self.iter_batches(batch_size=batch_size, drop_last=drop_last, **options)
        return Passes(
            lambda: (
                {name: tf.convert_to_tensor(_cast(values, dtypes, name)) for name, values in batch.items()}
                for batch in batches
            )
        )

    def to_tf(
        self,
        feature_columns: Columns,
        label_columns: Columns,
        *,
        batch_size: int = 1,
        drop_last: bool = False,
        additional_columns: Columns | None = None,
        **options: Any,
    ) -> Any:
        """Return a `tf.data.Dataset` of (features, labels) or (features, labels, additional).

        TensorFlow does not shard it any further.

        Args:
            feature_columns, label_columns, additional_columns: the name of a column, which gives its tensor. A list of
                names, or a dict of column to new name, gives a dict of tensors.
            batch_size: rows of a batch; for a strategy of several workers, of all their batches together.
            drop_last, options: as for `iter_batches`.

        Raises:
            ValueError: a column does not exist, or cannot become a tensor.
        """
        import tensorflow as tf  # noqa: PLC0415 - as above

        groups = [feature_columns, label_columns] + ([] if additional_columns is None else [additional_columns])
        example = next((table for table in self._tables() if table.num_columns), pa.table({}))
        signature = tuple(_chosen(group, lambda name: _spec(tf, example, name)) for group in groups)
        ahead = self.for_other_threads()

        def generate() -> Iterator[Any]:
            for batch in ahead.iter_batches(batch_size=batch_size, drop_last=drop_last, **options):
                yield tuple(_chosen(group, lambda name: batch[name]) for group in groups)  # noqa: B023 - used at once

        dataset = tf.data.Dataset.from_generator(generate, output_signature=signature)
        return unsharded(tf, dataset)

    def iter_torch_batches(
        self,
        *,
        batch_size: int | None = 256,
        dtypes: Any = None,
        device: Any = "auto",
        collate_fn: Callable[[Any], Any] | None = None,
        pin_memory: bool = False,
        **options: Any,
    ) -> Iterator[Any]:
        """Iterate over batches as dicts of PyTorch tensors.

        Args:
            batch_size: rows of a batch; None makes a batch of each block.
            dtypes: a `torch.dtype` for all columns, or a dict with one for each column. Default: the types of the
                columns.
            device: the device of the tensors. Default: the CPU.
            collate_fn: makes a batch of a dict of numpy arrays, instead of a dict of tensors. A `CollateFn` says which
                form it takes.
            pin_memory: accepted as in Ray, and without effect.
            options: as for `iter_batches`.
        """
        form = getattr(collate_fn, "batch_format", "numpy")
        batches = self.iter_batches(batch_size=batch_size, batch_format=form, **options)
        return Passes(lambda: collated(batches, collate_fn, dtypes, device))

    def to_torch(
        self,
        *,
        label_column: str | None = None,
        feature_columns: Sequence[Any] | Mapping[str, Sequence[str]] | None = None,
        label_column_dtype: Any = None,
        feature_column_dtypes: Any = None,
        batch_size: int = 1,
        unsqueeze_label_tensor: bool = True,
        unsqueeze_feature_tensors: bool = True,
        **options: Any,
    ) -> Any:
        """Return a `torch.utils.data.IterableDataset` of pairs (features, label).

        Args:
            label_column: the column of the labels. Default: the label is None.
            feature_columns: names of columns, which are joined to one tensor. A list of lists, or a dict of lists,
                gives a list or a dict of tensors. Default: all other columns.
            label_column_dtype, feature_column_dtypes: types of the tensors.
            batch_size: rows of a batch.
            unsqueeze_label_tensor, unsqueeze_feature_tensors: give tensors of one dimension a second one.
            options: as for `iter_batches`.
        """
        return torch_dataset(
            lambda: self.iter_torch_batches(batch_size=batch_size, **options),
            label_column,
            feature_columns,
            (label_column_dtype, feature_column_dtypes),
            (unsqueeze_label_tensor, unsqueeze_feature_tensors),
        )

    def schema(self) -> Schema | None:
        """Return the names and types of the columns, from the first block that has any; None if no block has."""
        return next((Schema(table.schema) for table in self._tables() if table.num_columns), None)

    def stats(self) -> str:
        """Return a text about the dataset. `dualray report` shows the tasks of a run and their times."""
        return repr(self)

    def get_context(self) -> DataContext:
        """Return the context of this process."""
        return DataContext.get_current()

    def count(self) -> int:
        """Return the number of rows."""
        return sum(table.num_rows for table in self._tables())

    def materialize(self) -> Any:
        """Return a `Dataset` of these rows, whose blocks are in the object store."""
        sources = import_module("dualray.data.sources")  # which imports this module
        return sources.from_arrow([table for table in self._tables() if table.num_rows])

    def for_other_threads(self) -> DataIterator:
        """The same, for a thread of TensorFlow's: in sim mode only user code's own thread may wait for blocks, so they
        are fetched now."""
        running = runtime.current_or_none()
        return self if running is None or running.threads_may_wait else Fetched(list(self._tables()))


class Fetched(DataIterator):
    """Blocks that are here."""

    def __init__(self, tables: list[pa.Table]) -> None:
        self._blocks = tables

    def _tables(self) -> Iterator[pa.Table]:
        return iter(self._blocks)


class Shard(DataIterator):
    """Some inputs of a plan whose steps look at one block at a time: made where it is used, in that process.

    Attributes:
        rows: how many rows, if that is known.
    """

    def __init__(
        self, parts: Sequence[Part], transform: Transform | None, cut: Sequence[tuple[int, int] | None]
    ) -> None:
        self._parts = list(parts)
        self._transform = transform
        self._cut = list(cut)
        self.rows = sum(
            high - low for low, high in (entry or (0, part.rows or 0) for entry, part in zip(cut, parts, strict=True))
        )

    def __repr__(self) -> str:
        return f"<a shard of {self.rows} rows in {len(self._parts)} blocks>"

    def count(self) -> int:
        """How many rows it has."""
        return self.rows

    def _tables(self) -> Iterator[pa.Table]:
        for part, cut in zip(self._parts, self._cut, strict=True):
            table = part.load() if isinstance(part, Read) else load(part)
            if self._transform is not None:
                table = block_of(self._transform, table)
            yield table if cut is None else table.slice(cut[0], cut[1] - cut[0])


def unsharded(tf: Any, dataset: Any) -> Any:
    """The dataset, of which a strategy gives every worker the whole: it is the worker's share already."""
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return dataset.with_options(options)


def check_batch_size(batch_size: int | None) -> None:
    """Raises ValueError for a batch size that cannot be."""
    if batch_size is not None and not (type(batch_size) is int and batch_size >= 1):
        raise ValueError(f"batch_size={batch_size!r} must be an int of at least 1, or None")


def batched(tables: Iterator[pa.Table], size: int | None, *, drop_last: bool = False) -> Iterator[pa.Table]:
    """Tables of `size` rows each, cut across those given."""
    if size is None:
        yield from tables
        return
    waiting: deque[pa.Table] = deque()
    rows = 0
    for table in tables:
        waiting.append(table)
        rows += table.num_rows
        del table
        while rows >= size:
            taken, need = [], size
            while need:
                head = waiting.popleft()
                if head.num_rows > need:
                    waiting.appendleft(head.slice(need))
                    head = head.slice(0, need)
                need -= head.num_rows
                taken.append(head)
            rows -= size
            yield blocks.joined(taken)
            del taken
    if rows and not drop_last:
        yield blocks.joined(waiting)


def _stirred(tables: Iterator[pa.Table], least: int, random: np.random.Generator) -> Iterator[pa.Table]:
    """Rows in a random order, drawn from a buffer of at least `least` rows."""
    waiting: list[pa.Table] = []
    rows = 0
    for table in tables:
        waiting.append(table)
        rows += table.num_rows
        if rows >= 2 * least:
            whole = blocks.joined(waiting)
            whole = blocks.taken(whole, random.permutation(rows))
            yield whole.slice(least)
            waiting, rows = [whole.slice(0, least)], least
    if waiting:
        whole = blocks.joined(waiting)
        yield blocks.taken(whole, random.permutation(whole.num_rows))


def _chosen(columns: Columns, get: Any) -> Any:
    if isinstance(columns, str):
        return get(columns)
    if isinstance(columns, Mapping):
        return {new: get(name) for name, new in columns.items()}
    return {name: get(name) for name in columns}


def _spec(tf: Any, table: pa.Table, name: str) -> Any:
    if name not in table.column_names:
        raise ValueError(
            f"the data has no column {name!r}; the columns are {', '.join(map(repr, table.column_names)) or 'none'}"
        )
    values = blocks.numpy_of(table[name])
    if values.dtype == object and not (len(values) and isinstance(values[0], str | bytes)):
        raise ValueError(
            f"column {name!r} of type {table[name].type} cannot become a tensor: its rows have different shapes"
        )
    dtype = tf.string if values.dtype == object else tf.as_dtype(values.dtype)
    return tf.TensorSpec(shape=(None, *values.shape[1:]), dtype=dtype)


def _cast(values: NDArray[Any], dtypes: Any, name: str) -> NDArray[Any]:
    wanted = dtypes.get(name) if isinstance(dtypes, Mapping) else dtypes
    return values if wanted is None else values.astype(wanted.as_numpy_dtype)
