"""Faults of processes, of the head, of objects and of disks, performed; and what is counted until they strike."""

import time
from typing import Any, cast

import numpy as np
import pytest

import dualray
from dualray.exceptions import ControlPlaneError, DualrayError, ObjectLostError, WorkerCrashedError
from dualray.shared.scenario.file import parse_scenario
from dualray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

SPILLING = "policies: {eviction: spill}\n"


@pytest.fixture
def start():
    def start_cluster(*faults, nodes=3, cpus=1, store="2GiB", extra=""):
        words = "".join(f"  - {fault}\n" for fault in faults) or "  []\n"
        text = (
            f"name: test\ncluster: {{nodes: {nodes}, cpus: {cpus}, object_store: {store}}}\n"
            f"workload: {{generate: nested}}\n{extra}faults:\n{words}"
        )
        return dualray.init(mode="sim", scenario=parse_scenario(text, "test"))

    yield start_cluster
    dualray.shutdown()


@dualray.remote(duration=2.0, max_retries=0)
def work(number=0):
    return number, dualray.get_runtime_context().get_attempt()


@dualray.remote(duration=0.1)
def place():
    return dualray.get_runtime_context().get_node_id()


@dualray.remote(duration=0.1, scheduling_strategy="SPREAD")
def spread():
    return dualray.get_runtime_context().get_node_id()


@dualray.remote(duration=0.5, num_cpus=1)
def make(number):
    return np.full(100_000, float(number))


@dualray.remote
class Counter:
    def __init__(self):
        self.value = 0

    @dualray.method(duration=0.1)
    def add(self):
        self.value += 1
        return self.value


def on(node):
    return NodeAffinitySchedulingStrategy(node_id=node, soft=False)


def performed(runtime):
    return [str(fault) for fault in runtime.cluster.faults.performed]


# ---- Workers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "takes_s"),
    [
        ("pause worker when work starts 1 for 5s", 7),
        ("slow worker by 3 when work starts 1", 6),
        ("slow worker by 4 when work starts 1 for 4s", 5),
        ("pause worker when work starts 1 for 1s", 3),
    ],
)
@pytest.mark.parametrize("stays", [False, True])  # the second has code that returns at its end, not at its begin
def test_a_worker_that_stands_still_or_is_slow_takes_longer_and_nobody_else_does(start, fault, takes_s, stays):
    runtime = start(fault, nodes=1, cpus=2)

    def sleepy(number):
        time.sleep(0.001)
        return number

    task = work if not stays else dualray.remote(duration=2.0, name="work", max_retries=0)(sleepy)
    first, second = task.remote(1), task.remote(2)
    dualray.get(second)
    assert runtime.now_s == pytest.approx(2, abs=0.05)
    dualray.get(first)
    assert runtime.now_s == pytest.approx(takes_s, abs=0.05)
    assert performed(runtime) == [str(fault.replace("by 3", "by 3.0").replace("by 4", "by 4.0"))]


def test_two_faults_of_one_worker_end_each_by_itself(start):
    runtime = start(
        "slow worker by 2 when work starts 1 for 2s",
        "pause worker when work starts 1 for 1s",
        nodes=1,
    )
    dualray.get(work.remote())
    # A second still, one at half speed, and 1.5 as usual.
    assert runtime.now_s == pytest.approx(3.5, abs=0.05)


def test_what_is_sent_to_an_actor_that_stands_still_waits_and_comes_in_order(start):
    runtime = start("pause worker when Counter.add starts 2 for 5s")
    counter = cast(Any, Counter).remote()
    assert dualray.get([counter.add.remote() for _ in range(5)]) == [1, 2, 3, 4, 5]
    assert 5 < runtime.now_s < 6.5


def test_a_paused_worker_that_is_killed_runs_nothing_any_more(start):
    runtime = start("pause worker when work starts 1 for 60s", nodes=2)
    refs = [dualray.remote(duration=2.0, max_retries=2, name="work")(lambda: 7).remote() for _ in range(2)]
    doomed = runtime.cluster.nodes["node-0"].workers
    time.sleep(1)
    [address] = [worker for worker in doomed if worker in runtime.cluster.pauses.places]
    runtime.cluster.outages.kill_worker(address)
    assert dualray.get(refs) == [7, 7]
    assert runtime.now_s < 10


def test_a_node_that_stands_still_holds_its_paused_worker_until_both_go_on(start):
    runtime = start("pause worker when work starts 1 for 1s", "pause node-1 when work starts 1 for 2s", nodes=2)
    assert dualray.get(work.options(scheduling_strategy=on("node-1")).remote(3)) == (3, 0)
    assert runtime.now_s == pytest.approx(4, abs=0.05)


# ---- The head and its tables -----------------------------------------------------------------------------------------


def test_a_paused_head_places_nothing_and_what_runs_goes_on(start):
    runtime = start("pause head at 0.5s for 4s")
    counter = cast(Any, Counter).remote()
    assert dualray.get(counter.add.remote()) == 1
    time.sleep(1)
    assert dualray.get(counter.add.remote()) == 2
    assert runtime.now_s < 2
    assert len(set(dualray.get([spread.remote() for _ in range(3)]))) == 3
    assert runtime.now_s > 4.5
    assert all(row["Alive"] for row in dualray.nodes())


def test_a_head_that_stands_still_for_too_long_has_no_cluster_any_more(start):
    runtime = start("pause head at 0.5s for 7s")
    with pytest.raises(DualrayError, match="node-0 is gone: no message came from the head for 5 s"):
        dualray.get(work.options(duration=60.0).remote())
    assert runtime.now_s == pytest.approx(6.5, abs=0.01)


def test_a_slow_head_takes_longer_to_place(start):
    def takes_s(*faults):
        runtime = start(*faults, nodes=4)
        dualray.get([place.remote() for _ in range(4)])
        time.sleep(5)
        began_s = runtime.now_s
        dualray.get([dualray.remote(duration=0.1)(lambda: 1).remote() for _ in range(4)])
        took_s = runtime.now_s - began_s
        dualray.shutdown()
        return took_s

    assert takes_s("slow head by 10000 at 0.01s") > takes_s() + 0.4
    assert takes_s("slow head by 10000 at 0.01s for 10ms") == pytest.approx(takes_s(), abs=0.001)


def test_a_head_that_is_killed_takes_its_cluster_along_and_nobody_hangs(start):
    runtime = start("kill head at 0.5s")
    ref = work.remote()
    with pytest.raises(DualrayError, match=r"the head process is gone\nCall dualray.shutdown\(\) and init\(\) again"):
        dualray.get(ref)
    assert runtime.now_s == pytest.approx(0.5, abs=0.01)
    with pytest.raises(DualrayError, match="the head process is gone"):
        dualray.get(dualray.put(np.zeros(100_000)))
    with pytest.raises(DualrayError, match="the head process is gone"):
        dualray.remote(lambda: 1).remote()
    assert performed(runtime) == ["kill head at 0.5s"]


def test_without_its_tables_a_cluster_runs_what_it_knows_and_waits_for_functions(start):
    runtime = start("restart redis at 0.5s for 3s")
    assert len(dualray.get([place.remote() for _ in range(3)])) == 3
    time.sleep(1 - runtime.now_s)
    assert len(dualray.get([place.remote() for _ in range(3)])) == 3
    assert runtime.now_s < 2, "the head places, and workers know the function"
    assert dualray.get(dualray.remote(duration=0.1)(lambda: 5).remote()) == 5
    assert runtime.now_s == pytest.approx(3.6, abs=0.05)


def test_two_faults_that_take_the_tables_away_end_each_by_itself(start):
    runtime = start("restart redis at 0.5s for 5s", "restart head at 1s for 1s", "restart redis at 2s for 1s")
    time.sleep(3.5)
    assert dualray.get(dualray.remote(duration=0.1)(lambda: 5).remote()) == 5
    assert runtime.now_s == pytest.approx(5.6, abs=0.05)


def test_who_needs_the_tables_does_not_wait_for_ever(start):
    runtime = start("restart redis at 0.5s for 30s")
    time.sleep(1)
    with pytest.raises(ControlPlaneError, match="did not answer for 10 s"):
        dualray.remote(lambda: 5).remote()
    assert runtime.now_s == pytest.approx(11, abs=0.01)
    time.sleep(25)
    assert dualray.get(dualray.remote(lambda: 5).remote()) == 5


def test_a_task_that_could_not_be_loaded_is_tried_again_as_often_as_one_that_was_lost(start):
    def attempts(lasting_s, retries):
        runtime = start(f"restart redis when place starts 1 for {lasting_s}s", nodes=1, cpus=1)
        try:
            return dualray.get(work.options(name="place", max_retries=retries).remote(5))[1], runtime.now_s
        finally:
            dualray.shutdown()

    attempt, ended_s = attempts(25, 3)
    assert (attempt, ended_s) == (2, pytest.approx(27, abs=0.1))
    with pytest.raises(WorkerCrashedError, match=r"place .* could not be loaded: the control plane .* for 10 s\."):
        attempts(25, 1)


def test_who_has_given_up_the_tables_while_he_stood_still_is_not_woken_again_when_they_are_back(start):
    runtime = start("restart redis at 0.5s for 12s", "pause node-1 at 9s for 5s", nodes=2)
    exported = work.options(scheduling_strategy=on("node-0")).remote(1)
    time.sleep(1)
    assert dualray.get(work.options(scheduling_strategy=on("node-1"), max_retries=1).remote(5)) == (5, 0)
    assert runtime.now_s == pytest.approx(16, abs=0.01)
    assert dualray.get(exported) == (1, 0)


# ---- The network -----------------------------------------------------------------------------------------------------


def test_a_clogged_node_is_alive_and_hears_nothing_until_it_ends(start):
    runtime = start("clog node-1 at 0.5s for 6s", nodes=2, cpus=1)
    there = place.options(scheduling_strategy=on("node-1"), max_retries=0)
    assert dualray.get(there.remote()) == "node-1"
    time.sleep(1 - runtime.now_s)
    ref = there.remote()
    time.sleep(4)
    assert all(row["Alive"] for row in dualray.nodes()), "its heartbeats come through"
    assert dualray.get(ref) == "node-1"
    assert runtime.now_s > 6.5
    assert all(row["Alive"] for row in dualray.nodes())
    assert runtime.cluster.network.messages_held > 0


def test_messages_that_others_overtake_are_put_in_order(start):
    runtime = start("link all reorder 0.5 at 0s")
    counter = cast(Any, Counter).remote()
    assert dualray.get([counter.add.remote() for _ in range(40)]) == list(range(1, 41))
    assert runtime.cluster.network.messages_held > 10


# ---- Objects and disks -----------------------------------------------------------------------------------------------


def test_an_object_that_is_lost_is_made_again_or_reported_lost(start):
    runtime = start("lose object when object_stored 1", "lose object when object_stored 3")
    made = make.remote(3)
    dualray.wait([made], fetch_local=False)
    time.sleep(0.1)
    assert dualray.get(made)[0] == 3.0
    assert runtime.now_s > 1.0, "it was made twice"
    put = dualray.put(np.ones(100_000))
    time.sleep(0.1)
    with pytest.raises(ObjectLostError):
        dualray.get(put)
    assert len(performed(runtime)) == 2


def test_an_object_that_is_being_read_when_it_is_lost_stays_for_its_readers(start):
    start("lose object when object_stored 1")
    value = dualray.get(dualray.put(np.ones(100_000)))
    time.sleep(1)
    assert value.sum() == 100_000


def test_a_corrupted_object_is_read_as_it_is_and_its_other_copies_are_whole(start):
    runtime = start("corrupt object when transfer_ended 1 on node-1", nodes=2)
    ref = dualray.put(np.zeros(200_000, dtype=np.uint8))

    @dualray.remote(num_cpus=1, duration=0.1)
    def damaged(array):
        return dualray.get_runtime_context().get_node_id(), int(np.count_nonzero(array))

    there = damaged.options(scheduling_strategy=on("node-1"))
    dualray.get(there.remote(ref))
    assert dualray.get(there.remote(ref)) == ("node-1", 1)
    assert np.count_nonzero(dualray.get(ref)) == 0
    assert performed(runtime) == ["corrupt object when transfer_ended 1 on node-1"]


def test_a_full_disk_takes_nothing_and_what_it_has_stays_readable(start):
    runtime = start("fill disk of node-0 at 1s for 5s", nodes=1, store="4MB", extra=SPILLING)
    early = [dualray.put(np.full(100_000, float(number))) for number in range(6)]  # 800 kB each: two are spilled
    time.sleep(2 - runtime.now_s)
    spilled = len(runtime.cluster.nodes["node-0"].store.spilled)
    assert spilled > 0
    with pytest.raises(dualray.exceptions.ObjectStoreFullError, match="No space left on device"):
        dualray.put(np.full(100_000, 9.0))
    time.sleep(max(0.0, 7 - runtime.now_s))
    assert [int(dualray.get(ref)[0]) for ref in early] == list(range(6))
    assert int(dualray.get(dualray.put(np.full(100_000, 9.0)))[0]) == 9


def test_a_disk_that_was_full_before_anything_was_spilled_is_used_when_it_has_room(start):
    runtime = start("fill disk of node-0 at 0s for 3s", nodes=1, store="4MB", extra=SPILLING)
    kept = [dualray.put(np.full(100_000, float(number))) for number in range(4)]
    with pytest.raises(dualray.exceptions.ObjectStoreFullError):
        dualray.put(np.full(100_000, 9.0))
    time.sleep(max(0.0, 4 - runtime.now_s))
    assert int(dualray.get(dualray.put(np.full(100_000, 9.0)))[0]) == 9
    assert [int(dualray.get(ref)[0]) for ref in kept] == [0, 1, 2, 3]


class Light:
    def one(self):
        return 1


LightActor: Any = dualray.remote(num_cpus=0)(Light)


@dualray.remote(num_cpus=0, duration=1.0)
def light():
    return 1


def test_a_node_at_its_limit_of_open_files_starts_workers_when_it_may_open_files_again(start):
    runtime = start("limit files of node-0 at 1s for 2s", nodes=1)
    time.sleep(1.5 - runtime.now_s)
    several = [light.remote() for _ in range(9)]
    first, _ = dualray.wait(several)
    assert runtime.now_s < 3  # a worker that had been started before runs it
    assert dualray.get(several) == [1] * 9
    assert 4 < runtime.now_s < 6
    assert first


def test_a_node_that_stays_at_its_limit_of_open_files_fails_what_needs_a_worker(start):
    runtime = start("limit files of node-0 at 1s", nodes=1)
    time.sleep(1.5 - runtime.now_s)
    several = [LightActor.remote().one.remote() for _ in range(9)]
    with pytest.raises(dualray.exceptions.WorkerCrashedError, match="could not start a worker for 5 s: this"):
        dualray.get(several)
    assert runtime.now_s < 8


def test_a_node_that_comes_back_with_its_store_has_what_nothing_could_make_again(start):
    def outcome(store):
        runtime = start(f"reboot node-1{store} at 2s for 2s", nodes=2)
        only = make.options(scheduling_strategy=on("node-1"), max_retries=0).remote(4)
        dualray.wait([only], fetch_local=False)
        time.sleep(30 - runtime.now_s)
        try:
            return float(dualray.get(only)[0]), runtime.now_s
        except ObjectLostError:
            return "lost", runtime.now_s
        finally:
            dualray.shutdown()

    assert outcome("")[0] == "lost"
    value, ended_s = outcome(" with its store")
    assert (value, ended_s < 31) == (4.0, True)


def test_a_generator_that_waits_for_its_consumer_does_not_keep_him_from_an_item_that_was_lost(start):
    runtime = start("lose object when object_stored 2", nodes=1)

    @dualray.remote(num_returns="streaming", _generator_backpressure_num_objects=2)
    def items():
        for number in range(6):
            time.sleep(0.1)
            yield np.full(50_000, number)

    seen = []
    for ref in items.remote():
        time.sleep(1)  # until the second one is gone, and the generator waits
        seen.append(int(dualray.get(ref)[0]))
    assert seen == [0, 1, 2, 3, 4, 5]
    assert performed(runtime) == ["lose object when object_stored 2"]


# ---- What is counted -------------------------------------------------------------------------------------------------


def test_an_anchor_may_count_what_happens_on_one_node_alone(start):
    runtime = start("kill worker when place starts 2 on node-1", nodes=2)
    for node in ("node-0", "node-0", "node-1", "node-0", "node-1"):
        dualray.get(place.options(scheduling_strategy=on(node)).remote())
    assert performed(runtime) == ["kill worker when place starts 2 on node-1"]
    [killed] = [event for event in runtime.cluster.trace_events if event.kind == "fault"]
    assert killed.subject.partition("/")[0] == "node-1"
    starts = [event for event in runtime.cluster.trace_events if event.kind == "task_started"]
    assert [event.amount for event in starts] == [0, 0, 0, 0, 0, 1], "the fifth was killed, and tried again"


def test_a_fault_may_come_in_the_middle_of_a_task(start):
    runtime = start("kill worker when work starts 2 after 700ms", "kill node-2 when work starts 1 after 3s", nodes=3)
    refs = [work.options(max_retries=1).remote(number) for number in range(3)]
    assert sorted(dualray.get(refs)) == [(0, 0), (1, 1), (2, 0)]
    time.sleep(5)
    events = runtime.cluster.trace_events
    began = [event.time_ns for event in events if event.kind == "task_started"]
    assert [event.time_ns for event in events if event.kind == "fault"] == [began[1] + 7 * 10**8, began[0] + 3 * 10**9]
    assert performed(runtime) == [
        "kill worker when work starts 2 after 0.7s",
        "kill node-2 when work starts 1 after 3s",
    ]


def test_a_copy_may_be_lost_some_time_after_it_was_stored(start):
    runtime = start("lose object when object_stored 1 after 1s", nodes=2)
    ref = make.remote(3)
    assert dualray.get(ref)[0] == 3
    time.sleep(2)
    assert dualray.get(ref)[0] == 3
    assert performed(runtime) == ["lose object when object_stored 1 after 1s"]
    starts = [event for event in runtime.cluster.trace_events if event.kind == "task_started"]
    assert len(starts) == 2, "it was made again"


def test_an_anchor_may_be_the_task_that_was_submitted_as_the_nth(start):
    runtime = start("kill worker when work#2 starts", "kill worker when work#3 ends", nodes=1, cpus=1)

    @dualray.remote(duration=0.1, max_retries=1)
    def other():
        return 1

    retried = work.options(max_retries=2)
    gate = other.remote()
    refs = [retried.remote(number) for number in range(4)]
    assert [attempt for _, attempt in dualray.get(refs)][:3] == [0, 1, 0]
    dualray.get(gate)
    assert len(performed(runtime)) == 2


def test_a_fault_of_a_submission_that_never_comes_is_outstanding(start):
    runtime = start("kill worker when work#9 starts")
    dualray.get(work.remote())
    assert [str(fault) for fault in runtime.cluster.faults.outstanding] == ["kill worker when work#9 starts"]


class _Journal:
    def __init__(self):
        self.lines = []

    @dualray.method(duration=0.001)
    def write(self, line):
        self.lines.append(line)

    @dualray.method(duration=0.001)
    def read(self):
        return self.lines


Journal: Any = dualray.remote(_Journal)


@dualray.remote(duration=0.01)
def writes(journal):
    journal.write.remote("late")


def test_a_held_call_is_overtaken_by_calls_of_others(start):
    def lines(*faults):
        runtime = start(*faults, nodes=1)
        journal = Journal.remote()
        assert dualray.get(journal.read.remote()) == []
        dualray.get(writes.remote(journal))
        dualray.get(journal.write.remote("early"))
        time.sleep(1)
        found = dualray.get(journal.read.remote()), [str(fault) for fault in runtime.cluster.faults.performed]
        dualray.shutdown()
        return found

    fault = "hold call when _Journal.write is submitted 1 for 0.1s"
    assert lines() == (["late", "early"], [])
    assert lines(fault) == (["early", "late"], [fault])
    assert lines("hold call when _Journal.write is submitted 7 for 0.1s")[0] == ["late", "early"]


def test_a_held_call_holds_the_later_calls_of_its_caller(start):
    runtime = start("hold call when _Journal.write is submitted 2 for 0.5s", nodes=1)
    journal = Journal.remote()
    dualray.get(journal.write.remote(1))
    began_s = runtime.now_s
    journal.write.remote(2)
    assert dualray.get(journal.read.remote()) == [1, 2]
    assert 0.5 < runtime.now_s - began_s < 0.51


def test_a_call_of_no_living_actor_is_not_held(start):
    fault = "hold call when writes is submitted 1 for 0.5s"
    runtime = start(fault, nodes=1)
    journal = Journal.remote()
    dualray.get(journal.read.remote())
    dualray.get(writes.remote(journal))
    assert [str(fault) for fault in runtime.cluster.faults.missed] == [fault]
