"""What Ray's own events tell of a program that does not use dualray: edges, waits, sizes, and what is lost."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from dualray import whatif
from dualray.cli.app import app
from dualray.recording.file import read_record_file, write_record
from dualray.recording.inferred import infer
from dualray.recording.ray_events import read_events
from dualray.recording.ray_import import import_ray
from tests.whatif.ray_logs import JOB, Made, edges_of, rows_of, task_id, timeline_of, write

pytest.importorskip("pyarrow")


def chain(length: int) -> list[Made]:
    return [Made("step", (index - 1,) if index else ()) for index in range(length)]


def tree(leaves: int) -> list[Made]:
    made = [Made("leaf", takes_ms=10 + 3 * (index % 4)) for index in range(leaves)]
    level = list(range(leaves))
    while len(level) > 1:
        made += [Made("add", (one, other), 5) for one, other in zip(level[::2], level[1::2], strict=True)]
        level = list(range(len(made) - len(level) // 2, len(made)))
    return made


def map_reduce(maps: int, reducers: int) -> list[Made]:
    mapped = [Made("mapper", takes_ms=10 + index) for index in range(maps)]
    return [*mapped, *[Made("reducer", tuple(range(maps)), 15) for _ in range(reducers)]]


PROGRAMS = {
    "bag": [Made("work", takes_ms=5 + index % 7) for index in range(40)],
    "chain": chain(20),
    "tree": tree(16),
    "map-reduce": map_reduce(8, 4),
    "one reducer": map_reduce(20, 1),
}


@pytest.mark.parametrize("workers", [1, 2, 4])
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_edges_of_common_shapes_are_inferred(name: str, workers: int, tmp_path: Path):
    program = PROGRAMS[name]
    read = read_events(write(tmp_path, rows_of(program, workers)))
    found = infer(read.calls, {})
    inferred = {(maker, taker) for taker, makers in found.arguments.items() for maker in makers}
    real = {(maker, taker) for maker, taker in edges_of(program)}
    right = len(inferred & real)
    assert len(inferred | real) - right <= 0.05 * len(real), found.words
    assert found.seen + found.guessed == len(inferred)


def test_of_many_that_wait_for_one_argument_the_last_go_on_later(tmp_path: Path):
    rows = rows_of(map_reduce(4, 12))
    late_ns = 0
    for row in rows:
        if row.get("task_info", {}).get("func_or_class_name") == "reducer":
            late_ns += 150_000
            states = row["state_updates"]["state_ts_ns"]
            states["2"] = str(int(states["2"]) + late_ns)
    found = infer(read_events(write(tmp_path, rows)).calls, {})
    assert {len(makers) for makers in found.arguments.values()} == {4}
    assert len(found.arguments) == 12


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_that_ended_before_they_wrote_their_last_events(workers: int, tmp_path: Path):
    rows = rows_of(tree(16), workers)
    of_workers = [row for row in rows if "profile_events" in row]
    whole = import_ray(write(tmp_path / "whole", rows))
    left = import_ray(write(tmp_path / "left", [row for row in rows if row not in of_workers[-10:]]))
    assert "the start times of 10 attempts" in " ".join(left.facts["estimates"])
    assert "began" not in " ".join(whole.facts["estimates"])
    for of_whole, of_left in zip(whole.of_kind("run"), left.of_kind("run"), strict=True):
        assert of_left["task"] == of_whole["task"]
        assert abs(of_left["called_ns"] - of_whole["called_ns"]) < 1_000_000
        assert abs(of_left["returned_ns"] - of_whole["returned_ns"]) < 1_000_000


def test_an_attempt_of_which_nobody_tells_the_begin_is_lost(tmp_path: Path):
    rows = [row for row in rows_of(tree(16)) if "profile_events" not in row]
    for row in rows:
        del row["state_updates"]["state_ts_ns"]["5"]
    with pytest.raises(ValueError, match=r"31 begins.*a prediction allows at most"):
        import_ray(write(tmp_path, rows))


def test_calls_that_go_on_by_chance_when_another_ends_wait_for_nothing(tmp_path: Path):
    rows = rows_of([Made("work", takes_ms=5)] * 30)
    owners = [row["state_updates"]["state_ts_ns"] for row in rows if "task_info" in row]
    for late, early in ((10, 2), (11, 3), (20, 7)):
        owners[late]["2"] = str(int(owners[early]["11"]) + 100_000)
    assert infer(read_events(write(tmp_path, rows)).calls, {}).arguments == {}


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_is_imported_from_one_worker_predicts_several(name: str, tmp_path: Path):
    program = PROGRAMS[name]
    one, four = (import_ray(write(tmp_path / str(workers), rows_of(program, workers))) for workers in (1, 4))
    write_record(tmp_path / "run.parquet", one)
    found = whatif.predict(tmp_path / "run.parquet", nodes=[1], cpus=[4], seeds=1, jobs=1, costs={"worker_start_ns": 1})
    took_s = four.facts["ended_ns"] / 1e9
    [row] = found.rows
    assert not row.lacks
    assert abs(row.makespan_s / took_s - 1) < 0.15


@pytest.mark.parametrize("noted_late_us", [0, 300])
def test_a_driver_that_waits_and_goes_on_is_known_to_have_waited(noted_late_us: int, tmp_path: Path):
    first, then = rows_of([Made("first")] * 3), rows_of([Made("first")] * 3 + [Made("second")] * 2)[6:]
    later_ns = 200_000_000
    for row in then:
        for state, time_ns in row["state_updates"]["state_ts_ns"].items():
            row["state_updates"]["state_ts_ns"][state] = str(int(time_ns) + later_ns)
        for span in row.get("profile_events", {}).get("events", ()):
            span.update({key: str(int(span[key]) + later_ns) for key in ("start_time", "end_time")})
    if noted_late_us:
        goes_on_ns = int(then[0]["state_updates"]["state_ts_ns"]["1"])
        first[4]["state_updates"]["state_ts_ns"]["11"] = str(goes_on_ns + 1000 * noted_late_us)
    record = import_ray(write(tmp_path, first + then))
    waited = [set(row["objects"]) for row in record.of_kind("get")]
    firsts = {row["task"] + bytes(4) for row in record.of_kind("task") if row["name"] == "first"}
    assert waited[0] == firsts
    assert len(waited) == 2


def test_sizes_are_estimated_from_the_time_of_storing_or_given(tmp_path: Path):
    program = [Made("small"), Made("large", stores_ms=20.4)]
    logs = write(tmp_path, rows_of(program))
    sizes = {row["name"]: row["sizes"][0] for row in import_ray(logs).of_kind("run")}
    assert sizes["small"] < 2000
    assert 10_000_000 < sizes["large"] < 90_000_000
    (tmp_path / "sizes.json").write_text('{"large": 5000}')
    given = import_ray(logs, sizes=tmp_path / "sizes.json")
    assert {row["name"]: row["sizes"][0] for row in given.of_kind("run")}["large"] == 5000
    estimates = " ".join(given.facts["estimates"])
    assert "result sizes of small" in estimates
    assert "large" not in estimates


def test_edges_that_are_given_are_taken(tmp_path: Path):
    program = [Made("one"), Made("other"), Made("last", (0,))]
    (tmp_path / "edges.json").write_text(json.dumps([[task_id(1), task_id(2)]]))
    record = import_ray(write(tmp_path, rows_of(program)), edges=tmp_path / "edges.json")
    tasks = {row["name"]: row for row in record.of_kind("task")}
    assert list(tasks["last"]["objects"]) == [tasks["other"]["task"] + bytes(4)]


def test_the_timeline_has_what_the_export_lacks(tmp_path: Path):
    program = [Made("work", takes_ms=30)] * 3
    rows = rows_of(program)
    bare = [row for row in rows if "task_info" in row]
    (tmp_path / "trace.json").write_text(json.dumps(timeline_of(program, rows)))
    record = import_ray(write(tmp_path, bare), timeline=tmp_path / "trace.json")
    assert [row["returned_ns"] - row["called_ns"] for row in record.of_kind("run")] == pytest.approx(
        [30e6] * 3, abs=1e3
    )


def lose(rows: Sequence[dict[str, Any]], what: str, count: int) -> list[dict[str, Any]]:
    """Without some of the rows: of submissions, or of ends."""
    left = []
    for row in rows:
        is_owner = "task_info" in row
        if count and is_owner and what == "submissions":
            count -= 1
            continue
        if count and what == "ends":
            row = {**row, "state_updates": {"state_ts_ns": {"1": row["state_updates"]["state_ts_ns"].get("1", "1")}}}
            row.pop("profile_events", None)
            count -= not is_owner
        left.append(row)
    return left


@pytest.mark.parametrize("what", ["submissions", "ends"])
def test_what_is_lost_is_counted_and_too_much_is_refused(what: str, tmp_path: Path):
    rows = rows_of([Made("work")] * 100)
    little = import_ray(write(tmp_path / "little", lose(rows, what, 2)))
    assert f"Lost events: 2 {what} (1.0%)" in little.facts["estimates"][0]
    with pytest.raises(ValueError, match=rf"2\.5% of the events of job {JOB} are lost \(5 {what}\)"):
        read_events(write(tmp_path / "much", lose(rows, what, 5)))


def test_several_jobs_are_told_apart(tmp_path: Path):
    rows = rows_of([Made("work")] * 2) + rows_of([Made("other")] * 3, job="02000000")
    logs = write(tmp_path, rows)
    with pytest.raises(
        ValueError, match=r"several jobs; choose one with --job: 01000000 \(2 calls.*02000000 \(3 calls"
    ):
        read_events(logs)
    assert {call.name for call in read_events(logs, job="02000000").calls} == {"other"}
    with pytest.raises(ValueError, match="job='03000000' has no tasks; jobs with tasks: 01000000, 02000000"):
        read_events(logs, job="03000000")


def test_what_is_no_log_is_refused_in_one_sentence(tmp_path: Path):
    with pytest.raises(ValueError, match="there is no"):
        read_events(tmp_path / "absent")
    with pytest.raises(ValueError, match="RAY_enable_export_api_write=1"):
        read_events(tmp_path)
    logs = write(tmp_path, rows_of([Made("work")] * 2))
    with (logs / "event_EXPORT_TASK_17.log").open("a") as file:
        file.write('{"source_type": "EXPORT_TA')  # its process was ended
    assert len(read_events(logs).calls) == 2
    (logs / "event_EXPORT_TASK_17.log").write_text("nothing\nof the kind\n")
    with pytest.raises(ValueError, match="line 1: the line is not an event that Ray exported"):
        read_events(logs)


@pytest.mark.parametrize(
    ("option", "text", "says"),
    [
        ("sizes", '{"absent": 1}', "names the function 'absent', but the job calls only the functions work"),
        ("sizes", '{"work": "1 MiB"}', "must be a JSON object of function name to bytes, such as"),
        ("sizes", "{", "is not valid JSON"),
        ("edges", '[["00", "11"]]', "names the task '00'"),
        ("edges", "{}", "must be a JSON list such as"),
        ("timeline", "{}", "is not a timeline"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused(option: str, text: str, says: str, tmp_path: Path):
    logs = write(tmp_path, rows_of([Made("work")] * 2))
    (tmp_path / "given.json").write_text(text)
    given: dict[str, Any] = {option: tmp_path / "given.json"}
    with pytest.raises(ValueError, match=says):
        import_ray(logs, **given)


def test_the_command_writes_a_record_whose_prediction_lists_its_estimates(tmp_path: Path):
    logs = write(tmp_path, rows_of(tree(8)))
    output = tmp_path / "run.parquet"
    done = CliRunner().invoke(app, ["import-ray", str(logs), "-o", str(output)])
    assert done.exit_code == 0, done.output
    assert len(list(read_record_file(output).of_kind("task"))) == 15
    done = CliRunner().invoke(app, ["predict", str(output), "--nodes", "1,2", "--seeds", "1", "--jobs", "1"])
    assert done.exit_code == 0, done.output
    words = " ".join(done.output.split())
    assert "14 dependencies between calls: 7 from observed waits, and 7 from a pattern" in words
    assert "add takes the next 2 results, in their order: 100% of 7 calls agree" in words
    refused = CliRunner().invoke(app, ["import-ray", str(tmp_path / "absent"), "-o", str(output)])
    assert refused.exit_code == 2
