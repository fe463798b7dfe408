"""Groups of rows, and aggregates of them.

dualray makes groups by sorting, so the result is in the order of the keys. Columns of aggregates are named after their
functions: `sum(x)`, `count()`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

import pyarrow as pa
import pyarrow.compute

from dualray.data import blocks, exchange
from dualray.data.aggregate import AggregateFn, Count, Max, Mean, Min, Std, Sum, aggregated, runs
from dualray.data.compute import check_options_function, makes_callables
from dualray.data.errors import check_columns
from dualray.data.expression_tree import BlockState, Expr, UnnestExpr, column_of
from dualray.data.mapping import WITHOUT_EFFECT, with_column
from dualray.data.plan import Exchange, Held

D = TypeVar("D")
"""The dataset that an aggregation makes."""

Wanted = tuple[str, str]
"""A column, and "sum", "min", "max", "mean", "std" or "count" of it; the column "" for a count of rows."""
FUNCTIONS: dict[str, Callable[[str], AggregateFn]] = {
    "sum": Sum,
    "min": Min,
    "max": Max,
    "mean": Mean,
    "std": Std,
    "count": lambda on: Count(on or None, ignore_nulls=True),
}


class GroupedData(Generic[D]):
    """The rows of a dataset, grouped by one or several columns; from `Dataset.groupby`."""

    def __init__(
        self,
        dataset: D,
        key: str | Sequence[str] | None,
        make: Callable[[Exchange], D],
        columns: Callable[[], list[str]],
        outputs: int | None,
    ) -> None:
        self._dataset, self._key = dataset, key
        self._keys = [] if key is None else [key] if isinstance(key, str) else list(key)
        self._make = make
        self._columns = columns
        self._outputs = outputs

    def __repr__(self) -> str:
        return f"GroupedData(dataset={self._dataset!r}, key={self._key!r})"

    def count(self) -> D:
        """Count the rows of each group, in a column `count()`."""
        return self.aggregate(Count())

    def sum(self, on: str | Sequence[str] | None = None, ignore_nulls: bool = True) -> D:
        """Compute the sum of one or several columns in each group; None means all columns."""
        return self._each(lambda column: Sum(column, ignore_nulls), on)

    def min(self, on: str | Sequence[str] | None = None, ignore_nulls: bool = True) -> D:
        """Compute the least value of one or several columns in each group; None means all columns."""
        return self._each(lambda column: Min(column, ignore_nulls), on)

    def max(self, on: str | Sequence[str] | None = None, ignore_nulls: bool = True) -> D:
        """Compute the greatest value of one or several columns in each group; None means all columns."""
        return self._each(lambda column: Max(column, ignore_nulls), on)

    def mean(self, on: str | Sequence[str] | None = None, ignore_nulls: bool = True) -> D:
        """Compute the mean of one or several columns in each group; None means all columns."""
        return self._each(lambda column: Mean(column, ignore_nulls), on)

    def std(self, on: str | Sequence[str] | None = None, ddof: int = 1, ignore_nulls: bool = True) -> D:
        """Compute the standard deviation of one or several columns in each group; None means all columns."""
        return self._each(lambda column: Std(column, ddof, ignore_nulls), on)

    def aggregate(self, *wanted: AggregateFn | Wanted) -> D:
        """Compute several aggregates of each group: `aggregate(Sum("x"), Max("y", alias_name="most"), Count())`.

        A pair of a column and the name of a function is an aggregate, too: `("x", "sum")`, `("", "count")`.

        Raises:
            ValueError: a function is unknown.
            TypeError: an argument is no aggregate.
        """
        keys, chosen = self._keys, [_aggregate(each) for each in wanted]
        return self._finished(lambda table: aggregated(table, keys, chosen), "Aggregate")

    def map_groups(
        self,
        fn: Any,
        *,
        batch_format: str | None = "default",
        fn_args: Sequence[Any] = (),
        fn_kwargs: Mapping[str, Any] | None = None,
        fn_constructor_args: Sequence[Any] = (),
        fn_constructor_kwargs: Mapping[str, Any] | None = None,
        compute: Any = None,
        concurrency: Any = None,
        zero_copy_batch: bool = True,
        **needs: Any,
    ) -> D:
        """Apply a function to each group, as a batch; it returns a batch.

        Args:
            fn: a function, or a class. Each task creates an instance of the class.
            batch_format: "default" or "pandas" (as in Ray, each group is a DataFrame), "numpy" or "pyarrow".
            fn_args, fn_kwargs: further arguments for `fn`.
            fn_constructor_args, fn_constructor_kwargs: arguments of the class.
            compute, concurrency, zero_copy_batch: accepted as in Ray, and without effect.
            needs: options of the tasks: num_cpus, num_gpus, resources ...
        """
        if not callable(fn):
            raise TypeError(f"map_groups takes a function, not {fn!r} (type {type(fn).__name__})")
        form = blocks.check_format("pandas" if batch_format == "default" else batch_format)
        keys, kwargs = self._keys, dict(fn_kwargs or {})
        constructor = dict(fn_constructor_kwargs or {})

        def finish(table: pa.Table) -> pa.Table:
            if table.num_columns:
                check_columns(keys, table.column_names)
            call = fn(*fn_constructor_args, **constructor) if makes_callables(fn) else fn
            made: list[Any] = []
            for start, stop in runs(table, keys):
                result = call(blocks.batch_of(table.slice(start, stop - start), form), *fn_args, **kwargs)
                made += result if inspect.isgenerator(result) else [result]
            return blocks.joined(blocks.table_of_batch(batch, "map_groups' function") for batch in made)

        check_options_function("map_groups", needs)
        needs = {name: value for name, value in needs.items() if name not in WITHOUT_EFFECT and value is not None}
        return self._finished(finish, "MapGroups", needs)

    def with_column(self, column_name: str, expr: Expr, **needs: Any) -> D:
        """Add a column with the values of an expression, which a task computes for each group.

        Args:
            column_name: the name of the column.
            expr: the expression; a `udf` in it gets the rows of one group.
            needs: options of the tasks.

        Raises:
            TypeError: it is no expression of one column, or its values follow from the number of a block.
        """
        if isinstance(expr, UnnestExpr) or not isinstance(expr, Expr):
            raise TypeError(f"with_column: {column_name}={expr!r} must be an expression, such as col('x') + 1")
        if expr.follows_place:
            raise TypeError(
                "with_column: random(), uuid() and monotonically_increasing_id() cannot be computed in groups; call "
                "ds.with_column() before groupby()"
            )

        def add(table: pa.Table) -> pa.Table:
            return with_column(table, column_name, column_of(expr, table, BlockState()))

        return self.map_groups(add, batch_format="pyarrow", **needs)

    def _each(self, make: Callable[[str], AggregateFn], on: str | Sequence[str] | None) -> D:
        if on is None:
            on = [column for column in self._columns() if column not in self._keys]
        return self.aggregate(*(make(column) for column in ([on] if isinstance(on, str) else on)))

    def _finished(self, finish: Callable[[pa.Table], pa.Table], name: str, needs: Mapping[str, Any] | None = None) -> D:
        keys, outputs = self._keys, self._outputs

        def run(stream: Iterator[Held], about: int) -> Iterator[Held]:
            if not keys:
                return exchange.shuffle(
                    stream, 1, lambda table, _: [table], lambda parts, _: finish(blocks.joined(parts)), "groupby", needs
                )
            downs = [False] * len(keys)
            return exchange.by_range(stream, outputs or about, keys, downs, finish, "groupby", needs)

        label = f"{name}({', '.join(keys) or None})"
        return self._make(Exchange(name=label, run=run, keeps_rows=False, outputs=outputs if keys else 1))


def _aggregate(wanted: Any) -> AggregateFn:
    if isinstance(wanted, AggregateFn):
        return wanted
    if not (isinstance(wanted, tuple) and len(wanted) == 2):
        raise TypeError(f"aggregate takes aggregates such as Sum('x'), not {wanted!r} (type {type(wanted).__name__})")
    column, function = wanted
    if function not in FUNCTIONS:
        raise ValueError(f"aggregate: {function!r} must be one of {', '.join(map(repr, FUNCTIONS))}")
    return FUNCTIONS[function](column)


_IS_TEST = "__is_test"


def stratified(dataset: Any, column: str, share: float) -> list[Any]:
    """Split a dataset into two: of the rows with each value of a column, the second has this share, rounded down."""

    def marked(group: pa.Table) -> pa.Table:
        first = group.num_rows - int(group.num_rows * share)
        return group.append_column(_IS_TEST, pa.array([number >= first for number in range(group.num_rows)]))

    whole = dataset.groupby(column).map_groups(marked, batch_format="pyarrow").materialize()
    return [
        whole.map_batches(lambda table, part=part: _part(table, is_test=part), batch_format="pyarrow").materialize()
        for part in (False, True)
    ]


def _part(table: pa.Table, *, is_test: bool) -> pa.Table:
    return table.filter(pa.compute.equal(table[_IS_TEST], is_test)).drop_columns([_IS_TEST])
