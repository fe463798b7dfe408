"""A driver and a node that do not reach one another, though the head hears both: nobody waits until they do."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

import dualray
from dualray.exceptions import ActorUnavailableError, TaskUnschedulableError, WorkerUnreachableError
from dualray.runtime import Runtime
from dualray.shared.scenario_file import parse_scenario
from dualray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

BREAKS_S = 30  # a connection, without an acknowledgement
PATIENCE_S = 10
PARTED_S = 60
BOTH_ENDS = r"node-1 and driver-1\S* on node-0 do not reach one another, though the head hears both"


@pytest.fixture
def start() -> Iterator[Callable[..., Runtime]]:
    def start_cluster(*faults: str, nodes: int = 3) -> Runtime:
        words = "".join(f"  - {fault}\n" for fault in faults)
        cluster = f"{{nodes: {nodes}, cpus: 1, memory: 64GiB}}"
        text = f"name: test\ncluster: {cluster}\nworkload: {{generate: nested}}\nfaults:\n{words}"
        return dualray.init(mode="sim", scenario=parse_scenario(text, "test"))

    yield start_cluster
    dualray.shutdown()


@dualray.remote(duration=1.0, scheduling_strategy="SPREAD")
def where() -> tuple[str, int]:
    context = dualray.get_runtime_context()
    return context.get_node_id(), context.get_attempt()


@dualray.remote(num_cpus=0)
class Counter:
    def __init__(self) -> None:
        self.value = 0

    @dualray.method(duration=1.0)
    def add(self) -> int:
        self.value += 1
        return self.value


ON_1 = NodeAffinitySchedulingStrategy("node-1", soft=False)


def test_what_has_no_answer_runs_elsewhere_and_what_follows_does_at_once(start, capfd) -> None:
    runtime = start("partition node-1 from node-0 at 0.5s")
    answers = dualray.get([where.remote() for _ in range(3)])
    assert sorted(attempt for _, attempt in answers) == [0, 0, 1]
    assert {node for node, _ in answers} <= {"node-0", "node-2"}
    assert BREAKS_S + PATIENCE_S < runtime.now_s < BREAKS_S + PATIENCE_S + 5
    before_s = runtime.now_s
    assert {node for node, _ in dualray.get([where.remote() for _ in range(6)])} == {"node-0", "node-2"}
    assert runtime.now_s - before_s < 5, "nothing is placed there for a while"
    assert all(row["Alive"] for row in dualray.nodes())
    assert "1 tasks have no answer, and are tried elsewhere if they may: node-1 and driver-1" in capfd.readouterr().err


def test_without_retries_the_error_names_both_ends(start) -> None:
    start("partition node-1 from node-0 at 0.5s")
    refs = [where.options(max_retries=0).remote() for _ in range(3)]
    done, late = dualray.wait(refs, num_returns=2)
    assert len(dualray.get(done)) == 2
    with pytest.raises(WorkerUnreachableError, match=rf"where \(task \w+\) has no answer: {BOTH_ENDS}"):
        dualray.get(late[0])


@pytest.mark.parametrize("way", ["node-1 to node-0", "node-0 to node-1"])
def test_one_way_is_enough(start, way: str) -> None:
    runtime = start(f"partition {way} at 0.5s")
    assert len(dualray.get([where.remote() for _ in range(9)])) == 9
    assert runtime.now_s < 2 * (BREAKS_S + PATIENCE_S)


def test_a_late_result_is_not_believed_and_the_worker_that_had_the_task_is_ended(start) -> None:
    runtime = start("partition node-1 from node-0 at 0.5s for 60s")
    answers = dualray.get([where.remote() for _ in range(3)])
    assert sorted(attempt for _, attempt in answers) == [0, 0, 1]
    assert runtime.cluster.nodes["node-1"].machine.scheduler.leases == {}, "the node was told, by way of the head"
    time.sleep(60)
    assert dualray.get([where.remote() for _ in range(3)])  # what was held has come, and has changed nothing
    assert runtime.cluster.network.messages_waiting == 0
    for process in runtime.cluster.processes.values():
        process.check_invariants()


def test_the_news_of_a_lease_may_be_what_is_lost(start) -> None:
    runtime = start("partition node-1 from node-0 at 0s", nodes=2)
    assert {node for node, _ in dualray.get([where.remote() for _ in range(4)])} == {"node-0"}
    assert runtime.now_s < BREAKS_S + PATIENCE_S + 5


def test_what_only_that_node_can_take_waits_for_it_for_a_while(start) -> None:
    runtime = start("partition node-1 from node-0 at 0.5s for 60s")
    assert len(dualray.get([where.remote() for _ in range(3)])) == 3
    assert dualray.get(where.options(scheduling_strategy=ON_1).remote())[0] == "node-1"
    assert runtime.now_s < BREAKS_S + PATIENCE_S + PARTED_S + 5


def test_what_only_that_node_can_take_is_refused_when_it_stays_out_of_reach(start) -> None:
    runtime = start("partition node-1 from node-0 at 0.5s")
    with pytest.raises(
        TaskUnschedulableError,
        match="node-0 and node-1, which could take it, do not reach one another, though the head hears both",
    ):
        dualray.get(where.options(scheduling_strategy=ON_1).remote())
    assert runtime.now_s < 2 * (BREAKS_S + PATIENCE_S) + PARTED_S + 5


def test_a_call_of_an_actor_that_is_out_of_reach_ends_and_the_actor_lives(start) -> None:
    runtime = start("partition node-1 from node-0 at 5s for 50s")
    counter = cast(Any, Counter).options(scheduling_strategy=ON_1).remote()
    assert dualray.get(counter.add.remote()) == 1
    time.sleep(5)
    with pytest.raises(ActorUnavailableError, match=rf"Counter.add .* has no answer: {BOTH_ENDS}"):
        dualray.get(counter.add.remote())
    assert runtime.now_s < 10 + BREAKS_S + PATIENCE_S + 5
    time.sleep(15)
    assert dualray.get(counter.add.remote()) == 3  # the second came late


def test_a_call_that_may_be_repeated_is_until_the_actor_answers(start) -> None:
    runtime = start("partition node-1 from node-0 at 5s for 50s")
    counter = cast(Any, Counter).options(scheduling_strategy=ON_1, max_task_retries=-1).remote()
    assert dualray.get(counter.add.remote()) == 1
    time.sleep(5)
    assert dualray.get(counter.add.remote()) >= 2
    assert 55 < runtime.now_s < 60


@dualray.remote(duration=1.0, num_cpus=1)
def parent() -> list[str]:
    return [node for node, _ in dualray.get([where.remote() for _ in range(3)])]


def test_a_worker_that_has_tasks_on_a_node_out_of_its_reach_is_no_worse_off(start) -> None:
    start("partition node-1 from node-2 at 0.5s")
    on_2 = NodeAffinitySchedulingStrategy("node-2", soft=False)
    nodes = dualray.get(parent.options(scheduling_strategy=on_2).remote())
    assert set(nodes) <= {"node-0", "node-2"}
