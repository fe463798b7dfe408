"""What a program holds of memory, told before the run."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

import dualray as ray
from dualray import whatif
from dualray.recording.file import read_record_file
from dualray.whatif.answers import memory_lines
from dualray.whatif.predicted import Trace

MIB = 1 << 20


@pytest.fixture(scope="module")
def eaters(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real run, one task after the other, of which each holds so many MiB."""
    path = tmp_path_factory.mktemp("eaters") / "run.parquet"

    @ray.remote
    def eat(mib: int) -> float:
        data = np.ones(mib * MIB, dtype=np.uint8)
        time.sleep(0.5)
        return float(data[-1])

    ray.init(mode="real", num_cpus=1, record=path, log_to_driver=False)
    try:
        ray.get([eat.remote(mib) for mib in (1, 100, 1, 200)])
    finally:
        ray.shutdown()
    return path


@pytest.fixture(scope="module")
def trace(eaters: Path) -> Trace:
    return whatif.load(eaters)


def test_the_record_has_the_peak_of_each_task(eaters):
    runs = list(read_record_file(eaters).of_kind("run"))
    peaks = [run["peak_bytes"] / MIB for run in runs]
    least = min(peaks)
    assert [round(peak - least, -1) for peak in peaks] == [0, 100, 0, 200]


def test_peaks_add_up_where_tasks_run_side_by_side(trace):
    least = trace.graph.worker_bytes
    alone, beside = whatif.predict(trace, nodes=[1], cpus=[1, 4], seeds=1, jobs=1).rows
    assert alone.heap_peak_bytes == pytest.approx(least + 199 * MIB, abs=8 * MIB)
    assert beside.heap_peak_bytes == pytest.approx(4 * least + 298 * MIB, abs=16 * MIB)


def test_the_smallest_memory_ends_nobody_and_a_smaller_one_ends_the_newest(trace):
    found = whatif.predict(trace, nodes=[1], cpus=[4], seeds=1, jobs=1)
    needs = found.memory(found.rows[0])
    assert needs.heap_bytes == found.rows[0].heap_peak_bytes
    enough, little = whatif.predict(
        trace, nodes=[1], cpus=[4], memory=[needs.memory_bytes, needs.memory_bytes * 8 // 10], seeds=1, jobs=1
    ).rows
    assert enough.killed == ()
    assert len(little.killed) >= 1
    at_ns, node, name = little.killed[0]
    assert node == "node-0"
    assert "eat" in name
    assert 0 < at_ns < little.makespan_s * 1e9


@pytest.mark.slow
def test_the_answer_names_who_is_ended(trace):
    needs = whatif.predict(trace, nodes=[1], cpus=[4], seeds=1, jobs=1)
    little = needs.memory(needs.rows[0]).memory_bytes * 8 // 10
    found = whatif.predict(trace, nodes=[1], cpus=[4], memory=[little], seeds=1, jobs=1)
    lines = memory_lines(found, found.rows[0])
    assert any(line.startswith("The smallest memory with which no worker is killed: ") for line in lines)
    assert any(line.startswith("The memory monitor of node-0 kills ") for line in lines)


def test_the_smallest_store_does_not_spill_and_a_smaller_one_does(tmp_path):
    def program() -> None:
        make = ray.remote(lambda: np.ones(4 * MIB, dtype=np.uint8))
        arrays = [make.remote() for _ in range(6)]
        ray.wait(arrays, num_returns=6)
        ray.get(ray.remote(lambda *them: sum(len(each) for each in them)).remote(*arrays))

    ray.init(mode="sim", num_cpus=2, record=tmp_path / "run.parquet")
    program()
    ray.shutdown()
    found = whatif.predict(tmp_path / "run.parquet", nodes=[1], store=["1GiB"], eviction=["spill"], seeds=1, jobs=1)
    needs = found.memory(found.rows[0])
    assert needs.store_bytes == pytest.approx(24 * MIB, rel=0.01)
    assert (needs.heap_bytes, needs.memory_bytes) == (0, 0)
    assert any("does not have the memory use of tasks" in line for line in memory_lines(found, found.rows[0]))
    stores = [needs.store_bytes, needs.store_bytes - MIB]
    exact, small = whatif.predict(
        tmp_path / "run.parquet", nodes=[1], store=stores, eviction=["spill"], seeds=1, jobs=1
    ).rows
    assert exact.spilled_bytes == 0
    assert exact.store_peak_bytes == needs.store_bytes
    assert small.spilled_bytes > 0 or small.lacks


def test_a_wait_that_leaves_objects_where_they_are_holds_none_of_them_in_a_replay(tmp_path):
    path = tmp_path / "run.parquet"

    @ray.remote(max_retries=0)
    def make() -> np.ndarray:
        return np.ones(8 * MIB, dtype=np.uint8)

    ray.init(mode="sim", num_cpus=1, record=path)
    try:
        kept = [make.remote() for _ in range(8)]
        ray.wait(kept, num_returns=8, fetch_local=False)
        assert sum(int(ray.get(each)[0]) for each in kept) == 8
    finally:
        ray.shutdown()
    row = whatif.predict(path, nodes=[1], cpus=[3], store=[24 * MIB], seeds=1, jobs=1).rows[0]
    assert row.lacks == ""
    assert row.spilled_bytes >= 5 * 8 * MIB
    waits = list(read_record_file(path).of_kind("wait"))
    assert [row["other"] for row in waits] == ["left there"]


@pytest.mark.slow
def test_a_worker_that_waits_for_its_first_task_holds_memory_too(trace):
    alone, spare = whatif.predict(trace, nodes=[1, 2], cpus=[1], seeds=1, jobs=1).rows
    assert alone.heap_peak_bytes == spare.heap_peak_bytes  # of the node where it is most
    more = whatif.predict(trace, nodes=[1], cpus=[8], seeds=1, jobs=1).rows[0]
    least = trace.graph.worker_bytes
    assert more.heap_peak_bytes == pytest.approx(8 * least + 298 * MIB, abs=16 * MIB)
