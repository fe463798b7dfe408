"""A task that damages the process of its worker loses no other task: docs/security.md says what a user can do."""

from __future__ import annotations

import resource
import sys

import pytest

import dualray as ray
from tests.conformance.support import get, start_cluster


def without_descriptors():
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))
    return "damaged"


def without_modules():
    sys.modules.clear()
    return "damaged"


@ray.remote
def next_task(value):
    return value


@pytest.fixture(autouse=True)
def cluster():
    start_cluster("real", num_cpus=1, log_to_driver=False)
    yield
    ray.shutdown()


@pytest.mark.parametrize("damage", [without_descriptors, without_modules])
def test_a_worker_that_a_task_has_damaged_ends_and_the_next_task_is_tried_again(damage):
    assert get(ray.remote(damage).remote()) == "damaged"
    assert get([next_task.remote(i) for i in range(3)]) == [0, 1, 2]


@pytest.mark.parametrize("damage", [without_descriptors, without_modules])
def test_with_max_calls_the_next_task_runs_at_once(damage):
    assert get(ray.remote(max_calls=1)(damage).remote()) == "damaged"
    assert get(next_task.options(max_retries=0).remote(1)) == 1
