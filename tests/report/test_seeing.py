"""Lives, use, the critical path and where the time went: of traces written by hand, and of whole runs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dualray as ray
from dualray.report.critical_path import Spent, Stretch, critical_path
from dualray.report.histories import Lives
from dualray.report.record import Record, read_record
from dualray.report.usage import Resource, Steps, resources
from dualray.report.where import where_time_went
from dualray.shared.model.resources import UNITS
from dualray.shared.proof.trace import TraceKind
from tests.report.support import MIB, Rows, result, simulate, task, two_steps

S = 10**9


# ---- Step functions ------------------------------------------------------------------------------------------------


def test_mean_of_steps_is_exact_between_any_edges():
    steps = Steps.of_stretches([(0, 10, 2.0), (5, 20, 1.0)])
    assert steps.means(np.array([0.0, 5.0, 10.0, 20.0, 40.0])).tolist() == [2.0, 3.0, 1.0, 0.0]
    assert steps.means(np.array([-10.0, 10.0])).tolist() == [pytest.approx(25 / 20)]
    assert (steps.at(-1), steps.at(5), steps.at(25)) == (0.0, 3.0, 0.0)


def test_the_last_of_several_levels_at_one_moment_counts():
    steps = Steps.of_levels([(0, 5.0), (0, 1.0), (10, 0.0)])
    assert steps.at(0) == 1.0


# ---- By hand -------------------------------------------------------------------------------------------------------


def lives_of(rows: Rows) -> Lives:
    return Lives(Record(events=rows.events))


def test_an_attempt_that_dies_with_its_node_ends_there_and_its_successor_is_done_again():
    rows = Rows()
    rows.add(TraceKind.NODE_STARTED, "node-1", "node-1", deps=("CPU 10000", "nic 1000"))
    rows.submitted(task(1))
    rows.add(TraceKind.TASK_STARTED, "node-1/w0", task(1), name="f")
    rows.killed("node-1")
    rows.retried(task(1), "retry")
    rows.ran("node-2/w0", task(1), attempt=1)
    lives = lives_of(rows)
    first, second = lives.tasks[task(1)].attempts.values()
    assert (first.outcome, first.ended_ns, first.is_done_again) == ("lost", 3000, False)
    assert (second.outcome, second.cause, second.is_done_again) == ("", "retry", True)
    assert [(life.started_ns, life.ended_ns) for life in lives.nodes["node-1"]] == [(0, 3000)]
    assert lives.capacity["node-1"] == {"CPU": UNITS, "nic": 1000}


def test_path_goes_through_the_argument_that_came_last():
    rows = Rows()
    rows.submitted(task(1))  # at 0
    rows.submitted(task(2))
    rows.submitted(task(3), result(1), result(2))
    rows.ran("node-1/w0", task(1))  # 3 to 4
    rows.ran("node-1/w1", task(2))  # 5 to 6
    rows.moved("node-1", "node-2", result(2))  # 7 to 8
    rows.ran("node-2/w0", task(3))  # 9 to 10
    path = critical_path(lives_of(rows))
    assert [(stretch.spent, stretch.task, stretch.lasted_ns) for stretch in path] == [
        (Spent.DRIVER, "", 1000),
        (Spent.QUEUE, task(2), 4000),
        (Spent.COMPUTE, task(2), 1000),
        (Spent.QUEUE, task(3), 1000),
        (Spent.TRANSFER, task(3), 1000),
        (Spent.QUEUE, task(3), 1000),
        (Spent.COMPUTE, task(3), 1000),
    ]


def test_what_was_lost_and_the_time_until_it_was_noticed_are_the_reconstructions():
    rows = Rows()
    rows.submitted(task(1))  # 0
    rows.add(TraceKind.TASK_STARTED, "node-1/w0", task(1), name="f")  # 1
    rows.killed("node-1")  # 2
    rows.retried(task(1), "retry")  # 3
    rows.ran("node-2/w0", task(1), attempt=1)  # 4 to 5
    path = critical_path(lives_of(rows))
    assert [(stretch.spent, stretch.lasted_ns) for stretch in path] == [
        (Spent.QUEUE, 1000),
        (Spent.RECONSTRUCTION, 1000),
        (Spent.RECONSTRUCTION, 1000),
        (Spent.RECONSTRUCTION, 1000),
        (Spent.RECONSTRUCTION, 1000),
    ]


def test_a_run_without_a_task_has_no_path():
    assert critical_path(lives_of(Rows())) == []


# ---- Whole runs ----------------------------------------------------------------------------------------------------


@ray.remote(duration=1.0)
def second(*_: Any) -> int:
    return 1


@ray.remote(duration=0.5)
def outer() -> int:
    return ray.get(second.remote()) + 1


def chain() -> int:
    value = second.remote()
    for _ in range(2):
        value = second.remote(value)
    ray.get(value)
    time.sleep(0.25)
    return ray.get(second.remote())


def run(program: Any, log: Path, **settings: Any) -> Lives:
    simulate(program, log, **settings)
    return Lives(read_record(log))


def adjoining(path: Sequence[Stretch], lives: Lives) -> bool:
    bounds = [lives.start_ns, *(stretch.ended_ns for stretch in path)]
    return bounds[-1] == lives.end_ns and all(
        stretch.started_ns == before < stretch.ended_ns for stretch, before in zip(path, bounds, strict=False)
    )


def spent(path: Sequence[Stretch]) -> dict[Spent, float]:
    sums: dict[Spent, float] = {}
    for stretch in path:
        sums[stretch.spent] = sums.get(stretch.spent, 0.0) + stretch.lasted_ns / S
    return sums


def test_path_of_a_chain_is_its_tasks_and_the_driver_between(tmp_path: Path):
    lives = run(chain, tmp_path)
    path = critical_path(lives)
    assert adjoining(path, lives)
    sums = spent(path)
    assert sums[Spent.COMPUTE] == pytest.approx(4.0, abs=0.01)
    assert sums[Spent.DRIVER] == pytest.approx(0.25, abs=0.01)
    assert sum(sums.values()) == pytest.approx((lives.end_ns - lives.start_ns) / S)


def test_path_goes_through_what_a_task_waits_for(tmp_path: Path):
    lives = run(lambda: ray.get(outer.remote()), tmp_path)
    path = critical_path(lives)
    assert adjoining(path, lives)
    assert {stretch.name for stretch in path if stretch.spent is Spent.COMPUTE} == {"outer", "second"}
    assert spent(path)[Spent.COMPUTE] == pytest.approx(1.5, abs=0.01)
    (used,) = (each for each in resources(lives) if each.name == "CPUs computing")
    busy = sum(steps.integral(np.array([lives.end_ns]))[0] for steps in used.used.values())
    assert busy / S == pytest.approx(1.5, abs=0.01)  # while it waits, `outer` has lent its CPU


def test_path_of_a_bag_of_tasks_is_the_queue(tmp_path: Path):
    lives = run(lambda: ray.get([second.remote() for _ in range(12)]), tmp_path, nodes=2)  # 4 CPUs: three rounds
    sums = spent(critical_path(lives))
    assert sums[Spent.COMPUTE] == pytest.approx(1.0, abs=0.01)
    assert sums[Spent.QUEUE] == pytest.approx(2.0, abs=0.01)


def test_what_waits_for_a_cpu_is_wanted_and_what_waits_for_an_argument_is_not(tmp_path: Path):
    @ray.remote(duration=1.0)
    def after(made: Any) -> Any:
        return made

    lives = run(lambda: ray.get([after.remote(second.remote()) for _ in range(12)]), tmp_path, nodes=2)  # 4 CPUs
    (used,) = (each for each in resources(lives) if each.name == "CPUs computing")
    assert used.wanted is not None
    begun_ns = min(attempt.started_ns or 0 for attempt in lives.attempts())
    wanted = [round(used.wanted.at(begun_ns + (round_ + 0.5) * S)) for round_ in range(6)]
    assert wanted == [12, 12, 12, 12, 8, 4], "of each pair one at a time, and 4 of them end in each second"


FAULTS = ["reboot node-2 when digest starts 5 for 3s", "kill worker when augment starts 4"]


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with objects that travel, a node that reboots and a worker that dies."""
    log = tmp_path_factory.mktemp("faulty")
    simulate(lambda: two_steps(10), log, faults=FAULTS)
    return log


def by_name(found: Sequence[Resource]) -> dict[str, Resource]:
    return {resource.name: resource for resource in found}


def test_stretches_adjoin_and_add_up_also_with_faults(faulty: Path):
    record = read_record(faulty)
    for each in (record, Record(events=record.events)):
        lives = Lives(each)
        path = critical_path(lives)
        assert adjoining(path, lives)
        assert spent(path)[Spent.RECONSTRUCTION] > 1  # the node's silence


def test_parts_of_the_time_add_up_to_the_cpus_of_the_living_nodes(faulty: Path):
    lives = Lives(read_record(faulty))
    where = where_time_went(lives, critical_path(lives))
    for node, parts in where.by_node.items():
        alive_ns = sum(
            min(life.ended_ns if life.ended_ns is not None else lives.end_ns, lives.end_ns)
            - max(life.started_ns, lives.start_ns)
            for life in lives.nodes[node]
        )
        assert sum(parts.values()) == pytest.approx(2 * alive_ns / S), node
        assert all(part >= 0 for part in parts.values())
    assert where.total[Spent.RECONSTRUCTION] > 0
    assert where.total[Spent.COMPUTE] > 0
    assert sum(where.path.values()) == pytest.approx((lives.end_ns - lives.start_ns) / S)


def test_network_carries_every_byte_that_arrives_and_never_more_than_it_can(faulty: Path):
    lives = Lives(read_record(faulty))
    used = by_name(resources(lives))
    arrived = sum(move.size_bytes for move in lives.moves if move.ended_ns is not None)
    at_end = np.array([lives.record.events[-1].time_ns + 1.0])
    for direction in ("network in", "network out"):
        network = used[direction]
        carried = sum(steps.integral(at_end)[0] for steps in network.used.values()) / S
        assert arrived <= carried * (1 + 1e-6)  # of what broke off, a part was carried, too
        assert carried <= arrived + 10 * MIB
        for node, steps in network.used.items():
            assert steps.values.max(initial=0.0) <= network.capacity[node].values.max()
            assert steps.values[-1] == 0 if len(steps.values) else True


def test_transfers_that_share_a_card_fill_it_and_no_more(tmp_path: Path):
    @ray.remote(scheduling_strategy="SPREAD")
    def big() -> Any:
        return np.zeros(8 * MIB, dtype=np.uint8)

    @ray.remote
    def take(*arrays: Any) -> int:
        return sum(map(len, arrays))

    lives = run(lambda: ray.get(take.remote(*[big.remote() for _ in range(6)])), tmp_path, nodes=4)
    network = by_name(resources(lives))["network in"]
    peaks = {node: steps.values.max(initial=0.0) for node, steps in network.used.items()}
    assert max(peaks.values()) == pytest.approx(1_250_000_000, rel=1e-6)


def test_store_holds_what_the_node_says_it_holds(faulty: Path):
    lives = Lives(read_record(faulty))
    store = by_name(resources(lives))["object store"]
    assert max(steps.values.max(initial=0.0) for steps in store.used.values()) >= MIB
    for node, steps in store.used.items():
        assert (steps.values >= 0).all()
        assert steps.values.max(initial=0.0) <= store.capacity[node].values.max()


def test_trace_alone_gives_the_same_network_and_says_what_it_does_not_know(faulty: Path):
    record = read_record(faulty)
    full, bare = by_name(resources(Lives(record))), by_name(resources(Lives(Record(events=record.events))))
    assert "CPUs leased" in full
    assert "CPUs leased" not in bare
    assert "one CPU assumed for each" in bare["CPUs computing"].source
    edges = np.linspace(0, record.events[-1].time_ns, 50)
    assert bare["network in"].total(edges).tolist() == full["network in"].total(edges).tolist()


def test_gpu_that_is_lost_is_not_counted_as_leased(tmp_path: Path):
    ray.init(mode="sim", nodes=1, num_gpus=2, decision_log=tmp_path, faults=["lose gpu 1 of node-0 at 3s"])
    try:
        ray.get([second.options(num_gpus=1, max_retries=-1).remote() for _ in range(8)])
    finally:
        ray.shutdown()
    lives = Lives(read_record(tmp_path))
    gpus = by_name(resources(lives))["GPUs leased"]
    assert (gpus.capacity["node-0"].at(2 * S), gpus.capacity["node-0"].at(4 * S)) == (2.0, 1.0)
    assert (gpus.used["node-0"].at(2.5 * S), gpus.used["node-0"].at(4.5 * S)) == (2.0, 1.0)
