"""`init(record=...)` and `dualray record`: one file of one schema, of either mode."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import dualray as ray
from dualray.recording.file import METADATA_KEY, SCHEMA_VERSION, read_record_file, write_record
from dualray.recording.graph import graph_of
from tests.whatif.programs import everything

COMMAND = [sys.executable, "-m", "dualray"]


def recorded(path: Path, mode: str) -> None:
    ray.init(mode=mode, num_cpus=2, record=path)
    try:
        assert everything(mode) == 50_000 + 3 + 5
    finally:
        ray.shutdown()


@pytest.fixture(scope="module", params=["sim", "real"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("record") / f"{request.param}.parquet"
    recorded(path, request.param)
    return path


def test_the_record_tells_what_the_program_did(run):
    record = read_record_file(run)
    counts = Counter(row["kind"] for row in record.rows)
    assert counts["task"] == 1 + 5 + 5 + 1 + 1 + 3
    # The counter's worker is killed as soon as nobody holds it: in real mode with what it has noted last.
    assert counts["run"] in ((16,) if record.facts["mode"] == "sim" else (15, 16))
    assert counts["put"] == 1
    assert counts["wait"] == 4
    assert counts["get"] == 4
    assert counts["worker"] > 0
    for row in record.of_kind("run"):
        assert row["came_ns"] <= row["time_ns"] <= row["called_ns"] <= row["returned_ns"] <= row["end_ns"]
        assert row["node"] == "node-0"
    assert {row["bytes"] for row in record.of_kind("put")} == {400_192}
    made = [row for row in record.of_kind("run") if row["name"].endswith("make")]
    assert len(made) == 5
    assert all(row["sizes"] == [400_192] and row["end_ns"] - row["time_ns"] >= 20_000_000 for row in made)
    resources = record.facts["nodes"]["node-0"]["resources"]
    assert (sorted(resources), resources["CPU"]) == (["CPU", "memory"], 2.0)


def test_both_modes_write_one_schema_and_the_same_graph(tmp_path):
    graphs = []
    for mode in ("sim", "real"):
        recorded(tmp_path / f"{mode}.parquet", mode)
        graph = graph_of(read_record_file(tmp_path / f"{mode}.parquet"))
        graphs.append({task: (node.deps, len(node.script.sizes)) for task, node in graph.tasks.items()})
    schemas = [pq.read_schema(tmp_path / f"{mode}.parquet").remove_metadata() for mode in ("sim", "real")]
    assert schemas[0].equals(schemas[1])
    assert graphs[0] == graphs[1]


def test_what_was_read_is_written_the_same(run, tmp_path):
    record = read_record_file(run)
    write_record(tmp_path / "again.parquet", record)
    again = read_record_file(tmp_path / "again.parquet")
    assert again == record


def test_a_run_that_is_not_recorded_has_the_plain_core():
    from dualray.recording.recorded import RecordedCoreWorker

    started: Any = ray.init(mode="sim")
    try:
        assert not isinstance(started.core, RecordedCoreWorker)
    finally:
        ray.shutdown()


def test_the_command_records_a_script(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import dualray as ray\nray.init(num_cpus=1)\n"
        "square = ray.remote(lambda x: x * x)\nprint(sum(ray.get([square.remote(i) for i in range(9)])))\n"
    )
    done = subprocess.run(
        [*COMMAND, "record", str(script), "-o", str(tmp_path / "run.parquet")],
        capture_output=True,
        text=True,
        timeout=150,
        cwd=tmp_path,
    )
    assert (done.returncode, done.stdout) == (0, "204\n"), done.stderr
    assert "9 tasks of 1 function" in done.stderr


def refusal(path: Path) -> str:
    with pytest.raises(ValueError) as refused:
        read_record_file(path)
    words = str(refused.value)
    assert "\n" not in words
    return words


def test_files_that_are_no_record_are_refused_in_one_line(run, tmp_path):
    data = run.read_bytes()
    cut = tmp_path / "cut.parquet"
    for keep in (0, 3, len(data) // 2, len(data) - 1):
        cut.write_bytes(data[:keep])
        assert "cut off" in refusal(cut)
    table = pq.read_table(run)
    other = tmp_path / "other.parquet"
    pq.write_table(table.replace_schema_metadata({METADATA_KEY: b'{"schema": 99}'}), other)
    assert f"version 99, but this dualray reads only versions 3 to {SCHEMA_VERSION}" in refusal(other)
    pq.write_table(table.replace_schema_metadata({}), other)
    assert "not a recorded run" in refusal(other)
    pq.write_table(table.replace_schema_metadata({METADATA_KEY: b"{"}), other)
    assert "cannot read the run's description" in refusal(other)
    pq.write_table(table.drop_columns(["cpu_ns"]), other)
    assert "no column 'cpu_ns'" in refusal(other)
    assert "there is no file" in refusal(tmp_path / "missing.parquet")
    assert "is a directory" in refusal(tmp_path)
    facts = json.loads(table.schema.metadata[METADATA_KEY])
    for name, value in (("began_ns", None), ("nodes", {}), ("driver", "xyz")):
        pq.write_table(table.replace_schema_metadata({METADATA_KEY: json.dumps(facts | {name: value}).encode()}), other)
        assert f"the value '{name}' is missing or wrong" in refusal(other)


def test_a_record_without_tasks_cannot_be_run_again(run):
    with pytest.raises(ValueError, match="no task"):
        graph_of(dataclasses.replace(read_record_file(run), rows=[]))


@pytest.mark.parametrize(("path", "words"), [("missing/run.parquet", "there is no directory"), (".", "is a directory")])
def test_a_file_that_cannot_be_written_is_refused_before_the_run(tmp_path, path, words):
    with pytest.raises(ValueError, match=words):
        ray.init(mode="sim", record=tmp_path / path)
    assert not ray.is_initialized()


@pytest.mark.parametrize("mode", ["sim", "real"])
def test_each_attempt_is_noted_once_however_it_is_reported(tmp_path, mode):
    path = tmp_path / "run.parquet"
    ray.init(mode=mode, num_cpus=2, record=path)
    try:
        one = ray.remote(lambda number: number)
        nothing = ray.remote(lambda: None)
        large = ray.remote(lambda: bytes(300_000))
        ref = one.remote(1)
        refs = [ref, one.remote(ref), nothing.remote(), large.remote(), *[one.remote(number) for number in range(40)]]
        ray.get(refs)
    finally:
        ray.shutdown()
    record = read_record_file(path)
    runs = list(record.of_kind("run"))
    assert len(runs) == len({row["task"] for row in runs}) == len(refs)
    sizes = [row["sizes"][0] for row in runs]
    assert max(sizes) > 300_000
    assert all(0 < size < 200 for size in sorted(sizes)[:-1])
    assert all(row["called_ns"] <= row["returned_ns"] <= row["end_ns"] for row in runs)
