"""The vocabulary of 2017: one body, in both modes and in PYTHON_MODE."""

from __future__ import annotations

import time

import numpy as np
import pytest

import dualray.classic as ray
from dualray.exceptions import AlreadyInitializedError, DualrayError
from tests.conformance.classic_support import RUNTIMES, Counter, add, three


@pytest.fixture(scope="module", params=RUNTIMES)
def started(request):
    """One cluster for the tests that need nothing special."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DUALRAY_MODE", "real" if request.param == "inline" else request.param)
        driver_mode = ray.PYTHON_MODE if request.param == "inline" else ray.SILENT_MODE
        yield ray.init(num_cpus=2, num_gpus=2, driver_mode=driver_mode)
    ray.worker.cleanup()


WITH_IDS = pytest.mark.parametrize("started", ["sim", "real"], indirect=True)
"""In PYTHON_MODE there are no ObjectIDs."""


# ---- Values and calls --------------------------------------------------------------------------------------------


def test_init_returns_addresses(started):
    assert set(started) == {
        "node_ip_address",
        "redis_address",
        "object_store_addresses",
        "local_scheduler_socket_names",
    }
    assert started["node_ip_address"] == ray.services.get_node_ip_address()
    assert started["object_store_addresses"][0].name


@WITH_IDS
@pytest.mark.usefixtures("started")
def test_object_ids():
    one = add.remote(1)
    assert isinstance(one, ray.ObjectID)
    assert str(one) == f"ObjectID({one.hex()})"
    assert len(one.hex()) == 40
    assert one.id() == bytes.fromhex(one.hex())
    assert repr(ray.put(1)).startswith("ObjectID(")
    assert ray.get(one) == 2
    assert ray.get([one, add.remote(one, one)]) == [2, 4]
    assert ray.get([]) == []


@WITH_IDS
@pytest.mark.usefixtures("started")
def test_object_ids_travel():
    @ray.remote
    def look(box):
        return repr(box[0]), ray.get(box[0]), box

    one = ray.put([1, 2])
    text, value, box = ray.get(look.remote([one]))
    assert (text, value) == (repr(one), [1, 2])
    assert box == [one]
    assert type(box[0]) is ray.ObjectID


@pytest.mark.usefixtures("started")
def test_several_return_values():
    a, b, c = three.remote()
    assert ray.get([a, b, c]) == [1, 2, 3]
    assert ray.get(three.options(num_return_vals=1).remote()) == (1, 2, 3)


@pytest.mark.usefixtures("started")
def test_nested_calls_and_handles():
    @ray.remote
    def outer(counter, n):
        results = [add.remote(i) for i in range(n)]
        return sum(ray.get(results)), ray.get(counter.increment(5))

    assert ray.get(outer.remote(Counter(1), 4)) == (10, 6)


@pytest.mark.usefixtures("started")
def test_both_forms_of_actors():
    @ray.actor
    class Old:
        def value(self):
            return "old"

    one, two = Counter(10), Counter.remote(20)
    assert ray.get([one.increment(), one.increment.remote(), two.increment(by=2)]) == [11, 12, 22]
    assert ray.get(Old().value()) == "old"
    assert ray.get(ray.remote(Old._cls)().value()) == "old"
    assert ray.get(one.place()).count(".") == 3
    with pytest.raises(AttributeError, match=r"has no method 'incremnt'\. Did you mean 'increment'"):
        one.incremnt()


@pytest.mark.usefixtures("started")
def test_gpus():
    @ray.actor(num_gpus=1)
    class Gpu:
        def ids(self):
            return ray.get_gpu_ids()

    @ray.remote(num_gpus=2)
    def both():
        return ray.get_gpu_ids()

    assert ray.get(both.remote()) == [0, 1]
    actors = [Gpu(), Gpu()]
    assert sorted(number for ids in ray.get([actor.ids() for actor in actors]) for number in ids) == [0, 1]
    assert ray.get_gpu_ids() == []
    too_many = ray.remote(num_gpus=3)(lambda: None)
    with pytest.raises(DualrayError, match=r"cannot be scheduled|can never run"):  # the latter in PYTHON_MODE, at once
        ray.get(too_many.remote())
    del actors


@pytest.mark.usefixtures("started")
def test_values_are_immutable_and_copied():
    @ray.remote
    def spoil(values):
        values.append(4)
        return values

    mine = [1, 2, 3]
    assert ray.get(spoil.remote(mine)) == [1, 2, 3, 4]
    assert mine == [1, 2, 3]
    array = ray.get(ray.put(np.zeros(100_000)))
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1


# ---- wait --------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("started")
def test_wait_counts_milliseconds():
    @ray.remote
    def sleep(seconds):
        time.sleep(seconds)
        return seconds

    results = [sleep.remote(seconds) for seconds in (0, 0.05)]
    ready, rest = ray.wait(results, num_returns=4, timeout=20_000)
    assert (ready, rest) == (results, [])
    ready, rest = ray.wait([add.remote(1)])
    assert (ray.get(ready), rest) == ([2], [])
    assert ray.wait([], timeout=0) == ([], [])


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda x: ray.wait([x], num_returns=2), ValueError, "num_returns=2 must be between 1"),
        (lambda x: ray.wait(x), TypeError, "takes a list"),
        (lambda x: ray.wait([x], timeout="1"), TypeError, "milliseconds"),
        (lambda x: ray.wait([x], timeout=-1), ValueError, "must not be negative"),
        (lambda x: ray.init(), AlreadyInitializedError, "ray.worker.cleanup"),
        (lambda x: ray.remote(num_retrun_vals=2)(abs), ValueError, "num_retrun_vals"),
        (lambda x: ray.remote(num_return_vals=2, num_returns=2)(abs), TypeError, "two names"),
        (lambda x: ray.actor(abs), TypeError, "not a class"),
        (lambda x: ray.remote(add), TypeError, "remote already"),
        (lambda x: ray.register_class(3), TypeError, "not a class"),
        (lambda x: setattr(ray.env, "n", 3), TypeError, "EnvironmentVariable"),
        (lambda x: ray.EnvironmentVariable(3), TypeError, "cannot be called"),
        (lambda x: ray.env.unknown, AttributeError, "ray.env has no variable 'unknown'"),
        (lambda x: ray.global_state.task_table("00"), KeyError, "the task table has no row for 00"),
        (lambda x: add(1), TypeError, "add.remote"),
    ],
    ids=range(15),
)
@pytest.mark.usefixtures("started")
def test_what_is_refused(call, error, words):
    with pytest.raises(error, match=words):
        call(ray.put(1))


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda x: ray.wait([x, x]), ValueError, "duplicates"),
        (lambda x: ray.put(x), TypeError, ": use the ObjectID itself, or put a list"),
        (lambda x: ray.get("x"), TypeError, "'x'"),
    ],
    ids=range(3),
)
@WITH_IDS
@pytest.mark.usefixtures("started")
def test_what_is_refused_of_ids(call, error, words):
    with pytest.raises(error, match=words):
        call(ray.put(1))
