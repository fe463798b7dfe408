"""A driver and a node that do not reach one another, though the head hears both: nobody waits until they do."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

import dualray
from dualray.exceptions import ActorUnavailableError, ObjectLostError, TaskUnschedulableError, WorkerUnreachableError
from dualray.runtime import Runtime
from dualray.shared.scenario.file import parse_scenario
from dualray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

BREAKS_S = 30  # a connection, without an acknowledgement
PATIENCE_S = 10
PARTED_S = 60
BOTH_ENDS = r"node-1 and driver-1\S* on node-0 cannot reach one another, although the head reaches both"


@pytest.fixture
def start() -> Iterator[Callable[..., Runtime]]:
    def start_cluster(*faults: str, nodes: int = 3, cluster: str = "") -> Runtime:
        words = "".join(f"  - {fault}\n" for fault in faults)
        cluster = cluster or f"{{nodes: {nodes}, cpus: 1, memory: 64GiB}}"
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
    assert (
        "1 tasks got no answer, and run on other nodes if they have a retry left: node-1 and driver-1"
        in capfd.readouterr().err
    )


def test_without_retries_the_error_names_both_ends(start) -> None:
    start("partition node-1 from node-0 at 0.5s")
    refs = [where.options(max_retries=0).remote() for _ in range(3)]
    done, late = dualray.wait(refs, num_returns=2)
    assert len(dualray.get(done)) == 2
    with pytest.raises(WorkerUnreachableError, match=rf"where \(task \w+\) got no answer: {BOTH_ENDS}"):
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
        match="node-0 and node-1, which could run it, cannot reach one another, although the head reaches both",
    ):
        dualray.get(where.options(scheduling_strategy=ON_1).remote())
    assert runtime.now_s < 2 * (BREAKS_S + PATIENCE_S) + PARTED_S + 5


def test_a_call_of_an_actor_that_is_out_of_reach_ends_and_the_actor_lives(start) -> None:
    runtime = start("partition node-1 from node-0 at 5s for 50s")
    counter = cast(Any, Counter).options(scheduling_strategy=ON_1).remote()
    assert dualray.get(counter.add.remote()) == 1
    time.sleep(5)
    with pytest.raises(ActorUnavailableError, match=rf"Counter.add .* got no answer: {BOTH_ENDS}"):
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


# ---- An object whose holders the reader does not reach, for ever


LARGE = 1_000_000
Made = tuple[str, int, bytes]


@dualray.remote(duration=1.0)
def make(*needed: Made) -> Made:
    """Where it was made, in which attempt, and many bytes."""
    context = dualray.get_runtime_context()
    return context.get_node_id(), context.get_attempt(), bytes(LARGE)


@dualray.remote(duration=1.0)
def read(made: Made) -> tuple[str, str, int]:
    return dualray.get_runtime_context().get_node_id(), *made[:2]


@dualray.remote
class Maker:
    def make(self) -> bytes:
        return bytes(LARGE)


@dualray.remote
def put() -> list[dualray.ObjectRef[bytes]]:
    return [dualray.put(bytes(LARGE))]


ON_0 = NodeAffinitySchedulingStrategy("node-0", soft=False)
AT_FIRST_ON_1 = NodeAffinitySchedulingStrategy("node-1", soft=True)
PARTITIONS = [
    pytest.param("node-1 from node-0", 2, id="two nodes"),
    pytest.param("node-1 from node-0,node-2", 3, id="the holder"),
    pytest.param("node-0 from node-1,node-2,node-3", 4, id="the reader"),
    pytest.param("node-1 to node-0,node-2", 3, id="one way"),
]


def when_parted(runtime: Any, ref: Any) -> Any:
    """A reference to what was made on node-1 before 5 s, at 6 s."""
    dualray.wait([ref], fetch_local=False)
    assert runtime.now_s < 5
    time.sleep(6 - runtime.now_s)
    return ref


@pytest.mark.parametrize(("partition", "nodes"), PARTITIONS)
@pytest.mark.parametrize("reader", ["driver", "task"])
def test_what_cannot_be_brought_to_its_reader_is_made_again_there(start, partition, nodes, reader) -> None:
    runtime = start(f"partition {partition} at 5s", nodes=nodes)
    made = when_parted(runtime, make.options(scheduling_strategy=AT_FIRST_ON_1).remote())
    if reader == "driver":
        assert dualray.get(made)[:2] == ("node-0", 1)
    else:
        assert dualray.get(read.options(scheduling_strategy=ON_0).remote(made)) == ("node-0", "node-0", 1)
    assert runtime.now_s < 6 + 11 * PATIENCE_S
    for process in runtime.cluster.processes.values():
        process.check_invariants()


@pytest.mark.parametrize(("partition", "nodes"), PARTITIONS)
def test_so_is_what_it_is_made_from(start, partition, nodes) -> None:
    runtime = start(f"partition {partition} at 5s", nodes=nodes)
    link = make.options(scheduling_strategy=AT_FIRST_ON_1)
    made = when_parted(runtime, link.remote(link.remote(link.remote())))
    assert dualray.get(made)[:2] == ("node-0", 1)
    assert runtime.now_s < 6 + 12 * PATIENCE_S


def test_where_the_reader_cannot_take_it_it_is_made_in_his_reach(start) -> None:
    words = "partition node-1 from node-0,node-2 at 5s"
    runtime = start(words, cluster="{nodes: [{count: 1, cpus: 1}, {count: 2, cpus: 2}], memory: 64GiB}")
    made = when_parted(runtime, make.options(scheduling_strategy=AT_FIRST_ON_1, num_cpus=2).remote())
    assert dualray.get(made)[:2] == ("node-2", 1)


NOT_AGAIN = (
    r"cannot be sent to node-0: its copies are on node-1, and node-0 receives nothing.* The object cannot be recomputed"
)


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("put", r"was created by put\(\), and no task can recompute it"),
        ("without retries", "has no attempt left"),
        ("by an actor", "an actor computed it"),
        ("on node-1 alone", "may only run on node-1"),
    ],
)
def test_what_cannot_be_made_again_fails_for_the_reader_with_the_reason(start, how, why) -> None:
    runtime = start("partition node-1 from node-0,node-2 at 5s for 300s")
    match how:
        case "put":
            [ref] = dualray.get(put.options(scheduling_strategy=ON_1).remote())
        case "without retries":
            ref = make.options(scheduling_strategy=AT_FIRST_ON_1, max_retries=0).remote()
        case "on node-1 alone":
            ref = make.options(scheduling_strategy=ON_1).remote()
        case _:
            maker = cast(Any, Maker).options(scheduling_strategy=ON_1, max_task_retries=-1).remote()
            ref = maker.make.remote()
    when_parted(runtime, ref)
    with pytest.raises(ObjectLostError, match=f"{NOT_AGAIN}: .*{why}"):
        dualray.get(ref)
    assert runtime.now_s < 6 + 12 * PATIENCE_S
    time.sleep(310 - runtime.now_s)
    assert dualray.get(ref), "the error is the reader's: the object is there as before"
