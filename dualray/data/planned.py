"""Rows that a plan makes: how many blocks, of which files, and how they leave as tables and files."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.csv
import pyarrow.parquet

from dualray.api import get, is_initialized, put, remote
from dualray.data import blocks
from dualray.data.context import DataContext
from dualray.data.executor import execute, in_store, load
from dualray.data.iterator import DataIterator
from dualray.data.plan import Held, Plan


class PlannedRows(DataIterator):
    """Rows that are made when somebody reads them; base of the datasets."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def num_blocks(self) -> int:
        """How many blocks it has, or, before it is materialized, about how many it will have."""
        return self._plan.blocks

    def size_bytes(self) -> int:
        """Run the dataset, and return the bytes of its rows in memory."""
        return sum(part.size_bytes for part in execute(self._plan))

    def input_files(self) -> list[str]:
        """The files that it reads."""
        return list(dict.fromkeys(file for part in self._plan.source for file in part.files))

    def to_pandas(self) -> Any:
        """All rows as one pandas DataFrame, in this process."""
        return blocks.batch_of(blocks.joined(self._tables()), "pandas")

    def to_arrow_refs(self) -> list[Any]:
        """References to the blocks, Arrow tables in the object store."""
        return [_whole(part) for part in execute(self._plan)]

    def to_pandas_refs(self) -> list[Any]:
        """References to pandas DataFrames in the object store, one for each block. Tasks make the DataFrames."""
        convert = remote(_frame_of_rows).options(name="data:to_pandas_refs")
        return [convert.remote(in_store(part), part.start, part.stop) for part in execute(self._plan)]

    def write_parquet(self, path: str | Path, **options: Any) -> None:
        """A file for each block in a directory, which is made; `options` are those of `pyarrow.parquet.write_table`."""
        self._write(path, "parquet", lambda table, file: pa.parquet.write_table(table, file, **options))

    def write_csv(self, path: str | Path, **options: Any) -> None:
        """As `write_parquet`, in CSV; `options` are those of `pyarrow.csv.write_csv`."""
        self._write(path, "csv", lambda table, file: pa.csv.write_csv(table, file, **options))

    def write_json(self, path: str | Path) -> None:
        """As `write_parquet`, a JSON object a line."""
        self._write(path, "json", lambda table, file: Path(file).write_text(_as_json_lines(table)))

    def _write(self, path: str | Path, ending: str, write: Callable[[pa.Table, str], Any]) -> None:
        folder = Path(path).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        tasks_max = DataContext.get_current().tasks_max_of_cluster() if is_initialized() else 2
        pending: list[Any] = []
        for number, part in enumerate(execute(self._plan)):
            if part.rows:
                target = str(folder / f"{number:06d}.{ending}")
                pending.append(_write_task().remote(write, target, in_store(part), part.start, part.stop))
            if len(pending) >= tasks_max:
                get(pending.pop(0))
        get(pending)

    def _tables(self) -> Iterator[pa.Table]:
        for part in execute(self._plan):
            yield load(part)


def _whole(part: Held) -> Any:
    """A reference to a table of just these rows."""
    if isinstance(part.block, pa.Table) or part.start:
        return put(blocks.compacted(load(part)))
    table = load(part)
    return part.block if table.num_rows == part.rows and part.stop == part.rows else put(blocks.compacted(table))


def _frame_of_rows(table: pa.Table, start: int, stop: int) -> Any:
    return blocks.batch_of(table.slice(start, stop - start), "pandas")


@cache
def _write_task() -> Any:
    return remote(_write_block)


def _as_json_lines(table: pa.Table) -> str:
    return "".join(json.dumps(row, default=_plain) + "\n" for row in blocks.rows_of(table))


def _write_block(write: Callable[[pa.Table, str], Any], target: str, table: pa.Table, start: int, stop: int) -> None:
    """Write a file, whole or not at all: a task may be run again."""
    pending = f"{target}.{os.getpid()}.part"
    write(table.slice(start, stop - start), pending)
    Path(pending).rename(target)


def _plain(value: Any) -> Any:
    """What JSON has no form for: arrays as lists, times and the like as text."""
    return value.tolist() if isinstance(value, np.ndarray) else str(value)
