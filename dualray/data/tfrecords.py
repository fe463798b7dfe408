"""TFRecord files, whose records are `tf.train.Example`, and datasets of TensorFlow. TensorFlow must be installed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from dualray.data.dataset import Dataset
from dualray.data.files import Paths, whole_files
from dualray.data.sources import from_items
from dualray.data.tf_examples import COMPRESSIONS, examples_of, kinds_of, table_of

__all__ = ["from_tf", "read_tfrecords"]


def read_tfrecords(
    paths: Paths,
    *,
    tf_schema: Any = None,
    tfx_read_options: Any = None,
    arrow_open_stream_args: Mapping[str, Any] | None = None,
    **options: Any,
) -> Dataset:
    """Return a dataset of the records of TFRecord files, a block for each file. TensorFlow must be installed.

    Each record must be a `tf.train.Example`. Each of its features gives a column: bytes, 32-bit floats or 64-bit ints.
    A feature that has at most one value in every record of a file gives a column of single values; others give lists.

    Args:
        paths: as for `read_parquet`.
        tf_schema: a schema of TensorFlow Metadata (`schema_pb2.Schema`) with the names and types of the features. With
            a schema, all columns have lists.
        tfx_read_options: accepted as in Ray, and without effect.
        arrow_open_stream_args: {"compression": "gzip"} or {"compression": "zlib"} for compressed files. Default: gzip
            for a file whose name ends in `.gz`.
        options: those of `read_parquet`.

    Raises:
        ValueError: a record is no `tf.train.Example`, or a feature does not meet the schema.
    """
    kinds = None if tf_schema is None else kinds_of(tf_schema)
    compression = (arrow_open_stream_args or {}).get("compression")
    if compression is not None and compression not in COMPRESSIONS:
        raise ValueError(f"read_tfrecords: compression={compression!r} must be 'gzip' or 'zlib'")

    def read(path: str, _more: Mapping[str, Any]) -> pa.Table:
        packed = COMPRESSIONS.get(compression or ("gzip" if path.endswith(".gz") else ""), "")
        return table_of(examples_of(path, packed), kinds, path)

    return whole_files(paths, None, options, read, "read_tfrecords", takes_no_more=True)


def from_tf(dataset: Any) -> Dataset:
    """Return a dataset of the elements of a `tf.data.Dataset`, which this process reads.

    Args:
        dataset: its elements are dicts, which give a column for each key, or other values, which give a column `item`.
    """
    rows = list(dataset.as_numpy_iterator())
    return from_items([row if isinstance(row, dict) else {"item": _plain(row)} for row in rows])


def _plain(row: Any) -> Any:
    return row.item() if isinstance(row, np.generic) else row
