"""What only sim mode promises: deadlocks are errors, time is virtual, machines can be killed."""

from __future__ import annotations

import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest

import dualray as ray
from dualray import runtime
from dualray.exceptions import (
    DualrayError,
    NodeDiedError,
    ObjectReconstructionFailedError,
    SimulationDeadlockError,
    TaskError,
    TaskUnschedulableError,
)
from dualray.sim.processes.worker import UserProcess
from dualray.sim.runtime import SimRuntime
from dualray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from tests.conformance.support import MIB, Shape, get, start_cluster


@pytest.fixture
def start() -> Iterator[Callable[..., Shape]]:
    yield lambda **changes: start_cluster("sim", **changes)
    ray.shutdown()


@ray.remote(num_cpus=0)
class Partner:
    def meet(self, other, handle=None):
        self.other = other

    def ask(self):
        return ray.get(self.other.ask.remote())

    def ask_self(self, me):
        return ray.get(me.answer.remote())

    def answer(self):
        return 42


@ray.remote
def echo(value):
    return value


@ray.remote(num_returns=3)
def returns_what_cannot_be_pickled():
    return 1, "small", threading.Lock()


def test_results_that_were_packed_before_one_that_cannot_be_are_kept_nowhere(start):
    start()
    with pytest.raises(TaskError, match="return value 2 of returns_what_cannot_be_pickled"):
        ray.get(returns_what_cannot_be_pickled.remote())
    current = runtime.current_or_none()
    assert isinstance(current, SimRuntime)
    processes = current.cluster.processes.values()
    workers = [process for process in processes if isinstance(process, UserProcess) and "/" in process.address]
    assert workers
    assert [worker.core.payloads for worker in workers if worker.core.payloads] == []


@ray.remote
def where():
    return ray.get_runtime_context().get_node_id()


@ray.remote
def sleep(seconds):
    time.sleep(seconds)
    return ray.get_runtime_context().get_node_id(), ray.get_runtime_context().get_attempt()


@ray.remote
def block(fill, tally):
    tally.add(fill)
    return np.full(MIB, fill, dtype=np.uint8)


@ray.remote
def plus_one(array, tally):
    tally.add(f"plus_one {array[0]}")
    return array + 1


def on(node, soft=False):
    return NodeAffinitySchedulingStrategy(node, soft=soft)


# ---- Deadlock ------------------------------------------------------------------------------------------------------


def test_two_actors_that_get_from_each_other(start):
    start()
    a, b = Partner.remote(), Partner.remote()
    get([a.meet.remote(b), b.meet.remote(a)])
    ref = a.ask.remote()
    with pytest.raises(SimulationDeadlockError) as caught:
        ray.get(ref)
    message = str(caught.value)
    assert "so the program cannot continue" in message
    assert "driver-1 waits" in message
    waits = dict(
        re.findall(r"Partner\.ask on (\S+) waits: .* computed by Partner\.ask \(task \w+\), which (\S+) has", message)
    )
    assert len(waits) == 2
    assert all(waits[waits[worker]] == worker for worker in waits)  # a cycle of two
    assert isinstance(caught.value, DualrayError)


def test_an_actor_that_gets_from_itself(start):
    start()
    a = Partner.remote()
    with pytest.raises(SimulationDeadlockError, match=r"Partner\.ask_self on node-.* waits: .*Partner\.answer"):
        ray.get(a.ask_self.remote(a))


def test_a_deadlock_with_a_timeout_is_a_timeout(start):
    start()
    a = Partner.remote()
    before_s = time.monotonic()
    with pytest.raises(ray.exceptions.GetTimeoutError):
        ray.get(a.ask_self.remote(a), timeout=100)
    assert time.monotonic() - before_s >= 100


def test_a_wait_that_nothing_can_end_is_a_deadlock_too(start):
    start()
    a = Partner.remote()
    ref = a.ask_self.remote(a)
    with pytest.raises(SimulationDeadlockError, match="driver-1 waits"):
        ray.wait([ref])


def test_tasks_that_wait_for_resources_that_an_idle_actor_holds(start):
    start(nodes=1)
    holder = Partner.options(num_cpus=2).remote()
    get(holder.answer.remote())
    with pytest.raises(SimulationDeadlockError, match=r"echo") as caught:
        ray.get(echo.remote(1))
    assert "1 CPU" in str(caught.value)


def test_after_a_deadlock_the_driver_goes_on(start):
    start()
    a = Partner.remote()
    with pytest.raises(SimulationDeadlockError):
        ray.get(a.ask_self.remote(a))
    assert get(echo.remote(1)) == 1


# ---- Virtual time --------------------------------------------------------------------------------------------------


def test_time_costs_nothing(start):
    real_start_s = real_clock()
    start()
    before_s = time.monotonic()
    assert get(echo.remote(1)) == 1
    get_all = [sleep.remote(3600) for _ in range(6)]
    ray.get(get_all)
    assert 3600 < time.monotonic() - before_s < 3700
    ray.shutdown()
    assert real_clock() - real_start_s < 20


def real_clock():
    """Wall time also while a simulation stands for the clocks."""
    return os.times().elapsed


def test_clocks_begin_in_2020_and_agree(start):
    start()
    assert time.gmtime().tm_year == 2020
    first, wall = time.monotonic(), time.time()
    time.sleep(10)
    assert time.monotonic() - first == pytest.approx(10, abs=0.01)
    assert time.time() - wall == pytest.approx(10, abs=0.01)


def test_a_task_takes_its_duration(start):
    runtime = start() and ray.runtime.current_or_none()
    before_s = runtime.now_s
    assert get(echo.options(duration=5.0).remote(1)) == 1
    assert runtime.now_s - before_s == pytest.approx(5, abs=0.1)
    before_s = runtime.now_s
    get([echo.options(duration=lambda value: value / 10).remote(value) for value in (1, 20)])
    assert runtime.now_s - before_s == pytest.approx(2, abs=0.1)


def test_a_method_takes_its_duration(start):
    @ray.remote
    class Slow:
        @ray.method(duration=3)
        def work(self):
            return time.monotonic()

    start()
    slow = Slow.remote()
    first, second = get([slow.work.remote(), slow.work.remote()])
    assert second - first == pytest.approx(3, abs=0.1)


def test_a_virtual_process_has_a_pid_and_its_node_a_name(start):
    @ray.remote
    def who():
        return os.getpid(), socket.gethostname(), ray.get_runtime_context().get_node_id()

    start()
    found = get([who.options(scheduling_strategy="SPREAD", num_cpus=2).remote() for _ in range(6)])
    assert all(name == node for _, name, node in found)
    assert len({pid for pid, _, _ in found}) >= 3
    assert os.getpid() not in {pid for pid, _, _ in found}


def test_two_runs_are_equal(start):
    def run():
        start(nodes=4, seed=3)
        refs = [sleep.remote(0.01 * index) for index in range(20)]
        found = get(refs)
        return found, time.monotonic(), ray.shutdown()

    assert run() == run()


# ---- Nodes that are killed -----------------------------------------------------------------------------------------


def test_tasks_of_a_killed_node_run_elsewhere(start):
    start(faults=["kill node-2 at 1s"])
    refs = [sleep.remote(3) for _ in range(6)]
    found = get(refs)
    assert "node-2" not in {node for node, _ in found}
    assert sorted(attempt for _, attempt in found) == [0, 0, 0, 0, 1, 1]
    assert [row["Alive"] for row in ray.nodes()] == [True, True, False]
    assert ray.cluster_resources()["CPU"] == 4.0


def test_what_was_lost_with_a_node_is_made_again_with_its_lineage(start, tally):
    start(faults=["kill node-2 at 1s"])
    first = block.options(scheduling_strategy=on("node-2", soft=True)).remote(1, tally)
    second = plus_one.options(scheduling_strategy=on("node-2", soft=True)).remote(first, tally)
    ray.wait([second], timeout=0.9, fetch_local=False)
    assert tally.notes == ["1", "plus_one 1"]
    time.sleep(10)
    assert (get(second) == 2).all()
    assert tally.notes == ["1", "plus_one 1", "1", "plus_one 1"]


def test_what_has_a_copy_elsewhere_is_not_made_again(start, tally):
    start(faults=["kill node-2 at 1s"])
    ref = block.options(scheduling_strategy=on("node-2", soft=True)).remote(1, tally)
    assert get(ref)[0] == 1  # a copy on the driver's node
    time.sleep(10)
    assert (get(ref) == 1).all()
    assert tally.count == 1


def test_what_must_not_be_made_again_is_lost_with_its_node(start, tally):
    start(faults=["kill node-2 at 1s"])
    ref = block.options(scheduling_strategy=on("node-2", soft=True), max_retries=0).remote(1, tally)
    ray.wait([ref], timeout=0.9, fetch_local=False)
    time.sleep(10)
    with pytest.raises(ObjectReconstructionFailedError, match="no attempt left") as caught:
        get(ref)
    assert ref.hex()[:8] in str(caught.value)


def test_a_task_without_retries_fails_with_its_node(start):
    start(faults=["kill node-2 at 1s"])
    ref = sleep.options(scheduling_strategy=on("node-2", soft=True), max_retries=0).remote(3)
    with pytest.raises(NodeDiedError, match=r"node-2 died while it ran sleep \(task "):
        get(ref)


def test_an_actor_is_restarted_on_another_node(start):
    @ray.remote(max_restarts=1, max_task_retries=1, scheduling_strategy=on("node-2", soft=True))
    class Where:
        def where(self):
            time.sleep(2)
            return ray.get_runtime_context().get_node_id()

    start(faults=["kill node-2 at 1s"])
    actor = Where.remote()
    assert get(actor.where.remote()) in ("node-0", "node-1")


def test_when_the_last_node_that_could_take_it_dies_the_task_fails(start):
    """`.remote()` was fine, the node was there: so the reference fails, with the reason."""
    start(faults=["kill node-2 at 1s"])
    busy = sleep.options(scheduling_strategy=on("node-2"), num_cpus=2, max_retries=0).remote(5)
    waiting = where.options(scheduling_strategy=on("node-2"), num_cpus=2).remote()
    with pytest.raises(TaskUnschedulableError, match="node-2"):
        get(waiting)
    with pytest.raises(NodeDiedError):
        get(busy)


def test_a_fault_may_be_anchored_at_a_task(start, tally):
    start(faults=["kill worker when block starts 3"])
    refs = [block.options(num_cpus=2).remote(index, tally) for index in range(5)]
    assert [int(get(ref)[0]) for ref in refs] == [0, 1, 2, 3, 4]
    runtime = ray.runtime.current_or_none()
    assert [str(fault) for fault in runtime.cluster.faults.performed] == ["kill worker when block starts 3"]


def test_killing_half_of_eleven_nodes_in_the_middle_of_a_reduction(start):
    @ray.remote
    def add(a, b):
        return a + b

    start(nodes=11, faults=[f"kill node-{index} at 0.{index}s" for index in range(1, 6)])
    refs = [echo.options(duration=0.1).remote(np.full(MIB // 8, float(index))) for index in range(32)]
    while len(refs) > 1:
        refs = [*refs[2:], add.options(duration=0.05).remote(refs[0], refs[1])]
    assert (get(refs[0]) == sum(range(32))).all()
    ray.runtime.current_or_none().cluster.check_invariants()
