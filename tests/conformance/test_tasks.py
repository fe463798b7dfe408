from __future__ import annotations

import time
from enum import StrEnum

import numpy as np
import pytest

import dualray as ray
from dualray.exceptions import TaskError
from tests.conformance.support import MIB, eventually, get

pytestmark = pytest.mark.usefixtures("cluster")

_seen: list[int] = []


@ray.remote
def add(a, b=10, *rest, c=0, **more):
    """Add everything."""
    return a + b + sum(rest) + c + sum(more.values())


class Option(StrEnum):
    B = "b"


@ray.remote
class Adder:
    def __init__(self, b):
        self.b = b

    def b_of(self, b):
        return self.b, b


@ray.remote
def echo(value):
    return value


@ray.remote
def napped(seconds, gate=None):
    """Sleep for some seconds, or until the test opens the gate."""
    if gate is None:
        time.sleep(seconds)
    else:
        eventually(gate.path.exists, "the test opens the gate", within_s=seconds)


@ray.remote
def remember(value):
    _seen.append(value)
    return list(_seen)


@ray.remote
def append_to(items):
    items.append("added by the task")
    return items


@ray.remote(num_returns=3)
def three():
    return "a", "b", "c"


@ray.remote(num_returns=2)
def returns(value):
    return value


@ray.remote
def span(seconds):
    start_s = time.monotonic()
    time.sleep(seconds)
    return start_s, time.monotonic()


def test_a_call_returns_a_reference_to_its_result():
    ref = add.remote(1, 2)
    assert isinstance(ref, ray.ObjectRef)
    assert get(ref) == 3


def test_arguments_are_passed_as_python_passes_them():
    assert get(add.remote(1)) == 11
    assert get(add.remote(1, b=2)) == 3
    assert get(add.remote(1, 2, 3, 4, c=5, d=6)) == 21


def test_names_of_keyword_arguments_may_be_of_a_class_of_their_own():
    assert get(add.remote(1, **{Option.B: 2})) == 3
    assert get(add.remote(ray.put(1), **{Option.B: 2})) == 3
    assert get(Adder.remote(**{Option.B: 3}).b_of.remote(**{Option.B: 4})) == (3, 4)


def test_references_as_arguments_are_replaced_by_their_values():
    one, two = ray.put(1), echo.remote(2)
    assert get(add.remote(one, two)) == 3
    assert get(add.remote(one, b=two, c=one)) == 4


def test_one_reference_may_be_several_arguments():
    ref = ray.put(5)
    assert get(add.remote(ref, ref, ref, c=ref)) == 20


def test_references_inside_containers_stay_references():
    ref = echo.remote("inner")

    @ray.remote
    def look(items, *, table):
        kinds = [type(item).__name__ for item in (*items, table["key"])]
        return kinds, ray.get(items[0], timeout=10), ray.get(table["key"], timeout=10)

    assert get(look.remote([ref], table={"key": ref})) == (["ObjectRef", "ObjectRef"], "inner", "inner")


def test_a_chain_of_tasks_passes_its_value_along():
    ref = ray.put(0)
    for _ in range(40):
        ref = add.remote(ref, 1)
    assert get(ref) == 40


def test_a_task_waits_for_an_argument_that_is_not_there_yet():
    @ray.remote
    def slow():
        time.sleep(0.3)
        return 41

    assert get(add.remote(slow.remote(), 1)) == 42


def test_many_tasks_each_have_their_own_result():
    assert get([add.remote(index, 0) for index in range(300)]) == list(range(300))


def test_without_num_returns_a_tuple_is_one_result():
    assert get(echo.remote((1, 2))) == (1, 2)


def test_num_returns_splits_a_result():
    refs = three.remote()
    assert isinstance(refs, list)
    assert [get(ref) for ref in refs] == ["a", "b", "c"]


@pytest.mark.parametrize("value", [[1, 2], (1, 2), "12", {1: "x", 2: "y"}.keys()], ids=["list", "tuple", "str", "keys"])
def test_any_iterable_of_the_right_length_can_be_split(value):
    assert get(returns.remote(value if not isinstance(value, type({}.keys())) else [*value])) == [*value]


def test_num_returns_0_returns_nothing_and_still_runs(tally):
    @ray.remote(num_returns=0)
    def note():
        tally.add()

    assert note.remote() is None
    eventually(lambda: tally.count == 1, "the task without results has run")


def test_num_returns_1_is_one_reference_and_not_a_list():
    assert get(add.options(num_returns=1).remote(1, 1)) == 2


@pytest.mark.parametrize(
    ("value", "words"),
    [((1, 2, 3), "num_returns=2, but returned 3 values"), ((1,), "returned 1 values")],
)
def test_a_wrong_number_of_results_is_an_error_of_every_reference(value, words):
    for ref in returns.remote(value):
        with pytest.raises(ValueError, match=words) as caught:
            get(ref)
        assert isinstance(caught.value, TaskError)


def test_a_result_that_is_no_sequence_cannot_be_split():
    for ref in returns.remote(7):
        with pytest.raises(TypeError, match="returned one int, which cannot be split"):
            get(ref)


def test_options_change_a_copy():
    pair = echo.options(num_returns=2, name="pair")
    assert get(pair.remote("ab")) == ["a", "b"]
    assert get(echo.remote("ab")) == "ab"


def test_options_of_another_type_are_checked_although_they_are_equal():
    assert get(echo.options(num_returns=1).remote(5)) == 5
    for wrong in (True, 1.0):
        with pytest.raises((TypeError, ValueError)):
            echo.options(num_returns=wrong).remote(5)


def test_a_function_is_pickled_at_its_first_call_whatever_its_options_are():
    captured = 1

    def function():
        return captured

    first, other = ray.remote(function), ray.remote(function)
    early = first.options(name="early")
    assert ray.get(first.remote()) == 1
    captured = 2
    late = first.options(name="late", num_cpus=0.5)
    assert ray.get([first.remote(), early.remote(), late.remote(), other.remote()]) == [1, 1, 1, 2]


def test_an_actor_class_is_pickled_for_its_first_actor_whatever_its_options_are():
    captured = 1

    @ray.remote
    class Actor:
        def read(self):
            return captured

    assert ray.get(Actor.options(num_cpus=0).remote().read.remote()) == 1
    captured = 2
    assert ray.get(Actor.options(num_cpus=0, max_restarts=1).remote().read.remote()) == 1
    assert ray.get(Actor.remote().read.remote()) == 1


def test_options_can_be_given_where_the_function_is_defined_or_later():
    assert len(three.options(num_returns=3).remote()) == 3
    assert get(ray.remote(num_returns=2)(lambda: (1, 2)).remote()) == [1, 2]


def test_a_name_is_what_the_task_and_its_errors_are_called():
    @ray.remote
    def fail_or_tell(fails):
        if fails:
            raise ValueError("no")
        return ray.get_runtime_context().get_task_name()

    named = fail_or_tell.options(name="the good name")
    assert get(named.remote(False)) == "the good name"
    with pytest.raises(TaskError, match="the good name raised"):
        get(named.remote(True))


def test_remote_can_be_called_on_functions_lambdas_and_callables():
    class Doubler:
        def __call__(self, x):
            return 2 * x

    factor = 7
    assert get(ray.remote(lambda x: x * factor).remote(3)) == 21
    assert get(ray.remote(Doubler()).remote(4)) == 8
    assert get(ray.remote(len).remote([1, 2, 3])) == 3


def test_a_remote_function_keeps_name_and_docstring():
    assert add.__name__ == "add"
    assert add.__doc__ == "Add everything."


def test_calling_a_remote_function_directly_says_how_to_call_it():
    with pytest.raises(TypeError, match=r"add is a remote function: call it with add\.remote"):
        add(1, 2)


def test_a_wrong_number_of_arguments_is_a_type_error_that_names_the_argument():
    with pytest.raises(TypeError, match="missing a required argument: 'a'"):
        get(add.remote())


def test_a_remote_function_can_be_an_argument_and_a_result():
    @ray.remote
    def apply(function, value):
        return ray.get(function.remote(value, 1), timeout=10), function

    result, returned = get(apply.remote(add, 1))
    assert result == 2
    assert get(returned.remote(2, 3)) == 5


def test_what_a_task_does_to_its_argument_the_caller_does_not_see():
    items = ["mine"]
    assert get(append_to.remote(items)) == ["mine", "added by the task"]
    assert items == ["mine"]


def test_what_a_task_does_to_its_globals_the_driver_does_not_see():
    assert 1 in get(remember.remote(1))
    assert _seen == []


def test_tasks_run_side_by_side_on_two_cpus():
    get([span.remote(0.05) for _ in range(4)])  # the workers are there
    (start_a, end_a), (start_b, end_b) = get([span.remote(0.5), span.remote(0.5)])
    assert start_a < end_b and start_b < end_a


def test_tasks_that_need_all_cpus_run_one_after_the_other(cluster):
    whole = span.options(num_cpus=cluster.cpus)
    spans = sorted(get([whole.remote(0.1) for _ in range(cluster.nodes + 1)]))
    overlapping = max(sum(start <= other < end for start, end in spans) for other, _ in spans)
    assert overlapping <= cluster.nodes


def test_many_large_arguments_passed_by_value(cluster):
    """Each is put on its own; nothing may free it before its task holds it."""
    array = np.ones(MIB, dtype=np.uint8)
    length = ray.remote(lambda array: len(array))
    for _ in range(3):
        assert get([length.remote(array) for _ in range(30)]) == [MIB] * 30


def test_a_task_does_not_wait_behind_one_that_runs_for_long(gate):
    """Short tasks are pushed ahead to a busy worker. One of the same function may run for long, and a CPU be free."""
    get([napped.remote(0) for _ in range(64)])
    refs = [napped.remote(60, gate), *(napped.remote(0) for _ in range(8))]
    ready, _ = ray.wait(refs[1:], num_returns=8, timeout=20)
    gate.open()
    assert len(ready) == 8
