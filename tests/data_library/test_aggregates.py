"""Aggregates of all rows and of groups: the values are those of Ray 2.60."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

import dualray as ray
from dualray.data.aggregate import (
    AbsMax,
    AggregateFn,
    AsList,
    Count,
    CountDistinct,
    Max,
    Mean,
    Min,
    MissingValuePercentage,
    Quantile,
    Std,
    Sum,
    Unique,
    ValueCounter,
    ZeroPercentage,
)


@pytest.fixture
def rows() -> ray.data.Dataset:
    many = [{"g": "a", "h": i % 2, "x": i, "y": None if i % 4 == 0 else i / 2, "s": f"n{i}"} for i in range(10)]
    return ray.data.from_items([*many, {"g": "b", "h": 1, "x": -20, "y": None, "s": "Zz"}])


def test_aggregates_of_all_rows(rows):
    assert rows.aggregate(AbsMax("x"), Quantile("x"), Quantile("x", q=0.25, alias_name="low"), CountDistinct("g")) == {
        "abs_max(x)": 20,
        "quantile(x)": 4.0,
        "low": 1.5,
        "count_distinct(g)": 2,
    }
    counts = rows.aggregate(Count(), Count("y"), Count("y", ignore_nulls=True))
    assert counts == {"count()": 11, "count(y)": 11, "count(y)_2": 7}
    found = rows.aggregate(
        Mean("y"), Sum("y", ignore_nulls=False, alias_name="all"), Min("y"), Max("s"), Std("x", ddof=0)
    )
    assert found == {
        "mean(y)": pytest.approx(16.5 / 7),
        "all": None,
        "min(y)": 0.5,
        "max(s)": "n9",
        "std(x)": pytest.approx(7.556946342043784),
    }
    assert rows.aggregate(ValueCounter("g"), MissingValuePercentage("y"), ZeroPercentage("x")) == {
        "value_counter(g)": {"values": ["a", "b"], "counts": [10, 1]},
        "missing_pct(y)": pytest.approx(100 * 4 / 11),
        "zero_pct(x)": pytest.approx(100 / 11),
    }
    assert rows.limit(3).aggregate(AsList("x"), Unique("g")) == {"list(x)": [0, 1, 2], "unique(g)": ["a"]}


def test_numbers_of_one_or_more_columns(rows):
    numbers = rows.select_columns(["x", "h"])
    assert numbers.sum() == numbers.sum(["x", "h"]) == {"sum(x)": 25, "sum(h)": 6}
    assert rows.max("y", ignore_nulls=False) is None and rows.max("y") == 4.5
    assert math.isnan(rows.limit(1).std("x"))
    assert rows.filter(lambda row: False).sum("x") is None
    assert rows.unique("h") == [0, 1] and rows.unique("y")[-1] is None


def test_aggregates_of_groups_with_several_keys(rows):
    found = rows.repartition(4).groupby(["g", "h"])
    first, second, third = found.aggregate(
        Sum("x"), Count(), Mean("y"), AbsMax("x"), Quantile("x"), Count("y", ignore_nulls=True), Std("x")
    ).take_all()
    assert first == {
        "g": "a",
        "h": 0,
        "sum(x)": 20,
        "count()": 5,
        "mean(y)": 2.0,
        "abs_max(x)": 8,
        "quantile(x)": 4.0,
        "count(y)": 2,
        "std(x)": pytest.approx(math.sqrt(10)),
    }
    assert (second["sum(x)"], second["mean(y)"], second["count(y)"]) == (25, 2.5, 5)
    assert third["mean(y)"] is None and math.isnan(third["std(x)"])
    assert found.sum("y", ignore_nulls=False).take_all() == [
        {"g": "a", "h": 0, "sum(y)": None},
        {"g": "a", "h": 1, "sum(y)": 12.5},
        {"g": "b", "h": 1, "sum(y)": None},
    ]
    numbers = rows.select_columns(["g", "x", "h"]).groupby("g")
    assert numbers.max().take_all() == [{"g": "a", "max(x)": 9, "max(h)": 1}, {"g": "b", "max(x)": -20, "max(h)": 1}]
    assert numbers.aggregate(CountDistinct("h"), Max("x", alias_name="most")).take_all() == [
        {"g": "a", "count_distinct(h)": 2, "most": 9},
        {"g": "b", "count_distinct(h)": 1, "most": -20},
    ]
    assert rows.groupby("g", num_partitions=2).count().num_blocks() == 2


def test_aggregates_made_of_functions(rows):
    squares = AggregateFn(
        init=lambda key: 0,
        accumulate_row=lambda total, row: total + row["x"] ** 2,
        merge=lambda one, other: one + other,
        finalize=lambda total: total + 0.5,
        name="squares",
    )
    assert rows.aggregate(squares) == {"squares": 685.5}
    assert rows.groupby("g").aggregate(squares).take_all() == [
        {"g": "a", "squares": 285.5},
        {"g": "b", "squares": 400.5},
    ]
    keys = AggregateFn(
        init=lambda key: key, accumulate_block=lambda key, block: key, merge=lambda one, _: one, name="key"
    )
    assert [row["key"] for row in rows.groupby("g").aggregate(keys).take_all()] == ["a", "b"]
    with pytest.raises(ValueError, match="either accumulate_row or accumulate_block"):
        AggregateFn(init=lambda key: 0, merge=max, name="none")
    with pytest.raises(TypeError, match=r"aggregate takes aggregates such as Sum\('x'\)"):
        rows.aggregate("x")


def test_map_groups_with_a_class_and_arguments(rows):
    class Size:
        def __init__(self, more):
            self.more = more

        def __call__(self, batch, factor=1):
            return {"n": np.array([(len(batch["x"]) + self.more) * factor])}

    grouped = rows.groupby("g")
    sizes = grouped.map_groups(Size, fn_constructor_args=(100,), fn_kwargs={"factor": 2}, concurrency=1)
    assert [row["n"] for row in sizes.take_all()] == [220, 202]

    def first(frame: pd.DataFrame):
        yield frame[["g"]].head(1)
        yield frame[["g"]].head(1)

    assert [row["g"] for row in grouped.map_groups(first, batch_format="pandas").take_all()] == ["a", "a", "b", "b"]


@pytest.mark.parametrize(
    "use",
    [
        lambda rows: rows.sum("zz"),
        lambda rows: rows.groupby("zz").count().take_all(),
        lambda rows: rows.groupby(["g", "zz"]).count().take_all(),
        lambda rows: rows.groupby("g").sum("zz").take_all(),
        lambda rows: rows.sort(["x", "zz"]).take_all(),
        lambda rows: rows.select_columns(["zz"]).take_all(),
        lambda rows: rows.drop_columns("zz").take_all(),
        lambda rows: rows.rename_columns({"zz": "k"}).take_all(),
        lambda rows: rows.filter(expr="zz > 1").take_all(),
    ],
)
def test_a_missing_column_is_a_value_error_and_a_key_error(rows, use):
    for kind in (ValueError, KeyError, ray.exceptions.RayTaskError):
        with pytest.raises(kind, match="the data has no column 'zz'; the columns are"):
            use(rows)
