"""Calls are checked where they are made, with the parameters that the function, constructor or method has."""

from __future__ import annotations

import functools

import cloudpickle
import pytest

import dualray as ray
from dualray.parameters import Parameters, parameters_of
from tests.conformance.support import get

pytestmark = pytest.mark.usefixtures("cluster")


@ray.remote
def f(x, y=1, *, z=2):
    return x, y, z


@ray.remote
class Worker:
    count = 0

    def __init__(self, size, name="w"):
        self.size = size
        self.scale = 10

    def scale(self, x):
        return x * self.size

    def add(self, x, *rest, factor=1, **more):
        return (x + sum(rest)) * factor

    @staticmethod
    def free(x):
        return x

    @classmethod
    def of_class(cls, x):
        return cls.count + x

    async_name = functools.partialmethod(add, 1)


@ray.remote
class Plain:
    def method(self):
        return 1


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda: f.remote(),
            r"f.remote\(\): missing a required argument: 'x'\. f.remote\(\) takes \(x, y=..., \*, z=...\)",
        ),
        (lambda: f.remote(1, 2, 3), r"f.remote\(\): too many positional arguments"),
        (lambda: f.remote(1, w=2), r"f.remote\(\): got an unexpected keyword argument 'w'"),
        (lambda: f.options(name="g").remote(), r"g.remote\(\): missing a required argument: 'x'"),
        (lambda: Worker.remote(), r"Worker.remote\(\): missing a required argument: 'size'"),
        (lambda: Worker.remote(1, 2, 3), r"Worker.remote\(\): too many positional arguments"),
        (
            lambda: Plain.remote(1),
            r"Plain.remote\(\): too many positional arguments\. Plain.remote\(\) takes no arguments",
        ),
    ],
)
def test_what_a_function_or_constructor_does_not_take_is_refused_at_the_call(call, words):
    for _ in range(2):
        with pytest.raises(TypeError, match=words):
            call()


def test_what_a_method_does_not_take_is_refused_at_the_call():
    worker = Worker.remote(2)
    for call in (
        lambda: worker.scale.remote(),
        lambda: worker.scale.remote(1, 2),
        lambda: worker.scale.options(name="other").remote(y=1),
        lambda: worker.add.remote(),
        lambda: worker.free.remote(),
        lambda: worker.of_class.remote(1, 2),
        lambda: worker.__ray_ready__.remote(1),
        lambda: worker.__ray_call__.remote(),
    ):
        with pytest.raises(TypeError, match=r"Worker\.\w+\.remote\(\): "):
            call()
    assert get(worker.add.remote(1, 2, 3, factor=2, other=0)) == 12
    assert get(worker.free.remote(5)) == 5
    assert get(worker.of_class.remote(5)) == 5


def test_a_handle_checks_wherever_it_has_come_from():
    @ray.remote
    def use(worker):
        try:
            worker.scale.remote(1, 2)
        except TypeError as error:
            return str(error)
        return "accepted"

    worker = Worker.options(name="checked").remote(2)
    assert "too many positional arguments. Worker.scale.remote() takes (x)" in get(use.remote(worker))
    with pytest.raises(TypeError, match="too many"):
        ray.get_actor("checked").scale.remote(1, 2)


def test_arguments_that_fit_reach_the_function():
    assert get(f.remote(1)) == (1, 1, 2)
    assert get(f.remote(1, 2, z=3)) == (1, 2, 3)
    assert get(f.remote(y=1, x=2)) == (2, 1, 2)


def test_a_decorator_that_takes_anything_takes_anything():
    def with_one(function):
        @functools.wraps(function)
        def call(*args):
            return function(1, *args)

        return call

    @ray.remote
    @with_one
    def add(x, y):
        return x + y

    assert get(add.remote(2)) == 3


def test_a_builtin_that_python_knows_no_parameters_of_takes_anything():
    assert parameters_of(max) is None
    assert get(ray.remote(max).remote(3, 4)) == 4


def test_a_method_is_that_of_the_class_where_an_attribute_hides_it():
    assert get(Worker.remote(2).scale.remote(4)) == 8


def test_every_actor_is_ready_and_calls_functions():
    worker = Worker.remote(3)
    assert get(worker.__ray_ready__.remote()) is True
    assert get(worker.__ray_call__.remote(lambda self, k, more=0: self.size + k + more, 5, more=1)) == 9


def test_parameters_travel_as_a_short_text():
    def long(a, /, b, c=print, *args, d, e=1, **kwargs):
        """Takes one of each kind."""

    parameters = parameters_of(long)
    again = cloudpickle.loads(cloudpickle.dumps(parameters))
    assert again.text == parameters.text == "0a,1b,1?c,2args,3d,3?e,4kwargs"
    assert str(again) == "(a, /, b, c=..., *args, d, e=..., **kwargs)"
    again.check("long", (1, 2), {"d": 3})
    with pytest.raises(TypeError, match="long: missing a required"):
        again.check("long", (1, 2), {})


def test_shapes_that_are_noted_are_bounded():
    parameters = Parameters("4kwargs")
    for number in range(1000):
        parameters.check("f", (), {f"name_{number}": 1})
    assert len(parameters.accepted) == 256


def test_an_argument_may_have_the_name_self():
    def names(**arguments):
        return sorted(arguments)

    class Named:
        def __init__(this, **arguments):  # noqa: N805 - its callers name an argument self
            this.made_with = sorted(arguments)

        def called_with(this, **arguments):  # noqa: N805
            return this.made_with, sorted(arguments)

    task = ray.remote(names)
    assert get(task.remote(self=1)) == ["self"]
    assert get(task.options(num_cpus=0.5).remote(self=1, other=2)) == ["other", "self"]
    assert get(task.bind(self=1).execute()) == ["self"]
    assert get(ray.remote(Named).remote(self=1).called_with.remote(self=2)) == (["self"], ["self"])
