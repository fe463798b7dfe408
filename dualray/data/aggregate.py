"""Aggregates of columns: of all rows (`Dataset.aggregate`) and of groups (`GroupedData.aggregate`).

An aggregate makes an accumulator of each block, merges the accumulators, and finishes the last one. Where Arrow can
compute it for all groups of a block at once, the aggregate says so, and Arrow does. The names are those of Ray.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dualray.data import blocks
from dualray.data.errors import check_columns

__all__ = [
    "AbsMax",
    "AggregateFn",
    "AggregateFnV2",
    "AsList",
    "Count",
    "CountDistinct",
    "Max",
    "Mean",
    "Min",
    "MissingValuePercentage",
    "Quantile",
    "Std",
    "Sum",
    "Unique",
    "ValueCounter",
    "ZeroPercentage",
]

ByArrow = tuple[Any, str, Any]
"""Of an aggregate: the column, and the name and options of the function of Arrow that computes it for groups."""


class AggregateFn:
    """An aggregate made of functions.

    Args:
        init: makes the first accumulator of a group, from the value of its key; of all rows, from None.
        merge: makes one accumulator of two.
        name: name of the column of the result.
        accumulate_row: makes the next accumulator from an accumulator and a row, a dict.
        accumulate_block: makes the next accumulator from an accumulator and an Arrow table. Give one of the two.
        finalize: makes the result of an accumulator. Default: the accumulator is the result.

    Raises:
        ValueError: both or none of the two functions are given.
        TypeError: the name is not a text.
    """

    on: str | None = None

    def __init__(
        self,
        init: Callable[[Any], Any],
        merge: Callable[[Any, Any], Any],
        name: str,
        accumulate_row: Callable[[Any, dict[str, Any]], Any] | None = None,
        accumulate_block: Callable[[Any, pa.Table], Any] | None = None,
        finalize: Callable[[Any], Any] | None = None,
    ) -> None:
        if not isinstance(name, str):
            raise TypeError(f"name={name!r} must be a str: the name of the column of the result")
        if (accumulate_row is None) == (accumulate_block is None):
            raise ValueError("AggregateFn: give either accumulate_row or accumulate_block, not both")
        self.name = name
        self.init = init
        self.merge = merge
        self.accumulate_block = accumulate_block or _by_rows(accumulate_row)
        self.finalize = finalize or _same

    def result(self, accumulator: Any) -> Any:
        """The result of the last accumulator."""
        return self.finalize(accumulator)

    def by_arrow(self) -> ByArrow | None:
        """How Arrow computes the aggregate for groups; None: it cannot."""
        return None

    def __repr__(self) -> str:
        return self.name


class AggregateFnV2(AggregateFn, ABC):
    """Base of aggregates of a column: a subclass defines `aggregate_block` and `combine`, and may define `finalize`.

    Args:
        name: name of the column of the result.
        zero_factory: makes an accumulator that no row has changed.
        on: the column. None: whole rows.
        ignore_nulls: leave out nulls. If False, a null among the values makes the result null.
    """

    def __init__(self, name: str, zero_factory: Callable[[], Any], *, on: str | None, ignore_nulls: bool) -> None:
        if not isinstance(name, str):
            raise TypeError(f"name={name!r} must be a str: the name of the column of the result")
        self.name = name
        self.on = self._target_col_name = on
        self._ignore_nulls = ignore_nulls
        self._zero_factory = zero_factory

    @abstractmethod
    def aggregate_block(self, block: pa.Table) -> Any:
        """Make the accumulator of a block; None if it has no values."""

    @abstractmethod
    def combine(self, current_accumulator: Any, new: Any) -> Any:
        """Make one accumulator of two."""

    def finalize(self, accumulator: Any) -> Any:
        """Make the result of an accumulator."""
        return accumulator

    def get_target_column(self) -> str | None:
        """Return the name of the column."""
        return self.on

    def get_agg_name(self) -> str:
        """Return the name without the column."""
        return self.name.partition("(")[0]

    def init(self, _key: Any) -> Any:
        """The accumulator of no rows; None if nulls are left out, as they are no values."""
        return None if self._ignore_nulls else self._zero_factory()

    def merge(self, one: Any, other: Any) -> Any:
        """`combine`, where both are there."""
        if one is None or other is None:
            return (other if one is None else one) if self._ignore_nulls else None
        return self.combine(one, other)

    def accumulate_block(self, accumulator: Any, block: pa.Table) -> Any:
        """The accumulator with the rows of one more block."""
        return self.merge(accumulator, self.aggregate_block(block))

    def result(self, accumulator: Any) -> Any:
        """The result of the last accumulator; None if there were no values."""
        return None if accumulator is None else self.finalize(accumulator)

    def _values(self, block: pa.Table) -> Any:
        return block[self.on]


class _OfColumn(AggregateFnV2):
    """An aggregate of a column, named after a function."""

    WORD: ClassVar[str]
    ARROW: ClassVar[str | None] = None
    ZERO: ClassVar[Callable[[], Any]] = list

    def __init__(
        self,
        on: str | None = None,
        ignore_nulls: bool = True,
        alias_name: str | None = None,
        zero_factory: Callable[[], Any] | None = None,
    ) -> None:
        if not isinstance(on, str):
            raise ValueError(f"{type(self).__name__}: on={on!r} must be the name of a column")
        zero = zero_factory or type(self).ZERO
        super().__init__(alias_name or f"{self.WORD}({on})", zero, on=on, ignore_nulls=ignore_nulls)

    def by_arrow(self) -> ByArrow | None:
        if self.ARROW is None:
            return None
        return self.on, self.ARROW, pc.ScalarAggregateOptions(skip_nulls=self._ignore_nulls)


class Count(AggregateFnV2):
    """The number of rows, or of values of a column: with `ignore_nulls=True`, of those that are not null."""

    def __init__(self, on: str | None = None, ignore_nulls: bool = False, alias_name: str | None = None) -> None:
        super().__init__(alias_name or f"count({on or ''})", int, on=on, ignore_nulls=ignore_nulls)

    def init(self, _key: Any) -> int:
        return 0

    def aggregate_block(self, block: pa.Table) -> int:
        if self.on is None:
            return int(block.num_rows)
        return int(pc.count(self._values(block), mode="only_valid" if self._ignore_nulls else "all").as_py())

    def combine(self, current_accumulator: int, new: int) -> int:
        return current_accumulator + new

    def by_arrow(self) -> ByArrow | None:
        if self.on is None:
            return [], "count_all", None
        return self.on, "count", pc.CountOptions(mode="only_valid" if self._ignore_nulls else "all")


class Sum(_OfColumn):
    """The sum of a column."""

    WORD, ARROW, ZERO = "sum", "sum", int

    def aggregate_block(self, block: pa.Table) -> Any:
        return pc.sum(self._values(block), skip_nulls=self._ignore_nulls).as_py()

    def combine(self, current_accumulator: Any, new: Any) -> Any:
        return current_accumulator + new


class Min(_OfColumn):
    """The least value of a column."""

    WORD, ARROW = "min", "min"

    def aggregate_block(self, block: pa.Table) -> Any:
        return pc.min(self._values(block), skip_nulls=self._ignore_nulls).as_py()

    def combine(self, current_accumulator: Any, new: Any) -> Any:
        return min(current_accumulator, new)

    ZERO = staticmethod(lambda: math.inf)


class Max(_OfColumn):
    """The greatest value of a column."""

    WORD, ARROW = "max", "max"

    def aggregate_block(self, block: pa.Table) -> Any:
        return pc.max(self._values(block), skip_nulls=self._ignore_nulls).as_py()

    def combine(self, current_accumulator: Any, new: Any) -> Any:
        return max(current_accumulator, new)

    ZERO = staticmethod(lambda: -math.inf)


class AbsMax(Max):
    """The greatest absolute value of a column."""

    WORD, ARROW, ZERO = "abs_max", None, int  # type: ignore[assignment]

    def aggregate_block(self, block: pa.Table) -> Any:
        return pc.max(pc.abs(self._values(block)), skip_nulls=self._ignore_nulls).as_py()


class Mean(_OfColumn):
    """The mean of a column."""

    WORD, ARROW = "mean", "mean"

    def aggregate_block(self, block: pa.Table) -> Any:
        values = self._values(block)
        total = pc.sum(values, skip_nulls=self._ignore_nulls).as_py()
        return None if total is None else [total, len(values) - values.null_count]

    def combine(self, current_accumulator: Any, new: Any) -> Any:
        return [current_accumulator[0] + new[0], current_accumulator[1] + new[1]]

    def finalize(self, accumulator: Any) -> float:
        return accumulator[0] / accumulator[1] if accumulator[1] else math.nan

    ZERO = staticmethod(lambda: [0, 0])


class Std(_OfColumn):
    """The standard deviation of a column; of a sample, with the default `ddof=1`."""

    WORD = "std"

    def __init__(
        self, on: str | None = None, ddof: int = 1, ignore_nulls: bool = True, alias_name: str | None = None
    ) -> None:
        super().__init__(on, ignore_nulls, alias_name)
        self._ddof = ddof

    def aggregate_block(self, block: pa.Table) -> Any:
        values = self._values(block)
        if values.null_count and not self._ignore_nulls:
            return None
        numbers = blocks.numpy_of(values.drop_null()).astype(np.float64)
        return [float(numbers.var()) * len(numbers), float(numbers.mean()), len(numbers)] if len(numbers) else None

    def combine(self, current_accumulator: Any, new: Any) -> Any:
        (squares, mean, count), (more_squares, more_mean, more) = current_accumulator, new
        step = more_mean - mean
        squares += more_squares + step**2 * count * more / (count + more)
        return [squares, (mean * count + more_mean * more) / (count + more), count + more]

    def finalize(self, accumulator: Any) -> float | None:
        squares, _, count = accumulator
        return math.sqrt(squares / (count - self._ddof)) if count > self._ddof else math.nan

    def by_arrow(self) -> ByArrow | None:
        return self.on, "stddev", pc.VarianceOptions(ddof=self._ddof, skip_nulls=self._ignore_nulls)

    ZERO = staticmethod(lambda: [0.0, 0.0, 0])


class AsList(_OfColumn):
    """The values of a column, in a list."""

    WORD, ARROW = "list", "list"

    def __init__(self, on: str, alias_name: str | None = None, ignore_nulls: bool = False) -> None:
        super().__init__(on, ignore_nulls, alias_name)

    def aggregate_block(self, block: pa.Table) -> list[Any]:
        values = self._values(block)
        listed: list[Any] = (values.drop_null() if self._ignore_nulls else values).to_pylist()
        return listed

    def combine(self, current_accumulator: Any, new: Any) -> Any:
        return current_accumulator + new

    def by_arrow(self) -> ByArrow | None:
        return None if self._ignore_nulls else (self.on, "list", None)


class Quantile(_OfColumn):
    """A quantile of a column, between values that it lies between; `q=0.5` is the median."""

    WORD = "quantile"

    def __init__(
        self, on: str | None = None, q: float = 0.5, ignore_nulls: bool = True, alias_name: str | None = None
    ) -> None:
        super().__init__(on, ignore_nulls, alias_name)
        self._q = q

    def aggregate_block(self, block: pa.Table) -> Any:
        values = self._values(block)
        return None if values.null_count and not self._ignore_nulls else [values.drop_null()]

    def combine(self, current_accumulator: Any, new: Any) -> Any:
        return current_accumulator + new

    def finalize(self, accumulator: Any) -> Any:
        values = pa.chunked_array([chunk for part in accumulator for chunk in part.chunks] or [pa.array([], pa.null())])
        return pc.quantile(values, q=self._q)[0].as_py() if len(values) else None


class Unique(_OfColumn):
    """The distinct values of a column, in the order of their first rows."""

    WORD = "unique"

    def __init__(
        self,
        on: str | None = None,
        ignore_nulls: bool = False,
        alias_name: str | None = None,
        encode_lists: bool | None = None,
    ) -> None:
        super().__init__(on, ignore_nulls, alias_name)
        self._flattens = bool(encode_lists)

    def init(self, _key: Any) -> list[Any]:
        return []

    def aggregate_block(self, block: pa.Table) -> list[Any]:
        values = self._values(block)
        if self._flattens:
            values = pc.list_flatten(values)
        if pa.types.is_nested(values.type):
            return _distinct(values.to_pylist())
        found: list[Any] = pc.unique(values.drop_null() if self._ignore_nulls else values).to_pylist()
        return found

    def combine(self, current_accumulator: Any, new: Any) -> Any:
        return _distinct([*current_accumulator, *new])


class CountDistinct(Unique):
    """The number of distinct values of a column."""

    WORD = "count_distinct"

    def __init__(self, on: str, ignore_nulls: bool = True, alias_name: str | None = None) -> None:
        super().__init__(on, ignore_nulls, alias_name)

    def finalize(self, accumulator: Any) -> int:
        return len(accumulator)


class ValueCounter(_OfColumn):
    """How often each value occurs: `{"values": [...], "counts": [...]}`."""

    WORD = "value_counter"

    def __init__(self, on: str, alias_name: str | None = None) -> None:
        super().__init__(on, True, alias_name)

    def aggregate_block(self, block: pa.Table) -> Any:
        found = pc.value_counts(self._values(block)).to_pylist()
        return {"values": [row["values"] for row in found], "counts": [row["counts"] for row in found]}

    def combine(self, current_accumulator: Any, new: Any) -> Any:
        counts = dict(zip(current_accumulator["values"], current_accumulator["counts"], strict=True))
        for value, count in zip(new["values"], new["counts"], strict=True):
            counts[value] = counts.get(value, 0) + count
        return {"values": list(counts), "counts": list(counts.values())}


class _Percentage(_OfColumn):
    """The share of some rows among all, in percent."""

    def _found(self, block: pa.Table) -> tuple[int, int]:
        raise NotImplementedError

    def aggregate_block(self, block: pa.Table) -> Any:
        return list(self._found(block))

    def combine(self, current_accumulator: Any, new: Any) -> Any:
        return [current_accumulator[0] + new[0], current_accumulator[1] + new[1]]

    def finalize(self, accumulator: Any) -> float | None:
        return 100 * accumulator[0] / accumulator[1] if accumulator[1] else None


class MissingValuePercentage(_Percentage):
    """The share of nulls and NaN among all rows, in percent."""

    WORD = "missing_pct"

    def __init__(self, on: str, alias_name: str | None = None) -> None:
        super().__init__(on, True, alias_name)

    def _found(self, block: pa.Table) -> tuple[int, int]:
        return pc.sum(pc.is_null(self._values(block), nan_is_null=True)).as_py() or 0, block.num_rows


class ZeroPercentage(_Percentage):
    """The share of zeros among the values, in percent; with `ignore_nulls=False`, among all rows."""

    WORD = "zero_pct"

    def __init__(self, on: str, ignore_nulls: bool = True, alias_name: str | None = None) -> None:
        super().__init__(on, ignore_nulls, alias_name)

    def _found(self, block: pa.Table) -> tuple[int, int]:
        values = self._values(block)
        zeros = pc.sum(pc.equal(values, 0)).as_py() or 0
        return zeros, len(values) - (values.null_count if self._ignore_nulls else 0)


def _by_rows(accumulate_row: Any) -> Callable[[Any, pa.Table], Any]:
    def accumulate(accumulator: Any, block: pa.Table) -> Any:
        for row in blocks.rows_of(block):
            accumulator = accumulate_row(accumulator, row)
        return accumulator

    return accumulate


def _same(accumulator: Any) -> Any:
    return accumulator


def _distinct(values: Iterable[Any]) -> list[Any]:
    """The values, each once; NaN is one value, and a list is compared by what is in it."""
    found: dict[Any, Any] = {}
    for value in values:
        key = "NaN of all" if isinstance(value, float) and math.isnan(value) else value
        found.setdefault(repr(key) if isinstance(key, list | dict) else (type(key).__name__, key), value)
    return list(found.values())


# ---- Of groups ---------------------------------------------------------------------------------------------------


def aggregated(table: pa.Table, keys: Sequence[str], aggregates: Sequence[AggregateFn]) -> pa.Table:
    """A row for each group of a table that is sorted by the keys: the keys, and the results."""
    if not table.num_columns:
        return pa.table({})
    check_columns([*keys, *(aggregate.on for aggregate in aggregates)], table.column_names)
    by_arrow = [(aggregate, spec) for aggregate in aggregates if (spec := aggregate.by_arrow()) is not None]
    needed = dict.fromkeys([*keys, *(spec[0] for _, spec in by_arrow if isinstance(spec[0], str))])
    asked = [spec for _, spec in by_arrow] or [([], "count_all", None)]
    grouped = table.select(list(needed) or table.column_names[:1]).group_by(list(keys), use_threads=False)
    found = grouped.aggregate(asked)
    columns = [found[name] for name in found.column_names]
    if found.column_names[: len(keys)] != list(keys):  # older releases of Arrow have the keys last
        columns = columns[len(asked) :] + columns[: len(asked)]
    results = {}
    for number, (aggregate, _) in enumerate(by_arrow):
        column = columns[len(keys) + number]
        if not (isinstance(aggregate, Std) and column.null_count):  # of one value, Arrow says null, and Ray NaN
            results[aggregate] = column
    groups = None
    for aggregate in aggregates:
        if aggregate not in results:
            groups = runs(table, keys) if groups is None else groups
            results[aggregate] = pa.array([_of_group(aggregate, table, keys, *group) for group in groups])
    return pa.table(
        [*columns[: len(keys)], *(results[aggregate] for aggregate in aggregates)],
        names=[*keys, *names_of(aggregates)],
    )


def names_of(aggregates: Sequence[AggregateFn]) -> list[str]:
    """The names of the results; the second one of a name gets _2, as in Ray."""
    names: list[str] = []
    seen: dict[str, int] = {}
    for aggregate in aggregates:
        seen[aggregate.name] = number = seen.get(aggregate.name, 0) + 1
        names.append(aggregate.name if number == 1 else f"{aggregate.name}_{number}")
    return names


def _of_group(aggregate: AggregateFn, table: pa.Table, keys: Sequence[str], start: int, stop: int) -> Any:
    values = tuple(table[key][start].as_py() for key in keys)
    first = aggregate.init(values[0] if len(values) == 1 else values or None)
    return aggregate.result(aggregate.accumulate_block(first, table.slice(start, stop - start)))


def runs(table: pa.Table, keys: Sequence[str]) -> list[tuple[int, int]]:
    """Where groups start and stop, in a table that is sorted by the keys."""
    if table.num_rows == 0:
        return []
    is_first = np.zeros(table.num_rows, bool)
    is_first[0] = True
    for key in keys:
        codes = table[key].combine_chunks().dictionary_encode(null_encoding="encode").indices
        is_first[1:] |= np.diff(np.asarray(codes.to_numpy())) != 0
    starts = np.flatnonzero(is_first).tolist()
    return list(zip(starts, [*starts[1:], table.num_rows], strict=True))
