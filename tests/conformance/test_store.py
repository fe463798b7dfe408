from __future__ import annotations

import gc
import os
import time

import numpy as np
import pytest

import dualray as ray
from dualray.exceptions import ActorDiedError, ObjectStoreFullError, TaskError, WorkerCrashedError
from tests.conformance.support import MIB, get, storage_of

CLUSTER = {
    "nodes": 1,
    "object_store_memory": 64 * MIB,
    "limits": {"eviction_policy": "lru", "store_wait_ns": 300_000_000},
}
pytestmark = pytest.mark.usefixtures("cluster")


@pytest.fixture(autouse=True)
def nothing_is_held_by_cycles(quick_collections):
    """An exception that was caught holds the frames of its test, and with them references, until garbage collection."""
    yield
    gc.collect()


@ray.remote
def block(fill, tally, mebibytes=10):
    tally.add(fill)
    return np.full(mebibytes * MIB, fill, dtype=np.uint8)


@ray.remote
def plus_one(array, tally):
    tally.add(f"plus_one {array[0]}")
    return array + 1


@ray.remote(num_cpus=0)
class Maker:
    def block(self, fill, mebibytes=10):
        return np.full(mebibytes * MIB, fill, dtype=np.uint8)


def put_block(fill, mebibytes=10):
    return ray.put(np.full(mebibytes * MIB, fill, dtype=np.uint8))


# ---- Eviction and reconstruction -----------------------------------------------------------------------------------


def test_more_results_than_the_store_holds_are_made_again_when_they_are_read(tally):
    refs = [block.remote(fill, tally) for fill in range(10)]
    ray.wait(refs, num_returns=10, timeout=20, fetch_local=False)
    assert tally.count == 10
    assert [int(get(ref)[-1]) for ref in refs] == list(range(10))
    assert 14 <= tally.count <= 20  # 100 MiB went through 64: at least four were evicted, none twice


def test_the_result_used_longest_ago_leaves_first(tally):
    refs = [block.remote(fill, tally) for fill in range(6)]
    for ref in refs:
        assert get(ref) is not None
    get(refs[0])  # used again
    get(block.remote(6, tally))
    get(refs[0])
    assert tally.count == 7
    assert get(refs[1])[0] == 1
    assert tally.notes[7:] == ["1"]


def test_what_a_lost_result_was_made_from_is_made_again_too(tally):
    first = block.remote(1, tally)
    second = plus_one.remote(first, tally)
    third = plus_one.remote(second, tally)
    assert get(third)[0] == 3
    others = [block.remote(100 + fill, tally) for fill in range(6)]
    for ref in others:
        get(ref)
    before = tally.count
    assert get(third)[0] == 3
    assert tally.notes[before:] == ["1", "plus_one 1", "plus_one 2"]


def test_an_argument_whose_reference_is_gone_is_made_again_for_its_descendant(tally):
    second = plus_one.remote(block.remote(1, tally), tally)
    assert get(second)[0] == 2
    for fill in range(6):
        get(block.remote(100 + fill, tally))  # dropped at once
    kept = [block.remote(200 + fill, tally) for fill in range(6)]
    for ref in kept:
        get(ref)
    before = tally.count
    assert get(second)[0] == 2
    assert tally.notes[before:] == ["1", "plus_one 1"]


@ray.remote(num_returns=4, max_retries=-1)
def quarters(number):
    return tuple(np.full(3 * MIB, 4 * number + quarter, dtype=np.uint8) for quarter in range(4))


@ray.remote(max_retries=-1)
def total(*blocks):
    return sum(int(each[-1]) for each in blocks)


def test_a_shuffle_larger_than_the_store_ends():
    """Each argument that is made again costs another its place: but not those of the task that has waited longest."""
    rows = [quarters.remote(number) for number in range(8)]  # 96 MiB through 64
    sums = [total.remote(*(row[quarter] for row in rows)) for quarter in range(4)]
    assert ray.get(sums, timeout=60) == [112 + 8 * quarter for quarter in range(4)]


def test_what_is_read_is_not_evicted(tally):
    ref = block.remote(99, tally, 20)
    array = get(ref)
    later = [block.remote(fill, tally) for fill in range(8)]
    for other in later:
        get(other)
    assert (array == 99).all()
    assert storage_of(get(ref)) == storage_of(array)
    assert tally.notes.count("99") == 1


def test_what_a_running_task_reads_is_not_evicted(tally, gate):
    @ray.remote(num_cpus=0)
    def hold(array):
        gate.wait()
        return int(array.sum(dtype=np.int64))

    held = hold.remote(block.remote(1, tally, 20))
    for fill in range(6):
        get(block.remote(10 + fill, tally))
    gate.open()
    assert get(held) == 20 * MIB
    assert tally.notes.count("1") == 1


def test_a_result_that_may_not_be_made_again_is_not_evicted(tally):
    once = block.options(max_retries=0).remote(1, tally, 20)
    get(once)
    for fill in range(6):
        get(block.remote(10 + fill, tally))
    assert get(once)[0] == 1
    assert tally.notes.count("1") == 1


def test_a_result_is_made_again_as_often_as_it_is_evicted_and_that_uses_no_retry(tally):
    often = block.options(max_retries=1).remote(1, tally, 20)
    get(often)
    for turn in range(3):
        others = [block.remote(10 + fill, tally) for fill in range(5)]
        for ref in others:
            get(ref)
        assert get(often)[0] == 1, f"turn {turn}"
        del others
    assert tally.notes.count("1") == 4


def test_results_of_actors_are_not_evicted(tally):
    maker = Maker.remote()
    ref = maker.block.remote(1, 20)
    get(ref)
    for fill in range(6):
        get(block.remote(10 + fill, tally))
    assert get(ref)[0] == 1


def test_a_result_made_from_a_dropped_put_is_still_there_after_pressure_on_the_store(tally):
    """What cannot be made again because the put that it came from is gone must not be evicted."""
    result = plus_one.remote(np.full(10 * MIB, 1, dtype=np.uint8), tally)
    assert get(result)[0] == 2
    others = [block.remote(10 + fill, tally) for fill in range(7)]
    for ref in others:
        get(ref)
    assert get(result)[0] == 2


# ---- Full ----------------------------------------------------------------------------------------------------------


def test_objects_that_were_put_are_not_evicted_and_a_full_store_says_who_holds_it():
    refs = [put_block(fill) for fill in range(6)]
    with pytest.raises(ObjectStoreFullError) as caught:
        put_block(6)
    message = str(caught.value)
    assert "found no room within 0.3 s on node-0" in message
    assert "of 67,108,864 bytes are in use" in message
    assert refs[0].hex()[:8] in message
    assert "owner driver-1" in message
    assert message.count("owner driver-1") == 5  # the largest holders, not all
    assert "Delete references or arrays" in message
    assert "object_store_memory=" in message
    assert [int(get(ref)[0]) for ref in refs] == list(range(6))


def test_a_full_store_has_room_again_when_references_go():
    refs = [put_block(fill) for fill in range(6)]
    refs.pop()
    refs.append(put_block(7))
    assert [int(get(ref)[0]) for ref in refs] == [0, 1, 2, 3, 4, 7]


def test_a_put_waits_for_room_that_is_about_to_come():
    @ray.remote(num_cpus=0)
    def hold(refs):
        time.sleep(0.1)

    refs = [put_block(fill) for fill in range(6)]
    running = hold.remote(refs)
    del refs
    assert get(put_block(9))[0] == 9
    get(running)


def test_an_object_larger_than_the_store_is_refused_at_once():
    with pytest.raises(ObjectStoreFullError, match="is larger than the whole store"):  # and not "no room within 0.3 s"
        put_block(1, 65)
    with pytest.raises(ObjectStoreFullError, match="larger than the whole store"):
        get(plus_one.remote(np.zeros(65 * MIB, dtype=np.uint8), None))


def test_arguments_that_were_stored_go_when_another_finds_no_room():
    with pytest.raises(ObjectStoreFullError, match="larger than the whole store"):
        plus_one.remote(np.zeros(40 * MIB, dtype=np.uint8), np.zeros(65 * MIB, dtype=np.uint8))
    assert get(put_block(1, 60))[0] == 1


def test_a_result_for_which_there_is_no_room_is_an_error_of_its_task(tally):
    refs = [put_block(fill) for fill in range(6)]
    with pytest.raises(ObjectStoreFullError, match="Largest holders") as caught:
        get(block.options(max_retries=0).remote(1, tally))
    assert isinstance(caught.value, TaskError)
    assert caught.value.function_name == "block"
    del refs
    assert get(block.remote(1, tally))[0] == 1


def test_small_values_need_no_room_in_the_store():
    refs = [put_block(fill) for fill in range(6)]
    assert get([ray.put(index) for index in range(100)]) == list(range(100))
    assert len(refs) == 6


# ---- Where objects lie ---------------------------------------------------------------------------------------------


def test_room_in_pieces_is_room():
    """Free memory that lies between objects in use serves an object larger than any piece of it."""
    refs = [put_block(fill, 4) for fill in range(15)]
    kept = refs[::2]
    del refs
    large = put_block(99, 28)
    assert (get(large) == 99).all()
    assert [int(get(ref)[-1]) for ref in kept] == list(range(0, 15, 2))


def test_arrays_of_one_object_share_its_memory_and_start_aligned():
    ref = ray.put({"a": np.arange(200_000), "b": [np.ones((300, 300)), b"x" * 200_000]})
    first, second = get(ref), get(ref)
    assert storage_of(first["a"]) == storage_of(second["a"])
    assert first["a"].ctypes.data % 64 == 0
    assert not first["b"][0].flags.writeable


def test_a_part_of_an_array_keeps_the_object(tally):
    part = get(block.remote(7, tally, 20))[5 * MIB : 5 * MIB + 10]
    gc.collect()
    for fill in range(8):
        get(block.remote(10 + fill, tally))
    assert (part == 7).all()


def test_what_a_worker_was_reading_when_it_died_is_free_again(tally):
    @ray.remote(num_cpus=0, max_retries=0)
    def die(array):
        os._exit(int(array[0]))

    @ray.remote(num_cpus=0)
    class Keeper:
        def keep(self, array):
            self.array = array

        def die(self):
            os._exit(1)

    with pytest.raises(WorkerCrashedError):
        get(die.remote(put_block(1, 40)))
    keeper = Keeper.remote()
    get(keeper.keep.remote(put_block(1, 40)))
    with pytest.raises(ActorDiedError):
        get(keeper.die.remote())
    gc.collect()
    assert get(put_block(2, 50))[0] == 2


def test_bytes_that_were_freed_never_show_up_under_an_array():
    """Memory is used again and again, and each array keeps what it was given."""
    kept = []
    for turn in range(60):
        array = get(put_block(turn, 3))
        if turn % 10 == 0:
            kept.append((turn, array))
    for turn, array in kept:
        assert (array == turn).all()
