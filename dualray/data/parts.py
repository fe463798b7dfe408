"""Steps that keep some rows of each block: a sample, and the parts for training and for tests."""

from __future__ import annotations

from collections.abc import Callable
from zlib import crc32

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dualray.data import blocks
from dualray.data.context import DataContext
from dualray.data.draws import Seeds
from dualray.data.errors import check_columns
from dualray.data.mapping import each_table
from dualray.data.plan import Drawing, Map, Numbered, Transform, kept

_SHARES = 1 << 20


def sampled(fraction: float, seeds: Seeds, rows: int | None) -> Map:
    """The step of `Dataset.random_sample`, for so many rows, if that is known. With a seed, the rows are those that Ray
    draws."""
    if not 0 <= fraction <= 1:
        raise ValueError(f"random_sample: fraction={fraction!r} must be between 0 and 1")
    if rows == 0:
        raise ValueError("random_sample: the dataset has no rows to draw from")

    def begin() -> Numbered:
        chosen = seeds.next()

        def of_block(number: int) -> Transform:
            random = np.random.default_rng([number, *chosen])

            def sample(table: pa.Table) -> pa.Table:
                return blocks.taken(table, np.flatnonzero(random.random(table.num_rows) < fraction))

            return each_table(lambda table: sample(table) if table.num_columns else table)

        return Numbered(of_block)

    return Map(name=f"RandomSample({fraction})", transform=Drawing(begin), schema_after=kept)


def part_of_rows(test_size: float, split_type: str, hash_column: str | None, seed: int | None) -> Callable[[bool], Map]:
    """The steps of `Dataset.streaming_train_test_split`: for True the one that keeps the rows for tests.

    Raises:
        ValueError: as there.
    """
    what = "streaming_train_test_split"
    if not 0 < test_size < 1:
        raise ValueError(f"{what}: test_size={test_size!r} must be between 0 and 1")
    if split_type not in ("random", "hash"):
        raise ValueError(f"{what}: Invalid split type: {split_type!r} must be 'random' or 'hash'")
    if split_type == "hash" and hash_column is None:
        raise ValueError(f"{what}: hash_column is required for split_type='hash'")
    if split_type == "hash" and seed is not None:
        raise ValueError(f"{what}: seed is not supported for split_type='hash'")
    if split_type == "random" and hash_column is not None:
        raise ValueError(f"{what}: hash_column is not supported for split_type='random'")
    chosen = DataContext.get_current().shuffle_seed if seed is None else seed

    def places(table: pa.Table) -> NDArray[np.float64]:
        """A number from 0 to 1 for each row: rows with those below `test_size` are for tests."""
        if hash_column is None:
            words = repr(blocks.rows_of(table.slice(0, 16))).encode()  # both parts draw the same, wherever they run
            drawn: NDArray[np.float64] = np.random.default_rng([int(chosen), table.num_rows, crc32(words)]).random(
                table.num_rows
            )
            return drawn
        check_columns([hash_column], table.column_names)
        values = (crc32(repr(value).encode()) % _SHARES / _SHARES for value in table[hash_column].to_pylist())
        return np.fromiter(values, dtype=np.float64, count=table.num_rows)

    def step(for_tests: bool) -> Map:
        def keep(table: pa.Table) -> pa.Table:
            if not table.num_columns:
                return table
            return blocks.taken(table, np.flatnonzero((places(table) < test_size) == for_tests))

        name = f"TrainTestSplit({'test' if for_tests else 'train'})"
        return Map(name=name, transform=each_table(keep), schema_after=kept)

    return step
