"""The text of a dataset is as on Ray, and to make it runs nothing. Each test is for both modes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import dualray as ray
from dualray.data.expressions import col, udf


def never(*_: Any) -> Any:
    raise AssertionError("a text of a dataset runs no user code")


def table(rows: int | str, columns: dict[str, str]) -> str:
    """The text of a dataset that is not materialized, whose columns are all wider than their types."""
    names = [f"{name:<{max(len(name), len(kind), 3)}}" for name, kind in columns.items()]
    lines = [names, ["---" + " " * (len(name) - 3) for name in names]]
    lines.append([f"{kind:<{len(name)}}" for name, kind in zip(names, columns.values(), strict=True)])
    border = ["─" * (len(name) + 2) for name in names]
    text = [f"shape: ({rows}, {len(columns)})", f"╭{'┬'.join(border)}╮"]
    text += [f"│ {' ┆ '.join(line)} │" for line in lines]
    return "\n".join([*text, f"╰{'┴'.join(border)}╯", "(Dataset isn't materialized)"])


RANGE = {"id": "int64"}


@pytest.mark.parametrize(
    ("change", "rows", "columns"),
    [
        (lambda data: data, 20, RANGE),
        (lambda data: data.filter(never), "?", RANGE),
        (lambda data: data.filter(expr="id > 3"), "?", RANGE),
        (lambda data: data.limit(3), 3, RANGE),
        (lambda data: data.sort("id", descending=True), 20, RANGE),
        (lambda data: data.random_shuffle(seed=1), 20, RANGE),
        (lambda data: data.repartition(3), 20, RANGE),
        (lambda data: data.randomize_block_order(), 20, RANGE),
        (lambda data: data.union(data), 40, RANGE),
        (lambda data: data.with_column("half", col("id") / 2.0), 20, {"id": "int64", "half": "double"}),
        (lambda data: data.rename_columns({"id": "number"}).select_columns("number"), 20, {"number": "int64"}),
    ],
)
def test_columns_that_are_known_make_a_table(change: Any, rows: int | str, columns: dict[str, str]) -> None:
    assert repr(change(ray.data.range(20))) == table(rows, columns)


@pytest.mark.parametrize(
    ("change", "steps"),
    [
        (lambda data: data.map(never), ["Map(never)"]),
        (lambda data: data.map(never).map_batches(never), ["MapBatches(never)", "Map(never)"]),
        (lambda data: data.map(never).sort("id").limit(3), ["limit=3", "Sort", "Map(never)"]),
        (lambda data: data.map(never).union(data), ["Union", "Map(never)"]),
        (lambda data: data.union(data.map(never)), ["Union"]),
        (lambda data: data.with_column("x", udf()(never)(col("id")) + 1), ["WithColumn(x)"]),
        (lambda data: data.select_columns([udf()(never)(col("id")).alias("x")]), ["SelectColumns"]),
    ],
)
def test_columns_that_only_a_run_tells_leave_the_steps(change: Any, steps: list[str]) -> None:
    lines = [*steps, "Dataset(num_rows=20, schema={id: int64})"]
    indented = [lines[0], *(f"{'   ' * depth}+- {line}" for depth, line in enumerate(lines[1:]))]
    assert repr(change(ray.data.range(20))) == "\n".join(indented)


def test_long_schemas_have_a_line_for_each_column() -> None:
    data = ray.data.from_items([{f"column_{number}": number for number in range(6)}])
    data.set_name("wide")
    assert repr(data.map(never)).splitlines() == [
        *("Map(never)", "+- Dataset(", "      num_rows=1,", "      schema={"),
        *(f"         column_{number}: int64" + ("," if number < 5 else "") for number in range(6)),
        *("      }", "   )"),
    ]


def test_rows_that_are_here_are_shown() -> None:
    data = ray.data.from_items([{"a": number, "b": "x\n" * 30} for number in range(12)])
    data.set_name("some")
    lines = repr(data).splitlines()
    assert lines[:2] == ["name: some", "shape: (12, 2)"]
    assert [line.split()[1] for line in lines[7:-2]] == ["0", "1", "2", "3", "4", "…", "7", "8", "9", "10", "11"]
    assert lines[7].split("┆")[1] == f" {'x ' * 19}x… │"
    assert lines[-1] == "(Showing 10 of 12 rows)"


def test_materialized_rows_are_shown() -> None:
    data = ray.data.range(3, override_num_blocks=3).map(lambda row: {"x": row["id"] * 1.5}).materialize()
    assert [line.strip("│ ") for line in repr(data).splitlines()[6:9]] == ["0.0", "1.5", "3.0"]
    assert repr(data.map(never)) == "Map(never)\n+- Dataset(num_rows=3, schema={x: double})"
    assert repr(data.iterator()) == f"DataIterator({data})"
    empty = ray.data.range(3).filter(lambda row: False).map(lambda row: {"y": 1}).materialize()
    assert repr(empty).startswith("MaterializedDataset(num_blocks=3, num_rows=0, schema=")


def test_parquet_files_tell_their_columns_and_csv_files_do_not(tmp_path: Path) -> None:
    pa.parquet.write_table(pa.table({"a": [1, 2], "b": ["x", "y"]}), tmp_path / "file.parquet")
    (tmp_path / "file.csv").write_text("a,b\n1,x\n")
    assert repr(ray.data.read_parquet(tmp_path)) == table(2, {"a": "int64", "b": "string"})
    assert repr(ray.data.read_parquet(tmp_path, columns=["b"])) == table(2, {"b": "string"})
    assert repr(ray.data.read_csv(tmp_path / "file.csv")) == "Dataset(num_rows=?, schema=Unknown schema)"


def test_a_dataset_has_no_length_and_is_true() -> None:
    data = ray.data.range(3)
    assert bool(data)
    with pytest.raises(AttributeError, match=r"ds\.count\(\)"):
        len(data)
    with pytest.raises(TypeError, match="iter_rows"):
        iter(data)
