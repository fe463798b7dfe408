"""Steps that need all blocks: repartition, shuffle, sort and groupby.

A shuffle has two rounds of tasks. Each task of the first takes a block and returns it in parts, one object for each
block of the result; each task of the second takes the parts of one result. A sort is a shuffle by value: bounds are
taken from samples of every block, so that parts are ranges. A group is a range's neighbours.

All parts lie in the object store between the rounds. What it cannot hold goes to disk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from dualray import api
from dualray.data import blocks
from dualray.data.compute import options_now
from dualray.data.context import DataContext
from dualray.data.errors import check_columns
from dualray.data.executor import Meta, give_up, held, in_store, measured
from dualray.data.plan import Held
from dualray.exceptions import DualrayError

Split = Callable[[pa.Table, int], list[pa.Table]]
"""Of a block, and its number: its parts."""
Merge = Callable[[list[pa.Table], int], pa.Table]
"""Of the parts of a result, and its number: the result."""
SAMPLES = 64
"""Of each block, for the bounds of a sort."""


def repartition(stream: Iterator[Held], count: int) -> Iterator[Held]:
    """The same rows in the same order, in `count` blocks whose sizes differ by one row at most."""
    parts = list(stream)
    total = sum(part.rows for part in parts)
    task = _remote().cut
    for number in range(count):
        low, high = number * total // count, (number + 1) * total // count
        ranges: list[tuple[int, int]] = []
        refs: list[Any] = []
        before = 0
        for part in parts:
            start, stop = max(low - before, 0), min(high - before, part.rows)
            if start < stop or (not ranges and part is parts[-1]):  # an empty block has its columns, too
                ranges.append((part.start + start, part.start + max(start, stop)))
                refs.append(in_store(part))
            before += part.rows
        block, meta = task.remote(ranges, *refs)
        yield held(block, api.get(meta))


def by_rows(stream: Iterator[Held], most: int) -> Iterator[Held]:
    """The same rows in the same order, in blocks of at most `most` rows."""
    parts = list(stream)
    return repartition(iter(parts), max(1, -(-sum(part.rows for part in parts) // most)))


def by_hash(keys: Sequence[str], outputs: int) -> Split:
    """The function that cuts a block so that rows with equal keys are in one part."""

    def split(table: pa.Table, _number: int) -> list[pa.Table]:
        if not table.num_columns:
            return [table] * outputs
        check_columns(keys, table.column_names)
        frame = pd.DataFrame({key: blocks.batch_of(table.select([key]), "pandas")[key] for key in keys})
        for key in keys:
            if pd.api.types.is_numeric_dtype(frame[key]):
                frame[key] = frame[key].astype(np.float64)  # 1 and 1.0 are equal, so their hashes must be
        where = pd.util.hash_pandas_object(frame, index=False).to_numpy() % np.uint64(outputs)
        return [blocks.taken(table, np.flatnonzero(where == part)) for part in range(outputs)]

    return split


def repartition_by(stream: Iterator[Held], count: int, keys: Sequence[str], is_sorted: bool) -> Iterator[Held]:
    """All rows, with equal keys in one block, and, if asked, in the order of the keys within each block."""

    def merge(parts: list[pa.Table], _number: int) -> pa.Table:
        table = blocks.joined(parts)
        if not (is_sorted and table.num_rows):
            return table
        indices = pc.sort_indices(table.select(list(keys)), sort_keys=[(key, "ascending") for key in keys])
        return blocks.taken(table, np.asarray(indices.to_numpy()))

    return shuffle(stream, count, by_hash(keys, count), merge, "repartition")


def shuffle(
    stream: Iterator[Held],
    outputs: int,
    split: Split,
    merge: Merge,
    name: str,
    needs: Mapping[str, Any] | None = None,
) -> Iterator[Held]:
    """Cut every block in `outputs` parts, and join what belongs together, in tasks with the options `needs`."""
    return merged(split_all(stream, outputs, split, name), outputs, merge, name, needs)


def split_all(stream: Iterator[Held], outputs: int, split: Split, name: str) -> list[list[Any]]:
    """Cut every block in `outputs` parts: of each block, the references to its parts."""
    remote = _remote()
    columns: list[list[Any]] = []
    waiting: list[Any] = []
    shared_split = api.put(split)
    tasks_max = DataContext.get_current().tasks_max_of_cluster()
    for number, part in enumerate(stream):
        made = remote.split.options(num_returns=outputs, name=f"data:{name}.split").remote(
            shared_split, number, in_store(part), part.start, part.stop, outputs
        )
        columns.append([made] if outputs == 1 else list(made))
        waiting.append(columns[-1][0])
        del made, part
        if len(waiting) >= tasks_max:
            _, waiting = api.wait(waiting, num_returns=1)
    return columns


def merged(
    columns: list[list[Any]], outputs: int, merge: Merge, name: str, needs: Mapping[str, Any] | None = None
) -> Iterator[Held]:
    """Join the parts of each result. The lists lose their references as the tasks take them."""
    task = _remote().merge.options(name=f"data:{name}.merge")
    shared_merge = api.put(merge)
    tasks_max = DataContext.get_current().tasks_max_of_cluster()
    flying: list[tuple[Any, Any]] = []
    for number in range(outputs):
        parts = [column[number] for column in columns]
        for column in columns:
            column[number] = None
        flying.append(tuple(task.options(**options_now(needs or {})).remote(shared_merge, number, *parts)))
        del parts
        if len(flying) >= tasks_max:
            yield _taken(flying)
    while flying:
        yield _taken(flying)


def _taken(flying: list[tuple[Any, Any]]) -> Held:
    block, meta = flying.pop(0)
    try:
        return held(block, api.get(meta))
    except DualrayError:
        give_up([meta for _, meta in flying])
        raise


def random_shuffle(stream: Iterator[Held], outputs: int, seed: Sequence[int]) -> Iterator[Held]:
    """All rows in a random order. The parts of a block differ by one row at most, so that few blocks come out empty."""

    def split(table: pa.Table, number: int) -> list[pa.Table]:
        random = np.random.default_rng([*seed, 0, number])
        first = random.integers(outputs)  # the parts with one row more are not always the same ones
        where = random.permutation(first + np.arange(table.num_rows)) % outputs
        return [blocks.taken(table, np.flatnonzero(where == part)) for part in range(outputs)]

    def merge(parts: list[pa.Table], number: int) -> pa.Table:
        table = blocks.joined(parts)
        return blocks.taken(table, np.random.default_rng([*seed, 1, number]).permutation(table.num_rows))

    return shuffle(stream, outputs, split, merge, "random_shuffle")


def by_range(
    stream: Iterator[Held],
    outputs: int,
    keys: Sequence[str],
    descending: Sequence[bool],
    finish: Callable[[pa.Table], pa.Table],
    name: str,
    needs: Mapping[str, Any] | None = None,
    boundaries: Sequence[Any] | None = None,
) -> Iterator[Held]:
    """Blocks in the order of `keys`, and rows within them; equal values of the first key are in one block. `finish` is
    applied to each. Nulls come last. `boundaries` are the first values of the blocks after the first one; without them,
    samples say where to cut."""
    parts = list(stream)
    if not parts:
        return iter(())
    first, is_descending = keys[0], descending[0]
    bounds = _bounds(parts, keys, outputs) if boundaries is None else np.sort(np.asarray(boundaries))
    outputs = len(bounds) + 1

    def split(table: pa.Table, _number: int) -> list[pa.Table]:
        if not table.num_columns:
            return [table] * outputs
        check_columns(keys, table.column_names)
        column = table[first]
        is_null = np.asarray(pc.is_null(column, nan_is_null=True).to_numpy())
        where = np.full(table.num_rows, outputs - 1)
        found = np.searchsorted(bounds, _plain(column.filter(pa.array(~is_null))), side="right")
        where[~is_null] = outputs - 1 - found if is_descending else found
        return [blocks.taken(table, np.flatnonzero(where == part)) for part in range(outputs)]

    order = [(key, "descending" if down else "ascending") for key, down in zip(keys, descending, strict=True)]

    def merge(tables: list[pa.Table], _number: int) -> pa.Table:
        table = blocks.joined(tables)
        if table.num_rows == 0:
            return finish(table)
        indices = pc.sort_indices(table.select(list(keys)), sort_keys=order)  # nulls at the end: Arrow's default
        return finish(blocks.taken(table, np.asarray(indices.to_numpy())))

    return shuffle(iter(parts), outputs, split, merge, name, needs)


def _bounds(parts: list[Held], keys: Sequence[str], outputs: int) -> Any:
    """The values of the first key that cut the rows into about this number of equal blocks, from samples."""
    asked = [_remote().sample.remote(list(keys), in_store(part), part.start, part.stop) for part in parts]
    try:
        samples = api.get(asked)
    except DualrayError:
        give_up(asked)
        raise
    values = np.sort(np.concatenate([sample for sample in samples if len(sample)] or [np.zeros(0)]))
    outputs = max(1, min(outputs, len(values)))
    return values[[number * len(values) // outputs for number in range(1, outputs)]]


def _plain(column: pa.ChunkedArray) -> Any:
    """Values that numpy can compare."""
    return column.to_numpy() if pa.types.is_temporal(column.type) else blocks.numpy_of(column)


# ---- What the tasks do -------------------------------------------------------------------------------------------


def _sample(keys: list[str], table: pa.Table, start: int, stop: int) -> Any:
    part = table.slice(start, stop - start)
    if not part.num_columns:
        return np.zeros(0)
    check_columns(keys, part.column_names)
    key = keys[0]
    column = part[key].filter(pc.invert(pc.is_null(part[key], nan_is_null=True)))
    step = max(1, len(column) // SAMPLES)
    return _plain(column.take(pa.array(np.arange(0, len(column), step))))


def _split(split: Split, number: int, table: pa.Table, start: int, stop: int, outputs: int) -> Any:
    parts = [blocks.compacted(part) for part in split(table.slice(start, stop - start), number)]
    return parts[0] if outputs == 1 else tuple(parts)


def _merge(merge: Merge, number: int, *parts: pa.Table) -> tuple[pa.Table, Meta]:
    return measured(blocks.compacted(merge(list(parts), number)))


def _cut(ranges: list[tuple[int, int]], *tables: pa.Table) -> tuple[pa.Table, Meta]:
    cuts = [table.slice(start, stop - start) for table, (start, stop) in zip(tables, ranges, strict=True)]
    return measured(blocks.compacted(blocks.joined(cuts).combine_chunks()))


class _Remote:
    """The tasks."""

    def __init__(self) -> None:
        self.sample: Any = api.remote(_sample)
        self.split: Any = api.remote(_split)
        self.merge: Any = api.remote(num_returns=2)(_merge)
        self.cut: Any = api.remote(num_returns=2)(_cut)


@cache
def _remote() -> _Remote:
    return _Remote()
