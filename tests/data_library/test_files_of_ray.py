"""Files: sources and targets with the names of Ray, and what they read and write there."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pytest

import dualray as ray


def test_text_and_bytes(tmp_path: Path):
    (tmp_path / "a.txt").write_text("one\n\ntwo")
    (tmp_path / "b.txt").write_bytes("drei\ngrün\n".encode("latin-1"))
    lines = ray.data.read_text(tmp_path / "a.txt")
    assert lines.take_all() == [{"text": "one"}, {"text": "two"}]
    assert ray.data.read_text(tmp_path / "a.txt", drop_empty_lines=False).count() == 3
    assert ray.data.read_text(str(tmp_path / "b*"), encoding="latin-1").take_all()[1] == {"text": "grün"}
    (tmp_path / "c.text").write_bytes(b"one\r\n \t\r\ntwo\r\n")  # of Windows, with an end of line at the end
    assert [row["text"] for row in ray.data.read_text(tmp_path / "c.text").take_all()] == ["one", "two"]
    kept = ray.data.read_text(tmp_path / "c.text", drop_empty_lines=False)
    assert [row["text"] for row in kept.take_all()] == ["one", " \t", "two"]
    (tmp_path / "c.text").unlink()
    rows = ray.data.read_binary_files(tmp_path, include_paths=True).take_all()
    assert [(row["bytes"][:3], Path(row["path"]).name) for row in rows] == [(b"one", "a.txt"), (b"dre", "b.txt")]
    with pytest.raises(TypeError, match="read_text has no argument 'columns'"):
        ray.data.read_text(tmp_path, columns=["text"])


def test_numpy(numbers, tmp_path: Path):
    numbers.map_batches(lambda batch: {"x": np.stack([batch["id"], batch["id"]], 1)}).write_numpy(tmp_path, column="x")
    back = ray.data.read_numpy(tmp_path)
    assert len(list(tmp_path.glob("*.npy"))) == 7
    assert back.count() == 100 and back.take(2)[1]["data"].tolist() == [1, 1]
    with pytest.raises(KeyError, match="the data has no column 'zz'"):
        numbers.write_numpy(tmp_path, column="zz")


def test_orc(numbers, tmp_path: Path):
    numbers.write_orc(tmp_path)
    assert ray.data.read_orc(tmp_path, columns=["id"]).sum("id") == 4950


def test_images(tmp_path: Path):
    pytest.importorskip("PIL")
    pixels = np.arange(2 * 4 * 6 * 3, dtype=np.uint8).reshape(2, 4, 6, 3)
    ray.data.from_numpy(pixels).write_images(tmp_path, column="data")
    back = ray.data.read_images(tmp_path)
    assert np.array_equal(np.stack([row["image"] for row in back.take_all()]), pixels)
    small = ray.data.read_images(tmp_path, size=(2, 3), mode="L", include_paths=True).take_all()
    assert [row["image"].shape for row in small] == [(2, 3), (2, 3)] and small[0]["path"].endswith(".png")


def test_sql(tmp_path: Path):
    path = str(tmp_path / "data.sqlite")

    def connect():
        return sqlite3.connect(path)

    with connect() as connection:
        connection.execute("create table t(a int, b text)")
    connection.close()
    ray.data.from_items([{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]).write_sql("insert into t values(?, ?)", connect)
    assert ray.data.read_sql("select * from t order by a", connect).take_all() == [
        {"a": 1, "b": "x"},
        {"a": 2, "b": "y"},
    ]
    assert ray.data.read_sql("select a from t where a > ?", connect, sql_params=(1,)).take_all() == [{"a": 2}]
    with pytest.raises(TypeError, match="does not have the argument shard_keys"):
        ray.data.read_sql("select * from t", connect, shard_keys=["a"])


def test_json_of_lists_and_of_several_lines(tmp_path: Path):
    (tmp_path / "list.json").write_text('[{"a": 1}, {"a": 2}]')
    (tmp_path / "object.json").write_text('{"a": 1,\n "b": [1, 2]}')
    (tmp_path / "lines.jsonl").write_text('{"a": 1}\n{"a": 2}\n')
    assert ray.data.read_json(tmp_path / "list.json").take_all() == [{"a": 1}, {"a": 2}]
    assert ray.data.read_json(tmp_path / "object.json").take_all() == [{"a": 1, "b": [1, 2]}]
    assert ray.data.read_json(tmp_path, file_extensions=["jsonl"]).count() == 2
    ray.data.from_items([{"t": pd.Timestamp("2024-01-02"), "a": np.arange(2)}]).write_json(tmp_path / "out")
    (written,) = (tmp_path / "out").iterdir()
    assert json.loads(written.read_text())["a"] == [0, 1]


def test_directories_of_partitions(tmp_path: Path):
    data = ray.data.from_items([{"g": "ab"[n % 2], "x": n} for n in range(10)])
    data.write_parquet(tmp_path, partition_cols=["g"])
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["g=a", "g=b"]
    back = ray.data.read_parquet(tmp_path)
    assert back.groupby("g").sum("x").take_all() == [{"g": "a", "sum(x)": 20}, {"g": "b", "sum(x)": 25}]
    assert ray.data.read_parquet(tmp_path, columns=["g"]).unique("g") == ["a", "b"]
    assert ray.data.read_parquet(tmp_path, partitioning=None).columns() == ["x"]


def test_how_many_files_are_written_and_when(numbers, tmp_path: Path):
    numbers.write_csv(tmp_path / "few", min_rows_per_file=50, concurrency=2)
    assert len(list((tmp_path / "few").iterdir())) == 2
    for mode, rows in (("append", 200), ("overwrite", 100), ("ignore", 100)):
        if mode == "append":
            numbers.write_csv(tmp_path / "c")
        numbers.write_csv(tmp_path / "c", mode=mode)
        assert ray.data.read_csv(tmp_path / "c").count() == rows
    with pytest.raises(ValueError, match="exists already"):
        numbers.write_csv(tmp_path / "c", mode="error")
    with pytest.raises(ValueError, match="is not a local path: mount the file system on every node"):
        numbers.write_csv("s3://bucket/key")
    numbers.write_parquet(f"local://{tmp_path}/p")
    assert ray.data.read_parquet(f"local://{tmp_path}/p", concurrency=1, num_cpus=1).sum("id") == 4950


def test_functions_that_return_options_run_in_the_task(numbers, tmp_path: Path):
    def options():
        return {"write_options": pa.csv.WriteOptions(include_header=False, delimiter=";")}  # cannot be pickled

    numbers.map(lambda row: {"x": row["id"], "y": 1}).write_csv(tmp_path, arrow_csv_args_fn=options)
    lines = [line for file in sorted(tmp_path.iterdir()) for line in file.read_text().splitlines()]
    assert len(lines) == 100 and lines[1] == "1;1"


def test_other_sources():
    tensors = ray.data.range_tensor(4, shape=(2, 2), override_num_blocks=2)
    assert tensors.num_blocks() == 2 and tensors.take_all()[3]["data"].tolist() == [[3, 3], [3, 3]]
    blocks = ray.data.from_blocks([pa.table({"a": [1]}), pd.DataFrame({"a": [2]})])
    assert (blocks.num_blocks(), blocks.take_all()) == (2, [{"a": 1}, {"a": 2}])

    class Squares:
        def __len__(self):
            return 20

        def __getitem__(self, number):
            return number**2

    assert [row["item"] for row in ray.data.from_torch(Squares()).take(3)] == [0, 1, 4]
    assert ray.data.range(10, parallelism=5).num_blocks() == 5
    schema = blocks.schema()
    assert schema is not None
    assert (schema.names, schema.types, schema.base_schema) == (["a"], [pa.int64()], pa.schema([("a", pa.int64())]))
    assert repr(schema) == "Column  Type\n------  ----\na       int64"
