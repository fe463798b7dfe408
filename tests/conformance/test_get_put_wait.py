from __future__ import annotations

import time

import pytest

import dualray as ray
from dualray.exceptions import GetTimeoutError
from tests.conformance.support import MIB, eventually, get, in_words
from tests.machine_load import slowness

pytestmark = pytest.mark.usefixtures("cluster")


@ray.remote
def echo(value):
    return value


@ray.remote(num_cpus=0)
def wait_for(gate, value=None):
    gate.wait()
    return value


@ray.remote
def fail():
    raise ValueError("as it should")


@ray.remote
def megabyte(fill):
    return bytes([fill]) * MIB


# ---- get ---------------------------------------------------------------------------------------------------------


def test_get_of_one_reference_is_its_value():
    assert get(ray.put("value")) == "value"


def test_get_of_a_list_is_a_list_in_the_same_order(gate):
    late = wait_for.remote(gate, "late")
    refs = [echo.remote(3), ray.put(1), late, echo.remote(2)]
    gate.open()
    values = get(refs)
    assert isinstance(values, list)
    assert values == [3, 1, "late", 2]


def test_get_of_an_empty_list_is_an_empty_list():
    assert get([]) == []


def test_get_allows_duplicates():
    a, b = echo.remote("a"), echo.remote("b")
    assert get([a, b, a, a]) == ["a", "b", "a", "a"]


def test_get_can_be_repeated():
    small, large = echo.remote(1), megabyte.remote(7)
    for _ in range(3):
        assert get(small) == 1
        assert get(large) == b"\x07" * MIB


def test_get_with_a_timeout_counts_seconds(gate):
    ref = wait_for.remote(gate)
    start_s = time.monotonic()
    with pytest.raises(GetTimeoutError) as caught:
        ray.get(ref, timeout=0.25)
    assert 0.2 < time.monotonic() - start_s < 2 * slowness()
    assert isinstance(caught.value, TimeoutError)
    gate.open()
    get(ref)


def test_get_with_timeout_0_takes_what_is_there_now(gate):
    late = wait_for.remote(gate)
    with pytest.raises(GetTimeoutError):
        ray.get(late, timeout=0)
    assert ray.get(ray.put(5), timeout=0) == 5
    gate.open()
    get(late)
    assert ray.get(late, timeout=0) is None


def test_a_get_that_timed_out_says_how_many_were_missing_and_why_the_first(gate):
    refs = [ray.put(1), wait_for.remote(gate), wait_for.remote(gate)]
    with pytest.raises(GetTimeoutError) as caught:
        ray.get(refs, timeout=0.1)
    message = str(caught.value)
    assert "2 of 3 objects were not ready within 0.1 s" in message
    assert in_words("wait_for") in message
    gate.open()
    get(refs)


def test_a_get_that_timed_out_may_be_repeated(gate):
    ref = wait_for.remote(gate, "there")
    with pytest.raises(GetTimeoutError):
        ray.get(ref, timeout=0.05)
    gate.open()
    assert get(ref) == "there"


def test_get_raises_as_soon_as_one_has_failed(gate):
    late = wait_for.remote(gate)
    with pytest.raises(ValueError, match="as it should"):
        get([late, fail.remote()])
    gate.open()
    get(late)


def test_a_timeout_in_a_task_is_an_error_of_the_task(gate):
    @ray.remote(num_cpus=0)
    def impatient(refs):
        return ray.get(refs[0], timeout=0.1)

    late = wait_for.remote(gate)
    with pytest.raises(GetTimeoutError):
        get(impatient.remote([late]))
    gate.open()
    get(late)


# ---- put ---------------------------------------------------------------------------------------------------------


def test_put_returns_a_reference_at_once():
    ref = ray.put({"a": [1, 2]})
    assert isinstance(ref, ray.ObjectRef)
    assert get(ref) == {"a": [1, 2]}


def test_two_puts_of_one_value_are_two_objects():
    a, b = ray.put(1), ray.put(1)
    assert a != b
    assert get([a, b]) == [1, 1]


def test_put_in_a_task_and_get_in_the_driver():
    @ray.remote
    def keep():
        return [ray.put("small"), ray.put(b"x" * MIB)]

    small, large = get(keep.remote())
    assert get(small) == "small"
    assert get(large) == b"x" * MIB


def test_put_of_a_list_with_references_keeps_them():
    inner = echo.remote("inner")
    outer = ray.put([inner, "plain"])
    [got, plain] = get(outer)
    assert got == inner
    assert (get(got), plain) == ("inner", "plain")


# ---- wait --------------------------------------------------------------------------------------------------------


def test_wait_splits_what_is_ready_from_what_is_not(gate):
    late, early = wait_for.remote(gate), ray.put(1)
    assert ray.wait([late, early], timeout=10) == ([early], [late])
    gate.open()
    get(late)


def test_wait_returns_lists():
    ready, rest = ray.wait([ray.put(1)])
    assert isinstance(ready, list) and isinstance(rest, list)


def test_wait_returns_at_most_num_returns_though_more_are_ready():
    refs = [ray.put(index) for index in range(5)]
    ready, rest = ray.wait(refs, num_returns=2, timeout=10)
    assert len(ready) == 2
    assert ready + rest == refs


def test_wait_keeps_the_order_of_its_list(gate):
    late = [wait_for.remote(gate, index) for index in range(2)]
    early = [ray.put(index) for index in range(3)]
    mixed = [early[0], late[0], early[1], late[1], early[2]]
    assert ray.wait(mixed, num_returns=3, timeout=10) == (early, late)
    gate.open()
    get(late)


def test_wait_for_all():
    refs = [echo.remote(index) for index in range(20)]
    assert ray.wait(refs, num_returns=20, timeout=10) == (refs, [])


def test_wait_that_times_out_returns_what_is_ready(gate):
    late, early = wait_for.remote(gate), ray.put(1)
    start_s = time.monotonic()
    assert ray.wait([late, early], num_returns=2, timeout=0.25) == ([early], [late])
    assert 0.2 < time.monotonic() - start_s < 2 * slowness()
    gate.open()
    get(late)


def test_wait_with_timeout_0_takes_what_is_there_now(gate):
    late, early = wait_for.remote(gate), ray.put(1)
    assert ray.wait([late], timeout=0) == ([], [late])
    assert ray.wait([late, early], num_returns=2, timeout=0) == ([early], [late])
    gate.open()
    get(late)


def test_wait_counts_a_failed_task_as_ready():
    ref = fail.remote()
    assert ray.wait([ref], timeout=10) == ([ref], [])


def test_wait_without_fetch_local_counts_what_exists_anywhere():
    ref = megabyte.remote(1)
    assert ray.wait([ref], timeout=10, fetch_local=False) == ([ref], [])
    assert get(ref) == b"\x01" * MIB


def test_wait_with_fetch_local_brings_the_value():
    ref = megabyte.remote(2)
    assert ray.wait([ref], timeout=10) == ([ref], [])


def test_wait_of_nothing_is_nothing():
    assert ray.wait([]) == ([], [])


def test_a_loop_of_waits_sees_every_result_once():
    left = [echo.remote(index) for index in range(30)]
    seen = []
    while left:
        [ready], left = ray.wait(left, timeout=10)
        seen.append(get(ready))
    assert sorted(seen) == list(range(30))


def test_wait_in_a_task(gate):
    @ray.remote(num_cpus=0)
    def first(refs):
        ready, rest = ray.wait(refs, timeout=10)
        return len(ready), len(rest)

    late = wait_for.remote(gate)
    assert get(first.remote([late, ray.put(1)])) == (1, 1)
    gate.open()
    get(late)


def test_wait_sees_an_object_of_another_process(gate):
    @ray.remote
    def parent():
        return [wait_for.remote(gate, "child")]

    [child] = get(parent.remote())
    assert ray.wait([child], timeout=0.1) == ([], [child])
    gate.open()
    eventually(lambda: ray.wait([child], timeout=0)[0] == [child], "the child is ready for its borrower")
