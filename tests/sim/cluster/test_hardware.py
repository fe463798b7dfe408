"""What the machines of a scenario are made of, group by group."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

import dualray
import dualray.runtime
from dualray.shared.scenario.file import ScenarioError, dump_scenario, parse_scenario
from dualray.sim.modelled.programs import run_workload
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


# -- GPUs --------------------------------------------------------------------------------------------------------

GPUS = "[{count: 1}, {gpus: 2, gpu_memory: 16GiB}]"
TAKES = 'gpu_memory: {"train*": 10GiB, Model: 12GiB, small: 6GiB, "Model.*": 3GiB}\n'


@dualray.remote(num_gpus=0.5, num_cpus=0, duration=2.0, max_retries=0)
def train() -> float:
    return time.time()


@dualray.remote(num_gpus=0.5, num_cpus=0, duration=1.0, max_retries=0)
def small() -> float:
    return time.time()


@dualray.remote(num_gpus=0.5, num_cpus=0, max_restarts=-1)
class Model:
    def step(self) -> str:
        time.sleep(1)
        return dualray.get_runtime_context().get_node_id()

    def wait(self) -> int:
        return 1

    def items(self) -> Iterator[int]:
        yield 1

    def die(self) -> None:
        os._exit(1)


def why_not(ref) -> str:
    with pytest.raises(MemoryError) as refused:
        dualray.get(ref)
    assert isinstance(refused.value, dualray.exceptions.TaskError)
    return str(refused.value.cause)


def held(node: str = "node-1") -> list[int]:
    memory = cast(Any, dualray.runtime.current_or_none()).cluster.nodes[node].gpu_memory
    return [memory.used_bytes(gpu) // 2**30 for gpu in (0, 1)]


def test_what_does_not_fit_on_a_gpu_fails_before_it_runs(start):
    start(GPUS.replace("gpus: 2", "gpus: 1"), TAKES)
    before = time.time()
    first, second = train.remote(), train.remote()
    assert why_not(second) == "train: GPU 0 of node-1 has 16.0 GiB; 10.0 GiB are taken, and 10.0 GiB more do not fit"
    assert time.time() - before < 0.5
    assert held() == [10, 0]
    assert dualray.get(first) - before < 0.5
    assert held() == [0, 0]
    assert dualray.get(train.remote()) > before + 2  # what the first one had is there again


def test_what_fits_on_a_gpu_shares_it(start):
    start(GPUS.replace("gpus: 2", "gpus: 1"), TAKES)
    before = time.time()
    assert max(dualray.get([train.remote(), small.remote()])) - before < 0.5
    assert held() == [0, 0]


def test_whole_gpus_are_taken_one_by_one(start):
    start(GPUS, TAKES)
    both = train.options(num_gpus=2).remote()
    time.sleep(1)
    assert held() == [10, 10]
    dualray.get(both)
    assert held() == [0, 0]
    assert dualray.get([train.options(num_gpus=1).remote() for _ in range(2)])


def test_who_asks_for_more_than_a_gpu_has_never_runs_and_is_tried_again_where_it_says_so(start):
    start(GPUS, TAKES.replace("6GiB", "20GiB"))
    assert "0 bytes are taken, and 20.0 GiB more do not fit" in why_not(small.options(max_retries=3).remote())
    assert "GPU" in why_not(small.options(max_retries=3, retry_exceptions=True).remote())
    first = train.remote()
    again = train.options(max_retries=9, retry_exceptions=[MemoryError], num_gpus=0.5).remote()
    assert len(dualray.get([first, again])) == 2


def test_who_has_no_gpu_takes_nothing_of_it(start):
    start(GPUS, TAKES)
    assert len(dualray.get([train.options(num_gpus=0).remote() for _ in range(4)])) == 4
    assert dualray.get(began.remote())


def test_an_actor_keeps_its_part_of_a_gpu_for_life_and_its_methods_take_theirs(start):
    start(GPUS.replace("gpus: 2", "gpus: 1"), TAKES)
    model = cast(Any, Model).remote()
    step = model.step.remote()
    time.sleep(0.5)
    assert held() == [15, 0]
    assert dualray.get(step) == "node-1"
    assert held() == [12, 0]
    assert [dualray.get(ref) for ref in model.items.options(num_returns="streaming").remote()] == [1]
    assert "10.0 GiB more do not fit" in why_not(train.remote())
    assert held() == [12, 0]
    dualray.kill(model)
    time.sleep(1)
    assert held() == [0, 0]
    assert dualray.get(train.remote())


def test_an_actor_that_does_not_fit_is_not_made(start):
    start(GPUS.replace("gpus: 2", "gpus: 1"), TAKES)
    first, second = cast(Any, Model).remote(), cast(Any, Model).remote()
    assert dualray.get(first.wait.remote()) == 1
    with pytest.raises(dualray.exceptions.ActorDiedError, match=r"12.0 GiB are taken, and 12.0 GiB more do not fit"):
        dualray.get(second.wait.remote())
    assert held() == [12, 0]


def test_what_a_dead_worker_had_on_a_gpu_is_free(start):
    start(GPUS.replace("gpus: 2", "gpus: 1"), TAKES)
    model = cast(Any, Model).remote()
    model.die.remote()
    time.sleep(1)
    assert held() == [12, 0]
    assert dualray.get(model.wait.remote()) == 1  # its next life has taken it again


def test_a_node_that_comes_back_has_empty_gpus(start):
    start(GPUS.replace("gpus: 2", "gpus: 1"), TAKES + "faults: [reboot node-1 at 1s for 1s]\n")
    lost = train.options(max_retries=2, duration=1.5).remote()
    time.sleep(0.5)
    assert held() == [10, 0]
    time.sleep(0.7)
    assert dualray.get(lost) > 2
    assert held() == [0, 0]


def test_a_table_of_gpu_memory_needs_gpus_with_memory() -> None:
    for groups in ("[{gpus: 2}]", "[{gpu_memory: 2GiB}]"):
        with pytest.raises(ScenarioError) as refused:
            parse_scenario(text_of(groups, TAKES), "x.yaml")
        assert str(refused.value) == (
            "x.yaml:5: gpu_memory: the cluster needs the memory of its GPUs, as in cluster: {gpus: 1, "
            "gpu_memory: 16GiB}"
        )
    said = parse_scenario(text_of(GPUS, TAKES), "x.yaml")
    assert parse_scenario(dump_scenario(said), "again") == said
