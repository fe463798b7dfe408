"""Blocks: the Arrow tables that a dataset is made of, and the forms in which users see them.

Rows are dicts, batches are dicts of numpy arrays, pandas DataFrames or Arrow tables. An array of more than one
dimension is a column of Arrow's `fixed_shape_tensor`, so that it comes back as an array of the same shape. Arrays whose
shapes differ from row to row, and whatever Arrow has no type for, are pickled.

A slice of a table shares the buffers of the whole, and would be pickled with all of them: `compacted` copies what is
seen of it, and only when that is less than nearly everything.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dualray.data.errors import NotRowsError
from dualray.data.python_objects import ObjectType, object_column, objects_of

Row = dict[str, Any]
Batch = Any
"""A dict of numpy arrays, a pandas DataFrame or an Arrow table, as the batch format says."""

FORMATS = ("numpy", "pandas", "pyarrow")
_SHARE_KEPT = 0.8
_OF_FRAME = b"dualray.dataframe"
"""Key of the schema's metadata: the table was a DataFrame."""


def check_format(batch_format: str | None) -> str:
    """The batch format that a user has named; None is the form of the blocks, Arrow tables.

    Raises:
        ValueError: there is no such format.
    """
    if batch_format is None:
        return "pyarrow"
    if batch_format == "default":
        return "numpy"
    if batch_format not in FORMATS:
        raise ValueError(f"batch_format={batch_format!r} must be one of {', '.join(map(repr, FORMATS))}")
    return batch_format


def column_of(values: Any) -> pa.Array | pa.ChunkedArray:
    """An Arrow column of what a user gives: an array, or a sequence of anything."""
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return values
    if _is_tensor(values):
        values = _as_numpy(values)
    if not isinstance(values, np.ndarray):
        values = list(values)
        if any(map(_is_tensor, values)):
            values = [_plain(value) for value in values]
        if values and all(isinstance(value, np.ndarray) and value.ndim for value in values):
            if len({(value.shape, value.dtype) for value in values}) == 1:
                return column_of(np.stack(values))
            return object_column(values)
        return _converted(values)
    if values.ndim == 0:
        raise ValueError(f"a column must be an array with one value for each row; got the single value {values!r}")
    if values.ndim == 1:
        return _converted(values)
    if values.dtype.kind not in "iuf" or 0 in values.shape[1:]:
        return object_column(list(values))  # Arrow has tensors of numbers
    flat = pa.array(np.ascontiguousarray(values).reshape(-1))
    kind = pa.fixed_shape_tensor(flat.type, values.shape[1:])
    lists = pa.FixedSizeListArray.from_arrays(flat, int(np.prod(values.shape[1:])))
    return pa.ExtensionArray.from_storage(kind, lists)


def _converted(values: Any) -> pa.Array:
    """A column of what Arrow converts, or of Python objects."""
    try:
        return pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError, TypeError, OverflowError):
        if isinstance(values, list) and all(isinstance(value, np.generic) for value in values):
            return pa.array(np.array(values))  # such as numpy.datetime64, of which Arrow takes arrays
        return object_column(list(values))


def _is_tensor(value: Any) -> bool:
    """Whether it is an array of another library, such as a tensor of PyTorch: as in Ray, NumPy's stands for it."""
    return (
        not isinstance(value, np.ndarray | np.generic)
        and hasattr(value, "__array__")
        and hasattr(value, "shape")
        and type(value).__module__.partition(".")[0] != "pandas"
    )


def _as_numpy(tensor: Any) -> NDArray[Any]:
    if getattr(tensor, "requires_grad", False):
        raise ValueError("a column cannot have a tensor that requires grad: use tensor.detach()")
    return np.asarray(tensor)


def _plain(value: Any) -> Any:
    array = _as_numpy(value) if _is_tensor(value) else value
    return array.item() if isinstance(array, np.ndarray) and not array.ndim else array


def table_of_rows(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """A table of dicts; a key that a row lacks is null there."""
    names: dict[str, None] = {}
    for row in rows:
        if not isinstance(row, Mapping):
            raise NotRowsError(f"a row of a dataset is a dict, not {row!r} (type {type(row).__name__})")
        names.update(dict.fromkeys(row))
    return pa.table({name: column_of([row.get(name) for row in rows]) for name in names})


def _is_column(values: Any) -> bool:
    is_other = isinstance(values, str | bytes | Mapping | AbstractSet | Iterator)
    return _is_tensor(values) or (isinstance(values, Iterable) and not is_other)


def table_of_batch(batch: Any, what: str) -> pa.Table:
    """A table of what a user's function has returned for a batch.

    Raises:
        NotRowsError: it is none of the three forms.
        ValueError: its columns are of different lengths, or a column is neither an array nor a list.
    """
    if isinstance(batch, pa.Table):
        return batch
    if isinstance(batch, Mapping):
        for name, values in batch.items():
            if not _is_column(values):
                raise ValueError(
                    f"{what} returned {values!r} (type {type(values).__name__}) for the column {name!r}; a column of a "
                    "batch must be an array or a list, with one value for each row"
                )
        columns = {str(name): column_of(values) for name, values in batch.items()}
        lengths = {name: len(column) for name, column in columns.items()}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"{what} returned columns of different lengths: {lengths}")
        return pa.table(columns)
    if type(batch).__module__.partition(".")[0] == "pandas":
        return _table_of_frame(batch)
    raise NotRowsError(
        f"{what} must return a dict of arrays, a pandas DataFrame or an Arrow table, not {batch!r} "
        f"(type {type(batch).__name__})"
    )


def _table_of_frame(frame: Any) -> pa.Table:
    """A table of a DataFrame. Columns with arrays of one shape stay such columns, as in Ray."""
    chosen = {name for name, values in frame.items() if values.dtype == object and _are_arrays_of_one_shape(values)}
    others = frame.drop(columns=list(chosen)) if chosen else frame
    try:
        table = pa.Table.from_pandas(others, preserve_index=False)
    except (pa.ArrowInvalid, pa.ArrowTypeError):  # values for which Arrow has no type
        objects = {name for name, values in others.items() if values.dtype == object}
        table = pa.Table.from_pandas(others.drop(columns=list(objects)), preserve_index=False)
        chosen |= objects
    table = _as_ray_types(table)
    if not chosen:
        return table
    columns = {
        str(name): column_of(list(frame[name])) if name in chosen else table[str(name)] for name in frame.columns
    }
    return pa.table(columns).replace_schema_metadata(table.schema.metadata)


def _as_ray_types(table: pa.Table) -> pa.Table:
    """Columns of text as other sources have them, and the mark that a missing float of a DataFrame is NaN in a row."""
    for index, field in enumerate(table.schema):
        if pa.types.is_large_string(field.type):
            with contextlib.suppress(pa.ArrowInvalid):  # more than 2 GiB of text in one column stay as they are
                table = table.set_column(index, field.with_type(pa.string()), table[field.name].cast(pa.string()))
    return table.replace_schema_metadata({**(table.schema.metadata or {}), _OF_FRAME: b"1"})


def _are_arrays_of_one_shape(values: Any) -> bool:
    cells = list(values)
    if not all(isinstance(cell, np.ndarray) and cell.size and cell.dtype.kind in "biuf" for cell in cells):
        return False
    return len({(cell.shape, cell.dtype) for cell in cells}) == 1


def numpy_of(column: pa.ChunkedArray) -> NDArray[Any]:
    """A column as an array, without a copy where Arrow allows it."""
    array = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    if isinstance(array, pa.ChunkedArray):  # of no rows
        array = pa.array([], column.type) if column.num_chunks == 0 else pa.concat_arrays(array.chunks)
    if isinstance(array.type, ObjectType):
        return _stacked(objects_of(array))
    if isinstance(array.type, pa.FixedShapeTensorType):
        found: NDArray[Any] = array.to_numpy_ndarray()
        return found
    if pa.types.is_fixed_size_list(array.type) and not array.null_count:
        inner = array.flatten().to_numpy(zero_copy_only=False)
        return np.asarray(inner).reshape(len(array), array.type.list_size)
    return np.asarray(array.to_numpy(zero_copy_only=False))


def _stacked(values: NDArray[Any]) -> NDArray[Any]:
    """One array of arrays that have the same shape and type, such as those of bools."""
    if len(values) and all(isinstance(value, np.ndarray) for value in values):
        if len({(value.shape, value.dtype) for value in values}) == 1:
            return np.stack(list(values))
    return values


def batch_of(table: pa.Table, batch_format: str, *, writable: bool = False) -> Batch:
    """A table in the form that a user asked for; if `writable`, arrays that can be changed in place."""
    if batch_format == "pyarrow":
        return table
    if batch_format == "pandas":
        special = [field.name for field in table.schema if isinstance(field.type, pa.BaseExtensionType)]
        frame = table.drop_columns(special).to_pandas()
        for name in special:
            frame[name] = list(numpy_of(table[name]))
        return frame[table.column_names].copy() if writable else frame[table.column_names]
    arrays = {name: numpy_of(table[name]) for name in table.column_names}
    if writable:
        arrays = {name: array if array.flags.writeable else array.copy() for name, array in arrays.items()}
    return arrays


def rows_of(table: pa.Table) -> list[Row]:
    """The rows, as dicts of Python's own values; of tensors, arrays."""
    return _rows(table, tensors(table))


def rows_for_function(table: pa.Table) -> list[Row]:
    """The rows that a function of the user gets: as `rows_of`, but a missing float of a DataFrame is NaN, as in Ray."""
    return _rows(table, tensors(table), _with_nan(table))


def _rows(table: pa.Table, special: Collection[str], with_nan: Collection[str] = ()) -> list[Row]:
    if not special and not with_nan:
        rows: list[Row] = table.to_pylist()
        return rows
    columns = {
        name: numpy_of(table[name]) if name in special else table[name].to_pylist() for name in table.schema.names
    }
    for name in with_nan:
        columns[name] = numpy_of(table[name]).tolist()
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def _with_nan(table: pa.Table) -> list[str]:
    """The names of the columns of floats that come from a DataFrame, and lack values: pandas calls them NaN."""
    if _OF_FRAME not in (table.schema.metadata or {}):
        return []
    return [field.name for field in table.schema if pa.types.is_floating(field.type) and table[field.name].null_count]


def tensors(table: pa.Table) -> list[str]:
    """The names of the columns that hold arrays."""
    return [field.name for field in table.schema if isinstance(field.type, pa.FixedShapeTensorType)]


def joined(tables: Iterable[pa.Table]) -> pa.Table:
    """One table of several, in order; those of no columns count for nothing."""
    found = list(tables)
    whole = [table for table in found if table.num_columns] or found
    if not whole:
        return pa.table({})
    return whole[0] if len(whole) == 1 else pa.concat_tables(whole, promote_options="permissive")


def compacted(table: pa.Table) -> pa.Table:
    """The same rows, holding no more memory than they need."""
    if table.num_columns == 0 or table.get_total_buffer_size() * _SHARE_KEPT <= table.nbytes:
        return table
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    with pa.ipc.open_stream(pa.py_buffer(sink.getvalue())) as reader:
        return reader.read_all()


def taken(table: pa.Table, indices: NDArray[np.int64]) -> pa.Table:
    """Some rows, in the order of `indices`. Arrow takes no rows of a tensor column; its storage it does."""
    if not tensors(table):
        return table.take(pa.array(indices))
    columns = []
    for field in table.schema:
        column = table[field.name]
        if isinstance(field.type, pa.FixedShapeTensorType):
            columns.append(column_of(numpy_of(column)[indices]))
        else:
            columns.append(column.take(pa.array(indices)))
    return pa.table(columns, names=table.column_names)
