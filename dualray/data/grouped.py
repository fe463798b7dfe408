"""Groups of rows, and aggregates of them.

dualray makes groups by sorting, so the result is in the order of the key. Columns of aggregates are named after their
functions: `sum(x)`, `count()`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dualray.data import blocks, exchange
from dualray.data.plan import Exchange, Held

D = TypeVar("D")
"""The dataset that an aggregation makes."""

Wanted = tuple[str, str]
"""A column, and "sum", "min", "max", "mean", "std" or "count" of it; the column "" for a count of rows."""
FUNCTIONS = {"sum": "sum", "min": "min", "max": "max", "mean": "mean", "std": "stddev", "count": "count"}


class GroupedData(Generic[D]):
    """The rows of a dataset, grouped by a column; from `Dataset.groupby`."""

    def __init__(self, key: str | None, make: Callable[[Exchange], D]) -> None:
        self._key = key
        self._make = make

    def count(self) -> D:
        """Count the rows of each group, in a column `count()`."""
        return self.aggregate(("", "count"))

    def sum(self, on: str | Sequence[str]) -> D:
        """Compute the sum of one or several columns in each group."""
        return self._each("sum", on)

    def min(self, on: str | Sequence[str]) -> D:
        """Compute the least value of one or several columns in each group."""
        return self._each("min", on)

    def max(self, on: str | Sequence[str]) -> D:
        """Compute the greatest value of one or several columns in each group."""
        return self._each("max", on)

    def mean(self, on: str | Sequence[str]) -> D:
        """Compute the mean of one or several columns in each group."""
        return self._each("mean", on)

    def std(self, on: str | Sequence[str]) -> D:
        """Compute the standard deviation of a sample for one or several columns in each group."""
        return self._each("std", on)

    def aggregate(self, *wanted: Wanted) -> D:
        """Compute several aggregates of each group: `aggregate(("x", "sum"), ("y", "max"), ("", "count"))`.

        Raises:
            ValueError: a function is unknown.
        """
        for _, function in wanted:
            if function not in FUNCTIONS:
                raise ValueError(f"aggregate: {function!r} must be one of {', '.join(map(repr, FUNCTIONS))}")
        key, chosen = self._key, list(wanted)
        return self._finished(lambda table: aggregated(table, key, chosen), f"Aggregate({key})")

    def map_groups(self, fn: Callable[[Any], Any], *, batch_format: str | None = "numpy") -> D:
        """Apply a function to each group, as a batch; it returns a batch."""
        key, form = self._key, blocks.check_format(batch_format)

        def finish(table: pa.Table) -> pa.Table:
            groups = (table.slice(start, stop - start) for start, stop in _runs(table, key))
            return blocks.joined(
                blocks.table_of_batch(fn(blocks.batch_of(group, form)), "map_groups' function") for group in groups
            )

        return self._finished(finish, f"MapGroups({key})")

    def _each(self, function: str, on: str | Sequence[str]) -> D:
        columns = [on] if isinstance(on, str) else list(on)
        return self.aggregate(*((column, function) for column in columns))

    def _finished(self, finish: Callable[[pa.Table], pa.Table], name: str) -> D:
        key = self._key

        def run(stream: Iterator[Held], about: int) -> Iterator[Held]:
            if key is None:
                return exchange.shuffle(
                    stream, 1, lambda table, _: [table], lambda parts, _: finish(blocks.joined(parts)), "groupby"
                )
            return exchange.by_range(stream, about, [key], [False], finish, "groupby")

        return self._make(Exchange(name=name, run=run, keeps_rows=False, outputs=1 if key is None else None))


def aggregated(table: pa.Table, key: str | None, wanted: Sequence[Wanted]) -> pa.Table:
    """Numbers of a table, or of each run of equal keys in it."""
    if not table.num_columns:
        return pa.table({})
    keys = [] if key is None else [key]
    asked: list[tuple[Any, str, Any]] = []
    names = []
    for column, function in wanted:
        if column == "" and function == "count":
            asked.append(([], "count_all", None))
        else:
            options = pc.VarianceOptions(ddof=1) if function == "std" else None
            asked.append((column, FUNCTIONS[function], options))
        names.append(f"{function}({column})")
    found = table.group_by(keys, use_threads=False).aggregate(asked)
    columns = [found[name] for name in found.column_names]
    if found.column_names[: len(keys)] != keys:  # older releases of Arrow have the keys last
        columns = columns[len(names) :] + columns[: len(names)]
    return pa.table(columns, names=[*keys, *names])


def _runs(table: pa.Table, key: str | None) -> list[tuple[int, int]]:
    """Where equal keys start and stop, in a table that is sorted by them."""
    if table.num_rows == 0:
        return []
    if key is None:
        return [(0, table.num_rows)]
    codes = np.asarray(table[key].combine_chunks().dictionary_encode(null_encoding="encode").indices.to_numpy())
    starts = [0, *(np.flatnonzero(np.diff(codes)) + 1).tolist()]
    return list(zip(starts, [*starts[1:], table.num_rows], strict=True))
