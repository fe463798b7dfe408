"""Rows that a plan makes: how many blocks, of which files, and how they leave as tables and files."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import count
from pathlib import Path
from shutil import rmtree
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.csv
import pyarrow.fs
import pyarrow.orc
import pyarrow.parquet

from dualray.api import get, is_initialized, put, remote
from dualray.data import blocks
from dualray.data.context import DataContext
from dualray.data.errors import check_columns
from dualray.data.executor import ensure_initialized, execute, give_up, in_store, load, of_user_code
from dualray.data.interfaces import BlockEntry, BlockMetadata, Datasink, RefBundle
from dualray.data.iterator import DataIterator
from dualray.data.plan import Held, Plan
from dualray.data.targets import write_with
from dualray.data.tf_examples import write_records
from dualray.exceptions import DualrayError

Write = Callable[[pa.Table, str, Mapping[str, Any]], Any]
"""Writes a table to a file, with options."""


class PlannedRows(DataIterator):
    """Rows that are made when somebody reads them; base of the datasets."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def num_blocks(self) -> int:
        """How many blocks it has, or, before it is materialized, about how many it will have."""
        return self._plan.blocks

    def explain(self) -> None:
        """Print the steps of the dataset, in the order in which they run. Nothing runs."""
        print("-------- Plan --------")  # noqa: T201 - it is what is asked for
        print(str(self._plan).replace(" -> ", "\n+- "))  # noqa: T201

    def size_bytes(self) -> int:
        """Run the dataset, and return the bytes of its rows in memory."""
        return sum(part.size_bytes for part in execute(self._plan))

    def input_files(self) -> list[str]:
        """The files that it reads."""
        return list(dict.fromkeys(file for part in self._plan.source for file in part.files))

    def to_pandas(self, limit: int | None = None) -> Any:
        """All rows as one pandas DataFrame, in this process.

        Raises:
            ValueError: there are more rows than `limit`.
        """
        table = blocks.joined(self._tables())
        if limit is not None and table.num_rows > limit:
            raise ValueError(
                f"to_pandas: the dataset has {table.num_rows} rows, but limit={limit}; give a higher limit, or "
                "limit=None"
            )
        return blocks.batch_of(table, "pandas")

    def to_arrow_refs(self) -> list[Any]:
        """References to the blocks, Arrow tables in the object store."""
        return [_whole(part) for part in execute(self._plan)]

    def to_pandas_refs(self) -> list[Any]:
        """References to pandas DataFrames in the object store, one for each block. Tasks make the DataFrames."""
        convert = remote(_frame_of_rows).options(name="data:to_pandas_refs")
        return [convert.remote(in_store(part), part.start, part.stop) for part in execute(self._plan)]

    def to_numpy_refs(self, *, column: str | None = None) -> list[Any]:
        """References to arrays of a column, one for each block; without a column, to dicts of arrays."""
        convert = remote(_arrays_of_rows).options(name="data:to_numpy_refs")
        return [convert.remote(column, in_store(part), part.start, part.stop) for part in execute(self._plan)]

    def iter_internal_ref_bundles(self) -> Iterator[RefBundle]:
        """Iterate over the blocks in the object store; dualray frees each when nothing refers to it."""
        for part in execute(self._plan):
            metadata = BlockMetadata(part.rows, part.size_bytes, input_files=part.files)
            yield RefBundle((BlockEntry(_whole(part), metadata),))

    def get_internal_block_refs(self) -> list[Any]:
        """References to the blocks, as `to_arrow_refs`."""
        return self.to_arrow_refs()

    def write_parquet(self, path: str | Path, *, partition_cols: Sequence[str] | None = None, **options: Any) -> None:
        """Write files into a directory, which is made.

        Args:
            path: the directory, which every node sees.
            partition_cols: columns whose values name subdirectories, `x=1`, and are not in the files.
            options: `min_rows_per_file` writes several blocks into one file. `mode` is "append" (the default),
                "overwrite", "ignore" or "error". Others are those of `pyarrow.parquet.write_table`.
        """
        if partition_cols:
            columns = list(partition_cols)
            self._write(path, "parquet", options, lambda table, file, more: _write_parts(table, file, columns, more))
        else:
            self._write(path, "parquet", options, lambda table, file, more: pa.parquet.write_table(table, file, **more))

    def write_csv(self, path: str | Path, **options: Any) -> None:
        """As `write_parquet`, in CSV; other options are those of `pyarrow.csv.write_csv`."""
        self._write(path, "csv", options, lambda table, file, more: pa.csv.write_csv(table, file, **more))

    def write_orc(self, path: str | Path, **options: Any) -> None:
        """As `write_parquet`, in ORC; other options are those of `pyarrow.orc.write_table`."""
        self._write(path, "orc", options, lambda table, file, more: pa.orc.write_table(table, file, **more))

    def write_tfrecords(self, path: str | Path, **options: Any) -> None:
        """As `write_parquet`, TFRecord files with a `tf.train.Example` for each row. TensorFlow must be installed.

        Args:
            path: the directory, which every node sees.
            options: `tf_schema`, as of `read_tfrecords`, and those of `write_parquet` for all formats.
        """
        self._write(path, "tfrecords", options, write_records)

    def write_json(self, path: str | Path, **options: Any) -> None:
        """As `write_parquet`, a JSON object a line; other options are those of `pandas.DataFrame.to_json`."""
        self._write(path, "json", options, _write_json)

    def write_numpy(self, path: str | Path, *, column: str, **options: Any) -> None:
        """As `write_parquet`, the arrays of one column; other options are those of `numpy.save`."""

        def write(table: pa.Table, file: str, more: Mapping[str, Any]) -> None:
            check_columns([column], table.column_names)
            with Path(file).open("wb") as opened:  # numpy.save would append .npy to a path
                np.save(opened, blocks.numpy_of(table[column]), **more)

        self._write(path, "npy", options, write)

    def write_sql(self, sql: str, connection_factory: Callable[[], Any], **options: Any) -> None:
        """Insert the rows with a statement such as "INSERT INTO t VALUES(?, ?)"; a task inserts a block.

        Args:
            sql: the statement.
            connection_factory: returns a connection of Python's DB-API.
            options: `concurrency` and `ray_remote_args`, accepted as in Ray, and without effect.
        """
        others = set(options) - {"concurrency", "ray_remote_args"}
        if others:
            raise TypeError(f"write_sql has no argument {others.pop()!r}")
        insert = remote(_insert).options(name="data:write_sql")
        for part in execute(self._plan):
            get(insert.remote(sql, connection_factory, in_store(part), part.start, part.stop))

    def write_datasink(
        self, datasink: Datasink, *, ray_remote_args: Mapping[str, Any] | None = None, concurrency: int | None = None
    ) -> None:
        """Write the rows with a target of your own.

        Args:
            datasink: an instance of a class derived from `Datasink`.
            ray_remote_args: options of the tasks.
            concurrency: most tasks at a time.
        """
        if not isinstance(datasink, Datasink):
            raise TypeError(f"write_datasink takes an instance of a class derived from Datasink, not {datasink!r}")
        ensure_initialized()
        tasks_max = concurrency or DataContext.get_current().tasks_max_of_cluster()
        groups = _gathered(execute(self._plan), datasink.min_rows_per_write or 1)
        write_with(datasink, groups, ray_remote_args or {}, tasks_max)

    def write_images(self, path: str | Path, column: str, file_format: str = "png", **options: Any) -> None:
        """Write each array of a column as an image; Pillow must be installed."""

        def write(table: pa.Table, file: str, _more: Mapping[str, Any]) -> None:
            from PIL import Image  # noqa: PLC0415 - only programs with images pay for it

            for number, pixels in enumerate(blocks.numpy_of(table[column])):
                Image.fromarray(np.asarray(pixels)).save(f"{file}.{number:06d}.{file_format}", format=file_format)

        self._write(path, None, options, write)

    def _write(self, path: str | Path, ending: str | None, options: Mapping[str, Any], write: Write) -> None:
        asked = Files.of(path, options)
        if asked is None:
            return
        tasks_max = DataContext.get_current().tasks_max_of_cluster() if is_initialized() else 2
        pending: list[Any] = []
        numbers = count(asked.first)
        for parts in _gathered(execute(self._plan), asked.rows_least):
            target = str(asked.folder / (f"{next(numbers):06d}" + (f".{ending}" if ending else "")))
            spans = [(part.start, part.stop) for part in parts]
            refs = [in_store(part) for part in parts]
            pending.append(
                _write_task().remote(write, target, (asked.rest, asked.functions), ending is not None, spans, *refs)
            )
            if len(pending) >= tasks_max:
                _written(pending)
        while pending:
            _written(pending)

    def _tables(self) -> Iterator[pa.Table]:
        for part in execute(self._plan):
            yield load(part)


def _whole(part: Held) -> Any:
    """A reference to a table of just these rows."""
    is_whole = not isinstance(part.block, pa.Table) and get(part.block).num_rows == part.rows
    return part.block if is_whole else put(blocks.compacted(load(part)))


def _frame_of_rows(table: pa.Table, start: int, stop: int) -> Any:
    return blocks.batch_of(table.slice(start, stop - start), "pandas")


def _arrays_of_rows(column: str | None, table: pa.Table, start: int, stop: int) -> Any:
    arrays = blocks.batch_of(table.slice(start, stop - start), "numpy")
    return arrays if column is None else arrays[column]


@dataclass(frozen=True, slots=True)
class Files:
    """Where a dataset is written.

    folder: the directory.
    first: the number of the first file.
    rows_least: fewest rows of a file, except the last one.
    rest: options of the function that writes a file.
    functions: return more such options. The task that writes a file calls them.
    """

    folder: Path
    first: int
    rows_least: int
    rest: Mapping[str, Any]
    functions: tuple[Callable[[], Mapping[str, Any]], ...]

    @classmethod
    def of(cls, path: str | Path, options: Mapping[str, Any]) -> Files | None:
        """What the options of a method say; None if nothing is to be written.

        Raises:
            ValueError: the mode is unknown, or it is "error" and the directory exists.
        """
        rest = {key: value for key, value in options.items() if key not in _OF_RAY}
        functions = tuple(function for name in _FUNCTIONS if (function := rest.pop(name, None)) is not None)
        check_filesystem(options.get("filesystem"))
        folder = Path(local_path(path)).absolute()
        mode = str(getattr(options.get("mode", "append"), "value", options.get("mode", "append")))
        if mode not in ("append", "overwrite", "ignore", "error", "create"):
            raise ValueError(f"mode={mode!r} must be 'append', 'overwrite', 'ignore' or 'error'")
        if folder.exists() and mode == "ignore":
            return None
        if folder.exists() and mode in ("error", "create"):
            raise ValueError(f"mode={mode!r}: {folder} exists already")
        if folder.exists() and mode == "overwrite":
            rmtree(folder)
        folder.mkdir(parents=True, exist_ok=True)
        there = [int(name) for entry in folder.iterdir() if (name := entry.name.partition(".")[0]).isdigit()]
        rows = options.get("min_rows_per_file") or options.get("num_rows_per_file") or 1
        return cls(folder, max(there, default=-1) + 1, rows, rest, functions)


_FUNCTIONS = ("arrow_parquet_args_fn", "arrow_csv_args_fn", "arrow_orc_args_fn", "pandas_json_args_fn")
"""Options of Ray's whose values are functions. A task calls them, because Arrow's options may not be pickled."""


_OF_RAY = frozenset(
    {
        *("filesystem", "try_create_dir", "arrow_open_stream_args", "filename_provider", "ray_remote_args"),
        *("concurrency", "min_rows_per_file", "num_rows_per_file", "max_rows_per_file", "min_bytes_per_file", "mode"),
    }
)
"""Options of Ray's that say where and how many files are written, and not how."""


def check_filesystem(filesystem: Any) -> None:
    """Raises ValueError for a file system that is not the nodes' own."""
    if filesystem is not None and not isinstance(filesystem, pa.fs.LocalFileSystem):
        raise ValueError(
            f"filesystem={filesystem!r} must be left out: dualray reads and writes files only at paths that every node "
            "sees"
        )


def local_path(path: str | Path) -> str:
    """The path, without the `local://` and `file://` of Ray's programs.

    Raises:
        ValueError: the files lie elsewhere.
    """
    if not isinstance(cast(Any, path), str | Path):
        raise ValueError(f"a path must be a str or a pathlib.Path, not {path!r} (type {type(path).__name__})")
    text = str(path)
    scheme, _, rest = text.partition("://")
    if not rest:
        return text
    if scheme not in ("local", "file"):
        raise ValueError(
            f"{text!r} is not a local path: mount the file system on every node, and give the path where it is mounted"
        )
    return rest


def _gathered(parts: Iterator[Held], rows_least: int) -> Iterator[list[Held]]:
    """Blocks of one file each."""
    waiting: list[Held] = []
    for part in parts:
        if part.rows:
            waiting.append(part)
        if sum(each.rows for each in waiting) >= rows_least:
            yield waiting
            waiting = []
    if waiting:
        yield waiting


def _written(pending: list[Any]) -> None:
    """Wait for the first file; if it fails, nobody asks for the others."""
    try:
        get(pending.pop(0))
    except DualrayError as error:
        give_up(pending)
        raise of_user_code(error) from None


@cache
def _write_task() -> Any:
    return remote(_write_blocks)


def _write_blocks(
    write: Write, target: str, asked: Any, is_file: bool, spans: list[tuple[int, int]], *tables: pa.Table
) -> None:
    """Write a file, whole or not at all: a task may be run again."""
    given, functions = asked
    options = dict(given)
    for function in functions:
        options |= function()
    table = blocks.joined(table.slice(start, stop - start) for table, (start, stop) in zip(tables, spans, strict=True))
    if not is_file:
        write(table, target, options)
        return
    pending = f"{target}.{os.getpid()}.part"
    write(table, pending, options)
    if Path(pending).exists():
        Path(pending).rename(target)


def _write_json(table: pa.Table, file: str, options: Mapping[str, Any]) -> None:
    if options:
        lines = {"orient": "records", "lines": True, **options}
        blocks.batch_of(table, "pandas").to_json(file, **lines)
    else:
        Path(file).write_text("".join(json.dumps(row, default=_plain) + "\n" for row in blocks.rows_of(table)))


def _write_parts(table: pa.Table, file: str, columns: list[str], options: Mapping[str, Any]) -> None:
    check_columns(columns, table.column_names)
    target = Path(file)
    pa.parquet.write_to_dataset(
        table,
        target.parent,
        partition_cols=columns,
        basename_template=f"{target.name.partition('.')[0]}-{{i}}.parquet",
        existing_data_behavior="overwrite_or_ignore",
        **options,
    )


def _insert(sql: str, connection_factory: Callable[[], Any], table: pa.Table, start: int, stop: int) -> None:
    rows = [tuple(row.values()) for row in blocks.rows_of(table.slice(start, stop - start))]
    connection = connection_factory()
    try:
        if rows:
            connection.cursor().executemany(sql, rows)
            connection.commit()
    finally:
        connection.close()


def _plain(value: Any) -> Any:
    """What JSON has no form for: arrays as lists, times and the like as text."""
    return value.tolist() if isinstance(value, np.ndarray) else str(value)
