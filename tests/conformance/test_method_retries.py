"""Options of methods: how often a call is repeated, and for which errors."""

from __future__ import annotations

import os

import pytest

import dualray as ray
from dualray.exceptions import ActorUnavailableError
from tests.conformance.support import get

pytestmark = pytest.mark.usefixtures("cluster")


@ray.remote(max_restarts=-1, max_task_retries=1)
class Flaky:
    @ray.method(max_task_retries=3, retry_exceptions=True)
    def recovers(self, tally):
        count = tally.add()
        if count < 4:
            raise ValueError(count)
        return count

    @ray.method(max_task_retries=3, retry_exceptions=[KeyError])
    def raises(self, tally, error):
        tally.add()
        raise error

    @ray.method(retry_exceptions=True)
    def recovers_once(self, tally):
        count = tally.add()
        if count < 2:
            raise ValueError(count)
        return count

    @ray.method(max_task_retries=0)
    def dies(self, tally):
        tally.add()
        os._exit(1)

    @ray.method
    def plain(self, tally):
        raise ValueError(tally.add())

    @ray.method(num_returns="dynamic", max_task_retries=2, retry_exceptions=[ValueError])
    def items(self, tally):
        yield 1
        if tally.add() < 2:
            raise ValueError
        yield 2


def test_a_method_is_repeated_as_often_as_it_says(tally):
    assert get(Flaky.remote().recovers.remote(tally)) == 4


def test_a_method_that_names_errors_is_repeated_for_these_alone(tally):
    flaky = Flaky.remote()
    with pytest.raises(ValueError, match="not named"):
        get(flaky.raises.remote(tally, ValueError("not named")))
    assert tally.count == 1
    with pytest.raises(KeyError):
        get(flaky.raises.remote(tally, KeyError("named")))
    assert tally.count == 5


def test_a_method_that_does_not_say_how_often_is_repeated_as_the_class_says(tally):
    assert get(Flaky.remote().recovers_once.remote(tally)) == 2


def test_a_method_says_for_itself_what_a_death_costs(tally):
    flaky = Flaky.remote()
    with pytest.raises(ActorUnavailableError):
        get(flaky.dies.remote(tally))
    assert tally.count == 1


def test_a_call_says_it_for_itself(tally):
    flaky = Flaky.remote()
    with pytest.raises(ValueError, match="1"):
        get(flaky.plain.remote(tally))
    with pytest.raises(ValueError, match="4"):
        get(flaky.plain.options(max_task_retries=2, retry_exceptions=[ValueError]).remote(tally))
    assert tally.count == 4


def test_a_dynamic_generator_is_repeated_for_the_errors_that_it_names(tally):
    items = get(Flaky.remote().items.remote(tally))
    assert get(list(items)) == [1, 2]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_task_retries": -2}, "max_task_retries=-2 must be at least -1"),
        ({"max_task_retries": "3"}, "max_task_retries='3' must be an int"),
        ({"retry_exceptions": [3]}, "retry_exceptions contains 3, which is not an exception class"),
        ({"retry_exception": True}, "has no option 'retry_exception'. Did you mean 'retry_exceptions'?"),
    ],
)
def test_an_option_that_is_wrong_is_refused(options, words):
    with pytest.raises((TypeError, ValueError)) as caught:
        ray.method(**options)(lambda self: None)
    assert words in str(caught.value)


def test_a_decorator_takes_a_function_or_options():
    with pytest.raises(TypeError, match="not both"):
        ray.method(len, num_returns=2)
