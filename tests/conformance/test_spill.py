"""A full store whose objects go to disk: nothing is lost, and nothing is made twice."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import dualray as ray
from dualray.exceptions import ObjectStoreFullError
from dualray.experimental import get_object_locations
from tests.conformance.support import MIB, get

CLUSTER = {
    "nodes": 1,
    "object_store_memory": 64 * MIB,
    "limits": {"eviction_policy": "spill", "spill_bytes_max": 100 * MIB, "store_wait_ns": 2_000_000_000},
}
pytestmark = pytest.mark.usefixtures("cluster")


@pytest.fixture(autouse=True)
def nothing_is_held_by_cycles(quick_collections):
    """An exception that was caught holds the frames of its test, and with them references, until garbage collection."""
    yield
    gc.collect()


@ray.remote
def block(fill, tally):
    tally.add(fill)
    return np.full(10 * MIB, fill, dtype=np.uint8)


@ray.remote
def total(*arrays):
    return sum(int(array.sum(dtype=np.int64)) for array in arrays)


def put_block(fill, mebibytes=10):
    return ray.put(np.full(mebibytes * MIB, fill, dtype=np.uint8))


def test_more_is_put_than_memory_holds_and_all_of_it_is_there():
    refs = [put_block(fill) for fill in range(13)]
    for _ in range(2):
        for fill, ref in enumerate(refs):
            assert (get(ref) == fill).all()


def test_results_come_back_from_disk_and_are_not_made_again(tally):
    refs = [block.remote(fill, tally) for fill in range(12)]
    assert [int(get(ref)[-1]) for ref in refs] == list(range(12))
    assert [int(get(ref)[0]) for ref in refs] == list(range(12))
    assert tally.count == 12


def test_a_task_reads_arguments_from_disk():
    refs = [put_block(fill) for fill in range(10)]
    assert get(total.remote(refs[0], refs[1], refs[9])) == 10 * 10 * MIB


def test_an_array_that_is_read_stays_where_it_is_while_others_go():
    first = put_block(1)
    array = get(first)
    others = [put_block(fill) for fill in range(2, 12)]
    assert (array == 1).all()
    assert (get(others[0]) == 2).all()
    assert (get(first) == 1).all()


def test_an_object_on_disk_says_so():
    refs = [put_block(fill) for fill in range(8)]
    found = get_object_locations(refs)
    assert [found[ref]["object_size"] > 10 * MIB for ref in refs] == [True] * 8
    assert found[refs[0]]["did_spill"]
    assert not found[refs[-1]]["did_spill"]
    assert {tuple(each["node_ids"]) for each in found.values()} == {("node-0",)}


def test_what_is_dropped_leaves_the_disk():
    for turn in range(4):  # 480 MiB went through 64 and 100
        refs = [put_block(turn) for _ in range(12)]
        assert (get(refs[0]) == turn).all()
        del refs


def test_when_memory_and_disk_are_full_nothing_is_lost_and_the_error_names_both():
    refs = []

    def fill_all():
        for fill in range(17):
            refs.append(put_block(fill))  # noqa: PERF401 - those before the error are kept

    with pytest.raises(ObjectStoreFullError) as caught:
        fill_all()
    assert 15 <= len(refs) <= 16
    assert "of 67,108,864 bytes are in use, and" in str(caught.value)
    assert "of 104,857,600 on disk" in str(caught.value)
    refs.pop()
    refs.pop()
    for fill, ref in enumerate(refs):
        assert (get(ref) == fill).all()


def test_an_object_larger_than_memory_is_refused():
    with pytest.raises(ObjectStoreFullError, match="larger than the whole store"):
        put_block(1, 65)
