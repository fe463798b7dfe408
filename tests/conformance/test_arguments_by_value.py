"""Arguments that are too large to travel with a call: they lie in room that their owner keeps in its node's store."""

from __future__ import annotations

import gc
import os

import numpy as np
import pytest

import dualray as ray
from dualray.exceptions import WorkerCrashedError
from tests.conformance.support import MIB, get

CLUSTER = {"nodes": 1, "object_store_memory": 64 * MIB, "limits": {"store_wait_ns": 5_000_000_000}}
pytestmark = pytest.mark.usefixtures("cluster")


@pytest.fixture(autouse=True)
def nothing_is_held_by_cycles(quick_collections):
    """An exception that was caught holds the frames of its test, and with them references, until garbage collection."""
    yield
    gc.collect()


@ray.remote(num_cpus=0)
def total(array):
    return int(array.sum(dtype=np.int64))


def full(fill, mebibytes=1):
    return np.full(mebibytes * MIB, fill, dtype=np.uint8)


def fill_the_store():
    """All but 4 MiB of it, with objects that cannot leave."""
    return [ray.put(full(fill, 10)) for fill in range(6)]


def test_each_call_gets_the_array_as_it_was_when_it_was_called():
    array = full(0)
    sums = []
    for number in range(60):
        array[:] = number
        sums.append(total.remote(array))
    assert get(sums) == [number * MIB for number in range(60)]


def test_arrays_of_many_sizes_use_the_same_room():
    sizes = [MIB // 8 * (1 + number % 13) for number in range(40)]
    for turn in range(3):
        sums = get([total.remote(np.full(size, turn + 1, dtype=np.uint8)) for size in sizes])
        assert sums == [size * (turn + 1) for size in sizes]


def test_an_actor_keeps_what_it_was_given():
    @ray.remote(num_cpus=0)
    class Keeper:
        def __init__(self):
            self.kept = []

        def take(self, array, keep):
            if keep:
                self.kept.append(array)
            return int(array[0])

        def look(self):
            return [int(array.min()) for array in self.kept], [int(array.max()) for array in self.kept]

    keeper = Keeper.remote()
    for number in range(40):
        assert get(keeper.take.remote(full(number), number % 8 == 0)) == number
    kept = [0, 8, 16, 24, 32]
    assert get(keeper.look.remote()) == (kept, kept)


def test_a_part_of_an_argument_can_be_returned():
    @ray.remote(num_cpus=0)
    def second_half(array):
        return array[MIB // 2 :]

    parts = [second_half.remote(full(number)) for number in range(20)]
    assert [int(part.min()) for part in get(parts)] == list(range(20))


def test_what_an_idle_process_keeps_is_room_for_others():
    @ray.remote(num_cpus=0)
    class Idle:
        def keep_room(self):
            return get([total.remote(full(1, 7)) for _ in range(4)])

    idle = Idle.remote()
    assert get(idle.keep_room.remote()) == [7 * MIB] * 4
    assert [int(get(ref)[0]) for ref in fill_the_store()] == list(range(6))


def test_what_a_process_kept_when_it_died_is_free_again():
    @ray.remote(num_cpus=0, max_retries=0)
    def die():
        assert get([total.remote(full(1, 7)) for _ in range(4)]) == [7 * MIB] * 4
        os._exit(1)

    with pytest.raises(WorkerCrashedError):
        get(die.remote())
    assert [int(get(ref)[0]) for ref in fill_the_store()] == list(range(6))


def test_a_task_whose_worker_died_gets_the_same_array_again(tally):
    @ray.remote(num_cpus=0, max_retries=1)
    def dies_once(array):
        if tally.add(int(array[0])) == 1:
            os._exit(1)
        return int(array.min()), int(array.max())

    first = dies_once.remote(full(7))
    others = [total.remote(full(9)) for _ in range(20)]
    assert get(first) == (7, 7)
    assert get(others) == [9 * MIB] * 20
    assert tally.notes == ["7", "7"]


def test_what_is_read_stays_when_its_owner_dies(tally, gate):
    @ray.remote(num_cpus=0)
    class Reader:
        def read(self, array):
            tally.add("begun")
            gate.wait()
            tally.add(f"{array.min()} {array.max()} {len(array)}")

        def ping(self):
            return "pong"

    @ray.remote(num_cpus=0, max_retries=0)
    def owner(reader):
        reader.read.remote(full(5, 7))
        while "begun" not in tally.notes:
            ray.wait([total.remote(full(3, 7))])
        os._exit(1)

    reader = Reader.remote()
    get(reader.ping.remote())
    with pytest.raises(WorkerCrashedError):
        get(owner.remote(reader))
    for turn in range(10):  # they use all the memory that is free again
        blocks = [ray.put(full(100 + turn, 8)) for _ in range(6)]
        assert all(int(get(ref)[-1]) == 100 + turn for ref in blocks)
        del blocks
        gc.collect()
    gate.open()
    assert get(reader.ping.remote()) == "pong"
    assert tally.notes[1:] == [f"5 5 {7 * MIB}"]


def test_arguments_of_tasks_that_wait_are_objects_like_others_under_pressure(gate):
    @ray.remote(num_cpus=0)
    class Slow:
        def take(self, array):
            gate.wait()
            return int(array.min()), int(array.max())

    slow = Slow.remote()
    results = [slow.take.remote(full(number, 4)) for number in range(8)]
    blocks = [ray.put(full(50, 10)) for _ in range(3)]
    gate.open()
    assert get(results) == [(number, number) for number in range(8)]
    assert [int(get(ref)[0]) for ref in blocks] == [50] * 3
