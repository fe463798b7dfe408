"""Generators with a number of results: what was yielded before an error, or an early end, is there."""

from __future__ import annotations

import pytest

import dualray as ray
from dualray.exceptions import TaskError
from tests.conformance.support import Tally, get

pytestmark = pytest.mark.usefixtures("cluster")


@ray.remote
def count(items):
    yield from range(items)


@ray.remote
def broken(items, error):
    yield from range(items)
    raise error


@ray.remote
def add(*values):
    return sum(values)


@ray.remote
class Source:
    def items(self, number):
        yield from range(number)


def error_of(ref):
    with pytest.raises(TaskError) as caught:
        get(ref)
    return caught.value


def test_results_before_the_error_of_a_generator_are_values():
    first, *others = broken.options(num_returns=3).remote(1, ValueError("half way"))
    assert get(first) == 0
    for ref in others:
        error = error_of(ref)
        assert isinstance(error, ValueError) and error.cause.args == ("half way",)
        assert "raise" in error.remote_traceback
    ready, waiting = ray.wait([first, *others], num_returns=3, timeout=10)
    assert (len(ready), waiting) == (3, [])


def test_a_generator_that_yields_too_little_is_an_error_of_what_lacks():
    *values, missing = count.options(num_returns=3).remote(2)
    assert get(values) == [0, 1]
    error = error_of(missing)
    assert isinstance(error.as_instanceof_cause(), ValueError)
    assert "has num_returns=3, but yielded 2 values" in str(error.cause)


def test_a_generator_that_could_yield_more_is_closed():
    assert get(count.options(num_returns=2).remote(5)) == [0, 1]


def test_a_generator_that_yields_nothing_fails():
    for ref in count.options(num_returns=2).remote(0):
        assert isinstance(error_of(ref), ValueError)


def test_a_result_that_is_an_error_is_that_of_who_needs_it():
    first, lost, _ = broken.options(num_returns=3).remote(1, KeyError("half way"))
    assert get(add.remote(first, 1)) == 1
    assert isinstance(error_of(add.remote(lost, 1)), KeyError)


def test_a_generator_is_tried_again_as_often_as_it_may(tally: Tally):
    @ray.remote(num_returns=2, max_retries=2, retry_exceptions=[ValueError])
    def flaky(good_at):
        yield "first"
        if tally.add() < good_at:
            raise ValueError("not yet")
        yield "second"

    assert get(flaky.remote(3)) == ["first", "second"]
    assert tally.count == 3
    first, second = flaky.remote(100)
    assert get(first) == "first"
    assert isinstance(error_of(second), ValueError)
    assert tally.count == 6


def test_results_of_a_method_that_is_a_generator():
    source = Source.remote()
    first, second, third = source.items.options(num_returns=3).remote(2)
    assert get([first, second]) == [0, 1]
    assert isinstance(error_of(third), ValueError)
