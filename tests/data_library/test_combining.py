"""Zip and join, parts, samples, strategies, and values that Arrow has no type for."""

from __future__ import annotations

import asyncio

import numpy as np
import pandas as pd
import pytest

import dualray as ray
from dualray.data.combining import JOINS
from dualray.data.context import _warn_once
from dualray.data.expressions import col
from dualray.exceptions import RayTaskError, UserCodeException


def test_zip(numbers):
    other = ray.data.range(100, override_num_blocks=3).rename_columns({"id": "other"})
    both = numbers.zip(other)
    assert both.count() == 100 and all(row["id"] == row["other"] for row in both.take_all())
    assert numbers.limit(1).zip(numbers.limit(1), other.limit(1)).take_all() == [{"id": 0, "id_1": 0, "other": 0}]
    with pytest.raises(ValueError, match="must have the same number of rows, but have 100 and 2 rows"):
        numbers.zip(other.limit(2)).take_all()
    with pytest.raises(TypeError, match="zip takes datasets, not 3"):
        numbers.zip(3)


@pytest.fixture
def sides() -> tuple[pd.DataFrame, pd.DataFrame]:
    left = pd.DataFrame({"k": [1, 2, 2, 3, 5], "n": ["a", "b", "c", "d", "e"], "v": [1.0, 2.0, 3.0, 4.0, 5.0]})
    right = pd.DataFrame({"k": [2, 3, 3, 4], "v": [20.0, 30.0, 31.0, 40.0], "z": [True, False, True, False]})
    return left, right


@pytest.mark.parametrize("kind", ["inner", "left_outer", "right_outer", "full_outer"])
def test_join_is_a_merge_of_pandas(sides, kind):
    left, right = sides
    how = {"full_outer": "outer"}.get(kind, kind.partition("_")[0])
    expected = left.merge(right, on="k", how=how, suffixes=("_l", "_r"))
    data = [ray.data.from_pandas(side).repartition(2) for side in sides]
    found = data[0].join(data[1], kind, 3, on="k", left_suffix="_l", right_suffix="_r")
    assert found.num_blocks() == 3 and found.columns() == list(expected.columns)

    def rows(frame):
        return sorted(str({name: None if pd.isna(value) else value for name, value in row.items()}) for row in frame)

    assert rows(found.take_all()) == rows(expected.to_dict("records"))


def test_joins_with_rows_of_one_side(sides):
    data = [ray.data.from_pandas(side).rename_columns({"k": name}) for side, name in zip(sides, "ab", strict=True)]

    def keys(kind, name):
        return sorted(row[name] for row in data[0].join(data[1], kind, 2, on=("a",), right_on=("b",)).take_all())

    assert keys("left_semi", "a") == [2, 2, 3] and keys("left_anti", "a") == [1, 5]
    assert keys("right_semi", "b") == [2, 3, 3] and keys("right_anti", "b") == [4]
    empty = ray.data.from_items([])
    assert [len(data[0].join(empty, kind, 2, on="a").take_all()) for kind in JOINS] == [0, 5, 0, 5, 0, 0, 5, 0]


def test_a_join_keeps_arrays_and_lists():
    left = ray.data.from_items([{"id": n, "a": np.full((2, 2), n), "l": [n]} for n in range(4)])
    right = ray.data.from_items([{"id": n, "b": n * 10} for n in range(2, 6)])
    row = left.join(right, "inner", 2).sort("id").take_all()[0]
    assert (row["id"], row["a"].tolist(), row["l"], row["b"]) == (2, [[2, 2], [2, 2]], [2], 20)


def test_what_cannot_be_joined(sides):
    left, right = map(ray.data.from_pandas, sides)
    with pytest.raises(ValueError, match="both datasets have the columns 'v'; give left_suffix="):
        left.join(right, "inner", 2, on="k").take_all()
    with pytest.raises(ValueError, match="join_type='cross' must be one of 'inner'"):
        left.join(right, "cross", 2, on="k")
    with pytest.raises(ValueError, match="must name the same number of columns"):
        left.join(right, "inner", 2, on="k", right_on=["k", "v"])
    with pytest.raises(KeyError, match="the data has no column 'id'"):
        left.join(right, "inner", 2).take_all()


def test_shares_and_samples(numbers):
    assert [part.count() for part in numbers.split_proportionately([0.2, 0.3])] == [20, 30, 50]
    with pytest.raises(ValueError, match="must be above 0, and their sum must be below 1"):
        numbers.split_proportionately([0.5, 0.6])
    sample = [row["id"] for row in numbers.random_sample(0.5, seed=1).take_all()]
    assert 30 < len(sample) < 70 and sample == [row["id"] for row in numbers.random_sample(0.5, seed=1).take_all()]
    assert (numbers.random_sample(0).count(), numbers.random_sample(1).count()) == (0, 100)
    order = [row["id"] for row in numbers.randomize_block_order(seed=3).take_all()]
    assert sorted(order) == list(range(100)) != order
    assert numbers.repartition(target_num_rows_per_block=30).materialize().num_blocks() == 4
    shuffled = numbers.repartition(3, shuffle=True).materialize()
    by_key = numbers.with_column("k", col("id") % 5).repartition(3, keys=["k"], sort=True)
    blocks = [batch["k"].tolist() for batch in by_key.iter_batches(batch_size=None)]
    assert sum(map(len, blocks)) == 100 and all(block == sorted(block) for block in blocks)
    assert sum(len(set(block)) for block in blocks) == 5  # no key is in two blocks
    assert shuffled.num_blocks() == 3 and shuffled.sum("id") == 4950 and shuffled.take(3) != numbers.take(3)


def test_shuffled_blocks_have_about_as_many_rows_each():
    few = ray.data.range(7, override_num_blocks=1)
    shuffled = few.repartition(3, shuffle=True)
    counts = sorted(len(batch["id"]) for batch in shuffled.iter_batches(batch_size=None))
    assert counts == [2, 2, 3] and shuffled.sum("id") == 21
    orders = [[row["id"] for row in few.random_shuffle(seed=seed, num_blocks=3).take_all()] for seed in range(20)]
    assert {order[0] for order in orders} == set(range(7)), "each row can be the first one"


@pytest.mark.parametrize("is_known", [True, False])
def test_streaming_split_leaves_out_no_row(numbers, is_known):
    data = numbers if is_known else numbers.filter(expr="id >= 0")

    @ray.remote
    def total(rows):
        return [sum(int(batch["id"].sum()) for batch in rows.iter_batches(batch_size=7)) for _ in range(2)]

    sums = ray.get([total.remote(each) for each in data.streaming_split(3)])
    assert sum(first for first, _ in sums) == 4950 and all(first == again for first, again in sums)
    assert [part.count() for part in data.streaming_split(3, equal=True)] == [33, 33, 33]
    assert ray.get(total.remote(data.iterator())) == [4950, 4950]


def test_classes_and_strategies_for_rows(numbers):
    class Times:
        def __init__(self, factor=1):
            self.factor = factor

        def __call__(self, row, more=0):
            return {"id": row["id"] * self.factor + more}

    class IsMultiple:
        def __init__(self, factor):
            self.factor = factor

        def __call__(self, row):
            return row["id"] % self.factor == 0

    pool = ray.data.ActorPoolStrategy(size=1)
    times = numbers.map(Times, fn_constructor_kwargs={"factor": 3}, fn_kwargs={"more": 1}, compute=pool)
    assert [row["id"] for row in times.take(3)] == [1, 4, 7] and times.count() == 100
    assert numbers.filter(IsMultiple, fn_constructor_args=(25,), concurrency=(1, 2)).count() == 4
    assert numbers.flat_map(lambda row, n: [row] * n, fn_args=(2,)).count() == 200
    assert numbers.map(dict, compute=ray.data.TaskPoolStrategy(size=1), concurrency=None).count() == 100
    with pytest.raises(ValueError, match="is a function, which needs a TaskPoolStrategy"):
        numbers.map(dict, compute=pool)
    with pytest.raises(ValueError, match="Times is a class, which needs an ActorPoolStrategy"):
        numbers.map_batches(Times, compute=ray.data.TaskPoolStrategy())
    with pytest.raises(ValueError, match="size=0 must be an int of at least 1"):
        ray.data.ActorPoolStrategy(size=0)
    with pytest.raises(ValueError, match="max_size=1 must be at least min_size=2"):
        ray.data.ActorPoolStrategy(min_size=2, max_size=1)


def test_async_functions(numbers):
    class Later:
        async def __call__(self, batch):
            await asyncio.sleep(0.001)
            return {"id": batch["id"] + 1}

    async def twice(batch):
        yield batch
        await asyncio.sleep(0.001)
        yield batch

    async def renamed(row):
        return {"n": row["id"]}

    assert numbers.map_batches(Later).sum("id") == 5050
    assert numbers.map_batches(twice).count() == 200
    assert numbers.map(renamed).take(2) == [{"n": 0}, {"n": 1}]


def test_at_most_so_many_tasks_at_a_time(numbers):
    class Meter:
        def __init__(self):
            self.now = self.most = 0

        def change(self, by):
            self.now += by
            self.most = max(self.most, self.now)
            return self.most

    meter = ray.remote(Meter).remote()

    def measured(batch):
        ray.get(meter.change.remote(1))
        ray.get(meter.change.remote(-1))
        return batch

    numbers.map_batches(measured, concurrency=1).take_all()
    assert ray.get(meter.change.remote(0)) == 1


def test_errors_of_users_functions(numbers):
    for kind in (ZeroDivisionError, UserCodeException, RayTaskError):
        with pytest.raises(kind, match="division by zero"):
            numbers.map(lambda row: row["id"] / 0).take_all()
    with pytest.raises(ValueError, match="a row of a dataset is a dict, not 3"):
        numbers.map(lambda row: 3).take_all()


def test_values_that_arrow_has_no_type_for(numbers):
    assert ray.data.from_items([(1, "a"), (2, None)]).take_all() == [{"item": (1, "a")}, {"item": (2, None)}]
    assert ray.data.from_items([int, str]).map(lambda row: {"n": row["item"].__name__}).take_all() == [
        {"n": "int"},
        {"n": "str"},
    ]
    ragged = ray.data.from_items([{"k": n % 2, "a": np.full((n, 2), n)} for n in range(1, 7)]).repartition(2)
    assert [len(row["a"]) for row in ragged.sort("k").take_all()] == [2, 4, 6, 1, 3, 5]
    assert ragged.random_shuffle(seed=1).map(lambda row: {"n": row["a"].shape[0]}).sum("n") == 21
    assert ragged.take_batch(2)["a"][1].shape == (2, 2)
    assert ragged.to_pandas()["a"][5].shape == (6, 2)
    moments = numbers.limit(1).map(lambda row: {"t": np.datetime64("2020-01-01")})
    assert str(moments.take_all()[0]["t"]) == "2020-01-01"


def test_arrays_of_no_rows_and_of_other_types(numbers):
    arrays = numbers.map_batches(lambda batch: {"id": batch["id"], "a": np.ones((len(batch["id"]), 2, 2), bool)})
    assert arrays.take_batch(3)["a"].shape == (3, 2, 2) and arrays.take_batch(3)["a"].dtype == bool
    few = ray.data.from_numpy(np.arange(8.0).reshape(2, 2, 2)).repartition(2)
    assert few.random_shuffle(num_blocks=6, seed=1).count() == 2  # some blocks have no rows
    names = numbers.limit(2).map_batches(lambda batch: {"a": np.array([["x", "y"]] * 2)})
    assert names.take_all()[1]["a"].tolist() == ["x", "y"]


def test_none_is_the_format_of_the_blocks(numbers):
    assert {type(batch).__name__ for batch in numbers.iter_batches(batch_format=None)} == {"Table"}
    assert len(numbers.take_all(limit=100)) == 100
    for use in (numbers.take_all, numbers.to_pandas):
        with pytest.raises(ValueError, match="rows"):
            use(limit=5)


def test_the_context_accepts_rays_attributes(caplog):
    _warn_once.cache_clear()
    context = ray.data.DataContext()
    context.execution_options.preserve_order = True
    context.enable_progress_bars = False
    assert not caplog.records
    context.use_push_based_shuffle = True
    context.use_push_based_shuffle = False
    assert ["use_push_based_shuffle" in record.message for record in caplog.records] == [True]
    context.set_config("key", 3)
    assert (context.get_config("key"), context.get_config("other", 4)) == (3, 4)
    assert context.read_op_min_num_blocks == 200
    with pytest.raises(AttributeError, match="DataContext has no attribute 'nothing'"):
        _ = context.nothing


@pytest.mark.parametrize("method", ["select_columns", "drop_columns", "random_shuffle"])
def test_an_option_that_ray_has_not_is_refused_at_once(method):
    """A misspelled seed was ignored without a word."""
    data = ray.data.range(3)
    columns = [] if method == "random_shuffle" else [["id"]]
    getattr(data, method)(*columns, num_cpus=1)
    with pytest.raises(TypeError, match="'sed'"):
        getattr(data, method)(*columns, sed=1)
