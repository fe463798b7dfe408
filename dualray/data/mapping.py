"""Steps that call a user's function or class for each row or batch.

A function runs in tasks. A class runs in a pool of actors: each has an instance, which it calls.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute

from dualray.data import blocks
from dualray.data.compute import ActorPoolStrategy, TaskPoolStrategy, strategy_of
from dualray.data.expressions import Expr, column_of, parsed
from dualray.data.iterator import batched
from dualray.data.plan import ActorMap, Map, SchemaAfter, Transform, kept

TransformOf = Callable[[Callable[..., Any]], Transform]
"""Of what is called for a row or a batch: what becomes of the blocks."""

_WITHOUT_EFFECT = ("zero_copy_batch", "udf_modifying_row_count", "ray_remote_args_fn", "max_calls", "fallback_strategy")
"""Arguments of Ray's methods that ask for speed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A user's function or class, the arguments that it gets, and where it runs.

    Args:
        fn: a function, or a class whose instances are called.
        fn_args, fn_kwargs: further arguments of each call.
        fn_constructor_args, fn_constructor_kwargs: arguments of the class.
        compute: an `ActorPoolStrategy` for a class, or a `TaskPoolStrategy` for a function.
        concurrency: number of actors, or most tasks at a time.
        needs: options of the tasks or actors.
    """

    fn: Any
    fn_args: Sequence[Any] | None = None
    fn_kwargs: Mapping[str, Any] | None = None
    fn_constructor_args: Sequence[Any] | None = None
    fn_constructor_kwargs: Mapping[str, Any] | None = None
    compute: Any = None
    concurrency: int | Sequence[int] | None = None
    needs: Mapping[str, Any] = field(default_factory=dict)

    def step(self, kind: str, transform_of: TransformOf, *, keeps_rows: bool = False) -> Map | ActorMap:
        """The step that makes these calls.

        Raises:
            TypeError: `fn` cannot be called, or a function is given arguments of a class.
            ValueError: `compute` or `concurrency` does not fit.
        """
        fn = self.fn
        if not callable(fn):
            raise TypeError(f"{kind} takes a function, not {fn!r} (type {type(fn).__name__})")
        short = getattr(fn, "__name__", type(fn).__name__)
        name = f"{kind}({short})"
        needs = {key: value for key, value in self.needs.items() if key not in _WITHOUT_EFFECT and value is not None}
        strategy = strategy_of(fn, self.compute, self.concurrency)
        args, kwargs = tuple(self.fn_args or ()), dict(self.fn_kwargs or {})

        def calling(call: Callable[..., Any]) -> Transform:
            with_arguments = (lambda value: call(value, *args, **kwargs)) if args or kwargs else call
            return transform_of(_awaited(with_arguments) if _is_async(call) else with_arguments)

        if isinstance(strategy, ActorPoolStrategy):
            constructor = tuple(self.fn_constructor_args or ()), dict(self.fn_constructor_kwargs or {})
            least, most = strategy.bounds
            return ActorMap(
                name=name,
                make=lambda: calling(fn(*constructor[0], **constructor[1])),
                size=least,
                size_max=most,
                keeps_rows=keeps_rows,
                needs=needs,
            )
        if self.fn_constructor_args or self.fn_constructor_kwargs:
            raise TypeError(f"{kind}({short}): only a class takes constructor arguments, and this is a function")
        tasks_max = strategy.size if isinstance(strategy, TaskPoolStrategy) else None
        return Map(name=name, transform=calling(fn), keeps_rows=keeps_rows, needs=needs, tasks_max=tasks_max)


def rows_mapped(call: Call) -> Map | ActorMap:
    """The step of `Dataset.map`."""

    def transform_of(fn: Callable[..., Any]) -> Transform:
        def transform(tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
            return (blocks.table_of_rows([fn(row) for row in blocks.rows_of(table)]) for table in tables)

        return transform

    return call.step("Map", transform_of, keeps_rows=True)


def rows_expanded(call: Call) -> Map | ActorMap:
    """The step of `Dataset.flat_map`."""

    def transform_of(fn: Callable[..., Any]) -> Transform:
        def transform(tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
            return (blocks.table_of_rows([new for row in blocks.rows_of(table) for new in fn(row)]) for table in tables)

        return transform

    return call.step("FlatMap", transform_of)


def rows_kept(call: Call) -> Map | ActorMap:
    """The step of `Dataset.filter` with a function."""

    def transform_of(fn: Callable[..., Any]) -> Transform:
        def transform(tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
            for table in tables:
                keep = [index for index, row in enumerate(blocks.rows_of(table)) if fn(row)]
                yield blocks.taken(table, np.array(keep, np.int64))

        return transform

    return replace(call.step("Filter", transform_of), schema_after=kept)


def rows_that_meet(wanted: Any, needs: Mapping[str, Any]) -> Map:
    """The step of `Dataset.filter` with an expression: of Arrow, of `dualray.data.expressions`, or its text."""
    expression = parsed(wanted) if isinstance(wanted, str) else wanted
    if not isinstance(expression, Expr | pa.compute.Expression):
        raise TypeError(f"filter: expr={wanted!r} must be a text or an expression, not a {type(wanted).__name__}")

    def keep(table: pa.Table) -> pa.Table:
        if not table.num_columns or isinstance(expression, pa.compute.Expression):
            return table.filter(expression) if table.num_columns else table
        return table.filter(column_of(expression, table))

    return Map(name=f"Filter({expression!r})", transform=_each(keep), needs=needs, schema_after=kept)


def batches_mapped(call: Call, batch_size: int | None, batch_format: str | None) -> Map | ActorMap:
    """The step of `Dataset.map_batches`."""
    form = blocks.check_format(batch_format)
    what = f"map_batches({getattr(call.fn, '__name__', type(call.fn).__name__)})"

    def transform_of(fn: Callable[..., Any]) -> Transform:
        def transform(tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
            for table in _with_rows(tables):
                for part in batched(iter([table]), batch_size):
                    made = fn(blocks.batch_of(part, form))
                    many = made if inspect.isgenerator(made) else [made]
                    yield from (blocks.table_of_batch(batch, what) for batch in many)

        return transform

    return call.step("MapBatches", transform_of)


def column_added(call: Call, name: str, batch_format: str | None) -> Map | ActorMap:
    """The step of `Dataset.add_column`."""
    form = blocks.check_format(batch_format)

    def transform_of(fn: Callable[..., Any]) -> Transform:
        def add(table: pa.Table) -> pa.Table:
            values = fn(blocks.batch_of(table, form))
            if getattr(values, "ndim", 1) == 2 and hasattr(values, "iloc") and values.shape[1] == 1:
                values = values.iloc[:, 0]  # a frame of one column, as of `lambda frame: frame % 3`
            column = values if isinstance(values, pa.Array | pa.ChunkedArray) else np.asarray(values)
            return with_column(table, name, blocks.column_of(column))

        return lambda tables: (add(table) for table in _with_rows(tables))

    return call.step("AddColumn", transform_of, keeps_rows=True)


def columns_computed(exprs: Mapping[str, Expr], needs: Mapping[str, Any]) -> Map:
    """The step of `Dataset.with_column`."""
    for name, expr in exprs.items():
        if not isinstance(expr, Expr):
            raise TypeError(f"with_column: {name}={expr!r} must be an expression, such as col('x') + 1")

    def add(table: pa.Table) -> pa.Table:
        if not table.num_columns:
            return table
        for name, expr in exprs.items():
            table = with_column(table, name, column_of(expr, table))
        return table

    return Map(
        name=f"WithColumn({', '.join(exprs)})",
        transform=_each(add),
        keeps_rows=True,
        needs=needs,
        schema_after=None if any(expr.calls_user_code for expr in exprs.values()) else _schema_of(add),
    )


def tables_mapped(name: str, fn: Callable[[pa.Table], pa.Table], *, keeps_rows: bool = False) -> Map:
    """A step that calls a function for each block."""
    return Map(name=name, transform=_each(fn), keeps_rows=keeps_rows, schema_after=_schema_of(fn))


def with_column(table: pa.Table, name: str, column: Any) -> pa.Table:
    """The table with one more column, or with another one of this name."""
    if name in table.column_names:
        return table.set_column(table.column_names.index(name), name, column)
    return table.append_column(name, column)


def _with_rows(tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """The tables that have rows: as on Ray, functions of batches never see a batch without rows, or without columns."""
    return (table for table in tables if table.num_rows)


def _is_async(call: Callable[..., Any]) -> bool:
    """Whether it is an `async def`, or an instance of a class with such a `__call__`."""
    tests = (inspect.iscoroutinefunction, inspect.isasyncgenfunction)
    return any(test(each) for test in tests for each in (call, inspect.getattr_static(type(call), "__call__", None)))


def _awaited(call: Callable[..., Any]) -> Callable[..., Any]:
    """A plain function of an async one: it waits for the value, or for all values of an async generator."""

    async def collected(values: AsyncIterator[Any]) -> list[Any]:
        return [value async for value in values]

    def wait(value: Any) -> Any:
        made = call(value)
        if inspect.isasyncgen(made):
            return (each for each in asyncio.run(collected(made)))
        return asyncio.run(made)

    return wait


def _schema_of(fn: Callable[[pa.Table], pa.Table]) -> SchemaAfter:
    """What becomes of a schema, by what `fn` makes of a table without rows."""
    return lambda schema: fn(schema.empty_table()).schema


def _each(fn: Callable[[pa.Table], pa.Table]) -> Transform:
    def transform(tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
        return (fn(table) for table in tables)

    return transform
