"""What the machines of a scenario are made of, group by group."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import dualray
from dualray.shared.scenario_file import ScenarioError, dump_scenario, parse_scenario
from dualray.sim.modelled_programs import run_workload
from dualray.sim.runtime import hardware_of_scenario
from dualray.testing.run import load_scenario
from dualray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

MB = 1_000_000


def text_of(groups: str, rest: str = "") -> str:
    return f"name: x\ncluster:\n  nodes: {groups}\nworkload: {{generate: chain}}\n{rest}"


@pytest.fixture
def start() -> Iterator[Callable[..., None]]:
    def start_cluster(groups: str, rest: str = "") -> None:
        dualray.init(mode="sim", scenario=parse_scenario(text_of(groups, rest), "x.yaml"))

    yield start_cluster
    dualray.shutdown()


def on(node: str) -> NodeAffinitySchedulingStrategy:
    return NodeAffinitySchedulingStrategy(node, soft=False)


@dualray.remote(duration=0)
def began() -> float:
    return time.time()


def test_workers_of_one_group_start_slowly(start):
    start("[{count: 2}, {worker_start: 3s}]")
    before = time.time()
    took = [dualray.get(began.options(scheduling_strategy=on(f"node-{it}")).remote()) - before for it in (1, 2)]
    assert took[0] < 0.1
    assert 2.9 < took[1] < 3.1


@dualray.remote(duration=0)
def fill_store() -> float:
    """How long it takes to put twice as much as the store holds, and to read the first half again."""
    before = time.time()
    refs = [dualray.put(np.zeros(3 * MB, dtype=np.uint8)) for _ in range(2)]
    assert dualray.get(refs[0]).nbytes == 3 * MB
    return time.time() - before


def test_the_disks_of_one_group_are_slow(start):
    start(
        "[{count: 2, object_store: 4MiB}, {object_store: 4MiB, disk: 3MB/s}]",
        "policies: {eviction: spill}\ncosts: {disk_bytes_per_s: 30MB/s}\n",
    )
    quick, slow = [dualray.get(fill_store.options(scheduling_strategy=on(f"node-{it}")).remote()) for it in (1, 2)]
    # One is written before the other has room; that one is written, and the first one read, before it is read.
    assert quick == pytest.approx(0.3, rel=0.05)
    assert slow == pytest.approx(3.0, rel=0.05)


def test_a_modelled_program_has_the_disks_and_workers_of_its_scenario(tmp_path: Path) -> None:
    def makespan_ns(groups: str) -> int:
        file = tmp_path / "x.yaml"
        file.write_text(text_of(groups))
        hardware = hardware_of_scenario(load_scenario(file))
        return run_workload("bag", {"tasks": 8, "seconds": 0.1}, hardware=hardware).makespan_ns

    assert makespan_ns("[{count: 2, worker_start: 2s}]") > makespan_ns("[{count: 2}]") + 1_000_000_000


def test_what_a_group_leaves_out_is_as_given_for_the_cluster() -> None:
    text = text_of("[{count: 1}, {worker_start: 3s, disk: 1GB/s}]").replace(
        "cluster:\n", "cluster:\n  worker_start: 20ms\n  disk: 250MB/s\n"
    )
    said = parse_scenario(text, "x.yaml")
    assert parse_scenario(dump_scenario(said), "again") == said
    hardware = hardware_of_scenario(said)
    assert [each.worker_start_ns for each in hardware] == [20_000_000, 3_000_000_000]
    assert [each.disk_bytes_per_s for each in hardware] == [250 * MB, 1000 * MB]
    for groups, message in (
        ("[{disk: 0B/s}]", "x.yaml:3: cluster.nodes[0].disk: '0B/s' is too little: at least 1"),
        ("[{disk: 3}]", "x.yaml:3: cluster.nodes[0].disk: 3 has no unit; write for example 10Gbps"),
        (
            "[{worker_start: 1GB}]",
            "x.yaml:3: cluster.nodes[0].worker_start: a time: '1GB' is a size;",
        ),
    ):
        with pytest.raises(ScenarioError) as refused:
            parse_scenario(text_of(groups), "x.yaml")
        assert str(refused.value).startswith(message)
