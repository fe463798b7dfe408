"""A dataset in words: a table of its first and last rows, or its steps. To describe it reads no file and runs nothing.

If the columns are known, the description is a table, as on Ray. A dataset whose rows are in memory or in the object
store shows its first and last rows, too. Otherwise the description lists the steps, the last one first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any, Final

import numpy as np
import pyarrow as pa

from dualray.data import blocks
from dualray.data.executor import load
from dualray.data.plan import READING, Exchange, Held, Limit, Plan, Step, Union

_ROWS_MAX: Final = 10
_ROWS_AT_EACH_END: Final = 5
_CELL_MAX: Final = 40
_LINE_MAX: Final = 80
_GAP: Final = "…"
_INDENT: Final = " " * 3


def described(plan: Plan, kind: str, name: str | None) -> str:
    """The description of the dataset with this plan.

    Args:
        plan: the plan.
        kind: the name of the dataset's class.
        name: the name that the program has given to the dataset.
    """
    schema = known_schema(plan)
    if not schema:
        return _steps(plan, kind, name)
    cells = [[_cut(column) for column in schema.names], ["---"] * len(schema), [_cut(str(t)) for t in schema.types]]
    rows = _preview(plan) if _is_here(plan) else None
    shown = [[_cell(row.get(column)) for column in schema.names] for row in rows or ()]
    total = plan.rows
    if total is not None and len(shown) < total and shown:
        shown.insert(_ROWS_AT_EACH_END, [_GAP] * len(schema))
    last = "(Dataset isn't materialized)" if rows is None else f"(Showing {len(rows)} of {total} rows)"
    shape = f"shape: ({'?' if total is None else total}, {len(schema)})"
    return "\n".join([*([f"name: {name}"] if name else []), shape, *_table(cells, shown), last])


def _is_here(plan: Plan) -> bool:
    return not plan.steps and all(isinstance(part, Held) for part in plan.source)


def _preview(plan: Plan) -> list[dict[str, Any]]:
    """All rows, or the first and the last ones."""
    parts = [part for part in plan.source if isinstance(part, Held) and part.rows]
    total = sum(part.rows for part in parts)
    if total <= _ROWS_MAX:
        return [row for part in parts for row in blocks.rows_of(load(part))]
    first = list(islice(_rows_of(parts), _ROWS_AT_EACH_END))
    last: list[dict[str, Any]] = []
    for part in reversed(parts):
        if wanted := min(_ROWS_AT_EACH_END - len(last), part.rows):
            last = [*blocks.rows_of(load(part.cut(part.rows - wanted, part.rows))), *last]
    return [*first, *last]


def _rows_of(parts: Iterable[Held]) -> Iterable[dict[str, Any]]:
    return (row for part in parts for row in blocks.rows_of(load(part.cut(0, min(part.rows, _ROWS_AT_EACH_END)))))


def _schema_of_source(plan: Plan) -> pa.Schema | None:
    for part in plan.source:
        if isinstance(part, Held):
            schema = part.block.schema if isinstance(part.block, pa.Table) else load(part).schema
        else:
            schema = part.schema
        if schema:
            return schema
    return None


def known_schema(plan: Plan) -> pa.Schema | None:
    """Names and types of the columns, where they are known without running the plan."""
    schema = _schema_of_source(plan)
    for step in plan.steps:
        schema = _schema_of_step(step, schema) if schema else None
    return schema


def _schema_of_step(step: Step, schema: pa.Schema) -> pa.Schema | None:
    match step:
        case Limit():
            return schema
        case Union(others=others):
            return schema if all(known_schema(other) == schema for other in others) else None
        case _ if step.schema_after is None:
            return None
        case _:
            try:
                return step.schema_after(schema)
            except Exception:  # noqa: BLE001 - what is wrong with the step is told when it runs
                return None


# ---- Tables ----


def _table(head: Sequence[Sequence[str]], rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*head, *rows, strict=True)]

    def border(left: str, fill: str, middle: str, right: str) -> str:
        return left + middle.join(fill * (width + 2) for width in widths) + right

    def line(cells: Sequence[str]) -> str:
        return "│" + "┆".join(f" {cell:<{width}} " for cell, width in zip(cells, widths, strict=True)) + "│"

    below = [border("╞", "═", "╪", "╡"), *map(line, rows)] if rows else []
    return [border("╭", "─", "┬", "╮"), *map(line, head), *below, border("╰", "─", "┴", "╯")]


def _cell(value: Any) -> str:
    plain = value.item() if isinstance(value, np.generic) else value
    return _cut(str(plain).replace("\n", " ").replace("\r", " "))


def _cut(text: str) -> str:
    return text if len(text) <= _CELL_MAX else text[: _CELL_MAX - 1] + _GAP


# ---- Steps ----


def _steps(plan: Plan, kind: str, name: str | None) -> str:
    """The steps, the last one first, and below them the source."""
    steps = [_step_in_words(step) for step in reversed(plan.steps) if step.name != READING]
    source = _source_in_words(plan, "Dataset" if steps else kind, name, _INDENT * len(steps))
    first, *others = [*steps, source]
    return "\n".join([first, *(f"{_INDENT * depth}+- {line}" for depth, line in enumerate(others))])


def _step_in_words(step: Step) -> str:
    match step:
        case Limit(count=count):
            return f"limit={count}"
        case Exchange(name=words):
            return words.partition("(")[0]
        case Union():
            return "Union"
        case _:
            return step.name


def _source_in_words(plan: Plan, kind: str, name: str | None, indent: str) -> str:
    rows, schema = Plan(plan.source).rows, _schema_of_source(plan)
    named = [] if name is None else [f"name={name}"]
    blocks_in_words = [f"num_blocks={len(plan.source)}"] if kind == "MaterializedDataset" else []
    fields = [*named, *blocks_in_words, f"num_rows={'?' if rows is None else rows}"]
    columns = [f"{column}: {t}" for column, t in zip(schema.names, schema.types, strict=True)] if schema else []
    words = "schema={" + ", ".join(columns) + "}" if columns else "schema=Unknown schema"
    whole = f"{kind}({', '.join([*fields, words])})"
    if len(whole) <= _LINE_MAX:
        return whole
    inner = indent + _INDENT
    if len(inner + words) > _LINE_MAX:
        below = ",\n".join(f"{inner}{_INDENT}{column}" for column in columns)
        words = f"schema={{\n{below}\n{inner}}}"
    return f"{kind}(\n" + ",\n".join(inner + each for each in [*fields, words]) + f"\n{indent})"
