"""Calls of functions that are not executed: `execute=False`."""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator

import pytest

import dualray as ray
from dualray.machine_memory import machine_memory

GIB = 1 << 30


@ray.remote(execute=False)
def modelled(*_):
    raise AssertionError("it is not to run")


@ray.remote
def size_of(value):
    return repr(value)


@pytest.fixture
def cluster() -> Iterator[None]:
    ray.init(mode="sim", nodes=2, num_cpus=4, object_store_memory=4 * GIB)
    yield
    ray.shutdown()


@pytest.mark.usefixtures("cluster")
def test_it_takes_its_time_and_returns_what_is_said():
    began_s = time.time()
    assert ray.get(modelled.options(duration=7.0).remote(1)) is None
    assert 7 < time.time() - began_s < 7.1
    assert ray.get(modelled.options(returns={"loss": 0.5}).remote()) == {"loss": 0.5}
    assert ray.get(modelled.options(num_returns=2, returns="both").remote()) == ["both", "both"]


@pytest.mark.usefixtures("cluster")
def test_its_arguments_come_first():
    began_s = time.time()
    ray.get(modelled.options(duration=1.0).remote(modelled.options(duration=2.0).remote()))
    assert 3 < time.time() - began_s < 3.1


@pytest.mark.parametrize("size", [2 * GIB, "2GiB"])
@pytest.mark.usefixtures("cluster")
def test_what_it_returns_counts_as_large_as_is_said(size):
    began_s = time.time()
    ref = modelled.options(returns="weights", returns_size=size, resources=None).remote()
    ray.wait([ref], fetch_local=False)
    written_s = time.time() - began_s
    assert written_s > 0.1, "2 GiB are written into the store"
    assert ray.get(size_of.remote(ref)) == "'weights'"
    elsewhere = [node["NodeID"] for node in ray.nodes() if node["NodeID"] != "node-0"]
    affinity = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(elsewhere[0], soft=False)
    before_s = time.time()
    assert ray.get(size_of.options(scheduling_strategy=affinity).remote(ref)) == "'weights'"
    assert time.time() - before_s > 1, "2 GiB pass through a network card of 10 Gbit/s"


@pytest.mark.usefixtures("cluster")
def test_large_results_take_no_memory_of_this_machine():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    refs = [modelled.options(returns_size="1GiB").remote() for _ in range(24)]  # more than the stores: some are spilled
    ray.wait(refs, num_returns=len(refs), fetch_local=False)
    assert ray.get(size_of.remote(refs[-1])) == "None"
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000, "kB"


def test_large_results_need_no_free_memory_of_this_machine():
    memory = machine_memory()
    percent = 100 * memory.used_bytes // memory.total_bytes + 2
    before = resource.getrlimit(resource.RLIMIT_DATA)
    ray.init(mode="sim", nodes=2, object_store_memory=8 * GIB, limits={"memory_limit_percent": percent})
    try:
        while resource.getrlimit(resource.RLIMIT_DATA) == before:  # until the memory guard looks
            pass
        refs = [modelled.options(returns_size="3GiB").remote() for _ in range(2)]
        assert ray.get(refs) == [None, None]
    finally:
        ray.shutdown()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"execute": 1}, "execute=1 must be True or False"),
        (
            {"execute": True, "returns": 1},
            "returns= works only for calls that the simulation does not execute; add execute=False",
        ),
        ({"execute": True, "returns_size": 1}, "returns_size= works only for calls"),
        ({"returns_size": -1}, "returns_size=-1 must not be negative"),
        ({"returns_size": "2 apples"}, "returns_size"),
        ({"returns_size": 1.5}, "must be a number of bytes"),
        ({"num_returns": "streaming"}, "num_returns='streaming' must be a number, because execute=False is set"),
        ({"exekute": False}, "Did you mean 'execute'"),
    ],
)
def test_what_makes_no_sense_is_refused(options, words):
    with pytest.raises((TypeError, ValueError), match=words):
        modelled.options(**options)


@pytest.mark.usefixtures("cluster")
def test_a_generator_needs_a_number():
    @ray.remote(execute=False)
    def items():
        yield 1

    with pytest.raises(ValueError, match="needs a number as num_returns=, because the function is a generator"):
        items.remote()


def test_real_mode_runs_it():
    @ray.remote(execute=False, returns=1)
    def answer():
        return 42

    ray.init(mode="real", num_cpus=1)
    try:
        assert ray.get(answer.remote()) == 42
    finally:
        ray.shutdown()
