"""Sources of datasets that are no files: numbers, values of this process, and objects in the store."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from dualray import api
from dualray.data import blocks
from dualray.data.compute import check_ignored, is_count
from dualray.data.dataset import Dataset, MaterializedDataset
from dualray.data.executor import Meta, ensure_initialized, held, measured
from dualray.data.files import Asked, blocks_wanted, needs_of, target_size
from dualray.data.interfaces import Datasource, ReadTask
from dualray.data.plan import Held, Plan, Read
from dualray.data.targets import on_drivers_node
from dualray.object_ref import ObjectRef

__all__ = [
    "from_arrow",
    "from_arrow_refs",
    "from_blocks",
    "from_huggingface",
    "from_items",
    "from_numpy",
    "from_numpy_refs",
    "from_pandas",
    "from_pandas_refs",
    "from_torch",
    "range",
    "range_tensor",
    "read_datasource",
]

_range = range
BLOCKS_OF_ITEMS = 16
"""Rows of this process are cut into about as many blocks, if nobody says."""


def from_items(items: Sequence[Any], *, parallelism: int = -1, override_num_blocks: int | None = None) -> Dataset:
    """Return a dataset of Python values. Dicts give a column for each key; other values give a column `item`.

    Args:
        items: the rows.
        override_num_blocks, parallelism: number of blocks. Default: 16, or fewer for few rows.
    """
    items = list(items)
    override_num_blocks = blocks_wanted(override_num_blocks, parallelism)
    rows = items if items and all(isinstance(item, dict) for item in items) else [{"item": item} for item in items]
    return _of_table(blocks.table_of_rows(rows), override_num_blocks, "from_items")


def range(  # noqa: A001 - Ray's name
    n: int,
    *,
    parallelism: int = -1,
    concurrency: int | None = None,
    override_num_blocks: int | None = None,
) -> Dataset:
    """Return a dataset of the numbers 0 to n - 1, in a column `id`."""
    return _numbered(n, (), blocks_wanted(override_num_blocks, parallelism), "range")


def range_tensor(
    n: int,
    *,
    shape: Sequence[int] = (1,),
    parallelism: int = -1,
    concurrency: int | None = None,
    override_num_blocks: int | None = None,
) -> Dataset:
    """Return a dataset of arrays of this shape, each filled with the number of its row, in a column `data`."""
    return _numbered(n, tuple(shape), blocks_wanted(override_num_blocks, parallelism), "range_tensor")


def _numbered(n: int, shape: tuple[int, ...], wanted: int | None, name: str) -> Dataset:
    if not is_count(n, 0):
        raise ValueError(f"{name}: n={n!r} must be an int that is not negative")
    per_row = 8 * int(np.prod(shape, dtype=np.int64))
    per_block = max(1, target_size() // per_row)
    count = min(wanted, max(n, 1)) if wanted else max(min(n, BLOCKS_OF_ITEMS), -(-n // per_block), 1)
    bounds = [number * n // count for number in _range(count + 1)]

    def numbered(low: int, high: int) -> pa.Table:
        numbers = np.arange(low, high, dtype=np.int64)
        if name == "range":
            return pa.table({"id": numbers})
        ones = np.ones((1, *shape), np.int64)
        return pa.table({"data": blocks.column_of(ones * numbers.reshape(-1, *[1] * len(shape)))})

    schema = numbered(0, min(n, 1)).schema if n else None

    def part(low: int, high: int) -> Read:
        return Read(
            function=lambda: numbered(low, high), rows=high - low, size_bytes=per_row * (high - low), schema=schema
        )

    return Dataset(Plan(tuple(part(low, high) for low, high in pairwise(bounds)), (), name))


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


def from_blocks(tables: Sequence[Any]) -> Dataset:
    """Return a dataset whose blocks are these Arrow tables or DataFrames."""
    return _of_tables([blocks.table_of_batch(table, "from_blocks' caller") for table in tables], None, "from_blocks")


def from_torch(dataset: Any, local_read: bool = False) -> Dataset:
    """Return a dataset of the elements of a `torch.utils.data.Dataset`, in a column `item`.

    Args:
        dataset: a dataset with `__len__` and `__getitem__`, whose elements tasks read, or an iterable one, which this
            process reads.
        local_read: accepted as in Ray, and without effect.
    """
    if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        return from_items([{"item": item} for item in dataset])
    count = max(1, min(len(dataset), BLOCKS_OF_ITEMS))
    bounds = [number * len(dataset) // count for number in _range(count + 1)]

    def part(low: int, high: int) -> Read:
        def read() -> pa.Table:
            return blocks.table_of_rows([{"item": dataset[number]} for number in _range(low, high)])

        return Read(function=read, rows=high - low)

    return Dataset(Plan(tuple(part(low, high) for low, high in pairwise(bounds)), (), "from_torch"))


def read_datasource(datasource: Datasource, **options: Any) -> Dataset:
    """Return a dataset of the rows of a source of your own. A task reads each part of the source.

    Args:
        datasource: an instance of a class derived from `Datasource`.
        options: `override_num_blocks` (or `parallelism`) is about how many parts the source is asked for. `concurrency`
            is the most tasks at a time. `num_cpus`, `resources`, `ray_remote_args` and others are options of the tasks.

    Raises:
        TypeError: the argument is no `Datasource`, or an option is unknown.
    """
    if not isinstance(datasource, Datasource):
        raise TypeError(f"read_datasource takes an instance of a class derived from Datasource, not {datasource!r}")
    name = f"read_{datasource.get_name()}"
    needs = needs_of(options)
    wanted = blocks_wanted(options.pop("override_num_blocks", None), options.pop("parallelism", -1))
    tasks_max = options.pop("concurrency", None)
    for each in ("compute", "fallback_strategy", "max_calls"):
        options.pop(each, None)
    if options:
        raise TypeError(f"read_datasource has no argument {next(iter(options))!r}")
    if not datasource.supports_distributed_reads:
        ensure_initialized()
        needs |= on_drivers_node()
    size_bytes = datasource.estimate_inmemory_data_size() or 0
    tasks = datasource.get_read_tasks(wanted or max(BLOCKS_OF_ITEMS, -(-size_bytes // target_size())))
    asked = Asked(files=[], names_files=False, wanted=wanted, needs=needs, tasks_max=tasks_max, is_partitioned=False)
    return asked.dataset([_of_read_task(task) for task in tasks] or [Read(function=_no_rows, rows=0)], name)


def _of_read_task(task: ReadTask) -> Read:
    known = task.metadata
    rows = None if task.per_task_row_limit is not None else known.num_rows
    files = tuple(known.input_files or ())
    return Read(function=task.table, rows=rows, size_bytes=known.size_bytes or 0, files=files)


def _no_rows() -> pa.Table:
    return pa.table({})


def from_huggingface(dataset: Any, **options: Any) -> Dataset:
    """Return a dataset of the rows of a `datasets.Dataset` of Hugging Face, which is here; iterable ones are read here.

    Raises:
        TypeError: the argument is a dict of several datasets.
    """
    check_ignored("from_huggingface", options)
    if isinstance(dataset, dict):
        raise TypeError(f"from_huggingface takes one dataset, not several: choose one of {', '.join(dataset)}")
    if not hasattr(dataset, "with_format") or not hasattr(dataset, "__len__"):
        return from_items(list(dataset))
    return from_arrow(dataset.with_format("arrow")[:])


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


def _of_table(table: pa.Table, count: int | None, name: str) -> Dataset:
    target = target_size()
    number = blocks_wanted(count) or max(1, min(table.num_rows, BLOCKS_OF_ITEMS), -(-table.nbytes // target))
    bounds = [part * table.num_rows // number for part in _range(number + 1)]
    cuts = [table.slice(low, high - low) for low, high in pairwise(bounds)]
    return _of_tables(cuts, None, name)


def _of_tables(tables: list[pa.Table], count: int | None, name: str) -> Dataset:
    if count is not None or (len(tables) == 1 and tables[0].nbytes > target_size()):
        return _of_table(blocks.joined(tables), count, name)
    whole = [blocks.compacted(table) for table in tables]
    parts = [Held(block=table, start=0, stop=table.num_rows, size_bytes=table.nbytes) for table in whole]
    return Dataset(Plan(tuple(parts), (), name))
