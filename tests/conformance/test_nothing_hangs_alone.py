"""Calls that end, on clusters of their own: with a small store, an open one, and one that is shut down meanwhile."""

from __future__ import annotations

import gc
import os
import re
import threading
import time

import numpy as np
import pytest

import dualray as ray
from dualray.exceptions import (
    ActorDiedError,
    ActorUnavailableError,
    DualrayError,
    GetTimeoutError,
    TaskCancelledError,
    WorkerCrashedError,
)
from tests.conformance.support import MIB, eventually, get

LONG_NS = 3600 * 10**9
SOON_S = 0.2


@pytest.fixture(autouse=True)
def nothing_is_held_by_cycles(quick_collections, start):
    yield
    gc.collect()


@ray.remote(num_cpus=0)
def put_blocks(tally, count):
    refs = []
    for fill in range(count):
        tally.add(fill)
        refs.append(ray.put(np.full(10 * MIB, fill, dtype=np.uint8)))
    return len(refs)


@ray.remote
def echo(value):
    return value


@ray.remote
class Actor:
    def answer(self):
        return 1


def test_a_put_that_waits_for_room_ends_when_its_task_is_cancelled(start, tally):
    start(nodes=1, object_store_memory=32 * MIB, limits={"eviction_policy": "lru", "store_wait_ns": LONG_NS})
    ref = put_blocks.remote(tally, 4)
    eventually(lambda: tally.count == 4, "three have found room, and the fourth waits")
    assert ray.wait([ref], timeout=SOON_S)[0] == []
    ray.cancel(ref)
    with pytest.raises(TaskCancelledError):
        get(ref)
    assert get(put_blocks.remote(tally, 3)) == 3  # there is room again


def test_a_put_that_waits_for_room_gets_what_a_dead_process_had(start, tally):
    start(nodes=1, object_store_memory=32 * MIB, limits={"eviction_policy": "lru", "store_wait_ns": LONG_NS})

    @ray.remote(num_cpus=0)
    class Keeper:
        def keep(self):
            self.refs = [ray.put(np.zeros(10 * MIB, dtype=np.uint8)) for _ in range(3)]

    keeper = Keeper.remote()
    get(keeper.keep.remote())
    ref = put_blocks.remote(tally, 1)
    eventually(lambda: tally.count == 1, "it wants to put")
    assert ray.wait([ref], timeout=SOON_S)[0] == []
    ray.kill(keeper)
    assert get(ref) == 1


def test_what_waits_in_an_open_cluster_for_a_node_says_what_lacks_and_can_be_ended(start):
    start(nodes=1, infeasible="wait")
    ref = echo.options(num_cpus=64).remote(1)
    with pytest.raises(GetTimeoutError, match=r"waits for a worker with 64 CPU; .*nearest node, node-0, .*lacks 62"):
        ray.get(ref, timeout=SOON_S)
    ray.cancel(ref)
    with pytest.raises(TaskCancelledError):
        get(ref)
    actor = Actor.options(num_cpus=64).remote()
    with pytest.raises(GetTimeoutError, match=r"\(PENDING\); .*nearest node, node-0, .*lacks 62"):
        ray.get(actor.answer.remote(), timeout=SOON_S)
    called = actor.answer.remote()
    ray.kill(actor)
    with pytest.raises(ActorDiedError):
        get(called)


def told(capfd) -> list[str]:
    """What was said on stderr, up to now, of waits for what actors hold."""
    words = capfd.readouterr().err
    return [line for line in words.splitlines() if "has waited for long" in line]


def test_who_waits_for_cpus_that_idle_actors_hold_is_told_once(start, capfd):
    start(nodes=1, limits={"wait_told_ns": round(SOON_S * 1e9) // 2})
    holders = [Actor.options(num_cpus=1).remote() for _ in range(2)]
    get([holder.answer.remote() for holder in holders])
    late, also_late = echo.remote(1), echo.remote(2)
    with pytest.raises(GetTimeoutError, match=r"the head says: .*actors hold it until they end: Actor on node-0/w"):
        ray.get(late, timeout=1)
    time.sleep(5 * SOON_S)
    (line,) = told(capfd)
    assert re.match(r"dualray: echo has waited for long for 1 CPU: these actors hold it until they end: ", line)
    assert line.count("Actor on node-0/w") == 2
    assert "dualray.kill" in line
    third = Actor.options(num_cpus=2).remote()
    ray.wait([third.answer.remote()], timeout=1)
    time.sleep(5 * SOON_S)
    (line,) = told(capfd)
    assert line.startswith("dualray: Actor has waited for long for 2 CPU: ")
    ray.kill(third)
    for holder in holders:
        ray.kill(holder)
    assert get([late, also_late]) == [1, 2]


def test_who_waits_for_running_tasks_is_told_nothing(start, capfd):
    start(nodes=1, limits={"wait_told_ns": round(SOON_S * 1e9) // 4})
    holder = Actor.options(num_cpus=1).remote()
    get(holder.answer.remote())

    @ray.remote
    def work():
        time.sleep(SOON_S)

    get([work.remote() for _ in range(4)])
    assert told(capfd) == []


def test_shutdown_ends_the_waits_of_other_threads(start, mode):
    if mode == "sim":
        pytest.skip("threads of a simulation end with it")
    start()
    holder = Actor.options(num_cpus=2).remote()
    get(holder.answer.remote())
    ref = echo.remote(1)
    ended = []

    def wait_for_it():
        try:
            ray.get(ref)
        except DualrayError as error:
            ended.append(str(error))

    thread = threading.Thread(target=wait_for_it)
    thread.start()
    time.sleep(SOON_S)
    ray.shutdown()
    thread.join(20)
    assert not thread.is_alive()
    assert ended == ["the runtime was shut down"]


def test_iterating_over_data_ends_when_its_workers_die(start):
    data = pytest.importorskip("dualray.data")
    start(nodes=1)

    def die(batch):
        os._exit(3)

    with pytest.raises(WorkerCrashedError, match="3"):
        for _ in data.range(100).map_batches(die, max_retries=0).iter_batches():
            pass
    assert data.range(5).count() == 5


def test_iterating_over_data_ends_when_its_actors_die(start):
    data = pytest.importorskip("dualray.data")
    start(nodes=1)

    class Dies:
        def __call__(self, batch):
            os._exit(3)

    with pytest.raises(ActorUnavailableError, match="exited with code 3"):
        for _ in data.range(100).map_batches(Dies, concurrency=1).iter_batches():
            pass
