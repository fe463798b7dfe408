"""Sources and targets that a program defines."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pandas as pd
import pyarrow as pa
import pytest

import dualray as ray
from dualray.data import BlockMetadata, Datasink, Datasource, ReadTask


class Squares(Datasource):
    def __init__(self, rows: int, limit: int | None = None, is_known: bool = True):
        self.rows, self.limit, self.is_known = rows, limit, is_known

    def get_read_tasks(self, parallelism: int) -> list[ReadTask]:
        self.asked = parallelism
        cuts = [number * self.rows // parallelism for number in range(parallelism + 1)]
        tasks = []
        for low, high in pairwise(cuts):
            known = BlockMetadata(high - low if self.is_known else None, 8 * (high - low), input_files=[f"f{low}"])
            tasks.append(ReadTask(partial(self.read, low, high), known, None, self.limit))
        return tasks

    def read(self, low: int, high: int):
        middle = (low + high) // 2
        yield pa.table({"x": [number**2 for number in range(low, middle)]})
        yield pd.DataFrame({"x": [number**2 for number in range(middle, high)]})


class InFiles(Datasink):
    """Writes a file for each task, and a list of the files at the end."""

    def __init__(self, folder: Path, fails: bool = False, rows: int | None = None):
        self.folder, self.fails, self.rows = folder, fails, rows
        self.errors: list[Exception] = []

    @property
    def min_rows_per_write(self) -> int | None:
        return self.rows

    def on_write_start(self, schema: pa.Schema | None = None) -> None:
        self.schema = schema
        self.folder.mkdir()

    def write(self, blocks, ctx):
        if self.fails and ctx.task_idx == 1:
            raise RuntimeError("the disk is gone")
        numbers = [number for block in blocks for number in block["id"].to_pylist()]
        (self.folder / str(ctx.task_idx)).write_text(" ".join(map(str, numbers)))
        return ctx.task_idx, ctx.op_name

    def on_write_complete(self, write_result) -> None:
        self.result = write_result

    def on_write_failed(self, error: Exception) -> None:
        self.errors.append(error)


@pytest.mark.parametrize("is_known", [True, False])
def test_a_source_is_read_by_tasks(is_known):
    source = Squares(100, is_known=is_known)
    data = ray.data.read_datasource(source, override_num_blocks=5, concurrency=1, ray_remote_args={"num_cpus": 1})
    assert source.asked == 5 and data.num_blocks() == 5
    assert data.input_files() == ["f0", "f20", "f40", "f60", "f80"]
    assert [row["x"] for row in data.take_all()] == [number**2 for number in range(100)]
    assert repr(data) == f"Dataset(num_rows={100 if is_known else '?'}, schema=Unknown schema)"
    assert data.filter(lambda row: row["x"] < 10).count() == 4


def test_rows_of_a_read_task_have_a_limit():
    data = ray.data.read_datasource(Squares(100, limit=15), override_num_blocks=2)
    assert data.count() == 30
    assert [row["x"] for row in data.take(15)] == [number**2 for number in range(15)]


def test_a_source_without_parts_has_no_rows():
    class Empty(Datasource):
        def get_read_tasks(self, parallelism):
            return []

    assert ray.data.read_datasource(Empty()).take_all() == []


def test_a_source_that_only_the_drivers_node_reads():
    class Local(Squares):
        supports_distributed_reads = False

    assert ray.data.read_datasource(Local(10)).sum("x") == 285


def test_a_target_gets_every_row_once(numbers, tmp_path: Path):
    target = InFiles(tmp_path / "d")
    numbers.write_datasink(target, concurrency=2)
    assert target.schema is not None and target.schema.names == ["id"] and not target.errors
    assert target.result.num_rows == 100 and target.result.size_bytes == 800
    assert target.result.write_returns == [(number, "InFiles") for number in range(7)]
    written = [number for file in sorted(target.folder.iterdir()) for number in file.read_text().split()]
    assert written == [str(number) for number in range(100)]


def test_a_target_says_how_many_rows_a_task_writes(numbers, tmp_path: Path):
    target = InFiles(tmp_path / "d", rows=50)
    numbers.write_datasink(target)
    assert len(target.result.write_returns) == 2


def test_a_target_hears_of_failures(numbers, tmp_path: Path):
    target = InFiles(tmp_path / "d", fails=True)
    with pytest.raises(RuntimeError, match="the disk is gone"):
        numbers.write_datasink(target)
    assert len(target.errors) == 1 and not hasattr(target, "result")


def test_other_values_are_refused(numbers):
    with pytest.raises(TypeError, match="derived from Datasource"):
        ray.data.read_datasource(cast(Any, "x"))
    with pytest.raises(TypeError, match="read_datasource has no argument 'rows'"):
        ray.data.read_datasource(Squares(1), rows=1)
    with pytest.raises(TypeError, match="derived from Datasink"):
        numbers.write_datasink(cast(Any, "x"))


def test_what_is_known_without_running_anything(numbers, capsys):
    mapped = numbers.map(lambda row: row)
    assert mapped.schema(fetch_if_missing=False) is None
    assert mapped.columns(fetch_if_missing=False) is None
    assert mapped.columns() == ["id"]
    assert numbers.columns(fetch_if_missing=False) == ["id"]
    mapped.explain()
    assert capsys.readouterr().out == "-------- Plan --------\nrange\n+- Map(<lambda>)\n"


def test_a_range_has_no_empty_blocks():
    assert ray.data.range(3, override_num_blocks=9).materialize().num_blocks() == 3


def test_rows_of_json_that_are_lists(tmp_path):
    (tmp_path / "lists.jsonl").write_text('["a", "b"]\n["c"]\n')
    rows = ray.data.read_json(str(tmp_path / "lists.jsonl"), lines=True).take_all()
    assert rows == [{"0": "a", "1": "b"}, {"0": "c", "1": None}]


def test_groups_take_the_options_of_ray(numbers):
    counted = numbers.groupby("id").map_groups(lambda group: {"x": [1]}, ray_remote_args_fn=lambda: {"num_cpus": 1})
    assert counted.count() == 100


@pytest.mark.parametrize("names", [{}, [], {"id": 1}, ["a", 1], {"id": "a", "b": "a"}, ["a", "a"]])
def test_names_that_no_columns_can_have(numbers, names):
    with pytest.raises(ValueError, match="rename_columns: "):
        numbers.rename_columns(names)
    with pytest.raises(TypeError, match="takes a dict of names or a list of names, not int"):
        numbers.rename_columns(42)
