from __future__ import annotations

from pathlib import Path

import pytest

from dualray.report.traces import decision_logs, natural, read_traces
from dualray.shared.proof.trace import TraceEvent, TraceKind, to_bytes


def row(time_ns: int, process: str, subject: str = "") -> TraceEvent:
    return TraceEvent(time_ns, TraceKind.TASK_STARTED, process, subject)


def test_traces_of_several_processes_are_merged_by_time(tmp_path: Path):
    (tmp_path / "node-0.trace").write_bytes(to_bytes([row(2, "node-0"), row(5, "node-0")]))
    (tmp_path / "driver-1.trace").write_bytes(to_bytes([row(1, "driver-1"), row(4, "driver-1")]))
    assert [event.time_ns for event in read_traces(tmp_path)] == [1, 2, 4, 5]


def test_rows_of_one_moment_stay_in_their_order(tmp_path: Path):
    (tmp_path / "cluster.trace").write_bytes(to_bytes([row(1, "b", "first"), row(1, "a", "second")]))
    assert [event.subject for event in read_traces(tmp_path)] == ["first", "second"]


def test_trace_that_was_cut_off_ends_at_its_last_whole_row(tmp_path: Path):
    data = to_bytes([row(1, "node-0"), row(2, "node-0")])
    (tmp_path / "node-0.trace").write_bytes(data[:-3])
    assert [event.time_ns for event in read_traces(tmp_path)] == [1]


def test_logs_come_in_the_order_that_people_count_in(tmp_path: Path):
    for name in ("node-10", "node-2", "driver-1"):
        (tmp_path / f"{name}.decisions").write_bytes(b"a log")
    assert [path.stem for path in decision_logs(tmp_path)] == ["driver-1", "node-2", "node-10"]


def test_natural_order_of_workers():
    assert sorted(["node-1/w10", "node-1/w9", "node-10/w1"], key=natural) == ["node-1/w9", "node-1/w10", "node-10/w1"]


def test_directory_without_traces_says_how_they_are_made(tmp_path: Path):
    with pytest.raises(ValueError, match=r"has no traces .*decision_log="):
        read_traces(tmp_path)
    with pytest.raises(ValueError, match="has no decision logs"):
        decision_logs(tmp_path)


def test_path_that_is_no_directory(tmp_path: Path):
    with pytest.raises(ValueError, match="nowhere is not a directory"):
        read_traces(tmp_path / "nowhere")


@pytest.mark.parametrize("data", [b"\x93\x01\x02\x03", b"hello, this is text", b"\x98" + 8 * b"\xa1x"])
def test_file_that_is_no_trace_is_named(tmp_path: Path, data: bytes):
    (tmp_path / "strange.trace").write_bytes(data)
    with pytest.raises(ValueError, match=r"strange\.trace is not a trace that this dualray can read"):
        read_traces(tmp_path)


def test_a_process_killed_before_it_opened_its_log_has_none(tmp_path):
    (tmp_path / "driver-1.decisions").write_bytes(b"a log")
    (tmp_path / "node-0.w3.decisions").write_bytes(b"")
    assert [path.stem for path in decision_logs(tmp_path)] == ["driver-1"]
