"""Dataset: rows in Arrow blocks, and lazy operations on them.

Nothing runs before you consume a dataset: count, take, iterate, write or materialize it. See docs/data.md.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.csv
import pyarrow.parquet

from dualray.data import blocks, exchange
from dualray.data.blocks import Row
from dualray.data.context import DataContext
from dualray.data.executor import ensure_initialized, execute, in_store
from dualray.data.grouped import GroupedData, aggregated
from dualray.data.iterator import Shard, batched, check_batch_size
from dualray.data.plan import ActorMap, Exchange, Held, Limit, Map, Plan, Transform, Union, chained
from dualray.data.planned import PlannedRows

BATCH_ROWS = 1024
SHOWN = 20


class Dataset(PlannedRows):
    """A lazy table of rows. `from_items`, `read_parquet` and others create one, and its methods return further ones.

    A dataset describes the steps that compute its rows. You can consume it several times; each time dualray runs the
    steps, unless you `materialize` it.
    """

    def __repr__(self) -> str:
        rows = self._plan.rows
        return f"Dataset({self._plan}, num_rows={'?' if rows is None else rows})"

    # ---- Rows and batches ----

    def map(self, fn: Callable[[Row], Mapping[str, Any]], **needs: Any) -> Dataset:
        """Apply a function to each row.

        Args:
            fn: a function that takes a row, a dict, and returns a row.
            needs: options of the tasks: num_cpus, num_gpus, resources, max_retries ...
        """

        def transform(tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
            return (blocks.table_of_rows([fn(row) for row in blocks.rows_of(table)]) for table in tables)

        return self._mapped("Map", fn, transform, needs, keeps_rows=True)

    def flat_map(self, fn: Callable[[Row], Sequence[Mapping[str, Any]]], **needs: Any) -> Dataset:
        """Apply a function that returns a list of rows to each row; arguments as for `map`."""

        def transform(tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
            return (blocks.table_of_rows([new for row in blocks.rows_of(table) for new in fn(row)]) for table in tables)

        return self._mapped("FlatMap", fn, transform, needs)

    def filter(self, fn: Callable[[Row], bool] | Any, **needs: Any) -> Dataset:
        """Keep the rows for which `fn` is true. An expression of `pyarrow.compute` is much faster than a function."""
        if isinstance(fn, pa.compute.Expression):

            def transform(tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
                return (table.filter(fn) for table in tables)
        else:

            def transform(tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
                for table in tables:
                    keep = [index for index, row in enumerate(blocks.rows_of(table)) if fn(row)]
                    yield blocks.taken(table, np.array(keep, np.int64))

        return self._mapped("Filter", fn, transform, needs)

    def map_batches(
        self,
        fn: Any,
        *,
        batch_size: int | None = BATCH_ROWS,
        batch_format: str | None = "numpy",
        fn_args: Sequence[Any] = (),
        fn_kwargs: Mapping[str, Any] | None = None,
        fn_constructor_args: Sequence[Any] = (),
        fn_constructor_kwargs: Mapping[str, Any] | None = None,
        concurrency: int | None = None,
        **needs: Any,
    ) -> Dataset:
        """Apply a function to each batch. A generator function can return several batches for one.

        Args:
            fn: a function of a batch, or a class. Each actor of a pool creates an instance of the class and calls it.
            batch_size: most rows of a batch, which is cut within a block; None means whole blocks. Default 1024.
            batch_format: "numpy" (a dict of arrays; the default), "pandas" or "pyarrow".
            fn_args, fn_kwargs: further arguments for `fn`.
            fn_constructor_args, fn_constructor_kwargs: arguments of the class.
            concurrency: number of actors; for a class only. Default 1.
            needs: options of the tasks or actors: num_cpus, num_gpus, resources ... By default actors hold no CPU,
                because the tasks before and after them need some.

        Raises:
            TypeError, ValueError: `fn` has a wrong type, `concurrency` is given for a function, or the batch format is
                unknown.
        """
        check_batch_size(batch_size)
        form, kwargs = blocks.check_format(batch_format), dict(fn_kwargs or {})

        def transform_of(call: Callable[..., Any]) -> Transform:
            def transform(tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
                for table in tables:
                    for part in batched(iter([table]), batch_size):
                        made = call(blocks.batch_of(part, form), *fn_args, **kwargs)
                        many = made if inspect.isgenerator(made) else [made]
                        yield from (blocks.table_of_batch(batch, f"map_batches({name})") for batch in many)

            return transform

        name = getattr(fn, "__name__", type(fn).__name__)
        if isinstance(fn, type):
            size = 1 if concurrency is None else concurrency
            if not is_count(size, 1):
                raise ValueError(f"concurrency={concurrency!r} must be an int of at least 1: the number of actors")
            step = ActorMap(
                name=f"MapBatches({name})",
                make=lambda: transform_of(fn(*fn_constructor_args, **(fn_constructor_kwargs or {}))),
                size=size,
                needs=needs,
            )
            return Dataset(self._plan.then(step))
        if fn_constructor_args or fn_constructor_kwargs:
            raise TypeError(f"map_batches({name}): only a class takes constructor arguments, but this is a function")
        return self._mapped("MapBatches", fn, transform_of(fn), needs)

    def add_column(self, col: str, fn: Callable[[Any], Any]) -> Dataset:
        """Add a column. `fn` takes a batch, a pandas DataFrame, and returns the values of the column."""

        def add(table: pa.Table) -> pa.Table:
            return table.append_column(col, blocks.column_of(np.asarray(fn(blocks.batch_of(table, "pandas")))))

        return self._tables_mapped(f"AddColumn({col})", add, keeps_rows=True)

    def select_columns(self, cols: str | Sequence[str]) -> Dataset:
        """Keep only these columns, in this order."""
        names = [cols] if isinstance(cols, str) else list(cols)
        return self._tables_mapped("SelectColumns", lambda table: table.select(names), keeps_rows=True)

    def drop_columns(self, cols: str | Sequence[str]) -> Dataset:
        """Remove these columns."""
        names = [cols] if isinstance(cols, str) else list(cols)
        return self._tables_mapped("DropColumns", lambda table: table.drop_columns(names), keeps_rows=True)

    def rename_columns(self, names: Mapping[str, str]) -> Dataset:
        """Rename columns: {old: new}."""
        chosen = dict(names)
        return self._tables_mapped(
            "RenameColumns",
            lambda table: table.rename_columns([chosen.get(name, name) for name in table.column_names]),
            keeps_rows=True,
        )

    # ---- Order and blocks ----

    def repartition(self, num_blocks: int) -> Dataset:
        """Distribute the rows over this number of blocks of about equal size."""
        count = _positive("num_blocks", num_blocks)
        step = Exchange(
            name=f"Repartition({count})", run=lambda stream, _: exchange.repartition(stream, count), outputs=count
        )
        return Dataset(self._plan.then(step))

    def random_shuffle(self, *, seed: int | None = None, num_blocks: int | None = None) -> Dataset:
        """Put all rows into a random order.

        Args:
            seed: seed of the order. Default: the context's `shuffle_seed`.
            num_blocks: blocks of the result. Default: as many as before.
        """
        chosen = DataContext.get_current().shuffle_seed if seed is None else seed
        outputs = None if num_blocks is None else _positive("num_blocks", num_blocks)
        step = Exchange(
            name="RandomShuffle",
            run=lambda stream, about: exchange.random_shuffle(stream, max(1, outputs or about), chosen),
            outputs=outputs,
        )
        return Dataset(self._plan.then(step))

    def sort(self, key: str | Sequence[str], descending: bool | Sequence[bool] = False) -> Dataset:
        """Sort the rows by one or several columns; nulls and NaN come last."""
        keys = [key] if isinstance(key, str) else list(key)
        downs = [descending] * len(keys) if isinstance(descending, bool) else list(descending)
        if not keys or len(downs) != len(keys):
            raise ValueError(f"sort: {len(keys)} keys ({keys}) need as many directions, not {len(downs)} ({downs})")

        def run(stream: Iterator[Held], about: int) -> Iterator[Held]:
            return exchange.by_range(stream, about, keys, downs, lambda table: table, "sort")

        return Dataset(self._plan.then(Exchange(name=f"Sort({', '.join(keys)})", run=run)))

    def groupby(self, key: str | None) -> GroupedData[Dataset]:
        """Group the rows by equal values of a column; None makes one group of all rows."""
        return GroupedData(key, lambda step: Dataset(self._plan.then(step)))

    def limit(self, limit: int) -> Dataset:
        """Keep only the first rows."""
        if not is_count(limit, 0):
            raise ValueError(f"limit={limit!r} must be an int that is not negative")
        return Dataset(self._plan.then(Limit(count=limit)))

    def union(self, *others: Dataset) -> Dataset:
        """Append the rows of other datasets."""
        return Dataset(self._plan.then(Union(others=tuple(other._plan for other in others))))

    # ---- Parts ----

    def split(self, n: int, *, equal: bool = False) -> list[Dataset]:
        """Compute this dataset, and split it into `n` parts of neighbouring rows.

        Args:
            n: number of parts.
            equal: give each part the same number of rows, and leave out up to n - 1 rows at the end.
        """
        count = _positive("n", n)
        whole = self.materialize()
        total = whole.count()
        if equal:
            total -= total % count
        return whole._cut_at([number * total // count for number in range(count + 1)])

    def split_at_indices(self, indices: Sequence[int]) -> list[Dataset]:
        """Compute this dataset, and cut it before the rows with these numbers."""
        whole = self.materialize()
        total = whole.count()
        if list(indices) != sorted(indices) or any(index < 0 for index in indices):
            raise ValueError(f"split_at_indices: {list(indices)} must be row numbers in ascending order")
        return whole._cut_at([0, *(min(index, total) for index in indices), total])

    def train_test_split(self, test_size: float, *, shuffle: bool = False, seed: int | None = None) -> list[Dataset]:
        """Split the rows into two parts. The second one has `test_size` rows, or that share of all rows."""
        whole = (self.random_shuffle(seed=seed) if shuffle else self).materialize()
        total = whole.count()
        size = round(total * test_size) if 0 < test_size < 1 else int(test_size)
        if not 0 < size < total:
            raise ValueError(f"test_size={test_size!r} leaves one of the parts of {total} rows empty")
        return whole._cut_at([0, total - size, total])

    def shards(self, n: int) -> list[Shard]:
        """Split the dataset into `n` shards with the same number of rows, each of which another process can consume.

        If the number of rows of each block is known, nothing is read here. The process with a shard reads and
        transforms the shard's own blocks, one at a time. Otherwise (after `filter`, `map_batches`, `random_shuffle`
        ...) the dataset is materialized first. Up to n - 1 rows at the end are left out.
        """
        count = _positive("n", n)
        transforms = self._plan.maps_alone if self._plan.knows_rows_of_blocks else None
        if transforms is None:
            return self.materialize().shards(n)
        ensure_initialized()
        parts = [part if not isinstance(part, Held) else _stored(part) for part in self._plan.source]
        per_shard = sum(part.rows or 0 for part in parts) // count
        shards = []
        for number in range(count):
            low, high, before = number * per_shard, (number + 1) * per_shard, 0
            mine, cuts = [], []
            for part in parts:
                rows = part.rows or 0
                start, stop = max(low - before, 0), min(high - before, rows)
                if start < stop:
                    mine.append(part)
                    cuts.append(None if (start, stop) == (0, rows) else (start, stop))
                before += rows
            shards.append(Shard(mine, chained(transforms) if transforms else None, cuts))
        return shards

    def materialize(self) -> MaterializedDataset:
        """Compute the dataset now, and keep its blocks in the object store while the result exists."""
        return MaterializedDataset(Plan(tuple(execute(self._plan)), (), "materialized"))

    def _cut_at(self, bounds: Sequence[int]) -> list[Dataset]:
        parts = [part for part in self._plan.source if isinstance(part, Held)]
        cut = []
        for low, high in pairwise(bounds):
            mine, before = [], 0
            for part in parts:
                start, stop = max(low - before, 0), min(high - before, part.rows)
                if start < stop:
                    mine.append(part.cut(start, stop))
                before += part.rows
            cut.append(
                MaterializedDataset(Plan(tuple(mine or [part.cut(0, 0) for part in parts[:1]]), (), "materialized"))
            )
        return list(cut)

    # ---- What is in it ----

    def take(self, limit: int = SHOWN) -> list[Row]:
        """Return the first rows as dicts."""
        return list(self.limit(limit).iter_rows())

    def take_all(self) -> list[Row]:
        """Return all rows as dicts."""
        return list(self.iter_rows())

    def take_batch(self, batch_size: int = SHOWN, *, batch_format: str | None = "numpy") -> Any:
        """Return the first rows as one batch.

        Raises:
            ValueError: the dataset is empty.
        """
        for batch in self.limit(batch_size).iter_batches(batch_size=batch_size, batch_format=batch_format):
            return batch
        raise ValueError("take_batch: the dataset is empty")

    def show(self, limit: int = SHOWN) -> None:
        """Print the first rows."""
        for row in self.take(limit):
            print(row)  # noqa: T201 - it is what is asked for

    def count(self) -> int:
        """Return the number of rows. If the source knows it, nothing is read."""
        known = self._plan.rows
        if known is not None:
            return known
        counted = self._tables_mapped("Count", lambda table: pa.table({"rows": [table.num_rows]}))
        return int(sum(table["rows"][0].as_py() for table in counted._tables()))

    def schema(self) -> pa.Schema | None:
        """Return the names and types of the columns, from the first block that has any; None if no block has."""
        head = self._tables_mapped("Schema", lambda table: table.slice(0, 0))
        return next((table.schema for table in head._tables() if table.num_columns), None)

    def columns(self) -> list[str]:
        """Return the names of the columns."""
        schema = self.schema()
        return [] if schema is None else list(schema.names)

    def unique(self, column: str) -> list[Any]:
        """Return the distinct values of a column, in order."""
        return [row[column] for row in self.groupby(column).count().select_columns([column]).iter_rows()]

    def sum(self, on: str) -> Any:
        """Return the sum of a column; None if it has no values."""
        return self._one("sum", on)

    def min(self, on: str) -> Any:
        """Return the least value of a column; None if it has no values."""
        return self._one("min", on)

    def max(self, on: str) -> Any:
        """Return the greatest value of a column; None if it has no values."""
        return self._one("max", on)

    def mean(self, on: str) -> Any:
        """Return the mean of a column; None if it has no values."""
        part = self._tables_mapped("Mean", lambda table: aggregated(table, None, [(on, "sum"), (on, "count")]))
        tables = [table for table in part._tables() if table[f"count({on})"][0].as_py()]
        count = sum(table[f"count({on})"][0].as_py() for table in tables)
        return sum(table[f"sum({on})"][0].as_py() for table in tables) / count if count else None

    def std(self, on: str, ddof: int = 1) -> Any:
        """Return the standard deviation of a column; None if it has too few values."""
        count, mean, squares = 0, 0.0, 0.0
        for table in self.select_columns([on])._tables():
            values = blocks.numpy_of(table[on].drop_null()).astype(np.float64)
            if len(values):
                step = values.mean() - mean
                squares += values.var() * len(values) + step**2 * count * len(values) / (count + len(values))
                count += len(values)
                mean += step * len(values) / count
        return float(np.sqrt(squares / (count - ddof))) if count > ddof else None

    def _one(self, function: str, on: str) -> Any:
        part = self._tables_mapped(function, lambda table: aggregated(table, None, [(on, function)]))
        name = f"{function}({on})"
        found = blocks.joined([table for table in part._tables() if table.num_columns])
        if not found.num_rows:
            return None
        return getattr(pa.compute, function)(found[name]).as_py()

    def _tables_mapped(self, name: str, fn: Callable[[pa.Table], pa.Table], *, keeps_rows: bool = False) -> Dataset:
        def transform(tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
            return (fn(table) for table in tables)

        return Dataset(self._plan.then(Map(name=name, transform=transform, keeps_rows=keeps_rows)))

    def _mapped(
        self, kind: str, fn: Any, transform: Transform, needs: Mapping[str, Any], *, keeps_rows: bool = False
    ) -> Dataset:
        if not callable(fn) and not isinstance(fn, pa.compute.Expression):
            raise TypeError(f"{kind} takes a function, not {fn!r} (type {type(fn).__name__})")
        name = f"{kind}({getattr(fn, '__name__', type(fn).__name__)})"
        return Dataset(self._plan.then(Map(name=name, transform=transform, keeps_rows=keeps_rows, needs=needs)))


class MaterializedDataset(Dataset):
    """A dataset whose blocks are in the object store, from `materialize` or `split`.

    dualray frees the blocks with the dataset.
    """

    def num_blocks(self) -> int:
        """Return the number of blocks."""
        return len(self._plan.source)

    def size_bytes(self) -> int:
        """Return the bytes of memory that the rows take."""
        return sum(part.size_bytes for part in self._plan.source)


def is_count(value: Any, least: int) -> bool:
    """Whether a value is an int, of at least `least`."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _positive(name: str, value: int) -> int:
    if not is_count(value, 1):
        raise ValueError(f"{name}={value!r} must be an int of at least 1")
    return value


def _stored(part: Held) -> Held:
    """The same rows of a block that is in the object store, for whoever is given it."""
    return replace(part, block=in_store(part))
