"""The table of causes adds up to the makespan, and each cause is where it was made to be."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dualray as ray
from dualray import whatif
from dualray.testing.workloads import workload
from dualray.whatif.causes import CAUSES
from dualray.whatif.predicted import Trace


def recorded(path: Path, program: Any, **settings: Any) -> Trace:
    ray.init(**{"mode": "sim", "num_cpus": 4, "record": path, **settings})
    try:
        program()
    finally:
        ray.shutdown()
    return whatif.load(path)


def table(trace: Trace, **asked: Any) -> tuple[dict[str, float], float]:
    found = whatif.predict(trace, seeds=1, jobs=1, **asked)
    [row] = found.rows
    assert not row.lacks
    causes = found.causes(row)
    assert [cause.name for cause in causes] == list(CAUSES)
    assert sum(cause.share for cause in causes) == pytest.approx(1.0)
    return {cause.name: cause.seconds for cause in causes}, row.makespan_s


@pytest.mark.parametrize(
    "name",
    [
        "bag_of_tasks",
        "chain",
        "shuffle",
        "mixed",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("tree_reduce", "parameter_server", "nested")),
    ],
)
def test_the_table_adds_up_to_the_makespan(tmp_path, name):
    trace = recorded(tmp_path / "run.parquet", workload(name, {}), num_cpus=2)
    causes, makespan_s = table(trace, nodes=[2], cpus=[2])
    assert sum(causes.values()) == pytest.approx(makespan_s, rel=1e-6)
    assert causes["retry"] == causes["nodes starting"] == 0
    assert causes["compute"] > 0


def sleepers() -> None:
    sleep = ray.remote(lambda: time.sleep(1))
    ray.get([sleep.remote() for _ in range(4)])


def test_tasks_that_lack_a_cpu_queue(tmp_path):
    trace = recorded(tmp_path / "run.parquet", sleepers)
    causes, _ = table(trace, nodes=[1], cpus=[1])
    assert causes["queue"] == pytest.approx(3, abs=0.1)
    assert causes["compute"] == pytest.approx(1, abs=0.1)
    causes, _ = table(trace, nodes=[1], cpus=[4])
    assert causes["queue"] == pytest.approx(0, abs=0.01)


def test_tasks_that_lack_a_core_queue(tmp_path):
    @ray.remote(duration=1.0)
    def work() -> None:
        pass

    trace = recorded(tmp_path / "run.parquet", lambda: ray.get([work.remote() for _ in range(4)]))
    causes, _ = table(trace, nodes=[1], cpus=[4], cores=1)
    assert causes["queue"] == pytest.approx(3, abs=0.1)


def test_the_calls_of_a_busy_actor_queue(tmp_path):
    @ray.remote
    class Slow:
        def work(self) -> None:
            time.sleep(1)

    def program() -> None:
        slow: Any = Slow.remote()  # type: ignore[attr-defined]
        ray.get([slow.work.remote() for _ in range(3)])

    causes, _ = table(recorded(tmp_path / "run.parquet", program), nodes=[1], cpus=[4])
    assert causes["queue"] == pytest.approx(2, abs=0.1)


def test_a_large_argument_on_another_node_is_a_transfer(tmp_path):
    @ray.remote(num_cpus=4)
    def make() -> Any:
        return np.ones(25_000_000, dtype=np.uint8)

    @ray.remote(num_cpus=4)
    def use(*arrays: Any) -> None:
        time.sleep(0.1)

    def program() -> None:
        ray.get(use.remote(*[make.remote() for _ in range(2)]))

    trace = recorded(tmp_path / "run.parquet", program)
    causes, _ = table(trace, nodes=[2], cpus=[4], network=["100Mbps"])
    assert causes["transfer"] == pytest.approx(2.1, abs=0.3)
    causes, _ = table(trace, nodes=[1], cpus=[4])
    assert causes["transfer"] == 0


def test_a_lost_attempt_is_a_retry(tmp_path):
    trace = recorded(tmp_path / "run.parquet", sleepers)
    scenario = tmp_path / "faults.yaml"
    scenario.write_text(
        "name: faults\ncluster: {nodes: 2}\nworkload: {generate: bag_of_tasks}\nfaults: [{at: 700ms, kill: node-1}]\n"
    )
    causes, makespan_s = table(trace, nodes=[2], cpus=[2], faults=[scenario])
    # From the begin of the attempt that is lost to that of the next: until then the node's death has to be noticed.
    assert causes["retry"] == pytest.approx(makespan_s - 1, abs=0.1)
    assert causes["compute"] == pytest.approx(1, abs=0.01)


def test_first_workers_that_start_are_told_apart(tmp_path):
    trace = recorded(tmp_path / "run.parquet", sleepers)
    causes, _ = table(trace, nodes=[1], cpus=[4], cold_start=0.5)
    assert causes["nodes starting"] == pytest.approx(0.5, abs=0.05)


def test_a_store_that_is_too_small_spills(tmp_path):
    def program() -> None:
        make = ray.remote(lambda: np.ones(20_000_000, dtype=np.uint8))
        arrays = [make.remote() for _ in range(6)]
        for array in arrays:
            ray.get(array)

    trace = recorded(tmp_path / "run.parquet", program, num_cpus=1)
    causes, _ = table(trace, nodes=[1], cpus=[1], store=["48MiB"], eviction=["spill"])
    assert causes["spill"] > 0.04
    causes, _ = table(trace, nodes=[1], cpus=[1], store=["1GiB"])
    assert causes["spill"] == 0
