"""The generated workloads: one program each, the same result in both modes."""

from typing import Any

import pytest

import dualray
from dualray.sim.runtime import SimRuntime
from dualray.testing.workloads import SURVIVORS, WORKLOADS, workload

SMALL: dict[str, dict[str, Any]] = {
    "allreduce": {"members": 2, "size": 400_000},
    "bag_of_tasks": {"tasks": 6, "seconds": 0.01, "spread": 0.5},
    "chain": {"length": 4, "seconds": 0.01},
    "counters": {"actors": 1, "callers": 2, "calls": 4, "seconds": 0.01},
    "incast": {"senders": 3, "size": 300_000},
    "map_reduce": {"maps": 3, "reduces": 3, "seconds": 0.01},
    "mixed": {"tasks": 8, "seconds": 0.01},
    "nested": {"depth": 2, "fan_out": 2, "seconds": 0.01},
    "parameter_server": {"workers": 2, "steps": 2, "seconds": 0.01},
    "retry_storm": {"tasks": 6, "seconds": 0.01, "failing": 0.5},
    "rollouts": {"batch": 4, "simulators": 2, "updates": 1, "seconds": 0.01},
    "shuffle": {"maps": 3, "reduces": 3, "seconds": 0.01},
    "tree_reduce": {"leaves": 4, "seconds": 0.01},
}


def results(mode):
    dualray.init(mode=mode, num_cpus=4)
    try:
        return {name: workload(name, kwargs)() for name, kwargs in SMALL.items()}
    finally:
        dualray.shutdown()


def test_every_workload_gives_the_same_in_both_modes():
    assert SMALL.keys() == WORKLOADS.keys() >= SURVIVORS
    assert results("real") == results("sim")


def test_a_workload_takes_the_virtual_time_that_it_models():
    runtime = dualray.init(mode="sim", nodes=4, num_cpus=2).runtime
    assert isinstance(runtime, SimRuntime)
    try:
        workload("bag_of_tasks", {"tasks": 16, "seconds": 3.0})()
        assert runtime.now_s == pytest.approx(6, abs=0.1)
    finally:
        dualray.shutdown()


@pytest.mark.parametrize(
    ("name", "kwargs", "message"),
    [
        ("bag_of_taks", {}, "there is no workload 'bag_of_taks'. Did you mean 'bag_of_tasks'?"),
        ("chain", {"lenght": 3}, "chain has no 'lenght'. Did you mean 'length'?"),
    ],
)
def test_what_there_is_not_is_refused_with_the_nearest_name(name, kwargs, message):
    with pytest.raises(ValueError) as refused:
        workload(name, kwargs)
    assert message in str(refused.value)
