"""A program that ends without `shutdown` writes its record, too. Damaged records are refused in one line."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest

import dualray as ray
from dualray.real.processes.run_recorder import may_write
from dualray.recording.file import RunRecord, read_record_file
from dualray.recording.graph import graph_of
from tests.conformance.support import MODES

pytest.importorskip("pandas")  # pyarrow imports it late, which is what failed

PROGRAM = """
import dualray as ray

ray.init(num_cpus=1)


@ray.remote
def f(i):
    return i


print(ray.get([f.remote(i) for i in range(3)]))
"""


def record_of(tmp_path, mode, program=PROGRAM):
    """Run a program in a process of its own."""
    script, path = tmp_path / "program.py", tmp_path / "run.parquet"
    script.write_text(program)
    environment = {**os.environ, "DUALRAY_MODE": mode, "DUALRAY_RECORD": str(path)}
    found = subprocess.run(
        [sys.executable, str(script)], env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert (found.returncode, found.stdout, found.stderr) == (0, "[0, 1, 2]\n", "")
    return path


@pytest.mark.parametrize("mode", MODES)
def test_a_program_that_ends_without_shutdown_has_a_record(tmp_path, mode):
    record = read_record_file(record_of(tmp_path, mode))
    assert len(list(record.of_kind("run"))) == 3


def test_a_simulation_that_was_shut_down_writes_its_record_once(tmp_path):
    path = record_of(tmp_path, "sim", PROGRAM + "ray.shutdown()\n")
    assert len(graph_of(read_record_file(path)).tasks) == 3


@pytest.fixture(scope="module")
def simulated(tmp_path_factory):
    return read_record_file(record_of(tmp_path_factory.mktemp("simulated"), "sim"))


@pytest.mark.parametrize("name", ["task", "kind", "sizes", "returned_ns", "template"])
def test_a_record_whose_rows_lack_a_value_is_refused_in_one_line(simulated, name):
    record = simulated
    rows = [{key: value for key, value in row.items() if key != name} for row in record.rows]
    with pytest.raises(ValueError, match=f"^the file of the recorded run is damaged: a row has no field '{name}'$"):
        graph_of(RunRecord(rows=rows, facts=record.facts))


def test_the_last_notes_of_a_worker_that_stands_still_are_in_the_record(tmp_path):
    path = tmp_path / "run.parquet"
    pid_of_worker = ray.remote(os.getpid)
    ray.init(mode="real", num_cpus=1, record=path)
    try:
        pids = [ray.get(pid_of_worker.remote()) for _ in range(3)]
        os.kill(pids[-1], signal.SIGSTOP)
        threading.Timer(1.0, os.kill, (pids[-1], signal.SIGCONT)).start()
    finally:
        ray.shutdown()
    assert len(list(read_record_file(path).of_kind("run"))) == 3


def test_only_a_living_worker_may_still_write_its_notes(tmp_path):
    """A driver waits at the end for these workers alone, and not for one that was killed."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    mark = tmp_path / "node-0.w1.due"
    assert not may_write(mark)
    for text, may in ((str(ended.pid), False), (str(os.getpid()), True), ("", True)):
        mark.write_text(text)
        assert may_write(mark) is may
