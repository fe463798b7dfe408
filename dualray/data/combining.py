"""Steps with the rows of several datasets: zip and join put them side by side, and mix takes blocks of each in turn.

A zip cuts the blocks of the second dataset as those of the first are cut. A join is a shuffle of both: rows go to the
partition that the hash of their keys names, and a task joins the two parts of each partition.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa

from dualray import api
from dualray.data import blocks, exchange
from dualray.data.choices import MixStoppingCondition
from dualray.data.executor import Meta, execute, held, in_store, measured
from dualray.data.plan import Exchange, Held, Plan, kept

JOINS = ("inner", "left_outer", "right_outer", "full_outer", "left_semi", "right_semi", "left_anti", "right_anti")


def zip_step(others: Sequence[Plan]) -> Exchange:
    """The step that puts the rows of other plans beside the rows so far."""

    def run(stream: Iterator[Held], _about: int) -> Iterator[Held]:
        for other in others:
            stream = _zipped(list(stream), list(execute(other)))
        return stream

    return Exchange(name=f"Zip({len(others) + 1})", run=run)


def _zipped(left: list[Held], right: list[Held]) -> Iterator[Held]:
    counts = [sum(part.rows for part in side) for side in (left, right)]
    if counts[0] != counts[1]:
        raise ValueError(
            f"zip: the datasets must have the same number of rows, but have {counts[0]} and {counts[1]} rows"
        )
    task = _zip_task()
    before = 0
    for part in left:
        refs: list[Any] = []
        ranges: list[tuple[int, int]] = []
        start_of_other = 0
        for other in right:
            start = max(before - start_of_other, 0)
            stop = min(before + part.rows - start_of_other, other.rows)
            if start < stop or (not refs and other is right[-1]):
                refs.append(in_store(other))
                ranges.append((other.start + start, other.start + max(start, stop)))
            start_of_other += other.rows
        before += part.rows
        block, meta = task.remote((part.start, part.stop), ranges, in_store(part), *refs)
        yield held(block, api.get(meta))


def _side_by_side(own: tuple[int, int], ranges: list[tuple[int, int]], *tables: pa.Table) -> tuple[pa.Table, Meta]:
    spans = [own, *ranges]
    cuts = [table.slice(start, stop - start) for table, (start, stop) in zip(tables, spans, strict=True)]
    left, right = cuts[0], blocks.joined(cuts[1:])
    if not left.num_rows and not right.num_columns:
        return measured(left)
    for name in right.column_names:
        free = name
        number = 1
        while free in left.column_names:  # as in Ray: x_1, x_2
            free, number = f"{name}_{number}", number + 1
        left = left.append_column(free, right[name])
    return measured(blocks.compacted(left))


@cache
def _zip_task() -> Any:
    return api.remote(num_returns=2)(_side_by_side).options(name="data:zip")


def mix_step(others: Sequence[Plan], weights: Sequence[float], ends: MixStoppingCondition) -> Exchange:
    """The step that takes blocks of this plan and of others in turn, so that the rows follow the weights.

    Args:
        others: the other plans.
        weights: the weight of this plan, and those of the others.
        ends: when the step ends.
    """
    shares = [weight / sum(weights) for weight in weights]

    def run(stream: Iterator[Held], _about: int) -> Iterator[Held]:
        streams = dict(enumerate([stream, *(execute(other) for other in others)]))
        rows = [0] * len(shares)
        while streams:
            total = sum(rows)
            gaps = {number: (shares[number] * total - rows[number], shares[number]) for number in streams}
            chosen = max(streams, key=lambda number: (gaps[number], -number))
            part = next(streams[chosen], None)
            if part is not None:
                rows[chosen] += part.rows
                yield part
            elif ends is MixStoppingCondition.STOP_ON_SHORTEST:
                return
            else:
                del streams[chosen]

    return Exchange(name=f"Mix({len(others) + 1})", run=run, keeps_rows=False, schema_after=kept)


def _with_equal_keys(sides: Sequence[pa.Table], keys: Sequence[str]) -> list[pa.Table]:
    """The tables, their keys of the types that hold the values of both.

    Raises:
        ValueError: no type holds both.
    """
    schemas = [side.select(keys).schema for side in sides]
    try:
        common = pa.unify_schemas(schemas, promote_options="permissive")
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        left, right = (", ".join(map(str, schema.types)) for schema in schemas)
        raise ValueError(
            f"join: the keys have the types {left} in the first dataset, but {right} in the second; cast one of them"
        ) from error
    return [side.cast(pa.schema([*common, side.schema.field(len(keys))])) for side in sides]


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """What a join is to do; all of its functions run in tasks."""

    kind: str
    left_on: Sequence[str]
    right_on: Sequence[str]
    left_suffix: str | None
    right_suffix: str | None
    partitions: int

    def merge(self, parts: list[pa.Table], count_of_left: int) -> pa.Table:
        """The joined rows of a partition, in the order of its left rows, and then of its right ones."""
        left, right = blocks.joined(parts[:count_of_left]), blocks.joined(parts[count_of_left:])
        if not left.num_columns or not right.num_columns:
            return self._of_one_side(left, right)
        sides = [left.select(list(self.left_on)), right.select(list(self.right_on))]
        # Arrow joins no lists and tensors: join the keys and the numbers of the rows, and take the rest by number.
        keys = [f"k{number}" for number in range(len(self.left_on))]
        numbered = [
            side.rename_columns(keys).append_column(name, pa.array(np.arange(side.num_rows)))
            for side, name in zip(sides, ("left", "right"), strict=True)
        ]
        if numbered[0].schema.types[:-1] != numbered[1].schema.types[:-1]:
            numbered = _with_equal_keys(numbered, keys)
        found = numbered[0].join(numbered[1], keys, join_type=self.kind.replace("_", " "), use_threads=False)
        order = [(name, "ascending") for name in ("left", "right") if name in found.column_names]
        found = found.take(pa.compute.sort_indices(found, sort_keys=order))
        return self._columns(found, keys, left, right)

    def _columns(self, found: pa.Table, keys: list[str], left: pa.Table, right: pa.Table) -> pa.Table:
        from_right = self.kind.startswith("right_") and self.kind != "right_outer"
        own_keys = self.right_on if from_right else self.left_on
        columns = {name: found[key] for name, key in zip(own_keys, keys, strict=True)}
        both = {"left", "right"} <= set(found.column_names)
        rest_of_left = [name for name in left.column_names if name not in self.left_on]
        rest_of_right = [name for name in right.column_names if name not in self.right_on]
        taken = {*self.left_on, *rest_of_left}
        clash = taken & set(rest_of_right) if both else set()
        if clash and self.left_suffix is None and self.right_suffix is None:
            raise ValueError(
                f"join: both datasets have the columns {', '.join(map(repr, sorted(clash)))}; "
                f"give left_suffix= or right_suffix="
            )
        for side, names, table, suffix in (
            ("left", rest_of_left, left, self.left_suffix),
            ("right", rest_of_right, right, self.right_suffix),
        ):
            if side in found.column_names:
                for name in names:
                    new = f"{name}{suffix or ''}" if name in clash else name
                    if new in columns:
                        raise ValueError(
                            f"join: two columns of the result would have the name {new!r}; give other suffixes"
                        )
                    columns[new] = _taken(table[name], found[side])
        return pa.table(columns)

    def _of_one_side(self, left: pa.Table, right: pa.Table) -> pa.Table:
        """No block of one side has a column: its dataset is empty."""
        keeps = {
            "left": ("left_outer", "full_outer", "left_anti"),
            "right": ("right_outer", "full_outer", "right_anti"),
        }
        if left.num_columns:
            return left if self.kind in keeps["left"] else left.slice(0, 0)
        return right if self.kind in keeps["right"] else right.slice(0, 0)


def join_step(join: Join, other: Plan) -> Exchange:
    """The step that joins the rows so far with those of another plan."""

    def run(stream: Iterator[Held], _about: int) -> Iterator[Held]:
        left = exchange.split_all(stream, join.partitions, exchange.by_hash(join.left_on, join.partitions), "join")
        right = exchange.split_all(
            execute(other), join.partitions, exchange.by_hash(join.right_on, join.partitions), "join"
        )
        count = len(left)
        return exchange.merged(left + right, join.partitions, lambda parts, _: join.merge(parts, count), "join")

    return Exchange(name=f"Join({join.kind})", run=run, keeps_rows=False, outputs=join.partitions)


def _taken(column: pa.ChunkedArray, numbers: pa.ChunkedArray) -> Any:
    """The values with these numbers, and null where there is none."""
    if not isinstance(column.type, pa.FixedShapeTensorType):
        return column.take(numbers)
    if not numbers.null_count:
        return blocks.column_of(blocks.numpy_of(column)[numbers.to_numpy()])
    storage = column.combine_chunks().storage
    if isinstance(storage, pa.ChunkedArray):
        storage = pa.concat_arrays(storage.chunks)
    return pa.ExtensionArray.from_storage(column.type, storage.take(numbers.combine_chunks()))
