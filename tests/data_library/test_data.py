"""dualray.data: each test is one promise, kept by both modes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet
import pytest

import dualray as ray
from dualray.data.context import DataContext
from dualray.exceptions import TaskError
from dualray.util.state import list_objects

MIB = 1024 * 1024


def test_nothing_runs_before_it_is_asked_for(numbers):
    def fail(row):
        raise ValueError("too early")

    lazy = numbers.map(fail)
    assert repr(lazy) == "Map(fail)\n+- Dataset(num_rows=100, schema={id: int64})"
    with pytest.raises(ValueError, match="too early"):
        lazy.take(1)
    with pytest.raises(TaskError):
        lazy.materialize()


def test_one_error_of_a_pipeline_is_enough(capfd):
    def fail(batch):
        raise ValueError("none of them")

    with pytest.raises(ValueError, match="none of them"):
        ray.data.range(100).repartition(10).map_batches(fail).take_all()
    assert ray.get(ray.remote(len).remote([1])) == 1  # what the other tasks have ended with is here, too
    assert "never read its error" not in capfd.readouterr().err


def test_rows(numbers):
    squares = numbers.map(lambda row: row | {"square": row["id"] ** 2})
    assert squares.take(3) == [{"id": n, "square": n * n} for n in range(3)]
    assert squares.filter(lambda row: row["square"] > 9000).take_all() == [
        {"id": n, "square": n * n} for n in range(95, 100)
    ]
    assert squares.filter(pc.field("square") > 9000).count() == 5
    assert ray.data.from_items([1, 2]).flat_map(lambda row: [row] * row["item"]).take_all() == [
        {"item": 1},
        {"item": 2},
        {"item": 2},
    ]


def test_batches_in_each_form(numbers):
    for form, kind in (("numpy", dict), ("pandas", pd.DataFrame), ("pyarrow", pa.Table)):

        def double(batch, kind=kind):
            assert isinstance(batch, kind)
            return {"id": np.asarray(batch["id"]) * 2}

        assert numbers.map_batches(double, batch_format=form, batch_size=5).sum("id") == 9900
    assert [len(batch["id"]) for batch in numbers.iter_batches(batch_size=30)] == [30, 30, 30, 10]
    assert [len(batch["id"]) for batch in numbers.iter_batches(batch_size=30, drop_last=True)] == [30, 30, 30]
    stirred = [n for batch in numbers.iter_batches(local_shuffle_buffer_size=20) for n in batch["id"].tolist()]
    assert stirred != sorted(stirred) and sorted(stirred) == list(range(100))
    with pytest.raises(ValueError, match="'torch' must be one of 'numpy', 'pandas', 'pyarrow'"):
        numbers.iter_batches(batch_format="torch")


@pytest.mark.parametrize("size", [None, 5])
def test_functions_of_batches_see_no_batch_without_rows(size):
    def doubled(frame):
        assert len(frame) and list(frame.columns) == ["id"]
        return frame.assign(double=frame["id"] * 2)

    few = ray.data.range(2).repartition(4)
    made = few.map_batches(doubled, batch_format="pandas", batch_size=size).materialize()
    assert (made.num_blocks(), made.columns(), made.sum("double")) == (1 if size else 4, ["id", "double"], 2)
    added = few.filter(lambda row: row["id"]).add_column("double", lambda frame: doubled(frame)["double"])
    assert added.repartition(1).take_all() == [{"id": 1, "double": 2}]
    assert few.filter(lambda row: False).map_batches(doubled, batch_format="pandas").add_column("x", len).count() == 0


def test_a_function_that_yields_batches(numbers):
    def halves(batch):
        yield {"id": batch["id"][::2]}
        yield {"id": batch["id"][1::2]}

    assert numbers.map_batches(halves).sum("id") == 4950


def test_a_class_runs_in_a_pool_of_actors(numbers):
    class Add:
        def __init__(self, amount):
            self.amount = amount

        def __call__(self, batch):
            return {"id": batch["id"] + self.amount}

    # Both CPUs are needed by the tasks around the pool: its actors hold none.
    added = numbers.map(dict).map_batches(Add, fn_constructor_args=(5,), concurrency=2).map(dict)
    assert [row["id"] for row in added.take_all()] == list(range(5, 105))
    cpus = int(ray.cluster_resources()["CPU"])
    greedy = numbers.map_batches(Add, fn_constructor_args=(5,), concurrency=cpus, num_cpus=1)
    with pytest.raises(ValueError, match=f"{cpus} actors of 1 CPUs would occupy all {cpus} CPUs"):
        greedy.count()


def test_columns_and_their_numbers(numbers):
    both = numbers.add_column("half", lambda frame: frame["id"] / 2)
    assert numbers.add_column("rest", lambda frame: frame % 3).unique("rest") == [0, 1, 2]
    assert both.rename_columns({"half": "h"}).drop_columns("id").columns() == ["h"]
    assert both.select_columns(["half", "id"]).schema().names == ["half", "id"]
    assert (both.min("half"), both.max("half"), both.mean("id")) == (0, 49.5, 49.5)
    assert both.std("id") == pytest.approx(np.std(np.arange(100), ddof=1))
    assert ray.data.range(0).sum("id") is None


def test_arrays_in_a_dataframe_are_columns_of_arrays():
    frame = pd.DataFrame({"x": [1, 2], "vector": list(np.arange(6.0).reshape(2, 3)), "y": ["a", "b"]})
    data = ray.data.from_pandas(frame)
    assert data.columns() == ["x", "vector", "y"]
    [_, row] = data.map_batches(lambda batch: batch.assign(x=batch["x"] + 1), batch_format="pandas").take_all()
    assert isinstance(row["vector"], np.ndarray)
    assert (row["x"], row["vector"].tolist(), row["y"]) == (3, [3, 4, 5], "b")
    ragged = pd.DataFrame({"vector": [np.ones(1), np.ones(2)]})
    assert [len(row["vector"]) for row in ray.data.from_pandas(ragged).take_all()] == [1, 2]
    mixed = pd.DataFrame({"x": [1, 2], "value": [[1, "a"], {"b"}]})
    assert ray.data.from_pandas(mixed).take_all() == [{"x": 1, "value": [1, "a"]}, {"x": 2, "value": {"b"}}]


def test_arrays_are_columns():
    images = np.arange(24.0).reshape(6, 2, 2)
    data = ray.data.from_numpy(images)
    assert data.take_batch(2)["data"].shape == (2, 2, 2)
    doubled = data.map(lambda row: {"data": row["data"] * 2, "n": int(row["data"].max())})
    back = doubled.random_shuffle(seed=1).sort("n").take_batch(6)["data"]
    assert np.array_equal(back, images * 2)
    assert doubled.to_pandas()["data"][5].tolist() == (images[5] * 2).tolist()


def test_a_function_of_rows_gets_nan_for_what_a_dataframe_lacks():
    """The function gets None for what another source lacks. `take_all` gives None for both, as in Ray."""
    of_frame = ray.data.from_pandas(pd.DataFrame({"x": [2.0, None], "s": ["a", None]}))
    of_items = ray.data.from_items([{"x": 2.0}, {"x": None}])
    assert of_frame.take_all() == [{"x": 2.0, "s": "a"}, {"x": None, "s": None}]
    assert [repr(row["y"]) for row in of_frame.map(lambda row: {"y": row["x"] * 2}).take_all()] == ["4.0", "nan"]
    assert of_frame.filter(lambda row: row["x"] is None).count() == 0
    assert of_frame.flat_map(lambda row: [{"n": row["s"] is None}]).take_all() == [{"n": False}, {"n": True}]
    assert of_items.filter(lambda row: row["x"] is None).count() == 1


def test_text_of_a_dataframe_joins_text_of_another_source():
    of_frame = ray.data.from_pandas(pd.DataFrame({"k": ["x", "y"], "n": [1, 2]}))
    assert ray.get(of_frame.to_arrow_refs()[0]).schema.field("k").type == pa.string()
    wide = ray.data.from_arrow(pa.table({"k": pa.array(["y", "z"], pa.large_string()), "w": [3, 4]}))
    joined = of_frame.join(wide, join_type="inner", num_partitions=2, on=("k",))
    assert joined.take_all() == [{"k": "y", "n": 2, "w": 3}]
    numbers = ray.data.from_items([{"k": 1}])
    with pytest.raises(ValueError, match="keys have the types string in the first dataset, but int64 in the second"):
        of_frame.join(numbers, join_type="inner", num_partitions=2, on=("k",)).take_all()


def test_sort(numbers):
    mixed = numbers.random_shuffle(seed=3).map(lambda row: {"a": row["id"] % 3, "b": str(row["id"])})
    rows = mixed.sort(["a", "b"], descending=[True, False]).take_all()
    assert rows == sorted(rows, key=lambda row: (-row["a"], row["b"])) and len(rows) == 100
    with_nulls = ray.data.from_pandas(pd.DataFrame({"x": [2.0, None, 3.0, 1.0]})).repartition(2)
    assert [row["x"] for row in with_nulls.sort("x").take_all()] == [1, 2, 3, None]
    assert [row["x"] for row in with_nulls.sort("x", descending=True).take_all()] == [3, 2, 1, None]
    with pytest.raises(KeyError, match="the data has no column 'y'; the columns are 'x'"):
        with_nulls.sort("y").take_all()


def test_shuffles_can_be_repeated(numbers):
    orders = [[row["id"] for row in numbers.random_shuffle(seed=seed).take_all()] for seed in (1, 1, 2)]
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[0]) == sorted(orders[2]) == list(range(100))


def test_groups(numbers):
    grouped = numbers.map(lambda row: row | {"key": "abc"[row["id"] % 3]}).groupby("key")
    assert grouped.count().take_all() == [{"key": key, "count()": n} for key, n in (("a", 34), ("b", 33), ("c", 33))]
    assert grouped.aggregate(("id", "min"), ("id", "max")).take_all()[1] == {"key": "b", "min(id)": 1, "max(id)": 97}
    spans = grouped.map_groups(lambda batch: {"span": [int(batch["id"].max() - batch["id"].min())]})
    kinds = [
        grouped.map_groups(lambda batch: {"kind": [type(batch).__name__]}, **options).take(1)[0]["kind"]
        for options in ({}, {"batch_format": "default"}, {"batch_format": "numpy"}, {"batch_format": None})
    ]
    assert kinds == ["DataFrame", "DataFrame", "dict", "Table"]
    assert spans.take_all() == [{"span": 99}, {"span": 96}, {"span": 96}]
    assert numbers.groupby(None).sum("id").take_all() == [{"sum(id)": 4950}]
    assert numbers.map(lambda row: {"x": row["id"] % 2}).unique("x") == [0, 1]


class Tensor:
    """An array of another library, as a tensor of PyTorch is one."""

    def __init__(self, values, *, requires_grad: bool = False) -> None:
        self.values, self.requires_grad = np.asarray(values), requires_grad
        self.shape = self.values.shape

    def __array__(self, dtype=None, copy=None):
        return np.array(self.values, dtype=dtype)


def test_tensors_of_other_libraries_are_arrays(numbers):
    one = numbers.limit(2)
    batches = one.map_batches(lambda batch: {"x": Tensor([[1.0, 2.0]] * len(batch["id"]))})
    assert [row["x"].tolist() for row in batches.take_all()] == [[1.0, 2.0]] * 2
    batches = one.map_batches(lambda batch: {"x": [Tensor([1, 2]) for _ in batch["id"]]})
    assert [row["x"].tolist() for row in batches.take_all()] == [[1, 2]] * 2
    rows = one.map(lambda row: {"loss": Tensor(0.5), "x": Tensor([row["id"]])})
    assert [(row["loss"], row["x"].tolist()) for row in rows.take_all()] == [(0.5, [0]), (0.5, [1])]
    with pytest.raises(ValueError, match="requires grad"):
        one.map(lambda row: {"x": Tensor(0.5, requires_grad=True)}).take_all()


@pytest.mark.parametrize(
    "column", [3, "abc", b"abc", {"x": 1}, {1}, iter([1]), None], ids=lambda column: type(column).__name__
)
def test_a_column_of_a_batch_is_an_array_or_a_list(numbers, column):
    def transform(batch):
        return {"x": iter([1]) if isinstance(column, Iterator) else column}

    with pytest.raises(ValueError, match="must be an array or a list"):
        numbers.map_batches(transform).take_all()


def test_wrong_names_and_paths(numbers):
    with pytest.raises(ValueError, match="names a column twice"):
        numbers.select_columns(["id", "id"])
    path: Any
    for path in (None, 3):
        with pytest.raises(ValueError, match="a path must be a str"):
            numbers.write_csv(path)
        with pytest.raises(ValueError, match="a path must be a str"):
            ray.data.read_csv(path)


def test_each_part_has_its_share_of_each_value(numbers):
    classes = numbers.map(lambda row: {"id": row["id"], "label": "rare" if row["id"] % 10 == 0 else "usual"})
    train, test = classes.train_test_split(0.3, stratify="label")
    counts = [part.groupby("label").count().take_all() for part in (train, test)]
    assert [[row["count()"] for row in rows] for rows in counts] == [[7, 63], [3, 27]]
    assert sorted(row["id"] for row in train.take_all() + test.take_all()) == list(range(100))
    assert test.columns() == ["id", "label"]
    assert classes.train_test_split(20, stratify="label")[1].count() == 20


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"test_size": 3.5}, ValueError, "a share of the rows, between 0 and 1"),
        ({"test_size": 1.0}, ValueError, "a share of the rows, between 0 and 1"),
        ({"test_size": 100}, ValueError, "leaves one of the two parts of the 100 rows empty"),
        ({"test_size": "a"}, TypeError, "must be an int or a float"),
        ({"test_size": 0.5, "shuffle": True, "stratify": "id"}, ValueError, "not both"),
        ({"test_size": 0.5, "stratify": "nothing"}, ValueError, "no column 'nothing'"),
    ],
)
def test_a_split_that_cannot_be(numbers, given, error, words):
    with pytest.raises(error, match=words):
        numbers.train_test_split(**given)


def test_parts(numbers):
    assert numbers.repartition(3).materialize().num_blocks() == 3
    assert [row["id"] for row in numbers.repartition(3).take_all()] == list(range(100))
    assert [part.count() for part in numbers.split(3)] == [33, 33, 34]
    assert [part.count() for part in numbers.split(3, equal=True)] == [33, 33, 33]
    assert [part.sum("id") for part in numbers.split_at_indices([10, 90])] == [45, 3960, 945]
    assert [part.count() for part in numbers.train_test_split(0.25, shuffle=True)] == [75, 25]
    assert [part.count() for part in numbers.limit(8).train_test_split(0.3)] == [5, 3]  # as in Ray
    assert [part.count() for part in numbers.train_test_split(10)] == [90, 10]
    assert numbers.union(numbers.limit(5)).count() == 105
    assert numbers.union(numbers).limit(150).sum("id") == 4950 + 1225


@pytest.mark.parametrize("is_known", [True, False])
def test_shards_have_the_same_number_of_rows(numbers, is_known):
    data = numbers.map(dict) if is_known else numbers.filter(lambda row: True)

    @ray.remote
    def ids(shard):
        return [[row["id"] for row in shard.iter_rows()] for _ in range(2)]

    first, second, third = ray.get([ids.remote(shard) for shard in data.shards(3)])
    assert first[0] == first[1]
    assert first[0] + second[0] + third[0] == list(range(99))
    assert {len(first[0]), len(second[0]), len(third[0])} == {33}


def test_files(numbers, tmp_path: Path):
    numbers.write_parquet(tmp_path / "p")
    numbers.write_csv(tmp_path / "c")
    numbers.write_json(tmp_path / "j")
    assert len(list((tmp_path / "p").iterdir())) == 7
    parquet = ray.data.read_parquet(tmp_path / "p")
    assert repr(parquet).startswith("shape: (100, 1)\n") and len(parquet.input_files()) == 7
    assert ray.data.read_parquet(str(tmp_path / "p" / "00000[0-2]*"), filter=pc.field("id") > 40).count() == 1
    for data in (parquet, ray.data.read_csv(tmp_path / "c"), ray.data.read_json(tmp_path / "j")):
        assert [row["id"] for row in data.take_all()] == list(range(100))
    with pytest.raises(ValueError, match="has no column 'x'; the columns are 'id'"):
        ray.data.read_parquet(tmp_path / "p", columns=["x"])
    with pytest.raises(FileNotFoundError, match="matches no file; give a file, a directory"):
        ray.data.read_csv(tmp_path / "nothing")


def test_row_groups_are_read_by_themselves(tmp_path: Path):
    table = pa.table({"x": np.arange(1000), "y": np.arange(1000) / 2})
    pa.parquet.write_table(table, tmp_path / "whole.parquet", row_group_size=100)
    data = ray.data.read_parquet(tmp_path, columns=["y"], override_num_blocks=5)
    assert data.num_blocks() == 5 and data.columns() == ["y"]
    assert data.sum("y") == pytest.approx(table["y"].to_numpy().sum())


def test_more_data_than_the_store_holds(monkeypatch):
    """300 MiB through a store of 100 MiB, in which nothing may be evicted that somebody holds."""
    context = DataContext.get_current()
    monkeypatch.setattr(context, "bytes_in_flight_max", 24 * MIB)
    data = ray.data.range(75, override_num_blocks=75).map_batches(lambda batch: {"x": np.zeros(512 * 1024)})
    rows = sum(len(batch["x"]) for batch in data.iter_batches(batch_size=None))
    assert rows == 75 * 512 * 1024


def test_consumed_blocks_leave_the_store(numbers):
    data = numbers.map_batches(lambda batch: {"x": np.zeros(64 * 1024)}).materialize()
    assert data.size_bytes() == 7 * 512 * 1024
    assert data.count() == 7 * 64 * 1024
    del data
    large = []
    for _ in range(200):
        large = [row for row in list_objects() if (row.get("object_size") or row.get("size_bytes") or 0) > 400_000]
        if not large:
            return
    raise AssertionError(large)


def test_what_cannot_be(numbers):
    with pytest.raises(TypeError, match="Map takes a function, not 3"):
        numbers.map(3)
    with pytest.raises(ValueError, match="num_blocks=0 must be an int of at least 1"):
        numbers.repartition(0)
    with pytest.raises(TypeError, match="a row of a dataset is a dict, not 4"):
        numbers.map(lambda row: 4).take_all()
    with pytest.raises(ValueError, match="columns of different lengths"):
        numbers.map_batches(lambda batch: {"a": [1], "b": [1, 2]}).take_all()


def test_blocks_from_and_to_references(numbers):
    frames = [pd.DataFrame({"x": [1, 2]}), pd.DataFrame({"x": [3]}, index=[7])]
    found = ray.data.from_pandas_refs([ray.put(frame) for frame in frames])
    assert (found.count(), found.num_blocks(), found.take_all()) == (3, 2, [{"x": 1}, {"x": 2}, {"x": 3}])
    back = ray.get(found.map(lambda row: {"x": row["x"] * 10}).to_pandas_refs())
    assert [frame["x"].tolist() for frame in back] == [[10, 20], [30]]
    assert [len(frame) for frame in ray.get(numbers.limit(20).to_pandas_refs())] == [14, 6]
    arrays = ray.data.from_numpy_refs(ray.put(np.arange(6).reshape(3, 2)))
    assert [row["data"].tolist() for row in arrays.take_all()] == [[0, 1], [2, 3], [4, 5]]
    again = ray.data.from_arrow_refs(found.to_arrow_refs())
    assert (again.count(), again.sum("x")) == (3, 6)
    with pytest.raises(TypeError, match="from_pandas_refs takes references to objects, not"):
        ray.data.from_pandas_refs(frames)
    with pytest.raises(TaskError, match="from_arrow_refs takes references to Arrow tables"):
        ray.data.from_arrow_refs([ray.put(frames[0])])
