"""A store that is nearly full gets room from references that only Python's garbage collector would find."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import dualray as ray
from tests.conformance.support import MIB, get

CLUSTER = {
    "nodes": 1,
    "object_store_memory": 64 * MIB,
    "limits": {"eviction_policy": "lru", "store_wait_ns": 5_000_000_000, "garbage_ns": 100_000_000},
}
pytestmark = pytest.mark.usefixtures("cluster")


def put_block(fill):
    return ray.put(np.full(10 * MIB, fill, dtype=np.uint8))


@ray.remote(num_cpus=0)
class Knots:
    def __init__(self):
        gc.disable()

    def tie(self, refs):
        loop = [refs]
        loop.append(loop)

    def put_and_tie(self, fill):
        self.tie([put_block(fill)])


def test_a_full_store_gets_room_from_references_in_cycles_of_their_owner():
    knots = Knots.remote()
    for fill in range(16):
        get(knots.put_and_tie.remote(fill))


def test_a_full_store_gets_room_from_references_in_cycles_of_a_borrower():
    knots = Knots.remote()
    for fill in range(16):
        get(knots.tie.remote([put_block(fill)]))


def test_the_arguments_of_a_failed_task_are_freed_while_its_error_is_kept():
    @ray.remote(max_retries=0)
    def fail(refs):
        get(refs)
        raise ValueError("it failed")

    kept = []
    for fill in range(16):  # together they are larger than the store
        kept.append(fail.remote([put_block(fill)]))
        with pytest.raises(ValueError, match="it failed"):
            get(kept[-1])
    assert len(kept) == 16
