"""Sources of datasets: values of this process, and files.

dualray cuts files into parts that one task reads: of Parquet, the row groups of one block; of CSV and JSON, one file.
The nodes must see the paths. A directory stands for the files in it, and a pattern for the files that match.
"""

from __future__ import annotations

import glob
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet

from dualray import api
from dualray.data import blocks
from dualray.data.context import DataContext
from dualray.data.dataset import Dataset, MaterializedDataset, is_count
from dualray.data.executor import Meta, ensure_initialized, held, measured
from dualray.data.plan import Held, Plan, Read
from dualray.object_ref import ObjectRef

__all__ = [
    "from_arrow",
    "from_arrow_refs",
    "from_items",
    "from_numpy",
    "from_numpy_refs",
    "from_pandas",
    "from_pandas_refs",
    "range",
    "read_csv",
    "read_json",
    "read_parquet",
]

_range = range
Paths = str | Path | Sequence[str | Path]
BLOCKS_OF_ITEMS = 16
"""Rows of this process are cut into about as many blocks, if nobody says."""


def from_items(items: Sequence[Any], *, override_num_blocks: int | None = None) -> Dataset:
    """Return a dataset of Python values. Dicts give a column for each key; other values give a column `item`.

    Args:
        items: the rows.
        override_num_blocks: number of blocks. Default: 16, or fewer for few rows.
    """
    items = list(items)
    rows = items if items and all(isinstance(item, dict) for item in items) else [{"item": item} for item in items]
    return _of_table(blocks.table_of_rows(rows), override_num_blocks, "from_items")


def range(n: int, *, override_num_blocks: int | None = None) -> Dataset:  # noqa: A001 - Ray's name
    """Return a dataset of the numbers 0 to n - 1, in a column `id`."""
    if not is_count(n, 0):
        raise ValueError(f"range: n={n!r} must be an int that is not negative")
    per_block = max(1, DataContext.get_current().target_max_block_size // 8)
    count = _count(override_num_blocks) or max(min(n, BLOCKS_OF_ITEMS), -(-n // per_block), 1)
    bounds = [number * n // count for number in _range(count + 1)]
    return Dataset(Plan(tuple(_numbers(low, high) for low, high in pairwise(bounds)), (), "range"))


def _numbers(low: int, high: int) -> Read:
    return Read(
        function=lambda: pa.table({"id": np.arange(low, high, dtype=np.int64)}),
        rows=high - low,
        size_bytes=8 * (high - low),
    )


def from_numpy(arrays: Any, *, override_num_blocks: int | None = None) -> Dataset:
    """Return a dataset of an array, or of a list of arrays, whose first dimension is the rows, in a column `data`."""
    many = arrays if isinstance(arrays, list) else [arrays]
    return _of_tables(
        [pa.table({"data": blocks.column_of(np.asarray(array))}) for array in many], override_num_blocks, "from_numpy"
    )


def from_pandas(frames: Any, *, override_num_blocks: int | None = None) -> Dataset:
    """Return a dataset of a DataFrame, or of a list of them, without the index."""
    many = frames if isinstance(frames, list) else [frames]
    tables = [blocks.table_of_batch(frame, "from_pandas' caller") for frame in many]
    return _of_tables(tables, override_num_blocks, "from_pandas")


def from_arrow(tables: Any, *, override_num_blocks: int | None = None) -> Dataset:
    """Return a dataset of an Arrow table, or of a list of them."""
    many = tables if isinstance(tables, list) else [tables]
    for table in many:
        if not isinstance(table, pa.Table):
            raise TypeError(f"from_arrow takes Arrow tables, not {table!r} (type {type(table).__name__})")
    return _of_tables(many, override_num_blocks, "from_arrow")


def from_pandas_refs(frames: Any) -> MaterializedDataset:
    """Return a dataset of DataFrames in the object store, from a reference or a list of them.

    A task makes a block of each DataFrame, without the index. The driver fetches no DataFrame.
    """
    return _of_refs(frames, _block_of_frame, "from_pandas_refs")


def from_numpy_refs(arrays: Any) -> MaterializedDataset:
    """Return a dataset of arrays in the object store, from a reference or a list of them, in a column `data`.

    A task makes a block of each array. The driver fetches no array.
    """
    return _of_refs(arrays, _block_of_array, "from_numpy_refs")


def from_arrow_refs(tables: Any) -> MaterializedDataset:
    """Return a dataset of Arrow tables in the object store, from a reference or a list of them.

    The tables are the blocks. The driver fetches no table.
    """
    refs = _checked_refs(tables, "from_arrow_refs")
    measure = api.remote(_measure_table).options(name="data:from_arrow_refs")
    return _of_held(refs, api.get([measure.remote(ref) for ref in refs]), "from_arrow_refs")


def _of_refs(values: Any, make: Callable[[Any], tuple[pa.Table, Meta]], name: str) -> MaterializedDataset:
    convert = api.remote(num_returns=2)(make).options(name=f"data:{name}")
    made = [tuple(convert.remote(ref)) for ref in _checked_refs(values, name)]
    return _of_held([table for table, _ in made], api.get([meta for _, meta in made]), name)


def _of_held(refs: Iterable[Any], metas: Iterable[Meta], name: str) -> MaterializedDataset:
    parts = tuple(held(ref, meta) for ref, meta in zip(refs, metas, strict=True))
    return MaterializedDataset(Plan(parts, (), name))


def _checked_refs(values: Any, name: str) -> list[ObjectRef[Any]]:
    refs = [values] if isinstance(values, ObjectRef) else list(values)
    for ref in refs:
        if not isinstance(ref, ObjectRef):
            raise TypeError(f"{name} takes references to objects, not {ref!r} (type {type(ref).__name__})")
    ensure_initialized()
    return refs


def _block_of_frame(frame: Any) -> tuple[pa.Table, Meta]:
    return measured(blocks.table_of_batch(frame, "from_pandas_refs' caller"))


def _block_of_array(array: Any) -> tuple[pa.Table, Meta]:
    return measured(pa.table({"data": blocks.column_of(np.asarray(array))}))


def _measure_table(table: Any) -> Meta:
    if not isinstance(table, pa.Table):
        raise TypeError(f"from_arrow_refs takes references to Arrow tables, not to a {type(table).__name__}")
    return measured(table)[1]


def read_parquet(
    paths: Paths,
    *,
    columns: Sequence[str] | None = None,
    filter: Any = None,  # noqa: A002 - pyarrow's and Ray's name
    override_num_blocks: int | None = None,
) -> Dataset:
    """Return a dataset of the rows of Parquet files.

    Args:
        paths: files, directories or patterns that every node sees.
        columns: the columns to read. Default: all.
        filter: an expression of `pyarrow.compute`. Row groups in which no row can meet it are not read.
        override_num_blocks: about how many blocks to make. Default: blocks of `target_max_block_size`.
    """
    groups: list[tuple[str, int, int, int]] = []  # file, row group, rows, bytes
    wanted = None if columns is None else set(columns)
    for path in _files(paths, ".parquet"):
        with pa.parquet.ParquetFile(path) as file:
            _check_columns(path, file.schema_arrow.names, columns)
            for number in _range(file.metadata.num_row_groups):
                group = file.metadata.row_group(number)
                chunks = [group.column(index) for index in _range(group.num_columns)]
                size = sum(
                    chunk.total_uncompressed_size
                    for chunk in chunks
                    if wanted is None or chunk.path_in_schema.partition(".")[0] in wanted
                )
                groups.append((path, number, group.num_rows, size))
    total = sum(size for *_, size in groups)
    target = DataContext.get_current().target_max_block_size
    if count := _count(override_num_blocks):
        target = max(1, total // count)
    parts: list[Read] = []
    gathered: list[tuple[str, int, int, int]] = []
    for group in groups:
        if gathered and (group[0] != gathered[0][0] or sum(entry[3] for entry in gathered) + group[3] > target):
            parts.append(_read_groups(gathered, columns, filter))
            gathered = []
        gathered.append(group)
    if gathered:
        parts.append(_read_groups(gathered, columns, filter))
    return Dataset(Plan(tuple(parts), (), "read_parquet"))


def _read_groups(groups: list[tuple[str, int, int, int]], columns: Sequence[str] | None, wanted: Any) -> Read:
    path, numbers = groups[0][0], [number for _, number, _, _ in groups]
    chosen = None if columns is None else list(columns)

    def read() -> pa.Table:
        with pa.parquet.ParquetFile(path, memory_map=False) as file:
            needed = chosen
            if wanted is not None:
                needed = None  # the filter may look at columns that are not wanted
            table = file.read_row_groups(numbers, columns=needed, use_threads=False)
        if wanted is not None:
            table = table.filter(wanted)
        return table if chosen is None else table.select(chosen)

    rows = sum(rows for _, _, rows, _ in groups) if wanted is None else None
    return Read(function=read, rows=rows, size_bytes=sum(size for *_, size in groups), files=(path,))


def read_csv(paths: Paths, **options: Any) -> Dataset:
    """Return a dataset of the rows of CSV files, a block for each file; `options` go to `pyarrow.csv.read_csv`."""
    return _whole_files(paths, ".csv", lambda path: pa.csv.read_csv(path, **options), "read_csv")


def read_json(paths: Paths, **options: Any) -> Dataset:
    """Return a dataset of files with a JSON object in each line, a block for each file.

    `options` go to `pyarrow.json.read_json`.
    """
    return _whole_files(paths, (".json", ".jsonl"), lambda path: pa.json.read_json(path, **options), "read_json")


def _whole_files(paths: Paths, ending: str | tuple[str, ...], read: Callable[[str], pa.Table], name: str) -> Dataset:
    def part(path: str) -> Read:
        return Read(function=lambda: read(path), size_bytes=Path(path).stat().st_size, files=(path,))

    return Dataset(Plan(tuple(part(path) for path in _files(paths, ending)), (), name))


def _files(paths: Paths, ending: str | tuple[str, ...]) -> list[str]:
    """The files that paths stand for, sorted within each.

    Raises:
        FileNotFoundError: a path, or a pattern, stands for none.
    """
    found: list[str] = []
    for path in [paths] if isinstance(paths, str | Path) else paths:
        whole = Path(path).absolute()
        if whole.is_dir():
            here = sorted(str(entry) for entry in whole.rglob("*") if entry.is_file() and entry.name.endswith(ending))
        elif whole.is_file():
            here = [str(whole)]
        else:
            here = sorted(glob.glob(str(whole), recursive=True))  # noqa: PTH207 - the pattern is absolute
        if not here:
            raise FileNotFoundError(
                f"{str(path)!r} matches no file; give a file, a directory with files *{ending}, or a pattern"
            )
        found += here
    return found


def _check_columns(path: str, there: Iterable[str], wanted: Sequence[str] | None) -> None:
    missing = [name for name in wanted or [] if name not in there]
    if missing:
        raise ValueError(f"{path} has no column {missing[0]!r}; it has {', '.join(map(repr, there))}")


def _count(override_num_blocks: int | None) -> int | None:
    if override_num_blocks is None:
        return None
    if not is_count(override_num_blocks, 1):
        raise ValueError(f"override_num_blocks={override_num_blocks!r} must be an int of at least 1")
    return override_num_blocks


def _of_table(table: pa.Table, count: int | None, name: str) -> Dataset:
    target = DataContext.get_current().target_max_block_size
    number = _count(count) or max(1, min(table.num_rows, BLOCKS_OF_ITEMS), -(-table.nbytes // target))
    bounds = [part * table.num_rows // number for part in _range(number + 1)]
    cuts = [table.slice(low, high - low) for low, high in pairwise(bounds)]
    return _of_tables(cuts, None, name)


def _of_tables(tables: list[pa.Table], count: int | None, name: str) -> Dataset:
    if count is not None or (len(tables) == 1 and tables[0].nbytes > DataContext.get_current().target_max_block_size):
        return _of_table(blocks.joined(tables), count, name)
    whole = [blocks.compacted(table) for table in tables]
    parts = [Held(block=table, start=0, stop=table.num_rows, size_bytes=table.nbytes) for table in whole]
    return Dataset(Plan(tuple(parts), (), name))
