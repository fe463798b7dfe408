"""Steps that call a user's function or class for each row or batch.

A function runs in tasks. A class runs in a pool of actors: each has an instance, which it calls.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute

from dualray.data import blocks
from dualray.data.compute import (
    ActorPoolStrategy,
    TaskPoolStrategy,
    check_options_function,
    is_async,
    strategy_of,
    waited,
)
from dualray.data.draws import Seeds
from dualray.data.errors import check_columns
from dualray.data.expression_tree import BlockState, Expr, StarExpr, UnnestExpr, column_of
from dualray.data.filter_text import parsed
from dualray.data.iterator import batched
from dualray.data.plan import ActorMap, Drawing, Map, Numbered, SchemaAfter, Transform, kept

TransformOf = Callable[[Callable[..., Any]], Transform]
"""Of what is called for a row or a batch: what becomes of the blocks."""

WITHOUT_EFFECT = ("zero_copy_batch", "udf_modifying_row_count", "max_calls", "fallback_strategy")
"""Arguments of Ray's methods that are no options of tasks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A user's function or class, the arguments that it gets, and where it runs.

    Args:
        fn: a function, or a class whose instances are called.
        fn_args, fn_kwargs: further arguments of each call.
        fn_constructor_args, fn_constructor_kwargs: arguments of the class.
        compute: an `ActorPoolStrategy` for a class, or a `TaskPoolStrategy` for a function.
        concurrency: number of actors, or most tasks at a time.
        needs: options of the tasks or actors, and `ray_remote_args_fn`, whose options override them.
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
        needs = {key: value for key, value in self.needs.items() if key not in WITHOUT_EFFECT and value is not None}
        check_options_function(name, needs)
        strategy = strategy_of(fn, self.compute, self.concurrency)
        args, kwargs = tuple(self.fn_args or ()), dict(self.fn_kwargs or {})

        def calling(call: Callable[..., Any]) -> Transform:
            with_arguments = (lambda value: call(value, *args, **kwargs)) if args or kwargs else call
            return transform_of(waited(with_arguments) if is_async(call) else with_arguments)

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
            raise ValueError(f"{kind}({short}): {short} is a function, and only a class takes constructor arguments")
        tasks_max = strategy.size if isinstance(strategy, TaskPoolStrategy) else None
        return Map(name=name, transform=calling(fn), keeps_rows=keeps_rows, needs=needs, tasks_max=tasks_max)


def rows_mapped(call: Call) -> Map | ActorMap:
    """The step of `Dataset.map`."""

    def transform_of(fn: Callable[..., Any]) -> Transform:
        def transform(tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
            return (blocks.table_of_rows([fn(row) for row in blocks.rows_for_function(table)]) for table in tables)

        return transform

    return call.step("Map", transform_of, keeps_rows=True)


def rows_expanded(call: Call) -> Map | ActorMap:
    """The step of `Dataset.flat_map`."""

    def transform_of(fn: Callable[..., Any]) -> Transform:
        def transform(tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
            return (
                blocks.table_of_rows([new for row in blocks.rows_for_function(table) for new in fn(row)])
                for table in tables
            )

        return transform

    return call.step("FlatMap", transform_of)


def rows_kept(call: Call) -> Map | ActorMap:
    """The step of `Dataset.filter` with a function."""

    def transform_of(fn: Callable[..., Any]) -> Transform:
        def transform(tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
            for table in tables:
                keep = [index for index, row in enumerate(blocks.rows_for_function(table)) if fn(row)]
                yield blocks.taken(table, np.array(keep, np.int64))

        return transform

    return replace(call.step("Filter", transform_of), schema_after=kept)


def rows_that_meet(wanted: Any, needs: Mapping[str, Any], place: int) -> Map:
    """The step of `Dataset.filter` with an expression: of Arrow, of `dualray.data.expressions`, or its text."""
    expression = parsed(wanted) if isinstance(wanted, str) else wanted
    if not isinstance(expression, Expr | pa.compute.Expression):
        raise TypeError(f"filter: expr={wanted!r} must be a str or an expression, not a {type(wanted).__name__}")

    if isinstance(expression, pa.compute.Expression):
        transform = each_table(lambda table: table.filter(expression) if table.num_columns else table)
        return Map(name=f"Filter({expression!r})", transform=transform, needs=needs, schema_after=kept)

    def keep(table: pa.Table, block: BlockState) -> pa.Table:
        return table.filter(column_of(expression, table, block)) if table.num_columns else table

    numbered = _evaluating([expression], place, keep)
    return Map(name=f"Filter({expression.in_line()})", transform=numbered, needs=needs, schema_after=kept)


def batches_mapped(call: Call, batch_size: int | None, batch_format: str | None) -> Map | ActorMap:
    """The step of `Dataset.map_batches`."""
    form = blocks.check_format(batch_format)
    writable = not call.needs.get("zero_copy_batch", True)
    what = f"map_batches({getattr(call.fn, '__name__', type(call.fn).__name__)})"

    def transform_of(fn: Callable[..., Any]) -> Transform:
        def transform(tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
            for part in batched(_with_rows(tables), batch_size):
                try:
                    made = fn(blocks.batch_of(part, form, writable=writable))
                except ValueError as error:
                    if "read-only" not in str(error):
                        raise
                    raise ValueError(
                        f"{what} tried to mutate a zero-copy read-only batch. Pass zero_copy_batch=False to "
                        "map_batches(), or change a copy of the batch"
                    ) from error
                many = made if inspect.isgenerator(made) else [made]
                yield from (blocks.table_of_batch(batch, what) for batch in many)

        return transform

    step = replace(call.step("MapBatches", transform_of), rows_min=batch_size)
    return replace(step, counts_as_keeping=True) if isinstance(step, Map) else step


def column_added(call: Call, name: str, batch_format: str | None) -> Map | ActorMap:
    """The step of `Dataset.add_column`."""
    form = blocks.check_format(batch_format)

    def transform_of(fn: Callable[..., Any]) -> Transform:
        def add(table: pa.Table) -> pa.Table:
            values = fn(blocks.batch_of(table, form))
            _check_column(values, form)
            if getattr(values, "ndim", 1) == 2 and hasattr(values, "iloc") and values.shape[1] == 1:
                values = values.iloc[:, 0]  # a frame of one column, as of `lambda frame: frame % 3`
            column = values if isinstance(values, pa.Array | pa.ChunkedArray) else np.asarray(values)
            return with_column(table, name, blocks.column_of(column))

        return lambda tables: (add(table) for table in _with_rows(tables))

    return call.step("AddColumn", transform_of, keeps_rows=True)


def _check_column(values: Any, form: str) -> None:
    expected = {"pyarrow": (pa.Array, pa.ChunkedArray), "numpy": (np.ndarray,)}.get(form)
    if expected is not None and not isinstance(values, expected):
        raise ValueError(
            f"add_column: For {form} batch format, the function must return a "
            f"{' or '.join(each.__name__ for each in expected)}, not a {type(values).__name__}"
        )


def columns_computed(wanted: Sequence[Any], needs: Mapping[str, Any], place: int) -> Map:
    """The step of `Dataset.with_columns`.

    Args:
        wanted: dicts of expressions, and expressions of `unnest`.
        needs: options of the tasks.
        place: the number of the step, from which random numbers follow.
    """
    pairs: list[tuple[str, Expr]] = []
    for each in wanted:
        if not isinstance(each, Mapping | UnnestExpr):
            raise TypeError(f"with_columns takes dicts of expressions and unnest(expr), not a {type(each).__name__}")
        pairs += each.items() if isinstance(each, Mapping) else [("", each)]
    for name, expr in pairs:
        if not isinstance(expr, Expr):
            raise TypeError(f"with_column: {name}={expr!r} must be an expression, such as col('x') + 1")
        if name and isinstance(expr, UnnestExpr):
            raise TypeError(f"with_column: {name}=unnest(...) makes several columns: use ds.with_columns(unnest(expr))")

    def add(table: pa.Table, block: BlockState) -> pa.Table:
        if not table.num_columns:
            return table
        for name, expr in pairs:
            if isinstance(expr, UnnestExpr):
                made = expr.columns(table, block)
            else:
                made = {name: column_of(expr, table, block)}
            for each, column in made.items():
                table = with_column(table, each, column)
        return table

    exprs = [expr for _, expr in pairs]
    return Map(
        name=f"WithColumn({', '.join(name or expr.in_line() for name, expr in pairs)})",
        transform=_evaluating(exprs, place, add),
        keeps_rows=True,
        needs=needs,
        schema_after=_schema_of_expressions(exprs, add),
    )


def columns_selected(cols: str | Sequence[str | Expr] | Expr, place: int) -> Map:
    """The step of `Dataset.select_columns`; `place` as above."""
    if not isinstance(cols, str | Expr | Sequence):
        raise TypeError(f"select_columns: cols={cols!r} must be a string, an expression, or a list of them")
    chosen = [cols] if isinstance(cols, str | Expr) else list(cols)
    names = [each for each in chosen if isinstance(each, str)]
    if len(set(names)) < len(names):
        raise ValueError(f"select_columns: {names} names a column twice")
    if not all(isinstance(each, str | Expr) for each in chosen):
        raise ValueError(f"select_columns: all elements of cols={chosen!r} must be strings or expressions")

    def select(table: pa.Table, block: BlockState) -> pa.Table:
        columns: dict[str, Any] = {}
        for each in chosen if table.num_columns else []:
            if isinstance(each, StarExpr):
                columns |= {name: table[name] for name in table.column_names}
            elif isinstance(each, Expr):
                columns[each.name or each.in_line()] = column_of(each, table, block)
            else:
                check_columns([each], table.column_names)
                columns[each] = table[each]
        return pa.table(columns)

    exprs = [each for each in chosen if isinstance(each, Expr)]
    return Map(
        name="SelectColumns",
        transform=_evaluating(exprs, place, select),
        keeps_rows=True,
        schema_after=_schema_of_expressions(exprs, select),
    )


def columns_dropped(names: list[str]) -> Map:
    """The step of `Dataset.drop_columns`; its errors."""
    if len(set(names)) < len(names):
        raise ValueError(f"drop_columns: cols={names!r} must name each column once")

    def drop(table: pa.Table) -> pa.Table:
        check_columns(names if table.num_columns else [], table.column_names)
        return table.drop_columns(names) if table.num_columns else table

    return tables_mapped("DropColumns", drop, keeps_rows=True)


def tables_mapped(name: str, fn: Callable[[pa.Table], pa.Table], *, keeps_rows: bool = False) -> Map:
    """A step that calls a function for each block."""
    return Map(name=name, transform=each_table(fn), keeps_rows=keeps_rows, schema_after=_schema_of(fn))


def checked_names(names: Mapping[str, str] | Sequence[str]) -> dict[str, str] | list[str]:
    """The new names of columns, for `Dataset.rename_columns`; its errors."""
    if not isinstance(names, Mapping | list | tuple):
        raise TypeError(f"rename_columns takes a dict of names or a list of names, not {type(names).__name__}")
    new = list(names.values()) if isinstance(names, Mapping) else list(names)
    if not new:
        raise ValueError("rename_columns: names must name at least one column")
    if not all(isinstance(name, str) for name in (*new, *names)):
        raise ValueError(f"rename_columns: all names must be strings, and some of {names!r} are not")
    if len(set(new)) < len(new):
        raise ValueError(f"rename_columns: {names!r} gives two columns the same name")
    return dict(names) if isinstance(names, Mapping) else new


def with_column(table: pa.Table, name: str, column: Any) -> pa.Table:
    """The table with one more column, or with another one of this name."""
    if name in table.column_names:
        return table.set_column(table.column_names.index(name), name, column)
    return table.append_column(name, column)


def _with_rows(tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """The tables that have rows: as on Ray, functions of batches never see a batch without rows, or without columns."""
    return (table for table in tables if table.num_rows)


def _schema_of_expressions(exprs: Sequence[Expr], fn: Callable[[pa.Table, BlockState], pa.Table]) -> SchemaAfter | None:
    if any(expr.calls_user_code for expr in exprs):
        return None
    return _schema_of(lambda table: fn(table, BlockState()))


def _schema_of(fn: Callable[[pa.Table], pa.Table]) -> SchemaAfter:
    """Return a function that computes the schema after `fn`. It calls `fn` with a table without rows."""
    return lambda schema: fn(schema.empty_table()).schema


def each_table(fn: Callable[[pa.Table], pa.Table]) -> Transform:
    """The transform that calls a function for each block."""

    def transform(tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
        return (fn(table) for table in tables)

    return transform


def _evaluating(
    exprs: Sequence[Expr], place: int, fn: Callable[[pa.Table, BlockState], pa.Table]
) -> Transform | Drawing:
    """The transform of a function that evaluates these expressions; with the number of the block, if they need it."""
    if not any(expr.follows_place for expr in exprs):
        return each_table(lambda table: fn(table, BlockState()))
    seeds, times, token = Seeds(None), count(), uuid4().int

    def begin() -> Numbered:
        own, before = [*seeds.next(), place], next(times)

        def of_block(number: int) -> Transform:
            def transform(tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
                block = BlockState(number, own, before, token)
                for table in tables:
                    yield fn(table, block)
                    block.rows_before += table.num_rows

            return transform

        return Numbered(of_block)

    return Drawing(begin)
