from __future__ import annotations

import queue

import numpy as np
import pytest

import dualray as ray
from dualray.exceptions import ActorDiedError, OwnerDiedError, SimulationDeadlockError
from dualray.util.queue import Empty, Full, Queue
from tests.conformance.support import WITHIN_S, eventually, get, resources_are_free

CLUSTER = {"num_cpus": 4}
pytestmark = pytest.mark.usefixtures("cluster")


@pytest.fixture
def items():
    made = Queue(actor_options={"num_cpus": 0})
    yield made
    made.shutdown(force=True)


@pytest.fixture
def narrow():
    """Room for two items."""
    made = Queue(maxsize=2, actor_options={"num_cpus": 0})
    yield made
    made.shutdown(force=True)


@ray.remote
def take(items, timeout=WITHIN_S):
    return items.get(timeout=timeout)


@ray.remote
def give(items, value):
    items.put(value, timeout=WITHIN_S)
    return value


def test_items_come_out_in_the_order_in_which_they_went_in(items):
    for value in range(5):
        items.put(value)
    assert (len(items), items.size(), items.qsize(), items.empty()) == (5, 5, 5, False)
    assert [items.get() for _ in range(5)] == [0, 1, 2, 3, 4]
    assert items.empty()


def test_one_task_fills_it_and_another_empties_it(items):
    @ray.remote
    def produce(count):
        for value in range(count):
            items.put(value)

    @ray.remote
    def consume(count):
        return [items.get(timeout=WITHIN_S) for _ in range(count)]

    consumed = consume.remote(20)
    get(produce.remote(20))
    assert get(consumed) == list(range(20))


def test_an_empty_queue_is_empty(items):
    for attempt in (items.get_nowait, lambda: items.get(block=False), lambda: items.get(timeout=0)):
        with pytest.raises(Empty):
            attempt()
    with pytest.raises(queue.Empty, match=r"within 0\.1 s"):
        items.get(timeout=0.1)


def test_a_full_queue_is_full(narrow):
    narrow.put_nowait("a")
    assert not narrow.full()
    narrow.put_nowait("b")
    assert narrow.full()
    for attempt in (lambda: narrow.put_nowait("c"), lambda: narrow.put("c", timeout=0)):
        with pytest.raises(Full):
            attempt()
    with pytest.raises(queue.Full, match=r"within 0\.1 s"):
        narrow.put("c", timeout=0.1)
    assert [narrow.get(), narrow.get()] == ["a", "b"]


def test_a_negative_timeout_is_refused(items):
    with pytest.raises(ValueError, match="negative"):
        items.get(timeout=-1)
    with pytest.raises(ValueError, match="negative"):
        items.put(1, timeout=-1)


def test_who_waits_for_room_gets_it(narrow):
    narrow.put("a")
    narrow.put("b")
    third = give.remote(narrow, "c")
    assert ray.wait([third], timeout=0.2)[0] == []
    assert narrow.get() == "a"
    assert get(third) == "c"
    assert [narrow.get(), narrow.get()] == ["b", "c"]


def test_who_waits_for_an_item_gives_its_cpu_back(cluster, items):
    takers = [take.remote(items) for _ in range(2 * int(cluster.cpus) * cluster.nodes)]
    eventually(resources_are_free, "all takers wait, without their CPUs")
    for value in range(len(takers)):
        items.put(value)
    assert sorted(get(takers)) == list(range(len(takers)))


def test_a_large_item_reaches_who_waits_for_it(items):
    taker = take.remote(items)
    assert ray.wait([taker], timeout=0.2)[0] == []
    items.put(np.arange(100_000))
    assert get(taker).sum() == np.arange(100_000).sum()


def test_batches_go_in_and_come_out_whole(narrow):
    narrow.put_nowait_batch([1, 2])
    with pytest.raises(Full, match="no space for 1 of the"):
        narrow.put_nowait_batch([3])
    with pytest.raises(Empty, match="the queue has 2 items, but 3 were requested"):
        narrow.get_nowait_batch(3)
    assert narrow.get_nowait_batch(2) == [1, 2]
    assert narrow.get_nowait_batch(0) == []
    with pytest.raises(TypeError):
        narrow.put_nowait_batch(3)
    with pytest.raises(ValueError):
        narrow.get_nowait_batch(-1)


def test_a_late_item_goes_to_the_next_and_not_to_who_gave_up(items):
    with pytest.raises(Empty):
        items.get(timeout=0.05)
    items.put("late")
    assert items.get_nowait() == "late"


def test_an_item_is_not_given_to_a_dead_process(items, tally):
    @ray.remote
    class Waiter:
        def take(self):
            tally.add()
            return items.get()

    waiter = Waiter.remote()
    taken = waiter.take.remote()
    eventually(lambda: tally.count == 1, "the actor is about to wait")
    assert ray.wait([taken], timeout=0.2)[0] == []
    ray.kill(waiter)
    with pytest.raises(ActorDiedError):
        get(taken)
    # Who died is known to everybody soon after; until then an item may still go its way.
    eventually(lambda: _put_and_take(items), "an item comes back")


def _put_and_take(items):
    items.put("item")
    try:
        return items.get(timeout=0.1) == "item"
    except Empty:
        return False


def test_a_queue_that_was_shut_down_says_so(items):
    items.put(1)
    items.shutdown()
    assert items.actor is None
    with pytest.raises(ValueError, match="shut down"):
        items.qsize()
    items.shutdown()


def test_who_waits_is_told_when_the_queue_ends(items):
    taker = take.options(max_retries=0).remote(items, None)
    assert ray.wait([taker], timeout=0.2)[0] == []
    items.shutdown(force=True)
    with pytest.raises((ActorDiedError, OwnerDiedError)):
        get(taker)


def test_waiting_for_what_never_comes_is_a_deadlock_in_a_simulation(mode, items):
    if mode == "sim":
        with pytest.raises(SimulationDeadlockError, match="has not reported that the object is ready"):
            items.get()
    else:
        with pytest.raises(Empty):
            items.get(timeout=0.2)


def test_a_maxsize_that_is_no_number_is_refused():
    with pytest.raises(TypeError, match="maxsize"):
        Queue(maxsize="2")
