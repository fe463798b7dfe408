"""Programs whose data exceed the object store, with the defaults: objects go to disk, or are cheap to make again."""

from __future__ import annotations

import time

import numpy as np
import pytest

import dualray as ray
from dualray.exceptions import ObjectStoreFullError
from tests.conformance.support import MIB, get

CLUSTER = {"nodes": 1, "object_store_memory": 40 * MIB, "limits": {"store_wait_ns": 1_000_000_000}}
pytestmark = pytest.mark.usefixtures("cluster")

TIME = "lognormal(5ms, 1)"
"""Of a task in a simulation: real ones vary, too."""


@ray.remote(duration=TIME)
def base(number, tally):
    tally.add(f"base {number}")
    return np.full(3 * MIB, number, dtype=np.uint8)


@ray.remote(duration=TIME)
def plus(array, more, tally):
    tally.add(f"plus {array[0]}")
    return array + np.uint8(more)


SLOW_S = 0.02
"""A task that takes this long is not run again to save a write, unless the disk is ten times slower."""


@ray.remote(duration=TIME)
def slow_base(number, tally):
    tally.add(f"base {number}")
    time.sleep(SLOW_S)
    return np.full(3 * MIB, number, dtype=np.uint8)


@ray.remote(duration=TIME)
def slow_plus(array, more, tally):
    tally.add(f"plus {array[0]}")
    time.sleep(SLOW_S)
    return array + np.uint8(more)


def _compute_twice(base, plus, tally):
    first = [base.remote(number, tally) for number in range(15)]
    second = [plus.remote(ref, 100, tally) for ref in first]
    for _ in range(2):
        assert [int(get(ref)[-1]) for ref in second] == list(range(100, 115))
    assert [int(get(ref)[-1]) for ref in first] == list(range(15))


def test_two_rounds_over_twice_the_store_end_and_little_is_made_twice(tally):
    _compute_twice(slow_base, slow_plus, tally)
    assert 30 <= tally.count <= 45


def test_no_object_that_is_cheap_to_make_is_made_more_than_twice(tally):
    """How many are made twice depends on the time that the disk takes."""
    _compute_twice(base, plus, tally)
    assert max(tally.notes.count(note) for note in tally.notes) <= 2


def test_puts_beyond_the_store_go_to_disk_and_come_back():
    refs = [ray.put(np.full(10 * MIB, number, dtype=np.uint8)) for number in range(12)]
    for _ in range(2):
        for number, ref in enumerate(refs):
            array = get(ref)
            assert (array[0], array[-1]) == (number, number)


def test_an_actors_results_go_to_disk():
    @ray.remote
    class Maker:
        def __init__(self):
            self.made = 0

        def block(self):
            self.made += 1
            return np.full(10 * MIB, self.made, dtype=np.uint8)

    maker = Maker.remote()
    refs = [maker.block.remote() for _ in range(8)]
    assert [int(get(ref)[0]) for ref in refs] == list(range(1, 9))
    assert [int(get(ref)[0]) for ref in refs] == list(range(1, 9))


def test_a_variable_that_keeps_the_store_full_is_named_with_its_line():
    kept = [ray.get(ray.put(np.full(10 * MIB, number, dtype=np.uint8))) for number in range(3)]
    with pytest.raises(ObjectStoreFullError) as caught:
        ray.put(np.zeros(20 * MIB, dtype=np.uint8))
    message = str(caught.value)
    line = test_a_variable_that_keeps_the_store_full_is_named_with_its_line.__code__.co_firstlineno + 1
    assert message.count(f"{__file__}:{line}") == 3
    assert "delete the variables, or copy the data that they need" in message
    del kept, caught
    get(ray.put(np.zeros(20 * MIB, dtype=np.uint8)))


PARTS = 6


@ray.remote(num_returns=PARTS, duration=TIME)
def stage(number, *parts):
    number = sum(int(part[0]) for part in parts) if parts else number
    return tuple(np.full(MIB // 4, number + part, dtype=np.int64) for part in range(PARTS))


def test_a_shuffle_of_three_stages_in_half_of_one_ends():
    rows = [stage.remote(number) for number in range(PARTS)]
    expected = list(range(PARTS))
    for _ in range(2):
        rows = [stage.remote(0, *(row[part] for row in rows)) for part in range(PARTS)]
        expected = [sum(number + part for number in expected) for part in range(PARTS)]
    for number, row in zip(expected, rows, strict=True):
        assert [int(get(part)[-1]) for part in row] == [number + part for part in range(PARTS)]
