"""Writes blocks with a `Datasink` of the user's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import chain
from typing import Any

import pyarrow as pa

from dualray.api import get, remote
from dualray.data.executor import give_up, in_store, load, of_user_code
from dualray.data.interfaces import Datasink, TaskContext, WriteResult
from dualray.data.plan import Held
from dualray.exceptions import DualrayError
from dualray.runtime_context import get_runtime_context
from dualray.scheduling_strategies import NodeAffinitySchedulingStrategy

Written = tuple[Any, int, int]
"""A task returns this: the result of `write`, and the numbers of rows and bytes that it wrote."""


def write_with(
    datasink: Datasink, groups: Iterator[list[Held]], options: Mapping[str, Any], tasks_max: int
) -> WriteResult:
    """Write each group of blocks in a task of its own, and call the methods of the target that the driver runs."""
    try:
        first = next(groups, None)
        datasink.on_write_start(load(first[0]).schema if first else None)
        written = _written(datasink, chain([first], groups) if first else iter([]), options, tasks_max)
        result = WriteResult(
            num_rows=sum(rows for _, rows, _ in written),
            size_bytes=sum(size for _, _, size in written),
            write_returns=[returned for returned, _, _ in written],
        )
        datasink.on_write_complete(result)
    except Exception as error:
        datasink.on_write_failed(error)
        raise
    return result


def on_drivers_node() -> dict[str, Any]:
    """Options of tasks that run only on the driver's node."""
    node_id = get_runtime_context().get_node_id()
    return {"scheduling_strategy": NodeAffinitySchedulingStrategy(node_id, soft=False)}


def _written(
    datasink: Datasink, groups: Iterator[list[Held]], options: Mapping[str, Any], tasks_max: int
) -> list[Written]:
    options = {"name": f"data:write_{datasink.get_name()}", **options}
    if not datasink.supports_distributed_writes:
        options |= on_drivers_node()
    task = _write_task().options(**options)
    pending: list[Any] = []
    written: list[Written] = []
    for number, parts in enumerate(groups):
        spans = [(part.start, part.stop) for part in parts]
        pending.append(task.remote(datasink, number, spans, *[in_store(part) for part in parts]))
        if len(pending) >= tasks_max:
            written.append(_first(pending))
    while pending:
        written.append(_first(pending))
    return written


def _first(pending: list[Any]) -> Written:
    """Wait for the first task, and give up the others if it fails."""
    try:
        written: Written = get(pending.pop(0))
    except DualrayError as error:
        give_up(pending)
        raise of_user_code(error) from None
    return written


@cache
def _write_task() -> Any:
    return remote(_write_blocks)


def _write_blocks(datasink: Datasink, number: int, spans: Sequence[tuple[int, int]], *tables: pa.Table) -> Written:
    parts = [table.slice(start, stop - start) for table, (start, stop) in zip(tables, spans, strict=True)]
    returned = datasink.write(iter(parts), TaskContext(number, datasink.get_name()))
    return returned, sum(part.num_rows for part in parts), sum(part.nbytes for part in parts)
