"""Expressions of columns, and the text of filters: the values are those of Ray 2.60."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any
from uuid import UUID, uuid4

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import dualray as ray
from dualray.data.expressions import col, lit, monotonically_increasing_id, random, star, udf, unnest, uuid


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
    with pytest.raises(ValueError, match=r"'open\(id\)' in .* cannot be part of an expression"):
        numbers.filter(expr="open(id) == 1")
    for wrong in ({}, {"fn": bool, "expr": "id > 1"}):
        with pytest.raises(ValueError, match="exactly one of 'fn'"):
            numbers.filter(**wrong)
    with pytest.raises(TypeError, match="neither true nor false: write & and"):
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


LISTS = [{"l": [1, 2, 3]}, {"l": [4]}, {"l": None}]


@pytest.mark.parametrize(
    ("expr", "expected"),
    [
        (col("l").list[0], [1, 4, None]),
        (col("l").list[-1], [3, 4, None]),
        (col("l").list[1], [2, None, None]),
        (col("l").list[1:3], [[2, 3], [], None]),
        (col("l").list[:], [[1, 2, 3], [4], None]),
        (col("l").list[0:3:2], [[1, 3], [4], None]),
        (col("l").list[-2:], [[2, 3], [4], None]),
    ],
)
def test_parts_of_lists(expr, expected):
    data = ray.data.from_items(LISTS).with_column("x", expr)
    assert [row["x"] for row in data.take_all()] == expected


def test_keys_and_values_of_maps():
    maps = pa.array([[("a", 1), ("b", 2)], None], pa.map_(pa.string(), pa.int64()))
    data = ray.data.from_arrow(pa.table({"m": maps}))
    data = data.with_columns({"k": col("m").map.keys(), "v": col("m").map.values()}).drop_columns("m")
    assert data.take_all() == [{"k": ["a", "b"], "v": [1, 2]}, {"k": None, "v": None}]


@pytest.mark.parametrize(
    ("expr", "lines"),
    [
        (
            (col("x") + lit(5)) * col("y"),
            [
                *("MUL", "    ├── left: ADD", "    │   ├── left: COL('x')", "    │   └── right: LIT(5)"),
                "    └── right: COL('y')",
            ],
        ),
        (
            1 - ~(col("x") > 1).is_null(),
            [
                *("SUB", "    ├── left: LIT(1)", "    └── right: NOT", "        └── operand: IS_NULL"),
                *(
                    "            └── operand: GT",
                    "                ├── left: COL('x')",
                    "                └── right: LIT(1)",
                ),
            ],
        ),
        (col("x").not_in([1]), ["NOT_IN", "    ├── left: COL('x')", "    └── right: LIT([1])"]),
        (col("x").alias("y"), ["ALIAS('y')", "    └── COL('x')"]),
        (udf()(len)(col("x"), y=2), ["UDF(len)", "    ├── arg[0]: COL('x')", "    └── kwarg['y']: LIT(2)"]),
        (lit("a" * 80), ["LIT('" + "a" * 46 + "...)"]),
        (star(), ["COL(*)"]),
        (random(), ["RANDOM()"]),
        (random(seed=1234), ["RANDOM(seed=1234, reseed_after_execution=True)"]),
        (uuid(), ["UUID()"]),
        (unnest(col("s")), ["UNNEST", "    └── COL('s')"]),
        (monotonically_increasing_id(), ["MONOTONICALLY_INCREASING_ID()"]),
    ],
)
def test_an_expression_shows_its_tree(expr, lines):
    assert repr(expr).split("\n") == lines


def test_a_step_shows_its_expression_in_one_line(numbers):
    data = numbers.map(dict).filter(expr=~((col("id") + 1) * 2 > 3) | col("id").is_in([1]))
    assert repr(data).startswith("Filter(~(((col('id') + 1) * 2) > 3) | (col('id') in [1]))\n")


@udf()
class AddOffset:
    def __init__(self, offset: int, *, factor: int = 1) -> None:
        self.offset, self.factor, self.name = offset, factor, uuid4().hex

    def __call__(self, column: pa.ChunkedArray) -> pa.Array:
        values = column.to_numpy() * self.factor + self.offset
        worker = ray.get_runtime_context().get_worker_id()
        columns = [values, [worker] * len(values), [self.name] * len(values)]
        return pa.StructArray.from_arrays([pa.array(each) for each in columns], ["x", "worker", "instance"])


def test_a_class_is_made_once_in_each_worker(numbers):
    add_five = AddOffset(5, factor=10)
    rows = numbers.with_columns(unnest(add_five(col("id")))).take_all()
    assert [row["x"] for row in rows] == [10 * number + 5 for number in range(100)]
    workers, instances = ({row[name] for row in rows} for name in ("worker", "instance"))
    assert len(instances) == len(workers) < 7  # blocks
    other = AddOffset(offset=5, factor=10)(col("id"))
    assert not {row["instance"] for row in numbers.with_columns(unnest(other)).take_all()} & instances


def test_functions_can_be_async(numbers):
    @udf()
    async def add_one(column: pa.ChunkedArray) -> pa.ChunkedArray:
        await asyncio.sleep(0)
        return pc.add(column, 1)

    assert numbers.with_column("x", add_one(col("id"))).take(2) == [{"id": 0, "x": 1}, {"id": 1, "x": 2}]


def test_unnest_makes_a_column_of_each_field():
    data = ray.data.from_items([{"s": {"a": 1, "b": "x"}, "c": 3}])
    expected = [{"s": {"a": 1, "b": "x"}, "c": 3, "d": 6, "a": 1, "b": "x"}]
    assert data.with_columns({"d": col("c") * 2}, unnest(col("s"))).take_all() == expected
    assert data.with_columns(unnest(col("s"))).columns() == ["s", "c", "a", "b"]
    with pytest.raises(TypeError, match="unnest creates one column for each field"):
        unnest(col("s")).alias("x")
    with pytest.raises(TypeError, match=r"use ds.with_columns\(unnest\(expr\)\)"):
        data.with_column("x", unnest(col("s")))
    with pytest.raises(TypeError, match="takes dicts of expressions and unnest"):
        data.with_columns(col("c").alias("x"))  # type: ignore[arg-type]  # refused
    with pytest.raises(TypeError, match=r"unnest: the values of col\('c'\) are of type int64"):
        data.with_columns(unnest(col("c"))).take_all()
    with pytest.raises(TypeError, match="takes an expression of structs, not a UnnestExpr"):
        unnest(unnest(col("s")))


def column(data: ray.data.Dataset, name: str) -> list[Any]:
    return [row[name] for row in data.take_all()]


def test_random_numbers_follow_the_seed_and_the_block(numbers):
    data = numbers.with_column("r", random())
    drawn, again = column(data, "r"), column(data, "r")
    assert len({*drawn, *again, *column(numbers.with_column("r", random()), "r")}) == 300
    assert 0 <= min(drawn) < 0.2
    assert 0.8 < max(drawn) < 1
    two = numbers.with_columns({"r": random(), "s": random()}).with_column("t", random())
    assert len({row[name] for row in two.take_all() for name in "rst"}) == 300
    same = random()
    halves = numbers.with_columns({"x": same + same, "h": same - same}).take(9)
    assert all(row["h"] == 0 < row["x"] < 2 for row in halves)
    fixed = numbers.with_column("r", random(seed=4, reseed_after_execution=False))
    renewed = numbers.with_column("r", random(seed=4))
    seeded = column(fixed, "r")
    assert seeded == column(fixed, "r") == column(renewed, "r")
    assert len({*drawn, *seeded, *column(renewed, "r"), *column(numbers.with_column("r", random(seed=5)), "r")}) == 400


def test_the_context_has_the_seed_of_random_numbers(numbers):
    context = ray.data.DataContext.get_current()

    def drawn_with(seed):
        ray.shutdown()
        context.shuffle_seed = seed
        return column(ray.data.range(100).with_column("r", random()), "r"), ids(ray.data.range(100).random_shuffle())

    try:
        first = drawn_with(0)
        assert first == drawn_with(0), "a second run draws the same"
        assert not set(first[0]) & set(drawn_with(7)[0])
        assert drawn_with(7)[1] != first[1]
    finally:
        context.shuffle_seed = 0


def test_a_task_that_runs_again_draws_the_same_numbers(numbers, tmp_path):
    def break_once(batch):
        with contextlib.suppress(FileExistsError):
            (tmp_path / str(batch["id"][0])).touch(exist_ok=False)
            raise OSError("the first try")
        return batch

    options = {"max_retries": 2, "retry_exceptions": True}
    drawn = random(seed=3, reseed_after_execution=False)
    data = numbers.with_columns({"r": drawn, "u": uuid()}, **options)
    once, again = data.take_all(), data.map_batches(break_once, **options).take_all()
    assert once == again
    assert len(list(tmp_path.iterdir())) == 7


def test_filters_and_selections_by_random_numbers(numbers):
    kept = ids(numbers.filter(expr=random() < 0.5))
    assert 30 < len(kept) < 70
    assert ids(numbers.filter(expr=random() < 0.5)) != kept
    data = numbers.select_columns([star(), random(seed=1).alias("r"), random(seed=1)])
    assert data.columns() == ["id", "r", "random()"]
    assert all(row["r"] == row["random()"] for row in data.take_all())


def test_random_numbers_in_shards_are_those_of_the_dataset(numbers):
    data = numbers.with_column("r", random(seed=2, reseed_after_execution=False))
    assert [row for shard in data.shards(2) for row in shard.iter_rows()] == data.take_all()


def test_each_uuid_is_new(numbers):
    data = numbers.with_columns({"u": uuid(), "v": uuid().str.replace("-", "")})
    rows = data.take_all()
    assert data.take_all() == rows
    assert len({row[name] for row in rows for name in "uv"}) == 200
    assert all(UUID(row["u"]).version == 4 and len(row["v"]) == 32 for row in rows)
    assert not {row["u"] for row in rows} & set(column(numbers.with_column("u", uuid()), "u"))


def test_ids_grow_from_row_to_row():
    data = ray.data.range(4, override_num_blocks=2).with_column("uid", monotonically_increasing_id())
    assert column(data, "uid") == [0, 1, 8589934592, 8589934593]
    parts = ray.data.range(6, override_num_blocks=2).map_batches(lambda batch: batch, batch_size=2)
    ids_of_parts = column(parts.with_columns({"a": monotonically_increasing_id()}), "a")
    assert ids_of_parts == [0, 1, 2, 8589934592, 8589934593, 8589934594]


def test_a_text_finds_columns_with_dots_in_their_names():
    iris = ray.data.from_items([{"sepal.length": 4.8, "s": {"f": 1}}, {"sepal.length": 5.1, "s": {"f": 2}}])
    assert iris.filter(expr="sepal.length > 5.0").count() == 1
    assert iris.filter(expr="s.f == 1").count() == 1
    with pytest.raises(KeyError, match=r"has no column 'petal\.length'"):
        iris.filter(expr="petal.length > 1").take_all()


def test_a_filter_takes_a_function_or_an_expression(numbers):
    with pytest.raises(ValueError, match="exactly one of 'fn'"):
        numbers.filter(lambda row: True, expr="id > 1")
    with pytest.raises(ValueError, match="fn must be a UserDefinedFunction"):
        numbers.filter(fn="id > 1")
    with pytest.raises(ValueError, match="Invalid syntax in the expression"):
        numbers.filter(expr="id more")


def test_the_last_value_of_an_async_generator_counts():
    @udf()
    class Several:
        async def __call__(self, column):
            yield pc.add(column, 1)
            yield pc.add(column, 2)

    data = ray.data.range(3).with_column("x", Several()(col("id")))
    assert column(data, "x") == [2, 3, 4]


def test_texts_that_are_kept_as_a_dictionary_are_joined():
    table = pa.table({"name": pa.array(["a", "b"]).dictionary_encode()})
    data = ray.data.from_arrow(table).with_column("long", col("name") + "_x")
    assert column(data, "long") == ["a_x", "b_x"]
