"""TFRecord files and datasets of TensorFlow. What TensorFlow itself writes is read, and the other way round."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

import dualray as ray

tf = pytest.importorskip("tensorflow")


def feature(values: list[Any]) -> Any:
    if values and isinstance(values[0], bytes):
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))
    if values and isinstance(values[0], float):
        return tf.train.Feature(float_list=tf.train.FloatList(value=values))
    return tf.train.Feature(int64_list=tf.train.Int64List(value=values)) if values else tf.train.Feature()


def write(path: Path, rows: list[dict[str, list[Any]]], compression: str = "") -> None:
    with tf.io.TFRecordWriter(str(path), compression) as writer:
        for row in rows:
            features = tf.train.Features(feature={name: feature(values) for name, values in row.items()})
            writer.write(tf.train.Example(features=features).SerializeToString())


ROWS: list[dict[str, list[Any]]] = [
    {"name": [b"a"], "size": [1], "parts": [1.5, 2.5], "nothing": []},
    {"name": [], "size": [2], "parts": [], "nothing": []},
]
READ: list[dict[str, Any]] = [
    {"name": b"a", "size": 1, "parts": [1.5, 2.5], "nothing": None},
    {"name": None, "size": 2, "parts": [], "nothing": None},
]


def plain(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {key: list(value) if isinstance(value, np.ndarray) else value for key, value in row.items()} for row in rows
    ]


@pytest.mark.parametrize(
    ("ending", "compression", "options"),
    [
        ("tfrecords", "", {}),
        ("tfrecords.gz", "GZIP", {}),
        ("packed", "ZLIB", {"arrow_open_stream_args": {"compression": "zlib"}}),
    ],
)
def test_files_of_tensorflow_are_read(tmp_path: Path, ending: str, compression: str, options: dict[str, Any]):
    write(tmp_path / f"a.{ending}", ROWS, compression)
    assert plain(ray.data.read_tfrecords(tmp_path, **options).take_all()) == READ


def test_a_schema_gives_lists_of_its_types(tmp_path: Path):
    write(tmp_path / "a.tfrecords", [{"x": [1]}, {"x": []}])
    schema = SimpleNamespace(feature=[SimpleNamespace(name="x", type=2)])  # as schema_pb2.Schema has them
    read = ray.data.read_tfrecords(tmp_path, tf_schema=schema)
    assert plain(read.take_all()) == [{"x": [1]}, {"x": []}]
    other_type = SimpleNamespace(feature=[SimpleNamespace(name="x", type=3)])
    with pytest.raises(ValueError, match="values of float_list and int64_list, but the schema says float_list"):
        ray.data.read_tfrecords(tmp_path, tf_schema=other_type).take_all()
    other_name = SimpleNamespace(feature=[SimpleNamespace(name="y", type=3)])
    with pytest.raises(ValueError, match=r"feature 'x' of .* is not in tf_schema"):
        ray.data.read_tfrecords(tmp_path, tf_schema=other_name).take_all()


def test_what_is_no_file_of_examples_is_refused(tmp_path: Path):
    (tmp_path / "a").write_bytes(b"some text that is no record of TensorFlow")
    with pytest.raises(ValueError, match="is no TFRecord file, or it is damaged or compressed: DataLossError"):
        ray.data.read_tfrecords(tmp_path / "a").take_all()
    with tf.io.TFRecordWriter(str(tmp_path / "b")) as writer:
        writer.write(b"no example")
    with pytest.raises(ValueError, match=r"record 0 of .*b is no tf\.train\.Example"):
        ray.data.read_tfrecords(tmp_path / "b").take_all()
    with pytest.raises(ValueError, match="compression='lz4' must be 'gzip' or 'zlib'"):
        ray.data.read_tfrecords(tmp_path / "b", arrow_open_stream_args={"compression": "lz4"})


def test_rows_are_written_for_tensorflow(tmp_path: Path):
    rows = [
        {"text": "grün", "bytes": b"b", "int": 3, "float": 0.5, "list": [1, 2], "none": None, "array": np.eye(2)},
        {"text": "x", "bytes": b"", "int": 4, "float": 1.5, "list": [3], "none": 7, "array": np.ones((2, 2))},
    ]
    ray.data.from_items(rows, override_num_blocks=1).write_tfrecords(tmp_path)
    [file] = tmp_path.iterdir()
    assert file.suffix == ".tfrecords"
    [first, second] = [tf.train.Example.FromString(record.numpy()) for record in tf.data.TFRecordDataset(str(file))]
    assert first.features.feature["text"].bytes_list.value == ["grün".encode()]
    assert list(first.features.feature["list"].int64_list.value) == [1, 2]
    assert list(first.features.feature["none"].int64_list.value) == []
    array = tf.io.parse_tensor(second.features.feature["array"].bytes_list.value[0], tf.float64)
    assert np.array_equal(array, np.ones((2, 2)))
    back = plain(ray.data.read_tfrecords(tmp_path).drop_columns(["array"]).take_all())
    assert back[1] == {"text": b"x", "bytes": b"", "int": 4, "float": 1.5, "list": [3], "none": 7}
    ray.data.from_pandas(pd.DataFrame({"text": ["of pandas"]})).write_tfrecords(tmp_path / "frame")
    assert ray.data.read_tfrecords(tmp_path / "frame").take_all() == [{"text": b"of pandas"}]
    with pytest.raises(TypeError, match=r"column 'x' has the type struct.* convert the column with map_batches\(\)"):
        ray.data.from_items([{"x": {"y": 1}}]).write_tfrecords(tmp_path)


def test_a_dataset_of_tensorflow_becomes_one_of_ours():
    numbers = tf.data.Dataset.from_tensor_slices({"x": [1, 2], "y": [[1.0], [2.0]]})
    assert [(row["x"], list(row["y"])) for row in ray.data.from_tf(numbers).take_all()] == [(1, [1.0]), (2, [2.0])]
    assert ray.data.from_tf(tf.data.Dataset.range(3)).take_all() == [{"item": 0}, {"item": 1}, {"item": 2}]
