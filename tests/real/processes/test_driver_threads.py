"""A driver that submits from several threads."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

import dualray as ray
from dualray import runtime
from tests.conformance.support import get


@ray.remote
def is_up():
    return True


@pytest.fixture
def cluster():
    ray.init(mode="real", num_cpus=2)
    assert get(is_up.remote())
    yield
    ray.shutdown()


def test_a_new_function_is_there_before_any_thread_submits_it(cluster, monkeypatch):
    host = runtime.current("the test").verbs.core.host  # type: ignore[attr-defined]
    put, puts = host.put_function, []
    is_being_put = threading.Event()

    def put_late(function, pickled):
        puts.append(function)
        is_being_put.set()
        time.sleep(1.0)  # as long as a control plane may take that has much to do
        put(function, pickled)

    monkeypatch.setattr(host, "put_function", put_late)

    def submit():
        @ray.remote
        def new():
            return "there"

        return get(new.remote())

    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(submit)
        assert is_being_put.wait(20)
        second = threads.submit(submit)
        assert (first.result(20), second.result(20)) == ("there", "there")
    assert len(set(puts)) == 1
