"""The log of a driver's process belongs to the program: what is usual in a cluster is no information there."""

from __future__ import annotations

import logging
import os

import pytest

import dualray as ray
from dualray.exceptions import WorkerCrashedError
from tests.conformance.support import eventually, get


@ray.remote(max_retries=0)
def end():
    os._exit(1)


@pytest.fixture
def cluster():
    ray.init(mode="real", num_cpus=2)
    yield
    ray.shutdown()


def test_a_worker_that_ends_leaves_nothing_in_a_log_of_level_info(cluster, caplog):
    caplog.set_level(logging.DEBUG, logger="dualray")
    with pytest.raises(WorkerCrashedError):
        get(end.remote())
    eventually(lambda: "closed its connection" in caplog.text, "the driver notes the lost connection")
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.INFO] == []
