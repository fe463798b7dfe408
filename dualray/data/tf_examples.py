"""Records of TensorFlow, `tf.train.Example`, from files and tables and back. TensorFlow must be installed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from dualray.data import blocks

__all__ = ["COMPRESSIONS", "examples_of", "kinds_of", "table_of", "write_records"]

_TYPES: Final = {"bytes_list": pa.binary(), "float_list": pa.float32(), "int64_list": pa.int64()}
_OF_SCHEMA: Final = {1: "bytes_list", 2: "int64_list", 3: "float_list"}
"""The types of a feature in a schema of TensorFlow Metadata, and the lists of `tf.train.Feature` for them."""
_ARE_BYTES: Final = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_string, pa.types.is_large_string)
COMPRESSIONS: Final = {"gzip": "GZIP", "zlib": "ZLIB"}


def kinds_of(schema: Any) -> dict[str, str]:
    """The names of the features of a schema, and the lists that they have."""
    kinds = {}
    for feature in schema.feature:
        kind = _OF_SCHEMA.get(feature.type)
        if kind is None:
            raise ValueError(f"tf_schema: the type of feature {feature.name!r} must be BYTES, INT or FLOAT")
        kinds[feature.name] = kind
    return kinds


def examples_of(path: str, compression: str) -> list[dict[str, tuple[str | None, list[Any]]]]:
    """Of each record, the features by name: which list of `tf.train.Feature` is set, and its values."""
    import tensorflow as tf  # noqa: PLC0415 - only programs that use TensorFlow pay for it
    from google.protobuf.message import DecodeError  # noqa: PLC0415 - it comes with TensorFlow

    examples = []
    try:
        for number, record in enumerate(tf.data.TFRecordDataset(path, compression_type=compression)):
            try:
                features = tf.train.Example.FromString(record.numpy()).features.feature
            except DecodeError:
                raise ValueError(f"record {number} of {path} is no tf.train.Example") from None
            found = {}
            for name, feature in features.items():
                kind = feature.WhichOneof("kind")
                found[name] = (kind, list(getattr(feature, kind).value) if kind else [])
            examples.append(found)
    except tf.errors.OpError as error:  # which cannot be pickled
        reason = f"{type(error).__name__}: {error.message}"
        raise ValueError(f"{path} is no TFRecord file, or it is damaged or compressed: {reason}") from None
    return examples


def table_of(
    examples: Sequence[Mapping[str, tuple[str | None, list[Any]]]], kinds: Mapping[str, str] | None, path: str
) -> pa.Table:
    """A table with a row for each record; without a schema (`kinds`), a feature with single values gives no lists."""
    names = dict.fromkeys(name for example in examples for name in example)
    unexpected = None if kinds is None else next((name for name in names if name not in kinds), None)
    if unexpected is not None:
        raise ValueError(f"feature {unexpected!r} of {path} is not in tf_schema")
    columns = {}
    for name in names if kinds is None else kinds:
        found = [example.get(name, (None, [])) for example in examples]
        there = {kind for kind, values in found if kind is not None and values}
        if kinds is not None:
            there.add(kinds[name])
        if len(there) > 1:
            expected = f", but the schema says {kinds[name]}" if kinds is not None else ""
            raise ValueError(f"feature {name!r} of {path} has values of {' and '.join(sorted(there))}{expected}")
        type_ = _TYPES[there.pop()] if there else pa.null()
        if kinds is None and all(len(values) <= 1 for _, values in found):
            columns[name] = pa.array([values[0] if values else None for _, values in found], type_)
        else:
            columns[name] = pa.array([values for _, values in found], pa.list_(type_))
    return pa.table(columns)


def write_records(table: pa.Table, file: str, options: Mapping[str, Any]) -> None:
    """Write a `tf.train.Example` for each row. Arrays become serialized tensors, and texts become bytes.

    Raises:
        TypeError: a column has a type that no feature can have; the message names it.
    """
    import tensorflow as tf  # noqa: PLC0415 - as above

    options = dict(options)
    schema = options.pop("tf_schema", None)
    if options:
        raise TypeError(f"write_tfrecords has no argument {next(iter(options))!r}")
    kinds = {} if schema is None else kinds_of(schema)
    columns = {}
    for name in table.column_names:
        if schema is not None and name not in kinds:
            raise ValueError(f"write_tfrecords: column {name!r} is not in tf_schema")
        columns[name] = _features(table[name], name, kinds.get(name))
    with tf.io.TFRecordWriter(file) as writer:
        for number in range(table.num_rows):
            feature = {name: of_rows[number] for name, of_rows in columns.items()}
            writer.write(tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString())


def _features(column: pa.ChunkedArray, name: str, wanted: str | None) -> list[Any]:
    """The `tf.train.Feature` of each row of a column."""
    import tensorflow as tf  # noqa: PLC0415 - as above

    if isinstance(column.type, pa.FixedShapeTensorType):
        kind = "bytes_list"
        rows: list[list[Any]] = [[tf.io.serialize_tensor(array).numpy()] for array in blocks.numpy_of(column)]
    else:
        is_list = pa.types.is_list(column.type) or pa.types.is_large_list(column.type)
        kind = _kind_of(column.type.value_type if is_list else column.type, name, wanted)
        values = column.to_pylist()
        rows = [list(value or []) for value in values] if is_list else [[] if v is None else [v] for v in values]
        rows = [[value.encode() if isinstance(value, str) else value for value in row] for row in rows]
    if wanted is not None and wanted != kind:
        raise ValueError(f"write_tfrecords: column {name!r} gives a {kind}, but tf_schema says {wanted}")
    lists = {"bytes_list": tf.train.BytesList, "float_list": tf.train.FloatList, "int64_list": tf.train.Int64List}
    return [tf.train.Feature(**{kind: lists[kind](value=row)}) for row in rows]


def _kind_of(type_: pa.DataType, name: str, wanted: str | None) -> str:
    if pa.types.is_integer(type_) or pa.types.is_boolean(type_):
        return "int64_list"
    if pa.types.is_floating(type_):
        return "float_list"
    if any(test(type_) for test in _ARE_BYTES):
        return "bytes_list"
    if pa.types.is_null(type_) and wanted is not None:
        return wanted
    raise TypeError(
        f"write_tfrecords: column {name!r} has the type {type_}, but a feature has bytes, texts, ints or floats; "
        "convert the column with map_batches()"
    )
