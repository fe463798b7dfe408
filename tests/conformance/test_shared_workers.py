"""Functions that share workers. The workers go back to their node so late that what waits for that does not end."""

from __future__ import annotations

import os

import dualray as ray
from tests.conformance.support import get

HOUR_NS = 3_600_000_000_000


@ray.remote
def double(number):
    return 2 * number, os.getpid()


@ray.remote
def triple(number):
    return 3 * number, os.getpid()


def test_functions_that_alternate_on_one_cpu_share_its_worker(start):
    start(nodes=1, num_cpus=1, limits={"lease_idle_ns": HOUR_NS})
    pids = set()
    for number in range(5):
        for ref, expected in ((double.remote(number), 2 * number), (triple.remote(number), 3 * number)):
            value, pid = get(ref)
            assert value == expected
            pids.add(pid)
    both = [each.remote(number) for number in range(5) for each in (double, triple)]
    assert [value for value, _ in get(both)] == [each * number for number in range(5) for each in (2, 3)]
    assert len(pids) == 1
