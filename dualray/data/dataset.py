"""Dataset: rows in Arrow blocks, and lazy operations on them.

Nothing runs before you consume a dataset: count, take, iterate, write or materialize it. See docs/data.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute

from dualray.data import exchange, mapping
from dualray.data.choices import MixStoppingCondition
from dualray.data.combining import JOINS, Join, join_step, mix_step, zip_step
from dualray.data.compute import check_ignored, is_count
from dualray.data.context import DataContext
from dualray.data.described import described
from dualray.data.draws import Seeds
from dualray.data.errors import check_columns
from dualray.data.executor import ensure_initialized, execute, in_store
from dualray.data.expression_tree import Expr, UnnestExpr
from dualray.data.grouped import GroupedData, stratified
from dualray.data.iterator import DataIterator, Shard, check_batch_size
from dualray.data.mapping import Call, tables_mapped
from dualray.data.parts import part_of_rows, sampled
from dualray.data.plan import Exchange, Held, Limit, Plan, Step, Union, chained, kept
from dualray.data.summaries import SummarizedRows


class Dataset(SummarizedRows):
    """A lazy table of rows. `from_items`, `read_parquet` and others create one, and its methods return further ones.

    A dataset describes the steps that compute its rows. You can consume it several times; each time dualray runs the
    steps, unless you `materialize` it.
    """

    name: str | None = None
    """What `set_name` has set."""

    def __repr__(self) -> str:
        return described(self._plan, type(self).__name__, self.name)

    def __bool__(self) -> bool:
        return True  # without it, Python would ask for the length

    def __len__(self) -> int:
        raise AttributeError("a dataset has no length before it runs; use ds.count()")

    def __iter__(self) -> Iterator[Any]:
        raise TypeError("a dataset is not iterable; use ds.iter_rows() or ds.iter_batches()")

    def set_name(self, name: str | None) -> None:
        """Give the dataset a name."""
        self.name = name

    @property
    def context(self) -> DataContext:
        """The context of this process."""
        return DataContext.get_current()

    # ---- Rows and batches ----

    def map(self, fn: Callable[..., Mapping[str, Any]] | type, **options: Any) -> Dataset:
        """Apply a function to each row.

        Args:
            fn: a function that takes a row, a dict, and returns a row; or a class of such a function. Each actor of a
                pool creates an instance of the class and calls it.
            options: `fn_args`, `fn_kwargs`, `fn_constructor_args`, `fn_constructor_kwargs`, `compute` and
                `concurrency`, as for `map_batches`, and options of the tasks: num_cpus, num_gpus, resources ...
        """
        return self._then(mapping.rows_mapped(_call(fn, options)))

    def flat_map(self, fn: Callable[..., Sequence[Mapping[str, Any]]] | type, **options: Any) -> Dataset:
        """Apply a function that returns a list of rows to each row; arguments as for `map`."""
        return self._then(mapping.rows_expanded(_call(fn, options)))

    def filter(
        self,
        fn: Callable[..., bool] | Any = None,
        expr: str | Expr | pa.compute.Expression | None = None,
        **options: Any,
    ) -> Dataset:
        """Keep the rows for which a function or an expression is true. An expression is much faster than a function.

        Args:
            fn: a function that takes a row, a dict.
            expr: instead of a function, a text in Python's syntax (`"x > 3 and y in [1, 2]"`), an expression made of
                `dualray.data.expressions.col`, or one of `pyarrow.compute`.
            options: as for `map`.

        Raises:
            ValueError: both or none of the two are given, or the text is no expression.
        """
        if isinstance(fn, Expr | pa.compute.Expression):
            fn, expr = None, fn
        if (fn is None) == (expr is None):
            raise ValueError("filter: give exactly one of 'fn' (a function) and 'expr', not both")
        if fn is not None and not callable(fn):
            raise ValueError(f"filter: fn must be a UserDefinedFunction (a function or a class), not {fn!r}")
        if expr is None:
            return self._then(mapping.rows_kept(_call(fn, options)))
        options.pop("compute", None)
        options.pop("concurrency", None)
        return self._then(mapping.rows_that_meet(expr, options, self._place))

    def map_batches(
        self,
        fn: Any,
        *,
        batch_size: int | str | None = None,
        batch_format: str | None = "numpy",
        **options: Any,
    ) -> Dataset:
        """Apply a function to each batch. A generator function can return several batches for one.

        Args:
            fn: a function of a batch, or a class. Each actor of a pool creates an instance of the class and calls it.
            batch_size: rows of a batch. A task joins small blocks until they have so many rows; the last batch of a
                task has those that are left. Default: whole blocks. Functions that use GPUs need it.
            batch_format: "numpy" (a dict of arrays; the default), "pandas" or "pyarrow".
            options: `fn_args` and `fn_kwargs`, further arguments for `fn`; `fn_constructor_args` and
                `fn_constructor_kwargs`, arguments of the class; `compute`, an `ActorPoolStrategy` for a class or a
                `TaskPoolStrategy` for a function; `concurrency`, the number of actors (default 1) or most tasks at a
                time; and options of the tasks or actors: num_cpus, num_gpus, resources ... By default actors hold no
                CPU, because the tasks before and after them need some.

        Raises:
            TypeError, ValueError: an argument has a wrong type or value, or does not fit `fn`.
        """
        size = None if batch_size in ("auto", "default") else cast("int | None", batch_size)
        check_batch_size(size)
        if size is None and options.get("num_gpus"):
            raise ValueError(
                "map_batches: You must provide `batch_size` when requesting GPUs: as many rows as fit in their memory"
            )
        return self._then(mapping.batches_mapped(_call(fn, options), size, batch_format))

    def add_column(
        self, col: str, fn: Callable[[Any], Any], *, batch_format: str | None = "pandas", **options: Any
    ) -> Dataset:
        """Add a column. `fn` takes a batch, a pandas DataFrame, and returns the values of the column."""
        return self._then(mapping.column_added(_call(fn, options), col, batch_format))

    def with_column(self, column_name: str, expr: Expr, **options: Any) -> Dataset:
        """Add a column with the values of an expression: `with_column("y", col("x") * 2)`."""
        return self.with_columns({column_name: expr}, **options)

    def with_columns(self, *exprs: Mapping[str, Expr] | UnnestExpr, **options: Any) -> Dataset:
        """Add a column for each expression. Later expressions see the columns of earlier ones.

        Args:
            exprs: dicts of expressions by the names of their columns, and `unnest(expr)` for the fields of structs.
            options: options of the tasks.
        """
        options.pop("compute", None)
        named = options.pop("exprs", None)
        return self._then(mapping.columns_computed([*([named] if named else []), *exprs], options, self._place))

    def select_columns(self, cols: str | Sequence[str | Expr] | Expr, **options: Any) -> Dataset:
        """Keep only these columns, in this order. A column can be an expression with a name."""
        check_ignored("select_columns", options)
        return self._then(mapping.columns_selected(cols, self._place))

    def drop_columns(self, cols: str | Sequence[str], **options: Any) -> Dataset:
        """Remove these columns.

        Raises:
            ValueError: a name is there twice.
        """
        check_ignored("drop_columns", options)
        return self._then(mapping.columns_dropped([cols] if isinstance(cols, str) else list(cols)))

    def rename_columns(self, names: Mapping[str, str] | Sequence[str], **options: Any) -> Dataset:
        """Rename columns: {old: new}, or new names for all columns.

        Raises:
            ValueError: the names are none, no strings, or twice the same.
        """
        check_ignored("rename_columns", options)
        chosen = mapping.checked_names(names)

        def rename(table: pa.Table) -> pa.Table:
            if isinstance(chosen, list) or not table.num_columns:
                return table.rename_columns(chosen) if table.num_columns else table
            check_columns(chosen, table.column_names)
            return table.rename_columns([chosen.get(name, name) for name in table.column_names])

        return self._then(tables_mapped("RenameColumns", rename, keeps_rows=True))

    def random_sample(self, fraction: float, *, seed: int | None = None) -> Dataset:
        """Keep each row with this probability.

        Args:
            fraction: the probability, from 0 to 1.
            seed: seed of the draws. Default: other draws each time, which follow from the context's `shuffle_seed`.

        Raises:
            ValueError: the fraction is not from 0 to 1, or the dataset was made without rows.
        """
        return self._then(sampled(fraction, Seeds(seed), self._plan.rows))

    # ---- Order and blocks ----

    def repartition(
        self,
        num_blocks: int | None = None,
        target_num_rows_per_block: int | None = None,
        *,
        shuffle: bool = False,
        keys: Sequence[str] | None = None,
        sort: bool = False,
        strict: bool = False,
    ) -> Dataset:
        """Distribute the rows over this number of blocks of about equal size.

        Args:
            num_blocks: the number of blocks.
            target_num_rows_per_block: instead of a number of blocks, most rows of a block.
            shuffle: put the rows into a random order, too.
            keys: columns; rows with equal values in them come into one block.
            sort: with `keys`, sort the rows of each block by them.
            strict: accepted as in Ray, and without effect.
        """
        if (num_blocks is None) == (target_num_rows_per_block is None):
            raise ValueError("repartition: give either num_blocks= or target_num_rows_per_block=, not both")
        if target_num_rows_per_block is not None and shuffle:
            raise ValueError("repartition: `shuffle` must be False when target_num_rows_per_block= is given")
        if target_num_rows_per_block is not None:
            most = _positive("target_num_rows_per_block", target_num_rows_per_block)
            return self._then(
                Exchange(
                    name=f"Repartition({most} rows)",
                    run=lambda stream, _: exchange.by_rows(stream, most),
                    schema_after=kept,
                )
            )
        count = _positive("num_blocks", cast(int, num_blocks))
        if keys:
            columns = list(keys)
            return self._then(
                Exchange(
                    name=f"Repartition({count} by {', '.join(columns)})",
                    run=lambda stream, _: exchange.repartition_by(stream, count, columns, sort),
                    outputs=count,
                    schema_after=kept,
                )
            )
        if shuffle:
            return self.random_shuffle(num_blocks=count)
        step = Exchange(
            name=f"Repartition({count})",
            run=lambda stream, _: exchange.repartition(stream, count),
            outputs=count,
            schema_after=kept,
        )
        return self._then(step)

    def random_shuffle(self, *, seed: int | None = None, num_blocks: int | None = None, **options: Any) -> Dataset:
        """Put all rows into a random order.

        Args:
            seed: seed of the order. Default: another order each time, which follows from the context's `shuffle_seed`.
            num_blocks: blocks of the result. Default: as many as before.
        """
        check_ignored("random_shuffle", options)
        seeds = Seeds(seed)
        outputs = None if num_blocks is None else _positive("num_blocks", num_blocks)
        step = Exchange(
            name="RandomShuffle",
            run=lambda stream, about: exchange.random_shuffle(stream, max(1, outputs or about), seeds.next()),
            outputs=outputs,
            schema_after=kept,
        )
        return self._then(step)

    def randomize_block_order(self, *, seed: int | None = None) -> Dataset:
        """Put the blocks into a random order, and leave the rows of each block in theirs."""
        seeds = Seeds(seed)

        def run(stream: Iterator[Held], _about: int) -> Iterator[Held]:
            chosen, parts = seeds.next(), list(stream)
            return (parts[number] for number in np.random.default_rng(chosen).permutation(len(parts)))

        return self._then(Exchange(name="RandomizeBlockOrder", run=run, schema_after=kept))

    def sort(
        self,
        key: str | Sequence[str],
        descending: bool | Sequence[bool] = False,
        boundaries: Sequence[float] | None = None,
    ) -> Dataset:
        """Sort the rows by one or several columns; nulls and NaN come last.

        Args:
            key: the name of a column, or a list of names.
            descending: the direction, or one for each column.
            boundaries: values of the first column at which a new block starts: [5, 10] makes three blocks. Default:
                dualray makes blocks of about equal size.
        """
        keys = [key] if isinstance(key, str) else list(key)
        downs = [descending] * len(keys) if isinstance(descending, bool) else list(descending)
        if not keys or len(downs) != len(keys):
            raise ValueError(
                f"sort: descending= must have one value for each of the {len(keys)} keys ({keys}), not {len(downs)} "
                f"values ({downs})"
            )
        bounds = list(boundaries or ()) or None

        def run(stream: Iterator[Held], about: int) -> Iterator[Held]:
            return exchange.by_range(stream, about, keys, downs, lambda table: table, "sort", boundaries=bounds)

        outputs = len(bounds) + 1 if bounds else None
        return self._then(Exchange(name=f"Sort({', '.join(keys)})", run=run, outputs=outputs, schema_after=kept))

    def groupby(self, key: str | Sequence[str] | None, num_partitions: int | None = None) -> GroupedData[Dataset]:
        """Group the rows by equal values of one or several columns; None makes one group of all rows.

        Args:
            key: the name of a column, or a list of names.
            num_partitions: number of blocks of the result. Default: as many as before.
        """
        outputs = None if num_partitions is None else _positive("num_partitions", num_partitions)
        return GroupedData(self, key, self._then, lambda: self.columns() or [], outputs)

    def limit(self, limit: int) -> Dataset:
        """Keep only the first rows."""
        if not is_count(limit, 0):
            raise ValueError(f"limit={limit!r} must be an int that is not negative")
        return self._then(Limit(count=limit))

    def union(self, *others: Dataset) -> Dataset:
        """Append the rows of other datasets."""
        return self._then(Union(others=tuple(_plan_of(other, "union") for other in others)))

    def zip(self, *others: Dataset) -> Dataset:
        """Put the rows of other datasets beside these rows. A name that exists already becomes `x_1`.

        Raises, when it runs:
            ValueError: the datasets have different numbers of rows.
        """
        return self._then(zip_step([_plan_of(other, "zip") for other in others]))

    def mix(
        self,
        *other: Dataset,
        weights: Sequence[float] | None = None,
        stopping_condition: MixStoppingCondition = MixStoppingCondition.STOP_ON_LONGEST_DROP,
    ) -> Dataset:
        """Take blocks of this and other datasets in turn, so that the numbers of rows follow the weights.

        Args:
            other: the other datasets, with the same columns.
            weights: the weight of this dataset, and of each other one. Default: equal weights.
            stopping_condition: whether the result ends with the first dataset that has no more rows, or with the last
                one (the default).

        Raises:
            ValueError: there are not as many weights as datasets, or a weight is not positive.
        """
        chosen = [1.0] * (len(other) + 1) if weights is None else list(weights)
        if len(chosen) != len(other) + 1 or min(chosen) <= 0:
            raise ValueError(f"mix: {len(other) + 1} datasets need {len(other) + 1} weights above 0, not {chosen}")
        plans = [_plan_of(each, "mix") for each in other]
        return self._then(mix_step(plans, chosen, MixStoppingCondition(stopping_condition)))

    def join(
        self,
        ds: Dataset,
        join_type: str,
        num_partitions: int,
        on: str | Sequence[str] = ("id",),
        right_on: str | Sequence[str] | None = None,
        left_suffix: str | None = None,
        right_suffix: str | None = None,
        **options: Any,
    ) -> Dataset:
        """Put rows of this and another dataset side by side, where their keys are equal.

        Args:
            ds: the other dataset, on the right.
            join_type: "inner", "left_outer", "right_outer", "full_outer", "left_semi", "right_semi", "left_anti" or
                "right_anti".
            num_partitions: number of blocks of the result. A task joins each.
            on: columns of the keys.
            right_on: columns of the keys in the other dataset. Default: those of `on`.
            left_suffix, right_suffix: added to names of other columns that both datasets have.
            options: `partition_size_hint`, `aggregator_ray_remote_args` and `validate_schemas`, accepted as in Ray, and
                without effect.

        Raises:
            ValueError: the type is unknown, or the keys do not match.
        """
        kind = str(getattr(join_type, "value", join_type))
        if kind not in JOINS:
            raise ValueError(f"join_type={join_type!r} must be one of {', '.join(map(repr, JOINS))}")
        unknown = set(options) - {"partition_size_hint", "aggregator_ray_remote_args", "validate_schemas"}
        if unknown:
            raise TypeError(f"join has no argument {min(unknown)!r}")
        left = [on] if isinstance(on, str) else list(on)
        right = left if right_on is None else [right_on] if isinstance(right_on, str) else list(right_on)
        if not left or len(left) != len(right):
            raise ValueError(f"join: on={left} and right_on={right} must name the same number of columns, at least one")
        join = Join(
            kind=kind,
            left_on=left,
            right_on=right,
            left_suffix=left_suffix,
            right_suffix=right_suffix,
            partitions=_positive("num_partitions", num_partitions),
        )
        return self._then(join_step(join, _plan_of(ds, "join")))

    # ---- Parts ----

    def split(
        self,
        n: int,
        *,
        equal: bool = False,
        locality_hints: Sequence[Any] | None = None,
    ) -> list[Dataset]:
        """Compute this dataset, and split it into `n` parts of neighbouring rows.

        Args:
            n: number of parts.
            equal: give each part the same number of rows, and leave out up to n - 1 rows at the end.
            locality_hints: accepted as in Ray, and without effect.
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
        if not indices:
            raise ValueError("split_at_indices: indices must name at least one row")
        if any(index < 0 for index in indices):
            raise ValueError(f"split_at_indices: the indices must be positive, and some of {list(indices)} are not")
        if list(indices) != sorted(indices):
            raise ValueError(f"split_at_indices: the indices must be sorted, and {list(indices)} are not")
        return whole._cut_at([0, *(min(index, total) for index in indices), total])

    def split_proportionately(self, proportions: Sequence[float]) -> list[Dataset]:
        """Compute this dataset, and split it into parts with these shares of the rows, and one with the rest.

        A part that would be empty gets a row of the part before it, as in Ray.

        Raises:
            ValueError: the shares are not positive, or leave nothing for the last part, or the rows are too few.
        """
        shares = list(proportions)
        if not shares or any(share <= 0 for share in shares) or sum(shares) >= 1:
            raise ValueError(
                f"split_proportionately: each of the shares {shares} must be above 0, and their sum must be below 1"
            )
        whole = self.materialize()
        total = whole.count()
        bounds = [0, *(int(total * sum(shares[: number + 1])) for number in range(len(shares))), total]
        for number in range(len(shares), 0, -1):
            bounds[number] = min(bounds[number], bounds[number + 1] - 1)
        if bounds[1] <= 0:
            raise ValueError(f"split_proportionately: {total} rows are too few for the shares {shares}")
        return whole._cut_at(bounds)

    def train_test_split(
        self, test_size: float, *, shuffle: bool = False, seed: int | None = None, stratify: str | None = None
    ) -> list[Dataset]:
        """Split the rows into two parts, for training and for tests.

        Args:
            test_size: how many rows the second part has. A float is a share of all rows.
            shuffle: whether to shuffle the rows first.
            seed: the seed of the shuffle.
            stratify: a column. Of the rows with each value of this column, the second part has the same share. The
                rows are sorted by this column.

        Raises:
            ValueError: one of the parts would be empty, a share is not between 0 and 1, or the program gives both
                `shuffle` and `stratify`.
            TypeError: `test_size` is not a number.
        """
        is_share = isinstance(cast(Any, test_size), float)
        if not is_share and type(test_size) is not int:
            raise TypeError(f"train_test_split: test_size={test_size!r} must be an int or a float")
        if is_share and not 0 < test_size < 1:
            raise ValueError(
                f"train_test_split: test_size={test_size!r} is a float, and a float must be a share of the rows, "
                "between 0 and 1. For a number of rows, pass an int"
            )
        if shuffle and stratify is not None:
            raise ValueError("train_test_split takes either shuffle=True or stratify=, not both")
        whole = (self.random_shuffle(seed=seed) if shuffle else self).materialize()
        total = whole.count()
        at = int(total * (1 - test_size)) if is_share else total - int(test_size)
        if not 0 < at < total:
            raise ValueError(
                f"train_test_split: test_size={test_size!r} leaves one of the two parts of the {total} rows empty"
            )
        if stratify is not None:
            return stratified(whole, stratify, test_size if is_share else test_size / total)
        return whole._cut_at([0, at, total])

    def streaming_train_test_split(
        self,
        test_size: float,
        *,
        split_type: str = "random",
        hash_column: str | None = None,
        seed: int | None = None,
        **options: Any,
    ) -> tuple[Dataset, Dataset]:
        """Split the rows into two datasets, for training and for tests, without computing them.

        Each of the two executes the steps before it again. If these draw other numbers each time, give them a seed.

        Args:
            test_size: the share of the rows that the second dataset has, about; between 0 and 1.
            split_type: "random" draws for each row. "hash" looks at the value of `hash_column`, so that rows with equal
                values come into the same dataset.
            hash_column: the column, for "hash".
            seed: seed of the draws, for "random". Default: the context's `shuffle_seed`.
            options: options of the tasks.

        Raises:
            ValueError: an argument has a value that it cannot have, or does not go with `split_type`.
        """
        chosen = part_of_rows(test_size, split_type, hash_column, seed)
        train, test = (self._then(replace(chosen(for_tests), needs=options)) for for_tests in (False, True))
        return train, test

    def shards(self, n: int) -> list[Shard]:
        """Split the dataset into `n` shards with the same number of rows, each of which another process can consume.

        If the number of rows of each block is known, nothing is read here. The process with a shard reads and
        transforms the shard's own blocks, one at a time. Otherwise (after `filter`, `map_batches`, `random_shuffle`
        ...) the dataset is materialized first. Up to n - 1 rows at the end are left out.
        """
        return self._shards(_positive("n", n), keeps_rest=False)

    def streaming_split(
        self,
        n: int,
        *,
        equal: bool = False,
        locality_hints: Sequence[Any] | None = None,
    ) -> list[DataIterator]:
        """Split the dataset into `n` iterators, each of which another task or actor can consume; see `shards`.

        Args:
            n: number of iterators.
            equal: give each the same number of rows, and leave out up to n - 1 rows at the end.
            locality_hints: accepted as in Ray, and without effect.
        """
        return list(self._shards(_positive("n", n), keeps_rest=not equal))

    def iterator(self) -> DataIterator:
        """Return an iterator over the rows, which another task or actor can consume."""
        return SummarizedRows(self._plan)

    def _shards(self, count: int, *, keeps_rest: bool) -> list[Shard]:
        transforms = self._plan.maps_alone if self._plan.knows_rows_of_blocks else None
        if transforms is None:
            return self.materialize()._shards(count, keeps_rest=keeps_rest)
        ensure_initialized()
        parts = [part if not isinstance(part, Held) else _stored(part) for part in self._plan.source]
        total = sum(part.rows or 0 for part in parts)
        total -= 0 if keeps_rest else total % count
        shards = []
        for number in range(count):
            low, high, before = number * total // count, (number + 1) * total // count, 0
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

    @property
    def _place(self) -> int:
        """The number of the next step."""
        return len(self._plan.steps)

    def _then(self, step: Step) -> Dataset:
        return Dataset(self._plan.then(step))


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


def _positive(name: str, value: int) -> int:
    if not is_count(value, 1):
        raise ValueError(f"{name}={value!r} must be an int of at least 1")
    return value


def _stored(part: Held) -> Held:
    """The same rows of a block that is in the object store, for whoever is given it."""
    return replace(part, block=in_store(part))


_OF_CALLS = ("fn_args", "fn_kwargs", "fn_constructor_args", "fn_constructor_kwargs", "compute", "concurrency")


def _call(fn: Any, options: dict[str, Any]) -> Call:
    """A user's function with the options that say how it is called; the others are those of the tasks."""
    needs = {name: value for name, value in options.items() if name not in _OF_CALLS}
    return Call(fn=fn, needs=needs, **{name: options[name] for name in _OF_CALLS if name in options})


def _plan_of(other: Any, method: str) -> Plan:
    if not isinstance(other, Dataset):
        raise TypeError(f"{method} takes datasets, not {other!r} (type {type(other).__name__})")
    return other._plan
