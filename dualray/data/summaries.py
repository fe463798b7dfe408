"""What the rows of a plan are: the first ones, their number, columns, aggregates."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from dualray.data.aggregate import AggregateFn, Max, Mean, Min, Std, Sum, Unique, names_of
from dualray.data.blocks import Row
from dualray.data.described import described, known_schema
from dualray.data.errors import check_columns
from dualray.data.executor import execute, load
from dualray.data.mapping import tables_mapped
from dualray.data.plan import Limit, Plan
from dualray.data.planned import PlannedRows
from dualray.data.schema import Schema

SHOWN = 20


class SummarizedRows(PlannedRows):
    """Rows of a plan, and what they are together."""

    def __repr__(self) -> str:
        return f"DataIterator({described(self._plan, 'Dataset', None)})"

    def take(self, limit: int = SHOWN) -> list[Row]:
        """Return the first rows as dicts."""
        return list(self._first(limit).iter_rows())

    def take_all(self, limit: int | None = None) -> list[Row]:
        """Return all rows as dicts.

        Raises:
            ValueError: there are more rows than `limit`.
        """
        if limit is None:
            return list(self.iter_rows())
        rows = self.take(limit + 1)
        if len(rows) > limit:
            raise ValueError(
                f"take_all: the dataset has more rows than limit={limit}; give a higher limit, or leave out limit="
            )
        return rows

    def take_batch(self, batch_size: int = SHOWN, *, batch_format: str | None = "numpy") -> Any:
        """Return the first rows as one batch.

        Raises:
            ValueError: the dataset is empty.
        """
        for batch in self._first(batch_size).iter_batches(batch_size=batch_size, batch_format=batch_format):
            return batch
        raise ValueError("take_batch: the dataset is empty")

    def show(self, limit: int = SHOWN) -> None:
        """Print the first rows."""
        for row in self.take(limit):
            print(row)  # noqa: T201 - it is what is asked for

    def count(self) -> int:
        """Return the number of rows. If the source knows it, nothing is read."""
        known = self._plan.rows
        return sum(part.rows for part in execute(self._plan)) if known is None else known

    def schema(self, fetch_if_missing: bool = True) -> Schema | None:
        """Return the names and types of the columns, from the first block that has any; None if no block has.

        Args:
            fetch_if_missing: whether to run the steps of the dataset where the names and types are not known yet; False
                returns None then.
        """
        if not fetch_if_missing:
            found = known_schema(self._plan)
            return Schema(found) if found else None
        head = self._plan.then(tables_mapped("Schema", lambda table: table.slice(0, 0)))
        return next((Schema(table.schema) for table in _tables(head) if table.num_columns), None)

    def columns(self, fetch_if_missing: bool = True) -> list[str] | None:
        """Return the names of the columns; None if `fetch_if_missing` is False and they are not known."""
        schema = self.schema(fetch_if_missing)
        return ([] if fetch_if_missing else None) if schema is None else schema.names

    def unique(self, column: str, ignore_nulls: bool = False) -> list[Any]:
        """Return the distinct values of a column, in order; nulls and values without an order come last."""
        found = (self.aggregate(Unique(column, ignore_nulls)) or {f"unique({column})": []})[f"unique({column})"]
        try:
            return sorted(found, key=lambda value: (value is None, 0 if value is None else value))
        except TypeError:
            return list(found)

    def aggregate(self, *aggs: AggregateFn) -> dict[str, Any] | None:
        """Compute several aggregates of all rows: `aggregate(Sum("x"), Count())` returns a dict of name to value.

        A task computes the aggregates of a block, and the driver merges them. None if the dataset is empty.

        Raises:
            TypeError: an argument is no aggregate.
            ValueError: a column does not exist.
        """
        for aggregate in aggs:
            if not isinstance(aggregate, AggregateFn):
                raise TypeError(f"aggregate takes aggregates such as Sum('x'), not {aggregate!r}")

        def of_block(table: pa.Table) -> pa.Table:
            if table.num_columns:
                check_columns([aggregate.on for aggregate in aggs], table.column_names)
            if not table.num_rows:
                return pa.table({})
            made = [aggregate.accumulate_block(aggregate.init(None), table) for aggregate in aggs]
            return pa.table({"made": [pickle.dumps(made)]})

        merged: list[Any] | None = None
        for table in _tables(self._plan.then(tables_mapped("Aggregate", of_block))):
            for each in table["made"].to_pylist() if table.num_columns else []:
                made = pickle.loads(each)
                pairs = None if merged is None else zip(aggs, merged, made, strict=True)
                merged = made if pairs is None else [aggregate.merge(old, new) for aggregate, old, new in pairs]
        if merged is None:
            return None
        results = [aggregate.result(value) for aggregate, value in zip(aggs, merged, strict=True)]
        return dict(zip(names_of(aggs), results, strict=True))

    def sum(self, on: str | Sequence[str] | None = None, ignore_nulls: bool = True) -> Any:
        """Return the sum of a column; of several columns, or all with None, a dict. None if there are no values."""
        return self._each(lambda column: Sum(column, ignore_nulls), on)

    def min(self, on: str | Sequence[str] | None = None, ignore_nulls: bool = True) -> Any:
        """Return the least value; as `sum`."""
        return self._each(lambda column: Min(column, ignore_nulls), on)

    def max(self, on: str | Sequence[str] | None = None, ignore_nulls: bool = True) -> Any:
        """Return the greatest value; as `sum`."""
        return self._each(lambda column: Max(column, ignore_nulls), on)

    def mean(self, on: str | Sequence[str] | None = None, ignore_nulls: bool = True) -> Any:
        """Return the mean; as `sum`."""
        return self._each(lambda column: Mean(column, ignore_nulls), on)

    def std(self, on: str | Sequence[str] | None = None, ddof: int = 1, ignore_nulls: bool = True) -> Any:
        """Return the standard deviation; as `sum`."""
        return self._each(lambda column: Std(column, ddof, ignore_nulls), on)

    def stats(self) -> str:
        """Return a text about the steps and blocks. `dualray report` shows the tasks of a run and their times."""
        rows = self._plan.rows
        return (
            f"{self._plan}: {self.num_blocks()} blocks, {'not yet known how many' if rows is None else rows} rows. "
            f"`dualray report` shows the tasks and their times."
        )

    def _first(self, limit: int) -> PlannedRows:
        return PlannedRows(self._plan.then(Limit(count=limit)))

    def _each(self, make: Callable[[str], AggregateFn], on: str | Sequence[str] | None) -> Any:
        columns = self.columns() or [] if on is None else [on] if isinstance(on, str) else list(on)
        if on is not None and not columns:
            raise ValueError("on=[] must name at least one column")
        found = self.aggregate(*(make(column) for column in columns))
        if found is None or len(found) != 1:
            return found
        return next(iter(found.values()))


def _tables(plan: Plan) -> Iterator[pa.Table]:
    return (load(part) for part in execute(plan))
