"""Expressions of columns, and the text of filters: the values are those of Ray 2.60."""

from __future__ import annotations

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import dualray as ray
from dualray.data.expressions import col, lit, udf


def ids(data: ray.data.Dataset) -> list[int]:
    return [row["id"] for row in data.take_all()]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("id > 95", [96, 97, 98, 99]),
        ("id > 3 and id < 7 or id == 10", [4, 5, 6, 10]),
        ("id in [1, 2, 300]", [1, 2]),
        ("id not in (0, 1) and id <= 3", [2, 3]),
        ("not (id >= 2)", [0, 1]),
        ("2 < id < 5", [3, 4]),
        ("id * 2 + 1 == 7", [3]),
        ("id / 2 == 1.5", [3]),
        ("id % 50 == 1 and id // 50 == 1", [51]),
        ("-id >= -1", [0, 1]),
        ("is_null(id)", []),
        ("is_valid(id) and id != 0 and id < 2", [1]),
    ],
)
def test_filter_by_text(numbers, text, expected):
    assert ids(numbers.filter(expr=text)) == expected


def test_filter_by_other_expressions(numbers):
    assert ids(numbers.filter(expr=(col("id") > 2) & (col("id") <= 4))) == [3, 4]
    assert ids(numbers.filter(expr=pc.field("id") < 2)) == [0, 1]
    assert ids(numbers.filter(~col("id").is_in([*range(98)]))) == [98, 99]
    with pytest.raises(ValueError, match=r"'foo\(' is not an expression in Python's syntax"):
        numbers.filter(expr="foo(")
    with pytest.raises(ValueError, match=r"'open\(id\)' in .* cannot stand in an expression"):
        numbers.filter(expr="open(id) == 1")
    for wrong in ({}, {"fn": bool, "expr": "id > 1"}):
        with pytest.raises(ValueError, match="give either a function or expr="):
            numbers.filter(**wrong)
    with pytest.raises(TypeError, match="neither true nor false; use & and"):
        numbers.filter(expr=col("id") > 1 and col("id") < 3)


@udf()
def plus_five(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.add(column, 5)


@pytest.mark.parametrize(
    ("expr", "expected"),
    [
        (col("id") * 2 + 1, [1, 3, 5]),
        (10 - col("id"), [10, 9, 8]),
        (col("id") / 2, [0, 0, 1]),  # as in Ray: Arrow divides integers
        (col("id") / 2.0, [0, 0.5, 1]),
        ((col("id") // 2) % 2, [0, 0, 1]),
        (lit("q"), ["q", "q", "q"]),
        (col("id").is_in([1, 2]), [False, True, True]),
        (col("id").not_in([1, 2]), [True, False, False]),
        (-col("id"), [0, -1, -2]),
        (~(col("id") > 1), [True, True, False]),
        (plus_five(col("id")), [5, 6, 7]),
        ((col("id") + 1).alias("other"), [1, 2, 3]),
        (col("id").power(2), [0, 1, 4]),
        (col("id").cast(pa.string()) + lit("!"), ["0!", "1!", "2!"]),
        ((col("id") - 1).abs(), [1, 0, 1]),
    ],
)
def test_with_column(numbers, expr, expected):
    rows = numbers.limit(3).with_column("made", expr).take_all()
    assert [row["made"] for row in rows] == expected and [row["id"] for row in rows] == [0, 1, 2]


def test_functions_of_kinds_of_columns():
    data = ray.data.from_items(
        [
            {"s": " ab ", "l": [3, 1, 2], "u": {"n": 1}, "t": pd.Timestamp("2024-01-02 03:00"), "y": None},
            {"s": "Cd", "l": [5], "u": {"n": 2}, "t": pd.Timestamp("2023-02-03 04:00"), "y": 1.0},
        ]
    )
    made = data.with_columns(
        {
            "upper": col("s").str.strip().str.upper(),
            "starts": col("s").str.starts_with("C"),
            "n": col("l").list.len(),
            "first": col("l").list.get(0),
            "sorted": col("l").list.sort(order="descending"),
            "inner": col("u").struct.field("n"),
            "year": col("t").dt.year(),
            "day": col("t").dt.strftime("%d"),
            "null": col("y").is_null(),
        }
    ).drop_columns(["s", "l", "u", "t", "y"])
    assert made.take_all() == [
        {
            "upper": "AB",
            "starts": False,
            "n": 3,
            "first": 3,
            "sorted": [3, 2, 1],
            "inner": 1,
            "year": 2024,
            "day": "02",
            "null": True,
        },
        {
            "upper": "CD",
            "starts": True,
            "n": 1,
            "first": 5,
            "sorted": [5],
            "inner": 2,
            "year": 2023,
            "day": "03",
            "null": False,
        },
    ]
    with pytest.raises(AttributeError, match="has no function 'shout'"):
        col("s").str.shout()
    with pytest.raises(TypeError, match="must be an expression"):
        data.with_column("x", 3)  # type: ignore[arg-type]


def test_with_column_replaces_a_column(numbers):
    assert numbers.limit(2).with_column("id", col("id") + 1).take_all() == [{"id": 1}, {"id": 2}]
    assert numbers.limit(1).select_columns([col("id").alias("k"), "id"]).take_all() == [{"k": 0, "id": 0}]
