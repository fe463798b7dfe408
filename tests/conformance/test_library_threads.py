"""Numeric libraries of a task may start as many threads as the task holds CPUs."""

from __future__ import annotations

import os

import pytest

import dualray as ray
from dualray.cluster_utils import Cluster
from tests.conformance.support import get


@ray.remote
def threads():
    return os.environ.get("OMP_NUM_THREADS")


class Holder:
    def __init__(self):
        self.at_birth = threads._function()

    def threads(self):
        return self.at_birth, threads._function()


@pytest.fixture(params=["real", "sim"])
def started(request):
    ray.init(mode=request.param, num_cpus=4)
    yield
    ray.shutdown()


@pytest.mark.usefixtures("started")
def test_a_task_has_as_many_threads_as_cpus_and_one_at_least():
    expected = {1: "1", 2: "2", 0.5: "1", 0: "1", 3.5: "3", 4: "4"}
    for cpus, count in [*expected.items(), *expected.items()]:
        assert get(threads.options(num_cpus=cpus).remote()) == count, cpus
    assert get(ray.remote(num_cpus=3)(Holder).remote().threads.remote()) == ("3", "3")


@pytest.mark.usefixtures("started")
def test_what_a_runtime_environment_says_stays():
    environment = {"env_vars": {"OMP_NUM_THREADS": "7"}}
    assert get(threads.options(num_cpus=2, runtime_env=environment).remote()) == "7"
    assert get(threads.options(num_cpus=2).remote()) == "2"


@pytest.mark.usefixtures("started")
def test_what_a_task_or_the_driver_says_is_its_own():
    assert "OMP_NUM_THREADS" not in os.environ

    @ray.remote(num_cpus=2)
    def change():
        os.environ["OMP_NUM_THREADS"] = "9"
        ray.get(threads.remote())
        return os.environ["OMP_NUM_THREADS"]

    assert get(change.remote()) == "9"
    assert "OMP_NUM_THREADS" not in os.environ


@pytest.mark.parametrize("mode", ["real", "sim"])
def test_what_the_programs_environment_says_stays(mode, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    ray.init(mode=mode, num_cpus=4)
    try:
        assert get([threads.options(num_cpus=cpus).remote() for cpus in (1, 2)]) == ["5", "5"]
    finally:
        ray.shutdown()


@pytest.mark.parametrize("mode", ["real", "sim"])
def test_a_node_has_the_number_of_threads_that_is_set_when_it_is_added(mode: str, monkeypatch: pytest.MonkeyPatch):
    with Cluster(initialize_head=True, connect=True, mode=mode, head_node_args={"num_cpus": 2}) as cluster:
        with monkeypatch.context() as with_variable:
            with_variable.setenv("OMP_NUM_THREADS", "1")
            cluster.add_node(num_cpus=4)
        assert get(threads.options(num_cpus=4).remote()) == "1"
        assert get(threads.options(num_cpus=2).remote()) == "2"
