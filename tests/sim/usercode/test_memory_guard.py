"""User code of a simulation that takes too much memory of the machine that simulates."""

from __future__ import annotations

import os
import resource
import sys
from typing import Any

import numpy as np
import pytest

import dualray as ray
from dualray.exceptions import OutOfMemoryError, TaskError
from dualray.machine_memory import machine_memory, own_bytes

MIB = 1 << 20
LIMITS = {"memory_limit_bytes": 300 * MIB, "memory_check_ns": 20_000_000}

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="own memory is read from /proc")


@pytest.fixture
def simulation():
    ray.init(mode="sim", num_cpus=2, limits=LIMITS)
    yield
    ray.shutdown()


def take_without_end():
    chunks = []
    while True:
        chunks.append(np.ones(10 * MIB, dtype=np.uint8))


@ray.remote
def well():
    return 1


def test_a_task_that_takes_memory_without_end_is_ended_and_tried_again(simulation):

    @ray.remote(max_retries=1)
    def leak():
        print("begun")
        take_without_end()

    before = own_bytes(os.getpid())
    with pytest.raises(OutOfMemoryError, match=r"leak .* was out of memory: .* is 300.0 MiB\..* It was tried 2 times"):
        ray.get(leak.remote())
    assert ray.get(well.remote()) == 1
    assert own_bytes(os.getpid()) - before < 150 * MIB, "what it had is given back"


def test_it_is_not_held_up_by_a_broad_except(simulation):
    @ray.remote(max_retries=0)
    def leak():
        chunks = []
        while True:
            try:
                chunks.append(np.ones(10 * MIB, dtype=np.uint8))
            except Exception:  # noqa: BLE001 - as programs say it
                chunks = chunks[:]

    with pytest.raises(OutOfMemoryError):
        ray.get(leak.remote())


def test_an_actor_that_keeps_more_and_more_is_ended(simulation):
    class Keeper:
        def __init__(self):
            self.kept = []

        def keep(self):
            self.kept.append(np.ones(10 * MIB, dtype=np.uint8))

    keeper: Any = ray.remote(Keeper).remote()
    before = own_bytes(os.getpid())

    def keep_on():
        while True:
            ray.get(keeper.keep.remote())

    with pytest.raises(OutOfMemoryError, match="which held an actor"):
        keep_on()
    assert ray.get(well.remote()) == 1
    assert own_bytes(os.getpid()) - before < 150 * MIB


def test_a_driver_gets_the_error_itself(simulation):
    with pytest.raises(
        OutOfMemoryError, match=r"the driver has used too much .* is 300.0 MiB.* Use less memory at a time"
    ):
        take_without_end()
    assert ray.get(well.remote()) == 1


def test_a_driver_may_hold_what_it_has_while_it_handles_the_error(simulation):
    chunks = []

    def take_more():
        while True:
            chunks.append(np.ones(10 * MIB, dtype=np.uint8))

    with pytest.raises(OutOfMemoryError):
        take_more()
    for _ in range(10_000_000):  # that takes many looks
        pass
    with pytest.raises(OutOfMemoryError):  # but not more
        take_more()


def test_values_in_the_stores_are_named(simulation):
    def put_on():
        kept = []
        while True:
            kept.append(ray.put(np.ones(10 * MIB, dtype=np.uint8)))

    with pytest.raises(OutOfMemoryError, match=r"values in the simulated stores use"):
        put_on()


def test_a_request_for_more_than_is_left_is_refused_before_the_machine_is_full():
    memory = machine_memory()
    percent = 100 * memory.used_bytes // memory.total_bytes + 2
    ray.init(mode="sim", num_cpus=2, limits={"memory_limit_percent": percent})
    before = resource.getrlimit(resource.RLIMIT_DATA)

    @ray.remote(max_retries=0)
    def ask(share, kind):
        while resource.getrlimit(resource.RLIMIT_DATA) == before:  # the first look
            pass
        size = int(machine_memory().total_bytes * share)
        return len(np.ones(size, dtype=np.uint8) if kind == "numpy" else bytearray(size))

    try:
        with pytest.raises(OutOfMemoryError):
            ray.get(ask.remote(0.9, "numpy"))
        for share, kind in ((1000, "numpy"), (1000, "bytes")):  # no machine has that: as in real mode
            with pytest.raises(TaskError) as raised:
                ray.get(ask.remote(share, kind))
            assert isinstance(raised.value.cause, MemoryError)
    finally:
        ray.shutdown()
    assert resource.getrlimit(resource.RLIMIT_DATA) == before


def test_an_error_that_a_program_raises_itself_stays_its_own(simulation):
    @ray.remote(max_retries=0)
    def fail():
        raise MemoryError("no space in my table")

    with pytest.raises(TaskError, match="no space in my table"):
        ray.get(fail.remote())


def test_it_can_be_switched_off():
    ray.init(mode="sim", num_cpus=2, limits={"memory_limit_bytes": 100 * MIB, "memory_check_ns": 0})

    @ray.remote(max_retries=0)
    def take():
        return len(np.ones(200 * MIB, dtype=np.uint8))

    try:
        assert ray.get(take.remote()) == 200 * MIB
    finally:
        ray.shutdown()
