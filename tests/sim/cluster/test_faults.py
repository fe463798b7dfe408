"""Each kind of fault, performed: what it does to a program, and what it does not."""

import re
import time
from typing import Any, cast

import numpy as np
import pytest

import dualray
from dualray.shared.scenario.fault_model import parse_fault
from dualray.shared.scenario.file import parse_scenario
from dualray.sim.kernel.kernel import Kernel
from dualray.sim.network.conditions import Impairment
from dualray.sim.network.network import Channel, Network
from dualray.util.placement_group import placement_group, remove_placement_group
from dualray.util.scheduling_strategies import NodeAffinitySchedulingStrategy


@pytest.fixture
def start():
    def start_cluster(faults=(), nodes=3, cpus=1, gpus=0, extra="", memory="64GiB"):
        words = "".join(f"  - {fault}\n" for fault in faults) or "  []\n"
        text = (
            f"name: test\ncluster: {{nodes: {nodes}, cpus: {cpus}, gpus: {gpus}, memory: {memory}}}\n"
            f"workload: {{generate: nested}}\n{extra}faults:\n{words}"
        )
        return dualray.init(mode="sim", scenario=parse_scenario(text, "test"))

    yield start_cluster
    dualray.shutdown()


@dualray.remote(max_retries=-1, duration=1.0, scheduling_strategy="SPREAD")
def where(number=0):
    return dualray.get_runtime_context().get_node_id()


@dualray.remote(max_restarts=-1, max_task_retries=-1)
class Counter:
    def __init__(self):
        self.value = 0

    @dualray.method(duration=0.5)
    def add(self):
        self.value += 1
        return self.value


def sleep_for_ever():
    while True:
        time.sleep(7)


def places(count=6):
    return dualray.get([where.remote(number) for number in range(count)])


def test_a_rebooted_node_is_back_in_a_new_incarnation_and_takes_part(start):
    runtime = start(["reboot node-1 at 0.5s for 2s"])
    assert len(places()) == 6
    time.sleep(10)
    rows = {row["NodeID"]: row for row in dualray.nodes()}
    assert (rows["node-1"]["Incarnation"], rows["node-1"]["Alive"]) == (1, True)
    assert "node-1" in places()
    assert [str(fault) for fault in runtime.cluster.faults.performed] == ["reboot node-1 at 0.5s for 2s"]


def test_a_node_that_drains_ends_what_it_runs_and_hands_on_what_only_it_has(start):
    runtime = start(["drain node-1 at 0.5s"])
    there = NodeAffinitySchedulingStrategy(node_id="node-1", soft=False)

    @dualray.remote(max_retries=0, scheduling_strategy=there)
    def make():
        time.sleep(2)
        return b"x" * 1_000_000

    made = make.remote()
    time.sleep(1)
    assert "node-1" not in places(), "it takes no more tasks"
    dualray.wait([made], fetch_local=False)
    time.sleep(2)
    assert runtime.now_s < 8, "long before the drain's time is over"
    assert (runtime.cluster.nodes_left, runtime.cluster.nodes["node-1"].is_alive) == (1, False)
    assert {row["NodeID"]: row["Alive"] for row in dualray.nodes()} == {"node-0": True, "node-1": False, "node-2": True}
    assert len(dualray.get(made)) == 1_000_000, "nothing could have made it again"


def test_nodes_that_drain_at_once_do_not_leave_each_other_what_only_they_have(start):
    runtime = start(["drain node-2 at 5s", "drain node-1 at 5.1s"])

    @dualray.remote(max_retries=0, scheduling_strategy=NodeAffinitySchedulingStrategy(node_id="node-2", soft=False))
    def make(number):
        return np.full(200_000_000, number, np.uint8)

    made = [make.remote(number) for number in range(4)]
    dualray.wait(made, num_returns=4, fetch_local=False)
    assert runtime.now_s < 5
    time.sleep(20 - runtime.now_s)
    assert runtime.cluster.nodes_left == 2, "long before the time of their drains is over"
    assert [int(array[0]) for array in dualray.get(made)] == [0, 1, 2, 3], "nothing could have made them again"


def test_a_node_that_does_not_drain_in_time_leaves_all_the_same(start):
    runtime = start(["drain node-1 at 0.5s"], extra="config: {drain_timeout_ns: 3000000000}\n")

    @dualray.remote(max_retries=0, scheduling_strategy=NodeAffinitySchedulingStrategy(node_id="node-1", soft=False))
    def long():
        time.sleep(100)

    began = long.remote()
    with pytest.raises(dualray.exceptions.NodeDiedError):
        dualray.get(began)
    assert 3.5 <= runtime.now_s < 4.5
    assert runtime.cluster.nodes_left == 1


def test_a_node_that_drains_is_replaced_and_switched_off_if_it_is_still_there(start):
    runtime = start(["drain node-1 at 0.5s for 1s", "drain node-2 at 0.5s for 9s"])

    @dualray.remote(max_retries=1, scheduling_strategy=NodeAffinitySchedulingStrategy(node_id="node-1", soft=True))
    def long():
        time.sleep(4)
        return dualray.get_runtime_context().get_attempt()

    assert dualray.get(long.remote()) == 1
    assert runtime.cluster.nodes_left == 1, "node-2, which had nothing to do"
    time.sleep(6)
    rows = {row["NodeID"]: row for row in dualray.nodes()}
    assert [(rows[node]["Incarnation"], rows[node]["Alive"]) for node in ("node-1", "node-2")] == [(1, True)] * 2
    assert set(places()) == {"node-0", "node-1", "node-2"}


def test_a_machine_that_stands_there_already_is_not_switched_off_for_one_that_was_to_leave(start):
    start(["drain node-1 at 0.5s for 9s", "reboot node-1 at 0.6s for 1s"])

    @dualray.remote(max_retries=0, scheduling_strategy=NodeAffinitySchedulingStrategy(node_id="node-1", soft=True))
    def long():
        time.sleep(100)

    long.options(max_retries=1).remote()
    time.sleep(12)
    rows = {row["NodeID"]: row for row in dualray.nodes()}
    assert (rows["node-1"]["Incarnation"], rows["node-1"]["Alive"]) == (1, True)


def test_a_short_pause_loses_nothing_and_a_long_one_makes_a_zombie_that_is_refused_and_joins_again(start):
    runtime = start(["pause node-1 at 0.5s for 3s", "pause node-2 at 0.5s for 30s"])
    placed = places()
    assert len(placed) == 6 and "node-2" not in placed
    time.sleep(40)
    assert runtime.cluster.nodes_refused == 1
    lives = [(row["Alive"], row["Incarnation"]) for row in dualray.nodes()]
    assert lives == [(True, 0), (True, 0), (True, 1)], "as in real mode, where its daemon starts it again"
    assert "node-2" in places()


def test_a_node_that_is_rebooted_while_it_stands_still_is_whole_afterwards(start):
    start(["pause node-1 at 0.1s for 20s", "reboot node-1 at 0.5s for 1s"])
    time.sleep(30)

    @dualray.remote(scheduling_strategy="SPREAD")
    def large():
        return b"x" * 1_000_000

    assert len(dualray.get([large.remote() for _ in range(6)])) == 6


def test_what_is_sent_across_a_partition_arrives_when_it_heals(start):
    runtime = start(["partition node-1 from node-0 at 0.5s for 3s"])
    assert sorted(set(places(3))) == ["node-0", "node-1", "node-2"]
    assert 3.4 < runtime.now_s < 4.5
    assert runtime.cluster.network.messages_held > 0
    assert all(row["Alive"] for row in dualray.nodes())


def test_a_slow_node_takes_longer_and_a_fast_one_less(start):
    runtime = start(["slow node-1 by 4 at 0s"])
    places(3)
    assert 4 < runtime.now_s < 4.2


def long_task():
    return 1


def long_stream():
    yield 1


def long_array():
    return np.ones(1)


class Patient:
    @dualray.method(duration=10.0)
    async def long(self):
        return 1


PACES = {
    "slow, and well again": (["slow node-1 by 5 at 2s for 4s"], 10 + 4 * 4 / 5),
    "slow twice at a time": (["slow node-1 by 5 at 2s for 4s", "slow node-1 by 2 at 3s for 1s"], 10 + 3 * 4 / 5 + 0.9),
    "standing still": (["pause node-1 at 2s for 3s"], 10 + 3),
    "both": (["slow node-1 by 5 at 2s for 4s", "pause node-1 at 3s for 1s"], 10 + 3 * 4 / 5 + 1),
    "slow at its begin": (["slow node-1 by 20 at 0s for 1s"], 10 + 1 - 1 / 20),
    "for ever": (["slow node-1 by 2 at 8s"], 8 + 2 * 2),
}


@pytest.mark.parametrize("kind", ["task", "array", "stream", "coroutine"])
@pytest.mark.parametrize(("faults", "takes_s"), PACES.values(), ids=PACES)
def test_a_task_under_way_goes_on_as_fast_as_its_machine(start, faults, takes_s, kind):
    """Ten seconds of work, which begins before the machine gets slow and ends after it is well again."""
    runtime = start(faults)
    there = NodeAffinitySchedulingStrategy("node-1", soft=False)
    if kind == "coroutine":
        patient = dualray.remote(scheduling_strategy=there)(Patient).remote()
        assert dualray.get(patient.long.remote()) == 1
    elif kind == "stream":
        stream = dualray.remote(scheduling_strategy=there, duration=10.0)(long_stream).remote()
        assert [dualray.get(ref) for ref in stream] == [1]
    else:  # what returns something small ends early, and is reported when its time is over
        function = {"task": long_task, "array": long_array}[kind]
        assert dualray.get(dualray.remote(scheduling_strategy=there, duration=10.0)(function).remote()) == 1
    assert runtime.now_s == pytest.approx(takes_s, abs=0.1)


def test_a_worker_that_is_killed_while_its_machine_is_slow_leaves_nothing(start):
    runtime = start(["slow node-1 by 1000 at 0s for 5s", "kill worker when where starts 2"])
    assert len(places(3)) == 3
    assert runtime.now_s < 8
    assert runtime.examine().leaks == []


def test_latencies_that_multiply_have_an_end(start):
    runtime = start(["link all latency 1000 at 1ms for 1h"] * 4, extra="time_limit: 2h\n")
    time.sleep(1)
    assert len(places(2)) == 2
    assert 40 < runtime.now_s < 1000


def test_a_lost_message_is_sent_again_later(start):
    runtime = start(["link node-1 loss 0.6 at 0s for 60s"])
    places(3)
    assert runtime.cluster.network.messages_held > 0
    assert runtime.now_s > 1.2  # a retransmission takes 0.2 s


def test_an_actor_comes_back_when_its_worker_is_killed(start):
    runtime = start(["kill actor Counter when Counter.add starts 2"])
    counter = cast(Any, Counter).remote()
    assert dualray.get([counter.add.remote() for _ in range(3)]) == [1, 1, 2]
    assert len(runtime.cluster.faults.performed) == 1


def test_a_fault_that_finds_nobody_is_missed_and_said_so(start):
    runtime = start(
        ["kill actor Nobody at 0.1s", "kill node-1 at 0.2s", "slow node-1 by 2 at 0.3s", "kill node-2 at 9h"]
    )
    time.sleep(1)
    examined = runtime.examine()
    assert examined.performed == ["kill node-1 at 0.2s"]
    assert examined.missed == ["kill actor Nobody at 0.1s", "slow node-1 by 2.0 at 0.3s"]
    assert examined.outstanding == ["kill node-2 at 32400s"]


def test_a_gpu_that_is_lost_is_offered_no_more(start):
    start(["lose gpu 1 of node-0 at 0.1s"], nodes=1, cpus=4, gpus=2)
    time.sleep(1)
    assert dualray.cluster_resources()["GPU"] == 1
    assert dualray.get(dualray.remote(lambda: dualray.get_gpu_ids()).options(num_gpus=1).remote()) == [0]
    with pytest.raises(dualray.exceptions.TaskUnschedulableError, match="GPU"):
        dualray.get(where.options(num_gpus=2).remote())


def test_a_task_that_holds_the_lost_gpu_runs_again_on_another(start):
    start(["lose gpu 0 of node-0 at 1s"], nodes=1, cpus=4, gpus=2)

    @dualray.remote(num_gpus=1, duration=2.0)
    def hold():
        return dualray.get_gpu_ids(), dualray.get_runtime_context().get_attempt()

    assert dualray.get(hold.remote()) == ([1], 1)


def test_the_control_plane_is_away_and_comes_back_with_its_tables(start):
    runtime = start(["restart head at 0.5s for 4s"])
    counter = cast(Any, Counter).remote()
    assert dualray.get(counter.add.remote()) == 1  # it was placed before
    time.sleep(1)
    assert dualray.get(counter.add.remote()) == 2  # and is called without the head
    assert len(set(places(3))) == 3
    assert runtime.now_s > 4.5
    assert all(row["Alive"] for row in dualray.nodes())


def test_a_full_store_is_roomy_again_when_the_fault_ends(start):
    runtime = start(["fill node-0 to 0.9 at 0.1s for 5s"], nodes=1)
    time.sleep(1)
    store = runtime.cluster.nodes["node-0"].machine.store
    assert store.contents.used_bytes == round(0.9 * store.space.capacity_bytes)
    time.sleep(5)
    assert store.contents.used_bytes == 0


@dualray.remote(max_retries=1, duration=2.0)
def large():
    return dualray.get_runtime_context().get_attempt()


@dualray.remote(max_restarts=0)
class Hoard:
    def here(self):
        return True


MEMORY = "memory: {large: 6GiB, Hoard: 9GiB}\n"


def test_a_task_that_needs_more_memory_than_there_is_ends_with_the_reason(start):
    runtime = start(nodes=1, memory="5GiB", extra=MEMORY)
    with pytest.raises(
        dualray.exceptions.OutOfMemoryError,
        match=r"node-0 was out of memory: 6.0 GiB were in use, and the limit is 4.8",
    ):
        dualray.get(large.remote())
    assert 0.5 < runtime.now_s < 1.0  # two attempts, each noticed after a quarter of a second


def test_of_two_tasks_that_do_not_fit_together_the_newer_one_runs_again(start):
    runtime = start(nodes=1, cpus=2, memory="10GiB", extra=MEMORY)
    assert dualray.get([large.remote(), large.options(max_retries=-1).remote()])[0] == 0
    assert runtime.now_s > 3.5  # one after the other, but for what the monitor took to look


def test_an_actor_keeps_the_memory_of_its_constructor_and_dies_last(start):
    start(nodes=1, cpus=2, memory="10GiB", extra=MEMORY)
    hoard = cast(Any, Hoard).remote()
    assert dualray.get(hoard.here.remote())
    with pytest.raises(dualray.exceptions.OutOfMemoryError):
        dualray.get(large.remote())
    assert dualray.get(hoard.here.remote())


def test_nodes_offer_their_memory_to_tasks_that_ask_for_it(start):
    """So tasks that say what they need never take too much together."""
    runtime = start(nodes=1, cpus=2, memory="10GiB", extra=MEMORY)
    assert dualray.cluster_resources() == {"CPU": 2.0, "memory": 10.0 * 2**30}
    assert len(dualray.get([large.options(memory="6GiB", max_retries=0).remote() for _ in range(2)])) == 2
    assert runtime.examine().leaks == []


def test_memory_that_strangers_take_ends_tasks_until_they_give_it_back(start):
    runtime = start(["fill memory of node-0 to 0.9 at 0.5s for 3s"], nodes=1, memory="10GiB", extra=MEMORY)
    assert dualray.get(large.options(max_retries=-1).remote()) > 0
    assert 5 < runtime.now_s < 7
    assert runtime.examine().leaks == []


def test_a_placement_group_that_nobody_has_removed_is_nothing_that_was_left(start):
    """Found by scenarios/features_swarm.yaml, seed 88: its program had failed before it could."""
    runtime = start(nodes=2, cpus=2)
    group = placement_group([{"CPU": 1}, {"CPU": 1}], strategy="STRICT_SPREAD")
    dualray.get(group.ready())
    assert runtime.examine().leaks == []
    remove_placement_group(group)
    assert runtime.examine().leaks == []


def test_a_clock_that_is_set_ahead_is_read_by_programs_there_and_misleads_nothing_else(start):
    runtime = start(["skew node-1 by 30s at 0.5s for 20s", "skew node-2 by -1h at 0.5s"], cpus=1)

    @dualray.remote(duration=1.0, scheduling_strategy="SPREAD")
    def clocks():
        return dualray.get_runtime_context().get_node_id(), time.time(), time.monotonic(), time.gmtime().tm_hour

    time.sleep(1)
    here = time.time(), time.monotonic()
    read = {node: times for node, *times in dualray.get([clocks.remote() for _ in range(3)])}
    assert [round(read[node][0] - here[0]) for node in sorted(read)] == [0, 30, -3600]
    assert all(monotonic - here[1] < 0.1 for _, monotonic, _ in read.values())
    assert [hour for *_, hour in (read[node] for node in sorted(read))] == [0, 0, 23]
    time.sleep(25)
    read = {node: times for node, *times in dualray.get([clocks.remote() for _ in range(3)])}
    assert max(read["node-1"][0], read["node-0"][0]) - min(read["node-1"][0], read["node-0"][0]) < 0.1
    assert runtime.examine().leaks == []


def test_messages_that_arrive_twice_are_taken_once(start):
    runtime = start(["link all duplicate 1.0 at 1ms"], cpus=2)
    counter = cast(Any, Counter).remote()
    calls = [counter.add.remote() for _ in range(3)]
    for _ in range(3):
        assert sorted(set(places())) == ["node-0", "node-1", "node-2"]
    assert dualray.get(calls) == [1, 2, 3]
    del calls
    counter = None
    examined = runtime.examine()
    assert examined.counters["messages_doubled"] > 30
    assert (examined.leaks, examined.violations) == ([], [])


def test_messages_that_never_arrive_end_in_a_reason_and_not_in_a_hang(start):
    start(["link node-1 drop 0.9 at 0.5s"], nodes=2)
    refs = [where.remote(number) for number in range(4)]
    with pytest.raises(dualray.exceptions.SimulationDeadlockError, match="the driver still waits"):
        dualray.get(refs)


def test_when_faults_stop_nothing_of_them_is_left_to_happen(start):
    runtime = start(
        ["slow node-1 by 2 at 0.1s for 9h", "pause node-2 at 0.1s for 9h", "fill node-0 to 0.5 at 0.1s for 9h"]
    )
    time.sleep(1)
    examined = runtime.examine()
    assert len(examined.performed) == 3
    assert examined.leaks == []
    assert runtime.now_s < 60


def test_a_value_behind_a_partition_that_never_heals_ends_with_a_reason(start):
    start(["partition node-1 from node-0 at 5s"])
    _keeper, ref = kept_on_1()
    time.sleep(5)
    with pytest.raises(dualray.exceptions.SimulationDeadlockError, match=r"a partition holds [0-9]+ messages"):
        dualray.get(ref)  # its owner cannot be asked


def kept_on_1():
    """An actor on node-1, and a reference to a small value that it owns."""

    @dualray.remote(scheduling_strategy=NodeAffinitySchedulingStrategy("node-1", soft=False))
    class Keeper:
        def put(self):
            self.ref = dualray.put(1)
            return [self.ref]

    keeper = cast(Any, Keeper).remote()
    [ref] = dualray.get(keeper.put.remote())
    return keeper, ref


# ---- A partition between two nodes that the head hears both ----------------------------------------------------------


def made_on(node, size_bytes=10_000_000):
    @dualray.remote(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False))
    def make():
        return b"x" * size_bytes

    ref = make.remote()
    dualray.wait([ref], fetch_local=False)
    return ref


def read_on(node, ref):
    @dualray.remote(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False), max_retries=0)
    def read(value):
        return len(value)

    return read.remote(ref)


def test_what_lies_on_a_node_that_is_out_of_reach_comes_by_way_of_a_third(start):
    runtime = start(["partition node-1 from node-2 at 0.5s"])
    ref = made_on("node-1")
    time.sleep(1)
    assert dualray.get(read_on("node-2", ref)) == 10_000_000
    assert 20 < runtime.now_s < 60
    before = runtime.now_s
    assert dualray.get(read_on("node-2", made_on("node-1"))) == 10_000_000
    assert runtime.now_s < before + 1, "once it is known that the node is out of reach, nobody waits to find it out"


def test_a_transfer_that_a_partition_has_broken_off_comes_by_way_of_a_third(start):
    runtime = start(["partition node-1 from node-2 at 1.05s"])
    ref = made_on("node-1", 200_000_000)
    time.sleep(1 - runtime.now_s)
    assert dualray.get(read_on("node-2", ref)) == 200_000_000
    assert 30 < runtime.now_s < 75  # its connection breaks after 30 s


def test_with_no_third_node_an_error_names_the_link(start):
    runtime = start(["partition node-1 from node-2 at 0.5s", "kill node-3 at 0.6s"], nodes=4)
    ref = made_on("node-1")
    time.sleep(1)
    runtime.cluster.nodes["node-0"].machine.store.space.capacity_bytes = 1_000_000  # it cannot pass it on
    with pytest.raises(
        dualray.exceptions.ObjectLostError, match="cannot be sent to node-2: its copies are on node-1, and"
    ):
        dualray.get(read_on("node-2", ref))
    assert 20 < runtime.now_s < 60


def test_a_partition_that_heals_soon_is_waited_for(start):
    runtime = start(["partition node-1 from node-2 at 0.5s for 15s"])
    ref = made_on("node-1")
    time.sleep(1)
    assert dualray.get(read_on("node-2", ref)) == 10_000_000
    assert 15 < runtime.now_s < 17


def test_a_program_that_never_ends_ends_at_the_time_limit(start):
    start(extra="time_limit: 1h\n")
    with pytest.raises(dualray.exceptions.SimulationDeadlockError, match="scenario reached its time limit at 3600"):
        sleep_for_ever()


def test_a_node_that_dies_before_it_has_joined_is_not_waited_for(start):
    start(["kill node-2 at 10us"])
    assert sorted(set(places(4))) == ["node-0", "node-1"]


def test_the_driver_goes_on_after_a_deadlock_and_is_woken_by_nothing_that_it_waited_for_before(start):
    runtime = start(["partition node-1 from node-0 at 5s"])
    _keeper, ref = kept_on_1()
    time.sleep(5)
    with pytest.raises(dualray.exceptions.SimulationDeadlockError):
        dualray.get(ref)
    runtime.cluster.faults.stop()
    before = runtime.now_s
    time.sleep(5)  # the value arrives meanwhile
    assert runtime.now_s - before == pytest.approx(5)


@pytest.mark.parametrize(
    "fault",
    ["pause node-0 at 1s for 1s", "reboot node-0 at 1s for 1s", "partition node-0 at 1s", "slow node-7 by 2 at 1s"],
)
def test_a_fault_that_would_end_the_program_is_refused(fault):
    with pytest.raises(ValueError, match=re.escape(f"fault '{parse_fault(fault)}': ")):
        dualray.init(mode="sim", nodes=2, faults=[fault])
    assert not dualray.is_initialized()


# ---- The network alone ---------------------------------------------------------------------------------------------


def make_network():
    from dualray.sim.cost.cost_model import CostModel

    kernel = Kernel()
    return kernel, Network(kernel, CostModel())


def test_held_messages_come_in_order_when_the_parting_ends():
    kernel, network = make_network()
    arrived: list[int] = []
    channel = Channel("a", "b", src_process="p", dst_process="q")
    network.part("a", "b")
    network.part("a", "b")
    for number in range(5):
        network.message(channel, 10, arrived.append, number)
    network.join("a", "b")
    kernel.run_until(lambda: False)
    assert arrived == [] and network.messages_waiting == 5
    network.join("a", "b")
    kernel.run_until(lambda: False)
    assert arrived == [0, 1, 2, 3, 4] and network.messages_waiting == 0


def test_what_a_partition_holds_for_a_node_that_dies_is_gone():
    kernel, network = make_network()
    arrived: list[int] = []
    network.part("a", "b")
    network.message(Channel("a", "b", src_process="p", dst_process="q"), 10, arrived.append, 1)
    network.cut("b")
    network.heal("b")
    network.join("a", "b")
    kernel.run_until(lambda: False)
    assert arrived == [] and network.messages_dropped == 1


def test_a_transfer_stands_still_and_goes_on_where_it_was():
    kernel, network = make_network()
    done: list[int] = []
    network.transfer("a", "b", 1_250_000_000, lambda: done.append(kernel.now_ns))  # a second
    kernel.call_after(500_000_000, network.stall, "b")
    kernel.call_after(2_500_000_000, network.unstall, "b")
    kernel.run_until(lambda: False)
    assert done == [pytest.approx(3_000_100_000, abs=2)]


def test_an_impaired_link_has_less_bandwidth_while_it_lasts():
    kernel, network = make_network()
    done: list[int] = []
    worse = Impairment(bandwidth=0.1)
    network.transfer("a", "b", 1_250_000_000, lambda: done.append(kernel.now_ns))
    kernel.call_after(500_100_000, network.impair, "b", worse)
    kernel.call_after(2_500_100_000, network.repair, "b", worse)
    kernel.run_until(lambda: False)
    assert done == [pytest.approx(2_800_100_000, abs=2)]  # half in 0.5 s, a fifth in 2 s, the rest in 0.3 s


def test_losses_bound_a_flow_as_mathis_says():
    kernel, network = make_network()
    done: list[int] = []
    network.impair("b", Impairment(loss=0.01))
    network.transfer("a", "b", 10_000_000, lambda: done.append(kernel.now_ns))
    kernel.run_until(lambda: False)
    bytes_per_s = 1.22 * 1460 / (200e-6 * 0.1)
    assert done[0] == pytest.approx(100_000 + 10_000_000 / bytes_per_s * 1e9, rel=1e-6)


@pytest.mark.parametrize(
    "worse", [Impairment(loss=0.1), Impairment(loss=0.1, latency=100.0), Impairment(bandwidth=0.1)]
)
def test_a_flow_takes_up_its_speed_when_its_link_is_mended_and_loses_it_when_it_gets_worse(worse):
    def end_ns(*changes: tuple[int, str]) -> int:
        kernel, network = make_network()
        done: list[int] = []
        network.transfer("a", "b", 10**9, lambda: done.append(kernel.now_ns))
        for at_ns, change in changes:
            kernel.call_after(at_ns, getattr(network, change), "b", worse)
        kernel.run_until(lambda: bool(done))
        return done[0]

    healthy = end_ns()
    for_ever = end_ns((0, "impair"))
    assert for_ever > 2 * healthy
    lasts = healthy // 4
    assert end_ns((0, "impair"), (lasts, "repair")) <= healthy + lasts  # a flow that began while it was worse
    assert end_ns((lasts, "impair")) > for_ever // 2  # one that began before
    assert healthy < end_ns((lasts, "impair"), (2 * lasts, "repair")) <= healthy + lasts
